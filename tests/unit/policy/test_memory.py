"""Memory limits that follow peaks cover them in time and do not oscillate, for any delay and noise."""

from math import exp
from random import Random

import pytest

from poise.policy.memory import Need, fitted, needed, quantile
from poise.units import HOUR

GIB = 1 << 30


def test_the_example_of_the_module() -> None:
    needs = [Need(at * HOUR, 2 * GIB) for at in range(20)]
    assert fitted(8 * GIB, quantile(needs, 20 * HOUR), margin=0.15) == 2356 << 20


def test_few_needs_tell_nothing() -> None:
    assert quantile([Need(0, GIB)] * 9, HOUR) == 0
    assert fitted(8 * GIB, 0, 0.15) == 8 * GIB


def test_work_that_ran_out_of_memory_gets_more_than_it_had() -> None:
    assert needed(GIB, ran_out=False) == GIB
    assert fitted(GIB, 0, 0.15, needed(GIB, ran_out=True)) == 1229 << 20
    assert fitted(64 << 20, 0, 0.15, needed(64 << 20, ran_out=True)) == 164 << 20


def test_a_small_change_is_ignored() -> None:
    assert fitted(1000 << 20, 900 << 20, 0.15) == 1000 << 20


@pytest.mark.parametrize("delay", [0, 6, 24, 72])
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_a_limit_settles_after_a_step_down_and_a_step_up(delay: int, noise: float) -> None:
    """One attempt starts every four hours, and its peak is known `delay` hours later. Nearly all peaks are within 2.6
    times the noise. A peak that exceeds its limit counts as a fifth more.
    """
    random = Random(7)  # noqa: S311
    limits, needs = [16 * GIB], list[Need]()
    for hour in range(0, 90 * 24, 4):
        level, limit = (2 if hour // (30 * 24) == 1 else 8) * GIB, limits[-1]
        peak = int(level * random.lognormvariate(0, noise))
        needs.append(Need((hour + delay) * HOUR, needed(min(peak, limit), ran_out=peak > limit)))
        seen = [need for need in needs[-120:] if need.at < hour * HOUR]
        limits.append(fitted(limit, quantile(seen, hour * HOUR), 0.15))
    for days, level in ((30, 8 * GIB), (60, 2 * GIB), (90, 8 * GIB)):
        last = limits[(days - 5) * 6 : days * 6]
        assert level < min(last)
        assert max(last) < 1.2 * 1.15 * level * exp(2.6 * noise)
