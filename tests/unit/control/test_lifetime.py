"""An idle control plane announces its exit, answers for a while who looked before, and stays if it is needed."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from poise.config import Home
from poise.control import lifetime as module
from poise.control.lifetime import Lifetime
from poise.control.plane import Plane
from poise.testing import World
from poise.units import MINUTE

GRACE = 0.05


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lifetime:
    """That of a control plane that has nothing to do, on a clock that runs fast."""
    monkeypatch.setattr(module, "_LOOK_EVERY", GRACE)
    world = World()

    def now() -> int:
        world.now += MINUTE
        return world.now

    plane = SimpleNamespace(clock=SimpleNamespace(now=now), ledger=world.ledger)
    made = Lifetime(cast(Plane, plane), Home(tmp_path), until_idle=True)
    monkeypatch.setattr(made, "end", lambda: None)
    return made


async def announced(path: Path, there: bool = True) -> None:
    while await asyncio.to_thread(path.exists) != there:  # noqa: ASYNC110 — a file has no event
        await asyncio.sleep(GRACE / 20)


def test_it_leaves_once_it_has_said_so(idle: Lifetime, tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(idle.leave_when_idle(), 10))
    assert Home(tmp_path).left.exists() and not idle.wanted_again


def test_who_asks_while_it_announces_its_exit_is_answered_and_it_stays(idle: Lifetime, tmp_path: Path) -> None:
    left = Home(tmp_path).left

    async def story() -> None:
        leaving = asyncio.create_task(idle.leave_when_idle())
        await announced(left)
        with idle.request():
            await announced(left, there=False)
            assert not leaving.done()
        await leaving

    asyncio.run(asyncio.wait_for(story(), 10))
    assert left.exists()


def test_who_wants_it_to_stay_while_it_announces_its_exit_has_it_stay(idle: Lifetime, tmp_path: Path) -> None:
    async def story() -> None:
        leaving = asyncio.create_task(idle.leave_when_idle())
        await announced(Home(tmp_path).left)
        idle.stay()
        await leaving

    asyncio.run(asyncio.wait_for(story(), 10))
    assert not Home(tmp_path).left.exists() and not idle.wanted_again
