"""The lifecycle of units and jobs: submission, pending, the end."""

from collections import deque
from collections.abc import Iterable

from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.leader import Leader
from poise.kernel.ledger.parts import Parts
from poise.kernel.ledger.paths import Paths
from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.room import Handlers, Room, hold
from poise.kernel.ledger.shares import Shares
from poise.kernel.ledger.state import JobState, job_status, may_follow, queue_of_unit
from poise.kernel.ledger.training import Training
from poise.kernel.ledger.units import UnitState, UnitStatus
from poise.model.arrays import size_of
from poise.model.events import JobSubmitted
from poise.model.jobs import Unit

PASSED_OVER = -(2**30)
"""`missing` of a part that was cancelled before its turn. So far below zero that no end of a needed unit raises it
above zero."""


class Lifecycle(Room):
    """Only this room writes `UnitState.missing` and `JobState.turns`."""

    def __init__(
        self,
        jobs: Jobs,
        parts: Parts,
        queues: Queues,
        leader: Leader,
        shares: Shares,
        paths: Paths,
        training: Training,
    ) -> None:
        self._parts = parts
        self._jobs, self._queues, self._leader, self._paths, self._training = jobs, queues, leader, paths, training
        self._shares = shares

    # --- beginning ---------------------------------------------------------------------------------------------------

    def handlers(self) -> Handlers:
        return {JobSubmitted: self._submitted}

    def _submitted(self, event: JobSubmitted) -> None:
        job = self._jobs.add(event)
        self._shares.join(job)
        self._paths.plan(job.units, event.at)
        self.make_parts(job, event.at)
        after = [self._jobs[other] for other in job.after if other in self._jobs]
        if any(other.ended and not may_follow(job, other.id, job_status(other)) for other in after):
            self.skip_all(job, event.at)
            self.end_if_over(job, event.at)
        elif not job.awaited:
            self.release_roots(job, event.at)

    def release_roots(self, job: JobState, at: int) -> None:
        """Release the units without needs of a job that waits for no other job."""
        if job.calls is not None:
            self.call_up(job, at)
            return
        for unit in job.units:
            if unit.missing == 0 and unit.status == "waiting":
                self._queues.make_pending(unit, at)

    def make_parts(self, job: JobState, at: int) -> None:
        """Make the parts of an array that may exist now, and pending if the job waits for nothing."""
        while (unit := self._parts.make(job)) is not None:
            self._paths.plan([unit], job.submitted)
            if not job.awaited:
                self._queues.make_pending(unit, at)

    def call_up(self, job: JobState, at: int) -> None:
        """Make as many workers pending or active as there are open calls; the others wait. Active workers are not
        stopped here. When no call is open and none will come, the workers that are not active are done.
        """
        book = job.serving
        if book.over:
            for unit in job.units:
                if unit.status in ("waiting", "pending"):
                    self.close(unit, "done", at)
            self.end_if_over(job, at)
            return
        wanted = min(len(job.units), len(book.open))
        for unit in job.units if book.called_up < wanted else ():
            if unit.status == "waiting" and book.called_up < wanted:
                book.called_up += 1
                self._queues.make_pending(unit, at)
        for unit in reversed(job.units) if book.called_up > wanted else ():
            if unit.status == "pending" and book.called_up > wanted:
                book.called_up -= 1
                self._queues.remove(unit)
                unit.status, unit.not_before = "waiting", 0

    def again(self, unit: UnitState, at: int, *, delay: int) -> None:
        """Retry a unit that has ended, once its job is not on hold."""
        unit.clear()
        if unit.next_spec is not None:
            unit.spec, unit.next_spec = unit.next_spec, None
            unit.queue = queue_of_unit(self._jobs[unit.job], unit)
        unit.not_before = at + delay if delay else 0
        if self._jobs[unit.job].hold:
            unit.status = "waiting"
        else:
            self._queues.make_pending(unit, at)

    def _one_less(self, follower: UnitState, job: JobState, at: int) -> None:
        """Subtract one from the units and turns that the follower waits for."""
        follower.missing -= 1
        if follower.missing == 0 and follower.status == "waiting" and not job.awaited:
            self._queues.make_pending(follower, at)

    # --- ending ------------------------------------------------------------------------------------------------------

    def conclude(self, unit: UnitState, status: UnitStatus, at: int) -> None:
        """End an active unit, and release or skip the units that need it."""
        self.close(unit, status, at)
        job = self._jobs[unit.job]
        followers = self._jobs.dependents.get(unit.id, ())
        if status == "done" or (status == "failed" and job.may_fail()):
            for follower in followers:
                self._one_less(follower, job, at)
            units = len(job.units) if job.array is None else size_of(job.array.rule)
            if units > 1 and job.unfinished % max(1, units // 64) == 0:
                self._paths.plan_again(job)
        else:
            self.skip(followers, at)
        self.make_parts(job, at)
        if unit.spec.at_most and not job.cancelled_by:
            self.pass_turn(job, unit.spec, at)
        self.end_if_over(job, at)

    def close(self, unit: UnitState, status: UnitStatus, at: int) -> None:
        """Give a unit its final status."""
        job = self._jobs[unit.job]
        if unit.status == "pending":
            self._queues.remove(unit)
            if job.calls is not None:
                job.calls.called_up -= 1
        unit.status, unit.ended = status, at
        self._training.forget_unit(unit)
        self._queues.forget_yields(unit)
        self._jobs.count_over(job)
        self._parts.drop(job, unit)

    def give_up_parts(self, job: JobState, status: UnitStatus) -> None:
        """Make no more parts of an array: those that do not exist yet get this status."""
        self._parts.give_up(job, status)

    def skip_all(self, job: JobState, at: int) -> None:
        """Skip the waiting units of a job, and the parts that do not exist yet."""
        self.give_up_parts(job, "skipped")
        self.skip(job.units, at)

    def skip(self, units: Iterable[UnitState], at: int) -> None:
        """Skip waiting units, and the units that need them. Iterative: graphs may be deep."""
        stack = list(units)
        while stack:
            unit = stack.pop()
            if unit.status == "waiting":
                self.close(unit, "skipped", at)
                stack.extend(self._jobs.dependents.get(unit.id, ()))

    def pass_over(self, unit: UnitState) -> None:
        """Mark a part that is cancelled before its turn: the turn goes to the next part."""
        unit.missing = PASSED_OVER

    def pass_turn(self, job: JobState, ended: Unit, at: int) -> None:
        """Give the turn of an ended part to the next one, if the number of concurrent parts is limited."""
        task = ended.name.partition("[")[0]
        given = job.turns.get(task, 0)
        while True:
            part = ended.at_most + given
            follower = self._jobs.units.get(f"{job.id}.{task}[{part}]")  # a retried job lacks some parts
            given += 1
            if part >= ended.tasks[0].parts or (follower is not None and follower.missing > PASSED_OVER):
                break
        job.turns[task] = given
        if follower is not None:
            self._one_less(follower, job, at)

    def end_if_over(self, job: JobState, at: int) -> None:
        self.end_those_over((job,), at)

    def end_those_over(self, jobs: Iterable[JobState], at: int) -> None:
        """End the jobs that have no unit left, and release or skip the jobs that follow them. Iterative, as above."""
        ending = deque(jobs)
        while ending:
            job = ending.popleft()
            if job.unfinished or job.ended:
                continue
            awaiting = self._jobs.end(job, at)
            status = job_status(job) if awaiting else ""
            for waiting_id in awaiting:
                waiting = self._jobs[waiting_id]
                waiting.awaited -= 1
                if not may_follow(waiting, job.id, status):
                    self.skip_all(waiting, at)
                    ending.append(waiting)
                elif waiting.awaited == 0:
                    self.release_roots(waiting, at)
        leader, forgets = self._leader, self._jobs
        if forgets.has_too_many(leader.history):
            forgets.forget_old(leader.history, fair=leader.fair)
        if forgets.has_too_many_tasks(leader.history_tasks):
            forgets.forget_largest(leader.history_tasks)

    # --- self-check --------------------------------------------------------------------------------------------------

    def check(self, anew: "Lifecycle") -> None:
        for unit in self._jobs.units.values():
            attempt = any(task.active for task in unit.tasks)
            hold(unit.status == "active" or not attempt, f"{unit.id} is {unit.status} with an attempt")
            if unit.status == "waiting":
                job = self._jobs[unit.job]
                waits = unit.missing > 0 or job.awaited > 0 or job.calls is not None
                hold(waits, f"{unit.id} waits for nothing")
