"""Reads a whole log from its first remaining record: the log of a home, or an exported one.

An exported log is one file that can be sent, stored and replayed elsewhere; `poise replay --export` writes it.

    poise log 1                    a line that identifies the format
    frame                          the head: the version that wrote the log, and its initial state if it was pruned
    frame, frame, …                the records, as in the log

A frame is four bytes of length, most significant first, and a record (`model/record`): format, content, checksum. The
head is the record of the revision of its state, or 0 without one.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Generic, NamedTuple, TypeVar

import msgspec

from poise.config import Home
from poise.decoding import msgpack_decoder
from poise.drivers.sqlite import LogReader
from poise.drivers.sqlite.mark import read_mark
from poise.drivers.verified import VerifiedLog
from poise.errors import InputError, NotFound, StoreDamaged, StoreNewer, newer
from poise.model.record import FORMAT, is_readable, is_whole, seal, unseal
from poise.ports import StoredCheckpoint

MAGIC = b"poise log 1\n"
FOR_EVER = 2**63

DATABASE = ".db"
"""Suffix of a home's log; a copy of it may have any name."""
_LENGTH = 4

Event = TypeVar("Event")


class _Head(msgspec.Struct, frozen=True):
    written_by: str
    revision: int = 0
    state: bytes = b""


def write_log(path: Path, events: Iterable[bytes], *, start: StoredCheckpoint | None, written_by: str) -> int:
    """Write encoded events that follow `start`, or all from the first one, atomically. Return the last revision. Only
    the owner can read the file, because a log contains commands and environments. Raises `InputError`, also if the file
    exists.
    """
    if path.exists():
        raise InputError("this file exists already", field=str(path), hint="another name")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    revision, state = start or StoredCheckpoint(0, b"")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(MAGIC)
            _write(file, seal(revision, msgspec.msgpack.encode(_Head(written_by, revision, state))))
            for event in events:
                revision += 1
                _write(file, seal(revision, event))
        draft.replace(path)
    except OSError as error:
        raise InputError(
            f"the log cannot be written: {error.strerror}",
            field=str(path),
            hint="use `--export FILE` in a writable folder",
        ) from None
    finally:
        draft.unlink(missing_ok=True)
    return revision


class Recording(NamedTuple, Generic[Event]):
    """The initial state of a log, if earlier records were pruned; every event after it, which can be iterated more than
    once; and the version that wrote it.
    """

    start: StoredCheckpoint | None
    events: "Iterable[Event]"
    written_by: str


def has_log(home: Home) -> bool:
    """Return whether a home has a log. A deleted log leaves its mark."""
    return home.log.exists() or home.store.exists() or bool(read_mark(home.log))


def read_home(home: Home, decode: Callable[[bytes], Event]) -> VerifiedLog[Event]:
    """Open the log of a home, with or without a running control plane: in its folder, or in a shared store. Raises
    `StoreDamaged` if its end is missing, or all of it.
    """
    if not home.store.exists():
        reader = LogReader(home.log, decode)
        try:
            reader.refuse_short()
        except BaseException:
            reader.close()
            raise
        return reader
    from poise.drivers.led import log_at  # imports asyncio and the driver's library

    return log_at(home.store.read_text().strip(), decode)


@contextlib.contextmanager
def open_log(path: Path, decode: Callable[[bytes], Event], until: int = 0) -> Iterator[Recording[Event]]:
    """Open the log of a home (a folder), which may be written meanwhile, a copy of one, or an exported log; up to
    revision `until`, or up to the current end.

    Raises `InputError` if it is none of these, `StoreDamaged` and `StoreNewer`, also while events are read.
    """
    if not (has_log(Home(path)) if path.is_dir() else path.is_file()):
        raise NotFound("there is no log", field=str(path), hint="a log.db of a home, or an exported log")
    if path.is_file() and path.suffix != DATABASE and not _is_database(path):
        file = LogFile(path, decode)
        yield Recording(file.start, _Again(file.read, until or FOR_EVER), file.written_by)
        return
    with contextlib.closing(read_home(Home(path), decode) if path.is_dir() else LogReader(path, decode)) as reader:
        last = reader.last_revision()
        start = reader.oldest_checkpoint()
        after = start.revision if start is not None else 0
        events = _Again(lambda: reader.read(after), min(until or last, last))
        yield Recording(start, events, reader.written_by())


