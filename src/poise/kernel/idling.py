"""Decides whether sessions are in use, from four signals together.

    idling = Idling()
    verdict = idling.look(attempt, limit, signs, now)

A session is in use if, since the last look, somebody typed or sent enough to its ports, its processes used enough CPU
or wrote enough, or its devices were busy. One signal is enough. It is idle when there was none of them for its limit. A
look that comes far too late counts as use: the machine was suspended, and nobody could use the session.

A notice comes before the limit. Every look after the limit repeats that it has passed, until the session is used, ended
or suspended.
"""

from typing import Literal, NamedTuple

import msgspec

from poise.model.messages import Attempt
from poise.units import MINUTE, SECOND

LOOKS = 10
"""Looks within the idle limit."""

LONGEST_PAUSE = 30 * SECOND
LATE = 4
"""A look counts as late after this many pauses."""

NOTICE = 5 * MINUTE
"""Longest time between the notice and the limit; for short limits it is a fifth of the limit."""

CPU = 30
"""Thousandths of one core. An idle server for notebooks or for an editor uses 5 to 20."""

WRITTEN = 4096
"""Bytes per second of file and terminal output, and of input from disks. A full-screen monitor writes 1,000."""

SENT = 1024
"""Bytes per second to ports. A notebook that is open in a browser sends 300, without anybody."""

DEVICE = 10
"""Thousandths of the devices' time."""


class Signs(NamedTuple):
    """Totals of a session so far: bytes `typed` and `sent` to ports, CPU time in nanoseconds, bytes `written`, and the
    sum of `samples` of the use of its devices in thousandths. It `waits` if a process is waiting for a disk now.
    """

    typed: int = 0
    sent: int = 0
    cpu: int = 0
    written: int = 0
    device: int = 0
    samples: int = 0
    waits: bool = False


class Verdict(NamedTuple):
    """`used`: it is in use again after it was reported idle. `idle`: it has been idle for a while. `notice`: it will
    soon be due. `due`: its limit has passed. Empty: nothing to report. `lasts` is how long it has been idle, in
    nanoseconds.
    """

    what: Literal["", "used", "idle", "notice", "due"] = ""
    lasts: int = 0


class _Session(msgspec.Struct):
    seen: Signs
    looked: int
    used: int
    told: Literal["", "idle", "notice"] = ""


def pause(limit: int) -> int:
    """Return the nanoseconds between two looks at a session with this limit."""
    return min(LONGEST_PAUSE, limit // LOOKS)


def notice(limit: int) -> int:
    """Return how many nanoseconds before its limit a session gets the notice."""
    return min(NOTICE, limit // 5)


def in_use(before: Signs, now: Signs, elapsed: int) -> bool:
    """Return whether a session was in use between two looks, `elapsed` nanoseconds apart."""

    def rate(of: int) -> float:
        return of * SECOND / elapsed

    samples = now.samples - before.samples
    return (
        now.waits
        or now.typed > before.typed
        or rate(now.sent - before.sent) > SENT
        or (now.cpu - before.cpu) * 1000 > CPU * elapsed
        or rate(now.written - before.written) > WRITTEN
        or now.device - before.device > DEVICE * samples
    )


class Idling:
    """The sessions of one node."""

    def __init__(self) -> None:
        self._sessions: dict[Attempt, _Session] = {}

    def is_due(self, attempt: Attempt, limit: int, now: int) -> bool:
        """Return whether a session should be looked at now."""
        session = self._sessions.get(attempt)
        return session is None or now - session.looked >= pause(limit)

    def keep(self, attempts: frozenset[Attempt]) -> None:
        """Forget all other sessions: they have ended, or are suspended."""
        for attempt in self._sessions.keys() - attempts:
            del self._sessions[attempt]

    def begin_anew(self, attempt: Attempt) -> None:
        """Count a session as in use now."""
        self._sessions.pop(attempt, None)

    def look(self, attempt: Attempt, limit: int, signs: Signs, now: int) -> Verdict:
        """Take the signs of a session. The first look at it counts as use."""
        session = self._sessions.get(attempt)
        if session is None:
            self._sessions[attempt] = _Session(signs, now, now)
            return Verdict()
        before, elapsed = session.seen, max(1, now - session.looked)
        session.seen, session.looked = signs, now
        if elapsed > LATE * max(pause(limit), SECOND) or in_use(before, signs, elapsed):
            was, session.told, session.used = session.told, "", now
            return Verdict("used" if was else "")
        lasts = now - session.used
        if lasts >= limit:
            return Verdict("due", lasts)
        if lasts >= limit - notice(limit) and session.told != "notice":
            session.told = "notice"
            return Verdict("notice", lasts)
        if lasts >= limit // 5 and not session.told:
            session.told = "idle"
            return Verdict("idle", lasts)
        return Verdict()
