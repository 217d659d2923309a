"""Reports of the work that waits for room, and the offers of substrates for it."""

from typing import Annotated

import msgspec

from poise.model.resources import Shape
from poise.units import format_duration


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting tasks with the same request: `cpu` in milli-CPU, `memory` in bytes, `gpus`, and `where` as the user wrote
    it (empty: anywhere). `shape` is the whole request of each of them. `together` is the number of tasks that start
    together.

    `work` is the sum of their expected run times, and `longest` the run time that nearly all of them stay under, in
    nanoseconds. `unknown` counts tasks without history or a declared run time; they add nothing to `work`. `key` is
    equal for the same kind of work in all reports.
    """

    tasks: int
    together: int
    cpu: int
    memory: int
    gpus: int
    where: str
    work: int
    longest: int
    unknown: int
    shape: Shape = Shape()
    key: str = ""


class DemandReport(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting work, by its request, in `waits`. `busy` maps each node with running work to the expected time until
    the first of that work ends, in nanoseconds. The report for one substrate has its share of the work in `waits`, and
    all waiting work in `kinds`.
    """

    waits: tuple[Demand, ...]
    busy: dict[str, int]
    kinds: tuple[Demand, ...] = ()


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """Room for `slots` tasks of one kind. It is expected to be free after `delay`, and nearly certainly after `late`,
    in nanoseconds. If it is `asked`, its machines exist or are requested already.
    """

    slots: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    delay: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    late: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    asked: bool = False


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    """The room that a substrate has for one kind of waiting work, by the `key` of the demand. Without openings, the
    substrate takes no such work; `why` is the reason.
    """

    key: str
    openings: tuple[Opening, ...] = ()
    why: str = ""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The quotes of a substrate that gets machines on request, for the waiting work."""

    substrate: Annotated[str, msgspec.Meta(min_length=1)]
    quotes: tuple[Quote, ...]


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """The expected course of a kind of work on one `substrate`, or on existing nodes (empty). It would start after
    `start`, nearly certainly after `late`, and end after `end`, in nanoseconds. If it is `chosen`, work of this kind is
    assigned to it. Otherwise `why` may be the reason that it takes none.
    """

    substrate: str
    chosen: bool = False
    start: int = 0
    late: int = 0
    end: int = 0
    why: str = ""

    def sentence(self) -> str:
        """Return it as text: `expected to start in 20.0 s (P90: 45.0 s) and to end in 1m20s`."""
        if self.why:
            return self.why
        start, late, end = (format_duration(of) for of in (self.start, self.late, self.end))
        return f"expected to start in {start} (P90: {late}) and to end in {end}"


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of work that waits or is unfinished, as one number for an autoscaler."""

    value: int
