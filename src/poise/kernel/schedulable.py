"""Can it be done, and in time? Asked once, when a job is submitted, of what is known then.

What can never be done is refused with the reason and what would make it fit: resources that no node has, or a deadline
below the *lower bound*, the least time that the work takes however the fleet is shared out. The bound of a deadline is
the larger of the longest path to what it is for, and of all work that must be done by then over all capacity (Graham,
1969). Only what was measured or declared counts: a guess refuses nobody.

What could be in time on an empty fleet, but not behind what is there already, is accepted and told so. What is there
holds a job up only where they ask for the same: what runs on nodes it could use, and what waits for such nodes in its
class or a higher one.
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
from poise.model.profiles import CERTAIN, expected_run
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
"""How many times finer work is cut, in turn, before its deadline is refused."""

LOOKED_AT = 256
"""Nodes on which it is foreseen when there is room; where a job could use more of them nothing is told."""

TIGHTEST = 4
"""Deadlines of one job that are looked at for whether they may be missed: those with the least slack."""

TURNS = 256
"""Units that wait ahead of a job, and units of the job, that are looked at: the first ones."""

NEVER = 2**62


class Bound(NamedTuple):
    """A deadline in nanoseconds after submission, the field it was written in, the `least` time that what is due by
    then takes, and how many of the units that are due first that is.
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
    """Compile a tenant's request for the fleet as it is: `use` in [0, 1] is how much of it is taken; it and the `view`
    are asked for where something depends on them. What is to be cut is cut finer before its deadline is refused. Raises
    SpecError.
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
    """How much faster the fleet's fastest model of device (or of processor) is than its slowest by peak rate, less one;
    0 where the rates are not known.
    """
    peaks = [
        max(rate for _, rate in model.rates)
        for model in fleet.models
        if model.rates and (model.kind != "cpu") == devices
    ]
    return max(peaks) / min(peaks) - 1 if peaks else 0.0


def check_deadlines(view: Snapshot, compiled: Compiled) -> str:
    """Raises SpecError (E108) when a deadline is below its lower bound. Returns what is to be told of a job that may
    be late behind what is there already, or an empty text.
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
    """Of each deadline, the earliest first; and the units in the order in which they are due: what is due by an earlier
    deadline is due by all later ones.
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
    """The least time a unit takes on the devices that suit it best, with all the tasks that it can use: measured, less
    its uncertainty; else as declared; else by its roofline; 0 where nothing is known. A declared time that is corrected
    by what past runs took of theirs is measured.
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
            if is_measured or estimate.source in ("history", "throughput table"):
                shortest.append(max(0, estimate.mean - CERTAIN * estimate.deviation))
            elif estimate.source == "declared":
                shortest.append(estimate.mean)
            elif estimate.source == "roofline":
                shortest.append(estimate.mean // 2)  # the bound itself, which an estimate counts twice
            else:  # how long it takes there is anybody's guess
                return 0
    least = min(shortest, default=0) * (unit.least or len(unit.tasks)) // len(unit.tasks)
    return min(least, unit.time_limit) if unit.time_limit else least


def hold_up(draft: Draft, roots: Sequence[Unit]) -> int:
    """Nanoseconds by which the last of these units starts later than it would on an empty fleet: behind what runs
    where they could, and what waits for the same, in the order in which they came.
    """
    alike: dict[tuple[Shape, ...], list[Unit]] = {}
    for unit in roots:
        alike.setdefault(tuple(unit.shape_of(of) for of in range(len(unit.variants) + 1)), []).append(unit)
    return max((min(_hold_up(draft, shape, units) for shape in shapes) for shapes, units in alike.items()), default=0)


def _hold_up(draft: Draft, shape: Shape, units: list[Unit]) -> int:
    """Rooms for one task of the shape are taken in turn, each as soon as it is free."""
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
    """Work that takes so many rooms at once for so many nanoseconds, on those rows."""

    rooms: int
    run: int
    on: Bools


class _Room(NamedTuple):
    """Room for one task on a row, from one instant until another: it is kept for somebody from then on."""

    at: int
    row: int
    until: int = NEVER


def _take_turns(free: list[_Room], work: Iterable[_Turn]) -> int:
    """Each takes the first rooms that do; returns the instant at which the last one starts. Room that is kept for many
    together is used meanwhile by what takes one room and is gone in time.
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
    """What waits for the same as a task of the shape. Work on devices waits for these, and work on CPUs for those; of
    work that could as well run elsewhere a part is counted, by how many of its nodes are not elsewhere.
    """
    carried = 0.0
    known: dict[Shape, tuple[float, int]] = {}  # the part that is counted of each task, and the rooms that it takes
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
    """Which part of the nodes of another shape this one needs too, and how many rooms of this one a task of it takes;
    0 where they do not wait for the same.
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
    """CPU time in milli-CPU-nanoseconds, and device time in device-nanoseconds; of what has a choice neither."""
    if unit.variants:
        return 0, 0
    tasks, shape = len(unit.tasks), unit.shape
    return run * shape.cpu * tasks, run * shape.gpus * shape.share * tasks // WHOLE


def _slack(bound: Bound) -> int:
    return bound.slack
