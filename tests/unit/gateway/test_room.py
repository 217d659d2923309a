"""For how many items of a batch there is memory: by hand."""

import pytest

from poise.drivers.memory import resident
from poise.gateway.room import Largest, Room

MIB = 1 << 20


def test_what_is_free_is_divided_by_what_an_item_takes() -> None:
    """The model holds 100 MiB, a batch of four 40 more; it has given 20 of these back, and 200 are free."""
    assert Largest(100 * MIB).room(4, 140 * MIB, 120 * MIB, 200 * MIB) == 4 + (160 - 20) // 10


def test_what_every_batch_takes_is_not_taken_for_that_of_one_item_for_long() -> None:
    memory = Largest(0)
    assert memory.room(1, 101 * MIB, 0, 500 * MIB) == 1 + (400 - 101) // 101
    assert memory.room(2, 102 * MIB, 0, 500 * MIB) == 2 + (400 - 102) // 51
    assert memory.room(50, 150 * MIB, 0, 500 * MIB) == 50 + (400 - 150) // 3


def test_a_smaller_batch_tells_what_is_free_now() -> None:
    memory = Largest(0)
    memory.room(8, 80 * MIB, 80 * MIB, 800 * MIB)
    assert memory.room(1, 10 * MIB, 80 * MIB, 100 * MIB) == 16
    assert memory.room(1, 10 * MIB, 0, 100 * MIB) == 8
    assert memory.room(1, 10 * MIB, 0, 50 * MIB) == 4
    assert memory.room(1, 10 * MIB, 0, 0) == 1


def test_where_batches_take_nothing_that_shows_nothing_is_said() -> None:
    assert Largest(100 * MIB).room(64, 100 * MIB, 100 * MIB, MIB) == 0


def test_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items of 20 MiB, where the job may hold 200 more than it does, and four fifths of these are given to a batch."""
    monkeypatch.setenv("POISE_MEMORY", str(resident() + 200 * MIB))
    room = Room()
    for items in (1, 2, 4):
        with room.taken_by(items):
            held = [b"x" * (20 * MIB) for _ in range(items)]
        del held
    assert 6 <= room.items <= 9


def test_of_a_batch_that_fails_nothing_is_learned() -> None:
    room = Room()
    with pytest.raises(MemoryError), room.taken_by(3):
        raise MemoryError
    assert room.items == 0
