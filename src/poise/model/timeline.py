"""A picture of time: rows by node and device, with a slice for each phase of each attempt.

`begins` is a moment in seconds since 1970; every other time is nanoseconds from there.
"""

from typing import Literal

import msgspec

from poise.model.history import Level

Phase = Literal["waiting", "queued", "starting", "running", "stopping", "many"]
"""`waiting`: it could be placed, and was not. `queued`: placed behind similar work on its node. `stopping`: asked to
save itself and end. `many`: slices too short for the picture, drawn as one."""


class Slice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stretch of one attempt, or of `count` short ones that cover `busy` nanoseconds together. `outcome` is empty
    while the attempt goes on; of several it is that of the first one that failed, if any did. `task` is empty for work
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
    """One row of a node: `device 0`, a place for one attempt without a device, or (without a node) what waits.
    `beside` counts rows of the same device above it, where several attempts share it.
    """

    node: str
    name: str
    beside: int
    slices: tuple[Slice, ...]


class Timeline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A window of the picture: `rows` from row number `first` of `total` on. `revision` is the last that it knows,
    `names` are those that users gave to the jobs in it. `left_out` counts, by part, what has no row.
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
