"""`poise forecast`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from poise.cli import output
from poise.cli.calendars import CALENDAR, events_of
from poise.cli.numbers import WholeRange
from poise.cli.output import Column, Shown
from poise.client import current_home
from poise.errors import SpecError
from poise.model.fields import parse_or_raise
from poise.units import DAY, MINUTE, SECOND, format_duration, parse_duration

if TYPE_CHECKING:  # the ledger imports numpy
    from poise.model.reports.services import LoadForecast

BY = ("fleet", "tenant", "class", "priority", "service")
COUNTED = ("units", "devices", "cores")
MOST_WINDOWS = 336


@click.command()
@click.option("--by", type=click.Choice(BY), default="fleet", show_default=True, help="Forecast for each of these.")
@click.option(
    "--count",
    "counted",
    type=click.Choice(COUNTED),
    help="Count submitted units, or the devices or cores that they ask for. [default: units]",
)
@click.option("--window", metavar="TIME", default="1h", show_default=True, help="Length of a window: 5m to 1d.")
@click.option(
    "--windows", "horizon", type=WholeRange(1, MOST_WINDOWS), default=24, show_default=True, help="Number of windows."
)
@CALENDAR
@output.forms(*output.TEXT)
@click.argument("names", nargs=-1, metavar="[NAME]...")
def forecast(
    names: tuple[str, ...],
    by: str,
    counted: str | None,
    window: str,
    horizon: int,
    calendar: Path | None,
    form: str,
) -> int:
    """Forecast the load of the next hours: submitted work by fleet, tenant, class or priority, or requests per second
    by service. The command reads the log, with or without a running control plane.

    The interval holds 80 % of windows. The last lines tell how often past intervals did, and the mean error of the
    forecast beside that of simple ones. Turns of schedules and jobs with `--begin` are included at their times. Events
    of a calendar multiply the load, or make a day like another day of the week.
    """
    from poise.cli import offline

    length = parse_or_raise(parse_duration, window, "--window", DAY)
    if length < 5 * MINUTE or DAY % length:
        need, hint = "a part of a day, from 5m to 1d", "--window 1h"
        raise SpecError(
            "windows of this length do not fit into a day", field="--window", need=need, have=window, hint=hint
        )
    counts = "requests per second" if by == "service" else counted or "units"
    if by == "service" and counted is not None:
        what, hint = "requests are counted for services", "leave `--count` out"
        raise SpecError(what, field="--count", need="nothing", have=counted, hint=hint)
    told = offline.load_forecasts(current_home(), length, horizon, by, counts, names, events_of(calendar))
    return output.show(lambda: _shown(told, by), form, False)


def _shown(told: "Sequence[LoadForecast]", by: str) -> Shown:
    rows = [(one, window) for one in told for window in one.windows]
    return Shown(
        told,
        [f"{one.subject} {_clock(window.at)}" for one, window in rows],
        [
            Column(by.upper(), [one.subject for one, _ in rows]),
            Column("FROM", [_clock(window.at) for _, window in rows]),
            Column("EXPECTED", [f"{window.expected:.1f}" for _, window in rows], right=True),
            Column("P10", [_amount(window.low) for _, window in rows], right=True),
            Column("P90", [_amount(window.high) for _, window in rows], right=True),
            Column(
                "SCHEDULED",
                [f"{window.announced:g}" if window.announced else "" for _, window in rows],
                right=True,
                bare=True,
            ),
            Column("EVENTS", [", ".join(window.events) for _, window in rows], bare=True),
        ],
        notes=[_accuracy(one) for one in told],
        nothing="poise: no service was reported yet" if by == "service" else "poise: nothing was submitted yet",
    )


def _clock(at: float) -> str:
    return time.strftime("%a %H:%M", time.localtime(at))


def _amount(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _accuracy(one: "LoadForecast") -> str:
    found = one.accuracy[0]
    ahead = format_duration(round(found.ahead * SECOND))
    if not found.judged:
        return f"poise: {one.subject}: {one.seen} past windows are too few for intervals"
    return (
        f"poise: {one.subject}, {ahead} ahead: {found.coverage:.0%} of {found.judged} past intervals held the load; "
        f"mean error {found.error:.2f}, one season before {found.naive:.2f}, largest of six {found.max_of_six:.2f}"
    )
