"""Members that differ from their gang: found soon, and nobody else."""

import numpy as np
import pytest

from poise.engine.telemetry import AT, FAULTS, Gang, gang_of
from poise.kernel.peers import FEWEST, LEARNS, WINDOWS, Differs, Peers, worst

TUNED = range(1, 301)
"""Seeds on which the constants were chosen; those below are others."""


def watched(gang: Gang, **options: bool | int) -> tuple[Differs | None, int]:
    """Who differs first, and in which minute."""
    peers = Peers(gang.values.shape[1], gang.values.shape[2], **options)  # type: ignore[arg-type]
    for minute, values in enumerate(gang.values):
        found = worst(peers.take(values))
        if found is not None:
            return found, minute
    return None, len(gang.values)


@pytest.mark.parametrize("seed", range(20_001, 20_041))
def test_the_sick_member_of_a_gang_and_nobody_of_a_healthy_one(seed: int) -> None:
    gang = gang_of(seed)
    found, minute = watched(gang)
    assert (found.member if found is not None else -1) == gang.member
    if found is not None:
        assert minute >= gang.since


def test_every_kind_of_fault_is_among_them() -> None:
    assert {gang_of(seed).fault for seed in range(20_001, 20_041)} == {*FAULTS, None}


def test_a_burst_of_two_minutes_is_nothing() -> None:
    values = np.full((30, 8, 1), 300.0)
    values[20 : 20 + WINDOWS - 1, 3] = 900.0
    assert watched(Gang(values, None, -1, -1)) == (None, 30)
    values[20 : 20 + WINDOWS, 3] = 900.0
    found, minute = watched(Gang(values, None, -1, -1))
    assert found is not None
    assert (found.member, found.value, found.others, minute) == (3, 900.0, 300.0, 20 + WINDOWS - 1)


def test_what_all_members_do_together_is_no_difference() -> None:
    values = np.full((40, 8, 1), 300.0)
    values[20:] = 50.0
    assert watched(Gang(values, None, -1, -1))[0] is None


def test_who_always_has_more_to_do_is_not_sick_and_is_found_when_that_changes() -> None:
    values = np.full((40, 8, 1), 300.0)
    values[:, 0] = 600.0
    assert watched(Gang(values, None, -1, -1))[0] is None
    values[30:, 0] = 950.0
    assert watched(Gang(values, None, -1, -1))[1] == 30 + WINDOWS - 1


def test_where_half_of_the_members_differ_they_do_different_work() -> None:
    values = np.full((40, 8, 1), 300.0)
    values[20:, :4] = 900.0
    assert watched(Gang(values, None, -1, -1))[0] is None


def test_signals_that_nobody_measures_and_gangs_that_are_too_small() -> None:
    values = np.full((40, 8, 2), 300.0)
    values[:, :, 1] = np.nan
    values[30:, 2, 0] = 900.0
    found = watched(Gang(values, None, -1, -1))[0]
    assert found is not None
    assert (found.member, found.signal) == (2, 0)
    small = np.full((LEARNS + 20, FEWEST - 1, 1), 300.0)
    small[LEARNS + 5 :, 0] = 900.0
    assert watched(Gang(small, None, -1, -1))[0] is None


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="needed"):
        Peers(4, 2).take(np.zeros((3, 2)))


def test_the_straggler_is_told_apart_although_it_is_the_others_that_change() -> None:
    gang = next(of for seed in range(20_001, 20_400) if (of := gang_of(seed)).fault == "straggler")
    found = watched(gang)[0]
    assert found is not None
    assert (found.member, found.value > found.others or found.signal == AT["network"]) == (gang.member, True)
