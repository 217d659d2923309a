"""`poise logs`."""

import re
import sys
from datetime import UTC, datetime
from typing import Any

import click

from poise.cli.gaps import telling_gaps
from poise.cli.jobs import report_of
from poise.cli.moments import time_of
from poise.cli.numbers import WholeRange
from poise.cli.render import print_json, say, unstarted
from poise.cli.words import filled
from poise.client import current_home
from poise.control.start import connected, may_be_asked
from poise.model.reports.streams import LogPiece

LONGEST = 64 * 1024
"""Maximum bytes of an unfinished line to hold back."""


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the job has ended.")
@click.option(
    "-n",
    "--tail",
    type=WholeRange(min=0),
    metavar="N",
    help="Print only the last N lines of each stream, of the latest attempt of each task.",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Print only output since this time: 5m (five minutes ago), 14:30, or 2026-12-01T12:00:00Z.",
)
@click.option("-t", "--timestamps", is_flag=True, help="Begin each line with the time when it was written.")
@click.option("--rank", type=WholeRange(min=0), metavar="N", help="Only this member of a gang.")
@click.option(
    "--prefix/--no-prefix",
    default=None,
    help="Begin each line with its rank in the gang, or its task. [default: for a gang, unless one rank is selected]",
)
@click.option(
    "--task", default="", callback=filled, metavar="NAME", help="Only this task of the job, as JOB.NAME does."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON value: the output of each attempt, by stream. With -t, each line with its time.",
)
@click.argument("job")
def logs(
    job: str,
    follow: bool,
    tail: int | None,
    since: str | None,
    timestamps: bool,
    rank: int | None,
    prefix: bool | None,
    task: str,
    as_json: bool,
) -> int:
    """Print the output of JOB (id, name, or JOB.TASK): its standard output to stdout, its standard error to stderr."""
    home = current_home()
    last, moment, which = (
        -1 if tail is None else tail,
        time_of(since, "--since") if since else 0.0,
        -1 if rank is None else rank,
    )
    if may_be_asked(home):
        lines = connected(home).logs(job, task=task, follow=follow, tail=last, since=moment, rank=which)
    else:
        from poise.cli import offline

        lines = offline.logs(home, job, task, tail=last, since=moment, rank=which)
    lines = telling_gaps(lines, whole=last < 0 and not moment)
    pieces = (line for line in lines if isinstance(line, LogPiece) and line.data)
    if as_json:
        written: dict[tuple[str, int, str], bytes] = {}
        timed: dict[tuple[str, int, str], TimedLines] = {}
        for piece in pieces:
            key = (piece.task, piece.epoch, piece.stream)
            written[key] = written.get(key, b"") + piece.data
            timed.setdefault(key, TimedLines()).add(piece)
        print_json(
            [
                {"task": name, "epoch": epoch, "stream": stream, "text": data.decode("utf-8", "replace")}
                | ({"lines": timed[name, epoch, stream].all()} if timestamps else {})
                for (name, epoch, stream), data in written.items()
            ]
        )
        return 0
    printer = Printer(timestamps=timestamps, label=prefix)
    wrote = False
    for piece in pieces:
        printer.print(piece)
        wrote = True
    printer.close()
    if not wrote:
        report = report_of(home, job)
        for line in unstarted(report.tasks):
            say(line)
        if report.array is not None:
            say(f"poise: of an array, the output is read by task: `poise logs '{report.id}.{report.array.name}[0]'`")
    return 0


class TimedLines:
    """Lines of one stream, each with the time at which its start was written (seconds since 1970; 0: unknown)."""

    def __init__(self) -> None:
        self._lines: list[tuple[float, bytes]] = []
        self._open = False  # the last line is unfinished

    def add(self, piece: LogPiece) -> None:
        for part in filter(None, re.split(rb"(?<=\n)", piece.data)):
            if self._open:
                at, begun = self._lines[-1]
                self._lines[-1] = at, begun + part
            else:
                self._lines.append((piece.at, part))
            self._open = not part.endswith(b"\n")

    def all(self) -> list[dict[str, Any]]:
        return [{"at": at, "text": line.removesuffix(b"\n").decode("utf-8", "replace")} for at, line in self._lines]


class Printer:
    """Prints pieces as they are, or line by line with a prefix."""

    def __init__(self, *, timestamps: bool, label: bool | None) -> None:
        """With `label` None, only pieces of gang members get a label."""
        self._timestamps = timestamps
        self._label = label
        self._begun: dict[tuple[str, int, str], tuple[bytes, bytes]] = {}  # unfinished lines, with their prefixes

    def print(self, piece: LogPiece) -> None:
        label = piece.rank >= 0 if self._label is None else self._label
        if not label and not self._timestamps:
            _write(piece.stream, piece.data)
            return
        key = (piece.task, piece.epoch, piece.stream)
        head, rest = self._begun.pop(key, (b"", b""))
        lines = (rest + piece.data).split(b"\n")
        heads = [head or self._head(piece, label), *[self._head(piece, label)] * (len(lines) - 1)]
        whole = [first + line + b"\n" for first, line in zip(heads[:-1], lines[:-1], strict=True)]
        if len(lines[-1]) > LONGEST:
            whole.append(heads[-1] + lines[-1] + b"\n")
        elif lines[-1]:
            self._begun[key] = (heads[-1], lines[-1])
        _write(piece.stream, b"".join(whole))

    def close(self) -> None:
        """Print unfinished lines too."""
        for (_, _, stream), (head, rest) in self._begun.items():
            _write(stream, head + rest + b"\n")

    def _head(self, piece: LogPiece, label: bool) -> bytes:
        time_of = f"{_written(piece.at)} " if self._timestamps else ""
        name = piece.task.partition(".")[2] if piece.rank < 0 else f"rank {piece.rank}"
        return (time_of + (f"[{name}] " if label else "")).encode()


def _write(stream: str, data: bytes) -> None:
    if data:
        target = sys.stdout.buffer if stream == "out" else sys.stderr.buffer
        target.write(data)
        target.flush()


def _written(at: float) -> str:
    """Format a time in UTC with milliseconds."""
    if not at:
        return "-".ljust(24)
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
