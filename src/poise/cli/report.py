"""`poise report`."""

from pathlib import Path

import click

from poise.cli import output
from poise.cli.output import Column, Shown
from poise.client import current_home
from poise.model.history import RunReport, Spread, Use
from poise.units import format_duration


@click.command()
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Write a page that needs no network and runs no script; `-` is stdout.",
)
@output.forms(*output.TEXT)
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
def report(jobs: tuple[str, ...], page: Path | None, form: str) -> int:
    """Report on each JOB, or on all: run times and waits, use of the nodes, a timeline of attempts, every decision with
    its reason, failures, preemptions. It reads the log, with or without a running control plane.
    """
    if form == "json" and page == Path("-"):
        raise click.UsageError("`-o json` and `--html -` both want stdout")
    from poise.cli import offline

    home = current_home()
    told = offline.report(home, jobs)
    if page is not None:
        from poise.twin.report import render

        if page == Path("-"):
            click.echo(render(told), nl=False)
        else:
            output.write_page(page, render(told), "--html")
    return output.show(lambda: _shown(told), form, False) if page is None or form == "json" else 0


def _shown(told: RunReport) -> Shown:
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
    names = [name for name, _ in rows]
    columns = [Column("FIGURE", names), Column("VALUE", [value for _, value in rows])]
    return Shown(told, names, columns, notes=["\nhint: `poise report --html FILE` has the timeline and every decision"])


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
