"""What is told of a command that ends, and in which order."""

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from poise.agent.__main__ import Agent, Offer
from poise.config import Home
from poise.drivers.process import Keepers
from poise.kernel.node import Connected, NodeMachine
from poise.model.jobs import Ending
from poise.model.messages import Acked, Attempt, Desired, Ended, Launch, Met, Report
from poise.model.resources import Shape
from poise.testing import node

MEMBER = Attempt("j1.gang[0]", 1)
ENDED = Ended(attempt=MEMBER, ending=Ending(outcome="done"))


def agent_of(home: Home, *, holds: bool = True) -> Agent:
    """One that is connected to a control plane which listens to other machines, and holds a member of a gang."""
    keepers = Keepers(home.node / "keepers", home.logs, gangs=home.gangs)
    keepers.address = "10.0.0.1"
    one, machine = node("n1", cpu=2), NodeMachine(node("n1", cpu=2), range(2))
    agent = Agent(home, keepers, machine, Offer(one, prunes=False))
    agent._sock = socket.socket()
    member = Launch(attempt=MEMBER, argv=("x",), shape=Shape(), slots=1, gang="j1.gang", world=2)
    messages = Connected(), Acked(serial=0), Desired(launches=(member,) if holds else ())
    for message in messages:
        machine.handle(message, agent._clock.now())
    if holds:
        agent._meet(member)
    return agent


async def said(agent: Agent) -> list[str]:
    """What it says until all is said."""
    work = asyncio.get_running_loop().create_task(agent.deliver())
    await asyncio.sleep(0)  # it waits for more once all is said
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    told = []
    for message in agent._unsent:
        if isinstance(message, Met) and message.name:
            told.append(f"{message.name}: {message.data.decode()}")
        elif isinstance(message, Report):
            told += [f"{done.attempt} ended" for done in message.ended]
    return told


@pytest.mark.parametrize("away", [False, True])
def test_what_a_member_leaves_just_before_it_ends_is_told_before_its_end(tmp_path: Path, away: bool) -> None:
    async def story() -> None:
        agent = agent_of(Home(tmp_path))
        place = Home(tmp_path).gangs / "j1.gang.1"
        place.mkdir(parents=True)
        (place / "here.0").write_text("port 7")
        assert agent._sock is not None
        with contextlib.closing(agent._sock):
            if away:  # it ends while nobody hears; a moment later the control plane is back
                agent._sock, sock = None, agent._sock
                agent._on_change([], [ENDED])
                agent._sock = sock
                assert await said(agent) == ["j1.gang[0]#1 ended", "here.0: port 7"]
            else:
                agent._on_change([], [ENDED])
                assert await said(agent) == ["here.0: port 7", "j1.gang[0]#1 ended"]
            agent._unsent.clear()
            agent._feed(Acked(serial=1))
            assert not agent._meetings.any

    asyncio.run(story())


def test_what_a_member_left_while_no_agent_was_there_is_told_by_the_next(tmp_path: Path) -> None:
    async def story() -> None:
        agent = agent_of(Home(tmp_path), holds=False)
        place = Home(tmp_path).gangs / "j1.gang.1"
        place.mkdir(parents=True)
        (place / "here.0").write_text("port 7")
        agent.adopt([], [ENDED])
        assert agent._sock is not None
        with contextlib.closing(agent._sock):
            assert await said(agent) == ["here.0: port 7"]

    asyncio.run(story())
