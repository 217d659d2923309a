"""Metrics, independent of any library: their declarations, and their values by labels."""

from bisect import bisect_left
from collections.abc import Mapping
from math import isfinite
from typing import Literal

import msgspec

Labels = tuple[str, ...]
"""The values of a metric's labels, in the order of their names."""

Seen = Literal["standby", "tenant", "operator"]
"""Visibility of a metric: also on a standby control plane, or only on
the leader; to every bearer, or only to those who see all tenants.
"""

OTHER = "other"
"""The label value that collects all values beyond the limit."""


class Metric(msgspec.Struct, frozen=True):
    """One metric. `buckets` are the upper bounds of a histogram, without infinity."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    seen: Seen = "operator"


class Bins:
    """Values of one histogram: the count of each bucket, the last of which is unbounded, and the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value. One that is not finite is left out: it would make the sum useless from then on."""
        if not isfinite(value):
            return
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> "Bins":
        made = Bins(self.bounds)
        made.counts, made.total = self.counts.copy(), self.total
        return made


Values = Mapping[Labels, float | Bins]
Families = dict[Metric, Values]
"""Values of each metric to show."""
