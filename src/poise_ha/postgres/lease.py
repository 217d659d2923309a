"""Leader election: one control plane renews a row, and another takes it when it was not renewed in time."""

from datetime import timedelta
from typing import Any

from poise.drivers.led.lease import Lease, Led
from poise_ha.postgres.link import PostgresLink

_TAKE = """
UPDATE poise.leadership
SET term = term + 1, holder = $1, address = $2, token = $3, lasts = $4, renewed = clock_timestamp()
WHERE holder = $1 OR NOT (clock_timestamp() BETWEEN renewed AND renewed + lasts) RETURNING term
"""
_RENEW = "UPDATE poise.leadership SET renewed = clock_timestamp() WHERE term = $1 RETURNING term"
_RELEASE = "UPDATE poise.leadership SET renewed = '-infinity' WHERE term = $1"
_LOOK = "SELECT term, address, token, clock_timestamp() BETWEEN renewed AND renewed + lasts FROM poise.leadership"


class PostgresLease(Lease):
    def __init__(self, url: str, **given: Any) -> None:
        super().__init__(**given)
        self._link = PostgresLink(url)

    def look(self) -> Led:
        return Led(*self._link.ask(lambda connection: connection.fetchrow(_LOOK)))

    def close(self) -> None:
        super().close()
        self._link.close()

    def _take(self) -> int:
        lasts = timedelta(microseconds=self._lasts / 1000)
        given = (self._holder, self._address, self._token, lasts)
        return self._link.ask(lambda connection: connection.fetchval(_TAKE, *given)) or 0

    async def _renewed(self, term: int, within: float) -> bool:
        return await self._link.answer(lambda connection: connection.fetchval(_RENEW, term), within) is not None

    def _release(self, term: int) -> None:
        self._link.ask(lambda connection: connection.execute(_RELEASE, term))
