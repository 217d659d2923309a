"""Health probes of upstreams, and discovery of their models and of the size of their prefix caches.

If a probe of one gateway changes the health of an upstream, the others probe it at once: they know within a second, and
by a probe of their own, because a gateway that finds an upstream unhealthy may itself be cut off.

vLLM and SGLang tell in their metrics how many tokens of prompts they keep. A server without such metrics is asked again
only after it was unhealthy.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from poise.model.serving_upstreams import MAX_MODELS, Probing
from poise.units import MILLISECOND, SECOND
from poise_serve.client import FAILURES, Client
from poise_serve.metrics import Metrics
from poise_serve.model.news import News, Probed
from poise_serve.openai import MODELS
from poise_serve.pool import Member, Pool

METRICS = "/metrics"

STARTING_EVERY = SECOND
"""Maximum probe interval of an upstream before its first success, because users wait for it."""

DOUBTED = 800 * MILLISECOND
"""Maximum time-out of a probe of an upstream that another gateway has found unhealthy, or for which requests wait …"""

HURRIED_EVERY = 250 * MILLISECOND
"""… and the pause between two such probes."""


class Prober:
    """Probes each upstream in a separate task while the front runs. The upstreams and the rules may change."""

    def __init__(
        self,
        pool: Pool,
        client: Client,
        rules: Probing,
        metrics: Metrics,
        now: Callable[[], int],
        tell: Callable[[News], None],
    ) -> None:
        """`tell` tells the other gateways."""
        self._tell = tell
        self._causing: dict[Member, asyncio.Task[None]] = {}
        self._hurrying: asyncio.Task[None] | None = None
        self._pool = pool
        self._client = client
        self.rules = rules
        self._metrics = metrics
        self._now = now
        self._tasks: dict[Member, asyncio.Task[None]] = {}

    async def probe(self, members: Sequence[Member]) -> None:
        """Probe these members once, then continue in the background with all that the pool has."""
        await asyncio.gather(*(self._probe(member) for member in members))
        self.follow()

    def follow(self, *, at_once: bool = False) -> None:
        """Probe all members of the pool in the background, and no others; `at_once`: new ones now."""
        for member in [member for member in self._tasks if member not in self._pool.members]:
            self._tasks.pop(member).cancel()
        for member in self._pool.members:
            if member not in self._tasks:
                self._tasks[member] = asyncio.create_task(self._go_on(member, at_once=at_once))

    async def stop(self) -> None:
        tasks = [*self._tasks.values(), *self._causing.values(), *filter(None, [self._hurrying])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def known(self) -> Iterable[Probed]:
        """The upstreams of which a gateway that has just started must know that they are unhealthy."""
        return [Probed(member.name, False) for member in self._pool.members if member.health.state == "unhealthy"]

    def hear(self, news: Probed) -> None:
        """Probe an upstream at once, if another gateway has found it in another state."""
        for member in self._pool.members:
            is_healthy = member.health.state == "healthy"
            if member.name == news.server and is_healthy != news.is_healthy and member not in self._causing:
                probing = asyncio.create_task(self._probe(member, is_doubted=not news.is_healthy))
                self._causing[member] = probing
                probing.add_done_callback(partial(self._caused, member))

    def hurry(self) -> None:
        """Probe unhealthy upstreams more often while requests wait for them."""
        if self._hurrying is None or self._hurrying.done():
            self._hurrying = asyncio.create_task(self._hurry())

    async def _hurry(self) -> None:
        while awaited := self._pool.awaited():
            await asyncio.gather(*(self._probe(member, is_hurried=True) for member in awaited))
            await asyncio.sleep(HURRIED_EVERY / SECOND)

    def down(self, member: Member) -> None:
        """Record that a member has refused a connection."""
        if member.health.state == "healthy" and member in self._pool.members:
            member.health.on_refused()
            self._tell(Probed(member.name, False))
            self._metrics.healthy.labels(member.name).set(0)

    def _caused(self, member: Member, _: "asyncio.Task[None]") -> None:
        del self._causing[member]

    async def _go_on(self, member: Member, *, at_once: bool) -> None:
        if at_once:
            await self._probe(member)
        while True:
            pause = self.rules.every
            if member.health.state == "starting":
                pause = min(pause, STARTING_EVERY)
            await asyncio.sleep(pause / SECOND)
            await self._probe(member)

    async def _probe(self, member: Member, *, is_doubted: bool = False, is_hurried: bool = False) -> None:
        """Probe a member once. `is_doubted`: another gateway has found it unhealthy, so one quick failure is enough.
        `is_hurried`: requests wait for it.
        """
        url, within = member.told.url, self.rules.timeout
        within = min(within, DOUBTED) if is_doubted or is_hurried else within
        try:
            why = await self._ask(member, within)
        except (*FAILURES, TimeoutError) as error:
            why = type(error).__name__
        if member.told.url != url:  # changed meanwhile
            return
        member.probed = why
        was_healthy = member.health.state == "healthy"
        member.health.on_probe(self._now(), not why, is_doubted=is_doubted)
        is_healthy = member.health.state == "healthy"
        if is_healthy != was_healthy and member in self._pool.members:
            self._tell(Probed(member.name, is_healthy))
        if is_healthy and not was_healthy and member in self._pool.members:
            self._pool.prefixes(member.name).forget()  # it may have restarted
            self._pool.came_up(member)
            await self._ask_for_cache(member)
        if member not in self._pool.members:  # it was removed
            return
        self._metrics.healthy.labels(member.name).set(is_healthy)
        self._pool.wake()

    async def _ask(self, member: Member, within: int) -> str:
        """Return why the member does not answer well within these nanoseconds; empty if it does. Discover its models
        unless they were configured.
        """
        told, rules = member.told, self.rules
        status, answer = await self._client.get(told, rules.path, within)
        if status == 200 and not told.models:
            if rules.path != MODELS:
                status, answer = await self._client.get(told, MODELS, within)
            found = _models(answer)
            if member.told == told:
                member.models = found
            return "" if found else f"{MODELS} lists none"
        return "" if status == 200 else f"{rules.path} answers {status}"

    async def _ask_for_cache(self, member: Member) -> None:
        """Ask how many tokens of prompts the server keeps, unless that was configured."""
        if member.told.cache is not None:
            return
        try:
            status, body = await self._client.get(member.told, METRICS, self.rules.timeout)
        except (*FAILURES, TimeoutError):
            return
        tokens = kept_tokens(body) if status == 200 else None
        if tokens is not None and member in self._pool.members:
            self._pool.prefixes(member.name).become(tokens)


_VLLM = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\}", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="([^"]*)"')
_SGLANG = re.compile(rb"^sglang:max_total_num_tokens(?:\{[^\n]*\})? ([0-9.e+]+)$", re.MULTILINE)


def kept_tokens(metrics: bytes) -> float | None:
    """Return how many tokens of prompts a server keeps, by its metrics; None if they do not tell."""
    if (found := _VLLM.search(metrics)) is not None:
        labels = dict(_LABEL.findall(found[1]))
        if labels.get(b"enable_prefix_caching") == b"False":
            return 0.0
        if (tokens := labels.get(b"kv_cache_size_tokens", b"")).isdigit():
            return float(tokens)  # of hybrid models, whose layers do not all keep every token, it is not the product
        blocks, size = labels.get(b"num_gpu_blocks", b""), labels.get(b"block_size", b"")
        return float(int(blocks) * int(size)) if blocks.isdigit() and size.isdigit() else None
    if (told := _SGLANG.search(metrics)) is not None:
        try:
            return float(told[1])
        except ValueError:
            return None
    return None


def _models(body: bytes) -> dict[str, Any]:
    """Return the models in a server's answer, by name; empty if the answer has another shape."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    listed = answer.get("data") if isinstance(answer, dict) else None
    found = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return {one["id"]: one for one in found[:MAX_MODELS] if isinstance(one.get("id"), str) and one["id"]}
