"""Health probes of upstreams, and discovery of their models."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from poise.model.serving_upstreams import MAX_MODELS, Probing
from poise.units import SECOND
from poise_serve.client import FAILURES, Client
from poise_serve.metrics import Metrics
from poise_serve.openai import MODELS
from poise_serve.pool import Member, Pool

STARTING_EVERY = SECOND
"""Maximum probe interval of an upstream before its first success, because users wait for it."""


class Prober:
    """Probes each upstream in a separate task while the front runs."""

    def __init__(self, pool: Pool, client: Client, rules: Probing, metrics: Metrics, now: Callable[[], int]) -> None:
        self._pool = pool
        self._client = client
        self._rules = rules
        self._metrics = metrics
        self._now = now
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Probe all members once, then continue in the background."""
        await asyncio.gather(*(self._probe(member) for member in self._pool.members))
        self._tasks = [asyncio.create_task(self._go_on(member)) for member in self._pool.members]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _go_on(self, member: Member) -> None:
        while True:
            pause = self._rules.every
            if member.health.state == "starting":
                pause = min(pause, STARTING_EVERY)
            await asyncio.sleep(pause / SECOND)
            await self._probe(member)

    async def _probe(self, member: Member) -> None:
        try:
            went_well = await self._ask(member)
        except (*FAILURES, TimeoutError):
            went_well = False
        member.health.on_probe(self._now(), went_well)
        self._metrics.healthy.labels(member.name).set(member.health.state == "healthy")
        self._pool.wake()

    async def _ask(self, member: Member) -> bool:
        """Return whether the member is healthy; discover its models unless they were configured."""
        told, rules = member.told, self._rules
        status, answer = await self._client.get(told, rules.path, rules.timeout)
        if status == 200 and not told.models:
            if rules.path != MODELS:
                status, answer = await self._client.get(told, MODELS, rules.timeout)
            member.models = _models(answer)
            return bool(member.models)
        return status == 200


def _models(body: bytes) -> dict[str, Any]:
    """Return the models in a server's answer, by name; empty if the answer has another shape."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    listed = answer.get("data") if isinstance(answer, dict) else None
    found = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return {one["id"]: one for one in found[:MAX_MODELS] if isinstance(one.get("id"), str) and one["id"]}
