import hypothesis.strategies as st
from hypothesis import given

from poise.model.jobs import Retry
from poise.units import MINUTE, SECOND


def test_back_off_doubles_up_to_a_minute() -> None:
    retry = Retry(backoff=2 * SECOND)
    assert [retry.delay(tries) // SECOND for tries in (1, 2, 3, 6, 7, 1000)] == [2, 4, 8, 60, 60, 60]


def test_a_longer_back_off_than_a_minute_is_kept() -> None:
    assert Retry(backoff=5 * MINUTE).delay(9) == 5 * MINUTE


@given(st.integers(0, 2**62), st.integers(1, 10**9))
def test_no_back_off_overflows(backoff: int, tries: int) -> None:
    assert backoff <= Retry(backoff=backoff).delay(tries) <= max(backoff, MINUTE) or backoff == 0
