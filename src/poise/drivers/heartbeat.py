"""Progress reports of a process."""

import contextlib
import os
import time
from pathlib import Path

_STEP_SECONDS = 0.1
_next_step = 0.0


def step() -> None:
    """Report progress, if the job has a `hang`; otherwise do nothing. It is cheap enough for every step of a loop: it
    touches the file at most every 100 ms, and otherwise only reads the clock.
    """
    global _next_step
    moment = time.monotonic()
    if moment >= _next_step:
        _next_step = moment + _STEP_SECONDS
        if path := os.environ.get("POISE_PROGRESS"):
            with contextlib.suppress(OSError):  # a failed report is no reason to fail
                Path(path).touch()
