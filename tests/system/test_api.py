"""The HTTP API: denied by default, described in full, and its stream of events shows what is durable and resumes."""

import base64
import contextlib
import json
import os
import re
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from poise.config import Endpoint
from poise.control.guard import KEYED, PUBLIC
from system.calls import Caller, read_answer
from system.living import PATIENCE, Living, alive, ended, resident, until

WRONG = {
    "no token": ({"Host": "poise"}, 401),
    "a wrong token": ({"Host": "poise", "Authorization": "Bearer wrong"}, 401),
    "an empty token": ({"Host": "poise", "Authorization": "Bearer "}, 401),
    "another scheme": ({"Host": "poise", "Authorization": "Basic {token}"}, 401),
    "letters beyond ASCII": ({"Host": "poise", "Authorization": "Bearer \u00e9"}, 401),
    "another Host": ({"Host": "evil.example", "Authorization": "Bearer {token}"}, 403),
    "a Host that begins like ours": ({"Host": "localhost.evil.example:7717", "Authorization": "Bearer {token}"}, 403),
    "no Host": ({"Authorization": "Bearer {token}"}, 403),
    "an Origin from elsewhere": (
        {"Host": "localhost", "Origin": "https://evil.example", "Authorization": "Bearer {token}"},
        403,
    ),
    "an Origin that hides": ({"Host": "localhost", "Origin": "null", "Authorization": "Bearer {token}"}, 403),
}
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


@pytest.fixture(scope="module")
def caller(shared: Living) -> Caller:
    return Caller(shared)


@pytest.fixture(scope="module")
def document(caller: Caller) -> Any:
    return caller.call("GET", "/v1/schema/openapi.json").value


def routes(document: Any) -> Iterator[tuple[str, str]]:
    """Every route there is: those of the document, the document itself, and the two bare ones."""
    for path, operations in document["paths"].items():
        for method in operations:
            yield method.upper(), path.replace("{name}", "j1").replace("{node}", "n1")
    yield "GET", "/v1/schema/openapi.json"
    yield "GET", "/v1/schema"
    yield "GET", "/v1/no-such-route"
    yield "GET", "/"


@pytest.mark.parametrize("wrong", WRONG)
def test_every_route_is_denied(caller: Caller, document: Any, wrong: str) -> None:
    headers, status = WRONG[wrong]
    given = {name: value.replace("{token}", caller.living.home.token.read_text()) for name, value in headers.items()}
    walked = list(routes(document))
    assert len(walked) > 14
    for method, path in walked:
        if path in PUBLIC:
            continue
        for kind in ("application/json", "application/x-ndjson"):
            answer = caller.call(method, path, b"{}", given | {"Content-Type": kind})
            assert answer.status == status, (method, path, answer)
            assert answer.error["code"] == ("E130" if status == 401 else "E131")
            assert b"j1" not in answer.body
    channel = caller.call("GET", "/v1/channel", headers=given | UPGRADE)
    assert channel.status == status
    assert caller.living.pid("control"), "no shutdown came through"


def test_only_health_the_authority_and_sign_in_are_public(caller: Caller, document: Any) -> None:
    assert caller.call("GET", "/healthz", headers={"Host": "localhost"}).value == {"ready": True, "accepting": True}
    assert caller.call("GET", "/healthz", headers={"Host": "evil.example"}).status == 403
    public = {
        path
        for path, operations in document["paths"].items()
        if any(operation.get("security") == [] for operation in operations.values())
    }
    assert public - KEYED == PUBLIC


def test_the_loopback_port_is_guarded_alike(caller: Caller) -> None:
    endpoint = msgspec.json.decode(caller.living.home.endpoint.read_bytes(), type=Endpoint)
    for token, status in ((caller.good["Authorization"], 200), ("Bearer x", 401)):
        with socket.create_connection(("127.0.0.1", endpoint.port), PATIENCE) as sock:
            sock.sendall(
                f"GET /v1/jobs HTTP/1.1\r\nHost: localhost:{endpoint.port}\r\nOrigin: http://localhost:{endpoint.port}\r\n"
                f"Authorization: {token}\r\nConnection: close\r\n\r\n".encode()
            )
            assert read_answer(sock).status == status
    sockets = [line.split() for line in open("/proc/net/tcp").read().splitlines()[1:]]  # noqa: PTH123, SIM115
    listening = {address for _, address, _, state, *_ in sockets if state == "0A"}
    ours = {address for address in listening if int(address.split(":")[1], 16) == endpoint.port}
    assert all(address.startswith("0100007F") for address in ours)


