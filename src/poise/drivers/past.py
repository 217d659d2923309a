"""The state at a past moment, from the log alone: the nearest earlier checkpoint, and every event after it.

    then = state_at(log, Moment(wall=1_764_254_400.0))
    job_report(then.ledger, then.ledger.jobs["j7"], then.now, tasks=True)

It reads the log without a control plane. A pruned log keeps only its latest records; an earlier moment is refused.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from poise.engine.host import Log, ledger_at
from poise.errors import NotFound
from poise.kernel.ledger import Ledger
from poise.model.events import Began, Event
from poise.ports import StoredCheckpoint


class Moment(NamedTuple):
    """A revision, or, if that is 0, a time in seconds since 1970."""

    wall: float = 0.0
    revision: int = 0


class Past(NamedTuple):
    """The ledger at that time, and the moment on the ledger's clock."""

    ledger: Ledger
    now: int

    @property
    def wall(self) -> float:
        """The moment in seconds since 1970."""
        return self.ledger.leader.wall(self.now)


class LogWithPast(Log, Protocol):
    """A log that reports how far back it goes."""

    def first_revision(self) -> int: ...
    def checkpoints(self) -> Iterator[StoredCheckpoint]: ...


def state_at(log: LogWithPast, moment: Moment) -> Past:
    """Return the state after the last event of the moment. Raises `NotFound` if the log does not have it: it is before
    the first record, before the oldest remaining one, or after the last revision.
    """
    ledger = start_at(log, moment)
    if _is_over(ledger, moment):
        since = f"revision {ledger.revision} or later ({time_text(ledger.leader.wall(ledger.now))})"
        raise NotFound(
            "the log no longer has this moment: its older records were removed",
            need=since,
            have=f"revision {moment.revision}" if moment.revision else time_text(moment.wall),
        )
    for revision, event in log.read(ledger.revision):
        if _is_later(ledger, revision, event, moment):
            break
        ledger.apply(event)
    if moment.revision > ledger.revision:
        raise NotFound(
            "the log has not reached this revision",
            field="revision",
            need=f"at most {ledger.revision}",
            have=str(moment.revision),
            hint="`poise status` shows the latest",
        )
    if not ledger.revision:
        raise NotFound("nothing was recorded yet at that time", have=time_text(moment.wall), hint="a later time")
    now = ledger.now if moment.revision else ledger.leader.resume_at("", 0, moment.wall)
    return Past(ledger, now)


def start_at(log: LogWithPast, moment: Moment, *, plans: bool = True) -> Ledger:
    """Return the state of the newest checkpoint that is not later than the moment; without one, the earliest state from
    which the log has every event. `plans` as of `Ledger`.
    """
    whole = log.first_revision() == 1
    ledger = Ledger(plans=plans)
    for stored in log.checkpoints():
        if stored.revision < log.first_revision() - 1:
            break
        if whole and 0 < moment.revision < stored.revision:
            continue
        ledger = ledger_at(stored, log.written_by, plans=plans)
        if not _is_over(ledger, moment):
            return ledger
    return Ledger(plans=plans) if whole else ledger


def _is_over(ledger: Ledger, moment: Moment) -> bool:
    """Return whether a state is later than the moment."""
    if moment.revision:
        return ledger.revision > moment.revision
    return ledger.leader.wall(ledger.now) > moment.wall


def _is_later(ledger: Ledger, revision: int, event: Event, moment: Moment) -> bool:
    if moment.revision:
        return revision > moment.revision
    wall = event.wall if isinstance(event, Began) and event.wall else ledger.leader.wall(event.at)
    return wall > moment.wall


def time_text(wall: float) -> str:
    """`2026-11-27 14:30:05`, in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall))
