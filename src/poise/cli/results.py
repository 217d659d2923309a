"""`poise results`."""

import csv
import json
import sys
from collections.abc import Iterator

import click

from poise.cli import output
from poise.cli.output import Column, Shown
from poise.cli.render import shorten
from poise.client import current_home
from poise.config import Home
from poise.control.start import connected, may_be_asked
from poise.model.reports.jobs import PartReport
from poise.units import SECOND, format_duration

RESULT_WIDTH = 60


@click.command()
@click.option("--failed", is_flag=True, help="List only tasks that are not done.")
@output.forms("table", "csv", "json")
@click.argument("job")
def results(job: str, failed: bool, form: str) -> int:
    """List the results of JOB (id or name), one row for each task that is over.

    A row has the parameters, the status, the exit code, the run time and the node of the task, and the JSON that it
    wrote to POISE_RESULT.
    """
    rows = [row for row in _rows(current_home(), job) if not (failed and row.status == "done")]
    rows.sort(key=_number)
    if form == "csv":
        _write_csv(rows)
        return 0
    return output.show(lambda: _shown(rows), form, False)


def _rows(home: Home, job: str) -> Iterator[PartReport]:
    """Yield the rows, from the log if no control plane answers."""
    if may_be_asked(home):
        yield from connected(home).results(job)
        return
    from poise.cli import offline

    yield from offline.results(home, job)


def _number(row: PartReport) -> tuple[str, int]:
    """Sort parts of one task by their number; a merge comes last."""
    name, _, number = row.task.rstrip("]").partition("[")
    return name, int(number or 0)


def _names(rows: list[PartReport]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.sweep))


def _result(row: PartReport) -> str:
    return "" if row.result is None else json.dumps(row.result, ensure_ascii=False)


def _write_csv(rows: list[PartReport]) -> None:
    names = _names(rows)
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["task", *names, "status", "exit_code", "run_seconds", "node", "result"])
    for row in rows:
        code = "" if row.exit_code is None else row.exit_code
        values = (row.sweep.get(name, "") for name in names)
        table.writerow([row.task, *values, row.status, code, row.run / SECOND, row.node, _result(row)])


def _shown(rows: list[PartReport]) -> Shown:
    return Shown(
        rows,
        [row.task for row in rows],
        [
            Column("TASK", [row.task for row in rows]),
            *(Column(name.upper(), [row.sweep.get(name, "-") for row in rows]) for name in _names(rows)),
            Column("STATUS", [row.status for row in rows]),
            Column("EXIT", ["-" if row.exit_code is None else str(row.exit_code) for row in rows], right=True),
            Column("RAN", [format_duration(row.run) if row.run else "-" for row in rows], right=True),
            Column("NODE", [row.node or "-" for row in rows]),
            Column("RESULT", [shorten(_result(row), RESULT_WIDTH) or "-" for row in rows]),
        ],
        nothing="poise: no task of it is over",
    )
