"""Energy of devices, with the CO2e and the price of the hours in which they used it.

    meter = Meter(electricity)
    meter.add(power, begin, end)            # for each time in which a device drew this power
    spent(electricity, drawn, held)

Nothing is counted while work runs: sums over hours come from the log and from the values of the hours, on request.
"""

from typing import NamedTuple

from poise.model.power import KWH, POWER, Rates
from poise.units import SECOND


class Electricity(NamedTuple):
    """The rates of a kWh; an instant of the log, and the wall clock at it in seconds since 1970."""

    rates: Rates
    anchor: tuple[int, float]

    def wall(self, instant: int) -> float:
        at, wall = self.anchor
        return wall + (instant - at) / SECOND


class Meter:
    """Sums of power over time, and of its part in hours that have a value. Power is in milliwatts."""

    def __init__(self, electricity: Electricity) -> None:
        self._electricity = electricity
        self.power = 0
        """Milliwatts times nanoseconds."""
        self.known = self.valued = 0.0
        """Milliwatts times seconds in hours that have a value; the same times this value."""

    def add(self, power: int, begin: int, end: int) -> None:
        """Add a power between two instants."""
        if not power or begin >= end:
            return
        self.power += power * (end - begin)
        intensity = self._electricity.rates.intensity
        if intensity is not None:
            since, until = self._electricity.wall(begin), self._electricity.wall(end)
            self.known += power * (intensity.known(until) - intensity.known(since))
            self.valued += power * (intensity.integral(until) - intensity.integral(since))


class Spent(NamedTuple):
    """Energy in joules, CO2e in kg, the price of the electricity in dollars (0: no hour has one), and the energy of the
    hours that have a value.
    """

    energy: float
    co2: float
    electricity: float
    hourly: float


def spent(electricity: Electricity, drawn: Meter, held: Meter) -> Spent:
    """Return what devices spent by the power model: `drawn` has their caps, `held` the held part of these."""
    energy = POWER.joules(drawn.power / 1000 / SECOND, held.power / 1000 / SECOND)
    hourly = POWER.joules(drawn.known / 1000, held.known / 1000)
    valued = POWER.joules(drawn.valued / 1000, held.valued / 1000) / KWH
    rates = electricity.rates
    if rates.unit == "kg/kWh":
        return Spent(energy, valued + (energy - hourly) / KWH * rates.kg_per_kwh, 0.0, hourly)
    return Spent(energy, energy / KWH * rates.kg_per_kwh, valued, hourly)


def spent_held(electricity: Electricity, held: Meter) -> Spent:
    """Return what held devices spent above their idle power."""
    return spent(electricity, Meter(electricity), held)


__all__ = ["Electricity", "Meter", "Spent", "spent", "spent_held"]
