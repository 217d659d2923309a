"""Problems of the control plane itself that no other event records: a slow store, a full store, a wall clock that was
set.

A problem is recorded when it begins and when it is over: two records, however long it lasts.
"""

from poise.model.events import Noticed
from poise.units import SECOND, format_duration

SLOW = 1 * SECOND
"""A commit that takes longer is slow. Each acknowledgement of a submission waits for a commit."""

FAST_AGAIN = 20
"""Number of consecutive fast commits before the store counts as recovered."""

STEP = 5 * SECOND
"""A wall clock that moves by this much against the monotonic one was set."""


class Noticing:
    """Call `committed` after each commit, `turn` in each turn, `full` and `room` when the store becomes full and free
    again.
    """

    def __init__(self) -> None:
        self._fast = FAST_AGAIN
        self._offset: int | None = None
        self._full_since = 0

    def committed(self, took: int, now: int) -> Noticed | None:
        """Record the duration of a commit, in nanoseconds."""
        slow = self._fast < FAST_AGAIN
        if took > SLOW:
            self._fast = 0
            text = f"a commit took {format_duration(took)}"
            return None if slow else Noticed(at=now, kind="slow-store", text=text)
        if not slow:
            return None
        self._fast += 1
        if self._fast < FAST_AGAIN:
            return None
        return Noticed(at=now, kind="slow-store", text="commits are fast again", over=True)

    def turn(self, now: int, wall: float) -> Noticed | None:
        """Compare the clocks; `wall` is in seconds since 1970."""
        offset = round(wall * SECOND) - now
        before, self._offset = self._offset, offset
        if before is None or abs(offset - before) < STEP:
            return None
        direction = "forward" if offset > before else "back"
        text = f"the wall clock was set {direction} by {format_duration(abs(offset - before))}"
        return Noticed(at=now, kind="clock-step", text=text)

    def full(self, now: int) -> None:
        """Record that the store accepts no more records."""
        self._full_since = self._full_since or now

    def room(self, now: int) -> Noticed | None:
        """Record that the store accepts records again: only now can a record of the problem be written."""
        since, self._full_since = self._full_since, 0
        if not since:
            return None
        return Noticed(at=now, kind="store-full", text=f"the log took nothing for {format_duration(now - since)}")
