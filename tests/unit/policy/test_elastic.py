"""Devices shared out by marginal worth, worked out by hand."""

import numpy as np

from poise.model.progress import Speedups
from poise.policy.elastic import share_out, share_out_models, speeds_with, worth_having

CONCAVE = (0.0, 1.0, 1.8, 2.4, 2.75)
LINEAR = (0.0, 1.0, 2.0, 3.0, 4.0)
NO = -np.inf


def shared(devices: int, *units: tuple[float, tuple[float, ...]]) -> list[int]:
    """Tasks of one device for each of these, by what they are worth and their speeds with 0, 1, ... of them."""
    gains = np.full((len(units), max(len(speeds) for _, speeds in units)), NO)
    for place, (worth, speeds) in enumerate(units):
        gains[place, : len(speeds)] = worth * np.array(speeds)
    return [int(tasks) for tasks in share_out(gains, np.ones(len(units), np.int64), devices)]


def on_two(fast: int, slow: int, *units: tuple[float, float]) -> list[tuple[int, int]]:
    """The model and the tasks of each of these, that scale without loss to four, by what they are worth on a fast
    device and on a slow one.
    """
    gains = np.array([[worth * np.array(LINEAR) for worth in both] for both in units])
    on, tasks = share_out_models(gains, np.ones(len(units), np.int64), np.array([fast, slow]))
    return list(zip(on.tolist(), tasks.tolist(), strict=True))


def test_each_model_has_its_price() -> None:
    """On two fast and four slow devices 2 * 2 + 4 * 0.25 = 5 the one way, 2 * 1 + 4 * 0.5 = 4 the other."""
    assert on_two(2, 4, (0.01, 0.0025), (0.02, 0.005)) == [(1, 4), (0, 2)]


def test_who_loses_least_on_the_slow_model_takes_it() -> None:
    """The second is worth more anywhere; 3 * 4 + 1.9 * 4 beats 2 * 4 + 2 * 4 the other way: it loses less."""
    assert on_two(4, 4, (0.02, 0.002), (0.03, 0.019)) == [(0, 4), (1, 4)]


def test_equal_work_that_scales_alike_shares_evenly() -> None:
    """Steps are worth 1, 0.8, 0.6, 0.35 hundredths to each: 1, 1, 0.8, 0.8."""
    assert shared(4, (0.01, CONCAVE), (0.01, CONCAVE)) == [2, 2]


def test_what_is_shorter_gets_more() -> None:
    """The first has half as much to do: its steps are worth 2, 1.6, 1.2, 0.7, those of the second 1, 0.8, …."""
    assert shared(4, (0.02, CONCAVE), (0.01, CONCAVE)) == [3, 1]


def test_work_that_scales_without_loss_is_shortest_first() -> None:
    assert shared(4, (0.01, LINEAR), (0.02, LINEAR)) == [0, 4]


def test_a_gang_of_one_size_is_one_step() -> None:
    """The gang of two is worth 1 for 2 devices, 0.5 each; the other 0.4, 0.32, 0.24, 0.14: the gang, then two."""
    assert shared(4, (0.01, (0.0, NO, 1.0)), (0.004, CONCAVE)) == [2, 2]


def test_a_gang_for_which_there_is_no_room_leaves_it_to_others() -> None:
    assert shared(2, (0.01, (0.0, NO, NO, 1.0)), (0.004, CONCAVE)) == [0, 2]


def test_steps_that_only_pay_together_are_taken_together() -> None:
    """Two tasks are as fast as one, three are 2.4 times as fast: 0.7 for each of two more."""
    jumps = (0.0, 1.0, 1.0, 2.4)
    assert shared(3, (0.01, jumps), (0.0065, LINEAR)) == [3, 0]
    assert shared(3, (0.01, jumps), (0.009, LINEAR)) == [1, 2]


def test_tasks_that_bring_too_little_are_not_worth_having() -> None:
    """The fourth brings a fifth of what the first does."""
    assert worth_having((0.0, 1.0, 1.8, 2.4, 2.6), 1) == 3


def test_what_is_told_is_used_and_else_a_loss_is_taken_for_granted() -> None:
    """Untold, the eighth task brings 4.71 - 4.38 = 0.33, and the ninth 0.29."""
    assert speeds_with(Speedups((1000, 1900), (0, 1500, 2600)), 4) == (0.0, 1.0, 1.9, 2.6, 2.6)
    assert worth_having(speeds_with(None, 16), 1) == 8


def test_more_tasks_than_one_node_holds_are_as_fast_as_apart() -> None:
    assert speeds_with(Speedups((1000, 1900, 2800), (0, 1500, 2100)), 3, on_one=2) == (0.0, 1.0, 1.9, 2.1)
