"""The mark: a small side file with a revision that is known to be durable.

After every commit, and before the commit is announced, it is overwritten with the new durable revision. It is synced
about once a second, and always after its commit: it can be too low, but never too high. A mark that cannot be written
stays too low, which is safe.
"""

import contextlib
import os
import struct
from pathlib import Path
from time import monotonic
from zlib import crc32

from poise.drivers.sqlite.faults import translating

SYNC_SECONDS = 1.0

_SLOT = struct.Struct("<QI")  # revision, checksum
_OFFSETS = (0, 512)  # two sectors, written alternately: a torn write leaves the other one intact
_SEED = 0x504F4953


class Mark:
    def __init__(self, path: Path, revision: int) -> None:
        with translating(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._turn = 0
        for _ in _OFFSETS:
            self.write(revision)
        self.sync()

    def write(self, revision: int) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._file, _SLOT.pack(revision, _checksum(revision)), _OFFSETS[self._turn])
        self._turn = 1 - self._turn
        self.unsynced = True

    def sync_if_due(self) -> None:
        if self.unsynced and monotonic() - self._synced_at >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        with contextlib.suppress(OSError):
            os.fdatasync(self._file)
        self._synced_at = monotonic()
        self.unsynced = False

    def close(self) -> None:
        self.sync()
        os.close(self._file)


def mark_path(path: Path) -> Path:
    return path.with_suffix(".mark")


def read_mark(log: Path) -> int | None:
    """Return the higher revision of the intact slots; None if there is no file or no intact slot."""
    try:
        content = mark_path(log).read_bytes()
    except FileNotFoundError:
        return None
    slots = [content[offset : offset + _SLOT.size] for offset in _OFFSETS]
    pairs = [_SLOT.unpack(slot) for slot in slots if len(slot) == _SLOT.size]
    return max((revision for revision, checksum in pairs if checksum == _checksum(revision)), default=None)


def _checksum(revision: int) -> int:
    return crc32(revision.to_bytes(8, "little"), _SEED)
