"""The baseline of a fixed partition: unit number k may only use partition k modulo P, however idle the others are.

With several nodes a partition is a node. On a single node it is one CPU, and the last one has the remainder. A unit
that requests more than a partition also takes the following ones; on a single node, a whole gang takes them at once. A
unit that its partition could never hold gets the next one that could.
"""

from collections import Counter

import numpy as np

from poise.model.decisions import Decision, Hold, Place, Plan, Reason, Why
from poise.model.fleet import CPU, Ints, Resident
from poise.model.resources import Shape
from poise.model.views import Snapshot
from poise.policy.allowance import Allowance
from poise.policy.emptying import hand_over
from poise.policy.feasible import ability, gang_incomplete, refusals
from poise.policy.place import Draft
from poise.policy.score import TERMS
from poise.units import format_cpu

Reasons = tuple[Reason, ...]
Partitions = list[tuple[int, int]]
"""(row, milli-CPU) of each partition, in order."""


class Static:
    """Places every unit in its own partition, in order of arrival."""

    name = "static"
    fixed = True

    def decide(self, view: Snapshot, /) -> Plan:
        draft = Draft(view, {"first": 1.0}, TERMS)
        decisions: list[Decision] = []
        holds: dict[str, Reasons] = {}
        partitions = _partitions(view)
        used = _partition_use(view, partitions)
        able: dict[Shape, Ints] = {}
        full: dict[tuple[int, Shape], Reasons] = {}
        allowance = Allowance(view.quotas)
        for candidate in view.candidates:
            reasons: Reasons = ()
            for variant, shape in enumerate((candidate.shape, *candidate.others)):  # the first artifact that can start
                over = allowance.against_artifact(candidate, shape)
                if over:
                    reasons += over
                    continue
                if shape not in able:
                    able[shape] = ability(view.fleet, shape).by_row(view.fleet)
                first = _first_partition(candidate.ordinal, partitions, able[shape], len(view.fleet))
                refused = full.get((first, shape))
                if refused is None:
                    needed = candidate.least or candidate.tasks
                    rows, refused = self._rows(needed, shape, draft, partitions, used, first, able[shape])
                    if rows:
                        spots = [draft.take(row, candidate, shape) for row in rows]
                        allowance.take(candidate, shape, len(spots))
                        why = Why(
                            policy=self.name, base=view.revision, rank=f"partition {first + 1} of {len(partitions)}"
                        )
                        decisions.append(Place(unit=candidate.unit, spots=tuple(spots), why=why, variant=variant))
                        break
                    if candidate.tasks == 1:
                        full[first, shape] = refused
                reasons += refused
            else:
                if not candidate.recovering:
                    holds.setdefault(candidate.queue, reasons)
            if len(view.backlog) == 1 and len(full) == len(partitions) * len(able) and len(holds) == 1:
                break  # all waiting units are alike, and no partition has room
        decisions.extend(Hold(queue=queue, reasons=reasons) for queue, reasons in holds.items())

        def elsewhere(resident: Resident, tasks: int) -> list[int]:
            """Return the rows on which it will be placed; a gang's current holdings do not count as free."""
            shape = resident.shape
            able = ability(view.fleet, shape).by_row(view.fleet)
            first = _first_partition(resident.ordinal, partitions, able, len(view.fleet))
            return self._rows(resident.size, shape, draft, partitions, used, first, able)[0][:tasks]

        moves = hand_over(draft, self.name, find=elsewhere)
        return Plan(base=view.revision, policy=self.name, decisions=(*decisions, *moves))

    def _rows(
        self,
        needed: int,
        shape: Shape,
        draft: Draft,
        partitions: Partitions,
        used: list[int],
        first: int,
        able: Ints,
    ) -> tuple[list[int], Reasons]:
        """Return a row for each of the `needed` tasks and reserve their partitions; or every reason against it."""
        fleet = draft.fleet
        if not partitions:
            found = [reason for row in range(len(fleet)) for reason in refusals(fleet, row, shape)]
            return [], tuple(found) or (Reason(code="NO_NODES"),)
        taken = list(used)
        rows: list[int] = []
        room = draft.capacity(shape).copy()
        if shape.where.groups:
            able = np.minimum(able, room)
        place = first - 1
        alone = _is_one_node(partitions)
        for index in range(needed):
            place = first if alone else _next_partition(place + 1, partitions, able, rows)
            row, size = partitions[place]
            refused: list[Reason] = []
            if room[row] <= 0:  # taken by an earlier unit or by members of this gang
                gang = gang_incomplete(fleet, shape.where, needed, index)
                refused = draft.reasons_on(row, shape) or [gang]
            cpu = shape.cpu if not alone else 0 if index else shape.cpu * needed  # on one node all take theirs at once
            if not _take_partitions(taken, partitions, place, cpu):
                need, have = format_cpu(shape.cpu), format_cpu(max(0, size - used[place]))
                subject = fleet.names[row]
                refused = [
                    Reason(code="PARTITION_BUSY", subject=subject, need=need, have=have),
                    *refused,
                ]
            if refused:
                return [], tuple(refused)
            room[row] -= 1
            rows.append(row)
        used[:] = taken
        return rows, ()


