"""Policies that share time out: a program says which part of its time each unit should have on each model of device
(shares.py), and turns of some minutes come as near to that as whole units on whole devices can.

The mechanism is Gavel's (Narayanan et al., OSDI 2020, section 5): in each turn those run that have had least of what
they should have had, all devices of a unit are of one model, what no share claims is used all the same, and who runs on
in the next turn stays where it is. What a unit should have had and has not is its *credit*, in seconds by model, as in
deficit round robin (Shreedhar and Varghese, 1995); it is kept when shares are worked out anew, so that who is served
seldom is served in the end however often others come and go. Shares are worked out anew when a unit comes or ends, or
the fleet changes.

Units without devices take no part, nor gangs that no one model has devices for: they are placed in order of arrival
where there is room. What may not be asked to yield, or runs on a closed node, keeps what it has. All that is remembered
is in `Plan.memory`, as `Remembered` has it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from poise.decoding import convert
from poise.model.decisions import Decision, Hold, Place, Plan, Preempt, Reason, Spot, Why
from poise.model.fleet import CORDONED, CPU, DEVICES, MEMORY, NETWORK, OPEN, Fleet, Floats, Resident, model_of
from poise.model.jobs import ALL, WEIGHT, Work
from poise.model.resources import WHOLE, Shape
from poise.model.views import Candidate, Snapshot
from poise.policy.allowance import Allowance
from poise.policy.emptying import hand_over
from poise.policy.feasible import ability, capacity_when_empty, gang_incomplete
from poise.policy.place import Draft, close_together
from poise.policy.predict import Speeds
from poise.policy.room import Room, room_on
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
"""Gavel's 360 s: long beside what saving and coming back cost, short beside what training takes."""

CREDIT = 10.0
"""Turns that a unit can be owed, or be ahead, at most: what could not be served for long is not all made up for."""

LEAST_LEFT = 1e-6
"""Of its work, what runs has this part left at least."""

LEAST_SHARE = 1e-4
"""A smaller one is the solver's, and not meant: a minute in a week."""

ROUNDING = 1e-9
"""Devices that sums of parts of devices may be off by."""

ATTEMPTS = 4
"""Times that room is shared out anew because what was chosen does not fit together, in one round."""


Order = Callable[[], Sequence[tuple[int, int]]]
"""Numbers of claims with the number of a model for each, the first to be served first."""


class Claim(NamedTuple):
    """A unit that takes part: as the view shows it (one of `candidate` and `residents` is there), what it takes, and
    whether it may be somewhere else in the next turn.
    """

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
    """What is remembered of a unit: when it was submitted, its weight, by model its share, its speed over that on the
    fastest one (0 where it cannot run) and its credit in seconds; the model of its turn (-1: it is not its turn). Of
    its work the part that was `left` when shares were last worked out, the seconds that what was done would have taken
    with an equal part of the fleet (`alone`), and the part done in a second there (`pace`).
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
    """What goes out with a plan and comes back: names and devices of the models, until when time is accounted for, when
    the next turn begins, and an entry for every unit.
    """

    models: list[str] = []
    capacity: list[float] = []
    at: int = 0
    next: int = 0
    units: dict[str, Entry] = {}


class Rounds:
    """Time shared out by `allocate`, in turns of so many nanoseconds; where not `aware`, a device is a
    device, as fast as the fastest. What no share claims is used all the same, unless it is to be left `idle`.
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
        """Raise `InputError` where the solver that it needs is not installed."""
        if self.allocate is not first_come:
            solver()

    def decide(self, view: Snapshot, /) -> Plan:
        """Account for the time since the last plan, work out shares if anything has changed, begin a turn if it is
        time, and give room that is free to who is owed most.
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
        """New shares for all."""
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
        """Numbers of claims, with a model for each, the first to be served first: who is owed most by the end of the
        turn; then what no share claims, in order of arrival, each where it is fastest.
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
    """What there is to remember of a unit that was not known; of one that runs already, as far as the view tells."""
    if claim.candidate is not None:
        return Entry(claim.candidate.submitted, claim.candidate.weight / WEIGHT)
    return Entry(claim.residents[0][1].since, 1.0)


def account(
    claims: Iterable[Claim], units: Mapping[str, Entry], models: Sequence[str], passed: int, now: int, most: float
) -> None:
    """Credit for the time that has passed: what each should have had, less what it has had. What it had without a share
    of it took nothing from anybody.
    """
    seconds = passed / SECOND
    for claim in claims:
        entry, resident = units[claim.unit], claim.resident
        there = models.index(resident.model) if resident is not None and resident.model in models else -1
        for model, share in enumerate(entry.shares):
            if share:
                had = min(seconds, (now - resident.since) / SECOND) if resident is not None and model == there else 0.0
                entry.credit[model] = min(most, max(-most, entry.credit[model] + share * seconds - had))


def _is_steady(entry: Entry) -> bool:
    """Whether it runs where it always should."""
    return entry.model >= 0 and sum(share > 0 for share in entry.shares) <= (entry.shares[entry.model] > 0)


_Alike = tuple[str, tuple[Shape, ...], int, Work, int]
"""What the rates of a claim depend on."""


