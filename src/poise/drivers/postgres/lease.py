"""Who leads: a row that one control plane renews, and that another takes when it was not renewed in time."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from poise.drivers.postgres.link import Link, loop
from poise.errors import NotLeading, PoiseError, StoreAway
from poise.units import SECOND

AGAIN_SECONDS = 0.1
"""Between two tries to renew, while the database is away."""

_TAKE = """
UPDATE poise.leadership
SET term = term + 1, holder = $1, address = $2, token = $3, lasts = $4, renewed = clock_timestamp()
WHERE holder = $1 OR NOT (clock_timestamp() BETWEEN renewed AND renewed + lasts) RETURNING term
"""
_RENEW = "UPDATE poise.leadership SET renewed = clock_timestamp() WHERE term = $1 RETURNING term"
_RELEASE = "UPDATE poise.leadership SET renewed = '-infinity' WHERE term = $1"
_LOOK = "SELECT term, address, token, clock_timestamp() BETWEEN renewed AND renewed + lasts FROM poise.leadership"


class Led(NamedTuple):
    """Who leads, as far as the database knows; `held` unless its lease has run out. `token` is its home's digest."""

    term: int
    address: str
    token: str
    held: bool


class Lease:
    """`holder` is one home, `address` where it is reached; `lasts` in nanoseconds. `on_lost` is called once it has to
    be taken for lost, on a thread of the database's: nothing that holds up the owner holds that up.
    """

    def __init__(
        self, url: str, *, holder: str, address: str, token: str, lasts: int, on_lost: Callable[[NotLeading], object]
    ) -> None:
        self._link = Link(url)
        self._holder = holder
        self._address = address
        self._token = token
        self._lasts = lasts
        self._on_lost = on_lost
        self._term = 0
        self._until = 0

    def look(self) -> Led:
        """Raises `StoreAway`, as all of this does."""
        return Led(*self._link.ask(lambda connection: connection.fetchrow(_LOOK)))

    def take(self) -> int:
        """Lead, if nobody does: the term that was won, 0 for none. The lease is renewed from then on."""
        lasts = timedelta(microseconds=self._lasts / 1000)
        asked = _now()
        given = (self._holder, self._address, self._token, lasts)
        self._term = self._link.ask(lambda connection: connection.fetchval(_TAKE, *given)) or 0
        if self._term:
            self._count_from(asked)
            asyncio.run_coroutine_threadsafe(self._keep(), loop())
        return self._term

    def holds(self) -> bool:
        """Whether nobody else can lead yet."""
        return _now() < self._until

    def release(self) -> None:
        """Let another take it now; while the database is away, once it has run out."""
        term, self._term, self._until = self._term, 0, 0
        with contextlib.suppress(StoreAway):
            if term:
                self._link.ask(lambda connection: connection.execute(_RELEASE, term))

    def close(self) -> None:
        self._link.close()

    async def _keep(self) -> None:
        """Renew it for as long as it is ours."""
        term, pause = self._term, self._lasts / 3 / SECOND
        while True:
            await asyncio.sleep(pause)
            asked = _now()
            if self._term != term:
                break  # it was released
            if asked >= self._until:
                self._lost("its lease has run out")
                break
            try:
                done = await self._link.answer(partial(_renew, term=term), (self._until - asked) / SECOND)
            except PoiseError:  # whatever it is, the lease runs on
                pause = AGAIN_SECONDS
                continue
            if not done:
                self._lost("another one does")
                break
            self._count_from(asked)
            pause = self._lasts / 3 / SECOND

    def _count_from(self, asked: int) -> None:
        """The database counts from later on, and a fifth longer."""
        self._until = asked + self._lasts * 4 // 5

    def _lost(self, why: str) -> None:
        if self._term:
            self._until = 0
            self._on_lost(NotLeading(f"this control plane no longer leads: {why}", have=f"term {self._term}"))


async def _renew(connection: Any, term: int) -> bool:
    return await connection.fetchval(_RENEW, term) is not None


def _now() -> int:
    """Goes on while the machine sleeps, and is set by nobody."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
