"""The durable log on SQLite: one writer thread, group commit, and a checksum in every record.

`append` hands encoded events to a writer thread and returns; the thread commits all that has queued up in one
transaction (WAL, synchronous=FULL: one `fsync` per group) and then says `on_durable` on the owner's thread. The driver
never looks into an event: it is given an encoder and a decoder.

How damage is found
-------------------
* A record is `format version (1 byte), payload, CRC-32 (4 bytes)`. The checksum starts from the revision, so a flipped
  bit and a record that moved to another revision are both found. Revisions are contiguous, so a lost one is found.
* SQLite stops silently at the first bad frame of its write-ahead file: a flipped bit there makes the log *short*, not
  wrong. Two things make a short log visible:
  1. The *mark*, a side file of a few bytes. After every commit, and before the commit is announced, it is overwritten
     with the revision that is now durable. It is synced about once a second, and always after the commit that it speaks
     of, so it can be too low but never too high: "at least this revision was durable". After a killed process it is
     exact, after a power cut about a second old. A log that ends before its mark has lost acknowledged events.
  2. The write-ahead file itself. A commit is synced before the next one is written, so a crash can tear the last
     transaction only. Two commits of one generation behind a bad frame are therefore damage, whatever the mark says.
     Every opening and every recovery starts a new generation, so frames left by an earlier crash do not count.

What is done about it, when the log is opened
---------------------------------------------
* Damaged records at the very end with nothing whole behind them: a copy of the files is set aside, the log is cut after
  its last whole record, and `warn` says so, with the revisions that had been acknowledged.
* Pages at the end that SQLite cannot read: the same if the mark shows that nothing acknowledged is lost, else refused.
* Whole records behind damaged ones, or a log that ends before its mark: refused with E203. The inspection only reads,
  so nothing has been changed by then. Removing the mark is how a person accepts a short log.
* A record, a log format or an event type that this version does not know is refused with E206, never skipped.
"""

import contextlib
import functools
import logging
import os
import shutil
import sqlite3
import struct
import tempfile
import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from sys import byteorder
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar
from zlib import crc32

from poise.errors import Busy, Conflict, Fault, PoiseError, StoreDamaged, StoreFull
from poise.ports import StoredCheckpoint
from poise.units import format_bytes

Event = TypeVar("Event")
Row = tuple[Any, ...]

FORMAT = 1
"""The version of a record and of the tables; it goes up when an older Poise could not read what is written."""

QUEUE_LIMIT = 100_000
"""Events appended and not yet durable; more are refused with `Busy`."""

KEEP = 1_000_000
"""Events that pruning leaves in the log in any case, for history and replay."""

CHECKPOINTS_KEPT = 2
READ_ROWS = 5_000  # rows per query: short read transactions let SQLite reuse its write-ahead file
PRUNE_ROWS = 5_000  # rows per transaction: commits wait a few milliseconds at most
MARK_SYNC_SECONDS = 1.0
BUSY_SECONDS = 2.0
WAL_PAGES = 1_000  # the write-ahead file is copied back at about 4 MB …
WAL_BYTES_KEPT = 16 * 2**20  # … and cut to this size if a burst made it larger
PROBE_BYTES = 64 * 2**10  # the room that `recover` asks for: several commits of an ordinary size
PAGE_BYTES = 4096
READ_ATTEMPTS = 10

_SCHEMA = """
CREATE TABLE IF NOT EXISTS log(revision INTEGER PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS checkpoint(revision INTEGER PRIMARY KEY, state BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS probe(content BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS about(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

_CANNOT_WRITE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
)
"""What a full or failing disk answers; each can heal while the store is open."""

_READ_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What a damaged file makes `sqlite3` raise: the second when SQLite's message quotes damaged bytes."""

_VERSION_BYTE = bytes([FORMAT])
_CHECKSUM_BYTES = 4
_SHORTEST_RECORD = 1 + _CHECKSUM_BYTES
_LOW_32_BITS = 0xFFFF_FFFF

_log = logging.getLogger(__name__)


class StoreNewer(Fault):
    """The log was written by a newer Poise; nothing is wrong with it."""

    default_code = "E206"


# --- reading ---------------------------------------------------------------------------------------------------------


