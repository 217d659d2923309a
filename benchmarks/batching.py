"""Compare waits for fuller batches, and refusals under overload, in the twin: the live batcher in virtual time.

    python benchmarks/batching.py [--seconds 20] [--runs 5] [--json]

One replica serves the perceptron of `benchmarks/serving.py`: the durations are those of `batchcurve.py` on a quiet
machine, times 1.5, with a standard deviation of 15 %. Requests are an open loop of Poisson arrivals. The first two
seconds do not count. The replica begins without measurements. Figures are means over the runs, each with another seed.
It takes a minute of one core.
"""

import argparse
import json
import sys
from random import Random
from statistics import fmean
from typing import Any

from poise.model.servers import Server, Serving, Speed
from poise.model.serving import Limits
from poise.units import MILLISECOND, SECOND
from poise_lab.engine.serving import Open, Request, ServiceTwin

CURVE = ((1, 3.5), (2, 7.5), (3, 10.9), (4, 6.8), (5, 7.8), (8, 8.1), (12, 9.8), (16, 11.1), (32, 17.3))
SLOWER = 1.5
LARGEST = 32
CAPACITY = LARGEST / (SLOWER * CURVE[-1][1] / 1000)
"""Requests per second that the replica can serve."""

RATES = (200, 400, 800, 0.8 * CAPACITY, 0.95 * CAPACITY)
OVERLOAD = 1.5
OBJECTIVE = 150
WARM = 2 * SECOND


def run(rate: float, limits: Limits, seconds: float, seed: int) -> dict[str, float]:
    """Return the figures of one run."""
    chance, now, asked = Random(seed), 0.0, []
    while (now := now + chance.expovariate(rate)) < seconds:
        asked.append(Request(round(now * SECOND)))
    speed = Speed(step=tuple((size, SLOWER * took * MILLISECOND) for size, took in CURVE))
    serving = Serving(servers=(Server(name="a", speed=speed),), spread=0.15)
    twin = ServiceTwin(limits, serving, Open(asked), seed=seed)
    stories = twin.run()
    counted = [story for story in stories if story.came > WARM]
    took = sorted(story.took for story in counted if not story.why)
    too_much = 1 - CAPACITY * (seconds - WARM / SECOND) / len(counted)
    return {
        "device_ms": twin.places[0].worked / MILLISECOND / sum(not story.why for story in stories),
        "p50_ms": took[len(took) // 2] / MILLISECOND,
        "p99_ms": took[int(0.99 * len(took))] / MILLISECOND,
        "refused": 100 * (1 - len(took) / len(counted)),
        "too_much": 100 * max(0.0, too_much),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    cells = [
        (rate, wait, Limits(batch=LARGEST, wait=wait * MILLISECOND, objective=objective * MILLISECOND))
        for rate, objective, waits in (
            *((rate, 0, (0, 3, 5, 10)) for rate in RATES),
            (OVERLOAD * CAPACITY, OBJECTIVE, (0,)),
        )
        for wait in waits
    ]
    rows: list[dict[str, Any]] = []
    for rate, wait, limits in cells:
        runs = [run(rate, limits, given.seconds, seed) for seed in range(given.runs)]
        mean = {key: round(fmean(one[key] for one in runs), 2) for key in runs[0]}
        rows.append({"rate": round(rate), "wait_ms": wait, "objective_ms": limits.objective // MILLISECOND} | mean)
        if not given.json:
            print(" ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if given.json:
        json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
