"""Time-sharing policies: a program decides which part of its time each unit should have on each device model
(shares.py), and turns of some minutes approximate that with whole units on whole devices.

The mechanism is Gavel's (Narayanan et al., OSDI 2020, section 5). Each turn runs the units that have had least of their
share. All devices of a unit are of one model, unclaimed devices are used as well, and a unit that runs in the next turn
stays where it is. A unit's *credit* is the time that it is owed, in seconds by model, as in deficit round robin
(Shreedhar and Varghese, 1995). Credit survives new shares, so a unit that is served rarely gets its turn however often
others come and go. Shares are computed again when a unit comes or ends, or the fleet changes.

Units without devices take no turns, nor do gangs that no single model has enough devices for: they are placed in order
of arrival where there is room. Units that may not be preempted, get no further in their turns, or run on a closed node,
keep their devices. All state is in `Plan.memory`, as `Remembered`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from poise.decoding import convert
from poise.model.decisions import Decision, Hold, Place, Plan, Preempt, Reason, Spot, Why
from poise.model.fleet import CORDONED, OPEN, Floats, Resident, model_of
from poise.model.jobs import WEIGHT, Work
from poise.model.progress import ALL
from poise.model.resources import WHOLE, Shape
from poise.model.views import Candidate, Snapshot
from poise.policy.allowance import Allowance
from poise.policy.emptying import hand_over
from poise.policy.feasible import ability, capacity_when_empty, gang_incomplete
from poise.policy.place import Draft, close_together
from poise.policy.predict import Speeds
from poise.policy.room import Room, change_on, room_on
from poise.policy.score import TERMS
from poise.policy.shares import (
    Allocate,
    Claims,
    alone_rate,
    finish_time_fair,
    first_come,
    max_min,
    min_makespan,
    solver,
)
from poise.units import MINUTE, SECOND

TURN = 6 * MINUTE
"""Default turn, Gavel's 360 s: long compared with saving and restoring, short compared with training."""

CREDIT = 10.0
"""Maximum credit or debit of a unit, in turns: a long time without service is not made up for in full."""

LEAST_LEFT = 1e-6
"""Lower limit of the remaining part of a running unit's work."""

LEAST_SHARE = 1e-4
"""Shares below this are solver noise: a minute in a week."""

ROUNDING = 1e-9
"""Rounding error, in devices, of sums of parts of devices."""

OVERRUN = 10
"""Multiple of its declared run time that a unit may have had in earlier turns. With estimates whose P90 is off by a
factor of 2, as in `traces/options.py`, one in 100,000 honest units needs more on the fastest devices.
"""

ATTEMPTS = 4
"""Maximum number of times in one round that units are chosen again because those chosen do not fit together."""


Order = Callable[[], Sequence[tuple[int, int]]]
"""Numbers of claims, each with the number of a model, in the order of service."""


class Claim(NamedTuple):
    """A unit that takes turns: its entry in the view (either `candidate` or `residents`) and what it takes."""

    unit: str
    ordinal: int
    devices: float
    tasks: int
    shape: Shape
    candidate: Candidate | None
    residents: tuple[tuple[int, Resident], ...]

    @property
    def resident(self) -> Resident | None:
        return self.residents[0][1] if self.residents else None


class Entry(msgspec.Struct, array_like=True):
    """The state of a unit: when it was submitted and its weight; by model its share, its speed relative to the fastest
    one (0 where it cannot run) and its credit in seconds; the model of its turn (-1: not its turn). Of its work, the
    part `left` when shares were last computed, the seconds that the completed part would have taken with an equal part
    of the fleet (`alone`), and the part done in a second there (`pace`).
    """

    submitted: int
    weight: float
    shares: list[float] = []
    speeds: list[float] = []
    credit: list[float] = []
    model: int = -1
    left: float = 1.0
    alone: float = 0.0
    pace: float = 0.0


class Remembered(msgspec.Struct):
    """The state in a plan's memory: names and device counts of the models, the instant up to which time is accounted
    for, the start of the next turn, and an entry for every unit.
    """

    models: list[str] = []
    capacity: list[float] = []
    at: int = 0
    next: int = 0
    units: dict[str, Entry] = {}


