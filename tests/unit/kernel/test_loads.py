"""The load of a log: what counts, when, and for whom."""

import pytest

from poise.control.load import forecast_of, load_forecasts
from poise.kernel.ledger import Ledger
from poise.kernel.loads import Loads
from poise.kernel.messages import HearServices
from poise.model.calendar import CalendarEvent
from poise.model.scaling import Announced
from poise.model.served import Served
from poise.testing import World
from poise.units import DAY, HOUR, MINUTE


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


def test_events_of_a_calendar_change_the_forecast_and_not_what_is_learned() -> None:
    """Eight submissions an hour, twice as many in the last two hours, which were an event."""
    world = hourly(World(check=False).nodes(1, cpu=64), [8] * 30 + [16] * 2)
    loads = read(world)
    hour = loads.window_of(world.now) * HOUR
    past = Announced(hour - 2 * HOUR, 0.0, hour, 2.0, 0, "launch")
    next_one = Announced(hour + 2 * HOUR, 0.0, hour + 3 * HOUR, 3.0, 0, "sale")
    quiet = Announced(hour + 4 * HOUR, 0.0, hour + 5 * HOUR, 0.0, 0, "closed")
    events = [CalendarEvent(by="", of="", announced=(one,)) for one in (past, next_one, quiet)]
    [told] = load_forecasts(loads, world.now, HOUR, 6, "fleet", "units", events=events)
    assert [round(window.expected) for window in told.windows] == [8, 8, 24, 8, 0, 8]
    assert [window.events for window in told.windows] == [(), (), ("sale",), (), ("closed",), ()]
    assert told.windows[2].low is not None and told.windows[2].low > 16
    others = [CalendarEvent(by="tenant", of="bob", announced=(next_one,))]
    [same] = load_forecasts(loads, world.now, HOUR, 6, "tenant", "units", ["default"], others)
    assert all(not window.events for window in same.windows)


def test_a_holiday_is_as_a_sunday() -> None:
    """Four weeks of ten units an hour on working days, and one an hour at weekends. A Friday is to be as a Sunday."""
    first = next(day for day in range(20_000, 20_007) if (day + 3) % 7 == 0)  # a Monday, in days since 1970
    series = []
    for hour in range(4 * 7 * 24 + 4 * 24):
        day = first + hour // 24
        series.append((day * DAY + hour % 24 * HOUR, 1.0 if (day + 3) % 7 >= 5 else 10.0))
    friday = first + 4 * 7 + 4
    holiday = Announced(friday * DAY, 0.0, (friday + 1) * DAY, 1.0, 5, "holiday")
    plain, told = (
        forecast_of("fleet", "units", series, HOUR, 30, friday * 24, {}, events) for events in ((), (holiday,))
    )
    assert {round(window.expected) for window in plain.windows[:24]} == {10}
    assert {round(window.expected) for window in told.windows[:24]} == {1}
    assert [window.expected for window in told.windows[24:]] == [window.expected for window in plain.windows[24:]]
