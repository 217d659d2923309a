"""Reads a log from any database; every record is verified when it is read."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from poise.errors import PoiseError, StoreNewer, newer
from poise.model.record import FORMAT, is_readable, is_whole, unseal
from poise.ports import StoredCheckpoint

Event = TypeVar("Event")

READ_ROWS = 5_000  # rows per query: short read transactions let a database clean up

log = logging.getLogger("poise.drivers.log")


class VerifiedLog(ABC, Generic[Event]):
    """`name` identifies the log in messages: a file, or a database."""

    def __init__(self, name: str, decode: Callable[[bytes], Event], warn: Callable[[str], None]) -> None:
        self._name = name
        self._decode = decode
        self._warn = warn

    def read(self, after: int = 0, limit: int = 0) -> Iterator[tuple[int, Event]]:
        """Yield events from revision `after + 1` on, or from `first_revision()` if earlier ones were pruned.

        A `limit` of 0 means all. Raises `StoreDamaged` or `StoreNewer` at the first record that is invalid or unknown.
        """
        last = max(after, self.first_revision() - 1)
        end = last + limit
        while rows := self._rows(last, min(end - last, READ_ROWS) if limit else READ_ROWS):
            for revision, record in rows:
                if revision != last + 1 or not is_whole(revision, record):
                    raise self._damaged(f"the log is damaged at revision {last + 1} in `{self._name}`")
                yield revision, self._decoded(revision, record)
                last = revision

    def latest_checkpoint(self) -> StoredCheckpoint | None:
        """Return the newest intact checkpoint; damaged ones are skipped with a warning.

        Raises `StoreDamaged` if there is none and the log alone cannot restore the state, because it was pruned.
        """
        found = self._first_whole(reversed(self._checkpoints()), "an older")
        if found is None and (first := self.first_revision()) > 1:
            raise self._nowhere_to_begin(first)
        return found

    def checkpoints(self) -> Iterator[StoredCheckpoint]:
        """Return every intact checkpoint, the newest first."""
        found = map(self._whole_checkpoint, reversed(self._checkpoints()))
        return (one for one in found if one is not None)

    def oldest_checkpoint(self) -> StoredCheckpoint | None:
        """Return the oldest intact checkpoint after which every event remains; None in a log that was not pruned.

        Raises `StoreDamaged` if a pruned log has none.
        """
        first = self.first_revision()
        if first == 1:
            return None
        found = self._first_whole((one for one in self._checkpoints() if one >= first - 1), "a later")
        if found is None:
            raise self._nowhere_to_begin(first)
        return found

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def first_revision(self) -> int:
        """Return the oldest remaining revision: 1 until the log is pruned."""

    @abstractmethod
    def last_revision(self) -> int:
        """Return the newest committed revision; 0 in an empty log."""

    @abstractmethod
    def written_by(self) -> str:
        """Return the version of Poise that last wrote the log; "" if it is unknown."""

    @abstractmethod
    def _rows(self, after: int, count: int) -> list[tuple[int, Any]]:
        """Return up to `count` records after this revision, in order."""

    @abstractmethod
    def _checkpoints(self) -> list[int]:
        """Return the revisions of all checkpoints, in order."""

    @abstractmethod
    def _whole_checkpoint(self, revision: int) -> StoredCheckpoint | None:
        """Return the checkpoint; None if it is damaged."""

    @abstractmethod
    def _damaged(self, message: str) -> PoiseError: ...

    def _first_whole(self, revisions: Iterable[int], other: str) -> StoredCheckpoint | None:
        for revision in revisions:
            checkpoint = self._whole_checkpoint(revision)
            if checkpoint is not None:
                return checkpoint
            self._warn(f"the checkpoint at revision {revision} in `{self._name}` is damaged; {other} state is used")
        return None

    def _nowhere_to_begin(self, first: int) -> PoiseError:
        return self._damaged(
            f"the log begins at revision {first} and `{self._name}` has no whole checkpoint to begin from"
        )

    def _decoded(self, revision: int, record: bytes) -> Event:
        if not is_readable(record):
            raise self._newer(f"revision {revision} of the log has format {record[0]}; this version reads {FORMAT}")
        try:
            return self._decode(unseal(record))
        except Exception as error:  # the checksum is valid, so the content was written on purpose
            raise self._newer(f"revision {revision} holds an event unknown to this version: {error}") from error

    def _newer(self, message: str) -> StoreNewer:
        return newer(message, self.written_by())
