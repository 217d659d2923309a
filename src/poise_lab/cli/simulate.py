"""`poise simulate` and `poise compare`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from poise.cli import output
from poise.cli.numbers import Number, WholeRange
from poise.cli.output import Column, Shown
from poise.cli.render import say, show_error
from poise.errors import InputError, SpecError, from_record
from poise.units import DAY, format_duration, parse_duration

if TYPE_CHECKING:  # imported late: these load the control plane and numpy
    from poise_lab.compare import Asked, Comparison, Watch

Function = TypeVar("Function", bound=Callable[..., Any])

KNOW = ("oracle", "estimated", "none")
LONGEST = 40_000 * DAY

COLUMNS = click.option(
    "--map", "columns", metavar="FIELD=COLUMN,…", help="Names of the columns of a CSV: `submit=created`."
)

TRACE_FLAGS = (
    click.option(
        "--fleet",
        type=click.Path(path_type=Path),
        metavar="FILE|HOME",
        help="Fleet file of the simulation, or a home whose nodes are used. [default: those of TRACE, if it is a home]",
    ),
    click.option("--format", "kind", metavar="NAME", help="Format of the trace. [default: detected]"),
    COLUMNS,
    click.option(
        "--throughputs",
        type=click.Path(path_type=Path),
        metavar="FILE|FOLDER",
        help="Rates of a trace of steps, or of elastic jobs.",
    ),
    click.option("--elastic", is_flag=True, help="Let jobs take any size, if the trace has their scaling."),
    click.option("--jobs", type=WholeRange(0), default=0, metavar="N", help="Use only the first N. [default: all]"),
    click.option("--last", metavar="TIME", help="Use only jobs of the last TIME of the trace: `7d`. [default: all]"),
    click.option(
        "--load", type=Number(), default=1.0, metavar="X", help="Multiply the arrival rate by X. [default: 1]"
    ),
    click.option(
        "--know", type=click.Choice(KNOW), default="estimated", help="Knowledge of run times. [default: estimated]"
    ),
    click.option("--seed", type=WholeRange(0, 2**53), default=0, metavar="N", help="Random seed. [default: 0]"),
    click.option(
        "--world",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="World file: costs of restarts, losses of nodes, …",
    ),
)

FLAGS = (
    *TRACE_FLAGS,
    click.option("--faults", multiple=True, metavar="NAME", help="A nemesis, by name or file. Repeatable."),
    click.option("--until", metavar="TIME", help="Stop at this time: `30d`. [default: when all jobs are over]"),
    click.option(
        "--every", metavar="TIME", help="Decide only at multiples of this: `360s`. [default: on every change]"
    ),
    click.option("--strict", is_flag=True, help="Refuse a trace with a row that cannot be read."),
    click.option(
        "--report", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with plots, for any browser."
    ),
)


def trial_flags(function: Function) -> Function:
    """Add the options that both commands share."""
    for flag in reversed(FLAGS):
        function = flag(function)
    return function


@click.command()
@click.option("--policy", default="poise", metavar="NAME|FILE", help="Scheduling policy. [default: poise]")
@trial_flags
@output.forms(*output.TEXT)
@click.argument("trace", type=click.Path(path_type=Path))
def simulate(policy: str, form: str, **flags: Any) -> int:
    """Run TRACE on a fleet in virtual time, with the live control plane and policy, and report its figures.

    TRACE is a file, or a home such as ~/.poise: the jobs of its log run again on its nodes.
    """
    report = flags["report"]
    told = _compared(asked_of(field="--policy", **flags), [policy], report)
    output.show(lambda: _one(told), form, False)
    _write(told, report)
    return 0


@click.command()
@click.option("--policies", required=True, metavar="NAME|FILE,…", help="Policies to compare.")
@trial_flags
@output.forms("table", "wide", "json")
@click.argument("trace", type=click.Path(path_type=Path))
def compare(policies: str, form: str, **flags: Any) -> int:
    """Run TRACE on a fleet in virtual time under each of several policies, and compare their figures: one row each, or
    one page with plots.

    TRACE is a file, or a home such as ~/.poise: the jobs of its log run again on its nodes.
    """
    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise InputError(
            "name each policy once", field="--policies", have=policies[:80] or "nothing", hint="`--policies fifo,poise`"
        )
    report = flags["report"]
    told = _compared(asked_of(field="--policies", **flags), names, report)
    output.show(lambda: _many(told), form, False)
    _write(told, report)
    return max((failure.exit_code for failure in told.failed), default=0)


def asked_of(
    *,
    field: str,
    trace: Path,
    fleet: Path | None,
    kind: str | None,
    columns: str | None,
    throughputs: Path | None,
    elastic: bool,
    jobs: int,
    last: str | None,
    load: float,
    know: Any,
    seed: int,
    world: Path | None,
    faults: tuple[str, ...] = (),
    until: str | None = None,
    every: str | None = None,
    strict: bool = False,
    report: Path | None = None,
) -> "Asked":
    """Return the request that the flags describe."""
    from poise_lab.compare import SPANS, Asked
    from poise_lab.traces.options import Options
    from poise_lab.traces.plain import parse_mapping

    options = Options(
        information=know,
        jobs=jobs,
        last=parsed_time(last, "--last"),
        load=load,
        seed=seed,
        strict=strict,
        columns=parse_mapping(columns) if columns else {},
        throughputs=throughputs,
        elastic=elastic,
    )
    options.check()
    return Asked(
        trace=trace,
        fleet=fleet,
        world=world,
        faults=faults,
        options=options,
        format=kind or "",
        seed=seed,
        until=parsed_time(until, "--until"),
        every=parsed_time(every, "--every"),
        spans=SPANS if report is not None else 0,
        field=field,
    )


def parsed_time(text: str | None, flag: str) -> int:
    from poise.model.fields import parse_or_raise

    if text is None:
        return 0
    time = parse_or_raise(parse_duration, text, flag, LONGEST)
    if not time:
        raise SpecError(
            "the time must be above 0", code="E103", field=flag, need="1ns or more", have=text, hint=f"{flag} 1h"
        )
    return time


def _compared(asked: "Asked", policies: Sequence[str], report: Path | None) -> "Comparison":
    from poise_lab.compare import compare
    from poise_lab.trial import remarks

    if report is not None:
        output.check_page(report, "--report")
    with _progress(policies) as watch:
        told = compare(asked, policies, watch)
    for note in told.notes:
        say(f"poise: {note}")
    for reason, count in told.skipped.items():
        say(f"poise: left out of the trace: {count:,} ({reason})")
    for failure in told.failed:
        say(f"poise: the trial of `{failure.policy}` failed\n")
        show_error(from_record(failure.error, 0), as_json=False)
        say("")
    for trial in told.trials:
        for remark in remarks(trial):
            say(f"poise: {remark}")
    return told


def _write(told: "Comparison", report: Path | None) -> None:
    """Write the page, if there is to be one, after the figures are printed: it may fail after hours of simulation."""
    if report is not None:
        from poise_lab.panels import render

        output.write_page(report, render(told), "--report")


@contextmanager
def _progress(policies: Sequence[str]) -> "Iterator[Watch]":
    """Show a progress bar per trial if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda number, far: None
        return
    from poise.drivers.screen import Progress, drawing

    with drawing(sys.stderr, transient=True) as screen:
        bars = Progress(screen, policies)
        yield lambda number, far: bars.at(number, far.over, far.jobs or None, format_duration(int(far.seconds * 1e9)))


def _one(told: "Comparison") -> Shown:
    from poise_lab.figures import figures, summary

    (trial,) = told.trials
    rows = figures(trial.measures)
    names = [name for name, _ in rows]
    columns = [Column("FIGURE", names), Column("VALUE", [value for _, value in rows])]
    return Shown(summary(told), names, columns, head=[_where(told, trial.policy)])


def _where(told: "Comparison", policy: str) -> str:
    devices = ", ".join(f"{count} {name}" for name, count in told.devices.items()) or "no devices"
    who = f"policy {policy}, " if policy else ""
    return f"{told.trace} on {told.fleet} ({told.nodes} nodes, {devices}); {who}run times {told.information}"


def _many(told: "Comparison") -> Shown:
    from poise_lab.figures import COLUMNS, summary

    names = [trial.policy for trial in told.trials]
    columns = [Column("POLICY", names)]
    for title, only, cell in COLUMNS:
        columns.append(Column(title, [cell(trial.measures) for trial in told.trials], right=True, only=only))
    return Shown(summary(told), names, columns, head=[_where(told, "")])
