"""`poise ls`, `show`, `wait` and `cancel`."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import click
import msgspec

from poise.cli import output, training
from poise.cli.moments import asks_now, at_moment
from poise.cli.numbers import WholeRange
from poise.cli.output import Column, Shown
from poise.cli.render import (
    FEW,
    ago,
    counts_text,
    over_memory,
    print_json,
    progress_text,
    say,
    shorten,
    status_text,
    unstarted,
)
from poise.cli.words import filled
from poise.client import current_home
from poise.config import Home
from poise.control.start import connected, may_be_asked
from poise.errors import Conflict, NotFound, SpecError, Unreachable
from poise.model.document import some
from poise.model.reports.jobs import JobReport, JobStatus, TaskReport
from poise.model.tenants import DEFAULT
from poise.units import SECOND, format_bytes, format_duration, parse_duration

COMMAND_WIDTH = 60

ENDED: tuple[JobStatus, ...] = ("done", "failed", "cancelled", "skipped")
"""Statuses of jobs that have ended."""

NOTHING_TO_CANCEL = "nothing to cancel: no unfinished job matches"

_PATTERN = re.compile(r"[*?]")


@click.command()
@click.option("--all", "everything", is_flag=True, help="List every job the ledger holds, not only the latest.")
@click.option(
    "--status",
    "statuses",
    type=click.Choice(get_args(JobStatus)),
    multiple=True,
    help="List only jobs with this status. Repeatable.",
)
@click.option(
    "--name",
    default="",
    callback=filled,
    metavar="PATTERN",
    help="List only jobs whose name or id matches, e.g. 'train-*'.",
)
@click.option("--user", default="", callback=filled, metavar="NAME", help="List only jobs of this user.")
@click.option("--limit", type=WholeRange(min=1), metavar="N", help="List at most the latest N jobs.")
@at_moment
@output.rows
def ls(
    everything: bool,
    statuses: tuple[JobStatus, ...],
    name: str,
    user: str,
    limit: int | None,
    at: str | None,
    form: str,
    watch: bool,
) -> int:
    """List unfinished jobs and the latest finished ones.

    With --status, --name, --user or --limit, list all matching jobs of the ledger.
    """
    home = current_home()
    filtered = bool(statuses or name or user or limit)
    everything = everything or filtered
    wanted: dict[str, Any] = {"statuses": statuses, "name": name, "user": user, "latest": limit or 0}
    if asks_now(home, at, watch=watch):
        client = connected(home)
        own = client.whoami().tenant
        return output.show(
            lambda: _jobs_shown(client.jobs(everything=everything, **wanted), own, filtered), form, watch
        )
    from poise.cli import offline

    found = offline.jobs(home, at, everything=everything, **wanted)
    return output.show(lambda: _jobs_shown(found, DEFAULT, filtered), form, watch)


def _jobs_shown(jobs: list[JobReport], own: str, filtered: bool) -> Shown:
    """Return the table of jobs; `own` is the caller's tenant."""
    several = any(job.tenant != own for job in jobs)
    return Shown(
        jobs,
        [job.id for job in jobs],
        [
            Column("JOB", [job.id for job in jobs]),
            Column("NAME", [job.name or "-" for job in jobs]),
            *([Column("TENANT", [job.tenant for job in jobs])] if several else []),
            Column("USER", [job.user or "-" for job in jobs], only="wide"),
            Column("STATUS", [_status_of(job) for job in jobs]),
            Column("EXIT", ["-" if job.exit_code is None else str(job.exit_code) for job in jobs], only="wide"),
            Column("TASKS", [counts_text(job.counts) for job in jobs]),
            Column("SUBMITTED", [f"{ago(job.submitted)} ago" for job in jobs], moving=True),
            Column("TOOK", [format_duration(job.elapsed) for job in jobs], moving=True),
            Column("COMMAND", [shorten(job.command, COMMAND_WIDTH) for job in jobs], only="table"),
            Column("COMMAND", [" ".join(job.command.split()) for job in jobs], only="wide"),
            Column("NOTE", [job.note for job in jobs], only="wide", bare=True),
        ],
        nothing="poise: no jobs match" if filtered else "poise: no jobs yet; `poise run -- echo hello`",
    )


