"""Devices shared out by marginal worth, worked out by hand."""

from poise.model.jobs import Speedups
from poise.policy.elastic import Bid, share_out, speeds_with, worth_having

CONCAVE = (0.0, 1.0, 1.8, 2.4, 2.75)
LINEAR = (0.0, 1.0, 2.0, 3.0, 4.0)


def test_equal_work_that_scales_alike_shares_evenly() -> None:
    """Steps are worth 1, 0.8, 0.6, 0.35 hundredths to each: 1, 1, 0.8, 0.8."""
    assert share_out([Bid(0.01, CONCAVE), Bid(0.01, CONCAVE)], 4) == [2, 2]


def test_what_is_shorter_gets_more() -> None:
    """The first has half as much to do: its steps are worth 2, 1.6, 1.2, 0.7, those of the second 1, 0.8, …."""
    assert share_out([Bid(0.02, CONCAVE), Bid(0.01, CONCAVE)], 4) == [3, 1]


def test_work_that_scales_without_loss_is_shortest_first() -> None:
    assert share_out([Bid(0.01, LINEAR), Bid(0.02, LINEAR)], 4) == [0, 4]


def test_a_gang_of_one_size_is_one_step() -> None:
    """The gang of two is worth 1 for 2 devices, 0.5 each; the other 0.4, 0.32, 0.24, 0.14: the gang, then two."""
    assert share_out([Bid(0.01, (0.0, 0.0, 1.0), least=2), Bid(0.004, CONCAVE)], 4) == [2, 2]


def test_a_gang_for_which_there_is_no_room_leaves_it_to_others() -> None:
    assert share_out([Bid(0.01, (0.0, 0.0, 0.0, 1.0), least=3), Bid(0.004, CONCAVE)], 2) == [0, 2]


def test_steps_that_only_pay_together_are_taken_together() -> None:
    """Two tasks are as fast as one, three are 2.4 times as fast: 0.7 for each of two more."""
    jumps = Bid(0.01, (0.0, 1.0, 1.0, 2.4))
    assert share_out([jumps, Bid(0.0065, LINEAR)], 3) == [3, 0]
    assert share_out([jumps, Bid(0.0075, LINEAR)], 3) == [1, 2]


def test_tasks_that_bring_too_little_are_left_to_others() -> None:
    """The fourth brings a fifth of what the first does, though nobody else wants its device."""
    assert share_out([Bid(0.01, (0.0, 1.0, 1.8, 2.4, 2.6))], 4) == [3]


def test_what_is_told_is_used_and_else_a_loss_is_taken_for_granted() -> None:
    """Untold, the eighth task brings 4.71 - 4.38 = 0.33, and the ninth 0.29."""
    assert speeds_with(Speedups((1000, 1900), (0, 1500, 2600)), 4) == (0.0, 1.0, 1.9, 2.6, 2.6)
    assert worth_having(speeds_with(None, 16), 1) == 8
