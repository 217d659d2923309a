"""Cancellations, by a user or because a deadline cannot be met."""

from collections.abc import Iterable, Sequence

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.lifecycle import Lifecycle
from poise.kernel.ledger.paths import Paths
from poise.kernel.ledger.room import Handlers, Room
from poise.kernel.ledger.state import JobState
from poise.kernel.ledger.units import UnitState
from poise.model.events import DeadlinesMissed, JobCancelled, JobsCancelled, UnitsCancelled


class Cancelling(Room):
    """Waiting and pending units are cancelled at once, active units when their attempts have ended."""

    def __init__(self, jobs: Jobs, active: Active, paths: Paths, lifecycle: Lifecycle, changes: Changes) -> None:
        self._jobs, self._active, self._paths, self._lifecycle, self._changes = jobs, active, paths, lifecycle, changes

    def handlers(self) -> Handlers:
        return {
            JobCancelled: self._job_cancelled,
            JobsCancelled: self._jobs_cancelled,
            UnitsCancelled: self._units_cancelled,
            DeadlinesMissed: self._deadlines_missed,
        }

    def _job_cancelled(self, event: JobCancelled) -> None:
        job = self._jobs[event.job]
        self._cancel_job(job, event.by, event.at)
        self._lifecycle.end_if_over(job, event.at)

    def _jobs_cancelled(self, event: JobsCancelled) -> None:
        """Cancel all jobs before any of them ends, so that a job that follows another one is cancelled and not
        skipped.
        """
        jobs = [self._jobs[job_id] for job_id in event.jobs]
        for job in jobs:
            self._cancel_job(job, event.by, event.at)
        self._lifecycle.end_those_over(jobs, event.at)

    def _units_cancelled(self, event: UnitsCancelled) -> None:
        job, units = self._jobs[event.job], [self._jobs.units[unit] for unit in event.units]
        self._cancel_some(job, units, event.at, turns=event.turns)
        self._lifecycle.make_parts(job, event.at)
        self._lifecycle.end_if_over(job, event.at)

    def _deadlines_missed(self, event: DeadlinesMissed) -> None:
        job, units = self._jobs[event.job], [self._jobs.units[missed.unit] for missed in event.units]
        for unit, missed in zip(units, event.units, strict=True):
            unit.missed = missed
        self._cancel_some(job, units, event.at, turns=True)
        self._paths.plan_again(job)  # the remaining units are due by the remaining deadlines
        self._lifecycle.end_if_over(job, event.at)

    def _cancel_job(self, job: JobState, by: str, at: int) -> None:
        job.cancelled_by = by or "user"
        if job.calls is not None:
            job.calls.closed = job.calls.closed or "cancelled"
        self._lifecycle.give_up_parts(job, "cancelled")
        self._cancel(tuple(job.units), at)

    def _cancel_some(self, job: JobState, units: Sequence[UnitState], at: int, *, turns: bool) -> None:
        """Cancel units of a job and skip the units that need them. With `turns`, a part whose turn has come passes it
        on, and a part whose turn is still to come is passed over.
        """
        passing: list[UnitState] = []
        for unit in units if turns else ():
            if unit.spec.at_most and unit.status in ("waiting", "pending"):
                if unit.spec.tasks[0].part < unit.spec.at_most + job.turns.get(unit.spec.name.partition("[")[0], 0):
                    passing.append(unit)
                else:
                    self._lifecycle.pass_over(unit)
        self._cancel(units, at)
        for unit in units:
            if unit.status == "cancelled":
                self._lifecycle.skip(self._jobs.dependents.get(unit.id, ()), at)
        for unit in passing:
            self._lifecycle.pass_turn(job, unit.spec, at)

    def _cancel(self, units: Iterable[UnitState], at: int) -> None:
        for unit in units:
            if unit.status in ("waiting", "pending"):
                self._lifecycle.close(unit, "cancelled", at)
            elif unit.status == "active":
                unit.stopping = "cancel"
                self._active.index_recovering(unit)
                self._changes.mark(unit)
