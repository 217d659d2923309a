"""Compare pilots of Poise with an array of sbatch, in turns: a campaign of short tasks on a real Slurm.

    python benchmarks/slurm_campaign.py [--tasks 150] [--rounds 3] [--json]

One machine acts as three nodes of two CPUs each (Debian's Slurm 22.05). The tasks are mixed: of ten, seven sleep for
0.05 s, two for 0.5 s and one for 2 s, always in the same order. *array*: all of them as one job array, Slurm's way to
submit many tasks at once. *pilots*: each task is a job of Poise, which starts without an allocation and requests all of
them itself. Seconds count from the first submission until the last task has ended. *one job*: a no-op command,
submitted and waited for, by `sbatch --wait`, and by Poise with and without an existing allocation.

HyperQueue is not compared, because its package on PyPI has no allocator for Slurm.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from harness import Figure, absent, program, ratio, say

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

SLEEPS = ("0.05", "0.5", "0.05", "0.05", "2", "0.05", "0.05", "0.5", "0.05", "0.05")
SINGLES = 3


def array(cluster: Any, tasks: int) -> float:
    """Return the seconds of a job array."""
    from system.living import until

    script = cluster.run / "array.sh"
    words = " ".join(SLEEPS)
    script.write_text(f"#!/bin/bash\nsleeps=({words})\nsleep ${{sleeps[$((SLURM_ARRAY_TASK_ID % {len(SLEEPS)}))]}}\n")
    begun = time.perf_counter()
    cluster.call("sbatch", "--output=/dev/null", "--mem=10M", f"--array=0-{tasks - 1}", str(script))
    until(lambda: not cluster.jobs(), "the array has ended", cluster.messages, seconds=600)
    return time.perf_counter() - begun


def pilots(on: Any, tasks: int) -> tuple[float, int, int]:
    """Return the seconds of the same tasks as jobs, the requested allocations, and the status calls."""
    from system.living import until

    client, cluster = on.living.client(), on.cluster
    until(lambda: not cluster.jobs(), "no allocation is there", on.messages, seconds=120)
    asked, looked = cluster.calls("sbatch"), cluster.calls("squeue") + cluster.calls("sinfo")
    specs = (
        {"run": ["sleep", SLEEPS[number % len(SLEEPS)]], "resources": {"cpu": 1}, "expect": "1s"}
        for number in range(tasks)
    )
    begun = time.perf_counter()
    for receipt in client.submit_stream(specs):
        if receipt.error is not None:
            raise RuntimeError(receipt.error.message)
    until(lambda: not client.status().unfinished, "all have ended", on.messages, seconds=600)
    seconds = time.perf_counter() - begun
    status = cluster.calls("squeue") + cluster.calls("sinfo") - looked
    return seconds, cluster.calls("sbatch") - asked, status


def one(on: Any) -> float:
    client = on.living.client()
    begun = time.perf_counter()
    client.wait(client.submit({"run": ["true"], "resources": {"cpu": 1}, "expect": "1s"}), 120)
    return time.perf_counter() - begun


def measure(tasks: int, rounds: int) -> list[Figure]:
    from system.living import Living
    from system.onslurm import OnSlurm
    from system.slurm_cluster import DEBIAN, slurm

    if not (DEBIAN / "usr/sbin/slurmctld-wlm").exists():
        return [absent("a campaign on Slurm", "`make servers` unpacks Slurm")]
    arrays: list[float] = []
    ours: list[float] = []
    counted: list[tuple[int, int]] = []
    plain: list[float] = []
    cold: list[float] = []
    warm: list[float] = []
    with slurm() as cluster:
        living = Living()
        try:
            on = OnSlurm(cluster, living)
            on.up("slurm:main,nodes=3,idle=3")
            for number in range(rounds):
                arrays.append(array(cluster, tasks))
                seconds, asked, status = pilots(on, tasks)
                ours.append(seconds)
                counted.append((asked, status))
                say(f"round {number + 1}: array {arrays[-1]:.1f} s, pilots {seconds:.1f} s, {asked} allocations")
                for _ in range(SINGLES):
                    begun = time.perf_counter()
                    cluster.call("sbatch", "--wait", "--output=/dev/null", "--mem=10M", "--wrap", "true")
                    plain.append(time.perf_counter() - begun)
                pilots(on, 0)
                cold.append(one(on))
                warm += [one(on) for _ in range(SINGLES)]
        finally:
            living.destroy()
    return [
        Figure(name=f"{tasks} mixed tasks, array of sbatch", unit="s", values=arrays),
        Figure(name=f"{tasks} mixed tasks, pilots", unit="s", values=ours),
        ratio("pilots / array", ours, arrays, limit=1.0),
        Figure(name="allocations asked for", unit="", values=[float(asked) for asked, _ in counted]),
        Figure(name="status calls", unit="", values=[float(status) for _, status in counted]),
        Figure(name="one job, `sbatch --wait`", unit="s", values=plain),
        Figure(name="one job of Poise, allocation is there", unit="s", values=warm),
        Figure(name="one job of Poise, no allocation yet", unit="s", values=cold),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="a campaign of short tasks on Slurm, by pilots and by arrays")
    parser.add_argument("--tasks", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return program(lambda: measure(options.tasks, options.rounds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
