"""Which samples a step is made of, and which worker takes which of them.

A pass over the data has one order, drawn from the seed and the number of the pass. A step takes the next `effective`
samples of it, the last one of a pass what is left. How many workers there are decides only who takes which part of a
step. So whatever the gang's size was on the way, each sample is taken once in a pass, and a step is made from the same
samples.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Micro(NamedTuple):
    """What one worker takes at once: places in the order of the pass, from `start` up to `stop`. `last` of its share
    of the step.
    """

    start: int
    stop: int
    last: bool

    @property
    def samples(self) -> int:
        return self.stop - self.start


class Step(NamedTuple):
    """The samples of one update of the weights: places in the order of its pass."""

    start: int
    stop: int

    @property
    def samples(self) -> int:
        return self.stop - self.start

    def share(self, rank: int, world: int, batch: int) -> list[Micro]:
        """What one worker takes of it, in parts of at most `batch` samples and of nearly one size; perhaps nothing."""
        first, last = cuts(self.samples, world)[rank : rank + 2]
        if first == last:
            return []
        ends = cuts(last - first, -(-(last - first) // batch))
        origin = self.start + first
        return [Micro(origin + one, origin + two, two == ends[-1]) for one, two in pairwise(ends)]


def order(samples: int, *, seed: int, turn: int, shuffle: bool) -> NDArray[np.int64]:
    """The order of the samples in one pass over them."""
    if not shuffle:
        return np.arange(samples)
    return np.random.default_rng([seed, turn]).permutation(samples)


def steps(samples: int, effective: int, *, begin: int = 0) -> Iterator[Step]:
    """The rest of a pass, of which `begin` samples have been taken."""
    for start in range(begin, samples, effective):
        yield Step(start, min(samples, start + effective))


def cuts(samples: int, parts: int) -> Sequence[int]:
    """Where a range is cut into parts that differ by one at most: as many ends as parts, after the 0."""
    return [samples * part // parts for part in range(parts + 1)]


__all__ = ["Micro", "Step", "cuts", "order", "steps"]
