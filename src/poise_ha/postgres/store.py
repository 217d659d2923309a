"""The log and its writer, in SQL."""

import functools
import os
from collections.abc import Callable
from typing import Any

from poise.drivers.led.link import WITHIN
from poise.drivers.led.store import CHECKPOINTS_KEPT, LARGE, PROBE_BYTES, LedWriter, Rows, parts_of
from poise.drivers.verified import Event, VerifiedLog
from poise.errors import PoiseError, StoreDamaged
from poise.model.record import FORMAT, checksum
from poise.ports import StoredCheckpoint
from poise_ha.postgres import tables
from poise_ha.postgres.link import PostgresLink

PRUNE_ROWS = 5_000

LARGEST = 16 * 2**20
"""Bytes of records per statement, of which PostgreSQL accepts a gigabyte; a larger record goes alone."""

SLOWEST = 2**20
"""Minimum transfer rate in bytes per second. Large statements get more time than small ones, so that they are not
restarted again and again; the connection of a small one that takes long may be dead.
"""

PAGE_BYTES = 2 * 2**20
"""Bytes of records per read; a larger record goes alone."""

_APPEND = """
WITH led AS MATERIALIZED (SELECT FROM poise.leadership WHERE term = $1 FOR SHARE)
INSERT INTO poise.log SELECT * FROM unnest($2::bigint[], $3::bytea[])
WHERE EXISTS (SELECT FROM led) AND (SELECT coalesce(max(revision), 0) FROM poise.log) = $4
ON CONFLICT DO NOTHING
"""
"""One statement, so that it is applied whole or not at all, whatever happens to its sender. It locks the row until the
commit: a new leader waits for it. It can conflict only with its own first try, which was taken for lost.
"""


_PAGE = """
SELECT revision, record FROM (
    SELECT *, sum(length(record)) OVER (ORDER BY revision) - length(record) AS ahead
    FROM (SELECT * FROM poise.log WHERE revision > $1 ORDER BY revision LIMIT $2) AS rows
) AS page WHERE ahead < $3 ORDER BY revision
"""


class PostgresLog(VerifiedLog[Event]):
    """Log that any process may read. Raises `StoreAway` if the database does not answer."""

    def __init__(self, url: str, decode: Callable[[bytes], Event], warn: Callable[[str], None]) -> None:
        self._link = PostgresLink(url)
        super().__init__(self._link.name, decode, warn)
        tables.settle(self._link)

    def close(self) -> None:
        self._link.close()

    def first_revision(self) -> int:
        return self._value("SELECT coalesce(min(revision), 1) FROM poise.log")

    def last_revision(self) -> int:
        return self._value("SELECT coalesce(max(revision), 0) FROM poise.log")

    def written_by(self) -> str:
        return self._link.ask(lambda connection: tables.about(connection, "written_by"))

    def _value(self, select: str) -> int:
        value: int = self._link.ask(lambda connection: connection.fetchval(select))
        return value

    def _rows(self, after: int, count: int) -> list[tuple[int, Any]]:
        return self._link.ask(lambda connection: connection.fetch(_PAGE, after, count, PAGE_BYTES))

    def _checkpoints(self) -> list[int]:
        select = "SELECT revision FROM poise.checkpoint ORDER BY revision"
        return [row[0] for row in self._link.ask(lambda connection: connection.fetch(select))]

    def _whole_checkpoint(self, revision: int) -> StoredCheckpoint | None:
        select = "SELECT state, checksum FROM poise.checkpoint WHERE revision = $1"
        row = self._link.ask(lambda connection: connection.fetchrow(select, revision), LARGE)
        if row is None or checksum(revision, row[0]) != row[1]:
            return None
        return StoredCheckpoint(revision, row[0])

    def _damaged(self, message: str) -> PoiseError:
        return StoreDamaged(message, hint="restore a backup of the database")


class PostgresWriter(LedWriter):
    def __init__(self, url: str, warn: Callable[[str], None]) -> None:
        self._link = PostgresLink(url)
        super().__init__(self._link.name, warn)

    def sign(self, written_by: str) -> None:
        sign = (
            "INSERT INTO poise.about VALUES ('written_by', $1), ('format', $2) "
            "ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value"
        )
        self._link.ask(lambda connection: connection.execute(sign, written_by, str(FORMAT)))

    def _append(self, rows: Rows) -> None:
        for part in parts_of(rows, LARGEST):
            within = _time_for(sum(len(record) for _, record in part))
            self._link.ask(functools.partial(self._insert, part), within)

    async def _insert(self, rows: Rows, connection: Any) -> None:
        before = rows[0][0] - 1
        revisions, records = zip(*rows, strict=True)
        done = await connection.execute(_APPEND, self.term, revisions, records, before)
        if done == f"INSERT 0 {len(rows)}":
            return
        self._check_leads(*await connection.fetchrow("SELECT term, holder FROM poise.leadership"))
        select = "SELECT * FROM poise.log WHERE revision > $1 ORDER BY revision LIMIT $2"
        found = await connection.fetch(select, before, len(rows))
        self._check_there(rows, found)

    def add_checkpoint(self, checkpoint: StoredCheckpoint) -> None:
        revision, state = checkpoint
        insert = "INSERT INTO poise.checkpoint VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
        older = "SELECT revision FROM poise.checkpoint ORDER BY revision DESC OFFSET $1"

        async def add(connection: Any) -> None:
            async with connection.transaction():
                await connection.execute(insert, revision, state, checksum(revision, state))
                await connection.execute(f"DELETE FROM poise.checkpoint WHERE revision IN ({older})", CHECKPOINTS_KEPT)  # noqa: S608

        self._link.ask(add, _time_for(len(state)))  # commits wait meanwhile

    def prune(self, before: int) -> bool:
        async def prune(connection: Any) -> bool:
            kept = await connection.fetch("SELECT revision FROM poise.checkpoint ORDER BY revision DESC")
            if len(kept) < CHECKPOINTS_KEPT:
                return False
            end = min(before, kept[-1][0] + 1)
            first = await connection.fetchval("SELECT coalesce(min(revision), 1) FROM poise.log")
            slice_end = min(end, first + PRUNE_ROWS)
            await connection.execute("DELETE FROM poise.log WHERE revision < $1", slice_end)
            return bool(slice_end < end)

        return self._link.ask(prune)

    def probe(self) -> None:
        """Insert a row into the log in a transaction, and roll it back."""

        async def probe(connection: Any) -> None:
            attempt = connection.transaction()
            await attempt.start()
            try:
                await connection.execute("INSERT INTO poise.log VALUES (0, $1)", os.urandom(PROBE_BYTES))
            finally:
                await attempt.rollback()

        self._link.ask(probe)

    def rest(self) -> None:
        return None

    def close(self) -> None:
        self._link.close()


def _time_for(size: int) -> float:
    """Return the time limit in seconds for writing `size` bytes."""
    return WITHIN + size / SLOWEST
