"""What is told of what lies in a Redis, and what a version is."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from poise.errors import SpecError
from poise.model.servicefile import DeclaredService, compile_service
from poise.units import MILLISECOND, MINUTE, SECOND
from poise_serve.cached import Cached
from poise_serve.kernel.batcher import Refuse
from poise_serve.kernel.cache import Cache
from poise_serve.redis import Away, Kept
from poise_serve.service import Asker, Service
from poise_serve.service_metrics import CacheMetrics, Registry, ServiceMetrics
from poise_serve.shared_answers import SharedAnswers, opened, sealed, version_of
from poise_serve.wire import Answer

ANSWER = Answer(200, "application/json", b"[42]")


def test_what_was_kept_is_told_where_it_was_kept() -> None:
    data = sealed("poise:a:1.5:00", ANSWER)
    assert opened("poise:a:1.5:00", data) == ANSWER
    assert opened("poise:a:1.5:01", data) is None


@given(st.binary(max_size=80))
def test_nothing_is_told_of_garbage(data: bytes) -> None:
    assert opened("key", data) is None


@given(st.integers(0, 200), st.integers(1, 255), st.integers(0, 200))
def test_nothing_is_told_of_what_is_damaged(place: int, flip: int, length: int) -> None:
    data = sealed("key", ANSWER)
    place %= len(data)
    assert opened("key", data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]) is None
    assert opened("key", data[: length % len(data)]) is None
    assert opened("key", data + bytes(1 + length)) is None


def declared(**fields: object) -> DeclaredService:
    return compile_service({"kind": "service", "name": "twice", "model": "app.py:Twice"} | fields)


def test_a_version_changes_with_what_decides_what_a_model_says(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("one")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "app.py").write_text("one")
    made = [
        version_of(declared(**fields), tmp_path)
        for fields in (
            {},
            {"model": "app.py:Thrice"},
            {"model": "package.app:Twice"},
            {"env": {"WEIGHTS": "large"}},
            {"env": {"WEIGHTS": "small"}},
            {"python": "other/python"},
            {"precision": "int8"},
            {"version": "7"},
        )
    ]
    (tmp_path / "app.py").write_text("other")
    made.append(version_of(declared(), tmp_path))
    assert len(set(made)) == len(made)
    assert "7" in made
    (tmp_path / "app.py").write_text("one")
    assert version_of(declared(replicas=3, cache={"ttl": "1h"}), tmp_path) == made[0]


def test_a_model_whose_file_is_not_there_says_its_version(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="which version"):
        version_of(declared(model="json:JSONDecoder"), tmp_path)


def test_a_password_is_in_no_file() -> None:
    with pytest.raises(SpecError) as caught:
        declared(cache={"redis": "redis://me:secret@here:6379/0"})
    assert b"secret" not in msgspec.json.encode(caught.value.record)
    for url in ("redis://here", "rediss://me@here:6379/2", "unix:///run/redis.sock", "redis://[::1]:6379"):
        assert declared(cache={"redis": url, "password_from": "SECRET"}).redis == url
    for wrong in (
        {"redis": "http://here"},
        {"password_from": "SECRET"},
        {"redis": "redis://here", "password_from": "-"},
    ):
        with pytest.raises(SpecError):
            declared(cache=wrong)


@pytest.mark.parametrize("version", ["a b", "a:b", "-", "x" * 64])
def test_a_version_is_part_of_a_key(version: str) -> None:
    with pytest.raises(SpecError):
        declared(version=version)


class Unreliable:
    """Stands for a Redis: slow, away, and full of garbage, as it comes."""

    def __init__(self, chosen: random.Random) -> None:
        self._chosen = chosen
        self._kept: dict[str, bytes] = {}
        self._errands: dict[str, str] = {}
        self._number = 0

    async def _think(self) -> None:
        await asyncio.sleep(self._chosen.choice((0.0, 0.0, 0.001, 0.01)))
        if self._chosen.random() < 0.2:
            raise Away(self._chosen.choice(("timeout", "connection", "memory", "garbage", "refused", "busy")))

    async def get(self, key: str) -> Kept | None:
        await self._think()
        data = self._kept.get(key)
        if data is not None and self._chosen.random() < 0.1:
            data = self._chosen.choice((data[:-1], b"", b"garbage", *self._kept.values()))
        return None if data is None else Kept(data, MINUTE)

    async def look(self, key: str, errand: str) -> tuple[Kept | None, int]:
        return await self.get(key), SECOND if errand in self._errands else 0

    async def begin(self, key: str, token: str, time: int) -> bool:
        await self._think()
        if self._chosen.random() < 0.3:
            self._errands.pop(key, None)  # its time is over
        return self._errands.setdefault(key, token) == token

    async def end(self, key: str, token: str) -> None:
        await self._think()
        if self._errands.get(key) == token:
            del self._errands[key]

    async def put(self, key: str, data: bytes, time: int) -> None:
        await self._think()
        self._kept[key] = data

    async def number(self, key: str, known: int, otherwise: int) -> int:
        await self._think()
        self._number = max(self._number, known) or otherwise
        return self._number

    async def close(self) -> None: ...


class Echo:
    """Stands for a service: answers what it was asked, well or not, or refuses."""

    def __init__(self, chosen: random.Random) -> None:
        self._chosen = chosen
        self._calls: dict[int, asyncio.TimerHandle] = {}

    def ask(self, body: bytes, tell: Callable[[Any], None], timeout: int, deferred: bool, asker: Asker) -> int:
        told: Answer | Refuse = Answer(self._chosen.choice((200, 200, 200, 422)), "text/plain", body)
        if self._chosen.random() < 0.1:
            told = Refuse(1, "late")
        number = len(self._calls) + 1
        after = self._chosen.choice((0.0, 0.006, 0.02))
        self._calls[number] = asyncio.get_running_loop().call_later(after, tell, told)
        return number

    def cancel(self, number: int) -> None:
        self._calls[number].cancel()


@pytest.mark.parametrize("seed", range(10))
def test_whatever_a_redis_does_everybody_is_told_once_and_right(seed: int) -> None:
    asyncio.run(_storm(random.Random(seed)))  # noqa: S311


async def _storm(chosen: random.Random) -> None:
    store, numbers = Unreliable(chosen), itertools.count()
    gateways = []
    for _ in range(3):
        registry = Registry(CollectorRegistry())
        shared = SharedAnswers(store, "echo", "1", MINUTE, CacheMetrics(registry, "echo"))
        metrics = ServiceMetrics(registry, "echo")
        gateways.append(Cached(cast(Service, Echo(chosen)), Cache(3000, MINUTE), metrics, shared))
    for gateway in gateways:
        await gateway.start()
    told: Counter[int] = Counter()
    news = asyncio.Event()
    waiting: dict[int, tuple[Cached, int]] = {}

    def ask(gateway: Cached) -> None:
        number, body = next(numbers), b"%d" % chosen.randrange(12)

        def tell(answer: Answer | Refuse) -> None:
            told[number] += 1
            assert isinstance(answer, Refuse) or answer.body == body
            waiting.pop(number, None)
            news.set()

        asker = Asker(chosen.choice(("", "ann")), *chosen.choice(((True, True),) * 4 + ((False, True), (False, False))))
        waiting[number] = (gateway, 0)
        timeout = chosen.choice((0, 0, 0, 50 * MILLISECOND))
        handle = gateway.ask(body, tell, timeout, chosen.random() < 0.1, asker)
        if number in waiting:
            waiting[number] = (gateway, handle)

    left = set()
    for _ in range(300):
        ask(chosen.choice(gateways))
        if chosen.random() < 0.1 and waiting:
            number = chosen.choice(list(waiting))
            gateway, handle = waiting.pop(number)
            gateway.cancel(handle)
            left.add(number)
        if chosen.random() < 0.01:
            await chosen.choice(gateways).forget()
        await asyncio.sleep(chosen.choice((0.0, 0.0, 0.002)))
    async with asyncio.timeout(10):
        while waiting:
            news.clear()
            await news.wait()
    for gateway in gateways:
        await gateway.searched()
        await gateway.stop()
        assert not gateway._waiting and not gateway._flights
    assert all(told[number] == 1 for number in range(300) if number not in left)
    assert all(told[number] == 0 for number in left)
