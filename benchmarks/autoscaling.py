"""Compare the replica-hours of every scaler with those of an oracle, at the same fraction of violated windows.

    python benchmarks/autoscaling.py [TOTALS.csv] [--services m-large,m-mid,m-small] [--shares 0.01,0.05] [--bursty 7]
        [--first 144] [--bound] [--halves] [--theories] [--json]

`TOTALS.csv` is `total_rate_10min.csv` of servegen-alibaba: requests/s of production services in windows of 10 minutes
over 14 days. `bursty` is a generated service of the same length: a daily and weekly cycle, noise, an hourly job, and
bursts of 2 to 6 times the load at random times, one a day, that decay. At the end of each window, the policy code of a
live service decides from the data so far. A window is violated if its load exceeds the capacity of the replicas. The
first day is for learning, and does not count.

`oracle` provides exactly the load. `replicas of any size`: each replica takes 1/400 of the busiest window and is ready
at once. `whole replicas`: the busiest window needs 40; a started replica is ready 2 minutes later and costs from the
beginning, a stopped replica ends at once. The minimum is 1/40 of the busiest window, also in the first.

Every rule has one number. It is fitted so that the fraction of violated windows is the allowed one and the cost is
least: the target fraction for `forecast`, the target use for the others (above 1: less capacity than the expected load;
for `static`, whose capacity is constant, relative to the busiest window). The fit uses the same windows that are
counted. `as it is` is `forecast` without a fit: its target is the allowed fraction. `overflow` (in --json) is the
fraction of the requests above the capacity.

`--bound` prints instead the optimum of a family of rules that provide a forecast plus a number of spreads, with all
constants chosen in hindsight for each trace, and the cost of risk at one price (`priced`). `--halves` fits
`forecast` to the first half of each trace, and prints the second half with the number so found, and the optimum of that
family for each half. `--theories` measures changes to `forecast` on the first half, with the number of spreads chosen
in hindsight.
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

from poise.model.fleet import Floats, Ints
from poise.model.scaling import ScaleMemory, ScaleRules, ScaleView, Window
from poise.policy.foresight import BLUR, COLLAPSED, LONG, MOST_DARING, RECENCY, SOON, USUAL
from poise.policy.replicas import DEFAULT_SCALER, SCALERS
from poise.units import MINUTE

DATA = Path("../shared/data/servegen-alibaba/total_rate_10min.csv")
WINDOW = 10 * MINUTE
DAY = 144
"""Windows per day."""

FINE, WHOLE = 400, 40
"""Number of replicas for the busiest window."""

START_UP = 2 * MINUTE
USES, ALWAYS = (0.25, 4.0), (0.5, 16.0)
"""Search ranges for the number of the other rules (use of the expected load) and of `static` (of the busiest
window).
"""

STEPS = 9
"""Number of bisections of a rule's range, in its logarithm."""


class Size(NamedTuple):
    """A size of replicas: the number for the busiest window."""

    name: str
    busiest: int
    start_up: int


SIZES = (Size("replicas of any size", FINE, 0), Size("whole replicas", WHOLE, START_UP))


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Replica-hours over the oracle's, and the fractions of violated windows and of requests above the capacity."""

    cost: float
    violated: float
    overflow: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One rule on one trace. `number` is the fitted number, None without a fit."""

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
    """Generate a load: a daily cycle (1 to 3), weekends at 0.7, noise of 8 %, an hourly job in its first window, and
    about one burst a day.
    """
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
    """Run window by window. A rule's number is its target use of the replicas, or its target fraction of violated
    windows.
    """
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
        serving = scale.replicas - late * max(0, scale.replicas - there)  # mean over the window
        there, memory = scale.replicas, scale.memory
        if place >= first:
            came += rate
            paid += there * takes
            violated += rate > serving * takes * (1 + 1e-12)
            beyond += max(0.0, rate - serving * takes)
        shown = (Window(at=(place + 1) * WINDOW, rate=rate, replicas=there),)
    return Outcome(cost=paid / came, violated=violated / (len(rates) - first), overflow=beyond / came)


def fitted(attempt: Callable[[float], Outcome], low: float, high: float, allowed: float) -> tuple[float, Outcome]:
    """Return the cheapest outcome that meets the allowed fraction. A rule provides most at `low`."""
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
    """Return the least cost of a forecast plus a number of spreads, with all constants chosen in hindsight: forecasts
    from the last rate, moving means and maxima, spreads from moving means of their errors.
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


