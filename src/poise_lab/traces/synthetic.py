"""Generate workloads from a seed: arrivals, run times, and numbers of devices.

    poisson:jobs=1000,rate=60            60 jobs an hour, at random
    bursty:rate=60,burst=10              a Poisson process whose rate alternates between calm and ten times as high
    diurnal:rate=60,swing=0.8            a rate that varies with the hour of the day
    poisson:times=pareto,speeds=V100:1+K80:0.25

Run times have heavy tails: lognormal, by default with the median and the P99 of Philly's jobs, or Pareto. Each class of
work has its own typical run time, so that a predictor can learn it, and its own speed on each device model if there are
several. The same seed always gives the same workload.

`bursty` is a Markov-modulated Poisson process of two states (Fischer and Meier-Hellstern, 1993); `diurnal` uses
thinning (Lewis and Shedler, 1979).
"""

import math
import random
from bisect import bisect
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, get_args

import msgspec

from poise.decoding import convert
from poise.errors import SpecError
from poise.model.workload import Workload
from poise_lab.traces.making import Maker, Said
from poise_lab.traces.options import Options
from poise_lab.traces.rows import MAX_SECONDS, short

Arriving = Literal["poisson", "bursty", "diurnal"]
Times = Literal["lognormal", "pareto"]

HOUR = 3600.0
DAY = 86_400.0

MEDIAN = 1144.0
"""Median run time of Philly's 82,247 jobs, in seconds."""

SPREAD = 2.324
"""Standard deviation of the logarithm of run times: ln(254,758 / 1,144) / 2.3263, by the P99 and the median of the same
jobs.
"""

WITHIN = 0.8
"""The part of this spread within a class; the rest is between classes (their squares add up)."""

SPEED_SPREAD = 0.3
"""Standard deviation of the logarithm of a class's speed on a device model, around the typical speed of the model."""

DEVICES = {1: 76627, 2: 1818, 4: 1870, 8: 1643, 12: 7, 16: 199, 24: 7, 32: 67, 64: 6, 128: 3}
"""Number of Philly's jobs by their number of devices."""

PARETO_LEAST = 60.0
"""Minimum run time of `pareto`, in seconds."""

NEEDED = {
    "arriving": ", ".join(get_args(Arriving)),
    "times": ", ".join(get_args(Times)),
    "speeds": "MODEL:SPEED+MODEL:SPEED",
}
"""Requirements on the fields that are not numbers, for error messages."""

MAX_JOBS = 10_000_000


