"""The log as a report of a run: the resources and duration of each attempt, the queue, and the reasons for decisions.

    history = History(Ledger())
    for event in events:
        history.add(event)
    report = history.report(now)

The ledger itself reads the log, so the report cannot differ from it. This module only records facts that the ledger
drops. The state of a job is dropped soon after it ends. Lists in a report are limited; figures cover everything.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import TypeVar

import msgspec

from poise.errors import NotFound
from poise.kernel.explain import job_text, what_for
from poise.kernel.follow import Following, Seen
from poise.kernel.ledger import JobState, Ledger, job_status
from poise.kernel.metering import Electricity
from poise.kernel.used import (
    SpentByJob,
    Stretch,
    Window,
    bill,
    bills_by_node,
    spent_by_job,
    spread,
    stretch_of,
    tenants,
    use_of_cpu,
    use_of_devices,
    waits,
    waste,
)
from poise.model.document import near, some
from poise.model.events import (
    DeadlinesMissed,
    DeviceCordoned,
    DeviceDrained,
    Event,
    Held,
    JobCancelled,
    JobChanged,
    JobHeld,
    JobsCancelled,
    JobsRemoved,
    JobSubmitted,
    Lagging,
    NodeDrained,
    NodeForgotten,
    NodeJoined,
    NodeLevelled,
    NodeLost,
    NodeSuspected,
    NodeTrusted,
    NodeUnfit,
    Noticed,
    Placed,
    PolicyFailed,
    Preempted,
    QuotaSet,
    ReservationAdded,
    ReservationMoved,
    ReservationReleased,
    ReservationRemoved,
    Resized,
    Resumed,
    ScheduleAdded,
    ScheduleHeld,
    ScheduleRemoved,
    ScheduleTurn,
    SharesSet,
    Straggling,
    Suspended,
    Triggered,
)
from poise.model.history import (
    ClassRuns,
    Failure,
    Happening,
    JobLine,
    Lane,
    Level,
    RunReport,
    Span,
    Yielding,
)
from poise.model.jobs import FAILED
from poise.model.load import LEVELS
from poise.model.power import RATES, Rates
from poise.units import format_duration

MOST = {"jobs": 500, "attempts": 4000, "happenings": 4000, "failures": 500, "yields": 500, "classes": 200, "nodes": 500}
"""Maximum entries per list of a report, so that a page stays at a few MB. Attempts count as bars: one per device."""

LANES = 24
"""Rows per node for attempts without a device; further concurrent attempts are left out of the timeline."""

POINTS = 600
"""Number of points of the queue curve."""

FEW = 8
"""Maximum number of units that one text names."""

LONGEST = 400
"""Maximum length of a text, in characters."""

SWEEP = 1024
"""Drop ended jobs each time this many events were read."""

OVER = ("done", "failed", "cancelled", "skipped")
"""Statuses of ended jobs."""


class _Noted(msgspec.Struct, frozen=True):
    """A happening and the jobs that it concerns; empty: all jobs."""

    jobs: tuple[str, ...]
    told: Happening


Part = TypeVar("Part")


class History(Following):
    """Follows a log from the state in `ledger`, which it changes."""

    def __init__(self, ledger: Ledger) -> None:
        self._attempts: list[Seen] = []
        super().__init__(ledger)
        self._first = ledger.revision + 1
        self._begins = 0
        self._unfinished: dict[str, JobState] = dict(ledger.jobs)
        self._over: dict[str, JobLine] = {}
        self._levels: list[Level] = []
        self._noted: list[_Noted] = []
        self._replicas: dict[str, tuple[str, ...]] = {}
        """Jobs of each service that missed its objective."""
        self._yields: list[Yielding] = []
        self._stretches: dict[str, list[Stretch]] = {}
        for name, state in ledger.nodes.items():
            if state.status == "up":
                self._node_is_there(name, ledger.now)

    def add(self, event: Event) -> None:
        """Read the next event of the log."""
        self._begins = self._begins or event.at
        super().add(event)
        match event:
            case JobSubmitted():
                self._unfinished[event.job.id] = self.ledger.jobs[event.job.id]
            case Placed():
                self._placed(event)
            case Preempted():
                self._preempted(event)
            case Resized():
                self._resized(event)
            case Held():
                self._held(event)
            case NodeJoined():
                self._node_is_there(event.node.name, event.at)
            case NodeLost() | NodeForgotten():
                self._node_is_gone(event.name, event.at)
        self._tell(event)
        self._note_level(event.at)
        if self.ledger.revision % SWEEP == 0:
            self._let_go(event.at)

    # --- what happens ------------------------------------------------------------------------------------------------

    def on_begin(self, attempt: Seen) -> None:
        self._attempts.append(attempt)

    def _placed(self, event: Placed) -> None:
        unit = self.ledger.jobs.unit(event.unit)
        if unit is None:
            return
        why = event.why.sentence()
        where = ", ".join(dict.fromkeys(spot.node for spot in event.spots))
        told = f"attempt {event.epoch} on {where}{' behind its like' if event.queued else ''}"
        self._note(event.at, "placed", unit.id, f"{told}: {why}" if why else told, unit.job)

    def _resized(self, event: Resized) -> None:
        unit = self.ledger.jobs.unit(event.unit)
        if unit is None:
            return
        jobs = [_job_of(name) for name in (event.unit, event.to) if name]
        self._note(event.at, "resized", event.unit, what_for(event), *jobs)

    def _preempted(self, event: Preempted) -> None:
        told = what_for(event)
        self._yields.append(
            Yielding(at=event.at, unit=event.unit, epoch=event.epoch, cause=event.cause, to=event.to, why=told)
        )
        jobs = [_job_of(unit) for unit in (event.unit, event.to) if unit]
        self._note(event.at, "asked to yield", event.unit, told, *jobs)

    def _held(self, event: Held) -> None:
        waiting = list(self.ledger.queues.get(event.queue, ()))
        if waiting and event.reasons:
            named = waiting[0] if len(waiting) == 1 else f"{waiting[0]} and {len(waiting) - 1} like it"
            why = "; ".join(reason.sentence() for reason in event.reasons)
            self._note(event.at, "held", named, why, *dict.fromkeys(map(_job_of, waiting)))

    def _tell(self, event: Event) -> None:
        """Record events; those that concern a single job name it."""
        match event:
            case JobCancelled():
                self._note(event.at, "cancelled", event.job, f"by {event.by or 'its user'}", event.job)
            case JobsCancelled():
                self._note(event.at, "cancelled", some(event.jobs, FEW), f"by {event.by or 'their users'}", *event.jobs)
            case JobsRemoved():
                self._note(event.at, "removed", some(event.jobs, FEW), f"by {event.by or 'their users'}", *event.jobs)
            case ScheduleAdded():
                made = event.schedule
                self._note(event.at, "schedule added", made.job.name or made.id, made.rule.sentence())
            case ScheduleTurn():
                if event.refused:
                    self._note(event.at, "schedule refused", event.schedule, event.refused)
            case ScheduleHeld():
                self._note(event.at, "schedule held" if event.on else "schedule released", event.schedule, event.why)
            case ScheduleRemoved():
                self._note(event.at, "schedule removed", event.schedule, f"by {event.by or 'its user'}")
            case JobHeld():
                why = event.why or f"by {event.by or 'its user'}"
                self._note(event.at, "held" if event.on else "released", event.job, why, event.job)
            case JobChanged():
                self._note(
                    event.at, "changed", event.job, f"{some(event.paths, FEW)} of {some(event.units, FEW)}", event.job
                )
            case Suspended():
                idle = f"it was idle for {format_duration(event.at - event.since)}"
                self._note(event.at, "suspended", event.unit, idle, _job_of(event.unit))
            case Resumed():
                self._note(event.at, "resumed", event.unit, "it is in use again", _job_of(event.unit))
            case DeadlinesMissed():
                named = some([missed.unit.partition(".")[2] for missed in event.units], FEW)
                text = f"{named}: the deadline could not be met any more"
                self._note(event.at, "cancelled", event.job, text, event.job)
            case NodeJoined():
                self._note(event.at, "node joined", event.node.name, "")
            case NodeLost():
                why = "what runs it says that it is gone" if event.said else "it has been silent for too long"
                self._note(event.at, "node lost", event.name, why)
            case NodeSuspected():
                self._note(event.at, "node suspected", event.name, "it has been silent for a moment")
            case NodeTrusted():
                self._note(event.at, "node trusted", event.name, "")
            case NodeUnfit():
                self._note(event.at, "node unfit" if event.why else "node fit", event.name, event.why)
            case NodeForgotten():
                self._note(event.at, "node forgotten", event.name, "")
            case NodeDrained():
                text = "what runs there goes on elsewhere" if event.moves else ""
                self._note(event.at, "node drained" if event.on else "node opened", event.name, text)
            case Straggling():
                text = f"ran {format_duration(event.ran)}, its like {format_duration(event.expected)}"
                self._note(event.at, "straggles", f"{event.task} on {event.node}", text, _job_of(event.task))
            case Lagging():
                text = f"{format_duration(event.computes)} a step, the others {format_duration(event.usual)}"
                self._note(event.at, "lags", f"{event.task} on {event.node}", text, _job_of(event.task))
            case DeviceCordoned():
                why = ", ".join(part for part in (event.code, event.text) if part)
                self._note(event.at, "device failed", f"{event.node}:{event.device}", why)
            case DeviceDrained():
                self._note(event.at, "node drained" if event.on else "node opened", f"{event.node}:{event.device}", "")
            case NodeLevelled():
                self._note(event.at, "load", event.name, LEVELS[event.level] + (", for a while" if event.hot else ""))
            case QuotaSet():
                self._note(event.at, "quota", event.tenant, "set" if event.quota is not None else "lifted")
            case ReservationAdded():
                self._note(event.at, "reserved", event.reservation.id, event.reservation.wants())
            case ReservationMoved():
                self._note(event.at, "reservation moved", event.reservation, event.why)
            case ReservationReleased():
                self._note(event.at, "reservation released", event.reservation, "nobody used it")
            case ReservationRemoved():
                self._note(event.at, "reservation", event.reservation, "over" if event.over else "cancelled")
            case SharesSet():
                self._note(event.at, "shares", "fleet", "set" if event.tree is not None else "removed")
            case Triggered():
                self._note(event.at, "round forced", event.subject or "fleet", f"{event.trigger} {event.have}".strip())
            case Noticed():
                if event.jobs:
                    self._replicas[event.subject] = event.jobs
                of_task = event.kind in ("member-differs", "new-template")
                jobs = (_job_of(event.subject),) if of_task else self._replicas.get(event.subject, ())
                kind = "over" if event.over else "noticed"
                self._note(event.at, kind, event.subject or "control plane", event.text, *jobs)
            case PolicyFailed():
                self._note(event.at, "policy failed", event.policy, event.error)

    def _note(self, at: int, kind: str, subject: str, text: str, *jobs: str) -> None:
        told = Happening(at=at, revision=self.ledger.revision, kind=kind, subject=_short(subject), text=_short(text))
        self._noted.append(_Noted(jobs, told))

    def _note_level(self, at: int) -> None:
        level = Level(at, self.ledger.queues.pending, len(self.ledger.active))
        if not self._levels or (level.pending, level.active) != (self._levels[-1].pending, self._levels[-1].active):
            self._levels.append(level)

    def _node_is_there(self, name: str, at: int) -> None:
        self._node_is_gone(name, at)  # its offer may have changed
        self._stretches.setdefault(name, []).append(stretch_of(self.ledger.nodes[name].node, at))

    def _node_is_gone(self, name: str, at: int) -> None:
        stretches = self._stretches.get(name)
        if stretches and not stretches[-1].until:
            stretches[-1].until = at

    def _let_go(self, now: int) -> None:
        for job in [job for job in self._unfinished.values() if job.ended]:
            self._over[job.id] = _line(job, now)
            del self._unfinished[job.id]

    # --- telling it --------------------------------------------------------------------------------------------------

    def report(
        self,
        now: int,
        *,
        names: Sequence[str] = (),
        since: int = 0,
        until: int = 0,
        tenant: str = "",
        version: str = "",
        rates: Rates = RATES,
    ) -> RunReport:
        """Report the run between two instants (`since` 0: from the beginning; `until` 0: until `now`).

        `names` selects jobs by id or name, `tenant` one tenant; empty: all. `rates` are those of electricity. Raises
        NotFound.
        """
        now = max(now, self.ledger.now)
        lines = self._over | {job.id: _line(job, now) for job in self._unfinished.values()}
        if tenant:
            lines = {name: line for name, line in lines.items() if line.tenant == tenant}
        chosen = {_job_named(name, lines) for name in names} if names else set(lines)
        since, until = max(since, self._begins or now), min(until or now, now)
        if names:
            told = [lines[name] for name in chosen]
            since = max(since, min(line.submitted for line in told))
            until = max(since, *(min(until, _end_of(line, now)) for line in told))
        window = Window(since, until)
        jobs = [lines[name] for name in lines if name in chosen and _is_in(lines[name], window, now)]
        chosen = {line.id for line in jobs}
        attempts = [one for one in self._attempts if one.job in chosen and window.meets(one.placed, one.ended)]
        tries = Counter(attempt.job for attempt in attempts)
        starts: dict[str, int] = {}
        for attempt in attempts:
            if attempt.started:
                starts[attempt.job] = min(attempt.started, starts.get(attempt.job, attempt.started))
        latest = {attempt.unit: attempt.epoch for attempt in attempts}
        waiting = {
            unit.id for job in self._unfinished.values() for unit in job.units if unit.status in ("pending", "active")
        }
        failures = [
            Failure(
                at=attempt.ended - since,
                task=attempt.task,
                epoch=attempt.epoch,
                node=attempt.node,
                outcome=attempt.outcome,
                run=attempt.ended - attempt.started if attempt.started else 0,
                note=_short(attempt.note),
                again=latest[attempt.unit] > attempt.epoch or attempt.unit in waiting,
            )
            for attempt in attempts
            if attempt.outcome in FAILED and window.has(attempt.ended)
        ]
        yields = [one for one in self._yields if _job_of(one.unit) in chosen and window.has(one.at)]
        happenings = [
            noted.told
            for noted in self._noted
            if window.has(noted.told.at) and (not noted.jobs or chosen.intersection(noted.jobs))
        ]
        left_out: dict[str, int] = {}
        stretches = [one for of_node in self._stretches.values() for one in of_node]
        shown = _some(sorted(jobs, key=attrgetter("submitted")), "jobs", left_out)
        electricity = Electricity(rates, self.ledger.leader.anchor)
        dear = spent_by_job(attempts, window, electricity)
        bills = bills_by_node(self._stretches, self._attempts, window, electricity) if not tenant else []
        if len(bills) > MOST["nodes"]:
            left_out["nodes"] = len(bills) - MOST["nodes"]
        first_submission = min((line.submitted for line in jobs), default=0)
        return RunReport(
            version=version,
            policy=self.ledger.leader.policy,
            asked=tuple(names),
            tenant=tenant,
            begins=self.ledger.leader.wall(since),
            length=until - since,
            first=self._first,
            last=self.ledger.revision,
            statuses=dict(sorted(Counter(line.status for line in jobs).items())),
            tasks=sum(line.tasks for line in jobs),
            attempts=len(attempts),
            failed=len(failures),
            retried=sum(failure.again for failure in failures),
            yielded=len(yields),
            makespan=max((line.submitted + line.took for line in jobs), default=0) - first_submission,
            completion=spread(line.took for line in jobs if line.status in OVER and window.has(_end_of(line, now))),
            waiting=spread(
                attempt.started - attempt.ready
                for attempt in attempts
                if attempt.first and attempt.started and window.has(attempt.started)
            ),
            cpu=use_of_cpu(stretches, attempts, window),
            devices=use_of_devices(stretches, attempts, window),
            jobs=tuple(
                msgspec.structs.replace(
                    line,
                    submitted=line.submitted - since,
                    waited=starts[line.id] - line.submitted if line.id in starts else None,
                    attempts=tries[line.id],
                    **_spent(dear.get(line.id)),
                )
                for line in shown
            ),
            lanes=tuple(_lanes(attempts, since, until, left_out)),
            levels=tuple(_thinned(self._levels, since, until)),
            happenings=tuple(_shifted(_some(happenings, "happenings", left_out), since)),
            failures=tuple(_some(failures, "failures", left_out)),
            yields=tuple(_shifted(_some(yields, "yields", left_out), since)),
            classes=tuple(_classes(attempts, left_out)),
            tenants=tuple(tenants(attempts, jobs, window, electricity)),
            waits=tuple(waits(attempts, window)),
            waste=() if tenant else tuple(waste(stretches, self._attempts, self._levels, window)),
            bill=None if tenant else bill(stretches, self._attempts, window, electricity),
            nodes=tuple(bills[: MOST["nodes"]]),
            kg_per_kwh=rates.kg_per_kwh,
            hourly=rates.unit,
            left_out=left_out,
        )


def _spent(by: SpentByJob | None) -> dict[str, float]:
    """Return the fields of a job's line for what it spent."""
    if by is None:
        return {}
    of = by.spent
    return {"energy": of.energy, "co2": of.co2, "electricity": of.electricity, "price": by.price}


