"""What devices draw, by what is held of them: for simulated fleets, and for those whose energy nobody counts.

A device draws `idle` of its power cap while nothing holds it and `busy` while something does, on the mean. Both are
fitted to the A100s of a large cluster: `benchmarks/power.py` reads the published distributions of power and use (Hu et
al., "Characterization of Large Language Model Development in the Datacenter", NSDI 2024; AcmeTrace, clusters Seren and
Kalos) and prints them. Caps are those of the catalogue, or of the fleet file.
"""

import msgspec

IDLE = 0.16
"""Of the cap, with nothing on it: `python benchmarks/power.py`."""

BUSY = 0.59
"""Of the cap, with something on it."""

KG_PER_KWH = 0.473
"""CO2e of a kWh, the world's mean in 2024: Ember, Global Electricity Review 2025; sites differ tenfold."""


class PowerModel(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the cap of a device, and the CO2e of a kWh in kg."""

    idle: float = IDLE
    busy: float = BUSY
    kg_per_kwh: float = KG_PER_KWH

    def joules(self, cap: float, held: float) -> float:
        """Of devices whose caps times their time are `cap`, and as far as they were held `held`, in watt-seconds.

        >>> PowerModel(idle=0.25, busy=0.75).joules(4000.0, 2000.0)
        2000.0
        """
        return self.idle * cap + (self.busy - self.idle) * held


POWER = PowerModel()
