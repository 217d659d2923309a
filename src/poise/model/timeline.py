"""Timeline: rows by node and device, with a slice for each phase of each attempt.

`begins` is a time in seconds since 1970; every other time is nanoseconds from there.
"""

from typing import Literal

import msgspec

from poise.model.history import Level

Phase = Literal["waiting", "queued", "starting", "running", "stopping", "many"]
"""`waiting`: it could be placed, and was not. `queued`: placed behind similar work on its node. `stopping`: asked to
checkpoint and end. `many`: slices too short for the chart, drawn as one."""


class Slice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A phase of one attempt, or of `count` short ones that cover `busy` nanoseconds together. `outcome` is empty
    while the attempt runs; for several attempts it is that of the first failed one, if any. `task` is empty for work
    of another tenant.
    """

    since: int
    until: int
    phase: Phase
    task: str = ""
    epoch: int = 0
    outcome: str = ""
    priority: str = ""
    why: str = ""
    note: str = ""
    count: int = 1
    busy: int = 0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a node: `device 0`, a place for one attempt without a device, or (without a node) waiting work.
    `beside` counts rows of the same device above it, if several attempts share it.
    """

    node: str
    name: str
    beside: int
    slices: tuple[Slice, ...]


class Timeline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A window of the timeline: `rows` from row number `first` of `total` on. `revision` is the last one included,
    `names` are the user-given names of its jobs. `left_out` counts, by part, what has no row.
    """

    begins: float
    length: int
    revision: int
    total: int
    rows: tuple[Row, ...]
    first: int = 0
    levels: tuple[Level, ...] = ()
    names: dict[str, str] = {}
    left_out: dict[str, int] = {}
