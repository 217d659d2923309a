"""What one tenant may have of the control plane: others are served beside it, whatever it asks for."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from poise.control import plane, shares
from poise.control.shares import Shares
from poise.errors import Busy
from poise.kernel import schedulable
from poise.kernel.controller import controller
from poise.model.tenants import HOME, Bearer, Role
from unit.control.open_door import OpenDoor, open_door

ANN, BOB = Bearer("ann", Role.VIEWER, "t1"), Bearer("bob", Role.VIEWER, "t2")
PATIENCE = 20.0


def run(use: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(use(), PATIENCE))


async def ask(of: Shares, bearer: Bearer, times: int) -> None:
    for _ in range(times):
        async with of.of(bearer):
            pass


def test_who_asks_often_waits_and_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "RATE", 200.0)
    monkeypatch.setattr(shares, "BURST", 10.0)

    async def use() -> None:
        of = Shares()
        begun = time.monotonic()
        often = asyncio.create_task(ask(of, ANN, 60))
        await asyncio.sleep(0)
        for bearer, times in ((BOB, 10), (HOME, 1000), (Bearer("ann", Role.NODE, "t3"), 1000)):
            await ask(of, bearer, times)
        assert not often.done()
        await often
        assert time.monotonic() - begun >= 50 / 200

    run(use)


def test_who_has_too_much_under_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "AT_ONCE", 3)

    async def use() -> None:
        of, over = Shares(), asyncio.Event()

        async def follow() -> None:
            async with of.of(ANN):
                await over.wait()

        following = [asyncio.create_task(follow()) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="too many requests of tenant `ann`"):
            await ask(of, ANN, 1)
        await ask(of, BOB, 1)
        over.set()
        await asyncio.gather(*following)
        await ask(of, ANN, 1)

    run(use)


def test_a_refusal_is_told_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "AT_ONCE", 1)

    async def use() -> None:
        async with open_door(tmp_path) as door:
            await door.token("ann", "ann", Role.SUBMITTER)
            line = door.dial("/v1/calls", "ann")
            assert await line.accepted()
            answer = await door.call("GET", "/v1/whoami", None, "ann")
            assert (answer.status, answer.code) == (503, "E205")
            assert (await door.call("GET", "/v1/refusals")).value["counts"] == {"E205": 1}
            await line.close()
            assert (await door.call("GET", "/v1/whoami", None, "ann")).status == 200

    run(use)


@pytest.mark.parametrize("path", ["/v1/plan", "/v1/jobs"])
def test_a_large_request_is_compiled_while_others_are_answered(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph of thousands of tasks takes seconds, whether it is submitted or only asked about."""
    answered = threading.Event()

    def slowly(*arguments: Any) -> Any:
        assert answered.wait(PATIENCE / 2), "nobody else is answered meanwhile"
        return schedulable.prepare(*arguments)

    monkeypatch.setattr(controller, "prepare", slowly)
    tasks = {f"t{number}": {"run": ["true"], "env": {"A": 50 * "x"}} for number in range(300)}
    body = {"spec": {"kind": "graph", "tasks": tasks}}
    assert len(str(body)) > plane.QUICKLY_COMPILED

    async def large(door: OpenDoor) -> int:
        return (await door.call("POST", path, body)).status

    async def use() -> None:
        async with open_door(tmp_path) as door:
            asked = asyncio.create_task(large(door))
            await asyncio.sleep(0)
            assert (await door.call("GET", "/v1/whoami")).status == 200
            answered.set()
            assert await asked in (200, 201)

    run(use)


def test_of_one_tenant_one_large_request_is_compiled_at_a_time() -> None:
    async def use() -> None:
        turns, order = shares.Turns(), list[str]()

        async def take(tenant: str) -> None:
            async with turns.of(tenant):
                order.append(tenant)
                await asyncio.sleep(0)

        await asyncio.gather(take("ann"), take("ann"), take("ann"), take("bob"))
        assert order == ["ann", "bob", "ann", "ann"]

    run(use)