class Rounds:
    """Time shared out by `allocate`, in turns of `turn` nanoseconds. If not `aware`, all devices count as equally fast,
    as fast as the fastest. Unclaimed devices are used as well, unless they are to stay `idle`.
    """

    def __init__(
        self, name: str, allocate: Allocate, *, aware: bool = True, idle: bool = False, turn: int = TURN
    ) -> None:
        self.name = name
        self.allocate = allocate
        self.aware = aware
        self.idle = idle
        self.turn = turn

    def check(self) -> None:
        """Raise `InputError` if the required solver is not installed."""
        if self.allocate is not first_come:
            solver()

    def decide(self, view: Snapshot, /) -> Plan:
        """Account for the time since the last plan, compute shares if anything changed, begin a turn if it is due, and
        give free room to the units that are owed most.
        """
        stage = Stage(view)
        kept = convert(dict(view.memory), Remembered) if view.memory else Remembered()
        known = kept.units
        units = {claim.unit: known.get(claim.unit) or first_entry(claim) for claim in stage.claims}
        if kept.models == stage.models:
            account(stage.claims, units, stage.models, view.now - kept.at, view.now, CREDIT * self.turn / SECOND)
        changed = units.keys() != known.keys() or kept.models != stage.models or kept.capacity != stage.capacity
        if changed:
            self.share_out(stage, units)
        begins = view.now >= kept.next or kept.models != stage.models
        for claim in stage.claims:
            entry = units[claim.unit]
            if begins or (entry.model >= 0 and not stage.rates(claim)[entry.model]):  # its room was lost
                entry.model = -1
        first = (
            next((claim.unit for claim in stage.claims if not any(units[claim.unit].shares)), "") if self.idle else ""
        )
        decisions, waits = stage.carry_out(
            units, lambda: self._owed(stage.claims, units), self.name, begins=begins, first=first
        )
        following = view.now + self.turn if begins else kept.next
        steady = not waits and all(_is_steady(units[claim.unit]) for claim in stage.claims)
        now = Remembered(models=stage.models, capacity=stage.capacity, at=view.now, next=following, units=units)
        memory = msgspec.to_builtins(now) if units or known else {}
        return Plan(
            base=view.revision,
            policy=self.name,
            decisions=tuple(decisions),
            until=None if steady else following,
            memory=memory if memory != view.memory else None,
        )

    def share_out(self, stage: "Stage", units: Mapping[str, Entry]) -> None:
        """Compute new shares for all units."""
        rates = np.array([stage.rates(claim) for claim in stage.claims]).reshape(len(stage.claims), len(stage.models))
        if not self.aware:
            rates = np.where(rates > 0, rates.max(axis=1, keepdims=True, initial=0.0), 0.0)
        for claim, rate in zip(stage.claims, rates, strict=True):
            entry, fastest = units[claim.unit], float(rate.max(initial=0.0))
            entry.speeds = (rate / fastest).tolist() if fastest else [0.0] * len(rate)
            if len(entry.credit) != len(rate):
                entry.credit = [0.0] * len(rate)
            left = stage.left(claim, rate)
            entry.alone += max(0.0, entry.left - left) / entry.pace if entry.pace else 0.0
            entry.left = left
        shares, paces = np.zeros(rates.shape), np.zeros(len(rates))
        able = np.asarray(rates.any(axis=1))
        if able.any():
            taking_part = [claim for claim, can in zip(stage.claims, able.tolist(), strict=True) if can]
            entries = [units[claim.unit] for claim in taking_part]
            claims = Claims(
                rates=rates[able],
                devices=np.array([claim.devices for claim in taking_part]),
                weights=np.array([entry.weight for entry in entries]),
                left=np.array([entry.left for entry in entries]),
                waited=np.array([(stage.now - entry.submitted) / SECOND for entry in entries]),
                alone=np.array([entry.alone for entry in entries]),
                capacity=np.array(stage.capacity),
            )
            shares[able], paces[able] = self.allocate(claims), alone_rate(claims)
        shares = np.where(shares < LEAST_SHARE, 0.0, np.round(shares, 6))
        for claim, share, pace in zip(stage.claims, shares.tolist(), paces.tolist(), strict=True):
            units[claim.unit].shares, units[claim.unit].pace = share, pace

    def _owed(self, claims: Sequence[Claim], units: Mapping[str, Entry]) -> list[tuple[int, int]]:
        """Return numbers of claims, each with a model, in order of service: first by what is owed by the end of the
        turn; then unclaimed devices, in order of arrival, each unit where it is fastest.
        """
        entries = [units[claim.unit] for claim in claims]
        shares = np.array([entry.shares for entry in entries])
        speeds = np.array([entry.speeds for entry in entries])
        owed = np.array([entry.credit for entry in entries]) + shares * (self.turn / SECOND)
        ordinals = np.array([[claim.ordinal] for claim in claims]) + np.zeros(shares.shape)
        claimed = shares > 0
        keys = (-speeds, ordinals, np.where(claimed, -owed, 0.0), ~claimed)
        order = np.lexsort([key.ravel() for key in keys])
        order = order[(claimed if self.idle else speeds > 0).ravel()[order]]
        k = shares.shape[1]
        return [(index // k, index % k) for index in order.tolist()]


def first_entry(claim: Claim) -> Entry:
    """Return the state of a new unit; for one that already runs, as far as the view knows it."""
    if claim.candidate is not None:
        return Entry(claim.candidate.submitted, claim.candidate.weight / WEIGHT)
    return Entry(claim.residents[0][1].since, 1.0)


def account(
    claims: Iterable[Claim], units: Mapping[str, Entry], models: Sequence[str], passed: int, now: int, most: float
) -> None:
    """Add to the credit, for the time passed, what each unit should have had less what it had. Time without a share
    took nothing from other units and does not count.
    """
    seconds = passed / SECOND
    for claim in claims:
        entry, resident = units[claim.unit], claim.resident
        there = models.index(resident.model) if resident is not None and resident.model in models else -1
        for model, share in enumerate(entry.shares):
            if share:
                had = min(seconds, (now - resident.since) / SECOND) if resident is not None and model == there else 0.0
                entry.credit[model] = min(most, max(-most, entry.credit[model] + share * seconds - had))


def _may_leave(resident: Resident) -> bool:
    """Return whether a unit takes turns. A unit whose turns bring it no further would never end, so it keeps its
    devices: it reports no progress, and has no checkpoints, or has had many times its declared run time.
    """
    if resident.progress or resident.serves or not resident.preempted:
        return resident.preemptible
    had = resident.attained / (resident.size * max(1, resident.shape.gpus))
    in_vain = not resident.checkpoint or (resident.declared and had > OVERRUN * resident.declared)
    return resident.preemptible and not in_vain


def _is_steady(entry: Entry) -> bool:
    """Return whether a unit runs on the only model where it has a share."""
    return entry.model >= 0 and sum(share > 0 for share in entry.shares) <= (entry.shares[entry.model] > 0)


_Alike = tuple[str, tuple[Shape, ...], int, Work, int]
"""The key of a claim's rates."""


class Stage:
    """One view as turns see it: the units that take turns, their devices by model, and how a choice is applied."""

    def __init__(self, view: Snapshot) -> None:
        self.view = view
        self.now = view.now
        self.speeds = Speeds(view.fleet.models, view.profiles, view.throughputs)
        self._shapes: dict[tuple[Shape, str], Shape] = {}
        self._fitting: dict[tuple[Shape, int], list[bool]] = {}
        self._rates: dict[_Alike, list[float]] = {}
        self._variants: dict[tuple[_Alike, int], int] = {}
        self._draft = Draft(view, {"first": 1.0}, TERMS)
        running = self._running()
        self.models, self.capacity = self._capacity(running)
        waiting = self._waiting()
        self.claims = sorted((*running.values(), *waiting.values()), key=_ordinal)
        self.others = [candidate for candidate in view.candidates if candidate.unit not in waiting]

    def _running(self) -> dict[str, Claim]:
        """Return the units that run on devices of one model of open nodes, and may be preempted."""
        running: dict[str, list[tuple[int, Resident]]] = {}
        for row, residents in enumerate(self.view.fleet.residents):
            for resident in residents:
                if resident.shape.gpus and _may_leave(resident):
                    running.setdefault(resident.unit, []).append((row, resident))
        claims, closed = {}, self.view.fleet.closed
        for unit, on in running.items():
            first = on[0][1]
            if all(closed[row] == OPEN and self._is_on(row, resident, first.model) for row, resident in on):
                devices = _devices(first.shape, first.size)
                claims[unit] = Claim(unit, first.ordinal, devices, first.size, first.shape, None, tuple(on))
        return claims

    def _is_on(self, row: int, resident: Resident, model: str) -> bool:
        """Return whether all devices of an attempt are of this model."""
        if len(resident.devices) == 1:
            return resident.model == model
        held = [device for device in self.view.fleet.nodes[row].devices if device.index in resident.devices]
        return all(model_of(device).called == model for device in held)

    def _waiting(self) -> dict[str, Claim]:
        """Return the units that wait for devices and fit on those of one model."""
        claims = {}
        for candidate in self.view.candidates:
            if candidate.shape.gpus:
                tasks, shape = candidate.least or candidate.tasks, candidate.shape
                if any(any(self._fits(artifact, tasks)) for artifact in (shape, *candidate.others)):
                    devices = _devices(shape, tasks)
                    claims[candidate.unit] = Claim(
                        candidate.unit, candidate.ordinal, devices, tasks, shape, candidate, ()
                    )
        return claims

    def _capacity(self, running: Mapping[str, Claim]) -> tuple[list[str], list[float]]:
        """Return the names of the device models, and how many devices the claims may use: on open nodes, without those
        of units that take no turns.
        """
        fleet = self.view.fleet
        capacity: dict[str, float] = {}
        usable = (fleet.device_model >= 0) & (fleet.device_share > CORDONED // 2) & (fleet.closed == OPEN)[:, None]
        counts = np.bincount(fleet.device_model[usable], minlength=len(fleet.models)).tolist()
        for model, count in zip(fleet.models, counts, strict=True):
            if count:
                capacity[model.called] = capacity.get(model.called, 0.0) + count
        for row, residents in enumerate(fleet.residents):
            for resident in residents if fleet.closed[row] == OPEN else ():
                if resident.unit not in running and resident.shape.gpus:
                    capacity[resident.model] = max(0.0, capacity.get(resident.model, 0.0) - _devices(resident.shape, 1))
        names = sorted(capacity)
        return names, [capacity[name] for name in names]

    # --- rates and remaining work ------------------------------------------------------------------------------------

    def rates(self, claim: Claim) -> list[float]:
        """Return, by model, the part of its work that the unit does there in a second; 0 where it cannot run."""
        key = self._alike(claim)
        found = self._rates.get(key)
        if found is not None:
            return found
        kind, artifacts, declared, work, tasks = key
        found = self._rates[key] = [0.0] * len(self.models)
        for variant, shape in enumerate(artifacts):
            estimates = self.speeds.of(kind, shape.wants.precision, declared, work, devices=True)
            for model, fits in enumerate(self._fits(shape, tasks)):
                if fits:
                    able = ability(self.view.fleet, self._on(shape, self.models[model])).models
                    run = min(estimate.mean for estimate, can in zip(estimates, able, strict=False) if can)
                    if SECOND / run > found[model]:
                        found[model] = SECOND / run
                        self._variants[key, model] = variant
        return found

    def _fits(self, shape: Shape, tasks: int) -> list[bool]:
        """Return, by model, whether `tasks` tasks fit on its devices if all others were gone."""
        found = self._fitting.get((shape, tasks))
        if found is None:
            found = self._fitting[shape, tasks] = [
                _devices(shape, tasks) <= capacity + ROUNDING
                and capacity_when_empty(self.view.fleet, self._on(shape, name)) >= tasks
                for name, capacity in zip(self.models, self.capacity, strict=True)
            ]
        return found

    def left(self, claim: Claim, rates: Floats) -> float:
        """Return the remaining part of a unit's work, as far as known: by its reported progress when it was stopped,
        else by its estimated run time. A unit that overran is expected to take as long again (`profiles.remaining`).
        """
        candidate = claim.candidate
        fastest = float(rates.max(initial=0.0))
        if candidate is not None:
            if candidate.progress:
                return max(LEAST_LEFT, (ALL - candidate.progress) / ALL)
            return max(LEAST_LEFT, min(1.0, candidate.expected / SECOND * fastest)) if fastest else 1.0
        _, resident = claim.residents[0]
        ran = (self.now - resident.since) / SECOND if resident.running else 0.0
        rate = float(rates[self.models.index(resident.model)]) if resident.model in self.models else fastest
        done = resident.progress / ALL or resident.saved / SECOND / claim.tasks * fastest
        done += ran * rate
        return max(LEAST_LEFT, 1.0 - done) if done < 1.0 else done

    def _alike(self, claim: Claim) -> _Alike:
        of = claim.candidate or claim.residents[0][1]
        others = claim.candidate.others if claim.candidate is not None else ()
        return of.kind, (claim.shape, *others), of.declared, of.work, claim.tasks

    def _artifact_on(self, claim: Claim, model: int) -> tuple[int, Shape]:
        """Return the fastest artifact on a model, and its shape there."""
        key = self._alike(claim)
        self.rates(claim)
        variant = self._variants[key, model]
        return variant, self._on(key[1][variant], self.models[model])

    def _on(self, shape: Shape, model: str) -> Shape:
        """Return the shape restricted to devices of this model."""
        found = self._shapes.get((shape, model))
        if found is None:
            names = tuple(dict.fromkeys(one.name for one in self.view.fleet.models if one.called == model))
            wanted = tuple(name for name in names if not shape.wants.models or name in shape.wants.models)
            wants = msgspec.structs.replace(shape.wants, models=wanted or ("no such model",))
            found = self._shapes[shape, model] = msgspec.structs.replace(shape, wants=wants)
        return found

    # --- decisions ---------------------------------------------------------------------------------------------------

    def carry_out(
        self, units: Mapping[str, Entry], order: Order, policy: str, *, begins: bool, first: str = ""
    ) -> tuple[list[Decision], bool]:
        """Choose the units that run in this turn, and their models, in this `order` as far as there are devices.
        Preempt the units whose turn it is not, and place the others where room is free already. No unit without a share
        overtakes `first`. Return also whether any unit waits.
        """
        entries = [units[claim.unit] for claim in self.claims]
        allowance = Allowance(self.view.quotas)
        over = {
            number: reasons
            for number, claim in enumerate(self.claims)
            if claim.candidate is not None and claim.candidate.tenant
            and (reasons := allowance.against(claim.candidate))
        }  # fmt: skip
        refused: set[tuple[int, int]] = set()
        seats: dict[int, list[Spot]] = {}
        for _ in range(ATTEMPTS):
            self._choose(entries, order, refused, over, begins=begins)
            seats, unseated = self._seat(entries)
            for number in unseated:
                refused.add((number, entries[number].model))
                entries[number].model = -1
            if not unseated:
                break
        decisions: list[Decision] = []
        freed: dict[int, Room] = {}
        for number, claim in enumerate(self.claims):
            if not self._leaves(claim, entries[number]):
                continue
            for row, resident in claim.residents:
                freed.setdefault(row, self._room_now(row))
                if resident is claim.resident and not resident.stopping:
                    cause: Literal["move", "yield"] = "move" if entries[number].model >= 0 else "yield"
                    why = self._why(policy, entries[number])
                    decisions.append(Preempt(unit=claim.unit, cause=cause, why=why))
        waits: dict[str, tuple[Reason, ...]] = {}
        for number, claim in enumerate(self.claims):
            candidate, entry = claim.candidate, entries[number]
            if candidate is None:
                continue
            spots = seats.get(number)
            if spots is not None and self._are_free(spots, self._artifact_on(claim, entry.model)[1], freed):
                variant, shape = self._artifact_on(claim, entry.model)
                allowance.take(candidate, shape, len(spots))
                why = self._why(policy, entry)
                decisions.append(Place(unit=claim.unit, spots=tuple(spots), why=why, variant=variant))
            elif not candidate.recovering:
                waits.setdefault(candidate.queue, over.get(number) or self._reasons(candidate, entry, first))
        decisions += self._place_others(policy, allowance, freed, waits)
        if not freed:  # no unit leaves: room free in the draft is free now
            decisions += hand_over(self._draft, policy)
        decisions += [Hold(queue=queue, reasons=reasons) for queue, reasons in waits.items()]
        return decisions, any(entry.model < 0 for entry in entries)

    def _choose(
        self,
        entries: Sequence[Entry],
        order: Order,
        refused: Collection[tuple[int, int]],
        over: Collection[int],
        *,
        begins: bool,
    ) -> None:
        """Hand out the remaining devices of each model. Only waiting units are considered, except when a turn
        begins.
        """
        left = list(self.capacity)
        open_to = []
        for number, (claim, entry) in enumerate(zip(self.claims, entries, strict=True)):
            if entry.model >= 0:
                left[entry.model] -= claim.devices
            elif (claim.candidate is not None and number not in over) or (begins and claim.candidate is None):
                open_to.append(number)
        if not open_to or max(left, default=0.0) < min(self.claims[number].devices for number in open_to):
            return
        may = set(open_to)
        for number, model in order():
            if (
                number in may
                and self.claims[number].devices <= left[model] + ROUNDING
                and (number, model) not in refused
            ):
                entries[number].model = model
                left[model] -= self.claims[number].devices
                may.discard(number)

    def _leaves(self, claim: Claim, entry: Entry) -> bool:
        """Return whether a unit runs where it should not run on."""
        resident = claim.resident
        if resident is None:
            return False
        return resident.stopping or entry.model < 0 or self.models[entry.model] != resident.model

    def _seat(self, entries: Sequence[Entry]) -> tuple[dict[int, list[Spot]], list[int]]:
        """Return spots, by number of the claim, for chosen units that are not there yet, as if leaving units were gone;
        and the numbers of those that find none although there are enough devices. Units that need most in one place go
        first.
        """
        draft = self._draft = self._emptied(entries)
        coming = [
            number
            for number, (claim, entry) in enumerate(zip(self.claims, entries, strict=True))
            if entry.model >= 0 and (claim.resident is None or self._leaves(claim, entry))
        ]
        coming.sort(key=lambda number: (-self.claims[number].shape.gpus, -self.claims[number].tasks))
        seats: dict[int, list[Spot]] = {}
        unseated: list[int] = []
        for number in coming:
            claim = self.claims[number]
            spots = self._sit(draft, claim, self._artifact_on(claim, entries[number].model)[1])
            if spots:
                seats[number] = spots
            else:
                unseated.append(number)
        return seats, unseated

    def _sit(self, draft: Draft, claim: Claim, shape: Shape) -> list[Spot]:
        """Return spots for all tasks, close together; none if there is not room for all."""
        room = draft.room_each(shape)
        candidate = claim.candidate
        if candidate is not None and candidate.avoid in draft.fleet.rows:
            others = room.copy()
            others[draft.fleet.rows[candidate.avoid]] = 0
            room = others if int(draft.within(shape, others).sum()) >= claim.tasks else room
        room = draft.within(shape, room)
        if int(room.sum()) < claim.tasks:
            return []
        return [draft.take(row, claim.candidate, shape) for row in close_together(draft.fleet, room, claim.tasks)]

    def _emptied(self, entries: Sequence[Entry]) -> Draft:
        """Return a draft of the fleet without leaving units."""
        fleet = self.view.fleet
        leaving = [claim for claim, entry in zip(self.claims, entries, strict=True) if self._leaves(claim, entry)]
        if leaving:
            fleet = fleet.copy()
            for claim in leaving:
                for row, resident in claim.residents:
                    change_on(fleet, row, resident, 1)
        return Draft(msgspec.structs.replace(self.view, fleet=fleet), {"first": 1.0}, TERMS)

    def _room_now(self, row: int) -> Room:
        fleet = self.view.fleet
        return room_on(fleet, row, fleet.free[:, row], fleet.device_memory, fleet.device_share)

    def _are_free(self, spots: Sequence[Spot], shape: Shape, freed: dict[int, Room]) -> bool:
        """Return whether no leaving unit still holds these spots; take the room if so."""
        rows = [self.view.fleet.rows[spot.node] for spot in spots]
        taken = {row: freed[row].copy() for row in rows if row in freed}
        for row, spot in zip(rows, spots, strict=True):
            if row in taken:
                if not taken[row].has(shape, spot.devices):
                    return False
                taken[row].take(shape, spot.devices)
        freed.update(taken)
        return True

    def _place_others(
        self, policy: str, allowance: Allowance, freed: dict[int, Room], waits: dict[str, tuple[Reason, ...]]
    ) -> list[Decision]:
        """Place work without devices, and gangs that no single model has enough devices for, in order of arrival where
        there is room. Nothing is preempted for it.
        """
        decisions: list[Decision] = []
        for candidate in self.others:
            if candidate.queue in waits and not candidate.recovering:
                continue
            tasks, shape = candidate.least or candidate.tasks, candidate.shape
            reasons = allowance.against(candidate)
            if not reasons:
                claim = Claim(candidate.unit, candidate.ordinal, 0.0, tasks, shape, candidate, ())
                spots = self._sit(self._draft, claim, shape)
                if spots and self._are_free(spots, shape, freed):
                    allowance.take(candidate, shape, tasks)
                    why = Why(policy=policy, base=self.view.revision, rank="first come, takes no turns")
                    decisions.append(Place(unit=candidate.unit, spots=tuple(spots), why=why))
                    continue
                reasons = self._reasons(candidate)
            if not candidate.recovering:
                waits[candidate.queue] = reasons
        return decisions

    def _reasons(self, candidate: Candidate, entry: Entry | None = None, first: str = "") -> tuple[Reason, ...]:
        """Return why a unit waits: for leaving units, behind the `first`, or for its turn; and each node's reasons."""
        shapes = (candidate.shape, *candidate.others)
        if not len(self.view.fleet):
            return (Reason(code="NO_NODES"),)
        there = tuple(reason for shape in shapes for reason in self._draft.reasons(shape))
        needed = candidate.least or candidate.tasks
        if needed > 1:
            have = min(needed - 1, int(self._draft.capacity(candidate.shape).sum()))
            there = (gang_incomplete(self.view.fleet, candidate.shape.where, needed, have), *there)
        if entry is not None and entry.model >= 0:
            return (Reason(code="PREEMPTING", have="work there", need=candidate.unit), *there)
        if first and candidate.unit != first:
            return (Reason(code="BEHIND", subject=first),)
        if entry is not None and not first and any(entry.speeds):
            return (Reason(code="TURN"), *there)
        return there or (Reason(code="NEXT_ROUND"),)

    def _why(self, policy: str, entry: Entry) -> Why:
        if entry.model < 0:
            words = "it is the turn of others"
        elif entry.shares[entry.model]:
            words = f"{entry.shares[entry.model]:.0%} of its time is to be on {self.models[entry.model]}"
        else:
            words = f"nobody claims {self.models[entry.model]}"
        return Why(policy=policy, base=self.view.revision, rank=words)


def _devices(shape: Shape, tasks: int) -> float:
    return shape.gpus * tasks * shape.share / WHOLE


def _ordinal(claim: Claim) -> int:
    return claim.ordinal


SHARING = (
    Rounds("max-min", max_min),
    Rounds("max-min-agnostic", max_min, aware=False),
    Rounds("finish-time-fair", finish_time_fair),
    Rounds("finish-time-fair-agnostic", finish_time_fair, aware=False),
    Rounds("min-makespan", min_makespan),
    Rounds("min-makespan-agnostic", min_makespan, aware=False),
    Rounds("fifo-fastest", first_come, idle=True),
)
"""The shipped time-sharing policies."""
