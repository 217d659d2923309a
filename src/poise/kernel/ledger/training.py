"""Reports of running attempts, and the work that need not be repeated."""

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.paths import Paths
from poise.kernel.ledger.room import Handlers, InvariantBroken, Room, hold_same
from poise.kernel.ledger.tasks import TaskState
from poise.kernel.ledger.units import CAUSES, PAST_ORDERS, UnitState
from poise.model.events import Lagging, SpeedupsTold, Straggling, TrainingTold
from poise.model.progress import ALL, Speedups


class Training(Room):
    """Only this room writes `training`, `speedups`, `progress`, `saved`, `left` and `outlived` of a unit."""

    def __init__(self, jobs: Jobs, active: Active, paths: Paths, changes: Changes) -> None:
        self._jobs, self._paths, self._changes = jobs, paths, changes
        self.speedups: dict[str, Speedups] = {}
        """Reported speedups of unfinished units, by id."""
        self.stragglers: dict[str, UnitState] = {}
        """Active units that take longer than others of their class, or that wait for such a member."""
        self.phased: dict[str, UnitState] = {}
        """Active units whose training is in a phase that needs another shape."""
        for unit in jobs.units.values():
            if unit.speedups is not None:
                self.speedups[unit.id] = unit.speedups
        for unit in active.values():
            self._index_phase(unit)
            self._index_straggling(unit)

    # --- events ------------------------------------------------------------------------------------------------------

    def handlers(self) -> Handlers:
        return {
            Straggling: self._straggling,
            Lagging: self._lagging,
            SpeedupsTold: self._speedups_told,
            TrainingTold: self._training_told,
        }

    def _straggling(self, event: Straggling) -> None:
        unit, task = self._running(event, "straggles")
        task.straggles = event.expected
        unit.straggled = (*unit.straggled[1 - PAST_ORDERS :], event)
        self._index_straggling(unit)

    def _lagging(self, event: Lagging) -> None:
        unit, _ = self._running(event, "lags")
        unit.lags = event
        self._index_straggling(unit)

    def _running(self, event: Straggling | Lagging, does: str) -> tuple[UnitState, TaskState]:
        unit, index = self._jobs.tasks[event.task]
        task = unit.tasks[index]
        if task.status != "running" or event.epoch != unit.epoch_of(index):
            raise InvariantBroken(f"{event.task}#{event.epoch} {does}, but is {task.status} in epoch {unit.epoch}")
        return unit, task

    def _speedups_told(self, event: SpeedupsTold) -> None:
        unit = self._jobs.units[event.unit]
        if unit.over:
            raise InvariantBroken(f"{event.unit} told how it scales, but is {unit.status}")
        unit.speedups = self.speedups[unit.id] = event.speedups
        self._changes.mark(unit)

    def _training_told(self, event: TrainingTold) -> None:
        unit = self._jobs.units[event.unit]
        if unit.status != "active":
            raise InvariantBroken(f"{event.unit} told of its training, but is {unit.status}")
        before, saved = unit.training, event.training.checkpoint
        if saved is not None and (before is None or before.checkpoint is None or before.checkpoint.step != saved.step):
            unit.kept = event.at
        unit.training, unit.told = event.training, event.at
        self._changes.mark(unit)
        self._index_phase(unit)

    def _index_phase(self, unit: UnitState) -> None:
        """Index the unit if the phase of its training needs another shape than it has."""
        if unit.spec.phases and unit.shape_to_be != unit.shape:
            self.phased[unit.id] = unit
        else:
            self.phased.pop(unit.id, None)

    def _index_straggling(self, unit: UnitState) -> None:
        """Index a unit that could be moved: a straggling single task, or a gang that waits for a member in each step. A
        gang is moved as a whole.
        """
        if unit.lags is not None or (len(unit.tasks) == 1 and unit.tasks[0].straggles):
            self.stragglers[unit.id] = unit

    # --- what was done -----------------------------------------------------------------------------------------------

    def keep_progress(self, unit: UnitState, task: TaskState, said: int = -1) -> None:
        """Record the progress that an attempt reported at its end (`said`), or its last checkpoint. Also record the
        time that the rest takes at the measured pace.
        """
        whole = unit.whole_by_pace
        if said < 0 and task is unit.first and unit.training is not None and unit.told >= unit.placed:
            said = unit.training.safe
        if said >= 0:
            unit.progress = min(said, ALL)
            unit.left = whole * (ALL - unit.progress) // ALL
            if unit.left:
                self._paths.expect_anew(unit)

    def keep_what_was_done(self, unit: UnitState) -> None:
        """Record the minimum run time that a stopped attempt shows, and the run time saved in its checkpoints."""
        run = max(unit.run_in_size(task) for task in unit.tasks if task.ending is not None)
        tasks = unit.spec.least or unit.size
        if not unit.progress:
            unit.outlived = max(unit.outlived, (unit.saved + unit.carried + run * unit.size) // tasks)
        if unit.spec.checkpoint and unit.stopping in CAUSES:
            unit.saved += unit.carried + (run - run % unit.spec.checkpoint) * unit.size
        self._paths.expect_anew(unit)

    def settle_account(self, unit: UnitState, at: int) -> None:
        """Record the work done in the current size, before the size changes."""
        began = [task.started for index in unit.members if (task := unit.tasks[index]).started]
        if began:
            run = max(0, at - max(min(began), unit.resized))
            unit.carried += run * unit.size
            unit.attained += run * unit.size * max(1, unit.shape.gpus)
        if not unit.progress:
            unit.outlived = max(unit.outlived, (unit.saved + unit.carried) // unit.spec.least)
        unit.resized, unit.lags = at, None
        self.forget_straggling(unit)

    def forget_straggling(self, unit: UnitState) -> None:
        """Remove a straggling unit: its attempts have changed."""
        self.stragglers.pop(unit.id, None)

    def forget_attempts(self, unit: UnitState) -> None:
        """Remove a unit whose attempts have all ended."""
        self.stragglers.pop(unit.id, None)
        self.phased.pop(unit.id, None)

    def forget_unit(self, unit: UnitState) -> None:
        """Remove a unit that has ended."""
        if unit.speedups is not None:
            unit.speedups = None
            del self.speedups[unit.id]

    def check(self, anew: "Training") -> None:
        hold_same("speedups", self.speedups, anew.speedups)
        hold_same("stragglers", self.stragglers.keys(), anew.stragglers.keys())
        hold_same("phased", self.phased.keys(), anew.phased.keys())
