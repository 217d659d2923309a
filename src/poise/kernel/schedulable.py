"""Check at submission whether a job is feasible, and whether it can meet its deadlines.

An infeasible job is refused with the reason and with values that would fit. It needs resources that no node has, or its
deadline is below the *lower bound*, the least time that the work takes with any allocation. The bound of a deadline is
the larger of two times: the longest path to its units, and all work due by then divided by the capacity (Graham, 1969).
Only measured or declared times count: an assumption refuses no job.

A job that could be in time on an empty fleet, but not behind existing work, is accepted with a note. Only competing
work delays it: running work on nodes it could use, and work of its class or a higher one that waits for such nodes.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from poise.errors import SpecError
from poise.kernel.fitting import strangers
from poise.model import graph
from poise.model.fleet import CPU, DEVICES, Bools, Fleet
from poise.model.jobs import Unit
from poise.model.profiles import CERTAIN, COMBINED, expected_run
from poise.model.resources import WHOLE, Shape
from poise.model.spec import Compiled, Cut, compile_spec
from poise.model.tenants import DEFAULT
from poise.model.views import Candidate, Snapshot
from poise.policy.feasible import MOST_TASKS, ability
from poise.policy.place import Draft
from poise.policy.predict import Speeds
from poise.policy.reclaim import openings_on
from poise.policy.score import TERMS
from poise.units import format_duration

FINER = (1, 2, 4, 8)
"""Factors by which work is cut finer, in turn, before its deadline is refused."""

LOOKED_AT = 256
"""Maximum number of nodes for which free times are foreseen; a job that could use more nodes gets no note."""

TIGHTEST = 4
"""Maximum number of deadlines of one job to check for a delay: those with the least slack."""

TURNS = 256
"""Maximum number of units ahead of a job, and of units of the job, to consider: the first ones."""

NEVER = 2**62


class Bound(NamedTuple):
    """A deadline in nanoseconds after submission, and the field that sets it. `least` is the least time of the units
    that are due by then; these are the first `due` units in the order of due times.
    """

    deadline: int
    field: str
    least: int
    due: int

    @property
    def slack(self) -> int:
        return self.deadline - self.least


def prepare(
    view: Callable[[], Snapshot], use: Callable[[], float], document: Any, wall: float, tenant: str = DEFAULT
) -> Compiled:
    """Compile a tenant's request for the current fleet. `use` returns the used share of it, in [0, 1]; it and `view`
    are called only if needed. Work that can be cut is cut finer before its deadline is refused. Raises SpecError.
    """
    seen: list[Snapshot] = []

    def look() -> Snapshot:
        if not seen:
            seen.append(view())
        return seen[0]

    for finer in FINER:
        cuts: list[Cut] = []

        def cut(devices: bool, finer: int = finer, cuts: list[Cut] = cuts) -> Cut:
            cuts.append(Cut(use(), spread(look().fleet, devices), finer))
            return cuts[-1]

        compiled = compile_spec(document, wall=wall, cut=cut, tenant=tenant)
        named = [shape for shape in _shapes(compiled) if shape.where.nodes or shape.where.without]
        notes = [f"the job {reason.sentence()}" for reason in (strangers(look().fleet, named) if named else ())]
        if not compiled.due_by:
            return compiled._replace(note="; ".join(notes)) if notes else compiled
        try:
            late = check_deadlines(look(), compiled)
            return compiled._replace(note="; ".join([*notes, *([late] if late else [])]))
        except SpecError:
            if not cuts or finer == FINER[-1]:
                raise
    raise AssertionError("unreachable")


def _shapes(compiled: Compiled) -> Iterator[Shape]:
    return (unit.shape_of(of) for unit in compiled.units for of in range(len(unit.variants) + 1))


def spread(fleet: Fleet, devices: bool) -> float:
    """Return how much faster the fleet's fastest model of device (or processor) is than its slowest by peak rate, minus
    1; 0 if the rates are unknown.
    """
    peaks = [
        max(rate for _, rate in model.rates)
        for model in fleet.models
        if model.rates and (model.kind != "cpu") == devices
    ]
    return max(peaks) / min(peaks) - 1 if peaks else 0.0


def check_deadlines(view: Snapshot, compiled: Compiled) -> str:
    """Raises SpecError (E108) if a deadline is below its lower bound. Return a note for a job that may be late behind
    existing work, or an empty text.
    """
    if not len(view.fleet):
        return ""
    found, due = bounds(view, compiled)
    for bound in found:
        if bound.slack < 0:
            raise SpecError(
                "the deadline cannot be met, even without other work",
                code="E108",
                field=bound.field,
                need=f"at least {format_duration(bound.least)}",
                have=format_duration(bound.deadline),
                hint=f"deadline: {-(-bound.least // 10**9)}s",
            )
    draft = Draft(view, {"first": 1.0}, TERMS)
    for bound in sorted(found, key=_slack)[:TIGHTEST]:
        held_up = hold_up(draft, [unit for unit in due[: bound.due] if not unit.needs])
        if held_up > bound.slack:
            task = bound.field.removeprefix("tasks.").removesuffix("deadline").rstrip(".")
            return (
                f"{f'`{task}`' if task else 'it'} may be late: what is ahead of it holds it up for "
                f"{format_duration(held_up)}, and it takes at least {format_duration(bound.least)}; "
                f"due in {format_duration(bound.deadline)}"
            )
    return ""


def bounds(view: Snapshot, compiled: Compiled) -> tuple[list[Bound], list[Unit]]:
    """Return the bound of each deadline, the earliest first, and the units in the order of due times. Units that are
    due by an earlier deadline are due by all later ones.
    """
    fleet, speeds = view.fleet, Speeds(view.fleet.models, view.profiles, view.throughputs)
    units = {unit.name: unit for unit in compiled.units}
    needs = {name: unit.needs for name, unit in units.items()}
    runs = {name: shortest_run(unit, speeds, fleet) for name, unit in units.items()}
    planned = graph.times(needs, runs)
    total = [int(fleet.total[of].sum()) for of in (CPU, DEVICES)]
    due: dict[str, Unit] = {}
    amounts = [0, 0]
    found: list[Bound] = []
    by_deadline: dict[int, list[str]] = {}
    for name in compiled.due_by:
        by_deadline.setdefault(units[name].deadline, []).append(name)
    for deadline, mine in sorted(by_deadline.items()):
        path, last = max((planned[name].earliest + runs[name], name) for name in mine)
        for name in graph.with_needs(needs, mine, due):
            due[name] = units[name]
            for of, amount in enumerate(_work_of(units[name], runs[name])):
                amounts[of] += amount
        work = max(amount // of if of else 0 for amount, of in zip(amounts, total, strict=True))
        least = units[last].begin + max(path, work)
        found.append(Bound(deadline, compiled.due_by[last], least, len(due)))
    return found, list(due.values())


def shortest_run(unit: Unit, speeds: Speeds, fleet: Fleet) -> int:
    """Return the least time of a unit on the devices that suit it best, with all the tasks that it can use.

    It is the measured time minus its uncertainty; else the declared time; else by its roofline; 0 if nothing is known.
    A declared time that past runs have corrected counts as measured.
    """
    shortest = []
    for number in range(len(unit.variants) + 1):
        shape = unit.shape_of(number)
        devices = shape.gpus > 0
        found = speeds.of(unit.kind, shape.wants.precision, unit.expect, unit.work, devices=devices)
        able = ability(fleet, shape).models if devices else [model.kind == "cpu" for model in fleet.models]
        for could, estimate in zip(able, found, strict=False):
            if not could:
                continue
            is_measured = estimate.source == "declared" and estimate.mean != unit.expect
            if is_measured or estimate.source in ("history", "throughput table", COMBINED):
                shortest.append(max(0, estimate.mean - CERTAIN * estimate.deviation))
            elif estimate.source == "declared":
                shortest.append(estimate.mean)
            elif estimate.source == "roofline":
                shortest.append(estimate.mean // 2)  # the bound itself, which an estimate counts twice
            else:  # unknown
                return 0
    least = min(shortest, default=0) * (unit.least or len(unit.tasks)) // len(unit.tasks)
    return min(least, unit.time_limit) if unit.time_limit else least


def hold_up(draft: Draft, roots: Sequence[Unit]) -> int:
    """Return the delay in nanoseconds of the start of the last of these units, compared with an empty fleet. The delay
    comes from running work on their nodes, and from waiting work with the same request, in the order of arrival.
    """
    alike: dict[tuple[Shape, ...], list[Unit]] = {}
    for unit in roots:
        alike.setdefault(tuple(unit.shape_of(of) for of in range(len(unit.variants) + 1)), []).append(unit)
    return max((min(_hold_up(draft, shape, units) for shape in shapes) for shapes, units in alike.items()), default=0)


def _hold_up(draft: Draft, shape: Shape, units: list[Unit]) -> int:
    """Return the delay of units of one shape. Units take rooms for one task in turn, each room as soon as it is
    free.
    """
    view, fleet, able = draft.view, draft.fleet, draft.able(shape)
    opened = fleet.closed == 0
    rows = np.flatnonzero(able.where & opened)
    if not 0 < len(rows) <= LOOKED_AT:
        return 0
    own = [
        _Turn(unit.least or len(unit.tasks), expected_run(view.profiles.get(unit.kind), unit.declared), able.where)
        for unit in units[:TURNS]
    ]
    first = min(unit.priority for unit in units)
    ahead = [candidate for candidate in view.candidates if candidate.priority <= first]
    rivals = list(islice(_rivals(draft, ahead, shape, opened), TURNS))
    wanted = sum(turn.rooms for turn in (*rivals, *own))
    if int(draft.capacity(shape)[rows].sum()) >= wanted:
        return 0
    empty: list[_Room] = []
    taken: list[_Room] = []
    for row in rows.tolist():
        rooms = min(int(able.room[fleet.kind[row]]), wanted)
        empty += [_Room(view.now, row)] * rooms
        taken += [_Room(at, row) for at in openings_on(draft, row, shape, rooms, view.now)]
    _take_turns(taken, rivals)
    return max(0, _take_turns(taken, own) - _take_turns(empty, own))


class _Turn(NamedTuple):
    """Work that takes a number of rooms at once for a duration in nanoseconds, on those rows."""

    rooms: int
    run: int
    on: Bools


class _Room(NamedTuple):
    """Room for one task on a row between two instants: from `until` on it is reserved."""

    at: int
    row: int
    until: int = NEVER


def _take_turns(free: list[_Room], work: Iterable[_Turn]) -> int:
    """Assign to each unit the first rooms it can use; return the start of the last one. A room reserved for a gang is
    used meanwhile by units that need one room and end in time.
    """
    free.sort()
    latest = 0
    for rooms, run, on in work:
        could = (
            room
            for room in free
            if on[room.row] and (room.until == NEVER or (rooms == 1 and room.at + run <= room.until))
        )
        mine = list(islice(could, rooms))
        start = max((room.at for room in mine), default=0)
        latest = max(latest, start)
        for room in mine:
            free.remove(room)
            insort(free, room._replace(at=start + run))
            if room.at < start:
                insort(free, room._replace(until=start))
    return latest


def _rivals(draft: Draft, ahead: Iterable[Candidate], shape: Shape, opened: Bools) -> Iterator[_Turn]:
    """Yield waiting work that competes with a task of the shape: device work with device work, CPU work with CPU work.
    Work that could also run elsewhere counts in part, by the share of its nodes that this shape could use.
    """
    carried = 0.0
    known: dict[Shape, tuple[float, int]] = {}  # the counted part of each task, and the rooms that it takes
    for candidate in ahead:
        other = candidate.shape
        if other not in known:
            known[other] = _rivalry(draft, other, shape, opened)
        part, rooms = known[other]
        carried += part
        if carried >= 1:
            carried -= 1
            on = draft.able(other).where
            yield _Turn(rooms * (candidate.least or candidate.tasks), candidate.expected, on)


def _rivalry(draft: Draft, other: Shape, shape: Shape, opened: Bools) -> tuple[float, int]:
    """Return the share of another shape's nodes that this shape could use, and how many rooms of this shape a task of
    the other takes; 0 if they do not compete.
    """
    able, theirs = draft.able(shape), draft.able(other)
    alike = zip(able.models, theirs.models, strict=True)
    if bool(other.gpus) != bool(shape.gpus) or (shape.gpus and not any(my and their for my, their in alike)):
        return 0.0, 0
    both = able.where & theirs.where & opened
    if not both.any():
        return 0.0, 0
    mine, room = (np.minimum(one.room, MOST_TASKS)[draft.fleet.kind[both]].sum() for one in (able, theirs))
    return float(both.sum() / (theirs.where & opened).sum()), max(1, round(mine / room))


def _work_of(unit: Unit, run: int) -> tuple[int, int]:
    """Return CPU time in milli-CPU-nanoseconds and device time in device-nanoseconds; 0 for units with a choice of
    artifacts.
    """
    if unit.variants:
        return 0, 0
    tasks, shape = len(unit.tasks), unit.shape
    return run * shape.cpu * tasks, run * shape.gpus * shape.share * tasks // WHOLE


def _slack(bound: Bound) -> int:
    return bound.slack
