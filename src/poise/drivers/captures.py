"""Captures on disk, beside the output of their attempts: `LOGS/<job>/<task>.<epoch>.capture-<number>.<kind>.<ending>`.

They are pruned and removed together with that output.
"""

import contextlib
import os
import re
from pathlib import Path

from poise.drivers.places import log_stem
from poise.model.captures import ENDING, Capture, CaptureKind
from poise.model.messages import Attempt

_NAME = re.compile(
    r"(?P<task>.+)\.(?P<epoch>[0-9]{1,18})\.capture-(?P<number>[0-9]{1,18})\.(?P<kind>stacks|dump|torch)\.[a-z.]+"
)


class Draft:
    """A capture in progress. `keep` gives it its final name; otherwise it is deleted."""

    def __init__(self, logs: Path, attempt: Attempt, kind: CaptureKind) -> None:
        self._stem = log_stem(str(logs), attempt)
        self._kind: CaptureKind = kind
        self._path = Path(f"{self._stem}.capturing-{os.urandom(4).hex()}")
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = self._path.open("wb")
        self.size = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def keep(self) -> Capture:
        """Store it under the next free number."""
        self._file.close()
        number = 1
        while True:
            path = Path(f"{self._stem}.capture-{number}.{self._kind}.{ENDING[self._kind]}")
            try:
                os.link(self._path, path)
                break
            except FileExistsError:
                number += 1
        self._path.unlink()
        kept = _capture(path)
        if kept is None:
            raise AssertionError(f"{path} has no name of a capture")
        return kept

    def drop(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


def captures_of(logs: Path, job: str) -> list[Capture]:
    """Return the stored captures of a job, oldest first."""
    found = (_capture(path) for path in (logs / job).glob("*.capture-*"))
    return sorted(filter(None, found), key=lambda capture: (capture.at, capture.name))


def read_capture(logs: Path, job: str, name: str) -> bytes | None:
    """Return the content of a capture; None if the job has no capture of this name."""
    if name not in {capture.name for capture in captures_of(logs, job)}:
        return None
    with contextlib.suppress(FileNotFoundError):
        return (logs / job / name).read_bytes()
    return None


def _capture(path: Path) -> Capture | None:
    told = _NAME.fullmatch(path.name)
    if told is None:
        return None
    try:
        state = path.stat()
    except OSError:
        return None
    kind: CaptureKind = told["kind"]  # type: ignore[assignment]  # it has matched
    task, epoch = f"{path.parent.name}.{told['task']}", int(told["epoch"])
    return Capture(name=path.name, task=task, epoch=epoch, kind=kind, size=state.st_size, at=state.st_mtime)
