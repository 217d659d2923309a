"""What a front hands to a model that is here, and that needs no upstream."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import cast

import openai
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from gateway.front import WEB, client
from gateway.server import Serving
from poise.model.serving_upstreams import no_upstreams
from poise.units import MILLISECOND, SECOND
from poise_serve.embeddings import Embeddings
from poise_serve.metrics import Metrics
from poise_serve.service import Asker
from poise_serve.upstreams import Upstreams


class Own:
    """Stands for a model: keeps what it is handed, and takes its time."""

    name = "m"
    timeout = SECOND // 2

    def __init__(self) -> None:
        self.wait = 0.0
        self.asked: list[tuple[int, bool]] = []
        self.askers: list[Asker] = []
        self.given_up = 0

    async def embed(self, body: bytes, patience: int, deferred: bool, asker: Asker) -> bytes:
        self.asked.append((patience, deferred))
        self.askers.append(asker)
        try:
            await asyncio.sleep(self.wait)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return b'{"object":"list","data":[],"model":"m","usage":{"prompt_tokens":0,"total_tokens":0}}'


@contextlib.contextmanager
def fronted() -> Iterator[tuple[Own, str]]:
    """The application of a gateway without upstreams."""
    own = Own()
    upstreams = Upstreams(
        no_upstreams(), lambda view: "", Metrics(CollectorRegistry()), {}, {"m": cast(Embeddings, own)}
    )

    @contextlib.asynccontextmanager
    async def running() -> AsyncIterator[None]:
        await upstreams.start()
        yield
        await upstreams.stop()

    with Serving(upstreams, during=running) as serving:
        yield own, serving.url


def ask(url: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return WEB.post(f"{url}/v1/embeddings", json={"model": "m", "input": "a"}, headers=named).status_code


def test_the_lane_and_the_time_that_a_client_has_are_handed_on() -> None:
    with fronted() as (own, url):
        assert ask(url) == 200
        assert ask(url, x_poise_lane="deferred") == 200
        assert own.asked == [(0, False), (0, True)], "as long as the model says"
        assert ask(url, x_request_timeout_seconds="0.3") == 200
        assert ask(url, x_stainless_read_timeout="600") == 200
        assert 200 * MILLISECOND < own.asked[2][0] <= 300 * MILLISECOND
        assert own.asked[3][0] == 0, "more than the model takes is no limit"


def test_who_asks_and_what_may_be_kept_of_it_are_handed_on() -> None:
    with fronted() as (own, url):
        assert ask(url) == 200
        assert ask(url, x_poise_tenant="blue", cache_control="max-age=3, no-cache") == 200
        assert ask(url, cache_control="no-store") == 200
        here = Asker(client="127.0.0.1")
        assert own.askers == [here, replace(here, tenant="blue", use=False), replace(here, use=False, keep=False)]
        assert ask(url, x_poise_tenant="a b") == 400


def test_the_models_own_time_ends_a_request() -> None:
    with fronted() as (own, url):
        own.wait = 10
        assert ask(url) == 504
        assert own.given_up == 1


def test_without_upstreams_only_the_own_models_are_there() -> None:
    with fronted() as (_, url):
        assert [model.id for model in client(url).models.list().data] == ["m"]
        assert client(url).models.retrieve("m").owned_by == "poise"
        with pytest.raises(openai.NotFoundError, match="There are `m`"):
            client(url).embeddings.create(model="x", input="a")
        with pytest.raises(openai.NotFoundError, match="ask /v1/embeddings"):
            client(url).chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
        assert WEB.get(f"{url}/v1/embeddings").status_code == 405
