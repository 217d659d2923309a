"""Where a worker says how training gets on: the file that POISE_REPORT names, which the agent of its node reads."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from poise.drivers.whole import write_whole
from poise.model.training import REPORT, Training

EVERY_SECONDS = 1.0


class Teller:
    """Writes what it is given, whole or not at all, at most once a second or `every` so many; nothing where nobody
    reads it, or where another worker writes to the same file (`silent`).
    """

    def __init__(self) -> None:
        path = os.environ.get(REPORT, "")
        self._path = Path(path) if path else None
        self._told = -math.inf
        self._writing = threading.Lock()
        self.silent = False
        self.said: Training | None = None

    def tell(self, training: Callable[[], Training], *, now: bool = False, every: float = EVERY_SECONDS) -> None:
        """Say it if so many seconds have passed since the last time, or `now`."""
        moment = time.monotonic()
        if self._path is None or self.silent or (moment < self._told + every and not now):
            return
        self._told = moment
        said = training()
        finite = math.isfinite(said.loss)  # JSON has no other numbers
        self.said = said if finite else msgspec.structs.replace(said, loss=0.0)
        self._write(self._path, self.said)

    def rests(self) -> None:
        """Say that it makes no steps now, and that none is missed, until the next is told of, at once. Another thread
        may say so.
        """
        if self._path is not None and not self.silent and self.said is not None:
            self._told = -math.inf
            self._write(self._path, msgspec.structs.replace(self.said, step_time=0))

    def _write(self, path: Path, said: Training) -> None:
        with self._writing, contextlib.suppress(OSError):  # it is no reason to fail
            write_whole(path, msgspec.json.encode(said))


__all__ = ["Teller"]
