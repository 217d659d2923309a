"""`--calendar`, as typed: events in forecasts of a home and in the advice for its nodes, and files that are refused."""

import time
from datetime import UTC, datetime, timedelta

from poise.drivers.series import Series
from poise.model.usage import HOUR, MINUTE, SIGNALS, UNKNOWN, Window
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
    assert "no control plane" not in living.poise("forecast").err
    assert living.poise("down").code == 0
    assert "the forecast begins where the log ends, " in living.poise("forecast").err


def test_a_forecast_of_jobs_takes_a_calendar_and_refuses_a_wrong_one(living: Living) -> None:
    living.up()
    assert living.poise("submit", "--expect", "1h", "--", "sleep", "60").code == 0
    begins = datetime.now(UTC)
    living.file("team.ics", ICAL.format(begins=begins, ends=begins + timedelta(hours=3)))
    told = living.poise("eta", "--calendar", "team.ics", "--futures", "3", "--json").value
    assert [one["job"] for one in told["jobs"]] == ["j1"]
    assert "events" not in told, "one job gives no rate that an event could change"
    living.file("bad.yaml", "kind: calendar\nevents:\n  - {from: 2026-12-01T09:00, for: 3h, load: much}\n")
    for command in ("eta", "profile"):
        error = living.poise(command, "--calendar", "bad.yaml", "--json").error
        assert (error["code"], "bad.yaml:3:" in error["at"]) == ("E103", True), error
    assert "`--check` looks back" in living.poise("eta", "--check", "--calendar", "team.ics").err


def test_a_node_that_is_quiet_at_some_hours_is_kept_for_an_event_in_them(living: Living) -> None:
    """It has been busy for twelve hours of each day; the twelve that begin six hours from now were quiet."""
    living.up()
    [name] = living.poise("nodes", "-o", "name").text.split()
    now = time.time()
    hours = range(int(now) // HOUR * HOUR - 3 * 24 * HOUR, int(now) // HOUR * HOUR, HOUR)

    def window(at: int, cpu: int) -> Window:
        values = tuple(cpu if signal == "cpu" else UNKNOWN for signal in SIGNALS)
        return Window(at, values, values)

    quiet = [(int(now) // HOUR + 6 + more) % 24 for more in range(12)]
    busy = {at: 20 if at // HOUR % 24 in quiet else 700 for at in hours}
    Series(living.home.series).add(name, [window(at + MINUTE, cpu) for at, cpu in busy.items()])
    [before] = living.poise("profile", "--json").value
    assert (before["pattern"], before["advice"]) == ("diurnal", "shrink"), before
    event = "kind: calendar\nevents:\n  - {{name: launch, from: {:%Y-%m-%dT%H:00}, for: 1h, load: x3}}\n"
    for later, advice in ((8, "keep"), (20, "shrink")):
        living.file("calendar.yaml", event.format(datetime.fromtimestamp(now, UTC) + timedelta(hours=later)))
        [told] = living.poise("profile", "--calendar", "calendar.yaml", "--json").value
        assert (told["advice"], "launch" in told["why"]) == (advice, advice == "keep"), told
