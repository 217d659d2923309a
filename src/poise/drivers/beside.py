"""Encode what is large in a copy of this process: it goes on meanwhile, and nothing changes for the copy."""

import asyncio
import ctypes
import gc
import os
import signal
from collections.abc import Callable
from typing import NoReturn

SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
FIRST_FILE = 3
_libc = ctypes.CDLL(None)


async def beside(encode: Callable[[], bytes]) -> bytes:
    """What `encode` makes of the state of this process as it is now; the copy (fork(2)) is made before this first
    waits. Raises OSError where there is no room for a copy, or it comes to no end of its own.
    """
    file = os.memfd_create("poise-state")
    try:
        parent, child = os.getpid(), os.fork()
        if child == 0:
            _write_and_end(encode, file, parent)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        if status != 0:
            raise ChildProcessError(f"the process that encodes it ended with status {status}")
        return await asyncio.to_thread(os.pread, file, os.fstat(file).st_size, 0)
    finally:
        os.close(file)


def _write_and_end(encode: Callable[[], bytes], file: int, parent: int) -> NoReturn:
    """In the copy, which has one thread. It lets go of all files, so that no lock and no connection outlives the one
    that holds it, and ends with it.
    """
    status = 1
    try:
        _libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            gc.disable()
            os.closerange(FIRST_FILE, file)
            os.closerange(file + 1, 2**31 - 1)
            state = memoryview(encode())
            while state:
                state = state[os.write(file, state) :]
            status = 0
    finally:
        os._exit(status)
