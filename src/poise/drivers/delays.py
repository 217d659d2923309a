"""Learns how long a system takes to provide a machine, from its latest requests."""

import contextlib
import math
from pathlib import Path
from typing import NamedTuple

import msgspec

from poise.decoding import json_decoder
from poise.drivers.whole import write_whole
from poise.units import SECOND

KEPT = 8
"""Number of requests to remember for each kind of machine. A queue changes, so only the latest requests show its
length.
"""

LATE = 0.9
"""The fraction of requests that are met within the late delay."""

DOUBT = 3.0
"""Ratio of the late delay to the expected one while no request has been met."""


class Delay(NamedTuple):
    """The expected delay of a machine, and the late delay, within which nearly all machines start, in nanoseconds."""

    expected: int
    late: int


class Delays:
    """The delays of met requests by kind of machine, in seconds, the latest last. They are stored in a `file`, if
    there is one.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._known: dict[str, list[float]] = {}
        if file is not None:
            with contextlib.suppress(OSError, msgspec.MsgspecError):  # none yet; a damaged file is learned again
                self._known = json_decoder(dict[str, list[float]]).decode(file.read_bytes())

    def add(self, kind: str, seconds: float) -> None:
        """Record that a request was met after this number of seconds."""
        self._known[kind] = [*self._known.get(kind, ()), max(0.0, seconds)][-KEPT:]
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk: it is learned again
                write_whole(self._file, msgspec.json.encode(self._known))

    def give_up(self, kind: str, guess: float, waited: float) -> None:
        """Record that a request was withdrawn after waiting for this number of seconds, as if it had waited twice as
        long. Otherwise the next request would be expected to be met as soon as this one was at first.
        """
        if 2 * waited * SECOND > self.of(kind, guess).expected:
            self.add(kind, 2 * waited)

    def of(self, kind: str, guess: float, waited: float = 0.0) -> Delay:
        """Return the remaining delay of a request that has waited for this number of seconds. It is a `guess` until a
        request has been met. A request that has waited for longer than expected is expected to wait for as long again.
        """
        times = sorted(self._known.get(kind, ()))
        expected = times[(len(times) - 1) // 2] if times else guess
        late = times[math.ceil(LATE * len(times)) - 1] if times else guess * DOUBT
        expected = expected - waited if waited <= expected else waited
        late = late - waited if waited <= late else 2 * expected
        return Delay(round(expected * SECOND), round(max(expected, late) * SECOND))
