"""Compare the twin with Pollux's simulator: the same workloads and cluster, against each job's published time.

    python benchmarks/fidelity_pollux.py [--data ../shared/data/pollux-osdi21] [--policies tiresias,goodput]
        [--load 1.0] [--trial workload-6] [--json]

16 nodes of 4 T4, a round each minute, 30 s from each placement until a job makes progress, no interference: the
defaults of the artifact of Pollux (Qiao et al., OSDI 2021, github.com/petuum/adaptdl @ c793c70). `tiresias` and `las`
run the sizes and batches that users chose, and are compared with the artifact's Tiresias; `goodput` runs the same jobs
as elastic jobs that choose their batches, and is compared with its Pollux. Times are seconds from submission to end;
"same" counts jobs whose time equals the published one to the second. `--trial` runs one workload only.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import Any

import clusters

from poise.kernel.controller import Settings
from poise.policy.suites import policy_named
from poise.units import MINUTE, SECOND
from poise_lab.traces.formats import read_trace
from poise_lab.traces.options import Options
from poise_lab.trial import simulate

NODES, PER_NODE = 16, 4
PEERS = {"tiresias": "tiresias", "goodput": "pollux", "las": "tiresias"}
"""The artifact's name of each policy."""

WITHIN = 0.05
"""Maximum error of the mean over all workloads. `las` is for comparison only: it uses turns where Tiresias has two
queues.
"""


def trial(path: Path, policy: str, published: dict[str, int], *, elastic: bool) -> dict[str, Any]:
    """Run one workload under one policy, and compare it with the published result."""
    workload = read_trace(path, Options(elastic=elastic, information="none", restore=30 * SECOND))
    names = [arrival.name for arrival in workload.arrivals]
    began = process_time()
    result = simulate(
        workload,
        clusters.nodes_of({"T4": NODES}, PER_NODE),
        policy_named(policy),
        Settings(every=MINUTE, poll=0, dead_after=0),
    )
    took = process_time() - began
    ours = dict(zip(names, result.completions, strict=True))
    mean, theirs = fmean(ours.values()), fmean(published.values())
    return {
        "workload": path.stem,
        "policy": policy,
        "jobs": len(ours),
        "published": theirs,
        "mean": mean,
        "difference": mean / theirs - 1,
        "same": sum(ours[name] == time for name, time in published.items()),
        "restarts": sum(job.attempts - 1 for job in result.jobs),
        "rounds": result.rounds,
        "cpu_ms_per_job": took * 1000 / len(ours),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/pollux-osdi21"))
    parser.add_argument("--policies", default=",".join(PEERS))
    parser.add_argument("--load", default="1.0", choices=["0.5", "1.0", "1.5", "2.0"])
    parser.add_argument("--trial", default="", help="one workload only, such as workload-6")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = options.data / ("workloads" if options.load == "1.0" else f"workloads-{options.load}")
    paths = sorted(folder.glob(f"{options.trial or 'workload-*'}.csv"))
    rows, failed = [], False
    for policy in options.policies.split(","):
        summary = json.loads(
            (options.data / f"results-jobload/{PEERS[policy]}-{options.load}/summary.json").read_text()
        )
        mine = [trial(path, policy, summary["jcts"][path.stem], elastic=PEERS[policy] == "pollux") for path in paths]
        mean, published = fmean(row["mean"] for row in mine), fmean(row["published"] for row in mine)
        total = {"workload": "all", "policy": policy, "published": published, "mean": mean}
        rows += [*mine, {**total, "difference": mean / published - 1}]
        failed |= policy != "las" and abs(mean / published - 1) > WITHIN
    if options.json:
        print(json.dumps(rows))
    else:
        print_table(rows)
    return int(failed)


def print_table(rows: list[dict[str, Any]]) -> None:
    print("policy    workload      jobs  published s     ours s  difference  same  restarts  rounds  CPU ms/job")
    for row in rows:
        start = f"{row['policy']:9} {row['workload']:12}"
        figures = f"{row['published']:12.2f} {row['mean']:10.2f} {row['difference']:+10.2%}"
        if row["workload"] == "all":
            print(f"{start}      {figures}\n")
        else:
            end = f"{row['same']:5} {row['restarts']:9} {row['rounds']:7} {row['cpu_ms_per_job']:11.1f}"
            print(f"{start} {row['jobs']:4} {figures} {end}")


if __name__ == "__main__":
    sys.exit(main())
