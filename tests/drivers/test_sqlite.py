"""The durable log: what was acknowledged is there, what is there is as it was written, and damage is never silent."""

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivers.notes import Note, Owner, decode, encode, note, notes
from poise.config import Home
from poise.drivers.logfile import has_log, read_home
from poise.drivers.sqlite import LogReader, SqliteStore
from poise.drivers.sqlite.mark import Mark, mark_path
from poise.drivers.sqlite.tables import PAGE_BYTES, WAL_PAGES
from poise.errors import Conflict, PoiseError, StoreDamaged, StoreFull, StoreNewer


def open_store(path: Path, **options: object) -> SqliteStore[Note]:
    return SqliteStore(path, encode, decode, **options)  # type: ignore[arg-type]


def write(path: Path, count: int, batch: int = 1) -> None:
    """A log of `count` notes, closed cleanly."""
    with contextlib.closing(open_store(path)) as store:
        for first in range(1, count + 1, batch):
            store.append(notes(first, min(first + batch - 1, count)), expected=first - 1)


def abandon(path: Path, count: int, target: Path) -> Path:
    """A log of `count` notes in one commit each, as a killed process leaves it: copied while it is open."""
    with contextlib.closing(open_store(path)) as store:
        for number in range(1, count + 1):
            store.append([note(number)], expected=number - 1)
        target.mkdir()
        for file in path.parent.glob("log.*"):
            shutil.copy(file, target / file.name)
    return target / path.name


def wal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def set_mark(path: Path, revision: int) -> None:
    """As if nothing behind `revision` had been acknowledged."""
    Mark(mark_path(path), revision).close()


def type_hint(error: PoiseError) -> None:
    """Does what the hint says, in a shell."""
    command = error.record.hint.split("`")[1]
    subprocess.run(["bash", "-c", command], check=True)


def change(path: Path, statement: str, *parameters: object) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(statement, parameters)
        connection.commit()


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir() if file.is_file()}


def everything(path: Path) -> list[tuple[int, Note]]:
    with contextlib.closing(LogReader(path, decode)) as reader:
        return list(reader.read())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


def test_the_write_ahead_file_stays_bounded(path: Path) -> None:
    with contextlib.closing(open_store(path)) as store:
        last = 0
        for _ in range(60):
            last = store.append([Note("x" * 1000)] * 400, expected=last)
        assert wal(path).stat().st_size < 2 * WAL_PAGES * PAGE_BYTES


