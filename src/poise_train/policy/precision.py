"""Chooses the precision of a served model from measurements, and the precision of training.

`auto` takes the fastest precision that keeps enough quality, if the speedup is worth it. A requested precision is taken
if it keeps enough, even if it is not faster (it may save memory). Otherwise the model stays unchanged. The result has a
reason against each of the others.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from poise.model.precision import AS_IT_IS, AUTO, Measured

WORTH = 1.05
"""Minimum speedup over the original model; a smaller one is within the noise of measurements."""


WORTH_TRAINING = 1.3
"""Minimum speedup for training, where matrix products are only a part of the work."""


class Taken(msgspec.Struct, frozen=True):
    """The name of the chosen model, and one sentence on it and on each of the others."""

    name: str
    why: list[str]


def choose(measured: Sequence[Measured], asked: str, kept: float) -> Taken:
    """Choose a model. The first in `measured` is the original. `kept`: minimum share of quality to keep."""
    base, *others = measured
    may = [one for one in others if not one.failed and one.kept >= kept]
    if asked == AUTO:
        may = [one for one in may if one.quicker_than(base) >= WORTH]
    taken = max(may, key=lambda one: one.quicker_than(base), default=base)
    why = [_for(taken, base)] if taken is not base else [_stays(asked)]
    why += [_against(one, base, taken, kept) for one in others if one is not taken]
    return Taken(taken.name, why)


def worth_training_in(rates: Mapping[str, float]) -> tuple[Literal["fp32", "bf16", "fp16"], str]:
    """Return a precision and the reason, from operations per second in each. bf16 is preferred to fp16, whose gradients
    overflow, unless fp16 is much faster.

    >>> worth_training_in({"fp32": 15.7, "fp16": 125})
    ('fp16', 'fp16 is 8.0 times as fast as fp32')
    """
    base = rates.get("fp32", 0)
    bf16, fp16 = rates.get("bf16", 0), rates.get("fp16", 0)
    name: Literal["bf16", "fp16"] = "fp16" if fp16 >= WORTH_TRAINING * bf16 else "bf16"
    best = max(bf16, fp16) if name == "fp16" else bf16
    if not base or not best:
        return "fp32", "nothing is known of others"
    if best < WORTH_TRAINING * base:
        return "fp32", f"{name} is {best / base:.1f} times as fast, which does not pay"
    return name, f"{name} is {best / base:.1f} times as fast as fp32"


def _for(one: Measured, base: Measured) -> str:
    return f"{one.name} is taken: {_speed(one, base)}, weights {_change(one.weights, base.weights)}, {_kept(one)}"


def _stays(asked: str) -> str:
    if asked == AS_IT_IS:
        return f"{AS_IT_IS} stays, as it was asked for"
    return f"{AS_IT_IS} stays: nothing that keeps enough is quicker" if asked == AUTO else f"{AS_IT_IS} stays"


def _against(one: Measured, base: Measured, taken: Measured, kept: float) -> str:
    if one.failed:
        return f"{one.name} does not work: {one.failed}"
    if one.kept < kept:
        return f"{one.name}: {_kept(one)}, where {kept:.1%} must be"
    if taken is base:
        return f"{one.name}: no quicker, {_speed(one, base)}"
    return f"{one.name}: {one.quicker_than(base):.2f} times as quick as {base.name}, not {taken.quicker_than(base):.2f}"


def _speed(one: Measured, base: Measured) -> str:
    return f"{one.quicker_than(base):.2f} times as quick"


def _kept(one: Measured) -> str:
    return f"{one.kept:.1%} kept"


def _change(now: int, before: int) -> str:
    share = now / before - 1 if before else 0.0
    return f"{abs(share):.0%} {'less' if share < 0 else 'more'}" if share else "the same"


__all__ = ["Taken", "choose", "worth_training_in"]
