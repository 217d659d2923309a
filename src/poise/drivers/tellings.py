"""Reads the reports of running commands. Each command gets a file (POISE_REPORT, beside the one for its result) to
which it may write a `Training` as JSON at any time, atomically.

Files are read when they have changed. Invalid content is ignored and logged once per attempt. A file is kept until the
attempt's ending is acknowledged, so that the ending can include the last report.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from poise.model.messages import Attempt, Ended, Told
from poise.model.training import ENDED_AS_ASKED, MOST_BYTES, Training, decode

if TYPE_CHECKING:
    from poise.drivers.owner import Account

_log = logging.getLogger("poise.agent")

_Seen = tuple[int, int, int]

MOST_NOTED = 1000
"""Maximum bytes of the reason why files could not be created."""


def result_path(folder: str, attempt: Attempt) -> str:
    """Return the path of the file for the result of an attempt; `folder` ends in a slash."""
    return f"{folder}{attempt.task}.{attempt.epoch}.json"


def plan_path(result: str) -> str:
    """Return the path of the file with the plan of an attempt's files, beside the one for its result."""
    return f"{report_path(result)}.plan"


def failure_path(result: str) -> str:
    """Return the path of the file for the reason why they could not be created."""
    return f"{report_path(result)}.failure"


def report_path(result: str) -> str:
    """Return the path of the file for a command's reports, beside the one for its result."""
    return result.removesuffix(".json") + ".report"


class Tellings:
    """The files of one folder, and of attempts of accounts in folders of theirs. `look` may be called in its own
    thread.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._seen: dict[Attempt, _Seen] = {}
        self._refused: set[Attempt] = set()
        self._unplanned: dict[Attempt, str] = {}
        self._owned: dict[Attempt, tuple[str, Account, str]] = {}

    def owned(self, attempt: Attempt, folder: str, account: "Account", plans: str) -> None:
        """Set the folder of an attempt of an account, and the one for its plan; files there are used only if they
        belong to the account.
        """
        self._owned[attempt] = (folder, account, plans)

    def folder_of(self, attempt: Attempt) -> str:
        return self._owned[attempt][0] if attempt in self._owned else self._folder

    def account_of(self, attempt: Attempt) -> "Account | None":
        return self._owned[attempt][1] if attempt in self._owned else None

    def plan_of(self, attempt: Attempt) -> str:
        """Return the path beside which the plan of an attempt is (`plan_path`)."""
        return result_path(self._owned[attempt][2] if attempt in self._owned else self._folder, attempt)

    def look(self, attempts: Iterable[Attempt]) -> list[Told]:
        """Return the reports that these attempts have written since the last call."""
        told = []
        for attempt in attempts:
            try:
                state = Path(self._path(attempt)).lstat()
            except OSError:
                continue
            seen = (state.st_ino, state.st_size, state.st_mtime_ns)
            if self._seen.get(attempt) == seen:
                continue
            self._seen[attempt] = seen
            training = self.last(attempt)
            if training is not None:
                told.append(told_of(attempt, training))
        return told

    def last(self, attempt: Attempt) -> Training | None:
        """Return the last report of an attempt if it is readable."""
        try:
            text = _read(self._path(attempt), self.account_of(attempt))
            if text is None:
                return None
            self._seen.setdefault(attempt, (0, 0, 0))
            return decode(text)
        except (OSError, msgspec.DecodeError) as error:
            if attempt not in self._refused:
                self._refused.add(attempt)
                _log.warning("what %s tells of its training cannot be used: %s", attempt, error)
            return None

    def last_word(self, done: Ended) -> Ended:
        """Return an ending with the information in the attempt's last report: the progress that is saved, if it did not
        finish; and whether it was training that received SIGTERM from outside Poise. Such training saves a checkpoint
        and exits in order, in a gang all members do, so its exit code, like SIGKILL, does not mean that the work
        failed.
        """
        ending = done.ending
        if ending.outcome == "failed" and (why := self._why_unprepared(done.attempt)):
            return msgspec.structs.replace(
                done, ending=msgspec.structs.replace(ending, outcome="unstartable", note=why)
            )
        training = None if ending.outcome in ("done", "returned") else self.last(done.attempt)
        if training is None:
            return done
        if ending.outcome == "failed" and ending.code == ENDED_AS_ASKED:
            ending = msgspec.structs.replace(
                ending, outcome="killed", note="it was asked to end by SIGTERM, and saved itself"
            )
        if ending.progress < 0 <= training.safe:
            ending = msgspec.structs.replace(ending, progress=training.safe)
        return done if ending is done.ending else msgspec.structs.replace(done, ending=ending)

    def _why_unprepared(self, attempt: Attempt) -> str:
        """Return why the files of an attempt could not be created; empty on success."""
        try:
            text = _read(failure_path(self.plan_of(attempt)), self.account_of(attempt))
        except OSError:
            text = None
        if text is None:
            return self._unplanned.get(attempt, "")
        self._seen.setdefault(attempt, (0, 0, 0))
        return text[:MOST_NOTED].decode("utf-8", "replace").strip() or self._unplanned.get(attempt, "")

    def planned(self, attempt: Attempt, why_not: str = "") -> None:
        """Record that the attempt has a plan of its files, or why it has none."""
        self._seen.setdefault(attempt, (0, 0, 0))
        if why_not:
            self._unplanned[attempt] = why_not

    def forget(self, attempts: Iterable[Attempt]) -> None:
        """Remove the files of attempts whose endings are stored elsewhere."""
        for attempt in attempts:
            self._refused.discard(attempt)
            self._unplanned.pop(attempt, None)
            if self._seen.pop(attempt, None) is not None:
                for path in {Path(self._path(attempt)), Path(report_path(self.plan_of(attempt)))}:
                    for found in _files(path.parent, path.name):
                        with contextlib.suppress(OSError):
                            found.unlink()
            self._owned.pop(attempt, None)

    def tidy(self, known: Collection[Attempt]) -> None:
        """Remove files of unknown attempts that an earlier agent left."""
        kept = {Path(self._path(attempt)).stem for attempt in known}
        for path in _files(Path(self._folder), ""):
            if path.name.rpartition(".report")[0] not in kept:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _path(self, attempt: Attempt) -> str:
        return report_path(result_path(self.folder_of(attempt), attempt))


def _files(folder: Path, name: str) -> list[Path]:
    """Return reports whose names begin like this, with their drafts."""
    return [path for path in folder.glob("*.report*") if path.name.startswith(name)]


def told_of(attempt: Attempt, training: Training) -> Told:
    """Return a report with the speedups separate from the rest."""
    rest = msgspec.structs.replace(training, speedups=None)
    return Told(attempt=attempt, speedups=training.speedups, training=rest)


def _read(path: str, account: "Account | None") -> bytes | None:
    """Return the first bytes of a file, one more than allowed; None if it does not exist. It must be a regular file: a
    pipe would block the reader. It must belong to its account: a link could lead to files of others.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise OSError("it is not a file")
        if account is not None and state.st_uid != account.uid:
            raise OSError("it belongs to another user")
        return os.read(fd, MOST_BYTES + 1)
    finally:
        os.close(fd)
