"""What the processes of a home have to say to people, in one file that they all append to: bounded, whoever makes them
say it.
"""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

AT_FIRST, EVERY = 20, 5.0
"""So many messages alike are told at once, and then one in so many seconds."""

MOST_KINDS = 1000
"""Kinds of messages that are told apart; then all begin anew."""

KEEP_BYTES = 16 * 2**20
"""The file is turned over beyond: what it held becomes `poise.log.1`."""


class Seldom(logging.Filter):
    """Lets few of many messages alike pass: whoever can make a process complain, with no token at all, could else fill
    the disk. The next one that passes says how many did not.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if len(self._kinds) >= MOST_KINDS:
            self._kinds.clear()
        kind = self._kinds.setdefault((record.name, str(record.msg)[:200]), _Kind())
        now = self._clock()
        kind.until = max(kind.until, now) + EVERY
        if kind.until - now > AT_FIRST * EVERY:
            kind.until -= EVERY
            kind.untold += 1
            return False
        if kind.untold:
            record.msg = f"{record.msg} (and {kind.untold} more like it)"
            kind.untold = 0
        return True


class _Kind:
    def __init__(self) -> None:
        self.until = 0.0
        self.untold = 0


def turn_over(file: Path) -> None:
    """Begin the file anew where it has grown too large; processes go on appending to it. Where there is no room for
    what it held, that is gone. Raises OSError where nothing can be done.
    """
    with contextlib.suppress(FileNotFoundError):
        if file.stat().st_size <= KEEP_BYTES:
            return
        before, draft = file.with_name(f"{file.name}.1"), file.with_name(f"{file.name}.new")
        try:
            shutil.copyfile(file, draft)
            draft.replace(before)
        except OSError:
            draft.unlink(missing_ok=True)
        os.truncate(file, 0)
