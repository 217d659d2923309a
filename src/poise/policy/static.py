"""The baseline of a fixed partition: unit number k may only use partition k modulo P, however idle the others are.

With several nodes a partition is a node; on a single node it is one CPU. A unit that asks for more than a partition
takes the ones that follow as well; what a partition could never hold moves on to the next that could.
"""

from poise.model.decisions import Decision, Hold, Place, Plan, Reason, Spot, Why
from poise.model.fleet import CPU, Ints
from poise.model.resources import Shape
from poise.model.views import Candidate, Snapshot
from poise.policy.feasible import ability, refusals
from poise.policy.place import Draft
from poise.policy.score import TERMS
from poise.units import format_cpu

Reasons = tuple[Reason, ...]
Partitions = list[tuple[int, int]]
"""(row, milli-CPU) of each partition, in order."""


class Static:
    """Every unit in its own partition, in order of arrival."""

    name = "static"

    def decide(self, view: Snapshot, /) -> Plan:
        draft = Draft(view, {"first": 1.0}, TERMS)
        decisions: list[Decision] = []
        holds: dict[str, Reasons] = {}
        partitions = _partitions(view)
        used = _partition_use(view, partitions)
        able: dict[Shape, Ints] = {}
        full: dict[tuple[int, Shape], Reasons] = {}
        for candidate in view.candidates:
            if candidate.shape not in able:
                able[candidate.shape] = ability(view.fleet, candidate.shape).room[view.fleet.kind]
            places = _places(candidate, partitions, able[candidate.shape], len(view.fleet))
            first = places[0]
            reasons = full.get((first, candidate.shape))
            if reasons is None:
                spots, reasons = self._place(candidate, draft, partitions, used, places)
                if spots:
                    why = Why(policy=self.name, base=view.revision, rank=f"partition {first + 1} of {len(partitions)}")
                    decisions.append(Place(unit=candidate.unit, spots=tuple(spots), why=why))
                    continue
                if candidate.tasks == 1:
                    full[first, candidate.shape] = reasons
            if not candidate.recovering:
                holds.setdefault(candidate.queue, reasons)
            if len(view.backlog) == 1 and len(full) == len(partitions) and len(holds) == 1:
                break  # all are of one shape, and every partition is full for it
        decisions.extend(Hold(queue=queue, reasons=reasons) for queue, reasons in holds.items())
        return Plan(base=view.revision, policy=self.name, decisions=tuple(decisions))

    def _place(
        self, candidate: Candidate, draft: Draft, partitions: Partitions, used: list[int], places: list[int]
    ) -> tuple[list[Spot], Reasons]:
        fleet = draft.fleet
        if not partitions:
            found = [reason for row in range(len(fleet)) for reason in refusals(fleet, row, candidate.shape)]
            return [], tuple(found) or (Reason(code="NO_NODES", wakes="joined"),)
        taken = list(used)
        rows: list[int] = []
        room = draft.capacity(candidate.shape).copy()
        for index, place in enumerate(places):
            row = partitions[place][0]
            if room[row] <= 0 or not _take_partitions(taken, partitions, place, candidate.shape.cpu):
                return [], self._refused(candidate, draft, partitions, taken, place, index)
            room[row] -= 1
            rows.append(row)
        used[:] = taken
        return [draft.take(row, candidate, candidate.shape) for row in rows], ()

    def _refused(
        self, candidate: Candidate, draft: Draft, partitions: Partitions, taken: list[int], place: int, have: int
    ) -> Reasons:
        """Why the unit's own partition cannot take it, or of a gang how many found none."""
        row, size = partitions[place]
        subject, needed = draft.fleet.names[row], candidate.least or candidate.tasks
        reasons = draft.reasons_on(row, candidate.shape)
        if needed > 1:
            gang = Reason(code="GANG_INCOMPLETE", need=str(needed), have=str(have), wakes="finished")
            reasons = [gang, *reasons]
        if not _take_partitions(list(taken), partitions, place, candidate.shape.cpu):
            need, left = format_cpu(candidate.shape.cpu), format_cpu(max(0, size - taken[place]))
            reasons = [Reason(code="PARTITION_BUSY", subject=subject, need=need, have=left, wakes="finished"), *reasons]
        return tuple(reasons)


def _places(candidate: Candidate, partitions: Partitions, able: Ints, nodes: int) -> list[int]:
    """A partition for each task: the unit's own and those after it, in turn, each as often as its node could ever hold
    one of the tasks; the unit's own one if that does not do.
    """
    count, needed = len(partitions), candidate.least or candidate.tasks
    own = candidate.ordinal % max(1, count)
    in_turn = [(own + step) % count for step in range(count)]
    if nodes == 1:
        return [in_turn[index % count] for index in range(needed)] if count else [own] * needed
    left = {place: int(able[partitions[place][0]]) for place in in_turn}
    places: list[int] = []
    while len(places) < needed and any(left.values()):
        for place in in_turn:
            if left[place] and len(places) < needed:
                left[place] -= 1
                places.append(place)
    return places if len(places) == needed else [own] * needed


def _partitions(view: Snapshot) -> Partitions:
    fleet = view.fleet
    opened = [row for row in range(len(fleet)) if not fleet.closed[row]]
    if len(opened) == 1:
        row = opened[0]
        return [(row, 1000)] * max(1, int(fleet.total[CPU, row]) // 1000)
    return [(row, int(fleet.total[CPU, row])) for row in opened]


def _partition_use(view: Snapshot, partitions: Partitions) -> list[int]:
    """What is taken of each partition: of nodes, where it is; of a single node's CPUs, those of the unit's number."""
    used = [0] * len(partitions)
    rows = {row: place for place, (row, _) in enumerate(partitions)}
    alone = len(rows) == 1
    seen: dict[str, int] = {}
    for row, residents in enumerate(view.fleet.residents):
        for resident in residents if row in rows else ():
            index = seen[resident.unit] = seen.get(resident.unit, -1) + 1
            first = resident.ordinal + index if alone else rows[row]
            _take_partitions(used, partitions, first, resident.shape.cpu, force=True)
    return used


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
