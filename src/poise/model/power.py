"""Power model of devices, by the held fraction: for simulated fleets, and for fleets without energy measurement.

A device draws `idle` of its power cap while nothing holds it and `busy` while something does, in the mean. Both are
fitted to the A100s of a large cluster: `benchmarks/power.py` reads the published distributions of power and use (Hu et
al., "Characterization of Large Language Model Development in the Datacenter", NSDI 2024; AcmeTrace, clusters Seren and
Kalos) and prints them. Caps are those of the catalogue, or of the fleet file.
"""

from typing import Literal, NamedTuple

import msgspec

from poise.model.intensity import Intensity, IntensityUnit

IDLE = 0.16
"""Fraction of the cap without work: `python benchmarks/power.py`."""

BUSY = 0.59
"""Fraction of the cap with work."""

KG_PER_KWH = 0.473
"""CO2e of a kWh, world mean in 2024: Ember, Global Electricity Review 2025; sites differ tenfold."""

KWH = 3.6e6
"""Joules of a kWh."""


class PowerModel(msgspec.Struct, frozen=True, kw_only=True):
    """Fractions of a device's cap, and the CO2e of a kWh in kg: always the same, or by hour with an `intensity`."""

    idle: float = IDLE
    busy: float = BUSY
    kg_per_kwh: float = KG_PER_KWH
    intensity: Intensity | None = None

    def joules(self, cap: float, held: float) -> float:
        """Return the energy of devices: `cap` is caps times time, `held` the held part of that, in watt-seconds.

        >>> PowerModel(idle=0.25, busy=0.75).joules(4000.0, 2000.0)
        2000.0
        """
        return self.idle * cap + (self.busy - self.idle) * held


POWER = PowerModel()


class Rates(NamedTuple):
    """The rates of electricity at a site: kg CO2e of a kWh in hours without a value, and the values of hours."""

    kg_per_kwh: float = KG_PER_KWH
    intensity: Intensity | None = None

    @property
    def unit(self) -> IntensityUnit | Literal[""]:
        """The unit of the values of the hours; empty without any."""
        return self.intensity.unit if self.intensity is not None else ""


RATES = Rates()
"""The world mean, for a site of which nothing is known."""
