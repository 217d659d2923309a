"""The resource profile of a node: how busy it has been, in which pattern, and which pricing model suits that.

Signals are sampled every second and stored as *windows* of a minute: the mean and the maximum of each. Windows of a
minute are kept for a day, those of an hour for four weeks. Profiles are computed from them on request.

>>> collecting = Collecting()
>>> told = [collecting.take(60 * minute, {"cpu": 900 + minute}) for minute in range(1, 22)]
>>> profile = profile_of("n1", told[1:], [])
>>> profile.pattern, profile.advice, profile.signals["cpu"].peak
('steady', 'reserved', 920)
"""

from collections.abc import Mapping, Sequence
from math import exp, sqrt
from typing import Annotated, Literal

import msgspec

from poise.model.season import unusual

SIGNALS = (
    "cpu", "memory", "disk", "network", "device", "device_memory", "device_bandwidth", "power", "device_power",
    "failures",
)  # fmt: skip
"""In thousandths of what the node has: CPU and memory in use, time that its busiest disk was busy, network capacity in
use; time that its devices were busy, their memory in use, and time that it was read or written. In milliwatts: `power`
of its processors, `device_power` of all its devices. `failures`: attempts that were lost or failed there, smoothed.
"""

UNKNOWN = -1
"""In the place of a signal that nobody measures."""

MOST = 2**53
"""Of any signal."""

MINUTE, HOUR, DAY = 60, 3600, 24 * 3600
"""Windows and their ages are in seconds since 1970 here: a day is one of people, by the clock on the wall."""

MAX_WINDOWS = 64
"""That a node keeps while nobody hears of them."""

TOLD_EVERY = 10
"""Seconds after which what is known of a minute that goes on is told, where it changes: so much is lost when a node
dies, and else as much as a minute.
"""

NOTICEABLE = 50
"""Thousandths by which a signal moves, of all there is or of what it was, before it is worth a message."""

PROFILED = 256
"""Nodes whose profiles are told of at once, unless one is asked for: each is a file that is read."""

MINUTES, HOURS = DAY // MINUTE, 28 * 24
"""Windows that are kept of each length."""

SMOOTH = 10 * MINUTE
"""Time constant of the exponential mean: what is older than that counts for less than 1/e."""

LEAST = 10
"""Windows of a minute from which on a pattern is told."""

IDLE, IDLE_PEAK = 50, 100
"""A node is idle that is less busy than this in the mean, and in nearly all of its minutes."""

COMPUTE_BOUND = 850
"""From here on a peak says that the node has as much to do as it can: where the load level becomes high, too."""

BURSTY = 0.5
"""Standard deviation of the minutes over their mean; 0.58 has what is anything from nothing to everything alike."""

DAYS = 2
"""Of windows of an hour, for what repeats every day to be told from what does not."""

REPEATS, SWINGS = 0.5, 100
"""Each hour and the same one a day later are correlated at least so much, and the busiest hour of the day is so many
thousandths above the least busy one, in the mean: the pattern is that of the day."""

Pattern = Literal["", "idle", "steady", "bursty", "diurnal"]
Advice = Literal["", "reserved", "on-demand", "shrink", "keep"]


_Signals = Annotated[
    tuple[Annotated[int, msgspec.Meta(ge=UNKNOWN, le=MOST)], ...],
    msgspec.Meta(min_length=len(SIGNALS), max_length=len(SIGNALS)),
]


class Window(msgspec.Struct, frozen=True, array_like=True):
    """The mean and the maximum of each of `SIGNALS` in a minute or an hour that began `at` (seconds since 1970)."""

    at: Annotated[int, msgspec.Meta(gt=0, le=2**40)]
    mean: _Signals
    most: _Signals

    def with_signal(self, name: str, value: int) -> "Window":
        """Return a copy in which one signal has this value."""
        number = SIGNALS.index(name)
        mean, most = list(self.mean), list(self.most)
        mean[number] = most[number] = value
        return Window(self.at, tuple(mean), tuple(most))


