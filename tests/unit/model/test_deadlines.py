"""Whether a deadline can still be met."""

import pytest

from poise.model.deadlines import can_meet
from poise.units import SECOND


def test_at_least_forty_seconds_of_work_do_not_fit_into_thirty() -> None:
    """As in the documentation of the module."""
    assert not can_meet(due=90 * SECOND, now=60 * SECOND, left=40 * SECOND)
    assert can_meet(due=100 * SECOND, now=60 * SECOND, left=40 * SECOND)


@pytest.mark.parametrize(
    ("due", "now", "left", "can"),
    [
        (0, 10**18, 10**18, True),
        (100, 100, 0, True),
        (100, 101, 0, False),
        (100, 60, 40, True),
        (100, 60, 41, False),
    ],
)
def test_without_a_deadline_all_is_in_time_and_the_instant_itself_is_not_late(
    due: int, now: int, left: int, can: bool
) -> None:
    assert can_meet(due, now, left) == can
