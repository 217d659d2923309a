"""The writing connection: the store's operations on the tables, one call at a time."""

from pathlib import Path

from poise.drivers.sqlite import faults, tables
from poise.drivers.sqlite.mark import SYNC_SECONDS, Mark, mark_path
from poise.drivers.sqlite.wal import wal_path
from poise.errors import PoiseError
from poise.ports import StoredCheckpoint

CHECKPOINTS_KEPT = 2
PRUNE_ROWS = 5_000  # rows per transaction: commits wait a few milliseconds at most
PROBE_BYTES = 64 * 2**10  # several commits of ordinary size


class SqliteWriter:
    def __init__(self, path: Path, last: int, *, max_bytes: int, written_by: str) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._mark = Mark(mark_path(path), last)
        self._connection = tables.open_for_writing(path, max_bytes=max_bytes, written_by=written_by)
        self._identity = self._identify()

    def append(self, rows: list[tuple[int, bytes]]) -> None:
        last = rows[0][0] - 1
        try:
            with tables.transaction(self._connection):
                found = tables.last_revision(self._connection)
                if found != last:
                    raise faults.second_writer(self._path, need=last, have=f"revision {found}")
                self._connection.executemany("INSERT INTO log VALUES (?, ?)", rows)
        except PoiseError:
            raise
        except Exception as error:  # on any error: a dead thread would block the owner for ever
            raise faults.unwritable(error, self._path, last=last, max_bytes=self._max_bytes) from error
        if self._identify() != self._identity:  # the rows went into deleted or replaced files
            raise faults.gone(self._path)
        self._mark.write(rows[-1][0])

    def _identify(self) -> tuple[tuple[int, int], ...]:
        """Return the identity of the log and its write-ahead file at their paths; SQLite keeps using the files that it
        opened."""
        found = []
        for file in (self._path, wal_path(self._path)):
            try:
                status = file.stat()
            except OSError:
                return ()
            found.append((status.st_dev, status.st_ino))
        return tuple(found)

    def add_checkpoint(self, checkpoint: StoredCheckpoint) -> None:
        older = "SELECT revision FROM checkpoint ORDER BY revision DESC LIMIT -1 OFFSET ?"
        with faults.translating(self._path), tables.transaction(self._connection):
            tables.insert_checkpoint(self._connection, checkpoint)
            self._connection.execute(f"DELETE FROM checkpoint WHERE revision IN ({older})", (CHECKPOINTS_KEPT,))  # noqa: S608

    def prune(self, before: int) -> bool:
        with faults.translating(self._path):
            kept = self._connection.execute("SELECT revision FROM checkpoint ORDER BY revision DESC").fetchall()
            if len(kept) < CHECKPOINTS_KEPT:
                return False
            covered: int = kept[-1][0]
            end = min(before, covered + 1)
            slice_end = min(end, tables.first_revision(self._connection) + PRUNE_ROWS)
            self._connection.execute("DELETE FROM log WHERE revision < ?", (slice_end,))
            return slice_end < end

    def probe(self) -> None:
        """Write and remove a few pages, to test whether the disk has room again."""
        with faults.translating(self._path):
            self._connection.execute("INSERT INTO probe VALUES (zeroblob(?))", (PROBE_BYTES,))
            self._connection.execute("DELETE FROM probe")
            tables.start_generation(self._connection)

    def rest(self) -> float | None:
        self._mark.sync_if_due()
        return SYNC_SECONDS if self._mark.unsynced else None

    def close(self) -> None:
        self._mark.close()
        self._connection.close()
