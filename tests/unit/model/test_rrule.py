"""Recurrence rules of iCalendar: read, expanded, and refused."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poise.drivers.calendar import shifts
from poise.errors import SpecError
from poise.model.rrule import WEEKDAYS, in_utc, parse_rrule, starts

rrule = pytest.importorskip("dateutil.rrule")


def local(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def of(rule: str, first: str) -> list[str]:
    found = starts(parse_rrule(rule, "every"), local(first), "every")
    return [datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M") for at in found.tolist()]


def test_a_rule_on_weekdays() -> None:
    assert of("FREQ=WEEKLY;BYDAY=MO,WE;COUNT=3", "2026-12-01T20:00") == [
        "2026-12-02T20:00",
        "2026-12-07T20:00",
        "2026-12-09T20:00",
    ]


def test_the_last_friday_of_each_month() -> None:
    assert of("FREQ=MONTHLY;BYDAY=-1FR;COUNT=2", "2026-12-01T08:00") == ["2026-12-25T08:00", "2027-01-29T08:00"]


def test_a_month_without_the_day_is_left_out() -> None:
    assert of("FREQ=MONTHLY;UNTIL=20270401", "2027-01-31T08:00") == ["2027-01-31T08:00", "2027-03-31T08:00"]


RULES = st.one_of(
    st.builds(
        lambda interval, days, week_start: f"FREQ=WEEKLY;INTERVAL={interval};BYDAY={','.join(days)};WKST={week_start}",
        st.integers(1, 4),
        st.lists(st.sampled_from(WEEKDAYS), min_size=1, max_size=7, unique=True),
        st.sampled_from(WEEKDAYS),
    ),
    st.builds(
        lambda interval, of, days: f"FREQ=MONTHLY;INTERVAL={interval};BYDAY={','.join(f'{of}{day}' for day in days)}",
        st.integers(1, 3),
        st.sampled_from(["", "1", "2", "4", "5", "-1", "-2"]),
        st.lists(st.sampled_from(WEEKDAYS), min_size=1, max_size=3, unique=True),
    ),
    st.builds(
        lambda days: f"FREQ=MONTHLY;BYMONTHDAY={','.join(map(str, days))}",
        st.lists(st.one_of(st.integers(1, 31), st.integers(-31, -1)), min_size=1, max_size=3, unique=True),
    ),
    st.builds(lambda interval: f"FREQ=DAILY;INTERVAL={interval}", st.integers(1, 30)),
    st.builds(lambda interval: f"FREQ=YEARLY;INTERVAL={interval}", st.integers(1, 3)),
    st.builds(lambda interval: f"FREQ=MONTHLY;INTERVAL={interval}", st.integers(1, 5)),
)


@settings(deadline=None, max_examples=100)
@given(RULES, st.integers(local("2026-01-01T00:00"), local("2028-12-31T00:00")), st.integers(0, 700))
def test_every_rule_has_the_starts_that_another_library_finds(rule: str, first: int, days: int) -> None:
    begins = datetime.fromtimestamp(first, UTC).replace(tzinfo=None)
    until = datetime.fromtimestamp(first + 86_400 * days, UTC)
    text = f"{rule};UNTIL={until:%Y%m%dT%H%M%S}"
    expected = [at.replace(tzinfo=UTC).timestamp() for at in rrule.rrulestr(text, dtstart=begins)]
    assert starts(parse_rrule(text, "every"), first, "every").tolist() == expected


@pytest.mark.parametrize("zone", ["Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"])
def test_times_of_a_zone_follow_its_clock_changes(zone: str) -> None:
    rule = parse_rrule("FREQ=DAILY;COUNT=900", "every")
    first = local("2026-01-01T02:30")
    found = in_utc(rule, starts(rule, first, "every"), shifts(zone, local("2026-01-01T00:00"), "time_zone"))
    within = ZoneInfo(zone)
    expected = [
        datetime.fromtimestamp(first + 86_400 * day, UTC).replace(tzinfo=within).astimezone(UTC).timestamp()
        for day in range(900)
    ]
    assert found.tolist() == expected


def test_an_end_in_utc_is_compared_in_utc() -> None:
    rule = parse_rrule("FREQ=DAILY;UNTIL=20261203T003000Z", "every")
    offsets = shifts("Europe/Zurich", local("2026-12-01T00:00"), "time_zone")
    found = in_utc(rule, starts(rule, local("2026-12-01T01:00"), "every"), offsets)
    assert len(found) == 3  # 01:00 in Zurich is midnight in UTC
    assert len(in_utc(rule, starts(rule, local("2026-12-01T02:00"), "every"), offsets)) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        ("FREQ", "cannot be read"),
        ("FREQ=HOURLY;COUNT=2", "cannot be read"),
        ("FREQ=DAILY;FREQ=DAILY;COUNT=2", "cannot be read"),
        ("FREQ=DAILY", "never ends"),
        ("FREQ=DAILY;COUNT=2;UNTIL=20270101", "ends twice"),
        ("FREQ=DAILY;COUNT=0", "cannot be read"),
        ("FREQ=DAILY;COUNT=-3", "cannot be read"),
        ("FREQ=DAILY;COUNT=20000", "too many instances"),
        ("FREQ=DAILY;INTERVAL=0;COUNT=2", "cannot be read"),
        ("FREQ=DAILY;UNTIL=tomorrow", "cannot be read"),
        ("FREQ=DAILY;UNTIL=20271340", "cannot be read"),
        ("FREQ=WEEKLY;BYDAY=1MO;COUNT=2", "cannot be read"),
        ("FREQ=WEEKLY;BYDAY=XX;COUNT=2", "cannot be read"),
        ("FREQ=MONTHLY;BYMONTHDAY=32;COUNT=2", "cannot be read"),
        ("FREQ=MONTHLY;BYSETPOS=1;COUNT=2", "BYSETPOS are not supported"),
        ("FREQ=DAILY;WKST=XX;COUNT=2", "cannot be read"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        parse_rrule(text, "every")


def test_a_rule_that_goes_too_far_is_refused() -> None:
    with pytest.raises(SpecError, match="too far"):
        of("FREQ=DAILY;UNTIL=99991231", "2026-12-01T08:00")
    with pytest.raises(SpecError, match="too far"):
        of("FREQ=MONTHLY;COUNT=5", "9999-12-31T08:00")
    with pytest.raises(SpecError, match="too far"):
        of("FREQ=MONTHLY;COUNT=100", "2026-12-01T08:00")


def test_a_rule_may_end_just_before_the_last_year_of_the_calendar() -> None:
    assert len(of("FREQ=YEARLY;UNTIL=99981231", "9997-12-01T08:00")) == 2


def test_an_interval_may_go_beyond_the_last_year_of_the_calendar() -> None:
    assert of("FREQ=YEARLY;INTERVAL=9000;COUNT=1", "2026-12-01T08:00") == of("FREQ=DAILY;COUNT=1", "2026-12-01T08:00")
