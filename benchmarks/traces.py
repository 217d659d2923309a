"""Measure the time to read and generate traces, and print statistics of their content.

    python benchmarks/traces.py --data ../shared/data

Each is read on its own, with estimated run times. Devices are those of a job, seconds its run time on its best device.
Last, run times that are computed from phases are compared with Shockwave's own simulations of the same jobs: no job can
complete sooner than its run time, so the shortest of its completions over our run time is at least 1, except for its
rounds of 120 s at which batches change.
"""

import argparse
import csv
import time
from pathlib import Path

from poise.model.workload import Arrival, Seats, Workload
from poise_lab.traces.formats import read_trace
from poise_lab.traces.openb import read_nodes

TRACES = (
    "philly/philly.csv.gz",
    "gavel/traces/*",
    "shockwave/traces/*",
    "fgd-openb/openb_pod_list_*",
    "azure-llm-2023/*.csv",
    "mooncake-fast25/*.csv",
)
DRAWN = ("poisson:jobs={}", "bursty:jobs={},speeds=A100-80:1+V100:0.4", "diurnal:jobs={},times=pareto")
SHOCKWAVE = "shockwave/traces/120_*.trace"
COMPLETIONS = "shockwave/results/per_job.csv"
NODES = "fgd-openb/openb_node_list_all_node.csv"
MODELS = ("V100", "P100", "K80", "H100", "A100-80", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = Path(__file__).resolve().parent.parent
    parser.add_argument("--data", type=Path, default=root.parent / "shared" / "data")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="jobs that are drawn")
    given = parser.parse_args()
    print(
        f"{'trace':60} {'jobs':>9} {'left out':>8} {'days':>7} {'devices':>8} {'p50 s':>9} {'p99 s':>9} {'took s':>7}"
    )
    for pattern in TRACES:
        for path in sorted(given.data.glob(pattern)):
            show(path.relative_to(given.data).as_posix(), path)
    for text in DRAWN:
        show(text.format(given.jobs), text.format(given.jobs))
    if (given.data / NODES).exists():
        nodes = read_nodes(given.data / NODES)
        print(f"\n{NODES}: {len(nodes)} nodes, {sum(len(node.devices) for node in nodes)} devices")
    for path in given.data.glob(SHOCKWAVE):
        show_bound(read_trace(path), given.data / COMPLETIONS)


def show_bound(read: Workload, completions: Path) -> None:
    shortest: dict[int, float] = {}
    with completions.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["kind"] == "simulation":
                job = int(row["job_index"])
                shortest[job] = min(shortest.get(job, float("inf")), float(row["jct_s"]))
    ratios = sorted(shortest[job] / run_time(read.arrivals[job]) for job in shortest)
    below = sum(ratio < 0.95 for ratio in ratios)
    print(
        f"{COMPLETIONS}: shortest completion over our run time: least {ratios[0]:.3f}, then {ratios[1]:.3f}, "
        f"median {ratios[len(ratios) // 2]:.3f}; {below} of {len(ratios)} below 0.95"
    )


def show(name: str, trace: Path | str) -> None:
    began = time.perf_counter()
    read = read_trace(trace)
    took = time.perf_counter() - began
    times = sorted(map(run_time, read.arrivals))
    devices = sum(unit.shape.gpus * len(unit.tasks) for arrival in read.arrivals for unit in arrival.units)
    count = len(times)
    print(
        f"{name[-60:]:60} {count:9,} {sum(read.skipped.values()):8,} {read.arrivals[-1].at / 8.64e13:7.1f} "
        f"{devices / count:8.2f} {times[count // 2]:9.0f} {times[count * 99 // 100]:9.0f} {took:7.2f}"
    )


def run_time(arrival: Arrival) -> float:
    """Return the seconds on the best device."""
    pace, tasks = arrival.truths["main"].pace, len(arrival.units[0].tasks)
    return min(pace.left(0.0, Seats((model,) * tasks)) for model in MODELS)


if __name__ == "__main__":
    main()
