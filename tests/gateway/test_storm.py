"""Three servers that fail in every way while hundreds of clients come, hang up and wait: nothing stays behind."""

import asyncio
import random
from collections import Counter
from typing import Any

import aiohttp

from gateway.front import WEB, front
from gateway.server import Model, models, until

REQUESTS = 200
AT_ONCE = 48
ANSWERS = {200, 429, 500, 502, 503, 504}


def test_a_storm_leaves_nothing_behind() -> None:
    chosen = random.Random(1)  # noqa: S311
    said: dict[str, Any] = {"timeout": "400ms", "queue": 16, "stalled": "200ms", "each": {"limit": 8}}
    with models("a", "b", "c") as (servers, urls), front(urls, **said) as (app, url):
        ends = asyncio.run(storm(url, servers, chosen))
        for server in servers:
            calm(server)
        assert set(ends) <= ANSWERS | {"cut", "hung up"}
        assert ends[200] > 0 and ends["hung up"] > 0
        names = ("u0", "u1", "u2")
        until(lambda: all(app.metric("vllm:num_requests_running", server=name) == 0 for name in names))
        assert app.metric("vllm:num_requests_waiting", model="m") == 0
        asked = {"model": "m", "prompt": "another: servers were lost with the first"}
        until(lambda: WEB.post(f"{url}/v1/completions", json=asked).status_code == 200)  # some are away for a while
        until(lambda: [server.running for server in servers] == [0, 0, 0])


def calm(server: Model) -> None:
    server.status, server.wait, server.pause, server.cut_after, server.well = 200, 0.0, 0.0, 0, True


async def storm(url: str, servers: list[Model], chosen: random.Random) -> Counter[object]:
    """How the requests ended."""
    ends: Counter[object] = Counter()
    room = asyncio.Semaphore(AT_ONCE)

    async def one(session: aiohttp.ClientSession) -> None:
        body = {"model": "m", "prompt": "x", "stream": chosen.random() < 0.5}
        patience = aiohttp.ClientTimeout(total=chosen.choice((0.02, 0.1, 5, 5)))
        async with room:
            try:
                async with session.post(f"{url}/v1/completions", json=body, timeout=patience) as answer:
                    text = await answer.text()
                    is_whole = answer.status != 200 or not body["stream"] or text.endswith("data: [DONE]\n\n")
                    ends[answer.status if is_whole else "cut"] += 1
            except TimeoutError:
                ends["hung up"] += 1
            except aiohttp.ClientError:
                ends["cut"] += 1

    async def weather() -> None:
        while True:
            server = chosen.choice(servers)
            server.status = chosen.choice((200, 200, 200, 429, 500, 502, 503))
            server.retry_after = chosen.choice(("", "", "0.1"))
            server.wait = chosen.choice((0.0, 0.01, 0.05, 1.0))
            server.pause = chosen.choice((0.0, 0.01))
            server.cut_after = chosen.choice((0, 0, 2))
            server.in_event = chosen.random() < 0.5
            server.well = chosen.random() < 0.8
            await asyncio.sleep(0.02)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        changing = asyncio.create_task(weather())
        await asyncio.gather(*(one(session) for _ in range(REQUESTS)))
        changing.cancel()
    return ends
