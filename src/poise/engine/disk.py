"""The log on a simulated disk that can be full, lose unsynced data, tear its tail, and flip bits.

`SimulatedDisk` holds the data and outlives every process; `SimulatedStore` is the `Store` port of one process on it. An
append has four steps (queued, written, synced, acknowledged); its process may die after each. Opening works as in the
SQLite store: an incomplete record after the last durable one is truncated with a warning; any other damage is an error.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random

from poise.engine.timeline import Process
from poise.errors import Conflict, PoiseError, StoreDamaged, StoreFull
from poise.model.events import Event, decode_event, encode_event
from poise.model.record import checksum, is_whole, seal, unseal
from poise.ports import StoredCheckpoint
from poise.units import MILLISECOND

SYNC_DELAY = 2 * MILLISECOND
"""Sync time of an ordinary disk."""


class SimulatedDisk:
    """Records 1, 2, 3 … of the log, the first `synced` of them safe from a power cut, and ledger checkpoints."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.synced = 0
        self.mark = 0
        self.checkpoints: list[tuple[int, bytes, int]] = []
        self.full = False
        self.write_delay = MILLISECOND // 5
        self.sync_delay = SYNC_DELAY
        self._flipped: list[tuple[int, bytes]] = []

    def lose_power(self, random: Random) -> None:
        """Keep a random part of the records that were written but not synced; the last one may be torn."""
        kept = random.randint(self.synced, len(self.records))
        lost = self.records[kept : kept + 1]
        del self.records[kept:]
        if lost and random.random() < 0.5:
            self.records.append(lost[0][: random.randrange(1, len(lost[0]))])

    def flip_bit(self, random: Random) -> bool:
        """Flip one bit of a durable record; `restore` undoes it. Return False if there is no durable record."""
        if not self.synced:
            return False
        place = random.randrange(self.synced)
        record = self.records[place]
        self._flipped.append((place, record))
        bit = random.randrange(len(record) * 8)
        changed = bytearray(record)
        changed[bit // 8] ^= 1 << (bit % 8)
        self.records[place] = bytes(changed)
        return True

    @property
    def damaged(self) -> bool:
        return bool(self._flipped)

    def restore(self) -> None:
        """Restore the copy of the log, as a person would."""
        for place, record in reversed(self._flipped):
            self.records[place] = record
        self._flipped.clear()

    def sound(self, start: int, end: int) -> list[bytes]:
        """Return the records as they were written, without later corruption."""
        records = self.records[start:end]
        for place, record in reversed(self._flipped):
            if start <= place < end:
                records[place - start] = record
        return records


class SimulatedStore:
    """The `Store` of one process. It reports truncation to `warn`; opening a damaged log raises `StoreDamaged`."""

    def __init__(
        self, disk: SimulatedDisk, process: Process, warn: Callable[[str], None], step: Callable[[], None]
    ) -> None:
        """`step` is called before each step of a commit; the process may die there."""
        self.on_durable: Callable[[int], None] = lambda _: None
        self.on_failed: Callable[[Exception], None] = lambda _: None
        self._disk = disk
        self._process = process
        self._step = step
        self._make_whole(warn)
        self._head = self._durable = len(disk.records)
        self._queue: list[bytes] = []
        self._checkpoint: StoredCheckpoint | None = None
        self._failure: PoiseError | None = None
        self._busy = False

    def _make_whole(self, warn: Callable[[str], None]) -> None:
        disk = self._disk
        last = next(
            (at for at, record in enumerate(disk.records) if not is_whole(at + 1, record)),
            len(disk.records),
        )
        if last < disk.mark or last < len(disk.records) - 1:
            raise StoreDamaged(f"record {last + 1} of the log is damaged", hint="restore the copy")
        if last < len(disk.records):
            warn(f"the log was damaged at its end and is cut after revision {last}")
            del disk.records[last:]
        disk.synced = disk.mark = last  # opening syncs what it found
        disk.checkpoints = [kept for kept in disk.checkpoints if kept[0] <= last]

    def append(self, events: Sequence[Event], *, expected: int) -> int:
        self._step()
        if self._failure is not None:
            raise self._failure
        if expected != self._head:
            raise Conflict("the log has changed meanwhile", code="E204", need=str(expected), have=str(self._head))
        self._queue += [seal(at, encode_event(event)) for at, event in enumerate(events, start=expected + 1)]
        self._head = expected + len(events)
        self._go_on()
        self._step()
        return self._head

    def durable(self) -> int:
        return self._durable

    def read(self, after: int = 0, limit: int = 0) -> Iterator[tuple[int, Event]]:
        records = self._disk.records[after : after + limit if limit else None]
        for revision, record in enumerate(records, start=after + 1):
            if not is_whole(revision, record):
                raise StoreDamaged(f"record {revision} of the log is damaged", hint="restore the copy")
            yield revision, decode_event(unseal(record))

    def checkpoint(self, revision: int, state: bytes) -> None:
        self._checkpoint = StoredCheckpoint(revision, state)
        self._go_on()

    def latest_checkpoint(self) -> StoredCheckpoint | None:
        for revision, state, checked in reversed(self._disk.checkpoints):
            if checksum(revision, state) == checked:
                return StoredCheckpoint(revision, state)
        return None

    def written_by(self) -> str:
        return ""

    def recover(self) -> bool:
        """Clear the failure if the disk has space again. A log lost to another process must be reopened instead."""
        if isinstance(self._failure, StoreFull) and not self._disk.full:
            self._failure = None
        return self._failure is None

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    # the writer's side: one commit at a time, of all queued records

    def _go_on(self) -> None:
        if not self._busy and (self._queue or self._checkpoint_due()):
            self._busy = True
            self._process.call_later(self._disk.write_delay / 1e9, self._write)

    def _checkpoint_due(self) -> bool:
        return self._checkpoint is not None and self._checkpoint.revision <= self._durable

    def _write(self) -> None:
        self._step()
        rows, self._queue = self._queue, []
        if rows and self._disk.full:
            self._fail(StoreFull("the disk of the log is full"))
            return
        if rows and len(self._disk.records) != self._durable:
            need, have = f"revision {self._durable} as the last", f"revision {len(self._disk.records)}"
            self._fail(Conflict("another process writes to the log", code="E204", need=need, have=have))
            return
        self._disk.records += rows
        self._process.call_later(self._disk.sync_delay / 1e9, self._sync, len(self._disk.records))

    def _sync(self, upto: int) -> None:
        self._step()
        self._durable = upto
        self._disk.synced = max(self._disk.synced, upto)  # another writer may have appended after this
        self._process.call_soon(self._told, upto)

    def _told(self, upto: int) -> None:
        self._step()
        self._disk.mark = max(self._disk.mark, upto)
        if self._checkpoint_due() and self._checkpoint is not None:
            revision, state = self._checkpoint
            self._disk.checkpoints = [*self._disk.checkpoints[-1:], (revision, state, checksum(revision, state))]
            self._checkpoint = None
        self._busy = False
        self._go_on()
        self.on_durable(upto)

    def _fail(self, failure: PoiseError) -> None:
        self._failure, self._busy = failure, False
        self._queue.clear()
        self._head = self._durable
        if self._checkpoint is not None and self._checkpoint.revision > self._durable:
            self._checkpoint = None
        self.on_failed(failure)
