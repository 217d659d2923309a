"""Measure tuning: the time of a study, its gain, and how often a policy is applied that is no better.

    python benchmarks/tune.py study TRACE --fleet FILE [--jobs 400] [--evaluations 200] [--processes 2] [--json]
    python benchmarks/tune.py null TRACE --fleet FILE [--jobs 400] [--draws 200] [--json]

`study` is `poise tune` with its objectives `jct,p99wait`, and its time. `null` measures how often a policy would be
applied by chance alone: the jobs of the last part are compared with themselves, with the two sides of each block of
jobs swapped at random, so that no side is better.
"""

import argparse
import json
import random
import resource
import sys
import time
from pathlib import Path

from poise.engine.paired import compare, no_better
from poise.kernel.controller import Settings
from poise.model.worlds import Row
from poise.policy.suites import policy_named
from poise_lab.compare import Asked, load
from poise_lab.traces.options import Options
from poise_lab.trial import row_of, simulate
from poise_lab.tune import objectives_named, parts_of, tune

BLOCK = 10


def study(asked: argparse.Namespace, told: Asked) -> dict[str, object]:
    began = time.monotonic()
    found = tune(
        told, "poise", objectives_named("jct,p99wait"), evaluations=asked.evaluations, processes=asked.processes
    )
    figures = {one.name: [one.live, one.shadow, one.low, one.high] for one in found.told.figures}
    return {
        "seconds": time.monotonic() - began,
        "seconds of CPU": resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime + time.process_time(),
        "evaluations": found.evaluations,
        "given up early": found.stopped_early,
        "front": len(found.front),
        "no better": found.no_better,
        "figures": figures,
    }


def null(asked: argparse.Namespace, told: Asked) -> dict[str, object]:
    loaded = load(told)
    part = parts_of(loaded.workload)[2]
    sides: list[list[Row]] = []
    for policy in ("poise", "srtf"):
        result = simulate(part, loaded.fleet.nodes, policy_named(policy), Settings(seed=told.seed))
        sides.append([row_of(job, result.measures.makespan) for job in result.jobs])
    applied = 0
    for draw in range(asked.draws):
        chance = random.Random(draw)
        swapped = [chance.random() < 0.5 for _ in range(len(sides[0]) // BLOCK + 1)]
        pairs = [
            (other, one) if swapped[at // BLOCK] else (one, other)
            for at, (one, other) in enumerate(zip(*sides, strict=True))
        ]
        found = compare(pairs, seed=draw, drawn=200)
        applied += not no_better(found.jobs, found.figures)
    return {"draws": asked.draws, "applied": applied / asked.draws}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["study", "null"])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--fleet", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    options = Options(jobs=asked.jobs, seed=asked.seed)
    told = Asked(trace=asked.trace, fleet=asked.fleet, options=options, seed=asked.seed)
    found = study(asked, told) if asked.what == "study" else null(asked, told)
    if asked.json:
        json.dump(found, sys.stdout)
        print()
    else:
        for name, value in found.items():
            print(f"{name:<16} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
