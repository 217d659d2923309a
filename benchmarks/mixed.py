"""Measure the quality of decisions on one machine, live: 200 jobs of all kinds on a declared fleet, under each policy.

    python benchmarks/mixed.py [--policies poise,fifo,...] [--seed 1] [--jobs 200] [--json]

The fleet is `examples/fleet.yaml`: six nodes, eleven GPUs of three models and two NPUs, all declared. The jobs arrive
within a minute, at random but equally for every policy: long low-priority training with checkpoints, gangs, elastic
gangs, CPU-only jobs, and bursts of short urgent jobs with deadlines. A command only sleeps, so that a laptop can run
the fleet; each declares its run time, to within a third.

*JCT* is the time from submission to the end; *slowdown* is JCT over the run time alone, at least 10 s (bounded, as
Feitelson, 2001). *Goodput* is the fraction of all GPU time over the makespan whose work was not repeated. The benchmark
takes about two minutes for each policy.
"""

import argparse
import contextlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import harness
from harness import Figure, percentile, say

from poise.client import Client
from poise.config import Home
from poise.model.reports.jobs import JobReport
from poise.policy.suites import POLICIES

ROOT = Path(__file__).resolve().parent.parent
FLEET = ROOT / "examples" / "fleet.yaml"
GPUS = 11
ARRIVALS = 60.0
STEP = 0.5
PATIENCE = 600.0
BOUND = 10.0

WORK = """
steps=$(($1 / ${POISE_WORLD_SIZE:-1}))
done=$(cat "$2.$POISE_RANK" 2>/dev/null || echo 0)
while [ "$done" -lt "$steps" ]; do
    sleep 0.5
    done=$((done + 1))
    [ $((done % 4)) = 0 ] && echo "$done" > "$2.$POISE_RANK"
done
exit 0
"""
"""Runs a number of half seconds for all members of a gang together; saves its progress every two seconds."""


class Ask(NamedTuple):
    """A job, its arrival (seconds), its run time alone (seconds), and its GPU seconds."""

    at: float
    spec: dict[str, Any]
    alone: float
    gpu_seconds: float


class Outcome(NamedTuple):
    """Results of a policy."""

    makespan: float
    jct: list[float]
    slowdown: list[float]
    urgent: list[float]
    missed: float
    goodput: float
    again: int


def workload(jobs: int, seed: int, folder: Path) -> list[Ask]:
    """Return the workload, which is the same for every policy."""
    pick = random.Random(seed)
    script = folder / "work.sh"
    script.write_text(WORK)
    made = []
    for number in range(jobs):
        kind = pick.choices(("training", "gang", "elastic", "cpu", "urgent"), (12, 8, 4, 36, 40))[0]
        spec: dict[str, Any] = {"name": f"{kind}-{number}", "class": f"{kind}-{number % 7}", "folder": str(folder)}
        seconds, workers, gpus = float(pick.uniform(1, 4)), 1, 0
        if kind == "training":
            seconds, gpus = pick.uniform(30, 60), pick.choice((1, 1, 2))
            spec |= {"priority": "low", "checkpoint": "2s"}
        elif kind == "gang":
            seconds, workers, gpus = pick.uniform(6, 15), pick.choice((2, 3, 4)), 1
            spec |= {"workers": workers}
        elif kind == "elastic":
            seconds, workers, gpus = pick.uniform(10, 20), 2, 1
            spec |= {"workers": "2..4", "checkpoint": "2s"}
        elif kind == "cpu":
            seconds = pick.uniform(2, 12)
        else:
            gpus = pick.choice((0, 1, 1))
            spec |= {"priority": "urgent" if pick.random() < 0.5 else "high", "deadline": "15s"}
        steps = max(1, round(seconds / STEP))
        alone = steps * STEP
        spec["run"] = ["/bin/sh", str(script), str(steps * workers), str(folder / spec["name"])]
        spec["resources"] = {"cpu": pick.choice((1, 1, 2)), "memory": f"{pick.choice((1, 4, 8))}GiB", "gpu": gpus}
        spec["expect"] = f"{alone * pick.uniform(0.75, 1.33):.1f}s"
        made.append(Ask(pick.uniform(0, ARRIVALS), spec, alone, alone * gpus * workers))
    return sorted(made, key=lambda ask: ask.at)


