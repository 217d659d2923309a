"""Measure the calibration of `poise eta`: how often jobs start and end within its 80 % interval, and its width.

    python benchmarks/forecasts.py [--data ../shared/data] [--traces philly,gavel,…] [--loads 0.7,2]
        [--know estimated,none] [--policies fifo,poise] [--first 0] [--seeds 1] [--jobs 120] [--asked 15]
        [--futures 15] [--json] [LOG...]

Each row is a workload that runs in the twin, with the forecasts that `poise eta --check` would have made at submission,
from what was known then. `drawn` is a synthetic trace (Poisson arrivals, heavy-tailed run times in 20 classes) on 4
nodes of 8 devices. With `--data`, slices of real traces are added, from a random position by seed. Each has 2 x
`--jobs` jobs; forecasts are made for the first half, because only those can be overtaken. Arrivals are
stretched to the requested load: below 1 most jobs start soon, above it a queue builds up. `estimated` run times are
wrong by a factor of two for one job of five; with `none`, users declare none.

`below`, `within`, `above`: the fraction of jobs before P10, between P10 and P90, and after P90. The target is 75 to 85
% within. Guesses, and starts that were predicted to be immediate and were, are not counted. `width` is the median of
P90 - P10 over the median of P50. `score` is the mean interval score (Gneiting and Raftery, 2007: the width plus ten
times the distance outside the interval) over the mean of the outcomes; `log score` is the same for logarithms, in which
short jobs count as much as long ones. Lower is better for both.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import log
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any, NamedTuple

import clusters
import msgspec
from clusters import nodes_of
from harness import say

from poise.control.forecast import Checked, Coverage, check
from poise.drivers.logfile import open_log
from poise.drivers.plugins import policy_of
from poise.engine.lookahead import Bounds, Range
from poise.engine.twin import Twin
from poise.kernel.controller import ROUND, Settings
from poise.kernel.ledger import Ledger
from poise.model.events import Event, decode_event
from poise.model.resources import Node
from poise.model.workload import Seats, Workload
from poise.policy.suites import policy_named
from poise.units import SECOND
from poise_lab.traces.formats import read_trace
from poise_lab.traces.options import Information, Options
from poise_lab.traces.synthetic import Synthetic, generate

LEAST, MOST = 0.75, 0.85
MEDIAN, SPREAD = 600.0, 1.3
TIME = 3600.0
"""Time limit of one world in seconds: high enough that no job or unit is left out, so that only the seed decides."""

OUTSIDE = 10
"""Cost of a second outside an interval over one of its width: 2 / 0.2, for which the score is least at 80 %."""

GAVEL_TABLE, SHOCKWAVE_TABLE = "gavel/simulation_throughputs.json", "shockwave/tacc_throughputs.json"


class Trace(NamedTuple):
    """Files of one kind, of which the seed selects one, their fleet, and their table of throughputs."""

    files: str
    nodes: Callable[[], list[Node]]
    options: Options = Options()
    table: str = ""


FREE = Options(checkpoint=SECOND, restore=0, devices_per_node=1)
TRACES = {
    "gavel": Trace(
        "gavel/traces/gen_continuous_multi_*", lambda: nodes_of(clusters.gavel((8, 8, 8))), FREE, GAVEL_TABLE
    ),
    "philly": Trace("philly/philly.csv.gz", lambda: nodes_of({"P100": 8}, 8)),
    "pollux": Trace(
        "pollux-osdi21/workloads/workload-*.csv", lambda: nodes_of({"T4": 16}, 4), Options(devices_per_node=4)
    ),
    "elasticflow": Trace("elasticflow-itp/cluster*.csv.gz", lambda: nodes_of({"V100": 8}, 8)),
    "chronus": Trace("chronus-slo/trace_job*.csv.gz", lambda: nodes_of({"V100": 8}, 8)),
    "shockwave": Trace("shockwave/traces/*", lambda: nodes_of({"V100": 32}), FREE, SHOCKWAVE_TABLE),
}


class World(NamedTuple):
    name: str
    workload: Workload
    nodes: list[Node]


def drawn(information: Information, jobs: int, seed: int) -> World:
    spec = Synthetic(jobs=jobs, median=MEDIAN, spread=SPREAD, most=4, longest=86_400.0)
    options = Options(information=information, seed=seed)
    return World("drawn", generate(spec, options), nodes_of({"T4": 4}, 8))


def sliced(name: str, data: Path, information: Information, jobs: int, seed: int) -> World:
    """Return a number of consecutive jobs of a trace, from a position chosen by seed."""
    trace, draw = TRACES[name], Random(f"{name} {seed}")
    path, nodes = draw.choice(sorted(data.glob(trace.files))), trace.nodes()
    options = msgspec.structs.replace(trace.options, information=information, seed=seed)
    if trace.table:
        options = msgspec.structs.replace(options, throughputs=data / trace.table)
    read = read_trace(path, options)
    devices = sum(len(node.devices) for node in nodes)
    fit = [one for one in read.arrivals if sum(unit.shape.gpus * len(unit.tasks) for unit in one.units) <= devices]
    first = draw.randrange(max(1, len(fit) - jobs))
    return World(name, msgspec.structs.replace(read, arrivals=tuple(fit[first : first + jobs])), nodes)


def happened(world: World, policy: str, load: float, seed: int) -> list[Event]:
    """Return all events of a run whose arrivals are stretched to the requested load."""
    arrivals, nodes = world.workload.arrivals, world.nodes
    models = {device.model for node in nodes for device in node.devices}
    work = sum(
        fmean(one.truths[unit.name].pace.left(0.0, Seats((model,) * len(unit.tasks))) for model in models)
        * len(unit.tasks)
        * max(1, unit.shape.gpus)
        for one in arrivals
        for unit in one.units
    )
    first, last = arrivals[0].at, arrivals[-1].at
    slower = work * SECOND / sum(len(node.devices) for node in nodes) / load / max(1, last - first)
    events: list[Event] = []
    twin = Twin(
        policy_named(policy), Settings(seed=seed, throughputs=world.workload.throughputs), observe=events.append
    )
    twin.add_nodes(nodes)
    for one in arrivals:
        twin.arrive(msgspec.structs.replace(one, at=int((one.at - first) * slower)))
    twin.run()
    return events


def row(name: str, told: Sequence[Checked]) -> dict[str, Any]:
    made = [past for each in told for past in each.forecasts]
    starts = [(past.start, past.started) for past in made if past.start.p90 or past.started > ROUND]
    ends = [(past.finish, past.finished) for past in made if past.finish is not None]
    return {
        "world": name,
        "forecasts": len(made),
        "start": _together([each.start for each in told]) | _how_wide(starts),
        "finish": _together([each.finish for each in told]) | _how_wide(ends),
        "seconds": sum(each.seconds for each in told),
    }


def _together(parts: Sequence[Coverage]) -> dict[str, float]:
    count = sum(part.count for part in parts)
    return {"count": count} | {
        name: sum(getattr(part, name) * part.count for part in parts) / max(1, count) / 1000
        for name in ("earlier", "within", "later")
    }


def _how_wide(pairs: Sequence[tuple[Range, int]]) -> dict[str, float]:
    """Score the intervals that have an end; `never` is the fraction of the others."""
    known = [(of.p10, of.p50, of.p90, came) for of, came in pairs if None not in (of.p10, of.p50, of.p90)]
    told = [tuple((value or 0) / SECOND for value in one) for one in known]
    if not told:
        return {"width": 0.0, "score": 0.0, "log_score": 0.0, "never": float(bool(pairs))}
    logs = [tuple(log(1 + value) for value in one) for one in told]
    return {
        "width": median(high - low for low, _, high, _ in told) / max(1e-9, median(middle for _, middle, _, _ in told)),
        "score": fmean(map(_score, told)) / max(1e-9, fmean(came for *_, came in told)),
        "log_score": fmean(map(_score, logs)),
        "never": 1 - len(known) / len(pairs),
    }


def _score(told: Sequence[float]) -> float:
    low, _, high, came = told
    return high - low + OUTSIDE * max(0.0, low - came, came - high)


def rows(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    bounds = Bounds(given.futures, TIME)
    for name in given.traces.split(","):
        for load in map(float, given.loads.split(",")):
            for information in given.know.split(","):
                for policy in given.policies.split(","):
                    told = []
                    for seed in range(given.first, given.first + given.seeds):
                        if name == "drawn":
                            world = drawn(information, 2 * given.jobs, seed)
                        else:
                            world = sliced(name, given.data, information, 2 * given.jobs, seed)
                        events: Iterable[Event] = happened(world, policy, load, seed)
                        told.append(
                            check(
                                events,
                                Ledger(),
                                lambda began: policy_named(began.policy),
                                jobs=given.asked,
                                among=given.jobs,
                                bounds=bounds,
                            )
                        )
                    made = row(f"{name} {load:g}, {information}, {policy}", told)
                    say(f"{made['world']}: {made['seconds']:.0f} s")
                    yield made
    for path in given.logs:
        with open_log(path, decode_event) as recording:
            start = Ledger.decode(recording.start.state) if recording.start is not None else Ledger()
            looked = check(
                recording.events,
                start,
                lambda began: policy_of(began, anyway=True),
                jobs=given.asked * given.seeds,
                bounds=bounds,
            )
        yield row(path.name, [looked])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="*", type=Path, metavar="LOG")
    parser.add_argument("--data", type=Path, help="folder of the shared traces; without it only drawn worlds")
    parser.add_argument("--traces", default="")
    parser.add_argument("--loads", default="0.7,2")
    parser.add_argument("--know", default="estimated,none")
    parser.add_argument("--policies", default="fifo,poise")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=120)
    parser.add_argument("--asked", type=int, default=15)
    parser.add_argument("--futures", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.traces = given.traces or ",".join(["drawn", *(TRACES if given.data else ())])
    made = []
    if not given.json:
        print(f"{'':36}{'of':>7}{'count':>6}{'below':>7}{'within':>7}{'above':>7}{'width':>7}{'score':>8}{'log':>7}")
    for each in rows(given):
        made.append(each)
        if given.json:
            continue
        for what in ("start", "finish"):
            of = each[what]
            verdict = "met" if LEAST <= of["within"] <= MOST else "outside"
            verdict += f", {of['never']:.0%} never" if of["never"] else ""
            print(
                f"{each['world']:36}{what:>7}{of['count']:6}{of['earlier']:7.0%}{of['within']:7.0%}{of['later']:7.0%}"
                f"{of['width']:7.2f}{of['score']:8.3f}{of['log_score']:7.2f}  {verdict}",
                flush=True,
            )
    if given.json:
        print(json.dumps(made, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
