"""The view of a scaler and its verdict: the number of replicas of a service, and the reasons.

Observations come in windows of equal length, each used once it has ended. A scaler has no state of its own: its memory
goes out with the verdict (`ScaleMemory`) and comes back with the next view. Rates are requests per second, instants and
durations are nanoseconds, use of CPU and devices is a fraction of the replicas' capacity.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from poise.errors import SpecError
from poise.units import DAY, HOUR, MINUTE

Signal = Literal["cpu", "devices", "rate", "latency", "queue"]


class Window(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One window that ended at `at`. `queue` is the mean number of waiting requests, `replicas` the number of serving
    replicas. Requests refused for lack of capacity count in `mean` and `p99` with their predicted latency; `refused` is
    their fraction. `mean` and `p99` are 0 with too few answers. `peak`: maximum number of requests present at one time;
    0 if unknown.
    """

    at: int
    rate: float
    mean: int = 0
    p99: int = 0
    queue: float = 0.0
    cpu: float = 0.0
    devices: float = 0.0
    replicas: int = 0
    refused: float = 0.0
    peak: int = 0


DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

MAX_TIMES = 1000.0
"""Maximum factor by which an event multiplies the load."""

MAX_RATE = 1_000_000
"""Maximum announced rate, in requests per second."""

MAX_EVENT = 366 * DAY
"""Maximum length of an event."""


class Announced(msgspec.Struct, frozen=True):
    """Announced load, from `at` to `until`: the rate will be at least `rate` (0: not said) and `times` what it would
    otherwise be. The day is like the one `days` days earlier in the week (0: like itself). `name` is that of the event.
    """

    at: int
    rate: float
    until: int
    times: float = 1.0
    days: int = 0
    name: str = ""


def announced_days(one: Announced, weekday: int, like: int) -> tuple[Announced, ...]:
    """Return an event, which begins on this day of the week, as days that are like another day of the week."""
    begins = range(one.at, one.until, DAY)
    return tuple(
        Announced(at, one.rate, min(at + DAY, one.until), one.times, (weekday + number - like) % 7, one.name)
        for number, at in enumerate(begins)
    )


def effects_in(announced: Iterable[Announced], since: int, until: int) -> str:
    """Return the announced changes of the load in a window for people, in parentheses; empty if there are none."""
    told = []
    for one in announced:
        if one.at < until and since < one.until and (one.times != 1 or one.days):
            effect = f"x{one.times:g}" if one.times != 1 else "as on another day of the week"
            told.append(f"{effect} for {one.name}" if one.name else effect)
    return f" ({', '.join(dict.fromkeys(told))})" if told else ""


def after(announced: Iterable[Announced], since: int) -> tuple[Announced, ...]:
    """Return announced load on a clock that began at `since`."""
    return tuple(msgspec.structs.replace(one, at=one.at - since, until=one.until - since) for one in announced)


