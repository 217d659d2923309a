"""The host of a control plane beside a real log: what happens when it lets go of it."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from poise.control.decider import InlineDecider
from poise.control.plane import Plane
from poise.drivers.beside import beside
from poise.drivers.plugins import build, choose
from poise.drivers.sqlite import LogReader, SqliteStore
from poise.drivers.system import SystemClock
from poise.engine.host import AT_ONCE, Host, load_ledger
from poise.errors import StoreFull, StoreNewer
from poise.kernel.controller import Controller, Settings
from poise.kernel.ledger import Ledger
from poise.kernel.messages import AddToken, Reply, Submit
from poise.model.decisions import Plan
from poise.model.events import Event, JobSubmitted, NodeLost, NodeSuspected, Placed, decode_event, encode_event
from poise.model.messages import Beat, Desired, Heard, Hello
from poise.model.observed import Happened
from poise.model.resources import Node
from poise.model.spec import compile_spec
from poise.model.tenants import Role
from poise.model.views import Snapshot
from poise.units import MILLISECOND, SECOND, Instant

POLICY = build(choose("poise"))


def test_what_is_heard_after_the_log_is_let_go_of_is_left_to_the_next_host(tmp_path: Path) -> None:
    """A control plane that leaves is ended by what its nodes say meanwhile, and started again, unless it stops."""
    met: list[object] = []

    @contextlib.contextmanager
    def guard() -> Iterator[None]:
        try:
            yield
        except Exception as error:
            met.append(error)

    async def live_and_leave() -> int:
        loop = asyncio.get_running_loop()
        store: SqliteStore[Event] = SqliteStore(
            tmp_path / "log.db", encode_event, decode_event, call_soon=loop.call_soon_threadsafe
        )
        controller, decider = Controller(load_ledger(store), Settings(policy="poise")), InlineDecider(POLICY)
        host = Host(controller, store, SystemClock(), decider, loop, tell=met.append, guard=guard)
        host.begin(boot="boot", boottime=0)
        answered = asyncio.Event()
        host.ask(token("a"), lambda _: answered.set())
        await answered.wait()
        host.ask(token("b"), lambda _: None)
        host.end()
        host.ask(token("c"), lambda _: None)
        await asyncio.sleep(0.05)
        return store.durable()

    durable = asyncio.run(live_and_leave())
    assert not met
    log = SqliteStore.open_read_only(tmp_path / "log.db", decode_event)
    assert [revision for revision, _ in log.read()][-1] == durable
    log.close()


def token(tenant: str) -> Callable[[int], AddToken]:
    """What asks for a token of this tenant, which is an event in the log."""
    return lambda request: AddToken(request=request, tenant=tenant, role=Role.SUBMITTER, hash=tenant * 64)


class Talking(asyncio.Protocol):
    """The end of a node's connection: what comes is heard as the channels of nodes hear it, by a task of its own."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._words: asyncio.Queue[bytes] = asyncio.Queue()
        self._task = asyncio.create_task(self._hear())

    def data_received(self, data: bytes) -> None:
        self._words.put_nowait(data)

    async def _hear(self) -> None:
        while await self._words.get():
            self._host.hear("n1", self, Beat())

    def send(self, message: object) -> None:
        """Nothing is read at the other end."""

    def close(self) -> None:
        self._task.cancel()


