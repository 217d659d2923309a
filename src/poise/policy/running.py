"""Running attempts in columns: their estimated ends and likely remaining run times.

Most attempts, and their estimates, are the same from one view to the next. So estimates are cached with the fleet
(`Fleet.runs`), and are valid as long as the same attempts run there with the same profiles.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import accumulate, chain
from operator import attrgetter, is_
from typing import NamedTuple

import numpy as np

from poise.model.fleet import Bools, Fleet, Floats, Ints, Resident
from poise.model.jobs import GRACE
from poise.model.profiles import Profile, estimate_each, remaining_each
from poise.model.resources import WHOLE
from poise.policy.predict import MEASURED, NOTHING, Speeds, likely_each

(
    SINCE, RUNS, STOPPING, MEAN, DEVIATION, LIKELY, LIKELY_DEVIATION, HOLDS, GPUS, WIDTH, STAYS, KEPT, CHECKPOINT,
    RESTORE, DECLARED, CLASS, LEARNS,
) = range(17)  # fmt: skip
"""Rows of the columns. `HOLDS` are thousandths of devices, `GPUS` the devices of the attempt, and `WIDTH` those of its
unit, 0 if it shares devices; `STAYS` marks attempts with devices that lose all work when preempted, or may not be
preempted. `KEPT`, `CHECKPOINT` and `RESTORE` are those of the attempt. `CLASS` is the number of the class and model;
`LEARNS` is that of `Speeds.learns`."""

MOST_CLASSES = 4096
"""Maximum number of classes that are numbered; after that, everything is looked up again."""


def lost_work(resident: Resident, now: int) -> int:
    """Return the nanoseconds of one task's work that preemption loses now, including the restore."""
    elapsed = max(0, now - resident.since) if resident.running else 0
    if resident.kept:
        return max(0, now - resident.kept) + resident.restore
    lost = elapsed % resident.checkpoint if resident.checkpoint else elapsed
    return lost + resident.restore


Rows = list[tuple[Resident, ...]]
"""The attempts of each row."""

_NONE = np.zeros(1, np.int64)

_unit = attrgetter("unit")


class _Seen(NamedTuple):
    """The estimates of the attempts in `columns` (17, A), by these profiles. `rows` are the attempts of each row, and
    `classes` numbers the classes and models.
    """

    profiles: Mapping[str, Profile]
    throughputs: object
    rows: Rows
    columns: Ints
    classes: dict[tuple[str, str], int]


class _Endings(NamedTuple):
    """All attempts by row, and on each row by estimated end: the instant `at`, and the `number` on the row. `freed`
    counts the thousandths of devices free by then, including those of the rows before. The attempts of a row begin at
    `first[row]`, with `before` freed until there. One more instant stands for none.
    """

    first: Ints
    at: Ints
    number: Ints
    freed: Ints
    before: Ints


class Units(NamedTuple):
    """The running units by `number`, in order of their first attempts; `of` is the number of each attempt's unit."""

    number: dict[str, int]
    of: Ints


class Holders(NamedTuple):
    """The holders of devices on each row: `rows`, the `numbers` of the units, and the `devices` of each there."""

    rows: Ints
    numbers: Ints
    devices: Ints


_Each = tuple[Rows, Ints]
"""Cached values of each attempt, and the attempts of each row."""


