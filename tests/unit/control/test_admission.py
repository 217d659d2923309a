"""Nodes that come all at once are let in at the rate at which they can be answered."""

import asyncio
import itertools
from random import Random
from typing import Any

from poise.control.admission import GROWTH, LONGEST_WAIT, MOST, Admission
from poise.control.guard import Scope
from poise.testing import World
from poise.units import MILLISECOND, SECOND
from unit.control.desk import OWNER, Desk


def test_so_many_are_let_in_as_can_be_answered_and_the_next_one_when_one_has_spoken() -> None:
    admission = Admission(most=2)
    assert [admission.ask(SECOND) for _ in range(2)] == [0, 0]
    assert admission.ask(SECOND) > 0
    admission.done(SECOND, spoke=True)
    assert admission.ask(SECOND) == 0
    assert admission.ask(SECOND) > 0
    admission.done(SECOND, spoke=False)
    assert admission.ask(SECOND) == 0


def test_those_who_are_turned_away_come_back_one_after_the_other_as_fast_as_nodes_get_in() -> None:
    admission = Admission(most=1)
    for number in range(500):
        admission.ask(number * 2 * MILLISECOND)
        admission.done(number * 2 * MILLISECOND, spoke=True)
    now = SECOND
    admission.ask(now)
    waits = [admission.ask(now) for _ in range(1000)]
    pauses = {later - sooner for sooner, later in itertools.pairwise(waits)}
    assert pauses == {int(SECOND / (499 * GROWTH))}
    assert SECOND < waits[0] < waits[-1] < 3 * SECOND


def test_nobody_is_put_off_for_ever() -> None:
    admission = Admission(most=0)
    assert max(admission.ask(SECOND) for _ in range(30_000)) == LONGEST_WAIT


def test_a_whole_herd_gets_in() -> None:
    """Five thousand dial at once; each says its first word half a second after it was let in."""
    admission = Admission()
    comes, speaks, now = dict.fromkeys(range(5_000), 0), dict[int, int](), 0
    random = Random(1)  # noqa: S311 — the same herd each time
    turns, spoke = 0, 0
    while spoke < 5_000:
        now += 50 * MILLISECOND
        for node in [node for node, at in speaks.items() if at <= now]:
            del speaks[node]
            admission.done(now, spoke=True)
            spoke += 1
        for node in [node for node, at in comes.items() if at <= now]:
            turns += 1
            wait = admission.ask(now)
            comes[node] = now + -(-wait // SECOND) * SECOND + random.randrange(SECOND)
            if not wait:
                del comes[node]
                speaks[node] = now + SECOND // 2
        assert len(speaks) <= MOST
    assert now < 20 * SECOND, f"{MOST} each half a second are 10 s"
    assert turns < 15_000


def opened(desk: Desk) -> tuple[list[dict[str, Any]], "asyncio.Task[None]"]:
    """What is said to a node that dials, and does not say a word."""
    said: list[dict[str, Any]] = []
    todo = [{"type": "websocket.connect"}]

    async def receive() -> Any:
        if todo:
            return todo.pop()
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        said.append(message)

    headers = [(b"host", b"poise"), (b"authorization", f"Bearer {OWNER}".encode())]
    scope: Scope = {"type": "websocket", "path": "/v1/channel", "headers": headers, "state": {}}
    return said, asyncio.create_task(desk.app(scope, receive, send))  # type: ignore[arg-type]


def test_who_is_turned_away_is_told_when_to_come_back_and_the_controller_that_somebody_was() -> None:
    async def use() -> None:
        desk = Desk(World())
        posted: list[Any] = []
        vars(desk.plane)["crowded"] = posted.append
        dialled = [opened(desk) for _ in range(MOST + 2)]
        await asyncio.sleep(0)
        assert [said[0]["type"] for said, _ in dialled[:MOST]] == ["websocket.accept"] * MOST
        for said, _ in dialled[MOST:]:
            assert (said[0]["type"], said[0]["status"]) == ("websocket.http.response.start", 503)
            assert (b"retry-after", b"2") in said[0]["headers"]
        assert len(posted) == 2 and all(SECOND <= wait <= 2 * SECOND for wait in posted)
        for _, task in dialled:
            task.cancel()
        await asyncio.gather(*(task for _, task in dialled), return_exceptions=True)
        said, task = opened(desk)
        await asyncio.sleep(0)
        assert said[0]["type"] == "websocket.accept", "those who are gone have made room"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(use(), 10))
