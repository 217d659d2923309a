"""Rounds that decided something, for people: every decision with its reason and the considered alternatives."""

from typing import Literal

import msgspec

What = Literal["placed", "preempted", "resized", "held"]


class Made(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision. `of` is a unit or, for a hold, the first units of a queue, and `more` counts the others. `where`
    names the nodes, with devices in brackets; `instead_of` the best rejected nodes, with their scores if known, and
    `fitting` is the number of suitable nodes. `score` has the terms of the chosen node, or the weighing of a
    preemption.
    """

    what: What
    of: tuple[str, ...]
    why: str
    more: int = 0
    to: str = ""
    where: tuple[str, ...] = ()
    score: dict[str, float] = {}
    instead_of: dict[str, float | None] = {}
    fitting: int = 0


class Decided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A round: `revision` of its last record, `base` that of its view, `at` in seconds since 1970. `fired` names the
    triggers that forced it; `left_out` counts decisions that are not in `made`.
    """

    revision: int
    base: int
    at: float
    policy: str
    made: tuple[Made, ...]
    fired: tuple[str, ...] = ()
    left_out: int = 0
