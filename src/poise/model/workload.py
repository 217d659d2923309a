"""Work as the twin is given it: what its users say of it, and beside that what only the world knows.

A policy sees the `Unit`, as it would live: what was declared, and what was learned of its class. How long the work
really takes on which devices, what stopping and restoring it costs and how it ends is its `Truth`, and nothing hands
that to a policy.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from poise.model.jobs import Outcome, Speedups, Unit
from poise.model.tenants import DEFAULT
from poise.units import MINUTE

ONE_NODE, ONE_RACK, ONE_ZONE, APART = range(4)
"""How far apart the tasks of a unit are: values of `Seats.apart`."""


class Seats(NamedTuple):
    """Where a unit runs: the model of device of each of its tasks, on how many nodes, how far apart these are, and how
    many of its tasks are on each, by rank (empty: all on one).
    """

    models: tuple[str, ...]
    nodes: int = 1
    apart: int = ONE_NODE
    split: tuple[int, ...] = ()


class Pace(Protocol):
    """How work gets on. `progress` is the part of it that is done, from 0 to 1."""

    def left(self, progress: float, seats: Seats, /) -> float:
        """Seconds from there to the end of it."""
        ...

    def reached(self, progress: float, seats: Seats, seconds: float, /) -> float:
        """The progress after so many seconds more."""
        ...


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """How much sooner work is done with more tasks: `n / (1 + loss (n - 1))` times as soon with n of them, by Amdahl's
    law with `loss` as the part that is not done in parallel (Amdahl, 1967). `apart` is what is left of that when the
    tasks are on one node, in one rack, in one zone, or further apart.
    """

    loss: float = 0.0
    apart: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)

    def speedup(self, tasks: int, apart: int = ONE_NODE) -> float:
        """Over one task."""
        return tasks / (1 + self.loss * (tasks - 1)) * (self.apart[apart] if tasks > 1 else 1.0)


LINEAR = Scaling()


class Steady(msgspec.Struct, frozen=True, gc=False):
    """Work of so many `seconds` at a rate of 1 with `tasks` tasks on one node; it gets on at the same rate from its
    start to its end. `rates` are by model of device; one that is not named there has a rate of 1. A gang is as fast as
    the slowest of its devices.
    """

    seconds: float
    tasks: int = 1
    rates: Mapping[str, float] = {}
    scaling: Scaling = LINEAR

    def rate(self, seats: Seats) -> float:
        """Seconds of work done in a second."""
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
    """Work that says how it scales."""

    def speedups(self, progress: float, seats: Seats, most: int, /, *, spread: bool) -> Speedups:
        """As far as it can tell from there, with up to so many tasks; `spread` if it has been on several nodes."""
        ...


class Truth(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What only the world knows of a unit.

    When it is asked to stop it is gone after `save` nanoseconds; with `saves` it goes on where it was, else from its
    latest checkpoint (one every `checkpoint` nanoseconds of running; 0: from the start), which is also what is left
    after a failure. Its first start takes `start` nanoseconds before it gets on, coming back `restore`. An attempt ends
    with `outcome` when it has done `until` of its work. With a `telling` it says how it scales when it begins to get
    on, and looks again each `tells` nanoseconds (0: never); with `reports` it says how far it has come when it is
    stopped. An elastic gang that `resizes` says so, and goes on in whatever size it is given.

    Where nobody knows yet how much there is to do, it is not `known`: it is at least `until`, and the twin asks then.
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
    """A job that is submitted `at` nanoseconds after the trace begins; `truths` are by name of unit."""

    at: int
    units: tuple[Unit, ...]
    truths: Mapping[str, Truth]
    name: str = ""
    tenant: str = DEFAULT


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A trace that has been read: what arrives, in order, and the speeds that are publicly known (`throughputs`, as of
    a fleet file, by `class@model`). `skipped` counts what of the trace was left out, by reason; `notes` are sentences
    on what was read in another way than was asked for.
    """

    name: str
    arrivals: tuple[Arrival, ...]
    throughputs: dict[str, float] = {}
    skipped: dict[str, int] = {}
    notes: tuple[str, ...] = ()
