"""The caller's terminal, connected to a command on a node."""

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from poise.cli.render import say
from poise.drivers.giving import Source
from poise.errors import SpecError, Unreachable
from poise.model.reports.streams import LogEnd, LogLine, LogPiece

HOLD_SECONDS, BEAT_SECONDS = 15.0, 4.0
"""Seconds of silence after which the command's terminal hangs up, and the interval of this terminal's heartbeats."""

PATIENCE = 86_400.0
"""Seconds that input waits for a restarting control plane; the reader of the output gives up sooner."""

AT_ONCE = 64 * 1024
DETACH = b"\x10\x11"
"""Ctrl-P Ctrl-Q."""


class Detached(Exception):
    """The detach keys were pressed."""


class HungUpError(Exception):
    """The caller's terminal is gone."""


class Terminal:
    """Reads keys byte by byte once the command runs; until then the terminal is unchanged."""

    def __init__(self, fd: int = 0, *, holds: bool) -> None:
        """With `holds`, the command's terminal hangs up soon after this one is gone."""
        self.hold = HOLD_SECONDS if holds else 0.0
        self._fd = fd
        self._before = termios.tcgetattr(fd)
        self._raw = self._closed = False
        self._turn = threading.Lock()
        self._kept = b""
        self._first = 0  # position of the first kept byte
        self._pressed = b""  # the first detach key
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._resized = signal.signal(signal.SIGWINCH, self._on_resize)

    @property
    def size(self) -> str:
        """The terminal's size; empty if it is gone."""
        try:
            return _size_of(self._fd)
        except OSError:
            return ""

    def begun(self) -> None:
        with self._turn:
            if not self._raw and not self._closed:
                self._raw = True
                with contextlib.suppress(termios.error):  # if it is gone, the next read finds out
                    tty.setraw(self._fd, termios.TCSANOW)  # TCSANOW, as a wait would hold the lock

    def next(self, at: int) -> tuple[bytes, bool]:
        """Return the input from position `at`. Raises `Detached`, and `HungUpError`."""
        self._kept, self._first = self._kept[max(0, at - self._first) :], at
        if not self._kept:
            self._wait()
        return self._kept[:AT_ONCE], False

    def rest(self) -> None:
        self._wait()

    def _wait(self) -> None:
        ready, _, _ = select.select([self._fd, self._woken], [], [], BEAT_SECONDS)
        if self._woken in ready:
            os.read(self._woken, 64)
        if self._fd in ready:
            try:
                typed = os.read(self._fd, AT_ONCE)
            except OSError:
                typed = b""
            if not typed:
                raise HungUpError
            self._take(typed)

    def _take(self, typed: bytes) -> None:
        typed = self._pressed + typed
        if DETACH in typed:
            raise Detached
        self._pressed = typed[-1:] if typed.endswith(DETACH[:1]) else b""
        self._kept += typed[: len(typed) - len(self._pressed)]

    def _on_resize(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            os.write(self._waker, b"!")

    def close(self) -> None:
        """Restore the terminal for good, even if a thread still feeds the command."""
        with self._turn:
            self._closed = True
            if self._raw:
                with contextlib.suppress(termios.error):
                    termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        signal.signal(signal.SIGWINCH, self._resized)


def terminal_variables() -> dict[str, str]:
    """Return the environment variables that describe the terminal."""
    return {name: os.environ[name] for name in ("TERM", "COLORTERM") if os.environ.get(name)}


def terminal_size() -> str:
    """Return the size of the caller's terminal; raises `SpecError` without one."""
    if not (os.isatty(0) and os.isatty(1)):
        raise SpecError(
            "there is no terminal here to pass on",
            field="--tty",
            have="standard input" if not os.isatty(0) else "standard output",
            need="a terminal",
            hint="without `-t`; `-i` alone passes input on",
        )
    return _size_of(0)


def _size_of(fd: int) -> str:
    """Return ROWSxCOLUMNS; the default for a terminal without a size, as under `script`, is 24x80."""
    columns, rows = os.get_terminal_size(fd)
    return f"{rows or 24}x{columns or 80}"


def copied(lines: Iterable[LogLine], out: BinaryIO, source: Source | None) -> int:
    """Copy the job's output, and print when a new attempt starts. Return the exit code."""
    attempts: dict[str, int] = {}
    for piece in lines:
        if isinstance(piece, LogPiece):
            if source is not None:
                source.begun()  # input typed at a prompt is the command's from the start
            if piece.epoch > attempts.get(piece.task, piece.epoch):
                say(f"poise: {piece.task} starts again, attempt {piece.epoch}")
            attempts[piece.task] = max(piece.epoch, attempts.get(piece.task, 0))
            target = out if piece.stream == "out" else sys.stderr.buffer
            target.write(piece.data)
            target.flush()
        elif isinstance(piece, LogEnd):
            return 125 if piece.exit_code is None else piece.exit_code
    return 125


class Feeding:
    """Feeds a command from a source on a thread. Detach keys raise `Detached` in the main thread, and a lost terminal
    sends it SIGHUP. At the end the terminal is restored.
    """

    def __init__(self, feed: Callable[[], None], source: Source, failed: Callable[[Exception], None]) -> None:
        """`feed` runs until the command is over; `failed` gets its errors."""
        self._feed = feed
        self._source = source
        self._failed = failed
        self._before: Any = None
        self._over = False
        self._ending = threading.Lock()

    def __enter__(self) -> "Feeding":
        self._before = signal.signal(signal.SIGUSR1, self._on_detached)
        threading.Thread(target=self._work, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._ending:
            self._over = True
        signal.signal(signal.SIGUSR1, self._before)
        if isinstance(self._source, Terminal):
            self._source.close()

    def _on_detached(self, *_: object) -> None:
        if not self._over:
            raise Detached

    def _work(self) -> None:
        try:
            self._feed()
        except Detached:
            self._signal(signal.SIGUSR1)
        except HungUpError:
            self._signal(signal.SIGHUP)
        except Unreachable:
            pass  # the reader of the output finds that out too
        except Exception as error:
            self._failed(error)

    def _signal(self, number: int) -> None:
        """Send a signal to the main thread, unless feeding is over."""
        with self._ending:
            if not self._over:
                signal.pthread_kill(threading.main_thread().ident or 0, number)
