"""A PID controller: one number is moved, step by step, so that what is measured comes to a target.

    pid = Pid(Gains(proportional=0.2, integral=0.3), least=1, most=64)
    memory = pid.begin(8)
    memory = pid.step(memory, target=0.5, measured=0.7, elapsed=SECOND)
    memory.output                      # the number, never outside least..most

For what has no model: batches are sized by a learned table, replicas by a forecast. It keeps to this (Åström and
Hägglund, *Advanced PID Control*, 2006, chapters 3 and 6):

* The output is never outside its bounds, and neither does the integral wind up: it is moved only until the output is at
  its bound while the error points beyond that, and never beyond a bound by itself. So the output leaves a bound with
  the first error that points back.
* The derivative is one of what is measured: a new target is no jump of it. Nor is it a jump of the output, since the
  integral takes over what the proportional term would jump by.
* Steps may come at any pace; `elapsed` is in nanoseconds.

The controller keeps nothing: what it has to remember is handed out and comes back.
"""

import msgspec

from poise.units import SECOND


class Gains(msgspec.Struct, frozen=True, kw_only=True):
    """In units of the output for each unit of the error; `integral` for each second of it, `derivative` for each unit a
    second by which the measurement changes.
    """

    proportional: float = 0.0
    integral: float = 0.0
    derivative: float = 0.0


class PidMemory(msgspec.Struct, frozen=True, kw_only=True):
    """`output` is the number to use; `target` and `measured` are those of the last step."""

    output: float
    integral: float
    target: float | None = None
    measured: float | None = None


class Pid:
    """The output rises while less is measured than the target. Raises ValueError for bounds that are none."""

    def __init__(self, gains: Gains, least: float, most: float) -> None:
        if not least <= most:
            raise ValueError(f"bounds from the least to the most, not {least:g}..{most:g}")
        self._gains = gains
        self._least, self._most = least, most

    def begin(self, output: float) -> PidMemory:
        """As if it had been at this output for long, with nothing to correct."""
        output = self._bounded(output)
        return PidMemory(output=output, integral=output)

    def step(self, memory: PidMemory, target: float, measured: float, elapsed: int) -> PidMemory:
        """The next output, `elapsed` nanoseconds after the last."""
        gains, error, seconds = self._gains, target - measured, elapsed / SECOND
        integral = memory.integral
        if memory.target is not None:
            integral -= gains.proportional * (target - memory.target)
        other = gains.proportional * error
        if memory.measured is not None and seconds > 0:
            other -= gains.derivative * (measured - memory.measured) / seconds
        moved = integral + gains.integral * error * seconds
        moved = min(max(moved, min(self._least, integral)), max(self._most, integral))
        beyond = other + moved - self._bounded(other + moved)
        if beyond * error > 0:  # only so far as the output comes to its bound
            moved = min(max(moved - beyond, min(integral, moved)), max(integral, moved))
        integral = moved
        return PidMemory(output=self._bounded(other + integral), integral=integral, target=target, measured=measured)

    def _bounded(self, output: float) -> float:
        return min(max(output, self._least), self._most)


__all__ = ["Gains", "Pid", "PidMemory"]
