"""Load levels: two signals together, never one alone."""

import doctest

import pytest

from poise.model import load
from poise.model.load import LEVELS, Limits, Load, Pace, has_changed, level_of


def test_the_examples_of_the_docstring() -> None:
    assert doctest.testmod(load).failed == 0


@pytest.mark.parametrize(
    ("cpu", "load1", "level"),
    [
        (0, 0, "low"),
        (1000, 699, "low"),
        (599, 9000, "low"),
        (600, 700, "medium"),
        (850, 1199, "medium"),
        (849, 1200, "medium"),
        (850, 1200, "high"),
        (1000, 5000, "high"),
    ],
)
def test_a_level_holds_only_when_both_signals_reach_it(cpu: int, load1: int, level: str) -> None:
    assert LEVELS[level_of(Load(cpu=cpu, load1=load1, memory=1000, disk=1000, network=1000))] == level


def test_thresholds_can_be_set() -> None:
    limits = Limits(cpu_medium=100, cpu_high=200, load1_medium=100, load1_high=200)
    assert level_of(Load(cpu=150, load1=150)) == 0
    assert level_of(Load(cpu=150, load1=150), limits) == 1


def test_only_a_noticeable_change_is_worth_a_message() -> None:
    said = Load(cpu=500, memory=300)
    assert has_changed(None, said)
    assert not has_changed(said, Load(cpu=549, memory=251))
    assert has_changed(said, Load(cpu=550, memory=300))
    assert has_changed(said, Load(cpu=500, memory=300, disk=50))


def test_it_is_looked_often_while_something_changes_or_happens() -> None:
    pace = Pace(fast=1, slow=5)
    assert [pace.after(Load(cpu=cpu)) for cpu in (100, 110, 120, 130, 145)] == [1, 2, 4, 5, 5]
    assert pace.after(Load(cpu=150)) == 1, "what creeps is noticed once it has gone far enough"
    assert [pace.after(Load(cpu=150)) for _ in range(2)] == [2, 4]
    pace.stir()
    assert [pace.after(Load(cpu=150)) for _ in range(2)] == [2, 4]
