"""What is sent over a kept-open connection: in order, for as long as the token stands, and never without bound."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from poise.control import hot
from poise.control.hot import Channel
from poise.kernel.frames import Frames
from poise.model.messages import Acked, Met


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
        channel._task.cancel()

    run(use)
