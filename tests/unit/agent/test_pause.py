"""When an agent without a control plane dials again."""

import asyncio
from pathlib import Path

import pytest

from poise.agent.__main__ import Agent, Offer
from poise.config import Home
from poise.drivers.process import Keepers
from poise.drivers.sockets import listen, made
from poise.kernel.node import NodeMachine
from poise.testing import node

LONG = 3600.0


def agent_of(home: Home) -> Agent:
    one = node("n1", cpu=2)
    return Agent(home, Keepers(home.node / "keepers", home.logs), NodeMachine(one, range(2)), Offer(one, prunes=False))


@pytest.mark.parametrize("killed", [False, True])
def test_an_agent_dials_as_soon_as_a_control_plane_listens(tmp_path: Path, killed: bool) -> None:
    """Also where the socket of one that was killed is left."""

    async def story() -> None:
        home = Home(tmp_path)
        agent = agent_of(home)
        if killed:
            listen(home.socket).close()
        pause = asyncio.create_task(agent._pause(LONG, made(home.socket)))
        await asyncio.sleep(0)
        with listen(home.socket):
            await asyncio.wait_for(pause, 30)

    asyncio.run(story())


def test_an_agent_whose_control_plane_does_not_answer_waits_as_long_as_it_was_told(tmp_path: Path) -> None:
    async def story() -> None:
        home = Home(tmp_path)
        agent, loop = agent_of(home), asyncio.get_running_loop()
        with listen(home.socket):
            begun = loop.time()
            await agent._pause(0.05, made(home.socket))
        assert loop.time() - begun >= 0.05

    asyncio.run(story())
