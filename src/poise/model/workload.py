"""Work as input of the twin: its users' declarations, and the truth that only the simulated world knows.

A policy sees the `Unit`, as it would live: what was declared, and what was learned of its class. The `Truth` is how
long the work really takes on which devices, the cost of stopping and restoring it, and how it ends; no policy ever sees
it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from poise.model.jobs import Outcome, Unit
from poise.model.progress import Speedups
from poise.model.tenants import DEFAULT
from poise.units import MINUTE

ONE_NODE, ONE_RACK, ONE_ZONE, APART = range(4)
"""Distance between the tasks of a unit: values of `Seats.apart`."""


class Seats(NamedTuple):
    """Placement of a unit: the device model of each of its tasks, the number of nodes, their distance, and the number
    of tasks on each, by rank (empty: all on one).
    """

    models: tuple[str, ...]
    nodes: int = 1
    apart: int = ONE_NODE
    split: tuple[int, ...] = ()


class Pace(Protocol):
    """Speed of work. `progress` is the done fraction, from 0 to 1."""

    def left(self, progress: float, seats: Seats, /) -> float:
        """Return the seconds from there to the end."""
        ...

    def reached(self, progress: float, seats: Seats, seconds: float, /) -> float:
        """Return the progress after this many more seconds."""
        ...


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Speedup with more tasks: `n / (1 + loss (n - 1))` with n tasks, by Amdahl's law with `loss` as the serial
    fraction (Amdahl, 1967). `apart` has the remaining fraction of the speedup with the tasks on one node, in one rack,
    in one zone, or further apart.
    """

    loss: float = 0.0
    apart: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)

    def speedup(self, tasks: int, apart: int = ONE_NODE) -> float:
        """Return the speedup over one task."""
        return tasks / (1 + self.loss * (tasks - 1)) * (self.apart[apart] if tasks > 1 else 1.0)


LINEAR = Scaling()


class Steady(msgspec.Struct, frozen=True, gc=False):
    """Work of `seconds` seconds at a rate of 1 with `tasks` tasks on one node; its rate is constant. `rates` are by
    device model; a model without an entry has a rate of 1. A gang is as fast as the slowest of its devices.
    """

    seconds: float
    tasks: int = 1
    rates: Mapping[str, float] = {}
    scaling: Scaling = LINEAR

    def rate(self, seats: Seats) -> float:
        """Return the seconds of work done per second."""
        models, rates = seats.models, self.rates
        slowest = min(rates.get(model, 1.0) for model in models) if rates else 1.0
        if len(models) == self.tasks and seats.apart == ONE_NODE:
            return slowest
        speedup = self.scaling.speedup
        return slowest * speedup(len(models), seats.apart) / speedup(self.tasks)

    def left(self, progress: float, seats: Seats, /) -> float:
        rate = self.rate(seats)
        return (1 - progress) * self.seconds / rate if rate else float("inf")

    def reached(self, progress: float, seats: Seats, seconds: float, /) -> float:
        if not self.seconds:
            return 1.0
        return min(1.0, progress + seconds * self.rate(seats) / self.seconds)


class Telling(Protocol):
    """Work that reports its scaling."""

    def speedups(self, progress: float, seats: Seats, most: int, /, *, spread: bool) -> Speedups:
        """Return its speedups as known at this progress, for up to `most` tasks; `spread` if it has been on several
        nodes.
        """
        ...


class Truth(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The properties of a unit that only the world knows.

    When asked to stop it is gone after `save` nanoseconds; with `saves` it resumes where it was, else from its latest
    checkpoint (one every `checkpoint` nanoseconds of running; 0: from the start), which is also the state after a
    failure. Its first start takes `start` nanoseconds before it makes progress, a later one `restore`. An attempt ends
    with `outcome` when it has done `until` of its work. With a `telling` it reports its scaling when it starts to make
    progress, and again every `tells` nanoseconds (0: never); with `reports` it reports its progress when it is stopped.
    An elastic gang that `resizes` says so, and continues in whatever size it is given.

    If the amount of work is not `known` yet, it is at least `until`, and the twin asks then.
    """

    pace: Pace
    start: int = 0
    checkpoint: int = 0
    saves: bool = False
    reports: bool = True
    save: int = 0
    restore: int = 0
    outcome: Outcome = "done"
    until: float = 1.0
    telling: Telling | None = None
    tells: int = MINUTE
    resizes: bool = False
    known: bool = True


class Arrival(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that is submitted `at` nanoseconds after the trace begins; `truths` are by unit name."""

    at: int
    units: tuple[Unit, ...]
    truths: Mapping[str, Truth]
    name: str = ""
    tenant: str = DEFAULT


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed trace: the arrivals in order, and publicly known speeds (`throughputs`, as in a fleet file, by
    `class@model`). `skipped` counts the omitted parts of the trace, by reason; `notes` are sentences on settings that
    were not applied as requested.
    """

    name: str
    arrivals: Sequence[Arrival]
    throughputs: dict[str, float] = {}
    skipped: dict[str, int] = {}
    notes: tuple[str, ...] = ()
