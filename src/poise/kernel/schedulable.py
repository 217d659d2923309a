"""Can it be done, and in time? Asked once, when a job is submitted, of what is known then.

What can never be done is refused with the reason and what would make it fit: resources that no node has, or a deadline
below the *lower bound*, the least time that the work takes however the fleet is shared out. What could be in time on an
empty fleet, but not behind what is there already, is accepted and told so. The lower bound is the larger of the
critical path and of all work over all capacity (Graham, 1969). Only what was measured or declared counts: a guess
refuses nobody.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from poise.errors import SpecError
from poise.kernel.ledger import Ledger
from poise.model import graph
from poise.model.fleet import CPU, DEVICES, Fleet
from poise.model.jobs import Unit
from poise.model.profiles import CERTAIN, Profile, expected_run
from poise.model.spec import Compiled, Cut, compile_spec
from poise.policy.predict import Speeds
from poise.units import format_duration

FINER = (1, 2, 4, 8)
"""How many times finer work is cut, in turn, before its deadline is refused."""


class Outlook(NamedTuple):
    """Nanoseconds from now: the `least` that the job takes, and how long what is `ahead` of it keeps the fleet busy."""

    least: int
    ahead: int


def prepare(ledger: Ledger, use: float, document: Any, wall: float) -> Compiled:
    """Compile a request for the fleet as it is: `use` in [0, 1] is how much of it is taken. What is to be cut is cut
    finer before its deadline is refused. Raises SpecError.
    """
    fleet = ledger.fleet()
    for finer in FINER:
        cuts: list[Cut] = []

        def cut(devices: bool, finer: int = finer, cuts: list[Cut] = cuts) -> Cut:
            cuts.append(Cut(use, spread(fleet, devices), finer))
            return cuts[-1]

        compiled = compile_spec(document, wall=wall, cut=cut)
        try:
            return compiled._replace(note=check_deadlines(ledger, compiled.units))
        except SpecError:
            if not cuts or finer == FINER[-1]:
                raise
    raise AssertionError("unreachable")


def spread(fleet: Fleet, devices: bool) -> float:
    """How much faster the fleet's fastest model of device (or of processor) is than its slowest by peak rate, less one;
    0 where the rates are not known.
    """
    peaks = [
        max(rate for _, rate in model.rates)
        for model in fleet.models
        if model.rates and (model.kind != "cpu") == devices
    ]
    return max(peaks) / min(peaks) - 1 if peaks else 0.0


def outlook(ledger: Ledger, units: tuple[Unit, ...]) -> Outlook:
    """What is known of a job that is not submitted yet."""
    fleet = ledger.fleet()
    speeds = Speeds(fleet.models, ledger.profiles, {})
    runs = {unit.name: shortest_run(unit, speeds, fleet, ledger.profiles.get(unit.kind)) for unit in units}
    if not len(fleet):
        return Outlook(0, 0)
    path = max(times.tail for times in graph.times({unit.name: unit.needs for unit in units}, runs).values())
    work = max(_over_all(((unit, runs[unit.name]) for unit in units), fleet))
    first = min(int(unit.priority) for unit in units)
    return Outlook(max(path, work), _ahead(ledger, fleet, first))


def shortest_run(unit: Unit, speeds: Speeds, fleet: Fleet, profile: Profile | None) -> int:
    """The least time one task takes on the device that suits it best: measured, less its uncertainty; else as declared;
    else by its roofline; 0 where nothing is known.
    """
    if not (unit.expect or unit.work.flops or unit.work.bytes or (profile is not None and profile.count)):
        return 0
    shortest = []
    for number in range(len(unit.variants) + 1):
        shape = unit.shape_of(number)
        found = speeds.of(unit.kind, shape.wants.precision, unit.expect, unit.work, devices=shape.gpus > 0)
        for estimate in found:
            if estimate.source in ("history", "throughput table"):
                shortest.append(max(0, estimate.mean - CERTAIN * estimate.deviation))
            elif estimate.source == "declared":
                shortest.append(estimate.mean)
            elif estimate.source == "roofline" and (unit.work.flops or unit.work.bytes):
                shortest.append(estimate.mean // 2)  # the bound itself, which an estimate counts twice
    return min(shortest, default=0)


def check_deadlines(ledger: Ledger, units: tuple[Unit, ...]) -> str:
    """Raises SpecError (E108) when a deadline is below the lower bound. Returns what is to be told of a job that may
    be late behind what is there already, or an empty text.
    """
    deadlines = [unit for unit in units if unit.deadline]
    if not deadlines:
        return ""
    found = outlook(ledger, units)
    unit = min(deadlines, key=lambda unit: unit.deadline)
    if found.least > unit.deadline:
        raise SpecError(
            "the deadline cannot be met, whatever else waits",
            code="E108",
            field="deadline",
            need=f"at least {format_duration(found.least)}",
            have=format_duration(unit.deadline),
            hint=f"deadline: {-(-found.least // 10**9)}s",
        )
    if found.ahead + found.least > unit.deadline:
        return (
            f"it may be late: {format_duration(found.ahead)} of work is ahead of it, and it takes at least "
            f"{format_duration(found.least)}; due in {format_duration(unit.deadline)}"
        )
    return ""


def _over_all(work: Iterable[tuple[Unit, int]], fleet: Fleet) -> tuple[int, int]:
    """Nanoseconds for which the work keeps all CPUs, and all devices, busy."""
    cpu = devices = 0
    for unit, run in work:
        tasks = unit.least or len(unit.tasks)
        if not unit.variants:  # what has a choice of devices binds neither
            cpu += run * unit.shape.cpu * tasks
            devices += run * unit.shape.gpus * unit.shape.share * tasks // 1000
    total = [int(fleet.total[of].sum()) for of in (CPU, DEVICES)]
    return cpu // total[0] if total[0] else 0, devices // total[1] if total[1] else 0


def _ahead(ledger: Ledger, fleet: Fleet, first: int) -> int:
    """Foreseen work of what waits in the same or a higher class and of what runs, over the fleet's capacity."""
    work = [
        (unit.spec, expected_run(ledger.profiles.get(unit.spec.kind), unit.spec.expect))
        for unit in ledger.ahead_of(first)
    ]
    return max(_over_all(work, fleet))
