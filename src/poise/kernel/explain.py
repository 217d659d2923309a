"""Reports made from the ledger: what happened to a job, and every reason why it waits. Pure: the caller only draws
them."""

import msgspec

from poise.kernel.ledger import (
    JobState,
    Ledger,
    NodeState,
    TaskState,
    UnitState,
    deciding_ending,
    device_key,
    job_status,
)
from poise.model import graph
from poise.model.decisions import Reason
from poise.model.jobs import Ending
from poise.model.load import LEVELS, Load
from poise.model.reports import AttemptReport, JobReport, NodeReport, TaskReport, report_of
from poise.model.resources import WHOLE
from poise.units import format_duration


def job_report(ledger: Ledger, job: JobState, now: int, *, tasks: bool) -> JobReport:
    """One job as of `now`; with its tasks when asked."""
    counts: dict[str, int] = {}
    for unit in job.units:
        for task in unit.tasks:
            status = task_status(unit, task)
            counts[status] = counts.get(status, 0) + 1
    first = job.units[0].spec.tasks[0]
    path = critical_path(job) if tasks and len(job.units) > 1 else ()
    return JobReport(
        id=job.id,
        name=job.name,
        user=job.user,
        status=job_status(job),
        exit_code=exit_code(job),
        submitted=ledger.wall(job.submitted),
        ended=ledger.wall(job.ended),
        elapsed=(job.ended or now) - job.submitted,
        counts=counts,
        command=_command(first.argv) if len(job.units) == 1 else f"graph of {sum(counts.values())} tasks",
        critical_path=path,
        remaining=sum(unit.expected for unit in job.units if unit.spec.name in path and not unit.over),
        note=job.note,
        tasks=tuple(
            task_report(ledger, job, unit, index, now) for unit in job.units for index in range(len(unit.tasks))
        )
        if tasks
        else (),
    )


def task_report(ledger: Ledger, job: JobState, unit: UnitState, index: int, now: int) -> TaskReport:
    """One task as of `now`."""
    task, spec = unit.tasks[index], unit.spec.tasks[index]
    ending = task.ending or Ending(outcome="returned")
    has_ended = task.ending is not None
    started = task.started or (task.ended if has_ended else 0)
    return TaskReport(
        task=f"{job.id}.{spec.name}",
        name=spec.name,
        status=task_status(unit, task),
        priority=unit.spec.priority.name.lower(),
        command=spec.argv,
        needs=unit.spec.needs,
        node=task.node,
        devices=task.devices,
        cpus=task.cpus,
        pid=task.pid,
        epoch=unit.epoch,
        wait=max(0, (started or unit.ended or now) - unit.ready) if unit.ready else 0,
        run=ending.run if has_ended else (now - started if started else 0),
        cpu=ending.cpu,
        started=ledger.wall(started),
        ended=ledger.wall(task.ended),
        expected=unit.expected,
        slack=unit.slack,
        critical=len(job.units) > 1 and unit.slack == 0,
        outcome=ending.outcome if has_ended else "",
        exit_code=_exit_code(ending) if has_ended else None,
        peak=ending.peak,
        limit=ending.limit,
        note=ending.note,
        why=unit.why.sentence() if unit.why else "",
        reasons=tuple(reason.sentence() for reason in reasons(ledger, job, unit, now)),
        attempts=tuple(
            AttemptReport(
                epoch=past.epoch,
                node=past.node,
                outcome=past.ending.outcome,
                run=past.ending.run,
                note=past.ending.note,
            )
            for past in task.past
        ),
        result=_result(ending.result),
    )


def task_status(unit: UnitState, task: TaskState) -> str:
    """waiting, pending, placed, running, recovering, stopping, spare, done, failed, cancelled, skipped."""
    if unit.status != "active":
        return unit.status
    if task.status == "ended":
        return "done" if task.ending is not None and task.ending.outcome == "done" else "failed"
    if task.status == "idle":
        return "spare"  # an elastic unit runs with fewer tasks than it could use
    if unit.stopping:
        return "stopping"
    return "placed" if task.status == "queued" else task.status