class _Reading(ABC, Generic[Event]):
    """What the store and the read-only reader share: every record is verified on its way out."""

    def __init__(self, path: Path, decode: Callable[[bytes], Event], warn: Callable[[str], None]) -> None:
        self._path = path
        self._decode = decode
        self._warn = warn

    @abstractmethod
    def _query(self, statement: str, *parameters: object) -> list[Row]: ...

    def read(self, after: int = 0, limit: int = 0) -> Iterator[tuple[int, Event]]:
        """Events from revision `after + 1` on, or from `first_revision()` where earlier ones were pruned.

        A `limit` of 0 means all. Raises `StoreDamaged` or `StoreNewer` at the first record that cannot be trusted.
        """
        last = max(after, self.first_revision() - 1)
        left = limit
        while rows := self._query(
            "SELECT revision, record FROM log WHERE revision > ? ORDER BY revision LIMIT ?",
            last,
            min(left or READ_ROWS, READ_ROWS),
        ):
            for revision, record in rows:
                if revision != last + 1 or not _is_whole(revision, record):
                    raise self._damaged(last + 1, "")
                yield revision, self._decoded(revision, record)
                last = revision
            if limit:
                left -= len(rows)
                if left <= 0:
                    return

    def first_revision(self) -> int:
        """The oldest revision that is kept: 1 until the log is pruned."""
        (first,) = self._query("SELECT min(revision) FROM log")[0]
        return first or 1

    def last_revision(self) -> int:
        """The newest committed revision, 0 in an empty log."""
        (last,) = self._query("SELECT max(revision) FROM log")[0]
        return last or 0

    def latest_checkpoint(self) -> StoredCheckpoint | None:
        """The newest whole checkpoint; a damaged one is passed over loudly.

        Raises `StoreDamaged` when there is no whole one and the log alone cannot give the state, because it was pruned.
        """
        for (revision,) in self._query("SELECT revision FROM checkpoint ORDER BY revision DESC"):
            state = self._checkpoint_state(revision)
            if state is not None:
                return StoredCheckpoint(revision, state)
            self._warn(f"the checkpoint at revision {revision} in `{self._path}` is damaged; an older state is used")
        first = self.first_revision()
        if first > 1:
            raise StoreDamaged(
                f"the log begins at revision {first} and `{self._path}` has no whole checkpoint to begin from",
                hint=_restore_hint(self._path),
            )
        return None

    def _checkpoint_state(self, revision: int) -> bytes | None:
        try:
            rows = self._query("SELECT state, checksum FROM checkpoint WHERE revision = ?", revision)
        except StoreDamaged:  # SQLite cannot read its pages: as damaged as a wrong checksum
            return None
        for state, checksum in rows:
            if isinstance(state, bytes) and checksum == _checksum(revision, state):
                return state
        return None

    def _decoded(self, revision: int, record: bytes) -> Event:
        if record[0] != FORMAT:
            raise self._newer(f"revision {revision} of the log has format {record[0]}; this version reads {FORMAT}")
        try:
            return self._decode(record[1:-_CHECKSUM_BYTES])
        except Exception as error:  # the checksum holds, so whatever the decoder objects to was written on purpose
            raise self._newer(f"revision {revision} holds an event unknown to this version: {error}") from error

    def _newer(self, message: str) -> StoreNewer:
        writer = ""
        with contextlib.suppress(PoiseError):
            for (value,) in self._query("SELECT value FROM about WHERE name = 'written_by'"):
                writer = value.decode() if isinstance(value, bytes) else str(value)
        hint = f"use Poise {writer} or newer, which wrote this log" if writer else "use the Poise that wrote this log"
        return StoreNewer(message, need=writer, hint=hint)

    def _damaged(self, revision: int, detail: str) -> StoreDamaged:
        words = f": {detail}" if detail else ""
        return StoreDamaged(
            f"the log is damaged at revision {revision} in `{self._path}`{words}", hint=_restore_hint(self._path)
        )


class _Found(NamedTuple):
    """What an inspection of the whole log found."""

    last: int  # the last revision of the whole records that the log begins with
    whole: int  # how many they are
    torn: bool  # records behind it are damaged
    following: int  # whole records behind the damaged ones
    unreadable: str  # SQLite's words, where it could not go on