# --- damaged records --------------------------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_record_is_found_through_sql(path: Path) -> None:
    write(path, 2)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for revision, record in connection.execute("SELECT revision, record FROM log").fetchall():
            for bit in range(len(record) * 8):
                damaged = bytearray(record)
                damaged[bit // 8] ^= 1 << bit % 8
                connection.execute("UPDATE log SET record = ? WHERE revision = ?", (bytes(damaged), revision))
                with pytest.raises(StoreDamaged, match=f"revision {revision} "):
                    everything(path)
            connection.execute("UPDATE log SET record = ? WHERE revision = ?", (record, revision))


def test_every_flipped_bit_of_a_record_is_found_in_the_file(path: Path) -> None:
    write(path, 3)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (record,) = connection.execute("SELECT record FROM log WHERE revision = 2").fetchone()
    original = path.read_bytes()
    start = original.index(record)
    for bit in range(start * 8, (start + len(record)) * 8):
        flip(path, bit)
        with contextlib.closing(LogReader(path, decode)) as reader, pytest.raises(StoreDamaged, match="revision 2 "):
            reader.verify()
        path.write_bytes(original)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_bit_anywhere_in_the_file_is_never_silent(tmp_path: Path, data: st.DataObject) -> None:
    """Harmless or refused, because all of it had been acknowledged; never other events, and never fewer."""
    path = tmp_path / "whole" / "log.db"
    if not path.exists():
        path.parent.mkdir()
        write(path, 300, batch=50)
    home = tmp_path / "damaged"
    shutil.copytree(path.parent, home)
    try:
        flip(home / "log.db", data.draw(st.integers(0, path.stat().st_size * 8 - 1)))
        with contextlib.suppress(StoreDamaged, StoreNewer):
            with contextlib.closing(open_store(home / "log.db", warn=pytest.fail)) as store:
                found = list(store.read())
            assert found == list(enumerate(notes(1, 300), start=1))
    finally:
        shutil.rmtree(home)


def test_damage_in_the_middle_is_refused_and_nothing_is_touched(path: Path) -> None:
    write(path, 10)
    change(path, "UPDATE log SET record = x'00' WHERE revision = 4")
    before = files(path.parent)
    with pytest.raises(StoreDamaged, match=r"revision 4 .*6 whole records follow") as raised:
        open_store(path)
    assert raised.value.record.code == "E203"
    assert str(path) in raised.value.record.message
    assert "mv" in raised.value.record.hint
    assert files(path.parent) == before


def test_a_missing_record_is_refused(path: Path) -> None:
    write(path, 10)
    change(path, "DELETE FROM log WHERE revision = 4")
    with pytest.raises(StoreDamaged, match=r"revision 4 .*6 whole records follow"):
        open_store(path)


def test_the_typed_hint_begins_an_empty_log(path: Path) -> None:
    write(path, 10)
    change(path, "UPDATE log SET record = x'00' WHERE revision = 4")
    with pytest.raises(StoreDamaged) as raised:
        open_store(path)
    type_hint(raised.value)
    with contextlib.closing(open_store(path)) as store:
        assert store.append([note(1)], expected=0) == 1


# --- torn tails -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [1, 8])
def test_a_torn_tail_beyond_the_mark_is_cut_loudly_and_set_aside(path: Path, whole: int) -> None:
    write(path, 10)
    set_mark(path, whole)
    change(path, "UPDATE log SET record = substr(record, 1, 6) WHERE revision > ?", whole)
    warnings: list[str] = []
    with contextlib.closing(open_store(path, warn=warnings.append)) as store:
        assert list(store.read()) == list(enumerate(notes(1, whole), start=1))
        assert store.append([note(whole + 1)], expected=whole) == whole + 1
    aside = path.with_name(f"log.damaged-{whole + 1}.db")
    assert len(warnings) == 1
    assert f"after revision {whole}" in warnings[0]
    assert str(aside) in warnings[0]
    with contextlib.closing(sqlite3.connect(aside)) as connection:
        assert connection.execute("SELECT count(*) FROM log").fetchone() == (10,)
    assert len(everything(path)) == whole + 1


def test_a_damaged_tail_that_was_acknowledged_is_refused_until_a_person_accepts_the_loss(path: Path) -> None:
    write(path, 10)
    set_mark(path, 9)
    change(path, "UPDATE log SET record = x'00' WHERE revision > 8")
    before = files(path.parent)
    with pytest.raises(StoreDamaged, match="ends at revision 8, but revision 9 was durable") as raised:
        open_store(path)
    assert raised.value.record.code == "E203"
    assert files(path.parent) == before
    with contextlib.closing(LogReader(path, decode)) as reader, pytest.raises(StoreDamaged):
        reader.verify()
    type_hint(raised.value)
    warnings: list[str] = []
    with contextlib.closing(open_store(path, warn=warnings.append)) as store:
        assert [revision for revision, _ in store.read()] == list(range(1, 9))
        assert "cut after revision 8" in warnings[0]
        assert store.append([note(9)], expected=8) == 9
    open_store(path, warn=pytest.fail).close()


def test_a_log_without_a_whole_record_is_refused(path: Path) -> None:
    write(path, 10)
    mark_path(path).unlink()
    change(path, "UPDATE log SET record = x'00'")
    with pytest.raises(StoreDamaged, match=r"revision 1 .*no whole record follows"):
        open_store(path)


def test_cutting_twice_at_one_revision_keeps_both_copies(path: Path) -> None:
    for _ in range(2):
        with contextlib.closing(open_store(path, warn=lambda _: None)) as store:
            if store.durable() == 0:
                store.append([note(1)], expected=0)
            store.append([note(2)], expected=1)
        set_mark(path, 1)
        change(path, "UPDATE log SET record = x'00' WHERE revision = 2")
    open_store(path, warn=lambda _: None).close()
    assert sorted(file.name for file in path.parent.glob("log.damaged*.db")) == [
        "log.damaged-2-2.db",
        "log.damaged-2.db",
    ]


def test_a_checkpoint_survives_a_cut_behind_it(path: Path) -> None:
    with contextlib.closing(open_store(path)) as store:
        store.append(notes(1, 4), expected=0)
        store.checkpoint(2, b"two")
        store.append([note(5)], expected=4)
        store.checkpoint(5, b"five")
    set_mark(path, 4)
    change(path, "UPDATE log SET record = x'00' WHERE revision = 5")
    with contextlib.closing(open_store(path, warn=lambda _: None)) as store:
        assert store.latest_checkpoint() == (2, b"two")


# --- truncated and damaged files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.3, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(path: Path, share: float) -> None:
    write(path, 2000, batch=100)
    size = path.stat().st_size
    os.truncate(path, int(size * share))
    with pytest.raises(StoreDamaged) as raised:
        open_store(path)
    assert raised.value.record.code == "E203"


def test_a_missing_file_is_refused(path: Path) -> None:
    write(path, 3)
    path.unlink()
    with pytest.raises(StoreDamaged, match="ends at revision 0, but revision 3 "):
        open_store(path)


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"something else entirely" * 1000)
    with pytest.raises(StoreDamaged):
        open_store(path)
    assert path.read_bytes().startswith(b"something else")


