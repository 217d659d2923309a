"""Measure regret: the distance of each policy from the best of all, over random worlds and slices of real traces.

    python benchmarks/regret.py [--first 1] [--worlds 60] [--redraws 0] [--traces] [--data ../shared/data]
        [--policies poise,fifo,…] [--known FILE] [--each] [--json]

A *world* is a fleet, a workload and the policies' knowledge of it, drawn from one seed: the size of the fleet and its
mix of models, load from 0.3 to 2, gangs, tails of run times, errors of estimates from none to useless, the fraction of
jobs with a deadline and its tightness, the fraction of elastic jobs and their scaling, priority classes and weights,
the cost of preemption, and services. With `--traces`, slices of every real trace under `--data` are added.

A policy's *regret* in a world is its distance from the best of all policies: in mean completion and P99 waiting
relative to the best (each second of a job is weighted by its class and weight), in deadlines met and in the worst
finish-time fairness as a difference. Worlds on which a policy was tuned prove nothing: publish results with a `--first`
of unused seeds. `--known` saves the measurements of the other policies in a file.

The best of several policies in one world is in part the luckiest. `--redraws` draws other jobs of the same description
for each world, and adds a table of the regrets of the averages over all draws of a world: geometric means of
completions and waits, means of the rest. Luck has less effect on those, the more draws there are.
"""

import argparse
import json
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from math import exp, inf, log
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import Any, NamedTuple

import msgspec
from clusters import gavel, nodes_of

from poise.kernel.controller import Settings
from poise.model.jobs import CLASS_WEIGHT, Priority, Task, Unit
from poise.model.progress import Speedups
from poise.model.resources import Device, Node, Shape
from poise.model.workload import Arrival, Scaling, Seats, Steady, Truth, Workload
from poise.policy.suites import ClusterPolicy, policy_named
from poise.units import HOUR, MINUTE, SECOND
from poise_lab.traces.formats import read_trace
from poise_lab.traces.options import Information, Options
from poise_lab.trial import simulate

POLICIES = "poise,fifo,sjf,srtf,las,tiresias,goodput,edf,elasticflow"
SPEEDS = {"H100": 1.0, "A100": 0.55, "V100": 0.25}
JOBS = 150
LONGEST = 60.0
"""CPU seconds after which a policy counts as not terminating."""

UNIT = "main"
SERVICE = "service"
AGAIN = " again "
INFORMATION: tuple[Information, ...] = ("estimated", "none")


class World(NamedTuple):
    """`about` describes the world; `make` generates its fleet and workload."""

    name: str
    about: dict[str, Any]
    make: Callable[[], tuple[list[Node], Workload]]


class Tells(msgspec.Struct, frozen=True):
    """An elastic job that reports its scaling."""

    scaling: Scaling

    def speedups(self, progress: float, seats: Seats, most: int, /, *, spread: bool) -> Speedups:
        together = tuple(round(1000 * self.scaling.speedup(tasks, 0)) for tasks in range(1, most + 1))
        return Speedups(together, tuple(round(1000 * self.scaling.speedup(tasks, 1)) for tasks in range(1, most + 1)))


# --- worlds that are drawn -------------------------------------------------------------------------------------------


def drawn(seed: int, again: int = 0) -> World:
    """Return the world of a seed; with `again`, one of the same description with other jobs."""
    draw = random.Random(f"regret {seed}")
    pick = draw.choice
    about: dict[str, Any] = {
        "models": pick([1, 1, 2, 3]),
        "wide": pick([1, 4, 8]),
        "devices": pick([8, 16, 32, 64, 128]),
        "load": round(draw.uniform(0.3, 2.0), 2),
        "arriving": pick(["poisson", "poisson", "bursty", "at once"]),
        "sizes": pick(["single", "small", "mixed", "mixed", "large"]),
        "tail": pick([0.5, 1.0, 1.5, 2.0]),
        "error": pick([0.0, 0.3, 0.54, 0.54, 1.0, 2.0, None]),
        "deadlines": pick([0.0, 0.0, 0.3, 0.7, 1.0]),
        "slack": pick([1.5, 3.0, 10.0]),
        "elastic": pick([0.0, 0.0, 0.5, 1.0]),
        "resizes": pick([True, False]),
        "classes": pick([False, False, True]),
        "weights": pick([False, False, True]),
        "checkpoint": pick([0, 60, 600, 600]),
        "restore": pick([0, 30, 120]),
        "services": pick([0.0, 0.0, 0.2]),
    }
    which = f"{seed}{AGAIN}{again}" if again else f"{seed}"
    return World(f"drawn {which}", about, partial(_make, f"world {which}", about))


