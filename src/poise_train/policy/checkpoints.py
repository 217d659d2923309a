"""How often a checkpoint is made, and which are kept.

Often enough that a failure costs little, seldom enough that making them costs little: the interval follows from what
one costs and from how often the gang fails, both as they were measured. Times are nanoseconds.
"""

from collections.abc import Iterable, Mapping
from math import isnan, sqrt

import msgspec

from poise.errors import InputError
from poise.units import HOUR, SECOND

PRIOR = 1_000 * HOUR
"""Of work of one worker in which one failure is expected before any was seen: between a GPU of a well-kept cluster (one
in 50,000 hours: 419 in 54 days of 16,384 GPUs; Llama Team, The Llama 3 Herd of Models, 2024, section 3.3.4) and a
machine that may be taken away any day.
"""

LEAST = 10 * SECOND
"""Between two checkpoints: below that, waking disks and waiting for one another costs more than what is saved."""

MOST = HOUR
"""Between two checkpoints: whoever looks at a run finds one that is no older."""

WRITING = 2
"""So many times as long as a checkpoint is being written: a disk is busy for half of the time at most."""


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
    """The steps of checkpoints that need not stay, in order. `scores`: of every checkpoint, by its step. The newest is
    never among them, nor are those that are `wanted`.
    """
    steps = sorted(scores)
    scored = {step: score for step, score in scores.items() if score is not None and not isnan(score)}
    best = sorted(scored, key=lambda step: (-scored[step], -step))[: keep.best]
    stay = {*steps[-keep.last :], *best, *wanted}
    return [step for step in steps if step not in stay and not (keep.every and step % keep.every == 0)]


def between_failures(failures: int, worked: int, world: int) -> int:
    """How long a gang of `world` workers is expected to run between two failures, after `failures` in `worked`
    nanoseconds of one worker (all workers of all attempts added up).

    Failures are taken to come at random, at one rate for each worker; a gang fails with any of them. The rate is the
    mean of a gamma distribution that began with one failure in `PRIOR` (Gelman et al., Bayesian Data Analysis, the
    Poisson model).
    """
    return (PRIOR + worked) // ((1 + failures) * max(1, world))


def interval(cost: int, between: int, took: int = 0) -> int:
    """How long to train between two checkpoints.

    `cost`: for how long training stands still for one; `between`: failures, in the mean; `took`: for how long one is
    being written beside training. J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart
    dumps, FGCS 22 (2006); for costs that are small it is J. W. Young's sqrt(2 cost between), CACM 17 (1974). Bounded
    from below by what writing takes and by `LEAST`, from above by `MOST`.
    """
    share = cost / (2 * between)
    best = sqrt(2 * cost * between) * (1 + sqrt(share) / 3 + share / 9) - cost if share < 1 else float(between)
    return int(max(LEAST, WRITING * took, min(MOST, best)))


def steps_between(interval: int, step: int) -> int:
    """The same in steps that take `step` nanoseconds, at least one."""
    return max(1, interval // max(1, step))
