import hypothesis.strategies as st
from hypothesis import given

from poise.model.jobs import Ending
from poise.model.profiles import BRIEF, DEFAULT_RUN, Profile, expected_run, is_brief
from poise.model.resources import Shape
from poise.units import MILLISECOND, SECOND


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
