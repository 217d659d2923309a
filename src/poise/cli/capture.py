"""`poise capture`."""

import sys
from pathlib import Path

import click

from poise.cli import output
from poise.cli.numbers import WholeRange
from poise.cli.output import Column, Shown
from poise.cli.render import ago, say
from poise.client import Client, current_home
from poise.control.start import connected
from poise.errors import InputError, NotFound
from poise.model.captures import Capture, CaptureKind
from poise.units import format_bytes


@click.command()
@click.option("--for", "lasts", metavar="DURATION", help="Duration of the capture. [default: 10s; 2s with --torch]")
@click.option("--dump", "kind", flag_value="dump", help="Print the current stack of each Python thread.")
@click.option("--torch", "kind", flag_value="torch", help="Trace a training session of Poise with PyTorch's profiler.")
@click.option("--rank", type=WholeRange(min=0), metavar="N", help="Gang member to capture. [default: 0]")
@click.option("--list", "listing", is_flag=True, help="List the stored captures of JOB.")
@click.option("--get", metavar="NAME", help="Write a stored capture to a file.")
@click.option(
    "-O",
    "--to",
    "target",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="File for the capture; `-` is stdout. [default: its name, in this folder; stdout with --dump]",
)
@output.forms(*output.TEXT)
@click.argument("job")
def capture(
    job: str,
    lasts: str | None,
    kind: CaptureKind | None,
    rank: int | None,
    listing: bool,
    get: str | None,
    target: Path | None,
    form: str,
) -> int:
    """Capture what the running JOB (id, name, or JOB.TASK) does, store the capture beside the job's output, and
    write it to a file.

    The default is a flame graph of Python stacks (SVG, for a browser). --torch writes a trace for Perfetto. Without
    --torch, py-spy must be installed on the node.
    """
    if listing and (get or kind or lasts or target):
        raise click.UsageError("`--list` goes with no other flag")
    if form == "json" and target == Path("-"):
        raise click.UsageError("`-o json` and `-O -` both want stdout")
    client = connected(current_home())
    if listing:
        return output.show(lambda: _listed(client.captures(job)), form, False)
    if get is None:
        what = kind or "stacks"
        taken = client.capture(
            job, what, rank=rank, lasts=lasts, begun=lambda node: say(f"poise: captures {what} of {job} on {node}")
        )
    else:
        found = [one for one in client.captures(job) if one.name == get]
        if not found:
            raise NotFound("the job has no such capture", field="--get", have=get, hint=f"`poise capture {job} --list`")
        taken = found[0]
    _write(client, taken, target or Path("-" if taken.kind == "dump" and form != "json" else taken.name))
    return output.show(lambda: _listed([taken]), form, False) if form == "json" else 0


def _write(client: Client, taken: Capture, target: Path) -> None:
    data = client.read_capture(taken.task.partition(".")[0], taken.name)
    if target == Path("-"):
        sys.stdout.buffer.write(data)
        return
    try:
        target.write_bytes(data)
    except OSError as error:
        hint = f"`poise capture {taken.task} --get {taken.name} -O FILE`"
        raise InputError(f"the file cannot be written: {error.strerror}", field=str(target), hint=hint) from None
    say(f"poise: {target}, {format_bytes(len(data))}")


def _listed(found: list[Capture]) -> Shown:
    return Shown(
        found,
        [one.name for one in found],
        [
            Column("NAME", [one.name for one in found]),
            Column("TASK", [one.task for one in found]),
            Column("EPOCH", [str(one.epoch) for one in found], right=True),
            Column("KIND", [one.kind for one in found]),
            Column("SIZE", [format_bytes(one.size) for one in found], right=True),
            Column("TAKEN", [f"{ago(one.at)} ago" for one in found], moving=True),
        ],
        nothing="poise: no captures are stored",
    )
