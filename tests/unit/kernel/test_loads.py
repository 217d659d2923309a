"""The load of a log: what counts, when, and for whom."""

import pytest

from poise.control.load import load_forecasts
from poise.kernel.ledger import Ledger
from poise.kernel.loads import Loads
from poise.kernel.messages import HearServices
from poise.model.served import Served
from poise.testing import World
from poise.units import HOUR, MINUTE


def read(world: World, by: str = "fleet", counted: str = "units") -> Loads:
    loads = Loads(Ledger(), HOUR, by, counted)
    for event in world.log:
        loads.add(event)
    return loads


def hourly(world: World, counts: list[int], **fields: object) -> World:
    for count in counts:
        for _ in range(count):
            world.submit({"run": "x", **fields})
        world.after("1h")
    return world


def amounts(loads: Loads, subject: str, until: int) -> list[float]:
    return [amount for _, amount in loads.series(subject, until)]


def test_units_count_in_the_hour_of_their_submission() -> None:
    world = hourly(World().nodes(1, cpu=64), [1, 3, 0, 2])
    assert amounts(read(world), "fleet", world.now) == [3, 0, 2]  # the first hour may have begun before the log


def test_subjects_and_amounts_are_those_that_were_asked_for() -> None:
    world = World().nodes(4, cpu=64, gpus=8)
    hourly(world, [1])
    world.submit({"run": "x", "class": "train", "resources": {"gpu": 2, "cpu": 4}, "workers": 3}, tenant="ann")
    world.submit({"run": "x", "class": "eval", "priority": "high", "resources": {"cpu": 2}})
    world.after("1h")
    assert amounts(read(world, "tenant", "devices"), "ann", world.now) == [6]
    assert read(world, "priority").subjects() == ["medium", "high"]
    assert amounts(read(world, "class"), "eval", world.now) == [1]


def test_schedules_are_announced_and_do_not_count_as_load() -> None:
    world = hourly(World().nodes(1, cpu=64), [1] * 30)
    world.submit({"run": "x", "name": "often", "every": "30m", "overlap": "allow"})
    for _ in range(12):
        world.tick().after("15m")
    loads = read(world)
    assert sum(amounts(loads, "fleet", world.now)) == 29
    [told] = load_forecasts(loads, world.now, HOUR, 6, "fleet", "units")
    assert [window.announced for window in told.windows[1:-1]] == [2.0] * 4
    assert told.windows[1].expected >= 2.0


def test_work_that_begins_later_counts_when_it_begins() -> None:
    world = hourly(World().nodes(1, cpu=64), [1, 1])
    world.submit({"run": "x", "begin": "3h"})
    [told] = load_forecasts(read(world), world.now + MINUTE, HOUR, 6, "fleet", "units")
    assert [window.announced for window in told.windows] == [0, 0, 0, 1, 0, 0]


def test_the_load_of_a_service_is_its_mean_rate() -> None:
    """It has four requests a second for half of each hour, and one for the other half. Then its gateway is silent."""
    world = World(check=False).nodes(1)
    world.submit({"run": "x", "name": "often", "every": "30m"}).after("1h")
    for minute in range(6 * 60):
        rate = 4_000 if minute % 60 < 30 else 1_000
        world.ask(HearServices(world.request(), "ann", "g", {"ann:chat": Served(rate=rate)})).after("1m")
    world.after("3h")
    loads = read(world, "service", "requests per second")
    assert loads.subjects() == ["ann:chat"]
    found = amounts(loads, "ann:chat", world.now)
    assert found[1:6] == [pytest.approx(2.5, abs=0.06)] * 5
    assert found[-2:] == [0, 0]
    [told] = load_forecasts(loads, world.now, HOUR, 3, "service", "requests per second")
    assert len(told.windows) == 3
    assert (told.subject, told.counted) == ("ann:chat", "requests per second")
