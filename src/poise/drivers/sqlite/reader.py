"""Reads a log read-only, with or without a running control plane, without creating or changing files."""

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from poise.drivers.sqlite import faults, tables
from poise.drivers.sqlite.inspection import damaged, inspect, refuse_loss
from poise.drivers.sqlite.log import Answer, SqliteLog
from poise.drivers.sqlite.mark import mark_path, read_mark
from poise.drivers.sqlite.wal import has_index, wal_path
from poise.drivers.verified import Event, log
from poise.errors import Busy, PoiseError, StoreNewer

_ATTEMPTS = 10


class LogReader(SqliteLog[Event]):
    """Reads a log, while a control plane may be writing it.

    How SQLite reads it depends on the existing files:

    * no write-ahead file: the log was closed cleanly, and is read as an immutable file;
    * a write-ahead file with its index (`-shm`): SQLite reads both, beside a writer or after a killed one;
    * a write-ahead file whose index is missing or of another generation, as in a backup or after a power failure:
      SQLite would have to write a new index, so it gets a private copy of the files.

    In the first and the last case the files are checked again after every query: if a control plane has started
    meanwhile, the query runs again, so that its result does not mix old and new data.
    """

    def __init__(
        self, path: Path, decode: Callable[[bytes], Event], *, warn: Callable[[str], None] = log.warning
    ) -> None:
        super().__init__(path, decode, warn)
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._seen: tuple[int, ...] | None = None  # state of the files, if they must not change
        self._connection = self._connect()

    def close(self) -> None:
        self._connection.close()
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def verify(self) -> int:
        """Check every record, and the end of the log against its mark. Return the last revision."""
        mark = read_mark(self._path)  # before the log is read, since that only grows
        found = self._ask(inspect)
        refuse_loss(self._path, found, mark or 0)
        if found.damage:
            raise damaged(self._path, found)
        return found.last

    def refuse_short(self) -> None:
        """Raise `StoreDamaged` if the log ends before its mark: acknowledged events are lost."""
        mark = read_mark(self._path) or 0  # before the log is read: it only grows
        if (last := self.last_revision()) < mark:
            raise faults.short(self._path, mark_path(self._path), last=last, promised=mark)

    def _ask(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """Run a query; run it again if files that must not change have changed."""
        for _ in range(_ATTEMPTS):
            try:
                answer = super()._ask(question)
            except PoiseError:
                if not self._have_files_moved():
                    raise
            else:
                if not self._have_files_moved():
                    return answer
            self.close()
            self._connection = self._connect()
        raise Busy(f"`{self._path}` is constantly opened and closed", hint="retry")

    def _have_files_moved(self) -> bool:
        return self._seen is not None and _footprint(self._path) != self._seen

    def _connect(self) -> sqlite3.Connection:
        if not self._path.exists():
            if mark := read_mark(self._path):
                raise faults.short(self._path, mark_path(self._path), last=0, promised=mark)
            raise faults.damaged(self._path, f"there is no log at `{self._path}`")
        self._seen = _footprint(self._path)
        with faults.translating(self._path):
            if wal_path(self._path).exists():
                return self._connect_to_wal()
            return open_to_read(self._path, "immutable=1")

    def _connect_to_wal(self) -> sqlite3.Connection:
        if has_index(self._path):
            with contextlib.suppress(sqlite3.OperationalError):  # the writer is in a state that needs a writable index
                connection = open_to_read(self._path, "readonly_shm=1")
                self._seen = None
                return connection
        self._copy = tempfile.TemporaryDirectory(prefix="poise-log-")
        copy = Path(self._copy.name) / self._path.name
        shutil.copyfile(self._path, copy)
        shutil.copyfile(wal_path(self._path), wal_path(copy))
        return open_to_read(copy)


def open_to_read(path: Path, option: str = "") -> sqlite3.Connection:
    connection = tables.connect(f"{path.absolute().as_uri()}?mode=ro&{option}", uri=True)
    try:
        connection.execute("PRAGMA schema_version").fetchone()  # this opens the files
        tables.refuse_newer(connection)
    except StoreNewer:
        connection.close()
        raise
    except faults.READ_ERRORS as error:
        if not faults.is_damage(error):  # the inspection classifies damage
            connection.close()
            raise
    return connection


def _footprint(path: Path) -> tuple[int, ...]:
    """Return a value that changes when a control plane opens, writes or closes the log."""
    footprint: list[int] = []
    for file in (path, wal_path(path)):
        with contextlib.suppress(FileNotFoundError):
            status = file.stat()
            footprint += (status.st_ino, status.st_mtime_ns, status.st_size)
    return tuple(footprint)
