"""Notices on their way: to webhooks and commands, again where nobody answers, and not to private addresses."""

import asyncio
import hashlib
import hmac
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from webhook import Receiver, receiving

from poise.config import Home
from poise.control.notices import Notifier, Targets
from poise.control.plane import Plane
from poise.drivers.schemas import schema_of
from poise.drivers.webhooks import is_public
from poise.errors import SpecError, StoreFull
from poise.kernel.ledger import JobState
from poise.kernel.messages import Cancel, NoticeDone, Submit
from poise.model.spec import compile_spec
from poise.model.tenants import HOME, Bearer, Role
from poise.testing import WALL
from unit.control.desk import Desk
from unit.control.open_door import open_door

PATIENCE = 20.0
ANN = Bearer("ann", Role.SUBMITTER)
AT_ONCE = (0.01, 0.01)
"""Delays before further tries."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def write(folder: Path, text: str) -> None:
    (folder / "notifications.yaml").write_text(f"kind: notifications\n{text}")


async def over(plane: Plane, targets: Targets, notify: list[str], bearer: Bearer = HOME) -> JobState:
    """Submit a job and cancel it."""
    document = {"run": "true", "notify": notify} if notify else {"run": "true"}
    compiled = targets.admit(compile_spec(document, wall=WALL, tenant=bearer.tenant), bearer)
    job: str = await plane.request(lambda number: Submit(number, compiled, bearer=bearer))
    await plane.request(lambda number: Cancel(number, job))
    return plane.ledger.jobs[job]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 — others say it on threads
            await asyncio.sleep(0.005)


def told(folder: Path, notify: list[str], bearer: Bearer = HOME, delays: tuple[float, ...] = AT_ONCE) -> dict[str, str]:
    """What became of the notices of a job that ends: by notice, why it was not delivered."""

    async def tell() -> dict[str, str]:
        async with open_door(folder) as door:
            targets = Targets(Home(folder))
            notifier = asyncio.create_task(Notifier(door.plane, targets, delays).run())
            job = await over(door.plane, targets, notify, bearer)
            await until(lambda: not door.plane.ledger.jobs.notifying)
            notifier.cancel()
            await asyncio.gather(notifier, return_exceptions=True)
            return door.plane.ledger.jobs[job.id].notified

    return asyncio.run(tell())


def test_a_webhook_gets_json_by_its_schema(receiver: Receiver, tmp_path: Path) -> None:
    assert told(tmp_path, [receiver.url]) == {"end/0": ""}
    [(headers, body)] = receiver.got
    notice = json.loads(body)
    jsonschema.validate(notice, schema_of("notice"))
    assert (notice["job"], notice["status"], notice["moment"]) == ("j1", "cancelled", "end")
    assert (headers["path"], headers["Content-Type"]) == ("/hook?x=1", "application/json")
    assert headers["Poise-Notice"] == notice["id"] == "j1/end/0"
    assert "Poise-Signature" not in headers


def test_it_is_signed_where_there_is_a_key(receiver: Receiver, tmp_path: Path) -> None:
    write(tmp_path, "key: secret\n")
    told(tmp_path, [receiver.url])
    [(headers, body)] = receiver.got
    assert headers["Poise-Signature"] == "sha256=" + hmac.new(b"secret", body, hashlib.sha256).hexdigest()


def test_it_is_sent_again_with_the_same_id_until_it_is_taken(receiver: Receiver, tmp_path: Path) -> None:
    receiver.statuses = [500, 429]
    assert told(tmp_path, [receiver.url]) == {"end/0": ""}
    assert [headers["Poise-Notice"] for headers, _ in receiver.got] == ["j1/end/0"] * 3


@pytest.mark.parametrize(("status", "tries"), [(503, 3), (404, 1), (302, 1)])
def test_it_is_given_up(receiver: Receiver, tmp_path: Path, status: int, tries: int) -> None:
    receiver.statuses = [status] * 9
    assert list(told(tmp_path, [receiver.url])["end/0"].split()[:3]) == ["127.0.0.1", "answered", str(status)]
    assert len(receiver.got) == tries


def test_a_receiver_that_is_gone_keeps_none_from_another(receiver: Receiver, tmp_path: Path) -> None:
    async def tell() -> None:
        async with open_door(tmp_path) as door:
            targets = Targets(Home(tmp_path))
            notifier = asyncio.create_task(Notifier(door.plane, targets, (3600.0,)).run())
            for _ in range(40):
                await over(door.plane, targets, ["webhook:http://127.0.0.1:1/"])
            job = await over(door.plane, targets, [receiver.url])
            await until(lambda: "end/0" in door.plane.ledger.jobs[job.id].notified)
            assert len(door.plane.ledger.jobs.notifying) == 40
            notifier.cancel()
            await asyncio.gather(notifier, return_exceptions=True)

    asyncio.run(tell())


def test_many_notices_of_one_receiver_are_all_sent_once(receiver: Receiver, tmp_path: Path) -> None:
    async def tell() -> None:
        async with open_door(tmp_path) as door:
            targets = Targets(Home(tmp_path))
            for _ in range(30):
                await over(door.plane, targets, [receiver.url, receiver.url + "&y=2"])
            notifier = asyncio.create_task(Notifier(door.plane, targets, AT_ONCE).run())
            await until(lambda: not door.plane.ledger.jobs.notifying)
            notifier.cancel()
            await asyncio.gather(notifier, return_exceptions=True)

    asyncio.run(tell())
    assert sorted(headers["Poise-Notice"] for headers, _ in receiver.got) == sorted(
        f"j{number}/end/{place}" for number in range(1, 31) for place in (0, 1)
    )


def test_what_happens_while_a_notice_is_on_its_way_is_told_too(receiver: Receiver, tmp_path: Path) -> None:
    receiver.statuses = [503, 503]

    async def tell() -> None:
        async with open_door(tmp_path) as door:
            targets = Targets(Home(tmp_path))
            document = {"run": "true", "notify": [receiver.url], "notify-on": ["start", "end"]}
            compiled = targets.admit(compile_spec(document, wall=WALL), HOME)
            job_id: str = await door.plane.request(lambda number: Submit(number, compiled))
            job = door.plane.ledger.jobs[job_id]
            job.units[0].tasks[0].started = door.plane.clock.now()  # as a node would say
            door.plane.ledger.jobs.index_notices(job)
            notifier = asyncio.create_task(Notifier(door.plane, targets, (0.5, 0.01)).run())
            await until(lambda: len(receiver.got) == 1)
            await door.plane.request(lambda number: Cancel(number, job_id))
            await until(lambda: not door.plane.ledger.jobs.notifying)
            notifier.cancel()
            await asyncio.gather(notifier, return_exceptions=True)

    asyncio.run(tell())
    assert [json.loads(body)["moment"] for _, body in receiver.got] == ["start", "start", "start", "end"]


def test_what_was_due_before_a_restart_is_told_after_it(receiver: Receiver, tmp_path: Path) -> None:
    async def end() -> None:
        async with open_door(tmp_path) as door:
            await over(door.plane, Targets(Home(tmp_path)), [receiver.url])

    async def go_on() -> None:
        async with open_door(tmp_path) as door:
            notifier = asyncio.create_task(Notifier(door.plane, Targets(Home(tmp_path)), AT_ONCE).run())
            await until(lambda: not door.plane.ledger.jobs.notifying)
            notifier.cancel()
            await asyncio.gather(notifier, return_exceptions=True)

    asyncio.run(end())
    assert receiver.got == []
    asyncio.run(go_on())
    assert [headers["Poise-Notice"] for headers, _ in receiver.got] == ["j1/end/0"]


def test_a_command_gets_the_notice_and_nothing_else(tmp_path: Path) -> None:
    write(
        tmp_path,
        f"commands: {{mail: [sh, -c, 'cat > {tmp_path}/body; env > {tmp_path}/env']}}\nnotify: [command:mail]\n",
    )
    assert told(tmp_path, []) == {"end/0": ""}, "jobs that name nobody tell whom the home names"
    assert json.loads((tmp_path / "body").read_text())["job"] == "j1"
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert {"POISE_JOB", "POISE_NAME", "POISE_STATUS", "POISE_MOMENT"} <= names
    assert names <= {"PATH", "HOME", "LANG", "PWD", "OLDPWD", "SHLVL", "_", *(n for n in names if n[:6] == "POISE_")}


def test_a_command_that_fails_is_run_again_and_given_up(tmp_path: Path) -> None:
    write(tmp_path, f"commands: {{mail: [sh, -c, 'echo >> {tmp_path}/runs; exit 3']}}\n")
    assert told(tmp_path, ["command:mail"]) == {"end/0": "`sh` ended with 3"}
    assert (tmp_path / "runs").read_text() == "\n" * 3


def test_only_commands_of_the_home_can_be_named(tmp_path: Path) -> None:
    write(tmp_path, "commands: {mail: ['true']}\n")
    for bearer in (HOME, ANN):
        with pytest.raises(SpecError) as refused:
            told(tmp_path, ["command:rm"], bearer)
        assert refused.value.record.need == "one of: mail"


def test_workers_of_calls_notify_under_the_same_rules(tmp_path: Path) -> None:
    targets, loopback = Targets(Home(tmp_path)), ["webhook:http://127.0.0.1:1/x"]
    compiled = compile_spec({"run": "x", "calls": True, "notify": loopback}, wall=WALL)
    notify = targets.admit(compiled, HOME).notify
    assert notify is not None and notify.trusted
    with pytest.raises(SpecError, match="private address"):
        targets.admit(compiled, ANN)


def test_a_tenant_reaches_no_private_address(receiver: Receiver, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="private address"):
        told(tmp_path, [receiver.url], ANN)
    assert receiver.got == []


def test_a_name_of_a_private_address_is_found_out_when_it_is_used(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def lead_home(host: str, *args: Any, **kwargs: Any) -> Any:
        return real("127.0.0.1" if host == "hooks.example.org" else host, *args, **kwargs)

    monkeypatch.setattr("socket.getaddrinfo", lead_home)
    hook = receiver.url.replace("127.0.0.1", "hooks.example.org")
    assert told(tmp_path, [hook], ANN) == {"end/0": "hooks.example.org is at a private address"}
    assert receiver.got == []
    write(tmp_path, "private: [Hooks.example.org]\n")
    assert told(tmp_path, [hook], ANN) == {"end/0": ""}


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),  # noqa: S104 — nobody binds here
        ("10.0.0.1", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_addresses_that_anybody_could_reach(address: str, public: bool) -> None:
    assert is_public(address) == public


def test_the_api_admits_targets_on_both_ways_in(tmp_path: Path) -> None:
    desk = Desk(logs=tmp_path)
    desk.token("ann", "ann", Role.SUBMITTER)
    spec = {"spec": {"run": "true", "notify": ["webhook:http://169.254.169.254/latest"]}}
    assert desk.call("POST", "/v1/jobs", spec, who="ann").code == "E105"
    line = json.dumps(spec).encode() + b"\n"
    assert b"E105" in desk.call("POST", "/v1/jobs", line, who="ann", kind="application/x-ndjson").body
    assert desk.call("POST", "/v1/jobs", spec).status == 201
    assert [job.notify and job.notify.trusted for job in desk.world.ledger.jobs.values()] == [True]


def test_what_serves_tells_nobody_by_default(tmp_path: Path) -> None:
    write(tmp_path, "commands: {mail: ['true']}\nnotify: [command:mail]\n")
    targets = Targets(Home(tmp_path))
    for spec in ({"run": "x", "serves": "digits"}, {"run": "x", "calls": True, "parts": 2}):
        assert targets.admit(compile_spec(spec, wall=WALL), HOME).notify is None
    assert targets.admit(compile_spec({"run": "x"}, wall=WALL), HOME).notify is not None


def test_a_file_with_mistakes_says_where(tmp_path: Path) -> None:
    write(tmp_path, "commands: {mail: []}\nnotify: [command:page]\n")
    with pytest.raises(SpecError) as refused:
        Targets(Desk(logs=tmp_path).home).of_home()
    assert {record.field for record in refused.value.record.all()} == {"commands.mail", "notify"}
    assert "notifications.yaml:2" in refused.value.record.at


def test_a_full_disk_sends_nothing_twice(receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it cannot be recorded that a notice was taken, only that is tried again."""
    monkeypatch.setattr("poise.control.notices.RECORD_AGAIN", 0.01)

    async def tell() -> None:
        async with open_door(tmp_path) as door:
            real, refused = door.plane.request, 0

            async def full(make: Callable[[int], Any]) -> Any:
                nonlocal refused
                if isinstance(make(0), NoticeDone) and refused < 3:
                    refused += 1
                    raise StoreFull("the disk of the log is full")
                return await real(make)

            targets = Targets(Home(tmp_path))
            await over(door.plane, targets, [receiver.url])
            monkeypatch.setattr(door.plane, "request", full)
            notifier = asyncio.create_task(Notifier(door.plane, targets, AT_ONCE).run())
            await until(lambda: not door.plane.ledger.jobs.notifying)
            notifier.cancel()
            await asyncio.gather(notifier, return_exceptions=True)

    asyncio.run(tell())
    assert len(receiver.got) == 1