def test_a_browser_gets_no_leave_from_us(caller: Caller) -> None:
    answer = caller.call("OPTIONS", "/v1/jobs", headers={"Host": "poise", "Origin": "https://evil.example"})
    assert answer.status == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_files_are_for_their_owner_only(caller: Caller) -> None:
    caller.living.poise("run", "--", "echo", "secret")
    home = caller.living.home
    assert stat.S_IMODE(home.token.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700
    for folder in (home.node, home.logs):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in home.root.glob("log.*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    assert len(home.token.read_text()) >= 43


def test_a_token_that_others_may_read_is_not_used(living: Living) -> None:
    living.up()
    living.home.token.chmod(0o644)
    done = living.poise("ls", "--json")
    assert (done.code, done.error["code"]) == (1, "E130")
    assert done.error["hint"] == f"chmod 600 {living.home.token}"
    living.home.token.chmod(0o600)
    assert living.poise("ls").code == 0


def test_many_first_commands_at_once_make_one_home(living: Living) -> None:
    started = [living.start("run", "--cpu", "0.1", "--", "echo", str(number)) for number in range(5)]
    assert [ended(one).text for one in started] == [f"{number}\n" for number in range(5)]
    assert living.messages().count("ready: process") == 1


# --- the document ----------------------------------------------------------------------------------------------------


def test_what_the_reference_says_to_type_works(living: Living) -> None:
    """Every `curl` of docs/reference/api.md, with a home that lies at `~/.poise`."""
    living.up()
    (living.work / ".poise").symlink_to(living.home.root)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text()
    typed = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    answers = []
    for command in typed:
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, env=living.environment(HOME=str(living.work)), check=True
        )
        answers.append(json.loads(done.stdout))
    assert answers[0]["policy"] == "poise"
    assert answers[1] == {"job": "j1", "note": "", "caller_key": ""}
    assert living.poise("wait", "hello").code == 0


def test_the_document_describes_every_route_in_full(document: Any) -> None:
    assert document["openapi"].startswith("3.")
    assert document["security"] == [{"token": []}]
    assert document["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    schemas = document["components"]["schemas"]
    names = set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
            names.add(operation["operationId"])
            errors = {status: answer for status, answer in operation["responses"].items() if status >= "4"}
            assert {"403", "500", "503"} <= set(errors)
            assert ("401" in errors) == (path not in PUBLIC)
            assert ("404" in errors) == ("{" in path or path in ("/", "/v1/profiles", "/v1/authority")), path
            for answer in errors.values():
                assert answer["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ErrorBody"}
            good = [answer for status, answer in operation["responses"].items() if status < "4"]
            assert good
            for answer in good:
                assert answer["description"]
                assert all("schema" in content for content in answer.get("content", {}).values()), (method, path)
            written = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "path"}
            assert written == set(re.findall(r"{(\w+)}", path))
    assert len(names) == sum(map(len, document["paths"].values()))
    assert set(schemas["ErrorRecord"]["properties"]) == {
        "code", "message", "field", "at", "need", "have", "hint", "others"
    }  # fmt: skip
    assert not [ref for ref in _references(document) if ref.removeprefix("#/components/schemas/") not in schemas]


def test_the_document_tells_of_lines_and_of_the_grammar_of_jobs(document: Any) -> None:
    submit = document["paths"]["/v1/jobs"]["post"]
    assert set(submit["requestBody"]["content"]) == {"application/json", "application/x-ndjson"}
    assert "application/x-ndjson" in submit["responses"]["200"]["content"]
    assert "text/event-stream" in document["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]
    schemas = document["components"]["schemas"]
    assert schemas["Submission"]["properties"]["spec"] == {"$ref": "#/components/schemas/JobSpec"}
    assert {"run", "needs", "resources", "deadline", "tasks", "after"} <= set(schemas["JobSpec"]["properties"])


def test_the_document_stays_the_same(caller: Caller, document: Any) -> None:
    assert caller.call("GET", "/v1/schema/openapi.json").value == document


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "$ref":
                yield inner
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


# --- events ----------------------------------------------------------------------------------------------------------


class Listener:
    """Reads server-sent events in a thread."""

    def __init__(self, caller: Caller, path: str, last: int | None = None) -> None:
        self.events: list[tuple[int, Any]] = []
        self.sock = caller.connect()
        again = f"Last-Event-ID: {last}\r\n" if last is not None else ""
        head = f"GET {path} HTTP/1.1\r\nHost: poise\r\nAuthorization: {caller.good['Authorization']}\r\n{again}\r\n"
        self.sock.sendall(head.encode())
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        revision = 0
        try:
            for line in self.sock.makefile("rb"):
                if line.startswith(b"id: "):
                    revision = int(line[4:])
                elif line.startswith(b"data: "):
                    self.events.append((revision, json.loads(line[6:])))
        except OSError:
            return

    def close(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def test_events_resume_where_they_were_left(caller: Caller) -> None:
    listener = Listener(caller, "/v1/events?after=0")
    caller.living.poise("run", "--", "true")
    until(lambda: len(listener.events) > 5, "events come")
    listener.close()
    seen = [revision for revision, _ in listener.events]
    assert seen == list(range(1, len(seen) + 1))
    assert all(event["revision"] == revision for revision, event in listener.events)
    caller.living.poise("run", "--", "true")
    last = seen[3]
    again = Listener(caller, "/v1/events?after=0", last)
    until(lambda: again.events and again.events[-1][0] > seen[-1], "they go on")
    again.close()
    assert again.events[0][0] == last + 1
    assert again.events[: len(seen) - 4] == listener.events[4:]


def test_decisions_alone_say_why(caller: Caller) -> None:
    caller.living.poise("run", "--", "true")
    answer = caller.call("GET", "/v1/events?after=0&decisions=true&follow=false")
    found = [json.loads(line[6:]) for line in answer.body.splitlines() if line.startswith(b"data: ")]
    assert {record["event"]["type"] for record in found} <= {
        "placed",
        "held",
        "preempted",
        "levelled",
        "triggered",
        "policy-failed",
    }
    assert all(record["event"]["why"] for record in found if record["event"]["type"] == "placed")


def test_only_what_is_durable_is_shown(living: Living) -> None:
    """Whatever was seen before kill -9 is in the log after it, the same at the same revision."""
    living.up()
    caller = Caller(living)
    listener = Listener(caller, "/v1/events?after=0")
    client = living.client()
    stop = threading.Event()

    def submit() -> None:
        own = living.client()
        while not stop.is_set():
            own.submit({"run": ["true"]})

    submitter = threading.Thread(target=submit)
    submitter.start()
    until(lambda: len(listener.events) > 200, "events come")
    os.kill(living.pid("control"), 9)
    time.sleep(0.2)
    seen = list(listener.events)
    stop.set()
    submitter.join()
    client.status()
    again = caller.call("GET", "/v1/events?after=0&follow=false")
    logged = [json.loads(line[6:]) for line in again.body.splitlines() if line.startswith(b"data: ")]
    assert [event for _, event in seen] == logged[: len(seen)]
    for job in client.jobs():
        client.wait(job.id, 60)


# --- clients that misbehave ------------------------------------------------------------------------------------------


@pytest.mark.timed
def test_slow_and_silent_clients_hold_up_nobody(caller: Caller) -> None:
    """Followers that never read, half a request, requests a byte at a time: others are answered, and memory stays."""
    living = caller.living
    control = living.pid("control")
    before = resident(control)
    head = f"GET /v1/events?after=0 HTTP/1.1\r\nHost: poise\r\nAuthorization: {caller.good['Authorization']}\r\n\r\n"
    socks = []
    for number in range(90):
        sock = caller.connect()
        sock.sendall(head.encode() if number % 3 == 0 else head[: 10 + number].encode())
        socks.append(sock)
    lines = b'{"spec": {"run": ["true"], "resources": {"cpu": 0.1}}}\n' * 500
    answer = caller.call("POST", "/v1/jobs", lines, Content_Type="application/x-ndjson")
    assert len(answer.body.splitlines()) == 500
    slowest = 0.0
    for number in range(50):
        for sock in socks[1::3]:
            with contextlib.suppress(OSError):  # hung up on by now
                sock.sendall(b"x")
        start = time.monotonic()
        assert caller.call("GET", "/healthz").status == 200
        slowest = max(slowest, time.monotonic() - start)
        if number % 10 == 0:
            time.sleep(0.02)
    assert slowest < 2
    assert alive(control)
    assert resident(control) - before < 60 * 2**20
    for sock in socks:
        sock.close()
    client = living.client()
    for line in answer.body.splitlines():
        client.wait(json.loads(line)["job"], 60)


@pytest.mark.parametrize("line", [b"a: b\r\n", b"x" * 8])
def test_headers_without_end_are_refused_before_they_fill_anything(caller: Caller, line: bytes) -> None:
    control = caller.living.pid("control")
    before = resident(control)
    many, sent = line * (2**16 // len(line)), 0
    with caller.connect() as sock:
        sock.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: poise\r\n" + (b"y: " if b"x" in line else b""))
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                sock.sendall(many)
                sent += len(many)
    assert sent < 16 * 2**20
    assert resident(control) - before < 16 * 2**20 and alive(control)
    with caller.connect() as sock:
        sock.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: poise\r\n" + b"a: b\r\n" * 12_000)
        answer = read_answer(sock)
    assert (answer.status, answer.error["code"]) == (431, "E140")


def test_a_channel_that_talks_nonsense_is_closed(caller: Caller) -> None:
    """Whoever has the token may dial in as a node; what is no message ends that connection, and nothing else."""

    def node() -> Any:
        """Without how busy it is at the moment."""
        [found] = caller.living.poise("nodes", "--json").value
        return {name: value for name, value in found.items() if name not in ("load", "level")}

    before = node()
    with caller.connect() as sock:
        key = base64.b64encode(os.urandom(16)).decode()
        sock.sendall(
            f"GET /v1/channel HTTP/1.1\r\nHost: poise\r\nAuthorization: {caller.good['Authorization']}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        assert b"101 Switching" in sock.recv(4096)
        payload = b"\x93nonsense"
        sock.sendall(bytes([0x82, 0x80 | len(payload), 0, 0, 0, 0]) + payload)
        until(lambda: not sock.recv(4096), "it is closed")
    assert node() == before
    assert caller.living.poise("run", "--", "true").code == 0
