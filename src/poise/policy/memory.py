"""A memory limit that follows the peaks of earlier attempts: raised soon, lowered slowly.

    needs = [Need(at, peak) for ...]                         # ended attempts of one class
    covered = quantile(needs, now)
    fitted(8 * GIB, covered, margin=0.15)                    # the limit of the next attempt

The limit is a high quantile of the peaks plus a margin. The weight of a peak halves every two days. So a few larger
peaks raise the limit. If the peaks of a class fall, its limit falls only after the larger peaks have lost their weight.
This is the window of Autopilot (Rzadca et al., EuroSys 2020, section 3.2.2) with one sample for each attempt. An
attempt that ran out of memory needed more than its peak, by an unknown amount; it counts as in the Vertical Pod
Autoscaler of Kubernetes.

A limit rises at once and falls slowly, because a low limit kills work, and a high one only wastes room.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from poise.units import HOUR

HALF_LIFE = 48 * HOUR
"""Age at which a peak has half of its weight."""

QUANTILE = 0.98
"""Weighted part of the peaks that the limit covers without its margin."""

LEAST_NEEDS = 10
"""Minimum number of ended attempts of a class for a fit."""

DEAD_BAND = 0.05
"""Maximum relative change of a limit that is ignored."""

BUMP, LEAST_BUMP = 1.2, 100 << 20
"""Assumed need of an attempt that ran out of memory: this multiple of its peak, and at least that many bytes more."""

STEP = 1 << 20
"""Limits are multiples of a MiB."""


class Need(NamedTuple):
    """The instant at which an attempt ended, and the bytes that it needed."""

    at: int
    bytes: int


def needed(peak: int, *, ran_out: bool) -> int:
    """Return the bytes that an attempt needed."""
    return max(int(BUMP * peak), peak + LEAST_BUMP) if ran_out else peak


def quantile(needs: Sequence[Need], now: int) -> int:
    """Return the bytes that cover the weighted part `QUANTILE` of the needs; 0 if there are too few needs."""
    if len(needs) < LEAST_NEEDS:
        return 0
    amounts = np.array([need.bytes for need in needs])
    weights = 0.5 ** ((now - np.array([need.at for need in needs])) / HALF_LIFE)
    order = np.argsort(amounts)
    reached = np.cumsum(weights[order])
    return int(amounts[order[np.searchsorted(reached, QUANTILE * reached[-1])]])


def fitted(limit: int, covered: int, margin: float, own: int = 0) -> int:
    """Return the next limit of work with this limit. `covered` is the amount that covers its class (0: unknown). `own`
    is the most that this work needed when it ran out of memory itself (0: it never did).
    """
    wanted = -(-max(own, int((1 + margin) * covered)) // STEP) * STEP
    if own > limit:
        return wanted
    return limit if not covered or abs(wanted - limit) <= DEAD_BAND * limit else wanted


__all__ = ["Need", "fitted", "needed", "quantile"]
