"""Assigns samples to steps and to workers.

A pass over the data has one order of the samples, drawn from the seed and the number of the pass. A step takes the next
`effective` samples, and the last step of a pass the remainder. The number of workers determines only how a step is
divided. So for any sequence of gang sizes, each sample is used once per pass, and each step has the same samples.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Micro(NamedTuple):
    """A micro-batch of one worker: places in the order of the pass, from `start` to `stop` (exclusive). `last`: it is
    the last one of its share of the step.
    """

    start: int
    stop: int
    last: bool

    @property
    def samples(self) -> int:
        return self.stop - self.start


class Step(NamedTuple):
    """The samples of one update of the weights: places in the order of its pass, `stop` exclusive."""

    start: int
    stop: int

    @property
    def samples(self) -> int:
        return self.stop - self.start

    def share(self, rank: int, world: int, batch: int) -> list[Micro]:
        """Return one worker's share in micro-batches of nearly equal size, at most `batch` samples; may be empty."""
        first, last = cuts(self.samples, world)[rank : rank + 2]
        if first == last:
            return []
        ends = cuts(last - first, -(-(last - first) // batch))
        origin = self.start + first
        return [Micro(origin + one, origin + two, two == ends[-1]) for one, two in pairwise(ends)]


def order(samples: int, *, seed: int, turn: int, shuffle: bool) -> NDArray[np.int64]:
    """Return the order of the samples in pass number `turn`."""
    if not shuffle:
        return np.arange(samples)
    return np.random.default_rng([seed, turn]).permutation(samples)


def steps(samples: int, effective: int, *, begin: int = 0) -> Iterator[Step]:
    """Yield the steps of the rest of a pass, after its first `begin` samples."""
    for start in range(begin, samples, effective):
        yield Step(start, min(samples, start + effective))


def cuts(samples: int, parts: int) -> Sequence[int]:
    """Divide a range into parts whose sizes differ by at most one. Return 0 and the end of each part."""
    return [samples * part // parts for part in range(parts + 1)]


__all__ = ["Micro", "Step", "cuts", "order", "steps"]
