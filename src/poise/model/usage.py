"""The resource profile of a node: how busy it has been, in which pattern, and which pricing model suits that.

Signals are sampled every second and stored as *windows* of a minute: the mean and the maximum of each. Windows of a
minute are kept for a day, those of an hour for four weeks. Profiles are computed from them on request.

>>> collecting = Collecting()
>>> told = [collecting.take(60 * minute, {"cpu": 900 + minute}) for minute in range(1, 22)]
>>> profile = profile_of("n1", told[1:], [])
>>> profile.pattern, profile.advice, profile.signals["cpu"].peak
('steady', 'reserved', 920)
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import ceil, exp, sqrt
from typing import Annotated, Literal

import msgspec

from poise.model.scaling import Announced
from poise.model.season import unusual
from poise.units import SECOND

SIGNALS = (
    "cpu", "memory", "disk", "network", "device", "device_memory", "device_bandwidth", "power", "device_power",
    "failures",
)  # fmt: skip
"""Signals. In thousandths of the node's capacity: CPU and memory in use, busy time of its busiest disk, and network
capacity in use; busy time of its devices, their memory in use, and the time that it was read or written. In milliwatts:
`power` of its processors, `device_power` of all its devices. `failures`: smoothed fraction of attempts that were lost
or failed there.
"""

UNKNOWN = -1
"""Value of a signal that is not measured."""

MOST = 2**53
"""Maximum value of any signal."""

MINUTE, HOUR, DAY = 60, 3600, 24 * 3600
"""Windows and their ages are in seconds since 1970 here: days follow the wall clock."""

MAX_WINDOWS = 64
"""Maximum number of windows that a node keeps until they are reported."""

TOLD_EVERY = 10
"""Seconds between reports of the current minute, if it changes: this much is lost when a node dies; a full minute
otherwise.
"""

NOTICEABLE = 50
"""Smallest change of a signal worth a message, in thousandths of its capacity or of its previous value."""

PROFILED = 256
"""Maximum number of nodes whose profiles are reported at once, unless one is requested: each is a file to read."""

MINUTES, HOURS = DAY // MINUTE, 28 * 24
"""Number of windows to keep, of each length."""

SMOOTH = 10 * MINUTE
"""Time constant of the exponential mean: older values count for less than 1/e."""

LEAST = 10
"""Minimum number of minute windows for a pattern."""

IDLE, IDLE_PEAK = 50, 100
"""Limits for an idle node: use in the mean, and in nearly all of its minutes."""

COMPUTE_BOUND = 850
"""Peak use from which a node counts as compute-bound; the load level becomes high there, too."""

BURSTY = 0.5
"""Minimum ratio of the standard deviation of the minutes to their mean; a uniform distribution from 0 to 1 has 0.58."""

LOOK_AHEAD = 7 * DAY
"""Seconds ahead in which announced events speak against switching a node off."""

DAYS = 2
"""Days of hour windows needed to detect a daily pattern."""

REPEATS, SWINGS = 0.5, 100
"""Limits for a daily pattern: the correlation of each hour with the same hour a day later, and the difference between
the busiest and the least busy hour of the day in the mean, in thousandths.
"""

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
    """Whether any signal has changed noticeably since the last report, in its mean or its maximum."""
    pairs = zip(said.mean + said.most, now.mean + now.most, strict=True)
    return any(abs(new - old) >= max(NOTICEABLE, NOTICEABLE * old // 1000) for old, new in pairs)


class SignalUse(msgspec.Struct, frozen=True, kw_only=True):
    """One signal in its own unit: its value in the last minute, smoothed over ten minutes, and, over the last day, its
    mean, its 95th percentile by minute, and its peak sample.
    """

    last: int
    smoothed: int
    mean: int
    p95: int
    peak: int


class UnusualSignal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that is unusual compared with the node's own past: its mean over the latest ten minutes, the usual
    value, and their distance in spreads. `by` is the basis of the comparison: the same `hour of week`, or the last
    `day`.
    """

    value: int
    usual: int
    score: float
    by: str


class NodeProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a node has been. `signals` has the measured signals; `by` is the signal behind `pattern` and `advice`:
    devices if there are any. `why` gives the figures behind the advice. `minutes` and `hours` count the windows used;
    with a daily pattern, `quiet` and `busy` are the hours of the day (UTC) with the least and the most use. `unusual`
    has the signals with unusual values.

    The advice: `reserved` if a long-term price pays off, `on-demand` if it is needed in bursts, `shrink` if it could be
    off for hours of the day or for good, else `keep`.
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
        """Return the seconds until the open minute must be reported, if a sample comes by then."""
        return max(0.0, self._told + TOLD_EVERY - at)

    def _window(self) -> Window:
        of = [self._sums.get(name) for name in SIGNALS]
        return Window(
            self._at,
            tuple(one[1] // one[0] if one else UNKNOWN for one in of),
            tuple(one[2] if one else UNKNOWN for one in of),
        )


def together(windows: Sequence[Window], at: int) -> Window:
    """Merge several windows into one: the minutes of an hour."""
    means, mosts = [], []
    for number in range(len(SIGNALS)):
        known = [window for window in windows if window.mean[number] != UNKNOWN]
        means.append(sum(window.mean[number] for window in known) // len(known) if known else UNKNOWN)
        mosts.append(max((window.most[number] for window in known), default=UNKNOWN))
    return Window(at, tuple(means), tuple(mosts))


def profile_of(node: str, minutes: Sequence[Window], hours: Sequence[Window]) -> NodeProfile:
    """Return the profile from windows in order of time; without windows nothing is known."""
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


def unless_announced(profile: NodeProfile, announced: Iterable[Announced], now: float) -> NodeProfile:
    """Return the profile with the advice to keep the node instead of `shrink`, if an announced event of the next days
    raises the load while the node could be off: at any time for an idle node, in the quiet hours for one with a daily
    pattern. `now` is in seconds since 1970.
    """
    if profile.advice != "shrink":
        return profile
    against = []
    for one in announced:
        if one.times > 1 or one.rate:
            begin, end = max(one.at / SECOND, now), min(one.until / SECOND, now + LOOK_AHEAD)
            starts = [begin, *range(int(begin) // HOUR * HOUR + HOUR, ceil(end), HOUR)] if begin < end else []
            meets = [at for at in starts if not profile.quiet or int(at) // HOUR % 24 in profile.quiet]
            against += [(at, one.name or "an event") for at in meets[:1]]
    if not against:
        return profile
    at, name = min(against)
    moment = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
    why = f"{profile.why}, but {name} is announced to raise the load at {moment}"
    return msgspec.structs.replace(profile, advice="keep", why=why)


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
    for window in known[1:]:  # the older mean fades with time, including time without samples
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
    """Return the mean by hour of the day if the use has a daily pattern; else empty."""
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
    """Return the hours around the least busy and around the busiest one that lie in the lower and in the upper
    third.
    """
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
    """Return the standard deviation of the whole population."""
    mean = _mean(values)
    return sqrt(_mean([(value - mean) ** 2 for value in values]))


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Pearson's correlation; 0 if one of the series is constant."""
    spread = _deviation(first) * _deviation(second)
    if not spread:
        return 0.0
    return (_mean([a * b for a, b in zip(first, second, strict=True)]) - _mean(first) * _mean(second)) / spread


def _span(hours: Sequence[int]) -> str:
    return f"{hours[0]:02}:00 to {(hours[-1] + 1) % 24:02}:00"
