"""Reports made from the ledger: the history of a job, and every reason why it waits. Pure: the caller only draws them.

`kernel/whatif.py` answers questions that need a decision (`poise explain`), from a view and a `Question`. A `Question`
holds all that it needs of the ledger, so the ledger may change meanwhile.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from poise.kernel.book import CallBook
from poise.kernel.fitting import nowhere
from poise.kernel.lateness import lost_deadlines
from poise.kernel.ledger import (
    CAUSES,
    ArrayState,
    Cordon,
    JobState,
    Ledger,
    NodeState,
    PastAttempt,
    ScheduleState,
    TaskState,
    UnitState,
    deciding_ending,
    device_key,
    job_status,
    leased,
    may_follow,
    units_status,
)
from poise.kernel.timetable import wall_of
from poise.model import graph
from poise.model.arrays import number_at, size_of, spans_of
from poise.model.budgets import ONE
from poise.model.decisions import UNKNOWN, Reason, Why
from poise.model.document import some
from poise.model.events import Preempted, Resized, Straggling
from poise.model.jobs import Ending, Unit, retries_of
from poise.model.load import LEVELS, Load, Upkeep
from poise.model.profiles import estimate_run
from poise.model.quotas import BASE, Amounts, Quota, asked
from poise.model.reports.access import TokenReport, WhoReport
from poise.model.reports.jobs import (
    ArrayReport,
    AttemptReport,
    CallsReport,
    JobReport,
    ScheduleReport,
    TaskReport,
    TrainingReport,
)
from poise.model.reports.nodes import NodeReport, report_of
from poise.model.reports.policies import PolicyReport, TrialReport
from poise.model.reports.questions import Told
from poise.model.reports.status import PhaseTimes, StatusReport
from poise.model.reports.tenants import BudgetReport, QuotaReport
from poise.model.resources import PLENTY, WHOLE, identity_of
from poise.model.selection import names_of
from poise.model.sweep import values_in
from poise.model.tenants import Bearer, Token
from poise.model.training import Training
from poise.model.views import Candidate, Snapshot
from poise.policy.split import SplitRecipe, divide, split_in
from poise.units import SECOND, format_bytes, format_duration

SOME = 8
"""Maximum number of groups of units, running units and events in a report of a job, unless everything is asked for."""


FEW = 12
"""Maximum number of functions to name for a job that serves calls."""


WORTHS = ("worth", "instead")
"""Scores of a preemption in worth per hour (`poise.policy.reclaim.value`); the others are in seconds."""


class LastWord(NamedTuple):
    """The latest training report of a unit, and the instant at which it arrived."""

    at: int
    said: Training


def logged(unit: UnitState) -> LastWord | None:
    """Return the latest training report in the ledger, which records only some of them."""
    return None if unit.training is None else LastWord(unit.told, unit.training)


def idle_in_log(unit: UnitState) -> int:
    """Return the instant of the last use of a suspended unit, or 0: the ledger does not record that others are idle."""
    return unit.suspended.since if unit.suspended is not None else 0


def job_report(
    ledger: Ledger,
    job: JobState,
    now: int,
    *,
    tasks: bool,
    heard: Callable[[UnitState], LastWord | None] = logged,
    idle: Callable[[UnitState], int] = idle_in_log,
) -> JobReport:
    """Report one job as of `now`; with its tasks if asked, and their training as `heard` returns it. `idle` returns the
    instant of the last use of an idle unit, or 0.
    """
    counts = job.array.counts if job.array is not None else {}
    for unit in job.existing:
        for task in unit.tasks:
            status = task_status(job, unit, task)
            counts[status] = counts.get(status, 0) + 1
    path, slack = paths(job) if tasks and job.is_graph else ((), {})
    lost = lost_deadlines(ledger, job, now) if tasks and not job.ended else {}
    return JobReport(
        id=job.id,
        name=job.name,
        tenant=job.tenant,
        user=job.user,
        status=job_status(job),
        exit_code=exit_code(job),
        submitted=ledger.leader.wall(job.submitted),
        ended=ledger.leader.wall(job.ended),
        elapsed=(job.ended or now) - job.submitted,
        counts=counts,
        command=job_text(job, sum(counts.values())),
        critical_path=path,
        remaining=_sum_known(known_run(ledger, unit) for unit in job.units if unit.spec.name in path and not unit.over),
        note=job.note,
        retries=retries_of(unit.spec.retry for unit in job.units) if tasks and job.calls is None else "",
        tree=job.tree.hash if job.tree is not None else "",
        secrets=tuple(sorted({*job.secrets}.union(*(unit.spec.secrets for unit in job.units)))),
        hold=job.hold and not job.ended,
        budget=job.budget if job.hold and not job.ended else "",
        calls=_calls_report(job.calls) if job.calls is not None else None,
        training=tuple(
            TrainingReport(unit=unit.id, heard=ledger.leader.wall(known.at), said=known.said)
            for unit in (job.units if tasks else ())
            if (known := heard(unit)) is not None
        ),
        tasks=tuple(
            task_report(ledger, job, unit, index, now, slack.get(unit.spec.name, unit.slack), lost.get(unit.id))
            for unit in (job.units if job.array is None else _telling(job, job.array))
            for index in range(len(unit.tasks))
        )
        if tasks
        else (),
        array=_array_report(job, job.array) if job.array is not None else None,
        unnotified={name: why for name, why in job.notified.items() if why} if tasks else {},
        idle_since=ledger.leader.wall(max((idle(unit) for unit in job.existing), default=0)) if not job.ended else 0.0,
        suspended=any(unit.suspended is not None for unit in job.existing),
    )


def _telling(job: JobState, array: ArrayState) -> list[UnitState]:
    """Return the parts of an array to report: the first failed ones, those that run, and the first that waits."""
    failed = [array.past(job.id, place) for place in islice(array.failures(), SOME)]
    active = [unit for unit in job.existing if unit.status == "active"]
    return [*failed, *active, *islice((unit for unit in job.existing if unit.status != "active"), 1)]


def _array_report(job: JobState, array: ArrayState) -> ArrayReport:
    rule = array.rule
    parts = size_of(rule)
    failed = spans_of(number_at(rule, place) for place in array.failures() if place < parts)
    return ArrayReport(
        name=rule.like.name,
        parts=parts,
        at_most=rule.like.at_most,
        allow_failed=job.allow_failed,
        failed=some([str(first) if many == 1 else f"{first}-{first + many - 1}" for first, many in failed], FEW),
    )


def known_run(ledger: Ledger, unit: UnitState) -> int:
    """Return the expected run time of a unit in nanoseconds; 0 if neither history nor a declaration gives one."""
    told = unit.status == "done" or unit.left
    known = told or estimate_run(ledger.profiles.get(unit.spec.kind), unit.spec.declared).source != UNKNOWN
    return unit.expected if known else 0


def _sum_known(runs: Iterable[int]) -> int | None:
    """Return the sum; None if one of them is unknown."""
    runs = list(runs)
    return sum(runs) if all(runs) else None


def job_text(job: JobState, tasks: int) -> str:
    """Return a short text of the command or functions of a job."""
    if job.calls is not None:
        return f"calls of {', '.join(function.name for function in job.calls.functions[:FEW]) or 'functions'}"
    if job.array is not None:
        return f"array of {tasks} tasks"
    if len(job.units) == 1:
        return _command(job.units[0].spec.tasks[0].argv)
    return f"graph of {tasks} tasks"


def _calls_report(book: CallBook) -> CallsReport:
    return CallsReport(
        open=len(book.open),
        done=book.done,
        failed=book.failed,
        mean=book.mean,
        functions=tuple(function.name for function in book.functions[:FEW]),
        closed=book.closed,
    )


def task_report(
    ledger: Ledger, job: JobState, unit: UnitState, index: int, now: int, slack: int, late: Reason | None = None
) -> TaskReport:
    """Report one task as of `now`; `late` is the reason that its deadline is lost."""
    task, spec = unit.tasks[index], unit.spec.tasks[index]
    ending = task.ending or Ending(outcome="returned")
    has_ended = task.ending is not None
    started = task.started or (task.ended if has_ended else 0)
    spare = unit.status == "active" and task.status == "idle"
    placed = unit.status not in ("waiting", "pending") and not spare  # else its attempts name the node
    return TaskReport(
        task=f"{job.id}.{spec.name}",
        name=spec.name,
        status=task_status(job, unit, task),
        priority=unit.spec.priority.name.lower(),
        command=spec.argv,
        needs=unit.spec.needs,
        node=task.node if placed else "",
        devices=task.devices if placed else (),
        cpus=task.cpus if placed else (),
        pid=None if has_ended else task.pid or None,
        epoch=unit.epoch_of(index),
        wait=max(0, (started or unit.ended or now) - unit.ready) if unit.ready else 0,
        run=ending.run if has_ended else (now - started if started else 0),
        cpu=ending.cpu,
        started=ledger.leader.wall(started),
        ended=ledger.leader.wall(task.ended),
        expected=known_run(ledger, unit),
        slack=slack,
        critical=job.is_graph and slack == 0,
        outcome=ending.outcome if has_ended else "",
        exit_code=ending_code(ending) if has_ended else None,
        peak=ending.peak,
        limit=ending.limit,
        time_limit=unit.spec.time_limit,
        retries=unit.spec.retry.sentence(),
        input="" if index else "terminal" if unit.spec.tty else "pipe" if unit.spec.stdin else "",
        image=unit.spec.image,
        note=ending.note,
        why=unit.why.sentence() if unit.why and placed else "",
        reasons=tuple(
            reason.sentence() for reason in (*reasons(ledger, job, unit, now), *([late] if late is not None else []))
        ),
        attempts=tuple(
            AttemptReport(
                epoch=past.epoch,
                node=past.node,
                outcome=past.ending.outcome,
                run=past.ending.run,
                note="; ".join(_evidence(past.ending, _tried_again(unit, past))),
            )
            for past in task.past
        ),
        result=result_of(ending.result),
        sweep=values_in(spec.env),
        artifact=unit.spec.artifact_of(unit.variant) if unit.epoch else "",
    )


def task_status(job: JobState, unit: UnitState, task: TaskState) -> str:
    """Return the status of a task: one of `STATUSES`."""
    if unit.status == "waiting" and job.calls is not None and not job.awaited:
        return "resting"  # a worker without calls
    if unit.status == "failed" and _stopped_for_another(unit, task):
        return "stopped"
    if unit.status != "active":
        return unit.status
    if task.status == "ended" and task.ending is not None:
        return {"done": "done", "stopped": "stopped", "returned": "stopped"}.get(task.ending.outcome, "failed")
    if task.status == "idle":
        return "spare"
    if unit.stopping or task.leaving:
        return "stopping"
    return "placed" if task.status == "queued" else task.status


def _stopped_for_another(unit: UnitState, task: TaskState) -> bool:
    """Return whether Poise stopped the task because another task of its gang had failed."""
    by_poise = ("stopped", "returned")
    return task.ending is not None and task.ending.outcome in by_poise and deciding_ending(unit).outcome not in by_poise


def reasons(ledger: Ledger, job: JobState, unit: UnitState, now: int) -> list[Reason]:
    """Return every reason why a unit has not started or never will; for a started unit, its problems. `lost_deadlines`
    reports lost deadlines, for all units of a job at once.
    """
    found: list[Reason] = []
    if unit.missed is not None and (unit.status == "cancelled" or (unit.status == "active" and unit.stopping)):
        found.append(_too_late(ledger, unit))
    elif unit.status == "waiting":
        if job.hold:
            code = "BUDGET" if job.budget else "LOCKED" if job.held_for else "ON_HOLD"
            found.append(Reason(code=code, subject=job.budget or job.id, have=job.held_for))
        needed = {need: ledger.jobs.unit(f"{job.id}.{need}") for need in unit.spec.needs}
        found += [
            Reason(code="NEEDS", need=need)
            for need, other in needed.items()
            if other is not None and other.status != "done"
        ]
        found += [
            Reason(code="AFTER", need=other)
            for other in job.after
            if other in ledger.jobs and not ledger.jobs[other].ended
        ]
        found += turn_of(job, unit)
    elif unit.status == "pending":
        found += [*nowhere(ledger.columns.room(), unit.spec), *_back(unit, now), *_held(ledger, unit)]
        if not found:
            found.append(Reason(code="NEXT_ROUND"))
    elif unit.status == "skipped":
        undone = [other.spec.name for other in job.units if other.over and other.status != "done"]
        found += [Reason(code="SKIPPED", need=need, fixable="never") for need in unit.spec.needs if need in undone]
        found += [
            Reason(
                code="SKIPPED_AFTER",
                need=known_as(ledger.jobs[other]),
                have=job_status(ledger.jobs[other]),
                fixable="never",
            )
            for other in job.after
            if not unit.spec.needs and other in ledger.jobs and not _followed(job, ledger.jobs[other])
        ]
    elif unit.status == "active" and unit.stopping in CAUSES and unit.yielded:
        found.append(Reason(code="STOPPING", have=what_for(unit.yielded[-1])))
    elif unit.status == "active" and any(task.status == "recovering" for task in unit.tasks):
        lost = sorted({task.node for task in unit.tasks if task.status == "recovering"})
        found += [Reason(code="NODE_LOST", subject=node) for node in lost]
        found += leased(unit, now)
        if not ledger.active.may_be_placed(unit) and not unit.stopping:
            found.append(Reason(code="NEEDS_ITS_NODE"))
    elif unit.status == "active":
        slow = {task.node: task.straggles for task in unit.tasks if task.active and task.straggles}
        found += [Reason(code="STRAGGLING", subject=node, need=format_duration(slow[node])) for node in sorted(slow)]
        if unit.suspended is not None:
            found.append(Reason(code="SUSPENDED", subject=job.name or job.id))
        if (lags := unit.lags) is not None:
            computes, usual = format_duration(lags.computes), format_duration(lags.usual)
            found.append(Reason(code="LAGGING", subject=lags.node, have=computes, need=usual))
    return found


def known_as(job: JobState) -> str:
    """Return the id of a job, with its name if it has one."""
    return f"{job.id} ({job.name})" if job.name else job.id


def _followed(job: JobState, other: JobState) -> bool:
    """Return whether a job that it comes after has ended as required, or still may."""
    return not other.ended or may_follow(job, other.id, job_status(other))


def _too_late(ledger: Ledger, unit: UnitState) -> Reason:
    """Return the reason of a cancellation for a missed deadline: its own, or that of another unit."""
    if unit.missed is None or not unit.missed.of:
        left = unit.missed.left if unit.missed is not None else 0
        have = f"at least {format_duration(left)} of work were left" if left else "it had passed"
        return Reason(code="CANCELLED_LATE", need=format_duration(unit.spec.deadline), have=have, fixable="never")
    other = ledger.jobs.unit(unit.missed.of)
    return Reason(code="CANCELLED_FOR", subject=other.spec.name if other is not None else "", fixable="never")


def _held(ledger: Ledger, unit: UnitState) -> list[Reason]:
    """Return the reasons recorded for its queue. The unit in front of it is not recorded, so look it up."""
    first = ledger.queues.first_in_line()
    return [
        Reason(code=reason.code, subject=first)
        if reason.code == "BEHIND" and not reason.subject and first != unit.id
        else reason
        for reason in ledger.queues.held_for(unit)
    ]


def _back(unit: UnitState, now: int) -> list[Reason]:
    """Return the reasons why it cannot be placed before its `free_at`."""
    delay = unit.not_before - now
    code = "BACKOFF" if unit.epoch or not unit.spec.begin else "BEGINS"
    return [*([Reason(code=code, need=format_duration(delay))] if delay > 0 else []), *leased(unit, now)]


def turn_of(job: JobState, unit: UnitState) -> list[Reason]:
    """Return a reason if the concurrency limit of its task (`at_most`) makes it wait for earlier parts, or if it is a
    part of an array that is made later.
    """
    if job.array is not None and unit.ordinal >= job.array.ordinal + job.array.made and not unit.spec.at_most:
        return [Reason(code="BEHIND", subject=job.units[-1].id)]
    given = job.turns.get(unit.spec.name.partition("[")[0], 0)
    if not unit.spec.at_most or unit.spec.tasks[0].part < unit.spec.at_most + given:
        return []
    return [Reason(code="AT_MOST", need=str(unit.spec.at_most))]


def paths(job: JobState) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the names of the units on the critical path, and the slack of each unit.

    The times are expected run times. Once the job is done, a unit's time is real: from when it could have begun to its
    end, with its wait and its failed attempts.
    """
    needs = {unit.spec.name: unit.spec.needs for unit in job.units}
    took = {unit.spec.name: unit.expected for unit in job.units}
    if job_status(job) == "done":
        ended = {unit.spec.name: unit.ended for unit in job.units}
        took = {
            name: ended[name] - max((ended[need] for need in of), default=job.submitted) for name, of in needs.items()
        }
    slack = {name: times.slack for name, times in graph.times(needs, took).items()}
    return tuple(graph.critical_path(needs, took)), slack


