"""Measure the CPU time of the control plane and the writes to the API server for tasks in the Pods of pilots.

    python benchmarks/kubernetes_pilots.py [--tasks 2000] [--rounds 3] [--json]

The API server is the small one of the tests, which records each call; its speed does not matter here. A node of two
CPUs runs one Pod as a process. After a first task has run there, the benchmark submits all tasks as a stream. It
measures CPU time, so other work on the machine changes little.

* *tasks a second for each core*: the tasks, divided by the CPU seconds of the control plane until the last one ended.
* *writes for each task*: requests during that time that create, change or delete an object other than a node.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from harness import NO_OP, Figure, program, rate, say

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

ON = "kubernetes:image=poise:test,idle=600s,grace=20s"
WRITES = ("POST", "PUT", "PATCH", "DELETE")


class Round(NamedTuple):
    """CPU seconds of the control plane, and writes to the API server."""

    seconds: float
    writes: int


def one_round(tasks: int) -> Round:
    from system.living import Living
    from system.onkubernetes import OnCluster, cluster_of

    with cluster_of("small") as cluster:
        assert cluster.small is not None
        living, calls = Living(), cluster.small.calls
        try:
            pods = OnCluster(living, cluster)
            try:
                pods.up(ON)
                run(living, 1)
                control, before = psutil.Process(living.pid("control")), len(calls)
                begun = sum(control.cpu_times()[:2])
                run(living, tasks)
                seconds = sum(control.cpu_times()[:2]) - begun
                writes = [path for method, path in calls[before:] if method in WRITES]
                return Round(seconds, sum(not path.startswith("/api/v1/nodes/") for path in writes))
            finally:
                living.poise("down", "--cancel")
                pods.end()
        finally:
            living.destroy()


def run(living: Any, tasks: int) -> None:
    """Run this number of tasks, and wait for all of them."""
    client = living.client()
    jobs = [receipt.job for receipt in client.submit_stream([{**NO_OP, "sync": False}] * tasks)]
    for job in jobs:
        status = client.wait(job).status
        if status != "done":
            raise AssertionError(f"{job} is {status}")


def measure(tasks: int, rounds: int) -> list[Figure]:
    found: list[Round] = []
    for number in range(rounds):
        found.append(one_round(tasks))
        say(f"round {number + 1}: {tasks / found[-1].seconds:.0f} tasks a second for each core")
    return [
        rate("tasks a second for each core of the control plane", tasks, [one.seconds for one in found], limit=200.0),
        Figure(name="writes for each task", unit="", values=[one.writes / tasks for one in found], limit=0.0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Tasks a second for each core of the control plane, in pilots")
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return program(lambda: measure(options.tasks, options.rounds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
