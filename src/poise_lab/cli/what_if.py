"""`poise what-if`: compare the forecast with a scenario. Nothing is changed."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from poise.cli import output
from poise.cli.calendars import CALENDAR, events_of
from poise.cli.eta import SHOWN, deciding, known_now, seconds_of, target_of, time_text
from poise.cli.numbers import WholeRange
from poise.cli.output import Column, Shown
from poise.client import current_home
from poise.errors import NotFound, SpecError
from poise.model.document import some
from poise.model.jobs import Priority

if TYPE_CHECKING:  # imported late: the twin loads numpy
    from collections.abc import Sequence

    from poise.engine.futures import Change
    from poise.engine.lookahead import Range
    from poise.kernel.ledger import Ledger
    from poise.model.resources import Node
    from poise.policy.suites import ClusterPolicy
    from poise_lab.what_if import Compared, Rerun, WhatIf

CLASSES = tuple(priority.name.lower() for priority in Priority)


@click.command()
@click.option("--policy", metavar="NAME|FILE", help="Scheduling policy of the scenario.")
@click.option(
    "--add", multiple=True, metavar="NxMODEL", help="Additional devices or nodes: 2xA100-80, or 2xNODE. Repeatable."
)
@click.option("--without", multiple=True, metavar="NODE", help="Remove this node. Repeatable.")
@click.option(
    "--priority",
    multiple=True,
    metavar="JOB=CLASS",
    help="Priority class of JOB: urgent, high, medium or low. Repeatable.",
)
@click.option("--from", "log", metavar="LOG|live", help="Replay LOG from its beginning instead. [default: live]")
@click.option(
    "--futures", type=WholeRange(2, 10_000), metavar="N", help="Number of pairs of simulated futures. [default: 50]"
)
@click.option("--budget", metavar="TIME", help="Maximum time for the simulation. [default: 10s]")
@click.option("--seed", type=WholeRange(0, 2**53), default=0, metavar="N", help="Random seed of the run times.")
@CALENDAR
@output.forms(*output.TEXT)
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
def what_if(
    jobs: tuple[str, ...],
    policy: str | None,
    add: tuple[str, ...],
    without: tuple[str, ...],
    priority: tuple[str, ...],
    log: str | None,
    futures: int | None,
    budget: str | None,
    seed: int,
    calendar: Path | None,
    form: str,
) -> int:
    """Compare the forecast with a what-if scenario, for each JOB (id, name, or JOB.TASK) and for all work. Nothing is
    changed. Both futures of a pair have the same run times. With --from, simulate the jobs of a log (a home, its
    log.db, or an exported file) once unchanged and once changed.
    """
    if not (policy or add or without or priority):
        raise click.UsageError(
            "nothing would be otherwise: name a change\n\nhint: `poise what-if --add 1xA100-80`, `--without NODE`, "
            "`--policy NAME`, `--priority JOB=high`"
        )
    if log is not None and log != "live":
        if priority or jobs or futures or budget or calendar:
            raise click.UsageError("`--from LOG` takes `--policy`, `--add` and `--without`, and no jobs")
        return _from_log(Path(log), policy, add, without, form)
    from poise.engine.futures import Change
    from poise.engine.lookahead import BUDGET, Bounds
    from poise_lab.what_if import PAIRS
    from poise_lab.what_if import what_if as compare

    events = events_of(calendar)
    ledger, now = known_now(current_home())
    decides, settings = deciding(ledger)
    other = _policy(policy, decides)
    nodes = [state.node for state in ledger.nodes.values() if state.status == "up"]
    raised = _priorities(ledger, priority)
    change = Change(joined=_joined(add, nodes), lost=_lost(without, nodes), priorities=raised)
    names = dict.fromkeys((*jobs, *raised))
    told = compare(
        ledger,
        settings,
        now,
        (decides, other),
        change,
        _words(policy, change, add),
        [target_of(ledger, name) for name in names],
        bounds=Bounds(futures or PAIRS, seconds_of(budget) if budget is not None else BUDGET),
        seed=seed,
        events=events,
    )
    return output.show(lambda: _shown(told), form, False)


def _from_log(path: Path, policy: str | None, add: tuple[str, ...], without: tuple[str, ...], form: str) -> int:
    from poise.engine.futures import Change
    from poise.kernel.ledger import Ledger
    from poise_lab.traces.poiselog import LOG
    from poise_lab.what_if import recorded_in, replay_changed

    file = path / LOG if path.is_dir() else path
    known = recorded_in(path)
    began = Ledger()
    if known.began is not None:
        began.apply(known.began)
    decides, _ = deciding(began)
    nodes = list(known.nodes.values())
    change = Change(joined=_joined(add, nodes), lost=_lost(without, nodes))
    told = replay_changed(file, known, (decides, _policy(policy, decides)), change, _words(policy, change, add))
    return output.show(lambda: _replayed(told), form, False)


def _policy(name: str | None, known: "ClusterPolicy") -> "ClusterPolicy":
    from poise.drivers.plugins import choose, tried

    return known if name is None else tried(choose(name))


def _joined(add: tuple[str, ...], nodes: "Sequence[Node]") -> "tuple[Node, ...]":
    from poise_lab.what_if import more_nodes

    return tuple(node for number, text in enumerate(add, start=1) for node in more_nodes(text, nodes, number))


def _lost(without: tuple[str, ...], nodes: "Sequence[Node]") -> tuple[str, ...]:
    from poise.kernel.find import find_node

    return tuple(dict.fromkeys(find_node([node.name for node in nodes], name) for name in without))


def _priorities(ledger: "Ledger", given: tuple[str, ...]) -> dict[str, Priority]:
    """Return the priorities by job. Raises `SpecError` and `NotFound`."""
    found: dict[str, Priority] = {}
    for text in given:
        name, equals, priority = text.rpartition("=")
        if not equals or priority not in CLASSES:
            raise SpecError(
                "this does not set a priority of a job",
                field="--priority",
                need=f"JOB={'|'.join(CLASSES)}",
                have=text[:80],
                hint=f"--priority {name or 'j1'}=high",
            )
        target = target_of(ledger, name)
        if target.called != target.job.id:
            raise NotFound(
                "here, a job has one priority for all its tasks",
                field="--priority",
                have=name,
                hint=f"--priority {target.job.id}=high",
            )
        found[target.job.id] = Priority[priority.upper()]
    return found


def _words(policy: str | None, change: "Change", add: tuple[str, ...]) -> list[str]:
    words = [f"policy {policy}"] if policy else []
    words += [f"with {text} more" for text in add]
    words += [f"without {name}" for name in change.lost]
    return words + [f"{job} {priority.name.lower()}" for job, priority in change.priorities.items()]


# --- drawing ---------------------------------------------------------------------------------------------------------


def _shown(told: "WhatIf") -> Shown:
    rows = told.figures
    columns = [
        Column("FIGURE", [row.figure for row in rows]),
        Column("AS IT IS", [_middle(row, row.now) for row in rows], right=True),
        Column("CHANGED", [_middle(row, row.then) for row in rows], right=True),
        *(
            Column(title, [_difference(row, getattr(row.difference, name)) for row in rows], right=True)
            for title, name in (("DIFFERENCE 10 %", "p10"), ("50 %", "p50"), ("90 %", "p90"))
        ),
    ]
    notes = [
        f"poise: {told.futures} pairs of futures of {told.units} units, each pair with the same run times, in "
        f"{told.seconds:.1f} s; as it is: `{told.policy}`"
    ]
    if told.futures < told.asked:
        notes.append(f"poise: there was no time for {told.asked - told.futures} more pairs; `--budget` gives more")
    if told.left_out:
        notes.append(f"poise: {told.left_out} more units wait, and were left out")
    if told.events:
        notes.append(f"poise: jobs arrive as the calendar says for {some(told.events, SHOWN)}")
    notes.append("poise: nothing has changed")
    head = [f"if: {', '.join(told.changes)}"] if rows else []
    nothing = "poise: nothing is unfinished"
    return Shown(told, [row.figure for row in rows], columns, head=head, notes=notes if rows else (), nothing=nothing)


def _middle(row: "Compared", of: "Range") -> str:
    if row.of == "count":
        return "-" if of.p50 is None else f"{of.p50}"
    return time_text(of.p50)


def _difference(row: "Compared", value: int | None) -> str:
    from poise.units import format_duration

    if value is None:
        return "for ever"
    if value == 0:
        return "none"
    text = f"{abs(value)}" if row.of == "count" else format_duration(abs(value))
    return f"{'+' if value > 0 else '-'}{text}"


def _replayed(told: "Rerun") -> Shown:
    from poise_lab.figures import figures

    now, then = dict(figures(told.now)), dict(figures(told.then))
    names = list(dict.fromkeys((*now, *then)))
    columns = [
        Column("FIGURE", names),
        Column("AS IT WAS", [now.get(name, "-") for name in names]),
        Column("CHANGED", [then.get(name, "-") for name in names]),
    ]
    notes = [f"poise: {count} jobs of the log left out: {why}" for why, count in told.skipped.items()]
    notes += [f"poise: changed: {remark}" for remark in told.remarks]
    head = [f"{told.log} on its {told.nodes} nodes under {told.policy}; if: {', '.join(told.changes)}"]
    return Shown(told, names, columns, head=head, notes=notes)


__all__ = ["what_if"]
