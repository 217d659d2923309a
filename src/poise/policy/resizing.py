"""Gangs that resize while they run: members that leave for waiting units, and places for further members.

Tasks of such a gang beyond its least are in room that no other unit had requested. Waiting units of equal or higher
urgency get that room; when nothing waits, the gang grows back. Neither needs a restart, so it is not weighed as
preemption is; only the time between two changes is limited. That time doubles with each loss of members, so that a
failing member is not started forever.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from poise.model.decisions import Spot
from poise.model.fleet import Bools, Resident
from poise.model.profiles import is_brief
from poise.model.resources import Shape
from poise.model.views import Candidate
from poise.policy.place import Draft
from poise.policy.room import Room, give_back
from poise.units import SECOND

SETTLES = 2 * SECOND
"""Time before a gang that was placed or resized changes again: its members have to rendezvous each time."""

DOUBLINGS = 10
"""Maximum number of times that the time to the next growth doubles, once for each loss of members."""


class Smaller(NamedTuple):
    """Tasks that would leave, by unit, and the rows where the waiting unit would then start, as tasks by row."""

    leaves: Mapping[str, Sequence[int]]
    rows: dict[int, int]


class Members:
    """The members of all gangs that resize, by unit with their rows, and by row; computed once per round."""

    def __init__(self, draft: Draft) -> None:
        self.of: dict[str, list[tuple[int, Resident]]] = {}
        self.on: dict[int, list[Resident]] = {}
        if any(resident.resizes for resident in draft.view.elastic):
            for row, residents in enumerate(draft.fleet.residents):
                for resident in residents:
                    if resident.resizes:
                        self.of.setdefault(resident.unit, []).append((row, resident))
                        self.on.setdefault(row, []).append(resident)


def grows_at(resident: Resident) -> int:
    """Return the instant from which the gang may get more tasks."""
    return resident.since + (SETTLES << min(resident.losses, DOUBLINGS))


def more_of(resident: Resident, draft: Draft, members: Members, most: int, runs_well: Bools) -> list[Spot]:
    """Return spots for up to `most` more tasks of a gang, taken in the draft: on its own nodes, then on those where it
    `runs_well`, with most room first.
    """
    shape, spots = resident.shape, list[Spot]()
    rows = list(dict.fromkeys(row for row, _ in members.of[resident.unit]))
    room = draft.capacity(shape)
    rows += [row for row in (-room).argsort(kind="stable").tolist() if runs_well[row] and room[row] and row not in rows]
    for row in rows:
        while len(spots) < most and draft.capacity(shape)[row] > 0:
            spots.append(draft.take(row, None, shape))
    return spots


def find_smaller(
    candidate: Candidate,
    shape: Shape,
    draft: Draft,
    tasks: int,
    members: Members,
    asked: Collection[str],
    sizes: Mapping[str, int],
) -> Smaller | None:
    """Find members of gangs to remove for a unit, task by task on the node where fewest have to leave; None if that
    does not make room for all of its tasks. A gang keeps at least its number in `sizes`. Skip units in `asked`, which
    changes already affect in this round. Nothing shrinks for a gang that is spread or together by a label.
    """
    if shape.where.groups and tasks > 1:
        return None
    now, brief = draft.view.now, is_brief(draft.view.profiles.get(candidate.kind), shape, tasks)

    def may(resident: Resident) -> bool:
        if resident.priority < candidate.priority or (resident.priority == candidate.priority and brief):
            return False
        free = resident.preemptible and not resident.serves and resident.unit not in asked
        return free and now >= resident.since + SETTLES

    firsts = [of[0][1] for of in members.of.values()]
    keeps = {one.unit: max(one.least, sizes.get(one.unit, 0)) for one in firsts}
    spare = {one.unit: one.size - keeps[one.unit] for one in firsts if one.size > keeps[one.unit] and may(one)}
    could_hold = draft.able(shape).where
    on = {
        row: here
        for row, of in members.on.items()
        if could_hold[row] and not draft.fleet.closed[row] and row not in draft.kept
        and (here := [one for one in reversed(of) if one.unit in spare and not one.stopping])
    }  # fmt: skip
    able, rooms = draft.able(shape).models, {row: draft.room(row).copy() for row in on}
    free = draft.capacity(shape).copy()
    leaves: dict[str, list[int]] = {}
    rows: dict[int, int] = {}
    for _ in range(tasks):
        for row in rooms:
            free[row] = rooms[row].pick(shape, able) is not None
        row = int(free.argmax()) if free.max(initial=0) > 0 else -1
        if row < 0:
            could = [(going, row) for row in on if (going := _fewest(rooms[row], on[row], spare, shape, able))]
            if not could:
                return None
            going, row = min(could, key=_how_many)
            for one in going:
                give_back(rooms[row], one)
                on[row].remove(one)
                spare[one.unit] -= 1
                leaves.setdefault(one.unit, []).append(one.task)
        if row in rooms:
            rooms[row].take(shape, rooms[row].pick(shape, able) or ())
        else:
            free[row] -= 1
        rows[row] = rows.get(row, 0) + 1
    return Smaller(leaves, rows) if leaves else None


def _fewest(
    room: Room, could: Sequence[Resident], spare: Mapping[str, int], shape: Shape, able: list[bool]
) -> list[Resident]:
    """Return the first members on a node whose leaving makes room for a task; none if no number of them does."""
    room, left, going = room.copy(), dict(spare), list[Resident]()
    for one in could:
        if left[one.unit]:
            left[one.unit] -= 1
            going.append(one)
            give_back(room, one)
            if room.pick(shape, able) is not None:
                return going
    return []


def _how_many(found: tuple[list[Resident], int]) -> tuple[int, int]:
    return len(found[0]), found[1]
