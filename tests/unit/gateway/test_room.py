"""For how many items of a batch there is memory."""

import subprocess
import sys
from collections.abc import Sequence

import pytest

from poise_serve.room import Room, Taken

MIB = 1 << 20


class Memory:
    """Of which `limit` MiB may be held; it is told how much is, and how much was at most."""

    def __init__(self, limit: int, held: int) -> None:
        self.limit, self.now, self.most, self.unused = limit, held, held, 0

    def held(self) -> int:
        return self.now * MIB

    def peak(self) -> int:
        return self.most * MIB

    def forget(self) -> None:
        self.most = self.now

    def free(self) -> int:
        return (self.limit - self.now) * MIB

    def give_back(self) -> None:
        self.now -= self.unused
        self.unused = 0


def rooms(memory: Memory, batches: Sequence[tuple[int, int, int]], first: int = 0) -> list[int]:
    """The room after each batch (items, MiB at its peak, MiB that it leaves behind unused), a second after the other.
    `first`: MiB that the first sets up and holds.
    """
    taken, told, largest = Taken(memory), [], 0
    for items, peak, left in batches:
        memory.most = max(memory.most, memory.now + peak)
        memory.now += first + max(0, left - memory.unused)
        memory.unused = max(left, memory.unused)
        first, largest = 0, max(largest, items)
        told.append(taken.room(items, largest, 1.0))
    return told


def test_four_fifths_of_what_is_free_are_divided_by_what_an_item_takes() -> None:
    assert rooms(Memory(500, 100), [(1, 10, 0), (1, 10, 0), (2, 20, 0), (4, 40, 0)]) == [0, 32, 32, 32]


def test_what_the_first_batch_sets_up_is_not_taken_for_that_of_its_items() -> None:
    assert rooms(Memory(700, 40), [(1, 401, 0), (1, 1, 0)], first=400) == [0, 208]


def test_one_large_item_is_forgotten_after_a_while() -> None:
    told = rooms(Memory(700, 40), [(1, 1, 0), (8, 8, 0), (8, 300, 0), *[(8, 8, 0)] * 40])
    assert told[1] == 528
    assert told[2] == int(0.8 * 660 / (300 / 8)) == 14
    assert told[2:] == sorted(told[2:]), "room comes back"
    assert told[-1] == 528


def test_what_a_batch_leaves_behind_for_the_next_is_not_free_and_can_be() -> None:
    """An allocator that keeps all: the second batch of eight grows nothing, and 180 of 300 MiB are held."""
    told = rooms(Memory(300, 20), [(1, 20, 20), (2, 40, 40), (4, 80, 80), (8, 160, 160), (8, 0, 160)])
    assert min(told[3:]) >= 8
    assert max(told) <= 13


def test_what_is_kept_for_ever_leaves_less_room() -> None:
    memory = Memory(1000, 50)
    told = rooms(memory, [(1, 10, 0), (8, 80, 0)])
    memory.now += 600
    memory.forget()
    assert told[-1] == 76
    assert rooms(memory, [(1, 10, 0), (8, 80, 0)])[-1] == 28


def test_where_batches_take_nothing_that_shows_nothing_is_said() -> None:
    assert rooms(Memory(300, 100), [(64, 0, 0)] * 3) == [0, 0, 0]


OF_A_PROCESS = f"""
import os
from poise.drivers.memory import resident
from poise_serve.room import Room
os.environ["POISE_MEMORY"] = str(resident() + 200 * {MIB})
room = Room(iter(range(10)).__next__)
for items in (1, 1, 2, 4):
    with room.taken_by(items):
        held = [b"x" * (20 * {MIB}) for _ in range(items)]
        del held
print(room.items)
"""


def test_of_a_process() -> None:
    """Items of 20 MiB, where the job may hold 200 more than it does, and four fifths of these are given to a batch. In
    a process of its own: memory of other tests may leave this one meanwhile.
    """
    ran = subprocess.run([sys.executable, "-c", OF_A_PROCESS], capture_output=True, text=True, check=True)
    assert 6 <= int(ran.stdout) <= 9


def test_of_a_batch_that_fails_nothing_is_learned() -> None:
    room = Room()
    with pytest.raises(MemoryError), room.taken_by(3):
        raise MemoryError
    assert room.items == 0


def test_a_limit_that_is_no_number_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POISE_MEMORY", "1GiB")
    with Room().taken_by(1):
        pass
