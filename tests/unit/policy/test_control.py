"""Control loops and their tuning, on simulated plants of several gains, delays and noise."""

from random import Random

import pytest

from poise.model.control import Control, Gains
from poise.model.expressions import Compare, Read
from poise.policy.control import TOLERANCE, begin, error_of, step, value_of
from poise.policy.relay import RELAY, oscillation

TARGET, STEPS, LAST = 100.0, 300, 60
PLANTS = [(gain, delay, lag) for gain in (0.7, 1.0, 2.0, 4.0) for delay in (0, 1, 3, 5) for lag in (0.0, 0.7)]


def loop(gains: Gains | None, *, lowers: bool = False) -> Control:
    return Control("quota.gpu", "ann", Compare(Read("running"), "==", TARGET), 0, 1000, 1, lowers=lowers, gains=gains)


def run(control: Control, plant: tuple[float, int, float], noise: float, seed: int) -> tuple[list[float], list[float]]:
    """The errors and outputs of a plant whose signal is `gain` times the target at a full output, or so much less the
    larger the output is if that `lowers` it, some steps later, through a first-order lag.
    """
    gain, delay, lag = plant
    random, course, value = Random(seed), begin(control, 0), 0  # noqa: S311
    outputs, response, errors = [0.0] * (delay + 1), 0.0, []
    for _ in range(STEPS):
        moved = outputs[-1 - delay]
        response = lag * response + (1 - lag) * 2 * gain * (1 - moved if control.lowers else moved)
        measured = TARGET * response * (1 + random.gauss(0, noise))
        errors.append(error_of(control, measured))
        course = step(control, course, measured)
        value = value_of(control, course, value)
        outputs.append(value / 1000)
    return errors, outputs[delay + 1 :]


def rest(errors: list[float]) -> float:
    return float((sum(error**2 for error in errors[-LAST:]) / LAST) ** 0.5)


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("lowers", [False, True])
def test_automatic_gains_come_to_rest(plant: tuple[float, int, float], lowers: bool) -> None:
    assert rest(run(loop(None, lowers=lowers), plant, 0.0, 0)[0]) <= 1.5 * TOLERANCE
    for seed in range(3):
        assert rest(run(loop(None, lowers=lowers), plant, 0.1, seed)[0]) < 0.25


@pytest.mark.parametrize("plant", PLANTS)
def test_gains_from_a_relay_come_to_rest(plant: tuple[float, int, float]) -> None:
    wave = oscillation(*run(loop(RELAY), plant, 0.0, 0))
    assert wave is not None
    assert rest(run(loop(wave.gains), plant, 0.0, 0)[0]) <= 1.5 * TOLERANCE
    for seed in range(3):
        noisy = oscillation(*run(loop(RELAY), plant, 0.1, seed))
        assert noisy is not None
        assert rest(run(loop(noisy.gains), plant, 0.1, seed)[0]) < 0.25


def test_a_signal_that_does_not_respond_gives_no_gains() -> None:
    assert oscillation(*run(loop(RELAY), (0.0, 1, 0.0), 0.0, 0)) is None
    assert oscillation([], []) is None


def test_it_does_not_wind_up() -> None:
    """After 200 steps at the limit, the first error in the other direction moves the knob."""
    control = loop(None)
    course, value = begin(control, 0), 0
    for _ in range(200):
        course = step(control, course, 0.0)
        value = value_of(control, course, value)
    assert value == 1000
    course = step(control, course, 2 * TARGET)
    assert value_of(control, course, value) < 1000