class Alike(NamedTuple):
    """Waiting units of a job with the same request: the ids of all, and the first of them as a policy would see it.

    `not_before`: not placed before this instant (0: none), for the reasons in `back`. `unseen` counts units ahead in
    the queue that the view does not show. `artifacts` names its artifacts, by number. `never` says that no node could
    run it, `late` that its deadline is lost.
    """

    units: tuple[str, ...]
    candidate: Candidate
    not_before: int
    back: tuple[Reason, ...]
    unseen: int
    artifacts: tuple[str, ...]
    late: tuple[Reason, ...] = ()
    never: tuple[Reason, ...] = ()


class After(NamedTuple):
    """Units that wait for other units of their job or for other jobs, with the reasons; `more` are not named."""

    units: tuple[str, ...]
    reasons: tuple[Reason, ...]
    more: int = 0


class Active(NamedTuple):
    """A unit that holds resources, with artifact number `variant` of its `artifacts`."""

    candidate: Candidate
    status: str
    nodes: tuple[str, ...]
    elapsed: int
    why: Why | None
    reasons: tuple[Reason, ...]
    artifacts: tuple[str, ...]
    variant: int


class Question(NamedTuple):
    """A question about a job, with all that the ledger knows of it. `beyond` says that its first pending unit exceeds
    its tenant's whole quota, so no end of other work lets it start.
    """

    job: str
    name: str
    status: str
    pending: tuple[Alike, ...]
    waiting: tuple[After, ...]
    active: tuple[Active, ...]
    story: tuple[Told, ...]
    left_out: int
    beyond: str = ""


