"""A service and the connections of its replicas: what is said wrongly ends a connection, and nothing is kept of any."""

import asyncio
import errno
import gc
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from poise.model.serving import Limits
from poise.units import MILLISECOND, MINUTE, SECOND
from poise_serve.kernel.batcher import Refuse, Replace
from poise_serve.kernel.quarantine import digest
from poise_serve.refusals import refusal
from poise_serve.service import Asker, Service
from poise_serve.service_metrics import Registry, ServiceMetrics
from poise_serve.shared import SHARED_FROM, Reader, make_buffer
from poise_serve.wire import LENGTH, Answer, Answers, FromReplica, Hello, Place, Work, decode_to_replica, framed


class Played:
    """A replica that says what it is told to."""

    def __init__(self, path: Path) -> None:
        self.channel = socket.socket(socket.AF_UNIX)
        self.channel.settimeout(5)
        self.channel.connect(str(path))
        self.buffers: list[int] = []

    def dialled(self) -> None:
        _, self.buffers, _, _ = socket.recv_fds(self.channel, 1, 2)

    def say(self, message: FromReplica) -> None:
        self.channel.sendall(framed(message))

    def read(self) -> Work:
        head = self._exactly(LENGTH.size)
        message = decode_to_replica.decode(self._exactly(LENGTH.unpack(head)[0]))
        assert isinstance(message, Work)
        return message

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.channel.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def hung_up(self) -> bool:
        try:
            return self.channel.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.channel.close()
        for buffer in self.buffers:
            os.close(buffer)


def served(folder: Path, use: Callable[[Service], Awaitable[None]]) -> None:
    async def run() -> None:
        metrics = ServiceMetrics(Registry(CollectorRegistry()), "x")
        service = Service("x", Limits(timeout=3 * SECOND), folder / "x.sock", metrics)
        await service.start()
        try:
            await use(service)
        finally:
            await service.stop()
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 20))


def descriptors() -> int:
    gc.collect()  # or one that an earlier test left in a cycle is closed while this test counts
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(500):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never holds")


async def joined(service: Service, name: str = "a", known: Sequence[tuple[int, float]] = ()) -> Played:
    replica = Played(service.path)
    await asyncio.to_thread(replica.dialled)
    before = service.replicas
    replica.say(Hello(name, list(known)))
    await until(lambda: service.replicas == before + 1)
    return replica


OK = Answer(200, "text/plain", b"yes")


def test_a_full_queue_sends_the_next_batch_before_the_answer_and_does_not_touch_the_bodies_of_the_first(
    tmp_path: Path,
) -> None:
    bodies = [b"%d" % number * SHARED_FROM for number in range(1, 6)]

    async def use(service: Service) -> None:
        service.batcher.limits = Limits(batch=2)
        replica = await joined(service, known=[(1, 30.0 * MILLISECOND), (2, 30.0 * MILLISECOND)])
        reader, told = Reader(os.dup(replica.buffers[0])), dict[bytes, Answer | Refuse]()
        with service.together():
            for body in bodies:
                service.ask(body, partial(told.__setitem__, body))
        first = await asyncio.to_thread(replica.read)
        second = await asyncio.to_thread(replica.read)
        assert (first.ahead, second.ahead) == (False, True)
        having = [[bytes(reader.at(place)) for place in work.places] for work in (first, second)]
        assert having == [bodies[:2], bodies[2:4]]
        replica.say(Answers(first.number, 1, 2, [OK, OK]))
        replica.say(Answers(second.number, 1, 2, [OK, Answer(200, "text/plain", b"another")]))
        third = await asyncio.to_thread(replica.read)
        assert [bytes(reader.at(place)) for place in third.places] == bodies[4:] and not third.ahead
        assert list(told) == bodies[:4] and told[bodies[3]] == Answer(200, "text/plain", b"another")
        reader.close()
        replica.close()

    served(tmp_path, use)