def _end_of(line: JobLine, now: int) -> int:
    """Return the instant at which a job ended, or now."""
    return line.submitted + line.took if line.status in OVER else now


def _is_in(line: JobLine, window: Window, now: int) -> bool:
    """Return whether a job existed during a part of the window."""
    return line.submitted <= window.until and _end_of(line, now) >= window.since


def _line(job: JobState, now: int) -> JobLine:
    """Return the line of a job with instants of the log, without the figures from its attempts."""
    tasks = job.size
    return JobLine(
        id=job.id,
        name=job.name,
        user=job.user,
        status=job_status(job),
        command=_short(job_text(job, tasks)),
        tasks=tasks,
        submitted=job.submitted,
        took=(job.ended or now) - job.submitted,
        tenant=job.tenant,
        calls=job.calls.done + job.calls.failed if job.calls is not None else 0,
    )


def _job_named(name: str, lines: dict[str, JobLine]) -> str:
    """Return the id of a job, by id or name; of several jobs with the name, the latest. Raises NotFound."""
    if name in lines:
        return name
    named = [line.id for line in lines.values() if line.name == name]
    if named:
        return max(named, key=lambda job: lines[job].submitted)
    known = dict.fromkeys(text for line in lines.values() for text in (line.name, line.id) if text)
    hint = near(name, known) or "`poise ls --all` lists the jobs"
    raise NotFound(f"the log has no job `{name}`", field="job", have=name, hint=hint)


