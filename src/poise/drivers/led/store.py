"""The `Store` port on a log that all control planes read and the leader writes."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic

from poise.drivers.grouped import GroupedStore, Writer
from poise.drivers.verified import Event, VerifiedLog
from poise.errors import Conflict, NotLeading, PoiseError, StoreFull

AGAIN_SECONDS = 0.1
"""Retry delay of a commit in seconds, while the store is unreachable."""

LARGE = 60.0
"""Time limit in seconds for reading or writing a checkpoint."""

CHECKPOINTS_KEPT = 2

PROBE_BYTES = 64 * 2**10  # several commits of ordinary size, which a store cannot compress

Rows = Sequence[tuple[int, bytes]]


class LedWriter(Writer):
    """Commits in its `term`. `name` identifies the store in messages."""

    def __init__(self, name: str, warn: Callable[[str], None]) -> None:
        self.term = 0
        self.closing = threading.Event()
        self._name = name
        self._warn = warn

    def append(self, rows: list[tuple[int, bytes]]) -> None:
        """Commit rows; retry while the store is unreachable or unusable, until they are stored or another one leads."""
        told = False
        while True:
            try:
                return self._append(rows)
            except (Conflict, NotLeading, StoreFull):
                raise
            except PoiseError as error:
                if self.closing.is_set():
                    raise
                if not told:
                    self._warn(f"commits wait: {error}")
                    told = True
                self.closing.wait(AGAIN_SECONDS)

    @abstractmethod
    def _append(self, rows: Rows) -> None:
        """Try once to commit rows. Identical rows that are already stored count as committed."""

    @abstractmethod
    def sign(self, written_by: str) -> None:
        """Record the version that writes from now on, and its format."""

    def rest(self) -> float | None:
        return None

    def _check_leads(self, term: int, holder: str) -> None:
        """Check the term. `term` and `holder` are the store's."""
        if term != self.term:
            raise NotLeading("another control plane leads", need=f"term {self.term}", have=f"term {term} of {holder}")

    def _check_there(self, rows: Rows, found: Rows) -> None:
        """Check the rows at the position of the new ones: if only the answer was lost, they are identical."""
        if list(map(tuple, found)) != list(rows):
            raise Conflict(
                f"somebody else writes to `{self._name}`",
                code="E204",
                need=f"revision {rows[0][0] - 1} as the last",
                have=f"{len(found)} records behind it",
            )


def parts_of(rows: Rows, most: int) -> Iterator[Rows]:
    """Yield parts of at most `most` bytes, in order, each with at least one record."""
    begin = size = 0
    for number, (_, record) in enumerate(rows):
        if size + len(record) > most and number > begin:
            yield rows[begin:number]
            begin, size = number, 0
        size += len(record)
    yield rows[begin:]


class LedStore(GroupedStore, Generic[Event]):
    """Refuses appends (`NotLeading`) until `lead` is called. Otherwise the same as `GroupedStore`."""

    def __init__(
        self,
        log: VerifiedLog[Event],
        writer: LedWriter,
        encode: Callable[[Event], bytes],
        *,
        call_soon: Callable[[Callable[[], None]], object] | None,
        warn: Callable[[str], None],
        keep: int,
        queue_limit: int,
        written_by: str,
    ) -> None:
        super().__init__(encode, call_soon=call_soon, warn=warn, keep=keep, queue_limit=queue_limit)
        self._failure = NotLeading("there is no leader here")
        self._log = log
        self._written_by = written_by
        self._writer = self._leader = writer
        self.read, self.first_revision, self.written_by = log.read, log.first_revision, log.written_by
        self.latest_checkpoint, self.oldest_checkpoint = log.latest_checkpoint, log.oldest_checkpoint

    def lead(self, term: int) -> int:
        """Write in this newly won term from now on. Return the last revision, to which no one else can add."""
        self._leader.term = term
        if self._written_by:
            self._leader.sign(self._written_by)
        last = self._log.last_revision()
        self._failure = None
        self._begin(self._leader, last)
        return last

    def close(self) -> None:
        """Commit queued events, unless the store is unreachable."""
        self._leader.closing.set()
        super().close()

    def _let_go(self) -> None:
        self._leader.close()
        self._log.close()
