"""A lock file held for as long as its process lives; the second to ask is refused, and told who holds it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from poise.errors import Conflict


@contextlib.contextmanager
def take_lock(path: Path, what: str) -> Iterator[None]:
    """Hold the lock. Raises `Conflict` (E204) naming the process that has it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"another {what} holds this home",
                code="E204",
                field=str(path),
                have=f"process {file.read().strip() or 'unknown'}",
                hint="`poise down`, or another POISE_HOME",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def holder(path: Path) -> int:
    """The process that holds the lock, 0 if nobody does."""
    try:
        with path.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read().strip() or "0")
            return 0
    except (FileNotFoundError, ValueError):
        return 0