def question(
    ledger: Ledger,
    job: JobState,
    view: Snapshot,
    *,
    units: Sequence[UnitState] | None = None,
    everything: bool = False,
    idle: Callable[[UnitState], int] = idle_in_log,
) -> Question:
    """Collect the facts that explain a job, or some of its units, on this view of the ledger. `idle` is as in
    `job_report`.
    """
    units = job.units if units is None else units
    most = len(units) if everything else SOME
    alike: dict[object, list[UnitState]] = {}
    for unit in units:
        if unit.status == "pending":
            spec = unit.spec
            shapes = (spec.shape, *(variant.shape for variant in spec.variants))
            alike.setdefault((spec.priority, len(spec.tasks), spec.least, *shapes), []).append(unit)
    active = [unit for unit in units if unit.status == "active"]
    happened = story(ledger, job, units, most)
    told = happened if everything else happened[:1] + happened[1:][-3 * SOME :]
    left_out = len(alike) + len(active) - min(len(alike), most) - min(len(active), most)
    lost = lost_deadlines(ledger, job, view.now)
    pending = tuple(_alike(ledger, of, view, lost) for of in list(alike.values())[:most])
    return Question(
        job=job.id,
        name=job.name,
        status=job_status(job),
        pending=pending,
        waiting=() if job.calls is not None else tuple(_waiting(ledger, job, units, view.now, lost)),
        active=tuple(_active(ledger, job, unit, view.now, lost, idle(unit)) for unit in active[:most]),
        story=tuple(told),
        left_out=left_out + len(happened) - len(told),
        beyond=_beyond(ledger, job.tenant, pending[0].candidate) if pending else "",
    )


