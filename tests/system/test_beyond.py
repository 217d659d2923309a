"""Beyond one machine: commands and nodes of other homes reach a control plane by TLS, and nobody else does."""

import contextlib
import gzip
import hashlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from fuzz.mutate import NODE
from leaks import leaks
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from poise.client import Client
from poise.config import Address, Home
from poise.drivers import sockets
from poise.drivers.authority import ensure_authority, server_context
from poise.drivers.lock import holder
from poise.drivers.logs import KEEP_FILES
from poise.drivers.reach import home_elsewhere, trusting
from poise.drivers.security import ensure_home
from poise.errors import Unreachable
from poise.kernel.frames import Frames
from poise.model.messages import Attempt, Hello, Met, Output
from poise.model.reports.streams import ExecEnd, ExecOutput, ExecStarted
from poise.model.resources import Node
from system.living import PATIENCE, Diary, Done, Living, free_port, kill, until


class Beyond:
    """A home that listens to other machines, a node of another home, and somebody's home in which nothing runs."""

    def __init__(self, living: Living) -> None:
        self.living = living
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        living.up("--listen", f"127.0.0.1:{port}")
        self.address = Address.parse(living.poise("status").text.partition("address ")[2].strip())
        self.node = Home(living.home.root.with_name("home-far"))
        self._agent: subprocess.Popen[bytes] | None = None
        self.submitter, self.offers = self.token("submitter"), self.token("node")
        self.offer(self.offers)
        here = os.uname().nodename
        until(lambda: self.status("far") == self.status(here) == "up", "both nodes have joined", living.messages)
        assert living.poise("drain", here).code == 0

    def token(self, role: str) -> Path:
        """A token of `ann`."""
        file = self.living.work / f"token.{role}"
        file.touch(mode=0o600)
        file.write_bytes(self.living.poise("token", "add", "--tenant", "ann", "--role", role).out)
        return file

    def offer(self, token: Path, name: str = "far", home: Home | None = None) -> None:
        """Start an agent in a home of its own."""
        agent = [sys.executable, "-m", "poise.agent", str((home or self.node).root), "--name", name]
        with self.living.home.messages.open("ab") as messages:
            self._agent = subprocess.Popen(
                [*agent, "--connect", self.address.text],
                stderr=messages,
                env=self.living.environment(POISE_TOKEN_FILE=str(token)),
            )

    @contextlib.contextmanager
    def also_offered(self, token: Path, name: str, home: str) -> Iterator[None]:
        """One more agent, for as long as it is looked at."""
        agent = self._agent
        self.offer(token, name, Home(self.living.home.root.with_name(home)))
        try:
            yield
        finally:
            self.end_agent()
            self._agent = agent

    def ann(self, *arguments: str, address: str = "", token: Path | None = None) -> Done:
        """A command on her machine."""
        there = {"POISE_ADDRESS": address or self.address.text, "POISE_TOKEN_FILE": str(token or self.submitter)}
        return self.living.poise(*arguments, POISE_HOME=str(self.living.work / "ann"), **there)

    def status(self, node: str) -> str:
        return next((of.status for of in self.living.client().nodes() if of.name == node), "unknown")

    def end_agent(self) -> None:
        assert self._agent is not None
        self._agent.terminate()
        self._agent.wait(PATIENCE)


@pytest.fixture(scope="module")
def beyond() -> Iterator[Beyond]:
    living = Living()
    try:
        beyond = Beyond(living)
        yield beyond
        beyond.end_agent()
    except BaseException:
        living.destroy()
        raise
    living.close()


def test_somebody_elsewhere_works_on_a_machine_elsewhere(beyond: Beyond) -> None:
    done = beyond.ann("run", "--name", "far", "--", "sh", "-c", "echo begun; echo oops >&2; seq 1 300000; exit 3")
    assert done.code == 3
    assert done.text == "begun\n" + "".join(f"{number}\n" for number in range(1, 300001))
    assert "oops" in done.err
    report = beyond.ann("show", "far", "--json").value
    assert (report["tenant"], report["tasks"][0]["node"]) == ("ann", "far")
    assert not (beyond.living.work / "ann").exists(), "nothing is written on her machine"
    assert beyond.ann("up").code == 1


