"""How large the micro-batches of a worker are: the largest for which it has memory, at a constant effective batch.

A worker takes its `share` of each step's samples, cut into micro-batches whose gradients are added up. So the size of a
micro-batch is a matter of memory and time alone: what a step learns from is the same. It is

* no more than four fifths of the free memory hold, by what a sample has taken,
* at most twice what it was, since what a sample takes is known only from smaller ones,
* half at most of one that has run out of memory, and from then on below that, halfway at most, until much more is free,
* the smallest that needs as few micro-batches, so that they are of one size and it changes only where that saves one.

The effective batch changes only where that is asked for. The learning rate goes with it then: in proportion (Goyal et
al., "Accurate, Large Minibatch SGD", 2017) or by its square root (Malladi et al., "On the SDEs and Scaling Rules for
Adaptive Gradient Algorithms", 2022), as the optimizer wants it.

>>> Tuning().decide(TrainView(share=256, batch=32, each=1_000_000, free=200_000_000))
Resize(batch=64, accumulation=4, rate=0.0, short=None)
"""

from math import sqrt
from typing import Literal

import msgspec

LEAST, MOST = 256, 2048
"""The range of the effective batch where none is asked for."""

USED = 0.8
"""Of what is free, the part that a micro-batch may take: the rest is for others, and for samples that take more."""

GROWTH = 2
"""No larger a step at once: what a sample takes is known from smaller micro-batches."""

MORE = 1.25
"""A size that has run out of memory may be tried again with so many times as much memory free."""

Rule = Literal["linear", "sqrt", "none"]
"""How the learning rate goes with the effective batch."""


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
    """All stays; `short` is for the next view."""

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
        if short is not None and batch >= short.batch > 1:  # the next smaller number of them that are of one size
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
    """The smallest micro-batches that are as few as those of `batch`, and how many they are.

    >>> evened(100, 64)
    (50, 2)
    """
    accumulation = -(-share // min(batch, share))
    return -(-share // accumulation), accumulation


def rate_for(rate: float, before: int, after: int, rule: Rule) -> float:
    """The learning rate for another effective batch.

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
