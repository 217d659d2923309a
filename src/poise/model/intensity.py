"""The carbon intensity or the price of electricity by hour, and a good time to start work that can wait.

`IntensitySpec` is the file `intensity.yaml` in the home, which an operator writes:

    kind: intensity
    unit: kg/kWh
    hours: [0.31, 0.30, 0.29, 0.29, 0.30, 0.33, 0.38, 0.41, 0.40, 0.36, 0.31, 0.27,
            0.25, 0.24, 0.25, 0.29, 0.36, 0.43, 0.47, 0.48, 0.46, 0.42, 0.38, 0.34]

There are 24 values for the hours of a day, or 168 for those of a week from Monday on, in UTC. Values of single hours,
such as the forecasts and the measurements of a grid, replace them:

    dated:
      - {from: 2026-12-01T00:00, hours: [0.22, 0.21, 0.19]}

Poise reads the file again when it has changed.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from math import floor, isfinite, isnan, nan
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

MAX_DATED = 20_000
"""Maximum number of values of single hours: more than two years."""

EXACT = 1e-3
"""Rounding of sums of times, in seconds."""

EXAMPLE = "2026-12-01T00:00"
EXAMPLES = {
    "from": f"from: {EXAMPLE}",
    "dated": f"dated: [{{from: {EXAMPLE}, hours: [0.3, 0.3]}}]",
    "hours": "hours: [0.3, 0.3, …], 24 or 168 numbers",
}

USUAL_RUN = 1 * HOUR
"""Run time of work whose class has no history and that declares none."""


class DatedSpec(msgspec.Struct, forbid_unknown_fields=True, rename={"begins": "from"}):
    """Values of consecutive hours."""

    begins: str
    hours: list[float]


class IntensitySpec(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file."""

    kind: str
    hours: list[float] = []
    unit: IntensityUnit = "kg/kWh"
    dated: list[DatedSpec] = []


class Start(NamedTuple):
    """A start: seconds from now, and the mean values of a run from then and of a run from now (not a number if an hour
    of it has no value).
    """

    after: float
    value: float
    now: float


class Dated(NamedTuple):
    """Values of single hours, counted from the beginning of 1970, in order. `more` has the sums of their differences
    from the values that they replace: item n of the first n hours.
    """

    at: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    more: tuple[float, ...] = (0.0,)


class Intensity(msgspec.Struct, frozen=True, kw_only=True):
    """Values by hour of the day or of the week (empty: hours that are not in `dated` have no value), and of single
    hours. Times are in seconds since 1970.
    """

    hours: tuple[float, ...] = ()
    unit: IntensityUnit = "kg/kWh"
    dated: Dated = Dated()

    def integral(self, until: float) -> float:
        """Return the integral of the values over time up to an instant, in value times seconds. Hours without a value
        count as 0.
        """
        hour, part = _hour(until)
        place, there = self._place(hour)
        hours = self.dated.more[place]
        if there:
            hours += (self.dated.values[place] - self._usual(hour)) * part
        if self.hours:
            whole = hour + MONDAY
            length, total = len(self.hours), sum(self.hours)
            hours += whole // length * total + sum(self.hours[: whole % length]) + self.hours[whole % length] * part
        return hours * HOUR_SECONDS

    def known(self, until: float) -> float:
        """Return a time up to an instant without the hours that have no value, in seconds: only differences count."""
        if self.hours:
            return until
        hour, part = _hour(until)
        place, there = self._place(hour)
        return (place + part * there) * HOUR_SECONDS

    def mean(self, since: float, seconds: float) -> float:
        """Return the mean value over a time from `since` on; not a number if an hour of it has no value."""
        until = since + max(1.0, seconds)
        if not self.hours and self.known(until) - self.known(since) < until - since - EXACT:
            return nan
        return (self.integral(until) - self.integral(since)) / (until - since)

    def good_start(self, now: float, within: float, run: float, place: float) -> Start:
        """Return a good start of work of `run` seconds, at most `within` seconds from now. Good are starts that gain at
        least `GOOD` of what the best one gains; `place`, from 0 to 1, chooses one of them, so that work does not start
        all at once. Return now if even the best is worth no wait, or if an hour of a run from now on has no value.
        """
        at_once = self.mean(now, run)
        if isnan(at_once):
            return Start(0.0, at_once, at_once)
        starts = [step * STEP for step in range(floor(within / STEP) + 1)]
        means = ((self.mean(now + after, run), after) for after in starts)
        found = [one for one in means if not isnan(one[0])]
        least = min(value for value, _ in found)
        if least >= (1 - WORTH) * at_once:
            return Start(0.0, at_once, at_once)
        good = [one for one in found if one[0] <= at_once - GOOD * (at_once - least)]
        value, after = good[min(int(place * len(good)), len(good) - 1)]
        return Start(after, value, at_once)

    def with_dated(self, values: Mapping[int, float]) -> "Intensity":
        """Return a copy with these values of single hours."""
        at = sorted(values)
        more = accumulate((values[hour] - self._usual(hour) for hour in at), initial=0.0)
        dated = Dated(tuple(at), tuple(values[hour] for hour in at), tuple(more))
        return msgspec.structs.replace(self, dated=dated)

    def _place(self, hour: int) -> tuple[int, bool]:
        """Return the number of dated values of earlier hours, and whether there is one of this hour."""
        place = bisect_left(self.dated.at, hour)
        return place, place < len(self.dated.at) and self.dated.at[place] == hour

    def _usual(self, hour: int) -> float:
        return self.hours[(hour + MONDAY) % len(self.hours)] if self.hours else 0.0


