"""What the simulated fleets of policies in shadow have brought so far, as one process writes it down for another."""

from typing import NamedTuple

import msgspec


class Row(NamedTuple):
    """A job in a world, up to an instant. `time` from its submission to its end and `wait` to its first start, in
    nanoseconds, or to the instant where that is earlier; `late` is 1 where a deadline was missed; `preempted` counts
    orders to yield; `service` is nanoseconds times devices (cores, for work without devices). `ended` is 1 if it has.
    """

    time: int
    wait: int
    late: int
    preempted: int
    service: int
    ended: int


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Two worlds from one fork on, for so many `hours`: each job in both, that of the policy that decides first, in the
    order of submission. `capacity` is nanoseconds times devices.
    """

    since: float
    hours: float
    capacity: float
    pairs: tuple[tuple[Row, Row], ...]
    guessed: int = 0
    converted: int = 0


class WorldTold(msgspec.Struct, frozen=True, kw_only=True):
    """Of one policy in shadow: its `windows`, the last of which goes on."""

    windows: tuple[Window, ...] = ()
    failed: str = ""


class WorldsTold(msgspec.Struct, frozen=True, kw_only=True):
    """All worlds: they began as a fork of `revision`, when the policy `live` decided, and were up to `at` (seconds
    since 1970) when it was `written`; `late` is in seconds. `cpu` is the part of a core that they took, and `left_out`
    counts what they do not follow. Policies by label.
    """

    revision: int
    live: str
    at: float
    written: float
    late: float
    cpu: float = 0.0
    left_out: dict[str, int] = {}
    worlds: dict[str, WorldTold] = {}
