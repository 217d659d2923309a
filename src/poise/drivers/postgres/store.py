"""The `Store` port on a database: a log that everybody reads, and that whoever leads writes."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from poise.drivers.grouped import KEEP, QUEUE_LIMIT, GroupedStore
from poise.drivers.postgres import tables
from poise.drivers.postgres.link import Link
from poise.drivers.verified import Event, VerifiedLog, log
from poise.errors import Conflict, NotLeading, PoiseError, StoreDamaged, StoreFull
from poise.model.record import checksum
from poise.ports import StoredCheckpoint

CHECKPOINTS_KEPT = 2
PRUNE_ROWS = 5_000
PROBE_BYTES = 64 * 2**10  # several commits of an ordinary size, and nothing that a database makes smaller
AGAIN_SECONDS = 0.1
"""Between two tries of a commit, while the database is away."""

LARGE = 60.0
"""Seconds that reading or writing a checkpoint may take."""

_APPEND = """
WITH led AS MATERIALIZED (SELECT FROM poise.leadership WHERE term = $1 FOR SHARE)
INSERT INTO poise.log SELECT * FROM unnest($2::bigint[], $3::bytea[])
WHERE EXISTS (SELECT FROM led) AND (SELECT coalesce(max(revision), 0) FROM poise.log) = $4
ON CONFLICT DO NOTHING
"""
"""One statement, so that it is whole or not there whatever becomes of whoever sent it. The row is locked until the
commit: a new leader waits for it. In conflict with it can only be its own first try, which was taken for lost."""


class PostgresLog(VerifiedLog[Event]):
    """Read by anybody. Raises `StoreAway` where the database does not answer."""

    def __init__(
        self, url: str, decode: Callable[[bytes], Event], *, warn: Callable[[str], None] = log.warning
    ) -> None:
        self._link = Link(url)
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
        select = "SELECT revision, record FROM poise.log WHERE revision > $1 ORDER BY revision LIMIT $2"
        return self._link.ask(lambda connection: connection.fetch(select, after, count))

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


class PostgresStore(GroupedStore, PostgresLog[Event]):
    """Refuses appends (`NotLeading`) until this control plane is to `lead`. The rest is as for every `GroupedStore`."""

    def __init__(
        self,
        url: str,
        encode: Callable[[Event], bytes],
        decode: Callable[[bytes], Event],
        *,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
        warn: Callable[[str], None] = log.warning,
        keep: int = KEEP,
        queue_limit: int = QUEUE_LIMIT,
        written_by: str = "",
    ) -> None:
        PostgresLog.__init__(self, url, decode, warn=warn)
        GroupedStore.__init__(self, encode, call_soon=call_soon, warn=warn, keep=keep, queue_limit=queue_limit)
        self._failure = NotLeading("nobody leads here")
        self._written_by = written_by
        self._closing = threading.Event()
        self._writer = self._leader = PostgresWriter(Link(url), self._closing, warn)

    def lead(self, term: int) -> int:
        """Write under this term, which was won, from now on; returns the last revision, and nobody else adds to it."""
        self._leader.term = term
        if self._written_by:
            self._leader.sign(self._written_by)
        last = self.last_revision()
        self._failure = None
        self._begin(self._leader, last)
        return last

    def close(self) -> None:
        """Commits what is queued, unless the database is away."""
        self._closing.set()
        GroupedStore.close(self)

    def _let_go(self) -> None:
        self._writer.close()
        PostgresLog.close(self)


class PostgresWriter:
    """Commits under its `term`."""

    def __init__(self, link: Link, closing: threading.Event, warn: Callable[[str], None]) -> None:
        self.term = 0
        self._link = link
        self._closing = closing
        self._warn = warn

    def sign(self, written_by: str) -> None:
        sign = "INSERT INTO poise.about VALUES ('written_by', $1) ON CONFLICT (name) DO UPDATE SET value = $1"
        self._link.ask(lambda connection: connection.execute(sign, written_by))

    def append(self, rows: list[tuple[int, bytes]]) -> None:
        """Until they are there, or somebody else leads: while the database is away, or not to be used, they wait."""
        told = False
        while True:
            try:
                return self._link.ask(lambda connection: self._append(connection, rows))
            except (Conflict, NotLeading, StoreFull):
                raise
            except PoiseError as error:
                if self._closing.is_set():
                    raise
                if not told:
                    self._warn(f"commits wait: {error}")
                    told = True
                self._closing.wait(AGAIN_SECONDS)

    async def _append(self, connection: Any, rows: Sequence[tuple[int, bytes]]) -> None:
        before = rows[0][0] - 1
        revisions, records = zip(*rows, strict=True)
        done = await connection.execute(_APPEND, self.term, revisions, records, before)
        if done == f"INSERT 0 {len(rows)}":
            return
        term, holder = await connection.fetchrow("SELECT term, holder FROM poise.leadership")
        if term != self.term:
            raise NotLeading("another control plane leads", need=f"term {self.term}", have=f"term {term} of {holder}")
        found = await connection.fetch("SELECT * FROM poise.log WHERE revision > $1 ORDER BY revision", before)
        if [tuple(row) for row in found] != list(rows):  # else they are ours: only the answer was lost
            raise Conflict(
                f"somebody else writes to `{self._link.name}`",
                code="E204",
                need=f"revision {before} as the last",
                have=f"{len(found)} records behind it",
            )

    def add_checkpoint(self, checkpoint: StoredCheckpoint) -> None:
        revision, state = checkpoint
        insert = "INSERT INTO poise.checkpoint VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
        older = "SELECT revision FROM poise.checkpoint ORDER BY revision DESC OFFSET $1"

        async def add(connection: Any) -> None:
            async with connection.transaction():
                await connection.execute(insert, revision, state, checksum(revision, state))
                await connection.execute(f"DELETE FROM poise.checkpoint WHERE revision IN ({older})", CHECKPOINTS_KEPT)  # noqa: S608

        self._link.ask(add, LARGE)

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
        """Writes where the log is, and takes it back."""

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
