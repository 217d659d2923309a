"""Reservations in the twin: firm ones begin in time in every seed, and the chance of soft ones follows what runs."""

import random

import pytest

from poise.drivers.calendar import shifts
from poise.engine.keeping import chance_of
from poise.engine.lookahead import Bounds
from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.kernel.ledger import Ledger
from poise.kernel.messages import Reserve
from poise.kernel.reserved import others_on
from poise.model.jobs import Priority, Task, Unit
from poise.model.reservations import Window, Zones, compile_reservations
from poise.model.resources import Shape
from poise.model.workload import Arrival, Steady, Truth
from poise.policy.suites import policy_named
from poise.testing import node
from poise.units import HOUR, MINUTE, SECOND

FIRST_LOOK = 20 * MINUTE


def busy_twin(seed: int, policy: str) -> Twin:
    """Three nodes with more work than they can do: of known and unknown run time, some of it not preemptible."""
    chance = random.Random(seed)  # noqa: S311 — a world
    twin = Twin(policy_named(policy), Settings(policy=policy), ledger=Ledger())
    twin.add_nodes([node(f"n{number}", cpu=2) for number in range(1, 4)])
    for number in range(60):
        stays = chance.random() < 0.3
        limit = chance.choice((10, 30, 60)) * MINUTE if stays else 0
        unit = Unit(
            name="main",
            tasks=(Task(name="main", argv=("work",)),),
            shape=Shape(cpu=1000 * chance.choice((1, 2))),
            priority=Priority.MEDIUM,
            kind=f"k{number}" if chance.random() < 0.5 else "same",
            expect=chance.choice((0, 5 * MINUTE, 40 * MINUTE)),
            preemptible=not stays,
            time_limit=limit,
        )
        seconds = chance.expovariate(1 / (30 * 60)) + 1
        run = min(seconds, 0.9 * limit / SECOND) if stays else seconds
        at = round(chance.uniform(0, 90) * MINUTE)
        twin.arrive(Arrival(at=at, units=(unit,), truths={"main": Truth(pace=Steady(run))}, name=f"j{number}"))
    return twin


def reserved(twin: Twin, **fields: object) -> Window:
    """Reserve one node in 40 minutes; return the window."""
    entry = {"name": "kept", "tenant": "team", "nodes": 1, "from": "+40m", "for": "1h"} | fields
    now = twin.now + twin.began
    zones = Zones(twin.ledger.leader.wall(now), shifts)
    wanted = compile_reservations({"kind": "reservations", "reservations": [entry]}, zones)
    twin.host.ask(lambda request: Reserve(request, wanted), lambda reply: None)
    twin.run(twin.now + SECOND)
    [name] = twin.ledger.reservations
    return next(twin.ledger.reservations.windows(name, now))


@pytest.mark.parametrize("policy", ["poise", "fifo"])
@pytest.mark.parametrize("seed", range(2))
def test_a_firm_reservation_begins_within_a_second_in_every_seed(seed: int, policy: str) -> None:
    twin = busy_twin(seed, policy)
    twin.run(SECOND)
    window = reserved(twin)
    twin.run(window.begin - twin.began + SECOND)
    assert not others_on(twin.ledger, window)
    twin.run(window.end - twin.began - SECOND)
    assert not others_on(twin.ledger, window)
    twin.run(window.end - twin.began + HOUR)
    twin.ledger.check()
    assert not twin.ledger.reservations


def test_the_chance_of_a_window_is_between_none_and_all_behind_work_that_may_last() -> None:
    twin = busy_twin(1, "poise")
    twin.run(FIRST_LOOK)
    window = reserved(twin, soft=True)
    now = twin.now + twin.began
    told = chance_of(twin.ledger.fork(), policy_named("poise"), window, now, lambda: 0.0, bounds=Bounds(futures=5))
    again = chance_of(twin.ledger.fork(), policy_named("poise"), window, now, lambda: 0.0, bounds=Bounds(futures=5))
    assert told == again
    assert told.futures == 5
    assert 0 < told.thousandths < 1000
