"""Nodes that are being emptied: what runs there, and may be stopped, goes on elsewhere as soon as there is room.

Somebody has asked for it (`poise drain NODE --move`), so it goes before what waits and was not promised room. Who is
asked saves itself, ends, and is placed again as anything else that waits; until it has ended its room is kept, and then
it comes first. What serves, and what may not be preempted, goes on where it is.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy as np

from poise.model.decisions import Preempt, Resize, Why
from poise.model.fleet import EMPTYING, Fleet, Resident
from poise.policy.place import Draft, close_together

Find = Callable[[Resident, int], Sequence[int]]
"""A row for each of so many tasks of what runs; none where there is not room for all."""


def being_emptied(fleet: Fleet) -> frozenset[str]:
    """Names of the nodes."""
    if EMPTYING not in fleet.closed.tobytes():
        return frozenset()
    return frozenset(fleet.names[row] for row in np.flatnonzero(fleet.closed == EMPTYING).tolist())


def may_go(resident: Resident) -> bool:
    """Whether it may be asked to go on elsewhere: not what nobody may stop, and not a replica that answers requests."""
    return resident.preemptible and not resident.serves


def keep_for_leaving(draft: Draft) -> None:
    """Room for those who have been asked to leave, and have not ended yet; of a gang that resizes who leaves is not
    replaced.
    """
    for _, tasks in _leaving(draft.fleet):
        first = tasks[0]
        if first.stopping and not first.resizes:
            _keep(draft, first, _close_together(draft, first, _needed(first, len(tasks))))


def hand_over(
    draft: Draft, policy: str, *, asked: Collection[str] = (), find: Find | None = None
) -> list[Preempt | Resize]:
    """Those who have room elsewhere are asked to go on there, and it is kept for them: a gang as a whole as soon as its
    tasks on these nodes have room, or so many of them that it has its least. One that resizes in place, and has that
    without them, goes on as it runs. Who was `asked` something else in this round is not asked again.
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
    """What runs on these nodes and may go, unit by unit with the first of its nodes: the most urgent first."""
    found: dict[str, tuple[str, list[Resident]]] = {}
    for row in np.flatnonzero(fleet.closed == EMPTYING).tolist():
        for resident in fleet.residents[row]:
            if may_go(resident):
                found.setdefault(resident.unit, (fleet.names[row], []))[1].append(resident)
    return sorted(found.values(), key=_most_urgent_first)


def _most_urgent_first(of: tuple[str, list[Resident]]) -> tuple[int, int]:
    return of[1][0].priority, of[1][0].ordinal


def _needed(resident: Resident, leaving: int) -> int:
    """For how many of the tasks that leave there must be room, so that their unit has its least."""
    return max(0, (resident.least or resident.size) - (resident.size - leaving))


def _close_together(draft: Draft, resident: Resident, tasks: int) -> Sequence[int]:
    """With what has been placed and kept in this draft."""
    return close_together(draft.fleet, draft.capacity(resident.shape), tasks) if tasks else ()


def _keep(draft: Draft, resident: Resident, rows: Sequence[int]) -> None:
    for row, tasks in Counter(rows).items():
        draft.keep(row, resident.unit, resident.shape, draft.view.now, tasks)
