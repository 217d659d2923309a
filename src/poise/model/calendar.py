"""Calendars: announced events that change the load, for the forecasts of `poise forecast` and of scalers.

    kind: calendar
    events:
      - {name: launch, from: 2026-12-01T09:00, for: 3h, time_zone: Europe/Zurich, service: chat, load: x3}
      - {name: christmas, from: 2026-12-25, for: 2d, time_zone: Europe/Zurich, as: sunday}

An event multiplies the load (`load`), makes a day like another day of the week (`as`), or says the rate of a service
(`rate`). It concerns one service, tenant or class; everything, if it names none. In an iCalendar file, the description
of an event has these fields, one in each line: `load: x3`.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from poise.errors import SpecError
from poise.model.document import Findings, shown
from poise.model.fields import Quantity, parse_or_raise
from poise.model.icalendar import read_events
from poise.model.recurring import DEFAULT_ZONE
from poise.model.reservations import Zones, read_start, utc_of, without_of
from poise.model.rrule import parse_rrule, starts_within
from poise.model.scaling import DAYS, MAX_EVENT, MAX_RATE, Announced, announced_days, read_times
from poise.model.spec import check_name
from poise.units import DAY, SECOND, format_duration, parse_duration

MAX_EVENTS = 1000
"""Maximum number of events of a calendar, and of their occurrences in the time that counts."""

BEFORE, AFTER = 60 * DAY, 400 * DAY
"""Maximum time since the end of an occurrence that still counts, and until the start of one."""

_FIELDS = ("service", "tenant", "class", "load", "as", "rate", "time_zone")
"""Fields that the description of an event of iCalendar may have."""


class EventSpec(
    msgspec.Struct,
    forbid_unknown_fields=True,
    rename={"begins": "from", "length": "for", "kind": "class", "like": "as"},
):
    """One event, as written. Times are on the clock of `time_zone`."""

    name: str = ""
    begins: str = ""
    length: Quantity = "1d"
    time_zone: str = DEFAULT_ZONE
    every: str = ""
    without: list[str] = []
    service: str = ""
    tenant: str = ""
    kind: str = ""
    load: Quantity = ""
    like: str = ""
    rate: float = 0.0


class CalendarSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A calendar, as written."""

    kind: str
    events: list[EventSpec]


class CalendarEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An occurrence of an event, in nanoseconds since 1970. It concerns the subject `of` of the kind `by`; everything,
    if both are empty.
    """

    by: str
    of: str
    announced: tuple[Announced, ...]


def compile_calendar(document: Any, zones: Zones) -> tuple[CalendarEvent, ...]:
    """Return the occurrences of the events of a parsed file, in order. Raises `SpecError` with every error in it."""
    found = Findings()
    spec = found.convert(document, CalendarSpec)
    made: list[CalendarEvent] = []
    if spec is not None:
        if spec.kind != "calendar":
            found.add(SpecError("this file is not a calendar", field="kind", need="calendar", have=spec.kind))
        if len(spec.events) > MAX_EVENTS:
            what, need = "there are too many events", f"at most {MAX_EVENTS}"
            found.add(SpecError(what, field="events", need=need, have=str(len(spec.events))))
        for place, one in enumerate(spec.events[:MAX_EVENTS]):
            made += found.get([], _occurrences, one, f"events[{place}]", zones)
        if len(made) > MAX_EVENTS:
            what, need = "the events occur too often", f"at most {MAX_EVENTS} times within {format_duration(AFTER)}"
            found.add(SpecError(what, field="events", need=need, have=str(len(made))))
    found.check(_example)
    return tuple(sorted(made, key=lambda one: one.announced[0].at))


def events_in(text: str, zones: Zones) -> dict[str, Any]:
    """Return the events of an iCalendar file as the document of a calendar. Raises `SpecError`."""
    events = []
    for place, read in enumerate(read_events(text, zones, described=True)):
        told: dict[str, Any] = {}
        for line in read.pop("description").splitlines():
            name, colon, value = line.partition(":")
            name = name.strip().lower()
            if colon and name in _FIELDS:
                told[name] = float(value) if name == "rate" and _is_number(value) else value.strip()
        if not {"load", "as", "rate"} & told.keys():
            what, hint = f"the event `{read['name']}` has no effect on the load", "write `load: x3` in its description"
            need = "`load`, `as` or `rate` in its description"
            raise SpecError(what, field=f"event {place + 1}: DESCRIPTION", need=need, hint=hint)
        events.append(read | told)
    return {"kind": "calendar", "events": events}


def concerning(events: Iterable[CalendarEvent], by: str, of: str) -> tuple[Announced, ...]:
    """Return what is announced for a subject, such as the service `chat`."""
    return tuple(one for event in events if (event.by, event.of) in ((by, of), ("", "")) for one in event.announced)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _example(field: str) -> str:
    return {
        "kind": "kind: calendar",
        "from": "from: 2026-12-01T09:00",
        "for": "for: 3h",
        "time_zone": "time_zone: Europe/Zurich",
        "every": "every: FREQ=WEEKLY;BYDAY=MO;COUNT=10",
        "load": "load: x3",
        "as": "as: sunday",
        "rate": "rate: 50",
    }.get(field.rpartition(".")[2], "{name: launch, from: 2026-12-01T09:00, for: 3h, service: chat, load: x3}")


def _occurrences(spec: EventSpec, at: str, zones: Zones) -> list[CalendarEvent]:
    if spec.name:
        check_name(spec.name, f"{at}.name")
    subjects = [(by, of) for by, of in (("service", spec.service), ("tenant", spec.tenant), ("class", spec.kind)) if of]
    if len(subjects) > 1:
        have = " and ".join(by for by, _ in subjects)
        raise SpecError("an event concerns one subject", field=at, need="service, tenant or class", have=have)
    by, of = subjects[0] if subjects else ("", "")
    times, days, rate = _effect(spec, at, by)
    length = parse_or_raise(parse_duration, spec.length, f"{at}.for", MAX_EVENT)
    if length < SECOND:
        raise SpecError("the event has no duration", code="E103", field=f"{at}.for", have=shown(spec.length))
    before = BEFORE + length
    shifts = zones.shifts(spec.time_zone, zones.now - before / SECOND, f"{at}.time_zone")
    first = read_start(spec.begins, f"{at}.from", zones, spec.time_zone, shifts)
    local = [first]
    rule = None
    if spec.every:
        rule = parse_rrule(spec.every, f"{at}.every", must_end=False)
        now = int(zones.now)
        around = now - (before + DAY) // SECOND, now + (AFTER + DAY) // SECOND  # a day more, for any offset
        local = starts_within(rule, first, *around, f"{at}.every").tolist()
    without = {without_of(text, f"{at}.without", shifts) for text in spec.without}
    made = []
    for begins in local:
        begin = utc_of(begins, shifts)
        ended = rule is not None and rule.until is not None and rule.until_utc and begin > rule.until
        if ended or begin in without or not -before < (begin - zones.now) * SECOND < AFTER:
            continue
        since, weekday = begin * SECOND, datetime.fromtimestamp(begins, UTC).weekday()
        one = Announced(since, rate, since + length, times, 0, spec.name)
        made.append(CalendarEvent(by=by, of=of, announced=announced_days(one, weekday, days) if spec.like else (one,)))
    return made


def _effect(spec: EventSpec, at: str, by: str) -> tuple[float, int, float]:
    """Return the factor, the number of the day of the week, and the rate of an event."""
    told = [name for name, has in (("load", spec.load != ""), ("as", spec.like), ("rate", spec.rate)) if has]
    if len(told) != 1:
        have = " and ".join(told) or "none of them"
        raise SpecError("an event has one effect", field=at, need="`load`, `as` or `rate`", have=have)
    if spec.rate and (by != "service" or not 0 < spec.rate <= MAX_RATE):
        need = f"a number above 0, at most {MAX_RATE}, for a service"
        raise SpecError(
            "a rate is a number of requests per second", field=f"{at}.rate", need=need, have=shown(spec.rate)
        )
    if spec.like and spec.like.lower() not in DAYS:
        raise SpecError("there is no such day", field=f"{at}.as", need=", ".join(DAYS), have=spec.like[:80])
    times = read_times(spec.load, f"{at}.load") if spec.load != "" else 1.0
    return times, DAYS.index(spec.like.lower()) if spec.like else 0, spec.rate


__all__ = ["CalendarEvent", "compile_calendar", "concerning", "events_in"]
