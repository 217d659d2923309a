"""Fit the power model of simulated fleets to measured devices: their idle power and their power in use.

    python benchmarks/power.py [--data ../shared/data/acme-power]

The data are distributions of power and of use over the A100s of two clusters (Hu et al., NSDI 2024; AcmeTrace, CC BY
4.0). The devices with the least power are assumed to be the ones without use, in equal number. The model's result for
the mean of all devices is also printed, because energy figures are based on it.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median

from poise.model.catalogue import entry_of
from poise.model.power import POWER

STEPS = 1000
CLUSTERS = ("kalos", "seren")


def main() -> None:
    parser = argparse.ArgumentParser(description="fit the power model to measured devices")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data" / "acme-power")
    data: Path = parser.parse_args().data
    entry = entry_of("A100-80")
    assert entry is not None
    cap = entry.power / 1000
    idle, busy = [], []
    print(f"A100, cap {cap:g} W    no use   idle W   of cap   in use W   of cap   mean W   by the model   difference")
    for cluster in CLUSTERS:
        power = quantiles(data / f"gpu_power_{cluster}.csv")
        use = quantiles(data / f"util_gpu_{cluster}.csv")
        count = sum(value < 1 for value in use)
        idle.append(median(power[:count]) / cap)
        busy.append(fmean(power[count:]) / cap)
        mean = fmean(power)
        modelled = POWER.joules(cap, cap * (1 - count / STEPS))
        print(
            f"{cluster:<18}{count / STEPS:>9.1%}{idle[-1] * cap:>9.1f}{idle[-1]:>9.3f}{busy[-1] * cap:>11.1f}"
            f"{busy[-1]:>9.3f}{mean:>9.1f}{modelled:>15.1f}{modelled / mean - 1:>13.1%}"
        )
    print(f"mean of both: idle {fmean(idle):.2f}, in use {fmean(busy):.2f}; shipped: {POWER.idle}, {POWER.busy}")


def quantiles(path: Path) -> list[float]:
    """Return the values at `STEPS` equal parts of a distribution, in order."""
    points = list(_points(path))
    values, at = [], 0
    for step in range(STEPS):
        while at < len(points) - 1 and points[at][1] < (step + 0.5) * 100 / STEPS:
            at += 1
        values.append(points[at][0])
    return values


def _points(path: Path) -> Iterator[tuple[float, float]]:
    """Yield the values, and the percentage of all that is below them."""
    with path.open(newline="") as file:
        for row in csv.reader(file):
            if row and row[0] and row[0] != "c0":
                yield float(row[0]), float(row[1])


if __name__ == "__main__":
    main()