def theories(rates: Sequence[float], allowed: float, first: int) -> Iterator[tuple[str, float]]:
    """Yield the cost of changes to `forecast`, each with the number of spreads chosen in hindsight."""
    came, believed = np.array(rates), np.array(_believed(rates))
    last, mean, least = _shifted(believed, 1), _moving(believed, RECENCY), came.max() / WHOLE

    def cost(forecast: Floats, spread: Floats, daring: float = 0.0) -> float:
        wanted, known, wide = came[first:], forecast[first:], np.maximum(spread[first:], 1e-9)
        bolder = daring * np.log(np.minimum(MOST_DARING, wide / np.maximum(_moving(wide, USUAL), 1e-9)))
        needed = np.sort(np.where(wanted <= least, -inf, (wanted - known) / wide + bolder))
        number = needed[len(wanted) - 1 - int(allowed * len(wanted))]
        return float(np.maximum(known + np.maximum(0, number - bolder) * wide, least).sum() / wanted.sum())

    def spread_of(forecast: Floats, errors: Floats) -> Floats:
        return (_moving(errors, LONG) + _moving(errors, SOON)) / 2 + BLUR * forecast

    forecast = np.maximum(last, mean)
    errors = np.abs(believed - forecast)
    spread = spread_of(forecast, errors)
    yield "as it is", cost(forecast, spread)
    for daring in (0.7, 1.5):
        yield f"more risk where headroom is expensive ({daring:g})", cost(forecast, spread, daring)
    yield (
        "spreads of errors above the forecast only",
        cost(forecast, spread_of(forecast, np.maximum(believed - forecast, 0))),
    )
    relative = errors / np.maximum(spread, 1e-9)
    hours = np.arange(len(came)) % DAY // 6
    yield "spreads that depend on the hour", cost(forecast, spread * _by_kind(relative, hours))
    change = np.log(np.maximum(last, 1e-9) / np.maximum(_shifted(believed, 2), 1e-9))
    yield (
        "spreads that depend on the last change",
        cost(forecast, spread * _by_kind(relative, np.digitize(change, CHANGES))),
    )
    yesterday = np.log(np.maximum(_shifted(believed, DAY), 1e-9) / np.maximum(_shifted(believed, DAY + 1), 1e-9))
    for part in (0.25, 0.5):
        guess = np.maximum(mean, last * np.exp(part * np.clip(yesterday, -1, 1)))
        yield f"with {part:.0%} of yesterday's change", cost(guess, spread_of(guess, np.abs(believed - guess)))
    yield "risk bought at one price, in hindsight", priced(rates, allowed, first)