class LogReader(_Reading[Event]):
    """Reads a log that a control plane may be writing, or none; creates no file and changes none.

    SQLite's own ways of reading differ with what lies there:

    * no write-ahead file: the log was closed cleanly, and is read as a file that does not change;
    * one with its index (`-shm`): SQLite reads both, beside a writer or after one that was killed;
    * one whose index is missing or of another generation, as in a backup or after a power cut: SQLite would have to
      write a new index, so it gets a private copy of the files to do that to.

    In the first and the last case the files are looked at again after every query: when a control plane starts
    meanwhile, the query runs again and does not answer half from the old and half from the new.
    """

    def __init__(
        self, path: Path, decode: Callable[[bytes], Event], *, warn: Callable[[str], None] = _log.warning
    ) -> None:
        super().__init__(path, decode, warn)
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._seen: tuple[int, ...] | None = None  # the files as they were, where they must not change
        self._connection = self._connect()

    def close(self) -> None:
        self._connection.close()
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def verify(self) -> int:
        """Checks every record and compares the end of the log with its mark; returns the last revision."""
        mark = _read_mark(_mark_path(self._path))  # before the log is read: it only grows
        found = self._inspect()
        if found.torn or found.unreadable:
            raise self._refused(found)
        if found.last < (mark or 0):
            raise _short(self._path, found.last, mark or 0)
        return found.last

    def _connect(self) -> sqlite3.Connection:
        if not self._path.exists():
            raise StoreDamaged(f"there is no log at `{self._path}`", hint=_restore_hint(self._path))
        self._seen = _footprint(self._path)
        try:
            if not _wal_path(self._path).exists():
                return self._open(self._path, "immutable=1")
            return self._connect_to_wal()
        except (*_READ_ERRORS, OSError) as error:
            raise _translated(error, self._path) from error

    def _connect_to_wal(self) -> sqlite3.Connection:
        if _has_index(self._path):
            with contextlib.suppress(sqlite3.OperationalError):  # the writer is at a point that needs a writable index
                connection = self._open(self._path, "readonly_shm=1")
                self._seen = None
                return connection
        self._copy = tempfile.TemporaryDirectory(prefix="poise-log-")
        copy = Path(self._copy.name) / self._path.name
        shutil.copyfile(self._path, copy)
        shutil.copyfile(_wal_path(self._path), _wal_path(copy))
        return self._open(copy, "")

    @staticmethod
    def _open(path: Path, options: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro&{options}",
            uri=True,
            isolation_level=None,
            timeout=BUSY_SECONDS,
            check_same_thread=False,
        )
        connection.text_factory = bytes
        try:
            connection.execute("PRAGMA schema_version").fetchone()  # opens the files in earnest
        except _READ_ERRORS as error:
            if not _is_damage(error):  # what is damaged is told apart by the inspection
                connection.close()
                raise
        return connection

    def _query(self, statement: str, *parameters: object) -> list[Row]:
        return self._steady(lambda: self._select(statement, *parameters))

    def _select(self, statement: str, *parameters: object) -> list[Row]:
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except _READ_ERRORS as error:
            raise _translated(error, self._path) from error

    def _steady(self, action: Callable[[], "_Answer"]) -> "_Answer":
        """Runs `action` again if files that must not change have changed."""
        for _ in range(READ_ATTEMPTS):
            try:
                answer = action()
            except PoiseError:
                if not self._have_files_moved():
                    raise
            else:
                if not self._have_files_moved():
                    return answer
            self.close()
            self._connection = self._connect()
        raise Busy(f"`{self._path}` is being opened and closed all the time", hint="try again")

    def _have_files_moved(self) -> bool:
        return self._seen is not None and _footprint(self._path) != self._seen

    def _inspect(self) -> _Found:
        return self._steady(self._look_through)

    def _look_through(self) -> _Found:
        """Follows the records from the first one; the first that is missing or damaged ends the whole part."""
        self._refuse_newer_format()
        last, whole, torn, unreadable = 0, 0, False, ""
        try:
            if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'log'").fetchall():
                return _Found(last=0, whole=0, torn=False, following=0, unreadable="")
            last = self._pruned()
            for revision, record in self._connection.execute("SELECT revision, record FROM log ORDER BY revision"):
                if revision != last + 1 or not _is_whole(revision, record):
                    torn = True
                    break
                last, whole = revision, whole + 1
        except StoreDamaged as error:
            unreadable = str(error)
        except _READ_ERRORS as error:
            if not _is_damage(error):  # a disk that does not answer says nothing about the log
                raise _translated(error, self._path) from error
            unreadable = str(error)
        following = self._count_whole_after(last) if torn or unreadable else 0
        return _Found(last, whole, torn, following, unreadable)

    def _refuse_newer_format(self) -> None:
        try:
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        except _READ_ERRORS:
            return  # the records will show it
        if version > FORMAT:
            raise self._newer(f"`{self._path}` has log format {version}; this version reads {FORMAT}")

    def _pruned(self) -> int:
        """The revision before the first one. Where that is not 0, a whole checkpoint must stand in for what is gone."""
        first = self.first_revision()
        if first == 1:
            return 0
        rows = self._query("SELECT revision FROM checkpoint WHERE revision >= ?", first - 1)
        return first - 1 if any(self._checkpoint_state(revision) is not None for (revision,) in rows) else 0

    def _count_whole_after(self, last: int) -> int:
        count = 0
        with contextlib.suppress(*_READ_ERRORS):  # what can be reached from the end
            for revision, record in self._connection.execute(
                "SELECT revision, record FROM log WHERE revision > ? ORDER BY revision DESC", (last,)
            ):
                count += _is_whole(revision, record)
        return count

    def _refused(self, found: _Found) -> StoreDamaged:
        detail = f"{found.following} whole records follow" if found.following else "no whole record follows"
        return self._damaged(found.last + 1, f"{detail}; {found.unreadable}" if found.unreadable else detail)


_Answer = TypeVar("_Answer")


class _OwnersReader(LogReader[Event]):
    """For opening: the owner of the home may let SQLite write the index, which needs no copy of a long log."""

    def _connect_to_wal(self) -> sqlite3.Connection:
        self._seen = None
        return self._open(self._path, "")


# --- writing ---------------------------------------------------------------------------------------------------------


