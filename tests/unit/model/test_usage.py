"""Patterns of use, and what they say of what to pay for."""

import doctest
import math
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.model import usage
from poise.model.scaling import Announced
from poise.model.usage import (
    DAY,
    HOUR,
    LEAST,
    MINUTE,
    SIGNALS,
    UNKNOWN,
    Collecting,
    NodeProfile,
    Window,
    is_news,
    profile_of,
    together,
    unless_announced,
)
from poise.units import SECOND

START = 1_700_000_000 // DAY * DAY


def window(at: int, **signals: int) -> Window:
    of = tuple(signals.get(name, UNKNOWN) for name in SIGNALS)
    return Window(at, of, of)


def of_cpu(*means: int) -> NodeProfile:
    """Of a node that was so busy in its latest minutes."""
    return profile_of("n1", [window(START + MINUTE * minute, cpu=mean) for minute, mean in enumerate(means)], [])


def test_the_examples_of_the_docstring() -> None:
    assert doctest.testmod(usage).failed == 0


def test_a_window_has_the_mean_and_the_most_of_its_minute() -> None:
    collecting = Collecting()
    for second, cpu in ((0, 100), (1, 400), (2, 100)):
        assert collecting.take(START + second, {"cpu": cpu}) is None
    told = collecting.take(START + MINUTE, {"cpu": 900})
    assert told == Window(START, window(0, cpu=200).mean, window(0, cpu=400).most)
    assert collecting.take(START + 2 * MINUTE, {"memory": 5}) == window(START + MINUTE, cpu=900)


def test_it_does_not_matter_how_often_it_is_looked() -> None:
    """A sample is of the time since the one before: ten seconds at 900 and forty at 100, however many samples of it."""
    often, seldom = Collecting(), Collecting()
    for second in range(51):
        often.take(START + second, {"cpu": 900 if second <= 10 else 100})
    for second, cpu in ((0, 900), (5, 900), (10, 900), (30, 100), (50, 100)):
        seldom.take(START + second, {"cpu": cpu})
    told = [collecting.take(START + MINUTE, {"cpu": 0}) for collecting in (often, seldom)]
    assert [one.mean[0] for one in told if one is not None] == [272, 272]


def test_whoever_looks_seldom_knows_when_to_look() -> None:
    collecting = Collecting()
    collecting.take(START + 1, {"cpu": 1})
    assert collecting.due(START + 4) == 7
    collecting.take(START + 4, {"cpu": 1})
    assert collecting.take(START + 4 + collecting.due(START + 4), {"cpu": 1}) is not None
    assert (collecting.due(START + 11), collecting.due(START + 50)) == (10, 0)


def test_news_is_what_has_moved_by_a_twentieth() -> None:
    said = window(START, cpu=500, power=200_000)
    assert not is_news(said, window(START, cpu=549, power=209_000))
    assert is_news(said, window(START, cpu=550, power=200_000))
    assert is_news(said, window(START, cpu=500, power=210_000))
    assert is_news(said, window(START, cpu=500, power=200_000, device=60))
    assert is_news(said, Window(START, said.mean, window(START, cpu=900, power=200_000).most)), "and at the most"


def test_what_is_known_of_a_minute_is_told_while_it_goes_on() -> None:
    collecting = Collecting()
    told = [collecting.take(START + second, {"cpu": second}) for second in range(MINUTE)]
    assert [one.at for one in told if one is not None] == [START] * 5
    assert told[10] == Window(START, window(0, cpu=5).mean, window(0, cpu=10).most)


def test_a_clock_that_is_set_back_begins_anew() -> None:
    collecting = Collecting()
    collecting.take(START + HOUR, {"cpu": 1000})
    assert collecting.take(START, {"cpu": 0}) is None
    assert collecting.take(START + MINUTE, {"cpu": 7}) == window(START, cpu=0)


def test_an_hour_is_of_the_minutes_that_know() -> None:
    hour = together([window(0, cpu=100), window(60, cpu=300), window(120, memory=5)], 0)
    assert hour.mean == window(0, cpu=200, memory=5).mean
    assert hour.most == window(0, cpu=300, memory=5).most


@pytest.mark.parametrize(
    ("means", "pattern", "advice"),
    [
        ([10] * 60, "idle", "shrink"),
        ([900] * 57 + [600] * 3, "steady", "reserved"),
        ([400, 500] * 30, "steady", "keep"),
        (([950] * 4 + [30] * 6) * 6, "bursty", "on-demand"),  # 40 % in the mean, all or nothing
    ],
)
def test_a_pattern_says_what_to_pay_for(means: list[int], pattern: str, advice: str) -> None:
    told = of_cpu(*means)
    assert (told.by, told.pattern, told.advice) == ("cpu", pattern, advice)
    assert f"cpu {told.signals['cpu'].mean / 10:.0f} % busy" in told.why


def test_nothing_is_told_of_a_node_that_was_hardly_seen() -> None:
    told = of_cpu(*[1000] * (LEAST - 1))
    assert (told.pattern, told.advice, told.why) == ("", "", f"{LEAST - 1} of {LEAST} minutes have been seen")
    assert told.signals["cpu"].mean == 1000
    assert of_cpu(*[1000] * LEAST).pattern == "steady"


