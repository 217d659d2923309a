"""`poise profile`."""

import time
from pathlib import Path

import click

from poise.cli import output
from poise.cli.calendars import CALENDAR, events_of
from poise.cli.output import Column, Shown
from poise.cli.render import LOGGED, say
from poise.client import current_home
from poise.control.start import connected, may_be_asked
from poise.model.usage import PROFILED, SIGNALS, NodeProfile, SignalUse, UnusualSignal, unless_announced

TITLES = {name: name.replace("_", " ").upper() for name in SIGNALS}


@click.command()
@CALENDAR
@output.rows
@click.argument("node", required=False)
def profile(form: str, watch: bool, calendar: Path | None, node: str | None) -> int:
    """Show the load history of nodes, their usage pattern, and advice; for NODE, every signal. The pattern of a node
    with devices uses its devices, that of another node its CPUs. Patterns: idle, steady, bursty, diurnal (busy and
    quiet at the same hours each day). Advice: `reserved` if a long-term price pays off, `on-demand` if the node is
    needed in bursts, `shrink` if it could be off at some hours or permanently, else `keep`. It is `keep` also if a
    calendar announces more load for these hours in the next seven days.
    """
    home = current_home()
    announced = [one for event in events_of(calendar) for one in event.announced]

    def told(found: list[NodeProfile]) -> Shown:
        return _shown([unless_announced(one, announced, time.time()) for one in found], node)

    if watch or may_be_asked(home):
        client = connected(home)
        return output.show(lambda: told(client.profiles(node or "")), form, watch)
    from poise.cli import offline

    say(LOGGED)
    return output.show(lambda: told(offline.profiles(home, node or "", time.time())), form, watch)


def _shown(found: list[NodeProfile], node: str | None) -> Shown:
    return _of_one(found[0]) if node else _of_all(found)


def _of_all(found: list[NodeProfile]) -> Shown:
    by = [one.signals.get(one.by) for one in found]
    return Shown(
        found,
        [one.node for one in found],
        [
            Column("NODE", [one.node for one in found]),
            Column("BY", [one.by or "-" for one in found]),
            Column("NOW", [_amount(one.by, use, "smoothed") for one, use in zip(found, by, strict=True)], right=True),
            Column("MEAN", [_amount(one.by, use, "mean") for one, use in zip(found, by, strict=True)], right=True),
            Column("P95", [_amount(one.by, use, "p95") for one, use in zip(found, by, strict=True)], right=True),
            Column("PEAK", [_amount(one.by, use, "peak") for one, use in zip(found, by, strict=True)], right=True),
            Column("PATTERN", [one.pattern or "-" for one in found]),
            Column("ADVICE", [one.advice or "-" for one in found]),
            Column("WHY", [one.why for one in found]),
        ],
        notes=["poise: there may be more nodes; `poise profile NODE` tells of any"] if len(found) == PROFILED else [],
        nothing="poise: no node has joined yet",
    )


def _of_one(one: NodeProfile) -> Shown:
    uses = one.signals
    told = f"{one.node}: {one.pattern}, {one.advice}; {one.why}" if one.pattern else f"{one.node}: {one.why}"
    return Shown(
        one,
        list(uses),
        [
            Column("SIGNAL", [TITLES[name].lower() for name in uses]),
            *(
                Column(title, [_amount(name, use, field) for name, use in uses.items()], right=True)
                for title, field in (
                    ("LAST", "last"), ("NOW", "smoothed"), ("MEAN", "mean"), ("P95", "p95"), ("PEAK", "peak")
                )
            ),
        ],
        head=[told, *(_unusual(name, of) for name, of in one.unusual.items())],
        nothing=f"poise: nothing has been seen of {one.node} yet; a first look takes up to twenty seconds",
    )  # fmt: skip


def _unusual(name: str, of: UnusualSignal) -> str:
    """Format a signal: `unusual: memory 91 %, usually 40 % at this hour of the week`."""
    when = "at this hour of the week" if of.by == "hour of week" else "in the last day"
    return f"unusual: {TITLES[name].lower()} {_value(name, of.value)}, usually {_value(name, of.usual)} {when}"


def _amount(signal: str, use: SignalUse | None, field: str) -> str:
    """Format a value: `42 %` or `310.5 W`."""
    if use is None:
        return "-"
    return _value(signal, getattr(use, field))


def _value(signal: str, value: int) -> str:
    return f"{value / 1000:.1f} W" if signal.endswith("power") else f"{value / 10:.0f} %"
