"""Observers are told of events, rounds and commits, and none can slow or break a round."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from poise.control.observers import WAITING, Observers, Timings
from poise.kernel.messages import FromNode, Submit
from poise.model.events import Event
from poise.model.messages import Hello
from poise.model.observed import CommitTook, Happened, Observed, RoundTook
from poise.model.spec import compile_spec
from poise.model.tenants import HOME
from poise.testing import node
from unit.control.open_door import OpenDoor, open_door

LONGEST = 30.0


class Kept:
    """Keeps all that it is told; `until` waits for something."""

    def __init__(self) -> None:
        self.told: list[Observed] = []
        self._news = threading.Condition()

    def observe(self, observed: Observed, /) -> None:
        with self._news:
            self.told.append(observed)
            self._news.notify_all()

    def until(self, found: Callable[[list[Observed]], bool]) -> bool:
        with self._news:
            return self._news.wait_for(lambda: found(self.told), LONGEST)


class Raises(Kept):
    def observe(self, observed: Observed, /) -> None:
        super().observe(observed)
        raise ValueError("an observer has a bug")


class Stuck:
    """Never comes back from the first that it is told, until the test is over."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def observe(self, observed: Observed, /) -> None:
        self.over.wait(LONGEST)


def events_of(told: list[Observed]) -> list[Event]:
    return [event for one in told if isinstance(one, Happened) for event in one.events]


async def submit(door: OpenDoor, name: str) -> Any:
    compiled = compile_spec({"name": name, "run": "true"}, wall=0.0)
    return await door.plane.request(lambda request: Submit(request, compiled, bearer=HOME))


def test_events_rounds_and_commits_are_told_and_no_observer_is_in_the_way(tmp_path: Path) -> None:
    kept, raises, stuck = Kept(), Raises(), Stuck()

    async def live() -> list[Event]:
        async with open_door(tmp_path) as door:
            for observer in (stuck, raises, kept):
                door.plane.observers.add(observer)
            door.plane.post(FromNode("n1", Hello(node=node("n1"))))
            for name in "abc":
                await submit(door, name)
            await door.plane.settled()
            last = door.plane.ledger.revision
            assert await asyncio.to_thread(kept.until, lambda told: any(isinstance(one, RoundTook) for one in told))
            assert await asyncio.to_thread(raises.until, lambda told: len(told) >= len(kept.told))
            assert last <= door.plane.ledger.revision
            return [event for _, event in door.plane.events_after(0, 100)]

    logged = uvloop.run(live())
    stuck.over.set()
    told = events_of(kept.told)
    firsts = [one.first for one in kept.told if isinstance(one, Happened)]
    assert told == logged[firsts[0] - 1 :][: len(told)] and len(told) > 3
    [took, *_] = [one for one in kept.told if isinstance(one, RoundTook)]
    assert took.policy == "poise" and min(took.view, took.decide, took.wait, took.apply) >= 0 and took.decide > 0
    commits = [one for one in kept.told if isinstance(one, CommitTook)]
    assert sum(one.events for one in commits) == len(told)
    assert all(one.append > 0 and one.sync > 0 for one in commits)


def test_an_observer_that_is_too_slow_misses_what_is_newest_and_that_is_counted() -> None:
    observers, stuck = Observers(), Stuck()
    observers.add(stuck)
    for number in range(WAITING + 100):
        observers.tell(CommitTook(at=number, revision=number, events=1, append=1, sync=1))
    assert 98 <= observers.missed() <= 100
    stuck.over.set()
    observers.close()


@pytest.mark.parametrize("count", [1, 100, 5000])
def test_timings_are_of_what_was_lately(count: int) -> None:
    timings = Timings()
    for number in range(count):
        timings.observe(CommitTook(at=number, revision=number, events=1, append=number, sync=2 * number))
    phases = timings.phases()
    assert phases.keys() == {"append", "sync"}
    assert phases["append"].count == min(count, 1000)
    assert phases["append"].most == count - 1
    assert phases["sync"].p50 <= phases["sync"].p99 <= phases["sync"].most == 2 * (count - 1)