def read_times(value: str | int | float, field: str) -> float:
    """Return the factor in `x3`, `0.5` or `30%`. Raises `SpecError`."""
    text = str(value).strip()
    percent = text.endswith("%")
    try:
        times = float(text.lower().removeprefix("x").removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        times = -1.0
    if not 0 <= times <= MAX_TIMES:
        need = f"a factor from 0 to {MAX_TIMES:g}, such as x3, 0.5 or 30%"
        raise SpecError("the factor cannot be read", code="E103", field=field, need=need, have=text[:80])
    return times


def times_in(announced: Iterable[Announced], since: int, until: int) -> float:
    """Return the factor on the load in a window: the mean over its time."""
    factor = 1.0
    for one in announced:
        common = min(until, one.until) - max(since, one.at)
        if common > 0:
            factor *= 1 + (one.times - 1) * common / (until - since)
    return factor


def days_in(announced: Iterable[Announced], since: int, until: int) -> int:
    """Return how many days earlier in the week the day is that a window is like; 0 if it is like its own day."""
    middle = (since + until) // 2
    return next((one.days for one in announced if one.at <= middle < one.until and one.days), 0)


class ScaleRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Scaling settings of a service.

    `target` is the target use of CPU, of devices and of a replica's capacity; a signal within `tolerance` of its target
    changes nothing. `latency_p99` and `latency_mean` are objectives (0: none), `waiting` is the allowed number of
    waiting requests per replica, `share` the fraction of windows in which the load may exceed the provided capacity.
    Recommendations of the last `rise` and `fall` nanoseconds delay an increase and a decrease. With `least` 0 the last
    replica is removed after `idle` without requests. A rate that falls below a tenth from one window to the next is
    ignored for `patience`: the fault may be upstream of the service, and then the full load returns at once. With
    `shared` devices, the service gets what its load needs, up to the number that its weight beside training gives it
    (`poise.policy.sharing`), and all of that number while an objective is missed.
    """

    signals: tuple[Signal, ...] = ("rate", "latency", "queue")
    least: int = 2
    most: int = 10
    target: float = 0.7
    tolerance: float = 0.1
    latency_p99: int = 0
    latency_mean: int = 0
    waiting: float = 1.0
    share: float = 0.01
    rise: int = 0
    fall: int = 5 * MINUTE
    idle: int = 5 * MINUTE
    patience: int = 2 * HOUR
    shared: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.least <= max(1, self.least) <= self.most:
            raise ValueError(f"from 0 or more replicas to at least as many and 1, not {self.least}..{self.most}")
        if self.target <= 0:
            raise ValueError(f"a target above 0, not {self.target:g}")
        if not 0 < self.share < 0.5:
            raise ValueError(f"a share of windows above 0 and below a half, not {self.share:g}")
        if self.waiting <= 0:
            raise ValueError(f"how many may wait for each replica, more than 0, not {self.waiting:g}")


# --- memory ----------------------------------------------------------------------------------------------------------


class Season(msgspec.Struct, frozen=True, array_like=True):
    """Seasonal factor by which the rate changes from one window to the next (`changes` has its logarithm for each part
    of a `period`).

    `seen` counts the observations of each part. `plain` and `shaped` are mean forecast errors without and with the
    season, over `compared` windows: the season is used only if it has proved better.
    """

    period: int
    changes: tuple[float, ...]
    seen: tuple[int, ...]
    plain: float = 0.0
    shaped: float = 0.0
    compared: int = 0


class Outlook(msgspec.Struct, frozen=True, array_like=True):
    """Forecast for the window that ends at `at`: its rate, its uncertainty (`spread`), and the capacity of the chosen
    replicas (`enough`).
    """

    at: int
    rate: float
    spread: float
    enough: float


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """Forecasting state of one service.

    `last` is the last accepted rate, `level` the moving mean of accepted rates. `soon` and `long` are moving means of
    forecast errors, `usual` that of their spread. `tail` counts by how many spreads rates exceeded the forecast (prior
    and windows), `counted` is their total. `credit` is the number of violated windows still allowed (negative: too
    many). `doubted` is the instant since which the rate has been ignored.
    """

    last: float
    level: float
    soon: float
    long: float
    usual: float
    tail: tuple[float, ...]
    counted: float
    credit: float = 0.0
    doubted: int | None = None
    seasons: tuple[Season, ...] = ()
    outlooks: tuple[Outlook, ...] = ()


class ScaleMemory(msgspec.Struct, frozen=True, kw_only=True):
    """`seen` is the end of the last window that was learned from, `busy` the last instant with requests, `wishes` the
    recent recommendations with their instants (as far back as stabilisation looks), `recent` and `level` the last rates
    and their moving mean, `learned` the forecasting state.
    """

    seen: int | None = None
    busy: int | None = None
    wishes: tuple[tuple[int, int], ...] = ()
    recent: tuple[float, ...] = ()
    level: float = 0.0
    learned: Learned | None = None


# --- view and verdict ------------------------------------------------------------------------------------------------


class ScaleView(msgspec.Struct, frozen=True, kw_only=True):
    """A service at one instant.

    `windows` are recent windows of length `window`, oldest first: at least those since the last view. `latest` is the
    unfinished window, if it is urgent; nothing is learned from it. `replicas` has the capacity of each serving or
    starting replica within the objective (0: not learned yet), `capacity` that of one more (0: unknown), which is ready
    `start_up` after its request. `waiting` requests wait now; while the service is `starting`, they wait for a start
    and not for capacity: it has no replica yet, or still serves the requests from before it had one.
    """

    now: int
    rules: ScaleRules
    window: int
    windows: tuple[Window, ...] = ()
    latest: Window | None = None
    replicas: tuple[float, ...] = ()
    capacity: float = 0.0
    start_up: int = 0
    waiting: int = 0
    starting: bool = False
    announced: tuple[Announced, ...] = ()
    memory: ScaleMemory = ScaleMemory()


class Because(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reason: `wish` is the number of replicas it recommends, `have` the observed value, `need` the target."""

    code: str
    wish: int
    have: str = ""
    need: str = ""

    def sentence(self) -> str:
        """Format for people: `5 replicas: CPU is 91 % busy, 70 % is aimed at`."""
        return f"{self.wish} {'replica' if self.wish == 1 else 'replicas'}: {self.text()}"

    def text(self) -> str:
        """Format without the number."""
        return BECAUSES.get(self.code, self.code).format(have=self.have, need=self.need)


BECAUSES = {
    "STATIC": "always as many",
    "CPU": "CPU is {have} busy, {need} is aimed at",
    "DEVICES": "devices are {have} busy, {need} is aimed at",
    "LATENCY": "{have}, the objective is {need}",
    "QUEUE": "{have} requests wait, {need} may for each replica",
    "RATE": "{have} requests/s ({need} with room)",
    "FORECAST": "{have}, {need} with headroom",
    "ON_TARGET": "{have} of the target, which is near enough",
    "UNKNOWN_CAPACITY": "what a replica can take is not known yet",
    "NOTHING_SEEN": "nothing has been seen yet",
    "ANNOUNCED": "{have} requests/s are announced {need}",
    "COLD_START": "something waits and nothing serves",
    "IDLE": "nothing has come for {have}",
    "NOT_IDLE": "the last replica goes when nothing has come for {need}",
    "LEAST": "there are never fewer",
    "SHARED": "training has the rest: the service's weight is {have}, and so many take what comes",
    "MOST": "there are never more; {have} were wished",
    "RISES_LATER": "fewer were enough within the last {need}; {have} were wished",
    "FALLS_LATER": "more were needed within the last {need}; {have} were wished",
}


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The number of `replicas`, and every reason. `until`: when the verdict may change by itself."""

    policy: str
    replicas: int
    because: tuple[Because, ...]
    memory: ScaleMemory
    until: int | None = None

    def sentence(self) -> str:
        """Format for people; the reason that determined the number comes last."""
        return "; ".join(each.sentence() for each in self.because)

    def cause(self) -> str:
        """Return the main reason in a few words: a missed objective first, else the largest recommendation."""
        missed = (line for line in self.because if line.code == "LATENCY")
        return next(missed, self.because[0]).text()


__all__ = [
    "BECAUSES",
    "Announced",
    "Because",
    "Learned",
    "Outlook",
    "Scale",
    "ScaleMemory",
    "ScaleRules",
    "ScaleView",
    "Season",
    "Signal",
    "Window",
    "after",
    "announced_days",
    "days_in",
    "effects_in",
    "read_times",
    "times_in",
]
