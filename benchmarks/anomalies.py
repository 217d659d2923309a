"""Measure anomaly detection: the faulty member of simulated gangs, false alarms, and methods on labelled public series.

    python benchmarks/anomalies.py [--first 30001] [--gangs 1000] [--node-months 200] [--wheel FILE.whl] [--json]

Gangs of 8 to 1,024 members report once a minute for an hour (`poise.engine.telemetry`); every second gang has a faulty
member: a straggler, a slow disk, thermal throttling, a leak, or a lost link. A gang is judged by the first member that
is reported: right, wrong, or too soon. The compared methods are that of Poise; the same without the usual values of
each member; the same with reports after one window; and each member against its own past alone (an EWMA).

The constants of `poise.kernel.peers` were chosen on seeds 1 to 300. Publish only seeds from 30,001 on.

With `--wheel`, methods for one series are compared on the labelled test series in the package `aeon` (`pip download
--no-deps aeon`), including one of the UCR anomaly archive. The figure is the average precision over points, without any
adjustment. Each method scores a point from earlier points only, except PCA and the nearest neighbour, which use the
whole series.
"""

import argparse
import csv
import io
import json
import statistics
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from poise.engine.telemetry import FAULTS, Gang, gang_of
from poise.kernel.peers import WINDOWS, Peers, worst
from poise.model.season import LEAST_MINUTES, Ewma

MINUTES_OF_A_MONTH = 30 * 24 * 60

Series = npt.NDArray[np.float64]
Watch = Callable[[Gang], Iterator[int]]
"""Yields the reported member for each minute, or -1."""


class Judged(NamedTuple):
    """Result for one gang: whether the right member was reported first, or a wrong one; after how many minutes; CPU
    seconds.
    """

    fault: str | None
    right: bool
    wrong: bool
    after: int
    cpu: float
    members: int


def peers(*, usual: bool = True, windows: int = WINDOWS) -> Watch:
    """Run the method of Poise, or a part of it."""

    def watch(gang: Gang) -> Iterator[int]:
        made = Peers(gang.values.shape[1], gang.values.shape[2], usual=usual, windows=windows)
        for values in gang.values:
            found = worst(made.take(values))
            yield found.member if found is not None else -1

    return watch


def alone(gang: Gang) -> Iterator[int]:
    """Compare each member and signal with its own past: a mean and a variance with decay, for `WINDOWS` in a row."""
    values = np.nan_to_num(gang.values)
    mean, variance = values[0].copy(), np.zeros_like(values[0])
    since = np.zeros(values.shape[1:], np.int64)
    for minute, now in enumerate(values):
        weight = max(0.05, 1.0 / (minute + 1))
        deviation = np.maximum(np.sqrt(variance), np.maximum(8.0, 0.02 * np.abs(mean)))
        score = np.abs(now - mean) / deviation if minute >= 10 else np.zeros_like(mean)
        since = np.where(score > 7.0, since + 1, 0)
        change = np.clip(now - mean, -3 * deviation, 3 * deviation) if minute >= 10 else now - mean
        mean += weight * change
        variance = (1 - weight) * (variance + weight * change**2)
        told = np.where(since >= WINDOWS, score, 0.0)
        yield int(np.unravel_index(np.argmax(told), told.shape)[0]) if told.any() else -1


METHODS: dict[str, Watch] = {
    "peers, less what is usual (Poise)": peers(),
    "peers alone": peers(usual=False),
    "found after one window": peers(windows=1),
    "each member alone (EWMA)": alone,
}


def judge(gang: Gang, watch: Watch) -> Judged:
    """Return the first member that a method reports."""
    began, members = time.process_time(), gang.values.shape[1]
    for minute, member in enumerate(watch(gang)):
        if member >= 0:
            cpu = time.process_time() - began
            right = member == gang.member and minute >= gang.since
            return Judged(gang.fault, right, not right, minute - gang.since, cpu, members)
    return Judged(gang.fault, False, False, 0, time.process_time() - began, members)


