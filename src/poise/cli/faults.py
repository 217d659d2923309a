"""`poise faults`: the fault simulator. It imports the whole control plane, so only when it runs."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from poise.cli.numbers import WholeRange
from poise.cli.render import print_json, say
from poise.errors import InputError
from poise.units import DAY, HOUR, SECOND, parse_duration

if TYPE_CHECKING:
    from poise.engine.scenario import Nemesis, Scenario
    from poise.engine.seeds import Outcome
    from poise.engine.simulation import Moment

AT_ONCE = 20
"""Number of seeds per batch of a worker."""

TELL_EVERY = 5.0
"""Seconds between progress notes on a terminal."""

BROKEN = 2
"""Exit code for a broken promise, which is a fault of Poise."""


@click.command()
@click.option("--seeds", type=WholeRange(1, 10**9), metavar="N", help="Number of seeds. [default: 100]")
@click.option("--first", type=WholeRange(0, 2**53), metavar="SEED", help="First seed. [default: 1]")
@click.option("--seed", type=WholeRange(0, 2**53), metavar="SEED", help="Run only this seed, and print every event.")
@click.option("--scenario", type=click.Path(path_type=Path), metavar="FILE", help="Run a kept scenario.")
@click.option(
    "--nemesis",
    multiple=True,
    metavar="NAME",
    help="Use only this nemesis, by name or file. Repeatable. [default: by seed]",
)
@click.option("--until", metavar="TIME", help="Stop a seed or scenario at this time, e.g. 12.5s.")
@click.option(
    "--processes", type=WholeRange(1, 256), default=2, metavar="N", help="Number of parallel processes. [default: 2]"
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write a minimal scenario of each failing seed to this folder.",
)
@click.option("--list", "listing", is_flag=True, help="List the nemeses.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def faults(
    seeds: int | None,
    first: int | None,
    seed: int | None,
    scenario: Path | None,
    nemesis: tuple[str, ...],
    until: str | None,
    processes: int,
    keep: Path | None,
    listing: bool,
    as_json: bool,
) -> int:
    """Run the real control plane and nodes in a simulated fleet with random faults from a seed, and check every promise
    at every step. Nothing on this machine is affected. Without --seed, run many seeds, each with its own nemeses. Exits
    with 2 if a promise was broken.
    """
    from poise.drivers.nemeses import known_nemeses, read_scenario

    one = seed is not None or scenario is not None
    alone = {"--list": listing, "--seed": seed is not None, "--scenario": scenario is not None}
    _exclude(alone | {"--seeds": seeds is not None}, alone | {"--first": first is not None})
    if until is not None and not one:
        raise click.UsageError("`--until` stops one seed, or one scenario: `--seed N --until 12.5s`")
    stop = _instant(until) if until is not None else None
    known = known_nemeses(nemesis, "--nemesis")
    if keep is not None:
        _make(keep)
    if listing:
        return _list(known, as_json)
    if scenario is not None:
        return _one(read_scenario(scenario), (), stop, keep, as_json)
    if seed is not None:
        made, names = _made(seed, known, bool(nemesis))
        return _one(made, names, stop, keep, as_json)
    begin = 1 if first is None else first
    return _many(range(begin, begin + (seeds or 100)), known, nemesis, processes, keep, as_json)


def _exclude(*alternatives: dict[str, bool]) -> None:
    for options in alternatives:
        given = [name for name, is_given in options.items() if is_given]
        if len(given) > 1:
            raise click.UsageError(f"`{given[0]}` and `{given[1]}` exclude each other")


def _instant(text: str) -> int:
    from poise.model.fields import parse_or_raise

    return parse_or_raise(parse_duration, text, "--until", DAY)


def _make(folder: Path) -> None:
    """Create the folder first, so that a long run does not fail at the end."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "`--keep DIR`, a folder that is there or can be made"
        raise InputError("this folder is not writable", field="--keep", have=str(error), hint=hint) from None


def _list(known: "dict[str, Nemesis]", as_json: bool) -> int:
    if as_json:
        print_json([msgspec.to_builtins(nemesis) for nemesis in known.values()])
        return 0
    width = max(map(len, known))
    for name, nemesis in known.items():
        click.echo(f"{name:<{width}}  {nemesis.about}")
    return 0


def _made(seed: int, known: "dict[str, Nemesis]", given: bool) -> "tuple[Scenario, tuple[str, ...]]":
    from poise.engine.scenario import scenario_of
    from poise.engine.seeds import nemeses_of

    nemeses = tuple(known.values()) if given else nemeses_of(seed, known)
    return scenario_of(seed, nemeses), tuple(nemesis.name for nemesis in nemeses)


