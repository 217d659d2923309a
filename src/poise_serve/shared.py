"""Shared memory for large bodies between a gateway and a replica: written once, and not sent through the socket.

A replica serves one batch at a time, so each connection has two buffers, one for the bodies of a batch and one for its
answers: each batch is written at the start, after the reader has finished with the previous one. If it may not have
finished (a batch that is sent ahead), the next one is written beside it. Buffers grow, are
reused (which avoids page faults), and release memory that was not needed for a while. The gateway makes and seals them,
so that no process can shrink one while another reads it, which would kill the reader.
"""

import fcntl
import mmap
import os
from collections.abc import Sequence

from poise_serve.wire import Place

Body = bytes | memoryview

SHARED_FROM = 128 << 10
"""Minimum size in bytes of a body in shared memory; measured with `benchmarks/handover.py --shared-from 1`."""

ALIGNED = 64
"""Alignment of bodies, so that numbers of any type can be read in place."""

PAGES = 1 << 20
"""Buffers grow and shrink by multiples of this."""

FORGOTTEN = 0.98
"""Decay per batch of the remembered largest batch; four times its size is kept."""


def make_buffer() -> int:
    """Return the descriptor of a new, empty buffer. Raises `OSError`."""
    made = os.memfd_create("poise", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return made


class Writer:
    """Writes the bodies of each batch into a buffer; without a buffer, all bodies are sent in frames."""

    def __init__(self, buffer: int | None) -> None:
        self._buffer = buffer
        self._memory: mmap.mmap | None = None
        self._size = 0
        self._filled = 0  # bytes that may have memory allocated
        self._largest = 0.0
        self._last = (0, 0)  # where the previous batch begins and ends

    def place(self, bodies: Sequence[Body], *, beside: bool = False) -> tuple[list[bytes], list[Place]]:
        """Return the bodies of a batch for the frame, where large ones are empty, and the places of these. `beside`:
        the reader may still need the previous batch, but not the one before. Raises `OSError` without enough memory.
        """
        sizes = [len(body) for body in bodies]
        if self._buffer is None or max(sizes, default=0) < SHARED_FROM:
            self._give_back(0, needed=self._last[1] if beside else 0)
            self._last = (0, 0)
            return list(map(bytes, bodies)), []
        need = sum(-(-size // ALIGNED) * ALIGNED for size in sizes if size >= SHARED_FROM)
        begin, end = self._last
        at, places = end if beside and need > begin else 0, list[Place]()
        self._last = (at, at + need)
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

    def _give_back(self, need: int, needed: int = 0) -> None:
        """Release memory far beyond the recent need, but not the first `needed` bytes: the reader may not have finished
        with them. The buffer's size cannot shrink, but costs nothing.
        """
        if self._memory is None or not self._filled:
            return
        self._largest = max(need, FORGOTTEN * self._largest)
        least = max(needed, int(4 * self._largest) if self._largest >= SHARED_FROM else 0)
        kept = -(-least // PAGES) * PAGES
        if kept < self._filled:
            self._memory.madvise(mmap.MADV_REMOVE, kept, self._filled - kept)
            self._filled = kept

    def close(self) -> None:
        """Close the buffer."""
        if self._memory is not None:
            self._memory.close()
        if self._buffer is not None:
            os.close(self._buffer)


class Reader:
    """Reads bodies that the other side has written, if there is a shared buffer."""

    def __init__(self, buffer: int | None) -> None:
        self._buffer = buffer
        self._view = memoryview(b"")

    def at(self, place: Place) -> memoryview:
        """Return a read-only view of a body, valid until the next batch. Raises `ValueError` for an invalid place."""
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
        """Close the buffer; existing views stay valid."""
        self._view = memoryview(b"")
        if self._buffer is not None:
            os.close(self._buffer)


__all__ = ["SHARED_FROM", "Body", "Reader", "Writer", "make_buffer"]