def test_what_a_killed_process_left_is_whole(path: Path, tmp_path: Path) -> None:
    left = abandon(path, 50, tmp_path / "left")
    assert wal(left).stat().st_size > 0
    with contextlib.closing(open_store(left, warn=pytest.fail)) as store:
        assert list(store.read()) == list(enumerate(notes(1, 50), start=1))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.25, 0.5, 0.99])
def test_a_truncated_write_ahead_file_is_refused(path: Path, tmp_path: Path, share: float) -> None:
    left = abandon(path, 50, tmp_path / "left")
    os.truncate(wal(left), int(wal(left).stat().st_size * share))
    with pytest.raises(StoreDamaged, match="but revision 50 was durable"):
        open_store(left)


def test_a_missing_write_ahead_file_is_refused(path: Path, tmp_path: Path) -> None:
    left = abandon(path, 50, tmp_path / "left")
    wal(left).unlink()
    with pytest.raises(StoreDamaged, match="but revision 50 was durable"):
        open_store(left)


def test_flipped_bits_of_the_write_ahead_file_are_found(path: Path, tmp_path: Path) -> None:
    left = abandon(path, 20, tmp_path / "left")
    original = wal(left).read_bytes()
    choose = random.Random(7)  # noqa: S311 - which bits, not a secret
    for bit in [*range(0, 128, 16), *(choose.randrange(len(original) * 8) for _ in range(60))]:
        flip(wal(left), bit)
        found: list[tuple[int, Note]] = []
        with contextlib.suppress(StoreDamaged), contextlib.closing(LogReader(left, decode)) as reader:
            reader.verify()
            found = list(reader.read())
        assert found in ([], list(enumerate(notes(1, 20), start=1)))
        wal(left).write_bytes(original)


def test_lost_commits_are_found_when_the_mark_is_older_than_they_are(path: Path, tmp_path: Path) -> None:
    """After a power cut the mark may be behind; the frames after the damaged one tell."""
    left = abandon(path, 20, tmp_path / "left")
    set_mark(left, 1)
    flip(wal(left), wal(left).stat().st_size * 4)
    with pytest.raises(StoreDamaged, match=r"frame .* is damaged"):
        open_store(left)


def test_a_torn_last_transaction_beyond_the_mark_is_no_damage(path: Path, tmp_path: Path) -> None:
    left = abandon(path, 20, tmp_path / "left")
    set_mark(left, 19)
    os.truncate(wal(left), wal(left).stat().st_size - 100)
    with contextlib.closing(open_store(left, warn=pytest.fail)) as store:
        assert store.durable() == 19


