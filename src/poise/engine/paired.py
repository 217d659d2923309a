"""Paired comparison of two worlds: each figure, the difference, and a confidence interval for it.

Jobs are paired: the same job in both worlds. The interval comes from a bootstrap over days or, where there are few
days, over moving blocks (Künsch, 1989): whole days, or blocks of consecutive jobs, are resampled, since jobs of the
same time waited for each other.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from poise.model.reports.policies import PairedFigure, WorldReport
from poise.model.worlds import Row, WorldsTold

LEVEL = 0.95
"""Confidence level of an interval: a fortieth of the drawn differences lies beyond each of its ends."""

DRAWN = 500
FEWEST = 20
"""Minimum number of jobs for a comparison."""

DAYS = 5
"""Minimum number of days for resampling days; otherwise blocks of jobs are resampled."""

MOST = 20_000
"""Maximum number of jobs in a comparison, the latest: computing their interval takes a second."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Value = Callable[[Floats], float]


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """The number of compared `jobs`, of which `ended` have ended in both worlds; without `figures` where they are too
    few.
    """

    jobs: int
    ended: int
    level: float
    figures: tuple[PairedFigure, ...] = ()

    @property
    def completion(self) -> PairedFigure | None:
        """The figure that decides on the promotion of a policy."""
        return self.figures[0] if self.figures else None


def compare(
    pairs: Iterable[tuple[Row, Row]],
    capacity: float = 0.0,
    *,
    level: float = LEVEL,
    seed: int = 0,
    drawn: int = DRAWN,
    days: Sequence[int] = (),
) -> Pairs:
    """Compare jobs in the order in which they were submitted; `days` are the days of their submission, if given.
    `capacity` is the available nanoseconds times devices, for the utilization (0: unknown).
    """
    told = list(pairs)[-MOST:]
    ended = sum(live.ended and shadow.ended for live, shadow in told)
    if len(told) < FEWEST:
        return Pairs(jobs=len(told), ended=ended, level=level)
    live, shadow = (np.array([pair[side] for pair in told], dtype=np.float64) for side in (0, 1))
    places = list(_blocks(len(told), days[-MOST:], drawn, seed))

    def figure(
        name: str, of: Literal["time", "count", "share"], column: int, value: Value, per: float = 1
    ) -> PairedFigure:
        was, then = live[:, column] / per, shadow[:, column] / per
        differences = [value(then[some]) - value(was[some]) for some in places]
        low, high = interval(differences, level)
        before, after = value(was), value(then)
        return PairedFigure(name=name, of=of, live=before, shadow=after, difference=after - before, low=low, high=high)

    figures = [
        figure("mean completion", "time", 0, _mean),
        figure("P99 wait", "time", 1, _p99),
        figure("deadlines missed", "count", 2, _sum),
        figure("preemptions", "count", 3, _sum),
    ]
    if capacity:
        figures.append(figure("use", "share", 4, _sum, capacity))
    return Pairs(jobs=len(told), ended=ended, level=level, figures=tuple(figures))


def world_report(told: WorldsTold, label: str, wall: float) -> WorldReport | None:
    """Return the report on a shadow policy at a time in seconds since 1970; None where there is no data yet."""
    of = told.worlds.get(label)
    if of is None:
        return None
    found = compare((pair for window in of.windows for pair in window.pairs), sum(one.capacity for one in of.windows))
    return WorldReport(
        at=told.at,
        late=told.late + max(0.0, wall - told.written),
        hours=sum(window.hours for window in of.windows),
        jobs=found.jobs,
        ended=found.ended,
        level=found.level,
        figures=found.figures,
        guessed=sum(window.guessed for window in of.windows),
        converted=sum(window.converted for window in of.windows),
        left_out=told.left_out,
        failed=of.failed,
        cpu=told.cpu,
    )


def not_to_promote(report: WorldReport | None) -> str:
    """Return why a shadow policy must not be promoted; empty if it may be."""
    if report is None:
        return "nothing is known of its simulated fleet yet"
    if report.failed:
        return f"it failed in its simulated fleet: {report.failed}"
    return no_better(report.jobs, report.figures)


def no_better(jobs: int, figures: Sequence[PairedFigure]) -> str:
    """Return why the figures do not support a policy; empty if they do."""
    if not figures:
        return f"too few jobs were there: {jobs} of {FEWEST}"
    first = figures[0]
    if first.high >= 0:
        return f"its {first.name} may be no better: {in_words(first)}"
    worse = [figure for figure in figures[1:3] if figure.low > 0]
    return "; ".join(f"its {figure.name} is worse: {in_words(figure)}" for figure in worse)


def in_words(figure: PairedFigure) -> str:
    """Return `-7.2 % (-9.1 to -4.8)`, or for a count `-3 (-5 to -1)`."""
    values = [figure.difference, figure.low, figure.high]
    if figure.of == "time" and figure.live:
        middle, low, high = (f"{100 * value / figure.live:+.1f}" for value in values)
        return f"{middle} % ({low} to {high})"
    scale, digits = (100, 1) if figure.of == "share" else (1, 0)
    middle, low, high = (f"{scale * value:+.{digits}f}" for value in values)
    return f"{middle}{' %' if figure.of == 'share' else ''} ({low} to {high})"


def interval(drawn: Sequence[float], level: float) -> tuple[float, float]:
    """Return the central interval that contains this fraction of the drawn values."""
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _blocks(jobs: int, days: Sequence[int], drawn: int, seed: int) -> Iterator[Ints]:
    """Yield resampled indices of jobs: whole days, or blocks as long as the square root of the number of jobs."""
    random = np.random.default_rng(seed)
    every = np.unique(days)
    if len(every) >= DAYS:
        of_day = [np.flatnonzero(np.asarray(days) == day) for day in every]
        for _ in range(drawn):
            yield np.concatenate([of_day[day] for day in random.integers(0, len(every), size=len(every))])
        return
    length = max(1, round(jobs**0.5))
    for _ in range(drawn):
        starts = random.integers(0, jobs, size=(ceil(jobs / length), 1))
        yield ((starts + np.arange(length)) % jobs).reshape(-1)[:jobs]


def _mean(values: Floats) -> float:
    return float(values.mean())


def _sum(values: Floats) -> float:
    return float(values.sum())


def _p99(values: Floats) -> float:
    """Return the 99th percentile by the nearest rank."""
    rank = max(0, ceil(0.99 * len(values)) - 1)
    return float(np.partition(values, rank)[rank])
