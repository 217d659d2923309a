"""Breaker, budget and health, with time as an argument."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.model.serving_upstreams import Ejection, Following, Probing, Retries
from poise.units import MILLISECOND, SECOND
from poise_serve.kernel.resilience import SPARE, WINDOW, Breaker, Concurrency, Health, RetryBudget, is_slow

RULES = Ejection(failures=3, pause=30 * SECOND, longest=100 * SECOND, slower=10.0, least=SECOND)


def ejected(breaker: Breaker, now: int = 0) -> None:
    for _ in range(RULES.failures):
        breaker.on_failure(now, True)


def test_failures_in_a_row_eject_it_and_one_on_trial_brings_it_back() -> None:
    breaker = Breaker(RULES)
    assert [breaker.on_failure(0, True) for _ in range(3)] == [False, False, True]
    assert not breaker.is_open_to(30 * SECOND - 1)
    assert breaker.is_open_to(30 * SECOND)
    breaker.on_sent()
    assert not breaker.is_open_to(30 * SECOND)  # one at a time
    breaker.on_success(31 * SECOND)
    assert breaker.is_open_to(31 * SECOND) and not breaker.is_ejected


def test_a_success_between_them_starts_the_count_anew() -> None:
    breaker = Breaker(RULES)
    for _ in range(10):
        assert not breaker.on_failure(0, True)
        assert not breaker.on_failure(0, True)
        breaker.on_success(0)


def test_each_time_it_stays_away_for_longer_and_after_good_times_as_at_first() -> None:
    breaker = Breaker(RULES)
    ejected(breaker)
    pauses, now = [breaker.until], breaker.until
    for _ in range(3):
        breaker.on_sent()
        assert breaker.on_failure(now, True)
        pauses.append(breaker.until - now)
        now = breaker.until
    assert pauses == [30 * SECOND, 60 * SECOND, 100 * SECOND, 100 * SECOND]
    breaker.on_sent()
    breaker.on_success(now)
    ejected(breaker, now + 101 * SECOND)
    assert breaker.until - now == 131 * SECOND


def test_what_was_sent_before_tells_nothing_while_it_is_away() -> None:
    breaker = Breaker(RULES)
    ejected(breaker)
    breaker.on_success(SECOND)
    assert not breaker.on_failure(SECOND, True)
    assert breaker.is_ejected and breaker.until == 30 * SECOND


def test_a_trial_that_nobody_waited_for_is_made_again() -> None:
    breaker = Breaker(RULES)
    ejected(breaker)
    breaker.on_sent()
    breaker.on_neither()
    assert breaker.is_open_to(30 * SECOND) and breaker.is_ejected


def test_it_is_not_ejected_where_nobody_could_take_over() -> None:
    breaker = Breaker(RULES)
    assert not any(breaker.on_failure(0, False) for _ in range(10))
    assert breaker.is_open_to(0)
    assert breaker.on_failure(0, True)  # now another is there


@given(st.lists(st.tuples(st.sampled_from(["sent", "success", "failure", "neither"]), st.integers(0, 50 * SECOND))))
def test_a_breaker_never_stays_away_for_good(steps: list[tuple[str, int]]) -> None:
    """Whatever comes: after its pause and the end of its trial, it may be sent a request."""
    breaker, now = Breaker(RULES), 0
    for step, later in steps:
        now += later
        if step == "failure":
            breaker.on_failure(now, True)
        elif step == "success":
            breaker.on_success(now)
        elif step == "neither":
            breaker.on_neither()
        elif breaker.is_open_to(now):
            breaker.on_sent()
        assert breaker.until - now <= RULES.longest
    breaker.on_neither()
    assert breaker.is_open_to(max(now, breaker.until))


def test_tries_again_are_a_share_of_the_requests_of_late() -> None:
    budget = RetryBudget(Retries(share=0.2, most=2))
    for _ in range(1000):
        budget.on_request(0)
    assert sum(budget.take(0) for _ in range(1000)) == 200 + SPARE
    assert sum(budget.take(2 * WINDOW) for _ in range(1000)) == SPARE


def test_no_share_is_no_tries_again() -> None:
    assert not RetryBudget(Retries(share=0.0, most=2)).take(0)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, SECOND)), max_size=300))
def test_the_budget_holds_at_any_time(steps: list[tuple[bool, int]]) -> None:
    budget, now = RetryBudget(Retries(share=0.2, most=2)), 0
    requests, tries = [], []
    for again, later in steps:
        now += later
        if not again:
            budget.on_request(now)
            requests.append(now)
        elif budget.take(now):
            tries.append(now)
            latest = [at for at in tries if at > now - WINDOW * 9 // 10]
            assert len(latest) <= 1 + SPARE + 0.2 * sum(at > now - WINDOW for at in requests)


PROBES = Probing(path="/health", delay=30 * SECOND, every=10 * SECOND, timeout=5 * SECOND, failures=3)


def test_misses_of_one_that_starts_do_not_count() -> None:
    health = Health(PROBES, 0)
    for now in range(0, 30, 5):
        health.on_probe(now * SECOND, False)
    states = [health.state]
    for now in (30, 40, 50):
        health.on_probe(now * SECOND, False)
        states.append(health.state)
    assert states == ["starting", "starting", "starting", "unhealthy"]
    health.on_probe(60 * SECOND, True)
    states.append(health.state)
    assert states[-1] == "healthy"


def test_three_misses_in_a_row_are_unhealthy() -> None:
    health = Health(PROBES, 0)
    health.on_probe(0, True)
    states = []
    for went_well in (False, False, True, False, False, False):
        health.on_probe(SECOND, went_well)
        states.append(health.state)
    assert states == ["healthy"] * 5 + ["unhealthy"]


@pytest.mark.parametrize(
    ("took", "others", "slow"),
    [
        (11 * SECOND, [SECOND], True),
        (9 * SECOND, [SECOND], False),  # unequal devices are no outliers
        (SECOND // 2, [SECOND / 100], False),  # nobody minds
        (100 * SECOND, [], False),  # there is nobody to compare it with
        (11 * SECOND, [SECOND, SECOND, 10 * SECOND], True),
    ],
)
def test_slow_is_what_takes_ten_times_as_long_as_at_others(took: int, others: list[float], slow: bool) -> None:
    assert is_slow(took, others, RULES) is slow


# --- concurrency -----------------------------------------------------------------------------------------------------


class Followed:
    """A server whose limit follows its answers, second by second."""

    def __init__(self, **rules: int) -> None:
        self.concurrency = Concurrency(Following(**rules), 64, 0)
        self.now = 0

    def goes_on(self, slots: float, alone: int, *, wanted: int = 1000, seconds: int = 60) -> list[int]:
        """The limits, while answers take as much longer as it has more requests than slots, and so many are wanted."""
        limits, of = [], self.concurrency
        for _ in range(seconds):
            running = min(wanted, of.limit)
            of.on_sent(running)
            self.now += SECOND
            for _ in range(20):
                of.on_over(round(alone * max(1.0, running / slots)), self.now, answered=True)
            limits.append(of.limit)
        return limits


@given(st.floats(1, 16), st.integers(5 * MILLISECOND, 5 * SECOND), st.floats(1.5, 4))
def test_the_limit_comes_to_where_answers_take_what_is_aimed_at(slots: float, alone: int, times: float) -> None:
    *_, before, last = Followed(target=round(times * alone)).goes_on(slots, alone)
    assert last == pytest.approx(times * slots, rel=0.1, abs=1)
    assert abs(last - before) <= 1


def test_of_a_server_that_slows_down_the_limit_falls_and_rises_again_after_it() -> None:
    server = Followed(target=200 * MILLISECOND)
    assert server.goes_on(8, 50 * MILLISECOND)[-1] == pytest.approx(32, abs=2)
    fallen = server.goes_on(2, 50 * MILLISECOND)
    assert fallen[9] < 12, "in ten seconds"
    assert min(fallen) > 5
    assert fallen[-1] == pytest.approx(8, abs=1)
    assert server.goes_on(64, 50 * MILLISECOND)[-1] == 64
    assert server.goes_on(1, 500 * MILLISECOND)[-1] == 1
    assert server.concurrency.p99 == 500 * MILLISECOND


def test_a_limit_that_was_not_reached_is_not_raised_and_one_that_is_missed_is_lowered() -> None:
    server = Followed(target=200 * MILLISECOND, least=2)
    assert server.goes_on(64, 50 * MILLISECOND, wanted=5)[-1] <= 9, "one step beyond what was wanted"
    assert server.goes_on(1, 500 * MILLISECOND, wanted=1)[-1] == 2


def test_what_was_given_up_tells_only_that_it_took_too_long() -> None:
    concurrency = Concurrency(Following(target=SECOND), 64, 0)
    for _ in range(100):
        concurrency.on_over(MILLISECOND, SECOND, answered=False)
    assert concurrency.p99 == 0
    for _ in range(100):
        concurrency.on_over(2 * SECOND, 2 * SECOND, answered=False)
    assert concurrency.p99 == 2 * SECOND