def test_a_node_with_devices_goes_by_them() -> None:
    minutes = [window(START + MINUTE * minute, cpu=900, device=20) for minute in range(LEAST)]
    told = profile_of("n1", minutes, [])
    assert (told.by, told.pattern, set(told.signals)) == ("device", "idle", {"cpu", "device"})


def test_what_is_busy_by_day_could_be_less_at_night() -> None:
    """Eight in the morning to eight in the evening, over five days, with some noise."""
    hours = []
    for hour in range(5 * 24):
        busy = 800 if 8 <= hour % 24 < 20 else 100
        hours.append(window(START + hour * HOUR, cpu=busy + crc32(b"%d" % hour) % 160 - 80))
    minutes = [window(START + 5 * DAY - MINUTE * back, cpu=100) for back in range(60, 0, -1)]
    minutes += [window(START + 5 * DAY + MINUTE * more, cpu=800) for more in range(60)]
    told = profile_of("n1", minutes, hours)
    assert (told.pattern, told.advice) == ("diurnal", "shrink")
    assert told.busy == tuple(range(8, 20))
    assert told.quiet == (*range(20, 24), *range(8))
    assert "from 20:00 to 08:00 UTC" in told.why
    assert profile_of("n1", minutes, hours[:30]).pattern == "bursty", "a day and a quarter says nothing of days"


def off_at_night() -> NodeProfile:
    """A node that is quiet from 20:00 to 08:00 UTC."""
    hours = [window(START + hour * HOUR, cpu=800 if 8 <= hour % 24 < 20 else 100) for hour in range(5 * 24)]
    minutes = [window(START + 5 * DAY + MINUTE * minute, cpu=800) for minute in range(60)]
    told = profile_of("n1", minutes, hours)
    assert (told.advice, told.quiet) == ("shrink", (*range(20, 24), *range(8)))
    return told


def launch(begins: float, ends: float, times: float = 3.0, rate: float = 0.0) -> Announced:
    """An event between two hours of the sixth day."""
    at, until = (int((START + 5 * DAY + hour * HOUR) * SECOND) for hour in (begins, ends))
    return Announced(at, rate, until, times, 0, "launch")


@pytest.mark.parametrize(
    ("event", "since"),
    [
        (launch(2, 4), "02:00"),  # in the night
        (launch(19.5, 23), "20:00"),  # from the evening into the night
        (launch(7.5, 9), "07:30"),  # from the night into the day
        (launch(1, 3, times=1.0, rate=5.0), "01:00"),  # a rate that is announced
    ],
)
def test_more_load_announced_for_quiet_hours_forbids_the_advice_to_shrink(event: Announced, since: str) -> None:
    told = unless_announced(off_at_night(), [event], START + 5 * DAY)
    assert told.advice == "keep"
    assert told.why.endswith(f"launch is announced to raise the load at 2023-11-19 {since} UTC")
    assert unless_announced(off_at_night(), [launch(26, 27), event], START + 5 * DAY) == told, "the first one counts"


@pytest.mark.parametrize(
    "event",
    [
        launch(9, 19),  # it is busy then
        launch(2, 4, times=0.5),  # less load
        launch(-4, 0),  # over
        launch(7 * 24 + 1, 7 * 24 + 3),  # in more than a week
    ],
)
def test_other_events_leave_the_advice(event: Announced) -> None:
    assert unless_announced(off_at_night(), [event], START + 5 * DAY) == off_at_night()


def test_an_idle_node_is_kept_for_an_event_at_any_hour() -> None:
    idle = of_cpu(*[10] * LEAST)
    assert (idle.advice, idle.quiet) == ("shrink", ())
    assert unless_announced(idle, [launch(9, 19)], START + 5 * DAY).advice == "keep"
    assert "2023-11-19 10:30 UTC" in unless_announced(idle, [launch(9, 19)], START + 5 * DAY + 10.5 * HOUR).why
    assert unless_announced(idle, [launch(9, 19, times=0.2)], START + 5 * DAY).advice == "shrink"
    busy = of_cpu(*[900] * LEAST)
    assert unless_announced(busy, [launch(9, 19)], START + 5 * DAY) == busy


def test_what_is_busy_at_random_hours_has_no_pattern_of_the_day() -> None:
    hours = [window(START + hour * HOUR, cpu=900 * (crc32(b"%d" % hour) & 1)) for hour in range(10 * 24)]
    minutes = [window(START + MINUTE * minute, cpu=900 * (minute // 7 % 2)) for minute in range(120)]
    assert profile_of("n1", minutes, hours).pattern == "bursty"


def test_the_smoothed_value_follows_in_ten_minutes() -> None:
    told = of_cpu(*[0] * 30, *[1000] * 10)
    assert told.signals["cpu"].smoothed == pytest.approx(1000 * (1 - math.exp(-1)), abs=1)
    assert told.signals["cpu"].last == 1000
    gap = [window(START, cpu=0), window(START + DAY, cpu=1000)]
    assert profile_of("n1", gap, []).signals["cpu"].smoothed == 1000, "what was yesterday counts for nothing"


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=100))
def test_any_use_has_a_profile_within_what_was_seen(means: list[int]) -> None:
    use = of_cpu(*means).signals["cpu"]
    for value in (use.last, use.smoothed, use.mean, use.p95):
        assert min(means) <= value <= use.peak == max(means)
