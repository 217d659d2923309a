"""`poise hold`, `release`, `set` and `retry`: what becomes of a job after it was submitted."""

import os
from typing import Any

import click

from poise.cli.asking import FLAGS, asked, changing, note_units, told_as_flags
from poise.cli.render import print_json, say
from poise.client import current_home
from poise.control.start import connected
from poise.model.changing import fields_in


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def hold(jobs: tuple[str, ...], as_json: bool) -> int:
    """Hold every JOB (id or name): tasks that have not started wait until `poise release`. Running tasks continue."""
    client = connected(current_home())
    held = [client.hold(job) for job in jobs]
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
    released = [client.release(job) for job in jobs]
    if as_json:
        print_json({"released": released})
    else:
        say(f"released: {', '.join(released)}")
    return 0


@click.command()
@click.option("-q", "--quiet", is_flag=True, help="Print the new id and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("job", metavar="JOB")
def retry(job: str, quiet: bool, as_json: bool) -> int:
    """Submit the unfinished part of an ended JOB (id or name) again: tasks that failed, were skipped or cancelled. The
    new job has an id of its own, which is printed. It has no deadline.
    """
    made = connected(current_home()).retry(job)
    if as_json:
        print_json({"job": made})
    else:
        click.echo(made)
        if not quiet:
            say(f"`poise logs --follow {made}` shows its output")
    return 0


class _Assigned(click.Command):
    """A command that takes `name=value` for `--name value`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [part for word in args for part in _as_flag(word)])


def _as_flag(word: str) -> list[str]:
    name, equals, value = word.partition("=")
    if not equals or name.startswith("-"):
        return [word]
    known = FLAGS.get(name.replace("-", "_").removesuffix("!"))
    return [known[1].name, value] if known is not None else [f"--{name}", value]


@click.command(cls=_Assigned, name="set")
@changing
@click.option("--preempt/--no-preempt", "preempt", default=None, help="Whether it may be preempted.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("job", metavar="JOB")
def set_(job: str, preempt: bool | None, as_json: bool, **flags: Any) -> int:
    """Change a JOB (id, name, or JOB.TASK) that waits or runs, e.g. `poise set j1 priority=high deadline=2h`.

    NAME=VALUE stands for `--NAME VALUE`. A deadline counts from now. Running tasks keep their resources;
    its priority, deadline and weight change at once.
    """
    spec = asked(dict.fromkeys(FLAGS) | flags, dict(os.environ))
    if preempt is not None:
        spec["preemptible"] = preempt
    with told_as_flags(flags):
        fields_in(spec)
        note_units(spec)
        changed = connected(current_home()).change(job, spec)
    if as_json:
        print_json(changed)
        return 0
    if not changed.units:
        say(f"{changed.job} has these values already")
    else:
        say(f"changed {changed.job}: {changed.units} unit{'s' * (changed.units != 1)}")
    if changed.running:
        say("what runs keeps what it was started with, until it is started again")
    return 0
