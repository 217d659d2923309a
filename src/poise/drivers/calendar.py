"""The times of cron expressions in time zones. The rules of time zones are read from the system, or from `tzdata`.

Where clocks go forward, a time of day that is skipped comes right after the gap. Where they go back, a time of day that
comes twice counts once; an expression whose hour or minute is `*` follows the elapsed time instead. Debian's cron does
the same.
"""

from datetime import UTC, datetime, tzinfo
from functools import lru_cache

from poise.errors import SpecError
from poise.model.rrule import DAY_SECONDS as DAY
from poise.model.rrule import MAX_DAYS
from poise.units import SECOND


def around(cron: str, zone: str, wall: int) -> tuple[int, int]:
    """The latest time of the expression at or before `wall`, and the first one after it; all in nanoseconds since 1970.
    Raises SpecError for a time zone that is not known here, and for an expression without any time in 50 years.
    """
    from cronsim import CronSim  # imported late: most control planes have no schedule

    within = _zone(zone)
    past = CronSim(cron, _moment(wall + SECOND, within), reverse=True)
    to_come = CronSim(cron, _moment(wall, within))
    try:
        return (
            next(at for at in map(_nanoseconds, past) if at <= wall),
            next(at for at in map(_nanoseconds, to_come) if at > wall),
        )
    except StopIteration:
        raise SpecError("the cron expression has no time to come", code="E103", field="cron", have=cron) from None


def shifts(zone: str, since: float, field: str) -> tuple[tuple[int, int], ...]:
    """Return the offsets of a time zone in seconds, each with the time in seconds since 1970 from which it holds, for
    twice `MAX_DAYS` from `since` on. Raises SpecError for a time zone that is not known here.
    """
    if zone == "UTC":
        return ((0, 0),)
    _zone(zone, field)
    return _shifts(zone, int(since) // DAY * DAY - DAY)


@lru_cache(maxsize=256)
def _shifts(zone: str, since: int) -> tuple[tuple[int, int], ...]:
    within = _zone(zone)

    def offset(seconds: int) -> int:
        shift = datetime.fromtimestamp(seconds, UTC).astimezone(within).utcoffset()
        return int(shift.total_seconds()) if shift is not None else 0

    found = [(since, offset(since))]
    for day in range(since + DAY, since + 2 * MAX_DAYS * DAY, DAY):
        if (new := offset(day)) != found[-1][1]:
            first, last = day - DAY, day
            while last - first > 1:
                middle = (first + last) // 2
                first, last = (middle, last) if offset(middle) == found[-1][1] else (first, middle)
            found.append((last, new))
    return tuple(found)


def _moment(wall: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(wall // SECOND, UTC).astimezone(zone)


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * SECOND


def _zone(name: str, field: str = "time-zone") -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # imported late: it reads the system's configuration

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        hint = f"`{field.rpartition('.')[2]}: Europe/Zurich`; on a machine without time zones: `pip install tzdata`"
        raise SpecError("this time zone is not known", code="E103", field=field, have=name[:80], hint=hint) from None
