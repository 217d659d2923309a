"""Nodes that are being drained with moves: their preemptible units move elsewhere as soon as there is room.

A user requested it (`poise drain NODE --move`), so it has priority over waiting units without promised room. A unit
that is asked to move saves a checkpoint, ends, and is placed again like any waiting unit; its room is kept until it has
ended, and then it comes first. Services, and units that may not be preempted, stay where they are.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy as np

from poise.model.decisions import Preempt, Resize, Why
from poise.model.fleet import EMPTYING, Fleet, Resident
from poise.policy.place import Draft, close_together

Find = Callable[[Resident, int], Sequence[int]]
"""Find a row for each of this many tasks of a running unit; none if there is not room for all."""


def being_emptied(fleet: Fleet) -> frozenset[str]:
    """Return the names of the nodes that are being drained with moves."""
    if EMPTYING not in fleet.closed.tobytes():
        return frozenset()
    return frozenset(fleet.names[row] for row in np.flatnonzero(fleet.closed == EMPTYING).tolist())


def may_go(resident: Resident) -> bool:
    """Return whether a unit may be moved: it is preemptible and no service's replica."""
    return resident.preemptible and not resident.serves


def keep_for_leaving(draft: Draft) -> None:
    """Reserve room for units that are moving and still run; members that leave a resizing gang are not replaced."""
    for _, tasks in _leaving(draft.fleet):
        first = tasks[0]
        if first.stopping and not first.resizes:
            _keep(draft, first, _close_together(draft, first, _needed(first, len(tasks))))


def hand_over(
    draft: Draft, policy: str, *, asked: Collection[str] = (), find: Find | None = None
) -> list[Preempt | Resize]:
    """Move the units that have room elsewhere, and keep that room for them. A gang moves as a whole once its tasks on
    these nodes, or enough of them for its least size, have room. A gang that resizes in place, and has its least
    without them, only shrinks. Skip units with another request in this round (`asked`).
    """
    decisions: list[Preempt | Resize] = []
    for node, tasks in _leaving(draft.fleet):
        first = tasks[0]
        here = [one for one in tasks if not one.stopping]
        if not here or first.unit in asked:
            continue
        stay = first.size - len(here)
        rank = f"{node} is being emptied"
        if first.resizes and stay >= max(1, first.least):
            leaves = tuple(sorted(one.task for one in here))
            why = Why(policy=policy, base=draft.view.revision, rank=rank)
            decisions.append(Resize(unit=first.unit, cause="shrink", why=why, leaves=leaves))
            continue
        needed = _needed(first, len(here))
        rows = find(first, needed) if find is not None else _close_together(draft, first, needed)
        if len(rows) < needed:
            continue
        _keep(draft, first, rows)
        names = ", ".join(dict.fromkeys(draft.fleet.names[row] for row in rows))
        why = Why(policy=policy, base=draft.view.revision, rank=f"{rank}, there is room on {names}" if names else rank)
        decisions.append(Preempt(unit=first.unit, cause="move", why=why))
    return decisions


def _leaving(fleet: Fleet) -> list[tuple[str, list[Resident]]]:
    """Return the units that may move off these nodes, each with the first of its nodes: the most urgent first."""
    found: dict[str, tuple[str, list[Resident]]] = {}
    for row in np.flatnonzero(fleet.closed == EMPTYING).tolist():
        for resident in fleet.residents[row]:
            if may_go(resident):
                found.setdefault(resident.unit, (fleet.names[row], []))[1].append(resident)
    return sorted(found.values(), key=_most_urgent_first)


def _most_urgent_first(of: tuple[str, list[Resident]]) -> tuple[int, int]:
    return of[1][0].priority, of[1][0].ordinal


def _needed(resident: Resident, leaving: int) -> int:
    """Return how many of the leaving tasks need room, so that their unit has its least."""
    return max(0, (resident.least or resident.size) - (resident.size - leaving))


def _close_together(draft: Draft, resident: Resident, tasks: int) -> Sequence[int]:
    """Return rows close together, given the placements and kept room of this draft."""
    return close_together(draft.fleet, draft.capacity(resident.shape), tasks) if tasks else ()


def _keep(draft: Draft, resident: Resident, rows: Sequence[int]) -> None:
    for row, tasks in Counter(rows).items():
        draft.keep(row, resident.unit, resident.shape, draft.view.now, tasks)
