"""Due times of schedules. This module changes nothing: the controller commits the events.

Turns of `every` follow the time of the log, which no wall clock moves. Turns of `cron` follow the wall clock, through a
calendar that the shell provides. All turns that were due while no control plane ran count as one turn.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from poise.errors import Conflict, NotFound, PoiseError
from poise.kernel.ledger import Ledger, ScheduleState
from poise.model.document import near
from poise.model.recurring import Rule
from poise.model.spec import Compiled
from poise.model.tenants import Bearer
from poise.units import SECOND

Calendar = Callable[[str, str, int], tuple[int, int]]
"""Returns the latest time of a cron expression in a time zone at or before a time, and the first one after it, in
nanoseconds since 1970. Raises PoiseError.
"""

MAX_SCHEDULES = 10_000
MAX_OF_TENANT = 1_000


class Turn(NamedTuple):
    """The turn that is `due` now, when the `next` is due, and the first of the skipped earlier turns (0: none)."""

    due: int
    next: int
    missed: int = 0


def first_due(rule: Rule, now: int, wall: int, calendar: Calendar, after: int = 0) -> int:
    """Return when the first turn of a rule is due, at `now` or later, and later than `after`."""
    if rule.every:
        return max(now, after + 1)
    return calendar(rule.cron, rule.zone, max(wall, after))[1]


def turn_of(schedule: ScheduleState, now: int, wall: int, calendar: Calendar) -> Turn:
    """Return the turn of a schedule that is due."""
    rule = schedule.rule
    if rule.every:
        due = now - (now - schedule.due) % rule.every
        following = due + rule.every
    else:
        latest, following = calendar(rule.cron, rule.zone, wall)
        due = max(latest, schedule.due)
    return Turn(due, following, schedule.due if due > schedule.due else 0)


def key_of(schedule: ScheduleState, turn: Turn) -> str:
    """Return the key for the job of a turn, so that it is submitted once, under any leader."""
    return f"{schedule.id}@{turn.due}"


def compiled(ledger: Ledger, schedule: ScheduleState, turn: Turn) -> Compiled:
    """Return the job of a turn: `nightly-7` is the seventh of the schedule `nightly`."""
    job, number = schedule.job, schedule.number + 1
    passed = ", for all turns since the control plane was away" if turn.missed else ""
    note = f"job {number} of schedule {schedule.called}, due {moment(ledger, schedule, turn.due)}{passed}"
    name = f"{schedule.called}-{number}"
    return Compiled(
        name,
        job.folder,
        job.env,
        job.units,
        note=note,
        tenant=job.tenant,
        secrets=job.secrets,
        notify=job.notify,
        tree=job.tree,
        project=job.project,
        allow_failed=job.allow_failed,
        array=job.array,
    )


def wall_of(ledger: Ledger, schedule: ScheduleState, due: int) -> float:
    """Return a due time of a schedule in seconds since 1970, for people; 0 for none."""
    return ledger.leader.wall(due) if schedule.rule.every else due / SECOND


def moment(ledger: Ledger, schedule: ScheduleState, due: int) -> str:
    """Return the due time as text: 2026-12-01T02:00:00Z."""
    return f"{datetime.fromtimestamp(int(wall_of(ledger, schedule, due)), UTC):%Y-%m-%dT%H:%M:%SZ}"


def check_may_go_on(ledger: Ledger, schedule: ScheduleState, now: int) -> None:
    """Raise `Conflict` if the schedule may submit nothing now: the token that submitted it is no longer valid, or an
    earlier job has not ended and the schedule allows no overlap.
    """
    token = ledger.tokens.get(schedule.by) if schedule.by else None
    if schedule.by and (token is None or token.revoked or 0 < token.expires <= now):
        raise Conflict(f"its token {schedule.by} is no longer good", field="token", have=schedule.by)
    going = ledger.schedules.unfinished(schedule)
    if going and schedule.rule.overlap == "skip":
        raise Conflict(f"{going[0].id} has not ended", field="overlap", have="skip")


def check_room(ledger: Ledger, tenant: str) -> None:
    """Raise `Conflict` if there are too many schedules."""
    own = sum(of.job.tenant == tenant for of in ledger.schedules.values())
    for most, have, whose in ((MAX_SCHEDULES, len(ledger.schedules), ""), (MAX_OF_TENANT, own, f" of `{tenant}`")):
        if have >= most:
            what, hint = f"there are too many schedules{whose}", "`poise schedules rm` those that nobody needs"
            raise Conflict(what, need=f"at most {most}", have=str(have), hint=hint)


def in_words(error: PoiseError) -> str:
    """Return why a turn submitted no job: `its name is taken (have: j7)`."""
    facts = [f"{name}: {text}" for name, text in (("need", error.record.need), ("have", error.record.have)) if text]
    return f"{error} ({', '.join(facts)})" if facts else str(error)


def find_schedule(ledger: Ledger, name: str, bearer: Bearer) -> ScheduleState:
    """Return a schedule by id or name. Raises `NotFound`."""
    found = ledger.schedules.find(name, bearer)
    if found is None:
        known = [of.called for of in ledger.schedules.values() if bearer.sees(of.job.tenant)]
        hint = near(name, known) or "`poise schedules`"
        raise NotFound(f"there is no schedule `{name}`", field="schedule", have=name, hint=hint)
    return found
