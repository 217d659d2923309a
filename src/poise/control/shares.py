"""Limits each tenant's use of the control plane: turns, requests per second, and concurrent requests. The holder of the
home's own token and the nodes have no limit.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from weakref import WeakValueDictionary

from poise.errors import Busy
from poise.model.tenants import HOME, Bearer, Role

RATE, BURST = 200.0, 400.0
"""A tenant's requests per second, sustained and in a burst. Requests above the limit are delayed."""

AT_ONCE = 256
"""Limit on a tenant's concurrent requests, including waiting ones, streams and channels; more are refused."""


class Turns:
    """Serializes the slow requests of each tenant and interleaves tenants, so that a tenant with a hundred connections
    gets no more than a tenant with one.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def of(self, tenant: str) -> AsyncIterator[None]:
        """Wait for the turn of a tenant. Callbacks posted during a turn run before the next turn begins."""
        lock = self._locks.setdefault(tenant, asyncio.Lock())
        async with lock:
            yield
            await asyncio.sleep(0)


class Share:
    """Recent use by one tenant: concurrent requests, and when its past requests stop counting against the rate."""

    def __init__(self) -> None:
        self.at_once = 0
        self.until = 0.0


class Shares:
    """Owns the request shares of tenants. An idle tenant uses no memory."""

    def __init__(self) -> None:
        self._of: dict[str, Share] = {}

    @contextlib.asynccontextmanager
    async def of(self, bearer: Bearer) -> AsyncIterator[None]:
        """Hold a slot of the tenant's share for the duration of a request. Raises `Busy`."""
        if bearer == HOME or bearer.role is Role.NODE:
            yield
            return
        share = self._of.setdefault(bearer.tenant, Share())
        if share.at_once >= AT_ONCE:
            raise Busy(
                f"too many requests of tenant `{bearer.tenant}` are in progress",
                need=f"at most {AT_ONCE}",
                hint="end requests that follow logs or events, and retry",
            )
        share.at_once += 1
        try:
            now = asyncio.get_running_loop().time()
            share.until = max(share.until, now) + 1 / RATE
            if (late := share.until - now - BURST / RATE) > 0:
                await asyncio.sleep(late)
            yield
        finally:
            share.at_once -= 1
            if not share.at_once and share.until <= asyncio.get_running_loop().time():
                del self._of[bearer.tenant]
