"""`poise decisions`."""

import time
from collections.abc import Sequence

import click

from poise.cli import output
from poise.cli.moments import time_of
from poise.cli.numbers import WholeRange
from poise.cli.output import Column, Shown
from poise.cli.render import shorten
from poise.cli.words import filled
from poise.client import current_home
from poise.model.document import some
from poise.model.rounds import Decided, Made

ROUNDS = 20
"""Default number of rounds to show."""

WIDE = 100
"""Maximum width of a reason in a table; `-o wide` and the JSON show it in full."""


@click.command()
@click.option(
    "--since", metavar="TIME", help="Only rounds since this time: 2h (two hours ago), 14:30, … [default: all]"
)
@click.option(
    "--limit",
    type=WholeRange(1),
    default=ROUNDS,
    show_default=True,
    metavar="N",
    help="Show at most the latest N rounds.",
)
@click.option(
    "--node",
    default="",
    callback=filled,
    metavar="NODE",
    help="Only decisions for which this node was chosen or weighed.",
)
@output.forms("table", "wide", "json")
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
def decisions(jobs: tuple[str, ...], since: str | None, limit: int, node: str, form: str) -> int:
    """Show the latest scheduling rounds that decided something, for all jobs or for each JOB. A decision places,
    preempts, resizes or holds a unit. Each has its reason; `-o wide` adds the nodes that were not chosen, with their
    scores; the JSON has the terms of each score. The command reads the log, with or without a running control plane.
    """
    from poise.cli import offline

    begin = time_of(since, "--since") if since is not None else 0.0
    told = offline.decisions(current_home(), jobs, begin, limit, node)
    return output.show(lambda: _shown(told[::-1], form), form, False)


def _shown(told: Sequence[Decided], form: str) -> Shown:
    rows = [(one, made, number == 0) for one in told for number, made in enumerate(one.made)]
    left_out = sum(one.left_out for one in told)
    wide = form == "wide"
    return Shown(
        told,
        [str(one.revision) for one, _, _ in rows],
        [
            Column("ROUND", [str(one.revision) if first else "" for one, _, first in rows], right=True),
            Column("WHEN", [_moment(one.at) if first else "" for one, _, first in rows]),
            Column("POLICY", [one.policy if first else "" for one, _, first in rows], only="wide"),
            Column("VIEW", [str(one.base) if first else "" for one, _, first in rows], right=True, only="wide"),
            Column("FORCED BY", [", ".join(one.fired) if first else "" for one, _, first in rows], bare=True),
            Column("DECISION", [made.what for _, made, _ in rows]),
            Column("OF", [_subject(made, wide=wide) for _, made, _ in rows]),
            Column("ON", [", ".join(made.where) for _, made, _ in rows]),
            Column("INSTEAD OF", [_others(made) for _, made, _ in rows], only="wide", bare=True),
            Column("WHY", [made.why if wide else shorten(made.why, WIDE) for _, made, _ in rows]),
        ],
        notes=[f"poise: {left_out} more decisions of these rounds; `poise events --decisions` has all"]
        if left_out
        else [],
        nothing="poise: nothing was decided yet" if not told else "",
    )


def _subject(made: Made, *, wide: bool) -> str:
    names = list(made.of) if wide else list(made.of[:1])
    return some([*names, *[""] * (len(made.of) + made.more - len(names))], len(names))


def _others(made: Made) -> str:
    return ", ".join(name if score is None else f"{name} ({score:g})" for name, score in made.instead_of.items())


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
