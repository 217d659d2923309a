"""Measurements of a model in several precisions compared with the original, and the choice between them.

Sizes are bytes; durations are nanoseconds by the number of inputs in a batch. `poise_train.smaller` measures;
`policy.precision` chooses.
"""

from math import prod
from typing import Literal

import msgspec

VARIABLE = "POISE_PRECISION"
"""The environment variable with the `precision` that a replica's service requests."""

AS_IT_IS = "fp32"
"""The original model."""

AUTO = "auto"
"""The fastest candidate that keeps enough quality."""

PrecisionName = Literal["", "auto", "fp32", "mixed", "bf16", "fp16", "int8"]
"""Precisions that a service may request; empty: none, and the model decides."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate. `weights`: bytes that it keeps between two batches. `peak`: peak of additional memory while it
    answered the largest batch. `takes`: median duration of batches of each size.

    Compared with the answers of the original: `largest` and `mean` are the difference relative to the largest and to
    the mean size of a number in them, `kept` is the retained fraction of their quality (1: all of it). `failed` is the
    reason why nothing was measured: it cannot be created, or cannot answer.
    """

    name: str
    weights: int = 0
    peak: int = 0
    takes: dict[int, int] = {}
    largest: float = 0.0
    mean: float = 0.0
    kept: float = 1.0
    failed: str = ""

    def quicker_than(self, other: "Measured") -> float:
        """Return the speedup over the other: the geometric mean over batch sizes."""
        ratios = [other.takes[size] / took for size, took in self.takes.items()]
        return prod(ratios) ** (1 / len(ratios))


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole comparison: the precision that was `asked` for, the fraction to be `kept` by the measure `by`, all that
    was `measured` (first the original), the one that was `taken`, and `why`, with a sentence on each of the others.
    """

    asked: str
    kept: float
    by: str
    measured: list[Measured]
    taken: str
    why: list[str]


__all__ = ["AS_IT_IS", "AUTO", "VARIABLE", "Measured", "PrecisionName", "Report"]
