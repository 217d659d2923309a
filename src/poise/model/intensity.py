"""The carbon intensity or the price of electricity by hour, and a good time to start work that can wait.

`IntensitySpec` is the file `intensity.yaml` in the home, which an operator writes:

    kind: intensity
    unit: kg/kWh
    hours: [0.31, 0.30, 0.29, 0.29, 0.30, 0.33, 0.38, 0.41, 0.40, 0.36, 0.31, 0.27,
            0.25, 0.24, 0.25, 0.29, 0.36, 0.43, 0.47, 0.48, 0.46, 0.42, 0.38, 0.34]

There are 24 values for the hours of a day, or 168 for those of a week from Monday on, in UTC. Forecasts of a grid can
be written there each day: Poise reads the file again when it has changed.
"""

from collections.abc import Callable, Sequence
from math import floor, isfinite
from typing import Any, Literal, NamedTuple

import msgspec

from poise.errors import SpecError
from poise.model.document import Findings
from poise.model.jobs import Unit
from poise.units import HOUR, SECOND

IntensityUnit = Literal["kg/kWh", "$/kWh"]

HOUR_SECONDS = 3600
DAY_HOURS, WEEK_HOURS = 24, 168
MONDAY = 72
"""Hours from the beginning of 1970, a Thursday, back to a Monday."""

WORTH = 0.03
"""Work starts later only if that lowers the mean value of its run by at least this fraction."""

GOOD = 0.6
"""Fraction of the best gain that a start must have. If all work took the best, it would queue, or run on devices that
need more energy.
"""

STEP = 900.0
"""Seconds between two starts that are considered."""

MAX_VALUE = 10.0

USUAL_RUN = 1 * HOUR
"""Run time of work whose class has no history and that declares none."""


class IntensitySpec(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file."""

    kind: str
    hours: list[float]
    unit: IntensityUnit = "kg/kWh"


class Start(NamedTuple):
    """A start: seconds from now, and the mean values of a run from then and of a run from now."""

    after: float
    value: float
    now: float


class Intensity(msgspec.Struct, frozen=True, kw_only=True):
    """Values by hour of the day or of the week. Times are in seconds since 1970."""

    hours: tuple[float, ...]
    unit: IntensityUnit = "kg/kWh"

    def integral(self, until: float) -> float:
        """Return the integral of the values over time up to an instant, in value times seconds."""
        whole, part = self._place(until)
        length, total = len(self.hours), sum(self.hours)
        hours = whole // length * total + sum(self.hours[: whole % length]) + self.hours[whole % length] * part
        return hours * HOUR_SECONDS

    def mean(self, since: float, seconds: float) -> float:
        """Return the mean value over a time from `since` on."""
        seconds = max(1.0, seconds)
        return (self.integral(since + seconds) - self.integral(since)) / seconds

    def good_start(self, now: float, within: float, run: float, place: float) -> Start:
        """Return a good start of work of `run` seconds, at most `within` seconds from now. Good are starts that gain at
        least `GOOD` of what the best one gains; `place`, from 0 to 1, chooses one of them, so that work does not start
        all at once. Return now if even the best is worth no wait.
        """
        at_once = self.mean(now, run)
        starts = [step * STEP for step in range(floor(within / STEP) + 1)]
        found = [(self.mean(now + after, run), after) for after in starts]
        least = min(value for value, _ in found)
        if least >= (1 - WORTH) * at_once:
            return Start(0.0, at_once, at_once)
        good = [one for one in found if one[0] <= at_once - GOOD * (at_once - least)]
        value, after = good[min(int(place * len(good)), len(good) - 1)]
        return Start(after, value, at_once)

    def _place(self, at: float) -> tuple[int, float]:
        """Return the whole hours since a Monday at midnight, and the part of the hour."""
        hours = at / HOUR_SECONDS + MONDAY
        return floor(hours), hours - floor(hours)


def started_well(
    units: Sequence[Unit], flexible: int, intensity: Intensity, wall: float, usual: Callable[[str], int], place: float
) -> tuple[tuple[Unit, ...], Start]:
    """Return the units of a job with their earliest start at a good time, at most `flexible` nanoseconds later, and
    that start. All units get the same, so that the tasks of a graph follow each other. No deadline is missed for it.
    `wall` is the time of submission, `usual` returns the run time of a class in nanoseconds; `place` as in
    `good_start`.
    """
    run = max(unit.expect or usual(unit.kind) for unit in units)
    begin = max(unit.begin for unit in units)
    left = [unit.deadline - begin - run for unit in units if unit.deadline]
    within = max(0, min([flexible, *left]))
    start = intensity.good_start(wall + begin / SECOND, within / SECOND, run / SECOND, place)
    if not start.after:
        return tuple(units), start
    begin += round(start.after * SECOND)
    return tuple(msgspec.structs.replace(unit, begin=begin) for unit in units), start


def compile_intensity(document: Any) -> Intensity:
    """Compile a parsed file. Raises `SpecError` with every error."""
    found = Findings()
    spec = found.convert(document, IntensitySpec)
    if spec is not None and spec.kind != "intensity":
        what = "this file is not about the intensity of electricity"
        found.add(SpecError(what, field="kind", need="intensity", have=spec.kind, hint="kind: intensity"))
    hours = () if spec is None else check_hours(spec.hours, "hours", found)
    found.check(lambda field: "hours: [0.3, 0.3, …], 24 or 168 numbers")
    return Intensity(hours=hours, unit="kg/kWh" if spec is None else spec.unit)


def check_hours(hours: Sequence[float], field: str, found: Findings) -> tuple[float, ...]:
    """Return the values of the hours, which are 24 or 168 numbers from 0 to 10."""
    if len(hours) not in (DAY_HOURS, WEEK_HOURS):
        need = f"{DAY_HOURS} numbers for a day, or {WEEK_HOURS} for a week"
        found.add(SpecError("the number of hours is wrong", field=field, need=need, have=str(len(hours))))
        return (0.0,) * DAY_HOURS
    for place, value in enumerate(hours):
        if not (isfinite(value) and 0 <= value <= MAX_VALUE):
            what, need = "the number is out of range", f"0 to {MAX_VALUE:g}"
            found.add(SpecError(what, code="E103", field=f"{field}[{place}]", need=need, have=f"{value:g}"))
    return tuple(hours)


__all__ = ["USUAL_RUN", "Intensity", "IntensitySpec", "Start", "check_hours", "compile_intensity", "started_well"]
