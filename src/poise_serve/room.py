"""Estimates how many items of a batch fit into a replica's memory, from recent memory per item and free memory.

Memory is sampled after a batch that is larger than any before, and otherwise once a second. Memory per item is the peak
growth since the previous sample, divided by the size of the largest batch since. The estimate is a decaying maximum, so
that neither the setup by the first batch nor one large item limits later batches for ever.
Memory that a batch leaves allocated for the next one is no growth, and is missing from free memory. If free memory is
too small, the process releases its unused memory; the amount released is taken as the memory of the largest batch.

PyTorch counts device memory if the model uses a device; Linux counts the memory of the process. The smaller of the two
results is the limit. Memory of a model's child processes is not counted.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from poise.drivers.memory import Counted, Device, Process, limit_told
from poise.model.serving import MOST

USED = 0.8
"""Fraction of free memory that a batch may use; the rest is for other processes and for larger items."""

EVERY = 1.0
"""Sampling interval in seconds, except after a batch larger than any before."""

FADES = 0.8
"""Decay per second of the maximum memory per item."""

STEADY = 0.1
"""Smaller relative changes are not reported, because each change recomputes the best batch sizes."""


class Taken:
    """Estimates the use of one memory per item."""

    def __init__(self, counted: Counted) -> None:
        self._counted = counted
        self._held = -1  # before the first batch, which is ignored
        self._each = 0.0

    def room(self, items: int, largest: int, seconds: float) -> int:
        """Return the number of items that fit into memory; 0 if unknown. `items` is the size of the largest batch since
        the last sample, `seconds` ago, and `largest` that of the largest batch ever. The result is at least 1, because
        only a try shows whether one item fits.
        """
        counted = self._counted
        held = counted.held()
        if self._held >= 0:
            grown = max(0, counted.peak() - self._held) / items
            self._each = max(grown, self._each * FADES**seconds)
        room = self._room()
        if 0 < room < largest:
            counted.give_back()
            before, held = held, counted.held()
            self._each = max(self._each, (before - held) / largest)
            room = self._room()
        counted.forget()
        self._held = held
        return room

    def _room(self) -> int:
        if self._each < 1:
            return 0
        return max(1, min(MOST, int(USED * self._counted.free() / self._each)))


class Room:
    """Tracks how many `items` of a batch fit into the memory of this process; 0 until it is known."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.items = 0
        self._now = now
        self._taken = [Taken(Process(limit_told()))]
        self._largest = self._since = 0
        self._looked = -EVERY

    @contextmanager
    def taken_by(self, items: int) -> Iterator[None]:
        """Observe a batch of this many items while it is computed. A failed batch is ignored."""
        yield
        self._since = max(self._since, items)
        now = self._now()
        if not items or (items <= self._largest and now < self._looked + EVERY):
            return
        if len(self._taken) == 1 and (cuda := _cuda()) is not None:
            self._taken.append(Taken(Device(cuda)))
        self._largest = max(self._largest, items)
        rooms = [taken.room(self._since, self._largest, now - self._looked) for taken in self._taken]
        room = min(filter(None, rooms), default=0)
        if not room or abs(room - self.items) > STEADY * self.items:
            self.items = room
        self._looked, self._since = now, 0


def _cuda() -> Any:
    """Return `torch.cuda` if the model has initialized it, otherwise None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


__all__ = ["Room", "Taken"]
