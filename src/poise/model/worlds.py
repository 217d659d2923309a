"""Results of the simulated fleets of policies in shadow, as one process writes them for another."""

from typing import NamedTuple

import msgspec


class Row(NamedTuple):
    """A job in a world, up to an instant. `time` from its submission to its end and `wait` to its first start, in
    nanoseconds, or to the instant if that is earlier; `late` is 1 if a deadline was missed; `preempted` counts
    preemptions; `service` is nanoseconds times devices (cores, for work without devices). `ended` is 1 if it has ended.
    """

    time: int
    wait: int
    late: int
    preempted: int
    service: int
    ended: int


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Two worlds from one fork on, for `hours` hours: each job in both, first in that of the deciding policy, in order
    of submission. `capacity` is nanoseconds times devices.
    """

    since: float
    hours: float
    capacity: float
    pairs: tuple[tuple[Row, Row], ...]
    guessed: int = 0
    converted: int = 0


class WorldTold(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one policy in shadow: its `windows`, of which the last is still open."""

    windows: tuple[Window, ...] = ()
    failed: str = ""


class WorldsTold(msgspec.Struct, frozen=True, kw_only=True):
    """All worlds: they began as a fork of `revision`, while the policy `live` decided, and had reached `at` (seconds
    since 1970) when the record was `written`; `late` is in seconds. `cpu` is the fraction of a core that they used, and
    `left_out` counts what they do not model. Policies by label.
    """

    revision: int
    live: str
    at: float
    written: float
    late: float
    cpu: float = 0.0
    left_out: dict[str, int] = {}
    worlds: dict[str, WorldTold] = {}