def test_a_removed_job_leaves_no_output_on_either_machine(beyond: Beyond) -> None:
    assert beyond.ann("run", "--name", "gone", "--", "echo", "hello").text == "hello\n"
    job = beyond.ann("show", "gone", "--json").value["id"]
    copies = [home.logs / job for home in (beyond.living.home, beyond.node)]
    assert [copy.exists() for copy in copies] == [True, True]
    assert beyond.ann("rm", "gone", "--json").value == {"removed": [job]}
    until(lambda: not any(copy.exists() for copy in copies), "its output is gone")
    assert beyond.ann("show", "gone").code == 1


def test_input_and_a_command_beside_reach_a_machine_elsewhere(beyond: Beyond) -> None:
    address, token = beyond.address.text, beyond.submitter.read_text().strip()
    there = Client(home_elsewhere(beyond.living.work / "ann", address), token=token)
    job = there.submit({"run": ["sh", "-c", "cat; sleep 600"], "stdin": True, "env": {"COLOUR": "red"}})
    until(lambda: there.job(job).status == "running", "it runs")
    assert there.job(job).tasks[0].node == "far"
    much = os.urandom(1_000_000)
    sent = 0
    while sent < len(much):
        told = there.give(job, much[sent : sent + 200_000], epoch=1, at=sent)
        sent = max(sent, told.taken)
    beside = there.exec(job, ["sh", "-c", "echo $COLOUR; cat; exit 4"], stdin=True)
    started = next(beside)
    assert isinstance(started, ExecStarted)
    there.feed_exec(started.name, b"hello")
    lines = [*beside]
    assert b"".join(line.data for line in lines if isinstance(line, ExecOutput)) == b"red\nhello"
    assert lines[-1] == ExecEnd(4)
    assert there.give(job, epoch=1, at=sent, end=True).taken == len(much)
    until(lambda: beyond.ann("logs", job).out == much, "all of it has come back")
    there.cancel(job)
    there.wait(job)


def test_a_secret_reaches_a_machine_elsewhere_and_is_kept_on_none(beyond: Beyond) -> None:
    value, diary = f"hf_{os.urandom(16).hex()}", Diary(beyond.living.work / "diary-secret")
    token = beyond.living.work / "ann.txt"
    token.write_text(value)
    command = f"printf %s $HF_TOKEN | sha256sum; {diary.held()}"
    job = beyond.ann("submit", "--secret", f"HF_TOKEN=@{token}", "--", "sh", "-c", command).text.strip()
    token.unlink()
    until(lambda: hashlib.sha256(value.encode()).hexdigest() in beyond.ann("logs", job).text, "it has read its secret")
    assert leaks(value, beyond.living.root, beyond.ann("show", job, "--json").out) == []
    diary.release()
    assert beyond.ann("wait", job).code == 0
    assert leaks(value, beyond.living.root) == []


def test_a_role_is_for_what_it_is_for(beyond: Beyond) -> None:
    refused = beyond.ann("submit", "--json", "--", "true", token=beyond.offers)
    assert refused.error["code"] == "E133"
    before = beyond.living.client().refusals().counts["E133"]
    other = Home(beyond.living.home.root.with_name("home-other"))
    agent = beyond._agent
    beyond.offer(beyond.submitter, "other", other)
    until(lambda: beyond.living.client().refusals().counts["E133"] > before, "a submitter offers no node")
    beyond.end_agent()
    beyond._agent = agent
    assert beyond.status("other") == "unknown"


def events(beyond: Beyond, *types: str) -> list[dict[str, str]]:
    told = [json.loads(line)["event"] for line in beyond.living.client().events(after=0, follow=False)]
    return [event for event in told if event["type"] in types]


def test_another_machine_under_the_name_of_one_that_is_heard_takes_nothing_from_it(beyond: Beyond) -> None:
    """Else each would have the work of the other given up, and itself be hung up on, again and again."""
    diary = Diary(beyond.living.work / "diary-namesake")
    job = beyond.ann("submit", "--", "sh", "-c", diary.held()).text.strip()
    until(lambda: "start" in diary.path.read_text(), "it runs")
    before = len(events(beyond, "joined", "lost"))
    said = len(beyond.living.messages())
    told = "node is refused: another machine uses this name; give this one another name: `--name`"
    with beyond.also_offered(beyond.offers, "far", "home-namesake"):
        until(lambda: told in beyond.living.messages()[said:], "it says why", beyond.living.messages)
        refused = beyond.living.client().refusals().counts["E107"]
        until(lambda: beyond.living.client().refusals().counts["E107"] >= refused + 3, "it goes on trying")
    assert beyond.living.messages()[said:].count(told) == 1
    assert len(events(beyond, "joined", "lost")) == before
    diary.release()
    assert beyond.ann("wait", job).code == 0
    diary.check()


