"""A request that its servers die of is held for ever longer, and one that did no harm is cleared."""

from poise.units import MINUTE, SECOND
from poise_serve.kernel.quarantine import FORGOTTEN, LONGEST, MOST, Quarantine, digest

POISON = digest(b"m", b"kill")


def test_a_request_is_held_from_its_second_loss_on_and_let_through_one_at_a_time() -> None:
    quarantine = Quarantine()
    assert not quarantine
    assert quarantine.lost(POISON, 0) == 0
    assert (quarantine.held(POISON, SECOND), quarantine.suspects(POISON, SECOND)) == (0, True)
    assert quarantine.lost(POISON, SECOND) == MINUTE
    assert quarantine.held(POISON, 2 * SECOND) == MINUTE - SECOND
    assert quarantine.held(POISON, SECOND + MINUTE) == 0, "on trial"
    assert quarantine.held(POISON, SECOND + MINUTE) == MINUTE, "and only one"
    assert quarantine.lost(POISON, 2 * MINUTE) == 2 * MINUTE
    assert [quarantine.lost(POISON, 2 * MINUTE) for _ in range(20)][-1] == LONGEST


def test_an_answer_clears_it_and_so_does_time() -> None:
    quarantine = Quarantine()
    for is_answered in (True, False):
        quarantine.lost(POISON, 0)
        quarantine.lost(POISON, 0)
        if is_answered:
            quarantine.answered(POISON)
        assert quarantine.held(POISON, FORGOTTEN + 1) == 0
        assert not quarantine.suspects(POISON, FORGOTTEN + 1)
        assert not quarantine


def test_what_one_server_served_twice_at_once_is_lost_once() -> None:
    quarantine = Quarantine()
    assert quarantine.lost(POISON, 0, "a") == quarantine.lost(POISON, 1, "a") == quarantine.held(POISON, 2) == 0
    assert quarantine.lost(POISON, 3, "b") == MINUTE, "another server"
    assert quarantine.lost(POISON, 4, "b") == MINUTE - 1
    assert quarantine.lost(POISON, 2 * SECOND, "b") == 2 * MINUTE, "the same, started again"


def test_as_many_are_remembered_as_there_is_room_for() -> None:
    quarantine = Quarantine()
    for number in range(MOST + 1):
        quarantine.lost(digest(b"%d" % number), number)
    assert [quarantine.suspects(digest(b"%d" % number), MOST) for number in (0, 1, MOST)] == [False, True, True]


def test_the_key_tells_where_one_part_ends() -> None:
    assert digest(b"ab", b"c") != digest(b"a", b"bc")
