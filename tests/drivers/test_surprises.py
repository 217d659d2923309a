"""Errors that nobody foresaw, as a library may raise them while its database restarts: a log that is not written any
more says so, and a lease that can be renewed again is kept.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from poise.drivers.grouped import GroupedStore
from poise.drivers.led import lease as lease_module
from poise.drivers.led.lease import Lease, Led
from poise.errors import Conflict, NotLeading, StoreFull
from poise.ports import StoredCheckpoint
from poise.units import SECOND


class Surprised:
    """A writer that meets a broken library, wherever that is."""

    def __init__(self, where: str) -> None:
        self._where = where

    def append(self, rows: list[tuple[int, bytes]]) -> None:
        self._meet("append")

    def add_checkpoint(self, checkpoint: StoredCheckpoint) -> None:
        self._meet("checkpoint")

    def prune(self, before: int) -> bool:
        self._meet("prune")
        return False

    def probe(self) -> None:
        pass

    def rest(self) -> float | None:
        return None

    def close(self) -> None:
        pass

    def _meet(self, where: str) -> None:
        if where == self._where:
            raise RuntimeError("the connection is in another state")


class Store(GroupedStore):
    def __init__(self, writer: Surprised, call_soon: Callable[[Callable[[], None]], object] | None) -> None:
        super().__init__(bytes, call_soon=call_soon, warn=print, keep=0, queue_limit=100)
        self._begin(writer, 0)


@pytest.mark.parametrize("where", ["append", "checkpoint", "prune"])
def test_a_log_that_is_not_written_any_more_says_so(where: str) -> None:
    """Nobody would have learned it: all that was appended waited for ever, and the lease went on."""
    told = queue.Queue[Callable[[], None]]()
    failed = queue.Queue[Exception]()
    store = Store(Surprised(where), told.put)
    store.on_failed = failed.put
    for revision in range(3):
        with contextlib.suppress(Conflict):
            store.append([b"x"], expected=revision)
            store.checkpoint(revision + 1, b"state")
    while failed.empty():
        told.get(timeout=10)()
    error = failed.get()
    assert isinstance(error, Conflict) and error.record.code == "E204", "whoever leads ends, and starts from the log"
    assert "RuntimeError: the connection is in another state" in error.record.have
    with pytest.raises(Conflict):
        store.append([b"x"], expected=store.durable())
    assert not store.recover()
    store.close()


def test_a_checkpoint_of_what_the_disk_refused_is_not_written_when_others_have_taken_its_place() -> None:
    """It holds the state of events that never were; a start from it would know nothing of those that are in the log."""
    asked, may_go_on, saved = threading.Event(), threading.Event(), list[StoredCheckpoint]()

    class Full(Surprised):
        full = True

        def append(self, rows: list[tuple[int, bytes]]) -> None:
            asked.set()
            may_go_on.wait(10)
            if self.full:
                raise StoreFull("no room")

        def add_checkpoint(self, checkpoint: StoredCheckpoint) -> None:
            saved.append(checkpoint)

    told, failed = queue.Queue[Callable[[], None]](), queue.Queue[Exception]()
    writer = Full("")
    store = Store(writer, told.put)
    store.on_failed = failed.put
    store.append([b"x"], expected=0)
    asked.wait(10)  # it is on its way, and its state is to be saved behind it
    store.checkpoint(1, b"what never was")
    may_go_on.set()
    while failed.empty():
        told.get(timeout=10)()
    writer.full = False
    assert store.recover()
    store.append([b"y"], expected=0)
    store.close()
    assert (store.durable(), saved) == (1, [])


def test_a_lease_that_can_be_renewed_again_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(lease_module, "RENEWALS", 10_000)
    renewed = queue.Queue[bool]()
    lost = list[NotLeading]()

    class Renewed(Lease):
        tries = 0

        def look(self) -> Led:
            raise NotImplementedError

        def _take(self) -> int:
            return 1

        async def _renewed(self, term: int, within: float) -> bool:
            self.tries += 1
            if self.tries == 1:
                raise RuntimeError("the connection is in another state")
            renewed.put(True)
            return True

        def _release(self, term: int) -> None:
            pass

    told: dict[str, Any] = {"holder": "h", "address": "a", "token": "t"}
    lease = Renewed(**told, lasts=60 * SECOND, on_lost=lost.append)
    assert lease.take() == 1
    assert renewed.get(timeout=10) and renewed.get(timeout=10)
    lease.release()
    assert not lost
