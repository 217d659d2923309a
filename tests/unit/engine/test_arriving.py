"""Other jobs in simulated futures: their rates, and the events of a calendar that change them."""

from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from poise.engine.arriving import Stream, streams
from poise.engine.futures import MOST_OTHERS, Draws
from poise.kernel.ledger import Ledger
from poise.model.calendar import CalendarEvent
from poise.model.scaling import Announced
from poise.model.workload import Arrival
from poise.units import DAY, HOUR, MINUTE, SECOND
from unit.engine.test_twin import Run, arrival, node

BEGINS = 2 * 3600
"""Seconds after the beginning of the world: the jobs of `regular` come from then on."""


def of_tenant(one: Arrival, tenant: str) -> Arrival:
    return msgspec.structs.replace(one, tenant=tenant)


def regular(*arrivals: Arrival) -> tuple[Ledger, int]:
    """A world as of the last of these arrivals."""
    run = Run("fifo", [node("n1")], list(arrivals))
    run.twin.run(arrivals[-1].at + SECOND)
    return run.twin.ledger, list(run.twin.ledger.jobs.values())[-1].submitted


def every(minutes: float, count: int) -> tuple[Ledger, int]:
    return regular(*(arrival(BEGINS + number * minutes * 60, 1.0) for number in range(count)))


def event(ledger: Ledger, now: int, begins: int, ends: int, by: str = "", of: str = "", **effect: Any) -> CalendarEvent:
    """An event between two times from now."""
    wall = round(ledger.leader.wall(now) * SECOND)
    announced = Announced(wall + begins, 0.0, wall + ends, **{"name": "launch"} | effect)
    return CalendarEvent(by=by, of=of, announced=(announced,))


def times(ledger: Ledger, now: int, *events: CalendarEvent) -> list[tuple[int, str]]:
    """The arrivals of a future: nanoseconds from now, and the tenant."""
    others = streams(ledger, now, [], events)
    drawn = Draws(ledger, now, {}, [], others=others).draw(Random(3))  # noqa: S311
    return [(one.at, one.tenant) for one in drawn.arrivals]


