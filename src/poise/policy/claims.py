"""Running and waiting units on whole devices as one list, for policies that reallocate all devices.

Such a policy decides where each unit runs (`wanted`, a row for each task). `carry_out` makes a plan of that: it
preempts units that run elsewhere, places units that have room already, and holds the others until they have. Work
without devices, with shares of them or in several artifacts is placed on arrival in the remaining room.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from poise.model.decisions import Cause, Decision, Hold, Place, Plan, Preempt, Reason, Resize, Spot, Why
from poise.model.fleet import DEVICES, Resident
from poise.model.resources import WHOLE, Shape
from poise.model.views import Candidate, Snapshot
from poise.policy.allowance import Allowance
from poise.policy.emptying import hand_over
from poise.policy.feasible import gang_incomplete
from poise.policy.place import Draft
from poise.policy.reclaim import service
from poise.policy.score import TERMS

Rows = tuple[int, ...]
"""Rows of the fleet, one for each task, in the order of their ranks."""


class Claim(NamedTuple):
    """A unit on whole devices. `rows` are the nodes of its tasks, empty while it waits; `least` and `most` limit the
    number of tasks. `attained` is its service in nanoseconds of one device, `since` the instant at which it started or
    became ready. `resident` is set for a running unit, `candidate` for one that could be placed.
    """

    unit: str
    ordinal: int
    shape: Shape
    least: int
    most: int
    rows: Rows
    attained: int
    since: int
    resident: Resident | None = None
    candidate: Candidate | None = None

    @property
    def stays(self) -> bool:
        """Whether it must not be preempted."""
        return self.resident is not None and not self.resident.preemptible

    @property
    def stopping(self) -> bool:
        """Whether it is being stopped already."""
        return self.resident is not None and self.resident.stopping


def claims_of(view: Snapshot) -> list[Claim]:
    """Return all claims, in order of submission. A waiting unit with several artifacts makes no claim."""
    waiting = {candidate.unit: candidate for candidate in view.candidates}
    rows: dict[str, list[int]] = {}
    residents: dict[str, Resident] = {}
    for row, of in enumerate(view.fleet.residents):
        for resident in of:
            leaving = resident.stopping and resident.resizes  # its gang continues without it
            if on_devices(resident.shape) and resident.unit not in waiting and not leaving:
                rows.setdefault(resident.unit, []).append(row)
                residents[resident.unit] = resident
    found = [_running(resident, tuple(rows[unit]), view.now) for unit, resident in residents.items()]
    found += [_waiting(candidate) for candidate in view.candidates if claims(candidate)]
    return sorted(found, key=_ordinal)


def claims(candidate: Candidate) -> bool:
    """Return whether a waiting unit can only run on whole devices."""
    return on_devices(candidate.shape) and not candidate.others


def same(some: Rows, others: Rows) -> bool:
    """Return whether both have as many tasks on the same nodes, in any order."""
    return some == others or (len(some) == len(others) and sorted(some) == sorted(others))


def on_devices(shape: Shape) -> bool:
    """Return whether a shape has whole devices."""
    return shape.gpus > 0 and shape.share == WHOLE


def devices_by_model(view: Snapshot) -> dict[int, int]:
    """Return the number of whole devices of each model for claims: free ones, and those that claims hold."""
    fleet = view.fleet
    left: Counter[int] = Counter()
    held: dict[int, set[int]] = {}
    for row, residents in enumerate(fleet.residents):
        for resident in residents:
            if on_devices(resident.shape):
                held.setdefault(row, set()).update(resident.devices)
    for row, node in enumerate(fleet.nodes):
        if fleet.closed[row]:
            continue
        mine = held.get(row, set())
        for place, device in enumerate(node.devices):
            if device.index in mine or fleet.device_share[row, place] == WHOLE:
                left[int(fleet.device_model[row, place])] += 1
    return dict(left)


def vacated(view: Snapshot, units: Collection[str]) -> Draft:
    """Return a draft of the room after these units have ended."""
    fleet = view.fleet.copy()
    for row, residents in enumerate(fleet.residents):
        gone = [resident for resident in residents if resident.unit in units]
        for resident in gone:
            shape = resident.shape
            fleet.free[:DEVICES, row] += (shape.cpu, shape.memory, shape.network)
            for place, device in enumerate(fleet.nodes[row].devices):
                if device.index in resident.devices:
                    fleet.device_share[row, place] += shape.share
        if gone:
            fleet.free[DEVICES, row] = int(((fleet.device_share[row] == WHOLE) & (fleet.device_model[row] >= 0)).sum())
    return Draft(msgspec.structs.replace(view, fleet=fleet), {"first": 1.0}, TERMS)


def carry_out(
    view: Snapshot,
    name: str,
    claimed: Sequence[Claim],
    wanted: Mapping[str, Rows],
    words: Mapping[str, str],
    *,
    until: int | None = None,
    memory: dict[str, Any] | None = None,
) -> Plan:
    """Return the plan that makes exactly the claims of `wanted` run there. `words` explains each."""
    decisions: list[Decision] = []
    yielding: list[str] = []
    placing = _Placing(view, name, yielding)
    for claim in claimed:
        rows = wanted.get(claim.unit, ())
        if claim.stopping:
            yielding.append(claim.unit)
        elif claim.rows and not claim.stays and not same(rows, claim.rows):
            why = Why(policy=name, base=view.revision, rank=words.get(claim.unit, ""))
            leaves = _leaving(view, claim, rows)
            if leaves is not None:
                joins = placing.more(claim, rows)
                if leaves or joins:
                    cause = _cause(claim, rows)
                    decisions.append(Resize(unit=claim.unit, cause=cause, why=why, leaves=leaves, joins=joins))
                yielding += [claim.unit] * bool(leaves)
                continue
            yielding.append(claim.unit)
            decisions.append(Preempt(unit=claim.unit, cause=_cause(claim, rows), why=why))
    for claim in claimed:
        if claim.candidate is not None:
            placing.claim(claim, claim.candidate, wanted.get(claim.unit, ()), words.get(claim.unit, ""))
    for candidate in view.candidates:
        if not claims(candidate):
            placing.other(candidate)
    decisions += placing.decisions
    asked = {decision.unit for decision in decisions if isinstance(decision, Preempt | Resize)}
    decisions += hand_over(placing.draft, name, asked=asked)
    decisions += [Hold(queue=queue, reasons=reasons) for queue, reasons in placing.holds.items()]
    return Plan(base=view.revision, policy=name, decisions=tuple(decisions), until=until, memory=memory)


class _Placing:
    """The placements of a plan, and the reasons of the units that wait."""

    def __init__(self, view: Snapshot, name: str, yielding: Sequence[str]) -> None:
        self.view, self.name, self.yielding = view, name, yielding
        self.draft, self.allowance = Draft(view, {"first": 1.0}, TERMS), Allowance(view.quotas)
        self.decisions: list[Decision] = []
        self.holds: dict[str, tuple[Reason, ...]] = {}
        self._first = ""  # the unit for which room is being made
        self._refusals: dict[Shape, tuple[int, tuple[Reason, ...]]] = {}  # with the number of decisions included

    def more(self, claim: Claim, rows: Rows) -> tuple[Spot, ...]:
        """Return spots for the tasks that a resizing gang gets in addition, as far as there is room already."""
        tenant = claim.resident.tenant if claim.resident is not None else ""
        spots: list[Spot] = []
        for row, tasks in sorted((Counter(rows) - Counter(claim.rows)).items()):
            most = min(int(self.draft.capacity(claim.shape)[row]), self.allowance.room_for(tenant, claim.shape, tasks))
            spots += [self.draft.take(row, None, claim.shape) for _ in range(most)]
            self.allowance.use(tenant, claim.shape, most)
        return tuple(spots)

    def claim(self, claim: Claim, candidate: Candidate, rows: Rows, words: str) -> None:
        """Place a claim if there is room already, else hold it."""
        over = self.allowance.against(candidate) if candidate.tenant else ()
        if rows and not over:
            rows = rows[: self.allowance.room_of(candidate, claim.shape)]
            room = self.draft.room_each(claim.shape)
            if all(room[row] >= tasks for row, tasks in Counter(rows).items()):
                self._place(candidate, claim.shape, 0, rows, words)
                return
            self._first = self._first or claim.unit
            made = Reason(code="PREEMPTING", have=", ".join(self.yielding), need=claim.unit)
            self._hold(candidate, (made,) if self.yielding else ())
            return
        self._hold(candidate, over)

    def other(self, candidate: Candidate) -> None:
        """Place other work, first come, first served, in the first artifact for which there is room."""
        over = self.allowance.against(candidate) if candidate.tenant else ()
        if over or (candidate.queue in self.holds and not candidate.recovering):
            self._hold(candidate, over)
            return
        needed = candidate.least or candidate.tasks
        for variant, shape in enumerate((candidate.shape, *candidate.others)):
            if self.allowance.room_of(candidate, shape) < needed:
                continue
            rows = emptiest(self.draft, shape, needed)
            if rows:
                self._place(candidate, shape, variant, rows, "first come")
                return
        self._hold(candidate, ())

    def _place(self, candidate: Candidate, shape: Shape, variant: int, rows: Rows, words: str) -> None:
        spots = tuple(self.draft.take(row, candidate, shape) for row in rows)
        self.allowance.take(candidate, shape, len(spots))
        why = Why(policy=self.name, base=self.view.revision, rank=words)
        self.decisions.append(Place(unit=candidate.unit, spots=spots, why=why, variant=variant))

    def _hold(self, candidate: Candidate, reasons: tuple[Reason, ...]) -> None:
        if not candidate.recovering and candidate.queue not in self.holds:
            self.holds[candidate.queue] = reasons or self._reasons(candidate)

    def _refused(self, shape: Shape) -> tuple[Reason, ...]:
        """Return the reasons of all nodes against a shape; looked up again after each placement."""
        known = self._refusals.get(shape)
        if known is None or known[0] != len(self.decisions):
            known = self._refusals[shape] = len(self.decisions), tuple(self.draft.reasons(shape))
        return known[1]

    def _reasons(self, candidate: Candidate) -> tuple[Reason, ...]:
        """Return every reason against every artifact of a unit; free room without a reason is for another unit."""
        if not len(self.view.fleet):
            return (Reason(code="NO_NODES"),)
        found: list[Reason] = []
        needed = candidate.least or candidate.tasks
        if needed > 1:
            have = min(needed - 1, int(self.draft.capacity(candidate.shape).sum()))
            found.append(gang_incomplete(self.view.fleet, candidate.shape.where, needed, have))
        for shape in (candidate.shape, *candidate.others):
            found += self._refused(shape)
        if found:
            return tuple(found)
        if self._first:
            return (Reason(code="BEHIND", subject=self._first),)
        return (Reason(code="NEXT_ROUND"),)


def emptiest(draft: Draft, shape: Shape, tasks: int, *, fewer: bool = False) -> Rows:
    """Return rows for `tasks` tasks, always on the node with most room; none if too few, unless `fewer` will do."""
    room = draft.capacity(shape).copy()
    if int(room.sum()) < tasks and not fewer:
        return ()
    rows: list[int] = []
    while len(rows) < tasks and room.max(initial=0) > 0:
        row = int(room.argmax())
        rows += [row] * min(int(room[row]), tasks - len(rows))
        room[row] = 0
    return tuple(rows)


def _leaving(view: Snapshot, claim: Claim, rows: Rows) -> tuple[int, ...] | None:
    """Return the numbers of the tasks that leave a gang for it to have only those rows; None if it must restart."""
    resident, fewer = claim.resident, Counter(claim.rows) - Counter(rows)
    if resident is None or not resident.resizes or len(claim.rows) - sum(fewer.values()) < max(1, claim.least):
        return None
    leaves: list[int] = []
    for row, tasks in sorted(fewer.items()):
        here = [one.task for one in view.fleet.residents[row] if one.unit == claim.unit and not one.stopping]
        leaves += sorted(here)[-tasks:]
    return tuple(leaves)


def _cause(claim: Claim, rows: Rows) -> Cause:
    if not rows:
        return "yield"
    if len(rows) == len(claim.rows):
        return "move"
    return "grow" if len(rows) > len(claim.rows) else "shrink"


def _running(resident: Resident, rows: Rows, now: int) -> Claim:
    return Claim(
        unit=resident.unit,
        ordinal=resident.ordinal,
        shape=resident.shape,
        least=resident.least or resident.most,
        most=resident.most,
        rows=rows,
        attained=service(resident, now),
        since=resident.since,
        resident=resident,
    )


def _waiting(candidate: Candidate) -> Claim:
    return Claim(
        unit=candidate.unit,
        ordinal=candidate.ordinal,
        shape=candidate.shape,
        least=candidate.least or candidate.tasks,
        most=candidate.tasks,
        rows=(),
        attained=candidate.attained,
        since=candidate.ready,
        candidate=candidate,
    )


def _ordinal(claim: Claim) -> int:
    return claim.ordinal
