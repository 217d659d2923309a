"""How often a checkpoint is made, and which are kept.

The interval balances the cost of checkpoints against the work lost in failures. It follows from the measured cost of a
checkpoint and the observed failure rate of the gang. Times are in nanoseconds.
"""

from collections.abc import Iterable, Mapping
from math import isnan, sqrt

import msgspec

from poise.errors import InputError
from poise.units import HOUR, SECOND

PRIOR = 1_000 * HOUR
"""Prior mean time between failures of one worker: between that of a GPU in a well-kept cluster (one failure in 50,000
hours: 419 in 54 days of 16,384 GPUs; Llama Team, The Llama 3 Herd of Models, 2024, section 3.3.4) and that of a
machine that may be preempted any day.
"""

LEAST = 10 * SECOND
"""Minimum interval: more frequent checkpoints cost more, in disk latency and synchronization, than they save."""

MOST = HOUR
"""Maximum interval, so that every run has a recent checkpoint."""

WRITING = 2
"""Minimum interval as a multiple of the write time, so that a disk is busy for at most half of the time."""


class Keep(msgspec.Struct, frozen=True):
    """Rule for kept checkpoints: the number of `last` ones, the number of `best` ones by score (the largest; without
    scores none), and permanently each whose step is a multiple of `every` (0: none).
    """

    last: int = 3
    best: int = 1
    every: int = 0

    def __post_init__(self) -> None:
        for name, least in (("last", 1), ("best", 0), ("every", 0)):
            have = getattr(self, name)
            if have < least:
                raise InputError(f"from {least} on", field=f"keep.{name}", need=str(least), have=str(have))


def superfluous(scores: Mapping[int, float | None], keep: Keep, wanted: Iterable[int] = ()) -> list[int]:
    """Return the steps of checkpoints to remove, in order. `scores`: scores of all checkpoints, by step. The newest and
    the `wanted` ones are never removed.
    """
    steps = sorted(scores)
    scored = {step: score for step, score in scores.items() if score is not None and not isnan(score)}
    best = sorted(scored, key=lambda step: (-scored[step], -step))[: keep.best]
    stay = {*steps[-keep.last :], *best, *wanted}
    return [step for step in steps if step not in stay and not (keep.every and step % keep.every == 0)]


def between_failures(failures: int, worked: int, world: int) -> int:
    """Return the expected time between failures of a gang of `world` workers, after `failures` in `worked` nanoseconds
    of worker time (summed over all workers of all attempts).

    Failures are assumed to be random, with one rate for each worker; a gang fails if any worker fails. The rate is the
    mean of a gamma distribution with the prior of one failure in `PRIOR` (Gelman et al., Bayesian Data Analysis, the
    Poisson model).
    """
    return (PRIOR + worked) // ((1 + failures) * max(1, world))


def interval(cost: int, between: int, took: int = 0) -> int:
    """Return the checkpoint interval.

    `cost`: pause of training for one checkpoint; `between`: mean time between failures; `took`: time to write one in
    the background. The formula is that of J. T. Daly, A higher order estimate of the optimum checkpoint interval for
    restart dumps, FGCS 22 (2006); for small costs it approaches J. W. Young's sqrt(2 cost between), CACM 17 (1974). The
    minimum is `LEAST` and `WRITING` times `took`; the formula is limited by `MOST`.
    """
    share = cost / (2 * between)
    best = sqrt(2 * cost * between) * (1 + sqrt(share) / 3 + share / 9) - cost if share < 1 else float(between)
    return int(max(LEAST, WRITING * took, min(MOST, best)))


def steps_between(interval: int, step: int) -> int:
    """Return the interval in steps of `step` nanoseconds; at least 1."""
    return max(1, interval // max(1, step))