def _beyond(ledger: Ledger, tenant: str, candidate: Candidate) -> str:
    """Return a text if a unit exceeds its tenant's whole quota, with every artifact and in its least size; else empty.
    A quota may be set below the request of a unit that waits already.
    """
    if tenant not in ledger.quotas:
        return ""
    whole = ledger.quotas[tenant].amounts
    needs = [asked(shape, candidate.least or candidate.tasks) for shape in (candidate.shape, *candidate.others)]
    if any(whole.holds(need) for need in needs):
        return ""
    short = whole.refusal(tenant, needs[0])
    return (
        f"it needs {short.need}, more than the whole quota of tenant `{tenant}` ({short.have}); "
        "it starts once an admin raises that (`poise quota --help`), or if it asks for less"
    )


def story(ledger: Ledger, job: JobState, units: Sequence[UnitState], most: int) -> list[Told]:
    """Return the history of a job, in order, with at most `most` of these units, failed ones first."""
    serves = next((unit.spec.serves for unit in job.units if unit.spec.serves), "")
    first = f"submitted{f' by {job.user}' if job.user else ''}{': ' if serves else ''}{serves}"
    happened: list[tuple[int, str]] = [(job.submitted, first)]
    begun = [unit for unit in units if unit.epoch or unit.over]
    begun.sort(key=_failed_first)
    for unit in begun[:most]:
        happened += _life(ledger, job, unit)
    if job.ended:
        code = exit_code(job)
        happened.append(
            (
                job.ended,
                f"over: {job_status(job)}, exit code {code}, {format_duration(job.ended - job.submitted)} in all",
            )
        )
    happened.sort(key=_instant)
    return [Told(ledger.leader.wall(at), text) for at, text in happened]


