"""Cost model of gradient exchange and of a training step: formulas, and how they are fitted.

*Collectives.* A ring of `n` workers adds up `S` bytes in 2 (n - 1) rounds, in each of which a worker sends S/n to the
next (Patarasuk and Yuan, 2009); gathering `S` bytes of each takes n - 1 rounds of S. A round costs a latency and its
bytes (Hockney's model; Thakur et al., "Optimization of collective communication operations in MPICH", 2005, section 4):

    added up   start + 2 (n - 1) latency + 2 (n - 1)/n S (wire / rate + handling)
    gathered   start +   (n - 1) latency +   (n - 1)   S (wire / rate + handling)

`wire` is the number of bytes on the link per byte of gradient, `handling` the seconds of host time per byte. Adding up
and gathering run different code, so each has its own costs. The formulas are linear in the unknown costs, which are
fitted by non-negative least squares of the relative errors.

*A step.* Buckets become ready during backward and are sent one after another: a bucket that is ready at `r_k` and takes
`c_k` arrives at f_k = max(f_(k-1), r_k) + c_k (Shi et al., "MG-WFBP", INFOCOM 2019, section 3.3). The step ends after
backward, the last bucket and the work that follows them.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np

from poise.model.fleet import Floats
from poise.model.progress import MAX_TASKS_TOLD, Speedups

Pattern = Literal["reduce", "gather"]
"""A collective: an all-reduce, which sums the bytes of all workers, or an all-gather."""


class Way(NamedTuple):
    """Cost of a collective in seconds: per call, per round, and per byte that a worker sends."""

    start: float
    latency: float
    byte: float


class Link(NamedTuple):
    """Cost of collectives over a link, by pattern."""

    reduce: Way
    gather: Way


class Cost(NamedTuple):
    """Cost fitted over links of several rates."""

    start: float
    latency: float
    wire: float
    handling: float


class Costs(NamedTuple):
    """Fitted costs by pattern; `on` returns those of a link with a rate in bytes per second."""

    reduce: Cost
    gather: Cost

    def on(self, rate: float) -> Link:
        return Link(*(Way(one.start, one.latency, one.wire / rate + one.handling) for one in self))


class Timing(NamedTuple):
    """One measured collective. `rate` is that of the link, in bytes per second."""

    pattern: Pattern
    size: int
    workers: int
    rate: float
    seconds: float


class Message(NamedTuple):
    """A message of a step, `ready` seconds after the step begins, to be reduced or gathered."""

    ready: float
    size: int
    pattern: Pattern = "reduce"


def rounds(pattern: Pattern, workers: int) -> int:
    return (2 if pattern == "reduce" else 1) * (workers - 1)


def given_out(pattern: Pattern, size: float, workers: int) -> float:
    """Return the bytes that each worker sends."""
    return (workers - 1) * size * (2 / workers if pattern == "reduce" else 1)


def seconds(pattern: Pattern, size: float, workers: int, link: Link) -> float:
    """Return the duration of a collective."""
    if workers < 2:
        return 0.0
    way = link.reduce if pattern == "reduce" else link.gather
    return way.start + rounds(pattern, workers) * way.latency + given_out(pattern, size, workers) * way.byte


def fitted(timings: Sequence[Timing]) -> Costs:
    """Fit the costs to measured times. A pattern without measurements gets those of the other."""

    def cost(pattern: Pattern) -> Cost:
        those = _of(pattern, timings)
        rows = []
        for one in those:
            out = given_out(one.pattern, one.size, one.workers)
            rows.append((1.0, rounds(one.pattern, one.workers), out / one.rate, out))
        return Cost(*_least(np.array(rows), np.array([one.seconds for one in those])))

    return Costs(cost("reduce"), cost("gather"))


def fitted_link(timings: Sequence[Timing]) -> Link:
    """Fit the costs of one link, without its rate."""

    def way(pattern: Pattern) -> Way:
        those = _of(pattern, timings)
        rows = [(1.0, rounds(one.pattern, one.workers), given_out(one.pattern, one.size, one.workers)) for one in those]
        return Way(*_least(np.array(rows), np.array([one.seconds for one in those])))

    return Link(way("reduce"), way("gather"))


def _of(pattern: Pattern, timings: Sequence[Timing]) -> Sequence[Timing]:
    return [one for one in timings if one.pattern == pattern] or timings


def _least(rows: Floats, measured: Floats) -> list[float]:
    """Fit non-negative costs by least squares of the relative errors. Try all subsets of the columns, of which there
    are at most four, and return the best fit.
    """
    scale = np.abs(rows).max(axis=0)
    weighted = rows / scale / measured[:, None]
    best, least = [0.0] * rows.shape[1], np.inf
    for many in range(1, rows.shape[1] + 1):
        for columns in combinations(range(rows.shape[1]), many):
            found, *_ = np.linalg.lstsq(weighted[:, columns], np.ones(len(rows)), rcond=None)
            left = float(((weighted[:, columns] @ found - 1.0) ** 2).sum())
            if (found >= 0).all() and left < least - 1e-12:
                least, best = left, [0.0] * rows.shape[1]
                for column, value in zip(columns, found, strict=True):
                    best[column] = float(value / scale[column])
    return best


# --- a step ----------------------------------------------------------------------------------------------------------


def exposed(messages: Sequence[Message], ends: float, workers: int, link: Link) -> float:
    """Return the seconds of communication after the end of backward."""
    free = 0.0
    for one in messages:
        free = max(free, one.ready) + seconds(one.pattern, one.size, workers, link)
    return max(0.0, free - ends)


class Work(NamedTuple):
    """The work of one worker for `samples` samples: `compute` seconds without the exchange. Backward ends after `ends`
    seconds; the parts of the gradient become ready before (`messages`, in order).
    """

    samples: int
    compute: float
    ends: float
    messages: tuple[Message, ...]


def step_seconds(work: Work, share: float, workers: int, link: Link) -> float:
    """Return the duration of a step in which each worker has this share of the measured samples. The optimizer's step,
    after backward, takes as long as measured.
    """
    scaled = [one._replace(ready=one.ready * share) for one in work.messages]
    ends = work.ends * share
    return ends + exposed(scaled, ends, workers, link) + work.compute - work.ends


def speedups(work: Work, effective: int, most: int, together: Link, apart: Link) -> Speedups:
    """Return a gang's speedups by number of workers, in thousandths of the speed of one worker. The effective batch is
    constant: each of `n` workers takes 1/n of its samples. `together` is the link inside a node, `apart` that between
    nodes.
    """
    many = range(1, min(most, MAX_TASKS_TOLD, effective) + 1)

    def thousandths(link: Link) -> tuple[int, ...]:
        one = step_seconds(work, effective / work.samples, 1, link)
        return tuple(
            round(1000 * one / step_seconds(work, effective / workers / work.samples, workers, link))
            for workers in many
        )

    return Speedups(thousandths(together), thousandths(apart))


__all__ = [
    "Cost",
    "Costs",
    "Link",
    "Message",
    "Pattern",
    "Timing",
    "Way",
    "Work",
    "exposed",
    "fitted",
    "fitted_link",
    "given_out",
    "rounds",
    "seconds",
    "speedups",
    "step_seconds",
]
