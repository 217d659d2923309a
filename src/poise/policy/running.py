"""Running attempts in columns: their estimated ends and likely remaining run times.

Most attempts, and their estimates, are the same from one view to the next. So estimates are cached with the fleet
(`Fleet.runs`), and are valid as long as the same attempts run there with the same profiles.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import is_not
from typing import NamedTuple

import numpy as np

from poise.model.fleet import Fleet, Floats, Ints, Resident
from poise.model.jobs import GRACE
from poise.model.profiles import Profile, remaining_each
from poise.model.resources import WHOLE
from poise.policy.predict import Speeds

SINCE, RUNS, STOPPING, MEAN, DEVIATION, LIKELY, LIKELY_DEVIATION, HOLDS, STAYS = range(9)
"""Rows of the columns. `HOLDS` are thousandths of devices; `STAYS` marks attempts with devices that lose all work when
preempted, or may not be preempted."""

_NOTHING: Ints = np.zeros((STAYS + 1, 0), np.int64)


class _On(NamedTuple):
    """Estimates of a node's attempts: the `sources` of each, and the `names` of all profiles used."""

    residents: tuple[Resident, ...]
    names: frozenset[str]
    sources: list[tuple[str, ...]]
    foreseen: list[list[int]]


def lost_work(resident: Resident, now: int) -> int:
    """Return the nanoseconds of one task's work that preemption loses now, including the restore."""
    elapsed = max(0, now - resident.since) if resident.running else 0
    if resident.kept:
        return max(0, now - resident.kept) + resident.restore
    lost = elapsed % resident.checkpoint if resident.checkpoint else elapsed
    return lost + resident.restore


class _Seen(NamedTuple):
    """The estimates of a fleet from these profiles, by row and in `columns` (9, A), of which only changes are
    replaced.
    """

    profiles: Mapping[str, Profile]
    throughputs: object
    rows: list[_On | None]
    columns: Ints


class _Endings(NamedTuple):
    """All attempts by row, and on each row by estimated end: the instant `at`, and the `number` on the row. `freed`
    counts the thousandths of devices free by then, including those of the rows before. The attempts of a row begin at
    `first[row]`, with `before` freed until there. Plain numbers, since a round examines few rows.
    """

    first: list[int]
    at: list[int]
    number: list[int]
    freed: list[int]
    before: list[int]


class Holders(NamedTuple):
    """The holders of devices, row by row: `rows`, `units`, and the `devices` that each has there; `widths` are each
    unit's devices in total, for units with whole devices.
    """

    rows: Ints
    units: list[str]
    devices: Ints
    widths: dict[str, int]


