"""Logs of older versions make the state that they made then, whatever has been added since."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from golden.make import state_of, unsaid
from poise.drivers.logfile import LogFile, open_log, write_log
from poise.errors import InputError, StoreDamaged, StoreNewer
from poise.kernel.ledger import Ledger
from poise.kernel.replay import replay
from poise.model.events import Began, Event, decode_event, encode_event
from poise.model.record import seal
from poise.ports import StoredCheckpoint

LOGS = sorted(Path(__file__).parent.glob("*/*.log"))


def ledger_of(events: Iterable[Event]) -> Ledger:
    ledger = Ledger()
    for event in events:
        ledger.apply(event)
    return ledger


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_golden_log_makes_the_state_that_it_made_then(path: Path) -> None:
    then = msgspec.json.decode(path.with_suffix(".json").read_bytes())
    with open_log(path, decode_event) as recording:
        ledger = ledger_of(recording.events)
    ledger.check()
    assert unsaid(then, state_of(ledger)) == []


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_state_of_an_older_version_goes_on(path: Path) -> None:
    """As from a checkpoint: what was said then is read, and said again. Bytes are written as texts in JSON, so that
    states that hold any are left to the logs.
    """
    then = msgspec.json.decode(path.with_suffix(".json").read_bytes())
    if any(job["calls"] for job in then["jobs"].values()):
        return
    again = Ledger.decode(msgspec.msgpack.encode(then))
    again.check()
    assert unsaid(then, state_of(again)) == []


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_fork_goes_on_by_itself_and_the_original_stays_what_it_was(path: Path) -> None:
    with open_log(path, decode_event) as recording:
        events = list(recording.events)
    ledger = Ledger()
    for place in range(4):
        for event in events[place * len(events) // 4 : (place + 1) * len(events) // 4]:
            ledger.apply(event)
        before, fork = ledger.encode(), ledger.fork()
        assert fork.encode() == before
        fork.check()
        for event in events[(place + 1) * len(events) // 4 :]:
            fork.apply(event)
        fork.check()
        assert ledger.encode() == before
        ledger.check()
        assert fork.encode() == ledger_of(events).encode()


def test_there_are_golden_logs_and_a_difference_is_seen() -> None:
    assert {path.stem for path in LOGS} >= {"noops", "gangs", "lost", "calls", "tenants"}
    then = {"jobs": {"j1": {"status": "done", "nodes": ["n1"]}}}
    assert unsaid(then, {"jobs": {"j1": {"status": "done", "nodes": ["n1"], "new": 1}}, "more": 2}) == []
    assert unsaid(then, {"jobs": {"j1": {"status": "failed", "nodes": ["n1"]}}}) != []
    assert unsaid(then, {"jobs": {"j1": {"status": "done", "nodes": []}}}) != []
    assert unsaid(then, {"jobs": {}}) != []


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_nothing_is_left_out_for_any_other_reason_than_the_version(path: Path) -> None:
    """Decisions of an older version need not be the same now; that they are gone through without an error is enough."""
    with open_log(path, decode_event) as recording:
        told = replay(recording.events)
    assert told.rounds > 0 and not told.left_out


# --- what cannot be read ---------------------------------------------------------------------------------------------


def records(path: Path) -> tuple[bytes, list[bytes]]:
    """What comes before the records of a log, and these."""
    data, frames, at = path.read_bytes(), [], 12
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        frames.append(data[at : at + 4 + size])
        at += 4 + size
    return data[:12] + frames[0], frames[1:]


def frame(record: bytes) -> bytes:
    return len(record).to_bytes(4, "big") + record


def read(path: Path) -> list[Event]:
    return [event for _, event in LogFile(path, decode_event).read()]


def test_a_record_of_a_kind_that_is_not_known_is_refused_naming_the_version(tmp_path: Path) -> None:
    head, frames = records(LOGS[0])
    unknown = frame(seal(3, msgspec.msgpack.encode({"type": "teleported", "at": 1})))
    (tmp_path / "newer.log").write_bytes(head + frames[0] + frames[1] + unknown)
    with pytest.raises(StoreNewer, match="revision 3") as refused:
        read(tmp_path / "newer.log")
    assert refused.value.record.code == "E206" and refused.value.record.need == "0.1.0"
    assert "Poise 0.1.0 or newer" in refused.value.record.hint


def test_a_record_of_a_later_format_is_refused(tmp_path: Path) -> None:
    from zlib import crc32

    head, frames = records(LOGS[0])
    body = b"\x63" + frames[0][5:-4]
    (tmp_path / "newer.log").write_bytes(head + frame(body + crc32(body, 1).to_bytes(4, "little")))
    with pytest.raises(StoreNewer, match="format 99"):
        read(tmp_path / "newer.log")


def test_damage_is_found_wherever_it_is(tmp_path: Path) -> None:
    whole = LOGS[0].read_bytes()
    for at in range(12, len(whole), 97):
        (tmp_path / "damaged.log").write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises((StoreDamaged, StoreNewer)):
            read(tmp_path / "damaged.log")
    (tmp_path / "damaged.log").write_bytes(whole[:-3])
    with pytest.raises(StoreDamaged):
        read(tmp_path / "damaged.log")


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("poise log 1")
    with pytest.raises(InputError, match="not a log"), open_log(tmp_path / "text", decode_event):
        pass
    with pytest.raises(InputError, match="no log"), open_log(tmp_path / "missing", decode_event):
        pass


def test_a_log_that_begins_at_a_checkpoint_is_exported_with_it(tmp_path: Path) -> None:
    events = read(LOGS[0])
    middle = ledger_of(events[:10])
    start = StoredCheckpoint(10, middle.encode())
    last = write_log(tmp_path / "later.log", map(encode_event, events[10:]), start=start, written_by="0.1.0")
    assert last == len(events)
    with open_log(tmp_path / "later.log", decode_event, until=last - 2) as recording:
        assert recording.start == start
        assert list(recording.events) == list(recording.events) == events[10:-2]


def test_every_set_was_written_by_a_version_that_is_named() -> None:
    for path in LOGS:
        file = LogFile(path, decode_event)
        began = next(event for _, event in file.read())
        assert file.written_by and isinstance(began, Began)
