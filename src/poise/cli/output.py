"""Output formats for every command that lists or shows: `-o table|wide|json|name` and `--watch`.

A command describes its output as a `Shown`; this module does the rest. `--json` is `-o json`. Names are printed one per
line, for other commands: `poise wait $(poise ls -o name)`. `--watch` refreshes once a second: a terminal redraws the
table in place; elsewhere, a row is appended whenever its content changes.
"""

import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import click

from poise.cli.render import aligned, harmless, print_json, say, widths_of
from poise.errors import InputError

ROWS = ("table", "wide", "json", "name")
TEXT = ("table", "json")

EVERY = 1.0
"""Seconds between two refreshes of `--watch`."""

Function = TypeVar("Function", bound=Callable[..., Any])


class Column(NamedTuple):
    """A column of both tables, or `only` of one. `moving`: it changes with time alone, which does not count as a
    change; `bare`: it is left out if all its cells are empty.
    """

    title: str
    cells: Sequence[str]
    right: bool = False
    only: Literal["", "table", "wide"] = ""
    moving: bool = False
    bare: bool = False


class Shown(NamedTuple):
    """The output of a command: the `value` for JSON, and a table with a row for each of `names`. `head` is printed
    above it, `notes` below it, and `nothing` instead of an empty table. `over`: it will not change any more.
    """

    value: Any
    names: Sequence[str]
    columns: Sequence[Column]
    head: Sequence[str] = ()
    notes: Sequence[str] = ()
    nothing: str = ""
    over: bool = False


def forms(*allowed: str) -> Callable[[Function], Function]:
    """Add `-o` and `--json`; the command gets the `form`, one of the allowed ones."""

    def adding(function: Function) -> Function:
        @functools.wraps(function)
        def command(*arguments: Any, output: str | None, as_json: bool, **flags: Any) -> Any:
            if as_json and output not in (None, "json"):
                raise click.UsageError(f"`--json` and `-o {output}` exclude each other")
            return function(*arguments, form="json" if as_json else output or "table", **flags)

        flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON value, as `-o json` does.")
        choice = click.option(
            "-o", "--output", type=click.Choice(allowed), metavar="|".join(allowed), help="How to print it."
        )
        return choice(flag(command))  # type: ignore[return-value]

    return adding


def rows(function: Function) -> Function:
    """Add the flags of a command that prints rows; it passes the `form` and `watch` that it gets to `show`."""
    watching = click.option(
        "-w", "--watch", is_flag=True, help="Refresh every second; print only changed rows when not on a terminal."
    )
    return forms(*ROWS)(watching(function))


def show(ask: Callable[[], Shown], form: str, watch: bool) -> int:
    """Print what `ask` returns, once, or with `watch` until it is `over` or the user interrupts."""

    def printable() -> Shown:
        return ask() if form in ("json", "name") else _printable(ask())

    if not watch:
        _print(printable(), form)
    elif form in ("json", "name"):
        raise click.UsageError(f"`-o {form}` is one answer, and does not go on\n\nhint: `poise events --follow`")
    elif sys.stdout.isatty():
        _redraw(printable, form)
    else:
        _append(printable, form)
    return 0


def _printable(shown: Shown) -> Shown:
    """Return the table without control characters, which others could put into the names of their work."""
    columns = [column._replace(cells=[harmless(cell) for cell in column.cells]) for column in shown.columns]
    return shown._replace(columns=columns, head=[harmless(line) for line in shown.head])


def _print(shown: Shown, form: str) -> None:
    if form == "json":
        print_json(shown.value)
    elif form == "name":
        click.echo("".join(f"{name}\n" for name in shown.names), nl=False)
    else:
        for line in _lines(shown, _chosen(shown, form)):
            click.echo(line)
        for note in (*shown.notes, *(() if shown.names else (shown.nothing,))):
            if note:
                say(note)


def _chosen(shown: Shown, form: str) -> list[Column]:
    return [column for column in shown.columns if column.only in ("", form) and (not column.bare or any(column.cells))]


def _lines(shown: Shown, columns: Sequence[Column]) -> list[str]:
    """Return the lines for a terminal."""
    if not shown.names:
        return list(shown.head)
    titles, right = [column.title for column in columns], [column.right for column in columns]
    cells = list(zip(*(column.cells for column in columns), strict=True))
    widths = widths_of([titles, *cells])
    head = click.style(aligned(titles, widths, right), bold=True)
    return [*shown.head, head, *(aligned(row, widths, right) for row in cells)]


def _redraw(ask: Callable[[], Shown], form: str) -> None:
    from poise.drivers.screen import drawing

    with drawing(sys.stdout) as screen:
        while True:
            shown = ask()
            lines = _lines(shown, _chosen(shown, form)) if shown.names else [*shown.head, shown.nothing]
            screen.draw(lines)
            if shown.over:
                return
            time.sleep(EVERY)


def _append(ask: Callable[[], Shown], form: str) -> None:
    """Append changed rows under one head; a column grows with its widest cell so far."""
    said: dict[str, tuple[str, ...]] = {}
    titles: list[str] = []
    widths: list[int] = []
    while True:
        shown = ask()
        columns = {column.title: column for column in shown.columns if column.only in ("", form)}
        if not titles and shown.names:
            titles = [column.title for column in _chosen(shown, form)]
            widths = widths_of([titles, *zip(*(columns[title].cells for title in titles), strict=True)])
            for line in (*shown.head, aligned(titles, widths, [columns[title].right for title in titles])):
                click.echo(line)
        right = [columns[title].right for title in titles]
        still = [title for title, column in columns.items() if not column.moving]
        for number, name in enumerate(shown.names):
            news = tuple(columns[title].cells[number] for title in still)
            if said.get(name) != news:
                said[name] = news
                row = [columns[title].cells[number] for title in titles]
                widths = widths_of([row], widths)
                click.echo(aligned(row, widths, right))
        sys.stdout.flush()
        if shown.over:
            return
        time.sleep(EVERY)


def check_page(path: Path, option: str) -> None:
    """Check first whether a long run's result can be written. Raises `InputError`, which names the option."""
    folder = path.absolute().parent
    if path.is_dir():
        raise _unwritten(path, "it is a folder", option)
    if not folder.is_dir():
        raise _unwritten(path, "there is no such folder", option)
    if not os.access(path if _is_special(path) else folder, os.W_OK):
        raise _unwritten(path, "Permission denied", option)


def write_page(path: Path, text: str, option: str, opened: str = "open it in a browser") -> None:
    """Write a file atomically, or directly into a device or a pipe, which must not be replaced. `opened` tells the user
    how to open it. Raises `InputError`, which names the option.
    """
    check_page(path, option)
    target = path if _is_special(path) else path.resolve()
    draft = target if _is_special(path) else target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        if draft != target:
            draft.replace(target)
    except OSError as error:
        if draft != target:
            draft.unlink(missing_ok=True)
        raise _unwritten(path, error.strerror or str(error), option) from None
    say(f"poise: wrote {path}; {opened}")


def _unwritten(path: Path, why: str, option: str) -> InputError:
    hint = f"`{option} FILE` in a folder of yours"
    return InputError(f"the file cannot be written: {why}", field=option, have=str(path), hint=hint)


def _is_special(path: Path) -> bool:
    """Return whether the path exists and is not a regular file: a device or a pipe."""
    return path.exists() and not path.is_file()
