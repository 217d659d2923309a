"""Measurements of a device: matrix multiplication by precision, its memory, its links.

A product of two matrices of size n counts 2n³ operations: n³ products and as many sums. A copy of N bytes counts 2N,
read and written, as STREAM counts it (McCalpin, 1995); a copy over a link counts N. Figures are medians of several
runs.
"""

from typing import Any

import msgspec


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The median of `runs` runs, and their minimum and maximum: operations, or bytes, per second."""

    median: int
    least: int
    most: int
    runs: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One device under one driver. `device` is its driver's name for it (`uuid`); for a processor, its name and CPUs.

    `rates` by precision, `bandwidth` of its memory, `links` by endpoints (`host to device`, `device to device 1`).
    `library` did the work, `left_out` maps what was not measured to the reason, `at` is the wall time in seconds since
    1970.
    """

    device: str
    model: str
    driver: str
    library: str
    at: float
    rates: dict[str, Sample] = {}
    bandwidth: Sample | None = None
    links: dict[str, Sample] = {}
    left_out: dict[str, str] = {}

    def figures(self) -> dict[str, Any]:
        """Return the measured fields of `Device` and `Node`."""
        figures: dict[str, Any] = {"rates": {name: sample.median for name, sample in self.rates.items()}}
        return figures | ({"bandwidth": self.bandwidth.median} if self.bandwidth is not None else {})


def sample_of(amount: float, seconds: list[float]) -> Sample:
    """Return the rates of runs that each did `amount` operations or bytes.

    >>> sample_of(6, [1.0, 3.0, 2.0])
    Sample(median=3, least=2, most=6, runs=3)
    """
    rates = sorted(int(amount / one) for one in seconds)
    middle = len(rates) // 2
    median = rates[middle] if len(rates) % 2 else (rates[middle - 1] + rates[middle]) // 2
    return Sample(median=median, least=rates[0], most=rates[-1], runs=len(rates))


def processor_key(name: str, cpu: int) -> str:
    """Return the key of a processor with `cpu` usable milli-CPU: with other CPUs it is another device."""
    return f"{name} x {cpu / 1000:g}"
