"""Compare the shipped policies on published traces, given the same information: mean completion, waiting, makespan.

    python benchmarks/quality.py [--data ../shared/data] [--trace continuous,static,…|all]
        [--know oracle,estimated,none] [--policies poise,fifo,…|all] [--json]

`continuous`, `static`, `first400`, `osdi20` and `artifact` are traces of Gavel's (Narayanan et al., OSDI 2020;
github.com/stanford-futuredata/gavel @ c4fa400) on clusters of one device per node, `shockwave120` and `shockwave220`
are Shockwave's (Zheng et al., NSDI 2023) on 32 V100; policies can read the tables of throughputs, and preemption costs
nothing, as in their simulators. `pollux1` to `pollux6` are Pollux's workloads (Qiao et al., OSDI 2021) in the sizes
that users chose, on 16 nodes of 4 T4, with 30 s after each placement before a job makes progress. `philly` is the first
3,000 jobs of Philly (Jeon et al., ATC 2019) on 60 nodes of 8 devices, at 1.5 times the arrival rate, with the same cost
of preemption.

`oracle` gives the true run time on the fastest model, `estimated` that with lognormal noise (median 1, P90 a factor 2),
`none` nothing. Waiting is all of the time in which no task of a job ran. `no wait` is the mean of the run times on the
fastest model, a lower bound. `equal shares` is the result if all jobs ran at once at equal parts of their speeds, the
fairest possible. For `osdi20`, jobs 4000 to 5000 are counted, as its authors do. `worst rho` and `unfair` apply to
finish times: completion over that on an equal share, and the fraction of the jobs where this is above 1.05
(`docs/explanation/what-a-trial-measures.md`); `by one` are the same with one contention for all jobs, that of jobs over
devices in the whole trace, as in Shockwave's artifact (its `aggregate_result.py`). `front` marks the Pareto-optimal
policies in mean completion and P99 waiting; `of best` is the mean over the least mean.
"""

import argparse
import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean
from time import process_time
from types import MappingProxyType
from typing import Any, NamedTuple

import clusters
import msgspec
from clusters import nodes_of

from poise.kernel.controller import Settings
from poise.model.resources import Node
from poise.model.workload import Seats, Workload
from poise.policy.suites import POLICIES, policy_named
from poise.units import HOUR, SECOND
from poise_lab.measures import UNFAIR
from poise_lab.traces.formats import read_trace
from poise_lab.traces.options import Options
from poise_lab.trial import simulate


class Case(NamedTuple):
    """A trace, its reading options, a cluster, the jobs that count, and known mean completions for comparison, in
    hours.
    """

    file: str
    nodes: Callable[[], list[Node]]
    options: Options
    window: tuple[int, int] = (0, 0)
    peers: Mapping[str, float] = MappingProxyType({})
    table: str = ""


INSTANT = 1e-6
"""Seconds below which a time counts as zero."""

FREE = Options(devices_per_node=1, checkpoint=SECOND, restore=0)
GAVEL, SHOCKWAVE = "gavel/simulation_throughputs.json", "shockwave/tacc_throughputs.json"


def gavel(
    file: str, cluster: Sequence[int], peers: dict[str, float], jobs: int = 0, window: tuple[int, int] = (0, 0)
) -> Case:
    options = msgspec.structs.replace(FREE, jobs=jobs)
    return Case(f"gavel/traces/{file}", lambda: nodes_of(clusters.gavel(cluster)), options, window, peers, GAVEL)


def shockwave(file: str) -> Case:
    return Case(f"shockwave/traces/{file}", lambda: nodes_of({"V100": 32}), FREE, table=SHOCKWAVE)


