"""Writes a worker's progress report to the file POISE_REPORT, which the agent of its node reads."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from poise.drivers.whole import write_whole
from poise.model.training import REPORT, Training
from poise_train.capturing import Capturing

EVERY_SECONDS = 1.0


class Teller:
    """Writes reports atomically, at most once per second or per `every` seconds. Writes nothing without POISE_REPORT,
    or if another worker writes to the same file (`silent`).
    """

    def __init__(self) -> None:
        path = os.environ.get(REPORT, "")
        self._path = Path(path) if path else None
        self._told = -math.inf
        self._writing = threading.Lock()
        self.silent = False
        self.said: Training | None = None
        self._pausing = False
        self._capturing = Capturing(self._path) if self._path else None

    def tell(self, training: Callable[[], Training], *, now: bool = False, every: float = EVERY_SECONDS) -> None:
        """Write a report if `every` seconds have passed since the last one, or if `now`."""
        moment = time.monotonic()
        if self._path is None or self.silent:
            return
        if self._capturing is not None:
            self._capturing.step()
        if moment < self._told + every and not now:
            return
        self._told, self._pausing = moment, False
        said = training()
        finite = math.isfinite(said.loss)  # JSON has no other numbers
        self.said = said if finite else msgspec.structs.replace(said, loss=0.0)
        self._write(self._path, self.said)

    def rests(self) -> None:
        """Report a pause without missed steps until the next step, which is reported at once. Safe from any thread."""
        self._pause(evaluating=False)

    def evaluates(self) -> None:
        """Report an evaluation until the next step; does nothing during a reported pause."""
        if not self._pausing:
            self._pause(evaluating=True)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Report an evaluation inside the block, and restore the previous report after it."""
        was_pausing = self._pausing
        self._pause(evaluating=True)
        try:
            yield
        finally:
            if was_pausing:
                self.rests()
            elif self._path is not None and not self.silent and self.said is not None:
                self._pausing = False
                self._write(self._path, self.said)

    def _pause(self, *, evaluating: bool) -> None:
        if self._path is not None and not self.silent and self.said is not None:
            self._told, self._pausing = -math.inf, True
            self._write(self._path, msgspec.structs.replace(self.said, step_time=0, evaluating=evaluating))

    def _write(self, path: Path, said: Training) -> None:
        with self._writing, contextlib.suppress(OSError):  # reporting must not fail training
            write_whole(path, msgspec.json.encode(said))


__all__ = ["Teller"]
