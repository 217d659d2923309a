"""What if? A view with something changed, on which a policy decides as it would on a real one; and deciding again and
again on such views until a unit is placed: when it is expected to start.

A view is never changed: the `with_…` functions give a new one. What a hypothesis does not know it leaves out: nothing
more is submitted, and no node fails.
"""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np

from poise.model.decisions import Place, Plan, Preempt, Resize
from poise.model.fleet import CPU, DEVICES, DRAINED, MEMORY, NETWORK, Fleet, PoolView, Resident, model_under
from poise.model.jobs import GRACE
from poise.model.profiles import BRIEF, CERTAIN, NO_END, Estimate, remaining
from poise.model.quotas import asked
from poise.model.resources import WHOLE, Node, Shape
from poise.model.views import Candidate, Follower, Snapshot
from poise.policy.place import Draft
from poise.policy.predict import Speeds
from poise.policy.protocol import Policy
from poise.policy.rank import ORDERS, Order
from poise.policy.score import TERMS
from poise.policy.static import Static
from poise.policy.suites import Suite

STEPS = 200
"""Decisions at most to find out when a unit starts."""

LOOKED_AT = 100_000
"""Nodes and candidates that these decisions may look at, all together: so many take about a second to decide on."""

WORTHWHILE = 10
"""With fewer decisions than this nothing is foreseen: the fleet is too large to be looked ahead in."""

GUESSES = 4
"""Units named whose run time is only guessed."""

LEAVING = "leaving "
"""Stands before the name of a unit that goes on while some of it ends."""

ClusterPolicy = Policy[Snapshot, Plan]