class _Again(Generic[Event]):
    """Events up to a revision, which can be iterated more than once."""

    def __init__(self, read: Callable[[], Iterator[tuple[int, Event]]], last: int) -> None:
        self._read = read
        self._last = last

    def __iter__(self) -> Iterator[Event]:
        for revision, event in self._read():
            if revision > self._last:
                return
            yield event


class LogFile(Generic[Event]):
    """An exported log. Every record is verified when it is read.

    Raises `InputError` if it is not such a file, and `StoreDamaged` and `StoreNewer` as a log does.
    """

    def __init__(self, path: Path, decode: Callable[[bytes], Event]) -> None:
        self._path = path
        self._decode = decode
        with self._opened() as file:
            head = self._head(file)
        self.start = StoredCheckpoint(head.revision, head.state) if head.revision else None
        self.written_by = head.written_by

    def read(self) -> Iterator[tuple[int, Event]]:
        """Yield revisions and events after `start`."""
        with self._opened() as file:
            revision = self._head(file).revision
            while (record := self._next(file, revision + 1)) is not None:
                revision += 1
                try:
                    yield revision, self._decode(self._content(record, revision))
                except msgspec.MsgspecError as error:  # the checksum is valid: this content was written on purpose
                    raise self._newer(f"revision {revision} holds an event unknown to this version: {error}") from error

    def _opened(self) -> BinaryIO:
        try:
            return self._path.open("rb")
        except OSError as error:
            hint = f"`ls -l {self._path.parent}`"
            raise InputError(f"the log cannot be read: {error.strerror}", field=str(self._path), hint=hint) from None

    def _head(self, file: BinaryIO) -> _Head:
        if file.read(len(MAGIC)) != MAGIC:
            hint = "a log.db of a home, or what `poise replay --export FILE` wrote"
            raise InputError("this file is not a log", field=str(self._path), hint=hint)
        record = _read(file)
        try:
            content = unseal(record or b"")
            head = msgpack_decoder(_Head).decode(content)
        except msgspec.MsgspecError:
            if record and not is_readable(record):
                raise newer(f"`{self._path}` has format {record[0]}; this version reads {FORMAT}", "") from None
            raise self._damaged("its head cannot be read") from None
        self.written_by = head.written_by
        if record is None or not is_whole(head.revision, record):
            raise self._damaged("its head is not what was written")
        self._content(record, head.revision)
        return head

    def _next(self, file: BinaryIO, revision: int) -> bytes | None:
        record = _read(file)
        if record is not None and not is_whole(revision, record):
            raise self._damaged(f"it is damaged at revision {revision}")
        return record

    def _content(self, record: bytes, revision: int) -> bytes:
        if not is_readable(record):
            raise self._newer(f"revision {revision} has format {record[0]}; this version reads {FORMAT}")
        return unseal(record)

    def _damaged(self, what: str) -> StoreDamaged:
        return StoreDamaged(
            f"`{self._path}`: {what}", hint="`poise replay --export FILE` once more, where it came from"
        )

    def _newer(self, message: str) -> StoreNewer:
        return newer(f"`{self._path}`: {message}", self.written_by)


def _is_database(path: Path) -> bool:
    """Return whether it has the header of an SQLite file (sqlite.org/fileformat2.html)."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"
    return False


def _write(file: BinaryIO, record: bytes) -> None:
    file.write(len(record).to_bytes(_LENGTH, "big") + record)


def _read(file: BinaryIO) -> bytes | None:
    """Read the next record; return empty bytes if it is truncated, and None at the end."""
    length = file.read(_LENGTH)
    if not length:
        return None
    record = file.read(int.from_bytes(length, "big"))
    return record if len(record) == int.from_bytes(length, "big") else b""
