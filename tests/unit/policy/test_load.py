"""Forecasts of load: what they follow, what their intervals hold, and that nothing is learned ahead."""

from math import pi, sin
from random import Random

import pytest
from many import many

from poise.policy.load import LEAST_SCORES, LEVEL, LoadForecaster
from poise.units import DAY, HOUR


def daily(days: int, seed: int = 1, noise: float = 0.1) -> list[float]:
    """A load between 50 and 150 by the time of the day, with noise that triples in the second half."""
    random, values = Random(seed), []  # noqa: S311
    for hour in range(24 * days):
        spread = noise * (3 if hour > 12 * days else 1)
        values.append(max(0.0, 100 * (1 + 0.5 * sin(2 * pi * hour / 24)) * random.gauss(1, spread)))
    return values


def learned(values: list[float], horizon: int = 24) -> LoadForecaster:
    forecaster = LoadForecaster(HOUR, horizon)
    for hour, value in enumerate(values):
        forecaster.learn(hour * HOUR, value)
    return forecaster


def test_the_time_of_the_day_is_found_and_beats_the_day_before() -> None:
    forecaster = learned(daily(28))
    assert forecaster.seasonal
    for distance in (1, 24):
        found = forecaster.accuracy(distance)
        assert found.error < 0.9 * found.naive < found.max_of_six
    peak = max(range(24), key=lambda hour: forecaster.ahead()[hour].expected)
    assert 4 <= peak <= 8


@pytest.mark.parametrize("seed", range(many(2, 5)))
def test_intervals_hold_what_they_should_when_the_noise_changes(seed: int) -> None:
    forecaster = learned(daily(56, seed))
    for distance in (1, 6, 24):
        found = forecaster.accuracy(distance)
        assert found.judged > 1200
        assert abs(found.coverage - LEVEL) < 0.04


def test_a_load_without_a_season_follows_the_latest_values() -> None:
    random, level, values = Random(3), 100.0, []  # noqa: S311
    for _ in range(500):
        level = max(1.0, level + random.gauss(0, 3))
        values.append(level)
    forecaster = learned(values)
    assert abs(forecaster.ahead()[0].expected - values[-1]) < 10
    assert forecaster.accuracy(1).error < 0.5 * forecaster.accuracy(1).naive


def test_nothing_is_known_of_values_that_come_later() -> None:
    values = daily(20)
    early = learned(values[:300]).ahead()
    assert early == learned([*values[:300]]).ahead()
    forecaster = LoadForecaster(HOUR, 24)
    told = []
    for hour, value in enumerate(values):
        forecaster.learn(hour * HOUR, value)
        told.append(forecaster.ahead())
    assert told[299] == early


def test_little_history_has_no_interval_and_no_history_no_forecast() -> None:
    assert LoadForecaster(HOUR, 24).ahead() == []
    assert [band.known for band in learned([3.0] * 5).ahead()] == [False] * 24
    bands = learned([3.0] * (LEAST_SCORES + 30)).ahead()
    assert bands[0].known
    assert bands[0].expected == pytest.approx(3.0)


def test_a_load_is_never_negative() -> None:
    bands = learned([0.0, 50.0] * 200).ahead()
    assert all(0 <= band.low <= band.high for band in bands)


def test_seasons_follow_days_and_not_the_number_of_values() -> None:
    """A forecaster that begins in the middle of a day finds the same peak."""
    forecaster = LoadForecaster(HOUR, 24)
    for hour, value in enumerate(daily(28, noise=0.01)[7:], start=7):
        forecaster.learn(hour * HOUR, value)
    first = 28 * 24 * HOUR % DAY // HOUR
    peak = (max(range(24), key=lambda step: forecaster.ahead()[step].expected) + first) % 24
    assert 5 <= peak <= 7
