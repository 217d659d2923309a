"""Load of a node, and its load level: low, medium or high, from two signals together.

CPU use alone is high on a node that runs one busy loop as intended; a long run queue alone occurs when work waits for a
disk. Only both together mean that a node is overloaded.

>>> LEVELS[level_of(Load(cpu=900, load1=1300))]
'high'
>>> LEVELS[level_of(Load(cpu=900, load1=100))]
'low'
"""

from typing import Annotated

import msgspec

LEVELS = ("low", "medium", "high")
"""Names of the levels; a level is an index here."""

NOTICEABLE = 50
"""Smallest change of a signal worth a message, in thousandths: 5 %."""


class Load(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sample, in thousandths: the node's CPU in use, the one-minute mean of runnable threads per core (`load1`),
    memory in use, busy time of its busiest disk, and network capacity in use.
    """

    cpu: int = 0
    load1: int = 0
    memory: int = 0
    disk: int = 0
    network: int = 0


class Upkeep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cost of a node's agent over the last minute or less: bytes sent per second, and CPU in millionths of a core."""

    sent: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    cpu: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds, in thousandths, from which CPU use and load per core count as medium and as high.

    By default CPU 60 and 85 %, load 0.7 and 1.2 per core.
    """

    cpu_medium: int = 600
    cpu_high: int = 850
    load1_medium: int = 700
    load1_high: int = 1200


DEFAULT_LIMITS = Limits()


def level_of(load: Load, limits: Limits = DEFAULT_LIMITS) -> int:
    """Return the level, an index in `LEVELS`, that both signals have reached."""
    by_cpu = (load.cpu >= limits.cpu_medium) + (load.cpu >= limits.cpu_high)
    by_load1 = (load.load1 >= limits.load1_medium) + (load.load1 >= limits.load1_high)
    return min(by_cpu, by_load1)


def has_changed(said: Load | None, now: Load) -> bool:
    """Whether any signal has changed noticeably since it was last reported (None: never)."""
    if said is None:
        return True
    return any(abs(getattr(now, name) - getattr(said, name)) >= NOTICEABLE for name in Load.__struct_fields__)


class Pace:
    """Sampling interval in nanoseconds: the shortest (`fast`) while signals change or something starts or ends;
    otherwise it doubles each time, up to `slow`.

    >>> pace = Pace(fast=1, slow=5)
    >>> [pace.after(Load(cpu=cpu)) for cpu in (900, 910, 900, 905, 900, 100)]
    [1, 2, 4, 5, 5, 1]
    """

    def __init__(self, fast: int, slow: int) -> None:
        self._fast, self._slow = fast, slow
        self._next = fast
        self._seen: Load | None = None

    def after(self, load: Load) -> int:
        """Take a sample, and return the interval to the next one: it grows while no signal changes noticeably."""
        if has_changed(self._seen, load):
            self._seen = load
            self.stir()
        else:
            self._next = min(self._slow, 2 * self._next)
        return self._next

    def stir(self) -> None:
        """Return to the shortest interval, after an event that may change the signals."""
        self._next = self._fast
