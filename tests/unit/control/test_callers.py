"""Channels of calls, by tenant: who speaks for a job, and what one frame may cost."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from poise.kernel.ledger import Ledger
from poise.model.calls import Call, Calling, Function, Resume, Value
from poise.model.tenants import Role
from unit.control.desk import OWNER
from unit.control.open_door import Line, OpenDoor, open_door

SERVES = {"spec": {"calls": True, "run": ["true"], "resources": {"cpu": 1}}}


def live(folder: Path, use: Callable[[OpenDoor], Awaitable[None]]) -> None:
    async def run() -> None:
        async with open_door(folder) as door:
            for tenant in ("ann", "bob"):
                await door.token(tenant, tenant, Role.SUBMITTER)
            await use(door)

    asyncio.run(run())


def call(number: int) -> Calling:
    functions = (Function("f", "m"),) if number == 1 else ()
    return Calling(functions, (Call(number, 0, Value("m", b"\x90")),))


async def submit(door: OpenDoor, who: str) -> tuple[str, str]:
    """A job that serves calls, and the key of its caller's channel."""
    answer = (await door.call("POST", "/v1/jobs", SERVES, who)).value
    return answer["job"], answer["caller_key"]


async def refused(line: Line) -> str:
    """Why the caller is told to go."""
    assert await line.accepted()
    why = (await line.hear())["why"]
    await line.over()
    return str(why)


def test_who_comes_before_a_job_is_there_does_not_speak_for_it(tmp_path: Path) -> None:
    """Ids are sequential: whoever names the next one first would be given the calls of who submits it."""

    async def use(door: OpenDoor) -> None:
        early = door.dial("/v1/calls", "bob")
        early.say(Resume("j1"))
        early.say(call(1))
        assert await refused(early) == "a call was refused: there is no job `j1` that serves calls"
        job, key = await submit(door, "ann")
        assert job == "j1"
        own = door.dial("/v1/calls", "ann")
        own.say(Resume(job, (), key))
        assert await own.accepted()
        assert (await own.hear())["last"] == 0, "nothing was called before"
        own.say(call(1))
        assert (await own.hear())["last"] == 1
        await own.close()

    live(tmp_path, use)


@pytest.mark.parametrize("who", ["bob", "op", OWNER, "ann"])
def test_a_job_is_spoken_for_by_who_submitted_it(who: str, tmp_path: Path) -> None:
    """No other tenant, whatever its role; nor somebody of its own tenant who was not told the key. The answer is that
    for what never was.
    """

    async def use(door: OpenDoor) -> None:
        await door.token("op", "bob", Role.ADMIN)
        job, key = await submit(door, "ann")
        another, other_key = await submit(door, "ann" if who == "ann" else "bob")
        keys = ["", other_key, key[:-1]] if who == "ann" else ["", key, other_key]
        for given in keys:
            for named in (job, "j9"):
                line = door.dial("/v1/calls", who)
                line.say(Resume(named, (), given))
                line.say(call(1))
                assert await refused(line) == f"a call was refused: there is no job `{named}` that serves calls"
        assert another != job
        book = door.plane.ledger.jobs[job].calls
        assert book is not None
        assert not book.open

    live(tmp_path, use)


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("ann", "the token names no account, and this home runs commands as accounts"),
        ("eve", "the work runs as another user"),
    ],
)
def test_functions_of_an_admin_are_not_called_by_who_runs_as_another(who: str, why: str, tmp_path: Path) -> None:
    """The records of the log tell a tenant the keys of its submissions, and a submission under such a key is told the
    key of the caller.
    """

    async def use(door: OpenDoor) -> None:
        await door.token("boss", "ann", Role.ADMIN)
        await door.token("eve", "ann", Role.SUBMITTER, account="eve")
        told = (await door.call("POST", "/v1/jobs", SERVES | {"key": "k"}, "boss")).value
        same = (await door.call("POST", "/v1/jobs", SERVES | {"key": "k"}, who)).value
        assert same["job"] == told["job"]
        line = door.dial("/v1/calls", who)
        line.say(Resume(same["job"], (), same["caller_key"]))
        assert await refused(line) == f"a call was refused: {why}"
        own = door.dial("/v1/calls", "boss")
        own.say(Resume(told["job"], (), told["caller_key"]))
        assert await own.accepted()
        assert (await own.hear())["last"] == 0
        await own.close()

    live(tmp_path, use)


def test_what_is_said_before_a_job_is_named_or_under_a_second_name_is_not_heard(tmp_path: Path) -> None:
    async def use(door: OpenDoor) -> None:
        job, key = await submit(door, "ann")
        line = door.dial("/v1/calls", "ann")
        line.say(call(1))
        line.say(Resume(job, (), key))
        assert await line.accepted()
        assert (await line.hear())["last"] == 0
        line.say(Resume(job, (), key))
        await line.over()

    live(tmp_path, use)


def test_a_caller_that_connects_while_the_log_is_written_does_not_delay_others_of_its_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(door: OpenDoor) -> None:
        job, key = await submit(door, "ann")
        other, other_key = await submit(door, "ann")
        line = door.dial("/v1/calls", "ann")
        line.say(Resume(job, (), key))
        assert await line.accepted()
        await line.hear()
        settled, waits, written = door.plane.settled, asyncio.Event(), asyncio.Event()

        async def once_written() -> Ledger:
            waits.set()
            await written.wait()
            return await settled()

        monkeypatch.setattr(door.plane, "settled", once_written)
        connecting = door.dial("/v1/calls", "ann")
        connecting.say(Resume(other, (), other_key))
        assert await connecting.accepted()
        await waits.wait()
        line.say(call(1))
        assert (await line.hear())["last"] == 1, "heard while another one connects"
        written.set()
        assert (await connecting.hear())["last"] == 0
        await line.close()
        await connecting.close()

    live(tmp_path, use)


def test_a_token_that_is_revoked_is_not_heard_any_more(tmp_path: Path) -> None:
    async def use(door: OpenDoor) -> None:
        job, key = await submit(door, "ann")
        line = door.dial("/v1/calls", "ann")
        line.say(Resume(job, (), key))
        assert await line.accepted()
        await line.hear()
        token = next(of for of in door.plane.ledger.tokens.values() if of.tenant == "ann")
        assert (await door.call("DELETE", f"/v1/tokens/{token.id}")).status == 202
        line.say(call(1))
        await line.over()
        book = door.plane.ledger.jobs[job].calls
        assert book is not None
        assert not book.open

    live(tmp_path, use)
