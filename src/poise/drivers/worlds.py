"""Shared state of the control plane and the simulation process: the policies in shadow, and their results.

This module does not import the simulation's dependencies.
"""

import contextlib
from collections.abc import Sequence

import msgspec

from poise.config import Home
from poise.decoding import json_decoder, msgpack_decoder
from poise.drivers.plugins import Choice
from poise.drivers.whole import write_whole
from poise.model.worlds import WorldsTold


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that was put in shadow at `since`, in seconds since 1970."""

    choice: Choice
    since: float


_asked = json_decoder(list[Asked])
_told = msgpack_decoder(WorldsTold)


def read_asked(home: Home) -> list[Asked]:
    """Return the policies in shadow; none if there are none, or the file is damaged."""
    try:
        return _asked.decode((home.shadow / "asked.json").read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return []


def write_asked(home: Home, asked: Sequence[Asked]) -> None:
    """Put these policies in shadow. Their simulation process starts if there are any, and ends otherwise."""
    path = home.shadow / "asked.json"
    if asked:
        home.shadow.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, msgspec.json.encode(list(asked)), 0o600)
    else:
        path.unlink(missing_ok=True)
        (home.shadow / "told").unlink(missing_ok=True)


def read_told(home: Home) -> WorldsTold | None:
    """Return the results so far; None if there are none yet."""
    try:
        return _told.decode((home.shadow / "told").read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_told(home: Home, told: WorldsTold) -> None:
    """Save the results. If the disk is full, those since the last save are lost."""
    with contextlib.suppress(OSError):
        write_whole(home.shadow / "told", msgspec.msgpack.encode(told), 0o600)
