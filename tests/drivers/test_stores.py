"""Every store: what was acknowledged is there, what is there is as it was written, and damage is never silent."""

import contextlib
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivers.etcd_server import EtcdServer, keys_of
from drivers.notes import Note, Owner, decode, encode, lease_of, note, notes
from drivers.postgres_server import PostgresServer
from poise.drivers.led import LedStore, log_at, store_at
from poise.drivers.sqlite import LogReader, SqliteStore
from poise.drivers.verified import READ_ROWS, VerifiedLog
from poise.errors import Busy, Conflict, StoreDamaged, StoreNewer
from poise.model.events import NodeLost, decode_event, encode_event
from poise.model.record import FORMAT, checksum, is_whole
from poise.ports import Store
from poise_ha.etcd.words import end_of


class Place(ABC):
    """Where a log lies, and what can happen to it there."""

    @abstractmethod
    def open(self, encode: Callable[[Any], bytes] = encode, decode: Any = decode, **options: Any) -> Any: ...

    @abstractmethod
    def reader(self, **options: Any) -> VerifiedLog[Note]: ...

    @abstractmethod
    def records(self) -> dict[int, bytes]:
        """As they lie there."""

    @abstractmethod
    def change(self, revision: int, record: bytes) -> None: ...

    @abstractmethod
    def add(self, revision: int, record: bytes) -> None: ...

    @abstractmethod
    def checkpoints(self) -> list[int]: ...

    @abstractmethod
    def empty_checkpoint(self, revision: int) -> None: ...

    @abstractmethod
    def be_of(self, format: int) -> None:
        """What lies there says that it has this format."""

    @abstractmethod
    def format(self) -> int: ...


