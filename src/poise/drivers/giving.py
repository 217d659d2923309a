"""Reads the standard input for a command from a file descriptor; each byte has an offset.

A restarted command gets all of its input again. A file is read again; for other sources the first `KEPT` bytes are
buffered for this.
"""

import os
import select
import stat
import time
from pathlib import Path
from typing import Protocol

from poise.errors import Fault

KEPT = 64 * 2**20
AT_ONCE = 256 * 1024
LOOK_SECONDS = 2.0
"""Interval of checks whether the command was restarted, while there is no input."""


class Source(Protocol):
    """A source of input. `size` is that of a terminal, as `ROWSxCOLUMNS`; empty if there is none. If the client of a
    source with a `hold` is silent for that many seconds, the terminal of the command is hung up.
    """

    hold: float

    @property
    def size(self) -> str: ...

    def begun(self) -> None:
        """Called when the command runs."""

    def next(self, at: int) -> tuple[bytes, bool]:
        """Return the bytes from an offset, and whether the input ends there; no bytes if none arrive for a while."""

    def rest(self) -> None:
        """Wait for a while, because the command is not reading."""


class Giving:
    """A file, a pipe, or a terminal line by line."""

    hold = 0.0
    size = ""

    def __init__(self, fd: int, kept: int = KEPT) -> None:
        self._fd = fd
        self._most = kept
        self._kept = bytearray()
        self._first = 0  # offset of the first buffered byte
        self._ended = False
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        self._begins = os.lseek(fd, 0, os.SEEK_CUR) if is_file else -1

    def begun(self) -> None:
        pass

    def next(self, at: int) -> tuple[bytes, bool]:
        """See `Source`. Raises `Fault` if the bytes at this offset are no longer buffered."""
        if self._begins >= 0:
            data = os.pread(self._fd, AT_ONCE, self._begins + at)
            return data, not data
        if at < self._first:
            raise Fault(
                "the command was restarted, and the beginning of its input is lost",
                need=f"a file, or at most {self._most // 2**20} MiB from anything else",
                hint="`poise run … < FILE`, or `--retries 0`",
            )
        end = self._first + len(self._kept)
        if at >= end and not self._ended and select.select([self._fd], [], [], LOOK_SECONDS)[0]:
            data = os.read(self._fd, AT_ONCE)
            self._ended = not data
            self._kept += data
            self._forget(at)
        place = at - self._first
        data = bytes(self._kept[place : place + AT_ONCE])
        return data, self._ended and place + len(data) == len(self._kept)

    def rest(self) -> None:
        time.sleep(LOOK_SECONDS)

    def _forget(self, taken: int) -> None:
        """Drop bytes that were taken, once the input has exceeded the buffer."""
        if self._first or len(self._kept) > self._most:
            del self._kept[: taken - self._first]
            self._first = taken


class Bytes:
    """A source whose bytes are all in memory."""

    hold = 0.0
    size = ""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def begun(self) -> None:
        pass

    def next(self, at: int) -> tuple[bytes, bool]:
        return self._data[at : at + AT_ONCE], at + AT_ONCE >= len(self._data)

    def rest(self) -> None:
        time.sleep(LOOK_SECONDS)


def comes_in(fd: int) -> bool:
    """Return whether this descriptor gives input: not if it is closed, a terminal, a folder or the null device."""
    try:
        found, null = os.fstat(fd), Path(os.devnull).stat()
    except OSError:
        return False
    return not (stat.S_ISDIR(found.st_mode) or os.isatty(fd) or found.st_rdev == null.st_rdev)