def node_report(
    state: NodeState,
    load: Load | None = None,
    upkeep: Upkeep | None = None,
    *,
    cordons: Mapping[str, Cordon] | None = None,
) -> NodeReport:
    """Report one node and its used resources. `load` is its latest load report, `upkeep` the cost of its agent;
    `cordons` are the ledger's.
    """
    held = {device.index: state.devices.get(device_key(device.index), "") for device in state.node.devices}
    for key, shares in state.shares.items():
        held[int(key)] = ", ".join(f"{share.holder} ({share.share / WHOLE:g})" for share in shares)
    running = sum(pool.slots for pool in state.pools.values())
    offered = report_of(state.node, held_by=held)
    devices = (
        msgspec.structs.replace(report, cordoned=cordon.why)
        if (cordon := (cordons or {}).get(identity_of(state.node.name, device))) is not None and not cordon.opened
        else report
        for report, device in zip(offered.devices, state.node.devices, strict=True)
    )
    return msgspec.structs.replace(
        offered,
        devices=tuple(devices),
        status=state.condition,
        cpu_used=state.used_cpu,
        memory_used=state.used_memory,
        network_used=state.used_network,
        running=running,
        queued=sum(pool.attempts for pool in state.pools.values()) - running,
        level=("hot, " if state.hot else "") + LEVELS[state.level] if load is not None else "",
        load=load,
        failures=state.failures,
        upkeep=upkeep,
        unfit=state.unfit,
        images=len(state.node.images),
    )


def policy_report(ledger: Ledger) -> Callable[[], PolicyReport]:
    """Return a function that reports the policy in charge as of this call, on any thread. The nodes of a trial take
    about 20 ms for 10,000 nodes and 1,000 waiting units.
    """
    began = ledger.leader.began
    if began is None:
        report = PolicyReport(policy=ledger.leader.policy)
        return lambda: report
    report = PolicyReport(policy=began.policy, asked=began.asked, recipe=began.recipe)
    split = split_in(began.recipe)
    if split is None:
        return lambda: report
    view = ledger.snapshot(ledger.now, began.seed, began.throughputs)
    return lambda: msgspec.structs.replace(report, trial=_trial_report(view, split))


def _trial_report(view: Snapshot, split: SplitRecipe) -> TrialReport:
    now = divide(view, split.nodes)
    return TrialReport(
        policy=split.trial.policy,
        rest=split.rest.policy,
        nodes=str(split.nodes),
        on=names_of(view.fleet.nodes, now.rows),
        lent=names_of(view.fleet.nodes, now.lent),
        paused=now.paused,
    )


HERE = ("", "home")
"""Tokens of nodes that share the files of the control plane: the home's token, or none (old log records)."""


def _is_elsewhere(ledger: Ledger, by: str, substrates: Collection[str]) -> bool:
    """Return whether a node that joined with this token sees the files of another machine."""
    token = ledger.tokens.get(by)
    return by not in HERE and (token is None or token.name not in substrates)


def status_report(
    ledger: Ledger,
    version: str,
    *,
    fleet: str = "",
    accepting: bool = False,
    up: bool = True,
    behind: str | None = None,
    held: int = 0,
    phases: dict[str, PhaseTimes] | None = None,
    substrates: Collection[str] = (),
) -> StatusReport:
    """Return the status summary. The nodes of a substrate, whose token has its name, count as one cluster with shared
    files.
    """
    return StatusReport(
        version=version,
        policy=ledger.leader.policy,
        term=ledger.leader.term,
        revision=ledger.revision,
        accepting=accepting,
        unfinished=ledger.jobs.unfinished(),
        pending=ledger.queues.pending,
        active=len(ledger.active),
        nodes=len(ledger.nodes),
        lost=sum(node.status == "lost" for node in ledger.nodes.values()),
        held=held,
        elsewhere=sum(
            node.status == "up" and _is_elsewhere(ledger, node.by, substrates) for node in ledger.nodes.values()
        ),
        fleet=fleet,
        up=up,
        stands_by=behind is not None,
        leader=behind or "",
        phases=phases or {},
    )


