"""The view of a scaler and its verdict: the number of replicas of a service, and the reasons.

Observations come in windows of equal length, each used once it has ended. A scaler has no state of its own: its memory
goes out with the verdict (`ScaleMemory`) and comes back with the next view. Rates are requests per second, instants and
durations are nanoseconds, use of CPU and devices is a fraction of the replicas' capacity.
"""

from typing import Literal

import msgspec

from poise.units import HOUR, MINUTE

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


class Announced(msgspec.Struct, frozen=True):
    """Announced load: the rate will be `rate` from `at` to `until`."""

    at: int
    rate: float
    until: int


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
]
