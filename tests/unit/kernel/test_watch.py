import sys
from random import Random
from types import FrameType
from typing import Any

import pytest

from poise.kernel.watch import Change, Watch
from poise.model.events import Triggered
from poise.model.load import Load, level_of
from poise.model.triggers import Triggers
from poise.testing import World
from poise.units import MILLISECOND, SECOND

BUSY = Load(cpu=900, load1=1500)
MEDIUM = Load(cpu=700, load1=900)


def test_a_level_is_taken_for_what_it_is_once_it_has_stayed() -> None:
    watch = Watch(Triggers(settles=5 * SECOND, hot_above=1001))
    watch.load("n1", MEDIUM, 10 * SECOND)
    assert watch.due() == 15 * SECOND
    assert watch.settled(14 * SECOND) == []
    assert watch.settled(15 * SECOND) == [Change("n1", 1, False)]
    watch.load("n1", Load(), 20 * SECOND)
    watch.load("n1", MEDIUM, 22 * SECOND)  # it was a dip
    assert watch.settled(30 * SECOND) == []


def test_a_node_is_hot_after_a_window_above_and_cools_after_one_below_a_lower_threshold() -> None:
    watch = Watch(Triggers(settles=10**18, hot_above=800, cool_below=700, hot_for=30 * SECOND))
    watch.load("n1", Load(cpu=850), 0 * SECOND + 1)
    watch.load("n1", Load(cpu=810), 29 * SECOND)
    assert watch.settled(29 * SECOND) == []
    assert watch.settled(30 * SECOND + 1) == [Change("n1", 0, True)]
    watch.load("n1", Load(cpu=750), 40 * SECOND)  # below the upper threshold, above the lower one: still hot
    assert watch.settled(100 * SECOND) == []
    watch.load("n1", Load(cpu=650), 100 * SECOND)
    assert watch.settled(130 * SECOND) == [Change("n1", 0, False)]


def test_other_thresholds_count_from_when_they_are_set() -> None:
    watch = Watch(Triggers(settles=5 * SECOND, hot_above=1001))
    watch.load("n1", MEDIUM, 10 * SECOND)
    watch.triggers = Triggers(settles=2 * SECOND, hot_above=1001)
    assert watch.due() == 12 * SECOND
    assert watch.settled(12 * SECOND) == [Change("n1", 1, False)]
    assert watch.due() is None


def test_a_node_that_is_forgotten_is_not_told_of() -> None:
    watch = Watch(Triggers())
    watch.load("n1", BUSY, 10 * SECOND)
    watch.forget("n1")
    assert watch.due() is None
    assert watch.settled(100 * SECOND) == []


def test_a_look_costs_the_same_however_many_nodes_may_be_told_of_later() -> None:
    """After a restart of the control plane these are all that are busy."""

    def lines(nodes: int) -> int:
        watch, count = Watch(Triggers()), 0
        for number in range(nodes):
            watch.load(f"n{number}", BUSY, 10 * SECOND + number)

        def counted(frame: FrameType, event: str, _: object) -> Any:
            nonlocal count
            count += event == "line"
            return counted

        before = sys.gettrace()
        sys.settrace(counted)
        try:
            assert watch.settled(11 * SECOND) == []
            assert watch.due() == 15 * SECOND
        finally:
            sys.settrace(before)
        return count

    assert lines(10) == lines(1000)


@pytest.mark.parametrize("seed", range(20))
def test_what_settles_is_found_as_if_all_were_looked_at(seed: int) -> None:
    chance = Random(seed)  # noqa: S311 — the same each time
    watch, triggers, now = Watch(Triggers()), Triggers(), 0
    level, hot = dict[str, int](), dict[str, bool]()
    level_since, hot_since = dict[str, int](), dict[str, int]()
    for _ in range(400):
        now += chance.choice([SECOND // 2, 3 * SECOND])
        name, load = f"n{chance.randrange(4)}", chance.choice([Load(), MEDIUM, BUSY])
        watch.load(name, load, now)
        kept = level_of(load) == level.get(name, 0)
        level_since[name] = 0 if kept else level_since.get(name) or now
        threshold = triggers.cool_below if hot.get(name) else triggers.hot_above
        kept = (load.cpu > threshold) == hot.get(name, False)
        hot_since[name] = 0 if kept else hot_since.get(name) or now
        expected = set()
        for one in level_since:
            before = level.get(one, 0), hot.get(one, False)
            if level_since[one] and now - level_since[one] >= triggers.settles:
                level[one], level_since[one] = level_of(watch.load_of(one) or Load()), 0
            if hot_since[one] and now - hot_since[one] >= triggers.hot_for:
                hot[one], hot_since[one] = not hot.get(one, False), 0
            after = level.get(one, 0), hot.get(one, False)
            if after != before:
                expected.add(Change(one, *after))
        assert set(watch.settled(now)) == expected


def test_failed_checks_fire_once_in_a_row() -> None:
    watch = Watch(Triggers(failed_checks=3, heartbeat=SECOND))
    assert watch.silent_at("n1", heard=5 * SECOND) == 8 * SECOND
    assert watch.silent("n1", 2 * SECOND) is None
    fired = watch.silent("n1", 3 * SECOND)
    assert fired is not None
    assert (fired.trigger, fired.subject, fired.have) == ("failed-checks", "n1", "3 in a row")
    assert watch.silent("n1", 4 * SECOND) is None
    assert watch.silent("n1", 0) is None
    assert watch.silent("n1", 3 * SECOND) is not None


def test_the_mean_response_fires_when_it_crosses_and_again_only_after_it_was_clearly_below() -> None:
    watch = Watch(Triggers(response_above=200 * MILLISECOND))
    fired = [bool(watch.response(400 * MILLISECOND)) for _ in range(20)]
    assert fired == [number == 5 for number in range(20)]  # 400 (1 - (7/8)^6) = 221
    assert [bool(watch.response(190 * MILLISECOND)) for _ in range(40)] == [False] * 40
    assert [bool(watch.response(400 * MILLISECOND)) for _ in range(10)] == [False] * 10, "it was never below 180"
    for _ in range(40):
        watch.response(10 * MILLISECOND)
    assert [bool(watch.response(400 * MILLISECOND)) for _ in range(10)].count(True) == 1


def test_use_fires_when_it_stays_above() -> None:
    watch = Watch(Triggers(use_above=900, use_for=10 * SECOND))
    assert watch.use(950, 1 * SECOND) is None
    assert watch.due() == 11 * SECOND
    assert watch.use(850, 5 * SECOND) is None  # between the thresholds: it goes on
    fired = watch.use(950, 11 * SECOND)
    assert fired is not None
    assert (fired.trigger, fired.have) == ("use", "95 %")
    assert watch.due() is None
    assert watch.use(1000, 30 * SECOND) is None
    watch.use(500, 31 * SECOND)
    assert watch.use(950, 32 * SECOND) is None
    assert watch.use(950, 42 * SECOND) is not None


def test_what_fires_forces_a_round_that_is_told_of_it_and_is_in_the_log() -> None:
    world = World().nodes(1, cpu=1).job("a", cpu=1).after("1s").start("a")
    world.after("15s")
    assert [(event.trigger, event.have) for event in world.log if isinstance(event, Triggered)] == [("use", "100 %")]
