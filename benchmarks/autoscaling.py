"""Replica-hours of every scaler over those of an oracle, at the same share of violated windows.

    python benchmarks/autoscaling.py [TOTALS.csv] [--services m-large,m-mid,m-small] [--shares 0.01,0.05] [--bursty 7]
        [--first 144] [--bound] [--json]

`TOTALS.csv` is `total_rate_10min.csv` of servegen-alibaba: requests/s of production services in windows of 10 minutes
over 14 days. `bursty` is a service drawn from a seed, as long: a day and a week, noise, an hourly job, and bursts of 2
to 6 times the load that come at any time, one a day, and die away. A decision is made at the end of each window, from
what was seen until then, by the policy code that a live service has. A window is violated if more comes than its
replicas can take. The first day is not counted, it is there to learn from.

`oracle` provides exactly what comes. `replicas of any size`: each takes a four-hundredth of the busiest window and is
there at once. `whole replicas`: the busiest window needs 40; one that is started serves 2 minutes later and costs from
the beginning, what is stopped goes at once. Never fewer than a fortieth of the busiest window, also in the first.

Every rule has one number that is fitted so that the share of violated windows is what is allowed, and with which its
cost is least: the share to aim at for `forecast`, for the others the target use (over 1: less is provided than what is
expected; of `static`, which always provides as much, of the busiest window). The fit is on the same windows that are
counted. `as it is` is `forecast` with nothing fitted: it aims at the share that is allowed. `overflow` (in --json)
is the share of the requests that came beyond what could be taken.

`--bound` prints instead what any rule of a family could do that provides a forecast and so many spreads above it, with
all of its constants chosen in hindsight for each trace.
"""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from math import inf, pi, sin
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import numpy as np
from harness import say

from poise.model.fleet import Floats
from poise.model.scaling import ScaleMemory, ScaleRules, ScaleView, Window
from poise.policy.foresight import COLLAPSED
from poise.policy.replicas import DEFAULT_SCALER, SCALERS
from poise.units import MINUTE

DATA = Path("../shared/data/servegen-alibaba/total_rate_10min.csv")
WINDOW = 10 * MINUTE
DAY = 144
"""Windows."""

FINE, WHOLE = 400, 40
"""How many replicas the busiest window needs."""

START_UP = 2 * MINUTE
USES, ALWAYS = (0.25, 4.0), (0.5, 16.0)
"""Of what is expected, and of the busiest window: where the number of the other rules, and of `static`, is sought."""

STEPS = 9
"""Halvings of the range, in its logarithm, in which a rule's number is looked for."""


class Size(NamedTuple):
    """Of replicas: how many the busiest window needs."""

    name: str
    busiest: int
    start_up: int


