"""A lock file that is held for as long as its process lives; a second process is refused, and told the holder."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from poise.errors import Conflict, Denied, InputError

with contextlib.suppress(ModuleNotFoundError):
    import fcntl  # Windows lacks it, and has no homes: there is never a lock to check

_ATTEMPTS = 50
_PAUSE = 0.01
"""Checking a lock (`holder`, `is_held`) shares it briefly, so taking it is retried before it is refused."""


@contextlib.contextmanager
def take_lock(path: Path, what: str) -> Iterator[Callable[[], bool]]:
    """Hold the lock, and yield a function that returns whether other processes still see it as held: its file may have
    been removed or replaced. Raises `Conflict` (E204) with the process that holds it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for _ in range(_ATTEMPTS):
            if _lock(handle, fcntl.LOCK_EX):
                break
            time.sleep(_PAUSE)
        else:
            raise Conflict(
                f"another {what} holds this home",
                code="E204",
                field=str(path),
                have=f"process {_written(handle) or 'unknown'}",
                hint="`poise down`, or another POISE_HOME",
            )
        name = b"%d\n" % os.getpid()
        os.pwrite(handle, name, 0)  # before truncation: a reader never finds the file empty, and a full disk has room
        os.ftruncate(handle, len(name))
        yield lambda: _is_there(path, handle)
    finally:
        os.close(handle)


def is_held(path: Path) -> bool:
    """Return whether a live process holds the lock."""
    return _look(path)[0]


def is_ending(path: Path) -> bool:
    """Return whether a live process holds the lock and has written there, below its id, that it is ending."""
    return is_held(path) and path.read_bytes().endswith(b"\nending\n")


def holder(path: Path) -> int:
    """Return the process id of the lock's holder, or 0."""
    for _ in range(_ATTEMPTS):
        held, process = _look(path)
        if process or not held:
            return process
        time.sleep(_PAUSE)  # it has just been taken for the first time; its holder is about to write its id
    return 0


def _is_there(path: Path, handle: int) -> bool:
    """Return whether the path still leads to the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _look(path: Path) -> tuple[bool, int]:
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False, 0
    except PermissionError:
        raise Denied(
            "the home belongs to another user",
            field=str(path.parent),
            hint="set POISE_HOME to your own folder, or POISE_SOCKET to the shared socket",
        ) from None
    except OSError as error:  # such as a file in place of the folder, or a file system that is read-only
        raise InputError(
            f"the home cannot be used: {error.strerror}",
            field=str(path.parent),
            hint="set POISE_HOME to a folder of your own",
        ) from None
    try:
        # shared: with exclusive locks, two concurrent checks would each see the other as the holder, with a stale id
        return (False, 0) if _lock(handle, fcntl.LOCK_SH) else (True, _written(handle))
    finally:
        os.close(handle)


def _lock(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _written(handle: int) -> int:
    first = os.pread(handle, 32, 0).split(b"\n")[0].strip()
    return int(first) if first.isdigit() else 0
