"""Measure the price of fairness: the policy `poise` with several values of `fairness`, over worlds and traces.

    python benchmarks/fairness.py [--first 1] [--worlds 20] [--traces shockwave,gavel] [--data ../shared/data]
        [--dials 0,0.25,0.5,0.75,1]

For each value: mean completion and P99 waiting relative to the default (geometric means over all worlds that are not
idle), and the means over worlds of the worst finish-time rho and of the fraction of jobs above 1.05.
"""

import argparse
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from regret import World, drawn, traces, trial

from poise.policy.recipe import FAIRNESS, RECIPES
from poise.policy.suites import Suite


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--first", type=int, default=1, help="seed of the first world")
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--traces", default="", help="slices of traces whose names contain one of these, as well")
    parser.add_argument("--dials", default="0,0.25,0.5,0.75,1")
    given = parser.parse_args()
    worlds = [drawn(seed) for seed in range(given.first, given.first + given.worlds)]
    if given.traces:
        names = given.traces.split(",")
        worlds += [world for world in traces(given.data, given.first) if any(name in world.name for name in names)]
    default = [measured(world, FAIRNESS) for world in worlds]
    print(f"{len(worlds)} worlds\n{'fairness':>8} {'mean':>8} {'P99 wait':>9} {'worst rho':>10} {'above 1.05':>11}")
    for dial in map(float, given.dials.split(",")):
        rows = default if dial == FAIRNESS else [measured(world, dial) for world in worlds]
        mean = _ratio([row["mean_h"] for row in rows], [row["mean_h"] for row in default])
        wait = _ratio([row["p99_wait_h"] for row in rows], [row["p99_wait_h"] for row in default])
        rho, above = fmean(row["worst_rho"] for row in rows), fmean(row["unfair"] for row in rows)
        print(f"{dial:8g} {mean:8.3f} {wait:9.3f} {rho:10.2f} {above:11.1%}", flush=True)


def measured(world: World, dial: float) -> dict[str, Any]:
    recipe = next(recipe for recipe in RECIPES if recipe.name == "poise")
    return trial(world, "poise", Suite(msgspec.structs.replace(recipe, fairness=dial)))


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the geometric mean of the ratios; waits below a minute count as a minute."""
    least = 1 / 60
    return exp(fmean(log(max(least, our) / max(least, their)) for our, their in zip(ours, theirs, strict=True)))


if __name__ == "__main__":
    main()
