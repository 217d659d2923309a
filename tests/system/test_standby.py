"""Two control planes on one store: one leads, the other stands by, and whatever becomes of the first, nothing that
was acknowledged is lost and nothing runs twice.
"""

import asyncio
import contextlib
import hashlib
import http.client
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers.etcd_server import EtcdServer, Seat, running
from drivers.notes import lease_of
from drivers.postgres_server import PostgresServer

from poise.client import Client, link
from poise.config import Home
from poise.control.decider import decider_for
from poise.control.plane import Plane, clock_of
from poise.control.shared import Shared
from poise.drivers import sockets
from poise.drivers.led import store_at
from poise.drivers.plugins import choose
from poise.drivers.security import read_token
from poise.drivers.sqlite import SqliteStore
from poise.drivers.system import boottime
from poise.drivers.vault import Vault
from poise.errors import PoiseError
from poise.kernel.controller import Controller, Settings
from poise.kernel.ledger import Ledger
from poise.model.events import Began, StopAsked, decode_event, encode_event
from poise.model.reports.streams import LogPiece
from poise.model.times import Times
from poise.units import HOUR, MINUTE, SECOND
from system.living import PATIENCE, Diary, Living, alive, kill, until

Server = PostgresServer | EtcdServer


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    """PostgreSQL, unless a test names another."""
    server: Server = request.getfixturevalue(getattr(request, "param", "postgres"))
    return server


