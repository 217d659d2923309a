"""Allocations worked out by hand: who gets which part of whose time."""

import sys
from collections.abc import Sequence

import numpy as np
import pytest

from poise.errors import InputError
from poise.model.fleet import Floats
from poise.policy.shares import Claims, equal_parts, finish_time_fair, first_come, max_min, min_makespan


def claims(
    rates: Sequence[Sequence[float]],
    capacity: Sequence[float],
    *,
    devices: Sequence[float] = (),
    weights: Sequence[float] = (),
    left: Sequence[float] = (),
    waited: Sequence[float] = (),
    alone: Sequence[float] = (),
) -> Claims:
    def of(given: Sequence[float], otherwise: float) -> Floats:
        return np.array(given or [otherwise] * len(rates), float)

    return Claims(
        rates=np.array(rates, float),
        devices=of(devices, 1),
        weights=of(weights, 1),
        left=of(left, 1),
        waited=of(waited, 0),
        alone=of(alone, 0),
        capacity=np.array(capacity, float),
    )


def near(shares: Floats, expected: Sequence[Sequence[float]]) -> bool:
    return bool(np.allclose(shares, expected, atol=1e-4))


def test_max_min_of_three_units_on_two_unlike_devices() -> None:
    """Over the mean device they do 1.6 and 0.4, 1.5 and 0.5, 4/3 and 2/3 as much. All three get on at 8/11:
    1.6 · 5/11, 1.5 · 5/11 + 0.5 · 1/11 and 4/3 · 1/11 + 2/3 · 10/11.
    """
    shares = max_min(claims([(4, 1), (3, 1), (2, 1)], (1, 1)))
    assert near(shares, [(5 / 11, 0), (5 / 11, 1 / 11), (1 / 11, 10 / 11)])


def test_each_where_it_is_better() -> None:
    assert near(max_min(claims([(2, 1), (1, 2)], (1, 1))), [(1, 0), (0, 1)])


def test_twice_the_devices_half_the_time() -> None:
    """Two devices: a takes both, b and c one each. Device time is equal: 2 a = b = c, and 2 a + b + c = 2."""
    assert near(max_min(claims([(1,)] * 3, (2,), devices=(2, 1, 1))), [(1 / 3,), (2 / 3,), (2 / 3,)])


def test_shares_follow_weights() -> None:
    assert near(max_min(claims([(1,), (1,)], (1,), weights=(1, 3))), [(0.25,), (0.75,)])


def test_who_cannot_run_on_a_model_gets_nothing_of_it() -> None:
    assert near(max_min(claims([(1, 0), (1, 1)], (1, 1))), [(1, 0), (0, 1)])


def test_what_is_spare_goes_where_it_is_used_best() -> None:
    """b does 1 wherever it runs and cannot do more; a would be as far with 5/8 of its fast device, and gets all."""
    assert near(max_min(claims([(4, 1), (1, 1)], (1, 1))), [(1, 0), (0, 1)])


def test_min_makespan_ends_all_at_once() -> None:
    """100 s and 300 s of work on one device: both end after 400 s with a quarter and three quarters of it."""
    assert near(min_makespan(claims([(1 / 100,), (1 / 300,)], (1,))), [(0.25,), (0.75,)])


def test_min_makespan_gives_the_longest_the_fast_device() -> None:
    """b takes 300 s even on the fast device, so it has all of it; a needs two thirds of the slow one until then."""
    [a, b] = min_makespan(claims([(1 / 100, 1 / 200), (1 / 300, 1 / 600)], (1, 1)))
    assert near(b, [1, 0])  # type: ignore[list-item]
    assert a[0] < 1e-4
    assert a[1] >= 2 / 3


def test_min_makespan_counts_what_is_left() -> None:
    assert near(min_makespan(claims([(0.01,), (0.01,)], (1,), left=(0.25, 0.75))), [(0.25,), (0.75,)])


def test_finish_time_fair_makes_up_for_waiting() -> None:
    """One device, 100 s of work each, 200 s with half of it. a has waited 100 s: (100 + 100/x) / 200 is the other's
    (100/y) / 200 where x² + x = 1.
    """
    golden = (5**0.5 - 1) / 2
    shares = finish_time_fair(claims([(0.01,), (0.01,)], (1,), waited=(100, 0)))
    assert np.allclose(shares[:, 0], (golden, 1 - golden), atol=2e-3)


def test_finish_time_fair_counts_what_was_alone() -> None:
    """a has done a third of its 1080 s in 360 s alone: (360 + 720/x) / (360 + 1440) = (720/y) / 1440 where both are
    a half.
    """
    now = claims([(1 / 1080,), (1 / 720,)], (1,), left=(2 / 3, 1), waited=(360, 0), alone=(360, 0))
    assert np.allclose(finish_time_fair(now)[:, 0], (0.5, 0.5), atol=2e-3)


def test_equal_parts_are_of_the_fleet() -> None:
    """Of 3 and 6 devices each of three units may have 1 and 2; who takes four has a quarter of the time."""
    parts = equal_parts(claims([(1, 1)] * 3, (3, 6), devices=(1, 1, 4)))
    assert near(parts, [(1 / 3, 2 / 3), (1 / 3, 2 / 3), (1 / 4, 1 / 2)])


def test_first_come_takes_the_fastest_and_nobody_overtakes() -> None:
    shares = first_come(claims([(1, 4), (1, 4), (2, 1), (1, 1)], (2, 1), devices=(1, 1, 2, 1)))
    assert near(shares, [(0, 1), (1, 0), (0, 0), (0, 0)])


def test_alike_units_are_one_row_and_nothing_is_given_twice() -> None:
    random = np.random.default_rng(7)
    kinds, devices = random.uniform(0.1, 1, (5, 3)), random.integers(1, 5, 200).astype(float)
    now = claims([kinds[number % 5] for number in range(200)], (20, 30, 40), devices=devices.tolist())
    for allocate in (max_min, min_makespan, finish_time_fair):
        shares = allocate(now)
        assert (shares >= 0).all()
        assert (shares.sum(axis=1) <= 1 + 1e-6).all()
        assert (devices @ shares <= now.capacity * (1 + 1e-6)).all()


def test_without_a_solver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(InputError) as raised:
        max_min(claims([(1,)], (1,)))
    assert raised.value.record.hint == "pip install 'poise-scheduler[lp]'"
