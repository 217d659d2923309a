"""Nodes are let in at the rate at which they can be answered; the rest is told when to come back.

When ten thousand nodes dial at once, each of them waits for all others, and gives up and dials again before it has been
heard. So no more than `MOST` connections may be between their request and their first word. A node that comes beyond
that is refused at once, with the time at which it is its turn: one after the other, somewhat faster than nodes have got
in lately, so that the rate is found that can be served.

Pure: times come with the calls, in nanoseconds.
"""

from collections import deque

from poise.units import SECOND

MOST = 256
"""Nodes that are let in and have not said their first word yet: half a second of work."""

LEAST_RATE = 400
"""Nodes per second that are expected to get in, with TLS on a small machine, as long as fewer have been measured."""

GROWTH = 1.5
"""Nodes are asked to come so many times as fast as they have got in within the last second."""

LONGEST_WAIT = 30 * SECOND
SHORTEST_WAIT = 1 * SECOND


class Admission:
    """Call `ask` for each connection, and `done` once when one that was let in has spoken or is gone."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._joining = 0
        self._spoke: deque[int] = deque()
        self._turn = 0

    def ask(self, now: int) -> int:
        """0: come in. Otherwise the time after which to come back."""
        if self._joining < self._most:
            self._joining += 1
            return 0
        pause = int(SECOND / (GROWTH * max(LEAST_RATE, self._rate(now))))
        self._turn = min(max(self._turn, now + SHORTEST_WAIT) + pause, now + LONGEST_WAIT)
        return self._turn - now

    def done(self, now: int, *, spoke: bool) -> None:
        """One that was let in has said its first word (`spoke`), or has gone without."""
        self._joining -= 1
        if spoke:
            self._spoke.append(now)
            self._rate(now)

    def _rate(self, now: int) -> int:
        """How many have got in within the last second."""
        while self._spoke and self._spoke[0] <= now - SECOND:
            self._spoke.popleft()
        return len(self._spoke)
