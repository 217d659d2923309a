"""Finds upstreams while the front runs: in DNS, by look-ups, or as the control plane or an API server reports them.

A failed look-up changes nothing: a name server that is away must not take the upstreams away. A name without addresses
does: then a service has no servers. The last reports are in a file, for the next gateway if this one is killed while
nobody reports.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from poise.client import Client
from poise.decoding import json_decoder
from poise.drivers.whole import write_whole
from poise.model.serving_upstreams import MAX_TIER, MAX_UPSTREAMS, MAX_WEIGHT, Discovery, Upstream
from poise.units import SECOND
from poise_serve import dns
from poise_serve.reported import Reports, upstream_at

SHORTEST = 1.0
"""Minimum seconds between two look-ups of a name, whatever its time to live."""

FIRST = 2.0
"""Seconds to wait for the first report."""

_decode = json_decoder(dict[str, dict[str, str]]).decode

Found = Callable[[Discovery, tuple[Upstream, ...]], Awaitable[None]]


class Discoverer:
    """Looks up names in separate tasks. `found` is called after each successful look-up of one, and each report."""

    def __init__(
        self,
        found: Found,
        name_servers: Sequence[tuple[str, int]] = (),
        connect: Callable[[], Client] = lambda: Client(patience=0.0),
        memory: Path | None = None,
    ) -> None:
        """`name_servers` replace those of the system, for SRV records. `connect`: a client of the control plane.
        `memory`: the file with the last reports.
        """
        self._memory = memory
        self._reported: dict[str, dict[str, str]] = {}  # URLs by the names of discoveries and upstreams
        if memory is not None:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                self._reported = _decode(memory.read_bytes())
        self._found = found
        self._connect = connect
        self._name_servers = name_servers
        self._reports: list[Reports] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def look_up(self, discoveries: Sequence[Discovery]) -> dict[str, tuple[Upstream, ...]]:
        """Look up all these names once, and from now on again and again; others no more. Returns what was found, by
        the name of the discovery, without those that failed.
        """
        await self.stop()
        begun = await asyncio.gather(*map(self._begin, discoveries))
        self._tasks = [asyncio.create_task(goes_on) for _, goes_on in begun]
        return {one.name: found for one, (found, _) in zip(discoveries, begun, strict=True) if found is not None}

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for reports in self._reports:
            reports.stop()
        self._reports = []

    async def _begin(self, discovery: Discovery) -> tuple[tuple[Upstream, ...] | None, Coroutine[Any, Any, None]]:
        """Return what is found first, None if that fails, and what follows changes."""
        if discovery.is_reported:
            reports = Reports(discovery, self._connect)
            self._reports.append(reports)
            first = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST):
                    first = await reports.coming.get()
            if first is not None:
                self._remember(discovery, first)
            return self._remembered(discovery), self._hear(discovery, reports)
        try:
            found, pause = await self._look(discovery)
        except dns.Unresolved:
            return None, self._go_on(discovery, discovery.every / SECOND)
        return found, self._go_on(discovery, pause)

    async def _hear(self, discovery: Discovery, reports: Reports) -> None:
        while True:
            upstreams = await reports.coming.get()
            self._remember(discovery, upstreams)
            await self._found(discovery, upstreams)

    def _remember(self, discovery: Discovery, upstreams: tuple[Upstream, ...]) -> None:
        self._reported[discovery.name] = {one.name: one.url for one in upstreams}
        if self._memory is not None:
            with contextlib.suppress(OSError):  # only a next gateway would need the file
                write_whole(self._memory, msgspec.json.encode(self._reported), 0o600)

    def _remembered(self, discovery: Discovery) -> tuple[Upstream, ...] | None:
        """Return the upstreams of the last report; None if there was none."""
        urls = self._reported.get(discovery.name)
        if urls is None:
            return None
        return tuple(msgspec.structs.replace(discovery.like, name=name, url=url) for name, url in urls.items())

    async def _go_on(self, discovery: Discovery, pause: float) -> None:
        while True:
            await asyncio.sleep(pause)
            pause = discovery.every / SECOND
            try:
                upstreams, pause = await self._look(discovery)
            except dns.Unresolved:
                continue
            await self._found(discovery, upstreams)

    async def _look(self, discovery: Discovery) -> tuple[tuple[Upstream, ...], float]:
        """Return the upstreams, and seconds until the next look-up. Raises `Unresolved`."""
        every = discovery.every / SECOND
        if discovery.dns:
            host, _, port = discovery.dns.rpartition(":")
            found = [upstream_at(discovery.like, address, int(port)) for address in await dns.addresses(host)]
        else:
            servers = await dns.servers(discovery.srv, self._name_servers)
            every = min([every, *(max(SHORTEST, float(server.ttl)) for server in servers)])
            found = [_of(discovery.like, server, servers) for server in servers]
        unique = {one.name: one for one in found[:MAX_UPSTREAMS]}
        return tuple(unique.values()), every


def _of(like: Upstream, server: dns.Server, servers: Sequence[dns.Server]) -> Upstream:
    """Return the upstream of an SRV record. Each further priority is one more tier."""
    rank = sorted({one.priority for one in servers}).index(server.priority)
    return msgspec.structs.replace(
        upstream_at(like, server.host, server.port),
        tier=min(MAX_TIER, like.tier + rank),
        weight=min(MAX_WEIGHT, like.weight * max(1, server.weight)),
    )


__all__ = ["Discoverer"]