def _make(seed: str, about: dict[str, Any]) -> tuple[list[Node], Workload]:
    draw = random.Random(seed)
    models = draw.sample(list(SPEEDS), about["models"])
    count = max(1, about["devices"] // about["wide"])
    names = [models[number * len(models) // count] for number in range(count)]
    nodes = [_node(f"n{number:03}", name, about["wide"]) for number, name in enumerate(names)]
    here = {name: names.count(name) * about["wide"] for name in dict.fromkeys(names)}
    classes = [_class(number, about, draw) for number in range(10)]
    jobs = []
    for number in range(JOBS):
        kind, typical, rates, loss = draw.choice(classes)
        best = max(rates[name] for name in here)
        rates = {name: rates[name] / best for name in here}
        within = min(0.4, about["tail"])
        seconds = min(5 * 86400.0, 1200 * exp(typical + draw.gauss(0, within)))
        widest = max(here.values()) // 2 or 1
        jobs.append((number, kind, seconds, min(widest, _size(about["sizes"], draw)), rates, loss))
    speed = {kind: fmean(rates[name] for name in names) / max(rates.values()) for _, kind, _, _, rates, _ in jobs}
    work = sum(seconds * size / speed[kind] for _, kind, seconds, size, _, _ in jobs)
    span = work / sum(here.values()) / about["load"]
    arrivals = [
        _job(*job, at=at, about=about, draw=draw) for job, at in zip(jobs, _instants(about, span, draw), strict=True)
    ]
    busy = int(about["services"] * sum(here.values()))
    arrivals += [_service(number, span, draw) for number in range(busy)]
    throughputs = {f"{kind}@{name}": rates[name] for kind, _, rates, _ in classes for name in here}
    known = throughputs if about["models"] > 1 else {}
    return nodes, Workload(
        name=seed, arrivals=tuple(sorted(arrivals, key=lambda one: one.at)), throughputs=known, skipped={}
    )


def _node(name: str, model: str, wide: int) -> Node:
    devices = tuple(Device(index=index, memory=2**36, uuid=f"{name}-{index}", model=model) for index in range(wide))
    return Node(name=name, incarnation="1", cpu=2**30, memory=2**40, devices=devices)


def _class(number: int, about: dict[str, Any], draw: random.Random) -> tuple[str, float, dict[str, float], float]:
    between = max(0.0, about["tail"] ** 2 - min(0.4, about["tail"]) ** 2) ** 0.5
    rates = {name: speed * draw.lognormvariate(0, 0.3) for name, speed in SPEEDS.items()}
    return f"class-{number}", draw.gauss(0, between), rates, draw.choice([0.0, 0.02, 0.1, 0.3])


def _size(sizes: str, draw: random.Random) -> int:
    if sizes == "single":
        return 1
    if sizes == "small":
        return draw.choice([1, 1, 1, 2, 4])
    if sizes == "mixed":
        return draw.choice([1, 1, 1, 1, 2, 2, 4, 8, 16])
    return draw.choice([1, 2, 4, 8, 16, 32])


def _instants(about: dict[str, Any], span: float, draw: random.Random) -> list[float]:
    if about["arriving"] == "at once":
        return [draw.uniform(0, span / 100) for _ in range(JOBS)]
    if about["arriving"] == "poisson":
        return [draw.uniform(0, span) for _ in range(JOBS)]
    peaks = [draw.uniform(0, span) for _ in range(6)]
    return [min(span, max(0.0, draw.gauss(draw.choice(peaks), span / 60))) for _ in range(JOBS)]


def _job(
    number: int, kind: str, seconds: float, size: int, rates: dict[str, float], loss: float, *,
    at: float, about: dict[str, Any], draw: random.Random,
) -> Arrival:  # fmt: skip
    elastic = draw.random() < about["elastic"]
    wide, scaling = about["wide"], Scaling(loss=loss, apart=(1.0, 0.95, 0.95, 0.95))
    noise, error = draw.gauss(0, 1), about["error"]
    due = draw.random() < about["deadlines"]
    loosest = draw.uniform(1.1, about["slack"])
    priority = Priority(draw.choice([0, 1, 2, 2, 2, 3])) if about["classes"] else Priority.MEDIUM
    weight = draw.choice([500, 1000, 1000, 3000]) if about["weights"] else 1000
    if elastic:
        tasks, least, gpus, alone = min(2 * size, 16), 1, 1, seconds * scaling.speedup(size)
    else:
        tasks, least, gpus, alone = (1, 0, size, seconds) if size <= wide else (size // wide, 0, wide, seconds)
    checkpoint, restore = about["checkpoint"] * SECOND, about["restore"] * SECOND
    unit = Unit(
        name=UNIT,
        tasks=_tasks(tasks),
        least=least,
        shape=Shape(cpu=0, gpus=gpus),
        priority=priority,
        weight=weight,
        deadline=round(seconds * loosest * SECOND) if due else 0,
        expect=0 if error is None else max(1, round(alone * exp(noise * error) * SECOND)),
        kind=kind,
        checkpoint=checkpoint,
        restore=restore,
    )
    truth = Truth(
        pace=Steady(alone, 1 if elastic else tasks, rates, scaling),
        checkpoint=checkpoint,
        saves=checkpoint > 0,
        restore=restore,
        reports=error is not None,
        telling=Tells(scaling) if elastic else None,
        resizes=elastic and about["resizes"],
    )
    return Arrival(at=round(at * SECOND), units=(unit,), truths={UNIT: truth}, name=f"job-{number}")


def _service(number: int, span: float, draw: random.Random) -> Arrival:
    """Return a service replica that takes one device for a quarter of the time, and has users waiting for it."""
    unit = Unit(
        name=UNIT, tasks=_tasks(1), shape=Shape(cpu=0, gpus=1), priority=Priority.URGENT, preemptible=False,
        kind=SERVICE, expect=round(span / 4 * SECOND),
    )  # fmt: skip
    truths = {UNIT: Truth(pace=Steady(span / 4))}
    return Arrival(at=round(draw.uniform(0, span) * SECOND), units=(unit,), truths=truths, name=f"{SERVICE}-{number}")


def _tasks(count: int) -> tuple[Task, ...]:
    if count == 1:
        return (Task(name=UNIT, argv=("none",)),)
    return tuple(Task(name=f"{UNIT}[{rank}]", argv=("none",), rank=rank, world=count) for rank in range(count))


# --- slices of real traces -------------------------------------------------------------------------------------------


def traces(data: Path, seed: int) -> Iterator[World]:
    """Yield slices of each trace, with a few fleets each: short enough to run quickly, from a position chosen
    by seed.
    """
    free = Options(checkpoint=SECOND, restore=0, devices_per_node=1)
    gavel_table, shockwave_table = data / "gavel/simulation_throughputs.json", data / "shockwave/tacc_throughputs.json"
    for file, cluster, jobs in (
        ("max_min_fairness.trace", (8, 16, 24), 96),
        ("minimize_makespan.trace", (8, 16, 24), 100),
        ("artifact_evaluation.trace", (2, 2, 2), 15),
    ):
        options = msgspec.structs.replace(free, throughputs=gavel_table, jobs=jobs)
        yield _slice(f"gavel {file}", data / "gavel/traces" / file, nodes_of(gavel(cluster)), options, seed)
    for path in sorted((data / "shockwave/traces").iterdir()):
        options = msgspec.structs.replace(free, throughputs=shockwave_table)
        yield _slice(f"shockwave {path.name[:3]}", path, nodes_of({"V100": 32}), options, seed)
    for path in sorted((data / "pollux-osdi21/workloads").glob("workload-*.csv")):
        for elastic in (False, True):
            for know in INFORMATION:
                name = f"pollux {path.stem[-1]}{' elastic' if elastic else ''} {know}"
                options = Options(devices_per_node=4, elastic=elastic, information=know)
                yield _slice(name, path, nodes_of({"T4": 16}, 4), options, seed)
    for load, count in ((1.0, 60), (1.5, 60), (1.0, 20)):
        name = f"philly {load:g} on {8 * count}"
        yield _slice(name, data / "philly/philly.csv.gz", nodes_of({"P100": count}, 8), Options(load=load), seed, 600)
    for path in sorted((data / "elasticflow-itp").glob("cluster*.csv.gz")):
        for count in (2, 8, 16):
            for due in (True, False):
                name = f"elasticflow {path.name[7:9]} on {8 * count}{' with deadlines' if due else ''}"
                yield _slice(name, path, nodes_of({"V100": count}, 8), Options(), seed, 400, due=due)
    for path in sorted((data / "chronus-slo").glob("trace_job*.csv.gz")):
        for count in (4, 8, 32):
            yield _slice(f"chronus on {8 * count}", path, nodes_of({"V100": count}, 8), Options(), seed, 500)


def _slice(
    name: str, path: Path, nodes: list[Node], options: Options, seed: int, jobs: int = 0, *, due: bool = True
) -> World:
    def make() -> tuple[list[Node], Workload]:
        widest = max(len(node.devices) for node in nodes)
        read = read_trace(path, msgspec.structs.replace(options, devices_per_node=widest, seed=seed))
        arrivals = read.arrivals
        if jobs and len(arrivals) > jobs:
            first = random.Random(f"{name} {seed}").randrange(len(arrivals) - jobs)
            arrivals = arrivals[first : first + jobs]
        devices = sum(len(node.devices) for node in nodes)
        arrivals = tuple(
            msgspec.structs.replace(
                one, at=one.at - arrivals[0].at, units=tuple(_with(unit, due) for unit in one.units)
            )
            for one in arrivals
            if sum(unit.shape.gpus * (unit.least or len(unit.tasks)) for unit in one.units) <= devices
        )
        return nodes, msgspec.structs.replace(read, arrivals=arrivals)

    return World(name, {}, make)


def _with(unit: Unit, due: bool) -> Unit:
    return unit if due else msgspec.structs.replace(unit, deadline=0)


# --- what comes of them ----------------------------------------------------------------------------------------------


def trial(world: World, policy: str, decides: ClusterPolicy | None = None) -> dict[str, Any]:
    """Return the figures of one policy in one world; `decides` is a policy without a registered name."""
    nodes, workload = world.make()
    began = process_time()
    signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
    try:
        result = simulate(workload, nodes, decides or policy_named(policy), Settings())
    except TimeoutError:
        return {
            "world": world.name, "policy": policy, "jobs": 0, "missing": len(workload.arrivals), "mean_h": inf,
            "p99_wait_h": inf, "due": 0, "met": 0.0, "worst_rho": inf, "makespan_h": inf, "preempted": inf,
            "cpu_ms_per_job": inf,
        }  # fmt: skip
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    took = process_time() - began
    of = {f"j{number}": arrival for number, arrival in enumerate(workload.arrivals, 1)}
    jobs = list(result.jobs)
    done = [job for job in jobs if job.ended >= 0]
    weights = [_weight(of.get(job.id)) for job in done]
    waits = sorted((job.completion - job.run) / HOUR for job in done)
    due = [job for job in jobs if job.deadline]
    met = sum(job.ended >= 0 and job.begin + job.completion <= job.deadline for job in due)
    total = sum(weights)
    return {
        "world": world.name,
        "policy": policy,
        "jobs": len(done),
        "missing": len(jobs) - len(done) + len(result.refused),
        "mean_h": sum(w * job.completion for w, job in zip(weights, done, strict=True)) / total / HOUR if done else 0.0,
        "p99_wait_h": waits[min(len(waits) - 1, int(0.99 * len(waits)))] if waits else 0.0,
        "due": len(due),
        "met": met / len(due) if due else 1.0,
        "worst_rho": result.measures.rho.worst,
        "unfair": result.measures.unfair,
        "makespan_h": max((job.ended for job in done), default=0) / HOUR,
        "preempted": sum(job.preempted for job in jobs) / max(1, len(jobs)),
        "cpu_ms_per_job": 1000 * took / max(1, len(jobs)),
    }


def _give_up(*_: object) -> None:
    raise TimeoutError


def _weight(arrival: Arrival | None) -> float:
    if arrival is None:
        return 1.0
    unit = arrival.units[0]
    return CLASS_WEIGHT[unit.priority] * unit.weight / 1000


def regrets(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the regrets of the policies in one world, in each figure."""
    whole = [row for row in rows if not row["missing"]] or list(rows)
    least = {key: min(row[key] for row in whole) for key in ("mean_h", "p99_wait_h", "worst_rho")}
    met = max(row["met"] for row in whole)
    shortest = max(MINUTE / HOUR, 0.01 * least["mean_h"])  # waits below a hundredth of a completion count as this
    found = {}
    for row in rows:
        front = not any(
            other["mean_h"] <= row["mean_h"] and other["p99_wait_h"] <= row["p99_wait_h"]
            and (other["mean_h"], other["p99_wait_h"]) != (row["mean_h"], row["p99_wait_h"])
            for other in whole
        )  # fmt: skip
        found[row["policy"]] = {
            "mean": row["mean_h"] / least["mean_h"] - 1,
            "wait": max(shortest, row["p99_wait_h"]) / max(shortest, least["p99_wait_h"]) - 1,
            "met": met - row["met"],
            "rho": row["worst_rho"] - least["worst_rho"],
            "front": float(front),
            "preempted": row["preempted"],
            "missing": row["missing"],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--first", type=int, default=1, help="seed of the first world")
    parser.add_argument("--worlds", type=int, default=60)
    parser.add_argument("--redraws", type=int, default=0, help="further draws of each world")
    parser.add_argument("--traces", action="store_true")
    parser.add_argument("--only", default="", help="worlds whose name contains this")
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--known", type=Path, help="what was measured of all but the first policy is kept here")
    parser.add_argument("--each", action="store_true", help="a line for each world")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    policies = given.policies.split(",")
    known: dict[str, Any] = json.loads(given.known.read_text()) if given.known and given.known.exists() else {}
    seeds = range(given.first, given.first + given.worlds)
    worlds = [drawn(seed, again) for seed in seeds for again in range(1 + given.redraws)]
    worlds += list(traces(given.data, given.first)) if given.traces else []
    found: list[tuple[World, list[dict[str, Any]]]] = []
    for world in worlds:
        if given.only not in world.name:
            continue
        rows = []
        for policy in policies:
            key = f"{world.name} {given.first if not world.about else ''} {policy}"
            if key not in known or policy == policies[0]:
                print(f"{world.name}, {policy} …", end="\r", file=sys.stderr)
                known[key] = trial(world, policy)
                if given.known:
                    given.known.write_text(json.dumps(known))
            rows.append(known[key])
        found.append((world, rows))
        if given.each:
            show_world(world, rows, policies[0])
    if given.json:
        print(json.dumps([{"world": world.name, "about": world.about, "trials": rows} for world, rows in found]))
        return
    if not given.redraws:
        show(found, policies)
        return
    groups = [list(of) for _, of in groupby(found, key=lambda one: one[0].name.partition(AGAIN)[0])]
    show([group[0] for group in groups], policies)
    print("\nAverages of the draws of each world:")
    show([(group[0][0], averaged([rows for _, rows in group])) for group in groups], policies)


def averaged(draws: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the average figures of each policy over several draws of a world."""
    return [
        {
            **of[0],
            **{key: fmean(row[key] for row in of) for key in ("met", "worst_rho", "preempted", "missing", "due")},
            **{key: exp(fmean(log(max(row[key], 1e-6)) for row in of)) for key in ("mean_h", "p99_wait_h")},
        }
        for of in zip(*draws, strict=True)
    ]


def show_world(world: World, rows: Sequence[dict[str, Any]], mine: str) -> None:
    of = regrets(rows)
    best = min(of, key=lambda name: of[name]["mean"])
    most = max(rows, key=lambda row: row["met"])
    me, row = of[mine], next(row for row in rows if row["policy"] == mine)
    about = " ".join(f"{name}={value}" for name, value in world.about.items())
    print(
        f"{world.name:34} mean {me['mean']:+7.1%} ({best}) wait {me['wait']:+8.1%} met {row['met']:4.0%} of "
        f"{most['met']:4.0%} ({most['policy']}, {row['due']}) rho {row['worst_rho']:6.2f} "
        f"yields {row['preempted']:5.2f} {row['cpu_ms_per_job']:5.1f} ms missing {row['missing']} {about}",
        flush=True,
    )


def show(found: Sequence[tuple[World, list[dict[str, Any]]]], policies: Sequence[str]) -> None:
    print(
        f"\n{'policy':14} {'mean completion: mean':>21} {'P90':>7} {'worst':>8} {'P99 wait: median':>17} "
        f"{'on front':>9} {'deadlines: mean':>16} {'worst':>7} {'rho: median':>12} {'yields a job':>13} {'worst':>6}"
    )
    of = [regrets(rows) for _, rows in found]
    due = [one for one, (_, rows) in zip(of, found, strict=True) if rows[0]["due"]]
    for policy in policies:
        mean = sorted(one[policy]["mean"] for one in of)
        wait = sorted(one[policy]["wait"] for one in of)
        rho = sorted(one[policy]["rho"] for one in of)
        met = [one[policy]["met"] for one in due] or [0.0]
        yields = [one[policy]["preempted"] for one in of]
        print(
            f"{policy:14} {fmean(mean):21.1%} {mean[int(0.9 * len(mean))]:7.1%} {mean[-1]:8.1%} "
            f"{wait[len(wait) // 2]:17.1%} {fmean(one[policy]['front'] for one in of):9.0%} {fmean(met):16.1%} "
            f"{max(met):7.1%} {rho[len(rho) // 2]:12.2f} {fmean(yields):13.2f} {max(yields):6.2f}"
        )


if __name__ == "__main__":
    main()
