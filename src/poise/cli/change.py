"""`poise hold`, `release`, `set`, `retry` and `rm`: changes to submitted jobs."""

import os
from typing import Any

import click

from poise.cli.asking import FLAGS, asked, changing, note_units, told_as_flags
from poise.cli.jobs import ENDED
from poise.cli.render import FEW, in_turn, print_json, say
from poise.cli.words import filled
from poise.client import Client, current_home
from poise.control.start import UNTIL_IDLE, connected, ensure_up
from poise.model.changing import fields_in
from poise.model.document import some
from poise.model.reports.jobs import JobReport, JobStatus

_ONLY = "Remove only ended jobs"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def hold(jobs: tuple[str, ...], as_json: bool) -> int:
    """Hold every JOB (id or name): tasks that have not started wait until `poise release`. Running tasks continue."""
    client = connected(current_home())
    held = in_turn("on hold", _all_there(client, jobs), client.hold)
    if as_json:
        print_json({"held": held})
    else:
        say(f"on hold: {', '.join(held)}")
    return 0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def release(jobs: tuple[str, ...], as_json: bool) -> int:
    """Release every JOB (id or name) that is on hold. It waits for room from now on."""
    client = connected(current_home())
    there = _all_there(client, jobs)
    released = in_turn("released", [job for job, report in there.items() if report.hold], client.release)
    others = [client.release(job) for job, report in there.items() if not report.hold]  # fails if the job has ended
    if as_json:
        print_json({"released": released})
        return 0
    if released:
        say(f"released: {', '.join(released)}")
    if others:
        say(f"not on hold: {', '.join(others)}")
    return 0


def _all_there(client: Client, jobs: tuple[str, ...]) -> dict[str, JobReport]:
    """Return the reports of all jobs by name. Raises `NotFound` before anything is changed if one does not exist."""
    return {job: client.job(job) for job in jobs}


@click.command()
@click.option("-q", "--quiet", is_flag=True, help="Print the new id and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("job", metavar="JOB")
def retry(job: str, quiet: bool, as_json: bool) -> int:
    """Submit the unfinished part of an ended JOB (id or name) again: tasks that failed, were skipped or cancelled. The
    command prints the id of the new job. It has no deadline.
    """
    made = connected(current_home()).retry(job)
    if as_json:
        print_json({"job": made})
    else:
        click.echo(made)
        if not quiet:
            say(f"poise: status: `poise show {made}`, output: `poise logs -f {made}`")
    return 0


@click.command()
@click.option("--all", "everything", is_flag=True, help="Remove every ended job that you may see.")
@click.option(
    "--status", "statuses", type=click.Choice(ENDED), multiple=True, help=f"{_ONLY} with this status. Repeatable."
)
@click.option(
    "--name", default="", callback=filled, metavar="PATTERN", help=f"{_ONLY} with such a name or id, e.g. 'train-*'."
)
@click.option("--user", default="", callback=filled, metavar="NAME", help=f"{_ONLY} of this user.")
@click.option("--older-than", metavar="TIME", help="Remove only jobs that ended at least this long ago, e.g. 7d.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("jobs", nargs=-1, metavar="JOB...")
def rm(
    jobs: tuple[str, ...],
    everything: bool,
    statuses: tuple[JobStatus, ...],
    name: str,
    user: str,
    older_than: str | None,
    as_json: bool,
) -> int:
    """Remove every JOB (id or name) with its output, values and checkpoints. Unfinished jobs are refused: cancel them
    first. If one of several cannot be removed, none is.

    Instead of names, give --all or a filter: every ended job that matches is removed.
    """
    filters = bool(everything or statuses or name or user or older_than is not None)
    if filters == bool(jobs):
        raise click.UsageError("name jobs, or give --all or a filter: one of both")
    client = ensure_up(current_home(), UNTIL_IDLE)
    if jobs:
        removed = client.remove(*jobs)
    else:
        removed = client.remove_all(statuses=statuses, name=name, user=user, older_than=older_than or 0)
    if as_json:
        print_json({"removed": removed})
    else:
        say(f"removed {some(removed, FEW)}" if removed else "no ended job matches")
    return 0


_NOTHING = {"deadline": None, "expect": None, "time-limit": 0, "checkpoint": None}
"""Fields that the value `none` clears, and the cleared value in a job file."""


_BY_FIELD = {path.rpartition(".")[2]: flag for path, flag in FLAGS.values()}
"""The flags, by the job field that each sets."""


class _Assigned(click.Command):
    """A command that accepts `name=value` as `--name value`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [part for word in args for part in _as_flag(word)])


def _as_flag(word: str) -> list[str]:
    name, equals, value = word.partition("=")
    if not equals or name.startswith("-"):
        return [word]
    if name == "preemptible":
        return ["--preempt" if value.lower() in ("true", "yes", "1") else "--no-preempt"]
    flag = _BY_FIELD.get(name)
    return [flag.name if flag is not None else f"--{name.replace('_', '-')}", value]


@click.command(cls=_Assigned, name="set")
@changing
@click.option("--preempt/--no-preempt", "preempt", default=None, help="Allow or forbid preemption.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("job", metavar="JOB")
def set_(job: str, preempt: bool | None, as_json: bool, **flags: Any) -> int:
    """Change a JOB (id, name, or JOB.TASK) that waits or runs, e.g. `poise set j1 priority=high deadline=2h`.

    NAME=VALUE stands for `--NAME VALUE`. A deadline counts from now. `deadline=none` removes a deadline, `node=` any
    restriction to nodes. Running tasks keep their resources, except for the memory limit; priority, deadline, weight
    and time limit change at once.
    """
    spec = asked(dict.fromkeys(FLAGS) | flags, dict(os.environ), clears=True)
    spec |= {name: nothing for name, nothing in _NOTHING.items() if spec.get(name) == "none"}
    if preempt is not None:
        spec["preemptible"] = preempt
    with told_as_flags(flags):
        fields_in(spec)
        note_units(spec)
        changed = connected(current_home()).change(job, spec)
    if as_json:
        print_json(changed)
        return 0
    say(f"changed {changed.job}" if changed.units else f"{changed.job} has these values already")
    if changed.running:
        say("running attempts keep their values for now; the next attempts get the new ones")
        if "memory" in spec.get("resources", {}):
            say("a smaller memory limit applies sooner if a task never uses nearly as much")
    return 0
