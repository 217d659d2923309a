"""A PID controller: adjusts one output step by step, so that a measurement reaches a target.

    pid = Pid(Gains(proportional=0.2, integral=0.3), least=1, most=64)
    memory = pid.begin(8)
    memory = pid.step(memory, target=0.5, measured=0.7, elapsed=SECOND)
    memory.output                      # the output, never outside least..most

Use it for quantities without a model: a learned table sizes batches, and a forecast sizes replicas. The rules (Åström
and Hägglund, *Advanced PID Control*, 2006, chapters 3 and 6):

* The output stays within its bounds, and the integral does not wind up: it changes only until the output is at its
  bound while the error points beyond that, and does not move beyond a bound by itself. So the output leaves a bound
  with the first error that points back.
* The derivative is that of the measurement, so a new target causes no jump in it. The output does not jump either,
  because the integral absorbs the jump of the proportional term.
* Steps may come at irregular intervals; `elapsed` is in nanoseconds.
* `damped` watches the errors for an oscillation that does not fade, which an unknown delay or a steep response causes,
  and returns the factor for the gains that ends it. So one set of gains serves where no model tells better ones. The
  factor grows again only while a large error lasts. Without that condition it would grow at rest, until the oscillation
  begins again, just below the noise.

The controller is stateless: each step takes the memory and returns the next one.
"""

import msgspec

from poise.units import SECOND


class Gains(msgspec.Struct, frozen=True, kw_only=True):
    """Gains in output units: `proportional` per unit of error, `integral` per unit of error and second, `derivative`
    per unit by which the measurement changes in a second.
    """

    proportional: float = 0.0
    integral: float = 0.0
    derivative: float = 0.0

    def times(self, factor: float) -> "Gains":
        """Return all gains times a factor."""
        return Gains(
            proportional=self.proportional * factor,
            integral=self.integral * factor,
            derivative=self.derivative * factor,
        )


class Damping(msgspec.Struct, frozen=True, kw_only=True):
    """Errors since the last change of sign: their `side`, and the largest (`reach`). `before` is the largest of the
    half-wave before (-1: none), `factor` the factor for the gains.
    """

    factor: float = 1.0
    side: int = 0
    reach: float = 0.0
    before: float = -1.0


FADES = 0.8
"""An oscillation fades if each half-wave is smaller than this part of the one before."""

DAMPS, LEAST_FACTOR = 0.7, 0.05
"""What an oscillation multiplies the factor by, and the least factor."""

RECOVERS = 1.005
"""Growth of the factor, up to 1, in a step with an error above the noise: it doubles in about 140 such steps."""


def damped(damping: Damping, error: float, noise: float) -> Damping:
    """Return the damping after another error. Half-waves up to `noise` do not count."""
    side, factor, reach, before = (1 if error > 0 else -1), damping.factor, damping.reach, damping.before
    if damping.side and side != damping.side:
        if before >= 0 and reach >= FADES * before and min(reach, before) > noise:
            factor = max(LEAST_FACTOR, factor * DAMPS)
        reach, before = 0.0, reach
    if abs(error) > noise:
        factor = min(1.0, factor * RECOVERS)
    return Damping(factor=factor, side=side, reach=max(reach, abs(error)), before=before)


class PidMemory(msgspec.Struct, frozen=True, kw_only=True):
    """`output` is the number to use; `target` and `measured` are those of the last step."""

    output: float
    integral: float
    target: float | None = None
    measured: float | None = None


class Pid:
    """Raises the output while the measurement is below the target. Raises ValueError if `least` exceeds `most`."""

    def __init__(self, gains: Gains, least: float, most: float) -> None:
        if not least <= most:
            raise ValueError(f"bounds from the least to the most, not {least:g}..{most:g}")
        self._gains = gains
        self._least, self._most = least, most

    def begin(self, output: float) -> PidMemory:
        """Return the memory of a steady state at this output, without an error."""
        output = self._bounded(output)
        return PidMemory(output=output, integral=output)

    def step(self, memory: PidMemory, target: float, measured: float, elapsed: int, factor: float = 1.0) -> PidMemory:
        """Return the next output, `elapsed` nanoseconds after the last, with all gains times `factor`."""
        gains, error, seconds = self._gains.times(factor), target - measured, elapsed / SECOND
        integral = memory.integral
        if memory.target is not None:
            integral -= gains.proportional * (target - memory.target)
        other = gains.proportional * error
        if memory.measured is not None and seconds > 0:
            other -= gains.derivative * (measured - memory.measured) / seconds
        moved = integral + gains.integral * error * seconds
        moved = min(max(moved, min(self._least, integral)), max(self._most, integral))
        beyond = other + moved - self._bounded(other + moved)
        if beyond * error > 0:  # stop when the output is at its bound
            moved = min(max(moved - beyond, min(integral, moved)), max(integral, moved))
        integral = moved
        return PidMemory(output=self._bounded(other + integral), integral=integral, target=target, measured=measured)

    def _bounded(self, output: float) -> float:
        return min(max(output, self._least), self._most)


__all__ = ["Damping", "Gains", "Pid", "PidMemory", "damped"]
