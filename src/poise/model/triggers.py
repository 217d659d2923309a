"""Thresholds whose crossing forces a round."""

import msgspec

from poise.model.load import Limits
from poise.units import MILLISECOND, SECOND


class Triggers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thresholds. Shares in thousandths, times in nanoseconds.

    A level counts once it has lasted for `settles`. A node becomes hot after `hot_for` above `hot_above`, and cools
    down after as long at or below `cool_below`. A round is forced by `failed_checks` missed heartbeats in a row, by a
    mean response time of short work above `response_above`, or by fleet use above `use_above` for `use_for`.
    """

    limits: Limits = Limits()
    settles: int = 5 * SECOND
    hot_above: int = 800
    cool_below: int = 700
    hot_for: int = 30 * SECOND
    failed_checks: int = 3
    heartbeat: int = 1 * SECOND
    response_above: int = 200 * MILLISECOND
    use_above: int = 900
    use_for: int = 10 * SECOND
