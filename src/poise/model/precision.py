"""What was measured of a model in one precision beside the model as it is, and what was made of that.

Bytes, and nanoseconds by the number of inputs in a batch. How they are measured is in `poise_train.smaller`; who is
taken is decided in `policy.precision`.
"""

from math import prod
from typing import Literal

import msgspec

VARIABLE = "POISE_PRECISION"
"""The environment variable that tells a replica what `precision` its service asks for."""

AS_IT_IS = "fp32"
"""The model as it was given."""

AUTO = "auto"
"""The quickest of all that keep enough."""

PrecisionName = Literal["", "auto", "fp32", "mixed", "bf16", "fp16", "int8"]
"""What a service may ask for; empty: nothing, and the model decides."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate. `weights`: bytes of all that it keeps between two batches. `peak`: by how many more memory was in
    use at some moment while it answered the largest batch. `takes`: the median of what batches of each size took.

    Beside the answers of the model as it is: `largest` and `mean` are the difference over the largest and over the mean
    size of a number in them, `kept` is the share of what they are good for (1: all of it). `failed` says why nothing
    was measured: it cannot be made, or cannot answer.
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
        """How many times as quick as the other: the geometric mean over sizes of batches."""
        ratios = [other.takes[size] / took for size, took in self.takes.items()]
        return prod(ratios) ** (1 / len(ratios))


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole comparison: what was `asked` for, the share that had to be `kept` as counted `by`, all that was
    `measured` (first the model as it is), which is `taken`, and `why`, with a sentence on each of the others.
    """

    asked: str
    kept: float
    by: str
    measured: list[Measured]
    taken: str
    why: list[str]


__all__ = ["AS_IT_IS", "AUTO", "VARIABLE", "Measured", "PrecisionName", "Report"]