class SqliteStore(_Reading[Event]):
    """The `Store` port on one SQLite file. All methods belong to one thread, the owner's.

    `call_soon` runs a function on the owner's thread (`loop.call_soon_threadsafe`). Without it there is no writer
    thread: `append` commits before it returns, and raises what would otherwise go to `on_failed`.

    `max_bytes` bounds the log file; the write-ahead file beside it adds a few MB. `written_by` is the version that an
    older Poise names when it cannot read the log. `warn` may be called on the writer thread.
    """

    def __init__(
        self,
        path: Path,
        encode: Callable[[Event], bytes],
        decode: Callable[[bytes], Event],
        *,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
        warn: Callable[[str], None] = _log.warning,
        max_bytes: int = 0,
        keep: int = KEEP,
        queue_limit: int = QUEUE_LIMIT,
        written_by: str = "",
    ) -> None:
        super().__init__(path, decode, warn)
        self.on_durable: Callable[[int], None] = _ignore
        self.on_failed: Callable[[Exception], None] = _ignore
        self._encode = encode
        self._call_soon = call_soon
        self._max_bytes = max_bytes
        self._keep = keep
        self._queue_limit = queue_limit

        self._head = _make_whole(path, decode, warn)
        self._durable = self._head
        self._failure: PoiseError | None = None
        self._closed = False
        self._queue: list[tuple[int, bytes]] = []
        self._checkpoint: StoredCheckpoint | None = None
        self._prune_before = 0
        self._changed = threading.Condition()  # guards the fields above
        self._writing = threading.Lock()  # guards the writing connection
        self._mark = _Mark(_mark_path(path), self._head)
        self._writer = _open_for_writing(path, max_bytes, written_by)
        self._reader = _connect(path)
        self._thread: threading.Thread | None = None
        if call_soon is not None:
            self._thread = threading.Thread(target=self._write_until_closed, name="poise-log", daemon=True)
            self._thread.start()

    @staticmethod
    def open_read_only(path: Path, decode: Callable[[bytes], Event]) -> LogReader[Event]:
        """For tools: reads beside a running control plane, or without one."""
        return LogReader(path, decode)

    def append(self, events: Sequence[Event], *, expected: int) -> int:
        """Queues events behind `expected`, which must be the last revision; returns the revision of the last event."""
        bodies = [_VERSION_BYTE + self._encode(event) for event in events]
        with self._changed:
            self._refuse_append(expected, len(bodies))
            for revision, body in enumerate(bodies, start=expected + 1):
                self._queue.append((revision, body + _checksum(revision, body).to_bytes(_CHECKSUM_BYTES, "little")))
            last = self._head = expected + len(bodies)
            self._changed.notify()
        self._write_if_synchronous()
        return last

    def durable(self) -> int:
        """The last revision that would survive a power cut."""
        return self._durable

    def checkpoint(self, revision: int, state: bytes) -> None:
        """Stores the state as of `revision` once that is durable; the newest request wins, the last two are kept."""
        with self._changed:
            if revision > self._head:
                raise Conflict(f"a checkpoint at revision {revision} is ahead of the log, which ends at {self._head}")
            self._checkpoint = StoredCheckpoint(revision, state)
            self._changed.notify()
        self._write_if_synchronous()

    def prune(self, before_revision: int) -> None:
        """Removes records before `before_revision`, as far as the older checkpoint covers them and `keep` allows."""
        with self._changed:
            self._prune_before = max(self._prune_before, before_revision)
            self._changed.notify()
        self._write_if_synchronous()

    def recover(self) -> bool:
        """After `on_failed`: tries a real write. True if it went through, and appends are accepted again."""
        if self._failure is None:
            return True
        if not isinstance(self._failure, StoreFull):
            return False  # a second writer or a damaged file: only opening the store again can tell what is there
        with self._writing:
            try:
                self._probe()
            except sqlite3.Error:
                return False
        with self._changed:
            self._failure = None
            self._head = self._durable
            self._changed.notify()
        return True

    def close(self) -> None:
        """Commits what is queued, then lets go of the files."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._mark.close()
        self._reader.close()
        self._writer.close()

    def _query(self, statement: str, *parameters: object) -> list[Row]:
        try:
            return self._reader.execute(statement, parameters).fetchall()
        except _READ_ERRORS as error:
            raise _translated(error, self._path) from error

    def _refuse_append(self, expected: int, count: int) -> None:
        if self._closed:
            raise Conflict("the log is closed")
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if expected != self._head:
            raise Conflict(
                "the log has moved on", need=f"revision {expected} as the last", have=f"revision {self._head}"
            )
        waiting = self._head - self._durable
        if waiting + count > self._queue_limit:
            raise Busy(
                "too many events wait for the disk",
                need=f"at most {self._queue_limit}",
                have=f"{waiting} waiting, {count} more",
                hint="try again",
            )

    # The writer's side. Without a writer thread the same steps run inside the owner's call.

    def _write_if_synchronous(self) -> None:
        if self._thread is not None:
            return
        failure = self._write_once()
        if failure is not None:
            raise failure

    def _write_until_closed(self) -> None:
        while True:
            with self._changed:
                while not self._has_work():
                    if self._closed:
                        return
                    if not self._changed.wait(MARK_SYNC_SECONDS if self._mark.unsynced else None):
                        break  # nothing came for a while: time to sync the mark
            self._write_once()

    def _has_work(self) -> bool:
        due = self._checkpoint is not None and self._checkpoint.revision <= self._durable
        return bool(self._queue) or due or self._prune_before > 0

    def _write_once(self) -> PoiseError | None:
        with self._writing:
            outcome = self._write_queue()
        failure = outcome if isinstance(outcome, PoiseError) else None
        if failure is not None and self._thread is not None:
            self._tell(functools.partial(self._announce_failed, failure))
        elif isinstance(outcome, int):  # told without the lock: without a thread the owner may append from inside
            self._tell(functools.partial(self._announce_durable, outcome))
        with self._writing:
            self._write_checkpoint()
            self._prune_some()
            self._mark.sync_if_due()
        return failure

    def _write_queue(self) -> int | PoiseError | None:
        """Commits all that waits in one transaction: the revision that is durable now, or why nothing of it is."""
        with self._changed:
            rows, self._queue = self._queue, []
        if not rows:
            return None
        try:
            with _transaction(self._writer):
                self._refuse_second_writer(rows[0][0] - 1)
                self._writer.executemany("INSERT INTO log VALUES (?, ?)", rows)
        except Exception as error:  # whatever it is: a thread that died would leave the owner waiting for ever
            return self._fail(self._write_error(error))
        self._durable = rows[-1][0]
        self._mark.write(self._durable)
        return self._durable

    def _refuse_second_writer(self, last: int) -> None:
        (found,) = self._writer.execute("SELECT max(revision) FROM log").fetchone()
        if (found or 0) != last:
            raise _second_writer(self._path, need=last, have=found or 0)

    def _fail(self, failure: PoiseError) -> PoiseError:
        with self._changed:
            self._failure = failure
            self._queue.clear()
            self._head = self._durable
            if self._checkpoint is not None and self._checkpoint.revision > self._durable:
                self._checkpoint = None
        return failure

    def _tell(self, announcement: Callable[[], None]) -> None:
        if self._call_soon is None:
            announcement()
            return
        with contextlib.suppress(RuntimeError):  # the owner's loop is closed: nobody is left to tell
            self._call_soon(announcement)

    def _announce_durable(self, revision: int) -> None:
        self.on_durable(revision)

    def _announce_failed(self, failure: PoiseError) -> None:
        self.on_failed(failure)

    def _write_checkpoint(self) -> None:
        """In its own transaction. If it fails, the older ones remain and the log goes on: it saves time, no more."""
        with self._changed:
            wanted = self._checkpoint
            if wanted is None or wanted.revision > self._durable:
                return
            self._checkpoint = None
        try:
            with _transaction(self._writer):
                _insert_checkpoint(self._writer, wanted)
                self._writer.execute(
                    "DELETE FROM checkpoint WHERE revision NOT IN "
                    "(SELECT revision FROM checkpoint ORDER BY revision DESC LIMIT ?)",
                    (CHECKPOINTS_KEPT,),
                )
        except sqlite3.Error as error:
            self._warn(f"the checkpoint at revision {wanted.revision} was not written: {error}")

    def _prune_some(self) -> None:
        """One slice per round, so that commits never wait long; the request stays until nothing is left to remove."""
        with self._changed:
            before = self._prune_before
        if before == 0:
            return
        left = 0
        try:
            left = self._prune_slice(before)
        except sqlite3.Error as error:
            self._warn(f"old records were not removed from `{self._path}`: {error}")
        with self._changed:
            if left == 0 and self._prune_before == before:
                self._prune_before = 0

    def _prune_slice(self, before: int) -> int:
        kept = self._writer.execute("SELECT revision FROM checkpoint ORDER BY revision DESC").fetchall()
        if len(kept) < CHECKPOINTS_KEPT:
            return 0
        bound = min(before, kept[-1][0] + 1, self._durable - self._keep + 1, self._durable)
        (first,) = self._writer.execute("SELECT min(revision) FROM log").fetchone()
        if first is None or first >= bound:
            return 0
        end = bound if self._thread is None else min(bound, first + PRUNE_ROWS)
        with _transaction(self._writer):
            self._writer.execute("DELETE FROM log WHERE revision < ?", (end,))
        return int(bound - end)

    def _probe(self) -> None:
        """Writes and removes a few pages, and starts a new generation of the write-ahead file (see the top)."""
        with _transaction(self._writer):
            self._writer.execute("DELETE FROM probe")
            self._writer.execute("INSERT INTO probe VALUES (zeroblob(?))", (PROBE_BYTES,))
        with _transaction(self._writer):
            self._writer.execute("DELETE FROM probe")
        self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _write_error(self, error: Exception) -> PoiseError:
        if isinstance(error, PoiseError):
            return error
        if isinstance(error, sqlite3.IntegrityError) or _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return _second_writer(self._path, need=self._durable, have=0)
        if _is_damage(error):
            return _translated(error, self._path)
        if _code(error) not in _CANNOT_WRITE:
            return Fault(f"`{self._path}` cannot be written: {error}", hint="start the control plane again")
        limit = f", or the log has reached its limit of {format_bytes(self._max_bytes)}" if self._max_bytes else ""
        return StoreFull(
            f"the log cannot be written: the disk is full{limit} ({error})",
            hint=f"`df -h {self._path.parent}`; appends are accepted again once there is space",
        )


# --- the mark --------------------------------------------------------------------------------------------------------

_MARK_SLOT = struct.Struct("<QI")
_MARK_SLOT_OFFSETS = (0, 512)  # two sectors: a torn write leaves the other one
_MARK_SEED = 0x504F4953


class _Mark:
    """The revision known to be durable, beside the log. A mark that cannot be written stays too low, which is sound."""

    def __init__(self, path: Path, revision: int) -> None:
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _translated(error, path) from error
        self._turn = 0
        self._written_at = monotonic()
        self.unsynced = False
        for _ in _MARK_SLOT_OFFSETS:  # both: the log may have been cut, and an old slot must not outlive that
            self.write(revision)
        self.sync()

    def write(self, revision: int) -> None:
        slot = _MARK_SLOT.pack(revision, _mark_checksum(revision))
        with contextlib.suppress(OSError):
            os.pwrite(self._file, slot, _MARK_SLOT_OFFSETS[self._turn])
        self._turn = 1 - self._turn
        self.unsynced = True

    def sync_if_due(self) -> None:
        if self.unsynced and monotonic() - self._written_at >= MARK_SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        with contextlib.suppress(OSError):
            os.fdatasync(self._file)
        self._written_at = monotonic()
        self.unsynced = False

    def close(self) -> None:
        self.sync()
        os.close(self._file)


def _mark_path(path: Path) -> Path:
    return path.with_suffix(".mark")


def _mark_checksum(revision: int) -> int:
    return crc32(revision.to_bytes(8, "little"), _MARK_SEED)


def _read_mark(path: Path) -> int | None:
    """The higher of the whole slots; none without a file, or with no whole slot in it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    slots = [content[offset : offset + _MARK_SLOT.size] for offset in _MARK_SLOT_OFFSETS]
    pairs = [_MARK_SLOT.unpack(slot) for slot in slots if len(slot) == _MARK_SLOT.size]
    return max((revision for revision, checksum in pairs if checksum == _mark_checksum(revision)), default=None)


