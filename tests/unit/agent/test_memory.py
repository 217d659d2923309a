"""What an agent keeps of what is over."""

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.client import ClientProtocol

from poise.agent import __main__ as agent_module
from poise.agent.__main__ import Agent, Offer
from poise.config import Home
from poise.drivers.meetings import Meetings
from poise.drivers.process import Keepers
from poise.drivers.security import ensure_home, ensure_token
from poise.kernel.node import NodeMachine
from poise.model.messages import Acked, Attempt, Launch
from poise.model.resources import Shape
from poise.testing import node

CONNECTIONS = 8


@pytest.fixture
def no_collector() -> Iterator[None]:
    """As where nothing else is made: the collector of an agent comes at 50,000 objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_connections_that_are_over_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "RECONNECT_SECONDS", (0.001, 0.001, 0.001))
    home = Home(tmp_path)
    ensure_home(home)
    ensure_token(home)
    heard = asyncio.Semaphore(0)

    async def hear_and_hang_up(channel: ServerConnection) -> None:
        await channel.recv()
        await channel.send(msgspec.msgpack.encode((1, Acked(serial=0))))
        heard.release()

    async def story() -> None:
        keepers = Keepers(home.node / "keepers", home.logs, gangs=home.gangs)
        agent = Agent(home, keepers, NodeMachine(node("n1"), range(1)), Offer(node("n1"), prunes=False))
        async with unix_serve(hear_and_hang_up, str(home.socket)):
            work = asyncio.get_running_loop().create_task(agent.run())
            for _ in range(CONNECTIONS):
                await heard.acquire()
            assert sum(type(one) is ClientProtocol for one in gc.get_objects()) <= 2
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    asyncio.run(asyncio.wait_for(story(), 120))


def test_what_members_of_a_gang_left_is_not_kept_when_it_is_over_though_others_run(tmp_path: Path) -> None:
    meetings = Meetings(tmp_path)
    for number in range(3):
        attempt, gang = Attempt(f"j{number}.gang[0]", 1), f"j{number}.gang"
        meetings.joined(Launch(attempt=attempt, argv=("x",), shape=Shape(), slots=1, gang=gang, world=2))
        (tmp_path / f"{gang}.1").mkdir()
        (tmp_path / f"{gang}.1" / "here.0").touch()
    assert [met.gang for met in meetings.news()] == ["j0.gang", "j1.gang", "j2.gang"]
    meetings.left([Attempt("j0.gang[0]", 1), Attempt("j1.gang[0]", 1)])
    assert [*meetings._seen] == [tmp_path / "j2.gang.1" / "here.0"]
    assert [*meetings.news()] == []
