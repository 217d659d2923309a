"""Chooses the micro-batch size of a worker: the largest that fits into memory, at a constant effective batch.

A worker takes its `share` of each step's samples, divided into micro-batches whose gradients are accumulated. So the
size of a micro-batch affects only memory and time: each step learns from the same samples. The size is

* at most as many samples as fit into four fifths of the free memory, by the measured memory per sample,
* at most twice the current size, because memory per sample is known only from smaller micro-batches,
* at most half of a size that ran out of memory; later halfway to that size at most, until much more memory is free,
* the smallest that needs as few micro-batches, so that sizes are equal and change only to save a micro-batch.

The effective batch changes only on request. The learning rate is scaled with it then: in proportion (Goyal et al.,
"Accurate, Large Minibatch SGD", 2017) or by the square root (Malladi et al., "On the SDEs and Scaling Rules for
Adaptive Gradient Algorithms", 2022), depending on the optimizer.

>>> Tuning().decide(TrainView(share=256, batch=32, each=1_000_000, free=200_000_000))
Resize(batch=64, accumulation=4, rate=0.0, short=None)
"""

from math import sqrt
from typing import Literal

import msgspec

LEAST, MOST = 256, 2048
"""The range of the default effective batch."""

USED = 0.8
"""Fraction of free memory that a micro-batch may use; the rest is for other processes and for larger samples."""

GROWTH = 2
"""Maximum growth factor per change, because memory per sample is known only from smaller micro-batches."""

MORE = 1.25
"""Retry a size that ran out of memory once free memory has grown by this factor."""

Rule = Literal["linear", "sqrt", "none"]
"""How the learning rate scales with the effective batch."""


class Short(msgspec.Struct, frozen=True):
    """A micro-batch of `batch` samples ran out of memory, with `free` bytes available before it."""

    batch: int
    free: int


class TrainView(msgspec.Struct, frozen=True, kw_only=True):
    """State of a worker between two steps.

    `share`: samples of this worker in a step. `batch`: current maximum size of a micro-batch; `most`: its upper limit
    (0: none). `each`: bytes per sample (0: not known yet); `free`: free bytes before a micro-batch. `tried`: size of
    the micro-batch that has just run out of memory (0: none); `short`: the shortage in the last answer. `effective`:
    the effective batch for which `rate` was set; `asked`: the requested one (0: the same), scaled by `rule`.
    """

    share: int
    batch: int
    most: int = 0
    each: int = 0
    free: int = 0
    tried: int = 0
    short: Short | None = None
    rate: float = 0.0
    effective: int = 0
    asked: int = 0
    rule: Rule = "linear"


class Keep(msgspec.Struct, frozen=True):
    """Change nothing; `short` is for the next view."""

    short: Short | None = None


class Resize(msgspec.Struct, frozen=True):
    """Cut the share into `accumulation` micro-batches of `batch` samples at most, and learn at this rate."""

    batch: int
    accumulation: int
    rate: float
    short: Short | None = None


class Tuning:
    """A stateless policy: the answer depends only on the view."""

    name = "fitting"

    def decide(self, view: TrainView, /) -> Keep | Resize:
        short = Short(view.tried, view.free) if view.tried else view.short
        if short is not None and view.free > MORE * short.free:
            short = None
        batch, accumulation = evened(view.share, size_of(view, short))
        if short is not None and batch >= short.batch > 1:  # the next smaller size, evened out
            batch, accumulation = evened(view.share, short.batch - 1)
        rate = rate_for(view.rate, view.effective, view.asked or view.effective, view.rule)
        if batch == view.batch and rate == view.rate:
            return Keep(short)
        return Resize(batch, accumulation, rate, short)


def size_of(view: TrainView, short: Short | None) -> int:
    """Return the maximum number of samples in a micro-batch, before sizes are evened out."""
    most = min(view.share, view.most or view.share)
    room = int(USED * view.free / view.each) if view.each else most
    if view.tried:
        return max(1, min(view.tried // 2, room))
    size = min(most, room, GROWTH * view.batch if view.each else view.batch)
    if short is not None and size >= short.batch:
        size = (view.batch + short.batch) // 2
    return max(1, size)


def evened(share: int, batch: int) -> tuple[int, int]:
    """Return the smallest size that needs no more micro-batches than `batch` does, and their number.

    >>> evened(100, 64)
    (50, 2)
    """
    accumulation = -(-share // min(batch, share))
    return -(-share // accumulation), accumulation


def rate_for(rate: float, before: int, after: int, rule: Rule) -> float:
    """Return the learning rate for another effective batch.

    >>> rate_for(0.1, 256, 1024, "linear"), rate_for(0.1, 256, 1024, "sqrt")
    (0.4, 0.2)
    """
    if rule == "none" or not before or before == after:
        return rate
    times = after / before
    return rate * (times if rule == "linear" else sqrt(times))


def effective_of(fits: int, world: int) -> int:
    """Return the default effective batch size: the largest power of two that fits on all workers, from LEAST to MOST.
    A power of two does not change with small differences in memory.

    >>> effective_of(300, 2), effective_of(8, 2), effective_of(10**6, 4)
    (512, 256, 2048)
    """
    size = 1 << (max(1, fits * world).bit_length() - 1)
    return min(max(size, LEAST), MOST)


__all__ = [
    "LEAST", "MOST", "Keep", "Resize", "Rule", "Short", "TrainView", "Tuning", "effective_of", "evened", "rate_for",
]  # fmt: skip
