"""Inspects a whole log, record by record from the first one, without writing."""

import contextlib
import sqlite3
from pathlib import Path
from typing import NamedTuple

from poise.drivers.sqlite import faults, tables
from poise.drivers.sqlite.faults import READ_ERRORS
from poise.drivers.sqlite.mark import mark_path
from poise.errors import StoreDamaged
from poise.model.record import is_whole


class Found(NamedTuple):
    last: int  # the last revision of the intact records at the start of the log
    whole: int  # their number
    damage: str  # the damage after them, or ""
    following: int  # number of intact records after the damage


def inspect(connection: sqlite3.Connection) -> Found:
    """Inspect up to the first missing or damaged record. Raises `StoreNewer` for an unknown log format."""
    last, whole, damage = 0, 0, ""
    try:
        tables.refuse_newer(connection)
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'log'").fetchall():
            return Found(last=0, whole=0, damage="", following=0)
        last = _pruned(connection)
        for revision, record in connection.execute("SELECT revision, record FROM log ORDER BY revision"):
            if revision != last + 1 or not is_whole(revision, record):
                damage = "it is missing or not as it was written"
                break
            last, whole = revision, whole + 1
    except READ_ERRORS as error:
        if not faults.is_damage(error):  # an I/O error says nothing about the log
            raise
        damage = str(error)
    return Found(last, whole, damage, _count_whole_after(connection, last) if damage else 0)


def refuse_loss(path: Path, found: Found, mark: int) -> None:
    """Raise `StoreDamaged` unless the log can continue after its last intact record without loss of known records."""
    if found.damage and (found.following or not found.whole):
        raise damaged(path, found)
    if found.last < mark:
        detail = f"revision {found.last + 1} is damaged, {found.damage}" if found.damage else ""
        raise faults.short(path, mark_path(path), last=found.last, promised=mark, detail=detail)


def damaged(path: Path, found: Found) -> StoreDamaged:
    follow = f"{found.following} whole records follow" if found.following else "no whole record follows"
    message = f"the log is damaged at revision {found.last + 1} in `{path}`: {found.damage}; {follow}"
    return faults.damaged(path, message)


def _pruned(connection: sqlite3.Connection) -> int:
    """Return the revision before the first one. If it is not 0, an intact checkpoint must replace the pruned
    records."""
    before = tables.first_revision(connection) - 1
    rows = connection.execute("SELECT revision FROM checkpoint WHERE revision >= ?", (before,)).fetchall()
    return before if any(tables.whole_checkpoint(connection, revision) for (revision,) in rows) else 0


def _count_whole_after(connection: sqlite3.Connection, last: int) -> int:
    count = 0
    select = "SELECT revision, record FROM log WHERE revision > ? ORDER BY revision DESC"
    with contextlib.suppress(*READ_ERRORS):  # count the records that are readable from the end
        for revision, record in connection.execute(select, (last,)):
            count += is_whole(revision, record)
    return count
