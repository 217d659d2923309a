"""Deadlines of a view: which are kept, which units must start now for that, and how long running units could be
preempted.

`look` applies `deadlines` to all work with a deadline, once with devices and once without. Work that can no longer be
on time, or was given up so that more is, counts as ordinary work in every rule.
"""

from collections.abc import Mapping, Sequence
from math import erf, exp, pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from poise.model.deadlines import can_meet
from poise.model.decisions import UNKNOWN
from poise.model.fleet import CPU, DEVICES, Resident
from poise.model.jobs import CLASS_WEIGHT, GRACE
from poise.model.profiles import CERTAIN, Estimate
from poise.model.resources import WHOLE, Shape
from poise.model.views import Candidate, Snapshot
from poise.policy.deadlines import ONE_POOL, Owed, latest_starts, met
from poise.policy.elastic import speeds_with
from poise.policy.feasible import ability
from poise.policy.predict import Speeds, speeds_of
from poise.policy.running import Running, lost_work

LOOKED_AT = 128
"""Maximum number of waiting, and of running units with a deadline examined in a round, those with the earliest latest
start first. Units that cannot be on time are not counted.
"""

RISK = 0.1
"""Maximum decrease of a running unit's chance to be on time when other work preempts it."""

EXCHANGE = 0.4
"""The same limit if the other work would miss a deadline itself."""

WIDE = 5.0
"""Standard deviations beyond which truncating a normal distribution has no effect."""

SAFETY = 2.0
"""Safety margin of a start, in mean deviations of the estimate. Nine in ten runs are shorter than twice their declared
time (lognormal errors with a P90 of 2, as the twin draws them)."""

UNIFORM = 0.5
"""Relative mean deviation of an unknown run: any time up to its deadline is as likely."""

OF_CLASS = ("history", UNKNOWN)
"""Prefixes of the sources of estimates that reflect only the class, not this run."""


class Promise(NamedTuple):
    """A running unit whose deadline is kept, in nanoseconds: the `time` within which it has to end, its remaining run
    time `left` with its mean error (`deviation`), and the work lost by a preemption.
    """

    time: int
    left: int
    deviation: float
    lost: int

    def risk(self, run: int) -> float:
        """Return how much the chance to be on time falls if the unit waits for such a run."""
        chance = chance_of(self.time, self.left, self.deviation)
        return chance - chance_of(self.time - run - self.lost, self.left, self.deviation)


class Timely(NamedTuple):
    """Units with a kept deadline. `pressed` units wait and must start now; the one with the least device time for its
    worth, in nanoseconds of a device, goes first. By unit: the `promised` deadline of a running one, and the speed that
    an elastic one needs, relative to one task on the fastest device (`paces`). `next` is the instant at which the next
    unit becomes pressed (0: none). `waiting` has all units that wait. Units whose deadline is not kept are in none of
    these.
    """

    pressed: Mapping[str, float] = {}
    promised: Mapping[str, Promise] = {}
    paces: Mapping[str, float] = {}
    next: int = 0
    waiting: frozenset[str] = frozenset()

    def makes_late(self, resident: Resident, run: int, risk: float) -> bool:
        """Return whether waiting for such a run puts a kept deadline at more than this risk."""
        promise = self.promised.get(resident.unit)
        return promise is not None and promise.risk(run) > risk


NO_DEADLINES = Timely()


def timely_in(view: Snapshot) -> Timely:
    """Return the deadlines of a view, for callers that have only the view."""
    speeds = speeds_of(view)
    return look(view, speeds, Running(view.fleet, speeds, view.now))


def look(view: Snapshot, speeds: Speeds, running: Running) -> Timely:
    """Return the deadlines of all shown waiting units and all running ones."""
    residents = [one for one in running.residents if one.due]
    candidates = [one for one in view.candidates if one.due]
    if not residents and not candidates:
        return NO_DEADLINES
    return _Look(view, speeds, running).all(candidates)


class _OwedBy(NamedTuple):
    """A candidate's `Owed` and the estimates it comes from. It is valid while both inputs are the same objects."""

    candidate: Candidate
    of: Sequence[Estimate]
    owed: Owed


