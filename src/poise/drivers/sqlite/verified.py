"""Reading the log, for the store and for the read-only reader alike: every record is verified on its way out."""

import functools
import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from poise.drivers.sqlite import faults, tables
from poise.errors import PoiseError
from poise.model.record import FORMAT, is_whole, unseal
from poise.ports import StoredCheckpoint

Event = TypeVar("Event")
Answer = TypeVar("Answer")

READ_ROWS = 5_000  # rows per query: short read transactions let SQLite reuse its write-ahead file

log = logging.getLogger("poise.drivers.sqlite")


class VerifiedLog(Generic[Event]):
    _connection: sqlite3.Connection

    def __init__(self, path: Path, decode: Callable[[bytes], Event], warn: Callable[[str], None]) -> None:
        self._path = path
        self._decode = decode
        self._warn = warn

    def read(self, after: int = 0, limit: int = 0) -> Iterator[tuple[int, Event]]:
        """Events from revision `after + 1` on, or from `first_revision()` where earlier ones were pruned.

        A `limit` of 0 means all. Raises `StoreDamaged` or `StoreNewer` at the first record that cannot be trusted.
        """
        last = max(after, self.first_revision() - 1)
        end = last + limit
        while rows := self._rows(last, min(end - last, READ_ROWS) if limit else READ_ROWS):
            for revision, record in rows:
                if revision != last + 1 or not is_whole(revision, record):
                    raise faults.damaged(self._path, f"the log is damaged at revision {last + 1} in `{self._path}`")
                yield revision, self._decoded(revision, record)
                last = revision

    def first_revision(self) -> int:
        """The oldest revision that is kept: 1 until the log is pruned."""
        return self._ask(tables.first_revision)

    def last_revision(self) -> int:
        """The newest committed revision, 0 in an empty log."""
        return self._ask(tables.last_revision)

    def latest_checkpoint(self) -> StoredCheckpoint | None:
        """The newest whole checkpoint; a damaged one is passed over loudly.

        Raises `StoreDamaged` when there is no whole one and the log alone cannot give the state, because it was pruned.
        """
        select = "SELECT revision FROM checkpoint ORDER BY revision DESC"
        found = self._first_whole(select, "an older")
        if found is None and (first := self.first_revision()) > 1:
            raise self._nowhere_to_begin(first)
        return found

    def oldest_checkpoint(self) -> StoredCheckpoint | None:
        """The oldest whole checkpoint after which every event is kept; None in a log that was not pruned.

        Raises `StoreDamaged` when there is none in one that was.
        """
        first = self.first_revision()
        if first == 1:
            return None
        found = self._first_whole(
            f"SELECT revision FROM checkpoint WHERE revision >= {first - 1} ORDER BY revision",  # noqa: S608 — a number
            "a later",
        )
        if found is None:
            raise self._nowhere_to_begin(first)
        return found

    def _first_whole(self, select: str, other: str) -> StoredCheckpoint | None:
        for (revision,) in self._ask(lambda connection: connection.execute(select).fetchall()):
            checkpoint = self._ask(functools.partial(tables.whole_checkpoint, revision=revision))
            if checkpoint is not None:
                return checkpoint
            self._warn(f"the checkpoint at revision {revision} in `{self._path}` is damaged; {other} state is used")
        return None

    def _nowhere_to_begin(self, first: int) -> PoiseError:
        return faults.damaged(
            self._path, f"the log begins at revision {first} and `{self._path}` has no whole checkpoint to begin from"
        )

    def written_by(self) -> str:
        """The version of Poise that wrote it last, empty where that is not known."""
        return self._ask(tables.read_writer)

    def _ask(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        with faults.translating(self._path):
            return question(self._connection)

    def _rows(self, after: int, count: int) -> list[tuple[int, Any]]:
        select = "SELECT revision, record FROM log WHERE revision > ? ORDER BY revision LIMIT ?"
        return self._ask(lambda connection: connection.execute(select, (after, count)).fetchall())

    def _decoded(self, revision: int, record: bytes) -> Event:
        if record[0] != FORMAT:
            raise self._newer(f"revision {revision} of the log has format {record[0]}; this version reads {FORMAT}")
        try:
            return self._decode(unseal(record))
        except Exception as error:  # the checksum holds, so whatever the decoder objects to was written on purpose
            raise self._newer(f"revision {revision} holds an event unknown to this version: {error}") from error

    def _newer(self, message: str) -> faults.StoreNewer:
        return faults.newer(message, self.written_by())
