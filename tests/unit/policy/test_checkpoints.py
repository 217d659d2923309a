"""How often a checkpoint is made, and which are kept."""

from math import exp, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.errors import InputError
from poise.units import HOUR, MINUTE, SECOND
from poise_train.policy.checkpoints import (
    LEAST,
    MOST,
    PRIOR,
    WRITING,
    Keep,
    between_failures,
    interval,
    steps_between,
    superfluous,
)


def lost(every: float, cost: float, between: float) -> float:
    """Time for a second of work, with failures at random (Daly 2006, without the time of a restart)."""
    return between * (exp((every + cost) / between) - 1) / every


@pytest.mark.parametrize(("cost", "between"), [(SECOND, 4 * HOUR), (2 * SECOND, HOUR), (20 * SECOND, 10 * MINUTE)])
def test_no_other_interval_loses_noticeably_less(cost: int, between: int) -> None:
    chosen = lost(interval(cost, between), cost, between)
    others = [lost(seconds * SECOND, cost, between) for seconds in range(10, 3600, 5)]
    assert chosen <= min(others) * 1.001


def test_a_cost_that_is_small_is_young_s_formula() -> None:
    assert interval(SECOND // 100, 10 * HOUR) == pytest.approx((2 * 0.01 * 36_000) ** 0.5 * SECOND, rel=0.01)


def test_where_failures_come_sooner_than_a_checkpoint_is_made_one_is_made_between_two_of_them() -> None:
    assert interval(10 * MINUTE, 4 * MINUTE) == 4 * MINUTE


def test_it_is_bounded() -> None:
    assert interval(0, HOUR) == LEAST
    assert interval(MINUTE, 10_000 * HOUR) == MOST
    assert interval(SECOND // 1000, HOUR, took=40 * SECOND) == WRITING * 40 * SECOND
    assert interval(SECOND, HOUR, took=MOST) == WRITING * MOST  # else the next would wait for the one before


@given(st.integers(1, 10**12), st.integers(1, 10**18), st.integers(0, 10**13))
def test_more_failures_never_make_it_longer(cost: int, between: int, took: int) -> None:
    assert LEAST <= interval(cost, between, took) <= interval(cost, 2 * between, took) + 1


def test_failures_that_were_seen_soon_count_for_more_than_those_that_were_expected() -> None:
    assert between_failures(0, 0, 1) == PRIOR
    assert between_failures(0, 0, 8) == PRIOR // 8
    assert between_failures(0, PRIOR, 1) == 2 * PRIOR
    seen = between_failures(99, 100 * HOUR, 4)
    assert 0.25 * HOUR < seen < 3 * HOUR


def test_in_steps() -> None:
    assert steps_between(MINUTE, 2 * SECOND) == 30
    assert steps_between(MINUTE, 2 * MINUTE) == 1
    assert steps_between(MINUTE, 0) == MINUTE


def test_the_last_the_best_and_every_so_many_stay() -> None:
    scores = {10: 0.5, 20: 0.9, 30: 0.7, 40: nan, 50: None, 60: 0.6, 70: 0.6}
    assert superfluous(scores, Keep(last=2, best=1, every=0)) == [10, 30, 40, 50]
    assert superfluous(scores, Keep(last=2, best=3, every=40)) == [10, 50]
    assert superfluous(scores, Keep(last=1, best=0), wanted=[30]) == [10, 20, 40, 50, 60]
    assert superfluous({}, Keep()) == []


@given(
    st.dictionaries(st.integers(0, 50), st.none() | st.floats(), min_size=1),
    st.builds(Keep, st.integers(1, 4), st.integers(0, 4), st.integers(0, 9)),
)
def test_the_newest_always_stays_and_what_stays_is_bounded(scores: dict[int, float | None], keep: Keep) -> None:
    gone = superfluous(scores, keep)
    assert max(scores) not in gone
    for_good = [step for step in scores if keep.every and step % keep.every == 0]
    assert len(scores) - len(gone) <= keep.last + keep.best + len(for_good)


@pytest.mark.parametrize("wrong", [{"last": 0}, {"best": -1}, {"every": -1}])
def test_what_cannot_be_kept_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError) as refused:
        Keep(**wrong)
    assert refused.value.record.field == f"keep.{next(iter(wrong))}"
