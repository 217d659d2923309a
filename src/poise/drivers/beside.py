"""Encode large state in a fork of this process, which continues meanwhile; the fork's copy does not change."""

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
FIRST_FILE = 3
_libc = ctypes.CDLL(None)


SECONDS = 60.0
"""Time limit for the fork. Encoding a million units takes some seconds."""


async def beside(encode: Callable[[], bytes]) -> bytes:
    """Return the result of `encode` on this process's current state. The fork (fork(2)) is made before this function
    first waits. Raises OSError if there is no memory for a fork, if it fails, or if it takes longer than `SECONDS`.
    """
    file = os.memfd_create("poise-state")
    try:
        parent, child = os.getpid(), os.fork()
        if child == 0:
            _write_and_end(encode, file, parent)
        status = await _ended(child)
        if status != 0:
            raise ChildProcessError(f"the process that encodes it ended with status {status}")
        return await asyncio.to_thread(os.pread, file, os.fstat(file).st_size, 0)
    finally:
        os.close(file)


async def _ended(child: int) -> int:
    """Wait for the child; kill it after `SECONDS` or on cancellation. Return its wait status."""
    waiting = asyncio.ensure_future(asyncio.to_thread(os.waitpid, child, 0))
    done: set[asyncio.Future[tuple[int, int]]] = set()
    try:
        done, _ = await asyncio.wait([waiting], timeout=SECONDS)
    finally:
        if not done:
            os.kill(child, signal.SIGKILL)
    return (await waiting)[1]


def _write_and_end(encode: Callable[[], bytes], file: int, parent: int) -> NoReturn:
    """Run in the fork, which has one thread. Closes all other files, so that no lock or connection outlives the parent,
    and dies with the parent.
    """
    status = 1
    try:
        _libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            gc.disable()
            _close_all_but(file)
            state = memoryview(encode())
            while state:
                state = state[os.write(file, state) :]
            status = 0
    finally:
        os._exit(status)


def _close_all_but(file: int) -> None:
    """Close files one by one: without close_range(2), `os.closerange` tries each possible number, which takes
    minutes."""
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number >= FIRST_FILE and number != file:
            with contextlib.suppress(OSError):  # the descriptor of the listed folder
                os.close(number)