def priced(rates: Sequence[float], allowed: float, first: int) -> float:
    """Return the cost of a rule that minimizes capacity plus price times risk in each window, with one price for a
    violated window. The risk comes from the `NEIGHBORS` windows, earlier or later, with the most similar spread, last
    change, yesterday's change, level and hour. The price and a margin are chosen in hindsight.
    """
    came, believed = np.array(rates), np.array(_believed(rates))
    last, mean, least = _shifted(believed, 1), _moving(believed, RECENCY), came.max() / WHOLE
    forecast = np.maximum(np.maximum(last, mean), 1e-9)
    errors = np.abs(believed - forecast)
    spread = (_moving(errors, LONG) + _moving(errors, SOON)) / 2 / forecast + BLUR
    hour = 2 * np.pi * np.arange(len(came)) / DAY

    def change(back: int) -> Floats:
        before = np.maximum(_shifted(believed, back + 1), 1e-9)
        return np.clip(np.log(np.maximum(_shifted(believed, back), 1e-9) / before), -1, 1)

    like = np.stack([np.log(spread), change(1), change(DAY), np.log(forecast), np.sin(hour), np.cos(hour)], 1)[first:]
    like = (like - like.mean(0)) / like.std(0)
    apart = ((like[:, None] - like[None]) ** 2).sum(-1)
    np.fill_diagonal(apart, inf)
    exceeded = np.log(np.maximum(came, 1e-9) / forecast)[first:]
    known = -np.sort(-exceeded[apart.argsort(1)[:, :NEIGHBORS]], 1)[:, : NEIGHBORS // 3]
    risk, wanted, best = np.arange(known.shape[1]) / NEIGHBORS, came[first:], inf
    for margin, price in product((0.0, 0.01, 0.02, 0.04, 0.08), np.geomspace(0.1, 1000, 60)):
        choices = np.maximum(forecast[first:, None] * np.exp(known + margin), least)
        provided = choices[np.arange(len(wanted)), (choices + price * came.mean() * risk).argmin(1)]
        if np.mean(wanted > provided) <= allowed:
            best = min(best, float(provided.sum() / wanted.sum()))
    return best


NEIGHBORS = 100
"""Number of similar windows from which `priced` estimates the risk of a window."""

CHANGES = (-0.1, -0.03, 0.03, 0.1)
"""Limits of the kinds of the last change, in its logarithm."""


def _by_kind(relative: Floats, kinds: Ints) -> Floats:
    """Return the moving mean of earlier values of the same kind."""
    means: dict[int, float] = {}
    found = []
    for value, kind in zip(relative.tolist(), kinds.tolist(), strict=True):
        mean = means.get(kind, 1.0)
        found.append(mean)
        means[kind] = mean + LONG * (value - mean)
    return np.array(found)


def _believed(rates: Sequence[float]) -> list[float]:
    """Bridge collapses of the load as `forecast` does, for as long as its patience."""
    patience, found, doubted = ScaleRules().patience // WINDOW, [rates[0]], 0
    for rate in rates[1:]:
        doubted = doubted + 1 if rate < COLLAPSED * found[-1] else 0
        found.append(found[-1] if 0 < doubted <= patience else rate)
    return found


def _moving(values: Floats, weight: float) -> Floats:
    """Return the moving mean before each value."""
    mean, found = values[0], []
    for value in values.tolist():
        found.append(mean)
        mean += weight * (value - mean)
    return np.array(found)


def _shifted(values: Floats, back: int) -> Floats:
    return np.concatenate([np.full(back, values[0]), values[:-back]])


def halves(trace: str, rates: Sequence[float], allowed: float, first: int) -> str:
    """Fit the number of `forecast` to the first half of a trace, and tell the second half with it."""
    half, size = len(rates) // 2, SIZES[0]
    number, fit = fitted(
        partial(_attempt, rates[:half], DEFAULT_SCALER, size, first), allowed / 5, min(0.49, allowed * 5), allowed
    )
    told = run(rates, DEFAULT_SCALER, number, size, half)
    best = best_of_family(rates[:half], allowed, first), best_of_family(rates, allowed, half)
    cells = [f"{fit.cost:.3f} ({fit.violated:.2%} violated)", f"{told.cost:.3f} ({told.violated:.2%} violated)"]
    return f"| {trace} | {' | '.join([*cells, *(f'{cost:.3f}' for cost in best)])} |"


# --- as a table ------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row], traces: Sequence[str]) -> str:
    """Return, per size of replicas and allowed fraction, a line for each rule and a column for each trace."""
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
    parser.add_argument("--halves", action="store_true", help="fit to the first half, and tell the second")
    parser.add_argument("--theories", action="store_true", help="only changes to `forecast`, on the first half")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    traces = [*totals(given.totals, given.services.split(",")), ("bursty", bursty(given.bursty))]
    shares = [float(share) for share in given.shares.split(",")]
    if given.bound:
        for share, (trace, rates) in product(shares, traces):
            best, bought = best_of_family(rates, share, given.first), priced(rates, share, given.first)
            print(f"{trace}, at most {share:.0%} violated: {best:.3f}, at one price {bought:.3f}")
        return 0
    if given.theories:
        print(f"| change | {' | '.join(trace for trace, _ in traces)} |\n| --- |{' --- |' * len(traces)}")
        columns = [dict(theories(rates[: len(rates) // 2], shares[0], given.first)) for _, rates in traces]
        for name in columns[0]:
            print(f"| {name} | {' | '.join(f'{column[name]:.3f}' for column in columns)} |")
        return 0
    if given.halves:
        for trace, rates in traces:
            print(halves(trace, rates, shares[0], given.first))
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
