"""How fast a server is, learned from what it answered: the least that a router needs.

Work is measured in the units of `Asked.size`. Two speeds are kept, as moving averages over the last answers:

* `busy`: nanoseconds of the server's busy time for a unit. A server that does eight requests side by side finishes them
  eight times as often, and takes an eighth; this is what a queue in front of it is worked off with.
* `lasting`: nanoseconds from sending to the end of the answer for a unit, whatever ran beside it.
"""

from collections.abc import Sequence
from statistics import median

WEIGHT = 0.1
"""Of the latest answer, in sums that are forgotten at this rate: about the last ten count."""


class Pace:
    """Of one server."""

    def __init__(self) -> None:
        self.size = 0.0
        self._count = 0
        self._since = 0
        self._busy, self._done = 0.0, 0.0
        self._lasted, self._answered = 0.0, 0.0

    @property
    def busy(self) -> float:
        """0 before the first answer."""
        return self._busy / self._done if self._done else 0.0

    @property
    def lasting(self) -> float:
        """0 before the first answer."""
        return self._lasted / self._answered if self._answered else 0.0

    def on_sent(self, size: float, now: int) -> None:
        if not self._count:
            self._since = now
        self._count += 1
        self.size += size

    def on_answer(self, size: float, sent: int, now: int) -> None:
        keep = 1 - WEIGHT
        self._busy = keep * self._busy + (now - self._since)
        self._done = keep * self._done + size
        self._lasted = keep * self._lasted + (now - sent)
        self._answered = keep * self._answered + size
        self._since = now
        self.on_gone(size)

    def on_gone(self, size: float) -> None:
        """It ended without an answer, of which nothing is learned."""
        self._count -= 1
        self.size = self.size - size if self._count else 0.0


def foreseen(paces: Sequence[Pace], size: float) -> list[tuple[int, int]]:
    """Of each server how long what it was sent still takes, and a request of this size; nanoseconds. One that has not
    answered yet is foreseen to be as fast as the others at their median, or it would be sent everything until it has.
    """
    known = [pace.busy for pace in paces if pace.busy]
    usual = median(known) if known else 1.0
    return [(round((pace.busy or usual) * pace.size), round((pace.busy or usual) * size)) for pace in paces]
