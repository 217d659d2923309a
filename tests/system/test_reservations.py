"""`poise reserve` and `poise drain --at`, as typed at a running Poise."""

from datetime import UTC, datetime, timedelta

import pytest

from system.living import Living

FOR_A = ("--tenant", "team-a", "--nodes", "1", "--from", "+2h", "--for", "1h")


def test_a_reservation_is_made_listed_shown_and_cancelled(shared: Living) -> None:
    [node] = shared.poise("nodes", "-o", "name").text.split()
    made = shared.poise("reserve", "night", *FOR_A)
    assert made.err.startswith(f"r1 night: {node} from ")
    [listed] = shared.poise("reserve", "--json").value
    assert (listed["name"], listed["tenant"], listed["places"]) == ("night", "team-a", [node])
    assert "team-a" in shared.poise("reserve").text
    shown = shared.poise("reserve", "show", "night")
    assert "firm" in shown.text
    assert shared.poise("reserve", "cancel", "night", "--json").value == {"cancelled": ["r1"]}
    assert shared.poise("reserve", "--json").value == []


def test_a_node_is_drained_at_a_time(shared: Living) -> None:
    [node] = shared.poise("nodes", "-o", "name").text.split()
    [made] = shared.poise("drain", node, "--at", "+2h", "--for", "30m", "--json").value
    assert (made["maintenance"], made["places"], made["ends"] - made["begins"]) == (True, [node], 1800)
    assert shared.poise("nodes", "--json").value[0]["status"] == "up"
    shared.poise("reserve", "cancel", f"drain-{node}")


def test_a_calendar_goes_in_and_comes_out(shared: Living) -> None:
    begins = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    events = ["BEGIN:VCALENDAR", "BEGIN:VEVENT", f"DTSTART:{begins:%Y%m%dT%H%M%SZ}", "DURATION:PT1H"]
    events += ["RRULE:FREQ=DAILY", "SUMMARY:course", "END:VEVENT", "END:VCALENDAR"]
    calendar = shared.file("course.ics", "\r\n".join(events)).name
    endless = shared.poise("reserve", "import", calendar, "--tenant", "team-a", "--nodes", "1", "--json")
    assert (endless.code, endless.error["field"]) == (1, "reservations[0].every")
    until = f"{begins + timedelta(days=9):%Y-%m-%d}"
    [made] = shared.poise(
        "reserve", "import", calendar, "--tenant", "team-a", "--nodes", "1", "--until", until, "--json"
    ).value
    assert (made["name"], made["windows"]) == ("course", 10)
    written = shared.poise("reserve", "export").text
    assert "SUMMARY:course\r\n" in written
    assert f"DTSTART:{begins:%Y%m%dT%H%M%SZ}\r\n" in written
    shared.poise("reserve", "cancel", "course")
    unwritten = shared.poise("reserve", "export", "/nowhere/all.ics", "--json")
    assert (unwritten.code, unwritten.error["have"]) == (1, "/nowhere/all.ics")
    endless = shared.poise("reserve", "import", "/dev/zero", "--tenant", "team-a", "--nodes", "1", "--json")
    assert (endless.code, endless.error["message"]) == (1, "the file is too large")


def test_a_file_of_reservations_is_applied_and_its_errors_name_their_place(shared: Living) -> None:
    text = "kind: reservations\nreservations:\n  - {name: a, tenant: t, nodes: 1, from: +2h, for: 1h}\n"
    [made] = shared.poise("reserve", "apply", shared.file("kept.yaml", text).name, "--json").value
    assert made["name"] == "a"
    wrong = shared.poise("reserve", "apply", shared.file("wrong.yaml", text.replace("1h}", "0s}")).name)
    assert wrong.code == 1
    assert "wrong.yaml:3" in wrong.err
    assert "the reservation has no length" in wrong.err
    shared.poise("reserve", "cancel", "a")


@pytest.mark.parametrize("what", ["reserve", "budgets"])
def test_a_file_that_is_no_mapping_is_refused_as_such(shared: Living, what: str) -> None:
    for text, have in (("", "nothing"), ("- a\n", "a list")):
        done = shared.poise(what, "apply", shared.file("list.yaml", text).name, "--json")
        assert (done.code, done.error["code"], done.error["need"], done.error["have"]) == (1, "E102", "a mapping", have)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("night", "--tenant", "a", "--nodes", "99", "--from", "+1h", "--for", "1h"), "too few nodes"),
        (("night", "--tenant", "a", "--nodes", "1", "--from", "2020-01-01T00:00", "--for", "1h"), "in the past"),
        (("night", "--tenant", "a", "--nodes", "1", "--from", "9999-12-31", "--for", "1d"), "too far in the future"),
        (("night", "--tenant", "a", "--nodes", "nowhere", "--from", "+1h", "--for", "1h"), "there is no node"),
        (("night", "--tenant", "a", "--from", "+1h", "--for", "1h"), "takes nodes or devices"),
        (("night", "--nodes", "1"), "Missing option '--from'"),
        (("show", "nothing"), "there is no reservation"),
        (("cancel", "nothing"), "there is no reservation"),
    ],
)
def test_what_cannot_be_reserved_is_said_and_exits_with_1(shared: Living, given: tuple[str, ...], said: str) -> None:
    done = shared.poise("reserve", *given)
    assert done.code == 1
    assert said.lower() in done.err.lower()