def test_removing_the_mark_accepts_a_short_log_loudly(path: Path, tmp_path: Path) -> None:
    left = abandon(path, 50, tmp_path / "left")
    flip(wal(left), wal(left).stat().st_size * 4)
    with pytest.raises(StoreDamaged) as raised:
        open_store(left)
    type_hint(raised.value)
    warnings: list[str] = []
    with contextlib.closing(open_store(left, warn=warnings.append)) as store:
        last = store.durable()
        assert 0 < last < 50
        assert f"end at revision {last}" in warnings[0]
        store.append([note(last + 1)], expected=last)
    open_store(left, warn=pytest.fail).close()


@pytest.mark.parametrize("offset", [0, 512])
def test_one_damaged_slot_of_the_mark_does_no_harm(path: Path, offset: int) -> None:
    write(path, 3)
    flip(path.with_suffix(".mark"), offset * 8)
    with contextlib.closing(open_store(path, warn=pytest.fail)) as store:
        assert store.durable() == 3


# --- checkpoints and pruning ------------------------------------------------------------------------------------------


def test_a_pruned_log_without_a_checkpoint_is_refused(path: Path) -> None:
    with contextlib.closing(open_store(path, keep=5)) as store:
        store.append(notes(1, 20), expected=0)
        store.checkpoint(10, b"ten")
        store.checkpoint(20, b"twenty")
    change(path, "UPDATE checkpoint SET state = x'00'")
    with pytest.raises(StoreDamaged):
        open_store(path)
    with contextlib.closing(LogReader(path, decode, warn=lambda _: None)) as reader, pytest.raises(StoreDamaged):
        reader.latest_checkpoint()
    with contextlib.closing(LogReader(path, decode, warn=lambda _: None)) as reader, pytest.raises(StoreDamaged):
        reader.oldest_checkpoint()


# --- the disk is full -------------------------------------------------------------------------------------------------


def test_the_limit_of_the_log_refuses_appends_and_reads_go_on(path: Path) -> None:
    with contextlib.closing(open_store(path, max_bytes=400_000, keep=1)) as store:
        last = 0
        with pytest.raises(StoreFull) as raised:
            while True:
                last = store.append([Note("x" * 500)] * 20, expected=last)
        assert raised.value.record.code == "E202"
        assert "limit" in raised.value.record.message
        assert store.durable() == last
        with pytest.raises(StoreFull):
            store.append([note(1)], expected=last)
        assert not store.recover()
        assert len(list(store.read())) == last
    with contextlib.closing(open_store(path, max_bytes=800_000)) as store:
        assert store.append([note(1)], expected=last) == last + 1


def test_a_failure_is_told_once_and_drops_what_was_queued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.drivers.grouped.GROUP_LIMIT", 1)
    owner = Owner()
    failures: list[Exception] = []
    told: list[int] = []
    with contextlib.closing(open_store(path, max_bytes=400_000, call_soon=owner.call_soon)) as store:
        store.on_failed = failures.append
        store.on_durable = told.append
        with store._writing:
            store.append([note(1)], expected=0)
        owner.run(until=lambda: told == [1])
        with store._writing:
            store.append([note(2)], expected=1)
            store.append([Note("x" * 1_000_000)], expected=2)
            store.append([Note("behind it")], expected=3)
            store.checkpoint(4, b"of what is not durable")
        owner.run(until=lambda: bool(failures))
        assert isinstance(failures[0], StoreFull)
        with pytest.raises(StoreFull):
            store.append([note(3)], expected=2)
        assert store.recover()
        store.append([note(3)], expected=2)
        owner.run(until=lambda: told == [1, 2, 3])
        assert len(failures) == 1
        assert list(store.read()) == [(1, note(1)), (2, note(2)), (3, note(3))]
        assert store.latest_checkpoint() is None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    home = tmp_path / "small"
    home.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", home], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield home
    subprocess.run(["umount", "--lazy", home], check=True)