def budget_report(ledger: Ledger, name: str, now: int) -> BudgetReport:
    """Report a budget as of `now`."""
    state, spent = ledger.budgets[name], ledger.budgets.spent(name, now)
    budget, elapsed, left = state.budget, now - state.since, state.budget.amount - spent
    wall, ends = ledger.leader.wall(now), state.ends / SECOND
    runs_out = wall + left * elapsed / spent / SECOND if spent > 0 and left > 0 else 0.0
    return BudgetReport(
        name=name,
        tenant=budget.tenant,
        project=budget.project,
        user=budget.user,
        unit=budget.unit,
        amount=budget.amount / ONE,
        spent=spent / ONE,
        share=spent / budget.amount,
        rate=ledger.budgets.rate(name) / ONE,
        every=budget.every,
        time_zone=budget.zone,
        begins=state.begins / SECOND,
        ends=ends,
        runs_out=runs_out if runs_out < ends else 0.0,
        alerts=budget.alerts,
        reached=state.reached,
        at_limit="hold" if budget.holds else "alert",
        holding=sum(job.budget == name for job in ledger.jobs.values() if not job.ended),
    )


def quota_report(tenant: str, quota: Quota, held: Amounts) -> QuotaReport:
    """Report a tenant's quota and its use."""

    def bound(amount: int) -> int | None:
        return amount if amount < PLENTY else None

    cpu, memory, most_gpus = quota.amounts
    gpus = bound(most_gpus)
    return QuotaReport(
        tenant=tenant,
        cpu=bound(cpu),
        memory=bound(memory),
        gpu=None if gpus is None else gpus / WHOLE,
        cpu_held=held.cpu,
        memory_held=held.memory,
        gpu_held=held.gpus / WHOLE,
        hours=tuple(of.told for of in quota.hours),
        time_zone=quota.hours[0].zone if quota.hours else "",
        now_in=quota.hours[quota.turn].told if quota.turn != BASE else "",
    )


def schedule_report(ledger: Ledger, schedule: ScheduleState) -> ScheduleReport:
    rule, job, last = schedule.rule, schedule.job, ledger.jobs.get(schedule.last)
    tasks = [task for unit in job.units for task in unit.tasks]
    return ScheduleReport(
        id=schedule.id,
        name=job.name,
        tenant=job.tenant,
        user=job.user,
        command=_command(tasks[0].argv) if len(job.units) == 1 else f"graph of {len(tasks)} tasks",
        every=rule.every,
        cron=rule.cron,
        time_zone=rule.zone if rule.cron else "",
        overlap=rule.overlap,
        held=schedule.held,
        next=0.0 if schedule.held else wall_of(ledger, schedule, schedule.due),
        last_due=wall_of(ledger, schedule, schedule.last_due),
        last_job=schedule.last,
        last_status=job_status(last) if last is not None else "",
        jobs=schedule.number,
        refused=schedule.refused,
    )


def token_report(ledger: Ledger, token: Token, now: int) -> TokenReport:
    """Report a token as of `now`."""
    return TokenReport(
        id=token.id,
        tenant=token.tenant,
        role=token.role.name.lower(),
        name=token.name,
        expires=ledger.leader.wall(token.expires),
        expired=0 < token.expires <= now,
        revoked=ledger.leader.wall(token.revoked),
        account=token.account,
    )


def who_report(ledger: Ledger, bearer: Bearer) -> WhoReport:
    """Report the identity of a bearer."""
    token = ledger.tokens.get(bearer.token)
    return WhoReport(
        tenant=bearer.tenant,
        role=bearer.role.name.lower(),
        token=bearer.token,
        name=bearer.name,
        expires=ledger.leader.wall(token.expires) if token is not None else 0.0,
        account=bearer.account,
        accounts=ledger.tokens.name_accounts(),
    )


def exit_code(job: JobState) -> int | None:
    """Return 0 if all is done, the first failed task's code, 125 if Poise could not run it, 130 if cancelled."""
    if job.array is not None and job.ended:
        failed = [job.array.past(job.id, place) for place in islice(job.array.failures(), 1)]
        code = units_exit_code(failed) if failed else {"cancelled": 130}.get(job_status(job), 125)
    else:
        code = units_exit_code(job.units)
    return 0 if code and job_status(job) == "done" else code


def units_exit_code(units: Sequence[UnitState]) -> int | None:
    """Return the exit code of a job with these units; None before all are over."""
    if not all(unit.over for unit in units):
        return None
    for unit in units:
        if unit.status == "failed":
            return ending_code(deciding_ending(unit))
    return {"done": 0, "cancelled": 130}.get(units_status(units), 125)


