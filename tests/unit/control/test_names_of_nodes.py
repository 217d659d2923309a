"""A node's name is theirs who came with it first: nobody else is given its work while it is away."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from poise.errors import Conflict
from poise.kernel.controller.membership import OF_THE_HOME
from poise.kernel.frames import Frames
from poise.kernel.messages import FromNode
from poise.model.messages import Hello
from poise.model.resources import Device, Node
from poise.model.tenants import Role
from poise.testing import World
from unit.control.desk import OWNER
from unit.control.open_door import Line, OpenDoor, open_door


def live(folder: Path, use: Callable[[OpenDoor], Awaitable[None]]) -> None:
    async def run() -> None:
        async with open_door(folder) as door:
            for token in ("a", "b"):
                await door.token(token, "default", Role.NODE)
            await use(door)

    asyncio.run(run())


def node(cpu: int = 2000, memory: int = 2**30, devices: int = 0, name: str = "n1") -> Node:
    found = tuple(Device(index=index, memory=2**30, uuid=str(index)) for index in range(devices))
    return Node(name=name, incarnation="1", cpu=cpu, memory=memory, devices=found)


async def offer(door: OpenDoor, who: str, offered: Node) -> tuple[Line, Any]:
    """What a node that comes so is told first: what it should hold, or why it has to go."""
    line = door.dial("/v1/channel", who)
    line.say((Frames().number(), Hello(node=offered)))
    assert await line.accepted()
    told = await line.hear()
    return line, told


async def let_in(door: OpenDoor, who: str, offered: Node | None = None) -> None:
    line, told = await offer(door, who, offered or node())
    assert isinstance(told, list), told
    await line.close()


async def kept_out(door: OpenDoor, who: str) -> str:
    line, told = await offer(door, who, node(cpu=64_000))
    assert told["code"] == 4409
    await line.over()
    assert door.plane.ledger.nodes["n1"].node == node()
    return str(told["reason"])


def test_the_name_of_a_node_that_is_away_is_not_taken_by_another_token(tmp_path: Path) -> None:
    async def use(door: OpenDoor) -> None:
        await let_in(door, "a")
        why = await kept_out(door, "b")
        assert why.startswith("this name belongs to a node with another token; give this one another name: `--name`")
        await let_in(door, "a", node())
        await let_in(door, "b", node(name="n2"))
        refusals = (await door.call("GET", "/v1/refusals")).value
        assert (refusals["counts"], refusals["latest"][-1]["token"]) == ({"E107": 1}, "t2")

    live(tmp_path, use)


def test_the_names_of_the_homes_own_nodes_are_its_own(tmp_path: Path) -> None:
    """And the home's own token may take any name."""

    async def use(door: OpenDoor) -> None:
        await let_in(door, OWNER)
        await kept_out(door, "a")
        await let_in(door, "a", node(name="n2"))
        await let_in(door, OWNER, node(name="n2"))

    live(tmp_path, use)


def test_a_name_that_the_home_itself_used_is_free_once_the_node_is_lost_and_holds_nothing() -> None:
    """As where `poise up` on one machine is followed by `poise up --on ray`, whose agents have a token of their own."""
    world = World()
    world.held["n1"] = {}
    world.say(FromNode("n1", Hello(node=node()), OF_THE_HOME)).connected.add("n1")
    world.job("held", cpu=1).round().start("held")
    for _ in range(2):
        with pytest.raises(Conflict, match="another token"):
            world.controller.membership.check_namesake("n1", "t1", world.now)
        world.lose("n1")
    world.cancel("held").after("1s")
    world.controller.membership.check_namesake("n1", "t1", world.now)


def test_a_token_takes_the_place_of_one_that_is_revoked_or_was_given_under_its_name(tmp_path: Path) -> None:
    async def use(door: OpenDoor) -> None:
        await let_in(door, "a")
        await door.token("a-again", "default", Role.NODE, name="a")
        await let_in(door, "a-again")
        await let_in(door, "a")
        await door.token("of another tenant", "other", Role.NODE, name="a")
        await kept_out(door, "of another tenant")
        for token in ("t1", "t3"):
            assert (await door.call("DELETE", f"/v1/tokens/{token}")).status == 202
        await let_in(door, "b")

    live(tmp_path, use)


def test_a_node_that_comes_back_larger_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def use(door: OpenDoor) -> None:
        await let_in(door, "a")
        await let_in(door, "a", node(memory=2**30 + 2**20))
        assert not caplog.messages
        for larger in (node(cpu=64_000), node(memory=2**31), node(devices=8)):
            await let_in(door, "a")
            caplog.clear()
            await let_in(door, "a", larger)
            [told] = caplog.messages
            assert told.startswith("node n1 says that it has grown: from 2 CPU, 1.0 GiB and 0 devices to ")
            caplog.clear()
            await let_in(door, "a", larger)
            assert not caplog.messages, "told once"

    caplog.set_level(logging.WARNING, "poise.control")
    live(tmp_path, use)
