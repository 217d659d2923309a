"""The log in an SQLite file, shared by the store and the read-only reader."""

import functools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from poise.drivers.sqlite import faults, tables
from poise.drivers.verified import Event, VerifiedLog
from poise.errors import PoiseError
from poise.ports import StoredCheckpoint

Answer = TypeVar("Answer")


class SqliteLog(VerifiedLog[Event]):
    _connection: sqlite3.Connection

    def __init__(self, path: Path, decode: Callable[[bytes], Event], warn: Callable[[str], None]) -> None:
        super().__init__(str(path), decode, warn)
        self._path = path

    def first_revision(self) -> int:
        return self._ask(tables.first_revision)

    def last_revision(self) -> int:
        return self._ask(tables.last_revision)

    def written_by(self) -> str:
        return self._ask(tables.read_writer)

    def _ask(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        with faults.translating(self._path):
            return question(self._connection)

    def _rows(self, after: int, count: int) -> list[tuple[int, Any]]:
        select = "SELECT revision, record FROM log WHERE revision > ? ORDER BY revision LIMIT ?"
        return self._ask(lambda connection: connection.execute(select, (after, count)).fetchall())

    def _checkpoints(self) -> list[int]:
        select = "SELECT revision FROM checkpoint ORDER BY revision"
        return [revision for (revision,) in self._ask(lambda connection: connection.execute(select).fetchall())]

    def _whole_checkpoint(self, revision: int) -> StoredCheckpoint | None:
        return self._ask(functools.partial(tables.whole_checkpoint, revision=revision))

    def _damaged(self, message: str) -> PoiseError:
        return faults.damaged(self._path, message)
