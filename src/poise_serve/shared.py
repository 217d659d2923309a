"""Large bodies between a gateway and a replica: written once into memory that both see, not sent through the socket.

A replica works on one batch at a time, so each connection has two buffers, one for the bodies of a batch and one for
its answers: whoever writes begins at their start, whoever reads is done with the batch before before the next is
written. Buffers grow, are used again (memory that is there already costs no page faults), and give back what was far
too much for a while. They are made by the gateway and sealed, so that nobody can make one smaller while another
process reads there, which would kill that process.
"""

import fcntl
import mmap
import os
from collections.abc import Sequence

from poise_serve.wire import Place

Body = bytes | memoryview

SHARED_FROM = 128 << 10
"""Bytes from which on a body is worth it: found by `benchmarks/handover.py --shared-from 1`."""

ALIGNED = 64
"""Bodies begin at multiples of this: whatever numbers are in them can be read in place."""

PAGES = 1 << 20
"""Buffers grow and shrink by multiples of this."""

FORGOTTEN = 0.98
"""Of the largest batch that is remembered after one that is smaller; four times that are kept."""


def make_buffer() -> int:
    """The descriptor of an empty buffer. Raises `OSError` where the system has none."""
    made = os.memfd_create("poise", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return made


class Writer:
    """Puts the bodies of one batch after the other into a buffer; without one, all of them are sent."""

    def __init__(self, buffer: int | None) -> None:
        self._buffer = buffer
        self._memory: mmap.mmap | None = None
        self._size = 0
        self._filled = 0  # up to where it may take memory
        self._largest = 0.0

    def place(self, bodies: Sequence[Body]) -> tuple[list[bytes], list[Place]]:
        """The bodies of a batch as they are sent: those that are large are empty, and have a place. Raises `OSError` if
        there is no memory.
        """
        sizes = [len(body) for body in bodies]
        if self._buffer is None or max(sizes, default=0) < SHARED_FROM:
            self._give_back(0)
            return list(map(bytes, bodies)), []
        at, places = 0, list[Place]()
        for number, size in enumerate(sizes):
            if size >= SHARED_FROM:
                places.append(Place(number, at, size))
                at += -(-size // ALIGNED) * ALIGNED
        memory = self._with_room(self._buffer, at)
        for place in places:
            memory[place.at : place.at + place.size] = bodies[place.number]
        return [b"" if size >= SHARED_FROM else bytes(body) for size, body in zip(sizes, bodies, strict=True)], places

    def _with_room(self, buffer: int, need: int) -> mmap.mmap:
        if self._memory is None or need > self._size:
            size = -(-need // PAGES) * PAGES
            os.ftruncate(buffer, size)
            self._memory, self._size = mmap.mmap(buffer, size), size
        self._filled = max(self._filled, -(-need // PAGES) * PAGES)
        self._give_back(need)
        return self._memory

    def _give_back(self, need: int) -> None:
        """What is far more than has been needed lately: the memory goes; the size, which cannot, costs nothing."""
        if self._memory is None or not self._filled:
            return
        self._largest = max(need, FORGOTTEN * self._largest)
        kept = -(-int(4 * self._largest) // PAGES) * PAGES if self._largest >= SHARED_FROM else 0
        if kept < self._filled:
            self._memory.madvise(mmap.MADV_REMOVE, kept, self._filled - kept)
            self._filled = kept

    def close(self) -> None:
        """Give the buffer back."""
        if self._memory is not None:
            self._memory.close()
        if self._buffer is not None:
            os.close(self._buffer)


class Reader:
    """Reads what the other side has written, if there is a buffer between the two."""

    def __init__(self, buffer: int | None) -> None:
        self._buffer = buffer
        self._view = memoryview(b"")

    def at(self, place: Place) -> memoryview:
        """What is there, as a view that nothing can be written to, good until the next batch. Raises `ValueError` for a
        place that there is not.
        """
        end = place.at + place.size
        if not 0 <= place.at <= end:
            raise ValueError("no place in a buffer")
        if self._buffer is None:
            raise ValueError("no buffer is there")
        if end > len(self._view):
            size = os.fstat(self._buffer).st_size
            if end > size:
                raise ValueError("a place beyond the end of its buffer")
            self._view = memoryview(mmap.mmap(self._buffer, size, access=mmap.ACCESS_READ))
        return self._view[place.at : end]

    def close(self) -> None:
        """Give the buffer back; views that there are go on being good."""
        self._view = memoryview(b"")
        if self._buffer is not None:
            os.close(self._buffer)


__all__ = ["SHARED_FROM", "Body", "Reader", "Writer", "make_buffer"]