def false_alarms(seed: int, node_months: float) -> tuple[int, float]:
    """Return the number of reported members of healthy gangs (each once until it is normal again), and the node-months
    observed.
    """
    alarms, seen = 0, 0.0
    while seen < node_months:
        gang = gang_of(seed, minutes=3000, size=(8, 32, 128)[seed % 3], sick=False)
        made, told = Peers(gang.values.shape[1], gang.values.shape[2]), set[int]()
        for values in gang.values:
            now = {found.member for found in made.take(values)}
            alarms += len(now - told)
            told = now
        seen += gang.values.shape[0] * gang.values.shape[1] / MINUTES_OF_A_MONTH
        seed += 1
    return alarms, seen


# --- one series ------------------------------------------------------------------------------------------------------


def ewma(series: Series) -> Series:
    """Score points as Poise does: the first hour is never reported."""
    scores: Series = np.max([_each(column, Ewma(0.05, floor=1e-6).take) for column in series.T], axis=0)
    scores[:LEAST_MINUTES] = 0.0
    return scores


def robust(series: Series) -> Series:
    middle = np.median(series, axis=0)
    spread = 1.4826 * np.median(np.abs(series - middle), axis=0)
    scores: Series = np.max(np.abs(series - middle) / np.maximum(spread, 1e-9), axis=1)
    return scores


def rolling(series: Series, width: int = 100) -> Series:
    """Score deviations from the mean of the last hundred points."""
    scores = np.zeros(len(series))
    for column in series.T:
        sums, squares = np.cumsum(np.r_[0, column]), np.cumsum(np.r_[0, column**2])
        for at in range(width, len(column)):
            mean = (sums[at] - sums[at - width]) / width
            variance = max((squares[at] - squares[at - width]) / width - mean**2, 1e-9)
            scores[at] = max(scores[at], abs(column[at] - mean) / variance**0.5)
    return scores


def pca(series: Series, width: int = 50, kept: int = 5) -> Series:
    """Score the residual that the first principal components of all windows do not explain."""
    windows = _windows(series, width)
    _, _, components = np.linalg.svd(windows - windows.mean(axis=0), full_matrices=False)
    centred = windows - windows.mean(axis=0)
    left = centred - centred @ components[:kept].T @ components[:kept]
    return _spread(np.linalg.norm(left, axis=1), len(series), width)