class Hypothesis:
    """A working copy of a view, changed step by step. `view()` shows it as it is now; whoever is shown it keeps it no
    longer than until the next change.
    """

    def __init__(self, view: Snapshot) -> None:
        self._base = view
        self.now = view.now
        self.memory: Mapping[str, Any] = view.memory
        self.fleet = view.fleet.copy()
        self.candidates = {candidate.unit: candidate for candidate in view.candidates}
        self._backlog = dict(view.backlog)
        self._elastic = {resident.unit: resident for resident in view.elastic}
        self._rows: dict[str, list[int]] | None = None
        self._quotas = dict(view.quotas)

    def view(self) -> Snapshot:
        """The candidates are in order of submission, as a ledger would show them."""
        return msgspec.structs.replace(
            self._base,
            now=self.now,
            fleet=self.fleet,
            candidates=tuple(sorted(self.candidates.values(), key=_ordinal)),
            backlog=self._backlog,
            memory=self.memory,
            elastic=tuple(self._elastic.values()),
            quotas=self._quotas,
        )

    # --- what waits --------------------------------------------------------------------------------------------------

    def add(self, candidate: Candidate) -> None:
        """One more unit waits; one of the same name takes its place."""
        if candidate.unit in self.candidates:
            self.remove(candidate.unit)
        self.candidates[candidate.unit] = candidate
        self._backlog[candidate.queue] = self._backlog.get(candidate.queue, 0) + 1

    def show(self, candidate: Candidate) -> None:
        """One that waits already, and was counted in its queue, is shown."""
        self.candidates[candidate.unit] = candidate
        self._backlog.setdefault(candidate.queue, 1)

    def remove(self, unit: str) -> Candidate:
        """Wait no more. Raises KeyError for a unit that is not shown."""
        candidate = self.candidates.pop(unit)
        left = self._backlog.get(candidate.queue, 1) - 1
        if left > 0:
            self._backlog[candidate.queue] = left
        else:
            self._backlog.pop(candidate.queue, None)
        return candidate

    def hidden(self) -> dict[str, int]:
        """By queue: how many units wait in it that are not shown."""
        hidden = dict(self._backlog)
        for candidate in self.candidates.values():
            hidden[candidate.queue] = hidden.get(candidate.queue, 0) - (not candidate.recovering)
        return {queue: count for queue, count in hidden.items() if count > 0}

    # --- what runs ---------------------------------------------------------------------------------------------------

    def place(self, place: Place) -> tuple[Resident, ...]:
        """Carry out a decision: room is taken, the unit waits no more. Returns its attempts; none if it queues behind
        its like, which takes no room.
        """
        fleet = self.fleet
        if self.candidates[place.unit].recovering:
            self.end(place.unit)  # what a lost node still holds of it is given up
        candidate = self.remove(place.unit)
        shape = (candidate.shape, *candidate.others)[place.variant]
        if place.queued:
            pools = fleet.pools.setdefault(shape.key(), {})
            row = fleet.rows[place.spots[0].node]
            pool = pools.get(row, PoolView(0, 0))
            pools[row] = PoolView(pool.slots, pool.attempts + 1, pool.long)
            return ()
        residents = []
        for task, spot in enumerate(place.spots):
            row = fleet.rows[spot.node]
            resident = Resident(
                **_shared(candidate)
                | {
                    "shape": shape,
                    "since": self.now,
                    "model": model_under(fleet.nodes[row], spot.devices),
                    "devices": spot.devices,
                    "running": True,
                    "size": len(place.spots),
                    "most": candidate.tasks,
                    "task": task,
                }
            )
            self._take(row, resident.shape, resident.devices, 1)
            self._count(resident, -1)
            self._count_yielding(row, resident, 1)
            fleet.residents[row] = (*fleet.residents[row], resident)
            if self._rows is not None:
                self._rows.setdefault(candidate.unit, []).append(row)
            residents.append(resident)
        if candidate.least:
            self._elastic[candidate.unit] = residents[0]
        return tuple(residents)

    def end(self, unit: str) -> tuple[Resident, ...]:
        """All attempts of a unit have ended, and their room is free. Returns them as they were."""
        ended: list[Resident] = []
        for row in dict.fromkeys(self._index().pop(unit, ())):
            stays = []
            for resident in self.fleet.residents[row]:
                if resident.unit != unit:
                    stays.append(resident)
                    continue
                ended.append(resident)
                self._take(row, resident.shape, resident.devices, -1)
                self._count(resident, 1)
                self._count_yielding(row, resident, -1)
            self.fleet.residents[row] = tuple(stays)
        self._elastic.pop(unit, None)
        return tuple(ended)

    def stop(self, unit: str) -> None:
        """A unit is asked to end; it still holds its room."""
        for row in dict.fromkeys(self._index().get(unit, ())):
            changed = []
            for resident in self.fleet.residents[row]:
                if resident.unit == unit and not resident.stopping:
                    self._count_yielding(row, resident, -1)
                    changed.append(msgspec.structs.replace(resident, stopping=True))
                else:
                    changed.append(resident)
            self.fleet.residents[row] = tuple(changed)
        self._elastic.pop(unit, None)

    def resize(self, resize: Resize) -> None:
        """A gang changes while it runs: who leaves still holds its room."""
        rows = self._index()[resize.unit]
        of = [one for row in dict.fromkeys(rows) for one in self.fleet.residents[row] if one.unit == resize.unit]
        size = of[0].size + len(resize.joins) - len(resize.leaves)
        changed = {one.task: msgspec.structs.replace(one, size=size, since=self.now) for one in of}
        for task in resize.leaves:
            changed[task] = msgspec.structs.replace(changed[task], stopping=True)
        for row in dict.fromkeys(rows):
            for one in self.fleet.residents[row]:
                if one.unit == resize.unit and one.task in resize.leaves:
                    self._count_yielding(row, one, -1)
            self.fleet.residents[row] = tuple(
                changed[one.task] if one.unit == resize.unit else one for one in self.fleet.residents[row]
            )
        first = next(one for one in changed.values() if not one.stopping)
        for number, spot in enumerate(resize.joins, start=max(changed) + 1):
            row = self.fleet.rows[spot.node]
            one = msgspec.structs.replace(first, devices=spot.devices, task=number)
            self._take(row, one.shape, one.devices, 1)
            self._count(one, -1)
            self._count_yielding(row, one, 1)
            self.fleet.residents[row] = (*self.fleet.residents[row], one)
            rows.append(row)
        self._elastic[resize.unit] = first

    def end_leaving(self, unit: str) -> None:
        """Those of a gang that were to leave have ended."""
        for row in dict.fromkeys(self._index().get(unit, ())):
            for one in self.fleet.residents[row]:
                if one.unit == unit and one.stopping:
                    self._take(row, one.shape, one.devices, -1)
                    self._count(one, 1)
                    self._index()[unit].remove(row)
            self.fleet.residents[row] = tuple(
                one for one in self.fleet.residents[row] if one.unit != unit or not one.stopping
            )

    def end_brief(self) -> None:
        """What is known to be brief, and so is no resident, has ended on every node."""
        fleet = self.fleet
        rows = np.array(sorted({row for pools in fleet.pools.values() for row in pools}), np.int64)
        fleet.pools.clear()
        for row in rows.tolist():
            held = np.zeros(3, np.int64)
            for resident in fleet.residents[row]:
                held += (resident.shape.cpu, resident.shape.memory, resident.shape.network)
            fleet.free[:DEVICES, row] = fleet.total[:DEVICES, row] - held

    def carry_out(self, plan: Plan) -> None:
        """All that a plan decides, as if it had been done at once; who is asked to yield is still there."""
        for decision in plan.decisions:
            if isinstance(decision, Place):
                self.place(decision)
            elif isinstance(decision, Preempt):
                self.stop(decision.unit)
            elif isinstance(decision, Resize):
                self.resize(decision)
        if plan.memory is not None:
            self.memory = plan.memory

    # --- inside ------------------------------------------------------------------------------------------------------

    def _index(self) -> dict[str, list[int]]:
        """The rows of every unit's attempts."""
        if self._rows is None:
            self._rows = {}
            for row, residents in enumerate(self.fleet.residents):
                for resident in residents:
                    self._rows.setdefault(resident.unit, []).append(row)
        return self._rows

    def _count(self, resident: Resident, sign: int) -> None:
        left = self._quotas.get(resident.tenant)
        if left is not None:
            self._quotas[resident.tenant] = left.plus(asked(resident.shape), sign)

    def _take(self, row: int, shape: Shape, devices: tuple[int, ...], sign: int) -> None:
        fleet = self.fleet
        fleet.free[CPU, row] -= sign * shape.cpu
        fleet.free[MEMORY, row] -= sign * shape.memory
        fleet.free[NETWORK, row] -= sign * shape.network
        for place, device in enumerate(fleet.nodes[row].devices if devices else ()):
            if device.index in devices:
                fleet.device_share[row, place] -= sign * shape.share
                if shape.share != WHOLE:
                    fleet.device_memory[row, place] -= sign * shape.gpu_memory
        if devices:
            has = fleet.device_model[row] >= 0
            fleet.free[DEVICES, row] = int(((fleet.device_share[row] == WHOLE) & has).sum())

    def _count_yielding(self, row: int, resident: Resident, sign: int) -> None:
        if resident.preemptible and not resident.stopping:
            shape = resident.shape
            held = sign * np.array((shape.cpu, shape.memory, shape.network, shape.gpus), np.int64)
            self.fleet.yielding[resident.priority, :, row] += held