# --- opening: look first, then touch ---------------------------------------------------------------------------------


def _make_whole(path: Path, decode: Callable[[bytes], Any], warn: Callable[[str], None]) -> int:
    """Inspects the log as it lies there, cuts a torn tail, refuses anything worse; returns the last revision."""
    mark = _read_mark(_mark_path(path))
    if not path.exists() or path.stat().st_size == 0:
        if mark:
            raise _short(path, 0, mark)
        return 0
    frame = _frame_before_lost_commits(_wal_path(path)) if mark is not None else 0
    reader = _OwnersReader(path, decode, warn=warn)
    try:
        return _settle(path, reader, mark, frame, warn)
    finally:
        reader.close()


def _settle(path: Path, reader: LogReader[Any], mark: int | None, frame: int, warn: Callable[[str], None]) -> int:
    found = reader._inspect()
    if found.torn or found.unreadable:
        promised = (mark or 0) > found.last
        nothing_left = found.whole == 0 and (found.unreadable != "" or found.last > 0)
        if found.following or nothing_left or (found.unreadable and promised):
            raise reader._refused(found)
        saved = _set_aside(path, found.last + 1)
        _cut(path, reader, found.last)
        lost = f"; revisions {found.last + 1} to {mark} had been acknowledged and are lost" if promised else ""
        warn(f"the log was damaged at its end and is cut after revision {found.last}{lost}; a copy is in `{saved}`")
        return found.last
    if mark is not None and found.last < mark:
        raise _short(path, found.last, mark)
    if frame:
        raise _short(path, found.last, found.last + 1, f": frame {frame} of `{_wal_path(path)}` is damaged")
    if mark is None and found.last:
        warn(f"`{_mark_path(path)}` is missing or damaged; the log is taken to end at revision {found.last}")
    return found.last


