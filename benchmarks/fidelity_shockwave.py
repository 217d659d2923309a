"""Compare the twin with a real cluster: Shockwave's run of 120 jobs on 32 GPUs, and its own simulator's result.

    python benchmarks/fidelity_shockwave.py [--data ../shared/data/shockwave] [--overhead 20] [--as-gavel] [--json]

Shockwave (Zheng et al., NSDI 2023; github.com/uw-mad-dash/shockwave @ 8a44f4a) published the completion of every job on
the cluster and in its simulator. Three of its six policies are also ours: `max-min` (max_min_fairness),
`finish-time-fair` and `min-makespan` (min_total_duration), in turns of 120 s. As there, the known size of a job is its
steps at its initial batch size; a job that enlarges its batches is done sooner.

A job makes progress `--overhead` seconds after each placement that does not continue in place. This single parameter,
20 s, makes the mean completion of `finish-time-fair` match the measurement. It was chosen with all three policies in
view, so the other two are not an independent test of it. (Shockwave's simulator uses the same value; its own
measurements, in a comment of its scheduler, have a mean of 11 s.) With `--as-gavel`, turns are those of Gavel, on which
Shockwave's scheduler is based, instead of our own.

Errors are of mean completion and makespan, and the mean of all jobs' errors, of the twin and of Shockwave's simulator.
"""

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import clusters
import msgspec
from fidelity_gavel import PEERS, AsGavel, known_exactly

from poise.kernel.controller import Settings
from poise.model.workload import Workload
from poise.policy.rounds import Rounds
from poise.policy.shares import finish_time_fair, max_min, min_makespan
from poise.units import SECOND
from poise_lab.traces.formats import read_trace
from poise_lab.traces.options import Options
from poise_lab.traces.rates import Size, read_table
from poise_lab.trial import simulate

TURN = 120 * SECOND
RENEWED = 1000 * SECOND
"""Minimum time between two allocations, the default of its scheduler."""

DEVICES = 32
MODEL = "V100"
SET = "tacc_32gpus_comparison"
POLICIES = {
    "max_min_fairness": Rounds("max-min", max_min, turn=TURN),
    "finish_time_fairness": Rounds("finish-time-fair", finish_time_fair, turn=TURN),
    "min_total_duration": Rounds("min-makespan", min_makespan, turn=TURN),
}
"""Policies by their name in Shockwave."""


def workload_of(data: Path, overhead: float) -> Workload:
    """Return the jobs, with their initial steps as the known size, and `overhead` seconds before each makes
    progress.
    """
    [trace] = (data / "traces").glob("120_*.trace")
    table = read_table(data / "tacc_throughputs.json")
    waits = int(overhead * SECOND)
    options = Options(
        devices_per_node=1, information="oracle", restore=waits, throughputs=data / "tacc_throughputs.json"
    )
    read = read_trace(trace, options, "shockwave")
    arrivals = []
    for arrival, line in zip(read.arrivals, trace.read_text(encoding="utf-8").splitlines(), strict=True):
        cells = line.split("\t")
        [unit] = arrival.units
        seconds = float(cells[5]) / table[Size(cells[0], int(cells[6]))][MODEL]
        unit = msgspec.structs.replace(unit, expect=int(seconds * SECOND))
        truth = msgspec.structs.replace(arrival.truths[unit.name], start=waits)
        arrivals.append(msgspec.structs.replace(arrival, units=(unit,), truths={unit.name: truth}))
    return known_exactly(msgspec.structs.replace(read, arrivals=tuple(arrivals)))


def completions(data: Path, policy: str, kind: str) -> tuple[list[float], float]:
    """Return the seconds of each job, and the makespan."""
    with (data / "results" / "per_job.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["set"], row["policy"], row["kind"]) == (SET, policy, kind)]
    with (data / "results" / "aggregate.csv").open(encoding="utf-8", newline="") as file:
        [whole] = [
            row for row in csv.DictReader(file) if (row["set"], row["policy"], row["kind"]) == (SET, policy, kind)
        ]
    rows.sort(key=lambda row: int(row["job_index"]))
    return [float(row["jct_s"]) for row in rows], float(whole["makespan_s"])


def errors(jobs: Sequence[float], makespan: float, real: tuple[Sequence[float], float]) -> dict[str, float]:
    measured, whole = real
    return {
        "mean": fmean(jobs) / fmean(measured) - 1,
        "makespan": makespan / whole - 1,
        "each": fmean(abs(ours / theirs - 1) for ours, theirs in zip(jobs, measured, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/shockwave"))
    parser.add_argument("--overhead", type=float, default=20.0)
    parser.add_argument("--as-gavel", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    workload = workload_of(asked.data, asked.overhead)
    rows: list[dict[str, Any]] = []
    print(f"{'':18} {'mean completion':>17} {'makespan':>17} {'each job':>17}   (twin, simulator)", file=sys.stderr)
    for name, shipped in POLICIES.items():
        peer = PEERS[f"{name}_perf"]
        policy = AsGavel(peer, turn=TURN, renewed=RENEWED) if asked.as_gavel else shipped
        result = simulate(workload, clusters.nodes_of({MODEL: DEVICES}), policy, Settings(every=TURN))
        ours = [job.completion / SECOND for job in result.jobs]
        real = completions(asked.data, name, "physical")
        twin = errors(ours, max(job.ended for job in result.jobs) / SECOND, real)
        simulator = errors(*completions(asked.data, name, "simulation"), real)
        rows.append({"policy": shipped.name, "seconds": fmean(ours), "twin": twin, "simulator": simulator})
        told = "  ".join(f"{twin[of]:+7.1%} {simulator[of]:+7.1%}" for of in ("mean", "makespan", "each"))
        print(f"{shipped.name:18}  {told}", file=sys.stderr)
    for whose in ("twin", "simulator"):
        told = ", ".join(
            f"{of} {fmean(abs(row[whose][of]) for row in rows):.1%}" for of in ("mean", "makespan", "each")
        )
        print(f"{whose}, over the three: {told}", file=sys.stderr)
    if asked.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
