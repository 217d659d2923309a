"""Jobs that serve calls: the book of calls of each, and its workers, which wait while no call is open."""

from poise.kernel.book import CallBook
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.lifecycle import Lifecycle
from poise.kernel.ledger.room import Handlers, InvariantBroken, Room, hold
from poise.kernel.ledger.state import JobState
from poise.kernel.ledger.units import UnitState
from poise.model.events import Called, CallsClosed, CallTried, FunctionTold, Returned
from poise.model.jobs import Outcome


class Calls(Room):
    """Only this room records calls and results in `JobState.calls`."""

    def __init__(self, jobs: Jobs, lifecycle: Lifecycle) -> None:
        self._jobs, self._lifecycle = jobs, lifecycle

    def handlers(self) -> Handlers:
        return {
            FunctionTold: self._function_told,
            Called: self._called,
            CallTried: self._tried,
            Returned: self._returned,
            CallsClosed: self._closed,
        }

    def _function_told(self, event: FunctionTold) -> None:
        self._jobs[event.job].serving.functions.append(event.function)

    def _called(self, event: Called) -> None:
        job = self._jobs[event.job]
        book = job.serving
        if event.call.number <= book.last or book.closed:
            raise InvariantBroken(f"call {event.call.number} of {event.job} after {book.last}, closed: {book.closed!r}")
        book.accept(event.call)
        if book.called_up < len(job.units) and not job.awaited:
            self._lifecycle.call_up(job, event.at)

    def _tried(self, event: CallTried) -> None:
        tries = self._jobs[event.job].serving.tries
        tries[str(event.number)] = tries.get(str(event.number), 0) + 1
        self._credit(event.worker)

    def _returned(self, event: Returned) -> None:
        job = self._jobs[event.job]
        book = job.serving
        book.close(event.result)
        self._credit(event.worker)
        if len(book.open) < book.called_up and not job.ended:
            self._lifecycle.call_up(job, event.at)

    def _credit(self, worker: str) -> None:
        """Reset the retries of a worker that has begun a call: it can start."""
        found = self._jobs.tasks.get(worker)
        if found is not None:
            found[0].tries = found[0].lost = 0

    def _closed(self, event: CallsClosed) -> None:
        job = self._jobs[event.job]
        job.serving.closed = event.why or "closed"
        if not job.ended:
            self._lifecycle.call_up(job, event.at)

    def rest(self, unit: UnitState, job: JobState, book: CallBook, outcome: Outcome, at: int) -> None:
        """Handle the end of a worker. If it is out of retries, the job and its open calls fail."""
        book.called_up -= 1
        retry = unit.spec.retry
        failed = outcome not in ("done", "stopped", "returned")
        if failed:
            unit.count_try(outcome)
        if book.over and not unit.stopping:
            self._lifecycle.conclude(unit, "done", at)
        elif failed and not retry.allows(outcome, unit.tries, 0, unit.lost):
            self._lifecycle.conclude(unit, "failed", at)
            for other in job.units:
                if other.status in ("waiting", "pending"):
                    self._lifecycle.close(other, "skipped", at)
            book.closed = book.closed or f"{unit.spec.name} failed"
            self._lifecycle.end_if_over(job, at)
        else:
            unit.clear()
            unit.status, unit.not_before = "waiting", 0
            if failed and outcome != "lost":
                unit.not_before = at + retry.delay(unit.tries)
            self._lifecycle.call_up(job, at)

    def check(self, anew: "Calls") -> None:
        for job in self._jobs.values():
            if job.calls is not None:
                _check_book(job, job.calls)


def _check_book(job: JobState, book: CallBook) -> None:
    up = sum(unit.status in ("pending", "active") for unit in job.units)
    hold(book.called_up == up, f"{job.id} counts {book.called_up} workers called up, has {up}")
    resting = sum(unit.status == "waiting" for unit in job.units)
    idle = job.awaited or not resting or up >= len(book.open)
    hold(bool(idle), f"{job.id} has {len(book.open)} open calls, {up} workers called up and {resting} at rest")
    hold(book.tries.keys() <= book.open.keys(), f"{job.id} counts tries of calls that have returned")
    hold(all(call.number <= book.last for call in book.open.values()), f"{job.id} has calls of the future")
