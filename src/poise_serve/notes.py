"""What one gateway leaves to the next, if it is killed: which jobs are the replicas of a service, how a trial ended."""

import contextlib
from pathlib import Path
from typing import Literal

import msgspec

from poise.decoding import json_decoder
from poise.drivers.whole import write_whole


class Noted(msgspec.Struct):
    """`asked`: how many replicas were ever asked for; `key`: that under which one more is being submitted, if one is;
    `ready`: whether any of them ever was; `trial`: how that of its canary ended.
    """

    asked: int = 0
    key: str = ""
    jobs: list[str] = []
    ready: bool = False
    trial: Literal["", "promoted", "rolled back"] = ""


class Notes:
    """On one service, in a file beside its socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.noted = Noted()
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            self.noted = json_decoder(Noted).decode(path.read_bytes())

    def write(self) -> None:
        """As it is now, in one piece. Where it cannot be written, only the next gateway has anything of it."""
        with contextlib.suppress(OSError):
            write_whole(self._path, msgspec.json.encode(self.noted))

    def forget(self) -> None:
        """There will be no next."""
        self._path.unlink(missing_ok=True)


__all__ = ["Noted", "Notes"]
