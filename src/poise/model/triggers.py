"""Thresholds whose crossing forces a round."""

import msgspec

from poise.model.load import Limits
from poise.units import MILLISECOND, SECOND


class Triggers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thresholds. Shares in thousandths, times in nanoseconds.

    A level is taken for what it is after `settles`. A node is hot from `hot_above` for `hot_for`, until it has been at
    `cool_below` or less for as long. A round is forced by `failed_checks` heartbeats missed in a row, by a mean
    response of short work above `response_above`, by a use of the fleet above `use_above` for `use_for`.
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
