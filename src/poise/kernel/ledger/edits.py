"""Changes that users make to submitted jobs."""

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.lifecycle import Lifecycle
from poise.kernel.ledger.paths import Paths
from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.room import Handlers, Room
from poise.kernel.ledger.seats import Seats
from poise.kernel.ledger.state import queue_of_unit
from poise.model.changing import LIVE, changed, each_changed
from poise.model.events import JobChanged, JobHeld


class Edits(Room):
    """Holds, and new values of fields. Only this room writes a job's `hold`, `held_for` and `budget`. An active unit
    keeps its resources, unless its memory limit changes in place, and its `next_spec` takes effect at its next attempt.
    """

    def __init__(
        self, jobs: Jobs, active: Active, queues: Queues, paths: Paths, lifecycle: Lifecycle, seats: Seats
    ) -> None:
        self._jobs, self._active, self._queues, self._paths, self._lifecycle = jobs, active, queues, paths, lifecycle
        self._seats = seats

    def handlers(self) -> Handlers:
        return {JobHeld: self._held, JobChanged: self._changed}

    def _held(self, event: JobHeld) -> None:
        job = self._jobs[event.job]
        if job.hold != event.on:  # else somebody else holds it now
            job.awaited += 1 if event.on else -1
        job.hold, job.held_for = event.on, event.why if event.on else ""
        job.budget = event.budget if event.on else ""
        if event.on:
            for unit in job.units:
                if unit.status == "pending":
                    self._queues.remove(unit)
                    self._queues.forget_yields(unit)
                    unit.status = "waiting"
        elif not job.awaited:
            self._lifecycle.release_roots(job, event.at)

    def _changed(self, event: JobChanged) -> None:
        job = self._jobs[event.job]
        for unit in [self._jobs.units[name] for name in event.units]:
            pending = unit.status == "pending"
            if pending:
                self._queues.remove(unit)
            at_rest = unit.status != "active"
            later = changed(unit.next_spec or unit.spec, event.like, event.paths, at_rest=True)
            unit.spec = changed(unit.spec, event.like, event.paths, at_rest=at_rest)
            if unit.id in event.grow:
                memory, most = event.like.shape.memory, max(unit.lowered_from, unit.spec.shape.memory)
                if unit.lowered_from and memory > unit.spec.shape.memory:
                    unit.regained = memory
                unit.lowered_from = most if memory < most else 0
                self._seats.grow(unit, memory)
            unit.next_spec = None if later == unit.spec else later
            unit.queue = queue_of_unit(job, unit)
            if (LIVE in event.paths or unit.id in event.grow) and not at_rest:
                unit.limited = unit.placed_in
            if "deadline" in event.paths:
                unit.missed = None
            if pending:
                self._queues.add(unit)
            elif unit.status == "active":
                self._active.index_recovering(unit)
        if job.array is not None and len(event.units) == len(job.units):  # the whole job changes, also what is to come
            job.array.rule = each_changed(job.array.rule, event.like, event.paths)
        self._jobs.index_late(job)
        self._paths.plan_again(job)