def nearest(series: Series, width: int = 50, step: int = 5) -> Series:
    """Score the distance of every fifth window to its nearest non-overlapping neighbour: a matrix profile."""
    windows = _windows(series, width)[::step]
    norms = (windows**2).sum(axis=1)
    scores = np.empty(len(windows))
    for at, window in enumerate(windows):
        distance = norms + norms[at] - 2 * windows @ window
        distance[max(0, at - width // step) : at + width // step + 1] = np.inf
        scores[at] = max(0.0, float(distance.min())) ** 0.5
    return _spread(np.repeat(scores, step)[: len(series) - width + 1], len(series), width)


UNIVARIATE: dict[str, Callable[[Series], Series]] = {
    "EWMA with variance (Poise)": ewma,
    "robust z": robust,
    "rolling z": rolling,
    "PCA of windows": pca,
    "nearest window": nearest,
}


def _each(column: Series, score: Callable[[float], float]) -> Series:
    return np.abs([score(float(value)) for value in column])


def _windows(series: Series, width: int) -> Series:
    scaled = (series - series.mean(axis=0)) / np.maximum(series.std(axis=0), 1e-9)
    view = np.lib.stride_tricks.sliding_window_view(scaled, width, axis=0)
    windows: Series = view.reshape(len(view), -1)
    return windows


def _spread(scores: Series, points: int, width: int) -> Series:
    """Map scores of windows to their middle points."""
    found = np.zeros(points)
    found[width // 2 : width // 2 + len(scores)] = scores
    return found


def average_precision(scores: Series, labels: npt.NDArray[np.bool_]) -> float:
    order = np.argsort(-scores, kind="stable")
    hits = labels[order]
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())


def labelled(wheel: Path) -> dict[str, tuple[Series, npt.NDArray[np.bool_]]]:
    """Return the labelled series in a package's wheel, such as those of aeon and sktime."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if "/datasets/data/" in name and name.endswith(".csv") and "_TRAIN" not in name:
                rows = list(csv.DictReader(io.StringIO(archive.read(name).decode())))
                label = (
                    "is_anomaly" if "is_anomaly" in rows[0] else "label" if set(rows[0]) == {"data", "label"} else ""
                )
                if label:
                    columns = [key for key in rows[0] if key not in ("timestamp", label)]
                    values = np.array([[float(row[key]) for key in columns] for row in rows])
                    labels = np.array([float(row[label]) > 0 for row in rows])
                    if labels.any():
                        found[Path(name).stem] = values, labels
    return found


# --- showing it ------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, default=30_001)
    parser.add_argument("--gangs", type=int, default=1000)
    parser.add_argument("--node-months", type=float, default=200.0)
    parser.add_argument("--wheel", type=Path, nargs="*", default=[], help="of packages with labelled series")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found: dict[str, list[Judged]] = {name: [] for name in METHODS}
    for number in range(given.gangs):
        gang = gang_of(given.first + number)
        for name, watch in METHODS.items():
            found[name].append(judge(gang, watch))
        print(f"{number + 1} of {given.gangs} gangs", end="\r", file=sys.stderr)
    alarms, seen = false_alarms(given.first, given.node_months)
    series = {name: one for wheel in given.wheel for name, one in labelled(wheel).items()}
    public = {
        method: {name: average_precision(score(values), labels) for name, (values, labels) in series.items()}
        for method, score in UNIVARIATE.items()
    }
    if given.json:
        told: dict[str, Any] = {name: summary(judged) for name, judged in found.items()}
        print(json.dumps({"gangs": told, "false alarms": alarms, "node-months": seen, "series": public}))
        return
    columns = ("F1", "precision", "recall", "minutes P50", "P99", "CPU s, most")
    print(f"\n{'method':36}" + "".join(f"{name:>13}" for name in columns))
    for name, judged in found.items():
        row = summary(judged)
        print(f"{name:36}" + "".join(f"{row[column]:13.3f}" for column in columns))
    kinds = Counter(of.fault for of in next(iter(found.values())) if of.fault)
    print("recall by fault: " + ", ".join(_of_fault(found, kind, kinds[kind]) for kind in FAULTS))
    print(f"false alarms of healthy gangs: {alarms} in {seen:.0f} node-months, {alarms / seen:.3f} a node and month")
    for method, precisions in public.items() if series else ():
        print(f"{method:36}" + "  ".join(f"{name} {value:.3f}" for name, value in precisions.items()))
    for name, (values, labels) in series.items():
        print(f"{'chance':36}{name} {labels.mean():.3f} ({len(values)} points, {values.shape[1]} channels)")


def summary(judged: Sequence[Judged]) -> dict[str, float]:
    right, wrong = sum(of.right for of in judged), sum(of.wrong for of in judged)
    missed = sum(of.fault is not None and not of.right for of in judged)
    after = sorted(of.after for of in judged if of.right) or [0]
    return {
        "F1": 2 * right / max(1, 2 * right + wrong + missed),
        "precision": right / max(1, right + wrong),
        "recall": right / max(1, right + missed),
        "minutes P50": statistics.median(after),
        "P99": after[int(0.99 * len(after))],
        "CPU s, most": max(of.cpu for of in judged),
    }


def _of_fault(found: dict[str, list[Judged]], kind: str, count: int) -> str:
    right = sum(of.right for of in next(iter(found.values())) if of.fault == kind)
    return f"{kind} {right} of {count}"


if __name__ == "__main__":
    main()