class Heeded:
    """The newest connection of a node, or an older one: what it is told, and whether it was hung up on."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[object] = asyncio.Queue()
        self.closed = False

    def send(self, message: object) -> None:
        self.told.put_nowait(message)

    def close(self) -> None:
        self.closed = True


def test_the_end_of_an_older_connection_leaves_the_newer_one_alone(tmp_path: Path) -> None:
    """It may be noticed after the node has come again."""
    node = Node(name="n1", incarnation="1", cpu=1000, memory=2**30)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        store: SqliteStore[Event] = SqliteStore(
            tmp_path / "log.db", encode_event, decode_event, call_soon=loop.call_soon_threadsafe
        )
        controller, decider = Controller(load_ledger(store), Settings(policy="poise")), InlineDecider(POLICY)
        host = Host(controller, store, SystemClock(), decider, loop, tell=print, guard=contextlib.nullcontext)
        host.begin(boot="boot", boottime=0)
        older, newer = Heeded(), Heeded()
        async with asyncio.timeout(30):
            for channel in (older, newer):
                host.connect(node, host.accepted(), channel)
                host.hear("n1", channel, Hello(node=node))
                assert isinstance(await channel.told.get(), Desired)
            assert older.closed
            host.disconnect("n1", older)
            host.hear("n1", newer, Beat(number=7))
            while not isinstance(await newer.told.get(), Heard):
                pass
        host.end()

    asyncio.run(story())


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
def test_a_node_that_talks_while_a_round_takes_seconds_is_not_silent(tmp_path: Path, loop: Any) -> None:
    """What it said meanwhile has come, and is read before it is judged."""
    said: list[Event] = []

    class Slow(InlineDecider):
        def decide(self, view: Snapshot, answer: Callable[[Plan], None], /) -> None:
            if view.candidates:
                time.sleep(0.9)
            super().decide(view, answer)

    class Told(Host):
        def _appended(self, events: Sequence[Event], expected: int) -> None:
            said.extend(events)

    async def live() -> None:
        running = asyncio.get_running_loop()
        store: SqliteStore[Event] = SqliteStore(
            tmp_path / "log.db", encode_event, decode_event, call_soon=running.call_soon_threadsafe
        )
        settings = Settings(policy="poise", suspect_after=300 * MILLISECOND, dead_after=600 * MILLISECOND)
        host = Told(Controller(load_ledger(store), settings), store, SystemClock(), Slow(POLICY), running, tell=print)
        host.begin(boot="boot", boottime=0)
        ours, theirs = socket.socketpair()
        transport, talking = await running.create_connection(lambda: Talking(host), sock=ours)
        node = Node(name="n1", incarnation="1", cpu=1000, memory=2**30)
        host.connect(node, host.accepted(), talking)
        host.hear("n1", talking, Hello(node=node))
        over = threading.Event()
        threading.Thread(target=talk, args=(theirs, over)).start()
        await asyncio.sleep(0.2)
        compiled = compile_spec({"run": ["true"], "resources": {"cpu": 1}}, wall=0.0)
        for _ in range(3):
            host.ask(lambda request: Submit(request, compiled), lambda _: None)
            await asyncio.sleep(0.4)
        over.set()
        transport.close()
        host.end()

    loop(live())
    assert [event for event in said if isinstance(event, NodeSuspected | NodeLost)] == []
    assert [type(event) for event in said].count(JobSubmitted) == 3


class ByHand:
    """Timers and a clock that go on when the test says so: what is to be called soon, and after a while."""

    def __init__(self) -> None:
        self.at = SECOND
        self._soon: list[Callable[[], object]] = []
        self._later: list[tuple[int, ByHand.Due]] = []

    class Due:
        def __init__(self, call: Callable[[], object]) -> None:
            self.call: Callable[[], object] | None = call

        def cancel(self) -> None:
            self.call = None

    def now(self) -> Instant:
        return Instant(self.at)

    def wall(self) -> float:
        return self.at / SECOND

    def call_soon(self, call: Callable[..., object], /, *arguments: Any) -> None:
        self._soon.append(lambda: call(*arguments))

    def call_later(self, delay: float, call: Callable[..., object], /, *arguments: Any) -> "ByHand.Due":
        due = self.Due(lambda: call(*arguments))
        self._later.append((self.at + int(delay * SECOND), due))
        return due

    def pass_by(self, duration: int) -> None:
        """All that is due by then, and what follows from that at once."""
        self.at += duration
        due = [of for at, of in self._later if at <= self.at]
        self._later = [(at, of) for at, of in self._later if at > self.at]
        for of in due:
            if of.call is not None:
                of.call()
        while self._soon:
            self._soon.pop(0)()


@pytest.mark.parametrize(("stopped", "speaks", "suspected"), [(9, True, False), (9, False, True), (0, False, False)])
def test_a_machine_that_was_stopped_hears_its_nodes_before_it_takes_one_for_dead(
    tmp_path: Path, stopped: int, speaks: bool, suspected: bool
) -> None:
    """They were stopped with it, and need a moment too."""
    hand, channel = ByHand(), Heeded()
    store: SqliteStore[Event] = SqliteStore(tmp_path / "log.db", encode_event, decode_event)
    controller = Controller(load_ledger(store), Settings(policy="poise", poll=0))
    host = Host(controller, store, hand, InlineDecider(POLICY), hand, tell=print)
    host.begin(boot="boot", boottime=0)
    node = Node(name="n1", incarnation="1", cpu=1000, memory=2**30)
    host.connect(node, host.accepted(), channel)
    host.hear("n1", channel, Hello(node=node))
    for _ in range(10):
        hand.pass_by(SECOND // 10)
    host.hear("n1", channel, Beat(number=1))
    hand.pass_by(SECOND // 10)
    hand.pass_by(stopped * SECOND)
    if speaks:
        host.hear("n1", channel, Beat(number=2))
    for _ in range(5):
        hand.pass_by(SECOND // 10)
    host.end()
    with contextlib.closing(SqliteStore.open_read_only(tmp_path / "log.db", decode_event)) as log:
        assert any(isinstance(event, NodeSuspected | NodeLost) for _, event in log.read()) is suspected


def talk(sock: socket.socket, over: threading.Event) -> None:
    with sock, contextlib.suppress(BrokenPipeError):
        while not over.wait(0.05):
            sock.send(b"beat")


@pytest.mark.parametrize("commit", [0.0, 0.1])
def test_who_reads_is_answered_while_others_submit_without_end(tmp_path: Path, commit: float) -> None:
    """There is always something newer in the ledger than in the log; readers come between two commits, also where each
    takes so many seconds more.
    """

    async def live() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        store: SqliteStore[Event] = SqliteStore(
            tmp_path / "log.db", encode_event, decode_event, call_soon=loop.call_soon_threadsafe
        )
        controller = Controller(load_ledger(store), Settings(policy="poise"))
        plane = Plane(controller, store, SystemClock(), InlineDecider(POLICY))
        append = store._writer.append

        def append_slowly(rows: list[tuple[int, bytes]]) -> None:
            time.sleep(commit)
            append(rows)

        store._writer.append = append_slowly  # type: ignore[method-assign]
        plane.begin(boot="boot", boottime=0)
        compiled = compile_spec({"run": ["true"]}, wall=0.0)
        over = False

        def submit(_: object = None) -> None:
            if not over:
                plane.ask(lambda request: Submit(request, compiled), submit)

        for _ in range(2 * AT_ONCE):
            loop.call_soon(submit)
        while plane.ledger.revision < 4 * AT_ONCE:  # noqa: ASYNC110 — nothing says so
            await asyncio.sleep(0)
        before = len(plane.ledger.jobs)
        for _ in range(3):
            async with asyncio.timeout(5):
                assert (await plane.settled()).revision == plane.controller.durable
            await asyncio.sleep(0)
        after = len(plane.ledger.jobs)
        over = True
        plane.end()
        return before, after

    before, after = asyncio.run(live())
    assert after - before <= 4 * 2 * AT_ONCE


def test_a_turn_takes_in_a_part_of_what_has_come_and_the_next_ones_the_rest(tmp_path: Path) -> None:
    """A herd of submissions holds the loop no longer than one turn."""

    async def live() -> list[int]:
        loop = asyncio.get_running_loop()
        store: SqliteStore[Event] = SqliteStore(tmp_path / "log.db", encode_event, decode_event)
        host = Host(
            Controller(load_ledger(store), Settings(policy="poise")),
            store,
            SystemClock(),
            InlineDecider(POLICY),
            loop,
            tell=print,
        )
        host.begin(boot="boot", boottime=0)
        await asyncio.sleep(0)
        compiled = compile_spec({"run": ["true"]}, wall=0.0)
        for _ in range(3 * AT_ONCE):
            host.ask(lambda request: Submit(request, compiled), lambda _: None)
        seen = []
        while len(host.ledger.jobs) < 3 * AT_ONCE:
            await asyncio.sleep(0)
            seen.append(len(host.ledger.jobs))
        host.end()
        return seen

    seen = asyncio.run(live())
    assert max(later - earlier for earlier, later in zip([0, *seen], seen, strict=False)) <= AT_ONCE


def test_work_that_fits_is_placed_by_the_commit_that_accepts_it(tmp_path: Path) -> None:
    """A launch waits for one write to disk, not for two."""
    hand, channel, commits = ByHand(), Heeded(), list[list[type[Event]]]()
    store: SqliteStore[Event] = SqliteStore(tmp_path / "log.db", encode_event, decode_event)
    controller = Controller(load_ledger(store), Settings(policy="poise"))
    host = Host(controller, store, hand, InlineDecider(POLICY), hand, tell=print)
    host.begin(boot="boot", boottime=0)
    node = Node(name="n1", incarnation="1", cpu=1000, memory=2**30)
    host.connect(node, host.accepted(), channel)
    host.hear("n1", channel, Hello(node=node))
    hand.pass_by(SECOND // 10)
    host.observe = lambda of: commits.append([type(one) for one in of.events]) if isinstance(of, Happened) else None
    compiled = compile_spec({"run": ["true"]}, wall=0.0)
    host.ask(lambda request: Submit(request, compiled), lambda _: None)
    hand.pass_by(SECOND // 10)
    host.end()
    [commit] = commits
    assert commit[0] is JobSubmitted
    assert Placed in commit


def test_a_commit_that_fails_takes_back_the_places_with_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when work and its places are committed together: the node is not told to launch it."""
    hand, channel = ByHand(), Heeded()
    store: SqliteStore[Event] = SqliteStore(tmp_path / "log.db", encode_event, decode_event)
    host = Host(
        Controller(load_ledger(store), Settings(policy="poise")), store, hand, InlineDecider(POLICY), hand, tell=print
    )
    host.begin(boot="boot", boottime=0)
    node = Node(name="n1", incarnation="1", cpu=1000, memory=2**30)
    host.connect(node, host.accepted(), channel)
    host.hear("n1", channel, Hello(node=node))
    hand.pass_by(SECOND // 10)
    replies: list[Reply] = []

    def full(*_: object) -> None:
        raise StoreFull("the disk is full")

    with monkeypatch.context() as disk:
        disk.setattr(store._writer, "append", full)
        disk.setattr(store._writer, "probe", full)
        host.ask(lambda request: Submit(request, compile_spec({"run": ["true"]}, wall=0.0)), replies.append)
        hand.pass_by(SECOND // 10)
    assert isinstance(replies.pop().error, StoreFull)
    assert channel.closed
    hand.pass_by(2 * SECOND)
    channel = Heeded()
    host.connect(node, host.accepted(), channel)
    host.hear("n1", channel, Hello(node=node))
    hand.pass_by(SECOND // 10)
    told = [channel.told.get_nowait() for _ in range(channel.told.qsize())]
    assert not any(message.launches for message in told if isinstance(message, Desired))
    host.ask(lambda request: Submit(request, compile_spec({"run": ["true"]}, wall=0.0)), replies.append)
    hand.pass_by(SECOND // 10)
    assert replies.pop().error is None
    told = [channel.told.get_nowait() for _ in range(channel.told.qsize())]
    assert sum(len(message.launches) for message in told if isinstance(message, Desired)) == 1
    assert load_ledger(store).encode() == host.ledger.encode()
    host.end()


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
def test_a_large_state_is_saved_by_a_copy_of_the_process_as_it_was_when_it_was_due(
    tmp_path: Path, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poise.control.plane.SAVED_BESIDE", 1)
    kept: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()

    class Keeping(SqliteStore[Event]):
        def checkpoint(self, revision: int, state: bytes) -> None:
            super().checkpoint(revision, state)
            kept.put_nowait((revision, state))

    async def live() -> tuple[int, bytes, int]:
        running = asyncio.get_running_loop()
        store = Keeping(tmp_path / "log.db", encode_event, decode_event, call_soon=running.call_soon_threadsafe)
        controller = Controller(load_ledger(store), Settings(policy="poise", checkpoint_every=20))
        plane = Plane(controller, store, SystemClock(), InlineDecider(POLICY))
        plane.begin(boot="boot", boottime=0)
        compiled = compile_spec({"run": ["true"]}, wall=0.0)
        while kept.empty():
            await plane.request(lambda request: Submit(request, compiled))
        revision, state = kept.get_nowait()
        plane.end()
        return revision, state, plane.ledger.revision

    revision, state, last = loop(live())
    ledger = Ledger()
    for number, event in SqliteStore.open_read_only(tmp_path / "log.db", decode_event).read():
        if number <= revision:
            ledger.apply(event)
    assert 20 <= revision <= last
    assert ledger.compressed() == state


def test_a_state_that_was_taken_back_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log was not written as far as that, and goes on otherwise."""
    monkeypatch.setattr("poise.control.plane.SAVED_BESIDE", 0)

    async def live() -> tuple[int, bool]:
        store: SqliteStore[Event] = SqliteStore(tmp_path / "log.db", encode_event, decode_event)
        controller = Controller(load_ledger(store), Settings(policy="poise", checkpoint_every=1))
        plane = Plane(controller, store, SystemClock(), InlineDecider(POLICY))
        plane.begin(boot="boot", boottime=0)
        saving = plane._saving
        assert saving is not None
        await asyncio.sleep(0)  # the copy is made
        store.on_failed(StoreFull("no space left on device"))
        await saving
        checkpoint = store.latest_checkpoint()
        plane.end()
        return store.durable(), checkpoint is None

    assert asyncio.run(live()) == (1, True)


def test_a_sweep_is_saved_by_a_copy_of_the_process_by_the_number_of_its_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one job, and encoding it takes as long as its units do."""
    monkeypatch.setattr("poise.control.plane.SAVED_BESIDE", 20)
    document = {"run": ["true", "{seed}"], "sweep": {"seed": "1..20"}}

    async def live() -> None:
        plane = saving_plane(tmp_path, SqliteStore)
        assert plane._saving is None, "there is no unit yet"
        await plane.request(lambda request: Submit(request, compile_spec(document, wall=0.0)))
        assert plane._saving is not None
        await plane._saving
        plane.end()

    asyncio.run(live())


@pytest.mark.parametrize("way", ["no fork", "no end"])
def test_where_no_copy_of_the_process_saves_the_state_the_process_does(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poise.control.plane.SAVED_BESIDE", 0)
    process, encode = os.getpid(), Ledger.encode

    def no_fork() -> int:
        raise BlockingIOError("no more processes")

    def no_end(ledger: Ledger) -> bytes:
        while os.getpid() != process:
            time.sleep(1)
        return encode(ledger)

    if way == "no fork":
        monkeypatch.setattr(os, "fork", no_fork)
    else:
        monkeypatch.setattr("poise.drivers.beside.SECONDS", 0.05)
        monkeypatch.setattr(Ledger, "encode", no_end)

    async def live() -> None:
        plane = saving_plane(tmp_path, SqliteStore)
        for tenant in "ab":
            assert plane._saving is not None
            await plane._saving
            saved = plane.store.latest_checkpoint()
            assert saved is not None
            assert saved.revision == plane.ledger.revision
            plane.ask(token(tenant), lambda _: None)
            await asyncio.sleep(0)
        plane.end()

    asyncio.run(live())


def test_a_copy_for_which_nobody_waits_any_more_is_ended() -> None:
    process = os.getpid()

    def no_end() -> bytes:
        while os.getpid() != process:
            time.sleep(1)
        return b""

    async def live() -> None:
        before = set(children())
        saving = asyncio.ensure_future(beside(no_end))
        await asyncio.sleep(0)
        [copy] = set(children()) - before
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        while copy in children():  # noqa: ASYNC110 — nobody says that a process has ended
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(live(), 30))


def children() -> list[int]:
    """Processes that this one has begun and that have not ended."""
    found = psutil.Process().children()
    return [child.pid for child in found if child.status() != psutil.STATUS_ZOMBIE]


def test_a_checkpoint_that_the_log_refuses_is_told_and_the_next_one_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("poise.control.plane.SAVED_BESIDE", 0)

    class Ahead(SqliteStore[Event]):
        def checkpoint(self, revision: int, state: bytes) -> None:
            super().checkpoint(revision + 100, state)

    async def live() -> None:
        plane = saving_plane(tmp_path, Ahead)
        assert plane._saving is not None
        await plane._saving
        assert plane._saving is None
        plane.end()

    asyncio.run(live())
    assert "is ahead of the log" in caplog.text


def saving_plane(folder: Path, store_of: Callable[..., SqliteStore[Event]]) -> Plane:
    """Each turn is to be saved, the first one included. Its log is written at once."""
    store = store_of(folder / "log.db", encode_event, decode_event)
    controller = Controller(load_ledger(store), Settings(policy="poise", checkpoint_every=1))
    plane = Plane(controller, store, SystemClock(), InlineDecider(POLICY))
    plane.begin(boot="boot", boottime=0)
    return plane


def test_the_copy_of_the_process_lets_go_of_its_files_whatever_the_kernel_offers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without close_range(2), closing a range of numbers takes a system call for each of them."""

    def by_number(first: int, end: int) -> None:
        for number in range(first, end):
            with contextlib.suppress(OSError):
                os.close(number)

    monkeypatch.setattr(os, "closerange", by_number)
    monkeypatch.setattr("poise.drivers.beside.SECONDS", 10.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        held = str(ours.fileno())
        assert held in files().split()
        listed = asyncio.run(beside(lambda: files().encode())).decode().split()
    assert held not in listed
    assert len([number for number in listed if int(number) > 2]) == 2, "the state's own, and the folder's"


def files() -> str:
    """The numbers of the open files of this process, and of the folder that lists them."""
    return " ".join(entry.name for entry in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("state", [b"\x28\xb5\x2f\xfd of another compression", b"\x81\xa4jobs\x01"])
def test_a_whole_checkpoint_that_cannot_be_read_is_that_of_a_newer_version(tmp_path: Path, state: bytes) -> None:
    store = SqliteStore[Event](tmp_path / "log.db", encode_event, decode_event, written_by="9.1.0")
    with contextlib.closing(store):
        store.append([NodeLost(at=1, name="n1")], expected=0)
        store.checkpoint(1, state)
    with (
        contextlib.closing(LogReader(tmp_path / "log.db", decode_event)) as reader,
        pytest.raises(StoreNewer, match="the checkpoint at revision 1") as raised,
    ):
        load_ledger(reader)
    assert raised.value.record.code == "E206" and "9.1.0" in raised.value.record.hint
