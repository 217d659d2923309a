"""`poise faults`: the fault simulator."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import msgspec

from poise.cli.render import print_json, say
from poise.drivers.nemeses import keep_scenario, known_nemeses, read_scenario
from poise.engine.faults import Outcome, nemeses_of, shrink, try_scenario, try_seed
from poise.engine.scenario import Nemesis, Scenario, scenario_of
from poise.engine.world import Line
from poise.errors import NotFound
from poise.units import HOUR, SECOND, parse_duration

AT_ONCE = 20
"""Seeds that a worker is given at once."""


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", help="Try N seeds. [default: 100]")
@click.option("--first", type=click.IntRange(min=0), default=1, metavar="SEED", help="The first of them. [default: 1]")
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="SEED", help="Try this one, and print all that happens in it."
)
@click.option("--scenario", type=click.Path(path_type=Path), metavar="FILE", help="Run a scenario that was kept.")
@click.option(
    "--nemesis",
    multiple=True,
    metavar="NAME",
    help="Only this nemesis, by name or file. Repeatable. [default: by seed]",
)
@click.option("--until", metavar="TIME", help="Stop one seed or scenario there, e.g. 12.5s.")
@click.option(
    "--processes", type=click.IntRange(1, 256), default=2, metavar="N", help="Seeds side by side. [default: 2]"
)
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="DIR", help="Write what breaks a promise there, shrunk."
)
@click.option("--list", "listing", is_flag=True, help="List the nemeses.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def faults(
    seeds: int | None,
    first: int,
    seed: int | None,
    scenario: Path | None,
    nemesis: tuple[str, ...],
    until: str | None,
    processes: int,
    keep: Path | None,
    listing: bool,
    as_json: bool,
) -> int:
    """Run the real control plane and nodes in a simulated fleet, where everything breaks that a seed says, and check
    every promise at every step. Nothing of this machine is touched.

    Without --seed many are tried, each with nemeses of its own. Exit code 1: a promise was broken.
    """
    known = known_nemeses(nemesis)
    if listing:
        return _list(known, as_json)
    if scenario is not None or seed is not None:
        if seeds is not None:
            raise NotFound("`--seeds` tries many, `--seed` and `--scenario` one", field="--seeds", hint="leave one out")
        given = read_scenario(scenario) if scenario is not None else _made(seed or 0, known, bool(nemesis))
        return _one(given, until, keep, as_json)
    return _many(range(first, first + (seeds or 100)), known, nemesis, processes, keep, as_json)


def _list(known: dict[str, Nemesis], as_json: bool) -> int:
    if as_json:
        print_json([msgspec.to_builtins(nemesis) for nemesis in known.values()])
        return 0
    width = max(map(len, known))
    for name, nemesis in known.items():
        click.echo(f"{name:<{width}}  {nemesis.about}")
    return 0


def _made(seed: int, known: dict[str, Nemesis], given: bool) -> Scenario:
    return scenario_of(seed, tuple(known.values()) if given else nemeses_of(seed, known))


def _one(scenario: Scenario, until: str | None, keep: Path | None, as_json: bool) -> int:
    """Step through one, printing what happens."""

    def show(line: Line) -> None:
        click.echo(str(line))

    stop = parse_duration(until) if until else None
    outcome = try_scenario(scenario, until=stop, watch=None if as_json else show)
    if as_json:
        print_json(msgspec.to_builtins(outcome))
    elif outcome.promise:
        say(f"poise: {outcome.what}")
    else:
        say(f"poise: all promises kept for {outcome.seconds:.1f} s of simulated time; digest {outcome.digest}")
    if outcome.promise:
        _keep(scenario, outcome, keep)
    return int(bool(outcome.promise))


def _many(
    seeds: range, known: dict[str, Nemesis], only: tuple[str, ...], processes: int, keep: Path | None, as_json: bool
) -> int:
    began = time.monotonic()
    broken: list[Outcome] = []
    outcomes: list[Outcome] = []
    for outcome in _tried(seeds, known, tuple(known) if only else (), processes):
        outcomes.append(outcome)
        if outcome.promise:
            broken.append(outcome)
            say(f"poise: seed {outcome.seed}: {outcome.what}")
            _keep(_made(outcome.seed, known, bool(only)), outcome, keep)
    took = time.monotonic() - began
    summary = _summary(outcomes, broken, took)
    if as_json:
        print_json(summary)
        return int(bool(broken))
    click.echo(f"{'FAULT':<22}{'TIMES':>9}{'SEEDS':>9}{'BROKEN':>9}")
    for name, row in summary["faults"].items():
        click.echo(f"{name:<22}{row['times']:>9,}{row['seeds']:>9,}{row['broken']:>9,}")
    click.echo("")
    click.echo(
        f"{len(outcomes):,} seeds, {len(broken)} broke a promise; {summary['simulated_hours']:,.1f} h simulated in "
        f"{took:.0f} s ({summary['seeds_per_second']:.1f} seeds a second); {summary['events']:,} events, "
        f"{summary['starts']:,} commands; digest {summary['digest']}"
    )
    for outcome in broken[:10]:
        click.echo(f"seed {outcome.seed} ({', '.join(outcome.nemeses)}): {outcome.what}")
    if broken:
        say(f"hint: `poise faults --seed {broken[0].seed}` prints all that happens in it")
    return int(bool(broken))


def _tried(seeds: range, known: dict[str, Nemesis], only: tuple[str, ...], processes: int) -> Iterator[Outcome]:
    """In the order of the seeds."""
    if processes == 1:
        yield from (try_seed(seed, known, only) for seed in seeds)
        return
    work = partial(_try_some, known=known, only=only)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for some in pool.map(work, _cut(seeds)):
            yield from some


def _try_some(seeds: Sequence[int], known: dict[str, Nemesis], only: tuple[str, ...]) -> list[Outcome]:
    return [try_seed(seed, known, only) for seed in seeds]


def _cut(seeds: range) -> Iterator[list[int]]:
    left = iter(seeds)
    while some := list(islice(left, AT_ONCE)):
        yield some


def _summary(outcomes: list[Outcome], broken: list[Outcome], took: float) -> dict[str, Any]:
    times: Counter[str] = Counter()
    met: Counter[str] = Counter()
    guilty: Counter[str] = Counter()
    digest = 0
    for outcome in outcomes:
        digest = (digest * 31 + int(outcome.digest, 16)) & 0xFFFF_FFFF
        times.update(outcome.met)
        met.update(outcome.met.keys())
        guilty.update(outcome.met.keys() if outcome.promise else ())
    return {
        "seeds": len(outcomes),
        "broken": [msgspec.to_builtins(outcome) for outcome in broken],
        "faults": {name: {"times": times[name], "seeds": met[name], "broken": guilty[name]} for name in sorted(times)},
        "simulated_hours": sum(outcome.seconds for outcome in outcomes) * SECOND / HOUR,
        "seconds": took,
        "seeds_per_second": len(outcomes) / took,
        "events": sum(outcome.events for outcome in outcomes),
        "starts": sum(outcome.starts for outcome in outcomes),
        "digest": f"{digest:08x}",
    }


def _keep(scenario: Scenario, outcome: Outcome, folder: Path | None) -> None:
    if folder is not None:
        say("poise: making it smaller …")
        small = shrink(scenario, outcome.promise)
        path = keep_scenario(small, folder, f"{outcome.promise.lower()}-{scenario.seed}")
        say(f"poise: kept: {len(small.faults)} faults, {len(small.acts)} requests; `poise faults --scenario {path}`")
