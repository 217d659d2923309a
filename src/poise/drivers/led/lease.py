"""Leader election: one control plane renews a lease in the store; another takes it over when it expires."""

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from poise.drivers.led.link import loop
from poise.errors import NotLeading, PoiseError, StoreAway
from poise.units import SECOND

RENEWALS = 3
"""Number of renewals within the duration of a lease."""

AGAIN_SECONDS = 0.1
"""Retry delay of a renewal in seconds, while the store is unreachable."""

HANGS_AFTER = 15 * SECOND
"""A leader whose owner reported that it is alive, and then not for this long, gives up its lease."""


_log = logging.getLogger("poise.led")


class Led(NamedTuple):
    """The last known leader; `held` unless its lease has expired. `token` is its home's digest."""

    term: int
    address: str
    token: str
    held: bool


class Lease(ABC):
    """`holder` is one home, `address` its address; `lasts` is in nanoseconds. `on_lost` is called once the lease must
    be considered lost, on a thread of the store, so that a blocked owner cannot delay it.
    """

    def __init__(
        self, *, holder: str, address: str, token: str, lasts: int, on_lost: Callable[[NotLeading], object]
    ) -> None:
        self._holder = holder
        self._address = address
        self._token = token
        self._lasts = lasts
        self._on_lost = on_lost
        self._term = 0
        self._until = 0
        self._lived = 0

    @abstractmethod
    def look(self) -> Led:
        """Return the last known leader. Raises `StoreAway`, as all methods here do."""

    def take(self) -> int:
        """Try to become leader. Return the new term, or 0 if another one leads. From then on the lease is renewed."""
        asked = now()
        self._term = self._take()
        if self._term:
            self._count_from(asked)
            asyncio.run_coroutine_threadsafe(self._keep(), loop())
        return self._term

    def holds(self) -> bool:
        """Return whether the lease is still valid, so that no other control plane can lead."""
        return now() < self._until

    def lives(self) -> None:
        """Record that the owner is alive; it calls this repeatedly. The lease is renewed on another thread, which would
        continue even if the owner hung.
        """
        self._lived = now()

    def release(self) -> None:
        """Release the lease now. If the store is unreachable, the lease expires instead."""
        term, self._term, self._until = self._term, 0, 0
        with contextlib.suppress(StoreAway):
            if term:
                self._release(term)

    def close(self) -> None:
        """Stop renewing the lease; it expires unless it was released."""
        self._term = self._until = 0

    @abstractmethod
    def _take(self) -> int:
        """Return the term that was won, or 0."""

    @abstractmethod
    async def _renewed(self, term: int, within: float) -> bool:
        """Renew the lease of this term within this many seconds. Return False if the term is over."""

    @abstractmethod
    def _release(self, term: int) -> None: ...

    async def _keep(self) -> None:
        """Renew the lease for as long as this control plane holds it."""
        term, pause = self._term, self._lasts / RENEWALS / SECOND
        while True:
            await asyncio.sleep(pause)
            asked = now()
            if self._term != term:
                break  # it was released
            if asked >= self._until:
                self._lost("its lease has run out")
                break
            if self._lived and asked - self._lived > HANGS_AFTER:
                self._lost("it hangs")
                break
            try:
                done = await self._renewed(term, (self._until - asked) / SECOND)
            except Exception as error:  # on any error, also unexpected ones of a library, retry until the lease expires
                if not isinstance(error, PoiseError):
                    _log.warning("the lease was not renewed: %s: %s", type(error).__name__, error)
                pause = AGAIN_SECONDS
                continue
            if not done:
                self._lost("another one does")
                break
            self._count_from(asked)
            pause = self._lasts / RENEWALS / SECOND

    def _count_from(self, asked: int) -> None:
        """Set the expiry for the owner, a fifth before others consider the lease expired, and counted from an earlier
        time."""
        self._until = asked + self._lasts * 4 // 5

    def _lost(self, why: str) -> None:
        if self._term:
            self._until = 0
            self._on_lost(NotLeading(f"this control plane no longer leads: {why}", have=f"term {self._term}"))


def now() -> int:
    """Return nanoseconds of a clock that also counts during suspend and is never adjusted."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
