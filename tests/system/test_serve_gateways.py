"""`poise serve --gateways 2`: one address, several processes, and what each knows the others know."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gateway.server import Model
from gateway.server import Serving as Server

from poise_serve.group import LOOK_EVERY
from system.living import Living, kill, until
from system.serving import Serving


class Held(Model):
    """Answers once it is not held."""

    is_held = False

    async def _answer(self, scope: MutableMapping[str, Any], send: Any, asked: dict[str, Any]) -> None:
        while self.is_held:  # noqa: ASYNC110 — set by another thread
            await asyncio.sleep(0.01)
        await super()._answer(scope, send, asked)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[list[Held], list[str]]]:
    made = [Held("a"), Held("b")]
    with Server(made[0]) as one, Server(made[1]) as other:
        yield made, [one.url, other.url]


@pytest.fixture(scope="module")
def serving(home: Living, servers: tuple[list[Held], list[str]]) -> Iterator[Serving]:
    upstreams = [{"name": f"u{at}", "url": url, "limit": 2} for at, url in enumerate(servers[1])]
    home.file("up.json", json.dumps({"kind": "upstreams", "upstreams": upstreams, "health": {"every": "1s"}}))
    served = Serving(home, "up.json", "--gateways", "2", ready=False)
    served.until_said("2 gateways")
    until(lambda: len(shown(served)) == 2, "both are there", lambda: served.text)
    yield served
    assert served.end() == 0
    assert list(Path(home.home.services).glob("*.peer")) == []


def shown(serving: Serving) -> Counter[str]:
    """Requests that each gateway has counted, by its number."""
    try:
        text = serving.ask(b"", "/metrics", "GET").body.decode()
    except OSError:
        return Counter()
    found = re.findall(r'serve_request_router_fulfillment_time_ms_count\{gateway="(\d)"\} ([0-9.]+)', text)
    return Counter({gateway: int(float(count)) for gateway, count in found})


def ask(serving: Serving) -> int:
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    return serving.ask(asked, "/v1/chat/completions").status


def test_requests_are_divided_and_metrics_are_those_of_all(serving: Serving) -> None:
    before = shown(serving)
    for _ in range(40):
        assert ask(serving) == 200
    counted = shown(serving)
    assert sum(counted.values()) - sum(before.values()) == 40
    assert all(counted[gateway] > before[gateway] for gateway in "01")


def test_limits_are_those_of_all_together(serving: Serving, servers: tuple[list[Held], list[str]]) -> None:
    """Two servers of two requests: the fifth waits, at whichever gateway it is."""

    def running() -> int:
        return sum(model.running for model in servers[0])

    for model in servers[0]:
        model.is_held = True
    with ThreadPoolExecutor(8) as clients:
        asked = []
        for many in range(1, 5):
            asked.append(clients.submit(ask, serving))
            until(lambda many=many: running() == many, "it is served")  # type: ignore[misc]
            until(lambda: len(shown(serving)) == 2, "both have heard of it: they answer after what they have heard")
        asked += [clients.submit(ask, serving) for _ in range(4)]
        until(lambda: serving.metric("vllm:num_requests_waiting") == 4, "the others wait", lambda: serving.text)
        assert running() == 4
        for model in servers[0]:
            model.is_held = False
    assert {one.result() for one in asked} == {200}


def test_a_killed_gateway_costs_only_its_own_requests_and_is_back(serving: Serving, home: Living) -> None:
    locks = list(Path(home.home.services).glob("*.lock"))
    assert len(locks) == 2
    watcher = int(locks[0].read_text())
    children = Path(f"/proc/{watcher}/task/{watcher}/children").read_text().split()
    kill(int(children[0]))
    failed = 0
    for _ in range(40):
        try:
            failed += ask(serving) != 200
        except OSError:
            failed += 1
    assert failed <= 1, "a connection that it had accepted"
    until(lambda: len(shown(serving)) == 2, "both are there again", lambda: serving.text)
    before = shown(serving)
    until(
        lambda: ask(serving) == 200 and all(shown(serving)[gateway] > before[gateway] for gateway in "01"),
        "both serve",
        lambda: serving.text,
    )


def test_all_processes_that_were_started_first_may_be_killed(serving: Serving, home: Living) -> None:
    """The gateways start others that watch them, and serve on."""
    locks = list(Path(home.home.services).glob("*.lock"))
    first = [int(lock.read_text()) for lock in locks]
    for watcher in first:
        kill(watcher)
    until(
        lambda: not {int(lock.read_text() or "0") for lock in locks} & {*first, 0}, "others watch", lambda: serving.text
    )
    time.sleep(3 * LOOK_EVERY)  # in which the group would have been ended
    assert ask(serving) == 200
    assert len(shown(serving)) == 2
    assert "draining" not in serving.text
