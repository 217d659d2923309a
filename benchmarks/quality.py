"""Shipped policies on published traces, given the same information: mean completion, waiting, makespan.

    python benchmarks/quality.py [--data ../shared/data] [--trace continuous|static|first400|osdi20]
        [--know oracle,estimated,none] [--policies poise,fifo,…] [--json]

The traces are Gavel's (Narayanan et al., OSDI 2020; github.com/stanford-futuredata/gavel @ c4fa400), on its clusters of
one device a node, with its table of throughputs, which every policy may read. Stopping costs nothing, as in its
simulator. `oracle` tells the true run time on the fastest model, `estimated` that with lognormal noise (median 1, P90 a
factor 2), `none` nothing. Waiting is all of the time in which nothing of a job ran. `no wait` is the mean of the run
times on the fastest model: nothing can be better. Of `osdi20` jobs 4000 to 5000 are counted, as its authors do.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import Any, NamedTuple

from poise.kernel.controller import Settings
from poise.model.resources import Device, Node
from poise.model.workload import Seats, Workload
from poise.policy.suites import policy_named
from poise.twin.traces.formats import read_trace
from poise.twin.traces.options import Options
from poise.twin.trial import simulate
from poise.units import HOUR, SECOND

MODELS = ("V100", "P100", "K80")


class Case(NamedTuple):
    """A trace, a cluster, and the published or re-run figures beside it (hours of mean completion)."""

    file: str
    cluster: tuple[int, int, int]
    jobs: int
    window: tuple[int, int]
    peers: dict[str, float]


CASES = {
    "continuous": Case("max_min_fairness.trace", (8, 16, 24), 0, (0, 0), {"Gavel-LAS": 4.062, "water-filling": 4.054}),
    "static": Case("minimize_makespan.trace", (8, 16, 24), 0, (0, 0), {"Gandiva": 9.743, "Gavel-LAS": 9.905}),
    "first400": Case(
        "gen_continuous_multi_rate2.0_seed0.trace.gz",
        (36, 36, 36),
        400,
        (0, 0),
        {"Gavel-FIFO": 12.955, "Gavel-LAS": 13.614},
    ),
    "osdi20": Case(
        "gen_osdi20_continuous_multi_rate2.0_seed0.trace.gz",
        (36, 36, 36),
        5600,
        (4000, 5000),
        {"Gavel-LAS": 21.878, "Gavel-LAS with space sharing": 20.85},
    ),
}
"""Re-run figures as in the shared anchors (§4.1 to 4.4); with space sharing as its authors published it."""


def cluster(counts: tuple[int, int, int]) -> list[Node]:
    return [
        Node(
            name=f"{model}-{number:03}",
            incarnation="1",
            cpu=2**30,
            memory=2**40,
            devices=(Device(index=0, memory=2**34, uuid=f"{model}-{number}", model=model),),
        )
        for model, count in zip(MODELS, counts, strict=True)
        for number in range(count)
    ]


def no_wait(workload: Workload, window: slice) -> float:
    """Hours that jobs take in the mean if each has the fastest devices at once."""
    times = [
        min(arrival.truths[unit.name].pace.left(0.0, Seats((model,) * len(unit.tasks))) for model in MODELS)
        for arrival in workload.arrivals[window]
        for unit in arrival.units
    ]
    return fmean(times) / 3600


def trial(case: Case, data: Path, policy: str, information: str) -> dict[str, Any]:
    options = Options(
        devices_per_node=1,
        information=information,  # type: ignore[arg-type]
        jobs=case.jobs,
        throughputs=data / "simulation_throughputs.json",
        checkpoint=SECOND,
        restore=0,
    )
    workload = read_trace(data / "traces" / case.file, options)
    began = process_time()
    result = simulate(workload, cluster(case.cluster), policy_named(policy), Settings())
    took = process_time() - began
    window = slice(case.window[0], case.window[1] + 1) if case.window[1] else slice(None)
    jobs = result.jobs[window]
    done = [job.completion / HOUR for job in jobs if job.ended >= 0]
    waits = sorted((job.completion - job.run) / HOUR for job in jobs if job.ended >= 0)
    return {
        "policy": policy,
        "know": information,
        "jobs": len(done),
        "mean_h": fmean(done),
        "p99_wait_h": waits[min(len(waits) - 1, int(0.99 * len(waits)))],
        "makespan_h": max(job.ended for job in result.jobs) / HOUR,
        "preemptions": sum(job.preempted for job in jobs),
        "no_wait_h": no_wait(workload, window),
        "cpu_ms_per_job": 1000 * took / len(result.jobs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--trace", choices=CASES, default="continuous")
    parser.add_argument("--know", default="estimated")
    parser.add_argument("--policies", default="poise,fifo,sjf,srtf,las,mlfq,tiresias")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    case = CASES[given.trace]
    rows = [
        trial(case, given.data / "gavel", policy, information)
        for information in given.know.split(",")
        for policy in given.policies.split(",")
    ]
    if given.json:
        print(json.dumps({"trace": given.trace, "peers_h": case.peers, "trials": rows}))
        return
    print(f"{given.trace}: no wait {rows[0]['no_wait_h']:.2f} h; {case.peers}")
    heads = f"{'mean h':>8} {'P99 wait h':>11} {'makespan h':>11} {'yields':>7} {'ms/job':>7}"
    print(f"{'policy':20} {'know':10} {'jobs':>5} {heads}")
    for row in rows:
        print(
            f"{row['policy']:20} {row['know']:10} {row['jobs']:5} {row['mean_h']:8.3f} {row['p99_wait_h']:11.2f} "
            f"{row['makespan_h']:11.2f} {row['preemptions']:7} {row['cpu_ms_per_job']:7.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