def test_in_a_full_queue_the_client_with_the_most_requests_gives_way(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        service.batcher.limits = Limits(queue=3)
        told: list[tuple[str, str]] = []

        def tell(name: str, one: Answer | Refuse) -> None:
            told.append((name, one.why if isinstance(one, Refuse) else "answered"))

        for name in ("a1", "a2", "a3", "b1", "c1", "d1"):
            service.ask(name.encode(), partial(tell, name), asker=Asker(client=name[0]))
        assert told == [("a3", "full"), ("a2", "full"), ("d1", "full")], "a gives way, until each has one"
        replica = await joined(service, known=[(4, 1.0)])
        assert replica.read().bodies == [b"a1", b"b1", b"c1"]
        replica.close()

    served(tmp_path, use)


def test_whoever_is_refused_may_cancel_what_is_sent_at_the_same_instant(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        replica = await joined(service)
        with service.together():
            service.ask(b"1", lambda _: service.cancel(2), timeout=1)
            service.ask(b"2", list[Any]().append)
        assert (await asyncio.to_thread(replica.read)).bodies == [b"2"]
        replica.close()

    served(tmp_path, use)


def test_what_comes_in_one_turn_of_the_loop_is_one_batch(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        replica, told = await joined(service, known=[(1, 1e6), (2, 1.1e6), (4, 1.2e6)]), list[Any]()
        for body in (b"1", b"2", b"3"):
            service.ask(body, told.append)
        work = await asyncio.to_thread(replica.read)
        assert work.bodies == [b"1", b"2", b"3"]
        service.ask(b"4", told.append)
        replica.say(Answers(work.number, 1000, 3, [OK] * 3))
        work = await asyncio.to_thread(replica.read)
        assert work.bodies == [b"4"]
        replica.say(Answers(work.number, 1000, 1, [OK]))
        await until(lambda: len(told) == 4)
        replica.close()

    served(tmp_path, use)


@pytest.mark.parametrize("asks", [False, True])
def test_no_replica_hangs_because_the_gateway_stood_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    paused, real = [0], time.monotonic_ns  # nanoseconds
    monkeypatch.setattr("poise_serve.service.time", SimpleNamespace(monotonic_ns=lambda: real() + paused[0]))

    async def use(service: Service) -> None:
        told, hung = list[Any](), list[str]()
        service.on_hang = hung.append
        replica = await joined(service)
        service.ask(b"1", told.append)
        paused[0] += 100 * SECOND
        if asks:
            service.ask(b"2", lambda _: None)
        await until(lambda: bool(told))
        assert [one.why for one in told] == ["expired"] and hung == []
        assert service.replicas == 1
        replica.close()

    served(tmp_path, use)


def test_one_death_of_a_canary_that_held_two_equal_requests_refuses_neither(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        service.suspect(b"1")
        service.suspect(b"1")
        told = list[Any]()
        service.ask(b"1", told.append)
        assert told == [], "it waits for a replica"

    served(tmp_path, use)


@pytest.mark.parametrize(
    "answers",
    [
        ([], []),
        ([OK, OK], []),
        ([OK], [Place(-1, 0, 1)]),
        ([OK], [Place(1, 0, 1)]),
        ([OK], [Place(0, 1 << 40, 1)]),
        ([OK], [Place(0, -1, 1)]),
        ([OK], [Place(0, 1, -1)]),
    ],
)
def test_whoever_asks_is_answered_by_another_where_a_replica_says_too_few_or_what_is_nowhere(
    tmp_path: Path, answers: tuple[list[Answer], list[Place]]
) -> None:
    async def use(service: Service) -> None:
        wrong, told = await joined(service), list[Any]()
        os.ftruncate(wrong.buffers[1], 1 << 20)
        service.ask(b"1", told.append)
        work = await asyncio.to_thread(wrong.read)
        wrong.say(Answers(work.number, 1000, 1, *answers))
        await until(lambda: service.replicas == 0)
        right = await joined(service, "b")
        again = await asyncio.to_thread(right.read)
        right.say(Answers(again.number, 1000, 1, [OK]))
        await until(lambda: bool(told))
        assert told == [OK] and again.bodies == [b"1"]
        wrong.close()
        right.close()

    served(tmp_path, use)


def test_a_request_that_kills_its_replica_kills_two_and_is_held_and_its_twins_are_never_sent(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        told: dict[bytes, Any] = {}

        def ask(body: bytes, name: bytes) -> None:
            service.ask(body, lambda answer: told.setdefault(name, answer))

        first = await joined(service, "a")
        ask(b"kill", b"poison")
        await asyncio.to_thread(first.read)
        ask(b"kill", b"twin")
        ask(b"1", b"other")
        first.close()
        await until(lambda: service.replicas == 0)
        second = await joined(service, "b")
        assert (await asyncio.to_thread(second.read)).bodies == [b"kill"]
        second.close()
        await until(lambda: len(told) == 2)
        assert (told[b"poison"].why, told[b"twin"].why) == ("lost", "quarantined")
        assert told[b"poison"].message.endswith("and so did another; it is refused for 1m0s")
        assert [refusal(told[name]).headers["x-should-retry"] for name in (b"poison", b"twin")] == ["false"] * 2
        third = await joined(service, "c")
        work = await asyncio.to_thread(third.read)
        third.say(Answers(work.number, 1000, 1, [OK]))
        await until(lambda: b"other" in told)
        ask(b"kill", b"again")
        assert told[b"again"].why == "quarantined" and 0 < told[b"again"].after <= MINUTE
        assert (work.bodies, told[b"other"]) == ([b"1"], OK)
        third.close()

    served(tmp_path, use)


def test_an_innocent_request_whose_replica_was_killed_is_cleared_by_its_answer(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        told = list[Any]()
        for name in ("a", "b"):
            gone = await joined(service, name)
            service.ask(b"1", told.append)
            await asyncio.to_thread(gone.read)
            gone.close()
            await until(lambda: service.replicas == 0)
            well = await joined(service, f"{name}2")
            work = await asyncio.to_thread(well.read)
            well.say(Answers(work.number, 1000, 1, [OK]))
            await until(lambda: not service._pending)
            assert not service.quarantine
            well.close()
            await until(lambda: service.replicas == 0)
        assert told == [OK, OK]

    served(tmp_path, use)


def test_a_request_whose_client_left_before_its_replica_died_is_a_suspect_and_an_answered_one_is_not(
    tmp_path: Path,
) -> None:
    """Clients of a request that hangs its replica may be less patient than the gateway."""

    async def use(service: Service) -> None:
        service.batcher.limits = Limits(objective=20 * MILLISECOND, timeout=10 * SECOND)
        first = await joined(service, "a")
        left = service.ask(b"left", lambda told: None)
        await asyncio.to_thread(first.read)
        service.cancel(left)
        first.close()
        await until(lambda: service.replicas == 0)
        assert service.quarantine.suspects(digest(b"left"), time.monotonic_ns())
        second, told = await joined(service, "b"), list[Any]()
        service.ask(b"answered", told.append)
        await asyncio.to_thread(second.read)
        third = await joined(service, "c")
        work = await asyncio.to_thread(third.read)
        third.say(Answers(work.number, 1000, 1, [OK]))
        await until(lambda: told == [OK])
        second.close()
        await until(lambda: service.replicas == 1)
        assert not service.quarantine.suspects(digest(b"answered"), time.monotonic_ns())
        third.close()

    served(tmp_path, use)


def test_what_a_hung_replica_holds_is_answered_by_an_idle_one_and_it_is_hung_up_on_at_once(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        service.batcher.limits = Limits(objective=20 * MILLISECOND, timeout=10 * SECOND)
        hung, told, ended = await joined(service, "a"), list[Any](), list[str]()
        service.on_hang = ended.append
        service.ask(b"1", told.append)
        await asyncio.to_thread(hung.read)
        idle = await joined(service, "b")
        work = await asyncio.to_thread(idle.read)
        idle.say(Answers(work.number, 1000, 1, [OK]))
        await until(lambda: told == [OK])
        service._do([Replace("a")], time.monotonic_ns())
        assert (ended, service.replicas) == (["a"], 1)
        assert await asyncio.to_thread(hung.hung_up)
        assert (work.bodies, told) == ([b"1"], [OK])
        hung.close()
        idle.close()

    served(tmp_path, use)


def test_an_attempt_that_another_followed_is_hung_up_on_and_what_it_was_asked_is_asked_of_others(
    tmp_path: Path,
) -> None:
    """Its machine is gone, say, and nobody hangs up for it."""

    async def use(service: Service) -> None:
        gone, told = await joined(service, "j1.main.1"), list[Any]()
        service.ask(b"1", told.append)
        await asyncio.to_thread(gone.read)
        other = await joined(service, "j2.main.1")
        service.leave_behind("j1", 1)
        assert service.replicas == 2
        service.leave_behind("j1", 2)
        assert service.replicas == 1 and service.has("j2") and not service.has("j1")
        work = await asyncio.to_thread(other.read)
        other.say(Answers(work.number, 1000, 1, [OK]))
        await until(lambda: bool(told))
        assert told == [OK] and work.bodies == [b"1"]
        assert await asyncio.to_thread(gone.hung_up)
        again = await joined(service, "j1.main.2")
        service.leave_behind("j1", 2)
        assert service.replicas == 2
        for replica in (gone, other, again):
            replica.close()

    served(tmp_path, use)


def test_a_replica_has_one_name(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        replica = await joined(service)
        replica.say(Hello("another"))
        assert await asyncio.to_thread(replica.hung_up)
        await until(lambda: service.replicas == 0)
        replica.close()

    served(tmp_path, use)


def test_nothing_is_kept_of_those_that_come_and_go_at_any_moment(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        before = descriptors()
        for number in range(60):
            replica = Played(service.path)
            if number % 3:
                await asyncio.to_thread(replica.dialled)
            if number % 3 == 2:
                replica.say(Hello("a"))
                service.ask(b"%d" % number * SHARED_FROM, lambda told: None, timeout=SECOND)
                await asyncio.to_thread(replica.read)
            replica.close()
        await until(lambda: service.replicas == 0 and descriptors() == before)

    served(tmp_path, use)


def test_those_that_load_their_model_are_hung_up_on_at_its_end_and_those_that_dial(tmp_path: Path) -> None:
    before = descriptors()
    replicas: list[Played] = []

    async def use(service: Service) -> None:
        replicas.append(Played(service.path))
        await asyncio.to_thread(replicas[0].dialled)
        await asyncio.sleep(0.05)
        replicas.append(Played(service.path))
        service._accept()  # the end comes before anything else does
        await service.stop()
        await asyncio.sleep(0.05)
        replicas[1].dialled()
        assert [await asyncio.to_thread(one.hung_up) for one in replicas] == [True, True]

    served(tmp_path, use)
    for one in replicas:
        one.close()
    assert descriptors() == before


def test_where_there_is_a_descriptor_for_one_buffer_only_it_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [0]

    def scarce() -> int:
        made[0] += 1
        if made[0] % 2 == 0:
            raise OSError(errno.EMFILE, "no more")
        return make_buffer()

    async def use(service: Service) -> None:
        monkeypatch.setattr("poise_serve.service.make_buffer", scarce)
        before = descriptors()
        for _ in range(10):
            replica = Played(service.path)
            assert await asyncio.to_thread(replica.hung_up)
            replica.close()
        assert descriptors() == before
        monkeypatch.undo()
        (await joined(service)).close()

    served(tmp_path, use)


def test_without_memory_for_its_bodies_a_request_is_refused_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, size: int) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    async def use(service: Service) -> None:
        told = list[Any]()
        monkeypatch.setattr("poise_serve.shared.os.ftruncate", full)
        service.ask(b"x" * SHARED_FROM, told.append)
        for name in "ab":
            replica = Played(service.path)
            await asyncio.to_thread(replica.dialled)
            replica.say(Hello(name))
            assert await asyncio.to_thread(replica.hung_up)
            replica.close()
        await until(lambda: bool(told))
        assert isinstance(told[0], Refuse) and told[0].why == "lost"

    served(tmp_path, use)