def _set_aside(path: Path, revision: int) -> Path:
    """Copies the log and its write-ahead file under a name that is free, and under which SQLite would open both."""
    target, turn = path.with_name(f"{path.stem}.damaged-{revision}{path.suffix}"), 1
    while target.exists():
        turn += 1
        target = path.with_name(f"{path.stem}.damaged-{revision}-{turn}{path.suffix}")
    for source, copy in ((path, target), (_wal_path(path), _wal_path(target))):
        if source.exists():
            shutil.copy(source, copy)  # with its mode: nobody else may read it
            _sync(copy)
    return target


def _cut(path: Path, reader: LogReader[Any], last: int) -> None:
    """Writes what is whole to a new file and puts it in the place of the old one.

    A new file, because deleting from one with unreadable pages can fail. The mark goes first: if this is interrupted,
    the next opening finds the same torn tail again. The old write-ahead file goes before the new log arrives, because
    SQLite would apply it to that.
    """
    whole = path.with_name(f"{path.name}.whole")
    for leftover in (whole, _wal_path(whole)):
        leftover.unlink(missing_ok=True)
    target = _open_for_writing(whole, 0, "")
    try:
        with _transaction(target):
            _copy_whole(reader, target, last)
    finally:
        target.close()
    _sync(whole)
    _Mark(_mark_path(path), last).close()
    _wal_path(path).unlink(missing_ok=True)
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    whole.replace(path)
    _sync(path.parent)


