"""Copies files that members of a gang leave for each other in its folder to the other machines of the gang.

The files are small, such as the address of a listener. Each node reports new files in the folders of its gangs; the
control plane stores them and sends them to the other nodes of the gang, which write them atomically. A file that is
written piece by piece arrives in pieces; large files are not copied.
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
"""Maximum number of files of one gang to share."""

_NAME = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9._\-]{0,127}")

Seen = tuple[int, int, int]


class Meetings:
    """The node's side. A gang is identified by its unit and the epoch in which it was placed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gangs: dict[Attempt, tuple[str, int]] = {}
        self._seen: dict[Path, Seen] = {}

    @property
    def any(self) -> bool:
        return bool(self._gangs)

    def joined(self, launch: Launch) -> Met:
        """Register a gang member that starts here. The message asks for its files from other nodes."""
        gang = self._gangs[launch.attempt] = (launch.gang, launch.founded or launch.attempt.epoch)
        return Met(gang=gang[0], founded=gang[1])

    def found(self, attempt: Attempt) -> None:
        """Record an attempt that ended while no agent was running; its last departure may be unreported."""
        gang = attempt.task.rpartition("[")[0]
        if gang and _place(self._folder, gang, attempt.epoch).is_dir():
            self._gangs[attempt] = (gang, attempt.epoch)

    def has(self, attempt: Attempt) -> bool:
        """Return whether the attempt is a gang member whose end is not durable yet."""
        return attempt in self._gangs

    def left(self, attempts: Iterable[Attempt]) -> None:
        """Forget attempts whose ends are durable."""
        gone = {self._gangs.pop(attempt) for attempt in attempts if attempt in self._gangs}
        if over := gone - {*self._gangs.values()}:
            places = {_place(self._folder, gang, founded) for gang, founded in over}
            self._seen = {path: seen for path, seen in self._seen.items() if path.parent not in places}

    def connected(self) -> Iterator[Met]:
        """Ask for the files of all gangs after a reconnection; forget which files were sent, since they may be lost."""
        self._seen.clear()
        for gang, founded in {*self._gangs.values()}:
            yield Met(gang=gang, founded=founded)

    def news(self) -> Iterator[Met]:
        """Yield files that local members have left since the last call."""
        for gang, founded in sorted({*self._gangs.values()}):
            for path in _files(_place(self._folder, gang, founded)):
                with contextlib.suppress(OSError):
                    if (seen := _look(path)) != self._seen.get(path) and seen[2] <= LARGEST:
                        self._seen[path] = seen
                        yield Met(gang=gang, founded=founded, name=path.name, data=path.read_bytes())

    def take(self, met: Met) -> None:
        """Store a file that a remote member has left."""
        with contextlib.suppress(OSError):
            path = keep(self._folder, met)
            self._seen[path] = _look(path)


def keep(folder: Path, met: Met) -> Path:
    """Write a received file atomically. Raises OSError, also if its name is invalid or the folder is full."""
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
    """Yield all stored files of a gang."""
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