@pytest.mark.root
def test_a_full_disk_refuses_appends_reads_go_on_and_space_heals(small_disk: Path) -> None:
    owner = Owner()
    failures: list[Exception] = []
    path = small_disk / "log.db"
    with contextlib.closing(open_store(path, call_soon=owner.call_soon)) as store:
        store.on_failed = failures.append
        store.append(notes(1, 100), expected=0)
        owner.run(until=lambda: store.durable() == 100)
        ballast = small_disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        last = 100
        with pytest.raises(StoreFull):
            while True:
                last = store.append([Note("x" * 2000)] * 10, expected=last)
                owner.run(until=lambda wanted=last: store.durable() == wanted or bool(failures))  # type: ignore[misc]
        durable = store.durable()
        assert isinstance(failures[0], StoreFull)
        assert not store.recover()
        assert len(list(store.read())) == durable
        with contextlib.closing(LogReader(path, decode)) as reader:
            assert reader.verify() == durable
        ballast.unlink()
        assert store.recover()
        assert store.append([note(1)], expected=durable) == durable + 1
        owner.run(until=lambda: store.durable() == durable + 1)
    with contextlib.closing(open_store(path, warn=pytest.fail)) as store:
        assert store.durable() == durable + 1


# --- killed, and not alone --------------------------------------------------------------------------------------------

_CHILD = """
import os, sys, threading
from pathlib import Path
import msgspec
from poise.drivers.sqlite import SqliteStore

class Note(msgspec.Struct, frozen=True, tag="note"):
    text: str

store = SqliteStore(Path(sys.argv[1]), msgspec.msgpack.encode, msgspec.msgpack.Decoder(Note).decode,
                    call_soon=lambda call: call())
room = threading.Event()

def durable(revision):
    os.write(1, b"%d\\n" % revision)
    room.set()

store.on_durable = durable
last = store.durable()
os.write(1, b"0\\n")
while True:
    while last - store.durable() >= 100:  # wait, rather than take the interpreter from the thread that writes
        room.wait()
        room.clear()
    last = store.append([Note(f"note {last + number}") for number in range(1, 2 + last % 7)], expected=last)
    if last % 50 == 0:
        store.checkpoint(last, b"state" * 2000)
"""


def test_every_acknowledged_revision_survives_kill_9(path: Path) -> None:
    choose = random.Random(11)  # noqa: S311 - when to kill, not a secret
    acknowledged = 0
    for turn in range(6):
        child = subprocess.Popen([sys.executable, "-c", _CHILD, path], stdout=subprocess.PIPE)
        assert child.stdout is not None
        lines = [child.stdout.readline().strip() for _ in range(30 * turn)]
        time.sleep(choose.uniform(0.0, 0.1))
        child.send_signal(signal.SIGKILL)
        lines += child.communicate()[0].split(b"\n")[:-1]
        acknowledged = max([acknowledged, *map(int, lines)])
        with contextlib.closing(open_store(path, warn=pytest.fail)) as store:
            assert store.durable() >= acknowledged
            found = list(store.read())
        assert found == list(enumerate(notes(1, len(found)), start=1))
        assert len(found) >= acknowledged
    assert acknowledged > 100


@pytest.mark.parametrize("threaded", [False, True])
def test_a_second_writer_is_refused(path: Path, threaded: bool) -> None:
    owner = Owner()
    failures: list[Exception] = []
    with (
        contextlib.closing(open_store(path)) as first,
        contextlib.closing(open_store(path, call_soon=owner.call_soon if threaded else None)) as second,
    ):
        second.on_failed = failures.append
        first.append([note(1)], expected=0)
        if threaded:
            second.append([note(2)], expected=0)
            owner.run(until=lambda: bool(failures))
        else:
            with pytest.raises(Conflict) as raised:
                second.append([note(2)], expected=0)
            failures.append(raised.value)
        assert isinstance(failures[0], Conflict)
        assert failures[0].record.code == "E204"
        assert not second.recover()
        with pytest.raises(Conflict):
            second.append([note(2)], expected=0)
        assert first.append([note(2)], expected=1) == 2
        assert list(first.read()) == [(1, note(1)), (2, note(2))]


