"""Opens a log safely: inspect first; refuse an untrustworthy log unchanged; truncate a torn tail with a warning."""

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

from poise.drivers.sqlite import faults, tables
from poise.drivers.sqlite.inspection import inspect, refuse_loss
from poise.drivers.sqlite.mark import mark_path, read_mark
from poise.drivers.sqlite.reader import LogReader, open_to_read
from poise.drivers.sqlite.wal import index_path, lost_commit, wal_path


def make_whole(path: Path, warn: Callable[[str], None]) -> int:
    """Inspect the log, truncate a torn tail after the mark, and refuse any other damage. Return the last revision."""
    mark = read_mark(path)
    if not path.exists() or path.stat().st_size == 0:
        if mark:
            raise faults.short(path, mark_path(path), last=0, promised=mark)
        return 0
    with contextlib.closing(_Repair(path, bytes, warn=warn)) as repair:
        return repair.run(mark)


class _Repair(LogReader[bytes]):
    def _connect_to_wal(self) -> sqlite3.Connection:
        self._seen = None
        return open_to_read(self._path)  # the owner may let SQLite write the index, which saves a copy of a long log

    def run(self, mark: int | None) -> int:
        path, found = self._path, self._ask(inspect)
        last = found.last
        refuse_loss(path, found, mark or 0)
        frame = lost_commit(path) if mark is not None else 0
        if frame:
            detail = f"the commit at frame {frame} of `{wal_path(path)}` is damaged"
            raise faults.short(path, mark_path(path), last=last, promised=last + 1, detail=detail)
        if found.damage:
            saved = _set_aside(path, last + 1)
            self._cut(last)
            self._warn(f"the log was damaged at its end and is cut after revision {last}; a copy is in `{saved}`")
        elif mark is None and last:
            self._warn(f"`{mark_path(path)}` is missing or damaged; the log is taken to end at revision {last}")
        return last

    def _cut(self, last: int) -> None:
        """Write the intact part to a new file, and replace the old file with it.

        Deleting from a file with unreadable pages can fail. The old write-ahead file is removed before the new log is
        in place, because SQLite would apply it to the new log.
        """
        whole = self._path.with_name(f"{self._path.name}.whole")
        for leftover in (whole, wal_path(whole)):
            leftover.unlink(missing_ok=True)
        with faults.translating(self._path):
            with contextlib.closing(tables.open_for_writing(whole)) as target, tables.transaction(target):
                _copy(self._connection, target, last)
            tables.sync(whole)
            wal_path(self._path).unlink(missing_ok=True)
            index_path(self._path).unlink(missing_ok=True)
            whole.replace(self._path)
            tables.sync(self._path.parent)


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, last: int) -> None:
    rows = source.execute("SELECT revision, record FROM log WHERE revision <= ? ORDER BY revision", (last,))
    target.executemany("INSERT INTO log VALUES (?, ?)", rows)
    for (revision,) in source.execute("SELECT revision FROM checkpoint WHERE revision <= ?", (last,)).fetchall():
        checkpoint = tables.whole_checkpoint(source, revision)
        if checkpoint is not None:
            tables.insert_checkpoint(target, checkpoint)


def _set_aside(path: Path, revision: int) -> Path:
    """Copy the log and its write-ahead file to unused names under which SQLite opens both."""
    target, turn = path.with_name(f"{path.stem}.damaged-{revision}{path.suffix}"), 1
    while target.exists():
        turn += 1
        target = path.with_name(f"{path.stem}.damaged-{revision}-{turn}{path.suffix}")
    for source, copy in ((path, target), (wal_path(path), wal_path(target))):
        if source.exists():
            shutil.copy(source, copy)  # with its mode: no other user may read it
            tables.sync(copy)
    return target
