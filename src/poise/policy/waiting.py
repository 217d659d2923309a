"""Waiting candidates in columns, as orders and weighings need them for a whole view at once.

Most candidates are the same from one view to the next. So results for a candidate are cached with the fleet
(`Fleet.runs`), and are valid while the candidate is the same object and its class has the same profiles.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from poise.model.fleet import Floats, Ints
from poise.model.jobs import CLASS_WEIGHT
from poise.model.profiles import Profile, estimate_each
from poise.model.resources import WHOLE
from poise.model.views import Candidate, Snapshot
from poise.policy.feasible import ability
from poise.policy.predict import MEASURED, NOTHING, Speeds, likely_each, speeds_of
from poise.policy.running import changed_profiles, classes_of
from poise.units import MINUTE, SECOND

AGEING = 5 * MINUTE
AGES_BY = 100
"""`AGEING`: a wait that raises a unit by one priority class. A unit that waits this long in the urgent class goes
before all others, in order of readiness, so no unit starves. A unit with devices waits at least `AGES_BY` times its own
run time for each class, as far as it is known now: a long unit does not pass short ones after a small wait. Of an
unknown run time, that of known classes counts: else all of a long queue would soon be first come, first served."""

STARVES = 10
"""Wait, in own run times, that doubles a unit's worth; the worth grows linearly with the wait."""

CLASS_WEIGHTS = np.array(CLASS_WEIGHT)
"""The weight of each class, as an array."""

_ordinal = attrgetter("ordinal")

NEVER = 2**62
"""An instant after all others."""

FEW = 4096
"""Up to this many new candidates are looked up one by one; for more, one lookup per group of equal ones is cheaper."""

SPARSE = 16
"""Columns are found in a table by ordinal, if it has at most this many entries for each candidate."""

COMPARED = 64
"""Number of candidates compared at once with those of the earlier view."""

MOST_CLASSES = 4096
"""Maximum number of classes that are numbered; after that, everything is looked up again."""

MOST_LEAVES = 4096
"""Maximum number of leaves that are numbered, beyond one for each candidate."""

(
    READY, ORDINAL, PRIORITY, TAIL, OWN, WEIGHT, TAKES, GPUS, WIDTH, WHOLES, ONE, LEAF, DECLARED, CLASS, LEARNS, GUESS,
) = range(16)  # fmt: skip
"""Rows of the columns. `OWN` is the expected run time, `TAKES` the thousandths of devices in total, `WIDTH` the minimum
number of devices; `WHOLES` marks units that wait for whole devices, in one artifact, and `ONE` those of one task on one
device, whole or shared, in one artifact. `LEAF` is the number of the share, and `CLASS` that of the class of work;
`LEARNS` is that of `Speeds.learns_waiting`. `GUESS` marks units of unknown run time."""


class _Seen(NamedTuple):
    """The candidates of a view, with their `columns` (16, N) and `runs` (N,), from these profiles. `classes` numbers
    the classes of work, and `leaves` the shares.
    """

    candidates: Sequence[Candidate]
    columns: Ints
    runs: Ints
    classes: dict[str, int]
    leaves: dict[str, int]
    profiles: Mapping[str, Profile]
    throughputs: object


