"""What commands write on another machine, brought to where the control plane keeps logs.

The node sends each part with the place that it has in its stream, and the control plane writes it there: to send one
twice is harmless. What has been written is acknowledged; a new connection goes on from there, a new agent begins anew.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from poise.drivers.keeper import BLOCK, LOG_BOUND, note_time, punch
from poise.drivers.logs import Moments, piece
from poise.drivers.places import log_paths
from poise.model.messages import Attempt, Kept, Output

PART = 64 * 1024
MOST = 10_000
"""Attempts whose output is followed; of older ones the rest stays on their node."""


class _Followed:
    """Of each stream (out, err): up to where it was sent, and up to where that is known to be kept."""

    def __init__(self) -> None:
        self.sent = [0, 0]
        self.kept = [0, 0]
        self.ended = False


class Shipping:
    """The node's side."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._to = ""
        self._followed: dict[Attempt, _Followed] = {}

    @property
    def follows(self) -> bool:
        """Return whether there may be output to send."""
        return bool(self._followed and self._to)

    def began(self, attempt: Attempt) -> None:
        self._followed.setdefault(attempt, _Followed())
        if len(self._followed) > MOST:
            del self._followed[next(iter(self._followed))]

    def ended(self, attempt: Attempt) -> None:
        self.began(attempt)
        self._followed[attempt].ended = True

    def connected(self, to: str) -> None:
        """To this control plane; without a name, to one that reads what is here. What was on its way on the last
        connection may not have come, and what another one has kept has not come here.
        """
        for of in self._followed.values():
            of.kept = of.kept if to == self._to else [0, 0]
            of.sent = [*of.kept]
        self._to = to

    def kept(self, kept: Kept) -> None:
        of = self._followed.get(kept.attempt)
        if of is not None:
            of.kept[kept.err] = max(of.kept[kept.err], kept.until)

    def parts(self) -> Iterator[Output]:
        """What is there and has not been sent. One that has ended, and of which all is kept, is not followed longer."""
        for attempt, of in list(self._followed.items()):
            ended = of.ended  # asked before reading: what was written before the end is still to come
            for err, path in enumerate(log_paths(self._logs, attempt)):
                moments = Moments(path)
                while self._to and (found := piece(path, of.sent[err], PART))[1]:
                    start, data = found
                    at, until = moments.at(start)
                    data = data[: until - start]
                    of.sent[err] = start + len(data)
                    yield Output(attempt=attempt, err=bool(err), start=start, data=data, at=at)
            if ended and of.sent == of.kept:
                self._followed.pop(attempt, None)


def keep(logs: Path, output: Output, most: int = LOG_BOUND) -> Kept:
    """The control plane's side. Of a stream that is longer than `most` the newest half of that stays at least, as on
    its node. Raises OSError where nothing can be written.
    """
    path = log_paths(logs, output.attempt)[output.err]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    half, end = most // 2, output.start + len(output.data)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if end >= most and end // half > output.start // half and not punch(file, 0, (end - half) // BLOCK * BLOCK):
            os.ftruncate(file, 0)
        os.pwrite(file, output.data, output.start)
        if output.at:
            note_time(str(path), end, output.at)
    finally:
        os.close(file)
    return Kept(attempt=output.attempt, err=output.err, until=end)
