"""What a metric is, apart from any library: its declaration, and the values that it has by its labels."""

from collections.abc import Mapping
from typing import Literal

import msgspec

Labels = tuple[str, ...]
"""The values of a metric's labels, in the order of their names."""

Seen = Literal["standby", "tenant", "operator"]
"""Where a metric is shown: also by a control plane that stands by, or by the leader only; to every bearer, or only to
those who see all tenants.
"""

OTHER = "other"
"""The label value into which all beyond the limit fold."""


class Metric(msgspec.Struct, frozen=True):
    """One metric. `buckets` are the upper bounds of a histogram, without infinity."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    seen: Seen = "operator"


class Bins:
    """The values of one histogram: how many fell into each bucket, the last of which has no bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        for place, bound in enumerate(self.bounds):
            if value <= bound:
                self.counts[place] += 1
                break
        else:
            self.counts[-1] += 1
        self.total += value

    def copy(self) -> "Bins":
        made = Bins(self.bounds)
        made.counts, made.total = self.counts.copy(), self.total
        return made


Values = Mapping[Labels, float | Bins]
Families = dict[Metric, Values]
"""The values of each metric that is to be shown."""
