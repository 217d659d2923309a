"""A front on a port of its own, in a thread, with a small router unless the test names one: the least outstanding."""

import asyncio
import concurrent.futures
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from typing import Any

import httpx
import openai
from prometheus_client import CollectorRegistry

from gateway.server import Serving
from poise.model.serving_upstreams import compile_upstreams
from poise_serve.metrics import Metrics
from poise_serve.model.routing import RouteView
from poise_serve.pool import Choose
from poise_serve.upstreams import Upstreams

QUICK = {"delay": "0s", "every": "100ms", "timeout": "5s", "failures": 2}
EJECTS = {"failures": 2, "pause": "300ms", "longest": "2s", "slower": 0, "least": "200ms"}


def least_outstanding(view: RouteView) -> str:
    """Turn about among equals."""
    open_ones = [replica for replica in view.replicas if replica.open]
    place = view.turn % len(open_ones)
    return min(open_ones[place:] + open_ones[:place], key=lambda replica: replica.outstanding).name


class Front:
    """The ASGI application that `poise serve` makes of a file, without the rest of it."""

    def __init__(
        self, urls: list[str], keys: dict[str, str], first: dict[str, Any], said: dict[str, Any], choose: Choose
    ) -> None:
        upstreams = [{"name": f"u{place}", "url": url} | first for place, url in enumerate(urls)]
        self.document = {"kind": "upstreams", "upstreams": upstreams, "health": QUICK, "ejection": EJECTS} | said
        self.metrics, self.choose = Metrics(CollectorRegistry()), choose
        self.upstreams = Upstreams(compile_upstreams(self.document), choose, self.metrics, keys)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["path"] == "/metrics":
            await self.metrics(scope, receive, send)
        else:
            await self.upstreams(scope, receive, send)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        await self.upstreams.start()
        yield
        await self._end()

    def stop(self) -> "concurrent.futures.Future[None]":
        """From another thread."""
        return asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    def change(self, **said: Any) -> None:
        """From another thread: to the same file with these fields."""
        self.document = self.document | said
        changing = self.upstreams.change(compile_upstreams(self.document), self.choose)
        asyncio.run_coroutine_threadsafe(changing, self._loop).result(10)

    def call(self, function: Callable[[], object]) -> None:
        """From another thread."""
        asyncio.run_coroutine_threadsafe(_called(function), self._loop).result(10)

    async def _end(self) -> None:
        await self.upstreams.drained()
        await self.upstreams.stop()

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


async def _called(function: Callable[[], object]) -> None:
    function()


@contextlib.contextmanager
def front(
    urls: list[str],
    seconds: float = 30.0,
    keys: dict[str, str] | None = None,
    each: dict[str, Any] | None = None,
    choose: Choose = least_outstanding,
    **said: Any,
) -> Iterator[tuple[Front, str]]:
    """A front before these servers, and its address. `each` is said of every upstream, `said` in the file."""
    app = Front(urls, keys or {}, each or {}, said, choose)
    with Serving(app, seconds, app.running) as serving:
        yield app, serving.url


def client(url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="sk-of-the-client", **{"max_retries": 0} | options)


WEB = httpx.Client(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), timeout=5.0)
"""Another client; what belongs to TLS, which nothing here uses, it makes only once."""

HELLO: Any = [{"role": "user", "content": "Hello"}]