class Pair:
    """`first` leads and has this machine's agent, `second` stands by and has none."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = server.database()
        through, self.wire = server.wire(self.url)
        self.first, self.second = Living(), Living()
        places = (self.first.home.socket, self.second.home.socket)
        for living in (self.first, self.second):
            living.variables["POISE_CONTROL"] = ",".join(map(str, places))
            living.home = Home(living.home.root, others=places)
        self.first.up("--store", through)
        until(lambda: self.leads(self.first), "the first one leads", self.first.messages)
        self.second.home.root.mkdir(mode=0o700)
        shutil.copy(self.first.home.token, self.second.home.token)
        self.second.up("--store", self.url, "--no-agent")
        until(lambda: len(self.client().nodes()) == 1, "the agent is there", self.story)

    def leads(self, living: Living) -> bool:
        """Asked of this one alone."""
        with contextlib.suppress(PoiseError):
            return Client(Home(living.home.root), patience=0).status().accepting
        return False

    def stands_by(self, living: Living) -> bool:
        """Asked of this one alone."""
        with contextlib.suppress(PoiseError):
            return Client(Home(living.home.root), patience=0).status().stands_by
        return False

    def client(self) -> Client:
        return Client(self.first.home, patience=PATIENCE)

    def story(self) -> str:
        return f"first:\n{self.first.messages()[-3000:]}\nsecond:\n{self.second.messages()[-3000:]}"

    def pull_the_plug(self) -> None:
        """The first one's machine is gone, but for its agent, which stands for another machine's here."""
        kill(self.first.pid("supervisor"))
        kill(self.first.pid("control"))

    def close(self) -> None:
        for living in (self.first, self.second):  # the processes of each name the other
            if living is self.second and self.second.pid("control"):
                until(lambda: self.leads(self.second), "what is unfinished is its to cancel", self.story)
            done = living.poise("down", "--leave" if living is self.first else "--cancel")
            assert done.code == 0, (done.err, self.story())
        self.first.close()
        self.second.close()


@pytest.fixture
def pair(server: Server) -> Iterator[Pair]:
    pair = Pair(server)
    try:
        yield pair
        pair.close()
    finally:
        pair.first.destroy()
        pair.second.destroy()
        pair.wire.close()


class Load:
    """Submits one short job after another; whoever asks with a key may ask again. The pause between them leaves the
    processor to who takes over: each job is four processes.
    """

    def __init__(self, pair: Pair, diary: Diary) -> None:
        self.acknowledged: dict[str, str] = {}
        self._pair = pair
        self._diary = diary
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._submit)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _submit(self) -> None:
        client, number = self._pair.client(), 0
        while not self._over.wait(0.05):
            number += 1
            command = self._diary.command(0.05, f"n{number}")
            job = client.submit({"run": ["sh", "-c", command], "resources": {"cpu": 0.1}}, key=f"key {number}")
            self.acknowledged[job] = f"n{number}"

    def wait_for(self, more: int) -> None:
        wanted = len(self.acknowledged) + more
        until(lambda: len(self.acknowledged) >= wanted, f"{more} more are acknowledged", self._pair.story)

    def check(self) -> None:
        """All that was acknowledged has run, once."""
        client = self._pair.client()
        assert len(set(self.acknowledged.values())) == len(self.acknowledged)
        for job in self.acknowledged:
            assert client.wait(job, PATIENCE).exit_code == 0, (job, self._pair.story())
        self.check_diary()

    def check_diary(self) -> None:
        """The same by what the jobs themselves have written down."""
        until(lambda: set(self.acknowledged.values()) <= set(self._diary.endings()), "all have run", self._pair.story)
        assert sorted(self._diary.endings()) == sorted(set(self._diary.endings()))
        self._diary.check()


def test_who_stands_by_answers_what_can_be_read_and_refuses_the_rest(pair: Pair) -> None:
    done = pair.first.poise("submit", "--json", "--", "true")
    job = done.value["job"]
    assert pair.client().wait(job).exit_code == 0
    alone = Client(Home(pair.second.home.root))
    until(lambda: [one.exit_code for one in alone.jobs() if one.id == job] == [0], "it is seen there", pair.story)
    told = alone.status()
    assert (told.stands_by, told.accepting) == (True, False)
    assert told.leader == str(pair.first.home.socket)
    assert [node.name for node in alone.nodes()] == [os.uname().nodename]
    for what in (
        lambda: alone.submit({"run": ["true"]}),
        lambda: alone.cancel(job),
        lambda: alone.drain(os.uname().nodename),
        lambda: alone.set_quota("research", {"cpu": 1}),
        lambda: alone.add_token("research", "viewer"),
    ):
        with pytest.raises(PoiseError) as refused:
            what()
        assert refused.value.record.code == "E212"
        assert refused.value.record.need == str(pair.first.home.socket)
        assert "POISE_CONTROL" in refused.value.record.hint
    asked = http.client.HTTPConnection("poise")
    asked.sock = sockets.connect(pair.second.home.socket)
    asked.request("GET", "/v1/jobs", headers={"Authorization": f"Bearer {read_token(pair.second.home)}"})
    assert asked.getresponse().getheader("poise-standby-for") == str(pair.first.home.socket)
    asked.close()
    text = pair.second.poise("status", POISE_CONTROL="").text
    assert f"stands by for {pair.first.home.socket}" in text
    done = pair.second.poise("submit", "--json", "--", "sleep", "60")  # which goes on to the one that leads
    assert done.code == 0, done.err
    assert pair.second.poise("down").code == 0  # what is unfinished is not its to finish
    pair.client().cancel(done.value["job"])
    assert pair.client().wait(done.value["job"]).exit_code


def found_by_doctor(living: Living, what: str) -> list[tuple[str, str]]:
    checks = living.poise("doctor", "--json").value["checks"]
    return [(check["status"], check["text"]) for check in checks if check["name"] == what]


def test_who_stands_by_ends_nothing_of_the_one_that_leads_and_takes_no_work_away_unasked(pair: Pair) -> None:
    diary = Diary(pair.first.work / "diary")
    held = pair.client().submit({"name": "held", "run": ["sh", "-c", diary.held()], "resources": {"cpu": 0.1}})
    alone = Client(Home(pair.second.home.root))
    until(lambda: [one.status for one in alone.jobs()] == ["running"], "it is seen to run there", pair.story)
    refused = pair.second.poise("down", "--cancel", "--json")
    assert (refused.code, refused.error["code"]) == (1, "E121")
    assert str(pair.first.home.socket) in refused.error["have"]
    ((status, text),) = found_by_doctor(pair.second, "control plane")
    assert (status, text.partition(":")[0]) == ("ok", f"stands by for {pair.first.home.socket}")
    pair.pull_the_plug()
    until(lambda: pair.leads(pair.second), "the other one leads", pair.story)
    pair.first.up()
    until(lambda: [node.running for node in pair.client().nodes()] == [1], "the agent is back", pair.story)
    refused = pair.first.poise("down", "--json")
    assert (refused.code, refused.error["code"]) == (1, "E121")
    assert "--leave" in refused.error["hint"]
    diary.release()
    assert pair.client().wait(held, PATIENCE).exit_code == 0
    assert pair.first.poise("down").code == 0
    assert f"not up; {pair.second.home.socket} leads" in pair.first.poise("status").text
    ((status, text),) = found_by_doctor(pair.first, "control plane")
    assert (status, text.partition(":")[0]) == ("warn", f"not up here; {pair.second.home.socket} leads")
    assert not found_by_doctor(pair.first, "supervisor") and not found_by_doctor(pair.first, "bound to")
    assert pair.second.poise("down").code == 0
    assert [job["id"] for job in pair.first.poise("ls", "--all", "--json").value] == [held]
    assert "not up" in pair.first.poise("status").text


def test_what_was_just_submitted_and_what_it_wrote_is_found_by_way_of_one_that_stands_by(pair: Pair) -> None:
    """It is a moment late, and has nothing of the output: that is where the other one is."""

    def wrote() -> bytes:
        return b"".join(piece.data for piece in Client(pair.second.home).logs(job) if isinstance(piece, LogPiece))

    for number in range(5):
        job = Client(pair.second.home).submit({"run": ["echo", str(number)], "resources": {"cpu": 0.1}})
        assert Client(pair.second.home).wait(job, PATIENCE).exit_code == 0
        assert wrote() == b"%d\n" % number
    assert [one.error for one in Client(pair.second.home).submit_stream([{"run": ["true"]}])] == [None]
    pair.pull_the_plug()
    until(lambda: pair.leads(pair.second), "the other one leads", pair.story)
    pair.first.up()
    assert wrote() == b"4\n"
    with pytest.raises(PoiseError) as told:
        Client(pair.first.home).job("j99")
    assert told.value.record.code == "E120"


@pytest.mark.parametrize("server", [pytest.param("postgres", marks=pytest.mark.slow), "etcd"], indirect=True)
def test_the_leader_is_killed_under_load_and_the_other_one_goes_on(pair: Pair) -> None:
    diary = Diary(pair.first.work / "diary")
    with Load(pair, diary) as load:
        load.wait_for(20)
        pair.pull_the_plug()
        load.wait_for(20)
    assert pair.leads(pair.second), pair.story()
    load.check()
    pair.first.up()
    assert not pair.leads(pair.first)


@pytest.mark.slow
def test_a_stream_of_submissions_goes_on_to_whoever_leads(pair: Pair) -> None:
    """It begins at the one that stands by, and goes on to it once it leads."""
    places = (pair.second.home.socket, pair.first.home.socket)
    client, count = Client(Home(pair.second.home.root, others=places), patience=PATIENCE), 60
    assert client.status().stands_by

    def specs() -> Iterator[dict[str, Any]]:
        for number in range(count):
            if number == 30:
                pair.pull_the_plug()
            yield {"run": ["true"], "resources": {"cpu": 0.1}}

    receipts = list(client.submit_stream(specs()))
    assert [receipt.error for receipt in receipts] == [None] * count
    assert {job.id for job in client.jobs(everything=True)} == {receipt.job for receipt in receipts}
    assert pair.leads(pair.second), pair.story()
    assert [client.wait(receipt.job, PATIENCE).exit_code for receipt in receipts] == [0] * count


@pytest.mark.slow
def test_leaders_that_are_killed_again_and_again_and_come_back_lose_nothing(pair: Pair) -> None:
    """Started again where it was a leader may take its own lease at once, or the other one has been quicker."""
    diary = Diary(pair.first.work / "diary")
    with Load(pair, diary) as load:
        for _ in range(5):
            leader = until(lambda: next(filter(pair.leads, (pair.first, pair.second)), None), "one leads", pair.story)
            load.wait_for(10)
            kill(leader.pid("control"))
    load.check()
    found = [int(event.split(b'"term":')[1].split(b",")[0]) for event in terms(pair)]
    assert found == sorted(set(found)) and len(found) >= 6


def test_a_leader_that_stood_still_says_nothing_any_more(pair: Pair) -> None:
    diary = Diary(pair.first.work / "diary")
    running = pair.client().submit({"name": "held", "run": ["sh", "-c", diary.held()], "resources": {"cpu": 0.1}})
    until(lambda: list(diary.entries()), "it runs", pair.story)
    stale = pair.first.pid("control")
    with Load(pair, diary) as load:
        load.wait_for(5)
        os.kill(stale, signal.SIGSTOP)
        until(lambda: pair.leads(pair.second), "the other one leads", pair.story)
        load.wait_for(5)
        os.kill(stale, signal.SIGCONT)
        until(lambda: not alive(stale), "it leaves", pair.story)
        load.wait_for(5)
    until(lambda: pair.first.pid("control") not in (0, stale), "another is started in its place", pair.story)
    until(lambda: pair.stands_by(pair.first), "it stands by", pair.story)
    diary.release()
    assert pair.client().wait(running, PATIENCE).exit_code == 0
    load.check()
    assert [event.split(b'"term":')[1].split(b",")[0] for event in terms(pair)] == [b"1", b"2"]


CALLS = """
import sys, time, poise

