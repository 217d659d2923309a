"""Group commit for any database: the owner's thread queues events; a writer thread commits all queued events in one
transaction and notifies the owner.

There are two locks. `_changed` guards the state shared by both threads and is held briefly; `_writing` guards the
writer and is held while the disk works. Code that needs both acquires `_writing` first. Without a writer thread the
same steps run inside the owner's call.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from poise.errors import Busy, Conflict, PoiseError, StoreFull
from poise.model.record import seal
from poise.ports import StoredCheckpoint

QUEUE_LIMIT = 100_000
"""Maximum number of events that are not yet durable; more are refused with `Busy`."""

GROUP_LIMIT = 20_000
"""Maximum number of events in one commit."""

KEEP = 1_000_000
"""Minimum number of events that pruning leaves in the log, for history and replay."""


class Writer(Protocol):
    """Commits to a database, one call at a time. Every failure is raised as a `PoiseError`."""

    def append(self, rows: list[tuple[int, bytes]]) -> None:
        """Commit the rows in one transaction, or none of them."""

    def add_checkpoint(self, checkpoint: StoredCheckpoint) -> None: ...

    def prune(self, before: int) -> bool:
        """Remove one slice of the records before `before` that the older checkpoint covers. True if more are left."""

    def probe(self) -> None:
        """Raise unless there is room to write."""

    def rest(self) -> float | None:
        """Do periodic maintenance between two commits. Return the seconds until it is due again; None: after the next
        commit.
        """

    def close(self) -> None: ...


class GroupedStore:
    """The writing half of the `Store` port. All methods belong to one thread, the owner's.

    `call_soon` runs a function on the owner's thread (`loop.call_soon_threadsafe`). Without it there is no writer
    thread: `append` commits before it returns, and raises what would otherwise go to `on_failed`. `warn` may be called
    on the writer thread.
    """

    _writer: Writer

    def __init__(
        self,
        encode: Callable[[Any], bytes],
        *,
        call_soon: Callable[[Callable[[], None]], object] | None,
        warn: Callable[[str], None],
        keep: int,
        queue_limit: int,
    ) -> None:
        self.on_durable: Callable[[int], None] = lambda _: None
        self.on_failed: Callable[[Exception], None] = lambda _: None
        self._encode = encode
        self._call_soon = call_soon
        self._warn = warn
        self._keep = keep
        self._queue_limit = queue_limit

        self._head = self._durable = 0
        self._failure: PoiseError | None = None
        self._closed = False
        self._queue: list[tuple[int, bytes]] = []
        self._checkpoint: StoredCheckpoint | None = None
        self._prunes = False
        self._changed = threading.Condition()  # guards the fields above
        self._writing = threading.Lock()  # guards the writer
        self._thread: threading.Thread | None = None

    def _begin(self, writer: Writer, durable: int) -> None:
        """Start writing after this revision."""
        self._writer = writer
        self._head = self._durable = durable
        if self._call_soon is not None:
            self._thread = threading.Thread(target=self._write_until_closed, name="poise-log", daemon=True)
            self._thread.start()

    def append(self, events: Sequence[Any], *, expected: int) -> int:
        """Queue events after `expected`, which must be the last revision; return the revision of the last event."""
        encode = self._encode
        rows = [(revision, seal(revision, encode(event))) for revision, event in enumerate(events, start=expected + 1)]
        with self._changed:
            self._refuse_append(expected, len(rows))
            self._queue += rows
            last = self._head = expected + len(rows)
            self._changed.notify()
        self._write_if_synchronous()
        return last

    def durable(self) -> int:
        """Return the last revision that would survive a power cut."""
        return self._durable

    def checkpoint(self, revision: int, state: bytes) -> None:
        """Store the state as of `revision` once that is durable. The newest request wins; the last two checkpoints are
        kept."""
        with self._changed:
            if revision > self._head:
                raise Conflict(f"a checkpoint at revision {revision} is ahead of the log, which ends at {self._head}")
            self._checkpoint = StoredCheckpoint(revision, state)
            self._changed.notify()
        self._write_if_synchronous()

    def recover(self) -> bool:
        """Try a real write after `on_failed`. Return True if it succeeded and appends are accepted again."""
        if self._failure is None:
            return True
        if not isinstance(self._failure, StoreFull):
            return False  # a second writer or a damaged file: the store must be opened again
        try:
            with self._writing:
                self._writer.probe()
        except PoiseError:
            return False
        with self._changed:
            self._failure = None
        return True

    def close(self) -> None:
        """Commit all queued events, then close the database."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._let_go()

    def _let_go(self) -> None:
        self._writer.close()

    def _refuse_append(self, expected: int, count: int) -> None:
        if self._closed:
            raise Conflict("the log is closed")
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if expected != self._head:
            have = f"revision {self._head}"  # another process has written to the log
            raise Conflict(
                "the log has changed meanwhile", code="E204", need=f"revision {expected} as the last", have=have
            )
        waiting = self._head - self._durable
        if waiting + count > self._queue_limit:
            need, have = f"at most {self._queue_limit}", f"{waiting} waiting, {count} more"
            raise Busy("too many events wait for the disk", need=need, have=have, hint="retry")

    # The writer's side.

    def _write_if_synchronous(self) -> None:
        while self._thread is None and self._has_work():
            failure = self._write_once()
            self._rest()
            if failure is not None:
                raise failure

    def _write_until_closed(self) -> None:
        try:
            self._write_as_it_comes()
        except Exception as error:  # the state of the log is unknown: the control plane must restart from it
            have = f"{type(error).__name__}: {error}"
            failure = Conflict("the log is no longer written", code="E204", have=have)
            self._fail(failure)
            self._tell(lambda: self.on_failed(failure))

    def _write_as_it_comes(self) -> None:
        rest = self._rest()
        while True:
            with self._changed:
                while not self._has_work():
                    if self._closed:
                        return
                    if not self._changed.wait(rest):
                        break  # timeout
            failure = self._write_once()
            rest = self._rest()
            if failure is not None:
                self._tell(lambda failure=failure: self.on_failed(failure))  # type: ignore[misc]

    def _has_work(self) -> bool:
        due = self._checkpoint is not None and self._checkpoint.revision <= self._durable
        return bool(self._queue) or due or self._prunes

    def _write_once(self) -> PoiseError | None:
        before = self._durable
        with self._writing:
            failure = self._write_queue()
            durable = self._durable
        if durable > before:  # notify without the lock: without a thread the owner may append inside
            self._tell(lambda: self.on_durable(durable))
        with self._writing:
            self._write_checkpoint()
            self._prune_some()
        return failure

    def _rest(self) -> float | None:
        with self._writing:
            return self._writer.rest()

    def _write_queue(self) -> PoiseError | None:
        """Commit the queued events in one transaction. If that fails, drop all of them and return the reason."""
        with self._changed:
            rows, self._queue = self._queue[:GROUP_LIMIT], self._queue[GROUP_LIMIT:]
        if not rows:
            return None
        try:
            self._writer.append(rows)
        except PoiseError as failure:
            self._fail(failure)
            return failure
        self._durable = rows[-1][0]
        return None

    def _fail(self, failure: PoiseError) -> None:
        with self._changed:
            self._failure = failure
            self._queue.clear()
            self._head = self._durable
            if self._checkpoint is not None and self._checkpoint.revision > self._durable:
                self._checkpoint = None

    def _tell(self, announcement: Callable[[], None]) -> None:
        if self._call_soon is None:
            announcement()
        else:
            with contextlib.suppress(RuntimeError):  # the owner's loop is closed
                self._call_soon(announcement)

    def _write_checkpoint(self) -> None:
        """Write a checkpoint in its own transaction. If it fails, the older ones remain and the log continues, since a
        checkpoint only saves time.
        """
        with self._changed:
            wanted = self._checkpoint
            if wanted is None or wanted.revision > self._durable:
                return
            self._checkpoint = None
        try:
            self._writer.add_checkpoint(wanted)
            self._prunes = True
        except PoiseError as error:
            self._warn(f"the checkpoint at revision {wanted.revision} was not written: {error}")

    def _prune_some(self) -> None:
        """Remove old records after each checkpoint, as far as the older checkpoint covers them and `keep` allows.
        Remove one slice per round, so that commits never wait long.
        """
        before = min(self._durable - self._keep + 1, self._durable)
        try:
            self._prunes = self._prunes and before > 1 and self._writer.prune(before)
        except PoiseError as error:
            self._warn(f"old records were not removed: {error}")
            self._prunes = False
