"""For how many items of a batch a replica has memory: what the largest batch took, and what is free now.

Without a batch the model holds `B` bytes, and at some moment of its largest batch, of `n` items, it held `P`. So an
item takes `(P - B) / n` at most, for some of it every batch takes. Where it holds `H` now, a batch of `n` takes `P - H`
more, and one of

    n + (USED * free - (P - H)) / ((P - B) / n)

items what may be used of that which is free. A device's memory is counted by PyTorch where the model uses it; that of
the process by Linux. The smaller number counts.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from poise.drivers import memory
from poise.drivers.system import free_memory

USED = 0.8
"""Of what is free, the part that a batch may take: the rest is for others, and for items that take more."""

EVERY = 1.0
"""Seconds after which it is measured again, though no batch was larger."""


class Largest:
    """The largest batch that one memory has held, and what it took."""

    def __init__(self, without: int) -> None:
        """`without` a batch so many bytes are held."""
        self._without = without
        self.items = self._peak = 0

    def room(self, items: int, peak: int, held: int, free: int) -> int:
        """For how many items there is memory, after a batch of so many at whose `peak` so many bytes were held. At
        least one: whether that fits is seen when it is tried. 0 where batches take nothing that can be measured.
        """
        if items >= self.items:
            self._peak = max(self._peak, peak) if items == self.items else peak
            self.items = items
        each = (self._peak - self._without) / self.items
        if each <= 0:
            return 0
        return max(1, int(self.items + (USED * free - (self._peak - held)) / each))


class Room:
    """Of this process, whose model is loaded. `items` is the room, 0 as long as it is not known."""

    def __init__(self) -> None:
        self.items = 0
        self._limit = int(os.environ.get("POISE_MEMORY", 0))
        self._process = Largest(memory.resident())
        device = _device()
        self._device = Largest(device.memory_allocated()) if device else None
        self._next = 0.0

    @contextlib.contextmanager
    def taken_by(self, items: int) -> Iterator[None]:
        """While a batch of so many is answered. It is measured if none was larger, and now and then; of one that
        fails nothing is learned.
        """
        now = time.monotonic()
        if not items or (items <= self._process.items and now < self._next):
            yield
            return
        self._next = now + EVERY
        device = _device() if self._device else None
        memory.forget_peak()
        if device:
            device.reset_peak_memory_stats()
        yield
        held = memory.resident()
        free = free_memory()
        rooms = [self._process.room(items, memory.peak(), held, min(free, self._limit - held) if self._limit else free)]
        if device and self._device:
            held = device.memory_allocated()
            free = device.mem_get_info()[0] + device.memory_reserved() - held
            rooms.append(self._device.room(items, device.max_memory_allocated(), held, free))
        self.items = min(filter(None, rooms), default=0)


def _device() -> Any:
    """`torch.cuda`, where the model has begun to use it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


__all__ = ["Largest", "Room"]