def reasons(ledger: Ledger, job: JobState, unit: UnitState, now: int) -> list[Reason]:
    """Every reason why a unit has not started, or never will; none once it has."""
    found: list[Reason] = []
    if unit.status == "waiting":
        by_name = {other.spec.name: other for other in job.units}
        found += [
            Reason(code="NEEDS", need=need, wakes="finished")
            for need in unit.spec.needs
            if by_name[need].status != "done"
        ]
        found += [
            Reason(code="AFTER", need=other, wakes="finished")
            for other in job.after
            if other in ledger.jobs and not ledger.jobs[other].ended
        ]
    elif unit.status == "pending":
        if unit.not_before > now:
            found.append(Reason(code="BACKOFF", need=format_duration(unit.not_before - now)))
        found += ledger.held(unit)
        if not found:
            found.append(Reason(code="NEXT_ROUND", wakes="decided"))
    elif unit.status == "skipped":
        undone = [other.spec.name for other in job.units if other.over and other.status != "done"]
        found += [Reason(code="SKIPPED", need=need, fixable="never") for need in unit.spec.needs if need in undone]
        found += [
            Reason(code="SKIPPED", need=f"job {other}", fixable="never")
            for other in job.after
            if not unit.spec.needs and other in ledger.jobs and job_status(ledger.jobs[other]) != "done"
        ]
    elif unit.status == "active" and any(task.status == "recovering" for task in unit.tasks):
        lost = sorted({task.node for task in unit.tasks if task.status == "recovering"})
        found += [Reason(code="NODE_LOST", subject=node, wakes="joined") for node in lost]
        if not ledger.may_be_placed(unit) and not unit.stopping:
            found.append(Reason(code="NEEDS_ITS_NODE", wakes="joined"))
    return found


def critical_path(job: JobState) -> tuple[str, ...]:
    """Names of the units on the longest path, with real durations where they are known."""
    needs = {unit.spec.name: unit.spec.needs for unit in job.units}
    return tuple(graph.critical_path(needs, {unit.spec.name: unit.expected for unit in job.units}))


def node_report(state: NodeState, load: Load | None = None) -> NodeReport:
    """One node with what is taken on it; `load` is what it last said of how busy it is."""
    held = {device.index: state.devices.get(device_key(device.index), "") for device in state.node.devices}
    for key, shares in state.shares.items():
        held[int(key)] = ", ".join(f"{share.holder} ({share.share / WHOLE:g})" for share in shares)
    running = sum(pool.slots for pool in state.pools.values())
    return msgspec.structs.replace(
        report_of(state.node, held_by=held),
        status="drained" if state.drained and state.status == "up" else state.status,
        cpu_used=state.used_cpu,
        memory_used=state.used_memory,
        network_used=state.used_network,
        running=running,
        queued=sum(pool.attempts for pool in state.pools.values()) - running,
        level=("hot, " if state.hot else "") + LEVELS[state.level] if load is not None else "",
        load=load,
        failures=state.failures,
    )


def exit_code(job: JobState) -> int | None:
    """0 when all is done, the first failed task's code, 125 when Poise could not run it, 130 when cancelled."""
    if not job.ended:
        return None
    for unit in job.units:
        if unit.status == "failed":
            return _exit_code(deciding_ending(unit))
    if job_status(job) == "done":
        return 0
    return 130 if job.cancelled_by else 125


def _exit_code(ending: Ending) -> int:
    """As a shell would say it: 128 + signal, 125 where Poise lost or stopped it."""
    if ending.outcome in ("lost", "stopped", "returned"):
        return 125
    if ending.outcome == "oom":
        return 137
    return 128 + ending.signal if ending.signal else ending.code


def _command(argv: tuple[str, ...]) -> str:
    return argv[2] if argv[:2] == ("/bin/sh", "-c") and len(argv) == 3 else " ".join(argv)


def _result(text: str) -> object:
    if not text:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
