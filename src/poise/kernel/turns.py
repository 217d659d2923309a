"""The part of the controller that adds schedules and submits their jobs when they are due.

`timetable` computes when a turn is due and its job; this module changes the ledger accordingly.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from poise.errors import Busy, Conflict, PoiseError
from poise.kernel import timetable
from poise.kernel.fitting import check_all
from poise.kernel.ledger import JobState, Ledger, ScheduleState, UnitState
from poise.kernel.timetable import Calendar
from poise.model.events import (
    Event,
    JobsCancelled,
    ScheduleAdded,
    ScheduleHeld,
    ScheduleRemoved,
    ScheduleTurn,
)
from poise.model.jobs import Job
from poise.model.recurring import Rule, Schedule
from poise.model.spec import Compiled
from poise.model.tenants import Bearer
from poise.units import HOUR, SECOND

AT_ONCE = 256
"""Maximum number of schedules to run in one tick; many may be due at the same time of day."""

LOOK_AT_WALL = 60 * SECOND
"""Interval at which to read the wall clock while a schedule waits for a time of day, because wall clocks can be set."""

SET_BACK = 3 * HOUR
"""A wall clock that is set back by less repeats no turn. When it is set back by more, it was wrong before, and turns of
`cron` follow it again. Debian's cron has the same limit.
"""

NEVER = 2**62


class Turns:
    """The controller's schedules. The controller replaces `ledger` when it reloads the durable state."""

    def __init__(
        self,
        ledger: Ledger,
        calendar: Calendar | None,
        *,
        commit: Callable[[Event], None],
        submit: Callable[[Job, str, str, int], None],
        would_submit: Callable[[Compiled, str], Job],
        stop: Callable[[JobState, Iterable[UnitState], int], None],
    ) -> None:
        """Without a `calendar`, as in forecasts, schedules submit nothing. `commit` applies an event. `submit` accepts
        a job under a key, for a token. `would_submit` makes the job, or raises the refusal. `stop` stops the running
        units of a cancelled job.
        """
        self.ledger = ledger
        self.calendar = calendar
        self._commit = commit
        self._submit = submit
        self._would_submit = would_submit
        self._stop = stop
        self._offset = round(ledger.leader.wall(ledger.now) * SECOND) - ledger.now
        self._followed = NEVER  # the largest offset since turns last followed a clock that was set back

    def wall_is(self, wall: float, now: int) -> None:
        """Set the wall clock, in seconds since 1970."""
        self._offset = round(wall * SECOND) - now

    def wall_at(self, now: int) -> int:
        """Return the wall clock at an instant, in nanoseconds since 1970."""
        return now + self._offset

    def tick(self, now: int) -> None:
        """Submit the jobs of the turns that are due. A job and its turn are two records: if the second is lost, the
        next leader finds the job by its key.
        """
        if self.calendar is None:
            return
        wall = now + self._offset
        if self._offset < self._followed - SET_BACK:
            self._follow_back(now, wall, self.calendar)
        self._followed = max(self._followed, self._offset)
        for schedule in islice(self.ledger.schedules.due(now, wall), AT_ONCE):
            try:
                turn = timetable.turn_of(schedule, now, wall, self.calendar)
            except PoiseError as error:
                self._commit(ScheduleHeld(at=now, schedule=schedule.id, on=True, why=timetable.in_words(error)))
                continue
            job, refused = "", ""
            try:
                job = self._take(schedule, turn, now)
            except PoiseError as error:
                refused = timetable.in_words(error)
            self._commit(
                ScheduleTurn(
                    at=now,
                    schedule=schedule.id,
                    due=turn.due,
                    next=turn.next,
                    job=job,
                    refused=refused,
                    missed=turn.missed,
                )
            )

    def _follow_back(self, now: int, wall: int, calendar: Calendar) -> None:
        """Move the next turns of `cron` schedules to the first time after `wall`, if their last turn was due far after
        it, or if they had none. A held schedule moves too: its release does not repeat turns before its last one.
        """
        self._followed = self._offset
        for schedule in self.ledger.schedules.values():
            if schedule.rule.every or 0 < schedule.last_due <= wall + SET_BACK:
                continue
            try:
                latest, following = calendar(schedule.rule.cron, schedule.rule.zone, wall)
            except PoiseError:  # the turn itself tells it
                continue
            if schedule.due > following:
                was = timetable.moment(self.ledger, schedule, schedule.due)
                why = f"the clock was set back; the next job was due {was}"
                self._commit(ScheduleTurn(at=now, schedule=schedule.id, due=latest, next=following, refused=why))

    def wakeup(self, now: int) -> int | None:
        """Return when a schedule is due, or when to read the wall clock again."""
        if self.calendar is None:
            return None
        every, cron = self.ledger.schedules.soonest()
        if cron < NEVER:
            every = min(every, cron - self._offset, now + LOOK_AT_WALL)
        return every if every < NEVER else None

    def _take(self, schedule: ScheduleState, turn: timetable.Turn, now: int) -> str:
        """Submit the job of a turn and return its id. Raises the error of a refusal."""
        key = timetable.key_of(schedule, turn)
        existing = self.ledger.jobs.submitted_under(key, schedule.job.tenant)
        if existing is not None:
            return existing
        timetable.check_may_go_on(self.ledger, schedule, now)
        job = self._would_submit(timetable.compiled(self.ledger, schedule, turn), schedule.job.user)
        going = [of for of in self.ledger.schedules.unfinished(schedule) if not of.cancelled_by]
        if going and schedule.rule.overlap == "replace":
            self._commit(JobsCancelled(at=now, jobs=tuple(of.id for of in going), by=schedule.by))
            for of in going:
                self._stop(of, of.units, now)
        self._submit(job, key, schedule.by, now)
        return job.id

    # --- requests ----------------------------------------------------------------------------------------------------

    def add(self, rule: Rule, compiled: Compiled, user: str, key: str, by: str, now: int) -> str:
        """Add a schedule of this job and return its id. Raises `Conflict` and `Busy`."""
        schedules = self.ledger.schedules
        timetable.check_room(self.ledger, compiled.tenant)
        if compiled.name and (held := schedules.named(compiled.name, compiled.tenant)):
            raise Conflict(
                f"the name `{compiled.name}` is taken by a schedule",
                code="E107",
                field="name",
                have=held.id,
                hint=f"`poise schedules rm {compiled.name}`, or another name",
            )
        quota = self.ledger.quotas.get(compiled.tenant)
        check_all(compiled.units, self.ledger.columns.room(), compiled.tenant, quota)
        if self.calendar is None:
            raise Busy("no schedule is taken in here")
        schedule = Schedule(
            id=schedules.next_id(),
            rule=rule,
            job=compiled._replace(hold=False).job("", {}, user),
            due=timetable.first_due(rule, now, now + self._offset, self.calendar),
            held=compiled.hold,
        )
        self._commit(ScheduleAdded(at=now, schedule=schedule, key=key, by=by))
        return schedule.id

    def hold(self, name: str, bearer: Bearer, now: int, *, on: bool) -> str:
        """Put a schedule on hold, or release it; return its id. Raises `NotFound`."""
        schedule = timetable.find_schedule(self.ledger, name, bearer)
        if schedule.held != on and self.calendar is not None:
            wall, after, due = now + self._offset, schedule.last_due, 0
            if not on:
                due = timetable.first_due(schedule.rule, now, wall, self.calendar, after)
            self._commit(ScheduleHeld(at=now, schedule=schedule.id, on=on, next=due, by=bearer.token))
        return schedule.id

    def remove(self, name: str, bearer: Bearer, now: int) -> str:
        """Remove a schedule and return its id. Raises `NotFound`."""
        schedule = timetable.find_schedule(self.ledger, name, bearer)
        self._commit(ScheduleRemoved(at=now, schedule=schedule.id, tenant=schedule.job.tenant, by=bearer.token))
        return schedule.id


__all__ = ["Turns"]