def _alike(ledger: Ledger, units: list[UnitState], view: Snapshot, lost: Mapping[str, Reason]) -> Alike:
    first = min(units, key=_place_in_queue)
    queue = first.queue
    mine = _place_in_queue(first)
    shown = [candidate for candidate in view.candidates if candidate.queue == queue]
    unseen = 0
    if all(candidate.unit != first.id for candidate in shown):
        before = sum(_place_in_queue(other) < mine for other in ledger.queues[queue].values())
        unseen = max(0, before - len(shown))
    return Alike(
        units=tuple(unit.id for unit in units),
        candidate=ledger.ends(view.now).candidate(ledger.shown.candidate(first)),
        not_before=first.free_at if first.free_at > view.now else 0,
        back=tuple(_back(first, view.now)),
        unseen=unseen,
        artifacts=artifacts_of(first.spec),
        late=_late(first, lost),
        never=tuple(nowhere(ledger.columns.room(), first.spec)),
    )


def _late(unit: UnitState, lost: Mapping[str, Reason]) -> tuple[Reason, ...]:
    return (lost[unit.id],) if unit.id in lost else ()


def _waiting(
    ledger: Ledger, job: JobState, units: Sequence[UnitState], now: int, lost: Mapping[str, Reason]
) -> list[After]:
    """Return units that wait for other units or jobs, as one group, with the needs that are pending or active."""
    waiting = [unit for unit in units if unit.status == "waiting"]
    if not waiting:
        return []
    by_name = {unit.spec.name: unit for unit in job.units}
    needed = dict.fromkeys(need for unit in waiting for need in unit.spec.needs)
    found = [Reason(code="NEEDS", need=need) for need in needed if by_name[need].status in ("pending", "active")]
    found += [reason for reason in reasons(ledger, job, waiting[0], now) if reason.code != "NEEDS"]
    found += next((_late(unit, lost) for unit in waiting if unit.id in lost), ())
    return [After(tuple(unit.id for unit in waiting), tuple(found))]


def _active(ledger: Ledger, job: JobState, unit: UnitState, now: int, lost: Mapping[str, Reason], idle: int) -> Active:
    """Return an active unit; `idle` is the instant of its last use if it is idle, else 0."""
    holding = [task for task in unit.tasks if task.active]
    started = min((task.started for task in holding if task.started), default=0)
    return Active(
        candidate=ledger.shown.candidate(unit),
        status=task_status(job, unit, holding[0]) if holding else unit.status,
        nodes=tuple(dict.fromkeys(task.node for task in holding)),
        elapsed=now - started if started else 0,
        why=unit.why,
        reasons=(*reasons(ledger, job, unit, now), *_idle(unit, now, idle), *_late(unit, lost)),
        artifacts=artifacts_of(unit.spec),
        variant=unit.variant,
    )


def _idle(unit: UnitState, now: int, since: int) -> list[Reason]:
    limit = format_duration(unit.spec.idle)
    return [Reason(code="IDLE", have=format_duration(now - since), need=limit)] if since else []


def artifacts_of(unit: Unit) -> tuple[str, ...]:
    """Return the names of its artifacts, by number; one empty name if there is no choice."""
    return tuple(unit.artifact_of(number) for number in range(len(unit.variants) + 1))


def _life(ledger: Ledger, job: JobState, unit: UnitState) -> Iterable[tuple[int, str]]:
    """Yield the attempts and the end of a unit. Members of a gang with the same ending share one entry."""
    alike: dict[tuple[int, str], list[tuple[str, PastAttempt]]] = {}
    for task, spec in zip(unit.tasks, unit.spec.tasks, strict=True):
        for past in task.past:
            how = _how_it_ended(past.ending, _tried_again(unit, past))
            alike.setdefault((past.epoch, how), []).append((spec.name, past))
    for (epoch, how), members in alike.items():
        name, last = max(members, key=_when_it_ended)
        nodes = ", ".join(dict.fromkeys(past.node for _, past in members))
        what = name if len(members) == 1 else f"{len(members)} tasks of {unit.spec.name}"
        yield last.at, f"attempt {epoch} of {what} on {nodes} {how}, {format_duration(last.ending.run)} in"
    for seen in unit.straggled:
        yield seen.at, f"{_task_name(seen)} straggles on {seen.node}: {_compared(seen)}"
    if (lags := unit.lags) is not None:
        computes, usual = format_duration(lags.computes), format_duration(lags.usual)
        who = f"{lags.task.partition('.')[2]} lags on {lags.node}"
        yield lags.at, f"{who}: it computes for {computes} in each step, and {lags.siblings} others for {usual}"
    if (pause := unit.suspended) is not None:
        yield pause.at, f"{unit.spec.name} suspended, idle for {format_duration(pause.at - pause.since)}"
    for order in unit.yielded:
        yield order.at, f"{unit.spec.name} asked to {what_for(order)}"
    for order in unit.gained:
        yield order.at, f"{order.unit} asked to {what_for(order)}"
    if unit.epoch:
        placed_on = [task.node for task in unit.tasks if task.node and (task.status != "idle" or not unit.generation)]
        nodes = ", ".join(dict.fromkeys(placed_on))
        artifact = unit.spec.artifact_of(unit.variant)
        behind = f"{f' as {artifact}' if artifact else ''}{' behind its like' if unit.queued else ''}"
        if unit.most:
            behind += f" with {unit.size} of {len(unit.tasks)} tasks, since it ran out of memory"
        why = f": {sentence}" if unit.why is not None and (sentence := unit.why.sentence()) else ""
        yield unit.placed, f"attempt {unit.founded or unit.epoch} of {unit.spec.name} placed on {nodes}{behind}{why}"
    if unit.status in ("cancelled", "skipped"):
        because = "; ".join(reason.sentence() for reason in reasons(ledger, job, unit, unit.ended))
        because = because.removeprefix(f"{unit.status}: ")
        yield unit.ended, f"{unit.spec.name} {unit.status}{f': {because}' if because else ''}"
    elif unit.over:
        ending = deciding_ending(unit)
        peak = f", at most {format_bytes(ending.peak)} of memory" if ending.peak else ""
        others = sum(_stopped_for_another(unit, task) for task in unit.tasks) if unit.status == "failed" else 0
        who = next(spec.name for task, spec in zip(unit.tasks, unit.spec.tasks, strict=True) if task.ending is ending)
        stopped = f"; {others} other{'s were' if others > 1 else ' was'} stopped for it" if others else ""
        what = who if unit.status == "failed" else unit.spec.name
        yield unit.ended, f"{what} {_how_it_ended(ending)}, {format_duration(ending.run)} in{peak}{stopped}"


