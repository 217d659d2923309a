"""Signs that the control plane sees in its own work and that no other event records: a slow store, a store that was
full, a wall clock that was set.

Each is told when it begins and when it is over, so that the log gets two records of it, however long it lasts.
"""

from poise.model.events import Noticed
from poise.units import SECOND, format_duration

SLOW = 1 * SECOND
"""A commit that takes longer is slow. Each acknowledgement of a submission waits for one."""

FAST_AGAIN = 20
"""Commits in a row that must not be slow before the store is well again."""

STEP = 5 * SECOND
"""A wall clock that moves by so much against the monotonic one was set."""


class Noticing:
    """Call `committed` after each commit, `turn` in each turn, `full` and `room` when the store is full and is not."""

    def __init__(self) -> None:
        self._fast = FAST_AGAIN
        self._offset: int | None = None
        self._full_since = 0

    def committed(self, took: int, now: int) -> Noticed | None:
        """A commit took so many nanoseconds."""
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
        """It is this instant, and `wall` seconds since 1970."""
        offset = round(wall * SECOND) - now
        before, self._offset = self._offset, offset
        if before is None or abs(offset - before) < STEP:
            return None
        direction = "forward" if offset > before else "back"
        text = f"the wall clock was set {direction} by {format_duration(abs(offset - before))}"
        return Noticed(at=now, kind="clock-step", text=text)

    def full(self, now: int) -> None:
        """The store takes nothing more."""
        self._full_since = self._full_since or now

    def room(self, now: int) -> Noticed | None:
        """The store takes records again: only now can it be told that it did not."""
        since, self._full_since = self._full_since, 0
        if not since:
            return None
        return Noticed(at=now, kind="store-full", text=f"the log took nothing for {format_duration(now - since)}")