def test_an_agent_says_what_it_is_refused_with_and_tries_no_more_than_once_a_second(beyond: Beyond) -> None:
    def refused() -> int:
        return beyond.living.client().refusals().counts.get("E130", 0)

    said, before = len(beyond.living.messages()), refused()
    wrong = beyond.living.work / "token.wrong"
    wrong.touch(mode=0o600)
    wrong.write_text("wrong")
    told = "node is refused: E130: the request carries no token, or a wrong one; set POISE_TOKEN"
    with beyond.also_offered(wrong, "unknown", "home-unknown"):
        until(lambda: told in beyond.living.messages()[said:], "it says why", beyond.living.messages)
        until(lambda: refused() >= before + 7, "it goes on trying")
        began, first = time.monotonic(), refused()
        until(lambda: refused() >= first + 3, "it goes on trying")
        assert time.monotonic() - began > 1.5
    assert beyond.living.messages()[said:].count(told) == 1


def test_who_speaks_for_the_address_is_checked_before_anything_is_said(beyond: Beyond, tmp_path: Path) -> None:
    impostor = Home(tmp_path / "impostor")
    ensure_home(impostor)
    heard: list[bytes] = []

    def answer(listening: socket.socket, context: ssl.SSLContext, body: bytes) -> None:
        with context.wrap_socket(listening.accept()[0], server_side=True) as channel:
            heard.append(channel.recv(65536))
            channel.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        context = server_context(impostor, ["127.0.0.1"])
        arguments = (listening, context, ensure_authority(impostor))
        thread = threading.Thread(target=answer, args=arguments, daemon=True)
        thread.start()
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        refused = beyond.ann("ls", "--json", address=f"{place}#{beyond.address.authority}")
        thread.join(PATIENCE)
    assert refused.error["code"] == "E134"
    assert len(heard) == 1
    assert b"Authorization" not in heard[0]
    assert beyond.ann("ls", "--json", address="127.0.0.1").error["field"] == "POISE_ADDRESS"


def test_the_names_of_a_certificate_that_has_another_one_are_told(
    beyond: Beyond, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POISE_TOKEN_FILE", str(beyond.living.home.token))
    unnamed = msgspec.structs.replace(beyond.address, host="127.1")  # where the same is, to the system
    with pytest.raises(Unreachable) as refused:
        Client(Home(tmp_path, unnamed), patience=0).status()
    assert "localhost" in refused.value.record.hint


def ask(beyond: Beyond, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    given = {"Authorization": f"Bearer {beyond.living.home.token.read_text()}"} | headers
    connection = http.client.HTTPSConnection(
        beyond.address.host, beyond.address.port, timeout=PATIENCE, context=trusting(beyond.address)
    )
    connection.request("GET", path, headers=given)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def test_host_and_origin_are_checked_and_answers_compressed(beyond: Beyond) -> None:
    assert ask(beyond, "/v1/jobs")[0].status == 200, "by the address that the certificate names"
    assert ask(beyond, "/v1/jobs", Host=os.uname().nodename)[0].status == 200
    for wrong in (
        {"Host": "evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": f"http://{beyond.address}1"},
    ):
        assert ask(beyond, "/v1/jobs", **wrong)[0].status == 403
    assert ask(beyond, "/v1/jobs", Authorization="Bearer wrong")[0].status == 401
    schema = "/v1/schema/openapi.json"
    plain, small = ask(beyond, schema), ask(beyond, schema, **{"Accept-Encoding": "gzip"})
    assert plain[0].headers["Content-Encoding"] is None
    assert small[0].headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(small[1])) == json.loads(plain[1])
    assert len(small[1]) < len(plain[1]) / 4


def test_it_speaks_no_plain_http(beyond: Beyond) -> None:
    with socket.create_connection((beyond.address.host, beyond.address.port), PATIENCE) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: poise\r\nConnection: close\r\n\r\n")
        with pytest.raises(ConnectionError):
            assert b"HTTP" not in sock.recv(4096)
            raise ConnectionAbortedError("hung up")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode, old.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    plain = socket.create_connection((beyond.address.host, beyond.address.port), PATIENCE)
    with plain, pytest.raises(ssl.SSLError):
        old.wrap_socket(plain)


def test_the_authority_outlives_the_control_plane_and_is_for_its_owner_only(beyond: Beyond) -> None:
    folder = beyond.living.home.authority
    assert folder.stat().st_mode & 0o077 == 0
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600] * 3
    before = ensure_authority(beyond.living.home)
    kill(beyond.living.pid("control"))
    until(lambda: beyond.ann("whoami").code == 0, "it is back")
    assert ensure_authority(beyond.living.home) == before


