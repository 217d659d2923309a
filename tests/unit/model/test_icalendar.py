"""Calendars in and out."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from poise.drivers.calendar import shifts
from poise.errors import SpecError
from poise.model.icalendar import Entry, has_begun, read_events, with_own_names, write_events
from poise.model.reservations import Zones

ZONES = Zones(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp(), shifts)

CALENDAR = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//Example//Example//EN
BEGIN:VTIMEZONE
TZID:Europe/Zurich
END:VTIMEZONE
BEGIN:VEVENT
UID:1@example
DTSTART;TZID=Europe/Zurich:20261201T200000
DTEND;TZID=Europe/Zurich:20261202T040000
RRULE:FREQ=WEEKLY;BYDAY=TU;
 COUNT=10
EXDATE;TZID=Europe/Zurich:20261208T200000,20261215T200000
SUMMARY:Night run\\, large
BEGIN:VALARM
TRIGGER:-PT15M
DURATION:PT5M
END:VALARM
END:VEVENT
BEGIN:VEVENT
UID:2@example
DTSTART:20261224T080000Z
DURATION:P1DT2H
END:VEVENT
END:VCALENDAR
"""


def test_events_become_entries_of_a_reservations_file() -> None:
    assert read_events(CALENDAR, ZONES) == [
        {
            "name": "Night-run-large",
            "from": "2026-12-01T20:00:00",
            "for": "28800s",
            "time_zone": "Europe/Zurich",
            "every": "FREQ=WEEKLY;BYDAY=TU;COUNT=10",
            "without": ["20261208T200000", "20261215T200000"],
        },
        {"name": "event-2", "from": "2026-12-24T08:00:00", "for": "93600s", "time_zone": "UTC"},
    ]


def test_what_is_written_is_read_again() -> None:
    zurich = ZoneInfo("Europe/Zurich")
    entry = Entry(
        uid="r1@poise",
        name="nightly",
        begins=datetime(2026, 12, 1, 20, tzinfo=zurich),
        ends=datetime(2026, 12, 2, 4, tzinfo=zurich),
        zone="Europe/Zurich",
        rule="FREQ=DAILY;COUNT=30",
        without=[datetime(2026, 12, 3, 19, tzinfo=UTC)],
        description="n1, n2; " * 20,
    )
    text = write_events([entry], datetime(2026, 11, 28, tzinfo=UTC))
    assert max(len(line.encode()) for line in text.split("\r\n")) <= 75
    [read] = read_events(text, ZONES)
    assert (read["name"], read["from"], read["for"]) == ("nightly", "2026-12-01T20:00:00", "28800s")
    assert (read["every"], read["time_zone"]) == ("FREQ=DAILY;COUNT=30", "Europe/Zurich")
    assert read["without"] == ["20261203T190000Z"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not an iCalendar file"),
        ("name: nightly", "not an iCalendar file"),
        ("BEGIN:VCALENDAR\nEND:VCALENDAR", "has no event"),
        ("BEGIN:VCALENDAR\nnonsense\nEND:VCALENDAR", "has no value"),
        ("BEGIN:VCALENDAR\nBEGIN:VEVENT\nEND:VEVENT", "has no start"),
        ("BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:soon\nEND:VEVENT", "time cannot be read"),
        ("BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:20261201\nDURATION:long\nEND:VEVENT", "duration cannot be read"),
        ("BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:20261201\nRDATE:20261202\nEND:VEVENT", "RDATE are not supported"),
    ],
)
def test_a_calendar_that_cannot_be_reserved_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read_events(text, ZONES)


def ical(*lines: str) -> str:
    return "\r\n".join(["BEGIN:VCALENDAR", *lines, "END:VCALENDAR", ""])


def event(*lines: str) -> list[str]:
    return ["BEGIN:VEVENT", *lines, "END:VEVENT"]


@pytest.mark.parametrize(
    ("start", "zone"),
    [
        ("DTSTART;TZID=W. Europe Standard Time:20261201T200000", "Europe/Berlin"),
        ('DTSTART;TZID="Eastern Standard Time":20261201T200000', "America/New_York"),
        ('DTSTART;TZID="Pacific Standard Time";X-NOTE="a:b;c":20261201T200000', "America/Los_Angeles"),
        ('DTSTART;TZID="tzone://Microsoft/Utc":20261201T200000', "UTC"),
        ("DTSTART:20261201T200000", "Asia/Tokyo"),
        ("DTSTART;VALUE=DATE:20261201", "Asia/Tokyo"),
        ("DTSTART:20261201T200000Z", "UTC"),
    ],
)
def test_time_zones_of_outlook_and_google_are_known(start: str, zone: str) -> None:
    [read] = read_events(ical("X-WR-TIMEZONE:Asia/Tokyo", *event(start)), ZONES)
    assert read["time_zone"] == zone


