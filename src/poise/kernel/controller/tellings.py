"""Reports of running tasks through their nodes: speedups, the state of training, and whether they are in use."""

from collections.abc import Callable, Iterable

from poise.kernel.controller.cadence import Cadence
from poise.kernel.controller.outbox import Outbox, Requests
from poise.kernel.explain import LastWord, logged
from poise.kernel.find import find
from poise.kernel.ledger import Ledger, UnitState, attempt_of
from poise.kernel.messages import ResumeJob
from poise.kernel.straggle import Paces
from poise.kernel.verify import verify_resume
from poise.model.decisions import Reason
from poise.model.events import Event, Resumed, SpeedupsTold, Suspended, TrainingTold
from poise.model.messages import Attempt, Desired, Idle, Told
from poise.model.training import TELL_EVERY, Training, is_news


class Tellings:
    """The latest reports of running tasks. The ledger has only those worth a record."""

    def __init__(self, ledger: Ledger, outbox: Outbox, cadence: Cadence, *, commit: Callable[[Event], None]) -> None:
        self.ledger = ledger
        self._outbox = outbox
        self._cadence = cadence
        self._commit = commit
        self.paces = Paces()
        self._training: dict[str, tuple[int, LastWord]] = {}  # by unit, with its epoch; newer than in the log
        self._idle: dict[str, tuple[int, int]] = {}  # by unit: its epoch, and the instant of its last use
        self._waking: dict[str, str] = {}  # suspended units in use again, with the token of the request

    def requests(self) -> Requests:
        return {ResumeJob: self._resume}

    def take_told(self, name: str, told: Iterable[Told], now: int) -> None:
        """Record reported speedups and training state of running tasks; commit only changes."""
        for one in told:
            found = self.ledger.jobs.task(one.attempt.task)
            if found is None or not is_current(self.ledger, one.attempt, name):
                continue
            unit, task = found
            if one.speedups is not None:
                speedups = one.speedups.within(len(unit.spec.tasks))
                if unit.speedups is None or speedups.differs(unit.speedups):
                    self._commit(SpeedupsTold(at=now, unit=unit.id, speedups=speedups))
            if one.training is not None and one.training.compute and len(unit.tasks) > 1:
                index = next(index for index, other in enumerate(unit.tasks) if other is task)
                self.paces.heard(unit, index, one.training.compute, now)
            if one.training is not None and task is unit.first:
                self._training[unit.id] = (unit.placed_in, LastWord(now, one.training))
                known = unit.training if unit.told >= unit.placed else None
                if known is None or (now - unit.told >= TELL_EVERY and is_news(one.training, known)):
                    self._keep_training(unit, one.training, now)

    def _keep_training(self, unit: UnitState, training: Training, now: int) -> None:
        """Record a training report in the log. A new phase requires a decision."""
        if unit.training is None or unit.training.phase != training.phase or training.resizes > unit.resizes:
            self._cadence.want()
        self._commit(TrainingTold(at=now, unit=unit.id, training=training))

    def keep_last_word(self, unit: UnitState, now: int) -> None:
        """Record the latest training report: there may be no further one of this attempt."""
        last = self.heard(unit)
        if last is not None and last.said != unit.training:
            self._keep_training(unit, last.said, now)
        self._training.pop(unit.id, None)

    def heard(self, unit: UnitState) -> LastWord | None:
        """Return the latest training report; the ledger has only those that were worth a record."""
        epoch, last = self._training.get(unit.id, (0, None))
        return last if epoch == unit.placed_in else logged(unit)

    def take_idle(self, name: str, idle: Iterable[Idle], now: int) -> None:
        """Note which sessions are idle, and suspend those whose idle limit has passed."""
        for one in idle:
            found = self.ledger.jobs.task(one.attempt.task)
            if found is None or not is_current(self.ledger, one.attempt, name):
                continue
            unit, task = found
            self._idle.pop(unit.id, None)
            if not one.lasts:
                continue
            since = max(task.started, now - one.lasts)
            may = one.due and unit.spec.idle and unit.spec.if_idle == "suspend" and len(unit.tasks) == 1
            if may and task.status == "running" and unit.suspended is None and not unit.stopping:
                self._commit(Suspended(at=now, unit=unit.id, epoch=unit.epoch, since=since))
                self._outbox.send(name, Desired(suspends=(one.attempt,)))
            else:
                self._idle[unit.id] = (unit.epoch, since)

    def idle_since(self, unit: UnitState) -> int:
        """Return the instant of the last use of an idle or suspended unit; 0 if it is in use, or has no idle limit."""
        if unit.suspended is not None:
            return unit.suspended.since
        epoch, since = self._idle.get(unit.id, (0, 0))
        return since if epoch == unit.epoch and unit.status == "active" else 0

    def _resume(self, message: ResumeJob, now: int) -> tuple[str, ...]:
        """Resume the suspended tasks of a job. Return why some of them have to wait."""
        found = find(self.ledger, message.job, bearer=message.bearer)
        wanted = {unit.id: message.bearer.token for unit in found.units if unit.suspended is not None}
        others, self._waking = self._waking, wanted
        reasons = self.wake(now)
        self._waking = others | self._waking
        return tuple(reason.sentence() for reason in reasons)

    def wake(self, now: int) -> tuple[Reason, ...]:
        """Resume suspended units that are in use again, as far as their resources are free. Return the reasons of the
        others.
        """
        reasons: list[Reason] = []
        for name, by in list(self._waking.items()):
            unit = self.ledger.jobs.unit(name)
            if unit is None or unit.suspended is None:
                del self._waking[name]
                continue
            resumed = verify_resume(self.ledger, unit, now, by)
            if isinstance(resumed, Resumed):
                del self._waking[name]
                self._commit(resumed)
                self._outbox.send(unit.tasks[0].node, Desired(resumes=(attempt_of(unit, 0),)))
            else:
                reasons += resumed
        return tuple(reasons)


def is_current(ledger: Ledger, attempt: Attempt, node: str) -> bool:
    """Return whether the attempt is the current one of its task, on its node. Messages of others are ignored."""
    found = ledger.jobs.task(attempt.task)
    if found is None:
        return False
    unit, task = found
    return (task.epoch or unit.epoch) == attempt.epoch and task.active and task.node == node
