"""The log as spans: one trace per job.

    spans = Spans(Ledger(plans=False))
    for event in events:
        made = spans.add(event)

    job                  from the submission to the end; link: the job that it repeats
      submit             at the submission; links: the jobs that it comes after
      queued TASK        from when it may start to its placement; events: each change of the reasons
      launch TASK        from the placement to the start
      run TASK           from the start to the end; links: the attempt before, and the tasks that it needs
      progress           of a job that takes long, at growing intervals: a backend shows something before its end

The ledger itself reads the log, so the spans cannot differ from it. The event that ends a span creates it, from the
state of the ledger at that time. So any checkpoint of the log is a valid start.

Ids are digests of facts in the log, not random: a span that any process creates again has the same id.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import islice

from poise.kernel.explain import what_for
from poise.kernel.ledger import JobState, Ledger, UnitState, attempt_of, job_status
from poise.model.decisions import Reason
from poise.model.events import Began, Event, Finished, Held, JobSubmitted, Placed, Started
from poise.model.jobs import Ending
from poise.model.messages import Attempt
from poise.model.traces import MOST_EVENTS, MOST_LINKS, TRACEPARENT, Context, Link, Span, SpanEvent, Value
from poise.units import HOUR, MINUTE, SECOND, format_duration

FIRST_PROGRESS, LONGEST_PROGRESS = 1 * MINUTE, 1 * HOUR
"""The first progress span of a job covers the first duration. Each later one covers twice the previous duration, at
most the second.
"""

MOST_CHANGES, MOST_QUEUES = 64, 4096
"""Maximum changes of reasons per queue, and maximum queues with any; the latest are retained in both cases."""

MOST_ANCHORS = 256
"""Maximum control planes whose wall clocks convert instants; earlier instants use the oldest of them."""

FEW = 8
"""Maximum number of reasons in one progress span."""

MOST_ROOTS = 1024
"""Size of the cache of root spans: each task needs that of its job, some of them three times."""


class Spans:
    """Follows a log from the state in `ledger`, which it changes."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._changes: dict[str, deque[tuple[int, str]]] = {}
        self._anchors: deque[tuple[int, int]] = deque(maxlen=MOST_ANCHORS)
        if ledger.leader.began is not None:
            self._anchor(ledger.leader.began)

    def add(self, event: Event) -> list[Span]:
        """Read the next event of the log. Return the spans that end with it."""
        made: list[Span] = []
        if isinstance(event, Placed):
            made += self._placed(event)
        elif isinstance(event, Finished):
            made += self._finished(event)
        jobs = self.ledger.jobs
        ends = jobs.ends
        self.ledger.apply(event)
        if isinstance(event, Placed):
            self._forget_reasons(event.unit)
        elif isinstance(event, JobSubmitted):
            made.append(self._submitted(jobs[event.job.id]))
        elif isinstance(event, Started):
            made += self._started(event)
        elif isinstance(event, Held):
            self._held(event)
        elif isinstance(event, Began):
            self._anchor(event)
        if ended := jobs.ends - ends:
            for job_id in jobs.latest_ended(ended):
                made += self._job_ended(jobs[job_id])
        return made

    def progress(self, since: int, now: int) -> list[Span]:
        """Return progress spans of unfinished jobs whose intervals ended after the instant `since` and by `now`."""
        jobs = self.ledger.jobs
        return [
            self._progress(job, start, end)
            for job in jobs.recent(0)
            for start, end in _intervals(job.submitted, since, now)
        ]

    # --- what ends spans ---------------------------------------------------------------------------------------------

    def _submitted(self, job: JobState) -> Span:
        root = root_of(job)
        others = (self.ledger.jobs.get(other) for other in job.after)
        links = (Link(root_of(other), {"poise.link": "after"}) for other in others if other is not None)
        return self._span(
            root, "submit", job.submitted, job.submitted, "submit", links=tuple(islice(links, MOST_LINKS))
        )

    def _placed(self, event: Placed) -> Iterator[Span]:
        unit = self.ledger.jobs.unit(event.unit)
        if unit is not None:
            where = ", ".join(dict.fromkeys(spot.node for spot in event.spots))
            yield self._queued(unit, event.epoch, event.at, {"poise.node": where, "poise.why": event.why.sentence()})

    def _started(self, event: Started) -> Iterator[Span]:
        unit, index = self.ledger.jobs.tasks[event.task]
        if unit.tasks[index].started == event.at:  # an agent may report a start again
            yield self._launch(unit, index, event.at)

    def _finished(self, event: Finished) -> Iterator[Span]:
        """Yield the spans before the ledger applies the event, because the ledger drops attempts at a unit's end."""
        unit, index = self.ledger.jobs.tasks[event.task]
        task, ending = unit.tasks[index], event.ending
        if ending.outcome == "returned":
            return
        started = task.started or max(_placed_at(unit, index), event.at - ending.run)
        if not task.started:
            yield self._launch(unit, index, started)
        yield self._run(unit, index, started, event.at, ending)

    def _held(self, event: Held) -> None:
        """Record the new reasons of a queue. The most recently changed queue comes last."""
        changes = self._changes.pop(event.queue, None) or deque(maxlen=MOST_CHANGES)
        changes.append((event.at, _sentences(event.reasons)))
        self._changes[event.queue] = changes
        if len(self._changes) > MOST_QUEUES:
            del self._changes[next(iter(self._changes))]

    def _forget_reasons(self, placed: str) -> None:
        """Forget the reasons of a queue once nothing waits there: they do not apply to what enters it later."""
        unit = self.ledger.jobs.unit(placed)
        if unit is not None and not self.ledger.queues.held(unit.queue):
            self._changes.pop(unit.queue, None)

    def _job_ended(self, job: JobState) -> Iterator[Span]:
        for unit in job.units:
            if unit.status == "cancelled" and unit.ready > unit.placed:  # while it was queued
                yield self._queued(unit, unit.epoch + 1, unit.ended, {"poise.status": "cancelled"})
        status = job_status(job)
        again = self.ledger.jobs.get(job.retry_of)
        yield self._span(
            root_of(job),
            f"job {job.name}".strip(),
            job.submitted,
            job.ended,
            attributes=_of_job(job) | {"poise.status": status, "poise.tasks": job.size},
            links=(Link(root_of(again), {"poise.link": "retry of"}),) if again is not None else (),
            error=f"job {job.id} failed" if status == "failed" else "",
        )

    # --- spans -------------------------------------------------------------------------------------------------------

    def _queued(self, unit: UnitState, epoch: int, until: int, attributes: dict[str, Value]) -> Span:
        since = min(max(unit.ready, unit.not_before), until)  # a back-off does not count as waiting
        of: dict[str, Value] = {"poise.job": unit.job, "poise.task": unit.id, "poise.epoch": epoch}
        of |= {"poise.class": unit.spec.kind, "poise.queue": unit.queue}
        return self._span(
            root_of(self.ledger.jobs[unit.job]),
            f"queued {_plain(unit.spec.name)}",
            since,
            until,
            *("queued", unit.id, epoch),
            attributes=of | attributes,
            events=tuple(
                SpanEvent(self.wall(max(at, since)), "waits", {"poise.reasons": why})
                for at, why in self._reasons(unit.queue, since, until)
            ),
        )

    def _reasons(self, queue: str, since: int, until: int) -> Sequence[tuple[int, str]]:
        """Return the reasons at the beginning of the wait, and each change until the placement."""
        known = self._changes.get(queue) or [(since, _sentences(self.ledger.queues.held(queue)))]
        changes = [change for change in known if change[0] <= until]
        first = sum(at <= since for at, _ in changes)
        return [change for change in changes[max(0, first - 1) :] if change[1]]

    def _launch(self, unit: UnitState, index: int, started: int) -> Span:
        attempt = attempt_of(unit, index)
        return self._span(
            root_of(self.ledger.jobs[unit.job]),
            f"launch {_plain(unit.spec.name)}",
            min(_placed_at(unit, index), started),
            started,
            *("launch", attempt.task, attempt.epoch),
            attributes=_of_attempt(unit, index),
        )

    def _run(self, unit: UnitState, index: int, started: int, ended: int, ending: Ending) -> Span:
        task, attempt = unit.tasks[index], attempt_of(unit, index)
        root = root_of(self.ledger.jobs[unit.job])
        links = []
        if task.past:
            before = Attempt(attempt.task, task.past[-1].epoch)
            links.append(Link(run_of(root, before), {"poise.link": "previous attempt"}))
        needs = (run_of(root, attempt) for attempt in self._needed(unit))
        links += [Link(to, {"poise.link": "needs"}) for to in islice(needs, MOST_LINKS - len(links))]
        return self._span(
            root,
            f"run {_plain(unit.spec.name)}",
            started,
            ended,
            *("run", attempt.task, attempt.epoch),
            attributes=_of_attempt(unit, index) | _of_ending(ending),
            events=tuple(self._in_run(unit, index, started))[:MOST_EVENTS],
            links=tuple(links),
            error=""
            if ending.outcome in ("done", "stopped")
            else f"{ending.outcome}: {ending.note}".removesuffix(": "),
        )

    def _needed(self, unit: UnitState) -> Iterator[Attempt]:
        """Yield the last attempts of the tasks that a unit needs."""
        for need in unit.spec.needs:
            if (needed := self.ledger.jobs.unit(f"{unit.job}.{need}")) is not None:
                for index, task in enumerate(needed.tasks):
                    if task.status != "idle":
                        yield attempt_of(needed, index)

    def _in_run(self, unit: UnitState, index: int, started: int) -> Iterator[SpanEvent]:
        """Yield events of a run: preemptions, resizes, and reports of straggling, as far as known."""
        attempt = attempt_of(unit, index)
        for order in unit.yielded:
            if order.at >= started:
                yield SpanEvent(self.wall(order.at), order.cause, {"poise.why": what_for(order)})
        for slow in unit.straggled:
            if Attempt(slow.task, slow.epoch) == attempt:
                why = f"{slow.siblings} of its like took {format_duration(slow.expected)}"
                yield SpanEvent(self.wall(slow.at), "straggles", {"poise.why": why})
        if unit.lags is not None and Attempt(unit.lags.task, unit.lags.epoch) == attempt:
            usual, have = format_duration(unit.lags.usual), format_duration(unit.lags.computes)
            yield SpanEvent(self.wall(unit.lags.at), "lags", {"poise.why": f"{have} a step, the others {usual}"})

    def _progress(self, job: JobState, start: int, end: int) -> Span:
        counts = Counter(unit.status for unit in job.units)
        waits = (unit for unit in job.units if unit.status == "pending")
        reasons = [reason.sentence() for unit in islice(waits, 1) for reason in self.ledger.queues.held_for(unit)]
        attributes: dict[str, Value] = {"poise.status": job_status(job)}
        attributes |= {f"poise.units.{status}": count for status, count in sorted(counts.items())}
        if reasons:
            attributes["poise.reasons"] = "; ".join(reasons[:FEW])
        return self._span(root_of(job), "progress", start, end, "progress", start, attributes=attributes)

    def _span(
        self,
        root: Context,
        name: str,
        start: int,
        end: int,
        *names: str | int,
        attributes: dict[str, Value] | None = None,
        events: tuple[SpanEvent, ...] = (),
        links: tuple[Link, ...] = (),
        error: str = "",
    ) -> Span:
        """Build a span below the root of its job, with ids made of these `names`; without names, the root itself."""
        return Span(
            context=_below(root, *names) if names else root,
            name=name,
            start=self.wall(start),
            end=self.wall(end),
            attributes=attributes or {},
            events=events,
            links=links,
            error=error,
        )

    def _anchor(self, began: Began) -> None:
        self._anchors.append((began.at, round(began.wall * SECOND)))

    def wall(self, instant: int) -> int:
        """Return nanoseconds since 1970, by the clock in force at that instant, so that an instant always has the same
        time.
        """
        at, wall = self._anchors[-1]
        if at > instant:
            at, wall = next((anchor for anchor in reversed(self._anchors) if anchor[0] <= instant), self._anchors[0])
        return wall + instant - at


