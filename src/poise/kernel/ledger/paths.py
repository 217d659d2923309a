"""Critical paths: estimated durations, the longest path after each unit, and due times."""

from collections.abc import Sequence

from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.leader import Leader
from poise.kernel.ledger.profiles import Profiles
from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.room import Room
from poise.kernel.ledger.state import JobState
from poise.kernel.ledger.units import UnitState
from poise.model import graph
from poise.model.profiles import estimate_run, outlasting
from poise.model.progress import ALL


class Paths(Room):
    """Only this room writes `expected`, `tail`, `slack`, `due` and `depth` of a unit. Does nothing unless it
    `plans`.
    """

    def __init__(self, profiles: Profiles, queues: Queues, leader: Leader, changes: Changes, *, plans: bool) -> None:
        self._profiles, self._queues, self._leader, self._changes = profiles, queues, leader, changes
        self._plans = plans

    def plan(self, units: Sequence[UnitState], submitted: int) -> None:
        """Compute critical path and due times of a job from the current estimates."""
        if not self._plans:
            return
        for unit in units:
            unit.expected = self._expected(unit)
        if len(units) == 1:
            unit = units[0]
            unit.tail, unit.due = unit.expected, submitted + unit.spec.deadline if unit.spec.deadline else 0
            return
        needs = {unit.spec.name: unit.spec.needs for unit in units}
        if not any(unit.depth for unit in units):
            depths = graph.times(needs, dict.fromkeys(needs, 1))
            for unit in units:
                unit.depth = depths[unit.spec.name].earliest
        durations = {unit.spec.name: unit.expected for unit in units}
        deadlines = {
            unit.spec.name: submitted + unit.spec.deadline
            for unit in units
            if unit.spec.deadline and unit.missed is None
        }
        planned = graph.times(needs, durations)
        due = graph.due_times(needs, durations, deadlines) if deadlines else {}
        for unit in units:
            unit.tail, unit.slack = planned[unit.spec.name].tail, planned[unit.spec.name].slack
            unit.due = due.get(unit.spec.name, 0)

    def plan_again(self, job: JobState) -> None:
        """Compute critical path and due times again, and mark what is shown of the job as out of date."""
        if not self._plans:
            return
        if job.array is None:
            self.plan(job.units, job.submitted)
        else:  # its parts do not need each other
            for unit in job.units:
                self.plan([unit], job.submitted)
        self._queues.rank_anew(job)
        for unit in job.units:
            self._changes.mark(unit)

    def expect_anew(self, unit: UnitState) -> None:
        """Update the estimate of one unit."""
        expected = self._expected(unit)
        unit.tail += expected - unit.expected
        unit.expected = expected

    def _expected(self, unit: UnitState) -> int:
        if unit.status == "done":
            return max((task.ended - task.started for task in unit.tasks), default=0)
        spec = unit.spec
        if unit.left:
            return unit.left + spec.restore
        known, combine = self._profiles.get(spec.kind), self._leader.learning > 0
        estimate = outlasting(estimate_run(known, spec.declared, combine=combine), unit.outlived)
        if unit.progress:
            return max(1, estimate.mean * (ALL - unit.progress) // ALL) + spec.restore
        if not unit.saved:
            return estimate.mean
        return max(1, estimate.mean - unit.saved // (spec.least or unit.size)) + spec.restore
