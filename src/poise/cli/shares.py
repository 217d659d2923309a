"""`poise shares`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from poise.cli import output
from poise.cli.output import Column, Shown
from poise.cli.render import print_json, say
from poise.client import current_home
from poise.control.start import connected
from poise.errors import located
from poise.units import format_duration

if TYPE_CHECKING:  # the ledger imports numpy
    from poise.model.reports.tenants import ShareReport, SharesForeseen, SharesReport
    from poise.model.share_tree import ShareTree


@click.group(invoke_without_command=True)
@click.option(
    "--if", "other", type=click.Path(path_type=Path), metavar="FILE", help="Foresee the waits under the shares of FILE."
)
@output.rows
@click.pass_context
def shares(context: click.Context, other: Path | None, form: str, watch: bool) -> int:
    """Show the fair shares: guarantees, weights, what each share holds, borrows and owes, and who is served first.
    `poise shares apply FILE` sets them.
    """
    if context.invoked_subcommand is not None:
        return 0
    client = connected(current_home())
    if other is None:
        return output.show(lambda: _shown(client.shares()), form, watch)
    from poise.drivers.yamlfile import place_in_file

    _, document = _read(other)
    with located(place_in_file(other)):
        told = client.foresee_shares(document)
    return output.show(lambda: _foreseen(told), form, watch=False)


@shares.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def check(file: Path, as_json: bool) -> int:
    """Check FILE, without setting its shares."""
    tree, _ = _read(file)
    if as_json:
        print_json(tree)
        return 0
    for node in tree.nodes:
        click.echo(f"{node.name}: {node.kind}, weight {node.weight / 1000:g}")
    say(f"poise: {file} is right; `poise shares --if {file}` foresees what it changes")
    return 0


@shares.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def apply(file: Path, as_json: bool) -> int:
    """Set the shares to those of FILE. Debts of shares that keep their name stay; a file with `shares: []` removes all.
    Running work is stopped only for a guarantee.
    """
    from poise.drivers.yamlfile import place_in_file

    _, document = _read(file)
    client = connected(current_home())
    with located(place_in_file(file)):
        told = client.set_shares(document)
    if as_json:
        print_json(told)
    else:
        say(f"poise: shares in force: {', '.join(one.name for one in told.shares) or 'none'}")
        for note in told.notes:
            say(f"poise: {note}")
    return 0


def _read(file: Path) -> "tuple[ShareTree, dict[str, Any]]":
    """Return the shares of a file, and its content. Raises SpecError with the place in the file."""
    from poise.drivers.yamlfile import load_kind, place_in_file
    from poise.model.sharefile import compile_shares

    document: dict[str, Any] = load_kind(file, "shares")
    with located(place_in_file(file)):
        return compile_shares(document), document


def _shown(told: "SharesReport") -> Shown:
    rows = told.shares
    prices = ", ".join(f"{model} ${price:g}" for model, price in told.prices.items())
    head = [f"half-life {format_duration(told.half_life)}; an hour costs: {prices}"] if rows else []
    return Shown(
        told,
        [one.name for one in rows],
        [
            Column("SHARE", ["  " * one.depth + one.name for one in rows]),
            Column("KIND", [one.kind for one in rows], only="wide"),
            Column("WEIGHT", [f"{one.weight:g}" for one in rows], right=True),
            Column("OF ITS LEVEL", [f"{one.share:.0%}" for one in rows], right=True),
            Column("GUARANTEED", [_amounts(one.guaranteed) + ("" if one.lends else " (not lent)") for one in rows]),
            Column("LIMIT", [_amounts(one.limit) for one in rows], bare=True),
            Column("HELD", [_amounts(one.held) for one in rows]),
            Column("BORROWS", [f"${one.borrows:.2f}/h" if one.borrows else "" for one in rows], bare=True, right=True),
            Column("DEBT", [f"${one.debt:.2f}" for one in rows], right=True, moving=True),
            Column("USED", [_used(one) for one in rows], right=True, moving=True),
            Column("SERVED", [_ordinal(one.rank) for one in rows]),
            Column("WAITING", [str(one.waiting) for one in rows], right=True),
        ],
        head=head,
        notes=[f"poise: {note}" for note in told.notes],
        nothing="poise: no shares; `poise shares apply FILE` sets some",
    )


def _amounts(amounts: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {model}" for model, amount in amounts.items())


def _used(one: "ShareReport") -> str:
    """Format a share's part of the debts on its level, as a percentage of its part of the weights there."""
    return "" if one.used is None or not one.share else f"{one.used / one.share:.0%}"


def _ordinal(rank: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(rank, f"{rank}th")


def _foreseen(told: "SharesForeseen") -> Shown:
    return Shown(
        told,
        [one.name for one in told.shares],
        [
            Column("SHARE", [one.name for one in told.shares]),
            Column("UNITS", [str(one.units) for one in told.shares], right=True),
            Column("WAITS NOW", [_wait(one.now) for one in told.shares], right=True),
            Column("WOULD WAIT", [_wait(one.then) for one in told.shares], right=True),
        ],
        notes=[f"poise: medians of {told.futures} futures of the twin"],
        nothing="poise: nothing waits, so that other shares change nothing now",
    )


def _wait(nanoseconds: int | None) -> str:
    return "not foreseen" if nanoseconds is None else format_duration(nanoseconds)
