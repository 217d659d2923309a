"""Measure the cost of a trace's job in the twin: CPU time, rounds, log size, and a digest of the result.

    python benchmarks/twin_speed.py [--data ../shared/data] [--policies fifo,poise] [--trace philly] [--jobs 3000]
        [--first 0] [--nodes 60] [--load 1.5] [--know estimated] [--repeat 3] [--json]

Run on two checkouts (`PYTHONPATH=…/src`) in sequence, the ratio of `ms/job` is the effect of a change. The digest, of
the place and time of each attempt's start and of its end, shows whether any decision differs. The trace and its cluster
are those of `quality.py`, from job number `--first` on and with `--nodes` of its nodes; CPU time is of this process
alone, the minimum over the runs.
"""

import argparse
import hashlib
import json
from pathlib import Path
from time import process_time
from typing import Any

import msgspec
from quality import CASES

from poise.kernel.controller import Settings
from poise.model.events import Event, Finished, Held, Placed, Preempted, Resized, encode_event
from poise.policy.suites import policy_named
from poise_lab.traces.formats import read_trace
from poise_lab.trial import simulate


def timed(
    name: str,
    data: Path,
    policy: str,
    jobs: int,
    know: str,
    repeat: int,
    load: float | None = None,
    first: int = 0,
    count: int = 0,
) -> dict[str, Any]:
    case = CASES[name]
    table = data / case.table if case.table else None
    load = case.options.load if load is None else load
    options = msgspec.structs.replace(case.options, jobs=first + jobs, information=know, throughputs=table, load=load)
    workload, nodes = read_trace(data / case.file, options), case.nodes()
    nodes, arrivals = nodes[: count or None], workload.arrivals[first:]
    arrivals = tuple(msgspec.structs.replace(one, at=one.at - arrivals[0].at) for one in arrivals)
    workload = msgspec.structs.replace(workload, arrivals=arrivals)
    took = []
    for _ in range(repeat):
        began = process_time()
        result = simulate(workload, nodes, policy_named(policy), Settings())
        took.append(process_time() - began)
    digest, log = hashlib.sha256(), {"all": 0, "held": 0}

    def observe(event: Event) -> None:
        size = len(encode_event(event))
        log["all"] += size
        match event:
            case Held():
                log["held"] += size
            case Placed():
                digest.update(repr((event.at, event.unit, event.epoch, event.spots)).encode())
            case Preempted() | Resized():
                digest.update(repr((event.at, event.unit, event.epoch, event.cause, event.to)).encode())
            case Finished():
                digest.update(repr((event.at, event.task, event.epoch, event.ending)).encode())

    simulate(workload, nodes, policy_named(policy), Settings(), observe=observe)
    return {
        "policy": policy,
        "jobs": len(result.jobs),
        "cpu_ms_per_job": 1000 * min(took) / len(result.jobs),
        "rounds": result.rounds,
        "log_bytes": log["all"],
        "held_bytes": log["held"],
        "digest": digest.hexdigest()[:16],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--policies", default="fifo,poise")
    parser.add_argument("--trace", default="philly", choices=CASES)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0, help="jobs of the trace that are left out before these")
    parser.add_argument("--nodes", type=int, default=0, help="so many nodes of its cluster (0: all)")
    parser.add_argument("--load", type=float, help="how many times as fast jobs arrive; as in quality.py by default")
    parser.add_argument("--know", default="estimated")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    for policy in given.policies.split(","):
        trace, many, know = given.trace, given.repeat, given.know
        slice_of = given.load, given.first, given.nodes
        rows.append(row := timed(trace, given.data, policy, given.jobs, know, many, *slice_of))
        if not given.json:
            print(
                f"{policy:20} {row['jobs']:6} jobs {row['cpu_ms_per_job']:8.3f} ms/job {row['rounds']:7} rounds "
                f"{row['log_bytes'] / 1e6:8.2f} MB log, {row['held_bytes'] / row['log_bytes']:4.0%} holds  "
                f"{row['digest']}",
                flush=True,
            )
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