def by_hour(arrivals: list[tuple[int, str]]) -> list[int]:
    """How many come after now and until the end of the first hour, of the second, and so on: six whole ones."""
    hours = Counter((at - 1) // HOUR for at, _ in arrivals)
    return [hours[hour] for hour in range(6)]


def test_a_factor_multiplies_the_arrivals_in_the_hours_of_its_event_only() -> None:
    """A job every ten minutes is six an hour; three times as many in the second hour, none in the fourth,
    from five past on.
    """
    ledger, now = every(10, 20)
    assert by_hour(times(ledger, now)) == [6] * 6
    events = [
        event(ledger, now, HOUR, 2 * HOUR, times=3.0),
        event(ledger, now, 3 * HOUR + 5 * MINUTE, 4 * HOUR + 5 * MINUTE, times=0.0),
        event(ledger, now, 5 * HOUR, 5 * HOUR + 30 * MINUTE, times=2.0),
    ]
    told = times(ledger, now, *events)
    assert by_hour(told) == [6, 18, 6, 0, 6, 9]
    assert [at for at, _ in told[6:9]] == pytest.approx([HOUR + n * HOUR // 18 for n in (1, 2, 3)], abs=SECOND)
    assert len(told) == MOST_OTHERS
    assert told == times(ledger, now, *events), "the same seed"


def test_events_at_the_same_time_multiply_each_other() -> None:
    ledger, now = every(10, 20)
    events = [event(ledger, now, 0, 2 * HOUR, times=2.0), event(ledger, now, HOUR, 3 * HOUR, times=0.5)]
    assert by_hour(times(ledger, now, *events)) == [12, 6, 3, 6, 6, 6]


@pytest.mark.parametrize(("by", "of"), [("tenant", "ann"), ("class", "train")])
def test_an_event_concerns_its_tenant_or_class_only(by: str, of: str) -> None:
    """Ann trains every twenty minutes, Bob works every twenty minutes."""
    jobs = []
    for number in range(20):
        made = arrival(BEGINS + number * 600, 1.0)
        if number % 2:
            train = msgspec.structs.replace(made.units[0], kind="train")
            made = of_tenant(msgspec.structs.replace(made, units=(train,)), "ann")
        jobs.append(of_tenant(made, "bob") if not number % 2 else made)
    ledger, now = regular(*jobs)
    told = times(ledger, now, event(ledger, now, HOUR, 2 * HOUR, by, of, times=4.0))
    assert by_hour([one for one in told if one[1] == "ann"])[:4] == [3, 12, 3, 3]
    assert by_hour([one for one in told if one[1] == "bob"])[:4] == [3, 3, 3, 3]
    service = event(ledger, now, HOUR, 2 * HOUR, "service", "chat", times=4.0)
    assert times(ledger, now, service) == times(ledger, now)


def test_the_latest_rate_is_free_of_past_events() -> None:
    """A job every ten minutes; in the latest hour every two minutes, which an event of five times the load explains."""
    usual = [arrival(BEGINS + number * 600, 1.0) for number in range(13)]
    rush = [arrival(BEGINS + 7200 + number * 120, 1.0) for number in range(1, 31)]
    ledger, now = regular(*usual, *rush)
    past = event(ledger, now, -HOUR, 0, times=5.0)
    assert by_hour(times(ledger, now, past)) == [6] * 6
    assert by_hour(times(ledger, now, past, event(ledger, now, 0, HOUR, times=5.0))) == [30, *[6] * 5]
    [stream] = streams(ledger, now, [], [past])
    assert stream.gaps == pytest.approx([10 * MINUTE] * 42, abs=SECOND)
    assert stream.events == (), "it is over"


def test_a_day_like_another_one_has_its_rate() -> None:
    """Six an hour for two weeks, on Sundays one an hour. On the next day, it is like Sunday for three hours."""
    first = arrival(0, 1.0)
    run = Run("fifo", [node("n1")], [first])
    run.twin.run(SECOND)
    began = run.twin.ledger.leader.wall(run.twin.ledger.jobs["j1"].submitted)
    left = 86400 - began % 86400
    day = int((began + left) // 86400)
    jobs = []
    for number in range(15):
        sunday = (day + number) % 7 == 3  # the beginning of 1970 was a Thursday
        often = 1 if sunday else 6
        jobs += [arrival(left + number * 86400 + (place + 0.5) * 3600 / often, 1.0) for place in range(24 * often)]
    ledger, _ = regular(first, *jobs)
    now = ledger.leader.instant(began + left + 15 * 86400)
    weekday = (day + 15 + 3) % 7  # counted from Monday
    like = event(ledger, now, 0, 3 * HOUR, days=(weekday - 6) % 7 or 7)
    [stream] = streams(ledger, now, [], [like])
    rate = len(stream.jobs) / (now - list(ledger.jobs.values())[-len(stream.jobs) - 1].submitted)
    assert [pace * rate * HOUR for _, pace in stream.paces[:3]] == pytest.approx([1.0] * 3, rel=0.01)
    assert sum(length for length, _ in stream.paces[:3]) == pytest.approx(3 * HOUR, abs=SECOND)
    usual = [pace * rate * HOUR for _, pace in stream.paces[3:]] or [rate * HOUR]
    assert usual == pytest.approx([6.0] * len(usual), rel=0.1)


def test_an_event_that_is_far_away_changes_nothing() -> None:
    ledger, now = every(10, 20)
    [stream] = streams(ledger, now, [], [event(ledger, now, 40 * DAY, 41 * DAY, times=3.0)])
    assert stream == streams(ledger, now, [])[0] == Stream(stream.jobs, (600 * SECOND,) * 19)
