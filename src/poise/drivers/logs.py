"""Output of commands: reading parts, following two streams until their attempt has ended, and pruning the oldest.

A log may have holes: the old part of a log beyond its limit has been freed on disk, and every offset stays valid.
Readers skip holes. A missing log counts as empty: silent commands leave no file.
"""

import asyncio
import contextlib
import os
import struct
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from glob import iglob
from pathlib import Path
from typing import Literal, NamedTuple

from poise.drivers.keeper import MOMENT, TIMES, data_at

Stream = Literal["out", "err"]

KEEP_BYTES, KEEP_FILES = 4 * 2**30, 50_000
"""Maximum bytes and number of all logs of a home."""

PRUNE_SECONDS = 60.0

_PIECE = 64 << 10
_LOOKED_AT = 64 << 20
_SOON = 0.03
_LATER = 0.25


class Piece(NamedTuple):
    """Bytes of one stream, with their offset."""

    stream: Stream
    offset: int
    data: bytes


class Pruned(NamedTuple):
    """The removed and the remaining logs."""

    files: int
    bytes: int
    left_files: int
    left_bytes: int


class Moments:
    """The times at which the bytes of a log were written, to about 0.2 s, from its index and its mtime."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = -1
        self._sizes: list[int] = []
        self._times: list[int] = []

    def at(self, offset: int) -> tuple[int, int]:
        """Return when the byte at this offset was written, in nanoseconds since 1970 (0: unknown), and up to which
        offset this time applies.
        """
        self._look()
        found = bisect_right(self._sizes, offset)
        return (self._times[found], self._sizes[found]) if found < len(self._sizes) else (self._changed(), _ENDLESS)

    def since(self, moment: int) -> int:
        """Return the offset of the first byte written at this time or later, or else the end."""
        self._look()
        found = next((number for number, time in enumerate(self._times) if time >= moment), len(self._times))
        if found == len(self._times) and self._changed() < moment:
            return self._path.stat().st_size if self._path.exists() else 0
        return self._sizes[found - 1] if found else 0

    def _changed(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0

    def _look(self) -> None:
        index = Path(f"{self._path}{TIMES}")
        try:
            size = index.stat().st_size
            text = index.read_bytes() if size != self._size else b""
        except OSError:
            return
        if text:
            self._size = size
            records = [*struct.iter_unpack("<QQ", text[: len(text) // MOMENT * MOMENT])]
            self._sizes, self._times = [size for size, _ in records], [time for _, time in records]


_ENDLESS = 2**63  # more than the largest offset


def line_at(path: Path, offset: int) -> int:
    """Return where the line at an offset begins; for a very long line, the offset itself."""
    begin = max(0, offset - _PIECE)
    start, data = piece(path, begin, offset - begin)
    place = data.rfind(b"\n", 0, max(0, offset - start))
    return start + place + 1 if place >= 0 else (0 if begin == start == 0 else offset)


def read(path: Path, offset: int = 0, limit: int = _PIECE) -> bytes:
    """Read at most `limit` bytes from the first existing one at or after `offset`; a negative one counts from the
    end."""
    return piece(path, offset, limit)[1]


def last_lines(path: Path, lines: int) -> int:
    """Return the offset at which the last `lines` of a log begin, within its last 64 MiB."""
    end = path.stat().st_size if path.exists() else 0
    if not lines:
        return end
    first, at, left = max(0, end - _LOOKED_AT), end, lines
    while at > first:
        begin = max(first, at - _PIECE)
        start, data = piece(path, begin, at - begin)
        if start < at:  # otherwise it is a hole
            place = len(data) - (at == end)  # a newline at the very end does not begin a line
            while (place := data.rfind(b"\n", 0, place)) >= 0:
                left -= 1
                if not left:
                    return start + place + 1
        at = begin
    return first


async def keep_pruned(logs: Path) -> None:
    """Prune logs periodically, for ever, down to `KEEP_BYTES` and `KEEP_FILES`."""
    while True:
        await asyncio.to_thread(prune, logs, KEEP_BYTES, KEEP_FILES)
        await asyncio.sleep(PRUNE_SECONDS)


async def follow(
    out: Path,
    err: Path,
    ended: Callable[[], bool],
    offsets: tuple[int, int] = (0, 0),
) -> AsyncIterator[Piece]:
    """Yield both streams as they grow, until `ended()` is true and all earlier output has been yielded.

    Polls every 30 ms while there is output, and otherwise with growing pauses of up to 250 ms.
    """
    places: dict[Stream, int] = {"out": offsets[0], "err": offsets[1]}
    paths: dict[Stream, Path] = {"out": out, "err": err}
    pause = _SOON
    while True:
        last = ended()  # asked before reading: output from before the end may still follow
        some = False
        for stream, path in paths.items():
            start, data = piece(path, places[stream], _PIECE)
            places[stream] = start + len(data)
            if data:
                some = True
                yield Piece(stream, start, data)
        if last and not some:
            return
        if not some:
            await asyncio.sleep(pause)
        pause = _SOON if some else min(pause * 1.3, _LATER)


def prune(logs: Path, keep_bytes: int, keep_files: int, held: Collection[Path] = ()) -> Pruned:
    """Remove the oldest logs until these limits of bytes (on disk) and files are met. Logs in `held` stay, and so do
    logs that a process has open: what a running command writes later would be lost."""
    found: list[tuple[float, int, Path]] = []
    for path in logs.glob("*/*"):
        if path.name.endswith(TIMES):  # goes with its log
            continue
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime, status.st_blocks * 512, path))
    found.sort(key=lambda entry: (entry[0], str(entry[2])))
    files, total, removed, freed = len(found), sum(entry[1] for entry in found), 0, 0
    kept = {*held, *(_opened(logs) if files > keep_files or total > keep_bytes else ())}
    for _, size, path in found:
        if files - removed <= keep_files and total - freed <= keep_bytes:
            break
        if path in kept:
            continue
        with contextlib.suppress(OSError):
            path.unlink()
            Path(f"{path}{TIMES}").unlink(missing_ok=True)
            removed, freed = removed + 1, freed + size
    for folder in {path.parent for _, _, path in found}:
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()
    return Pruned(removed, freed, files - removed, total - freed)


def _opened(logs: Path) -> Iterator[Path]:
    """Yield the logs that processes of this machine have open."""
    inside = f"{logs.resolve()}/"
    for descriptor in iglob("/proc/[0-9]*/fd/*"):  # noqa: PTH207 (`Path.glob` raises if a process ends meanwhile)
        with contextlib.suppress(OSError):  # closed since
            if (target := str(Path(descriptor).readlink())).startswith(inside):
                yield logs / target.removeprefix(inside)


def piece(path: Path, offset: int, limit: int) -> tuple[int, bytes]:
    """Return the next bytes and their offset."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return max(offset, 0), b""
    try:
        size = os.fstat(fd).st_size
        if offset < 0:
            offset = max(size + offset, 0)
        elif offset > size:  # truncated: start over
            offset = 0
        offset, end = data_at(fd, offset)
        return offset, os.pread(fd, min(limit, end - offset), offset)
    finally:
        os.close(fd)
