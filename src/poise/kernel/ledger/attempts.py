"""Starts and ends of attempts, as nodes report them."""

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.calls import Calls
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.leader import Leader
from poise.kernel.ledger.lifecycle import Lifecycle
from poise.kernel.ledger.nodes import Nodes
from poise.kernel.ledger.profiles import Profiles, Run
from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.room import Handlers, InvariantBroken, Room, hold
from poise.kernel.ledger.seats import Seats
from poise.kernel.ledger.tasks import TaskState, is_loss
from poise.kernel.ledger.training import Training
from poise.kernel.ledger.units import CAUSES, UnitState, deciding_ending
from poise.model.events import Finished, Started
from poise.model.fleet import model_under
from poise.model.jobs import Ending
from poise.units import SECOND

STEADY = 60 * SECOND
"""A loss counts as a first one if the gang has kept its size for this long, in nanoseconds."""


class Attempts(Room):
    """Ends of attempts update the node, the class and the gang. The last end decides what the unit does next."""

    def __init__(
        self,
        jobs: Jobs,
        active: Active,
        nodes: Nodes,
        profiles: Profiles,
        queues: Queues,
        training: Training,
        lifecycle: Lifecycle,
        calls: Calls,
        seats: Seats,
        changes: Changes,
        leader: Leader,
    ) -> None:
        self._jobs, self._active, self._nodes, self._profiles, self._training = jobs, active, nodes, profiles, training
        self._lifecycle, self._calls, self._seats, self._changes = lifecycle, calls, seats, changes
        self._queues, self._leader = queues, leader

    def handlers(self) -> Handlers:
        return {Started: self._started, Finished: self._finished}

    def _started(self, event: Started) -> None:
        unit, index = self._jobs.tasks[event.task]
        task = unit.tasks[index]
        task.status, task.pid, task.cpus = "running", event.pid, event.cpus
        task.started = task.started or event.at
        self._seats.started(unit, index)
        self._note_run(unit)
        self._changes.residents.pop(unit.id, None)
        self._changes.moved.add(task.node)

    def _note_run(self, unit: UnitState) -> None:
        """Index the job's notices: it has started."""
        job = self._jobs[unit.job]
        if job.notify is not None:
            self._jobs.index_notices(job)

    def _finished(self, event: Finished) -> None:
        unit, index = self._jobs.tasks[event.task]
        task, ending = unit.tasks[index], event.ending
        if not task.active or event.epoch != unit.epoch_of(index):
            raise InvariantBroken(f"{event.task}#{event.epoch} finished, but is {task.status} in epoch {unit.epoch}")
        self._seats.give_back(unit, index)
        if event.until:
            unit.leases[task.node] = event.until
        task.status, task.ended, task.ending = "ended", event.at, ending
        self._nodes.count_end(task.node, ending)
        if ending.outcome != "returned":
            task.started = task.started or max(unit.placed, event.at - ending.run)
            self._note_run(unit)
        if not task.leaving:  # the end of a member that was released says nothing about the gang
            self._learn(unit, task, ending)
            if ending.outcome == "stopped" and unit.stopping in CAUSES:
                unit.attained += unit.run_in_size(task) * max(1, unit.shape.gpus)
        if task.leaving or _goes_on_without(unit, index):
            self._lose_member(unit, index, event.at)
        else:
            if ending.outcome != "done":
                self._training.keep_progress(unit, task, ending.progress)
                if not unit.stopping and len(unit.tasks) > 1:
                    unit.stopping = "gang"
            if unit.stopping or unit.resizes:  # changes what is shown of its other attempts
                self._changes.mark(unit)
        if self._active.recovering:
            self._active.index_recovering(unit)
        if not any(other.active for other in unit.tasks):
            self._settle(unit, event.at)

    def _learn(self, unit: UnitState, task: TaskState, ending: Ending) -> None:
        """Update the profile of the class from a run; that of a gang ends with its last member."""
        if ending.outcome == "done":
            if self._jobs[unit.job].calls is not None:  # the lifetime of a worker does not depend on its work
                return
            ended = [task]
            if self._leader.learning:
                if any(other.active for other in unit.tasks) or deciding_ending(unit).outcome != "done":
                    return
                ended = [one for one in unit.tasks if one.ending is not None]
            self._profiles.learn(unit, [run for one in ended if (run := self._run_of(unit, one)) is not None])
            self._queues.part(unit.spec.kind)
        elif ending.outcome in ("failed", "signal", "oom", "hung", "timeout"):
            self._profiles.failed(unit.spec.kind)

    def _run_of(self, unit: UnitState, task: TaskState) -> Run | None:
        """Return the run of a task that has ended; None if its node was forgotten."""
        if task.ending is None or task.node not in self._nodes:
            return None
        return Run(unit.run_in_size(task), task.ending, model_under(self._nodes[task.node].node, task.devices))

    def _lose_member(self, unit: UnitState, index: int, at: int) -> None:
        """Continue a gang without one of its tasks, which was lost or released."""
        if not unit.tasks[index].leaving:
            since = max(unit.placed, unit.resized)
            if at > since or not unit.losses:  # two members lost at once count once
                unit.losses = 1 + unit.losses * (at - since < STEADY)
            self._training.settle_account(unit, at)
            unit.size, unit.generation = unit.size - 1, unit.generation + 1
        unit.forget_member(index)
        self._active.index_recovering(unit)
        self._changes.mark(unit)

    def _settle(self, unit: UnitState, at: int) -> None:
        """All attempts of the unit have ended: finish it, retry it, or fail it."""
        outcome = deciding_ending(unit).outcome
        self._active.remove(unit)
        self._training.forget_attempts(unit)
        job = self._jobs[unit.job]
        if unit.stopping == "cancel" and (outcome != "done" or job.calls is not None):
            if job.calls is not None:
                job.calls.called_up -= 1
            self._lifecycle.conclude(unit, "done" if outcome == "done" else "cancelled", at)
        elif job.calls is not None:
            self._calls.rest(unit, job, job.calls, outcome, at)
        elif outcome == "done":
            self._lifecycle.conclude(unit, "done", at)
        elif outcome in ("returned", "stopped"):
            self._training.keep_what_was_done(unit)
            unit.recalled = unit.recalled or (unit.queued and outcome == "returned")
            unit.avoid = self._moved_off(unit) if unit.stopping == "move" else ""
            self._lifecycle.again(unit, at, delay=0)
        else:
            unit.count_try(outcome)
            unit.avoid = unit.first.node
            retry = unit.spec.retry
            if outcome == "oom" and retry.ooms:
                unit.make_smaller()
            if retry.allows(outcome, unit.tries, len(unit.ooms), unit.lost):
                self._lifecycle.again(unit, at, delay=0 if outcome == "lost" else retry.delay(unit.tries))
            else:
                self._lifecycle.conclude(unit, "failed", at)

    def _moved_off(self, unit: UnitState) -> str:
        """Return the node that the unit was moved from: a node being evacuated, else the node of the lagging member,
        else the node of rank 0.
        """
        nodes = self._nodes
        emptied = (task.node for task in unit.tasks if task.node in nodes and nodes[task.node].condition == "emptying")
        return next(emptied, unit.lags.node if unit.lags is not None else unit.first.node)

    def check(self, anew: "Attempts") -> None:
        for unit in self._jobs.units.values():
            _check_attempts(unit)


def _goes_on_without(unit: UnitState, index: int) -> bool:
    """Return whether the rest of the gang continues after this member has ended. A gang whose other members have all
    finished is not resized.
    """
    ending = unit.tasks[index].ending
    if not unit.resizes or unit.stopping or ending is None or not is_loss(ending):
        return False
    others = [of for of in unit.members if of != index]
    return len(others) >= max(1, unit.spec.least) and all(unit.tasks[of].active for of in others)


def _check_attempts(unit: UnitState) -> None:
    leaving = [index for index, task in enumerate(unit.tasks) if task.leaving and not task.active]
    hold(not leaving, f"{leaving} of {unit.id} are leaving, and are not there")
    if unit.most:
        hold(unit.spec.least <= unit.most < len(unit.tasks), f"{unit.id} may have {unit.most} tasks")
        hold(unit.status != "active" or unit.size <= unit.most, f"{unit.id} runs larger than it may")
    hold(all(epoch <= unit.epoch for epoch in unit.barred.values()), f"{unit.id} is barred in an epoch to come")
    hold(len(unit.ooms) <= unit.spec.retry.ooms + 1, f"{unit.id} ran out of memory in {unit.ooms}")
