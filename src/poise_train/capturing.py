"""Records traces of a training session with PyTorch's profiler, on request (`poise capture --torch`).

A request is a file beside the training report. The session looks for it between two steps, at most every 0.25 s. The
profiler runs until the first step that ends after the requested duration.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from poise.drivers.capture import TAKEN, TRACE, WISH

LOOK_SECONDS = 0.25


class Capturing:
    """Records the captures of one worker; `report` is the file of its training reports."""

    def __init__(self, report: Path) -> None:
        self._wish, self._taken, self._trace = (Path(f"{report}{ending}") for ending in (WISH, TAKEN, TRACE))
        self._look_at = 0.0
        self._until = 0.0
        self._profiler: Any = None

    def step(self) -> None:
        """Start or end a capture between two steps. Failures of the profiler go to stderr, and do not fail training."""
        moment = time.monotonic()
        if moment < (self._until if self._profiler is not None else self._look_at):
            return
        self._look_at = moment + LOOK_SECONDS
        try:
            if self._profiler is not None:
                self._end()
            elif self._wish.exists():
                self._begin(moment)
        except Exception as error:
            self._profiler = None
            print(f"poise: the profiler of PyTorch has failed: {error}", file=sys.stderr)  # noqa: T201
            with contextlib.suppress(OSError):
                self._trace.touch()

    def _begin(self, moment: float) -> None:
        seconds = float(json.loads(self._wish.read_bytes())["seconds"])
        self._wish.replace(self._taken)
        from torch import cuda
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda.is_available() else [])]
        profiler = profile(activities=activities)
        profiler.start()
        self._profiler, self._until = profiler, moment + seconds

    def _end(self) -> None:
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        draft = self._trace.with_name(f"{os.getpid()}.{self._trace.name}")  # its suffix enables compression
        profiler.export_chrome_trace(str(draft))
        draft.replace(self._trace)
