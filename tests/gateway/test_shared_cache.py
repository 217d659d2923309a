"""Gateways that share answers in a real Redis: Debian's, killed, stopped, filled up and filled with garbage."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from gateway.redis_server import RedisServer, running
from poise.units import MINUTE, SECOND
from poise_serve.cached import Cached
from poise_serve.kernel.batcher import Refuse
from poise_serve.kernel.cache import Cache
from poise_serve.redis import Redis
from poise_serve.service import ANYBODY, Asker, Service
from poise_serve.service_metrics import CacheMetrics, Registry, ServiceMetrics
from poise_serve.shared_answers import LARGEST, PATIENCE, SharedAnswers
from poise_serve.wire import Answer

TTL = MINUTE
PATIENT = 5 * SECOND
"""So that a busy machine is not taken for a slow Redis, where that is not what it is about."""
KEPT = "poise:twice:*:" + "[0-9a-f]" * 64
ERRANDS = "poise:*:errand"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running() as started:
        yield started


@pytest.fixture
def redis(server: RedisServer) -> RedisServer:
    """With nothing in it."""
    server.client.flushall()
    return server


class Gateway:
    """The cached service `twice` of one gateway, whose model is this class."""

    def __init__(self, url: str, version: str, ttl: int, takes: float, password: str | None, patience: int) -> None:
        self.registry = CollectorRegistry()
        registry = Registry(self.registry)
        store = Redis(url, password, patience)
        shared = SharedAnswers(store, "twice", version, ttl, CacheMetrics(registry, "twice"))
        metrics = ServiceMetrics(registry, "twice")
        self.cached = Cached(cast(Service, self), Cache(1 << 24, ttl), metrics, shared)
        self.asked = 0
        self._takes = takes
        self._calls: dict[int, asyncio.TimerHandle] = {}

    def ask(self, body: bytes, tell: Callable[[Any], None], timeout: int, deferred: bool, asker: Asker) -> int:
        self.asked += 1
        told: Answer | Refuse = Answer(200, "text/plain", body * 2)
        if body.startswith(b"bad"):
            told = Answer(422, "text/plain", b"bad")
        elif body.startswith(b"late"):
            told = Refuse(self.asked, "late")
        self._calls[self.asked] = asyncio.get_running_loop().call_later(self._takes, tell, told)
        return self.asked

    def cancel(self, number: int) -> None:
        self._calls.pop(number).cancel()

    async def says(self, body: bytes, asker: Asker = ANYBODY, within: int = 0) -> Any:
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.cached.ask(body, told.set_result, within, asker=asker)
        return await told

    async def hits(self, body: bytes, asker: Asker = ANYBODY) -> bool:
        """Whether it is told from what is kept; it is told right in any case."""
        told = await self.says(body, asker)
        assert (told.status, told.body) == (200, body * 2)
        return "; hit" in told.note

    def count(self, name: str, **labels: str) -> float:
        return sum(
            sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@asynccontextmanager
async def gateways(
    url: str,
    count: int = 2,
    version: str = "1",
    ttl: int = TTL,
    takes: float = 0.01,
    password: str | None = None,
    patience: int = PATIENT,
) -> AsyncIterator[list[Gateway]]:
    made = [Gateway(url, version, ttl, takes, password, patience) for _ in range(count)]
    for one in made:
        await one.cached.start()
    try:
        yield made
    finally:
        for one in made:
            await one.cached.searched()
            await one.cached.stop()


async def until(holds: Callable[[], object], what: str) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within 20 s: {what}")


async def until_hit(gateway: Gateway, other: Gateway, what: str) -> None:
    """They share again."""
    for number in range(400):
        body = b"%s %d" % (what.encode(), number)
        await gateway.hits(body)
        await asyncio.sleep(0.05)
        if await other.hits(body):
            return
    raise AssertionError(what)


Test = Callable[[RedisServer], Coroutine[Any, Any, None]]


def live(test: Test) -> Callable[[RedisServer], None]:
    def run(redis: RedisServer) -> None:
        asyncio.run(test(redis))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def _written(redis: RedisServer, count: int = 1) -> None:
    await until(lambda: len(redis.keys(KEPT)) >= count and not redis.keys(ERRANDS), "it is written")


@live
async def test_what_one_gateway_was_told_the_other_knows(redis: RedisServer) -> None:
    async with gateways(redis.url) as (one, other):
        assert not await one.hits(b"21")
        await _written(redis)
        told = await other.says(b"21")
        assert (told.status, told.kind, told.body) == (200, "text/plain", b"2121")
        assert told.note.startswith("age: 0\r\ncache-status: poise; hit; ttl=59; detail=redis")
        assert (one.asked, other.asked) == (1, 0)
        assert await other.hits(b"21")
        assert other.count("cache_gets_total", tier="redis", result="hit") == 1
        assert other.count("cache_gets_total", tier="process", result="hit") == 1
        assert other.count("nv_cache_num_hits_per_model_total") == 2
        assert one.count("cache_gets_total", tier="redis", result="miss") == 1
        (key,) = redis.keys(KEPT)
        assert key.startswith("poise:twice:1.")
        assert 0 < redis.client.pttl(key) <= 60_000


@live
async def test_an_answer_is_no_younger_for_having_been_shared(redis: RedisServer) -> None:
    async with gateways(redis.url, ttl=4 * SECOND) as (one, other):
        await one.hits(b"21")
        await _written(redis)
        await asyncio.sleep(1)
        assert await other.hits(b"21")
        await asyncio.sleep(3.1)
        assert not await other.hits(b"21")


@live
async def test_another_version_another_tenant_and_another_question_are_told_nothing(redis: RedisServer) -> None:
    async with gateways(redis.url, 1) as (one,), gateways(redis.url, 1, version="2") as (newer,):
        await one.hits(b"21", Asker("ann"))
        await _written(redis)
        assert not await newer.hits(b"21", Asker("ann"))
        async with gateways(redis.url, 1) as (other,):
            for asker, body in ((Asker("bob"), b"21"), (ANYBODY, b"21"), (Asker("ann"), b"22")):
                assert not await other.hits(body, asker)
            assert await other.hits(b"21", Asker("ann"))


@live
async def test_many_gateways_that_are_asked_the_same_at_once_ask_once(redis: RedisServer) -> None:
    async with gateways(redis.url, 4, takes=0.2) as all_of_them:
        told = await asyncio.gather(*(one.says(b"21") for one in all_of_them for _ in range(5)))
        assert {one.body for one in told} == {b"2121"}
        assert sum(one.asked for one in all_of_them) == 1
        assert sum(one.count("cache_collapsed_total", tier="redis") for one in all_of_them) == 3
        assert sum(one.count("cache_collapsed_total", tier="process") for one in all_of_them) == 16


@pytest.mark.timed
@live
async def test_what_is_not_kept_holds_up_nobody(redis: RedisServer) -> None:
    async with gateways(redis.url, 3, takes=0.1) as all_of_them:
        for body in (b"bad", b"late"):
            began = time.monotonic()
            told = await asyncio.gather(*(one.says(body) for one in all_of_them))
            assert all(isinstance(one, Refuse) or one.status == 422 for one in told)
            assert time.monotonic() - began < 0.9, "the errand was ended, not waited for"
        assert not redis.keys(KEPT)


@pytest.mark.timed
@live
async def test_an_errand_whose_gateway_died_holds_up_nobody_for_long(redis: RedisServer) -> None:
    async with gateways(redis.url) as (dying, other):
        dying._takes = 1000
        asked = asyncio.create_task(dying.says(b"21"))
        await until(lambda: redis.keys(ERRANDS), "one is on the errand")
        began = time.monotonic()
        assert not await other.hits(b"21")
        assert 0.2 < time.monotonic() - began < 1.5
        await _written(redis)
        began = time.monotonic()
        redis.client.set(f"{redis.keys(KEPT)[0]}:errand", "for ever")
        redis.client.delete(redis.keys(KEPT)[0])
        await other.cached._shared.find(redis.keys(ERRANDS)[0].removesuffix(":errand"), 0)  # type: ignore[union-attr]
        assert time.monotonic() - began < 0.5, "one without an end is none"
        asked.cancel()


@pytest.mark.timed
@live
async def test_a_question_with_a_time_of_its_own_waits_for_no_errand(redis: RedisServer) -> None:
    async with gateways(redis.url) as (one, other):
        one._takes = 0.5
        asked = asyncio.create_task(one.says(b"21"))
        await until(lambda: redis.keys(ERRANDS), "one is on the errand")
        began = time.monotonic()
        await other.says(b"21", within=SECOND)
        assert time.monotonic() - began < 0.3
        await asked


@live
async def test_what_is_forgotten_is_forgotten_everywhere(redis: RedisServer) -> None:
    async with gateways(redis.url) as (one, other):
        await one.hits(b"21")
        await _written(redis)
        assert await other.hits(b"21")
        assert await one.cached.forget()
        assert not await one.hits(b"21")
        for _ in range(100):  # about a second; more on a busy machine
            redis.client.delete("none", *redis.keys(KEPT))  # what is told anew is shared anew
            if not await other.hits(b"21"):
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("it is forgotten there too")


@live
async def test_what_is_forgotten_while_it_is_away_is_told_when_it_is_back(redis: RedisServer) -> None:
    async with gateways(redis.url, patience=SECOND) as (one, other):
        for body in (b"21", b"22"):
            await one.hits(body)
        await _written(redis, 2)
        assert await other.hits(b"21")
        redis.stand_still()
        assert not await one.cached.forget()
        assert not await one.hits(b"22"), "here it is forgotten at once"
        redis.go_on()
        old = redis.keys(KEPT)
        for _ in range(400):
            if not await other.hits(b"21"):
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("the other was never told")
        assert set(redis.keys(KEPT)) >= set(old), "what is old is read by nobody, and ends by itself"


@pytest.mark.timed
@live
async def test_a_redis_that_says_nothing_costs_little_and_is_used_again(redis: RedisServer) -> None:
    async with gateways(redis.url, patience=PATIENCE) as (one, other):
        await until_hit(one, other, "before")
        redis.stand_still()
        took = []
        for number in range(40):
            began = time.monotonic()
            assert not await one.hits(b"still %d" % number)
            took.append(time.monotonic() - began)
        assert max(took) < 0.5, "one question costs a bounded time"
        assert sorted(took)[20] < 0.045, "and most cost nothing: it is not asked"
        assert 1 <= one.count("cache_failures_total", tier="redis", reason="timeout") <= 8
        redis.go_on()
        await until_hit(one, other, "after")


@live
async def test_a_redis_that_is_killed_and_comes_back_empty(redis: RedisServer) -> None:
    async with gateways(redis.url) as (one, other):
        await until_hit(one, other, "before")
        await one.hits(b"21")
        redis.kill()
        for number in range(10):
            assert not await one.hits(b"gone %d" % number)
        assert await one.hits(b"21"), "what it holds itself, it still knows"
        assert one.count("cache_failures_total", tier="redis", reason="connection") >= 1
        redis.start()
        await until_hit(one, other, "after")
        assert await one.hits(b"21"), "nobody said that it is to be forgotten"


@live
async def test_a_redis_that_is_not_there_at_first(redis: RedisServer) -> None:
    redis.kill()
    async with gateways(redis.url) as (one, other):
        assert not await one.hits(b"21")
        redis.start()
        await until_hit(one, other, "once it is there")


@live
async def test_a_redis_without_memory(redis: RedisServer) -> None:
    async with gateways(redis.url) as (one, other):
        await one.hits(b"21")
        await _written(redis)
        redis.client.config_set("maxmemory", 1)
        try:
            assert not await one.hits(b"22")
            await until(lambda: one.count("cache_failures_total", tier="redis", reason="memory"), "it is counted")
            assert await other.hits(b"21"), "what is there is still read"
        finally:
            redis.client.config_set("maxmemory", 0)
        await until_hit(one, other, "with memory")


@live
async def test_garbage_is_told_to_nobody(redis: RedisServer) -> None:
    async with gateways(redis.url) as (one, _):
        for body in (b"21", b"22"):
            await one.hits(body)
        await _written(redis, 2)
        first, second = redis.keys(KEPT)
        whole, another = redis.client.get(first), redis.client.get(second)

        def wrong_type() -> None:
            redis.client.delete(first)
            redis.client.rpush(first, "garbage")

        def put(data: bytes) -> Callable[[], None]:
            return lambda: redis.client.set(first, data, px=60_000)

        flipped = bytes([whole[0], whole[1] ^ 1]) + whole[2:]
        damages = [
            wrong_type,
            *(put(data) for data in (b"", b"x", whole[:-1], whole[:16], whole + b"x", flipped, another)),
        ]
        for damage in damages:
            damage()
            redis.client.delete(second)
            async with gateways(redis.url, 1) as (fresh,):
                hits = [await fresh.hits(body) for body in (b"21", b"22")]
                assert hits == [False, False]
                assert fresh.count("cache_failures_total", tier="redis", reason="garbage") == 1
                await until(
                    lambda: redis.client.type(first) == b"string" and redis.client.get(first) == whole, "healed"
                )
        for garbage in (b"garbage", b"-5", b"9" * 400, b"nan", b"inf"):
            (place,) = redis.keys("*:generation")
            redis.client.set(place, garbage)
            async with gateways(redis.url) as (one, other):
                await until_hit(one, other, "whatever the generation is")
        redis.client.delete(place)
        redis.client.rpush(place, "garbage")
        async with gateways(redis.url) as (one, other):
            await until_hit(one, other, "though it is a list")


@live
async def test_a_redis_at_a_port_with_a_password(redis: RedisServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    redis.client.config_set("port", port)
    redis.client.config_set("requirepass", "secret")
    try:
        url = f"redis://127.0.0.1:{port}/0"
        async with gateways(url, password="secret") as (one, other):  # noqa: S106
            await until_hit(one, other, "with the password")
        for wrong in (None, "guessed"):
            async with gateways(url, password=wrong) as (one, other):
                assert not await one.hits(b"with the password 0")
                assert one.count("cache_failures_total", tier="redis") >= 1
    finally:
        redis.client.config_set("requirepass", "")
        redis.client.config_set("port", 0)


@live
async def test_a_large_answer_is_not_shared(redis: RedisServer) -> None:
    async with gateways(redis.url, takes=0.0) as (one, _):
        assert not await one.hits(b"x" * LARGEST)
        assert await one.hits(b"x" * LARGEST)
        await until(lambda: not redis.keys(ERRANDS), "the errand is ended")
        assert not redis.keys(KEPT)


@live
async def test_something_that_is_no_redis(redis: RedisServer) -> None:
    """It accepts, and says what no Redis would."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)

    server = await asyncio.start_server(talk, "127.0.0.1", 0, family=socket.AF_INET)
    port = server.sockets[0].getsockname()[1]
    async with gateways(f"redis://127.0.0.1:{port}/0") as (one, _):
        assert not await one.hits(b"21")
        assert await one.hits(b"21")
        assert one.count("cache_failures_total", tier="redis") >= 1
    server.close()


@live
async def test_who_leaves_while_it_is_looked_up_asks_nothing(redis: RedisServer) -> None:
    async with gateways(redis.url) as (one, _):
        handle = one.cached.ask(b"21", lambda told: pytest.fail(f"nobody waits for {told}"))
        one.cached.cancel(handle)
        await one.cached.searched()
        assert one.asked == 0
        assert not await one.hits(b"21"), "and it is asked anew"
