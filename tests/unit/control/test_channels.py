"""What is sent over a kept-open connection: in order, for as long as the token stands, and never without bound."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from poise.control import hot, plane
from poise.control.hot import Channel
from poise.engine import host
from poise.kernel.frames import Frames
from poise.kernel.messages import Crowded, Gone
from poise.model.messages import Acked, Beat, Hello, Met, Report
from poise.model.usage import SIGNALS, Window
from poise.testing import node
from poise.units import SECOND
from unit.control.desk import OWNER
from unit.control.open_door import Line, open_door


def run(use: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(use(), 10))


def test_nothing_more_is_sent_once_the_token_no_longer_stands() -> None:
    async def use() -> None:
        sent, good = list[Any](), [True]

        async def send(message: Any) -> None:
            sent.append(message)

        channel = Channel(send, Frames(), stands=lambda: good[0])
        channel.send(Acked(serial=1))
        await asyncio.sleep(0.01)
        good[0] = False
        channel.send(Acked(serial=2))
        await asyncio.sleep(0.01)
        assert [one["type"] for one in sent] == ["websocket.send", "websocket.close"]
        assert msgspec.msgpack.decode(sent[0]["bytes"])[1]["serial"] == 1
        assert channel.closed

    run(use)


def test_what_waits_for_one_that_does_not_read_is_bounded_in_bytes() -> None:
    async def use() -> None:
        async def never(_: Any) -> None:
            await asyncio.Event().wait()

        channel = Channel(never, Frames())
        met = Met(gang="j1.main", founded=1, name="here", data=bytes(2**16))
        most = hot.MAX_UNSENT_BYTES // 2**16
        for _ in range(most // 2):
            channel.send(met)
        assert not channel.closed
        for _ in range(most):
            channel.send(met)
        assert channel.closed and not channel._queue
        assert channel._writing is not None
        channel._writing.cancel()

    run(use)


def test_a_herd_that_talks_does_not_pile_up_before_those_who_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much the nodes have to say, each has at most one word that waits to be taken in."""
    at_once, nodes, beats = 8, 24, 50
    for module in (host, plane):
        monkeypatch.setattr(module, "AT_ONCE", at_once)

    async def use() -> int:
        most, lines = 0, list[Line]()
        async with open_door(tmp_path) as door:
            for number in range(nodes):
                line = door.dial("/v1/channel", OWNER)
                assert await line.accepted()
                line.say((1, Hello(node=node(f"n{number}"))))
                await line.hear()
                lines.append(line)
            for beat in range(1, beats + 1):
                for line in lines:
                    line.say((1 + beat, Beat(number=beat)))
            while any(line.unread and not line.task.done() for line in lines):
                await asyncio.sleep(0)
                most = max(most, len(door.plane._inbox))
            for line in lines:
                line.task.cancel()
            await asyncio.gather(*(line.task for line in lines), return_exceptions=True)
        return most

    assert uvloop.run(asyncio.wait_for(use(), 60)) <= nodes + at_once


def test_the_controller_is_told_once_a_second_that_many_wait(tmp_path: Path) -> None:
    async def use() -> None:
        async with open_door(tmp_path) as door:
            posted: list[Any] = []
            vars(door.plane)["post"] = posted.append
            for wait in (0, SECOND, 8 * SECOND, 0):
                door.plane.crowded(wait)
            assert [type(message) for message in posted] == [Crowded, Crowded]
            assert posted[1].until - posted[0].until >= 7 * SECOND
            door.plane.behind = ""
            door.plane.crowded(20 * SECOND)
            assert len(posted) == 2, "a standby decides nothing"

    run(use)


def test_a_heartbeat_is_taken_by_the_call_that_reads_it(tmp_path: Path) -> None:
    """Everything else waits for the task, and what was lost before it ends the connection as ever."""

    async def use() -> None:
        async with open_door(tmp_path) as door:
            line = door.dial("/v1/channel", OWNER)
            assert await line.accepted()
            assert not line.offer((1, Beat(number=1))), "nobody knows the node yet"
            line.say((1, Hello(node=node("n1"))))
            assert [(await line.hear())[1]["type"] for _ in range(2)] == ["desired", "acked"]
            assert line.offer((2, Beat(number=7)))
            assert line.offer((2, Beat(number=7))), "it is a duplicate"
            assert not line.offer((3, Report(serial=1)))
            assert not line.offer((4, Beat(number=8))), "the third has not come"
            still = (0,) * len(SIGNALS)
            assert not line.offer((3, Beat(number=8, windows=(Window(60, still, still),))))
            assert line.offer((3, Beat(number=8)))
            assert [(await line.hear())[1] for _ in range(2)] == [{"type": "heard", "beat": beat} for beat in (7, 8)]

    run(use)


def test_nodes_that_wait_to_be_read_are_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody who comes later is read before them, and they go on although nobody says anything more."""
    for module in (host, plane):
        monkeypatch.setattr(module, "AT_ONCE", 2)

    async def use() -> None:
        async with open_door(tmp_path) as door:
            read: list[int] = []

            async def reads(number: int) -> None:
                await door.plane.keep_pace()
                read.append(number)
                assert door.plane.keeps_pace() == (number >= 4), "others wait"

            for _ in range(5):
                door.plane.post(Gone("nobody"))
            waiting = [asyncio.create_task(reads(number)) for number in range(6)]
            await asyncio.sleep(0)
            assert not read and not door.plane.keeps_pace()
            await asyncio.gather(*waiting)
            assert read == list(range(6))

    run(use)