@pytest.mark.parametrize(
    ("start", "end", "length"),
    [
        ("DTSTART;TZID=Europe/Zurich:20261201T200000", "DTEND;TZID=America/New_York:20261201T200000", "21600s"),
        ("DTSTART;TZID=Europe/Zurich:20261201T200000", "DTEND:20261201T200000Z", "3600s"),
        ("DTSTART;TZID=Europe/Zurich:20270327T200000", "DTEND;TZID=Europe/Zurich:20270328T080000", "39600s"),
    ],
)
def test_the_end_may_be_in_another_zone_or_after_a_clock_change(start: str, end: str, length: str) -> None:
    """The end used to be read on the clock of the start: a window of 1 h had no length, or was 6 h too short."""
    [read] = read_events(ical(*event(start, end)), ZONES)
    assert read["for"] == length


def test_cancelled_events_are_left_out() -> None:
    text = ical(*event("DTSTART:20261201", "STATUS:CANCELLED"), *event("DTSTART:20261202", "STATUS:CONFIRMED"))
    assert [one["from"] for one in read_events(text, ZONES)] == ["2026-12-02T00:00:00"]


def test_a_moved_occurrence_is_an_event_of_its_own_and_a_cancelled_one_is_none() -> None:
    zurich = ";TZID=Europe/Zurich"
    text = ical(
        *event("UID:a", f"DTSTART{zurich}:20261201T200000", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=9", "SUMMARY:run"),
        *event("UID:a", "RECURRENCE-ID:20261203T190000Z", f"DTSTART{zurich}:20261203T220000", "SUMMARY:late"),
        *event("UID:a", f"RECURRENCE-ID{zurich}:20261205T200000", "DTSTART:20261205", "STATUS:CANCELLED"),
    )
    series, moved = read_events(text, ZONES)
    assert series["without"] == ["20261203T190000Z", "20261205T200000"]
    assert (moved["name"], moved["from"], "every" in moved) == ("late", "2026-12-03T22:00:00", False)
    with pytest.raises(SpecError, match="RANGE are not supported"):
        read_events(text.replace("RECURRENCE-ID:", "RECURRENCE-ID;RANGE=THISANDFUTURE:"), ZONES)


def test_events_of_one_name_get_names_of_their_own() -> None:
    names = ["a", "a", "a-2", "a", "b"]
    assert [one["name"] for one in with_own_names({"name": name} for name in names)] == [
        "a",
        "a-2",
        "a-2-2",
        "a-3",
        "b",
    ]


@pytest.mark.parametrize(
    ("lines", "begun"),
    [
        (["DTSTART:20261130T115900Z"], True),
        (["DTSTART:20261130T120100Z"], False),
        (["DTSTART;TZID=Europe/Zurich:20261130T125900"], True),
        (["DTSTART;TZID=Europe/Zurich:20261130T130100"], False),
        (["DTSTART:20200101T110000Z", "RRULE:FREQ=DAILY"], False),
        (["DTSTART:20200101T110000Z", "RRULE:FREQ=DAILY;UNTIL=20261130T110000Z"], True),
        (["DTSTART:20261130T110000Z", "RRULE:FREQ=DAILY;COUNT=2"], False),
        (["DTSTART:20261130T110000Z", "RRULE:FREQ=DAILY;COUNT=2", "EXDATE:20261201T110000Z"], True),
        (["DTSTART:20200101", "RRULE:FREQ=HOURLY"], False),
    ],
)
def test_an_event_has_begun_if_it_will_not_begin_again(lines: list[str], begun: bool) -> None:
    [read] = read_events(ical(*event(*lines)), ZONES)
    assert has_begun(read, ZONES) is begun


def test_marks_of_other_systems_are_read() -> None:
    text = "\ufeff" + ical(*event("DTSTART:20261201", "DESCRIPTION:one\u2028two\x0bthree", 'ATTENDEE;CN=5" disk:x'))
    assert len(read_events(text, ZONES)) == 1
