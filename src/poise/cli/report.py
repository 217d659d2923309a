"""`poise report`."""

import os
from pathlib import Path

import click

from poise.cli.render import print_json, print_table, say
from poise.client import current_home
from poise.errors import InputError
from poise.model.history import RunReport, Spread, Use
from poise.units import format_duration


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE.html",
    help="Write a page that needs no network and runs no script; `-` is stdout.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value: every figure and every list.")
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
def report(jobs: tuple[str, ...], output: Path | None, as_json: bool) -> int:
    """Tell what happened, of each JOB or of all: how long jobs took and waited, how well the nodes were used, a
    timeline of attempts, every decision with its reason, failures, who yielded to whom. Read from the log, whether a
    control plane runs or not.
    """
    if as_json and output == Path("-"):
        raise click.UsageError("`--json` and `-o -` both want stdout")
    from poise.cli import offline

    told = offline.report(current_home(), jobs)
    if output is not None:
        from poise.twin.report import render

        _write(output, render(told))
    if as_json:
        print_json(told)
    elif output is None:
        _print(told)
    return 0


def _write(path: Path, page: str) -> None:
    """Whole or not at all. Raises `InputError`."""
    if path == Path("-"):
        click.echo(page, nl=False)
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(page, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InputError(
            f"the page cannot be written: {error.strerror}", field=str(path), hint="`-o FILE.html` in a folder of yours"
        ) from None
    say(f"poise: wrote {path}; open it in a browser")


def _print(told: RunReport) -> None:
    """The figures, for a terminal."""
    statuses = ", ".join(f"{count} {status}" for status, count in told.statuses.items()) or "none"
    rows = [
        ("jobs", statuses),
        ("attempts", f"{told.attempts}, of which {told.failed} failed ({told.retried} tried again)"),
        ("asked to yield", str(told.yielded)),
        ("makespan", format_duration(told.makespan)),
        ("completion", _spread(told.completion)),
        ("waiting", _spread(told.waiting)),
        ("CPU", _use(told.cpu)),
        ("devices", _use(told.devices)),
    ]
    print_table(("FIGURE", "VALUE"), rows)
    say("\nhint: `poise report -o FILE.html` has the timeline and every decision")


def _spread(of: Spread) -> str:
    if not of.count:
        return "-"
    names = (("mean", of.mean), ("P50", of.p50), ("P95", of.p95), ("P99", of.p99), ("longest", of.longest))
    return ", ".join(f"{name} {format_duration(time)}" for name, time in names)


def _use(of: Use) -> str:
    if of.held is None:
        return "-"
    parts = ((of.held, "held"), (of.good, "goodput"), (of.used, "measured"))
    return ", ".join(f"{(part or 0) / 10:.1f} % {name}" for part, name in parts)