def test_what_a_member_of_a_gang_leaves_as_it_ends_reaches_the_one_on_another_machine(beyond: Beyond) -> None:
    with beyond.also_offered(beyond.offers, "farther", "home-farther"):
        until(lambda: beyond.status("far") == beyond.status("farther") == "up", "both are there")
        cores = str(min(of.cpu for of in beyond.living.client().nodes()) // 1000)
        meet = "cd $POISE_GANG_DIR; echo > $POISE_RANK; [ $POISE_RANK = 0 ] || until [ -e 0 ]; do sleep 0.02; done"
        job = beyond.ann("submit", "--workers", "2", "--cpu", cores, "--", "sh", "-c", meet).text.strip()
        assert beyond.ann("wait", job).code == 0


@pytest.mark.parametrize("killed", ["agent", "control"])
def test_what_runs_goes_on_when_either_side_is_killed(beyond: Beyond, killed: str) -> None:
    diary = Diary(beyond.living.work / f"diary-{killed}")
    job = beyond.ann("submit", "--", "sh", "-c", f"echo before; {diary.held()}; echo after").text.strip()
    until(lambda: beyond.ann("logs", job).text == "before\n", "what it wrote so far is here")
    if killed == "agent":
        kill(holder(beyond.node.node / "lock"))
        beyond._agent.wait(PATIENCE)  # type: ignore[union-attr]
        diary.release()  # it ends while nobody watches
        until(lambda: "end" in diary.path.read_text(), "it has gone on to its end")
        beyond.offer(beyond.offers)
    else:
        kill(beyond.living.pid("control"))
        until(lambda: beyond.ann("whoami").code == 0, "it is back")
        diary.release()
    assert beyond.ann("wait", job).code == 0
    assert beyond.ann("logs", job).text == "before\nafter\n"
    diary.check()


def test_a_stream_of_submissions_comes_by_tls(beyond: Beyond, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than is in hand at once, and the control plane is killed in the midst of it."""
    monkeypatch.setenv("POISE_TOKEN_FILE", str(beyond.submitter))
    client, count = Client(Home(beyond.living.work / "ann", beyond.address), patience=PATIENCE), 1500
    all_of_it = {"cpu": os.cpu_count()}

    def specs() -> Iterator[dict[str, Any]]:
        for number in range(count):
            if number == count - 100:
                kill(beyond.living.pid("control"))
            yield {"run": ["true"], "resources": all_of_it, "env": {"LONG": "x" * 500}}

    jobs = [client.submit({"run": ["sleep", "600"], "resources": all_of_it})]
    for receipt in client.submit_stream(specs()):
        assert receipt.error is None, receipt
        jobs.append(receipt.job)
    assert len(set(jobs)) == count + 1
    assert client.status().unfinished == count + 1
    for job in reversed(jobs):
        client.cancel(job)
    assert client.wait(jobs[0], PATIENCE).exit_code is not None


def test_a_node_writes_no_logs_of_what_it_does_not_run(beyond: Beyond) -> None:
    job = beyond.ann("submit", "--", "echo", "mine").text.strip()
    assert beyond.ann("wait", job).code == 0
    until(lambda: beyond.ann("logs", job).text == "mine\n", "what it wrote is here")
    forged = Output(attempt=Attempt(f"{job}.main", 1), err=False, start=0, data=b"forged")
    met = Met(gang=f"{job}.main", founded=1, name="here", data=b"forged")
    with connect(
        "ws://poise/v1/channel",
        sock=sockets.connect(beyond.living.home.socket),
        additional_headers={"Authorization": f"Bearer {beyond.offers.read_text().strip()}"},
        max_size=None,
    ) as channel:
        frames = Frames()
        for said in (Hello(node=msgspec.convert(NODE | {"name": "liar"}, Node)), forged, met):
            channel.send(msgspec.msgpack.encode((frames.number(), said)))
        until(lambda: beyond.status("liar") == "up", "it has joined")
        heard = [msgspec.msgpack.decode(channel.recv(PATIENCE, decode=False))[1] for _ in range(3)]
        channel.ping().wait(PATIENCE)
    kept = {"type": "kept", "attempt": [f"{job}.main", 1], "err": False, "until": 6}
    assert [one for one in heard if one["type"] == "kept"] == [kept], "no node sends that again and again"
    assert beyond.ann("logs", job).text == "mine\n"
    assert not list(beyond.living.home.meetings.rglob("here"))


def test_a_name_that_is_none_is_refused_by_either_side(beyond: Beyond) -> None:
    agent = [sys.executable, "-m", "poise.agent", str(beyond.living.work / "odd"), "--name", "a b"]
    done = subprocess.run(agent, capture_output=True, env=beyond.living.environment(), timeout=PATIENCE, check=False)
    assert (done.returncode, b"E107" in done.stderr) == (1, True)
    for name in ("a b", "../a", "", "x" * 300):
        with speaking(beyond, Hello(node=msgspec.convert(NODE | {"name": name}, Node))) as channel:
            with pytest.raises(ConnectionClosed) as closed:
                channel.recv(PATIENCE)
            assert closed.value.rcvd is not None and "a node's name has" in closed.value.rcvd.reason
    assert {node.name for node in beyond.living.client().nodes()}.isdisjoint({"a b", "../a", "", "x" * 300})


@contextlib.contextmanager
def speaking(beyond: Beyond, *said: object) -> Iterator[ClientConnection]:
    """As a node on another machine, by hand."""
    with connect(
        "wss://poise/v1/channel",
        sock=socket.create_connection((beyond.address.host, beyond.address.port), PATIENCE),
        ssl=trusting(beyond.address),
        server_hostname=beyond.address.host,
        additional_headers={"Authorization": f"Bearer {beyond.offers.read_text().strip()}"},
        close_timeout=1.0,
    ) as channel:
        frames = Frames()
        for message in said:
            channel.send(msgspec.msgpack.encode((frames.number(), message)))
        yield channel


def deflated(piece: bytes, times: int = 1) -> bytes:
    """One frame, compressed as permessage-deflate has it; a piece that is repeated is compressed once."""
    packer = zlib.compressobj(wbits=-12)
    data = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)  # nothing that follows refers to it
    return framed((times * data)[:-4])


def framed(data: bytes) -> bytes:
    """As a client sends it, under a mask that changes nothing."""
    return b"\xc2\xff" + len(data).to_bytes(8, "big") + bytes(4) + data


def test_frames_between_machines_are_compressed_and_the_node_tells_what_it_sends(beyond: Beyond) -> None:
    with speaking(beyond) as channel:
        assert channel.response is not None
        assert "permessage-deflate" in channel.response.headers["Sec-WebSocket-Extensions"]
    upkeep = until(
        lambda: next(of for of in beyond.living.client().nodes() if of.name == "far").upkeep, "it says what it sends"
    )
    assert 0 < upkeep.sent < 1000 and 0 < upkeep.cpu < 10**6
    assert " B/s, " in beyond.living.poise("nodes", "-o", "wide").text


def test_what_is_sent_compressed_is_bounded_and_what_is_broken_harms_nobody(beyond: Beyond) -> None:
    before, peak = beyond.living.pid("control"), peak_memory(beyond.living.pid("control"))
    bomb = deflated(bytes(2**20), times=1024)
    assert len(bomb) < 2**21
    with speaking(beyond) as channel:
        channel.socket.sendall(bomb)
        with pytest.raises(ConnectionClosed) as closed:
            channel.recv(PATIENCE)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009, "too big"
    grown = peak_memory(before) - peak
    assert grown < 2**28, f"{grown:,} bytes for {len(bomb):,} that would be {2**30:,}"
    hello = Hello(node=msgspec.convert(NODE | {"name": "broken"}, Node))
    for seed in range(30):
        chance = Random(seed)  # noqa: S311 — nothing is kept secret by it
        data = bytearray(deflated(msgspec.msgpack.encode((1, hello)))[14:])
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with speaking(beyond) as channel, contextlib.suppress(ConnectionClosed, TimeoutError, OSError):
            channel.socket.sendall(framed(bytes(data[: chance.randint(1, len(data))])))
            channel.recv(0.1)
    assert beyond.living.pid("control") == before
    assert beyond.status("far") == "up"


def test_what_nodes_send_is_bounded_where_no_agent_runs(living: Living) -> None:
    folder = living.home.logs / "j1"
    folder.mkdir(mode=0o700, parents=True)
    for number in range(KEEP_FILES + 10):
        (folder / f"main.{number}.out").touch()
    living.up("--no-agent", "--listen", f"127.0.0.1:{free_port()}")
    until(lambda: sum(1 for _ in folder.iterdir()) == KEEP_FILES, "the oldest are gone", living.messages)


def peak_memory(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])