def _one(scenario: "Scenario", names: tuple[str, ...], stop: int | None, keep: Path | None, as_json: bool) -> int:
    """Run one scenario and print its events."""
    from poise.engine.seeds import try_scenario

    def show(moment: "Moment") -> None:
        click.echo(str(moment))

    if not as_json:
        nodes = ", ".join(f"{node.name} ({node.cpu / 1000:g} CPU, {len(node.devices)} GPU)" for node in scenario.nodes)
        say(f"poise: policy {scenario.policy}; {nodes}; nemeses {', '.join(names) or 'as kept'}")
    outcome = try_scenario(scenario, until=stop, watch=None if as_json else show)
    outcome = msgspec.structs.replace(outcome, nemeses=names)
    if as_json:
        print_json(msgspec.to_builtins(outcome))
    elif outcome.promise:
        say(f"poise: {outcome.what}")
    elif stop is not None and stop < scenario.ends:
        say(f"poise: S1 to S8 kept up to {outcome.seconds:.1f} s, L1 to L4 come at the end; digest {outcome.digest}")
    else:
        say(f"poise: all promises kept for {outcome.seconds:.1f} s of simulated time; digest {outcome.digest}")
    if outcome.promise:
        _keep(scenario, outcome, keep)
    return BROKEN if outcome.promise else 0


def _many(
    seeds: range, known: "dict[str, Nemesis]", only: tuple[str, ...], processes: int, keep: Path | None, as_json: bool
) -> int:
    began = told = time.monotonic()
    outcomes: list[Outcome] = []
    broken: list[Outcome] = []
    interrupted = False
    try:
        for outcome in _tried(seeds, known, tuple(known) if only else (), processes):
            outcomes.append(outcome)
            if outcome.promise:
                broken.append(outcome)
                say(f"poise: seed {outcome.seed}: {outcome.what}")
                _keep(_made(outcome.seed, known, bool(only))[0], outcome, keep)
            if sys.stderr.isatty() and time.monotonic() - told >= TELL_EVERY:
                told = time.monotonic()
                say(f"poise: {len(outcomes):,} of {len(seeds):,} seeds, {len(broken)} broke a promise")
    except KeyboardInterrupt:
        interrupted = True
        say(f"poise: interrupted after {len(outcomes):,} of {len(seeds):,} seeds")
    summary = _summary(outcomes, broken, time.monotonic() - began)
    if as_json:
        print_json(summary)
    else:
        _show(summary, broken, only)
    return 130 if interrupted else BROKEN if broken else 0


def _show(summary: dict[str, Any], broken: "list[Outcome]", only: tuple[str, ...]) -> None:
    click.echo(f"{'FAULT':<22}{'TIMES':>9}{'SEEDS':>9}{'BROKEN':>9}")
    for name, row in summary["faults"].items():
        click.echo(f"{name:<22}{row['times']:>9,}{row['seeds']:>9,}{row['broken']:>9,}")
    click.echo("")
    click.echo(
        f"{summary['seeds']:,} seeds, {len(broken)} broke a promise; {summary['simulated_hours']:,.1f} h simulated in "
        f"{summary['seconds']:.0f} s ({summary['seeds_per_second']:.1f} seeds a second); {summary['events']:,} events, "
        f"{summary['starts']:,} commands; digest {summary['digest']}"
    )
    for outcome in broken[:10]:
        click.echo(f"seed {outcome.seed} ({', '.join(outcome.nemeses)}): {outcome.what}")
    if broken:
        same = "".join(f" --nemesis {name}" for name in only)
        say(f"hint: `poise faults --seed {broken[0].seed}{same}` prints every event")


def _tried(seeds: range, known: "dict[str, Nemesis]", only: tuple[str, ...], processes: int) -> "Iterator[Outcome]":
    """Yield the outcomes in the order of the seeds."""
    if processes == 1:
        for some in _cut(seeds):
            yield from _try_some(some, known, only)
        return
    work = partial(_try_some, known=known, only=only)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            for outcomes in pool.map(work, _cut(seeds)):
                yield from outcomes
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _try_some(seeds: Sequence[int], known: "dict[str, Nemesis]", only: tuple[str, ...]) -> "list[Outcome]":
    from poise.engine.seeds import try_seed

    return [try_seed(seed, known, only) for seed in seeds]


def _cut(seeds: range) -> Iterator[list[int]]:
    left = iter(seeds)
    while some := list(islice(left, AT_ONCE)):
        yield some


def _summary(outcomes: "list[Outcome]", broken: "list[Outcome]", took: float) -> dict[str, Any]:
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
        "seeds_per_second": len(outcomes) / max(took, 1e-9),
        "events": sum(outcome.events for outcome in outcomes),
        "starts": sum(outcome.starts for outcome in outcomes),
        "digest": f"{digest:08x}",
    }


def _keep(scenario: "Scenario", outcome: "Outcome", folder: Path | None) -> None:
    from poise.drivers.nemeses import keep_scenario
    from poise.engine.seeds import shrink

    if folder is not None:
        say("poise: reducing the scenario …")
        small = shrink(scenario, outcome.promise)
        path = keep_scenario(small, folder, f"{outcome.promise.lower()}-{scenario.seed}")
        say(f"poise: kept: {len(small.incidents)} faults, {len(small.acts)} requests; `poise faults --scenario {path}`")
