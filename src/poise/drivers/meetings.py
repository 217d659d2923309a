"""What members of a gang leave for each other in its folder, brought to the other machines that the gang is on.

It is small: where somebody listens, that somebody has come. Each node says what is new in the folders of its gangs, the
control plane keeps it and says it to the other nodes of the gang, and those put it into theirs, whole. What is written
there piece by piece comes in pieces, and what is large does not come.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from poise.drivers.places import plain_name
from poise.model.messages import Attempt, Launch, Met

LARGEST = 64 * 1024
MOST = 4096
"""Files of one gang that are known to others."""

_NAME = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9._\-]{0,127}")

Seen = tuple[int, int, int]


class Meetings:
    """The node's side. A gang is known by its unit and the epoch in which it was placed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gangs: dict[Attempt, tuple[str, int]] = {}
        self._seen: dict[Path, Seen] = {}

    @property
    def any(self) -> bool:
        return bool(self._gangs)

    def joined(self, launch: Launch) -> Met:
        """A member of a gang starts here; the message asks what others have left for it."""
        gang = self._gangs[launch.attempt] = (launch.gang, launch.founded or launch.attempt.epoch)
        return Met(gang=gang[0], founded=gang[1])

    def found(self, attempt: Attempt) -> None:
        """It ended while no agent was here: what it left just before may not have been told."""
        gang = attempt.task.rpartition("[")[0]
        if gang and _place(self._folder, gang, attempt.epoch).is_dir():
            self._gangs[attempt] = (gang, attempt.epoch)

    def has(self, attempt: Attempt) -> bool:
        """Whether it is a member of a gang, and its end is not durable yet."""
        return attempt in self._gangs

    def left(self, attempts: Iterable[Attempt]) -> None:
        """The ends of these are durable."""
        gone = {self._gangs.pop(attempt) for attempt in attempts if attempt in self._gangs}
        if over := gone - {*self._gangs.values()}:
            places = {_place(self._folder, gang, founded) for gang, founded in over}
            self._seen = {path: seen for path, seen in self._seen.items() if path.parent not in places}

    def connected(self) -> Iterator[Met]:
        """What was said on the last connection may not have come, and what others left meanwhile is not known."""
        self._seen.clear()
        for gang, founded in {*self._gangs.values()}:
            yield Met(gang=gang, founded=founded)

    def news(self) -> Iterator[Met]:
        """What members here have left since it was asked last."""
        for gang, founded in sorted({*self._gangs.values()}):
            for path in _files(_place(self._folder, gang, founded)):
                with contextlib.suppress(OSError):
                    if (seen := _look(path)) != self._seen.get(path) and seen[2] <= LARGEST:
                        self._seen[path] = seen
                        yield Met(gang=gang, founded=founded, name=path.name, data=path.read_bytes())

    def take(self, met: Met) -> None:
        """What a member elsewhere has left."""
        with contextlib.suppress(OSError):
            path = keep(self._folder, met)
            self._seen[path] = _look(path)


def keep(folder: Path, met: Met) -> Path:
    """Put it where it belongs, whole. Raises OSError, also for what has no place there."""
    place = _place(folder, met.gang, met.founded)
    if not _NAME.fullmatch(met.name):
        raise OSError("not the name of a file that is met with")
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sum(1 for _ in _files(place)) >= MOST:
        raise OSError("too many files")
    path, draft = place / met.name, place / f".{met.name}.{os.getpid()}"
    draft.write_bytes(met.data)
    draft.replace(path)
    return path


def kept(folder: Path, met: Met) -> Iterable[Met]:
    """All that is kept of a gang."""
    for path in _files(_place(folder, met.gang, met.founded)):
        with contextlib.suppress(OSError):
            yield Met(gang=met.gang, founded=met.founded, name=path.name, data=path.read_bytes())


def _place(folder: Path, gang: str, founded: int) -> Path:
    return folder / f"{plain_name(gang)}.{founded}"


def _files(place: Path) -> list[Path]:
    try:
        with os.scandir(place) as entries:
            return sorted(Path(of.path) for of in entries if _NAME.fullmatch(of.name) and of.is_file())
    except OSError:
        return []


def _look(path: Path) -> Seen:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size
