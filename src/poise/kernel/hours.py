"""The part of the controller that changes quotas by the hour.

A quota may have other amounts in some hours. Those begin and end at times of cron expressions, which the calendar of
the shell knows. Each change is an event, so that a replay needs no calendar.
"""

from collections.abc import Callable

from poise.errors import PoiseError
from poise.kernel.ledger import Ledger
from poise.kernel.timetable import Calendar
from poise.model.events import Event, QuotaTurned
from poise.model.quotas import BASE, Quota
from poise.units import SECOND

LOOK_AT_WALL = 60 * SECOND
"""Maximum interval at which to look, because wall clocks can be set."""


class Hours:
    """The controller's quotas with hours. The controller replaces `ledger` when it reloads the durable state."""

    def __init__(self, ledger: Ledger, calendar: Calendar | None, *, commit: Callable[[Event], None]) -> None:
        """Without a `calendar`, as in forecasts, quotas stay as they are."""
        self.ledger = ledger
        self._calendar, self._commit = calendar, commit
        self._look_at = 0

    def look_again(self) -> None:
        """Look at all quotas at the next tick: one was set, or the wall clock was."""
        self._look_at = 0

    def wakeup(self) -> int | None:
        """Return when to look at the quotas next."""
        return self._look_at if self._calendar is not None and self.ledger.quotas.any_hours else None

    def tick(self, now: int, wall: int) -> None:
        """Put the amounts of the current hours in force. `wall` is in nanoseconds since 1970."""
        if self._calendar is None or now < self._look_at or not self.ledger.quotas.any_hours:
            return
        next_look = now + LOOK_AT_WALL
        for tenant, quota in sorted(self.ledger.quotas.items()):
            if not quota.hours:
                continue
            turn, until = turn_at(quota, wall, self._calendar)
            next_look = min(next_look, now + until - wall)
            if turn != quota.turn:
                self._commit(QuotaTurned(at=now, tenant=tenant, turn=turn))
        self._look_at = next_look


def turn_at(quota: Quota, wall: int, calendar: Calendar) -> tuple[int, int]:
    """Return the number of the hours in force at a time (`BASE`: none), and when that may change; in nanoseconds since
    1970. The first hours that contain the time apply.
    """
    found, until = BASE, wall + LOOK_AT_WALL
    for number, hours in enumerate(quota.hours):
        try:
            began, begins = calendar(hours.begins, hours.zone, wall)
            ended, ends = calendar(hours.ends, hours.zone, wall)
        except PoiseError:  # the time zone is not known on this machine any more
            continue
        until = min(until, begins, ends)
        if found == BASE and began >= ended:
            found = number
    return found, until
