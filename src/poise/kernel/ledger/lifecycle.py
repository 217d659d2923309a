"""How units become pending and how they end, and with them jobs."""

from collections import deque
from collections.abc import Iterable

from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.leader import Leader
from poise.kernel.ledger.paths import Paths
from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.room import Handlers, Room, hold
from poise.kernel.ledger.state import JobState, job_status
from poise.kernel.ledger.training import Training
from poise.kernel.ledger.units import UnitState, UnitStatus
from poise.model.events import JobSubmitted
from poise.model.jobs import Unit

PASSED_OVER = -(2**30)
"""What a part of a task still waits for (`missing`) that was cancelled before its turn: so much less than nothing that
no end of what it needed makes it more."""


class Lifecycle(Room):
    """From waiting to pending, and to the end. Nobody else writes a unit's `missing` and a job's `turns`."""

    def __init__(self, jobs: Jobs, queues: Queues, leader: Leader, paths: Paths, training: Training) -> None:
        self._jobs, self._queues, self._leader, self._paths, self._training = jobs, queues, leader, paths, training

    # --- beginning ---------------------------------------------------------------------------------------------------

    def handlers(self) -> Handlers:
        return {JobSubmitted: self._submitted}

    def _submitted(self, event: JobSubmitted) -> None:
        job = self._jobs.add(event)
        self._paths.plan(job.units, event.at)
        after = [self._jobs[other] for other in job.after if other in self._jobs]
        if any(other.ended and job_status(other) != "done" for other in after):
            self.skip(job.units, event.at)
            self.end_if_over(job, event.at)
        elif not job.awaited:
            self._release_roots(job, event.at)

    def _release_roots(self, job: JobState, at: int) -> None:
        if job.calls is not None:
            self.call_up(job, at)
            return
        for unit in job.units:
            if unit.missing == 0 and unit.status == "waiting":
                self._queues.make_pending(unit, at)

    def call_up(self, job: JobState, at: int) -> None:
        """As many workers wait to be placed or run as there are open calls; the others rest. Those that run are left
        to: they may be told to end. When nothing is open and nothing will come, those that do not run are done.
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
        """It has ended, and is tried again."""
        unit.clear()
        unit.not_before = at + delay if delay else 0
        self._queues.make_pending(unit, at)

    def _one_less(self, follower: UnitState, job: JobState, at: int) -> None:
        """Something that it waits for has come."""
        follower.missing -= 1
        if follower.missing == 0 and follower.status == "waiting" and not job.awaited:
            self._queues.make_pending(follower, at)

    # --- ending ------------------------------------------------------------------------------------------------------

    def conclude(self, unit: UnitState, status: UnitStatus, at: int) -> None:
        """It has ended for good, and what follows it may begin, or never will."""
        self.close(unit, status, at)
        job = self._jobs[unit.job]
        followers = self._jobs.dependents.get(unit.id, ())
        if status == "done":
            for follower in followers:
                self._one_less(follower, job, at)
            if len(job.units) > 1 and job.unfinished % max(1, len(job.units) // 64) == 0:
                self._paths.plan_again(job)
        else:
            self.skip(followers, at)
        if unit.spec.at_most and not job.cancelled_by:
            self.pass_turn(job, unit.spec, at)
        self.end_if_over(job, at)

    def close(self, unit: UnitState, status: UnitStatus, at: int) -> None:
        """Nothing will change it any more."""
        if unit.status == "pending":
            self._queues.remove(unit)
            book = self._jobs[unit.job].calls
            if book is not None:
                book.called_up -= 1
        unit.status, unit.ended = status, at
        self._training.forget_unit(unit)
        self._queues.forget_yields(unit)
        self._jobs.count_over(unit)

    def skip(self, units: Iterable[UnitState], at: int) -> None:
        """What needs a unit that will never be done is never run. Iterative: graphs may be deep."""
        stack = list(units)
        while stack:
            unit = stack.pop()
            if unit.status == "waiting":
                self.close(unit, "skipped", at)
                stack.extend(self._jobs.dependents.get(unit.id, ()))

    def pass_over(self, unit: UnitState) -> None:
        """A part that has had no turn yet is cancelled: its turn goes to the next one when it comes."""
        unit.missing = PASSED_OVER

    def pass_turn(self, job: JobState, ended: Unit, at: int) -> None:
        """A part has ended where only so many run at once: the next one may."""
        task = ended.name.partition("[")[0]
        given = job.turns.get(task, 0)
        while True:
            follower = self._jobs.units.get(f"{job.id}.{task}[{ended.at_most + given}]")
            given += 1
            if follower is None or follower.missing > PASSED_OVER:
                break
        job.turns[task] = given
        if follower is not None:
            self._one_less(follower, job, at)

    def end_if_over(self, job: JobState, at: int) -> None:
        self.end_those_over((job,), at)

    def end_those_over(self, jobs: Iterable[JobState], at: int) -> None:
        """A job with no unit left has ended, and what comes after it may begin, or never will. Iterative, as above."""
        ending = deque(jobs)
        while ending:
            job = ending.popleft()
            if job.unfinished or job.ended:
                continue
            awaiting = self._jobs.end(job, at)
            done = bool(awaiting) and job_status(job) == "done"
            for waiting_id in awaiting:
                waiting = self._jobs[waiting_id]
                waiting.awaited -= 1
                if not done:
                    self.skip(waiting.units, at)
                    ending.append(waiting)
                elif waiting.awaited == 0:
                    self._release_roots(waiting, at)
        history = self._leader.history
        if self._jobs.has_too_many(history):
            self._jobs.forget_old(history, fair=self._leader.fair)

    # --- self-check --------------------------------------------------------------------------------------------------

    def check(self, anew: "Lifecycle") -> None:
        for unit in self._jobs.units.values():
            attempt = any(task.active for task in unit.tasks)
            hold(unit.status == "active" or not attempt, f"{unit.id} is {unit.status} with an attempt")
            if unit.status == "waiting":
                job = self._jobs[unit.job]
                waits = unit.missing > 0 or job.awaited > 0 or job.calls is not None
                hold(waits, f"{unit.id} waits for nothing")
