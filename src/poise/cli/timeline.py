"""`poise timeline`."""

import time
from pathlib import Path

import click
import msgspec

from poise.cli import output
from poise.cli.moments import time_of
from poise.cli.output import Column, Shown
from poise.client import current_home
from poise.errors import SpecError
from poise.model.jobs import FAILED
from poise.model.timeline import Row, Timeline
from poise.units import format_duration

ROWS = 48
"""Maximum rows of a table; the JSON and the trace have all."""

WIDTH = 72
"""Width of the picture in columns."""

SIGNS = {"waiting": ".", "queued": ".", "starting": "-", "running": "=", "stopping": "~", "many": "="}
FAILURE = "x"


@click.command()
@click.option(
    "--since", default="1h", show_default=True, metavar="TIME", help="Begin here: 2h (two hours ago), 14:30, …"
)
@click.option("--until", metavar="TIME", help="End here. [default: now]")
@click.option(
    "--trace",
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Write a trace that ui.perfetto.dev and chrome://tracing open; `-` is stdout.",
)
@output.forms("table", "wide", "json")
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
def timeline(jobs: tuple[str, ...], since: str, until: str | None, file: Path | None, form: str) -> int:
    """Show a timeline of attempts by node and device, of all jobs or of each JOB. It shows the phases waiting,
    starting, running and stopping, and failures. The command reads the log, with or without a running control plane.
    """
    if form == "json" and file == Path("-"):
        raise click.UsageError("`-o json` and `--trace -` both want stdout")
    begin, end = time_of(since, "--since"), time_of(until, "--until") if until is not None else time.time()
    if end <= begin:
        raise SpecError("the end is not after the beginning", field="--until", have=until or "now", hint="`--since 1h`")
    from poise.cli import offline

    told = offline.timeline(current_home(), begin, end, jobs)
    if file is not None:
        _write(file, told)
    return output.show(lambda: _shown(told, form), form, False) if file is None or form == "json" else 0


def _write(file: Path, told: Timeline) -> None:
    from poise.kernel.trace_events import trace

    text = msgspec.json.encode(trace(told)).decode()
    if file == Path("-"):
        click.echo(text)
        return
    output.write_page(file, text, "--trace", "open it at ui.perfetto.dev or chrome://tracing")


def _shown(told: Timeline, form: str) -> Shown:
    """Return the table, with a line of signs for each row."""
    rows = [row for row in told.rows if row.slices]
    idle = len(told.rows) - len(rows)
    shown = rows if form == "wide" else rows[:ROWS]
    signs = (f"{SIGNS[phase]} {phase}" for phase in ("waiting", "starting", "running", "stopping"))
    notes = [f"\n{'  '.join(signs)}  {FAILURE} failed"]
    if len(rows) > len(shown):
        notes.append(f"poise: {len(rows) - len(shown)} more rows; `-o wide` shows them")
    if idle:
        notes.append(f"poise: nothing ran on {idle} more rows")
    notes += [f"poise: {count} {what} have no row" for what, count in told.left_out.items()]
    notes.append("hint: `poise timeline --trace FILE` writes every attempt for ui.perfetto.dev")
    begins, ends = (time.strftime("%H:%M:%S", time.localtime(told.begins + at / 1e9)) for at in (0, told.length))
    title = f"{begins} to {ends} ({format_duration(told.length)})"
    return Shown(
        told,
        [f"{row.node} {row.name}".strip() for row in shown],
        [
            Column("NODE", [row.node or "-" for row in shown]),
            Column("ROW", [row.name for row in shown]),
            Column(title, [_line(row, told.length) for row in shown]),
            Column("ATTEMPTS", [str(sum(one.count for one in row.slices)) for row in shown], right=True, only="wide"),
        ],
        notes=notes if shown else [],
        nothing="poise: nothing ran or waited in this time; `--since 24h` looks further back",
    )


def _line(row: Row, length: int) -> str:
    """Return the picture of a row. In a shared column a failure wins, then the latest phase."""
    signs = [" "] * WIDTH
    failures = []
    for one, after in zip(row.slices, [*row.slices[1:], None], strict=True):
        first, last = (max(0, min(WIDTH - 1, at * WIDTH // max(1, length))) for at in (one.since, one.until - 1))
        signs[first : last + 1] = SIGNS[one.phase] * (last + 1 - first)
        goes_on = after is not None and (after.task, after.epoch) == (one.task, one.epoch)
        if one.outcome in FAILED and not goes_on:
            failures.append(last)
    for place in failures:
        signs[place] = FAILURE
    return "".join(signs).rstrip()
