"""What a scaler is shown of a service, and what it answers: how many replicas there shall be, and why.

What was seen comes in windows of one length, each counted once it has ended. A scaler keeps nothing itself: what it has
to remember goes out with its verdict (`ScaleMemory`) and comes back with the next view. Rates are requests a second,
instants and durations nanoseconds, use of CPU and devices a share of what the replicas have.
"""

from typing import Literal

import msgspec

from poise.units import HOUR, MINUTE

Signal = Literal["cpu", "devices", "rate", "latency", "queue"]


class Window(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One window that ended at `at`. `queue` is how many requests waited in the mean, `replicas` how many served. What
    was refused for want of room counts in `mean` and `p99` with what it was foreseen to take; `refused` is its share.
    `mean` and `p99` are 0 where too few were answered to tell. `peak`: the most requests that were there at one time;
    0 if that is not known.
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
    """What is known to come: from `at` to `until` there will be `rate`."""

    at: int
    rate: float
    until: int


class ScaleRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a service asks of its scaling.

    `target` is the use of CPU, of devices and of what a replica can take that is aimed at; a signal within `tolerance`
    of its target changes nothing. `latency_p99` and `latency_mean` are objectives (0: none), `waiting` how many
    requests may wait for each replica, `share` the part of the windows in which more may come than was provided for.
    Wishes of the last `rise` and `fall` hold back a rise and a fall. With `least` 0 the last replica goes when nothing
    has come for `idle`. A rate that falls below a tenth from one window to the next is not believed for `patience`:
    the fault may be before the service, and then all of it comes back at once. With `shared` devices, as many as its
    weight beside training gives it (`poise.policy.sharing`), as what comes needs, and all while an objective is missed.
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


# --- what is remembered ----------------------------------------------------------------------------------------------


class Season(msgspec.Struct, frozen=True, array_like=True):
    """By which factor (its logarithm in `changes`, one for each part of a `period`) the rate changes from one window to
    the next at that point of the period.

    `seen` counts what each was learned from. `plain` and `shaped` are mean errors of guessing without it and with it,
    over `compared` windows: it is used only where it has proved better.
    """

    period: int
    changes: tuple[float, ...]
    seen: tuple[int, ...]
    plain: float = 0.0
    shaped: float = 0.0
    compared: int = 0


class Outlook(msgspec.Struct, frozen=True, array_like=True):
    """What was foreseen of the window that ends at `at`: its rate, how far it may be off (`spread`), and how much the
    replicas that were decided on can take (`enough`).
    """

    at: int
    rate: float
    spread: float
    enough: float


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What forecasting has learned of one service.

    `last` is the last rate that was believed, `level` their moving mean. `soon` and `long` are moving means of how far
    forecasts were off, `usual` that of their spread. `tail` counts by how many spreads rates exceeded the forecast
    (prior and windows), `counted` all of these. `credit` is how many violated windows are to spare (negative: too many
    have been). `doubted` is since when the rate has not been believed.
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
    """`seen` is the end of the last window that was learned from, `busy` the last instant at which something came or
    waited, `wishes` what was wished when (as far back as stabilisation looks), `recent` and `level` the last rates and
    their moving mean, `learned` what forecasting knows.
    """

    seen: int | None = None
    busy: int | None = None
    wishes: tuple[tuple[int, int], ...] = ()
    recent: tuple[float, ...] = ()
    level: float = 0.0
    learned: Learned | None = None


# --- what is shown, and what is answered -----------------------------------------------------------------------------


class ScaleView(msgspec.Struct, frozen=True, kw_only=True):
    """A service at one instant.

    `windows` are those that ended lately, of `window` each, oldest first: at least those since the last view; `latest`
    is what was seen so far of the next one, where that cannot wait. Nothing is learned from it.
    `replicas` is what each that serves or starts can take within the objective (0 where that is not learned yet),
    `capacity` what one more could (0: nothing is known), which is ready `start_up` after it is asked for. `waiting`
    requests wait now, for a start and not for capacity where the service is `starting`: it has no replica yet, or still
    serves what came before it had one.
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
    """One line of why: `wish` is how many replicas it speaks for, `have` what was seen, `need` what is aimed at."""

    code: str
    wish: int
    have: str = ""
    need: str = ""

    def sentence(self) -> str:
        """For people: `5 replicas: CPU is 91 % busy, 70 % is aimed at`."""
        return f"{self.wish} {'replica' if self.wish == 1 else 'replicas'}: {self.text()}"

    def text(self) -> str:
        """The same without the number."""
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
    """How many `replicas` there shall be, and every reason. `until`: when the answer may change by itself."""

    policy: str
    replicas: int
    because: tuple[Because, ...]
    memory: ScaleMemory
    until: int | None = None

    def sentence(self) -> str:
        """For people: what held the number last comes last."""
        return "; ".join(each.sentence() for each in self.because)

    def cause(self) -> str:
        """Why there are so many, in a few words: a missed objective before all else, or what asks for the most."""
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
