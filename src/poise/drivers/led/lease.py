"""Who leads: what one control plane renews in the store, and another takes when it was not renewed in time."""

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
"""A lease is renewed so many times in the time that it lasts."""

AGAIN_SECONDS = 0.1
"""Between two tries to renew, while the store is away."""

HANGS_AFTER = 15 * SECOND
"""An owner that has said that it lives, and says so no more for that long, leads nobody."""


_log = logging.getLogger("poise.led")


class Led(NamedTuple):
    """Who leads, as far as is known; `held` unless its lease has run out. `token` is its home's digest."""

    term: int
    address: str
    token: str
    held: bool


class Lease(ABC):
    """`holder` is one home, `address` where it is reached; `lasts` in nanoseconds. `on_lost` is called once it has to
    be taken for lost, on a thread of the store's: nothing that holds up the owner holds that up.
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
        """Raises `StoreAway`, as all of this does."""

    def take(self) -> int:
        """Lead, if nobody does: the term that was won, 0 for none. The lease is renewed from then on."""
        asked = now()
        self._term = self._take()
        if self._term:
            self._count_from(asked)
            asyncio.run_coroutine_threadsafe(self._keep(), loop())
        return self._term

    def holds(self) -> bool:
        """Whether nobody else can lead yet."""
        return now() < self._until

    def lives(self) -> None:
        """Said by the owner again and again from now on: the lease is renewed on a thread that its hanging would not
        hold up.
        """
        self._lived = now()

    def release(self) -> None:
        """Let another take it now; while the store is away, once it has run out."""
        term, self._term, self._until = self._term, 0, 0
        with contextlib.suppress(StoreAway):
            if term:
                self._release(term)

    def close(self) -> None:
        """Renew it no more: it runs out, unless it was released."""
        self._term = self._until = 0

    @abstractmethod
    def _take(self) -> int:
        """The term that was won, 0 for none."""

    @abstractmethod
    async def _renewed(self, term: int, within: float) -> bool:
        """Renew it, in so many seconds. False: that term is over."""

    @abstractmethod
    def _release(self, term: int) -> None: ...

    async def _keep(self) -> None:
        """Renew it for as long as it is ours."""
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
            except Exception as error:  # whatever it is, also of a library that is surprised, the lease runs on
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
        """Others count from later on, and a fifth longer."""
        self._until = asked + self._lasts * 4 // 5

    def _lost(self, why: str) -> None:
        if self._term:
            self._until = 0
            self._on_lost(NotLeading(f"this control plane no longer leads: {why}", have=f"term {self._term}"))


def now() -> int:
    """Goes on while the machine sleeps, and is set by nobody."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
