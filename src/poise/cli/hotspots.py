"""`poise hotspots`."""

import time

import click

from poise.cli import output
from poise.cli.numbers import WholeRange
from poise.cli.output import Column, Shown
from poise.cli.render import shorten
from poise.client import current_home
from poise.model.fields import MAX_DURATION, parse_or_raise
from poise.model.hotspots import ORDERS, HotSpots, Order
from poise.units import format_duration, parse_duration

WIDTH = 60


@click.command()
@click.option(
    "--by",
    "order",
    type=click.Choice(ORDERS),
    default="total",
    show_default=True,
    help="Sort by total time, by mean time, or by frequency.",
)
@click.option(
    "--since", metavar="DURATION", help="Count only steps that ended in the last DURATION, e.g. 24h. [default: all]"
)
@click.option("--limit", type=WholeRange(min=1), default=20, show_default=True, metavar="N", help="Number of rows.")
@output.forms(*output.TEXT)
def hotspots(order: Order, since: str | None, limit: int, form: str) -> int:
    """Show where the time of jobs goes, by class of work and step. The command reads the log, with or without a running
    control plane.

    Steps: waiting, starting, running, lost (attempts that did not succeed), saving (training that stalled for a
    checkpoint).
    """
    from poise.cli import offline

    home = current_home()
    offline.refuse_guest(home, "this", "`poise ls --all`")
    age = parse_or_raise(parse_duration, since, "--since", MAX_DURATION) if since is not None else 0
    begins = time.time_ns() - age if age else 0
    return output.show(lambda: _shown(offline.hot_spots(home, begins, order, limit)), form, False)


def _shown(found: HotSpots) -> Shown:
    spots = found.spots
    return Shown(
        found,
        [f"{spot.kind} {spot.step}" for spot in spots],
        [
            Column("CLASS", [shorten(spot.kind, WIDTH) for spot in spots]),
            Column("STEP", [spot.step for spot in spots]),
            Column("COUNT", [str(spot.count) for spot in spots], right=True),
            Column("TOTAL", [format_duration(spot.total) for spot in spots], right=True),
            Column("SHARE", [f"{spot.share / 10:.1f} %" for spot in spots], right=True),
            Column("MEAN", [format_duration(spot.mean) for spot in spots], right=True),
            Column("LONGEST", [format_duration(spot.longest) for spot in spots], right=True),
            Column("WHERE", [spot.where for spot in spots]),
            Column("WHY", [spot.why for spot in spots]),
        ],
        notes=[f"poise: {found.left_out} more; `--limit` shows them"] if found.left_out else [],
        nothing="poise: no task has been placed",
    )
