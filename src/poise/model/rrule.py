"""Recurrence rules of iCalendar (RFC 5545, section 3.3.10), as far as calendars of machines use them.

    rule = parse_rrule("FREQ=WEEKLY;BYDAY=MO,WE;COUNT=20", "every")
    starts(rule, first)            # seconds on the clock of the place
    in_utc(starts(...), shifts)    # seconds since 1970

Days are counted in arrays, so that a year of a thousand rules takes milliseconds. A rule must end, by `COUNT` or
`UNTIL`, and has at most `MAX_STARTS` times within `MAX_DAYS`. With `starts_within`, a rule may have begun long ago, and
need not end. Parts that choose hours, weeks of the year or positions
are refused by name.

Where clocks go forward, a start in the skipped hour comes as much later; where they go back, the first of the two
counts (RFC 5545, section 3.3.5).
"""

import re
from calendar import monthrange
from collections.abc import Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec

from poise.errors import SpecError

if TYPE_CHECKING:
    from poise.model.fleet import Ints

MAX_STARTS = 10_000
MAX_DAYS = 5 * 366
LAST_DAY = (date.max - date(1970, 1, 1)).days
DAY_SECONDS = 86_400

WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
THURSDAY = 3
"""Weekday of 1 January 1970, counted from Monday."""