def _copy_whole(reader: LogReader[Any], target: sqlite3.Connection, last: int) -> None:
    copied = reader.first_revision() - 1
    while copied < last:
        rows = reader._query(
            "SELECT revision, record FROM log WHERE revision > ? AND revision <= ? ORDER BY revision LIMIT ?",
            copied,
            last,
            min(READ_ROWS, last - copied),
        )
        target.executemany("INSERT INTO log VALUES (?, ?)", rows)
        copied = rows[-1][0]
    for (revision,) in reader._query("SELECT revision FROM checkpoint WHERE revision <= ?", last):
        state = reader._checkpoint_state(revision)
        if state is not None:
            _insert_checkpoint(target, StoredCheckpoint(revision, state))


def _open_for_writing(path: Path, max_bytes: int, written_by: str) -> sqlite3.Connection:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # side files get the same mode
        connection = _connect(path)
    except (sqlite3.Error, OSError) as error:
        raise _translated(error, path) from error
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
        if max_bytes:
            connection.execute(f"PRAGMA max_page_count = {max(1, max_bytes // PAGE_BYTES)}")
        _introduce(connection, written_by)
        _sync(path.parent)
    except (sqlite3.Error, OSError) as error:
        connection.close()
        raise _translated(error, path) from error
    return connection


def _introduce(connection: sqlite3.Connection, written_by: str) -> None:
    """Creates the tables where they are missing and starts a new generation of the write-ahead file.

    Writes nothing to a log that is as it should be, so that one on a full disk can still be opened and read.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != FORMAT:
        with _transaction(connection):
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {FORMAT}")
    about = ("written_by", written_by)
    if written_by and not connection.execute("SELECT 1 FROM about WHERE name = ? AND value = ?", about).fetchall():
        with _transaction(connection):
            connection.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", about)
    with contextlib.suppress(sqlite3.OperationalError):  # the disk is full: frames stay where they are
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False)
    connection.text_factory = bytes  # a text where a record should be must arrive, to be found wrong
    return connection


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # SQLite has often rolled back by itself
            connection.execute("ROLLBACK")
        raise


def _insert_checkpoint(connection: sqlite3.Connection, checkpoint: StoredCheckpoint) -> None:
    revision, state = checkpoint
    connection.execute(
        "INSERT OR REPLACE INTO checkpoint VALUES (?, ?, ?)", (revision, state, _checksum(revision, state))
    )


# --- the write-ahead file --------------------------------------------------------------------------------------------

_WAL_HEADER = struct.Struct(">8I")  # magic, version, page size, sequence, two salts, two checksums
_WAL_FRAME = struct.Struct(">6I")  # page, pages after a commit (0: not a commit), two salts, two checksums
_WAL_LITTLE_ENDIAN = 0x377F0682
_INDEX_FRAMES = slice(16, 20)  # how many frames the index knows
_INDEX_SALTS = slice(32, 40)


def _frame_before_lost_commits(wal: Path) -> int:
    """The number of the damaged frame behind which synced commits lie, 0 if there is none.

    Frames of one generation share two salts. SQLite believes them up to the first wrong checksum; of what follows, one
    commit may be a transaction torn by a crash, a second one proves that the first had been synced.
    """
    content = wal.read_bytes() if wal.exists() else b""
    generation = _wal_generation(content[: _WAL_HEADER.size])
    if generation is None:
        return 0  # SQLite starts anew; whether anything is missing, the mark tells
    order, page_size, salts, checksum = generation
    broken, commits = 0, 0
    size = _WAL_FRAME.size + page_size
    for number, start in enumerate(range(_WAL_HEADER.size, len(content) - size + 1, size), start=1):
        _, pages, salt, salt_2, *stored = _WAL_FRAME.unpack_from(content, start)
        same_generation = (salt, salt_2) == salts
        if not broken:
            checksum = _wal_checksum(content[start : start + 8], order, checksum)
            checksum = _wal_checksum(content[start + _WAL_FRAME.size : start + size], order, checksum)
            if not same_generation or checksum != tuple(stored):
                broken = number
        if broken:
            commits += same_generation and pages > 0
    return broken if commits > 1 else 0


class _Generation(NamedTuple):
    """What the header of a write-ahead file says."""

    order: str
    page_size: int
    salts: tuple[int, int]
    checksum: tuple[int, int]


def _wal_generation(header: bytes) -> _Generation | None:
    """None for a header that is missing or damaged: SQLite then ignores the whole file."""
    if len(header) < _WAL_HEADER.size:
        return None
    magic, _, page_size, _, salt, salt_2, *stored = _WAL_HEADER.unpack(header)
    order = "little" if magic == _WAL_LITTLE_ENDIAN else "big"
    checksum = _wal_checksum(header[: _WAL_HEADER.size - 8], order, (0, 0))
    if checksum != tuple(stored) or page_size == 0:
        return None
    return _Generation(order, page_size, (salt, salt_2), checksum)


def _wal_checksum(content: bytes, order: str, start: tuple[int, int]) -> tuple[int, int]:
    """SQLite's own sum over pairs of 32-bit words."""
    words = array("I", content)
    if order != byteorder:
        words.byteswap()
    first, second = start
    pairs = iter(words)
    for even, odd in zip(pairs, pairs, strict=True):
        first = (first + even + second) & _LOW_32_BITS
        second = (second + odd + first) & _LOW_32_BITS
    return first, second


