"""What is foreseen and how much headroom there is, against numbers computed by hand and loads drawn from seeds."""

from collections.abc import Sequence
from math import log

import msgspec
import pytest
from numpy.random import default_rng

from poise.model.scaling import Learned, ScaleRules
from poise.policy.foresight import BLUR, LEAST_RISK, MOST_RISK, begin, decided, foresee, learn
from poise.units import HOUR, MINUTE

RULES = ScaleRules()
LENGTH = 10 * MINUTE


def follow(rates: Sequence[float], rules: ScaleRules = RULES) -> tuple[Learned, list[bool]]:
    """What it has learned in the end, and in which windows more came than was provided for."""
    learned, violated = begin(rates[0], rules), []
    for place, rate in enumerate(rates[1:], start=1):
        outlook = foresee(learned, place * LENGTH, 1, rules, LENGTH)
        violated.append(rate > outlook.enough)
        learned = learn(decided(learned, outlook), (place + 1) * LENGTH, rate, rules, LENGTH)
    return learned, violated


def test_the_prior_headroom_is_what_the_target_asks_for() -> None:
    """Exceeded exponentially by half of the windows, one of a hundred is log(50) spreads above the forecast; the blur
    of the spread comes on top.
    """
    learned = begin(70.0, RULES)
    assert learned.soon == pytest.approx(30 / log(50), rel=0.01)
    outlook = foresee(learned, LENGTH, 1, RULES, LENGTH)
    assert (outlook.rate, outlook.at) == (70.0, 2 * LENGTH)
    assert 100 < outlook.enough < 100 + 70 * BLUR * log(50) * 1.01


@pytest.mark.parametrize("share", [0.01, 0.05])
@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_the_share_of_violated_windows_is_what_was_wanted(share: float, noise: float) -> None:
    random = default_rng(1)
    rates = [100 * float(random.lognormal(0, noise)) for _ in range(4000)]
    _, violated = follow(rates, ScaleRules(share=share))
    assert sum(violated[500:]) / 3500 == pytest.approx(share, rel=0.3)


def test_a_service_that_begins_with_nothing_is_not_taken_for_a_wild_one() -> None:
    """What is usual is learned from the first spread that there is."""
    learned, violated = follow([0.0, 0.0, 0.0, *[100.0] * 300])
    assert violated[:4] == [False, False, True, False]
    assert learned.usual > learned.soon
    assert foresee(learned, HOUR, 1, RULES, LENGTH).enough < 120


def test_who_has_had_too_many_is_given_more() -> None:
    learned, _ = follow([100.0, 104.0, 97.0] * 50)
    enough = [
        foresee(msgspec.structs.replace(learned, credit=credit), HOUR, 1, RULES, LENGTH).enough
        for credit in (-5.0, 0.0, 5.0)
    ]
    assert enough[0] > enough[1] > enough[2]


def test_credit_has_bounds() -> None:
    """A year of calm does not buy a day of violations, nor the other way round."""
    random = default_rng(2)
    calm, _ = follow([100 + float(random.random()) / 1000 for _ in range(2000)])
    wild = begin(100.0, RULES)
    for place in range(1, 60):  # always a little more than was provided for
        outlook = foresee(wild, place * LENGTH, 1, RULES, LENGTH)
        wild = learn(decided(wild, outlook), (place + 1) * LENGTH, 1.01 * outlook.enough, RULES, LENGTH)
    furthest = log(MOST_RISK) * 10
    assert MOST_RISK * LEAST_RISK == 1
    assert -furthest <= wild.credit < 0 < calm.credit <= furthest


def test_a_season_that_explains_nothing_is_not_used() -> None:
    random = default_rng(3)
    learned, _ = follow([100 * float(random.lognormal(0, 0.2)) for _ in range(1000)])
    ahead = [foresee(learned, 1000 * LENGTH + step * LENGTH, 1, RULES, LENGTH).rate for step in range(6)]
    assert len(set(ahead)) == 1