# --- views with one thing changed ------------------------------------------------------------------------------------


def with_candidates(view: Snapshot, candidates: Iterable[Candidate]) -> Snapshot:
    """These wait as well."""
    changed = Hypothesis(view)
    for candidate in candidates:
        changed.add(candidate)
    return changed.view()


def with_changed(view: Snapshot, candidate: Candidate, **fields: Any) -> Snapshot:
    """A unit asks for something else, or has another priority: it waits in a queue of its own then, since it is like
    no other any more. It may be one that the view does not show.
    """
    changed = Hypothesis(view)
    if candidate.unit in changed.candidates:
        changed.remove(candidate.unit)
    changed.add(msgspec.structs.replace(candidate, queue=f"changed/{candidate.unit}", **fields))
    return changed.view()


def with_places(view: Snapshot, places: Iterable[Place]) -> Snapshot:
    """These placements are made."""
    changed = Hypothesis(view)
    for place in places:
        changed.place(place)
    return changed.view()


def after(view: Snapshot, plan: Plan) -> Snapshot:
    """The view once a plan has been carried out; who is asked to yield still holds its room."""
    changed = Hypothesis(view)
    changed.carry_out(plan)
    return changed.view()


def without(view: Snapshot, units: Collection[str]) -> Snapshot:
    """All attempts of these units have ended and their room is free; they do not wait either."""
    changed = Hypothesis(view)
    for unit in units:
        changed.end(unit)
        if unit in changed.candidates:
            changed.remove(unit)
    return changed.view()


def with_drain(view: Snapshot, node: str, *, on: bool) -> Snapshot:
    """A node is closed to new work, or opened. Raises KeyError for a node that is not there."""
    changed = Hypothesis(view)
    changed.fleet.closed[changed.fleet.rows[node]] = DRAINED if on else 0
    return changed.view()


def with_node(view: Snapshot, node: Node) -> Snapshot:
    """One more node has joined, empty. Its name must be new."""
    fleet = Fleet(sorted((*view.fleet.nodes, node), key=_name))
    fleet.take_over(view.fleet)
    return msgspec.structs.replace(view, fleet=fleet)


# --- asking a policy -------------------------------------------------------------------------------------------------