CASES = {
    "continuous": gavel("max_min_fairness.trace", (8, 16, 24), {"Gavel-LAS": 4.062, "water-filling": 4.054}),
    "static": gavel("minimize_makespan.trace", (8, 16, 24), {"Gandiva": 9.743, "Gavel-LAS": 9.905}),
    "artifact": gavel("artifact_evaluation.trace", (2, 2, 2), {}),
    "first400": gavel(
        "gen_continuous_multi_rate2.0_seed0.trace.gz", (36, 36, 36), {"Gavel-FIFO": 12.955, "Gavel-LAS": 13.614}, 400
    ),
    "osdi20": gavel(
        "gen_osdi20_continuous_multi_rate2.0_seed0.trace.gz",
        (36, 36, 36),
        {"Gavel-LAS": 21.878, "Gavel-LAS with space sharing": 20.85},
        5600,
        (4000, 5000),
    ),
    "shockwave120": shockwave("120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace"),
    "shockwave220": shockwave("220_0.2_5_100_25_4_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace"),
    **{
        f"pollux{number}": Case(
            f"pollux-osdi21/workloads/workload-{number}.csv", lambda: nodes_of({"T4": 16}, 4), Options()
        )
        for number in range(1, 7)
    },
    "philly": Case("philly/philly.csv.gz", lambda: nodes_of({"P100": 60}, 8), Options(jobs=3000, load=1.5)),
}
"""Re-run figures as in the shared anchors (§4.1 to 4.4); with space sharing as its authors published it."""


def no_wait(workload: Workload, nodes: Sequence[Node], window: slice) -> float:
    """Return the mean hours of jobs if each got the fastest devices at once."""
    models = {device.model for node in nodes for device in node.devices}
    times = [
        min(arrival.truths[unit.name].pace.left(0.0, Seats((model,) * len(unit.tasks))) for model in models)
        for arrival in workload.arrivals[window]
        for unit in arrival.units
    ]
    return fmean(times) / 3600


def equal_shares(workload: Workload, nodes: Sequence[Node], window: slice) -> tuple[float, float]:
    """Return the mean hours and the worst rho if all present jobs always run at once, each at an equal part of its
    speed, as if devices were divisible. No rho is above 1: with a contention of `c`, and the time alone being the
    integral of `1 / c`, it is `1 / (mean(1 / c) mean(c))`, which is at most 1 (Jensen).
    """
    count = Counter(device.model for node in nodes for device in node.devices)
    to_come = deque(sorted(enumerate(workload.arrivals), key=lambda one: one[1].at))
    here: dict[int, _Fluid] = {}
    took: dict[int, float] = {}
    rhos: list[float] = []
    now, contention = 0.0, 1.0
    while to_come or here:
        until_next = to_come[0][1].at / SECOND - now if to_come else inf
        step = min(until_next, min((job.left for job in here.values()), default=inf) * contention)
        now += step
        for job in here.values():
            job.left -= step / contention
            job.crowd += step * contention
        for number in [number for number, job in here.items() if job.left <= INSTANT]:
            job = here.pop(number)
            took[number] = now - job.came
            rhos.append(took[number] ** 2 / (job.alone * job.crowd))
        while to_come and to_come[0][1].at / SECOND <= now + INSTANT:
            number, arrival = to_come.popleft()
            [unit] = arrival.units
            pace, tasks = arrival.truths[unit.name].pace, len(unit.tasks)
            speed = sum(many / pace.left(0.0, Seats((model,) * tasks)) for model, many in count.items())
            alone = count.total() / speed
            here[number] = _Fluid(came=now, asks=tasks * unit.shape.gpus, alone=alone, left=alone)
        contention = max(1.0, sum(job.asks for job in here.values()) / count.total())
    return fmean(took[number] for number in sorted(took)[window]) / 3600, max(rhos)


@dataclass
class _Fluid:
    """A job under equal shares: seconds, and requested devices."""

    came: float
    asks: int
    alone: float
    left: float
    crowd: float = 0.0


