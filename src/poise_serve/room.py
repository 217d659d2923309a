"""For how many items of a batch a replica has memory: what items have taken lately, and what is free now.

What is held is looked at when a batch was larger than any before, and else once a second. By how much it has grown at
most since the look before, over the items of the largest batch since, is what one item takes; the most of these counts,
and fades, so that neither what the first batch of all sets up nor one large item is held against all others for ever.
What a batch leaves behind for the next does not show as growth then, and is missing from what is free: where there is
not enough, the process gives back what it does not use, and what that was is what the largest batch had taken.

A device's memory is counted by PyTorch where the model uses it, that of the process by Linux; the smaller room counts.
What a model's child processes hold is not seen.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from poise.drivers.memory import Counted, Device, Process, limit_told
from poise.model.serving import MOST

USED = 0.8
"""Of what is free, the part that a batch may take: the rest is for others, and for items that take more."""

EVERY = 1.0
"""Seconds from one look to the next, unless a batch was larger than any before."""

FADES = 0.8
"""What is left of the most that an item took, from one second to the next."""

STEADY = 0.1
"""A room that has changed by less is told as it was: it costs to work out anew which batches are best."""


class Taken:
    """What items take of one memory."""

    def __init__(self, counted: Counted) -> None:
        self._counted = counted
        self._held = -1  # before the first batch of all, of which nothing is learned
        self._each = 0.0

    def room(self, items: int, largest: int, seconds: float) -> int:
        """For how many items there is memory, where batches had so many at most since the look before, that long ago,
        and `largest` ever. At least one: whether that fits is seen when it is tried. 0 where nothing can be said.
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
    """Of this process. `items` is the room, 0 as long as it is not known."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.items = 0
        self._now = now
        self._taken = [Taken(Process(limit_told()))]
        self._largest = self._since = 0
        self._looked = -EVERY

    @contextmanager
    def taken_by(self, items: int) -> Iterator[None]:
        """While a batch of so many is answered. Of one that fails nothing is learned."""
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
    """`torch.cuda`, where the model has begun to use it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


__all__ = ["Room", "Taken"]
