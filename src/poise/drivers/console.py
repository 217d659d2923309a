"""The keeper's side of a command's streams: standard input in pieces, a pseudo-terminal, and output to forward.

`keeper.py` loads this file with the first command that needs it; like the keeper it uses only a small part of the
standard library. Nothing here blocks: every file descriptor is non-blocking, and every buffer has a limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios

TYPE_CHECKING = False  # `typing` is as large as `pathlib`
if TYPE_CHECKING:
    from typing import Any

MOST_WAITING = 1 << 20
"""Maximum bytes of input that wait for the command; more is refused until it reads."""

LITTLE_WAITING = 32 << 10
"""More input is requested when at most this much waits."""

AT_ONCE = 64 << 10
ROWS, COLUMNS = 24, 80
END_OF_FILE = b"\x04"
"""The end of input at a terminal: Ctrl-D."""


class Input:
    """Standard input of one command. Each piece comes with its offset, so that no byte is written twice.

    `taken` is the number of bytes accepted so far. If the command stops reading early, `wanted` becomes false.
    """

    def __init__(self, fd: int, *, terminal: bool) -> None:
        self.fd = fd
        self.taken = 0
        self.wanted = True
        self.asked = False
        self._terminal = terminal
        self._waiting = b""
        self._ended = False

    def take(self, at: int, data: bytes, end: bool) -> None:
        """Accept the new bytes of a piece. Ignore a piece that leaves a gap, or for which there is no room."""
        self.asked = True
        if at > self.taken or len(self._waiting) > MOST_WAITING or not self.wanted or self._ended:
            return
        fresh = data[self.taken - at :]
        self._waiting += fresh
        self.taken += len(fresh)
        if end and self.taken == at + len(data):
            self._ended = True
            self._waiting += END_OF_FILE if self._terminal else b""
        self.write()

    def write(self) -> None:
        """Write as much as the command has room for; at the end, close a pipe."""
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self.fd, self._waiting[:AT_ONCE]) :]
        except BlockingIOError:
            return
        except OSError:  # no reader
            self._waiting, self.wanted = b"", False
        if self._ended:
            self.wanted = False
        if not self.wanted and not self._terminal:
            self.close()

    @property
    def waits(self) -> bool:
        """Whether there is input to write as soon as there is room."""
        return bool(self._waiting)

    def answers(self) -> bool:
        """Return once whether to report the bytes taken: more can be sent, or no more will be accepted."""
        due = self.asked and (len(self._waiting) <= LITTLE_WAITING or not self.wanted)
        self.asked = self.asked and not due
        return due

    def close(self) -> None:
        self.wanted = False
        self._waiting = b""
        if self.fd >= 0 and not self._terminal:
            os.close(self.fd)
        self.fd = -1


class Ends:
    """The standard streams of a command, and the keeper's ends of them.

    `outputs` maps the ends from which the keeper reads output to their streams; a terminal is one of them.
    """

    def __init__(self, *, stdin: bool, tty: int = 0, piped: bool = False) -> None:
        """`tty` is the size of a terminal, rows << 16 | columns; 0: none. With `piped`, the keeper reads the output.
        Raises OSError, after closing everything.
        """
        self.actions: list[tuple[Any, ...]] = []
        self.input: Input | None = None
        self.outputs: dict[int, str] = {}
        self.terminal = -1
        self._theirs: list[int] = []
        try:
            if tty:
                self._open_terminal(tty)
                return
            if stdin:
                reads, writes = os.pipe2(os.O_CLOEXEC)
                self.input = Input(writes, terminal=False)
                os.set_blocking(writes, False)
                self._give(reads, 0)
            elif piped:
                self.actions.append((os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0))
            for number, stream in ((1, "out"), (2, "err")) if piped else ():
                reads, writes = os.pipe2(os.O_CLOEXEC)
                self.outputs[reads] = stream
                os.set_blocking(reads, False)
                self._give(writes, number)
        except OSError:
            self.spawned()
            self.close()
            raise

    def _open_terminal(self, tty: int) -> None:
        """Set up a terminal, which the command opens itself: a session leader's first one becomes its controlling
        terminal."""
        self.terminal, theirs = os.openpty()
        self._theirs.append(theirs)
        self.outputs[self.terminal] = "out"
        os.set_blocking(self.terminal, False)
        self.resize(tty >> 16, tty & 0xFFFF)
        self.input = Input(self.terminal, terminal=True)
        self.actions += [
            (os.POSIX_SPAWN_OPEN, 0, os.ttyname(theirs), os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
        ]

    def _give(self, fd: int, number: int) -> None:
        self._theirs.append(fd)
        self.actions.append((os.POSIX_SPAWN_DUP2, fd, number))

    def spawned(self) -> None:
        """Close the command's file descriptors once it has been spawned, or cannot be."""
        for fd in self._theirs:
            os.close(fd)
        self._theirs.clear()

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal, if there is one; its processes get SIGWINCH."""
        if self.terminal >= 0:
            size = struct.pack("HHHH", rows or ROWS, columns or COLUMNS, 0, 0)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, size)

    def read(self, fd: int, most: int = AT_ONCE) -> bytes | None:
        """Read the available output from an end; empty if there is none yet, None at the end of the output."""
        try:
            return os.read(fd, min(most, AT_ONCE)) or None
        except BlockingIOError:
            return b""
        except OSError:  # no process has the terminal open
            return None

    def done(self, fd: int) -> None:
        """Stop reading from this file descriptor, which has reached its end."""
        del self.outputs[fd]
        if fd != self.terminal:
            os.close(fd)

    def close(self) -> None:
        """Close all open ends; this hangs up a terminal."""
        if self.input is not None:
            self.input.close()
        for fd in {*self.outputs, self.terminal} - {-1}:
            os.close(fd)
        self.outputs.clear()
        self.terminal = -1
