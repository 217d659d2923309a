"""Finds upstreams in DNS, and looks again while the front runs.

A failed look-up changes nothing: a name server that is away must not take the upstreams away. A name without addresses
does: then a service has no servers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from poise.model.serving_upstreams import MAX_TIER, MAX_UPSTREAMS, MAX_WEIGHT, Discovery, Upstream
from poise.units import SECOND
from poise_serve import dns

SHORTEST = 1.0
"""Minimum seconds between two look-ups of a name, whatever its time to live."""

Found = Callable[[Discovery, tuple[Upstream, ...]], Awaitable[None]]


class Discoverer:
    """Looks up names in separate tasks. `found` is called after each successful look-up of one."""

    def __init__(self, found: Found, name_servers: Sequence[tuple[str, int]] = ()) -> None:
        """`name_servers` replace those of the system, for SRV records."""
        self._found = found
        self._name_servers = name_servers
        self._tasks: list[asyncio.Task[None]] = []

    async def look_up(self, discoveries: Sequence[Discovery]) -> dict[str, tuple[Upstream, ...]]:
        """Look up all these names once, and from now on again and again; others no more. Returns what was found, by
        the name of the discovery, without those that failed.
        """
        await self.stop()
        pauses = {one.name: one.every / SECOND for one in discoveries}
        found: dict[str, tuple[Upstream, ...]] = {}
        looked = await asyncio.gather(*map(self._look, discoveries), return_exceptions=True)
        for discovery, result in zip(discoveries, looked, strict=True):
            if isinstance(result, tuple):
                found[discovery.name], pauses[discovery.name] = result
            elif not isinstance(result, dns.Unresolved):
                raise result
        self._tasks = [asyncio.create_task(self._go_on(one, pauses[one.name])) for one in discoveries]
        return found

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

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
            found = [_at(discovery.like, address, int(port)) for address in await dns.addresses(host)]
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
        _at(like, server.host, server.port),
        tier=min(MAX_TIER, like.tier + rank),
        weight=min(MAX_WEIGHT, like.weight * max(1, server.weight)),
    )


def _at(like: Upstream, host: str, port: int) -> Upstream:
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    name = f"{like.name}-{host.replace(':', '.')}-{port}"
    return msgspec.structs.replace(like, name=name, url=f"http://{place}")


__all__ = ["Discoverer"]
