"""Devices shared out by marginal worth, worked out by hand."""

from poise.model.jobs import Speedups
from poise.policy.elastic import Bid, share_out, speeds_with

CONCAVE = (0.0, 1.0, 1.8, 2.4, 2.7)
LINEAR = (0.0, 1.0, 2.0, 3.0, 4.0)


def test_equal_work_that_scales_alike_shares_evenly() -> None:
    """Steps are worth 1, 0.8, 0.6, 0.3 hundredths to each: 1, 1, 0.8, 0.8."""
    assert share_out([Bid("a", 0.01, CONCAVE), Bid("b", 0.01, CONCAVE, ordinal=1)], 4) == {"a": 2, "b": 2}


def test_what_is_shorter_gets_more() -> None:
    """a has half as much to do: its steps are worth 2, 1.6, 1.2, 0.6, those of b 1, 0.8, …: 2, 1.6, 1.2, 1."""
    assert share_out([Bid("a", 0.02, CONCAVE), Bid("b", 0.01, CONCAVE, ordinal=1)], 4) == {"a": 3, "b": 1}


def test_work_that_scales_without_loss_is_shortest_first() -> None:
    assert share_out([Bid("long", 0.01, LINEAR), Bid("short", 0.02, LINEAR, ordinal=1)], 4) == {"short": 4}


def test_a_gang_of_one_size_is_one_step() -> None:
    """The gang of two is worth 1 for 2 devices, 0.5 each; the elastic one 0.4, 0.32, 0.24, 0.12: gang, then two."""
    gang = Bid("gang", 0.01, (0.0, 0.0, 1.0), least=2)
    assert share_out([gang, Bid("a", 0.004, CONCAVE, ordinal=1)], 4) == {"gang": 2, "a": 2}


def test_a_gang_for_which_there_is_no_room_leaves_it_to_others() -> None:
    gang = Bid("gang", 0.01, (0.0, 0.0, 0.0, 1.0), least=3)
    assert share_out([gang, Bid("a", 0.004, CONCAVE, ordinal=1)], 2) == {"a": 2}


def test_steps_that_only_pay_together_are_taken_together() -> None:
    """Two tasks are as fast as one, three are 2.4 times as fast: 0.7 for each of two more."""
    jumps = Bid("a", 0.01, (0.0, 1.0, 1.0, 2.4))
    assert share_out([jumps, Bid("b", 0.0065, LINEAR, ordinal=1)], 3) == {"a": 3}
    assert share_out([jumps, Bid("b", 0.0075, LINEAR, ordinal=1)], 3) == {"a": 1, "b": 2}


def test_what_is_told_is_used_and_else_a_loss_is_taken_for_granted() -> None:
    assert speeds_with(Speedups((1000, 1900), (0, 1500, 2600)), 4) == (0.0, 1.0, 1.9, 2.6, 2.6)
    untold = speeds_with(None, 8)
    assert untold[1] == 1.0 and 4.5 < untold[8] < 5.0
