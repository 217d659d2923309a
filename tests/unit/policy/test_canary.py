"""A version on trial fails when it is known to be worse, passes when it was seen to be as good, and not by chance."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.model.canary import Judgement, Stage, Tally, TrialRules
from poise_serve.policy.canary import agrees, judge, quantile, wilson

RULES = TrialRules(stages=())
SHARE, SHADOW = Stage("share", 0.5), Stage("shadow", 0.5)
Draw = Callable[[random.Random], tuple[bool, float]]
"""Whether a request is answered, and in how many milliseconds."""


def fill(tally: Tally, count: int, errors: int = 0, took: int = 20_000_000) -> Tally:
    for number in range(count):
        tally.add(ok=number >= errors, took=took)
    return tally


def trial(seed: int, stable: Draw, canary: Draw) -> tuple[Judgement, int]:
    """As it would go, nineteen requests to stable for each to the canary."""
    draws, tallies = random.Random(seed), (Tally(), Tally())  # noqa: S311
    while True:
        for _ in range(10):
            for tally, draw in (*[(tallies[0], stable)] * 19, (tallies[1], canary)):
                ok, took = draw(draws)
                tally.add(ok=ok, took=int(took * 1e6))
        judgement = judge(RULES, SHARE, *tallies)
        if judgement.verdict != "go on":
            return judgement, tallies[1].answered


def failed(stable: Draw, canary: Draw, trials: int = 60) -> float:
    return sum(trial(seed, stable, canary)[0].verdict == "fail" for seed in range(trials)) / trials


def usual(draws: random.Random) -> tuple[bool, float]:
    return draws.random() > 0.02, 20 * draws.lognormvariate(0, 0.5)


def test_the_same_is_hardly_ever_said_to_be_worse() -> None:
    assert failed(usual, usual) <= 0.05


@pytest.mark.parametrize(
    ("worse", "within"),
    [
        (lambda draws: (draws.random() > 0.3, 20.0), 20),
        (lambda draws: (True, 60 * draws.lognormvariate(0, 0.5)), 40),
    ],
)
def test_what_is_worse_fails_soon(worse: Draw, within: int) -> None:
    ends = [trial(seed, usual, worse) for seed in range(20)]
    assert all(judgement.verdict == "fail" for judgement, _ in ends)
    assert sorted(count for _, count in ends)[10] <= within


def test_by_hand() -> None:
    # 10 errors of 100: Wilson at z = 3.09 reaches from 3.8 % to 23.6 %
    assert judge(RULES, SHARE, fill(Tally(), 1000), fill(Tally(), 100, 10)).verdict == "fail"
    # 5 of 100: from 1.4 %, and stable's 1,000 without any reach to 0.95 %, 1 % more is allowed
    assert judge(RULES, SHARE, fill(Tally(), 1000), fill(Tally(), 100, 5)).verdict == "go on"
    assert [round(bound, 4) for bound in wilson(0, 1000)] == [0.0, 0.0095]


def test_before_enough_was_seen_nothing_passes_and_without_proof_nothing_does() -> None:
    stable = fill(Tally(), 1000)
    assert judge(RULES, SHARE, stable, fill(Tally(), 199)).verdict == "go on"
    assert judge(RULES, SHARE, stable, fill(Tally(), 200)).verdict == "pass"
    assert judge(RULES, SHARE, stable, fill(Tally(), 30), over=True).verdict == "pass"
    doubtful = fill(Tally(), 300, 4)
    assert judge(RULES, SHARE, stable, doubtful).verdict == "go on"
    ended = judge(RULES, SHARE, stable, doubtful, over=True)
    assert (ended.verdict, ended.reasons) == (
        "fail",
        ("not shown to be as good: errors 1.33% beside 0.00% (1.00% more allowed)",),
    )


def test_other_answers_fail_where_both_were_asked() -> None:
    stable, canary = fill(Tally(), 1000), fill(Tally(), 60)
    for number in range(60):
        canary.compare(agreed=number % 2 == 0)
    assert judge(RULES, SHARE, stable, canary).verdict == "go on"
    judgement = judge(RULES, SHADOW, stable, canary)
    assert (judgement.verdict, judgement.reasons) == ("fail", ("50.00% of 60 answers the same (95.00% wanted)",))
    assert judge(RULES, SHADOW, stable, fill(Tally(), 900)).verdict == "fail", "nothing was compared"


def test_a_difference_that_nobody_feels_is_none() -> None:
    stable, canary = fill(Tally(), 1000, took=500_000), fill(Tally(), 1000, took=1_500_000)
    assert judge(RULES, SHARE, stable, canary).verdict == "pass"


@given(st.integers(0, 500), st.integers(1, 500))
def test_the_share_that_was_seen_lies_between_its_bounds(some: int, of: int) -> None:
    some = min(some, of)
    least, most = wilson(some, of)
    assert 0 <= least <= some / of <= most <= 1


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=400))
def test_the_quantile_that_was_seen_lies_between_its_bounds(values: list[int]) -> None:
    least, seen, most = quantile(sorted(values))
    assert least <= seen <= most
    assert sum(value <= seen for value in values) >= 0.95 * len(values)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(-1e6, 1e6) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, JSON)
def test_what_agrees_does_so_both_ways_and_with_itself(one: object, other: object) -> None:
    assert agrees(one, one, 0.0)
    assert agrees(one, other, 0.01) == agrees(other, one, 0.01)


def test_a_truth_is_no_number() -> None:
    assert not agrees(True, 1, 0.1)
    assert not agrees({"a": 1}, {"b": 1}, 0.1)
    assert agrees([1, {"p": 0.5}], [1.0, {"p": 0.5004}], 1e-3)
