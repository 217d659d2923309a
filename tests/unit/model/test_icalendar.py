"""Calendars in and out."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from poise.errors import SpecError
from poise.model.icalendar import Entry, read_events, write_events

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
    assert read_events(CALENDAR) == [
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
    [read] = read_events(text)
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
        read_events(text)