class Waiting:
    """The candidates of a view in columns, in the order of the view."""

    def __init__(self, view: Snapshot) -> None:
        speeds = speeds_of(view)
        seen: _Seen | None = view.fleet.runs.get("waiting")
        if (
            seen is None
            or seen.throughputs is not speeds.throughputs
            or len(seen.classes) > MOST_CLASSES
            or len(seen.leaves) > MOST_LEAVES + len(view.candidates)
        ):
            seen = _Seen((), np.zeros((GUESS + 1, 0), np.int64), np.zeros(0, np.int64), {}, {}, {}, None)
        if seen.candidates != view.candidates or seen.profiles is not speeds.profiles:
            seen = view.fleet.runs["waiting"] = _look(view, speeds, seen)
        self.now, self.candidates = view.now, view.candidates
        self._speeds = speeds
        self.columns, self.leaves = seen.columns, seen.leaves
        self.runs = seen.runs
        """(N,): the remaining nanoseconds of each on its fastest device (`Speeds.shortest`)."""

    @cached_property
    def waited(self) -> Ints:
        """(N,): nanoseconds since each became ready."""
        waited: Ints = self.now - self.columns[READY]
        return waited

    @cached_property
    def raised(self) -> Ints:
        """(N,): the number of classes by which waiting has raised each."""
        columns, runs = self.columns, self.runs
        if (guess := columns[GUESS] > 0).any():
            runs = np.where(guess, np.maximum(runs, self._speeds.typical), runs)
        every = np.where(columns[GPUS] > 0, np.clip(runs, 0, NEVER // AGES_BY) * AGES_BY, 0)
        raised: Ints = self.waited // np.maximum(AGEING, every)
        return raised

    @cached_property
    def classes(self) -> Ints:
        """(N,): the priority class of each with ageing; -1, before all others, after a long enough wait as urgent."""
        raised: Ints = self.columns[PRIORITY] - self.raised
        return np.maximum(-1, raised)

    def places_of(self, ones: Sequence[Candidate]) -> Ints:
        """Return the columns of these candidates."""
        ordinals = np.fromiter(map(_ordinal, ones), np.int64, len(ones))
        lowest, table = self._by_ordinal
        if len(table):
            return table[ordinals - lowest]
        known = self.columns[ORDINAL]
        order = known.argsort(kind="stable")
        found: Ints = order[np.searchsorted(known[order], ordinals)]
        return found

    @cached_property
    def _by_ordinal(self) -> tuple[int, Ints]:
        """The lowest ordinal, and the column of each ordinal from there on. Empty if most of them do not wait."""
        ordinals = self.columns[ORDINAL]
        lowest, highest = int(ordinals.min(initial=NEVER)), int(ordinals.max(initial=0))
        if not len(ordinals) or highest - lowest >= SPARSE * len(ordinals):
            return 0, np.zeros(0, np.int64)
        table: Ints = np.zeros(highest - lowest + 1, np.int64)
        table[ordinals - lowest] = np.arange(len(ordinals))
        return lowest, table

    def values(self, places: Ints, waits: float) -> Floats:
        """Return the worth of starting each of these now, as in `reclaim.value`."""
        columns, runs = self.columns[:, places], self.runs[places]
        classes = np.maximum(0, self.classes[places])
        weights = CLASS_WEIGHTS[classes] * columns[WEIGHT] / 1000
        longs_for = 1 + self.waited[places] / (STARVES * np.maximum(SECOND, runs))
        if waits != 1.0:
            longs_for = np.array([more**waits for more in longs_for.tolist()])
        values: Floats = weights * longs_for / (np.maximum(1, runs) / SECOND)
        return values


def ageing(candidate: Candidate, view: Snapshot) -> int:
    """Return the wait that raises a candidate by one class. The view need not show the candidate."""
    if not candidate.shape.gpus:
        return AGEING
    speeds, able = speeds_of(view), ability(view.fleet, candidate.shape).models
    run = speeds.shortest(candidate, able)
    if speeds.is_guess(candidate, able):
        run = max(run, speeds.typical)
    return min(max(AGEING, AGES_BY * run), NEVER)


def _look(view: Snapshot, speeds: Speeds, seen: _Seen) -> _Seen:
    """Return the columns of this view's candidates, reusing those of an earlier view."""
    ones, classes, leaves = view.candidates, seen.classes, seen.leaves
    known = _known(seen.candidates, ones)
    if seen.candidates:
        columns, runs = seen.columns[:, known], seen.runs[known]
    else:
        columns, runs = np.zeros((GUESS + 1, len(ones)), np.int64), np.zeros(len(ones), np.int64)
    again = known < 0
    new = again.nonzero()[0].tolist()
    if new:
        columns[:, new] = np.array([_column(ones[place], classes, leaves) for place in new], np.int64).T
    changed = changed_profiles(seen.profiles, speeds.profiles)
    for kind in classes_of(changed):
        if kind not in classes or changed.isdisjoint(speeds.sources_of(kind)):
            continue
        of_it = ~again & (columns[CLASS] == classes[kind]) & (columns[LEARNS] != NOTHING)
        if (measured := speeds.measured_of(kind, speeds.only_model)) is not None:
            alone = (of_it & (columns[LEARNS] == MEASURED)).nonzero()[0]
            means, _ = likely_each(*estimate_each(measured, columns[DECLARED, alone]))
            runs[alone] = np.minimum(NEVER, means)
            of_it[alone] = False
        again |= of_it
    if places := again.nonzero()[0].tolist():
        some = [ones[place] for place in places]
        runs[places] = _runs(view, speeds, some)
        able = [ability(view.fleet, one.shape).models for one in some]
        columns[LEARNS, places] = [speeds.learns_waiting(*of) for of in zip(some, able, strict=True)]
        columns[GUESS, places] = [speeds.is_guess(*of) for of in zip(some, able, strict=True)]
    return _Seen(ones, columns, runs, classes, leaves, speeds.profiles, speeds.throughputs)


def _known(before: Sequence[Candidate], ones: Sequence[Candidate]) -> Ints:
    """Return the place of each candidate in the earlier view, -1 if it is new or has changed. Both views are in order
    of submission; where they are not, candidates count as new.
    """
    known: Ints = np.full(len(ones), -1, np.int64)
    old = place = 0
    while old < len(before) and place < len(ones):
        same = _same(before, old, ones, place)
        known[place : place + same] = np.arange(old, old + same)
        old, place = old + same, place + same
        if old < len(before) and place < len(ones):
            then, now = before[old].ordinal, ones[place].ordinal
            old, place = old + (then <= now), place + (now <= then)
    return known


def _same(before: Sequence[Candidate], old: int, ones: Sequence[Candidate], place: int) -> int:
    """Return how many candidates from these places on are the same objects."""
    count, most = 0, min(len(before) - old, len(ones) - place)
    while count < most:
        many = min(COMPARED, most - count)
        if before[old + count : old + count + many] != ones[place + count : place + count + many]:
            while before[old + count] is ones[place + count]:
                count += 1
            return count
        count += many
    return count


def _runs(view: Snapshot, speeds: Speeds, ones: Sequence[Candidate]) -> list[int]:
    """Return the remaining run time of each candidate."""
    if len(ones) <= FEW:
        return [_run(view, speeds, one) for one in ones]
    of: dict[object, int] = {}
    runs = []
    for one in ones:
        alike = (one.queue, one.work, one.declared, one.expected, one.saved, one.progress, one.left, one.outlived)
        run = of.get(alike)
        if run is None:
            run = of[alike] = _run(view, speeds, one)
        runs.append(run)
    return runs


def _run(view: Snapshot, speeds: Speeds, one: Candidate) -> int:
    return min(NEVER, speeds.shortest(one, ability(view.fleet, one.shape).models) if one.shape.gpus else one.expected)


def _column(one: Candidate, classes: dict[str, int], leaves: dict[str, int]) -> list[int]:
    shape, tasks = one.shape, one.least or one.tasks
    return [
        one.ready,
        one.ordinal,
        one.priority,
        min(NEVER, one.tail),
        min(NEVER, one.expected),
        one.weight,
        shape.gpus * shape.share * tasks,
        shape.gpus,
        shape.gpus * tasks,
        shape.gpus > 0 and shape.share == WHOLE and not one.others,
        shape.gpus == one.tasks == 1 and not one.others,
        leaves.setdefault(one.leaf, len(leaves)),
        one.declared,
        classes.setdefault(one.kind, len(classes)),
        0,
        0,
    ]
