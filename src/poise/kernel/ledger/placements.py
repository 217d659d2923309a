"""Decisions about units: placement, preemption, resizing, suspension."""

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.lifecycle import Lifecycle
from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.room import Handlers, InvariantBroken, Room
from poise.kernel.ledger.seats import Seats
from poise.kernel.ledger.training import Training
from poise.kernel.ledger.units import UnitState
from poise.model.events import Placed, Preempted, Resized, Resumed, Suspended
from poise.model.jobs import Ending


class Placements(Room):
    """Only this room writes `epoch`, `placed`, `variant` and `why` of a unit."""

    def __init__(
        self,
        jobs: Jobs,
        active: Active,
        queues: Queues,
        training: Training,
        lifecycle: Lifecycle,
        seats: Seats,
        changes: Changes,
    ) -> None:
        self._jobs, self._active, self._queues, self._training = jobs, active, queues, training
        self._lifecycle, self._seats, self._changes = lifecycle, seats, changes

    def handlers(self) -> Handlers:
        return {
            Placed: self._placed,
            Preempted: self._preempted,
            Resized: self._resized,
            Suspended: self._suspended,
            Resumed: self._resumed,
        }

    def _placed(self, event: Placed) -> None:
        unit = self._jobs.units[event.unit]
        if unit.status == "active":  # it is on a lost node; the new epoch fences its old attempts
            self._drop_attempts(unit, event.at)
        elif unit.status == "pending":
            self._queues.remove(unit)
            unit.phase = unit.phase_told
        else:
            raise InvariantBroken(f"{event.unit} was placed while {unit.status}")
        unit.status, unit.epoch, unit.placed = "active", event.epoch, event.at
        self._queues.forget_yields(unit)
        unit.queued, unit.brief, unit.why = event.queued, event.brief, event.why
        unit.stopping, unit.not_before, unit.avoid, unit.leases, unit.lags = "", 0, "", {}, None
        unit.size, unit.variant = len(event.spots), event.variant
        unit.generation = unit.founded = unit.resized = unit.losses = unit.carried = 0
        self._active.add(unit)
        for index, spot in enumerate(event.spots):  # an elastic unit may get fewer spots than it has tasks
            self._seats.take(unit, index, spot, queued=event.queued)
        job = self._jobs[unit.job]
        if job.array is not None:
            job.array.place(unit, event.spots[0].node)
            self._lifecycle.make_parts(job, event.at)

    def _drop_attempts(self, unit: UnitState, at: int) -> None:
        """Release the resources of a recovering unit on lost nodes before it is placed again."""
        unit.count_try("lost")
        self._training.forget_straggling(unit)
        self._training.keep_progress(unit, unit.first)
        for index, task in enumerate(unit.tasks):
            if task.active:
                self._seats.give_back(unit, index)
                lost = Ending(outcome="lost", note=f"node {task.node} was lost")
                task.keep(unit.epoch_of(index), lost, at)
            elif task.ending is not None:
                task.keep(unit.epoch_of(index), task.ending, task.ended)
            task.status, task.ending, task.straggles = "idle", None, 0  # an elastic unit may get fewer spots now
            task.epoch, task.leaving = 0, False
        self._active.index_recovering(unit)

    def _preempted(self, event: Preempted) -> None:
        unit = self._jobs.units[event.unit]
        if unit.status != "active" or unit.epoch != event.epoch:
            raise InvariantBroken(
                f"{event.unit}#{event.epoch} was to yield, but is {unit.status} in epoch {unit.epoch}"
            )
        unit.stopping = event.cause
        if event.cause in ("yield", "shrink"):
            unit.preempted += 1
        else:
            unit.moved += 1
        self._queues.note_order(unit, event)
        self._active.index_recovering(unit)
        self._changes.mark(unit)

    def _resized(self, event: Resized) -> None:
        unit = self._jobs.units[event.unit]
        if not unit.is_whole or event.epoch != unit.epoch + bool(event.joins):
            raise InvariantBroken(f"{event.unit} was resized in epoch {event.epoch}, but is {unit.status}")
        self._training.settle_account(unit, event.at)
        for index in event.leaves:
            unit.tasks[index].leaving = True
        if event.joins:
            unit.founded = unit.placed_in
            for task in unit.tasks:
                if task.active and not task.epoch:
                    task.epoch = unit.epoch
            unit.epoch = event.epoch
        unit.size += len(event.joins) - len(event.leaves)
        for index, spot in event.joins:
            self._seats.take(unit, index, spot)
        unit.generation = event.generation
        self._queues.note_order(unit, event)
        self._changes.mark(unit)

    def _suspended(self, event: Suspended) -> None:
        unit = self._jobs.units[event.unit]
        if len(unit.tasks) > 1 or unit.tasks[0].status != "running" or event.epoch != unit.epoch or unit.suspended:
            raise InvariantBroken(f"{event.unit}#{event.epoch} was suspended, but is {unit.status}")
        self._seats.suspend(unit, event.at, event.since)
        self._changes.mark(unit)

    def _resumed(self, event: Resumed) -> None:
        unit = self._jobs.units[event.unit]
        if unit.suspended is None or event.epoch != unit.epoch:
            raise InvariantBroken(f"{event.unit}#{event.epoch} was resumed, but was not suspended")
        self._seats.resume(unit, unit.suspended)
        self._changes.mark(unit)
