"""Log messages of a home's processes, in one file to which all of them append. Its size is limited, whoever causes the
messages.
"""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

AT_FIRST, EVERY = 20, 5.0
"""Burst of similar messages that is logged at once, and then the interval in seconds for one more."""

MOST_KINDS = 1000
"""Maximum number of distinguished kinds of messages; beyond it, all counts restart."""

KEEP_BYTES = 16 * 2**20
"""Size limit of the file; beyond it, its content moves to `poise.log.1`."""


class Seldom(logging.Filter):
    """Limits the rate of similar messages: otherwise anybody who can make a process complain, even without a token,
    could fill the disk. The next message that passes includes the number of dropped ones.
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
    """Rotate the file if it has grown too large; processes continue to append to it. If the disk has no room for its
    old content, that is lost. Raises OSError if the file cannot be rotated.
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