class _Layout:
    """The attempts in order of their rows, and what depends on nothing else; cached while all attempts are the same."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.residents = list(chain.from_iterable(rows))
        self._holders: Holders | None = None

    @cached_property
    def first(self) -> Ints:
        """(N + 1,): where the attempts of each row begin."""
        return np.array([0, *accumulate(map(len, self.rows))])

    @cached_property
    def row(self) -> Ints:
        """(A,): the row of each attempt."""
        first = self.first
        row: Ints = np.arange(len(self.rows)).repeat(first[1:] - first[:-1])
        return row

    @cached_property
    def number(self) -> Ints:
        """(A,): the number of each attempt on its row."""
        number: Ints = np.arange(len(self.row)) - self.first[self.row]
        return number

    @cached_property
    def units(self) -> Units:
        names = list(map(_unit, self.residents))
        number = dict(zip(names, range(len(names)), strict=True))
        if len(number) == len(names):
            return Units(number, np.arange(len(names)))
        unique = dict.fromkeys(names)
        number = dict(zip(unique, range(len(unique)), strict=True))
        return Units(number, np.fromiter(map(number.__getitem__, names), np.int64, len(names)))

    def holders(self, devices: Ints) -> Holders:
        """Return the units on each row; `devices` are those of each attempt."""
        if self._holders is None:
            self._holders = self._find_holders(devices)
        return self._holders

    def _find_holders(self, devices: Ints) -> Holders:
        number, of = self.units
        if len(number) == len(of):
            return Holders(self.row, of, devices)
        order = np.lexsort((of, self.row))
        row, of = self.row[order], of[order]
        begins = np.concatenate(([0], ((row[1:] != row[:-1]) | (of[1:] != of[:-1])).nonzero()[0] + 1))
        return Holders(row[begins], of[begins], np.add.reduceat(devices[order], begins))


def _layout_of(fleet: Fleet) -> _Layout:
    known: _Layout | None = fleet.runs.get("layout")
    rows = fleet.residents
    if known is None or len(known.rows) != len(rows) or not all(map(is_, known.rows, rows)):
        known = fleet.runs["layout"] = _Layout(rows.copy())
    return known


class Running:
    """All attempts of a fleet at an instant, row by row; `residents` and all columns are in that order."""

    def __init__(self, fleet: Fleet, speeds: Speeds, now: int) -> None:
        self._fleet, self._speeds, self._now = fleet, speeds, now
        self._layout = _layout_of(fleet)
        self.residents = self._layout.residents  # read-only
        self._endings_on: dict[int, list[tuple[int, int]]] = {}
        self._moved: tuple[Rows, Ints] | None = None

    def each(self, name: object, make: Callable[[Resident], list[int]]) -> Ints:
        """Return the values of `make` for each attempt, in columns; cached under this `name` while the attempts are the
        same.
        """
        seen: _Each | None = self._fleet.runs.get(name)
        if seen is None or len(seen[0]) != len(self._fleet):
            seen = [()] * len(self._fleet), np.zeros((0, 0), np.int64)
        before, values = seen
        if before is self._layout.rows:
            return values
        at = self._places(before)
        new = (at < 0).nonzero()[0].tolist()
        made = np.array([make(self.residents[place]) for place in new], np.int64).T
        if len(new) == len(at):
            values = made if new else np.zeros((0, 0), np.int64)
        else:
            values = values[:, at]
            if new:
                values[:, new] = made
        self._fleet.runs[name] = self._layout.rows, values
        return values

    def _places(self, before: Rows) -> Ints:
        """Return the place of each attempt in an earlier view with these rows, -1 if it is new or has changed."""
        if self._moved is None or self._moved[0] is not before:
            self._moved = before, _known(before, self._layout.rows)
        return self._moved[1]

    @property
    def units(self) -> Units:
        """The units of the attempts; read-only."""
        return self._layout.units

    @cached_property
    def lost(self) -> Ints:
        """(A,): the `lost_work` of each attempt that runs."""
        kept, checkpoint, restore = self._columns[KEPT : RESTORE + 1]
        by_interval = np.where(checkpoint > 0, self.elapsed % np.maximum(1, checkpoint), self.elapsed)
        lost: Ints = np.where(kept > 0, np.maximum(0, self._now - kept), by_interval) + restore
        return lost

    @cached_property
    def first(self) -> Ints:
        """(U,): the first attempt of each unit."""
        order, begins = self._by_unit
        return order[begins[:-1]]

    def of_unit(self, unit: str) -> list[Resident]:
        """Return the attempts of a unit; none if it does not run."""
        return [self.residents[at] for at in self._attempts(unit).tolist()]

    def rows_of(self, unit: str) -> list[int]:
        """Return the rows of a unit, one for each of its attempts."""
        rows: list[int] = self.rows[self._attempts(unit)].tolist()
        return rows

    def _attempts(self, unit: str) -> Ints:
        number = self.units.number.get(unit, -1)
        order, begins = self._by_unit
        return order[begins[number] : begins[number + 1]] if number >= 0 else order[:0]

    @cached_property
    def _by_unit(self) -> tuple[Ints, Ints]:
        """All attempts in order of their units, and where each unit begins there."""
        number, of = self.units
        if len(number) == len(of):  # one attempt each
            return of, np.arange(len(of) + 1)
        order = of.argsort(kind="stable")
        return order, np.searchsorted(of[order], np.arange(len(number) + 1))

    @cached_property
    def widths(self) -> Ints:
        """(U,): the devices of each unit in total, 0 for units without whole devices."""
        widths: Ints = np.zeros(len(self.units.number), np.int64)
        widths[self.units.of] = self._columns[WIDTH]
        return widths

    @property
    def rows(self) -> Ints:
        """(A,): the row of each attempt; read-only."""
        return self._layout.row

    @property
    def holders(self) -> Holders:
        """The units that run on each row; read-only."""
        return self._layout.holders(self._columns[GPUS])

    @cached_property
    def any_stopping(self) -> bool:
        return bool(self._columns[STOPPING].any())

    @cached_property
    def any_stays(self) -> bool:
        """Whether any attempt with devices makes no checkpoints, or may not be preempted."""
        return bool(self._columns[STAYS].any())

    @cached_property
    def elapsed(self) -> Ints:
        """(A,): nanoseconds since each attempt began, or was placed if it has not begun."""
        elapsed: Ints = np.maximum(0, self._now - self._columns[SINCE])
        return elapsed

    @cached_property
    def left(self) -> Ints:
        """(A,): the likely remaining nanoseconds of each attempt where it is."""
        columns = self._columns
        left: Ints = remaining_each(self.elapsed, columns[LIKELY], columns[LIKELY_DEVIATION])
        return left

    @property
    def varies(self) -> Floats:
        """(A,): the mean deviation of each run time, as a part of it."""
        columns = self._columns
        varies: Floats = columns[DEVIATION] / np.maximum(1, columns[MEAN])
        return varies

    def endings(self, row: int) -> list[tuple[int, int]]:
        """Return the attempts of a row by estimated end: the instant, and the number on the row."""
        known = self._endings_on.get(row)
        if known is None:
            found = self._endings
            of = slice(*found.first[row : row + 2].tolist())
            known = self._endings_on[row] = list(zip(found.at[of].tolist(), found.number[of].tolist(), strict=True))
        return known

    def soonest(self, rows: Ints, lacks: Ints) -> list[int | None]:
        """Return the instant at which each of these rows will have freed the thousandths of devices that it lacks; None
        if it never will. A row that lacks nothing has them now.
        """
        found = self._endings
        places = found.freed.searchsorted(found.before[rows] + lacks)
        ats: list[int | None] = np.where(lacks > 0, found.at[places], self._now).tolist()
        never = ((lacks > 0) & (places >= found.first[rows + 1])).nonzero()[0].tolist()
        for place in never:
            ats[place] = None
        return ats

    @cached_property
    def _endings(self) -> _Endings:
        """The attempts by estimated end; attempts that overran are estimated again."""
        columns, layout = self._columns, self._layout
        first, elapsed = layout.first, self.elapsed * columns[RUNS]
        left = remaining_each(elapsed, columns[MEAN], columns[DEVIATION])
        at = self._now + (np.where(columns[STOPPING] > 0, GRACE, left) if self.any_stopping else left)
        order = np.lexsort((at, layout.row))
        freed = np.zeros(len(order) + 1, np.int64)
        columns[HOLDS][order].cumsum(out=freed[1:])
        return _Endings(first, np.concatenate((at[order], _NONE)), layout.number[order], freed[1:], freed[first[:-1]])

    @cached_property
    def _columns(self) -> Ints:
        """The columns, reusing the valid ones of an earlier view."""
        fleet, speeds = self._fleet, self._speeds
        seen: _Seen | None = fleet.runs.get("running")
        if (
            seen is None
            or seen.throughputs is not speeds.throughputs
            or len(seen.rows) != len(fleet)
            or len(seen.classes) > MOST_CLASSES
        ):
            seen = _Seen({}, speeds.throughputs, [()] * len(fleet), np.zeros((LEARNS + 1, 0), np.int64), {})
        rows = self._layout.rows
        if seen.rows is rows and seen.profiles is speeds.profiles:
            return seen.columns
        columns, again = seen.columns, np.zeros(len(self.residents), bool)
        if seen.rows is not rows:
            at = self._places(seen.rows)
            again = at < 0
            columns = columns[:, at] if columns.shape[1] else np.zeros((len(columns), len(at)), np.int64)
        changed = changed_profiles(seen.profiles, speeds.profiles)
        if changed:
            columns = columns if seen.rows is not rows else columns.copy()
            again |= self._learned(columns, ~again, changed, seen.classes)
        new = again.nonzero()[0].tolist()
        if new:
            columns[:, new] = np.array([self._foreseen(self.residents[at], seen.classes) for at in new], np.int64).T
        fleet.runs["running"] = _Seen(speeds.profiles, speeds.throughputs, rows, columns, seen.classes)
        return columns

    def _learned(self, columns: Ints, valid: Bools, changed: set[str], classes: Mapping[tuple[str, str], int]) -> Bools:
        """Estimate the attempts again that these profiles alone determine; return which others depend on them."""
        again = np.zeros(len(valid), bool)
        kinds = classes_of(changed)
        for (kind, model), number in classes.items():
            if kind not in kinds or changed.isdisjoint(self._speeds.sources_of(kind, model)):
                continue
            of_it = valid & (columns[CLASS] == number) & (columns[LEARNS] != NOTHING)
            measured = self._speeds.measured_of(kind, model)
            if measured is not None:
                alone = (of_it & (columns[LEARNS] == MEASURED)).nonzero()[0]
                means, deviations = estimate_each(measured, columns[DECLARED, alone])
                columns[MEAN, alone], columns[DEVIATION, alone] = means, deviations
                columns[LIKELY, alone], columns[LIKELY_DEVIATION, alone] = likely_each(means, deviations)
                of_it[alone] = False
            again |= of_it
        return again

    def _foreseen(self, resident: Resident, classes: dict[tuple[str, str], int]) -> list[int]:
        mean, likely = self._speeds.both_of_attempt(resident)
        return [
            resident.since,
            resident.running,
            resident.stopping,
            mean.mean,
            mean.deviation,
            likely.mean,
            likely.deviation,
            resident.shape.share * resident.shape.gpus,
            resident.shape.gpus,
            resident.shape.gpus * resident.size if resident.shape.share == WHOLE else 0,
            resident.shape.gpus > 0 and not (resident.checkpoint and resident.preemptible),
            resident.kept,
            resident.checkpoint,
            resident.restore,
            resident.declared,
            classes.setdefault((resident.kind, resident.model), len(classes)),
            self._speeds.learns(resident),
        ]


def _known(before: Rows, rows: Rows) -> Ints:
    """Return the place of each attempt in the earlier view, -1 if it is new or changed."""
    known: list[Ints] = []
    since = place = 0  # the attempts from `since` to `place` are the same, and not in `known` yet
    for then, now in zip(before, rows, strict=True):
        if then is not now:
            places = {id(one): number for number, one in enumerate(then, place)}
            known.append(np.arange(since, place))
            known.append(np.array([places.get(id(one), -1) for one in now], np.int64))
            since = place + len(then)
        place += len(then)
    known.append(np.arange(since, place))
    return np.concatenate(known)


def changed_profiles(before: Mapping[str, Profile], now: Mapping[str, Profile]) -> set[str]:
    """Return the names of the profiles that have changed."""
    if before is now:
        return set()
    changed = {name for name, profile in now.items() if before.get(name) is not profile}
    if len(before) + len(changed) > len(now):
        changed.update(before.keys() - now.keys())
    return changed


def classes_of(names: Iterable[str]) -> set[str]:
    """Return the classes that profiles with these names may belong to: a name is `class` or `class@model`."""
    return {
        "@".join(parts[:count]) for parts in (name.split("@") for name in names) for count in range(1, len(parts) + 1)
    }
