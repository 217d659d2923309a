from math import sqrt

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from poise.model.jobs import Ending
from poise.model.profiles import (
    BRIEF,
    COMBINED,
    DEFAULT_RUN,
    MOST_RATIO,
    Profile,
    estimate_each,
    estimate_run,
    expected_run,
    is_brief,
    remaining,
)
from poise.model.resources import Shape
from poise.units import HOUR, MILLISECOND, MINUTE, SECOND


def learned(*runs: int) -> Profile:
    profile = Profile()
    for run in runs:
        profile = profile.observe(Ending(outcome="done", run=run))
    return profile


def test_history_goes_before_what_was_declared() -> None:
    assert expected_run(None, 0) == DEFAULT_RUN
    assert expected_run(None, 7) == 7
    assert expected_run(learned(5 * SECOND), 7) == 5 * SECOND


def test_the_mean_follows_the_runs() -> None:
    assert learned(100).mean == 100
    assert learned(100, 200).mean == 120
    assert learned(*[100] * 3, *[200] * 40).mean in range(190, 201)


def test_the_peak_is_the_largest_seen() -> None:
    runs = [Ending(outcome="done", run=1, peak=peak) for peak in (5, 3)]
    assert Profile().observe(runs[0]).observe(runs[1]).peak == 5


def test_only_what_was_short_three_times_is_brief() -> None:
    short = 10 * MILLISECOND
    assert not is_brief(None, Shape(), 1)
    assert not is_brief(learned(short, short), Shape(), 1)
    assert is_brief(learned(short, short, short), Shape(), 1)
    assert not is_brief(learned(*[BRIEF * 2] * 3), Shape(), 1)


def test_gangs_and_work_on_devices_are_never_brief() -> None:
    profile = learned(1, 1, 1)
    assert not is_brief(profile, Shape(), 2)
    assert not is_brief(profile, Shape(gpus=1), 1)


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=30))
def test_the_mean_stays_within_what_was_seen(runs: list[int]) -> None:
    profile = learned(*runs)
    assert min(runs) <= profile.mean <= max(runs)
    assert profile.count == len(runs)


# --- everything that is learned, and how certain it is ---------------------------------------------------------------


def test_the_first_run_is_half_uncertain_and_others_follow_rfc_6298() -> None:
    first = Profile().observe(Ending(outcome="done", run=100 * SECOND, cpu=50 * SECOND, peak=1000, device=800))
    assert (first.mean, first.deviation) == (100 * SECOND, 50 * SECOND)
    assert (first.cpu, first.cpu_deviation) == (500, 250)  # half a CPU, in milli-CPU
    assert (first.memory, first.memory_deviation, first.device, first.device_deviation) == (1000, 500, 800, 400)
    second = first.observe(Ending(outcome="done", run=200 * SECOND, cpu=200 * SECOND, peak=2000, device=300))
    assert (second.mean, second.deviation) == (120 * SECOND, 60 * SECOND)  # a fifth of 100, and of 100 - 50
    assert (second.cpu, second.memory, second.device) == (600, 1200, 700)
    assert (second.count, second.peak) == (2, 2000)


def test_device_memory_is_the_most_that_was_seen() -> None:
    runs = [Ending(outcome="done", run=1, device_peak=peak) for peak in (5, 9, 3)]
    assert Profile().observe(runs[0]).observe(runs[1]).observe(runs[2]).device_memory == 9


def test_failures_are_a_share_that_follows() -> None:
    profile = learned(SECOND)
    shares = []
    for _ in range(3):
        profile = profile.failed(seen=7)
        shares.append(profile.failures)
    assert shares == [200, 360, 488]  # a fifth of what is left to 1000
    assert (profile.mean, profile.count, profile.seen) == (SECOND, 1, 7)
    assert profile.observe(Ending(outcome="done", run=SECOND)).failures == 488 - 97


