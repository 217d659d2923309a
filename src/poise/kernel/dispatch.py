"""Assign calls to workers: the part of the controller that hands out calls and takes results in.

It holds only state from connections and from the ledger, so it can be rebuilt at any time. A call is assigned to one
worker. It is reassigned when the ledger says that this worker's attempt is over. After a restart the assignments are
unknown: no call is handed out until every running worker of a job has reported its calls, or `HEAR_OUT` has passed.

Rules: calls go out in the order in which they became ready. A worker gets several calls at a time only if they are
expected to take `AHEAD` together. Calls behind one that takes longer are asked back when another worker is idle. A call
whose worker ended is retried alone, so that it cannot fail others.
"""

from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from poise.errors import NotFound, PoiseError, SpecError
from poise.kernel.book import LEFT, CallBook
from poise.kernel.ledger import JobState, Ledger, attempt_of
from poise.model.calls import (
    INLINE,
    MAX_FUNCTIONS,
    MAX_NEEDS,
    MAX_UNRETURNED,
    NOTHING,
    Accepted,
    Back,
    Call,
    Calling,
    CallOutcome,
    Closing,
    FromCaller,
    FromWorker,
    Input,
    Known,
    Over,
    Ready,
    Result,
    Results,
    Resume,
    Retire,
    ToCaller,
    Todo,
    ToWorker,
    Uncall,
    Value,
    Work,
)
from poise.model.events import Called, CallsClosed, CallTried, Event, FunctionTold, Returned
from poise.model.jobs import RETRY
from poise.model.messages import Attempt
from poise.units import MILLISECOND, SECOND

AHEAD = 20 * MILLISECOND
"""Expected duration of the calls handed to a worker in advance: twice a round trip under load."""

MOST_AHEAD = 512
KNOWN_AFTER = 3
"""Completed calls required before their mean is used."""

STUCK = 50 * MILLISECOND
"""A worker that holds several calls and is silent this long is delayed by a call that takes longer than expected."""

WARM = 30 * SECOND
"""Idle time before a worker is retired."""

YIELDING = SECOND // 4
"""Idle time before a worker is retired while other work waits to be placed."""

UNBEGUN = "cancelled before it began"

HEAR_OUT = 10 * SECOND
ORPHANED = 30 * SECOND
"""Close a job whose caller has been away this long. Its accepted calls are still made."""


class Worker(msgspec.Struct):
    """A connected worker. `held` are its calls in the order of assignment. It knows the first `told` functions.

    `stuck`: its calls behind a long one were asked back, and it gets no more until that one returns.
    """

    attempt: Attempt
    held: dict[int, None] = {}
    told: int = 0
    heard: int = 0
    stuck: bool = False
    retiring: bool = False


class Line(msgspec.Struct):
    """The waiting calls of one job, and its connected workers by task.

    `missing` counts the open needs of each call; `followers` lists those calls by need. `results` has the retained
    results by number. `unwanted` are calls that were cancelled while a worker held them. Until `unsure_until`, workers
    may still report their calls.
    """

    ready: deque[int]
    missing: dict[int, int] = {}
    followers: dict[int, list[int]] = {}
    results: dict[int, Result] = {}
    workers: dict[str, Worker] = {}
    unwanted: set[int] = set()
    caller: bool = False
    left: int = 0
    unsure_until: int = 0


def served(ledger: Ledger, job_id: str, tenant: str) -> tuple[JobState, CallBook]:
    """Return the job with this id and its calls, if it serves calls of this tenant. Raises `NotFound`."""
    job = ledger.jobs.get(job_id)
    if job is None or job.calls is None or job.tenant != tenant:
        raise not_served(job_id)
    return job, job.calls


def not_served(job_id: str) -> NotFound:
    """Return the same error for a missing job and for another tenant's job, so that it reveals nothing of other
    tenants.
    """
    return NotFound(f"there is no job `{job_id[:80]}` that serves calls", field="job", hint="`poise ls`")


