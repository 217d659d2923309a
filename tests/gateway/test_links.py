"""Gateways on different machines, before the same servers: real HTTP between them, and nothing else shared."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from gateway.front import EJECTS, QUICK, WEB, least_outstanding
from gateway.server import Model, Serving, models, until
from poise.errors import SpecError
from poise.model.serving_upstreams import compile_upstreams
from poise_serve import links, peers
from poise_serve.app import Gateway
from poise_serve.metrics import Metrics
from poise_serve.model.news import Batch, Lost, News, Spent
from poise_serve.peers import Peers
from poise_serve.pool import Member
from poise_serve.upstreams import Upstreams

KEY = "the key that all share"


class Apart:
    """A gateway on a machine of its own, as far as it can tell."""

    def __init__(self, folder: Path, urls: list[str], every: str) -> None:
        upstreams = [{"name": f"u{place}", "url": url, "limit": 2} for place, url in enumerate(urls)]
        health = QUICK | {"every": every}
        self.document = {"kind": "upstreams", "upstreams": upstreams, "health": health, "ejection": EJECTS}
        self.said: list[str] = []
        self.peers = Peers(folder, say=self.said.append)
        metrics = Metrics(CollectorRegistry())
        front = compile_upstreams(self.document)
        self.upstreams = Upstreams(front, least_outstanding, metrics, {"KEY": KEY}, peers=self.peers)
        self._gateway = Gateway({}, {}, {}, {}, metrics.registry, self.upstreams, self.peers)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await self._gateway(scope, receive, send)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        await self.upstreams.start()
        await self.peers.start(lambda: b"")
        yield
        await self.upstreams.stop()
        await self.peers.stop()

    def change(self, **said: Any) -> None:
        """From another thread."""
        front = compile_upstreams(self.document | said)
        changing = self.upstreams.change(front, least_outstanding)
        asyncio.run_coroutine_threadsafe(changing, self._loop).result(10)

    def stop_telling(self) -> None:
        """As if it were killed."""
        asyncio.run_coroutine_threadsafe(self.peers.stop(), self._loop).result(10)

    @property
    def members(self) -> list[Member]:
        return self.upstreams.pool.members

    @property
    def states(self) -> list[str]:
        return [one.state for one in self.upstreams.states]

    @property
    def others(self) -> int:
        return sum(member.others for member in self.members)


class Both:
    """Two gateways that know each other, and the servers."""

    def __init__(self, apps: list[Apart], urls: list[str], servers: list[Model]) -> None:
        self.apps, self.urls, self.servers = apps, urls, servers
        self.one, self.other = apps

    def ask(self, gateway: int, **more: Any) -> int:
        asked = {"model": "m", "prompt": "Hello"} | more
        return WEB.post(f"{self.urls[gateway]}/v1/completions", json=asked).status_code

    @contextlib.contextmanager
    def held(self, *gateways: int) -> Iterator[ThreadPoolExecutor]:
        """A request at each of these gateways that no server answers yet."""
        for server in self.servers:
            server.go.clear()
        with ThreadPoolExecutor(16) as clients:
            asked = [clients.submit(self.ask, gateway) for gateway in gateways]
            try:
                until(lambda: self.running == len(gateways))
                yield clients
            finally:
                for server in self.servers:
                    server.go.set()
            assert {one.result() for one in asked} == {200}

    def heard(self, gateway: int, kind: type[News]) -> list[News]:
        """What it hears of this kind from now on."""
        found: list[News] = []
        told = self.apps[gateway].peers.heard
        told.append(lambda _, news: found.append(news) if isinstance(news, kind) else None)
        return found

    @property
    def running(self) -> int:
        return sum(server.running for server in self.servers)


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    monkeypatch.setattr(peers, "ALIVE_EVERY", 0.05)
    monkeypatch.setattr(peers, "GONE_AFTER", 0.5)
    monkeypatch.setattr(links, "RETRY_EVERY", 0.05)
    with models("a", "b") as (servers, urls), contextlib.ExitStack() as stack:
        apps = [Apart(tmp_path / str(number), urls, every) for number, every in enumerate(("100ms", "1h"))]
        servings = [stack.enter_context(Serving(app, during=app.running)) for app in apps]
        for app in apps:
            app.change(peers={"urls": [serving.url for serving in servings], "key_from": "KEY"})
        made = Both(apps, [serving.url for serving in servings], servers)
        with made.held(0, 1):
            until(lambda: [app.others for app in apps] == [1, 1])
        yield made
        for serving in servings:
            serving.tell()


def test_limits_are_those_of_both_together(both: Both) -> None:
    with both.held(0, 0, 0) as clients:
        until(lambda: both.other.others == 3)
        more = [clients.submit(both.ask, 1) for _ in range(3)]
        until(lambda: both.one.others == 1)
        time.sleep(0.2)
        assert both.running == 4
    assert {one.result() for one in more} == {200}
    until(lambda: both.one.others == both.other.others == 0)


def test_what_one_ejects_the_other_does_not_ask(both: Both) -> None:
    both.servers[0].status = 500
    before = len(both.servers[0].asked)
    while both.one.states[0] == "healthy":
        both.ask(0)
    until(lambda: both.other.states[0] != "healthy")
    failed = len(both.servers[0].asked) - before
    assert failed <= 3
    both.servers[0].status = 200
    until(lambda: both.ask(1) == 200 and both.one.states == both.other.states == ["healthy", "healthy"])


def test_what_a_probe_finds_at_one_the_other_finds_too(both: Both) -> None:
    """It would probe again in an hour."""
    both.servers[0].well = False
    until(lambda: both.one.states[0] == "unhealthy")
    until(lambda: both.other.states[0] == "unhealthy")
    both.servers[0].well = True
    until(lambda: both.other.states[0] == "healthy")


def test_a_prompt_that_kills_servers_kills_two_of_both_together(both: Both) -> None:
    for server in both.servers:
        server.dies_of = "x"
    heard = both.heard(1, Lost)
    assert [both.ask(0, prompt="x"), both.ask(0, prompt="x")] == [502, 422]
    until(lambda: len(heard) == 2)
    assert both.ask(1, prompt="x") == 422
    assert sum(one["prompt"] == "x" for server in both.servers for one in server.asked) == 2


def test_what_a_gateway_had_in_flight_that_is_gone_is_dropped_and_comes_back_with_it(both: Both) -> None:
    with both.held(0):
        until(lambda: both.other.others == 1)
        both.one.stop_telling()
        until(lambda: both.other.others == 0)


def test_a_gateway_that_cannot_be_reached_is_told_everything_later(both: Both) -> None:
    both.one.change(peers={"urls": ["127.0.0.1:1"], "key_from": "KEY"})
    until(lambda: any("cannot report" in text for text in both.one.said))
    with both.held(0, 0):
        until(lambda: both.other.others == 0)
        both.one.change(peers={"urls": [both.urls[1]], "key_from": "KEY"})
        until(lambda: both.other.others == 2)


def posted(both: Both, batch: Batch, key: str = KEY) -> int:
    body = msgspec.msgpack.encode(batch)
    headers = {links.SIGNATURE: links._signed(key.encode(), body).decode()}
    return WEB.post(f"{both.urls[0]}{links.PEERS}", content=body, headers=headers).status_code


def test_only_news_that_are_signed_and_new_are_taken(both: Both) -> None:
    heard = both.heard(0, Spent)
    batch = Batch("elsewhere", 1 << 40, 7, time.time(), [Spent("app", 1, 2)])
    replace = msgspec.structs.replace
    assert posted(both, batch, "another key") == links.WRONG
    assert posted(both, replace(batch, at=batch.at - 3600)) == links.WRONG
    assert heard == []
    assert posted(both, batch) == links.TAKEN
    assert posted(both, batch) == links.WRONG, "a copy"
    assert posted(both, replace(batch, serial=8)) == links.TAKEN
    assert len(heard) == 2


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"urls": ["gw1:8080"]}, "peers.key_from"),
        ({"urls": ["http://user@gw1"], "key_from": "KEY"}, "peers.urls[0]"),
        ({"urls": ["gw1"] * 65, "key_from": "KEY"}, "peers.urls"),
    ],
)  # fmt: skip
def test_a_wrong_list_of_gateways_is_an_error(said: dict[str, Any], field: str) -> None:
    document = {"kind": "upstreams", "upstreams": [{"name": "a", "url": "gpu1"}], "peers": said}
    with pytest.raises(SpecError) as raised:
        compile_upstreams(document)
    assert raised.value.record.field == field


def test_a_key_that_is_not_set_is_an_error(tmp_path: Path) -> None:
    document = {"kind": "upstreams", "upstreams": [{"name": "a", "url": "gpu1"}]}
    front = compile_upstreams(document | {"peers": {"urls": ["gw1"], "key_from": "NO_KEY"}})
    made: Callable[[], Upstreams] = lambda: Upstreams(front, least_outstanding, Metrics(CollectorRegistry()), {})  # noqa: E731
    with pytest.raises(SpecError) as raised:
        made()
    assert raised.value.record.field == "peers.key_from"