class Stage:
    """One view, as far as turns are concerned: who takes part, the devices there are for them by model, and how a
    choice is carried out.
    """

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
        """What runs on devices of one model of open nodes and may be asked to yield."""
        running: dict[str, list[tuple[int, Resident]]] = {}
        for row, residents in enumerate(self.view.fleet.residents):
            for resident in residents:
                if resident.shape.gpus and resident.preemptible:
                    running.setdefault(resident.unit, []).append((row, resident))
        claims, closed = {}, self.view.fleet.closed
        for unit, on in running.items():
            first = on[0][1]
            if all(closed[row] == OPEN and self._is_on(row, resident, first.model) for row, resident in on):
                devices = _devices(first.shape, first.size)
                claims[unit] = Claim(unit, first.ordinal, devices, first.size, first.shape, None, tuple(on))
        return claims

    def _is_on(self, row: int, resident: Resident, model: str) -> bool:
        """Whether all devices of an attempt are of this model."""
        if len(resident.devices) == 1:
            return resident.model == model
        held = [device for device in self.view.fleet.nodes[row].devices if device.index in resident.devices]
        return all(model_of(device).called == model for device in held)

    def _waiting(self) -> dict[str, Claim]:
        """What waits for devices, and fits on those of one model."""
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
        """Names of the models of device, and how many there are for those who take part: on open nodes, without what
        others hold.
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

    # --- what is known -----------------------------------------------------------------------------------------------

    def rates(self, claim: Claim) -> list[float]:
        """By model, the part of its work that the unit does there in a second; 0 where it cannot run."""
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
        """By model, whether so many tasks fit on its devices, with all others gone."""
        found = self._fitting.get((shape, tasks))
        if found is None:
            found = self._fitting[shape, tasks] = [
                _devices(shape, tasks) <= capacity + ROUNDING
                and capacity_when_empty(self.view.fleet, self._on(shape, name)) >= tasks
                for name, capacity in zip(self.models, self.capacity, strict=True)
            ]
        return found

    def left(self, claim: Claim, rates: Floats) -> float:
        """The part of its work that is to do, as far as that is known: as it said itself when it was stopped, else by
        what is foreseen of its run time. What has taken longer takes as long again (`profiles.remaining`).
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
        """The artifact that is fastest on a model, and its shape there."""
        key = self._alike(claim)
        self.rates(claim)
        variant = self._variants[key, model]
        return variant, self._on(key[1][variant], self.models[model])

    def _on(self, shape: Shape, model: str) -> Shape:
        """The shape, on devices of this model only."""
        found = self._shapes.get((shape, model))
        if found is None:
            names = tuple(dict.fromkeys(one.name for one in self.view.fleet.models if one.called == model))
            wanted = tuple(name for name in names if not shape.wants.models or name in shape.wants.models)
            wants = msgspec.structs.replace(shape.wants, models=wanted or ("no such model",))
            found = self._shapes[shape, model] = msgspec.structs.replace(shape, wants=wants)
        return found

    # --- what is done ------------------------------------------------------------------------------------------------

    def carry_out(
        self, units: Mapping[str, Entry], order: Order, policy: str, *, begins: bool, first: str = ""
    ) -> tuple[list[Decision], bool]:
        """Choose for the turn who runs on which model, in this `order`, as far as there are devices; ask those to yield
        whose turn it is not, and place the others where room is free already. Nobody without a share overtakes `first`.
        Tells also whether any unit waits.
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
        if not freed:  # nobody leaves: what is free in the draft is free now
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
        """Give out what is left of the devices of each model. Once a turn has begun nobody is asked to yield who
        runs: only what waits is looked at.
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
        """Whether it runs where it is not to run on."""
        resident = claim.resident
        if resident is None:
            return False
        return resident.stopping or entry.model < 0 or self.models[entry.model] != resident.model

    def _seat(self, entries: Sequence[Entry]) -> tuple[dict[int, list[Spot]], list[int]]:
        """Room for those who were chosen and are not there yet, as if those who leave had gone: by number of the claim;
        and the numbers of those who find none, though there are devices enough. What needs most in one place is first.
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
        """Spots for all tasks, close together; none if there is not room for all."""
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
        """The fleet without those who leave."""
        fleet = self.view.fleet
        leaving = [claim for claim, entry in zip(self.claims, entries, strict=True) if self._leaves(claim, entry)]
        if leaving:
            fleet = fleet.copy()
            for claim in leaving:
                for row, resident in claim.residents:
                    _give_back(fleet, row, resident)
        return Draft(msgspec.structs.replace(self.view, fleet=fleet), {"first": 1.0}, TERMS)

    def _room_now(self, row: int) -> Room:
        fleet = self.view.fleet
        return room_on(fleet, row, fleet.free[:, row], fleet.device_memory, fleet.device_share)

    def _are_free(self, spots: Sequence[Spot], shape: Shape, freed: dict[int, Room]) -> bool:
        """Whether nobody who leaves is still there; takes the room if so."""
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
        """Work without devices, and gangs that no one model has devices for, in order of arrival where there is room;
        nobody yields to it.
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
        """Why a unit waits: until those have left who are there, behind the `first`, or since it is the turn of others;
        and every reason of the nodes.
        """
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


def _give_back(fleet: Fleet, row: int, resident: Resident) -> None:
    """In the columns of a copy, the room that an attempt holds."""
    shape = resident.shape
    fleet.free[CPU, row] += shape.cpu
    fleet.free[MEMORY, row] += shape.memory
    fleet.free[NETWORK, row] += shape.network
    for place, device in enumerate(fleet.nodes[row].devices):
        if device.index in resident.devices and fleet.device_share[row, place] >= 0:
            fleet.device_share[row, place] += shape.share
            fleet.device_memory[row, place] += shape.gpu_memory if shape.share != WHOLE else 0
            fleet.free[DEVICES, row] += fleet.device_share[row, place] == WHOLE


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
"""The policies of this kind that are shipped."""