class Dispatch:
    """Owner of the lines. The controller passes messages in, and the effects of the ledger's events on calls."""

    def __init__(
        self,
        ledger: Ledger,
        now: int,
        *,
        commit: Callable[[Event], None],
        say_caller: Callable[[str, ToCaller], None],
        say_worker: Callable[[Attempt, ToWorker], None],
    ) -> None:
        """`commit` applies an event; `say_…` send once all events applied so far are durable."""
        self._commit = commit
        self._say_caller = say_caller
        self._say_worker = say_worker
        self.restart(ledger, now)

    def restart(self, ledger: Ledger, now: int) -> None:
        """Start again from the state in the ledger."""
        self._ledger = ledger
        self._lines: dict[str, Line] = {}
        for job in ledger.jobs.values():
            if job.calls is not None and not job.ended:
                self._open_line(job, job.calls, now)

    # --- callers -----------------------------------------------------------------------------------------------------

    def from_caller(self, job_id: str, tenant: str, message: FromCaller, now: int) -> None:
        """Handle a message of a tenant's caller. Raises PoiseError for an invalid message; its connection is then
        closed.
        """
        job, book = served(self._ledger, job_id, tenant)
        if isinstance(message, Resume):
            self._resume(job, book, message, now)
        elif book.closed:
            self._say_caller(job_id, Over(book.closed))
        elif isinstance(message, Calling):
            self._accept(job, book, message, now)
        elif isinstance(message, Uncall):
            self._cancel(job, book, message.numbers, now)
        elif isinstance(message, Closing):
            self._close(job, book, LEFT, now)

    def caller_gone(self, job_id: str, now: int) -> None:
        line = self._lines.get(job_id)
        if line is not None:
            line.caller, line.left = False, now

    def _resume(self, job: JobState, book: CallBook, message: Resume, now: int) -> None:
        line = self._lines.get(job.id)
        if line is None and not job.ended:
            line = self._open_line(job, book, now)
        if line is not None:
            line.caller = True
        self._say_caller(job.id, Accepted(book.last, len(book.functions)))
        if message.unreturned:
            wanted = set(message.unreturned)
            found = tuple(result for result in book.results if result.number in wanted)
            if found:
                self._say_caller(job.id, Results(found))
        if job.ended or book.closed:
            self._say_caller(job.id, Over(book.closed or "it is over"))

    def _accept(self, job: JobState, book: CallBook, message: Calling, now: int) -> None:
        for index, function in enumerate(message.functions, start=message.first_function):
            if index == len(book.functions) < MAX_FUNCTIONS:
                self._commit(FunctionTold(at=now, job=job.id, function=function))
        line = self._lines[job.id]
        for call in message.calls:
            if call.number <= book.last:
                continue  # repeated after a lost connection
            _check(call, book)
            self._commit(Called(at=now, job=job.id, call=call))
            if call.needs:
                self._await(job, book, line, call, now)
            else:
                line.ready.append(call.number)
        self._say_caller(job.id, Accepted(book.last, len(book.functions)))
        self._hand_out(job, book, line, now)

    def _await(self, job: JobState, book: CallBook, line: Line, call: Call, now: int) -> None:
        """Queue a call that takes results: it is ready once they exist, and skipped if one never will."""
        for need in call.needs:
            if str(need) in book.open:
                line.missing[call.number] = line.missing.get(call.number, 0) + 1
                line.followers.setdefault(need, []).append(call.number)
                continue
            result = line.results.get(need)
            if result is None or result.outcome != "done":
                why = "is no longer kept" if result is None else f"was {result.outcome}"
                self._return(job, book, line, Result(call.number, "skipped", note=f"call {need} {why}"), "", now)
                return
        if call.number not in line.missing:
            line.ready.append(call.number)

    def _cancel(self, job: JobState, book: CallBook, numbers: Iterable[int], now: int) -> None:
        """Cancel calls. Those that no worker holds have not begun. A held call is asked back, and its worker answers
        either way.
        """
        line = self._lines[job.id]
        holder = {number: worker for worker in line.workers.values() for number in worker.held}
        back: dict[str, list[int]] = {}
        for number in numbers:
            if str(number) not in book.open:
                continue
            if number in holder:
                line.unwanted.add(number)
                back.setdefault(holder[number].attempt.task, []).append(number)
            else:
                self._return(job, book, line, Result(number, "cancelled", note=UNBEGUN), "", now)
        for task, wanted in back.items():
            self._say_worker(line.workers[task].attempt, Back(tuple(wanted)))

    def _close(self, job: JobState, book: CallBook, why: str, now: int) -> None:
        if not book.closed:
            self._commit(CallsClosed(at=now, job=job.id, why=why))
        self._settle(job, book, now)

    # --- workers -----------------------------------------------------------------------------------------------------

    def from_worker(self, attempt: Attempt, message: FromWorker, now: int) -> None:
        job = self._job_of(attempt)
        if job is None or job.calls is None or job.id not in self._lines:
            self._say_worker(attempt, Retire())
            return
        book, line = job.calls, self._lines[job.id]
        worker = line.workers.get(attempt.task)
        if isinstance(message, Ready):
            if worker is not None and worker.attempt != attempt:
                self.ended(worker.attempt, now, blame=True)
            held = tuple(number for number in message.held if str(number) in book.open)
            for number in held:
                line.missing.pop(number, None)
            taken = set(held)
            line.ready = deque(number for number in line.ready if number not in taken) if taken else line.ready
            stale = [number for number in message.held if number not in taken]
            worker = line.workers[attempt.task] = Worker(attempt, dict.fromkeys(held), message.functions, now)
            if stale:
                self._say_worker(attempt, Back(tuple(stale)))
            self._take(job, book, line, worker, message.results, now)
        elif worker is None or worker.attempt != attempt:
            self._say_worker(attempt, Retire())
            return
        else:
            worker.retiring = worker.retiring or message.ending
            self._take(job, book, line, worker, message.results, now)
            for number in message.back:
                if worker.held.pop(number, 0) is not None or str(number) not in book.open:
                    continue
                if number in line.unwanted:
                    self._return(job, book, line, Result(number, "cancelled", note=UNBEGUN), "", now)
                else:
                    line.ready.appendleft(number)
        worker.heard = now
        worker.stuck = worker.stuck and not message.results
        self._hand_out(job, book, line, now)
        if book.over:
            self._retire(job, book, line, now)

    def ended(self, attempt: Attempt, now: int, *, blame: bool) -> None:
        """Reassign the calls of a worker whose attempt is over, or fail those without retries left. With `blame`, the
        call that it was making counts as tried.
        """
        job = self._ledger.jobs.get(attempt.task.partition(".")[0])
        line = self._lines.get(job.id) if job is not None else None
        if job is None or line is None or job.calls is None:
            return
        book = job.calls
        worker = line.workers.get(attempt.task)
        if worker is not None and worker.attempt == attempt:
            del line.workers[attempt.task]
            for position, number in enumerate(reversed(worker.held)):
                first = position == len(worker.held) - 1  # the others behind it had hardly begun
                if first and blame:
                    tries = book.tries.get(str(number), 0)
                    if tries >= RETRY.limit:
                        note = f"its worker ended {tries + 1} times before it returned"
                        self._return(job, book, line, Result(number, "lost", note=note), attempt.task, now)
                        continue
                    note = f"worker {attempt} ended"
                    self._commit(CallTried(at=now, job=job.id, number=number, worker=attempt.task, note=note))
                line.ready.appendleft(number)
        self._settle(job, book, now)

    def _take(
        self, job: JobState, book: CallBook, line: Line, worker: Worker, results: Iterable[Result], now: int
    ) -> None:
        """Record results of open calls that no other worker holds. Other results are late duplicates."""
        numbers = []
        fresh = []
        for result in results:
            numbers.append(result.number)
            call = book.open.get(str(result.number))
            if call is None or result.number not in worker.held:
                if call is None or any(result.number in other.held for other in line.workers.values()):
                    continue
                line.ready = deque(number for number in line.ready if number != result.number)
            else:
                del worker.held[result.number]
            tries = book.tries.get(str(result.number), 0) if call.retries else 0
            if result.outcome == "raised" and tries < call.retries:
                note = result.note
                task = worker.attempt.task
                self._commit(CallTried(at=now, job=job.id, number=result.number, worker=task, note=note))
                line.ready.appendleft(result.number)
                continue
            self._record(job, line, result, worker.attempt.task, now)
            fresh.append(result)
            if line.followers and result.number in line.followers:
                fresh.extend(self._lead_on(job, book, line, result, now))
        if numbers:
            self._say_worker(worker.attempt, Known(tuple(numbers)))
        if fresh:
            self._say_caller(job.id, Results(tuple(fresh)))
        if book.over:
            self._settle(job, book, now)

    def _return(self, job: JobState, book: CallBook, line: Line, result: Result, worker: str, now: int) -> None:
        """Record a result that no worker returned, and skip the calls that depend on it."""
        self._record(job, line, result, worker, now)
        fresh = (result, *self._lead_on(job, book, line, result, now))
        self._say_caller(job.id, Results(fresh))

    def _record(self, job: JobState, line: Line, result: Result, worker: str, now: int) -> None:
        self._commit(Returned(at=now, job=job.id, result=result, worker=worker))
        if line.missing:
            line.missing.pop(result.number, None)
        line.results[result.number] = result
        line.unwanted.discard(result.number)
        if job.calls is not None and len(line.results) > len(job.calls.results) + MAX_UNRETURNED:
            line.results = {kept.number: kept for kept in job.calls.results}

    def _lead_on(self, job: JobState, book: CallBook, line: Line, result: Result, now: int) -> list[Result]:
        """Count this result for the calls that need it. If it is not `done`, skip them and their dependents; return
        these.
        """
        skipped = []
        over = deque((result,))
        while over:
            ended = over.popleft()
            for number in line.followers.pop(ended.number, ()):
                if number not in line.missing:
                    continue
                if ended.outcome == "done":
                    line.missing[number] -= 1
                    if not line.missing[number]:
                        del line.missing[number]
                        line.ready.append(number)
                else:
                    never = Result(number, "skipped", note=f"call {ended.number} was {ended.outcome}")
                    self._record(job, line, never, "", now)
                    skipped.append(never)
                    over.append(never)
        return skipped

    # --- handing out -------------------------------------------------------------------------------------------------

    def _hand_out(self, job: JobState, book: CallBook, line: Line, now: int) -> None:
        if not line.ready or not line.workers or self._unsure(job, line, now):
            return
        mean = book.mean if book.done >= KNOWN_AFTER else 0
        window = max(1, min(MOST_AHEAD, AHEAD // mean)) if mean else 1
        free = [
            worker
            for worker in line.workers.values()
            if len(worker.held) < window and not (worker.retiring or worker.stuck)
        ]
        free.sort(key=_load)
        while free and line.ready:
            share = -(-len(line.ready) // len(free))
            worker = free.pop(0)
            todo: list[int] = []
            for _ in range(min(share, window - len(worker.held), len(line.ready))):
                number = line.ready[0]
                alone = str(number) in book.tries if book.tries else False
                if alone and (worker.held or todo):
                    break
                line.ready.popleft()
                if str(number) not in book.open:  # cancelled
                    continue
                todo.append(number)
                if alone:
                    break
            if todo:
                self._give(book, line, worker, todo)

    def _give(self, book: CallBook, line: Line, worker: Worker, numbers: list[int]) -> None:
        calls = []
        for number in numbers:
            call = book.open[str(number)]
            inputs = tuple(Input(need, _value(line.results.get(need))) for need in call.needs) if call.needs else ()
            calls.append(Todo(number, call.function, call.arguments, inputs))
            worker.held[number] = None
        functions = tuple(book.functions[worker.told :])
        worker.told = len(book.functions)
        self._say_worker(worker.attempt, Work(functions, tuple(calls)))

    def _unsure(self, job: JobState, line: Line, now: int) -> bool:
        """Return whether workers that ran before a restart have yet to report their calls."""
        if now >= line.unsure_until:
            return False
        running = [unit.spec.tasks[0].name for unit in job.units if unit.status == "active" and unit.tasks[0].started]
        if all(f"{job.id}.{name}" in line.workers for name in running):
            line.unsure_until = 0
        return now < line.unsure_until

    # --- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Handle timeouts: absent callers, delayed workers, idle workers."""
        for job_id, line in list(self._lines.items()):
            job = self._ledger.jobs.get(job_id)
            if job is None or job.calls is None:
                del self._lines[job_id]
                continue
            if not line.caller and not job.calls.closed and now - line.left >= ORPHANED:
                self._close(job, job.calls, LEFT, now)
            if line.unsure_until <= now:
                line.unsure_until = 0
            self._hand_out(job, job.calls, line, now)
            self._ask_back(line, now)
            self._retire(job, job.calls, line, now)

    def wakeup(self) -> int | None:
        times = []
        for job_id, line in self._lines.items():
            if not line.caller and not self._ledger.jobs[job_id].calls_closed:
                times.append(line.left + ORPHANED)
            if line.unsure_until:
                times.append(line.unsure_until)
            idle = [worker for worker in line.workers.values() if not worker.held and not worker.retiring]
            if idle and not line.ready:
                times.append(min(worker.heard for worker in idle) + self._keep(job_id))
                times += [w.heard + STUCK for w in line.workers.values() if len(w.held) > 1 and not w.stuck]
        return min(times, default=None)

    def _ask_back(self, line: Line, now: int) -> None:
        """Ask calls back that wait behind one that takes longer than expected, if another worker is idle."""
        if line.ready or not any(not worker.held and not worker.retiring for worker in line.workers.values()):
            return
        for worker in line.workers.values():
            if len(worker.held) > 1 and now - worker.heard >= STUCK and not worker.stuck:
                worker.stuck = True
                self._say_worker(worker.attempt, Back(tuple(worker.held)[1:]))

    def _retire(self, job: JobState, book: CallBook, line: Line, now: int) -> None:
        for worker in line.workers.values():
            idle = not worker.held and not line.ready and not worker.retiring
            if idle and (book.over or now - worker.heard >= self._keep(job.id)):
                worker.retiring = True
                self._say_worker(worker.attempt, Retire())

    def _keep(self, job_id: str) -> int:
        """Return how long an idle worker of this job is retained: less if other work waits to be placed."""
        pending = self._ledger.queues.pending
        own = sum(unit.status == "pending" for unit in self._ledger.jobs[job_id].units) if pending else 0
        return YIELDING if pending > own else WARM

    # --- lines -------------------------------------------------------------------------------------------------------

    def _open_line(self, job: JobState, book: CallBook, now: int) -> Line:
        line = Line(deque(), left=now)
        line.results = {result.number: result for result in book.results}
        if book.last:
            line.unsure_until = now + HEAR_OUT
        for call in book.open.values():
            missing = [need for need in call.needs if str(need) in book.open]
            for need in missing:
                line.followers.setdefault(need, []).append(call.number)
            if missing:
                line.missing[call.number] = len(missing)
            else:
                line.ready.append(call.number)
        self._lines[job.id] = line
        return line

    def _settle(self, job: JobState, book: CallBook, now: int) -> None:
        """Update a job after a part of it has ended. Open calls of an ended job are lost; workers without further calls
        retire; the remaining calls are handed out.
        """
        line = self._lines.get(job.id)
        if line is None:
            return
        if book.open and (job.ended or job.cancelled_by):
            outcome: CallOutcome = "cancelled" if job.cancelled_by else "lost"
            lost = [Result(call.number, outcome, note=f"job {job.id}: {book.closed}") for call in book.open.values()]
            for result in lost:
                self._record(job, line, result, "", now)
            line.ready.clear()
            self._say_caller(job.id, Results(tuple(lost)))
        if book.over:
            self._retire(job, book, line, now)
        if job.ended:
            self._say_caller(job.id, Over(book.closed))
            del self._lines[job.id]
        else:
            self._hand_out(job, book, line, now)

    def cancelled(self, job: JobState, now: int) -> None:
        if job.calls is not None:
            self._settle(job, job.calls, now)

    def _job_of(self, attempt: Attempt) -> JobState | None:
        """Return the job of an attempt that is not over."""
        found = self._ledger.jobs.task(attempt.task)
        if found is None or not found[1].active or attempt_of(found[0], 0) != attempt:
            return None
        return self._ledger.jobs[found[0].job]


def _check(call: Call, book: CallBook) -> None:
    """Raise PoiseError for a call that Poise's own client would never make."""
    problem: PoiseError | None = None
    if len(book.open) >= MAX_UNRETURNED:
        problem = SpecError("too many calls are open", code="E102", need=f"at most {MAX_UNRETURNED}")
    elif not 0 <= call.function < len(book.functions):
        problem = SpecError("a call of an unknown function", code="E102", have=str(call.function))
    elif len(call.arguments.data) > INLINE:
        problem = SpecError("arguments are too large to be inline", code="E102", need=f"at most {INLINE} bytes")
    elif len(call.needs) > MAX_NEEDS or any(not 0 < need < call.number for need in call.needs):
        problem = SpecError("a call takes results of earlier calls", code="E102", need=f"at most {MAX_NEEDS} of them")
    if problem is not None:
        raise problem


def _value(result: Result | None) -> Value:
    return result.value if result is not None else NOTHING


def _load(worker: Worker) -> tuple[int, Attempt]:
    return len(worker.held), worker.attempt
