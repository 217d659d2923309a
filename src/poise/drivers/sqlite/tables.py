"""The content of the file: the tables, opening them for writing, and a few shared queries."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from poise.drivers.sqlite.faults import READ_ERRORS, is_damage, translating
from poise.errors import newer
from poise.model.record import FORMAT, checksum
from poise.ports import StoredCheckpoint

BUSY_SECONDS = 2.0
PAGE_BYTES = 4096
WAL_PAGES = 1_000  # checkpoint of the write-ahead file at about 4 MB …
WAL_BYTES_KEPT = 16 * 2**20  # … and truncation to this size after a burst

_SCHEMA = """
CREATE TABLE IF NOT EXISTS log(revision INTEGER PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS checkpoint(revision INTEGER PRIMARY KEY, state BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS probe(content BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS about(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


def connect(path: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(path, uri=uri, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False)
    connection.text_factory = bytes  # return a text in place of a record as is, so that it is detected as damage
    return connection


def open_for_writing(path: Path, *, max_bytes: int = 0, written_by: str = "") -> sqlite3.Connection:
    """Open a log, and create missing parts. Nothing is written to a complete log, so it can be opened on a full
    disk."""
    with translating(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # side files get the same mode
        connection = connect(path)
        try:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
            if max_bytes:
                connection.execute(f"PRAGMA max_page_count = {max(1, max_bytes // PAGE_BYTES)}")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != FORMAT:
                with transaction(connection):
                    for statement in (*_SCHEMA.split(";"), f"PRAGMA user_version = {FORMAT}"):
                        connection.execute(statement)
            if written_by and read_writer(connection) != written_by:
                connection.execute("INSERT OR REPLACE INTO about VALUES ('written_by', ?)", (written_by,))
            with contextlib.suppress(sqlite3.OperationalError):  # the disk is full: frames stay
                start_generation(connection)
            sync(path.parent)
        except BaseException:
            connection.close()
            raise
        return connection


def start_generation(connection: sqlite3.Connection) -> None:
    """Empty the write-ahead file, so that frames from before a crash never count again (see `wal`)."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # SQLite has often rolled back by itself
            connection.execute("ROLLBACK")
        raise


def insert_checkpoint(connection: sqlite3.Connection, checkpoint: StoredCheckpoint) -> None:
    revision, state = checkpoint
    row = (revision, state, checksum(revision, state))
    connection.execute("INSERT OR REPLACE INTO checkpoint VALUES (?, ?, ?)", row)


def whole_checkpoint(connection: sqlite3.Connection, revision: int) -> StoredCheckpoint | None:
    """Return the checkpoint; None if it is damaged: a wrong checksum, or pages that SQLite cannot read."""
    select = "SELECT state, checksum FROM checkpoint WHERE revision = ?"
    try:
        for state, stored in connection.execute(select, (revision,)).fetchall():
            if isinstance(state, bytes) and stored == checksum(revision, state):
                return StoredCheckpoint(revision, state)
    except READ_ERRORS as error:
        if not is_damage(error):
            raise
    return None


def first_revision(connection: sqlite3.Connection) -> int:
    (first,) = connection.execute("SELECT min(revision) FROM log").fetchone()
    return first or 1


def last_revision(connection: sqlite3.Connection) -> int:
    (last,) = connection.execute("SELECT max(revision) FROM log").fetchone()
    return last or 0


def refuse_newer(connection: sqlite3.Connection) -> None:
    """Raise `StoreNewer` for a log format that this version does not read."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > FORMAT:
        raise newer(f"the log has format {version}; this version reads {FORMAT}", read_writer(connection))


def read_writer(connection: sqlite3.Connection) -> str:
    """Return the version of Poise that last wrote the log; "" if it is unknown."""
    with contextlib.suppress(*READ_ERRORS):
        for (value,) in connection.execute("SELECT value FROM about WHERE name = 'written_by'").fetchall():
            return value.decode() if isinstance(value, bytes) else str(value)
    return ""


def sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