@poise.task
def next_of(number: int) -> int:
    time.sleep(0.05)
    return number + 1

if __name__ == "__main__":
    number = 0
    while True:
        number = next_of.submit(number).result()
        print(number, flush=True)
"""


@pytest.mark.slow
def test_calls_go_on_while_a_leader_stands_still(pair: Pair) -> None:
    """Its end of the connection is there still: whoever waits for an answer has to find out by itself."""
    script = pair.first.file("calls.py", CALLS)
    told: list[int] = []
    calling = subprocess.Popen(
        [sys.executable, script], cwd=pair.first.work, env=pair.first.environment(), stdout=subprocess.PIPE
    )
    out = calling.stdout
    assert out is not None
    reading = threading.Thread(target=lambda: told.extend(map(int, out)), daemon=True)
    reading.start()
    stale = pair.first.pid("control")
    try:
        until(lambda: len(told) > 5, "calls return", pair.story)
        os.kill(stale, signal.SIGSTOP)
        until(lambda: pair.leads(pair.second), "the other one leads", pair.story)
        before = len(told)
        until(lambda: len(told) > before + 5, "calls return again", pair.story)
    finally:
        os.kill(stale, signal.SIGCONT)
        calling.terminate()
        calling.wait(PATIENCE)
        reading.join(PATIENCE)
    assert told == list(range(1, len(told) + 1))


def test_who_follows_what_is_written_goes_over_from_a_leader_that_stands_still(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "HUSH", (60.0, 3.0))
    counts = "n=0; while :; do echo $n; n=$((n+1)); sleep 0.05; done"
    job = pair.client().submit({"run": ["sh", "-c", counts], "resources": {"cpu": 0.1}})
    told = bytearray()

    def follow() -> None:
        for piece in pair.client().logs(job, follow=True):
            told.extend(piece.data if isinstance(piece, LogPiece) else b"")

    following = threading.Thread(target=follow, daemon=True)
    following.start()
    stale = pair.first.pid("control")
    try:
        until(lambda: len(told) > 20, "something is written", pair.story)
        os.kill(stale, signal.SIGSTOP)
        stopped, before = time.monotonic(), len(told)
        until(lambda: len(told) > before + 20, "more is read", pair.story)
        assert time.monotonic() - stopped < link.HUSH[0] / 2
    finally:
        os.kill(stale, signal.SIGCONT)
        pair.client().cancel(job)
        following.join(PATIENCE)
    lines = told.decode().splitlines()
    assert lines == [str(number) for number in range(len(lines))]


def terms(pair: Pair) -> list[bytes]:
    return [event for event in pair.client().events(after=0, follow=False) if b'"term":' in event]


def test_a_leader_that_is_cut_off_from_the_store_leaves_before_another_leads(pair: Pair) -> None:
    diary = Diary(pair.first.work / "diary")
    stale = pair.first.pid("control")
    with Load(pair, diary) as load:
        load.wait_for(5)
        pair.wire.cut()
        until(lambda: pair.leads(pair.second), "the other one leads", pair.story)
        assert not alive(stale), pair.story()
        load.wait_for(5)
        pair.wire.mend()
        until(lambda: Client(Home(pair.first.home.root)).status().stands_by, "it stands by", pair.story)
        load.wait_for(5)
    load.check()


def test_who_waits_for_a_job_goes_on_waiting_when_the_leader_leaves_in_order(pair: Pair) -> None:
    diary, ended = Diary(pair.first.work / "diary"), list[int | None]()
    job = pair.client().submit({"name": "held", "run": ["sh", "-c", diary.held()], "resources": {"cpu": 0.1}})
    waiting = threading.Thread(target=lambda: ended.append(pair.client().wait(job, PATIENCE).exit_code), daemon=True)
    waiting.start()
    until(lambda: list(diary.entries()), "it runs", pair.story)
    kill(pair.first.pid("supervisor"), signal.SIGTERM)
    until(lambda: not pair.first.pid("supervisor"), "it has left", pair.story)
    pair.first.poise("up")  # its agent has gone too, which is this machine's
    until(lambda: pair.leads(pair.second), "the other one leads", pair.story)
    diary.release()
    waiting.join(PATIENCE)
    assert ended == [0], pair.story()


@pytest.mark.parametrize("seconds", [pytest.param(0, marks=pytest.mark.slow), 6])
def test_while_the_store_is_away_what_runs_goes_on_and_what_needs_it_waits(pair: Pair, seconds: float) -> None:
    diary = Diary(pair.first.work / "diary")
    held = pair.client().submit({"name": "held", "run": ["sh", "-c", diary.held()], "resources": {"cpu": 0.1}})
    until(lambda: list(diary.entries()), "it runs", pair.story)
    with Load(pair, diary) as load:
        load.wait_for(5)
        pair.server.kill()
        time.sleep(seconds)
        if seconds:
            until(lambda: not Client(Home(pair.second.home.root)).status().leader, "nobody leads", pair.story)
            with pytest.raises(PoiseError, match=r"the leader is unknown: .* does not answer"):
                Client(Home(pair.second.home.root), patience=0).cancel(held)
        assert not diary.endings().count("$POISE_TASK")
        pair.server.start()
        load.wait_for(5)
    diary.release()
    assert pair.client().wait(held, PATIENCE).exit_code == 0
    load.check()


@pytest.mark.slow
def test_a_full_store_is_waited_for_and_room_in_it_is_enough() -> None:
    """Nobody has to start anything again: not who led, nor who stood by, nor the agent."""
    with running([Seat()], "--quota-backend-bytes", str(4 * 2**20)) as server:
        pair = Pair(server)
        try:
            agent, stale = pair.first.pid("agent"), pair.first.pid("control")
            for number in itertools.count():  # somebody else's
                try:
                    server.put(b"others/%d" % number, b"x" * 2**19)
                except OSError:
                    break
            until(lambda: not alive(stale), "it cannot be renewed, and leaves", pair.story)
            until(lambda: pair.stands_by(pair.first), "it stands by", pair.story)
            time.sleep(2 * Times().leadership / SECOND)  # so that each of them would have led
            assert pair.stands_by(pair.first) and pair.stands_by(pair.second), pair.story()
            server.make_room(b"others/")
            until(lambda: pair.leads(pair.first) or pair.leads(pair.second), "one leads", pair.story)
            job = pair.client().submit({"run": ["true"], "resources": {"cpu": 0.1}})
            assert pair.client().wait(job, PATIENCE).exit_code == 0, pair.story()
            assert pair.first.pid("agent") == agent
            pair.close()
        finally:
            pair.first.destroy()
            pair.second.destroy()
            pair.wire.close()


@pytest.mark.slow
def test_a_store_that_lets_nobody_in_for_a_while_is_waited_for(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres.database

    def of_a_role() -> str:
        url = database()
        postgres.run(f"ALTER DATABASE {url.partition('@/')[2].partition('?')[0]} OWNER TO led", "postgres")
        return url.replace("poise@", "led@")

    monkeypatch.setattr(postgres, "database", of_a_role)
    postgres.run("CREATE ROLE led LOGIN", "postgres")
    pair = Pair(postgres)
    try:
        agent, stale = pair.first.pid("agent"), pair.first.pid("control")
        postgres.run("ALTER ROLE led NOLOGIN", "postgres")
        postgres.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'led'", "postgres")
        until(lambda: not alive(stale), "it cannot be renewed, and leaves", pair.story)
        until(lambda: "not permitted to log in" in pair.first.messages(), "it is refused", pair.story)
        time.sleep(2 * Times().leadership / SECOND)
        assert pair.second.pid("control") and pair.first.pid("agent") == agent, pair.story()
        postgres.run("ALTER ROLE led LOGIN", "postgres")
        until(lambda: pair.leads(pair.first) or pair.leads(pair.second), "one leads", pair.story)
        until(lambda: pair.stands_by(pair.first) or pair.stands_by(pair.second), "one stands by", pair.story)
        pair.close()
    finally:
        pair.first.destroy()
        pair.second.destroy()
        pair.wire.close()


def test_who_stands_by_for_one_that_writes_all_the_time_knows_it_and_rests(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """Between any two looks at the log there is something new in it."""
    url, looks = postgres.database(), list[int]()
    lease, wanting = lease_of(url, "a"), lease_of(url, "b")

    async def stand_by() -> str | None:
        store = store_at(url, encode_event, decode_event)
        read = store.read

        def written_and_read(after: int = 0, limit: int = 0) -> object:
            looks.append(leading.append([StopAsked(at=len(looks) + 1, by="")], expected=leading.durable()))
            return read(after, limit)

        store.read = written_and_read  # type: ignore[assignment]
        ledger = Ledger()
        decider = decider_for(choose("poise"), Times())
        plane = Plane(Controller(ledger, Settings()), store, clock_of(ledger), decider)
        plane.behind = ""
        standing_by = asyncio.create_task(Shared(store, ledger, wanting, "", Vault(tmp_path / "none")).lead(plane))
        await asyncio.sleep(1.5)
        standing_by.cancel()
        decider.close()
        store.close()
        return plane.behind

    leading = store_at(url, encode_event, decode_event)
    with contextlib.closing(leading):
        leading.lead(lease.take())
        assert asyncio.run(stand_by()) == "at a"
        assert len(looks) < 10


def test_the_one_that_takes_over_opens_secrets_once_it_has_their_key(pair: Pair) -> None:
    submit = ("submit", "--hold", "--secret", "A", "--json", "--", "sh", "-c", "printf %s $A | sha256sum")
    refused = pair.first.poise(*submit, A="value").error
    assert (refused["code"], str(pair.first.home.secrets_key) in refused["hint"]) == ("E215", True)
    theirs, ours = pair.first.home.secrets_key, pair.second.home.secrets_key
    theirs.touch(mode=0o600)
    theirs.write_text(f"{os.urandom(32).hex()}\n")
    job = pair.first.poise(*submit, A="value").value["job"]
    until(lambda: f"copy its line into {ours}" in pair.second.messages(), "it warns before it leads", pair.story)
    pair.pull_the_plug()
    until(lambda: pair.leads(pair.second), "the second one leads", pair.story)
    assert pair.second.poise("release", job).code == 0
    until(
        lambda: "adds the line of that key to `secrets.key`" in pair.second.poise("show", job).text,
        "it is on hold",
        pair.story,
    )
    shutil.copy(theirs, ours)
    assert pair.second.poise("release", job).code == 0
    assert pair.second.poise("wait", job).code == 0
    assert hashlib.sha256(b"value").hexdigest() in pair.second.poise("logs", job).text


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_whatever_a_machines_clock_is_set_to_the_logs_time_goes_on(ahead: int, tmp_path: Path) -> None:
    """Who led began on a machine whose clock is an hour off from the one here."""
    began, later = 1000 * SECOND, 5 * HOUR
    wall = time.time() - (later - began + ahead) / SECOND
    first = Began(at=began, term=1, policy="poise", history=9, version="1", boot="another", boottime=1, wall=wall)
    last = StopAsked(at=later, by="")

    async def take_over() -> tuple[int, int]:
        store = SqliteStore(tmp_path / "log.db", encode_event, decode_event)
        store.append([first, last], expected=0)
        decider = decider_for(choose("poise"), Times())
        plane = Plane(Controller(Ledger(), Settings()), store, clock_of(Ledger()), decider)
        plane.behind = ""
        plane.take_in([(1, first)], boottime())
        by_wall = plane.clock.now()
        plane.take_in([(2, last)], boottime())
        plane.lead(2, lambda: True)
        decider.close()
        store.close()
        return by_wall, plane.ledger.now

    by_wall, now = asyncio.run(take_over())
    assert later + ahead <= by_wall < later + ahead + MINUTE
    assert later <= now < later + MINUTE


def test_who_has_another_token_is_told_before_it_is_needed(pair: Pair) -> None:
    third = Living()
    try:
        done = third.poise("up", "--port", "0", "--store", pair.url, "--no-agent", "--json")
        assert "another token" in done.error["message"]
        assert done.error["have"] == str(pair.first.home.socket)
    finally:
        third.destroy()


def test_who_has_another_authority_is_told_before_it_is_needed(postgres: PostgresServer, tmp_path: Path) -> None:
    vault = Vault(tmp_path / "none")
    url, leading = postgres.database(), 64 * "a"
    store = store_at(url, encode_event, decode_event)
    lease = lease_of(url, "a", address=f"head:7718#{leading}")
    wanting = lease_of(url, "b")
    with contextlib.closing(store), contextlib.closing(lease):
        assert lease.take()
        for same in (leading, ""):  # of one that is reached by its socket there is none to compare
            assert Shared(store, Ledger(), wanting, "", vault, same).leader() == "head:7718"
        with pytest.raises(PoiseError) as refused:
            Shared(store, Ledger(), wanting, "", vault, 64 * "b").leader()
    assert (refused.value.record.code, refused.value.record.field) == ("E121", "authority")
    assert "head:7718" in refused.value.record.need


def test_a_log_of_a_newer_version_is_refused_naming_it(postgres: PostgresServer) -> None:
    living = Living()
    try:
        url = postgres.database()
        living.up("--store", url)
        until(lambda: Client(living.home).status().accepting, "it leads", living.messages)
        assert living.poise("down").code == 0
        postgres.run("UPDATE poise.about SET value = '9' WHERE name = 'format'", url)
        postgres.run("UPDATE poise.about SET value = '9.1.0' WHERE name = 'written_by'", url)
        done = living.poise("up", "--json")
        assert (done.error["code"], done.error["need"]) == ("E206", "9.1.0")
    finally:
        living.destroy()


def test_the_log_in_a_database_is_read_without_a_control_plane(postgres: PostgresServer) -> None:
    living = Living()
    try:
        living.up("--store", postgres.database())
        assert living.poise("run", "--name", "once", "--", "true").code == 0
        assert living.poise("up", "--store", "home").code == 1  # not while it is up
        assert living.poise("down").code == 0
        assert [job["name"] for job in living.poise("ls", "--all", "--json").value] == ["once"]
        assert living.poise("replay").code == 0
        living.up()
        until(lambda: Client(living.home).status().accepting, "it leads again", living.messages)
        assert [job["name"] for job in living.poise("ls", "--all", "--json").value] == ["once"]
        assert living.poise("submit", "--hold", "--name", "left", "--", "true").code == 0
        assert living.poise("down", "--leave").code == 0
        ended = living.poise("down", "--cancel")
        assert (ended.code, "one job is unfinished" in ended.err) == (0, True), ended.err
        assert [job["status"] for job in living.poise("ls", "--name", "left", "--json").value] == ["cancelled"]
        living.close()
    finally:
        living.destroy()


@pytest.mark.parametrize(
    ("store", "code"),
    [
        ("mysql://somewhere/x", "E102"),
        ("postgresql://127.0.0.1:9/x", "E211"),
        ("etcd://127.0.0.1:9/x", "E211"),
        ("etcd://somewhere", "E102"),
        ("elsewhere", "E102"),
    ],
)
def test_a_store_that_is_none_is_told_and_nothing_is_started(store: str, code: str) -> None:
    living = Living()
    try:
        done = living.poise("up", "--store", store, "--json")
        assert done.error["code"] == code
        assert "retries" not in done.error.get("hint", "")  # for the command has ended
        assert not living.home.store.exists()
        assert not living.processes()
    finally:
        living.destroy()