def root_of(job: JobState) -> Context:
    """Return the span of a job: in the trace that its environment carries, or in a new one. The key and the instant of
    its submission distinguish it from jobs of other control planes with the same id.
    """
    own = _own_root(job.tenant, job.id, job.key, job.submitted)
    above = Context.of(job.env) if TRACEPARENT in job.env else None
    return own if above is None else above.below(own.span)


@lru_cache(MOST_ROOTS)
def _own_root(tenant: str, job_id: str, key: str, submitted: int) -> Context:
    facts = "\0".join((tenant, job_id, key, str(submitted)))
    digest = blake2b(facts.encode(), digest_size=24).digest()
    return Context(digest[:16], digest[16:])


def run_of(root: Context, attempt: Attempt) -> Context:
    """Return the span of a running attempt; the attempt's environment carries this context."""
    return _below(root, "run", attempt.task, attempt.epoch)


def _below(root: Context, *names: str | int) -> Context:
    """Return the span with these names in the trace of a job."""
    return root.below(blake2b("\0".join(map(str, names)).encode(), digest_size=8, key=root.trace + root.span).digest())


def _sentences(reasons: Sequence[Reason]) -> str:
    return "; ".join(reason.sentence() for reason in reasons)


def _placed_at(unit: UnitState, index: int) -> int:
    """Return the instant at which this attempt was placed: later than the others if it joined a running gang."""
    return unit.resized if unit.resized and unit.epoch_of(index) != unit.placed_in else unit.placed


