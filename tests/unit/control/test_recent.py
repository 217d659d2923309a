"""Events that are kept for those who follow are bounded by what they hold, and older ones come from the log."""

from functools import partial
from pathlib import Path

import pytest
import uvloop

from poise.control import plane
from poise.control.plane import Recent
from poise.kernel.messages import CancelJobs, Submit
from poise.model.events import Event, JobsCancelled, JobSubmitted
from poise.model.spec import compile_spec
from poise.testing import World
from unit.control.open_door import open_door


def submitted(tasks: int) -> JobSubmitted:
    world = World(check=False).nodes(1).job(parts=tasks)
    return next(event for event in world.log if isinstance(event, JobSubmitted))


def test_there_are_at_most_so_many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane, "RECENT_EVENTS", 5)
    event: Event = JobsCancelled(at=1, jobs=())
    assert [at for at, _ in Recent((number, event) for number in range(9))] == [4, 5, 6, 7, 8]


def test_there_are_at_most_so_many_tasks_or_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane, "RECENT_TASKS", 10)
    recent, small, large = Recent(), submitted(4), submitted(40)
    recent.extend((number, small) for number in range(1, 5))
    assert [at for at, _ in recent] == [3, 4]
    recent.extend([(5, large)])
    assert [at for at, _ in recent] == [5]
    recent.extend([(6, small), (7, small)])
    assert [at for at, _ in recent] == [6, 7]


def test_who_follows_gets_all_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane, "RECENT_TASKS", 10)
    compiled = compile_spec({"run": ["true"], "parts": 8}, wall=0.0)

    async def live() -> tuple[list[Event], int, int]:
        async with open_door(tmp_path) as door:
            for _ in range(5):
                jobs = (await door.plane.request(lambda request: Submit(request, compiled)),)
                await door.plane.request(partial(CancelJobs, jobs=jobs))
            await door.plane.settled()
            held = len(door.plane._recent)
            return [event for _, event in door.plane.events_after(0, 100)], held, door.plane.ledger.revision

    events, held, revision = uvloop.run(live())
    assert held < revision == len(events)
    assert sum(isinstance(event, JobSubmitted) for event in events) == 5
