"""The load history of each node, in files of fixed size: a day by minute, and four weeks by hour.

There is one file per node. A window's position follows from its time, so there is no header that a crash could corrupt,
and new windows overwrite old ones in a ring. These files are not part of the log: lost data is not restored.

    poise series 1\\n                                 16 bytes
    24 * 60 windows of a minute, 28 * 24 of an hour, each
        at: seconds since 1970, u64 · the mean of each signal, i64 · the most of each, i64 · checksum of these, u32
"""

import contextlib
import os
import struct
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from urllib.parse import quote
from zlib import crc32

from poise.errors import StoreDamaged
from poise.model.usage import HOUR, HOURS, MINUTE, MINUTES, SIGNALS, NodeProfile, Window, profile_of, together

MAGIC = b"poise series 1\n\0"
_WINDOW = struct.Struct(f"<Q{2 * len(SIGNALS)}q")
_SUM = struct.Struct("<I")
_SIZE = _WINDOW.size + _SUM.size
_BYTES = len(MAGIC) + (MINUTES + HOURS) * _SIZE
"""Size of a complete file."""


class Series:
    """The load history files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, node: str, windows: Iterable[Window]) -> None:
        """Add windows of a minute, and recompute the windows of their hours. Raises OSError if the disk is full or
        fails; a file with another format is replaced.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        file = os.open(self._path(node), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.pread(file, len(MAGIC), 0) != MAGIC:
                os.ftruncate(file, 0)
                os.pwrite(file, MAGIC, 0)
            for hour, minutes in groupby(windows, lambda window: window.at // HOUR * HOUR):
                for window in minutes:
                    _put(file, window, 0, MINUTES, MINUTE)
                of = [one for at in range(hour, hour + HOUR, MINUTE) if (one := _get(file, at, 0, MINUTES, MINUTE))]
                _put(file, together(of, hour), MINUTES, HOURS, HOUR)
        finally:
            os.close(file)

    def read(self, node: str, now: float) -> tuple[list[Window], list[Window]]:
        """Return the stored windows of minutes and of hours as of `now`, oldest first. Raises `StoreDamaged` for a file
        with another format, or an unreadable one; corrupt windows in a valid file are left out.
        """
        path = self._path(node)
        try:
            with path.open("rb") as file:
                data = file.read(_BYTES)
        except FileNotFoundError:
            return [], []
        except OSError as error:
            hint = f"`ls -ld {path.parent} {path}`: a folder and a file that their owner may read"
            have = os.strerror(error.errno or 0)
            raise StoreDamaged("this load history cannot be read", field=str(path), have=have, hint=hint) from error
        if MAGIC.startswith(data):  # created when the disk was full
            return [], []
        if not data.startswith(MAGIC):
            hint = f"`rm {path}`: it is begun anew"
            raise StoreDamaged("this is not a load history of a node", field=str(path), hint=hint)
        return _of(data, 0, MINUTES, MINUTE, now), _of(data, MINUTES, HOURS, HOUR, now)

    def profiles(self, nodes: Iterable[str], now: float) -> list[NodeProfile]:
        """Return the profile of each node as of `now`; for a damaged file, only the error."""
        return [self._profile(node, now) for node in nodes]

    def _profile(self, node: str, now: float) -> NodeProfile:
        try:
            return profile_of(node, *self.read(node, now))
        except StoreDamaged as error:
            said = error.record
            why = ", ".join(one for one in (said.message, said.have, said.hint) if one)
            return NodeProfile(node=node, signals={}, why=why)

    def forget(self, kept: Iterable[str]) -> None:
        """Remove the files of all other nodes. Errors are ignored, because nothing else depends on it."""
        keep = {self._path(node).name for node in kept}
        with contextlib.suppress(OSError):
            for path in list(self._folder.iterdir()):
                if path.name not in keep:
                    with contextlib.suppress(OSError):
                        path.unlink()

    def _path(self, node: str) -> Path:
        return self._folder / f"{quote(node, safe='')}.series"


def _put(file: int, window: Window, first: int, count: int, every: int) -> None:
    data = _WINDOW.pack(window.at, *window.mean, *window.most)
    place = first + window.at // every % count
    os.pwrite(file, data + _SUM.pack(crc32(data)), len(MAGIC) + place * _SIZE)


def _get(file: int, at: int, first: int, count: int, every: int) -> Window | None:
    place = first + at // every % count
    window = _whole(os.pread(file, _SIZE, len(MAGIC) + place * _SIZE))
    return window if window is not None and window.at == at else None


def _of(data: bytes, first: int, count: int, every: int, now: float) -> list[Window]:
    found = []
    for place in range(first, first + count):
        start = len(MAGIC) + place * _SIZE
        window = _whole(data[start : start + _SIZE])
        if window is not None and now - count * every <= window.at <= now:
            found.append(window)
    return sorted(found, key=lambda window: window.at)


def _whole(data: bytes) -> Window | None:
    """Return the window, or None if it was never or not completely written."""
    if len(data) < _SIZE or _SUM.unpack_from(data, _WINDOW.size)[0] != crc32(data[: _WINDOW.size]):
        return None
    at, *values = _WINDOW.unpack_from(data)
    return Window(at, tuple(values[: len(SIGNALS)]), tuple(values[len(SIGNALS) :])) if at else None
