"""Gains of a controller from an experiment with a relay (Åström and Hägglund, 1984).

A relay sets the knob to its upper limit while the signal is below the target, and to its lower limit otherwise. The
signal then oscillates at about the frequency at which a controller becomes unstable. The period of the oscillation, and
its size in relation to that of the knob, give the gains. They are lower than those of Ziegler and Nichols (1942), which
overshoot. They respond earlier than those of Tyreus and Luyben (1992), which are slow with long delays.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import pi
from typing import NamedTuple

from poise.model.control import Gains

RELAY = Gains(proportional=1e6)
"""Gains with which the controller is a relay: any error moves the knob to a limit."""

LEAST_SWITCHES = 5
"""Minimum number of times that the relay switches up: four periods, of which the first is ignored."""


class Oscillation(NamedTuple):
    """An oscillation under a relay: its period in steps, and half of the distance from the lowest to the highest error
    and output.
    """

    period: float
    error: float
    output: float

    @property
    def gains(self) -> Gains:
        ultimate = 4 * self.output / (pi * self.error)
        proportional = 0.3 * ultimate
        return Gains(proportional=proportional, integral=proportional / self.period)


def oscillation(errors: Sequence[float], outputs: Sequence[float]) -> Oscillation | None:
    """Return the oscillation in the errors and outputs of the steps under a relay; None if there is none."""
    middle = (max(outputs, default=0.0) + min(outputs, default=0.0)) / 2
    rises = [at for at, (before, after) in enumerate(pairwise(outputs), 1) if before <= middle < after]
    if len(rises) < LEAST_SWITCHES:
        return None
    waves = [slice(*of) for of in pairwise(rises[1:])]
    error = sum(max(errors[wave]) - min(errors[wave]) for wave in waves) / len(waves) / 2
    if error <= 0:
        return None
    return Oscillation((rises[-1] - rises[1]) / len(waves), error, (max(outputs) - min(outputs)) / 2)


__all__ = ["RELAY", "Oscillation", "oscillation"]
