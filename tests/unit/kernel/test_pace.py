"""What is learned of how fast a server is."""

import pytest

from poise.kernel.pace import Pace, foreseen
from poise.units import MILLISECOND


def test_what_has_not_answered_is_foreseen_to_be_as_fast_as_the_others() -> None:
    known, new = Pace(), Pace()
    known.on_sent(1, 0)
    known.on_answer(1, 0, 50)
    new.on_sent(10, 0)
    assert foreseen([known, new], 2) == [(0, 100), (500, 100)]
    assert new.lasting == 0


def test_before_any_answer_what_was_sent_is_what_counts() -> None:
    few, many = Pace(), Pace()
    few.on_sent(10, 0)
    many.on_sent(30, 0)
    assert foreseen([few, many], 5) == [(10, 5), (30, 5)]


def test_one_after_the_other() -> None:
    pace = Pace()
    for turn in range(20):
        sent = turn * 1000 * MILLISECOND
        pace.on_sent(50, sent)
        pace.on_answer(50, sent, sent + 100 * MILLISECOND)  # and then it is idle, which is no work
    assert pace.busy * 100 == pytest.approx(200 * MILLISECOND)
    assert pace.lasting == pytest.approx(2 * MILLISECOND)


def test_eight_beside_each_other_are_eight_times_as_much() -> None:
    pace, sent = Pace(), dict.fromkeys(range(8), 0)
    for _ in sent:
        pace.on_sent(10, 0)
    for turn in range(200):
        now, place = (turn + 8) * 100 * MILLISECOND, turn % 8
        pace.on_answer(10, sent[place], now)
        pace.on_sent(10, now)
        sent[place] = now
    [(backlog, cost)] = foreseen([pace], 10)
    assert cost == pytest.approx(100 * MILLISECOND, rel=0.01)
    assert backlog == pytest.approx(800 * MILLISECOND, rel=0.01)
    assert pace.lasting * 10 == pytest.approx(800 * MILLISECOND, rel=0.01)


def test_it_follows_a_server_that_becomes_slow() -> None:
    pace = Pace()
    for turn, took in enumerate([10] * 50 + [100] * 30):
        pace.on_sent(1, turn * 10**9)
        pace.on_answer(1, turn * 10**9, turn * 10**9 + took * MILLISECOND)
    assert pace.busy == pytest.approx(100 * MILLISECOND, rel=0.1)


def test_of_what_was_given_up_nothing_is_learned() -> None:
    pace = Pace()
    pace.on_sent(5, 0)
    pace.on_gone(5)
    pace.on_sent(1, 0)
    pace.on_answer(1, 0, MILLISECOND)
    assert foreseen([pace], 1) == [(0, MILLISECOND)]
