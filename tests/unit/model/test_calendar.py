"""Calendars: what events say of the load, when, and of what; and what is refused."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from poise.drivers.calendar import shifts
from poise.errors import SpecError
from poise.model.calendar import CalendarEvent, compile_calendar, concerning, events_in
from poise.model.reservations import Zones
from poise.model.scaling import Announced, days_in, read_times, times_in
from poise.units import DAY, HOUR, SECOND

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * SECOND


def compiled(*events: dict[str, Any]) -> tuple[CalendarEvent, ...]:
    return compile_calendar({"kind": "calendar", "events": list(events)}, Zones(NOW, shifts))


def event(**fields: Any) -> dict[str, Any]:
    return {"name": "launch", "from": "2026-12-01T09:00", "for": "3h", "load": "x3"} | fields


def refused(*events: dict[str, Any]) -> list[str]:
    with pytest.raises(SpecError) as caught:
        compiled(*events)
    return [record.field for record in caught.value.record.all()]


def test_an_event_multiplies_the_load_on_the_clock_of_its_zone() -> None:
    [made] = compiled(event(time_zone="Europe/Zurich", service="chat"))
    begins = at("2026-12-01T08:00Z")
    launch = Announced(begins, 0.0, begins + 3 * HOUR, 3.0, 0, "launch")
    assert made == CalendarEvent(by="service", of="chat", announced=(launch,))
    assert concerning([made], "service", "chat") == made.announced
    assert concerning([made], "service", "image") == concerning([made], "tenant", "chat") == ()
    assert concerning(compiled(event()), "class", "train"), "without a subject, it concerns everything"


def test_days_are_like_another_day_of_the_week() -> None:
    """Christmas 2026 is a Friday, and the next day a Saturday: five days and six days after a Sunday."""
    [made] = compiled({"name": "christmas", "from": "2026-12-25", "for": "2d", "as": "sunday"})
    assert [(one.at, one.until - one.at, one.days) for one in made.announced] == [
        (at("2026-12-25T00:00Z"), DAY, 5),
        (at("2026-12-26T00:00Z"), DAY, 6),
    ]
    assert days_in(made.announced, at("2026-12-26T10:00Z"), at("2026-12-26T11:00Z")) == 6
    assert days_in(made.announced, at("2026-12-27T10:00Z"), at("2026-12-27T11:00Z")) == 0


def test_events_recur_also_without_an_end() -> None:
    weekly = compiled(event(every="FREQ=WEEKLY", without=["20261208T090000"], time_zone="UTC"))
    begins = [one.announced[0].at for one in weekly]
    assert begins[:2] == [at("2026-12-01T09:00Z"), at("2026-12-15T09:00Z")]
    assert (begins[-1] - at("2026-11-20T12:00Z")) // DAY in range(393, 401), "as far ahead as events count"
    assert compiled(event(**{"from": "2026-06-01"})) == (), "it is long over"


@pytest.mark.parametrize("first", ["2020-12-01T09:00+01:00", "2020-06-30T09:00+02:00", "2020-12-01T08:00Z"])
@pytest.mark.parametrize("month", [2, 7, 11])
def test_an_event_that_began_with_an_offset_recurs_on_the_clock_of_its_zone(first: str, month: int) -> None:
    """It began long ago, when the clock of its zone may have differed from that of now."""
    now = datetime(2026, month, 20, 12, tzinfo=UTC).timestamp()
    weekly = event(**{"from": first}, every="FREQ=WEEKLY", time_zone="Europe/Zurich")
    made = compile_calendar({"kind": "calendar", "events": [weekly]}, Zones(now, shifts))
    begins = [datetime.fromtimestamp(one.announced[0].at / SECOND, ZoneInfo("Europe/Zurich")) for one in made]
    assert {(one.weekday(), one.hour, one.minute) for one in begins} == {(1, 9, 0)}


@pytest.mark.parametrize(
    ("first", "every", "some"),
    [
        ("2010-12-25", "FREQ=YEARLY", True),
        ("2008-02-29", "FREQ=YEARLY", False),
        ("2010-12-25", "FREQ=YEARLY;UNTIL=20401225", True),
        ("2010-12-25", "FREQ=YEARLY;COUNT=17", True),
        ("2010-12-25", "FREQ=YEARLY;COUNT=16", False),
        ("2021-01-06", "FREQ=WEEKLY;INTERVAL=52", True),
        ("1990-01-01", "FREQ=DAILY;BYDAY=MO", True),
        ("2010-12-25", "FREQ=YEARLY;INTERVAL=9000", False),
    ],
)
def test_an_event_may_have_begun_to_recur_long_ago(first: str, every: str, some: bool) -> None:
    made = compiled(event(**{"from": first}, every=every))
    dateutil = pytest.importorskip("dateutil.rrule")
    rule, now = dateutil.rrulestr(every, dtstart=datetime.fromisoformat(first)), datetime(2026, 11, 20, 12)  # noqa: DTZ001
    expected = rule.between(now - timedelta(days=60, hours=3), now + timedelta(days=400))
    assert [one.announced[0].at for one in made] == [at(f"{one}Z") for one in expected]
    assert bool(made) == some


def test_an_event_may_begin_to_recur_at_the_end_of_time() -> None:
    assert compiled(event(**{"from": "9999-12-31T23:59Z"}, every="FREQ=MONTHLY", time_zone="Asia/Tokyo")) == ()


def test_a_long_event_counts_until_it_is_long_over() -> None:
    long = {"from": "2026-06-01T09:00", "time_zone": "Europe/Zurich"}
    [made] = compiled(event(**long, **{"for": "180d"}))
    assert made.announced[0].at == at("2026-06-01T07:00Z"), "in summer time"
    assert compiled(event(**long, **{"for": "110d"})) == ()


@pytest.mark.parametrize("none", [0, 0.0, "0", "0%"])
def test_an_event_may_end_all_load(none: str | float) -> None:
    [made] = compiled(event(load=none))
    assert made.announced[0].times == 0.0


def test_a_factor_counts_for_its_part_of_a_window_and_factors_multiply() -> None:
    events = [Announced(2 * HOUR, 0, 3 * HOUR, 3.0), Announced(2 * HOUR, 0, 4 * HOUR, 0.5)]
    assert times_in(events, HOUR, 3 * HOUR) == pytest.approx(2 * 0.75)
    assert times_in(events, 3 * HOUR, 4 * HOUR) == 0.5
    assert times_in(events, 4 * HOUR, 5 * HOUR) == 1.0


@pytest.mark.parametrize(("text", "times"), [("x3", 3.0), ("X1.5", 1.5), (0.5, 0.5), ("30%", 0.3), ("0", 0.0)])
def test_factors_are_read(text: str | float, times: float) -> None:
    assert read_times(text, "load") == pytest.approx(times)


@pytest.mark.parametrize("text", ["xx", "-1", "3x", "x1e9", "nan", "inf", ""])
def test_what_is_no_factor_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        read_times(text, "load")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"load": "much"}, "events[0].load"),
        ({"as": "sunday"}, "events[0]"),
        ({"load": ""}, "events[0]"),
        ({"load": "", "as": "funday"}, "events[0].as"),
        ({"load": "", "rate": 5}, "events[0].rate"),
        ({"load": "", "rate": -5, "service": "chat"}, "events[0].rate"),
        ({"load": "", "rate": 1_000_001, "service": "chat"}, "events[0].rate"),
        ({"service": "chat", "tenant": "ann"}, "events[0]"),
        ({"from": "soon"}, "events[0].from"),
        ({"for": "0s"}, "events[0].for"),
        ({"every": "FREQ=HOURLY"}, "events[0].every"),
        ({"every": "FREQ=DAILY;COUNT=2;UNTIL=20270101"}, "events[0].every"),
        ({"time_zone": "Mars/Olympus"}, "events[0].time_zone"),
        ({"name": "a b"}, "events[0].name"),
        ({"colour": "red"}, "events[0].colour"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(wrong: dict[str, Any], field: str) -> None:
    assert refused(event(**wrong)) == [field]


def test_every_wrong_event_is_told() -> None:
    assert refused(event(load="much"), event(), event(**{"from": "soon"})) == ["events[0].load", "events[2].from"]


def ical(*lines: str) -> str:
    return "\r\n".join(["BEGIN:VCALENDAR", "BEGIN:VEVENT", *lines, "END:VEVENT", "END:VCALENDAR", ""])


LAUNCH = (
    "SUMMARY:Launch of chat",
    "DTSTART;TZID=Europe/Zurich:20261201T090000",
    "DTEND;TZID=Europe/Zurich:20261201T120000",
)


def test_a_calendar_program_has_the_effect_in_the_description() -> None:
    text = ical(*LAUNCH, "DESCRIPTION:Do not forget\\, all of you:\\nload: x3\\nService: chat\\nhost: ann")
    [made] = compile_calendar(events_in(text, Zones(NOW, shifts)), Zones(NOW, shifts))
    begins = at("2026-12-01T08:00Z")
    assert (made.by, made.of) == ("service", "chat")
    assert made.announced == (Announced(begins, 0.0, begins + 3 * HOUR, 3.0, 0, "Launch-of-chat"),)


def test_an_event_without_an_effect_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        events_in(ical(*LAUNCH), Zones(NOW, shifts))
    assert caught.value.record.field == "event 1: DESCRIPTION"
    assert "load: x3" in (caught.value.record.hint or "")
