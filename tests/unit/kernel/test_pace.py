"""What is learned of how fast a server is."""

import pytest

from poise.kernel.pace import Pace
from poise.units import MILLISECOND


def test_nothing_is_foreseen_before_the_first_answer() -> None:
    pace = Pace()
    pace.on_sent(10, 0)
    assert (pace.cost(100), pace.backlog(), pace.lasting) == (0, 0, 0)


def test_one_after_the_other() -> None:
    pace = Pace()
    for turn in range(20):
        sent = turn * 1000 * MILLISECOND
        pace.on_sent(50, sent)
        pace.on_answer(50, sent, sent + 100 * MILLISECOND)  # and then it is idle, which is no work
    assert pace.cost(100) == pytest.approx(200 * MILLISECOND)
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
    assert pace.cost(10) == pytest.approx(100 * MILLISECOND, rel=0.01)
    assert pace.backlog() == pytest.approx(800 * MILLISECOND, rel=0.01)
    assert pace.lasting * 10 == pytest.approx(800 * MILLISECOND, rel=0.01)


def test_it_follows_a_server_that_becomes_slow() -> None:
    pace = Pace()
    for turn, took in enumerate([10] * 50 + [100] * 30):
        pace.on_sent(1, turn * 10**9)
        pace.on_answer(1, turn * 10**9, turn * 10**9 + took * MILLISECOND)
    assert pace.cost(1) == pytest.approx(100 * MILLISECOND, rel=0.1)


def test_of_what_was_given_up_nothing_is_learned() -> None:
    pace = Pace()
    pace.on_sent(5, 0)
    pace.on_gone(5)
    pace.on_sent(1, 0)
    pace.on_answer(1, 0, MILLISECOND)
    assert (pace.cost(1), pace.backlog()) == (MILLISECOND, 0)
