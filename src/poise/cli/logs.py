"""`poise logs`."""

import sys

import click

from poise.cli.numbers import WholeRange
from poise.cli.render import print_json
from poise.client import current_home
from poise.control.start import connected, may_be_asked
from poise.model.reports import LogPiece


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the job has ended.")
@click.option(
    "-n",
    "--tail",
    type=WholeRange(min=0),
    metavar="N",
    help="Print only the last N lines of each stream, of the latest attempt of each task.",
)
@click.option("--task", default="", metavar="NAME", help="Only this task of the job, as JOB.NAME does.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value: what each attempt wrote, by stream.")
@click.argument("job")
def logs(job: str, follow: bool, tail: int | None, task: str, as_json: bool) -> int:
    """Print what JOB (id, name, or JOB.TASK) wrote: its standard output to stdout, its standard error to stderr."""
    home, last = current_home(), -1 if tail is None else tail
    if may_be_asked(home):
        lines = connected(home).logs(job, task=task, follow=follow, tail=last)
    else:
        from poise.cli import offline

        lines = offline.logs(home, job, task, last)
    written: dict[tuple[str, int, str], bytes] = {}
    for line in lines:
        if not isinstance(line, LogPiece) or not line.data:
            continue
        if as_json:
            key = (line.task, line.epoch, line.stream)
            written[key] = written.get(key, b"") + line.data
        else:
            target = sys.stdout.buffer if line.stream == "out" else sys.stderr.buffer
            target.write(line.data)
            target.flush()
    if as_json:
        print_json(
            [
                {"task": name, "epoch": epoch, "stream": stream, "text": data.decode("utf-8", "replace")}
                for (name, epoch, stream), data in written.items()
            ]
        )
    return 0