class Synthetic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a generated workload. `rate` is the mean number of jobs an hour. `median` (seconds), `spread` and
    `alpha` shape the run times; `longest` is their maximum. For `bursty`, the rate is `burst` times as high during a
    `share` of the time, in periods of `lasting` seconds on average; for `diurnal`, it varies by the fraction `swing`.
    `most` is the maximum number of devices of a job. The fraction `deadlines` of the jobs has a deadline, `slack` times
    the run time after the arrival. `speeds` are typical rates by device model.
    """

    arriving: Arriving = "poisson"
    jobs: int = 1000
    rate: float = 60.0
    times: Times = "lognormal"
    median: float = MEDIAN
    spread: float = SPREAD
    alpha: float = 1.1
    longest: float = 30 * DAY
    burst: float = 10.0
    share: float = 0.1
    lasting: float = 1800.0
    swing: float = 0.8
    most: int = 128
    deadlines: float = 0.0
    slack: float = 3.0
    classes: int = 20
    tenants: int = 4
    speeds: dict[str, float] = {}

    def check(self) -> None:
        """Raise `SpecError` for a value out of range."""
        bounds: dict[str, tuple[float, float]] = {
            "jobs": (1, MAX_JOBS), "rate": (1e-6, 1e9), "median": (1e-3, MAX_SECONDS), "spread": (0, 10),
            "alpha": (0.1, 100), "longest": (PARETO_LEAST, MAX_SECONDS), "burst": (1, 1e6), "share": (1e-6, 1 - 1e-6),
            "lasting": (1e-3, 1e9), "swing": (0, 1), "deadlines": (0, 1), "slack": (1, 1e6),
            "most": (1, 128), "classes": (1, 100_000), "tenants": (1, 10_000),
        }  # fmt: skip
        for field, (least, most) in bounds.items():
            if not least <= (value := getattr(self, field)) <= most:
                raise _unfit(field, f"{least:g} to {most:g}", f"{value:g}")
        for model, speed in self.speeds.items():
            if not model or not 1e-6 <= speed <= 1e6:
                raise _unfit("speeds", "MODEL:SPEED+MODEL:SPEED", f"{model}:{speed:g}")


def is_synthetic(text: str) -> bool:
    """Return whether a text names a generated workload rather than a file."""
    return text.partition(":")[0] in get_args(Arriving)


def parse(text: str) -> Synthetic:
    """Parse a text such as `poisson:jobs=1000,rate=60`. Raises `SpecError`.

    >>> parse("bursty:jobs=10,speeds=V100:1+K80:0.25").speeds
    {'V100': 1.0, 'K80': 0.25}
    """
    arriving, _, rest = text.partition(":")
    fields: dict[str, Any] = {"arriving": arriving}
    for part in filter(None, rest.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name in fields or name not in Synthetic.__struct_fields__:
            known = ", ".join(name for name in Synthetic.__struct_fields__ if name != "arriving")
            raise _unfit(short(name) or "arriving", f"FIELD=VALUE of {known}", short(part))
        fields[name] = _speeds(value) if name == "speeds" else value
    try:
        made = convert(fields, Synthetic, strict=False)
    except msgspec.ValidationError as error:
        field = str(error).partition(" - at `$.")[2].partition("[")[0].rstrip("`.") or "arriving"
        like = NEEDED.get(field, f"a number such as {getattr(Synthetic(), field, 1)}")
        raise _unfit(field, like, short(str(fields.get(field, text)))) from None
    made.check()
    return made


def _speeds(text: str) -> dict[str, str]:
    return {model: speed for model, _, speed in (part.partition(":") for part in text.split("+"))}


def _unfit(field: str, need: str, have: str) -> SpecError:
    hint = "poisson:jobs=1000,rate=60"
    return SpecError(
        "the workload cannot be generated from this", code="E103", field=field, need=need, have=have, hint=hint
    )


def generate(drawn: Synthetic, options: Options) -> Workload:
    """Generate a workload with the seed of the options. Raises `SpecError`."""
    drawn.check()
    maker = Maker(drawn.arriving, Path(drawn.arriving), options)
    for kind, rates in _classes(drawn, _chance(options)):
        maker.throughputs |= {f"{kind}@{model}": rate for model, rate in rates.items()}
    return maker.workload_again(drawn.jobs, lambda: _jobs(drawn, _chance(options), maker.gang))


def _chance(options: Options) -> random.Random:
    return random.Random(f"{options.seed}")  # noqa: S311 what a seed decides is no secret


def _jobs(drawn: Synthetic, draw: random.Random, gang: Callable[[int], tuple[int, int]]) -> Iterator[Said]:
    """Yield the jobs in order of arrival; `gang` returns the tasks of so many devices, and the devices of each."""
    classes = _classes(drawn, draw)
    seconds = _seconds(drawn, draw)
    counts = [count for count in DEVICES if count <= drawn.most]
    upto = list(accumulate(DEVICES[count] for count in counts))
    typical = _typical(drawn, draw)
    instants = ARRIVING[drawn.arriving](drawn, draw)
    uniform, number = draw.random, len(classes)
    for _ in range(drawn.jobs):
        at, of = next(instants), int(uniform() * number)
        devices = counts[bisect(upto, uniform() * upto[-1], hi=len(upto) - 1)]
        tasks, gpus = gang(devices)
        kind, rates = classes[of]
        lasting = seconds(typical[of])
        yield Said(
            at=at,
            seconds=lasting,
            tasks=tasks,
            gpus=gpus,
            kind=kind,
            tenant=f"tenant-{of % drawn.tenants}" if drawn.tenants > 1 else "default",
            rates=rates,
            deadline=lasting * drawn.slack if uniform() < drawn.deadlines else 0.0,
        )


def _classes(drawn: Synthetic, draw: random.Random) -> list[tuple[str, dict[str, float]]]:
    """Return the class names, and their rates by device model relative to the best one."""
    made = []
    for number in range(drawn.classes):
        rates = {model: speed * draw.lognormvariate(0.0, SPEED_SPREAD) for model, speed in drawn.speeds.items()}
        best = max(rates.values(), default=1.0)
        made.append((f"class-{number}", {model: rate / best for model, rate in rates.items()}))
    return made


def _typical(drawn: Synthetic, draw: random.Random) -> list[float]:
    """Return, by class, the logarithm of its typical run time over the overall median. The values are normal quantiles
    in random order, so every seed has the same set.
    """
    between = math.sqrt(max(0.0, drawn.spread**2 - WITHIN**2))
    quantile = NormalDist().inv_cdf
    values = [between * quantile((number + 0.5) / drawn.classes) for number in range(drawn.classes)]
    draw.shuffle(values)
    return values


def _seconds(drawn: Synthetic, draw: random.Random) -> Callable[[float], float]:
    """Return a function that draws a run time, given the logarithm of the class's typical run time over the overall
    median.
    """
    longest = drawn.longest
    if drawn.times == "lognormal":
        middle, within = math.log(drawn.median), min(WITHIN, drawn.spread)
        return lambda typical: min(longest, math.exp(draw.gauss(middle + typical, within)))
    # No difference between classes: it would change the tail of the Pareto distribution.
    return lambda typical: min(longest, PARETO_LEAST * draw.paretovariate(drawn.alpha))


def _poisson(drawn: Synthetic, draw: random.Random) -> Iterator[float]:
    at, rate = 0.0, drawn.rate / HOUR
    while True:
        at += draw.expovariate(rate)
        yield at


def _bursty(drawn: Synthetic, draw: random.Random) -> Iterator[float]:
    """Yield arrivals of two rates with the requested mean over time; the durations of the states are exponential."""
    calm = drawn.rate / HOUR / (drawn.share * drawn.burst + 1 - drawn.share)
    rates = (calm, calm * drawn.burst)
    stays = (drawn.lasting * (1 - drawn.share) / drawn.share, drawn.lasting)
    at, state = 0.0, 0
    until = draw.expovariate(1 / stays[state])
    while True:
        after = at + draw.expovariate(rates[state])
        if after < until:
            at = after
            yield at
        else:  # restart the wait in the other state: exponential waits have no memory
            at, state = until, 1 - state
            until += draw.expovariate(1 / stays[state])


def _diurnal(drawn: Synthetic, draw: random.Random) -> Iterator[float]:
    """Yield arrivals by thinning those of the highest rate by the rate of the hour; the rate is lowest at 0:00."""
    mean, at = drawn.rate / HOUR, 0.0
    while True:
        at += draw.expovariate(mean * (1 + drawn.swing))
        if draw.random() * (1 + drawn.swing) <= 1 - drawn.swing * math.cos(2 * math.pi * at / DAY):
            yield at


ARRIVING: dict[str, Callable[[Synthetic, random.Random], Iterator[float]]] = {
    "poisson": _poisson,
    "bursty": _bursty,
    "diurnal": _diurnal,
}