def test_an_estimate_says_how_sure_it_is_and_why() -> None:
    assert estimate_run(None, 0) == (DEFAULT_RUN, DEFAULT_RUN, "default")
    assert estimate_run(None, 10) == (10, 5, "declared")
    assert estimate_run(learned(8), 10) == (8, 4, "history")
    assert estimate_run(learned(8), 10).most == 16


@pytest.mark.parametrize(
    ("elapsed", "left"),
    [(0, 100), (60, 40), (95, 5), (99, 5), (110, 5), (120, 5), (121, 121), (500, 500)],
)
def test_what_has_overrun_is_expected_to_take_as_long_again(elapsed: int, left: int) -> None:
    assert remaining(elapsed, expected=100, deviation=10) == left


@given(st.lists(st.booleans(), max_size=50))
def test_a_share_of_failures_stays_a_share(failures: list[bool]) -> None:
    profile = Profile()
    for failed in failures:
        profile = profile.failed() if failed else profile.observe(Ending(outcome="done", run=1))
        assert 0 <= profile.failures <= 1000


def test_what_is_declared_to_be_nothing_like_its_class_is_foreseen_as_declared() -> None:
    """Runs of the class take 130 hours, within 10; what their users declare is right within 40 %."""
    of_class = Profile(count=5, mean=130 * HOUR, deviation=10 * HOUR, ratio=1000, ratio_deviation=400)
    assert estimate_run(of_class, 3 * MINUTE) == (3 * MINUTE, 3 * MINUTE * 400 // 1000, "declared")
    assert estimate_run(of_class, 100 * HOUR).mean == pytest.approx(100 * HOUR * 1.3 ** (15 / 16))
    assert estimate_run(of_class, 0) == (130 * HOUR, 10 * HOUR, "history")


def test_what_is_declared_is_as_unlike_its_class_when_it_is_half_as_when_it_is_double() -> None:
    """Runs of the class take 10 hours, within 10 minutes, and what their users declare is right within 40 %: less than
    half of that, or more than double, is still what they declare of such runs; a tenth and ten times are not.
    """
    of_class = Profile(count=5, mean=10 * HOUR, deviation=10 * MINUTE, ratio=1000, ratio_deviation=400)
    for declared in (4 * HOUR, 25 * HOUR):
        assert estimate_run(of_class, declared) == (10 * HOUR, 10 * MINUTE, "history")
    for declared in (HOUR, 100 * HOUR):
        assert estimate_run(of_class, declared) == (declared, declared * 400 // 1000, "declared")


def test_a_class_and_a_declared_time_both_count_by_how_certain_they_are() -> None:
    """Both are as certain: the estimate is their geometric mean, and its deviation that of two measurements."""
    alike = Profile(count=5, mean=4 * HOUR, deviation=2 * HOUR, ratio=1000, ratio_deviation=500)
    both = estimate_run(alike, HOUR)
    assert (both.mean, both.source) == (2 * HOUR, COMBINED)
    assert both.deviation == pytest.approx(2 * HOUR * 0.5 / sqrt(2), abs=1)
    certain = Profile(count=5, mean=4 * HOUR, deviation=2 * HOUR, ratio=1000, ratio_deviation=10)
    assert estimate_run(certain, HOUR) == (HOUR, HOUR // 100, "declared")
    assert estimate_run(alike, HOUR, combine=False).source == "declared"  # as logs of earlier versions


@given(
    st.builds(
        Profile,
        count=st.integers(1, 50),
        mean=st.integers(1, 2**50),
        deviation=st.integers(0, 2**50),
        ratio=st.integers(0, MOST_RATIO),
        ratio_deviation=st.integers(0, MOST_RATIO),
    ),
    st.lists(st.integers(0, 2**50), min_size=1, max_size=5),
)
def test_estimates_of_many_are_those_of_each(profile: Profile, declared: list[int]) -> None:
    means, deviations = estimate_each(profile, np.array(declared))
    each = [estimate_run(profile, one) for one in declared]
    assert means.tolist() == [one.mean for one in each]
    assert deviations.tolist() == [one.deviation for one in each]
