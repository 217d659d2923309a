"""Between people and commands: who hears what, and what a node may send."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, cast

import pytest

from poise.control import consoles
from poise.control.consoles import Attendance, Consoles
from poise.control.plane import Plane
from poise.errors import Busy
from poise.kernel.messages import Cancel
from poise.model.messages import Attempt, Credit, Exec, Fed, Feed, Leave, Left, Piece, Said
from poise.model.reports.streams import ExecEnd, ExecLine, ExecOutput, ExecStarted
from poise.model.tenants import Bearer, Role

ATTEMPT = Attempt("j1.main", 1)
ANN, BOB = Bearer("ann", Role.SUBMITTER), Bearer("bob", Role.SUBMITTER)


class _Plane:
    """A plane whose only node is connected, or not; what it was told is in `told`."""

    def __init__(self) -> None:
        self.connected = True
        self.told: list[Any] = []
        self.requested: list[Any] = []
        self.asked = asyncio.Event()

    async def request(self, make: Callable[[int], Any]) -> None:
        self.requested.append(make(7))
        self.asked.set()

    def tell(self, node: str, message: Any) -> bool:
        if self.connected:
            self.told.append(message)
        return self.connected


@pytest.fixture
def plane() -> _Plane:
    return _Plane()


@pytest.fixture
def desk(plane: _Plane) -> Consoles:
    return Consoles(cast(Plane, plane))


def run(desk: Consoles) -> AsyncIterator[ExecLine]:
    return desk.run("n1", ATTEMPT, ANN, ("true",), {}, stdin=True, tty=0)


async def started(lines: AsyncIterator[ExecLine]) -> str:
    first = await anext(lines)
    assert isinstance(first, ExecStarted)
    return first.name


def test_a_tenant_runs_at_most_half_of_the_commands_that_others_leave(
    desk: Consoles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consoles, "MOST", 8)

    async def test() -> None:
        open_: list[AsyncGenerator[ExecLine]] = []
        for tenant, least in (("ann", 4), ("bob", 2), ("cy", 1)):
            bearers = [Bearer(tenant, Role.SUBMITTER, token=f"t{number}") for number in range(least + 1)]
            made = [desk.run("n1", ATTEMPT, bearer, ("true",), {}) for bearer in bearers]
            for one in made[:-1]:
                assert isinstance(await anext(one), ExecStarted)
            with pytest.raises(Busy, match=tenant):
                await anext(made[-1])
            open_ += made
        for one in open_:
            await one.aclose()
        again = desk.run("n1", ATTEMPT, ANN, ("true",), {})
        assert isinstance(await anext(again), ExecStarted)
        await again.aclose()

    asyncio.run(test())


def test_input_is_answered_by_its_node_and_no_other(desk: Consoles, plane: _Plane) -> None:
    async def given() -> Fed | None:
        asking = asyncio.ensure_future(desk.feed("n1", ATTEMPT, Piece(data=b"x")))
        await asyncio.sleep(0)
        assert plane.told == [Feed(whose=ATTEMPT, piece=Piece(data=b"x"))]
        desk.hear("n2", Fed(whose=ATTEMPT, taken=9, wanted=True))
        desk.hear("n1", Fed(whose=Attempt("j1.main", 2), taken=8, wanted=True))
        desk.hear("n1", Fed(whose=ATTEMPT, taken=1, wanted=True))
        return await asking

    assert asyncio.run(given()) == Fed(whose=ATTEMPT, taken=1, wanted=True)


def test_a_node_that_says_nothing_is_not_waited_for_for_ever(
    desk: Consoles, plane: _Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consoles, "FED_SECONDS", 0.01)
    assert asyncio.run(desk.feed("n1", ATTEMPT, Piece())) is None
    assert not desk._fed


def test_a_command_beside_from_its_start_to_its_end(desk: Consoles, plane: _Plane) -> None:
    async def scene() -> list[ExecLine]:
        async with aclosing(cast(Any, run(desk))) as lines:
            name = await started(lines)
            assert plane.told == [Exec(name=name, attempt=ATTEMPT, argv=("true",), stdin=True)]
            assert (desk.known(name, ANN) is not None, desk.known(name, BOB)) == (True, None)
            desk.hear("n2", Left(name=name, code=1))
            desk.hear("n1", Said(name="another", stream="out", data=b"not mine"))
            desk.hear("n1", Said(name=name, stream="err", data=b"oh"))
            desk.hear("n1", Left(name=name, code=7))
            return [line async for line in lines]

    assert asyncio.run(scene()) == [ExecOutput("err", b"oh"), ExecEnd(7)]
    assert [type(message) for message in plane.told] == [Exec, Credit, Leave]
    assert not desk._running


def test_who_goes_ends_the_command(desk: Consoles, plane: _Plane) -> None:
    async def scene() -> str:
        async with aclosing(cast(Any, run(desk))) as lines:
            return await started(lines)

    assert plane.told == []
    name = asyncio.run(scene())
    assert plane.told[-1] == Leave(name=name)


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_node_that_is_gone_ends_the_command(desk: Consoles, plane: _Plane, lost: str) -> None:
    async def scene() -> list[ExecLine]:
        plane.connected = lost != "before"
        async with aclosing(cast(Any, run(desk))) as lines:
            await started(lines)
            desk.gone("n2")
            if lost == "after":
                desk.gone("n1")
            return [line async for line in lines]

    (end,) = asyncio.run(scene())
    assert isinstance(end, ExecEnd)
    assert (end.exit_code, "n1" in end.note) == (126 if lost == "before" else 137, True)


def test_a_node_that_sends_more_than_it_may_is_not_heard(desk: Consoles, plane: _Plane) -> None:
    async def scene() -> list[ExecLine]:
        async with aclosing(cast(Any, run(desk))) as lines:
            name = await started(lines)
            for _ in range(consoles.MOST_UNREAD // 2**18 + 1):
                desk.hear("n1", Said(name=name, stream="out", data=bytes(2**18)))
            return [line async for line in lines]

    told = asyncio.run(scene())
    assert sum(len(line.data) for line in told if isinstance(line, ExecOutput)) <= consoles.MOST_UNREAD
    assert isinstance(told[-1], ExecEnd)
    assert "more than it may" in told[-1].note


def test_a_job_whose_terminal_is_silent_is_cancelled(plane: _Plane) -> None:
    async def wait() -> None:
        attendance = Attendance(cast(Plane, plane))
        attendance.heard("j1", 60, ANN)
        attendance.heard("j2", 60, BOB)
        attendance.heard("j3", 60, ANN)
        attendance.heard("j1", 0.01, ANN)
        attendance.heard("j2", 0.01, BOB)
        attendance.done("j2")
        await plane.asked.wait()

    asyncio.run(wait())
    assert plane.requested == [Cancel(7, "j1", ANN)]


def test_no_terminal_counts_as_silent_while_the_control_plane_stood_still(
    plane: _Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consoles, "STOOD_STILL", 0.0)

    async def wait() -> None:
        attendance = Attendance(cast(Plane, plane))
        attendance.heard("j1", 0.01, ANN)
        time.sleep(0.02)  # noqa: ASYNC251 — as if the process was stopped
        for _ in range(5):
            await asyncio.sleep(0)
        attendance.done("j1")

    asyncio.run(wait())
    assert plane.requested == []