def _lanes(attempts: Iterable[Seen], since: int, until: int, left_out: dict[str, int]) -> Iterable[Lane]:
    """Yield started attempts by node and device; those without a device share as few rows as possible."""
    started = [attempt for attempt in attempts if attempt.started and attempt.started <= until]
    started.sort(key=lambda attempt: (attempt.outcome not in FAILED, attempt.started - (attempt.ended or until)))
    bars = accumulate(max(1, len(attempt.devices)) for attempt in started)
    shown = sum(so_far <= MOST["attempts"] for so_far in bars)  # failed ones first, then the longest
    if shown < len(started):
        left_out["attempts"] = len(started) - shown
    rows: dict[tuple[str, int, int], list[Span]] = {}
    ends: dict[str, list[int]] = {}
    for attempt in sorted(started[:shown], key=attrgetter("started")):
        span = _span(attempt, since, until)
        for device in attempt.devices:
            rows.setdefault((attempt.node, 0, device), []).append(span)
        if attempt.devices:
            continue
        taken = ends.setdefault(attempt.node, [])
        row = next((row for row, end in enumerate(taken) if end <= attempt.started), len(taken))
        if row == LANES:
            left_out["attempts"] = left_out.get("attempts", 0) + 1
            continue
        taken[row:] = [attempt.ended or until, *taken[row + 1 :]]
        rows.setdefault((attempt.node, 1, row), []).append(span)
    for (node, kind, number), spans in sorted(rows.items()):
        yield Lane(node=node, name="" if kind else f"device {number}", spans=tuple(spans))


