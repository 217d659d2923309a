"""The weights of a service and of training, against numbers computed by hand, and what holds for all."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from poise.policy.sharing import weights

shares = st.floats(0, 1)
anything = st.floats(-10, 1e6, allow_nan=False)


@pytest.mark.parametrize(
    ("use", "ratio", "service"),
    [
        (1.0, 1.0, 0.5),  # 1 against 1
        (1.0, 0.5, 1.25 / 3.25),  # 1 + 0.25 against 2
        (0.5, 0.5, 0.75 / 2.75),
        (0.2, 0.25, 0.575 / 4.575),
        (0.0, 1.0, 0.0),  # late while its devices idle: more of them would not help
        (0.9, 0.0, 0.0),  # 1.4 against 100,000
        (1.0, 3.0, 0.5),  # unclamped it were 1 - 1 = 0, just when answers take three times too long
    ],
)
def test_by_hand(use: float, ratio: float, service: float) -> None:
    found = weights(use, ratio)
    assert found.service == pytest.approx(service, abs=2e-5)
    assert found.training == pytest.approx(1 - service, abs=2e-5)


@given(anything, anything)
def test_they_add_up_and_neither_is_below_nothing(use: float, ratio: float) -> None:
    found = weights(use, ratio)
    assert found.training > 0
    assert found.service >= 0
    assert found.training + found.service == pytest.approx(1)


@given(shares, shares, shares)
def test_a_service_that_works_more_gets_no_less(use: float, more: float, ratio: float) -> None:
    low, high = sorted((use, more))
    assert weights(high, ratio).service >= weights(low, ratio).service - 1e-12


@given(st.floats(0.5, 1), shares, shares)
def test_where_devices_work_half_the_time_later_answers_get_no_less(use: float, ratio: float, later: float) -> None:
    low, high = sorted((ratio, later))
    assert weights(use, high).service >= weights(use, low).service - 1e-4
