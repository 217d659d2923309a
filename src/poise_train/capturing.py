"""Traces by the profiler of PyTorch, of a training session that is wished for one (`poise capture --torch`).

A wish is a file beside the one in which training is reported. It is looked for between two steps, a few times a second;
the profiler runs from one step to the first that ends after its time.
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
    """The captures of one worker; `report` is the file in which its training is reported."""

    def __init__(self, report: Path) -> None:
        self._wish, self._taken, self._trace = (Path(f"{report}{ending}") for ending in (WISH, TAKEN, TRACE))
        self._look_at = 0.0
        self._until = 0.0
        self._profiler: Any = None

    def step(self) -> None:
        """Between two steps. A profiler that fails is no reason for training to fail: it says so on stderr."""
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
        draft = self._trace.with_name(f"{os.getpid()}.{self._trace.name}")  # it is compressed because of its ending
        profiler.export_chrome_trace(str(draft))
        draft.replace(self._trace)
