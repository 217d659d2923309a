"""Live counters: an observer of the control plane, and totals of the minutes that nodes report.

A scrape copies the counts. It does not read the history, so its cost does not grow with the number of events.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isnan, nan
from typing import NamedTuple, get_args

from poise.control import metrics
from poise.kernel.ledger import Ledger
from poise.model.decisions import UNKNOWN, Cause
from poise.model.events import (
    DeadlinesMissed,
    Event,
    Finished,
    JobSubmitted,
    Lagging,
    NodeLost,
    Placed,
    PolicyFailed,
    Preempted,
    Resized,
    Returned,
    Straggling,
)
from poise.model.intensity import Intensity
from poise.model.jobs import Outcome, Priority
from poise.model.metrics import Bins, Families, Labels, Metric
from poise.model.observed import CommitTook, Happened, Observed, RoundTook
from poise.model.power import KWH, POWER
from poise.model.profiles import CERTAIN, Estimate, estimate_run
from poise.model.reports.questions import Start
from poise.model.usage import MINUTE, SIGNALS, Window
from poise.units import SECOND

REMEMBERED = 10_000
"""Maximum number of forecasts of run times and of starts that wait for their outcome; the oldest is dropped."""

CPU, DEVICE, PROCESSORS, DEVICES = (SIGNALS.index(name) for name in ("cpu", "device", "power", "device_power"))
MILLIWATTS = 1000


_PRIORITIES = tuple((priority.name.lower(),) for priority in Priority)
_ZERO: dict[Metric, tuple[Labels, ...]] = {
    metrics.PHASES: tuple((name,) for name in ("view", "decide", "wait", "apply")),
    metrics.ROUNDS: ((),),
    metrics.APPEND: ((),),
    metrics.SYNC: ((),),
    metrics.WAIT: _PRIORITIES,
    metrics.PLACED: _PRIORITIES,
    metrics.PREEMPTED: tuple((cause,) for cause in get_args(Cause)),
    metrics.RESIZED: tuple((cause,) for cause in get_args(Cause)),
    metrics.ENDED: tuple((outcome,) for outcome in get_args(Outcome)),
    metrics.FORECASTS: tuple((result,) for result in ("inside", "shorter", "longer")),
    metrics.START_FORECASTS: tuple((result,) for result in ("inside", "earlier", "later")),
    metrics.START_FORECAST_ERROR: ((),),
    metrics.FORECAST_ERROR: ((),),
}
"""Labels that start at zero: a rate needs a zero before the first count."""


class Counts:
    """Counters and histograms by metric and labels. Not thread-safe."""

    def __init__(self) -> None:
        self._counted: dict[Metric, dict[Labels, float]] = {}
        self._bins: dict[Metric, dict[Labels, Bins]] = {}

    def begin(self, metric: Metric, labels: Labels) -> None:
        """Add a series with the value zero."""
        if metric.kind == "histogram":
            self._bins.setdefault(metric, {})[labels] = Bins(metric.buckets)
        else:
            self.count(metric, *labels, by=0)

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        counted = self._counted.setdefault(metric, {})
        counted[labels] = counted.get(labels, 0) + by

    def measure(self, metric: Metric, value: float, *labels: str) -> None:
        bins = self._bins.setdefault(metric, {})
        if labels not in bins:
            bins[labels] = Bins(metric.buckets)
        bins[labels].add(value)

    def copy(self) -> Families:
        made: Families = {metric: dict(of) for metric, of in self._counted.items()}
        made |= {metric: {labels: one.copy() for labels, one in of.items()} for metric, of in self._bins.items()}
        return made


class _Foretold(NamedTuple):
    """Forecast start of the first of some units: the 10th, 50th and 90th percentiles, as instants."""

    units: frozenset[str]
    earliest: int
    likely: int
    latest: int


class Tally:
    """Counts events, rounds and commits, on the thread of its observer. `told` may be called on any thread.

    `ledger` returns the ledger, which belongs to the thread of the loop. This class reads only single units and
    profiles, which is safe from another thread: a value is never partially written, and at most milliseconds newer.
    """

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._counts = Counts()
        self._forecasts: dict[tuple[str, int], Estimate] = {}
        self._starts: dict[str, _Foretold] = {}
        for metric in metrics.METRICS:
            for labels in _ZERO.get(metric, () if metric.labels or metric.kind != "counter" else ((),)):
                self._counts.begin(metric, labels)

    def told(self) -> Families:
        with self._lock:
            return self._counts.copy()

    def foretold(self, now: int, groups: Sequence[Collection[str]], starts: Sequence[Start]) -> None:
        """Record a forecast, made at `now`, of the start of the first unit in each group of a job. Only the first
        forecast of a job counts, because later ones have less to predict. Thread-safe.
        """
        jobs = self._ledger().jobs
        for units, start in zip(groups, starts, strict=True):
            if start.guesses or start.earliest is None or start.likely is None or start.latest is None:
                continue
            known = [jobs.unit(name) for name in units]
            if any(unit is None or unit.status != "pending" for unit in known):  # one has started meanwhile
                continue
            made = _Foretold(frozenset(units), now + start.earliest, now + start.likely, now + start.latest)
            with self._lock:
                self._starts.setdefault(min(made.units).partition(".")[0], made)
                if len(self._starts) > REMEMBERED:
                    del self._starts[next(iter(self._starts))]

    def observe(self, observed: Observed, /) -> None:
        with self._lock:
            match observed:
                case Happened():
                    self._counts.count(metrics.EVENTS, by=len(observed.events))
                    for event in observed.events:
                        self._happened(event)
                case RoundTook():
                    self._round(observed)
                case CommitTook():
                    self._counts.measure(metrics.APPEND, observed.append / SECOND)
                    self._counts.measure(metrics.SYNC, observed.sync / SECOND)

    def _round(self, took: RoundTook) -> None:
        phases = {"view": took.view, "decide": took.decide, "wait": took.wait, "apply": took.apply}
        for name, nanoseconds in phases.items():
            self._counts.measure(metrics.PHASES, nanoseconds / SECOND, name)
        self._counts.measure(metrics.ROUNDS, sum(phases.values()) / SECOND)

    def _happened(self, event: Event) -> None:
        count = self._counts.count
        match event:
            case Placed():
                self._placed(event)
            case Finished():
                self._finished(event)
            case JobSubmitted():
                count(metrics.SUBMITTED)
            case Preempted():
                count(metrics.PREEMPTED, event.cause)
            case Resized():
                count(metrics.RESIZED, event.cause)
            case Straggling() | Lagging():
                count(metrics.STRAGGLERS)
            case DeadlinesMissed():
                count(metrics.DEADLINES, by=len(event.units))
            case Returned():
                count(metrics.CALLS)
            case NodeLost():
                count(metrics.LOST_TOTAL)
            case PolicyFailed():
                count(metrics.POLICY_FAILURES)

    def _placed(self, event: Placed) -> None:
        ledger = self._ledger()
        unit = ledger.jobs.unit(event.unit)
        if unit is None:  # the job has ended and was forgotten
            return
        spec, priority = unit.spec, unit.spec.priority.name.lower()
        self._counts.count(metrics.PLACED, priority, by=len(event.spots))
        wait = max(0, event.at - max(unit.ready, unit.not_before))
        self._counts.measure(metrics.WAIT, wait / SECOND, priority)
        told = self._starts.get(unit.job)
        if told is not None and unit.id in told.units:
            del self._starts[unit.job]
            result = "earlier" if event.at < told.earliest else "later" if event.at > told.latest else "inside"
            self._counts.count(metrics.START_FORECASTS, result)
            self._counts.measure(metrics.START_FORECAST_ERROR, abs(event.at - told.likely) / SECOND)
        forecast = estimate_run(ledger.profiles.get(spec.kind), spec.expect)
        if event.epoch == 1 and len(event.spots) == 1 and not spec.serves and forecast.source != UNKNOWN:
            self._forecasts[f"{unit.job}.{spec.tasks[0].name}", event.epoch] = forecast
            if len(self._forecasts) > REMEMBERED:
                del self._forecasts[next(iter(self._forecasts))]

    def _finished(self, event: Finished) -> None:
        outcome = event.ending.outcome
        self._counts.count(metrics.ENDED, outcome)
        forecast, run = self._forecasts.pop((event.task, event.epoch), None), event.ending.run
        if forecast is None or outcome != "done" or not run:
            return
        off, within = run - forecast.mean, CERTAIN * forecast.deviation
        result = "inside" if abs(off) <= within else "longer" if off > 0 else "shorter"
        self._counts.count(metrics.FORECASTS, result)
        self._counts.measure(metrics.FORECAST_ERROR, abs(off) / run)


class Held(NamedTuple):
    """CPU cores and devices of a node, in total and held by work."""

    cores: float
    devices: int
    held_cores: float
    held_devices: int


class Minutes:
    """The latest minute that each node reported, and their totals. Use it on the thread of the loop.

    A node reports the current minute several times; it is counted once, when the node reports a later one. `intensity`
    returns the values of electricity by hour, if there are any.
    """

    def __init__(self, intensity: Callable[[], Intensity | None]) -> None:
        self._intensity = intensity
        self._values: tuple[int, Intensity | None] = (0, None)
        self._counts = Counts()
        self._latest: dict[str, Window] = {}

    def take(self, node: str, windows: Sequence[Window], held: Held) -> None:
        """Store minutes that a node reported, oldest first; `held` is what it holds now."""
        for window in windows:
            before = self._latest.get(node)
            if before is not None and window.at > before.at:
                self._close(before, held)
            if before is None or window.at >= before.at:
                self._latest[node] = window

    def _close(self, minute: Window, held: Held) -> None:
        self._used("cpu", minute.mean[CPU], held.cores, held.held_cores)
        self._used("device", minute.mean[DEVICE], held.devices, held.held_devices)
        for part, signal in (("processors", PROCESSORS), ("devices", DEVICES)):
            if (power := minute.mean[signal]) >= 0:
                energy = power / MILLIWATTS * MINUTE
                self._counts.count(metrics.ENERGY, part, by=energy)
                self._value(part, minute.at, energy / KWH)

    def _value(self, part: str, at: int, kwh: float) -> None:
        """Count the CO2e and the price of the energy of a minute."""
        if self._values[0] != at:  # all nodes report the same minute: the file is looked at once
            self._values = at, self._intensity()
        intensity = self._values[1]
        value = nan if intensity is None else intensity.mean(at, MINUTE)
        unit = "" if intensity is None or isnan(value) else intensity.unit
        if unit == "$/kWh":
            self._counts.count(metrics.ELECTRICITY, part, by=kwh * value)
        rate, kilograms = ("hour", value) if unit == "kg/kWh" else ("constant", POWER.kg_per_kwh)
        self._counts.count(metrics.CO2E, part, rate, by=kwh * kilograms)

    def _used(self, resource: str, busy: int, there: float, held: float) -> None:
        if busy < 0 or not there:  # not measured
            return
        self._counts.count(metrics.HELD_SECONDS, resource, by=held * MINUTE)
        self._counts.count(metrics.IDLE_SECONDS, resource, by=max(0.0, held - busy / 1000 * there) * MINUTE)

    def keep_only(self, nodes: Mapping[str, object]) -> None:
        """Drop the minutes of nodes that no longer exist."""
        for name in self._latest.keys() - nodes.keys():
            del self._latest[name]

    def latest(self, node: str) -> Window | None:
        return self._latest.get(node)

    def told(self) -> Families:
        return self._counts.copy()


__all__ = ["Counts", "Held", "Minutes", "Tally"]
