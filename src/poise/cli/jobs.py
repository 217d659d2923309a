"""`poise ls`, `show`, `wait` and `cancel`."""

import time
from typing import Any

import click

from poise.cli.render import ago, counts_text, print_json, print_table, say, shorten, status_text
from poise.client import current_home
from poise.control.start import connected, running, supervised
from poise.errors import SpecError
from poise.model.reports import JobReport, TaskReport
from poise.units import SECOND, format_bytes, format_duration, parse_duration


@click.command()
@click.option("--all", "everything", is_flag=True, help="Every job the ledger holds, not only the latest.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def ls(everything: bool, as_json: bool) -> int:
    """List unfinished jobs and the latest finished ones."""
    from poise.cli import offline

    home = current_home()
    if running(home) or supervised(home):
        jobs = connected(home).jobs(everything=everything)
    else:
        jobs = offline.jobs(home, everything=everything)
        say("poise: no control plane is running; this is what the log says")
    if as_json:
        print_json(jobs)
    elif not jobs:
        say("poise: no jobs yet; `poise run -- echo hello`")
    else:
        print_table(
            ("JOB", "NAME", "STATUS", "TASKS", "SUBMITTED", "TOOK", "COMMAND"),
            [
                (
                    job.id,
                    job.name or "-",
                    status_text(job.status),
                    counts_text(job.counts),
                    f"{ago(job.submitted)} ago",
                    format_duration(job.elapsed),
                    shorten(job.command, 60),
                )
                for job in jobs
            ],
        )
    return 0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("job")
def show(job: str, as_json: bool) -> int:
    """Show JOB (id, name, or JOB.TASK): what ran where and when, why there, and every reason why something waits."""
    from poise.cli import offline

    home = current_home()
    up = running(home) or supervised(home)
    report = connected(home).job(job) if up else offline.job(home, job)
    if as_json:
        print_json(report)
        return 0
    if not up:
        say("poise: no control plane is running; this is what the log says")
    print_job(report)
    return 0


def print_job(report: JobReport) -> None:
    """A job as `show` and the demo draw it."""
    title = f"{report.id}{f' {report.name}' if report.name else ''}"
    click.echo(f"{click.style(title, bold=True)}  {status_text(report.status)}  {report.command}")
    ended = f", took {format_duration(report.elapsed)}" if report.exit_code is not None else ""
    click.echo(f"submitted {ago(report.submitted)} ago{f' by {report.user}' if report.user else ''}{ended}")
    if report.critical_path:
        left = f" ({format_duration(report.remaining)} of it expected still to come)" if report.remaining else ""
        click.echo(f"critical path: {' → '.join(report.critical_path)}{left}")
    if report.calls is not None:
        calls = report.calls
        mean = f", {format_duration(calls.mean)} each" if calls.done else ""
        failed = f", {calls.failed} failed" if calls.failed else ""
        closed = f"; {calls.closed}" if calls.closed else ""
        click.echo(f"{calls.open} calls open, {calls.done} calls done{mean}{failed}{closed}")
    if report.note and report.exit_code is None:
        click.echo(f"note: {report.note}")
    click.echo()
    print_table(
        ("TASK", "STATUS", "PRIORITY", "NODE", "CPUS", "EPOCH", "WAITED", "RAN", "SLACK", "PEAK", "WHY"),
        [_task_row(task, graph=len(report.critical_path) > 0) for task in report.tasks],
        right=("EPOCH", "WAITED", "RAN", "SLACK", "PEAK"),
    )
    for task in report.tasks:
        for attempt in task.attempts:
            note = f": {attempt.note}" if attempt.note else ""
            say(f"  {task.name} epoch {attempt.epoch} on {attempt.node} ended {attempt.outcome}{note}")
        if task.note:
            say(f"  {task.name}: {task.note}")


def _task_row(task: TaskReport, *, graph: bool) -> tuple[str, ...]:
    artifact = f"as {task.artifact}" if task.artifact else ""
    why = "; ".join(task.reasons) or "; ".join(part for part in (artifact, task.why) if part)
    if task.outcome == "oom":
        why = f"out of memory: peak {format_bytes(task.peak)}, limit {format_bytes(task.limit)}"
    slack = "critical" if task.critical else format_duration(task.slack)
    cpus = ",".join(map(str, task.cpus)) or "-"
    if task.devices:
        cpus += " gpu " + ",".join(map(str, task.devices))
    return (
        task.name,
        status_text(task.status if task.outcome in ("", "done", "stopped") else f"{task.status} ({_outcome(task)})"),
        task.priority,
        task.node or "-",
        cpus,
        str(task.epoch) if task.epoch else "-",
        format_duration(task.wait) if task.wait or task.started else "-",
        format_duration(task.run) if task.started else "-",
        slack if graph else "-",
        format_bytes(task.peak // 2**20 * 2**20) if task.peak >= 2**20 else "-",
        why,
    )


def _outcome(task: TaskReport) -> str:
    return f"exit {task.exit_code}" if task.outcome == "failed" else task.outcome


@click.command()
@click.option("--timeout", metavar="TIME", help="Give up waiting after this long, with exit code 125.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def wait(jobs: tuple[str, ...], timeout: str | None, as_json: bool) -> int:
    """Wait until every JOB is over; ends with the first failed one's exit code, or 0."""
    try:
        seconds = parse_duration(timeout) / SECOND if timeout is not None else None
    except ValueError as error:
        raise SpecError(
            "the time cannot be read", code="E103", field="--timeout", need=str(error), hint="--timeout 90s"
        ) from None
    client = connected(current_home())
    end = None if seconds is None else time.monotonic() + seconds
    reports = [client.wait(job, None if end is None else max(0.0, end - time.monotonic())) for job in jobs]
    codes = [125 if report.exit_code is None else report.exit_code for report in reports]
    if as_json:
        print_json(reports)
    else:
        for report in reports:
            state = "is not over yet" if report.exit_code is None else status_text(report.status)
            say(f"{report.id}{f' {report.name}' if report.name else ''} {state}")
    return next((code for code in codes if code), 0)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def cancel(jobs: tuple[str, ...], as_json: bool) -> int:
    """Cancel every JOB: what waits never starts, what runs gets SIGTERM and, after its grace, SIGKILL."""
    client = connected(current_home())
    cancelled: list[Any] = [client.cancel(job) for job in jobs]
    if as_json:
        print_json({"cancelled": cancelled})
    else:
        say(f"cancelling {', '.join(cancelled)}")
    return 0
