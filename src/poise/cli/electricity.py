"""The flag of commands that tell the CO2e of work, and the rates of a home."""

import click

from poise.cli.numbers import NumberRange
from poise.config import Home
from poise.model.power import POWER, Rates

CO2 = click.option(
    "--co2",
    type=NumberRange(0, 10),
    default=POWER.kg_per_kwh,
    show_default=f"{POWER.kg_per_kwh}, the world's mean",
    metavar="KG",
    help="CO2e of a kWh at your site, in kg, in hours to which `intensity.yaml` gives none.",
)


def rates_of(home: Home, kg_per_kwh: float) -> Rates:
    """Return the rates of a home's electricity, with this CO2e of a kWh in hours without a value. Raises SpecError for
    an invalid `intensity.yaml`.
    """
    from poise.control.intensity import Intensities

    return Rates(kg_per_kwh, Intensities(home.intensity).of_home())


__all__ = ["CO2", "rates_of"]