def _has_index(path: Path) -> bool:
    """Whether the index beside the write-ahead file is of its generation; with another one SQLite waits for 10 s."""
    try:
        with _wal_path(path).open("rb") as file:
            header = file.read(_WAL_HEADER.size)
        with path.with_name(f"{path.name}-shm").open("rb") as file:
            index = file.read(_INDEX_SALTS.stop)
    except FileNotFoundError:
        return False
    generation = _wal_generation(header)
    if generation is None:
        return not header and not any(index[_INDEX_FRAMES])
    return index[_INDEX_SALTS] == struct.pack(">2I", *generation.salts)


def _wal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


# --- small things ----------------------------------------------------------------------------------------------------


def _checksum(revision: int, content: bytes) -> int:
    """CRC-32 that starts from the revision: the same bytes under another revision never match."""
    return crc32(content, revision & _LOW_32_BITS)


def _is_whole(revision: int, record: object) -> bool:
    return (
        isinstance(record, bytes)
        and len(record) >= _SHORTEST_RECORD
        and _checksum(revision, record[:-_CHECKSUM_BYTES]) == int.from_bytes(record[-_CHECKSUM_BYTES:], "little")
    )


def _footprint(path: Path) -> tuple[int, ...]:
    """Changes when a control plane opens the log, writes, or closes it."""
    footprint: list[int] = []
    for file in (path, _wal_path(path)):
        with contextlib.suppress(FileNotFoundError):
            status = file.stat()
            footprint += (status.st_ino, status.st_mtime_ns, status.st_size)
    return tuple(footprint)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _code(error: BaseException) -> int:
    """SQLite's primary result code, 0 where there is none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _is_damage(error: BaseException) -> bool:
    """SQLITE_ERROR is about the statement; ours are fixed, so it is a table or a header that is not what it was."""
    damage = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
    return isinstance(error, UnicodeDecodeError) or _code(error) in damage


def _translated(error: Exception, path: Path) -> PoiseError:
    if _is_damage(error):
        return StoreDamaged(f"`{path}` cannot be read: {error}", hint=_restore_hint(path))
    if _code(error) == sqlite3.SQLITE_BUSY:
        return Busy(f"`{path}` is in use: {error}", hint="try again")
    if _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR) or isinstance(error, OSError):
        return StoreFull(f"`{path}` cannot be read or written: {error}", hint=f"`df -h {path.parent}`")
    return Fault(f"`{path}` cannot be opened or read: {error}", hint=f"`ls -l {path.parent}`")


def _second_writer(path: Path, *, need: int, have: int) -> Conflict:
    found = f"revision {have}" if have else "a lock or a record that is not ours"
    return Conflict(
        f"somebody else writes to `{path}`",
        code="E204",
        need=f"revision {need} as the last",
        have=found,
        hint=f"`fuser {path}` names the process; stop one of the two",
    )


def _short(path: Path, last: int, promised: int, detail: str = "") -> StoreDamaged:
    return StoreDamaged(
        f"the log ends at revision {last}, but revision {promised} had been made durable in `{path}`{detail}",
        need=f"revision {promised}",
        have=f"revision {last}",
        hint=f"restore a backup, or `rm {_mark_path(path)}` to go on from revision {last} without what is lost",
    )


def _restore_hint(path: Path) -> str:
    aside = path.parent / "damaged"
    return f"restore a backup, or `mkdir {aside} && mv {path.parent}/{path.stem}.* {aside}` to begin an empty log"


def _ignore(_: object) -> None:
    """What is called until the owner says otherwise."""