class _Held(NamedTuple):
    """The holders of one row, and the attempts that they come from."""

    residents: tuple[Resident, ...]
    units: list[str]
    devices: list[int]
    widths: list[tuple[str, int]]


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
    def holders(self) -> Holders:
        """The units that run on each row; read-only."""
        known: tuple[list[_Held], Holders] = self._fleet.runs.get("holders", ([], None))
        before, found = known
        residents = self._fleet.residents
        if len(before) == len(residents):
            rows = [of if of.residents is here else _held(here) for of, here in zip(before, residents, strict=True)]
            if not any(map(is_not, rows, before)):
                return found
        else:
            rows = [_held(here) for here in residents]
        counts = [len(of.units) for of in rows]
        found = Holders(
            np.repeat(np.arange(len(rows)), counts),
            [unit for of in rows for unit in of.units],
            np.array([devices for of in rows for devices in of.devices], np.int64),
            {unit: width for of in rows for unit, width in of.widths},
        )
        self._fleet.runs["holders"] = rows, found
        return found

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
            start, end = found.first[row : row + 2]
            known = self._endings_on[row] = list(zip(found.at[start:end], found.number[start:end], strict=True))
        return known

    def soonest(self, rows: Sequence[int], lacks: Sequence[int]) -> list[tuple[int, int]]:
        """Return, for each of these rows that ever will have as many more thousandths of devices free as it lacks, the
        instant and the row, the soonest first. A row that lacks nothing has them now.
        """
        found, now, soonest = self._endings, self._now, []
        for row, lack in zip(rows, lacks, strict=True):
            if lack <= 0:
                soonest.append((now, row))
                continue
            end = found.first[row + 1]
            number = bisect_left(found.freed, found.before[row] + lack, found.first[row], end)
            if number < end:
                soonest.append((found.at[number], row))
        soonest.sort()
        return soonest

    @cached_property
    def _endings(self) -> _Endings:
        """The attempts by estimated end; attempts that overran are estimated again."""
        columns = self._columns
        counts = np.fromiter(map(len, self._fleet.residents), np.int64, len(self._fleet))
        first = np.concatenate(([0], np.cumsum(counts)))
        row = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(row)) - first[row]
        elapsed = np.where(columns[RUNS] > 0, self.elapsed, 0)
        left = remaining_each(elapsed, columns[MEAN], columns[DEVIATION])
        at = self._now + np.where(columns[STOPPING] > 0, GRACE, left)
        order = np.lexsort((number, at, row))
        freed = np.concatenate(([0], np.cumsum(columns[HOLDS][order])))
        columns_in_order = first, at[order], number[order], freed[1:], freed[first[:-1]]
        return _Endings(*[column.tolist() for column in columns_in_order])

    @cached_property
    def _columns(self) -> Ints:
        """The columns, reusing the valid ones of an earlier view."""
        fleet, speeds = self._fleet, self._speeds
        seen: _Seen | None = fleet.runs.get("running")
        if seen is None or seen.throughputs is not speeds.throughputs or len(seen.rows) != len(fleet):
            seen = _Seen({}, speeds.throughputs, [None] * len(fleet), _NOTHING)
        changed = changed_profiles(seen.profiles, speeds.profiles)
        rows, parts = seen.rows.copy(), list[Ints]()
        learned: dict[int, list[int]] = {}  # by column index
        place = old = since = 0  # columns before this row, here and in the earlier view; start of those not in parts
        for row, residents in enumerate(fleet.residents):
            known = rows[row]
            if known is None or known.residents is not residents:
                on = rows[row] = self._look(residents, known, changed)
                parts.append(seen.columns[:, since:old])
                if residents:
                    parts.append(np.array(on.foreseen, np.int64).T)
                old += len(known.residents) if known is not None else 0
                since = old
            else:
                if changed and not known.names.isdisjoint(changed):
                    foreseen = self._look_again(known, changed)
                    learned.update((place + number, foreseen[number]) for number in range(len(foreseen)))
                    rows[row] = known._replace(foreseen=foreseen)
                old += len(residents)
            place += len(residents)
        if not parts and not learned and seen.profiles is speeds.profiles:
            return seen.columns
        columns = np.concatenate([*parts, seen.columns[:, since:]], axis=1) if parts else seen.columns
        if learned:
            columns = columns if parts else columns.copy()
            columns[:, list(learned)] = np.array(list(learned.values()), np.int64).T
        fleet.runs["running"] = _Seen(speeds.profiles, speeds.throughputs, rows, columns)
        return columns

    def _look(self, residents: tuple[Resident, ...], known: _On | None, changed: set[str]) -> _On:
        """Return the estimates of a row whose attempts have changed."""
        before: dict[int, list[int]] = {}
        if known is not None:
            before = {
                id(one): of
                for one, of, sources in zip(known.residents, known.foreseen, known.sources, strict=True)
                if not changed or changed.isdisjoint(sources)
            }
        sources = [self._speeds.sources_of(one.kind, one.model) for one in residents]
        foreseen = [before.get(id(one)) or self._foreseen(one) for one in residents]  # `known` has it still
        return _On(residents, frozenset(chain.from_iterable(sources)), sources, foreseen)

    def _look_again(self, known: _On, changed: set[str]) -> list[list[int]]:
        """Return the estimates of a row with the same attempts after profiles have changed."""
        return [
            of if changed.isdisjoint(sources) else self._foreseen(one)
            for one, of, sources in zip(known.residents, known.foreseen, known.sources, strict=True)
        ]

    def _foreseen(self, resident: Resident) -> list[int]:
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
            resident.shape.gpus > 0 and not (resident.checkpoint and resident.preemptible),
        ]


def _held(residents: tuple[Resident, ...]) -> _Held:
    held: dict[str, int] = {}
    for resident in residents:
        held[resident.unit] = held.get(resident.unit, 0) + resident.shape.gpus
    whole = [one for one in residents if one.shape.gpus and one.shape.share == WHOLE]
    return _Held(residents, list(held), list(held.values()), [(one.unit, one.shape.gpus * one.size) for one in whole])


def changed_profiles(before: Mapping[str, Profile], now: Mapping[str, Profile]) -> set[str]:
    """Return the names of the profiles that have changed."""
    if before is now:
        return set()
    changed = {name for name, profile in now.items() if before.get(name) is not profile}
    if len(before) + len(changed) > len(now):
        changed.update(before.keys() - now.keys())
    return changed