def _first_partition(ordinal: int, partitions: Partitions, able: Ints, nodes: int) -> int:
    """Return the unit's own partition, or the next whose node could ever hold one of its tasks."""
    count = len(partitions)
    own = ordinal % max(1, count)
    if nodes == 1:
        return own
    could = ((own + step) % count for step in range(count) if able[partitions[(own + step) % count][0]])
    return next(could, own)


def _next_partition(start: int, partitions: Partitions, able: Ints, rows: list[int]) -> int:
    """Return the first partition from `start` on whose node could ever hold another task of a gang with members on
    `rows`.
    """
    count = len(partitions)
    could = ((start + step) % count for step in range(count))
    return next(
        (place for place in could if able[partitions[place][0]] > rows.count(partitions[place][0])), start % count
    )


def _partitions(view: Snapshot) -> Partitions:
    fleet = view.fleet
    opened = [row for row in range(len(fleet)) if not fleet.closed[row]]
    if len(opened) == 1:
        row = opened[0]
        cpus, rest = divmod(int(fleet.total[CPU, row]), 1000)
        return [*[(row, 1000)] * (cpus - 1), (row, 1000 * min(cpus, 1) + rest)]
    return [(row, int(fleet.total[CPU, row])) for row in opened]


def _partition_use(view: Snapshot, partitions: Partitions) -> list[int]:
    """Return the use of each partition: of a node, by the units on it; of a single node's CPU, by the unit's number."""
    used = [0] * len(partitions)
    rows = {row: place for place, (row, _) in enumerate(partitions)}
    alone = _is_one_node(partitions)
    taken: Counter[int] = Counter()  # by the first partition
    for row, residents in enumerate(view.fleet.residents):
        for resident in residents if row in rows else ():
            taken[resident.ordinal if alone else rows[row]] += resident.shape.cpu
    for first, cpu in taken.items():
        _take_partitions(used, partitions, first, cpu, force=True)
    return used


def _is_one_node(partitions: Partitions) -> bool:
    return len({row for row, _ in partitions}) == 1


def _take_partitions(used: list[int], partitions: Partitions, first: int, cpu: int, *, force: bool = False) -> bool:
    """Take `cpu` from partition `first` and, where it is larger than one, from those that follow."""
    count = len(partitions)
    left, takes = cpu, []
    for step in range(count):
        place = (first + step) % count
        share = min(left, partitions[place][1])
        takes.append((place, share))
        left -= share
        if left <= 0:
            break
    if not force and (left > 0 or any(used[place] + share > partitions[place][1] for place, share in takes)):
        return False
    for place, share in takes:
        used[place] += share
    return True
