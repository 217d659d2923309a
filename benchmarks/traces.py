"""How long traces take to be read and drawn, and what is read of them.

    python benchmarks/traces.py --data ../shared/data

Each is read on its own, with estimated run times. Devices are those of a job, seconds its run time on the device that
suits it best.
"""

import argparse
import time
from pathlib import Path

from poise.model.workload import Seats, Workload
from poise.twin.traces.formats import read_trace
from poise.twin.traces.openb import read_nodes

TRACES = (
    "philly/philly.csv.gz",
    "gavel/traces/*",
    "shockwave/traces/*",
    "fgd-openb/openb_pod_list_*",
    "azure-llm-2023/*.csv",
    "mooncake-fast25/*.csv",
)
DRAWN = ("poisson:jobs={}", "bursty:jobs={},speeds=A100-80:1+V100:0.4", "diurnal:jobs={},times=pareto")
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
        print(f"{NODES}: {len(nodes)} nodes, {sum(len(node.devices) for node in nodes)} devices")


def show(name: str, trace: Path | str) -> None:
    began = time.perf_counter()
    read = read_trace(trace)
    took = time.perf_counter() - began
    times = sorted(run_time(read, number) for number in range(len(read.arrivals)))
    devices = sum(unit.shape.gpus * len(unit.tasks) for arrival in read.arrivals for unit in arrival.units)
    count = len(times)
    print(
        f"{name[-60:]:60} {count:9,} {sum(read.skipped.values()):8,} {read.arrivals[-1].at / 8.64e13:7.1f} "
        f"{devices / count:8.2f} {times[count // 2]:9.0f} {times[count * 99 // 100]:9.0f} {took:7.2f}"
    )


def run_time(read: Workload, number: int) -> float:
    """Seconds on the device that suits it best."""
    arrival = read.arrivals[number]
    pace, tasks = arrival.truths["main"].pace, len(arrival.units[0].tasks)
    return min(pace.left(0.0, Seats((model,) * tasks)) for model in MODELS)


if __name__ == "__main__":
    main()
