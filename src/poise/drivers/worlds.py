"""Between the control plane and the process of simulated fleets: which policies are in shadow, and what came of them.

Nothing here imports what simulating needs.
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
    """A policy that somebody has put in shadow, `since` a time in seconds since 1970."""

    choice: Choice
    since: float


_asked = json_decoder(list[Asked])
_told = msgpack_decoder(WorldsTold)


def read_asked(home: Home) -> list[Asked]:
    """The policies in shadow; none where nobody has asked, or the file is damaged."""
    try:
        return _asked.decode((home.shadow / "asked.json").read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return []


def write_asked(home: Home, asked: Sequence[Asked]) -> None:
    """Put these in shadow. The process of their fleets starts where there are some, and ends where there are none."""
    path = home.shadow / "asked.json"
    if asked:
        home.shadow.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, msgspec.json.encode(list(asked)), 0o600)
    else:
        path.unlink(missing_ok=True)
        (home.shadow / "told").unlink(missing_ok=True)


def read_told(home: Home) -> WorldsTold | None:
    """What came of them so far; None where nothing is known yet."""
    try:
        return _told.decode((home.shadow / "told").read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_told(home: Home, told: WorldsTold) -> None:
    """A full disk costs what was found since the last time."""
    with contextlib.suppress(OSError):
        write_whole(home.shadow / "told", msgspec.msgpack.encode(told), 0o600)