def _plain(name: str) -> str:
    """Return the name of a task without the number of its part: all parts have the same span name."""
    return name.partition("[")[0]


def _of_job(job: JobState) -> dict[str, Value]:
    told = {"poise.job": job.id, "poise.job.name": job.name, "poise.tenant": job.tenant, "poise.user": job.user}
    return {name: value for name, value in told.items() if value}


def _of_attempt(unit: UnitState, index: int) -> dict[str, Value]:
    task, attempt = unit.tasks[index], attempt_of(unit, index)
    found: dict[str, Value] = {
        "poise.job": unit.job,
        "poise.task": attempt.task,
        "poise.class": unit.spec.kind,
        "poise.epoch": attempt.epoch,
        "host.name": task.node,
    }
    if task.devices:
        found["poise.devices"] = ", ".join(map(str, task.devices))
    return found


def _of_ending(ending: Ending) -> dict[str, Value]:
    found: dict[str, Value] = {"poise.outcome": ending.outcome, "process.exit.code": ending.code}
    if ending.signal:
        found["poise.signal"] = ending.signal
    if ending.cpu:
        found["poise.cpu_seconds"] = ending.cpu / SECOND
    if ending.peak:
        found["poise.peak_memory_bytes"] = ending.peak
    return found


def _intervals(since: int, after: int, now: int) -> Iterator[tuple[int, int]]:
    """Yield the intervals of a job's progress that end after one instant, and by another.

    >>> [(a // MINUTE, b // MINUTE) for a, b in _intervals(0, 0, 16 * MINUTE)]
    [(0, 1), (1, 3), (3, 7), (7, 15)]
    """
    start, length = since, FIRST_PROGRESS
    while length < LONGEST_PROGRESS and start + length <= now:
        if start + length > after:
            yield start, start + length
        start, length = start + length, length * 2
    if length >= LONGEST_PROGRESS:
        start += max(0, (after - start) // LONGEST_PROGRESS) * LONGEST_PROGRESS
        while start + LONGEST_PROGRESS <= now:
            if start + LONGEST_PROGRESS > after:
                yield start, start + LONGEST_PROGRESS
            start += LONGEST_PROGRESS
