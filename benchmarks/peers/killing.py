"""What the peers' turns under kill -9 share: twenty commands that each leave a file, and how long to wait for more."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

COUNT = 20
QUIET_SECONDS = 20.0
START_SECONDS = 60.0


def command(folder: Path, number: int) -> str:
    """For a shell: half a second of work, then a file that says that it was done."""
    return f"sleep 0.5; touch {folder}/done-{number}"


def done_in_the_end(folder: Path) -> int:
    """How many of the commands have been done once all are, or nothing has changed for a long while."""
    found, changed = 0, time.monotonic()
    while found < COUNT and time.monotonic() - changed < QUIET_SECONDS:
        if (now := len(list(folder.glob("done-*")))) != found:
            found, changed = now, time.monotonic()
        time.sleep(0.05)
    return found


def once(path: Path) -> str:
    """For a shell: notes its process and works for long."""
    return f"echo $$ >> {path}; exec sleep 600"


def again_after_kill(path: Path) -> float | None:
    """Seconds from the kill of the process noted first until another is noted; none: not within a long while."""
    until(lambda: path.exists() and path.read_text().endswith("\n"), "the command")
    killed = time.monotonic()
    os.kill(int(path.read_text().split()[0]), signal.SIGKILL)
    while time.monotonic() - killed < QUIET_SECONDS:
        if len(path.read_text().split()) > 1:
            return time.monotonic() - killed
        time.sleep(0.002)
    return None


def until(ready: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} does not come up")
        time.sleep(0.05)