def run(policy: str, jobs: int, seed: int) -> Outcome:
    """Submit all jobs when due, and wait for them to end."""
    with harness.own_home() as home:
        folder = home.root.parent / "work"
        folder.mkdir()
        asks = workload(jobs, seed, folder)
        poise = Path(sys.executable).with_name("poise")
        command = [str(poise), "up", "--fleet", str(FLEET), "--policy", policy, "--port", "0"]
        subprocess.run(command, check=True, env=harness.environ_of(home), capture_output=True)
        with contextlib.closing(Client(home)) as client:
            _nodes(client)
            begun = time.monotonic()
            ids: dict[str, Ask] = {}
            for ask in asks:
                time.sleep(max(0.0, begun + ask.at - time.monotonic()))
                ids[client.submit(ask.spec)] = ask
            until = time.monotonic() + PATIENCE
            while client.status().unfinished and time.monotonic() < until:
                time.sleep(0.5)
            reports = [client.job(name) for name in ids]
        _end(home)
    return _outcome([(report, ids[report.id]) for report in reports])


def _nodes(client: Client) -> None:
    until = time.monotonic() + 20
    while sum(node.status == "up" for node in client.nodes()) < 6:
        if time.monotonic() > until:
            raise RuntimeError("the fleet does not come up")
        time.sleep(0.05)


def _end(home: Home) -> None:
    subprocess.run(
        [Path(sys.executable).with_name("poise"), "down", "--cancel"],
        env=harness.environ_of(home), capture_output=True, check=False,
    )  # fmt: skip


def _outcome(ended: Sequence[tuple[JobReport, Ask]]) -> Outcome:
    bad = [report.name for report, _ in ended if report.exit_code != 0]
    if bad:
        raise RuntimeError(f"{len(bad)} jobs did not end well, {bad[0]} for one")
    jct = [report.elapsed / 1e9 for report, _ in ended]
    alone = [ask.alone for _, ask in ended]
    makespan = max(report.ended for report, _ in ended) - min(report.submitted for report, _ in ended)
    due = [one for one, (_, ask) in zip(jct, ended, strict=True) if "deadline" in ask.spec]
    return Outcome(
        makespan=makespan,
        jct=jct,
        slowdown=[max(1.0, one / max(BOUND, other)) for one, other in zip(jct, alone, strict=True)],
        urgent=due,
        missed=100 * sum(one > 15 for one in due) / max(1, len(due)),
        goodput=100 * sum(ask.gpu_seconds for _, ask in ended) / (GPUS * makespan),
        again=sum(max(task.epoch for task in report.tasks) - 1 for report, _ in ended),
    )


def measure(policies: Sequence[str], jobs: int, seeds: Sequence[int]) -> list[Figure]:
    """Run every policy on every seed, in turns."""
    found: dict[str, list[Outcome]] = {policy: [] for policy in policies}
    for seed in seeds:
        for policy in policies:
            outcome = run(policy, jobs, seed)
            found[policy].append(outcome)
            say(
                f"seed {seed}, {policy}: makespan {outcome.makespan:.0f} s, mean JCT "
                f"{statistics.mean(outcome.jct):.1f} s, {outcome.missed:.0f} % late, {outcome.again} started again"
            )
    figures = []
    for policy, outcomes in found.items():
        again = sum(outcome.again for outcome in outcomes)
        figures += [
            Figure(name=f"{policy}: mean JCT", unit="s", values=[statistics.mean(one.jct) for one in outcomes]),
            Figure(name=f"{policy}: JCT, 95th percentile", unit="s", values=[percentile(o.jct, 95) for o in outcomes]),
            Figure(
                name=f"{policy}: mean slowdown", unit="x", values=[statistics.mean(one.slowdown) for one in outcomes]
            ),
            Figure(name=f"{policy}: mean JCT, urgent", unit="s", values=[statistics.mean(o.urgent) for o in outcomes]),
            Figure(name=f"{policy}: deadlines missed", unit="%", values=[one.missed for one in outcomes]),
            Figure(name=f"{policy}: makespan", unit="s", values=[one.makespan for one in outcomes]),
            Figure(
                name=f"{policy}: goodput", unit="%", values=[one.goodput for one in outcomes],
                note=f"{again} started again",
            ),
        ]  # fmt: skip
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="the quality of decisions, live")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, action="append", help="may be given more than once; 1 unless given")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    policies = options.policies.split(",")
    return harness.program(lambda: measure(policies, options.jobs, options.seed or [1]), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
