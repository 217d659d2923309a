"""Find the speeds of a class of work on device models in the throughputs of a fleet file."""

import re
from collections.abc import Mapping

Table = Mapping[str, Mapping[str, float]]
"""Samples per second, by class and device model."""

_SIZE = re.compile(r" x([0-9]+)$")
"""Matches the number of devices at the end of a job class name."""


def by_class(throughputs: Mapping[str, float]) -> Table:
    """Return the throughputs by class.

    >>> by_class({"resnet@T4": 1.0, "resnet@V100": 4.0})
    {'resnet': {'T4': 1.0, 'V100': 4.0}}
    """
    table: dict[str, dict[str, float]] = {}
    for key, rate in throughputs.items():
        kind, _, model = key.rpartition("@")
        table.setdefault(kind, {})[model] = rate
    return table


def row_of(table: Table, kind: str) -> Mapping[str, float]:
    """Return the speeds of a class by device model; empty if there are none. A class with a size and no row of its own
    has the speeds of one device times the size.

    >>> row_of({"resnet": {"T4": 1.0}}, "resnet x4")
    {'T4': 4.0}
    """
    size = _SIZE.search(kind)
    if kind in table or size is None:
        return table.get(kind, {})
    times = int(size[1])
    return {model: rate * times for model, rate in table.get(kind[: size.start()], {}).items()}