@click.command()
@at_moment
@output.rows
@click.argument("job")
def show(job: str, at: str | None, form: str, watch: bool) -> int:
    """Show JOB (id, name, or JOB.TASK): its tasks, their nodes and times, the reasons for each placement, and every
    reason for a wait. With --watch, refresh until it is over.
    """
    home = current_home()
    if asks_now(home, at, watch=watch):
        client = connected(home)
        with _or_service(job):
            return output.show(lambda: _job_shown(client.job(job)), form, watch)
    from poise.cli import offline

    report = offline.job(home, job, at)
    return output.show(lambda: _job_shown(report), form, watch)


def report_of(home: Home, job: str) -> JobReport:
    """Return the report of a job, from the log if no control plane answers."""
    if may_be_asked(home):
        return connected(home).job(job)
    from poise.cli import offline

    return offline.job(home, job)


@contextmanager
def _or_service(name: str) -> Iterator[None]:
    """If no job, or several, have the name of a service, hint at the command for services."""
    try:
        yield
    except NotFound as error:
        from poise.cli.complete import service_names

        if name in service_names():
            error.record = msgspec.structs.replace(error.record, hint=f"`{name}` is a service: `poise services {name}`")
        raise


def _job_shown(report: JobReport) -> Shown:
    title = f"{report.id}{f' {report.name}' if report.name else ''}"
    ended = f", took {format_duration(report.elapsed)}" if report.exit_code is not None else ""
    who = f" by {report.user}" if report.user else ""
    whose = f" for {report.tenant}" if report.tenant != DEFAULT else ""
    head = [
        f"{click.style(title, bold=True)}  {_status_of(report)}  {report.command}",
        f"submitted {ago(report.submitted)} ago{who}{whose}{ended}",
    ]
    if report.array is not None:
        head.append(counts_text(report.counts))
        head.append(f"{progress_text(report)}; `poise results {report.id}`")
    if report.critical_path:
        left = f" ({format_duration(report.remaining)} of it expected still to come)" if report.remaining else ""
        left = " (the rest of it has an unknown run time)" if report.remaining is None else left
        head.append(f"critical path: {' → '.join(report.critical_path)}{left}")
    if report.calls is not None:
        calls = report.calls
        mean = f", {format_duration(calls.mean)} each" if calls.done else ""
        failed = f", {calls.failed} failed" if calls.failed else ""
        closed = f"; {calls.closed}" if calls.closed else ""
        head.append(f"{calls.open} calls open, {calls.done} calls done{mean}{failed}{closed}")
    head += training.lines(report)
    if report.retries:
        head.append(f"retries: {report.retries}")
    if report.secrets:
        head.append(f"secrets: {', '.join(report.secrets)}")
    if report.tree:
        head.append(f"files: working tree {report.tree[:12]}; results: `poise get {report.id}:PATH`")
    if images := dict.fromkeys(task.image for task in report.tasks if task.image):
        head.append(f"image: {some(list(images), FEW)}")
    if report.note and report.exit_code is None:
        head.append(f"note: {report.note}")
    if report.captures:
        names = some([capture.name for capture in report.captures], FEW)
        head.append(f"captures: {names}; `poise capture {report.id} --get NAME`")
    if report.suspended:
        head.append(f"suspended, idle since {ago(report.idle_since)} ago: `poise attach {report.id}` resumes it")
    elif report.idle_since:
        head.append(f"idle since {ago(report.idle_since)} ago")
    if report.hold:
        ends = "`poise usage --budgets`" if report.budget else f"`poise release {report.id}`"
        head.append(f"on hold: what runs continues, and nothing else starts; {ends}")
    tasks, graph = report.tasks, len(report.critical_path) > 0
    return Shown(
        report,
        [task.task for task in tasks],
        [
            Column("TASK", [task.name for task in tasks]),
            *_sweep(tasks),
            Column("STATUS", [_status(task) for task in tasks]),
            Column("PRIORITY", [task.priority for task in tasks]),
            Column("NODE", [task.node or "-" for task in tasks]),
            Column("PID", [str(task.pid or "-") for task in tasks], right=True, only="wide"),
            Column("CPUS", [_cpus(task) for task in tasks]),
            Column("EPOCH", [str(task.epoch or "-") for task in tasks], right=True),
            Column(
                "WAITED",
                [format_duration(task.wait) if task.wait or task.started else "-" for task in tasks],
                right=True,
                moving=True,
            ),
            Column("RAN", [_ran(task) for task in tasks], right=True, moving=True),
            Column("EXPECTED", [_time(task.expected, task.expected > 0) for task in tasks], right=True, only="wide"),
            Column("SLACK", [_slack(task) if graph else "-" for task in tasks], right=True, moving=True),
            Column("PEAK", [_memory(task.peak) for task in tasks], right=True),
            Column("LIMIT", [_memory(task.limit) for task in tasks], right=True, only="wide"),
            Column("WHY", [_why(task) for task in tasks]),
            Column("RETRIES", [task.retries for task in tasks], only="wide"),
            Column("COMMAND", [" ".join(" ".join(task.command).split()) for task in tasks], only="wide"),
        ],
        head=[*head, ""],
        notes=[
            *(note for task in tasks for note in _notes(task)),
            *(f"  notice {name} was not delivered: {why}" for name, why in report.unnotified.items()),
        ],
        over=report.exit_code is not None,
    )


