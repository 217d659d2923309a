"""Admits nodes at the rate at which they can be served, and gives the others a time to retry.

When ten thousand nodes connect at once, each waits for all others, times out and reconnects before it is served. So at
most `MOST` connections may be between their request and their first message. Others are refused at once with a time to
retry: one after the other, somewhat faster than nodes have recently joined, so that the rate adapts to what can be
served.

Pure: times come with the calls, in nanoseconds.
"""

from collections import deque

from poise.units import SECOND

MOST = 256
"""Maximum number of admitted nodes without a first message yet: half a second of work."""

LEAST_RATE = 400
"""Lower limit of the assumed joins per second: what a small machine manages with TLS."""

GROWTH = 1.5
"""Retry times are spread at this multiple of the joins in the last second."""

LONGEST_WAIT = 30 * SECOND
SHORTEST_WAIT = 1 * SECOND


class Admission:
    """Call `ask` for each connection, and `done` once when an admitted one has sent its first message or is lost."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._joining = 0
        self._spoke: deque[int] = deque()
        self._turn = 0

    def ask(self, now: int) -> int:
        """Return 0 to admit a connection, else the time after which to retry."""
        if self._joining < self._most:
            self._joining += 1
            return 0
        pause = int(SECOND / (GROWTH * max(LEAST_RATE, self._rate(now))))
        self._turn = min(max(self._turn, now + SHORTEST_WAIT) + pause, now + LONGEST_WAIT)
        return self._turn - now

    def done(self, now: int, *, spoke: bool) -> None:
        """An admitted connection has sent its first message (`spoke`) or is lost."""
        self._joining -= 1
        if spoke:
            self._spoke.append(now)
            self._rate(now)

    def _rate(self, now: int) -> int:
        """Return the number of joins in the last second."""
        while self._spoke and self._spoke[0] <= now - SECOND:
            self._spoke.popleft()
        return len(self._spoke)
