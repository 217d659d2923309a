"""Running attempts in columns: their estimated ends and likely remaining run times.

Most attempts, and their estimates, are the same from one view to the next. So estimates are cached with the fleet
(`Fleet.runs`), and are valid as long as the same attempts run there with the same profiles.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import is_
from typing import NamedTuple

import numpy as np

from poise.model.fleet import Bools, Fleet, Floats, Ints, Resident
from poise.model.jobs import GRACE
from poise.model.profiles import Profile, estimate_each, remaining_each
from poise.model.resources import WHOLE
from poise.policy.predict import MEASURED, NOTHING, Speeds, likely_each

SINCE, RUNS, STOPPING, MEAN, DEVIATION, LIKELY, LIKELY_DEVIATION, HOLDS, GPUS, WIDTH, STAYS, DECLARED, CLASS, LEARNS = (
    range(14)
)
"""Rows of the columns. `HOLDS` are thousandths of devices, `GPUS` the devices of the attempt, and `WIDTH` those of its
unit, 0 if it shares devices; `STAYS` marks attempts with devices that lose all work when preempted, or may not be
preempted. `CLASS` is the number of the class and model; `LEARNS` is that of `Speeds.learns`."""

MOST_CLASSES = 4096
"""Maximum number of classes that are numbered; after that, everything is looked up again."""


def lost_work(resident: Resident, now: int) -> int:
    """Return the nanoseconds of one task's work that preemption loses now, including the restore."""
    elapsed = max(0, now - resident.since) if resident.running else 0
    if resident.kept:
        return max(0, now - resident.kept) + resident.restore
    lost = elapsed % resident.checkpoint if resident.checkpoint else elapsed
    return lost + resident.restore


class _Seen(NamedTuple):
    """The estimates of the attempts in `columns` (14, A), by these profiles. `rows` are the attempts of each row, and
    `classes` numbers the classes and models.
    """

    profiles: Mapping[str, Profile]
    throughputs: object
    rows: list[tuple[Resident, ...]]
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


_Each = tuple[list[tuple[tuple[Resident, ...], Ints] | None], Ints | None]
"""Cached values of each attempt: by row with its attempts, and all together."""


class Running:
    """All attempts of a fleet at an instant, row by row; `residents` and all columns are in that order."""

    def __init__(self, fleet: Fleet, speeds: Speeds, now: int) -> None:
        self._fleet, self._speeds, self._now = fleet, speeds, now
        self.residents = [one for on in fleet.residents for one in on]
        self._endings_on: dict[int, list[tuple[int, int]]] = {}

    def each(self, name: object, make: Callable[[Resident], list[int]]) -> Ints:
        """Return the values of `make` for each attempt, in columns; cached under this `name` while the attempts of a
        row are the same.
        """
        remembered: _Each | None = self._fleet.runs.get(name)
        if remembered is None or len(remembered[0]) != len(self._fleet):
            remembered = [None] * len(self._fleet), None
        known, all_of_it = remembered
        for row, residents in enumerate(self._fleet.residents):
            of = known[row]
            if of is None or of[0] is not residents:
                if known is remembered[0]:
                    known, all_of_it = known.copy(), None
                known[row] = residents, np.array([make(one) for one in residents], np.int64).T
        if all_of_it is None:
            parts = [of[1] for of in known if of is not None and of[0]]
            all_of_it = np.concatenate(parts, axis=1) if parts else np.zeros((0, 0), np.int64)
            self._fleet.runs[name] = known, all_of_it
        return all_of_it

    @cached_property
    def units(self) -> Units:
        """The units of the attempts; read-only."""
        known: tuple[list[tuple[Resident, ...]], Units] | None = self._fleet.runs.get("units")
        rows = self._fleet.residents
        if known is not None and len(known[0]) == len(rows) and all(map(is_, known[0], rows)):
            return known[1]
        names = [one.unit for one in self.residents]
        number = {name: place for place, name in enumerate(dict.fromkeys(names))}
        of = (
            np.arange(len(names)) if len(number) == len(names) else np.array([number[name] for name in names], np.int64)
        )
        found = Units(number, of)
        self._fleet.runs["units"] = rows.copy(), found
        return found

    @cached_property
    def lost(self) -> Ints:
        """(A,): the `lost_work` of each attempt that runs."""
        kept, checkpoint, restore = self.each("lost", lambda one: [one.kept, one.checkpoint, one.restore])
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
        order = of.argsort(kind="stable")
        return order, np.searchsorted(of[order], np.arange(len(number) + 1))

    @cached_property
    def widths(self) -> Ints:
        """(U,): the devices of each unit in total, 0 for units without whole devices."""
        widths: Ints = np.zeros(len(self.units.number), np.int64)
        widths[self.units.of] = self._columns[WIDTH]
        return widths

    @cached_property
    def rows(self) -> Ints:
        """(A,): the row of each attempt."""
        counts = np.fromiter(map(len, self._fleet.residents), np.int64, len(self._fleet))
        rows: Ints = np.repeat(np.arange(len(counts)), counts)
        return rows

    @cached_property
    def holders(self) -> Holders:
        """The units that run on each row; read-only."""
        number, of = self.units
        if len(number) == len(of):
            return Holders(self.rows, of, self._columns[GPUS])
        keys, inverse = np.unique(self.rows * len(number) + of, return_inverse=True)
        devices = np.zeros(len(keys), np.int64)
        np.add.at(devices, inverse, self._columns[GPUS])
        return Holders(keys // len(number), keys % len(number), devices)

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
        columns = self._columns
        row = self.rows
        first = row.searchsorted(np.arange(len(self._fleet) + 1))
        number = np.arange(len(row)) - first[row]
        elapsed = np.where(columns[RUNS] > 0, self.elapsed, 0)
        left = remaining_each(elapsed, columns[MEAN], columns[DEVIATION])
        at = self._now + np.where(columns[STOPPING] > 0, GRACE, left)
        order = np.lexsort((number, at, row))
        freed = np.concatenate(([0], np.cumsum(columns[HOLDS][order])))
        return _Endings(first, np.append(at[order], 0), number[order], freed[1:], freed[first[:-1]])

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
        known = _known(seen.rows, fleet.residents)
        if known is None and seen.profiles is speeds.profiles:
            return seen.columns
        columns, again = seen.columns, np.zeros(len(self.residents), bool)
        if known is not None:
            at = np.array(known, np.int64)
            again = at < 0
            columns = columns[:, at] if columns.shape[1] else np.zeros((len(columns), len(at)), np.int64)
        changed = changed_profiles(seen.profiles, speeds.profiles)
        if changed:
            columns = columns if known is not None else columns.copy()
            again |= self._learned(columns, ~again, changed, seen.classes)
        new = again.nonzero()[0].tolist()
        if new:
            columns[:, new] = np.array([self._foreseen(self.residents[at], seen.classes) for at in new], np.int64).T
        rows = fleet.residents.copy()
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
            resident.declared,
            classes.setdefault((resident.kind, resident.model), len(classes)),
            self._speeds.learns(resident),
        ]


def _known(before: Sequence[tuple[Resident, ...]], rows: Sequence[tuple[Resident, ...]]) -> list[int] | None:
    """Return the place of each attempt in the earlier view, -1 if it is new or changed; None if none has changed."""
    if all(map(is_, before, rows)):
        return None
    known, place = list[int](), 0
    for then, now in zip(before, rows, strict=True):
        if then is now:
            known += range(place, place + len(now))
        else:
            places = {id(one): number for number, one in enumerate(then, place)}
            known += [places.get(id(one), -1) for one in now]
        place += len(then)
    return known


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
