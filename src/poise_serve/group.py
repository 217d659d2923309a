"""A group of gateways at one address: each is an ordinary `poise serve` with a watcher of its own, and the kernel
divides new connections among them (`SO_REUSEPORT`). With own models, another process is the core (`poise_serve.core`).
It has the models, and the gateways relay all requests to it.

The process that was started holds the port, starts the gateways, passes signals on, and ends when all have ended. If a
gateway is killed, its watcher restarts it on its own socket; the others serve meanwhile. If a gateway ends with an
error, the others are stopped, too.
"""

import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from poise_serve.parent import listen_to_signals

GROUP = "POISE_GATEWAYS_GROUP"
"""Variable that makes a process a gateway of a group."""

CORE = -1
"""The number of the core."""

LOOK_EVERY = 0.2
"""Seconds between two looks at which gateways are there."""


class Member(NamedTuple):
    """A gateway's group, its number in the group (or `CORE`), and the port of all."""

    name: str
    number: int
    port: int
    has_core: bool = False

    def core_in(self, folder: Path) -> Path:
        """Return the socket of the core."""
        return folder / f"{self.name}.core"

    @property
    def text(self) -> str:
        return f"{self.name} {self.number} {self.port} {self.has_core:d}"


def member_of() -> Member | None:
    """Return the group that this process was started in, if any."""
    told = os.environ.get(GROUP, "").split()
    return Member(told[0], int(told[1]), int(told[2]), told[3:] == ["1"]) if told else None


def run_all(folder: Path, count: int, port: int, say: Callable[[str], None], *, core: bool) -> int:
    """Run `count` gateways with the command of this process, and a `core` if they need one, until they end. Return the
    first exit code above 0. The `folder` holds the files of gateways.
    """
    name = secrets.token_hex(4)
    code, is_ending, told = 0, False, set[int]()

    def end(*_: object) -> None:
        nonlocal is_ending
        is_ending = True
        told.clear()  # a second signal is passed on, too

    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(one) != signal.SIG_IGN:
            signal.signal(one, end)
    started = [
        subprocess.Popen(  # noqa: S603 — what this process was started as
            [sys.executable, *sys.orig_argv[1:]],
            env=os.environ | {GROUP: Member(name, number, port, core).text},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a signal of the terminal comes through this process only
        )
        for number in (*range(count), *([CORE] if core else []))
    ]
    listen_to_signals()
    say(f"{count} gateways: processes {', '.join(str(process.pid) for process in started[:count])}")
    while alive := {process.pid for process in started if process.poll() is None} | _registered(folder, name):
        code = code or _error_of(started)
        if is_ending or code:
            for process in alive - told:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)
            told.update(alive)
        time.sleep(LOOK_EVERY)
    for left in folder.glob(f"{name}.*"):
        left.unlink(missing_ok=True)
    return code or _error_of(started)


def _error_of(started: Sequence["subprocess.Popen[bytes]"]) -> int:
    """Return the first exit code above 0 of those that have ended. A killed one has none: its gateway goes on."""
    return next((process.returncode for process in started if (process.returncode or 0) > 0), 0)


def _registered(folder: Path, name: str) -> set[int]:
    """Return the processes to signal of the gateways of a group that live: another one may watch a gateway than was
    started.
    """
    found = set()
    for record in folder.glob("*.gateway"):
        with suppress(OSError, ValueError, KeyError):
            lock = record.with_suffix(".lock")
            if json.loads(record.read_text())["environment"].get(GROUP, "").startswith(f"{name} ") and _is_held(lock):
                found.add(int(lock.read_text()))
    return found


def _is_held(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


__all__ = ["CORE", "GROUP", "Member", "member_of", "run_all"]