def _hour(at: float) -> tuple[int, float]:
    """Return the number of an hour since the beginning of 1970, and the part of it that is over."""
    hours = at / HOUR_SECONDS
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
    spec = found.convert(document, IntensitySpec) or IntensitySpec(kind="intensity")
    if spec.kind != "intensity":
        what = "this file is not about the intensity of electricity"
        found.add(SpecError(what, field="kind", need="intensity", have=spec.kind, hint="kind: intensity"))
    hours = check_hours(spec.hours, "hours", found) if spec.hours or not spec.dated else ()
    dated = _dated(spec.dated, found)
    found.check(lambda field: EXAMPLES.get(field.rpartition(".")[2], EXAMPLES["hours"]))
    return Intensity(hours=hours, unit=spec.unit).with_dated(dated)


def _dated(specs: Sequence[DatedSpec], found: Findings) -> dict[int, float]:
    """Return the values of single hours; of two values of one hour, the later one in the file."""
    values: dict[int, float] = {}
    total = sum(len(spec.hours) for spec in specs)
    if total > MAX_DATED:
        found.add(SpecError("there are too many values", field="dated", need=f"at most {MAX_DATED}", have=str(total)))
        return values
    for place, spec in enumerate(specs):
        at = f"dated[{place}]"
        first = found.get(0, _first_hour, spec.begins, f"{at}.from")
        _check_values(spec.hours, f"{at}.hours", found)
        values.update(enumerate(spec.hours, first))
    return values


def _first_hour(text: str, field: str) -> int:
    """Return the number of the hour since the beginning of 1970 that begins at a time, in UTC unless it says its
    offset.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise SpecError("the time cannot be read", code="E103", field=field, have=text[:80], need=EXAMPLE) from None
    hour, rest = divmod((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(), HOUR_SECONDS)
    if rest:
        raise SpecError("this is not the beginning of an hour", code="E103", field=field, have=text[:80], need=EXAMPLE)
    return int(hour)


def check_hours(hours: Sequence[float], field: str, found: Findings) -> tuple[float, ...]:
    """Return the values of the hours, which are 24 or 168 numbers from 0 to 10."""
    if len(hours) not in (DAY_HOURS, WEEK_HOURS):
        need = f"{DAY_HOURS} numbers for a day, or {WEEK_HOURS} for a week"
        found.add(SpecError("the number of hours is wrong", field=field, need=need, have=str(len(hours))))
        return (0.0,) * DAY_HOURS
    _check_values(hours, field, found)
    return tuple(hours)


def _check_values(hours: Sequence[float], field: str, found: Findings) -> None:
    for place, value in enumerate(hours):
        if not (isfinite(value) and 0 <= value <= MAX_VALUE):
            what, need = "the number is out of range", f"0 to {MAX_VALUE:g}"
            found.add(SpecError(what, code="E103", field=f"{field}[{place}]", need=need, have=f"{value:g}"))


__all__ = ["USUAL_RUN", "Intensity", "IntensitySpec", "Start", "check_hours", "compile_intensity", "started_well"]
