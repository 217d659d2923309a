"""`poise forecast --calendar`, as typed: events in the forecast of a home, and files that are refused."""

from datetime import UTC, datetime, timedelta

from system.living import Living

ICAL = """BEGIN:VCALENDAR
BEGIN:VEVENT
SUMMARY:Launch
DTSTART:{begins:%Y%m%dT%H0000Z}
DTEND:{ends:%Y%m%dT%H0000Z}
DESCRIPTION:load: x3
END:VEVENT
END:VCALENDAR
"""


def test_events_of_a_calendar_are_in_the_forecast(living: Living) -> None:
    living.up()
    assert living.poise("run", "--", "true").code == 0
    begins = datetime.now(UTC) + timedelta(hours=2)
    living.file("team.ics", ICAL.format(begins=begins, ends=begins + timedelta(hours=3)))
    [told] = living.poise("forecast", "--calendar", "team.ics", "--windows", "12", "--json").value
    assert [bool(window.get("events")) for window in told["windows"]] == [False] * 2 + [True] * 3 + [False] * 7
    assert told["windows"][2]["events"] == ["Launch"]
    assert "Launch" in living.poise("forecast", "--calendar", "team.ics").text
    living.file("bad.yaml", "kind: calendar\nevents:\n  - {from: 2026-12-01T09:00, for: 3h, load: much}\n")
    for name, code, where in (("bad.yaml", "E103", "bad.yaml:3:"), ("none.ics", "E101", ""), ("none.yaml", "E101", "")):
        error = living.poise("forecast", "--calendar", name, "--json").error
        assert (error["code"], where in error.get("at", "")) == (code, True), error
