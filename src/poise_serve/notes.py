"""Stores a service's replica jobs, so that the next gateway can take over from a killed one."""

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from poise.decoding import json_decoder
from poise.drivers.whole import write_whole


class Noted(msgspec.Struct):
    """State of a service. `asked`: number of replicas requested so far. `key`: key of the submission in progress, if
    any. `ready`: whether any replica was ever ready. `start_up`: nanoseconds that the latest one took to start.
    """

    asked: int = 0
    key: str = ""
    jobs: list[str] = []
    ready: bool = False
    start_up: int = 0


class Notes:
    """The notes of one service, in a file beside its socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.noted = Noted()
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            self.noted = json_decoder(Noted).decode(path.read_bytes())

    def write(self) -> None:
        """Write the current state atomically. Ignores errors, because only a next gateway would need the file."""
        with contextlib.suppress(OSError):
            write_whole(self.path, msgspec.json.encode(self.noted))

    def forget(self) -> None:
        """Delete the file, because no gateway will take over."""
        self.path.unlink(missing_ok=True)


def leftovers(folder: Path, mark: str, known: Collection[str]) -> Iterator[Notes]:
    """Yield the notes of a gateway on versions of services other than the known ones."""
    for path in sorted(folder.glob(f"*.{mark}.json")):
        if path.name.removesuffix(f".{mark}.json") not in known:
            yield Notes(path)


__all__ = ["Noted", "Notes", "leftovers"]
