"""Secrets from a request to a node: in the log and in every answer only their names."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from leaks import leaks

from poise.control.shared import Shared
from poise.drivers.vault import Vault
from poise.kernel.frames import Frames
from poise.kernel.ledger import Ledger
from poise.model.messages import Beat, Hello
from poise.model.resources import Node
from poise.model.tenants import Role
from unit.control.desk import OWNER, Desk
from unit.control.open_door import Line, OpenDoor, open_door

SEEN = "a-value-that-anybody-may-see"
VALUE = "hf_correct-horse-battery-staple"
JOB = {"run": ["true"], "name": "a", "secrets": {"HF_TOKEN": VALUE}}

ANSWERS = (
    "/v1/status", "/v1/overview", "/v1/jobs?all=true", "/v1/jobs/j1", "/v1/jobs/j1/explanation?all=true",
    "/v1/jobs/j1/unblock", "/v1/jobs/j1/why-not/n1", "/v1/events?after=0&follow=false", "/v1/nodes",
    "/v1/audit?follow=false", "/v1/refusals",
)  # fmt: skip


def assert_nowhere(folder: Path, *answers: bytes) -> None:
    assert (folder / "log.db").exists()
    assert leaks(VALUE, folder, *answers) == []


def live(folder: Path, use: Callable[[OpenDoor], Awaitable[None]]) -> None:
    async def run() -> None:
        async with open_door(folder) as door:
            await door.token("ann", "ann", Role.SUBMITTER)
            await door.token("ann-looks", "ann", Role.VIEWER)
            await door.token("n1", "default", Role.NODE)
            await asyncio.wait_for(use(door), 60)

    asyncio.run(run())


class Far:
    """A node that is connected."""

    def __init__(self, line: Line) -> None:
        self.line, self.frames, self.beats = line, Frames(), 0

    @classmethod
    async def offer(cls, door: OpenDoor) -> "Far":
        far = cls(door.dial("/v1/channel", "n1"))
        far.line.say((far.frames.number(), Hello(node=Node(name="n1", incarnation="1", cpu=8000, memory=2**33))))
        assert await far.line.accepted()
        return far

    async def launched(self) -> dict[str, Any]:
        """The next launch that reaches the node."""
        while True:
            _, message = await self.line.hear()
            if message["type"] == "desired" and message.get("launches"):
                [launch] = message["launches"]
                return dict(launch)

    def beat(self) -> None:
        self.beats += 1
        self.line.say((self.frames.number(), Beat(number=self.beats)))


async def answers(door: OpenDoor, who: str) -> list[bytes]:
    return [(await door.call("GET", path, secret=who)).body for path in ANSWERS]


async def until_held(door: OpenDoor) -> Any:
    while True:
        job = (await door.call("GET", "/v1/jobs/j1")).value
        if job["tasks"][0]["reasons"] and "on hold" in job["tasks"][0]["reasons"][0]:
            return job
        await asyncio.sleep(0.01)


def test_the_node_gets_the_value_and_nobody_else_does(tmp_path: Path) -> None:
    async def use(door: OpenDoor) -> None:
        assert (await door.call("POST", "/v1/jobs", {"spec": JOB}, "ann")).status == 201
        waiting = [*await answers(door, "ann"), *await answers(door, "ann-looks"), *await answers(door, OWNER)]
        far = await Far.offer(door)
        launch = await far.launched()
        assert launch["env"] == {"HF_TOKEN": VALUE} and not launch.get("secrets")
        placed = [*await answers(door, "ann"), *await answers(door, "ann-looks"), *await answers(door, OWNER)]
        shown = (await door.call("GET", "/v1/jobs/j1", None, "ann-looks")).value
        assert shown["secrets"] == ["HF_TOKEN"]
        events = (await door.call("GET", "/v1/events?after=0&follow=false", None, "ann-looks")).body
        assert b'"secrets":{"HF_TOKEN":"sealed"}' in events
        assert_nowhere(tmp_path, *waiting, *placed)
        assert (await door.call("POST", "/v1/jobs", {"spec": {"run": ["true"], "env": {"SEEN": SEEN}}})).status == 201
        await far.line.close()

    live(tmp_path, use)
    assert_nowhere(tmp_path)
    assert leaks(SEEN, tmp_path), "a variable that is no secret stands in the log"


def test_a_control_plane_that_begins_again_opens_what_an_earlier_one_has_sealed(tmp_path: Path) -> None:
    async def submit(door: OpenDoor) -> None:
        assert (await door.call("POST", "/v1/jobs", {"spec": JOB}, "ann")).status == 201

    async def launch(door: OpenDoor) -> None:
        far = await Far.offer(door)
        assert (await far.launched())["env"] == {"HF_TOKEN": VALUE}
        await far.line.close()

    live(tmp_path, submit)
    live(tmp_path, launch)


def test_a_lost_key_holds_the_job_and_names_the_key_and_the_file(tmp_path: Path) -> None:
    key = tmp_path / "secrets.key"

    async def use(door: OpenDoor) -> None:
        assert (await door.call("POST", "/v1/jobs", {"spec": JOB}, "ann")).status == 201
        aside = key.rename(tmp_path / "aside")
        far = await Far.offer(door)
        [told] = (await until_held(door))["tasks"][0]["reasons"]
        assert "`secrets.key` in the state directory" in told and "`poise release j1`" in told and not key.exists()
        assert str(tmp_path) not in told
        assert (await door.call("POST", "/v1/jobs/j1/release", None, "ann")).status == 202
        await until_held(door)
        aside.rename(key)
        far.beat()
        assert (await door.call("POST", "/v1/jobs/j1/release", None, "ann")).status == 202
        launch = await far.launched()
        assert launch["env"] == {"HF_TOKEN": VALUE}
        await far.line.close()

    live(tmp_path, use)
    assert_nowhere(tmp_path)


def test_what_was_sealed_for_one_tenant_does_not_open_for_another(tmp_path: Path) -> None:
    """A sealed text that somebody has read is a value like any other to whoever submits it."""

    async def use(door: OpenDoor) -> None:
        assert (await door.call("POST", "/v1/jobs", {"spec": JOB}, "ann")).status == 201
        text = door.plane.ledger.jobs["j1"].secrets["HF_TOKEN"]
        assert (await door.call("POST", "/v1/jobs/j1/cancel", None, "ann")).status == 202
        await door.call("POST", "/v1/jobs", {"spec": JOB | {"secrets": {"HF_TOKEN": text}}})
        far = await Far.offer(door)
        assert (await far.launched())["env"] == {"HF_TOKEN": text}
        await far.line.close()

    live(tmp_path, use)


def test_a_stream_of_submissions_seals_too(tmp_path: Path) -> None:
    async def use(door: OpenDoor) -> None:
        lines = [json.dumps({"spec": spec}).encode() for spec in (JOB, {"run": "true", "secrets": ["A"]})]
        sent = list[Any]()

        async def send(message: Any) -> None:
            sent.append(message)

        messages = [{"type": "http.request", "body": b"\n".join(lines)}]
        closed = asyncio.Event()

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await closed.wait()
            return {"type": "http.disconnect"}

        more = {"content-type": "application/x-ndjson"}
        await door.app(door.scope("http", "POST", "/v1/jobs", "ann", more), receive, send)
        told = [json.loads(line) for line in b"".join(one.get("body", b"") for one in sent).splitlines()]
        assert told[0] == {"job": "j1"} and told[1]["error"]["field"] == "secrets.A"
        assert door.plane.ledger.jobs["j1"].secrets["HF_TOKEN"] != VALUE

    live(tmp_path, use)
    assert_nowhere(tmp_path)


def test_a_plan_needs_names_only_and_makes_no_key(tmp_path: Path) -> None:
    async def use(door: OpenDoor) -> None:
        for secrets in ({"HF_TOKEN": VALUE}, ["HF_TOKEN"]):
            answer = await door.call("POST", "/v1/plan", {"spec": JOB | {"secrets": secrets}}, "ann-looks")
            assert answer.status == 200 and VALUE.encode() not in answer.body
        assert not (tmp_path / "secrets.key").exists()

    live(tmp_path, use)


def test_a_refusal_does_not_show_the_value() -> None:
    desk = Desk()
    for spec in (
        JOB | {"secrets": VALUE},
        JOB | {"secrets": {VALUE: "x"}},
        JOB | {"secrets": {"A": [VALUE]}},
        {"kind": "graph", "tasks": {"a": {"run": "true", "secrets": VALUE}}},
    ):
        assert desk.call("POST", "/v1/jobs", {"spec": spec}).status == 422
        for path in ("/v1/jobs", "/v1/plan"):
            assert VALUE.encode() not in desk.call("POST", path, {"spec": spec}).body


def test_secrets_of_a_job_are_not_changed_afterwards(tmp_path: Path) -> None:
    async def use(door: OpenDoor) -> None:
        await door.call("POST", "/v1/jobs", {"spec": JOB}, "ann")
        answer = await door.call("POST", "/v1/jobs/j1/change", {"spec": {"secrets": {"HF_TOKEN": VALUE}}}, "ann")
        assert answer.status == 422 and VALUE.encode() not in answer.body
        assert "cannot be changed" in answer.value["error"]["message"]

    live(tmp_path, use)


def test_one_that_stands_by_warns_of_a_key_that_it_lacks_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs, vault = Vault(tmp_path / "theirs.key"), Vault(tmp_path / "secrets.key")
    texts = [theirs.seal("ann", "A", "one").text, theirs.seal("ann", "B", "two").text]
    shared = Shared(cast(Any, None), Ledger(), cast(Any, None), "token", vault)
    for known in ([], texts, texts[:1]):
        shared.compare_keys(known)
    told = f"secrets of jobs are sealed with key {texts[0][:8]}: copy its line into {vault.path}"
    assert caplog.messages == [told]
    vault.path.touch(mode=0o644)
    shared.compare_keys([Vault(tmp_path / "another.key").seal("ann", "A", "one").text])
    assert "others may read the keys of secrets" in caplog.messages[-1]
