"""Measure the forecasts of `poise forecast` on recorded loads: their errors, and how often their intervals hold.

    python benchmarks/load_forecasts.py [--data ../shared/data] [--halves] [--json]

Requests per second of three services (servegen-alibaba, 14 days) and jobs per hour of a cluster (Philly, 75 days), in
windows of an hour. Each forecast is made from what was known then, and judged when its window has ended. No constant of
the forecaster was chosen on these data.

`coverage` is the part of windows inside the 80 % interval; the target is 75 to 85 %. `error` is the mean absolute error
over the mean load; `naive` is that of the load one season before, `max of six` that of the largest of the last six
windows.

`--halves` prints the coverage in each half of the judged windows, and its standard error. Errors of forecasts a day
ahead last for many windows, so the standard error uses the effective number of windows: their number, divided by one
plus twice the sum of the autocorrelations of hits, up to the first that is not positive (Bartlett, 1946).
"""

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from poise.policy.load import LEVEL, LoadForecaster
from poise.units import HOUR
from poise_lab.traces.formats import read_trace

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SERVICES = ("m-large", "m-mid", "m-small")
DISTANCES = (1, 6, 24)
LOW, HIGH = 0.75, 0.85


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Forecasts of one load, `ahead` hours ahead. Errors relative to the mean load."""

    load: str
    windows: int
    ahead: int
    judged: int
    coverage: float
    error: float
    naive: float
    max_of_six: float


def services(path: Path) -> Iterator[tuple[str, list[float]]]:
    with path.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    for name in SERVICES:
        rates = [float(row[name]) for row in rows]
        yield name, [sum(rates[at : at + 6]) / 6 for at in range(0, len(rates) - 5, 6)]


def jobs(path: Path) -> list[float]:
    hours = Counter(arrival.at // HOUR for arrival in read_trace(path).arrivals)
    return [float(hours[hour]) for hour in range(max(hours))]


def judged(load: str, values: Sequence[float]) -> Iterator[Row]:
    forecaster = LoadForecaster(HOUR, max(DISTANCES))
    for hour, value in enumerate(values):
        forecaster.learn(hour * HOUR, value)
    mean = sum(values) / len(values)
    for ahead in DISTANCES:
        found = forecaster.accuracy(ahead)
        yield Row(
            load=load,
            windows=len(values),
            ahead=ahead,
            judged=found.judged,
            coverage=found.coverage,
            error=found.error / mean,
            naive=found.naive / mean,
            max_of_six=found.max_of_six / mean,
        )


def hits(values: Sequence[float], ahead: int) -> list[bool]:
    """Return, for each judged window, whether the interval covered its load."""
    forecaster, found, before = LoadForecaster(HOUR, max(DISTANCES)), list[bool](), (0, 0.0)
    for hour, value in enumerate(values):
        forecaster.learn(hour * HOUR, value)
        told = forecaster.accuracy(ahead)
        now = (told.judged, told.coverage * told.judged)
        if now[0] > before[0]:
            found.append(now[1] - before[1] > 0.5)
        before = now
    return found


def uncertain(held: Sequence[bool]) -> tuple[float, float]:
    """Return the coverage, and its standard error for an interval with the nominal coverage."""
    off = np.array(held, float) - np.mean(held)
    slow = 1.0
    for lag in range(1, len(off) - 1):
        correlation = float(off[lag:] @ off[:-lag] / (off @ off)) if off.any() else 0.0
        if correlation <= 0:
            break
        slow += 2 * correlation
    return float(np.mean(held)), float((LEVEL * (1 - LEVEL) * slow / len(held)) ** 0.5)


def print_halves(loads: Sequence[tuple[str, list[float]]]) -> None:
    print("| load | hours ahead | first half | standard error | second half | standard error |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, values in loads:
        for ahead in DISTANCES:
            held = hits(values, ahead)
            parts = [uncertain(held[: len(held) // 2]), uncertain(held[len(held) // 2 :])]
            print(f"| {name} | {ahead} | {' | '.join(f'{part:.1%} | {error:.1%}' for part, error in parts)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument(
        "--halves", action="store_true", help="print only the coverage in each half, and its standard error"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    loads = [*services(given.data / "servegen-alibaba" / "total_rate_10min.csv")]
    loads.append(("philly", jobs(given.data / "philly" / "philly.csv.gz")))
    if given.halves:
        print_halves(loads)
        return 0
    rows = [row for name, values in loads for row in judged(name, values)]
    if given.json:
        print(json.dumps(msgspec.to_builtins(rows), indent=2))
        return 0
    print("| load | hours ahead | judged | coverage | error | naive | max of six |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        kept = "" if LOW <= row.coverage <= HIGH else " (missed)"
        errors = " | ".join(f"{value:.1%}" for value in (row.error, row.naive, row.max_of_six))
        print(f"| {row.load} | {row.ahead} | {row.judged} | {row.coverage:.1%}{kept} | {errors} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
