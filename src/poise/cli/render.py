"""Terminal output: errors, tables, JSON. Works without colour; respects NO_COLOR."""

import errno
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from poise.errors import ErrorRecord, PoiseError

if TYPE_CHECKING:
    from poise.model.reports.jobs import JobReport, TaskReport

T = TypeVar("T")

STATUS_STYLE = {
    "done": "green",
    "running": "cyan",
    "failed": "red",
    "lost": "red",
    "recovering": "yellow",
    "suspect": "yellow",
    "unfit": "red",
    "stopping": "yellow",
    "stopped": "yellow",
    "cancelled": "magenta",
    "skipped": "magenta",
}


FEW = 12
"""Maximum number of jobs to name in a long list."""

NOT_FOUND = 127
"""Exit code of a command that was not found, as in a shell."""

_CONTROLS = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that move the cursor, or change the terminal or the order of letters. Colours, tabs and line ends stay."""

_LONG = re.compile(r"([^\s/#=,:]{80})[^\s/#=,:]{177,}")
"""A word longer than any name, such as a mistyped one that an error quotes. It is no path, URL or address."""

LOGGED = "poise: no control plane is running; this is what the log says"


def show_error(error: PoiseError, *, as_json: bool) -> None:
    """Print an error and the others of its document: as JSON on stdout if requested, else as text on stderr."""
    if as_json:
        print_json({"error": error.record})
        return
    records = error.record.all()
    texts = ["\n".join(_error_lines(record)) for record in sorted(records, key=_line_of)]
    if len(records) > 1:
        texts.append(f"{len(records)} errors")
    say(_LONG.sub(r"\1…", "\n\n".join(texts)))


def _error_lines(record: ErrorRecord) -> Iterator[str]:
    yield f"{click.style(f'error[{record.code}]', fg='red', bold=True)}: {record.message}"
    where = f"{record.field} ({record.at})" if record.field and record.at else record.field or record.at
    for name, value in (("where", where), ("need", record.need), ("have", record.have)):
        if value:
            yield f"  {name:<7} {value}"
    if record.hint:
        yield ""
        yield f"{click.style('hint', fg='cyan')}: {record.hint}"


def _line_of(record: ErrorRecord) -> tuple[bool, list[int]]:
    """Return a sort key by line and column; errors without a place sort last."""
    numbers = [int(part) for part in record.at.rsplit(":", 2)[1:] if part.isascii() and part.isdigit()]
    return not numbers, numbers


def print_json(value: Any) -> None:
    """Print exactly one JSON value on stdout."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def say(message: str) -> None:
    """Print a message to stderr. If its disk is full, discard this and later ones: what they tell of has happened."""
    try:
        click.echo(harmless(message), err=True)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def harmless(text: str) -> str:
    """Replace control characters by spaces: others choose commands, classes and files, and the text goes to a
    terminal.
    """
    return _CONTROLS.sub(" ", text)


def tell(note: str) -> None:
    """Print a note about an accepted job."""
    say(f"poise: {note}")


def in_turn(done: str, names: Iterable[str], work: Callable[[str], T]) -> list[T]:
    """Return the result of `work` for each name. If one fails, say which names were `done` before it."""
    made: dict[str, T] = {}
    try:
        for name in dict.fromkeys(names):
            made[name] = work(name)
    except PoiseError:
        if made:
            say(f"{done}: {', '.join(made)}")
        raise
    return list(made.values())


def over_memory(task: "TaskReport") -> str:
    """Return the peak and the limit of memory of a task that ran out of memory; else an empty text."""
    from poise.units import format_bytes

    return f"peak {format_bytes(task.peak)}, limit {format_bytes(task.limit)}" if task.outcome == "oom" else ""


def unstarted(tasks: "Iterable[TaskReport]") -> Iterator[str]:
    """Yield why commands did not start, with a hint if this shell would find a command that was not found."""
    for task in tasks:
        if task.outcome == "unstartable":
            yield f"  {task.name}: {task.note}"
        if task.exit_code == NOT_FOUND and (program := _found_here(task)):
            hint = f"your PATH finds `{program}`; what is submitted has it with `poise submit --env PATH`"
            yield f"  hint: {hint}"


def _found_here(task: "TaskReport") -> str:
    """Return a program that the task did not find but the PATH of this shell does. In a shell command it is the first
    word, unless the default PATH has it.
    """
    import shlex
    from shutil import which

    command = task.command
    if task.outcome != "unstartable":
        if len(command) != 3 or command[1] != "-c":
            return ""
        try:
            command = tuple(shlex.split(command[2]))
        except ValueError:
            return ""
        if command and which(command[0], path=os.defpath):
            return ""  # another word of the line was not found
    return command[0] if command and which(command[0]) else ""


def widths_of(rows: Iterable[Sequence[str]], least: Iterable[int] = ()) -> list[int]:
    """Return the widths of a table's columns; `least` are minimum widths."""
    widths = list(least)
    for row in rows:
        lengths = [len(click.unstyle(cell)) for cell in row]
        widths = [max(pair) for pair in zip(widths, lengths, strict=True)] if widths else lengths
    return widths


def aligned(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    """Format a row in columns, aligned left or `right`."""
    cells = []
    for cell, width, to_the_right in zip(row, widths, right, strict=True):
        pad = " " * (width - len(click.unstyle(cell)))
        cells.append(pad + cell if to_the_right else cell + pad)
    return "  ".join(cells).rstrip()


def status_text(status: str) -> str:
    return click.style(status, fg=STATUS_STYLE.get(status))


def ago(moment: float) -> str:
    """Format the time since a moment (seconds since 1970); `-` for never. The clock of this machine may be behind that
    of the control plane: a moment ahead of it is now.
    """
    from poise.units import SECOND, format_duration

    return format_duration(max(0, int((time.time() - moment) * SECOND))) if moment else "-"


def counts_text(counts: dict[str, int]) -> str:
    """Format counts: `3 done, 1 running`."""
    return ", ".join(f"{count} {status_text(status)}" for status, count in counts.items())


def progress_text(report: "JobReport", width: int = 20) -> str:
    """Format the progress of an array: `[####······] 41.2 % of 100000 over, 3 failed (3, 17-18; 50 may fail)`."""
    array = report.array
    if array is None:
        return ""
    over = sum(report.counts.get(status, 0) for status in ("done", "failed", "cancelled", "skipped"))
    whole = max(1, sum(report.counts.values()))
    bar = "#" * (width * over // whole)
    failed = report.counts.get("failed", 0)
    allowed = f"; {array.allow_failed} may fail" if array.allow_failed else ""
    which = f", {failed} failed ({array.failed}{allowed})" if failed else ""
    return f"[{bar:·<{width}}] {100 * over / whole:.1f} % of {whole} over{which}"


def shorten(text: str, width: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