def _status_of(job: JobReport) -> str:
    what = "suspended" if job.suspended else "idle" if job.idle_since else "on hold" if job.hold else ""
    return status_text(f"{job.status} ({what})" if what else job.status)


def _sweep(tasks: Sequence[TaskReport]) -> Iterator[Column]:
    """Yield the columns of a sweep: the parameters of each task, and its result."""
    names = list(dict.fromkeys(name for task in tasks for name in task.sweep))
    for name in names:
        yield Column(name.upper(), [task.sweep.get(name, "-") for task in tasks])
    if names:
        import json  # seldom needed, like shutil

        results = (json.dumps(task.result, ensure_ascii=False) if task.result is not None else "-" for task in tasks)
        yield Column("RESULT", [shorten(result, 60) for result in results])


def _notes(task: TaskReport) -> Iterator[str]:
    for attempt in task.attempts:
        note = f": {attempt.note}" if attempt.note else ""
        yield f"  {task.name} epoch {attempt.epoch} on {attempt.node} ended {attempt.outcome}{note}"
    if task.note and task.outcome != "unstartable":
        yield f"  {task.name}: {task.note}"
    yield from unstarted([task])


def _status(task: TaskReport) -> str:
    outcome = f"exit {task.exit_code}" if task.outcome == "failed" else task.outcome
    return status_text(task.status if outcome in ("", "done", "stopped") else f"{task.status} ({outcome})")


def _cpus(task: TaskReport) -> str:
    devices = f" gpu {','.join(map(str, task.devices))}" if task.devices else ""
    return (",".join(map(str, task.cpus)) or "-") + devices


def _time(duration: int, known: bool) -> str:
    return format_duration(duration) if known else "-"


def _ran(task: TaskReport) -> str:
    """Format the run time; with a time limit: `12m0s of 2h0m`."""
    ran = _time(task.run, task.started > 0)
    return f"{ran} of {format_duration(task.time_limit)}" if task.time_limit else ran


def _slack(task: TaskReport) -> str:
    return "critical" if task.critical else format_duration(task.slack)