def is_news(said: Window, now: Window) -> bool:
    """Whether any signal is noticeably another one than was said last, in the mean or at the most."""
    pairs = zip(said.mean + said.most, now.mean + now.most, strict=True)
    return any(abs(new - old) >= max(NOTICEABLE, NOTICEABLE * old // 1000) for old, new in pairs)


class SignalUse(msgspec.Struct, frozen=True, kw_only=True):
    """One signal in its own unit: in the last minute, smoothed over ten, and over the last day the mean, what nineteen
    of twenty minutes stay under, and the most that was sampled.
    """

    last: int
    smoothed: int
    mean: int
    p95: int
    peak: int


class UnusualSignal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that is unusual for the node's own past: its mean over the latest ten minutes, what is usual, and by how
    many spreads they are apart. `by` says what it is compared with: the same `hour of week`, or the last `day`.
    """

    value: int
    usual: int
    score: float
    by: str


class NodeProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a node has been. `signals` has those that were measured; `by` is the one that `pattern` and `advice` are
    of: devices where there are any. `why` gives the figures behind the advice. `minutes` and `hours` are the windows
    that this is from; `quiet` and `busy` the hours of the day (UTC) in which it is least and most busy, where it has a
    pattern of the day. `unusual` has the signals that are not as they usually are.

    The advice: `reserved` where a price for long use pays, `on-demand` where it is needed in bursts, `shrink` where it
    could be off for hours of the day or for good, else `keep`.
    """

    node: str
    signals: dict[str, SignalUse]
    by: str = ""
    pattern: Pattern = ""
    advice: Advice = ""
    why: str = ""
    minutes: int = 0
    hours: int = 0
    quiet: tuple[int, ...] = ()
    busy: tuple[int, ...] = ()
    unusual: dict[str, UnusualSignal] = {}


class Collecting:
    """Aggregates samples into windows of a minute. A sample is weighted by the time since the one before, so that the
    sampling interval does not matter. `take` returns the window that a sample closes, or every `TOLD_EVERY` seconds the
    open window so far.
    """

    def __init__(self) -> None:
        self._at = 0
        self._last = 0.0
        self._told = 0.0
        self._sums: dict[str, tuple[int, int, int]] = {}

    def take(self, at: float, sample: Mapping[str, int]) -> Window | None:
        """Add a sample of some signals, `at` seconds since 1970. A sample from before the last one starts over."""
        start = int(at) // MINUTE * MINUTE
        told = None
        if start != self._at:
            told = self._window() if self._sums and start > self._at else None
            self._at, self._sums, self._told = start, {}, at
        lasted = round(1000 * (at - self._last)) if self._last < at < self._last + MINUTE else 1000
        self._last = at
        for name, value in sample.items():
            time, total, most = self._sums.get(name, (0, 0, 0))
            self._sums[name] = (time + lasted, total + value * lasted, max(most, value))
        if told is None and at >= self._told + TOLD_EVERY:
            told, self._told = self._window(), at
        return told

    def due(self, at: float) -> float:
        """Seconds until something is to be told of the minute that is open, if a sample comes by then."""
        return max(0.0, self._told + TOLD_EVERY - at)

    def _window(self) -> Window:
        of = [self._sums.get(name) for name in SIGNALS]
        return Window(
            self._at,
            tuple(one[1] // one[0] if one else UNKNOWN for one in of),
            tuple(one[2] if one else UNKNOWN for one in of),
        )


def together(windows: Sequence[Window], at: int) -> Window:
    """One window of several: an hour of its minutes."""
    means, mosts = [], []
    for number in range(len(SIGNALS)):
        known = [window for window in windows if window.mean[number] != UNKNOWN]
        means.append(sum(window.mean[number] for window in known) // len(known) if known else UNKNOWN)
        mosts.append(max((window.most[number] for window in known), default=UNKNOWN))
    return Window(at, tuple(means), tuple(mosts))


def profile_of(node: str, minutes: Sequence[Window], hours: Sequence[Window]) -> NodeProfile:
    """The profile, of windows in order of time; with none of them nothing is known."""
    uses = {name: use for number, name in enumerate(SIGNALS) if (use := _use_of(minutes, number)) is not None}
    by = "device" if "device" in uses else "cpu"
    if len(minutes) < LEAST or by not in uses:
        why = f"{len(minutes)} of {LEAST} minutes have been seen" if len(minutes) < LEAST else "nobody measures it"
        by = by if by in uses else ""
        return NodeProfile(node=node, signals=uses, by=by, why=why, minutes=len(minutes), hours=len(hours))
    number, use = SIGNALS.index(by), uses[by]
    of_day = _hours_of_day(hours, number)
    means = [window.mean[number] for window in minutes if window.mean[number] != UNKNOWN]
    varies = _deviation(means) / max(1.0, _mean(means))
    quiet, busy = _ends_of_day(of_day)
    percent = f"{by} {use.mean / 10:.0f} % busy in the mean, {use.p95 / 10:.0f} % or less for 19 of 20 minutes"
    pattern: Pattern
    advice: Advice
    if use.mean < IDLE and use.p95 < IDLE_PEAK:
        pattern, advice, why = "idle", "shrink", f"{percent}: it could do without"
    elif of_day and use.p95 >= IDLE_PEAK:
        low, high = _mean([of_day[hour] for hour in quiet]), _mean([of_day[hour] for hour in busy])
        pattern, advice = "diurnal", "shrink"
        why = f"{by} {low / 10:.0f} % busy from {_span(quiet)} UTC, {high / 10:.0f} % from {_span(busy)}: less off-peak"
    elif varies >= BURSTY:
        pattern, advice, why = "bursty", "on-demand", f"{percent}: needed in bursts"
    elif use.p95 >= COMPUTE_BOUND:
        pattern, advice, why = "steady", "reserved", f"{percent}: compute-bound, and used for long"
    else:
        pattern, advice, why = "steady", "keep", f"{percent}: used evenly, with room left"
    return NodeProfile(
        node=node, signals=uses, by=by, pattern=pattern, advice=advice, why=why, minutes=len(minutes),
        hours=len(hours), quiet=quiet if pattern == "diurnal" else (), busy=busy if pattern == "diurnal" else (),
        unusual=_unusual(minutes, hours),
    )  # fmt: skip


def _unusual(minutes: Sequence[Window], hours: Sequence[Window]) -> dict[str, UnusualSignal]:
    found = {}
    for number, name in enumerate(SIGNALS):
        series = [
            [(window.at, window.mean[number]) for window in windows if window.mean[number] != UNKNOWN]
            for windows in (minutes, hours)
        ]
        if (one := unusual(*series)) is not None:
            found[name] = UnusualSignal(value=one.value, usual=one.usual, score=one.score, by=one.by)
    return found


def _use_of(minutes: Sequence[Window], number: int) -> SignalUse | None:
    known = [window for window in minutes if window.mean[number] != UNKNOWN]
    if not known:
        return None
    means = [window.mean[number] for window in known]
    smoothed, before = float(means[0]), known[0].at
    for window in known[1:]:  # the older mean fades with the time between, however much of it nobody looked
        fades = exp((before - window.at) / SMOOTH)
        smoothed, before = smoothed * fades + window.mean[number] * (1 - fades), window.at
    return SignalUse(
        last=means[-1],
        smoothed=round(smoothed),
        mean=round(_mean(means)),
        p95=sorted(means)[max(0, -(-len(means) * 95 // 100) - 1)],
        peak=max(window.most[number] for window in known),
    )


def _hours_of_day(hours: Sequence[Window], number: int) -> dict[int, float]:
    """The mean by hour of the day, where the use follows the day; else nothing."""
    of = {window.at // HOUR: window.mean[number] for window in hours if window.mean[number] != UNKNOWN}
    pairs = [(use, of[hour + 24]) for hour, use in of.items() if hour + 24 in of]
    if len(pairs) < (DAYS - 1) * 24:
        return {}
    first, second = zip(*pairs, strict=True)
    if _correlation(first, second) < REPEATS:
        return {}
    by_hour: dict[int, list[int]] = {}
    for hour, use in of.items():
        by_hour.setdefault(hour % 24, []).append(use)
    means = {hour: _mean(uses) for hour, uses in sorted(by_hour.items())}
    return means if max(means.values()) - min(means.values()) >= SWINGS else {}


def _ends_of_day(of_day: Mapping[int, float]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The hours around the least and around the most busy one that lie in the lower, and in the upper third."""
    if not of_day:
        return (), ()
    low, high = min(of_day.values()), max(of_day.values())
    third = (high - low) / 3

    def around(start: int, *, near: float) -> tuple[int, ...]:
        def belongs(hour: int) -> bool:
            return hour in of_day and abs(of_day[hour] - near) <= third

        first = last = start
        while last - first < 23 and belongs((first - 1) % 24):
            first -= 1
        while last - first < 23 and belongs((last + 1) % 24):
            last += 1
        return tuple(hour % 24 for hour in range(first, last + 1))

    return (
        around(min(of_day, key=lambda hour: of_day[hour]), near=low),
        around(max(of_day, key=lambda hour: of_day[hour]), near=high),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation of all there are."""
    mean = _mean(values)
    return sqrt(_mean([(value - mean) ** 2 for value in values]))


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Pearson's; 0 where one of them never changes."""
    spread = _deviation(first) * _deviation(second)
    if not spread:
        return 0.0
    return (_mean([a * b for a, b in zip(first, second, strict=True)]) - _mean(first) * _mean(second)) / spread


def _span(hours: Sequence[int]) -> str:
    return f"{hours[0]:02}:00 to {(hours[-1] + 1) % 24:02}:00"