SIZES = (Size("replicas of any size", FINE, 0), Size("whole replicas", WHOLE, START_UP))


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Replica-hours over the oracle's, violated windows and requests beyond what could be taken as shares."""

    cost: float
    violated: float
    overflow: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One rule on one trace. `number` is what was fitted, None if nothing was."""

    trace: str
    size: str
    allowed: float
    rule: str
    number: float | None
    outcome: Outcome


# --- traces ----------------------------------------------------------------------------------------------------------


def totals(path: Path, services: Sequence[str]) -> Iterator[tuple[str, list[float]]]:
    with path.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    for service in services:
        yield service, [float(row[service]) for row in rows]


def bursty(seed: int, days: int = 14) -> list[float]:
    """A day (1 to 3), weekends at 0.7, noise of 8 %, an hourly job in its first window, some one burst a day."""
    random, rates, burst = Random(seed), [], 0.0
    for place in range(days * DAY):
        daily = 2 - sin(2 * pi * place / DAY + 1)
        weekly = 0.7 if place // DAY % 7 >= 5 else 1.0
        burst *= random.uniform(0.3, 0.9)
        if random.random() < 1 / DAY:
            burst = max(burst, random.uniform(1, 5))
        hourly = 0.4 if place % 6 == 0 else 0.0
        rates.append(100 * (daily * weekly * (1 + burst) + hourly) * random.lognormvariate(0, 0.08))
    return rates


# --- one run ---------------------------------------------------------------------------------------------------------


def run(rates: Sequence[float], scaler: str, number: float, size: Size, first: int) -> Outcome:
    """Window by window. A rule's number is the use of its replicas it aims at, or the share of violated windows."""
    policy, busiest = SCALERS[scaler], max(rates)
    takes, least = busiest / size.busiest, max(1, size.busiest // WHOLE)
    rules = ScaleRules(
        signals=("rate",),
        least=least,
        most=max(least, round(size.busiest / number)) if scaler == "static" else 100 * size.busiest,
        target=1.0 if scaler in ("static", DEFAULT_SCALER) else number,
        share=number if scaler == DEFAULT_SCALER else 0.01,
        fall=0,
    )
    memory, there, paid, came, violated, beyond = ScaleMemory(), least, 0.0, 0.0, 0, 0.0
    late = size.start_up / WINDOW
    shown: tuple[Window, ...] = ()
    for place, rate in enumerate(rates):
        view = ScaleView(
            now=place * WINDOW,
            rules=rules,
            window=WINDOW,
            windows=shown,
            replicas=(takes,) * there,
            capacity=takes,
            start_up=size.start_up,
            memory=memory,
        )
        scale = policy.decide(view)
        serving = scale.replicas - late * max(0, scale.replicas - there)  # in the mean over the window
        there, memory = scale.replicas, scale.memory
        if place >= first:
            came += rate
            paid += there * takes
            violated += rate > serving * takes * (1 + 1e-12)
            beyond += max(0.0, rate - serving * takes)
        shown = (Window(at=(place + 1) * WINDOW, rate=rate, replicas=there),)
    return Outcome(cost=paid / came, violated=violated / (len(rates) - first), overflow=beyond / came)


def fitted(attempt: Callable[[float], Outcome], low: float, high: float, allowed: float) -> tuple[float, Outcome]:
    """The cheapest of all that were tried and hold what is allowed. At `low` a rule provides most."""
    best = (low, attempt(low))
    for _ in range(STEPS):
        middle = (low * high) ** 0.5
        outcome = attempt(middle)
        if outcome.violated <= allowed:
            low = middle
            if best[1].violated > allowed or outcome.cost < best[1].cost:
                best = (middle, outcome)
        else:
            high = middle
    return best


def measured(trace: str, rates: Sequence[float], size: Size, allowed: float, first: int) -> Iterator[Row]:
    def row(rule: str, number: float | None, outcome: Outcome) -> Row:
        return Row(trace=trace, size=size.name, allowed=allowed, rule=rule, number=number, outcome=outcome)

    yield row(f"{DEFAULT_SCALER}, as it is", None, run(rates, DEFAULT_SCALER, allowed, size, first))
    for rule in SCALERS:
        attempt = partial(_attempt, rates, rule, size, first)
        sought = {DEFAULT_SCALER: (allowed / 5, min(0.49, allowed * 5)), "static": ALWAYS}.get(rule, USES)
        yield row(rule, *fitted(attempt, *sought, allowed))


def _attempt(rates: Sequence[float], rule: str, size: Size, first: int, number: float) -> Outcome:
    return run(rates, rule, number, size, first)


# --- what a family of rules could do at best -------------------------------------------------------------------------


def best_of_family(rates: Sequence[float], allowed: float, first: int) -> float:
    """The least cost of a forecast and so many spreads above it, all of these constants chosen in hindsight: forecasts
    from the last rate, moving means and largest rates, spreads from moving means of how far these were off.
    """
    came = np.array(rates)
    believed = np.array(_believed(rates))
    least, best = came.max() / WHOLE, inf
    last = _shifted(believed, 1)
    means = [_moving(believed, weight) for weight in (0.3, 0.5, 0.7, 0.9)]
    largest = [np.max([_shifted(believed, back) for back in range(1, count + 1)], axis=0) for count in (2, 3, 6)]
    for forecast in (last, *means, *largest, *(np.maximum(last, mean) for mean in means)):
        off = np.abs(believed - forecast)
        longs = [_moving(off, weight) for weight in (0.01, 0.02, 0.05, 0.1)]
        soons = [_moving(off, weight) for weight in (0.1, 0.2, 0.35, 0.5)]
        for long, soon, blur in product(longs, soons, (0.0, 0.02, 0.04, 0.08)):
            spread = (long + soon) / 2 + blur * forecast
            wanted, known, wide = came[first:], forecast[first:], np.maximum(spread[first:], 1e-9)
            needed = np.sort(np.where(wanted <= least, -inf, (wanted - known) / wide))
            provided = np.maximum(known + needed[len(wanted) - 1 - int(allowed * len(wanted))] * wide, least)
            best = min(best, float(provided.sum() / wanted.sum()))
    return best


def _believed(rates: Sequence[float]) -> list[float]:
    """With collapses bridged as `forecast` does, for as long as its patience."""
    patience, found, doubted = ScaleRules().patience // WINDOW, [rates[0]], 0
    for rate in rates[1:]:
        doubted = doubted + 1 if rate < COLLAPSED * found[-1] else 0
        found.append(found[-1] if 0 < doubted <= patience else rate)
    return found


def _moving(values: Floats, weight: float) -> Floats:
    """The moving mean before each value."""
    mean, found = values[0], []
    for value in values.tolist():
        found.append(mean)
        mean += weight * (value - mean)
    return np.array(found)


def _shifted(values: Floats, back: int) -> Floats:
    return np.concatenate([np.full(back, values[0]), values[:-back]])


# --- as a table ------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row], traces: Sequence[str]) -> str:
    """Per size of replicas and allowed share: a line for each rule, a column for each trace."""
    lines = []
    for size, allowed in dict.fromkeys((row.size, row.allowed) for row in rows):
        lines += [f"{size}, at most {allowed:.0%} of the windows violated:", ""]
        lines += [f"| rule | {' | '.join(traces)} |", f"| --- |{' --- |' * len(traces)}"]
        some = [row for row in rows if (row.size, row.allowed) == (size, allowed)]
        for rule in dict.fromkeys(row.rule for row in some):
            cells = [_cell(row) for row in some if row.rule == rule]
            lines.append(f"| `{rule}` | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(row: Row) -> str:
    outcome = row.outcome
    if row.number is None or outcome.violated > row.allowed:
        return f"{outcome.cost:.3f} ({outcome.violated:.2%} violated)"
    return f"{outcome.cost:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("totals", nargs="?", type=Path, default=DATA, metavar="TOTALS.csv")
    parser.add_argument("--services", default="m-large,m-mid,m-small")
    parser.add_argument("--shares", default="0.01,0.05")
    parser.add_argument("--bursty", type=int, default=7, metavar="SEED")
    parser.add_argument("--first", type=int, default=DAY, help="windows that are not counted")
    parser.add_argument("--bound", action="store_true", help="only what a family of rules could do in hindsight")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    traces = [*totals(given.totals, given.services.split(",")), ("bursty", bursty(given.bursty))]
    shares = [float(share) for share in given.shares.split(",")]
    if given.bound:
        for share, (trace, rates) in product(shares, traces):
            print(f"{trace}, at most {share:.0%} violated: {best_of_family(rates, share, given.first):.3f}")
        return 0
    rows: list[Row] = []
    for size in SIZES:
        for allowed in shares if size is SIZES[0] else shares[:1]:
            for trace, rates in traces:
                rows += measured(trace, rates, size, allowed, given.first)
                say(f"{size.name}, {allowed:.0%}, {trace}: done")
    if given.json:
        print(json.dumps(msgspec.to_builtins(rows), indent=2))
    else:
        print(table(rows, [name for name, _ in traces]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
