"""Measure the resources of an idle Poise, and the cost of its command.

    python benchmarks/footprint.py [--jobs 1000] [--seconds 20] [--runs 30] [--json]

CPU and resident memory of each process of Poise, over an idle period after jobs were run (CPU in intervals of five
seconds, to give a range). `poise --help` compared with `python -c pass`, in turns.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from time import perf_counter

import harness
import psutil
from harness import Figure, ratio, say

TARGET_CPU_PERCENT = 1.0
TARGET_MEMORY_MB = 120.0
TARGET_HELP = 5.0
PIECE_SECONDS = 5.0
POISE = Path(sys.executable).with_name("poise")


def idle(jobs: int, seconds: float) -> list[Figure]:
    """Measure idle processes. Only the control plane has targets; the other processes are shown by name, and
    as a sum.
    """
    with harness.own_fleet() as fleet:
        fleet.submit(jobs)
        fleet.until_idle(jobs, perf_counter())
        fleet.check(jobs)
        groups = fleet.processes()
        fleet.client.close()
        time.sleep(2)  # let the aftermath of the last job pass (such as an idle keeper's exit)
        cpu: dict[str, list[float]] = {name: [] for name in groups}
        memory: dict[str, list[float]] = {name: [] for name in groups}
        for _ in range(max(1, round(seconds / PIECE_SECONDS))):
            before, begun = {name: _cpu(group) for name, group in groups.items()}, perf_counter()
            time.sleep(PIECE_SECONDS)
            passed = perf_counter() - begun
            for name, group in groups.items():
                cpu[name].append(100 * (_cpu(group) - before[name]) / passed)
                memory[name].append(sum(process.memory_info().rss for process in group) / 1e6)
        counts = {name: len(group) for name, group in groups.items()}
    figures = []
    for name in groups:
        label = name if counts[name] == 1 else f"{counts[name]} {name}s"
        own = name == "control plane"
        limits = (TARGET_CPU_PERCENT, TARGET_MEMORY_MB) if own else (None, None)
        figures.append(Figure(name=f"{label}, idle CPU of a core", unit="%", values=cpu[name], limit=limits[0]))
        figures.append(Figure(name=f"{label}, resident", unit="MB", values=memory[name], limit=limits[1]))
    figures.append(Figure(name="all of Poise, idle CPU of a core", unit="%", values=_sums(cpu)))
    figures.append(Figure(name="all of Poise, resident", unit="MB", values=_sums(memory)))
    return figures


def _cpu(group: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in group)


def _sums(values: dict[str, list[float]]) -> list[float]:
    return [sum(piece) for piece in zip(*values.values(), strict=True)]


def command_line(runs: int) -> list[Figure]:
    bare, help_ = [], []
    for _ in range(runs):
        bare.append(1e3 * _run([sys.executable, "-c", "pass"]))
        help_.append(1e3 * _run([str(POISE), "--help"]))
    return [
        Figure(name="python -c pass", unit="ms", values=bare),
        Figure(name="poise --help", unit="ms", values=help_),
        ratio("  times python -c pass", help_, bare, limit=TARGET_HELP),
    ]


def _run(command: list[str]) -> float:
    begun = perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return perf_counter() - begun


def measure(jobs: int, seconds: float, runs: int) -> list[Figure]:
    figures = idle(jobs, seconds)
    say("idle: done")
    return figures + command_line(runs)


def main() -> int:
    parser = argparse.ArgumentParser(description="what Poise takes when it does nothing, and what its command costs")
    parser.add_argument("--jobs", type=int, default=1000, help="jobs to run before")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to watch it idle")
    parser.add_argument("--runs", type=int, default=30, help="of `poise --help`")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return harness.program(lambda: measure(options.jobs, options.seconds, options.runs), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
