"""The terminal of the caller, which is that of a command on a node for a while."""

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
from poise.model.reports import LogEnd, LogLine, LogPiece

HOLD_SECONDS, BEAT_SECONDS = 15.0, 4.0
"""The command's terminal hangs up when nothing is heard of this one for so long; and how often it is heard."""

PATIENCE = 86_400.0
"""Seconds that input waits for a control plane that is being started again; who reads the output gives up sooner."""

AT_ONCE = 64 * 1024
DETACH = b"\x10\x11"
"""Ctrl-P Ctrl-Q."""


class Detached(Exception):
    """The keys that leave the command to itself were pressed."""


class HungUpError(Exception):
    """The caller's terminal is gone."""


class Terminal:
    """What is typed, byte by byte, once the command runs; until then the terminal is as it was."""

    def __init__(self, fd: int = 0, *, holds: bool) -> None:
        """With `holds` the command's terminal hangs up soon after this one is gone."""
        self.hold = HOLD_SECONDS if holds else 0.0
        self._fd = fd
        self._before = termios.tcgetattr(fd)
        self._raw = self._closed = False
        self._turn = threading.Lock()
        self._kept = b""
        self._first = 0  # the place of the first byte that is kept
        self._pressed = b""  # the first of the keys that detach
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._resized = signal.signal(signal.SIGWINCH, self._on_resize)

    @property
    def size(self) -> str:
        """Empty where it is gone."""
        try:
            return _size_of(self._fd)
        except OSError:
            return ""

    def begun(self) -> None:
        with self._turn:
            if not self._raw and not self._closed:
                self._raw = True
                with contextlib.suppress(termios.error):  # it is gone, which is found when it is read
                    tty.setraw(self._fd, termios.TCSANOW)  # to wait here would be to wait with the lock

    def next(self, at: int) -> tuple[bytes, bool]:
        """Raises `Detached`, and `HungUpError`."""
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
        """As it was before, for good: whoever feeds the command may still be at it."""
        with self._turn:
            self._closed = True
            if self._raw:
                with contextlib.suppress(termios.error):
                    termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        signal.signal(signal.SIGWINCH, self._resized)


def terminal_variables() -> dict[str, str]:
    """What the programs in a terminal go by."""
    return {name: os.environ[name] for name in ("TERM", "COLORTERM") if os.environ.get(name)}


def terminal_size() -> str:
    """That of the caller's terminal; raises `SpecError` where there is none."""
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
    """ROWSxCOLUMNS; one without a size, as of `script`, is as large as a terminal is by custom."""
    columns, rows = os.get_terminal_size(fd)
    return f"{rows or 24}x{columns or 80}"


def copied(lines: Iterable[LogLine], out: BinaryIO, source: Source | None) -> int:
    """Copies what the job writes, and says where another attempt begins. Returns the exit code."""
    attempts: dict[str, int] = {}
    for piece in lines:
        if isinstance(piece, LogPiece):
            if source is not None:
                source.begun()  # what is typed at a prompt is the command's, however soon
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
    """Feeds a command what a source gives, from a thread, beside what the caller does. Keys that detach are raised in
    the caller as `Detached`, and it gets SIGHUP if its terminal is gone; in the end the terminal is as it was.
    """

    def __init__(self, feed: Callable[[], None], source: Source, failed: Callable[[Exception], None]) -> None:
        """`feed` does it until the command is over; `failed` is told why it cannot be done."""
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
            pass  # whoever reads what the command writes finds that out, too
        except Exception as error:
            self._failed(error)

    def _signal(self, number: int) -> None:
        """To the caller, unless it is past that."""
        with self._ending:
            if not self._over:
                signal.pthread_kill(threading.main_thread().ident or 0, number)