@pytest.mark.parametrize("name", ["log.db", "log.db-wal"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_log_that_is_deleted_while_it_is_written_acknowledges_nothing_more(
    path: Path, name: str, replaced: bool
) -> None:
    durable: list[int] = []
    with contextlib.closing(open_store(path)) as store:
        store.on_durable = durable.append
        store.append([note(1)], expected=0)
        file = path.with_name(name)
        content = file.read_bytes()
        file.unlink()
        if replaced:
            file.write_bytes(content)
        with pytest.raises(Conflict, match="deleted or replaced") as raised:
            store.append([note(2)], expected=1)
        assert (raised.value.record.code, durable, store.recover()) == ("E204", [1], False)


def test_every_commit_is_synced_before_it_is_told(path: Path) -> None:
    """In a write-ahead log NORMAL (1) syncs at checkpoints only: a power cut would take acknowledged commits back."""
    with contextlib.closing(open_store(path)) as store:
        writing = store._writer._connection  # type: ignore[attr-defined]
        assert writing.execute("PRAGMA synchronous").fetchone() == (2,)
        assert writing.execute("PRAGMA journal_mode").fetchone() == (b"wal",)


# --- read-only --------------------------------------------------------------------------------------------------------


def test_a_reader_creates_and_changes_nothing(path: Path, tmp_path: Path) -> None:
    write(path, 5)
    (tmp_path / "other").mkdir()
    left = abandon(tmp_path / "other" / "log.db", 5, tmp_path / "left")
    for log in (path, left):
        before = files(log.parent)
        with contextlib.closing(SqliteStore.open_read_only(log, decode)) as reader:
            assert reader.verify() == 5
            assert [revision for revision, _ in reader.read()] == [1, 2, 3, 4, 5]
            assert reader.latest_checkpoint() is None
        assert files(log.parent) == before


def test_a_reader_reads_a_copy_without_the_index_of_its_write_ahead_file(path: Path, tmp_path: Path) -> None:
    left = abandon(path, 5, tmp_path / "left")
    left.with_name("log.db-shm").unlink()
    with contextlib.closing(LogReader(left, decode)) as reader:
        assert reader.verify() == 5
    assert not left.with_name("log.db-shm").exists()


@pytest.mark.parametrize("size", [0, 3, 32768])
def test_a_reader_does_not_wait_for_an_index_of_another_generation(path: Path, tmp_path: Path, size: int) -> None:
    left = abandon(path, 5, tmp_path / "left")
    index = bytes(range(256)) * 128
    left.with_name("log.db-shm").write_bytes(index[:size])
    begun = time.monotonic()
    with contextlib.closing(LogReader(left, decode)) as reader:
        assert reader.verify() == 5
    assert time.monotonic() - begun < 2
    assert left.with_name("log.db-shm").read_bytes() == index[:size]
    with contextlib.closing(open_store(left, warn=pytest.fail)) as store:
        assert store.durable() == 5


def test_a_reader_follows_a_running_writer(path: Path) -> None:
    with contextlib.closing(open_store(path)) as store:
        store.append([note(1)], expected=0)
        with contextlib.closing(LogReader(path, decode)) as reader:
            for number in range(2, 300):
                store.append([note(number)], expected=number - 1)
                assert reader.last_revision() == number
            assert reader.verify() == 299


def test_a_reader_opened_on_a_closed_log_sees_a_writer_that_starts(path: Path) -> None:
    write(path, 3)
    with contextlib.closing(LogReader(path, decode)) as reader:
        assert reader.last_revision() == 3
        with contextlib.closing(open_store(path)) as store:
            store.append([note(4)], expected=3)
            assert [revision for revision, _ in reader.read()] == [1, 2, 3, 4]
        assert reader.last_revision() == 4


@pytest.mark.parametrize("left", ["some", "none"])
def test_a_home_whose_log_is_short_is_not_shown_as_if_it_were_whole(tmp_path: Path, left: str) -> None:
    home = Home(tmp_path)
    write(home.log, 5)
    set_mark(home.log, 5)
    if left == "some":
        change(home.log, "DELETE FROM log WHERE revision > 3")
    else:
        home.log.unlink()
    assert has_log(home)
    with pytest.raises(StoreDamaged, match=f"ends at revision {3 if left == 'some' else 0}, but revision 5"):
        read_home(home, decode)
    mark_path(home.log).unlink()  # as the hint says
    assert has_log(home) == (left == "some")


def test_a_reader_without_a_log_says_so(path: Path) -> None:
    with pytest.raises(PoiseError, match="no log"):
        LogReader(path, decode)
    assert not path.exists()