class InTables(Place):
    @abstractmethod
    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Values are written `?`."""

    def records(self) -> dict[int, bytes]:
        return dict(self.ask("SELECT revision, record FROM log"))

    def change(self, revision: int, record: bytes) -> None:
        self.ask("UPDATE log SET record = ? WHERE revision = ?", record, revision)

    def add(self, revision: int, record: bytes) -> None:
        self.ask("INSERT INTO log VALUES (?, ?)", revision, record)

    def checkpoints(self) -> list[int]:
        return [row[0] for row in self.ask("SELECT revision FROM checkpoint ORDER BY revision")]

    def empty_checkpoint(self, revision: int) -> None:
        self.ask("UPDATE checkpoint SET state = ? WHERE revision = ?", b"", revision)


class InFile(InTables):
    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, encode: Callable[[Any], bytes] = encode, decode: Any = decode, **options: Any) -> SqliteStore[Any]:
        return SqliteStore(self._path, encode, decode, **options)

    def reader(self, **options: Any) -> LogReader[Note]:
        return LogReader(self._path, decode, **options)

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self._path)) as connection:
            rows = connection.execute(statement, values).fetchall()
            connection.commit()
            return rows

    def be_of(self, format: int) -> None:
        self.ask(f"PRAGMA user_version = {format}")

    def format(self) -> int:
        return int(self.ask("PRAGMA user_version")[0][0])


class Shared(Place):
    """Where several control planes find it."""

    def __init__(self, url: str) -> None:
        self._url = url

    def open(self, encode: Callable[[Any], bytes] = encode, decode: Any = decode, **options: Any) -> LedStore[Any]:
        """For the one that leads."""
        store: LedStore[Any] = store_at(self._url, encode, decode, **options)
        lease = lease_of(self._url, "home", on_lost=lambda why: pytest.fail(str(why)))
        store.lead(lease.take())
        lease.release()
        return store

    def reader(self, **options: Any) -> VerifiedLog[Note]:
        return log_at(self._url, decode, **options)


class InPostgres(Shared, InTables):
    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        super().__init__(server.database())

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        for number in range(len(values)):
            statement = statement.replace("?", f"${number + 1}", 1)
        for table in ("log", "checkpoint", "about"):
            statement = statement.replace(f" {table}", f" poise.{table}", 1)
        return [tuple(row) for row in self._server.run(statement, self._url, *values)]

    def be_of(self, format: int) -> None:
        self.ask("UPDATE about SET value = ? WHERE name = 'format'", str(format))

    def format(self) -> int:
        return int(self.ask("SELECT value FROM about WHERE name = 'format'")[0][0])


class InEtcd(Shared):
    def __init__(self, server: EtcdServer) -> None:
        self._server = server
        super().__init__(server.database())
        self._keys = keys_of(self._url)

    def records(self) -> dict[int, bytes]:
        return self._server.records(self._url)

    def change(self, revision: int, record: bytes) -> None:
        self._server.change(self._url, revision, record)

    def add(self, revision: int, record: bytes) -> None:
        self._server.add(self._url, revision, record)

    def checkpoints(self) -> list[int]:
        begin = self._keys.checkpoints
        return [int(key.rpartition(b"/")[2]) for key in self._server.get(begin, end_of(begin))]

    def empty_checkpoint(self, revision: int) -> None:
        self._server.put(self._keys.checkpoint(revision), b"")

    def be_of(self, format: int) -> None:
        self._server.put(self._keys.format, b"%d" % format)

    def format(self) -> int:
        return int(next(iter(self._server.get(self._keys.format).values())))


@pytest.fixture(params=["sqlite", "postgres", "etcd"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "sqlite":
            return InFile(tmp_path / "log.db")
        case "postgres":
            return InPostgres(request.getfixturevalue("postgres"))
    return InEtcd(request.getfixturevalue("etcd"))


def write(place: Place, count: int) -> None:
    """A log of `count` notes, closed cleanly."""
    with contextlib.closing(place.open()) as store:
        store.append(notes(1, count), expected=0)


def everything(place: Place) -> list[tuple[int, Note]]:
    with contextlib.closing(place.reader()) as reader:
        return list(reader.read())


# --- append and read --------------------------------------------------------------------------------------------------


def test_what_was_appended_is_read_back_in_order(place: Place) -> None:
    with contextlib.closing(place.open()) as store:
        assert store.append([note(1), note(2)], expected=0) == 2
        assert store.append([note(3)], expected=2) == 3
        assert list(store.read()) == [(1, note(1)), (2, note(2)), (3, note(3))]
        assert list(store.read(after=1, limit=1)) == [(2, note(2))]
        assert store.durable() == 3
    with contextlib.closing(place.open()) as store:
        assert [revision for revision, _ in store.read()] == [1, 2, 3]
        assert store.append([note(4)], expected=3) == 4


def test_reading_goes_past_one_query(place: Place) -> None:
    count = READ_ROWS * 2 + 7
    write(place, count)
    assert everything(place) == list(enumerate(notes(1, count), start=1))
    with contextlib.closing(place.reader()) as reader:
        assert len(list(reader.read(after=3, limit=READ_ROWS + 1))) == READ_ROWS + 1


def test_append_refuses_another_revision_than_the_last(place: Place) -> None:
    with contextlib.closing(place.open()) as store:
        store.append([note(1)], expected=0)
        for wrong in (0, 2):
            with pytest.raises(Conflict):
                store.append([note(2)], expected=wrong)
        assert store.append([], expected=1) == 1
        assert store.append([note(2)], expected=1) == 2


def test_append_after_close_is_refused(place: Place) -> None:
    store = place.open()
    store.close()
    store.close()
    with pytest.raises(Conflict):
        store.append([note(1)], expected=0)


def test_an_event_that_cannot_be_encoded_changes_nothing(place: Place) -> None:
    with contextlib.closing(place.open()) as store:
        with pytest.raises(TypeError):
            store.append([note(1), object()], expected=0)
        assert store.append([note(1)], expected=0) == 1


def test_without_a_thread_the_owner_may_append_when_told(place: Place) -> None:
    with contextlib.closing(place.open()) as store:
        told: list[int] = []

        def on_durable(revision: int) -> None:
            told.append(revision)
            if revision < 3:
                store.append([note(revision + 1)], expected=revision)

        store.on_durable = on_durable
        store.append([note(1)], expected=0)
        assert told == [1, 2, 3]
        assert store.durable() == 3


def test_the_store_of_the_control_plane_is_this_one(place: Place) -> None:
    store: Store = place.open(encode_event, decode_event)
    with contextlib.closing(store):
        gone = NodeLost(at=1, name="n1")
        store.append([gone], expected=0)
        assert list(store.read()) == [(1, gone)]


def test_durable_is_told_in_order_and_after_the_commit(place: Place) -> None:
    owner = Owner()
    told: list[int] = []
    with contextlib.closing(place.open(call_soon=owner.call_soon)) as store:

        def on_durable(revision: int) -> None:
            assert max(place.records()) >= revision
            assert threading.current_thread() is threading.main_thread()
            told.append(revision)

        store.on_durable = on_durable
        for number in range(1, 201):
            store.append([note(number)], expected=number - 1)
        owner.run(until=lambda: told[-1:] == [200])
        assert told == sorted(set(told))


def test_events_that_queue_up_share_a_commit(place: Place) -> None:
    owner = Owner()
    told: list[int] = []
    with contextlib.closing(place.open(call_soon=owner.call_soon)) as store:
        store.on_durable = told.append
        with store._writing:  # the disk is busy
            for number in range(1, 101):
                store.append([note(number)], expected=number - 1)
        owner.run(until=lambda: told[-1:] == [100])
        assert len(told) <= 2  # the thread may have taken the first event before the disk became busy


def test_a_full_queue_is_refused_and_drains(place: Place) -> None:
    owner = Owner()
    with contextlib.closing(place.open(call_soon=owner.call_soon, queue_limit=10)) as store:
        with store._writing:
            store.append(notes(1, 8), expected=0)
            with pytest.raises(Busy):
                store.append(notes(9, 11), expected=8)
        owner.run(until=lambda: store.durable() == 8)
        assert store.append(notes(9, 11), expected=8) == 11


def test_close_writes_what_is_queued(place: Place) -> None:
    store = place.open(call_soon=Owner().call_soon)
    for number in range(1, 1001):
        store.append([note(number)], expected=number - 1)
    store.close()
    assert len(everything(place)) == 1000


def test_every_flipped_bit_of_a_record_is_found(place: Place) -> None:
    write(place, 3)
    for revision, record in place.records().items():
        for bit in range(len(record) * 8):
            damaged = bytearray(record)
            damaged[bit // 8] ^= 1 << bit % 8
            assert is_whole(revision, record)
            assert not is_whole(revision, bytes(damaged))


def test_a_record_that_moved_is_found(place: Place) -> None:
    write(place, 3)
    place.change(2, place.records()[1])
    with pytest.raises(StoreDamaged, match="revision 2 "):
        everything(place)


def test_an_unknown_record_format_is_refused_naming_the_version(place: Place) -> None:
    with contextlib.closing(place.open(written_by="9.1.0")) as store:
        store.append([note(1)], expected=0)
    place.add(2, record_of(FORMAT + 1, 2))
    with contextlib.closing(place.open()) as store:
        reading = store.read()
        assert next(reading) == (1, note(1))
        with pytest.raises(StoreNewer, match=f"format {FORMAT + 1}") as raised:
            next(reading)
    assert raised.value.record.code == "E206"
    assert raised.value.record.need == "9.1.0"
    assert "9.1.0" in raised.value.record.hint


def test_an_unknown_event_is_refused(place: Place) -> None:
    with contextlib.closing(place.open()) as store:
        store.append([{"type": "from the future"}], expected=0)
        with pytest.raises(StoreNewer) as raised:
            list(store.read())
    assert raised.value.record.code == "E206"


def record_of(format: int, revision: int) -> bytes:
    body = bytes([format]) + encode(note(revision))
    return body + checksum(revision, body).to_bytes(4, "little")


def test_a_log_of_a_later_format_is_refused_by_every_reader_naming_the_version(place: Place) -> None:
    with contextlib.closing(place.open(written_by="9.1.0")) as store:
        store.append([note(1)], expected=0)
    place.be_of(FORMAT + 1)
    for opens in (place.open, place.reader):
        with pytest.raises(StoreNewer, match=f"format {FORMAT + 1}; this version reads {FORMAT}") as raised:
            opens()
        assert raised.value.record.code == "E206" and "9.1.0" in raised.value.record.hint


def test_a_log_of_an_earlier_format_is_read_and_becomes_one_of_this_format_once_it_is_written_to(place: Place) -> None:
    write(place, 2)
    for revision in (1, 2):
        place.change(revision, record_of(1, revision))
    place.be_of(1)
    assert [revision for revision, _ in everything(place)] == [1, 2] and place.format() == 1
    with contextlib.closing(place.open(written_by="9.1.0")) as store:
        store.append([note(3)], expected=2)
    assert everything(place) == [(revision, note(revision)) for revision in (1, 2, 3)]
    assert place.format() == FORMAT and [record[0] for record in place.records().values()] == [1, 1, FORMAT]


def test_two_checkpoints_are_kept(place: Place) -> None:
    with contextlib.closing(place.open()) as store:
        assert store.latest_checkpoint() is None
        for revision in (1, 2, 3):
            store.append([note(revision)], expected=revision - 1)
            store.checkpoint(revision, b"state %d" % revision)
        assert store.latest_checkpoint() == (3, b"state 3")
        with pytest.raises(Conflict):
            store.checkpoint(4, b"ahead of the log")
    assert place.checkpoints() == [2, 3]


def test_a_damaged_checkpoint_falls_back_loudly(place: Place) -> None:
    warnings: list[str] = []
    with contextlib.closing(place.open(warn=warnings.append)) as store:
        for revision in (1, 2):
            store.append([note(revision)], expected=revision - 1)
            store.checkpoint(revision, b"state %d" % revision)
        place.empty_checkpoint(2)
        assert store.latest_checkpoint() == (1, b"state 1")
        assert "revision 2" in warnings[0]
        place.empty_checkpoint(1)
        assert store.latest_checkpoint() is None


def test_a_checkpoint_is_written_once_its_revision_is_durable(place: Place) -> None:
    owner = Owner()
    with contextlib.closing(place.open(call_soon=owner.call_soon)) as store, store._writing:
        store.append([note(1)], expected=0)
        store.checkpoint(1, b"one")
        assert store.latest_checkpoint() is None
    with contextlib.closing(place.reader()) as reader:
        assert reader.latest_checkpoint() == (1, b"one")


@pytest.mark.parametrize("threaded", [False, True])
def test_pruning_keeps_what_the_older_checkpoint_does_not_cover(place: Place, threaded: bool) -> None:
    call_soon = Owner().call_soon if threaded else None
    with contextlib.closing(place.open(keep=5, call_soon=call_soon)) as store:
        store.append(notes(1, 20), expected=0)
    with contextlib.closing(place.open(keep=5, call_soon=call_soon)) as store:
        assert store.first_revision() == 1  # no checkpoint yet
        store.checkpoint(10, b"ten")
    with contextlib.closing(place.open(keep=5, call_soon=call_soon)) as store:
        store.checkpoint(18, b"eighteen")
    with contextlib.closing(place.open(warn=pytest.fail)) as store:
        assert store.first_revision() == 11
        assert [revision for revision, _ in store.read()] == list(range(11, 21))
        assert [revision for revision, _ in store.read(after=15)] == list(range(16, 21))
        assert store.latest_checkpoint() == (18, b"eighteen")
        assert store.oldest_checkpoint() == (10, b"ten")
        place.empty_checkpoint(10)
    with contextlib.closing(place.reader(warn=lambda _: None)) as reader:
        assert reader.oldest_checkpoint() == (18, b"eighteen")


def test_pruning_keeps_a_number_of_events(place: Place) -> None:
    with contextlib.closing(place.open(keep=12)) as store:
        store.append(notes(1, 20), expected=0)
        store.checkpoint(19, b"nineteen")
        store.checkpoint(20, b"twenty")
        assert store.first_revision() == 9