def _span(attempt: Seen, since: int, until: int) -> Span:
    return Span(
        task=attempt.task,
        job=attempt.job,
        epoch=attempt.epoch,
        node=attempt.node,
        devices=attempt.devices,
        priority=attempt.priority,
        since=max(attempt.started, since) - since,
        until=min(attempt.ended or until, until) - since,
        waited=max(0, attempt.started - attempt.ready),
        outcome=attempt.outcome,
        note=_short(attempt.note),
        why=_short(attempt.why.sentence()) if attempt.why is not None else "",
        artifact=attempt.artifact,
    )


def _thinned(levels: Sequence[Level], since: int, until: int) -> Iterable[Level]:
    """Return at most about `POINTS` points, each the maximum of its interval, so that no peak is lost."""
    stretch = max(1, (until - since) // POINTS)
    before = Level(since, 0, 0)
    most: dict[int, Level] = {}
    for level in levels:
        if level.at < since:
            before = level
        elif level.at <= until:
            place = (level.at - since) // stretch
            other = most.get(place, level)
            most[place] = Level(other.at, max(level.pending, other.pending), max(level.active, other.active))
    return [
        Level(0, before.pending, before.active),
        *(Level(one.at - since, one.pending, one.active) for one in most.values()),
    ]


def _classes(attempts: Iterable[Seen], left_out: dict[str, int]) -> list[ClassRuns]:
    runs: dict[str, list[int]] = {}
    failed: Counter[str] = Counter()
    for attempt in attempts:
        done = runs.setdefault(attempt.kind, [])
        if attempt.outcome == "done":
            done.append(attempt.ended - attempt.started)
        failed[attempt.kind] += attempt.outcome in FAILED
    found = [ClassRuns(name=_short(kind), run=spread(done), failed=failed[kind]) for kind, done in runs.items()]
    found.sort(key=lambda one: (one.run.mean * one.run.count, one.failed), reverse=True)
    most = MOST["classes"]
    if len(found) > most:
        left_out["classes"] = len(found) - most
    return found[:most]


def _some(parts: Sequence[Part], name: str, left_out: dict[str, int]) -> Sequence[Part]:
    """Return the latest of them, if there are more than a report lists."""
    most = MOST[name]
    if len(parts) > most:
        left_out[name] = len(parts) - most
    return parts[-most:]


Moment = TypeVar("Moment", Happening, Yielding)


def _shifted(parts: Iterable[Moment], since: int) -> Iterable[Moment]:
    """Return them with instants relative to the beginning of the report."""
    return (msgspec.structs.replace(part, at=part.at - since) for part in parts)


def _job_of(unit: str) -> str:
    """Return the id of the unit's job. Job ids contain no dots."""
    return unit.partition(".")[0]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
