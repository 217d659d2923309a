"""Requests that servers died of, known by a hash of what they ask.

A request whose server was lost is a *suspect*: it is sent once more, alone where that is possible, and never again
after a second loss. From then on it is *held*: refused at once, for a minute at first, and twice as long after each
further loss. When that is over, one request is let through on trial, and the others are held on. An answer clears it.

So a request that kills its server kills two, and later one at a time, ever more seldom, however often clients repeat
it. An innocent one that was twice on a server that died is refused for a minute. Time is an argument, in nanoseconds.
"""

from hashlib import blake2b

import msgspec

from poise.units import HOUR, MINUTE, SECOND

PAUSE = MINUTE
"""For how long a request is held after its second loss …"""

LONGEST = HOUR
"""… and at most."""

FORGOTTEN = 2 * HOUR
"""A request that was not lost again for so long is forgotten."""

SAME_LOSS = 1 * SECOND
"""Two losses of one server within so long are one: it served the request more than once at a time."""

MOST = 1024
"""Requests that are remembered; the one that was lost the longest ago makes room."""

LOSSES = 2
"""Servers that may be lost with a request before it is refused, and held."""


class _Suspect(msgspec.Struct):
    losses: int = 0
    until: int = 0
    lost: int = 0
    server: str = ""


class Quarantine:
    """The suspects of one service, or of one front. It is false while there are none: then nothing need be hashed."""

    def __init__(self) -> None:
        self._suspects: dict[bytes, _Suspect] = {}

    def __bool__(self) -> bool:
        return bool(self._suspects)

    def lost(self, key: bytes, now: int, server: str = "") -> int:
        """A server was lost while it served this. For how long it is held now; 0 after its first loss. Where the
        `server` has a name, what it served several times at once counts as lost once.
        """
        suspect = self._known(key, now) or _Suspect()
        if server and server == suspect.server and now - suspect.lost < SAME_LOSS:
            return max(0, suspect.until - now)
        suspect.server = server
        self._suspects.pop(key, None)
        if len(self._suspects) >= MOST:
            del self._suspects[next(iter(self._suspects))]
        self._suspects[key] = suspect
        suspect.losses, suspect.lost = suspect.losses + 1, now
        suspect.until = now + _pause(suspect.losses)
        return suspect.until - now

    def held(self, key: bytes, now: int) -> int:
        """For how long it is refused; 0 if it may be served. If it was held, it is on trial, and held for others."""
        suspect = self._known(key, now)
        if suspect is None or suspect.losses < LOSSES:
            return 0
        if now < suspect.until:
            return suspect.until - now
        suspect.until = now + _pause(suspect.losses)
        return 0

    def suspects(self, key: bytes, now: int) -> bool:
        """Whether a server was lost with it, and it was not answered since."""
        return self._known(key, now) is not None

    def answered(self, key: bytes) -> None:
        """It did no harm."""
        self._suspects.pop(key, None)

    def _known(self, key: bytes, now: int) -> _Suspect | None:
        suspect = self._suspects.get(key)
        if suspect is not None and now - suspect.lost > FORGOTTEN:
            del self._suspects[key]
            return None
        return suspect


def digest(*parts: bytes) -> bytes:
    """The key of what these bytes ask."""
    made = blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8))
        made.update(part)
    return made.digest()


def _pause(losses: int) -> int:
    return min(LONGEST, PAUSE << min(losses - LOSSES, 10)) if losses >= LOSSES else 0


__all__ = ["LOSSES", "Quarantine", "digest"]