def _task_name(seen: Straggling) -> str:
    return seen.task.partition(".")[2]


def _compared(seen: Straggling) -> str:
    ran, took = format_duration(seen.ran), format_duration(seen.expected)
    return f"it has run for {ran}, and {seen.siblings} of its like took {took}"


def what_for(order: Preempted | Resized) -> str:
    """Return the order to a unit, with its scores: `yield to j2.main: gain 540, cost 120`."""
    weighed = ", ".join(f"{name} {value:g}{'' if name in WORTHS else ' s'}" for name, value in order.why.score.items())
    words = {
        "yield": f"yield to {order.to}",
        "shrink": f"go on smaller, for {order.to}" if order.to else "go on smaller",
        "grow": "go on larger",
        "move": "move",
    }[order.cause]
    if isinstance(order, Resized):
        words = f"{words} ({_changes(order)})"
    because = weighed or order.why.rank
    return f"{words}: {because}" if because else words


def _changes(order: Resized) -> str:
    """Return the change of a running gang in words: `2 tasks leave, 1 joins on n2`."""
    leaving, joining = len(order.leaves), len(order.joins)
    nodes = ", ".join(dict.fromkeys(spot.node for _, spot in order.joins))
    parts = [
        f"{leaving} task{'s leave' if leaving > 1 else ' leaves'}" if leaving else "",
        f"{joining} join{'' if joining > 1 else 's'} on {nodes}" if joining else "",
    ]
    return ", ".join(part for part in parts if part) + " as it runs"


def _tried_again(unit: UnitState, past: PastAttempt) -> str:
    """Return the number of the retry after an attempt that ran out of memory; empty for other attempts."""
    if past.ending.outcome != "oom" or past.epoch not in unit.ooms:
        return ""
    return f"tried again {unit.ooms.index(past.epoch) + 1} of {unit.spec.retry.ooms}"


def _evidence(ending: Ending, again: str = "") -> list[str]:
    """Return the details of an attempt's end."""
    peak = f"peak {format_bytes(ending.peak)} of {format_bytes(ending.limit)}" if ending.outcome == "oom" else ""
    return [part for part in (peak, again, ending.note) if part]


def _how_it_ended(ending: Ending, again: str = "") -> str:
    words = {
        "done": "was done",
        "failed": f"failed with exit code {ending.code}",
        "killed": "was killed",
        "signal": f"ended by signal {ending.signal}",
        "oom": "ran out of memory: " + "; ".join(_evidence(ending, again)),
        "hung": "hung",
        "timeout": "reached its time limit",
        "lost": "was lost",
        "stopped": "was stopped",
        "returned": "was handed back unstarted",
        "unstartable": "could not be started",
    }[ending.outcome]
    return f"{words} ({ending.note})" if ending.note and ending.outcome != "oom" else words


def _when_it_ended(member: tuple[str, PastAttempt]) -> int:
    return member[1].at


def _failed_first(unit: UnitState) -> tuple[bool, int]:
    return (unit.status != "failed", unit.ordinal)


def _instant(happened: tuple[int, str]) -> int:
    return happened[0]


def _place_in_queue(unit: UnitState) -> tuple[int, int]:
    """Return the sort key of units in a queue: by arrival, or the longest remaining path of a graph first."""
    return (0 if unit.queue.endswith("/") else -unit.tail, unit.ordinal)


def ending_code(ending: Ending) -> int:
    """Return a shell's exit code: 128 + signal, 125 if Poise lost or stopped it, 124 for a timeout like `timeout`."""
    if ending.outcome in ("lost", "stopped", "returned"):
        return 125
    if ending.outcome in ("hung", "timeout"):
        return 124
    if ending.outcome == "oom":
        return 137
    return 128 + ending.signal if ending.signal else ending.code


def _command(argv: tuple[str, ...]) -> str:
    return argv[2] if argv[:2] == ("/bin/sh", "-c") and len(argv) == 3 else " ".join(argv)


def result_of(text: str) -> object:
    if not text:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
