"""The controller against steps worked out by hand, and what holds for every gain, measurement and pace."""

from itertools import pairwise
from math import exp
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from poise.policy.pid import Damping, Gains, Pid, damped
from poise.units import SECOND
from poise_serve.kernel.resilience import GAINS, NOISE

PLAIN = Gains(proportional=2.0, integral=0.5, derivative=0.1)


def test_three_steps_by_hand() -> None:
    """Error 2: 2*2 + (5 + 0.5*2*1) = 10. Then 1, and 1 more is measured: 2*1 - 0.1*1 + (6 + 0.5*1*1) = 8.4. Then none
    for half a second: 0 - 0.1*2 + 6.5.
    """
    pid = Pid(PLAIN, 0, 100)
    memory = pid.step(pid.begin(5), 10, 8, SECOND)
    assert (memory.output, memory.integral) == pytest.approx((10, 6))
    memory = pid.step(memory, 10, 9, SECOND)
    assert (memory.output, memory.integral) == pytest.approx((8.4, 6.5))
    memory = pid.step(memory, 10, 10, SECOND // 2)
    assert (memory.output, memory.integral) == pytest.approx((6.3, 6.5))


def test_a_new_target_is_no_jump() -> None:
    pid = Pid(PLAIN, 0, 100)
    memory = pid.step(pid.begin(5), 10, 9, SECOND)
    assert pid.step(memory, 20, 9, 0).output == pytest.approx(memory.output)
    assert pid.step(memory, 20, 9, SECOND).output == pytest.approx(memory.output + 0.5 * 11)


def test_at_a_bound_nothing_winds_up_and_the_first_error_back_leaves_it() -> None:
    pid = Pid(PLAIN, 0, 10)
    memory = pid.begin(9)
    for _ in range(1000):
        memory = pid.step(memory, 100, 50, SECOND)
        assert memory.output == 10
    assert memory.integral <= 10
    assert pid.step(memory, 100, 101, SECOND).output < 10


def test_bounds_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"not 2\.\.1"):
        Pid(PLAIN, 2, 1)


numbers = st.floats(-1e6, 1e6)
gains = st.builds(Gains, proportional=st.floats(0, 100), integral=st.floats(0, 100), derivative=st.floats(0, 100))
steps = st.lists(st.tuples(numbers, numbers, st.integers(0, 3600 * SECOND)), max_size=30)


@given(gains, numbers, numbers, numbers, steps)
def test_never_outside_its_bounds(
    of: Gains, one: float, other: float, begins: float, given_steps: list[tuple[float, float, int]]
) -> None:
    least, most = sorted((one, other))
    pid = Pid(of, least, most)
    memory = pid.begin(begins)
    for target, measured, elapsed in given_steps:
        memory = pid.step(memory, target, measured, elapsed)
        assert least <= memory.output <= most


@given(gains, st.floats(0, 100), st.floats(0.01, 100), st.integers(1, 50))
def test_from_bound_to_bound_in_as_many_steps_as_the_integral_alone_would_take(
    of: Gains, begins: float, error: float, long: int
) -> None:
    assume(of.integral * error >= 0.1)
    pid = Pid(of, 0, 100)
    memory = pid.begin(begins)
    for _ in range(long):
        memory = pid.step(memory, 0, -error, SECOND)
    for _ in range(int(100 / (of.integral * error)) + 2):
        memory = pid.step(memory, 0, error, SECOND)
    assert memory.output == 0


@given(st.floats(0.2, 20), st.floats(0.1, 5), st.floats(1, 9))
def test_a_plant_of_first_order_comes_to_its_target_and_stays(inertia: float, gain: float, share: float) -> None:
    """`x' = (gain * u - x) / inertia`, looked at ten times a second; the target is within reach."""
    pid = Pid(Gains(proportional=0.5 / gain, integral=0.5 / gain / inertia), 0, 10)
    target, x, memory = gain * share, 0.0, pid.begin(0)
    seen = []
    for _ in range(int(inertia * 300)):
        memory = pid.step(memory, target, x, SECOND // 10)
        x += (gain * memory.output - x) * (1 - exp(-0.1 / inertia))
        seen.append(x)
    assert seen[-1] == pytest.approx(target, rel=0.02)
    assert max(seen) <= 1.2 * target
    assert all(abs(after - before) < 0.01 * target for before, after in pairwise(seen[-20:]))


# --- stability -------------------------------------------------------------------------------------------------------


def rest(gain: float, delay: int, lag: float, noise: float, seed: int, *, damps: bool = True) -> tuple[float, float]:
    """The root mean square error of the last 60 of 200 steps, and the last factor: of a plant whose response is `gain`
    times the output `delay` steps before, through a first-order lag, measured with noise. All are logarithms.
    """
    random, pid, damping = Random(seed), Pid(GAINS, 0.0, 4.2), Damping()  # noqa: S311
    memory, outputs, response, errors, target = pid.begin(0.0), [0.0] * (delay + 1), 0.0, [], 2.0
    for _ in range(200):
        response = lag * response + (1 - lag) * gain * outputs[-1 - delay]
        measured = response + random.gauss(0, noise)
        if damps:
            damping = damped(damping, target - measured, NOISE)
        memory = pid.step(memory, target, measured, SECOND, damping.factor)
        outputs.append(memory.output)
        errors.append(target - response)
    return (sum(error**2 for error in errors[-60:]) / 60) ** 0.5, damping.factor


@pytest.mark.parametrize("gain", [0.5, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("delay", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("lag", [0.0, 0.5])
def test_it_comes_to_rest_whatever_the_delay_the_gain_and_the_noise(gain: float, delay: int, lag: float) -> None:
    assert rest(gain, delay, lag, 0.0, 0)[0] < 0.3
    for seed in range(3):
        assert rest(gain, delay, lag, 0.2, seed)[0] < 0.3


def test_without_damping_it_does_not() -> None:
    assert rest(2.0, 3, 0.0, 0.0, 0, damps=False)[0] > 2
    assert rest(3.0, 0, 0.0, 0.0, 0, damps=False)[0] > 2


def test_an_oscillation_that_fades_is_not_damped() -> None:
    damping = Damping()
    for error in (2.0, -1.5, 1.1, -0.8, 0.6, -0.4):
        damping = damped(damping, error, NOISE)
    assert damping.factor == 1.0
    for error in (2.0, -2.0, 2.0, -2.0, 2.0):
        damping = damped(damping, error, NOISE)
    low = damping.factor
    assert low < 0.5
    for _ in range(1000):
        damping = damped(damping, 0.1, NOISE)
    assert damping.factor == low, "at rest there is nothing to learn"
    for _ in range(1000):
        damping = damped(damping, 0.5, NOISE)
    assert damping.factor == 1.0, "a large error that lasts needs larger gains"