def _memory(amount: int) -> str:
    return format_bytes(amount // 2**20 * 2**20) if amount >= 2**20 else "-"


def _why(task: TaskReport) -> str:
    if task.outcome == "oom":
        return f"out of memory: {over_memory(task)}"
    artifact = f"as {task.artifact}" if task.artifact else ""
    return "; ".join(task.reasons) or "; ".join(part for part in (artifact, task.why) if part)


@click.command()
@click.option("--timeout", metavar="TIME", help="Give up waiting after this long, with exit code 125.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def wait(jobs: tuple[str, ...], timeout: str | None, as_json: bool) -> int:
    """Wait until every JOB (id, name, or JOB.TASK) is over; exits with the first failed one's exit code, or 0."""
    try:
        seconds = parse_duration(timeout) / SECOND if timeout is not None else None
    except ValueError as error:
        raise SpecError(
            "the time cannot be read", code="E103", field="--timeout", need=str(error), hint="--timeout 90s"
        ) from None
    home = current_home()
    try:
        client = connected(home)
        end = None if seconds is None else time.monotonic() + seconds
        reports = [client.wait(job, None if end is None else max(0.0, end - time.monotonic())) for job in jobs]
    except Unreachable:
        reports = _over(home, jobs)
        if not reports:
            raise
    codes = [125 if report.exit_code is None else report.exit_code for report in reports]
    if as_json:
        print_json(reports)
    else:
        for asked, report in zip(jobs, reports, strict=True):
            state = "is not over yet" if report.exit_code is None else status_text(report.status)
            name = report.name if asked in (report.id, report.name) else asked
            say(f"{report.id}{f' {name}' if name else ''} {state}")
            for line in unstarted(report.tasks):
                say(line)
    return next((code for code in codes if code), 0)


def _over(home: Home, jobs: Sequence[str]) -> list[JobReport]:
    """Return the jobs from the log if all are over (an idle control plane may have exited); else none."""
    from poise.cli import offline  # slow to import, like a reader of logs
    from poise.drivers.logfile import has_log

    if home.elsewhere is not None or not has_log(home):
        return []
    reports = [offline.job(home, job) for job in jobs]
    return reports if all(report.exit_code is not None for report in reports) else []


@click.command()
@click.option("--all", "everything", is_flag=True, help="Cancel every unfinished job of your tenant.")
@click.option(
    "--status",
    "statuses",
    type=click.Choice([one for one in get_args(JobStatus) if one not in ENDED]),
    multiple=True,
    help="Cancel only jobs of your tenant with this status. Repeatable.",
)
@click.option(
    "--name",
    default="",
    callback=filled,
    metavar="PATTERN",
    help="Cancel only jobs of your tenant with such a name or id, e.g. 'train-*'.",
)
@click.option(
    "--user", default="", callback=filled, metavar="NAME", help="Cancel only jobs of your tenant of this user."
)
@click.option("--all-tenants", is_flag=True, help="Cancel every unfinished job of all tenants, as an operator.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("jobs", nargs=-1, metavar="JOB...")
def cancel(
    jobs: tuple[str, ...],
    everything: bool,
    statuses: tuple[JobStatus, ...],
    name: str,
    user: str,
    all_tenants: bool,
    as_json: bool,
) -> int:
    """Cancel every JOB (id, name, or JOB.TASK): waiting tasks never start, running tasks get SIGTERM and, after their
    grace, SIGKILL. If you cancel several jobs, none of them starts in place of another, and jobs that are over are
    passed over. If one of them cannot be found, none is cancelled.

    In a graph, tasks that need a cancelled task are skipped, and the others continue.

    Instead of names, give --all or a filter: every unfinished job of your tenant that matches is cancelled.
    """
    of_mine = bool(everything or statuses or name or user)
    if of_mine + all_tenants + bool(jobs) != 1:
        raise click.UsageError("name jobs, or give --all or a filter, or --all-tenants: one of them")
    if pattern := next((job for job in jobs if _PATTERN.search(job)), ""):
        raise click.UsageError(f"`{pattern}` is a pattern, not a name\n\nhint: `poise cancel --name '{pattern}'`")
    client = connected(current_home())
    if all_tenants:
        tenants = dict(sorted(client.cancel_all_tenants().items()))
        if as_json:
            print_json({"count": sum(tenants.values()), "tenants": tenants})
        else:
            named = [f"{tenant} ({count})" for tenant, count in tenants.items()]
            whose = f": {some(named, FEW)}" if named else ""
            say(f"cancelling {_jobs(sum(tenants.values()))} of all tenants{whose}" if named else NOTHING_TO_CANCEL)
        return 0
    if of_mine:
        found = client.cancel_all(statuses=statuses, name=name, user=user)
        if as_json:
            print_json({"count": len(found), "cancelled": found})
        else:
            what = f"cancelling {_jobs(len(found))} of your tenant: {some(found, FEW)}"
            say(what if found else NOTHING_TO_CANCEL)
        return 0
    running = {job: client.job(job).status in ("placed", "running") for job in jobs} if len(jobs) > 1 else {}
    cancelled: dict[str, str] = {}
    for job in sorted(jobs, key=lambda job: running.get(job, False)):
        try:
            cancelled[job] = client.cancel(job)
        except Conflict:
            if len(jobs) == 1 or client.job(job).exit_code is None:
                raise
    names = [cancelled[job] for job in jobs if job in cancelled]
    over = [job for job in jobs if job not in cancelled]
    if as_json:
        print_json({"cancelled": names, "over": over})
        return 0
    if names:
        say(f"cancelling {', '.join(names)}")
    if over:
        say(f"already over: {some(over, FEW)}")
    return 0


def _jobs(count: int) -> str:
    return f"{count} job{'s' * (count != 1)}"
