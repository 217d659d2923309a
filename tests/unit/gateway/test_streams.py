"""Replicas that serve several requests at once, and answers that come in parts: what goes to clients, whatever replicas
say and clients do.
"""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from poise.units import SECOND
from poise_serve.service import Service
from poise_serve.streams import MOST_HELD, Cut, Stream, Streamed
from poise_serve.wire import EVENTS, LENGTH, Answer, Answers, Broken, Drop, Hello, Part, ToReplica, decode_to_replica
from unit.gateway.test_service import Played, served, until


async def joined(service: Service, name: str = "j1.main.1", at_once: int = 2) -> Played:
    replica, before = Played(service.path), service.replicas
    await asyncio.to_thread(replica.dialled)
    replica.say(Hello(name, at_once=at_once, room=1))
    await until(lambda: service.replicas == before + 1)
    return replica


async def read(replica: Played) -> Any:
    def message() -> ToReplica:
        head = replica._exactly(LENGTH.size)
        return decode_to_replica.decode(replica._exactly(LENGTH.unpack(head)[0]))

    return await asyncio.to_thread(message)


async def everything(told: Any) -> bytes:
    assert isinstance(told, Streamed)
    return b"".join([part async for part in told.stream.parts()])


END = Answer(200, EVENTS, b"")


def test_so_many_are_served_at_once_and_the_next_waits(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        replica, told = await joined(service), dict[bytes, Any]()
        for body in (b"1", b"2", b"3"):
            service.ask(body, lambda answer, body=body: told.setdefault(body, answer))  # type: ignore[misc]
        works = {work.bodies[0]: work.number for work in (await read(replica), await read(replica))}
        assert set(works) == {b"1", b"2"}
        replica.say(Answers(works[b"2"], 1000, 1, [Answer(200, "text/plain", b"two")]))
        third = await read(replica)
        assert third.bodies == [b"3"]
        replica.say(Answers(works[b"1"], 1000, 1, [Answer(200, "text/plain", b"one")]))
        replica.say(Answers(third.number, 1000, 1, [Answer(200, "text/plain", b"three")]))
        await until(lambda: len(told) == 3)
        assert {body: answer.body for body, answer in told.items()} == {b"1": b"one", b"2": b"two", b"3": b"three"}
        assert service.replicas == 1
        replica.close()

    served(tmp_path, use)


def test_parts_are_passed_on_as_they_come_and_count_as_one_answer(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        replica, told = await joined(service), list[Any]()
        service.ask(b"1", told.append)
        work = await read(replica)
        replica.say(Part(work.number, EVENTS, b"data: 1\n\n"))
        await until(lambda: bool(told))
        parts = told[0].stream.parts()
        assert await anext(parts) == b"data: 1\n\n"
        replica.say(Part(work.number, EVENTS, b"data: 2\n\n"))
        assert await anext(parts) == b"data: 2\n\n"
        replica.say(Answers(work.number, 1000, 1, [END]))
        assert [part async for part in parts] == []
        assert len(told) == 1
        await service.drained()
        assert service.recent(60 * SECOND).answered == 1
        replica.close()

    served(tmp_path, use)


@pytest.mark.parametrize("how", ["broken", "died", "left behind"])
def test_an_answer_that_cannot_be_completed_is_cut_and_not_served_again(tmp_path: Path, how: str) -> None:
    async def use(service: Service) -> None:
        replica, told = await joined(service), list[Any]()
        service.ask(b"1", told.append)
        service.ask(b"2", told.append)
        begun, other = await read(replica), await read(replica)
        replica.say(Part(begun.number, EVENTS, b"data: 1\n\n"))
        await until(lambda: bool(told))
        second = await joined(service, "j2.main.1")
        if how == "broken":
            replica.say(Broken(begun.number, "raised", "a bad word"))
        elif how == "died":
            replica.channel.shutdown(socket.SHUT_RDWR)
        else:
            service.leave_behind("j1", 2)
        with pytest.raises(Cut, match="bad word" if how == "broken" else "died"):
            await everything(told[0])
        if how != "broken":  # the other had not begun
            again = await read(second)
            assert again.bodies == other.bodies
            second.say(Answers(again.number, 1000, 1, [END]))
            await until(lambda: len(told) == 2)
        replica.close()
        second.close()

    served(tmp_path, use)


@pytest.mark.parametrize("begun", [False, True])
def test_a_replica_is_told_that_a_client_has_gone(tmp_path: Path, begun: bool) -> None:
    async def use(service: Service) -> None:
        replica, told = await joined(service), list[Any]()
        number = service.ask(b"1", told.append)
        work = await read(replica)
        if begun:
            replica.say(Part(work.number, EVENTS, b"data: 1\n\n"))
            await until(lambda: bool(told))
            told[0].stream.leave()
        else:
            service.cancel(number)
        assert await read(replica) == Drop(work.number)
        replica.say(Part(work.number, EVENTS, b"data: 2\n\n"))  # it had not read this yet
        assert await read(replica) == Drop(work.number)
        replica.say(Broken(work.number, "raised", "its client has gone"))
        service.ask(b"2", told.append)
        assert (await read(replica)).bodies == [b"2"]
        replica.close()

    served(tmp_path, use)


def test_the_time_of_a_request_covers_its_whole_answer(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        replica, told = await joined(service), list[Any]()
        service.ask(b"1", told.append, timeout=SECOND // 10)
        work = await read(replica)
        replica.say(Part(work.number, EVENTS, b"data: 1\n\n"))
        await until(lambda: bool(told))
        with pytest.raises(Cut, match="time"):
            await everything(told[0])
        assert await read(replica) == Drop(work.number)
        replica.close()

    served(tmp_path, use)


def test_what_a_client_does_not_read_is_not_held_without_end() -> None:
    async def run() -> None:
        left: list[bool] = []
        stream = Stream("r", lambda: left.append(True))
        stream.put(b"x" * MOST_HELD)
        assert left == []
        stream.put(b"x")
        assert left == [True]
        with pytest.raises(Cut, match="does not read"):
            await everything(Streamed(200, EVENTS, b"", stream))
        stream.put(b"x")
        stream.leave()
        assert left == [True]

    asyncio.run(run())


@pytest.mark.parametrize("at_once", [-1, 1025])
def test_a_replica_that_says_that_it_serves_more_than_is_possible_is_disconnected(tmp_path: Path, at_once: int) -> None:
    async def use(service: Service) -> None:
        replica = Played(service.path)
        await asyncio.to_thread(replica.dialled)
        replica.say(Hello("a", at_once=at_once))
        assert await asyncio.to_thread(replica.hung_up)
        replica.close()

    served(tmp_path, use)


def test_parts_of_what_nobody_asked_are_left(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        replica, told = await joined(service), list[Any]()
        replica.say(Part(99, EVENTS, b"x"))
        service.ask(b"1", told.append)
        work = await read(replica)
        replica.say(Part(work.number + 1, EVENTS, b"x"))
        replica.say(Answers(work.number, 1000, 1, [Answer(200, "text/plain", b"yes")]))
        await until(lambda: bool(told))
        assert told[0].body == b"yes"
        replica.close()

    served(tmp_path, use)