class _Look:
    """One examination of one view."""

    def __init__(self, view: Snapshot, speeds: Speeds, running: Running) -> None:
        self.view, self.speeds, self.running = view, speeds, running
        self.paces: dict[str, float] = {}
        models = [model.called for model in view.fleet.models] if speeds.tells_models_apart(devices=True) else []
        self.pools = {called: pool for pool, called in enumerate(dict.fromkeys(models))}
        self.pool_of = [self.pools[called] for called in models]  # by device model: several can have one name
        known: tuple[Speeds, dict[str, int], dict[str, _OwedBy]] | None = view.fleet.runs.get("owed")
        self._same, self._owed_before = False, dict[str, _OwedBy]()
        if known is not None and known[1] == self.pools:
            self._same, self._owed_before = known[0] is speeds, known[2]
        self._owed: dict[str, _OwedBy] = {}
        self._factors: dict[tuple[int, int], tuple[Any, Any, tuple[float, ...]]] = {}  # by what they come from

    def all(self, candidates: list[Candidate]) -> Timely:
        now, fleet = self.view.now, self.view.fleet
        left = self._residents()
        starts: dict[str, int] = {}
        promised: dict[str, Promise] = {}
        takes: dict[str, float] = {}
        is_open = fleet.closed == 0
        for on_devices in (True, False):
            runs = {unit: of for unit, of in left.items() if (of[0].shape.gpus > 0) == on_devices}
            waiting = self._first([self._owed_by(one) for one in candidates if (one.shape.gpus > 0) == on_devices])
            running = self._first([self._running(one, ns, varies) for one, ns, varies in runs.values() if one.due])
            if not waiting and not running:
                continue
            looked_at, others = [*map(self._by_chance, waiting[:LOOKED_AT]), *running[:LOOKED_AT]], running[LOOKED_AT:]
            pools = self._sizes(looked_at) if on_devices else []
            if not pools:
                row = DEVICES if on_devices else CPU
                pools = [int(fleet.total[row, is_open].sum()) * (WHOLE if on_devices else 1)]
                looked_at, others = ([one._replace(factors=ONE_POOL) for one in of] for of in (looked_at, others))
            places = {unit: self.pools.get(of[0].model, 0) if len(pools) > 1 else 0 for unit, of in runs.items()}
            taken = [
                (now + ns, _width(one.shape, one.size), places[one.unit])
                for one, ns, _ in runs.values()
                if not one.due and (one.serves or not one.preemptible)
            ]
            taken += [(now + one.left, one.width, places[one.unit]) for one in others]
            kept = met(looked_at, pools, now, taken) + others
            starts |= latest_starts(kept, pools, now, places)
            last = latest_starts([one._replace(margin=0) for one in kept], pools, now, places)
            for one in kept:
                takes[one.unit] = one.left * one.width / one.worth
                if one.unit in runs:
                    resident, ns, varies = runs[one.unit]
                    time = last[one.unit] - now + one.left
                    promised[one.unit] = Promise(time, ns, varies * ns, lost_work(resident, now) + GRACE)
        fleet.runs["owed"] = self.speeds, self.pools, self._owed
        waits = {unit: start for unit, start in starts.items() if unit not in promised}
        return Timely(
            {unit: takes[unit] for unit, start in waits.items() if start <= now},
            promised,
            {unit: pace for unit, pace in self.paces.items() if unit in starts},
            min((start for start in waits.values() if start > now), default=0),
            frozenset(waits),
        )

    def _sizes(self, units: Sequence[Owed]) -> list[int]:
        """Return the size of each pool of devices, in thousandths; none if the models are not told apart, or a unit is
        so wide that it needs devices of several.
        """
        if not self.pools:
            return []
        fleet = self.view.fleet
        there = fleet.device_model[fleet.closed == 0]
        pools = np.array(self.pool_of)[there[there >= 0]]
        sizes: list[int] = (np.bincount(pools, minlength=len(self.pools)) * WHOLE).tolist()
        for one in units:
            could = [size for size, factor in zip(sizes, one.factors, strict=True) if factor]
            if could and one.width > max(could):
                return []
        return sizes

    def _factors_of(self, one: Resident | Candidate) -> tuple[float, ...]:
        """Return how much longer a unit runs in each pool than on its fastest model, 0 where it cannot run."""
        if not self.pools or not one.shape.gpus:
            return ONE_POOL
        of = self.speeds.of(one.kind, one.shape.wants.precision, one.declared, one.work, devices=True)
        able = ability(self.view.fleet, one.shape).models
        known = self._factors.get(key := (id(of), id(able)))
        if known is None:
            means = [0] * len(self.pools)
            for model, pool in enumerate(self.pool_of):
                if able[model]:
                    means[pool] = max(1, of[model].mean)
            fastest = min(filter(None, means), default=1)
            known = self._factors[key] = of, able, tuple(mean / fastest for mean in means)
        return known[2]

    def _first(self, owed: list[Owed]) -> list[Owed]:
        """Return the units that can be on time, those with the earliest latest start first."""
        now = self.view.now
        return sorted((one for one in owed if can_meet(one.due, now, one.left)), key=_latest)

    def _residents(self) -> dict[str, tuple[Resident, int, float]]:
        """Return, by unit, the remaining run time and its relative uncertainty."""
        running = self.running
        if not running.residents:
            return {}
        rows = zip(running.residents, running.left.tolist(), running.varies.tolist(), strict=True)
        return {one.unit: (one, *self._of_resident(one, left, part)) for one, left, part in rows if not one.stopping}

    def _of_resident(self, one: Resident, left: int, varies: float) -> tuple[int, float]:
        """Return the remaining run time of a running unit, and its uncertainty: by the unit's own estimate, or else by
        its class and deadline.
        """
        time = one.due - self.view.now
        if not one.due or time <= 0 or not self._is_of_class(self.speeds.of_attempt(one), one):
            return left, varies
        speeds = speeds_with(self.view.speedups.get(one.unit), one.most) if one.least else (0.0, 1.0)
        left, deviation = _by_deadline(left, varies, int(time * max(speeds) / speeds[one.size if one.least else 1]))
        return left, deviation / left

    def _is_of_class(self, estimate: Estimate, one: Resident | Candidate) -> bool:
        """Return whether only the class and the deadline of this run are known."""
        if one.progress or (estimate.source == "throughput table" and one.declared):
            return False
        return estimate.source.startswith(OF_CLASS) or estimate.source == "throughput table"

    def _running(self, one: Resident, left: int, varies: float) -> Owed:
        tasks, weight = one.size, CLASS_WEIGHT[one.priority] * one.weight
        factors = tuple(float(called == one.model) for called in self.pools) if one.shape.gpus else ()
        if one.least:
            speeds, rate = speeds_with(self.view.speedups.get(one.unit), one.most), self._rate(one)
            work, time = left * speeds[one.size], one.due - self.view.now
            self.paces[one.unit] = rate * speeds[tasks]
            if left * (1 + SAFETY / 2 * varies) > time:  # else keep its size: a change has a cost
                lost = lost_work(one, self.view.now) * speeds[one.size]
                on = [(rate, work if one.resizes else work + lost), (1.0, rate * (work + lost))]
                for to, again in on if rate < 1 else on[:1]:
                    larger = _fewest(time, again * (1 + SAFETY * varies), one.least, speeds)
                    if (to > rate or larger > tasks) and again <= time * speeds[larger]:
                        self.paces[one.unit] = to * speeds[larger]
                        tasks, work = larger, again
                        factors = self._factors_of(one) if to > rate else factors
                        break
            left = int(work / speeds[tasks])
        margin = int(SAFETY * varies * left)
        owed = Owed(one.unit, one.due, left, _width(one.shape, tasks), weight, margin, factors or ONE_POOL)
        return _by_chance(owed, one.due - self.view.now, varies * left)

    def _rate(self, one: Resident) -> float:
        """Return a unit's speed where it runs, relative to the fastest device that it can run on."""
        shape, models = one.shape, self.view.fleet.models
        if not shape.gpus:
            return 1.0
        of = self.speeds.of(one.kind, shape.wants.precision, one.declared, one.work, devices=True)
        able = ability(self.view.fleet, shape).models
        runs = {model.called: of[index].mean for index, model in enumerate(models) if able[index]}
        return min(1.0, min(runs.values()) / max(1, runs[one.model])) if one.model in runs else 1.0

    def _by_chance(self, owed: Owed) -> Owed:
        """Return a waiting unit with its worth multiplied by its chance to be on time if it starts now."""
        return _by_chance(owed, owed.due - self.view.now, (owed.margin - GRACE) / SAFETY)

    def _owed_by(self, one: Candidate) -> Owed:
        """Return a candidate's `Owed`, without its chance to be on time."""
        known = self._owed_before.get(one.unit)
        if known is not None and known.candidate is not one:
            known = None
        if known is not None and self._same:
            self._owed[one.unit] = known
            return known.owed
        shape, tasks = one.shape, one.least or one.tasks
        of = self.speeds.of(one.kind, shape.wants.precision, one.declared, one.work, devices=shape.gpus > 0)
        unknown = Estimate(one.expected, 0, UNKNOWN)  # before any node has joined
        left, varies = one.expected, max(of, key=_mean, default=unknown)
        if shape.gpus:
            models = ability(self.view.fleet, shape).models
            left = self.speeds.shortest(one, models)
            if known is not None and known.of is of and known.owed.left == left:
                self._owed[one.unit] = known
                return known.owed
            varies = min((of[index] for index in range(len(of)) if models[index]), key=_mean, default=varies)
        speeds = speeds_with(self.view.speedups.get(one.unit), one.tasks) if one.least else (0.0, 1.0)
        uncertain, time = varies.deviation / max(1, varies.mean), one.due - self.view.now
        if not one.left and self._is_of_class(varies, one):
            most = int((one.due - one.ready - GRACE) * max(speeds) / speeds[max(1, one.least)])
            if varies.source == UNKNOWN and most > 0:
                left, uncertain = max(1, most // 2), UNIFORM
            else:
                left, deviation = _by_deadline(left, uncertain, most)
                uncertain = deviation / left
        part = SAFETY * uncertain
        if one.least:
            work = left * speeds[one.least]
            tasks = _fewest(time - GRACE, work * (1 + part), one.least, speeds)
            self.paces[one.unit] = speeds[tasks]
            left = int(work / speeds[tasks])
        margin = time if varies.source == UNKNOWN else int(part * left) + GRACE
        weight = CLASS_WEIGHT[one.priority] * one.weight
        owed = Owed(one.unit, one.due, left, _width(shape, tasks), weight, margin, self._factors_of(one))
        if not one.least and varies.source != UNKNOWN:  # for others it depends on the time
            self._owed[one.unit] = _OwedBy(one, of, owed)
        return owed


def _by_chance(owed: Owed, time: int, deviation: float) -> Owed:
    """Return the unit with its worth multiplied by the chance that it ends in time once it runs."""
    return owed._replace(worth=owed.worth * chance_of(time, owed.left, deviation))


def _by_deadline(left: int, varies: float, most: int) -> tuple[int, float]:
    """Return the remaining run time (at least 1) and its mean deviation. Only the class of the run is known. A user who
    sets a deadline expects that the run is shorter than the time for it, `most`. So assume one of the shorter runs of
    its class, unless hardly any is that short.
    """
    left, deviation = max(1, left), varies * left
    return shorter_than(left, deviation, most) if most > 0 and left - CERTAIN * deviation <= most else (left, deviation)


def shorter_than(left: int, deviation: float, most: int) -> tuple[int, float]:
    """Return the mean and mean deviation of a run that is known to take at most `most`: the given normal distribution,
    truncated to 0..`most`.
    """
    sigma = max(1.0, deviation) * sqrt(pi / 2)
    low, high = -left / sigma, (most - left) / sigma
    part = (erf(high / sqrt(2)) - erf(low / sqrt(2))) / 2
    if high > WIDE or part <= 0:
        return left, deviation
    at_low, at_high = exp(-low * low / 2) / sqrt(2 * pi), exp(-high * high / 2) / sqrt(2 * pi)
    shift = (at_low - at_high) / part
    spread = 1 + (low * at_low - high * at_high) / part - shift * shift
    return max(1, int(left + sigma * shift)), sigma * sqrt(max(0.0, spread)) * sqrt(2 / pi)


def chance_of(time: int, left: int, deviation: float) -> float:
    """Return the probability that a run with the estimate `left` ends within `time`, assuming normal errors."""
    return (1 + erf((time - left) / max(1.0, deviation) / sqrt(pi))) / 2


def _fewest(time: int, work: float, least: int, speeds: Sequence[float]) -> int:
    """Return the fewest tasks that finish `work` (nanoseconds on one task) within `time`; if none do, the fastest."""
    for tasks in range(max(1, least), len(speeds)):
        if work <= time * speeds[tasks]:
            return tasks
    return max(range(max(1, least), len(speeds)), key=speeds.__getitem__)


def _width(shape: Shape, tasks: int) -> int:
    """Return what a unit takes of a pool: thousandths of devices, or milli-CPU."""
    return max(1, shape.gpus * shape.share if shape.gpus else shape.cpu) * tasks


def _latest(one: Owed) -> int:
    return one.due - one.left - one.margin


def _mean(estimate: Estimate) -> int:
    return estimate.mean