def placed(plan: Plan, unit: str) -> Place | None:
    """Where a plan places a unit; None if it does not."""
    return next((of for of in plan.decisions if isinstance(of, Place) and of.unit == unit), None)


def starts(policy: ClusterPolicy, view: Snapshot, unit: str) -> tuple[Place, tuple[str, ...]] | None:
    """The placement with which a unit starts now, or as soon as those have yielded who are asked to for its sake, and
    their names; None if it waits for anything else.
    """
    plan = policy.decide(view)
    found = placed(plan, unit)
    if found is not None:
        return found, ()
    asked = [of for of in plan.decisions if isinstance(of, Preempt | Resize) and of.to == unit]
    victims = tuple(of.unit for of in asked)
    if not victims:
        return None
    changed = Hypothesis(view)
    changed.carry_out(plan)
    for of in asked:
        if isinstance(of, Resize):
            changed.end_leaving(of.unit)
        else:
            changed.end(of.unit)
    changed.now += GRACE
    found = placed(policy.decide(changed.view()), unit)
    return None if found is None else (found, victims)


def order_of(policy: ClusterPolicy) -> Order | None:
    """The order in which a policy serves what waits; None where only its own code knows it."""
    if isinstance(policy, Suite):
        return policy.order
    return ORDERS["arrival"] if isinstance(policy, Static) else None


def draft_of(policy: ClusterPolicy, view: Snapshot) -> Draft:
    """A statement of placements on a view, that scores nodes as the policy does; by name where only it knows how."""
    if isinstance(policy, Suite):
        return Draft(view, policy.recipe.score, policy.terms, spread=policy.recipe.spread)
    return Draft(view, {"first": 1.0}, TERMS)


def scores(
    policy: ClusterPolicy, view: Snapshot, candidate: Candidate, shape: Shape, nodes: Iterable[str]
) -> list[float]:
    """What each of these nodes scores for one task, in [0, 1], as the policy weighs it; nothing where only its own code
    knows that.
    """
    if order_of(policy) is None:
        return []
    draft = draft_of(policy, view)
    rows = np.array([view.fleet.rows[node] for node in nodes], np.int64)
    return [round(float(score), 4) for score in draft.scores(rows, shape, draft.estimates(candidate, shape))]


# --- when it starts --------------------------------------------------------------------------------------------------


class Forecast(NamedTuple):
    """The instants at which a unit starts if all that runs takes a mean deviation less than foreseen, what is foreseen,
    or two more; None where that is not foreseeable, and `why`. An `earliest` alone is a bound: not before.

    `guesses` names units that have to end before it and of whose run time nothing is known.
    """

    earliest: int | None = None
    likely: int | None = None
    latest: int | None = None
    why: str = ""
    guesses: tuple[str, ...] = ()


