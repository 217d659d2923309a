"""Errors for an unusable log: SQLite's errors in Poise's terms, with a hint that can be typed."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from poise.errors import Busy, Conflict, Fault, PoiseError, StoreDamaged, StoreFull
from poise.units import format_bytes

READ_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions of `sqlite3` for a damaged file: the second one when SQLite's message quotes damaged bytes."""

# SQLITE_ERROR concerns the statement; ours are constant, so a table or a header must have changed.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_DISK = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_CAN_HEAL = (*_DISK, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)  # while the store is open


@contextlib.contextmanager
def translating(path: Path) -> Iterator[None]:
    try:
        yield
    except (*READ_ERRORS, OSError) as error:
        raise unusable(error, path) from error


def is_damage(error: BaseException) -> bool:
    return isinstance(error, UnicodeDecodeError) or _code(error) in _DAMAGE


def unusable(error: Exception, path: Path) -> PoiseError:
    if is_damage(error):
        return damaged(path, f"`{path}` cannot be read: {error}")
    if _code(error) == sqlite3.SQLITE_BUSY:
        return Busy(f"`{path}` is in use: {error}", hint="retry")
    if _code(error) in _DISK or isinstance(error, OSError):
        return StoreFull(f"`{path}` cannot be read or written: {error}", hint=f"`df -h {path.parent}`")
    return Fault(f"`{path}` cannot be opened, read or written: {error}", hint=f"`ls -l {path.parent}`")


def unwritable(error: Exception, path: Path, *, last: int, max_bytes: int) -> PoiseError:
    if isinstance(error, sqlite3.IntegrityError) or _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return second_writer(path, need=last, have="a lock or a record that is not ours")
    if _code(error) not in _CAN_HEAL:
        return unusable(error, path)
    limit = f", or the log has reached its limit of {format_bytes(max_bytes)}" if max_bytes else ""
    return StoreFull(
        f"the log cannot be written: the disk is full{limit} ({error})",
        hint=f"`df -h {path.parent}`; appends are accepted again once there is space",
    )


def second_writer(path: Path, *, need: int, have: str) -> Conflict:
    return Conflict(
        f"somebody else writes to `{path}`",
        code="E204",
        need=f"revision {need} as the last",
        have=have,
        hint=f"`fuser {path}` names the process; stop one of the two",
    )


def gone(path: Path) -> Conflict:
    return Conflict(
        f"`{path}`, or `{path.name}-wal` beside it, was deleted or replaced while it was in use",
        code="E204",
        hint="restore a backup; nothing is acknowledged any more",
    )


def damaged(path: Path, message: str) -> StoreDamaged:
    aside = path.parent / "damaged"
    hint = f"restore a backup, or `mkdir {aside} && mv {path.parent}/{path.stem}.* {aside}` to begin an empty log"
    return StoreDamaged(message, hint=hint)


def short(path: Path, mark: Path, *, last: int, promised: int, detail: str = "") -> StoreDamaged:
    """Return the error for lost acknowledged events. Only a person may accept the loss."""
    words = f": {detail}" if detail else ""
    return StoreDamaged(
        f"the log ends at revision {last}, but revision {promised} was durable in `{path}`{words}",
        need=f"revision {promised}",
        have=f"revision {last}",
        hint=f"restore a backup, or `rm {mark}` to continue from revision {last} without the lost events",
    )


def _code(error: BaseException) -> int:
    """Return SQLite's primary result code, or 0."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
