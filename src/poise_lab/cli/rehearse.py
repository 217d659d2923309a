"""`poise rehearse`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from poise.cli import output
from poise.cli.numbers import Number, WholeRange
from poise.cli.output import Column, Shown
from poise.cli.render import say
from poise.errors import InputError
from poise.units import SECOND, format_duration
from poise_lab.cli.simulate import parsed_time

if TYPE_CHECKING:
    from poise_lab.rehearsal import Rehearsal


@click.command()
@click.option(
    "--world",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="World file: speeds and prices of replicas.",
)
@click.option("--routers", metavar="NAME,…", help="Routers to compare, for upstreams. [default: from FILE]")
@click.option("--scalers", metavar="NAME,…", help="Scalers to compare, for a service. [default: from FILE]")
@click.option(
    "--replicas", metavar="N|A..B,…", help="Numbers of replicas to compare, for a service. [default: from FILE]"
)
@click.option("--requests", type=WholeRange(0), default=0, metavar="N", help="Use only the first N. [default: all]")
@click.option("--until", metavar="TIME", help="Use only the requests of this first period: `1d`. [default: all]")
@click.option("--load", type=Number(), default=1.0, metavar="X", help="Multiply the request rate by X. [default: 1]")
@click.option(
    "--begins",
    metavar="TIME",
    help="Time of the first request, for announced load: 2026-12-01T08:00Z. [default: announced load is left out]",
)
@click.option("--column", default="", metavar="NAME", help="Column of a file of rates.")
@click.option("--seed", type=WholeRange(0, 2**53), default=0, metavar="N", help="Random seed. [default: 0]")
@click.option("--strict", is_flag=True, help="Refuse a trace with a row that cannot be read.")
@output.forms("table", "wide", "json")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.yaml")
@click.argument("trace", metavar="TRACE")
def rehearse(
    file: Path,
    trace: str,
    world: Path,
    routers: str | None,
    scalers: str | None,
    replicas: str | None,
    requests: int,
    until: str | None,
    load: float,
    begins: str | None,
    column: str,
    seed: int,
    strict: bool,
    form: str,
) -> int:
    """Simulate the requests of TRACE to the service, or the upstreams, of FILE.yaml in virtual time, with the live
    batching, routing and scaling. Print latencies, use and cost, one row for each router, scaler and number of
    replicas. TRACE has requests (Azure, BurstGPT, Mooncake) or rates (with `--column`), or is generated:
    `poisson:rate=50,requests=10000`, `clients:clients=12,think=400ms`.
    """
    from poise.model.spec import read_moment
    from poise_lab.rehearsal import Asked, rehearse
    from poise_lab.traces.loads import Wanted

    if not 1e-6 <= load <= 1e6:
        raise InputError("the load is out of range", code="E103", field="--load", need="1e-6 to 1e6", have=f"{load:g}")
    asked = Asked(
        file=file,
        requests=trace,
        world=world,
        routers=_names(routers, "--routers"),
        scalers=_names(scalers, "--scalers"),
        replicas=_names(replicas, "--replicas"),
        wanted=Wanted(requests=requests, until=parsed_time(until, "--until"), load=load, column=column, strict=strict),
        seed=seed,
        begins=None if begins is None else read_moment(begins, "--begins").timestamp(),
    )
    told = rehearse(asked)
    for note in told.notes:
        say(f"poise: {note}")
    for reason, count in told.skipped.items():
        say(f"poise: left out of the trace: {count:,} ({reason})")
    return output.show(lambda: _shown(told), form, False)


def _names(given: str | None, flag: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in (given or "").split(",") if name.strip())
    if len(set(names)) < len(names):
        raise InputError("give each name once", field=flag, have=str(given)[:80])
    return names


def _shown(told: "Rehearsal") -> Shown:
    import msgspec

    trials, of = told.trials, [trial.figures for trial in told.trials]
    who = (
        ("ROUTER", [trial.router for trial in trials]),
        ("REPLICAS", [trial.replicas for trial in trials]),
        ("SCALER", [trial.scaler for trial in trials]),
    )
    columns = [Column(title, cells, bare=True) for title, cells in who]
    for title, cells in (
        ("MEAN", [_latency(one.mean) for one in of]),
        ("P50", [_latency(one.p50) for one in of]),
        ("P95", [_latency(one.p95) for one in of]),
        ("P99", [_latency(one.p99) for one in of]),
        ("IN TIME", [f"{one.in_time:.1%}" for one in of]),
        ("NOT ANSWERED", [_why(one.not_answered) for one in of]),
        ("BUSY", [f"{one.mean_use:.0%}" for one in of]),
        ("REQ/S", [f"{one.per_second:.4g}" for one in of]),
        ("HOURS", [f"{one.hours:.4g}" for one in of]),
        ("COST", [f"${one.cost:,.2f}" if one.cost else "" for one in of]),
        ("REQ/S/$", [f"{one.per_dollar:.3g}" if one.cost else "" for one in of]),
    ):
        columns.append(Column(title, cells, right=True, bare=True))
    busy = [" ".join(f"{name} {use:.0%}" for name, use in one.use.items()) for one in of]
    columns.append(Column("EACH", busy, only="wide"))
    seconds = max((one.seconds for one in of), default=0.0)
    head = (
        f"{told.requests} at {told.file}, in the world {told.world}: {of[0].asked:,} requests in "
        f"{format_duration(round(seconds * SECOND))}; in time is {format_duration(told.objective)}"
    )
    return Shown(msgspec.to_builtins(told), [str(place) for place in range(len(trials))], columns, head=[head])


def _latency(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.1f} ms" if nanoseconds < SECOND else f"{nanoseconds / SECOND:.2f} s"


def _why(missed: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {why}" for why, count in missed.items())