def expected_start(
    policy: ClusterPolicy,
    view: Snapshot,
    candidate: Candidate,
    *,
    ahead: int = 0,
    followers: Sequence[Follower] = (),
) -> Forecast:
    """When a unit starts, found by deciding again and again, each time at the next instant at which something ends.

    `ahead` counts the units before it in its own queue that the view does not show; `followers` come up as those end
    for which they wait. What runs is expected to end as `reclaim.ends` has it, and what is placed meanwhile as foreseen
    on the device it gets.
    """
    steps = min(STEPS, LOOKED_AT // max(1, len(view.fleet) + len(view.candidates)))
    if steps < WORTHWHILE:
        return Forecast(why="the fleet is too large, and too much waits, to decide again and again on it")
    mean = _Ahead(policy, view, candidate, ahead, 0, followers)
    likely = mean.start(steps)
    if mean.stuck:
        return Forecast(why="nothing that runs makes room for it when it ends", guesses=mean.guessed())
    short = _Ahead(policy, view, candidate, ahead, -1, followers)
    earliest = short.start(steps) or short.now
    if likely is None:
        return Forecast(earliest, why=f"it does not start within {steps} decisions from now", guesses=mean.guessed())
    latest = _Ahead(policy, view, candidate, ahead, CERTAIN, followers).start(steps)
    why = "" if latest is not None else f"if runs take longer than foreseen, more than {steps} decisions ahead"
    # Shorter runs may lead to a later start, and longer ones to an earlier (Graham's anomalies, 1969).
    return Forecast(min(likely, earliest), likely, None if latest is None else max(likely, latest), why, mean.guessed())


class _Ahead:
    """One future, decided step by step."""

    def __init__(
        self,
        policy: ClusterPolicy,
        view: Snapshot,
        candidate: Candidate,
        ahead: int,
        leaning: int,
        followers: Sequence[Follower],
    ) -> None:
        self._policy = policy
        self._needs = {follower.candidate.unit: set(follower.needs) for follower in followers}
        self._following: dict[str, list[Candidate]] = {}
        for follower in followers:
            for need in follower.needs:
                self._following.setdefault(need, []).append(follower.candidate)
        self._world = world = Hypothesis(view)
        self._unit = candidate.unit
        self._leaning = leaning
        self._grace = GRACE if leaning > 0 else 0 if leaning < 0 else GRACE // 2  # within it, one cannot know when
        self._speeds = Speeds(view.fleet.models, view.profiles, view.throughputs)
        self._guesses: dict[str, None] = {}
        self._ends: list[tuple[int, int, str]] = []
        self._end_of: dict[str, int] = {}
        self._returning: dict[str, Resident] = {}
        self.stuck = False
        self._made = 0
        self._hidden = world.hidden()
        self._like: dict[str, Candidate] = {}
        self._shown: dict[str, int] = {}
        for shown in view.candidates:
            if not shown.recovering:
                self._shown[shown.queue] = self._shown.get(shown.queue, 0) + 1
                self._like[shown.queue] = shown
        self._target = None if candidate.unit in world.candidates else candidate
        self._ahead = ahead
        if self._target is not None and not (ahead and candidate.queue in self._like):
            self._show_target()
        for follower in followers:
            if not follower.needs:
                self._come_up(follower.candidate)
        if view.fleet.pools:
            heapq.heappush(self._ends, (view.now + BRIEF, -1, ""))
        for residents in view.fleet.residents:
            for resident in residents:
                if resident.stopping and resident.resizes:  # it leaves its gang, which goes on
                    self._will_end(LEAVING + resident.unit, self._end(resident, NO_END))
                elif resident.unit not in self._end_of and (resident.stopping or not resident.serves):
                    self._will_end(resident.unit, self._end(resident, self._speeds.of_attempt(resident)))

    @property
    def now(self) -> int:
        """The instant at which was decided last."""
        return self._world.now

    def start(self, steps: int) -> int | None:
        """The instant; None if it is not reached in so many decisions, or never (`stuck`)."""
        world = self._world
        for _ in range(steps):
            plan = self._policy.decide(world.view())
            found = placed(plan, self._unit)
            if found is not None:
                return world.now + (BRIEF if found.queued else 0)
            if self._carry_out(plan) and self._show_more():
                continue
            instants = [at for at in (self._next_end(), plan.until) if at is not None]
            if self._next_end() is None and not any(isinstance(of, Place) for of in plan.decisions):
                self.stuck = True
                return None
            world.now = max(world.now, min(instants))
            self._end_due()
            self._show_more()
        return None

    def _carry_out(self, plan: Plan) -> bool:
        """Whether anything was placed."""
        world, any_placed = self._world, False
        for decision in plan.decisions:
            if isinstance(decision, Place):
                any_placed = True
                residents = world.place(decision)
                if residents and not residents[0].serves:
                    estimate = max((self._speeds.of_attempt(resident) for resident in residents), key=_mean)
                    if estimate.source == "default":
                        self._guesses.setdefault(decision.unit)
                    run = max(0, estimate.mean + self._leaning * estimate.deviation)
                    self._will_end(decision.unit, world.now + run)
            elif isinstance(decision, Preempt):
                self._returning[decision.unit] = self._first(decision.unit)
                world.stop(decision.unit)
                self._will_end(decision.unit, world.now + self._grace)
            elif isinstance(decision, Resize):
                world.resize(decision)
                self._resized(decision)
        if plan.memory is not None:
            world.memory = plan.memory
        return any_placed

    def _resized(self, resize: Resize) -> None:
        """Who leaves ends soon, and what is left of the work takes as long as it does in the new size."""
        now, unit = self._world.now, resize.unit
        if resize.leaves:
            self._will_end(LEAVING + unit, now + self._grace)
        at = self._end_of.get(unit)
        if at is not None:
            size = self._first(unit).size
            before = size + len(resize.leaves) - len(resize.joins)
            self._will_end(unit, now + max(0, at - now) * before // max(1, size))

    def _end(self, resident: Resident, estimate: Estimate) -> int:
        """The instant at which what runs now ends. What has overrun may end at once or take much longer: how much it
        differs is then as uncertain as it is.
        """
        now = self._world.now
        if resident.stopping:
            return now + self._grace
        if estimate.source == "default":
            self._guesses.setdefault(resident.unit)
        elapsed = max(0, now - resident.since) if resident.running else 0
        left = remaining(elapsed, estimate.mean, estimate.deviation)
        overrun = elapsed > estimate.mean + CERTAIN * estimate.deviation
        return now + max(0, left + self._leaning * (left if overrun else estimate.deviation))

    def _will_end(self, unit: str, at: int) -> None:
        self._made += 1
        self._end_of[unit] = at
        heapq.heappush(self._ends, (at, self._made, unit))

    def _next_end(self) -> int | None:
        while self._ends and self._ends[0][2] and self._end_of.get(self._ends[0][2]) != self._ends[0][0]:
            heapq.heappop(self._ends)  # it was asked to yield meanwhile, and ends sooner
        return self._ends[0][0] if self._ends else None

    def _end_due(self) -> None:
        world = self._world
        while (at := self._next_end()) is not None and at <= world.now:
            unit = heapq.heappop(self._ends)[2]
            if not unit:
                world.end_brief()
                continue
            del self._end_of[unit]
            if unit.startswith(LEAVING):
                world.end_leaving(unit.removeprefix(LEAVING))
                continue
            world.end(unit)
            if unit in self._returning:
                resident = self._returning.pop(unit)
                world.add(waiting_again(resident, world.now, self._speeds.of_attempt(resident).mean))
                continue
            for following in self._following.pop(unit, ()):
                self._needs[following.unit].discard(unit)
                if not self._needs[following.unit]:
                    self._come_up(following)

    def _come_up(self, following: Candidate) -> None:
        """All that it waited for has ended."""
        self._world.add(msgspec.structs.replace(following, ready=self._world.now))

    def _show_more(self) -> bool:
        """The next ones of long queues are shown, as they come up: like those before them. Whether there were any."""
        any_shown = False
        world = self._world
        left: dict[str, int] = {}
        for candidate in world.candidates.values():
            left[candidate.queue] = left.get(candidate.queue, 0) + 1
        for queue in list(self._hidden):
            like = self._like.get(queue)
            room = self._shown.get(queue, 0) - left.get(queue, 0)
            if like is None or room <= 0:
                continue
            for _ in islice(range(self._hidden[queue]), room):
                any_shown = True
                self._hidden[queue] -= 1
                if self._target is not None and queue == self._target.queue and not self._ahead:
                    self._show_target()
                    continue
                self._ahead -= self._target is not None and queue == self._target.queue
                self._like[queue] = like = msgspec.structs.replace(
                    like, unit=f"{queue}#{self._hidden[queue]}", ordinal=like.ordinal + 1
                )
                world.show(like)
            if not self._hidden[queue]:
                del self._hidden[queue]
        return any_shown

    def _show_target(self) -> None:
        if self._target is not None:
            self._world.show(self._target)
            self._target = None

    def _first(self, unit: str) -> Resident:
        rows = self._world._index()[unit]
        return next(resident for resident in self._world.fleet.residents[rows[0]] if resident.unit == unit)

    def guessed(self) -> tuple[str, ...]:
        """Units of whose run time nothing is known."""
        return tuple(islice(self._guesses, GUESSES))


# --- inside ----------------------------------------------------------------------------------------------------------


SHARED = tuple(name for name in Candidate.__struct_fields__ if name in Resident.__struct_fields__)
"""What is known of a unit by the same name before it is placed and after."""


def _shared(of: Candidate | Resident) -> dict[str, Any]:
    return {name: getattr(of, name) for name in SHARED}


def waiting_again(resident: Resident, now: int, expected: int) -> Candidate:
    """What has yielded waits anew, in a queue of its own, with all of its work before it."""
    return Candidate(
        **_shared(resident)
        | {
            "job": resident.unit.partition(".")[0],
            "tasks": resident.most,
            "submitted": resident.since,
            "ready": now,
            "tail": expected,
            "queue": f"yielded/{resident.unit}",
            "expected": expected,
            "preempted": resident.preempted + 1,
        }
    )


def _ordinal(candidate: Candidate) -> int:
    return candidate.ordinal


def _name(node: Node) -> str:
    return node.name


def _mean(estimate: Estimate) -> int:
    return estimate.mean


__all__ = [
    "Forecast",
    "Hypothesis",
    "after",
    "draft_of",
    "expected_start",
    "order_of",
    "placed",
    "scores",
    "starts",
    "waiting_again",
    "with_candidates",
    "with_changed",
    "with_drain",
    "with_node",
    "with_places",
    "without",
]
