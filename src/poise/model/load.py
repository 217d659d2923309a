"""How busy a node is, and its load level: low, medium or high, from two signals together.

CPU use alone is high on a node that runs one busy loop as it should; a long run queue alone is seen where work waits
for a disk. Only both together say that a node has more to do than it can.

>>> LEVELS[level_of(Load(cpu=900, load1=1300))]
'high'
>>> LEVELS[level_of(Load(cpu=900, load1=100))]
'low'
"""

from typing import Annotated

import msgspec

LEVELS = ("low", "medium", "high")
"""Names of the levels; a level is a place here."""

NOTICEABLE = 50
"""Thousandths by which a signal moves before it is worth a message: 5 %."""


class Load(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sample, in thousandths: of the node's CPU that was in use, threads that ran or waited for a CPU per core as a
    mean over one minute (`load1`), memory in use, time that its busiest disk was busy, and network capacity in use.
    """

    cpu: int = 0
    load1: int = 0
    memory: int = 0
    disk: int = 0
    network: int = 0


class Upkeep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node's agent costs itself, over the last minute or less: bytes a second that it sends, and CPU in
    millionths of a core.
    """

    sent: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    cpu: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """From which values on, in thousandths, CPU use and load per core count as medium and as high.

    By default CPU 60 and 85 %, load 0.7 and 1.2 per core.
    """

    cpu_medium: int = 600
    cpu_high: int = 850
    load1_medium: int = 700
    load1_high: int = 1200


DEFAULT_LIMITS = Limits()


def level_of(load: Load, limits: Limits = DEFAULT_LIMITS) -> int:
    """The place in `LEVELS` that both signals have reached."""
    by_cpu = (load.cpu >= limits.cpu_medium) + (load.cpu >= limits.cpu_high)
    by_load1 = (load.load1 >= limits.load1_medium) + (load.load1 >= limits.load1_high)
    return min(by_cpu, by_load1)


def has_changed(said: Load | None, now: Load) -> bool:
    """Whether any signal has moved noticeably since it was last said (none: never)."""
    if said is None:
        return True
    return any(abs(getattr(now, name) - getattr(said, name)) >= NOTICEABLE for name in Load.__struct_fields__)


class Pace:
    """How soon to look again, in nanoseconds: as soon as may be (`fast`) while signals change or something begins or
    ends, and else twice as late each time, up to `slow`.

    >>> pace = Pace(fast=1, slow=5)
    >>> [pace.after(Load(cpu=cpu)) for cpu in (900, 910, 900, 905, 900, 100)]
    [1, 2, 4, 5, 5, 1]
    """

    def __init__(self, fast: int, slow: int) -> None:
        self._fast, self._slow = fast, slow
        self._next = fast
        self._seen: Load | None = None

    def after(self, load: Load) -> int:
        """This was seen; what has not moved noticeably since it last did is seen again soon enough."""
        if has_changed(self._seen, load):
            self._seen = load
            self.stir()
        else:
            self._next = min(self._slow, 2 * self._next)
        return self._next

    def stir(self) -> None:
        """Something has happened that may change them."""
        self._next = self._fast
