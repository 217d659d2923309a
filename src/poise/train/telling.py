"""Where a worker says how training gets on: the file that POISE_REPORT names, which the agent of its node reads."""

import contextlib
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from poise.model.training import REPORT, Training

EVERY_SECONDS = 1.0


class Teller:
    """Writes what it is given, whole or not at all, at most once a second or `every` so many; nothing where nobody
    reads it.
    """

    def __init__(self) -> None:
        path = os.environ.get(REPORT, "")
        self._path = Path(path) if path else None
        self._told = -math.inf
        self.said: Training | None = None

    def tell(self, training: Callable[[], Training], *, now: bool = False, every: float = EVERY_SECONDS) -> None:
        """Say it if so many seconds have passed since the last time, or `now`."""
        moment = time.monotonic()
        if self._path is None or (moment < self._told + every and not now):
            return
        self._told = moment
        said = training()
        finite = math.isfinite(said.loss)  # JSON has no other numbers
        self.said = said if finite else msgspec.structs.replace(said, loss=0.0)
        draft = self._path.with_name(f"{self._path.name}.new")
        with contextlib.suppress(OSError):  # it is no reason to fail
            draft.write_bytes(msgspec.json.encode(self.said))
            draft.replace(self._path)


__all__ = ["Teller"]