def trial(case: Case, data: Path, policy: str, information: str) -> dict[str, Any]:
    table = data / case.table if case.table else None
    options = msgspec.structs.replace(case.options, information=information, throughputs=table)
    workload, nodes = read_trace(data / case.file, options), case.nodes()
    began = process_time()
    result = simulate(workload, nodes, policy_named(policy), Settings())
    took = process_time() - began
    window = slice(case.window[0], case.window[1] + 1) if case.window[1] else slice(None)
    jobs = result.jobs[window]
    done = [job.completion / HOUR for job in jobs if job.ended >= 0]
    waits = sorted((job.completion - job.run) / HOUR for job in jobs if job.ended >= 0)
    share = max(1.0, len(result.jobs) / sum(len(node.devices) for node in nodes))
    by_one = [job.completion / (job.even * share) for job in result.jobs if job.ended >= 0 and job.even]
    return {
        "policy": policy,
        "know": information,
        "jobs": len(done),
        "missing": len(jobs) - len(done) + len(result.refused),
        "mean_h": fmean(done),
        "p99_wait_h": waits[min(len(waits) - 1, int(0.99 * len(waits)))],
        "makespan_h": max(job.ended for job in result.jobs) / HOUR,
        "worst_rho": result.measures.rho.worst,
        "unfair": result.measures.unfair,
        "worst_rho_by_one": max(by_one),
        "unfair_by_one": sum(rho > UNFAIR for rho in by_one) / len(by_one),
        "preemptions": sum(job.preempted for job in jobs),
        "no_wait_h": no_wait(workload, nodes, window),
        "equal_shares_h": equal_shares(workload, nodes, window),
        "cpu_ms_per_job": 1000 * took / len(result.jobs),
    }


def is_on_front(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether no row is better in both measures, among those that finished as many jobs."""
    mine = row["mean_h"], row["p99_wait_h"]
    return not any(
        other["mean_h"] <= mine[0] and other["p99_wait_h"] <= mine[1] and (other["mean_h"], other["p99_wait_h"]) != mine
        for other in rows
        if not other["missing"]
    )


def table(name: str, case: Case, rows: list[dict[str, Any]]) -> None:
    peers = ", ".join(f"{peer} {hours:g} h" for peer, hours in case.peers.items())
    fair, worst = rows[0]["equal_shares_h"]
    bounds = f"no wait {rows[0]['no_wait_h']:.2f} h; equal shares {fair:.3f} h, worst rho {worst:.2f}"
    print(f"\n{name}: {bounds}" + (f"; {peers}" if peers else ""))
    heads = (
        f"{'mean h':>8} {'of best':>8} {'P99 wait h':>11} {'front':>6} {'makespan h':>11} "
        f"{'worst rho':>9} {'unfair':>7} {'by one':>7} {'unfair':>7} {'yields':>7} {'ms/job':>7}"
    )
    print(f"{'policy':26} {'know':10} {'jobs':>5} {heads}")
    for information in dict.fromkeys(row["know"] for row in rows):
        alike = sorted((row for row in rows if row["know"] == information), key=lambda row: row["mean_h"])
        best = min((row["mean_h"] for row in alike if not row["missing"]), default=alike[0]["mean_h"])
        for row in alike:
            print(
                f"{row['policy']:26} {row['know']:10} {row['jobs']:5} {row['mean_h']:8.3f} {row['mean_h'] / best:8.3f} "
                f"{row['p99_wait_h']:11.2f} {'yes' if is_on_front(row, alike) else '':>6} {row['makespan_h']:11.2f} "
                f"{row['worst_rho']:9.2f} {row['unfair']:7.1%} {row['worst_rho_by_one']:7.2f} "
                f"{row['unfair_by_one']:7.1%} {row['preemptions']:7} {row['cpu_ms_per_job']:7.1f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--trace", default="continuous")
    parser.add_argument("--know", default="estimated")
    parser.add_argument("--policies", default="poise,fifo,sjf,srtf,las,mlfq,tiresias")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    names = list(CASES) if given.trace == "all" else given.trace.split(",")
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"there is no trace `{unknown[0]}`; known: {', '.join(CASES)}")
    policies = list(POLICIES) if given.policies == "all" else given.policies.split(",")
    found = {}
    for name in names:
        rows = []
        for information in given.know.split(","):
            for policy in policies:
                print(f"{name}, {policy}, {information} …", end="\r", file=sys.stderr)
                rows.append(trial(CASES[name], given.data, policy, information))
        found[name] = {"peers_h": dict(CASES[name].peers), "trials": rows}
        if not given.json:
            table(name, CASES[name], rows)
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
