"""Quarantine of requests that may have killed servers, identified by a hash of their content.

A request whose server was lost is a *suspect*: it is retried once, alone where possible, and never after a second loss.
Then it is *held*: refused at once, for a minute at first, and twice as long after each further loss. After that time
one request is let through on trial, and the others are still held. An answer clears it.

So a request that kills its server kills two, and later single ones at increasing intervals, however often clients
repeat it. A harmless request that was twice on a dying server is refused for a minute. Time is an argument, in
nanoseconds.
"""

from hashlib import blake2b

import msgspec

from poise.units import HOUR, MINUTE, SECOND

PAUSE = MINUTE
"""Hold time after a request's second loss …"""

LONGEST = HOUR
"""… and the maximum hold time."""

FORGOTTEN = 2 * HOUR
"""A request is forgotten after this time without a loss."""

SAME_LOSS = 1 * SECOND
"""Losses of one server within this time count as one: it served the same request several times at once."""

MOST = 1024
"""Maximum number of remembered requests; the one with the oldest loss is evicted."""

LOSSES = 2
"""Number of lost servers after which a request is refused and held."""


class _Suspect(msgspec.Struct):
    losses: int = 0
    until: int = 0
    lost: int = 0
    server: str = ""


class Quarantine:
    """The suspects of one service or front. False while there are none, to save hashing."""

    def __init__(self) -> None:
        self._suspects: dict[bytes, _Suspect] = {}

    def __bool__(self) -> bool:
        return bool(self._suspects)

    def lost(self, key: bytes, now: int, server: str = "") -> int:
        """Record a lost server. Returns the hold time; 0 after the first loss. With a `server` name, several concurrent
        losses on it count as one.
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
        """Return the remaining hold time; 0 if it may be served. After a hold, this request is the trial, and further
        ones are held.
        """
        suspect = self._known(key, now)
        if suspect is None or suspect.losses < LOSSES:
            return 0
        if now < suspect.until:
            return suspect.until - now
        suspect.until = now + _pause(suspect.losses)
        return 0

    def suspects(self, key: bytes, now: int) -> bool:
        """Whether a server was lost with this request and it was not answered since."""
        return self._known(key, now) is not None

    def answered(self, key: bytes) -> bool:
        """Clear a request that was answered. Returns whether it was a suspect."""
        return self._suspects.pop(key, None) is not None

    def _known(self, key: bytes, now: int) -> _Suspect | None:
        suspect = self._suspects.get(key)
        if suspect is not None and now - suspect.lost > FORGOTTEN:
            del self._suspects[key]
            return None
        return suspect


def digest(*parts: bytes) -> bytes:
    """Hash the parts of a request to a key."""
    made = blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8))
        made.update(part)
    return made.digest()


def _pause(losses: int) -> int:
    return min(LONGEST, PAUSE << min(losses - LOSSES, 10)) if losses >= LOSSES else 0


__all__ = ["LOSSES", "Quarantine", "digest"]
