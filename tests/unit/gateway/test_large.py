"""Large questions take turns, and no client holds more of the room for bodies than its share."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from poise_serve.asgi import SHARE, SMALL, NoRoom, Room
from poise_serve.kernel.batcher import Refuse
from poise_serve.large import LARGE, Large
from poise_serve.service import Service
from poise_serve.wire import Answer, Answers, Forms, Hello, Work
from unit.gateway.test_service import Played, joined, served, until

BODY = b"1" * LARGE


def answers(work: Work) -> Answers:
    return Answers(work.number, 1000, len(work.bodies), [Answer(200, "text/plain", b"yes") for _ in work.bodies])


def sizes(work: Work) -> tuple[int, int]:
    """How many small and how many large questions a batch has."""
    return len(work.bodies) - len(work.places), len(work.places)


async def read(replica: Played) -> Work:
    return await asyncio.to_thread(replica.read)


def test_of_large_questions_one_is_asked_at_a_time_and_behind_the_small_ones(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        large, told = Large(service, service), list[Any]()
        replica = await joined(service)
        large.ask(b"1", told.append)
        batches = [await read(replica)]
        for body in (BODY, BODY, BODY, b"2", b"3"):
            large.ask(body, told.append)
        while len(told) < 6:
            replica.say(answers(batches[-1]))
            await until(lambda: len(told) == sum(map(sum, map(sizes, batches))))
            if len(told) < 6:
                batches.append(await read(replica))
        assert [sizes(batch) for batch in batches[-3:]] == [(0, 1)] * 3
        assert sum(small for small, _ in map(sizes, batches[:-3])) == 3
        await large.drained()
        replica.close()

    served(tmp_path, use)


def test_after_a_large_question_others_have_as_long_as_it_took(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        large, told, now = Large(service, service), list[Any](), asyncio.get_running_loop().time
        replica = await joined(service)
        for _ in range(2):
            large.ask(BODY, told.append)
        began, batches = now(), [await read(replica)]
        await asyncio.sleep(0.1)
        took = now() - began
        large.ask(b"1", told.append)
        replica.say(answers(batches[0]))
        while sizes(batches[-1]) != (0, 1) or len(batches) == 1:
            batches.append(await read(replica))
            replica.say(answers(batches[-1]))
            await until(lambda: len(told) == len(batches))
            large.ask(b"1", told.append)  # a client that asks one small question after the other
        assert now() - began >= 2 * took - 0.01
        assert len(batches) > 3
        replica.close()

    served(tmp_path, use)


def test_with_more_replicas_one_is_left_to_small_questions(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        large = Large(service, service)
        replicas = [await joined(service, name) for name in "abc"]
        for _ in range(5):
            large.ask(BODY, lambda _: None)
        assert service.batcher.serving == 2
        large.ask(b"1", lambda _: None)
        await until(lambda: service.batcher.serving == 3 and not service.batcher.waiting)
        large.drop()
        for replica in replicas:
            replica.close()

    served(tmp_path, use)


def test_what_a_model_reads_from_bytes_takes_no_turns(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        large = Large(service, service)
        replica = Played(service.path)
        await asyncio.to_thread(replica.dialled)
        replica.say(Hello("a", forms=Forms({"application/octet-stream": {}}, {})))
        await until(lambda: service.replicas == 1)
        for _ in range(3):
            large.ask(BODY, lambda _: None)
        assert service.batcher.serving + service.batcher.waiting == 3
        replica.close()

    served(tmp_path, use)


def test_a_large_question_whose_turn_does_not_come_is_refused_in_time(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        large, told = Large(service, service), list[Any]()
        replica = await joined(service)
        large.ask(BODY, lambda _: None)
        large.ask(BODY, told.append, 50_000_000)
        await until(lambda: bool(told))
        assert isinstance(told[0], Refuse) and told[0].why == "expired"
        large.ask(BODY, told.append)
        large.drop()
        assert told[1].why == "ending"
        replica.close()

    served(tmp_path, use)


@pytest.mark.parametrize("which", [0, 1])
def test_who_goes_away_gives_the_turn_to_the_next(tmp_path: Path, which: int) -> None:
    async def use(service: Service) -> None:
        large, told = Large(service, service), list[Any]()
        replica = await joined(service)
        numbers = [large.ask(BODY, told.append) for _ in range(3)]
        first = await read(replica)
        large.cancel(numbers[which])
        replica.say(answers(first))
        await asyncio.sleep(0)
        for _ in range(1 if which else 2):
            replica.say(answers(await read(replica)))
        await until(lambda: len(told) == 2)
        await large.drained()
        replica.close()

    served(tmp_path, use)


def test_one_client_has_its_share_of_the_room_and_others_have_theirs() -> None:
    room = Room(1 << 20)
    part = (1 << 20) // SHARE
    room.take(part, "a", part)
    with pytest.raises(NoRoom):
        room.take(SMALL + 1, "a", SMALL + 1)
    room.give_back(SMALL + 1, "a")
    room.take(SMALL, "a", SMALL)  # what is small is let in
    room.take(2 * part, "b", 2 * part)  # one that is larger than its share, and alone
    with pytest.raises(NoRoom):
        room.take(part, "c", part)
    room.give_back(part, "c")
    for client, held in (("a", part + SMALL), ("b", 2 * part)):
        room.give_back(held, client)
    room.take(1 << 20, "c", 1 << 20)


def test_a_body_comes_in_parts_and_is_alone_nevertheless() -> None:
    room = Room(1 << 20)
    for so_far in range(SMALL, (1 << 20) + 1, SMALL):
        room.take(SMALL, "a", so_far)
