"""Schedules of recurring work."""

from collections.abc import Iterator

from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.room import Handlers, Room, hold, hold_same
from poise.kernel.ledger.state import JobState, ScheduleState, State
from poise.model.events import ScheduleAdded, ScheduleHeld, ScheduleRemoved, ScheduleTurn
from poise.model.tenants import Bearer

FOREVER = 2**62


class Schedules(Room, dict[str, ScheduleState]):
    """Schedules by id, in order of submission. Owns `schedules` and `schedules_ever`.

    The events contain each next due time, so this room needs no calendars or time zones.
    """

    def __init__(self, state: State, jobs: Jobs) -> None:
        super().__init__(sorted(state.schedules.items(), key=_by_number))
        self._state, self._jobs, state.schedules = state, jobs, self
        self._names = {(of.job.tenant, of.job.name): of.id for of in self.values() if of.job.name}
        self._keys = {(of.job.tenant, of.key): of.id for of in self.values() if of.key}
        self._soonest: tuple[int, int] | None = None  # the earliest due times, computed on demand

    def next_id(self) -> str:
        return f"s{self._state.schedules_ever + 1}"

    def submitted_under(self, key: str, tenant: str) -> str | None:
        """Return the id of the schedule that an earlier submission of this tenant with this key created."""
        return self._keys.get((tenant, key))

    def find(self, name: str, bearer: Bearer) -> ScheduleState | None:
        """Return a schedule by id, or by name within the bearer's tenant; None if the bearer may not see it."""
        found = self.get(name) or self.get(self._names.get((bearer.tenant, name), ""))
        return found if found is not None and bearer.sees(found.job.tenant) else None

    def named(self, name: str, tenant: str) -> ScheduleState | None:
        return self.get(self._names.get((tenant, name), ""))

    def unfinished(self, schedule: ScheduleState) -> list[JobState]:
        """Return its submitted jobs that have not ended."""
        known = (self._jobs.get(job) for job in schedule.unfinished)
        return [job for job in known if job is not None and not job.ended]

    def soonest(self) -> tuple[int, int]:
        """Return the earliest due times: of schedules with `every` and of those with `cron`. `FOREVER`: none."""
        if self._soonest is None:
            awaited = [of for of in self.values() if not of.held]
            every = min((of.due for of in awaited if of.rule.every), default=FOREVER)
            self._soonest = every, min((of.due for of in awaited if not of.rule.every), default=FOREVER)
        return self._soonest

    @property
    def any_awaited(self) -> bool:
        """Whether any schedule will submit a job: not all are on hold."""
        return self.soonest() != (FOREVER, FOREVER)

    def due(self, now: int, wall: int) -> Iterator[ScheduleState]:
        """Yield the schedules that are due. `wall` is in nanoseconds since 1970."""
        every, cron = self.soonest()
        if every <= now or cron <= wall:
            yield from [of for of in self.values() if not of.held and of.due <= (now if of.rule.every else wall)]

    def handlers(self) -> Handlers:
        return {
            ScheduleAdded: self._added,
            ScheduleTurn: self._turn,
            ScheduleHeld: self._held,
            ScheduleRemoved: self._removed,
        }

    def _added(self, event: ScheduleAdded) -> None:
        schedule = event.schedule
        self._state.schedules_ever += 1
        self[schedule.id] = ScheduleState(
            id=schedule.id,
            rule=schedule.rule,
            job=schedule.job,
            due=schedule.due,
            added=event.at,
            key=event.key,
            by=event.by,
            held=schedule.held,
        )
        if schedule.job.name:
            self._names[schedule.job.tenant, schedule.job.name] = schedule.id
        if event.key:
            self._keys[schedule.job.tenant, event.key] = schedule.id
        self._soonest = None

    def _turn(self, event: ScheduleTurn) -> None:
        schedule = self[event.schedule]
        schedule.unfinished = [job.id for job in self.unfinished(schedule)]
        if event.job:
            schedule.unfinished.append(event.job)
            schedule.number += 1
            schedule.last = event.job
        schedule.due, schedule.last_due, schedule.refused = event.next, event.due, event.refused
        self._soonest = None

    def _held(self, event: ScheduleHeld) -> None:
        schedule = self[event.schedule]
        schedule.held, schedule.due, schedule.refused = event.on, event.next or schedule.due, event.why
        self._soonest = None

    def _removed(self, event: ScheduleRemoved) -> None:
        schedule = self.pop(event.schedule)
        self._names.pop((schedule.job.tenant, schedule.job.name), None)
        self._keys.pop((schedule.job.tenant, schedule.key), None)
        self._soonest = None

    def check(self, anew: "Schedules") -> None:
        for index in ("_names", "_keys"):
            hold_same(f"{index} of schedules", getattr(self, index), getattr(anew, index))
        hold(self.soonest() == anew.soonest(), "a schedule is due at another time")
        for schedule in self.values():
            hold(schedule.due > schedule.last_due, f"{schedule.id} is due again when it was due already")


def _by_number(item: tuple[str, ScheduleState]) -> int:
    """Return the number in a schedule id, by which schedules sort: s12 comes after s2."""
    return int(item[0][1:])