Frequency = Literal["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]
FREQUENCIES: tuple[Frequency, ...] = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
EXAMPLE = "FREQ=WEEKLY;BYDAY=MO;COUNT=10"

Shifts = tuple[tuple[int, int], ...]
"""Offsets of a time zone in seconds, each with the time in seconds since 1970 from which it holds; the first holds
before that as well.
"""

ALWAYS_UTC: Shifts = ((0, 0),)

_DAY = re.compile(r"([+-]?[1-5])?(MO|TU|WE|TH|FR|SA|SU)")
_TIME = re.compile(r"([0-9]{8})(?:T([0-9]{6})(Z?))?")


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    """A rule. `days` are weekdays from Monday (0), each with its number in the month (0: every one, -1: the last).
    `until` is in seconds since 1970, on the clock of the place unless `until_utc`; None if `count` ends the rule, or
    nothing does (`count` is 0).
    """

    frequency: Frequency
    interval: int = 1
    count: int = 0
    until: int | None = None
    until_utc: bool = False
    days: tuple[tuple[int, int], ...] = ()
    month_days: tuple[int, ...] = ()
    week_start: int = 0


@lru_cache(maxsize=4096)
def parse_rrule(text: str, field: str, *, must_end: bool = True) -> Recurrence:
    """Read a rule, with or without `RRULE:` in front. Raises SpecError."""
    parts: dict[str, str] = {}
    for part in text.strip().upper().removeprefix("RRULE:").strip(";").split(";"):
        name, equals, value = part.partition("=")
        if not equals or not value or name in parts:
            raise _wrong(field, "a recurrence rule", text)
        parts[name] = value
    frequency = next((one for one in FREQUENCIES if one == parts.get("FREQ")), None)
    if frequency is None:
        raise _wrong(field, "FREQ=DAILY, WEEKLY, MONTHLY or YEARLY", parts.get("FREQ", text))
    known = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY", "BYMONTHDAY", "WKST"}
    if unknown := [name for name in parts if name not in known]:
        what = f"recurrence rules with {' or '.join(unknown)} are not supported"
        raise SpecError(what, code="E103", field=field, need=", ".join(sorted(known)), have=text[:80], hint=EXAMPLE)
    interval, count = (_number(parts, name, field) for name in ("INTERVAL", "COUNT"))
    until, until_utc = parse_time(parts["UNTIL"], field) if "UNTIL" in parts else (None, False)
    if (count and until is not None) or (must_end and not count and until is None):
        what = "the recurrence rule ends twice" if count else "the recurrence rule never ends"
        raise SpecError(what, code="E103", field=field, need="COUNT or UNTIL", have=text[:80], hint=EXAMPLE)
    if count > MAX_STARTS:
        raise too_many(field, str(count))
    days = tuple(_day(day, frequency, field) for day in parts["BYDAY"].split(",")) if "BYDAY" in parts else ()
    month_days = tuple(_month_day(day, field) for day in parts.get("BYMONTHDAY", "").split(",") if day)
    if (month_days and frequency != "MONTHLY") or (days and (month_days or frequency == "YEARLY")):
        raise _wrong(field, "BYMONTHDAY with MONTHLY only, BYDAY with DAILY, WEEKLY or MONTHLY only", text)
    week_start = parts.get("WKST", "MO")
    if week_start not in WEEKDAYS:
        raise _wrong(field, f"WKST={', '.join(WEEKDAYS)}", week_start)
    return Recurrence(
        frequency=frequency,
        interval=interval or 1,
        count=count,
        until=until,
        until_utc=until_utc,
        days=days,
        month_days=month_days,
        week_start=WEEKDAYS.index(week_start),
    )


def parse_time(text: str, field: str) -> tuple[int, bool]:
    """Read `20261201T200000Z`, `20261201T200000` or `20261201` (the end of that day). Return seconds since 1970, and
    whether they are in UTC. Raises SpecError.
    """
    found = _TIME.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        at = datetime.strptime(found[1] + (found[2] or "235959"), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        raise _wrong(field, "a time like 20261201T200000Z", text) from None
    return int(at.timestamp()), bool(found[3])


def starts(rule: Recurrence, first: int, field: str) -> "Ints":
    """Return the starts of a rule from `first` on, in seconds on the clock of the place, in order. An end in UTC is
    applied by `in_utc`. Raises SpecError if there are too many, or if they lie too far ahead.
    """
    day = first // DAY_SECONDS
    last = day + MAX_DAYS
    if rule.until is not None:
        if rule.until // DAY_SECONDS > last:
            raise _too_far(field)
        last = min(last, rule.until // DAY_SECONDS + 1)  # a day later at another offset
    if rule.count and rule.frequency in ("DAILY", "WEEKLY"):  # this is far enough; others need the rest
        each = 7 if rule.frequency == "WEEKLY" or rule.days else 1
        last = min(last, day + (rule.count + 1) * rule.interval * each)
    if last > LAST_DAY:
        raise _too_far(field)
    found = _starts(rule, first, last)
    if len(found) < rule.count:
        raise _too_far(field)
    return _bearable(found, field)


def starts_within(rule: Recurrence, first: int, since: int, until: int, field: str) -> "Ints":
    """Return the starts of a rule from `first` on that lie from `since` to `until`, as `starts` does. Raises SpecError
    if there are too many.
    """
    import numpy as np

    if first > until:
        return np.zeros(0, np.int64)
    found = _starts(rule, first, until // DAY_SECONDS)
    return _bearable(found[(since <= found) & (found <= until)], field)


def _starts(rule: Recurrence, first: int, last: int) -> "Ints":
    """Return the starts of a rule from `first` until the day `last`."""
    day, time_of_day = divmod(first, DAY_SECONDS)
    found = _days(rule, day, last) * DAY_SECONDS + time_of_day
    if rule.until is not None and not rule.until_utc:
        found = found[found <= rule.until]
    return found[: rule.count] if rule.count else found


def _bearable(found: "Ints", field: str) -> "Ints":
    if len(found) > MAX_STARTS:
        raise too_many(field, str(len(found)))
    return found


def _days(rule: Recurrence, day: int, last: int) -> "Ints":
    """Return the days of a rule from `day` to `last`, counted from 1970."""
    import numpy as np

    weekdays = sorted({weekday for _, weekday in rule.days})
    if rule.frequency == "DAILY":
        days: Ints = np.arange(day, last + 1, rule.interval)
        return days[np.isin((days + THURSDAY) % 7, weekdays)] if weekdays else days
    if rule.frequency == "WEEKLY":
        wanted = weekdays or [(day + THURSDAY) % 7]
        monday = day - (day + THURSDAY - rule.week_start) % 7
        offsets = np.array(sorted((weekday - rule.week_start) % 7 for weekday in wanted))
        days = (np.arange(monday, last + 1, 7 * rule.interval)[:, None] + offsets).ravel()
        return np.asarray(days[(days >= day) & (days <= last)])
    begins = date.fromordinal(date(1970, 1, 1).toordinal() + day)
    step = rule.interval * (12 if rule.frequency == "YEARLY" else 1)
    found: list[int] = []
    ends = date.fromordinal(date(1970, 1, 1).toordinal() + last)
    months = (begins.year * 12 + begins.month - 1, ends.year * 12 + ends.month)
    for month in range(*months, step):
        year, of = divmod(month, 12)
        found += [at for at in _in_month(rule, begins.day, year, of + 1) if day <= at <= last]
    return np.array(found, np.int64)


def _in_month(rule: Recurrence, same: int, year: int, month: int) -> list[int]:
    """Return the days of a rule in one month. A month without the day has none."""
    weekday_of_first, length = monthrange(year, month)
    if not rule.days:
        wanted = [of if of > 0 else length + 1 + of for of in rule.month_days or (same,)]
        return [_number_of(year, month, of) for of in sorted({of for of in wanted if 1 <= of <= length})]
    found: set[int] = set()
    for ordinal, weekday in rule.days:
        every = list(range(1 + (weekday - weekday_of_first) % 7, length + 1, 7))
        chosen = every if not ordinal else every[ordinal - 1 : ordinal] if ordinal > 0 else every[ordinal:][:1]
        found.update(chosen if abs(ordinal) <= len(every) else ())
    return [_number_of(year, month, of) for of in sorted(found)]


def _number_of(year: int, month: int, day: int) -> int:
    return date(year, month, day).toordinal() - date(1970, 1, 1).toordinal()


def in_utc(rule: Recurrence | None, local: "Ints", shifts: Shifts) -> "Ints":
    """Return the seconds since 1970 of times on the clock of a place, and apply an end of the rule in UTC."""
    import numpy as np

    if len(shifts) > 1:
        changes, offsets = _changes(shifts)
        found: Ints = local - offsets[changes.searchsorted(local, "right")]
    else:
        found = local - shifts[0][1]
    if rule is not None and rule.until is not None and rule.until_utc:
        return np.asarray(found[found <= rule.until])
    return found


@lru_cache(maxsize=256)
def _changes(shifts: Shifts) -> "tuple[Ints, Ints]":
    """Return the times on the clock of a place at which its offset changes, and the offsets."""
    import numpy as np

    since, offsets = np.array(shifts, np.int64).T
    return since[1:] + np.maximum(offsets[:-1], offsets[1:]), offsets


def too_many(field: str, have: str) -> SpecError:
    """Return the error for a rule with too many starts."""
    what = "the recurrence rule has too many instances"
    return SpecError(what, code="E103", field=field, need=f"at most {MAX_STARTS}", have=have, hint=EXAMPLE)


def _too_far(field: str) -> SpecError:
    what = "the recurrence rule goes too far into the future"
    return SpecError(what, code="E103", field=field, need="at most 5 years", hint=EXAMPLE)


def _wrong(field: str, need: str, have: str) -> SpecError:
    what = "the recurrence rule cannot be read"
    return SpecError(what, code="E103", field=field, need=need, have=have[:80], hint=EXAMPLE)


def _number(parts: dict[str, str], name: str, field: str) -> int:
    text = parts.get(name, "0")
    if not (text.isascii() and text.isdecimal()) or (name in parts and not int(text[:12]) > 0):
        raise _wrong(field, f"{name} of 1 or more", text)
    return min(int(text[:12]), 10**9)


def _day(text: str, frequency: Frequency, field: str) -> tuple[int, int]:
    found = _DAY.fullmatch(text)
    if found is None or (found[1] and frequency != "MONTHLY"):
        raise _wrong(field, "BYDAY=MO,TU; with MONTHLY also BYDAY=1MO or BYDAY=-1FR", text)
    return int(found[1] or 0), WEEKDAYS.index(found[2])


def _month_day(text: str, field: str) -> int:
    digits = text.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 3 and 1 <= int(digits) <= 31):
        raise _wrong(field, "BYMONTHDAY from 1 to 31, or from -31 to -1", text)
    return int(text)


def weekday_names(days: Sequence[int]) -> str:
    """Return weekdays, counted from Monday, as iCalendar writes them."""
    return ",".join(WEEKDAYS[day] for day in days)
