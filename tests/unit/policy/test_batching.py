"""How large a batch is, and when it leaves: by hand on a measured curve, and what holds on any."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.model.serving import Curve
from poise.units import MILLISECOND, SECOND
from poise_serve.policy.batching import Batching, QueueView, Send, Wait, foreseen

MEASURED = [(1, 3.5), (2, 7.5), (3, 10.9), (4, 6.8), (5, 7.8), (8, 8.1), (12, 9.8), (16, 11.1), (32, 17.3), (64, 29.2)]
"""Milliseconds by size of a perceptron of 19 million weights on one core: a kernel that is quicker from four on."""

POLICY = Batching()


def curve(limit: int = 64) -> Curve:
    return Curve(limit, [(size, took * MILLISECOND) for size, took in MEASURED])


def sent(count: int, rate: float = 0.0, **others: int) -> Send | Wait:
    return POLICY.decide(QueueView(now=SECOND, count=count, curve=curve(), rate=rate / SECOND, **others))


def test_two_are_served_one_after_the_other_where_two_at_once_take_longer() -> None:
    # one by one they are answered after 3.5 and 7.0 ms, together (filled up to four) after 6.8 each
    assert sent(2) == Send(1, 1)


def test_three_are_filled_up_to_four() -> None:
    # 3 x 6.8 = 20.4 ms of waiting in all; one by one 3.5 + 7.0 + 10.5 = 21.0; three as they are 32.7
    assert sent(3) == Send(3, 4)


def test_what_is_left_is_sent_whole_where_a_second_batch_costs_more() -> None:
    # 8 at once: 64.8; 4 and 4: 8 x 6.8 + 4 x 6.8 = 81.6
    assert sent(8) == Send(8, 8)


def test_the_busier_the_replica_the_larger_the_batch() -> None:
    quiet, busy = sent(40), sent(40, rate=1600)
    assert isinstance(quiet, Send) and isinstance(busy, Send)
    assert quiet.count < busy.count == 40


def test_nobody_waits_where_others_are_far_off() -> None:
    assert all(isinstance(sent(count, rate=100), Send) for count in range(1, 40))


def test_after_a_long_silence_nobody_is_waited_for() -> None:
    view = QueueView(now=SECOND, count=3, curve=curve(), rate=5e-324)
    assert POLICY.decide(view) == Send(3, 4)


def test_the_fourth_is_waited_for_when_it_is_near() -> None:
    # at 1,600 a second it comes in 0.625 ms: 3 x 0.625 + 6.8 = 8.7 < 6.8 - 0.625 + 3.5 = 9.7
    verdict = sent(3, rate=1600)
    assert verdict == Wait(SECOND + 2 * SECOND // 1600)


def test_it_is_not_waited_for_longer_than_it_is_expected_in() -> None:
    assert isinstance(sent(3, rate=1600, held=SECOND - 2 * MILLISECOND), Send)


def test_nobody_is_made_late_by_waiting_for_others() -> None:
    assert isinstance(sent(3, rate=1600, due=SECOND + 7 * MILLISECOND), Send)


def test_a_slow_replica_leaves_alone_what_a_quick_one_has_done_sooner() -> None:
    assert sent(4, elsewhere=SECOND + 5 * MILLISECOND) == Send(1, 1)
    assert sent(4, elsewhere=SECOND + 3 * MILLISECOND) == Wait(0)


def test_a_batch_is_as_small_as_the_promise_to_the_first_of_it_wants() -> None:
    slow = Curve(64, [(1, 10.0 * MILLISECOND), (32, 170.0 * MILLISECOND)])
    whole = POLICY.decide(QueueView(now=SECOND, count=64, curve=slow, rate=0.0))
    kept = POLICY.decide(QueueView(now=SECOND, count=64, curve=slow, rate=0.0, promised=SECOND + 100 * MILLISECOND))
    assert isinstance(whole, Send) and isinstance(kept, Send)
    assert slow.takes(kept.count) <= 100 * MILLISECOND < slow.takes(kept.count + 1) < slow.takes(whole.count)


def test_not_where_that_would_cost_those_behind_much_more_or_comes_too_late() -> None:
    flat = Curve(64, [(1, 60.0 * MILLISECOND), (32, 90.0 * MILLISECOND)])
    for promised in (SECOND + 65 * MILLISECOND, SECOND - 1):
        view = QueueView(now=SECOND, count=30, curve=flat, promised=promised)
        assert POLICY.decide(view) == Send(30, 30)


def test_a_borrowed_table_is_as_much_slower_as_what_was_measured_of_it() -> None:
    slow = Curve(64)
    slow.borrow([(1, 10.0), (8, 40.0), (32, 100.0)])
    assert slow.takes(32) == 100
    for _ in range(20):
        slow.learn(1, 30.0)
    assert [slow.takes(size) for size in (1, 8, 32)] == pytest.approx([30, 120, 300], rel=0.05)
    slow.learn(8, 200.0)
    assert slow.takes(8) == 200, "what is its own is gone by"


def test_a_first_batch_that_warms_it_up_is_forgotten() -> None:
    begins = Curve(64)
    begins.borrow([(1, 10.0), (32, 100.0)])
    begins.learn(1, 1000.0)
    for _ in range(30):
        begins.learn(1, 10.0)
    assert begins.takes(32) == pytest.approx(100, rel=0.3)


def test_sizes_that_were_never_seen_are_tried_by_doubling() -> None:
    learning, sizes = Curve(48), []
    for _ in range(8):
        verdict = POLICY.decide(QueueView(now=0, count=100, curve=learning, rate=1e-6))
        assert isinstance(verdict, Send)
        sizes.append(verdict.padded)
        learning.learn(verdict.padded, (4 + verdict.padded / 10) * MILLISECOND)
    assert sizes == [1, 2, 4, 8, 16, 32, 48, 48]


def test_a_size_is_learned_anew_once_it_is_slower_for_good_and_not_after_one_hiccup() -> None:
    learned = Curve(8, [(1, 4.0 * MILLISECOND)] * 20)
    learned.learn(1, 400 * MILLISECOND)
    assert learned.takes(1) == pytest.approx(4 * MILLISECOND)
    for _ in range(3):
        learned.learn(1, 40 * MILLISECOND)
    assert learned.takes(1) == pytest.approx(40 * MILLISECOND)


def test_a_size_that_looked_slow_by_chance_is_tried_again() -> None:
    # it takes 20 ms, and 16 take 12: its first batch took 26 by chance
    learned = Curve(32, [(16, 12.0 * MILLISECOND), (32, 26.0 * MILLISECOND)])
    assert learned.pace() == pytest.approx(0.75 * MILLISECOND), "two batches of 16"
    for _ in range(20):
        learned.learn(16, 10.0 * MILLISECOND)
        learned.learn(16, 14.0 * MILLISECOND)
    tried = 0
    while learned.takes(32) < 2 * learned.takes(16) and tried < 40:
        learned.learn(32, 20.0 * MILLISECOND)
        tried += 1
    assert tried == 40
    assert learned.takes(32) == pytest.approx(20 * MILLISECOND, rel=0.05)


def test_when_somebody_who_comes_now_is_answered() -> None:
    # 3.5 ms of what runs, then the seven before and this one in one batch of eight
    busy = SECOND + 3_500_000
    assert foreseen(SECOND, 7, [(curve(), busy)]) == busy + 8_100_000
    assert foreseen(SECOND, 7, []) == SECOND


def test_unequal_replicas_share_a_queue_by_their_pace() -> None:
    slow = Curve(64, [(size, 4 * took * MILLISECOND) for size, took in MEASURED])
    alone = foreseen(SECOND, 99, [(curve(), SECOND)])
    both = foreseen(SECOND, 99, [(curve(), SECOND), (slow, SECOND)])
    assert SECOND + 0.7 * (alone - SECOND) < both < alone


curves = st.builds(
    lambda limit, known: Curve(limit, known),
    st.integers(1, 64),
    st.lists(st.tuples(st.integers(1, 64), st.floats(1e3, 1e9)), max_size=12),
)


@given(curves, st.integers(1, 200), st.floats(0, 1e-5), st.integers(0, 10**9), st.integers(0, 10**9))
def test_what_holds_of_every_verdict(learned: Curve, count: int, rate: float, due: int, elsewhere: int) -> None:
    view = QueueView(now=10**8, count=count, curve=learned, rate=rate, due=due, elsewhere=elsewhere)
    verdict = POLICY.decide(view)
    assert verdict == POLICY.decide(view), "same view, same verdict"
    if isinstance(verdict, Send):
        assert 1 <= verdict.count <= count
        assert verdict.count <= verdict.padded <= learned.largest
    else:
        assert verdict.until == 0 or verdict.until > view.now


def test_one_is_filled_up_to_two_where_two_take_less() -> None:
    assert Curve(3, [(1, 1001.0), (2, 1000.0)]).padded(1) == 2


@given(curves, st.integers(1, 200))
def test_dividing_never_takes_longer_than_not(learned: Curve, count: int) -> None:
    largest = learned.largest
    if count <= largest:
        assert learned.clears(count) <= learned.takes(count)
    for size in range(1, largest + 1):
        assert learned.takes(size) == learned.takes(learned.padded(size))
        seen = [learned.takes(larger) for larger in learned.sizes if size <= larger <= largest]
        assert learned.takes(size) <= min(seen, default=learned.takes(size))


def test_where_it_may_it_waits_for_a_fuller_batch_that_saves_time_of_the_replica() -> None:
    # at 800 a second four are expected in 5 ms, and five take 7.8 ms together: 1.56 each, where one alone takes 3.5
    assert sent(1, rate=800) == Send(1, 1)
    assert sent(1, rate=800, wait=5 * MILLISECOND) == Wait(SECOND + 5 * MILLISECOND)
    assert sent(2, rate=800, wait=5 * MILLISECOND, held=SECOND - MILLISECOND) == Wait(SECOND + 4 * MILLISECOND)


@pytest.mark.parametrize("held", [0, SECOND - 3 * MILLISECOND])
def test_it_does_not_wait_where_nobody_is_expected_in_the_rest_of_that_time(held: int) -> None:
    rate = 400 if held else 150
    assert sent(1, rate=rate, wait=5 * MILLISECOND, held=held) == Send(1, 1)


def test_it_does_not_wait_for_a_fuller_batch_that_saves_nothing_or_that_is_full() -> None:
    even = Curve(64, [(1, 2.0 * MILLISECOND), (64, 128.0 * MILLISECOND)])
    view = QueueView(now=SECOND, count=1, curve=even, rate=1000 / SECOND, wait=20 * MILLISECOND)
    assert POLICY.decide(view) == Send(1, 1)
    assert isinstance(sent(64, rate=800, wait=20 * MILLISECOND), Send)


def test_it_waits_no_longer_than_the_objective_and_the_deadline_allow() -> None:
    # four more are expected, and five take 7.8 ms
    promised = SECOND + 10 * MILLISECOND
    assert sent(1, rate=800, wait=5 * MILLISECOND, promised=promised) == Wait(promised - 7_800_000)
    assert sent(1, rate=800, wait=5 * MILLISECOND, due=SECOND + 9 * MILLISECOND) == Send(1, 1)


def test_under_a_high_load_the_rest_is_filled_up_by_others_so_that_batches_are_full() -> None:
    # of 40, without others 8 and then 32 would be as quick as 32 and then 8
    largest = curve(32)
    for waiting in (40, 50, 70):
        verdict = POLICY.decide(QueueView(now=SECOND, count=waiting, curve=largest, rate=1700 / SECOND))
        assert verdict == Send(32, 32)


def test_a_smaller_batch_does_not_meet_the_objective_where_the_replica_could_not_keep_up() -> None:
    # 18 at once take 0.66 ms each, 32 take 0.54: at 1,600 a second only the larger batch keeps up
    promised = SECOND + 12 * MILLISECOND
    assert sent(32, rate=1000, promised=promised) == Send(18, 18)
    assert sent(32, rate=1600, promised=promised) == Send(32, 32)
