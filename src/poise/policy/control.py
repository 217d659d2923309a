"""Control loops of rules: the PID controller of `poise.policy.pid` on fractions.

The output is a fraction of the knob's range. The error is relative to the target, and at most 1, so an outlier moves
the knob no further than a full error. Errors of up to `TOLERANCE` count as none; otherwise a knob with whole units
would alternate between two values. Each step counts as one second of the controller, whatever the interval.
"""

import msgspec

from poise.model.control import Control, Gains
from poise.policy import pid
from poise.units import SECOND

TOLERANCE = 0.05
"""Largest relative error that needs no change."""

NOISE = 2 * TOLERANCE
"""Largest half-wave of the relative error that does not count as oscillation."""

AUTOMATIC = Gains(proportional=0.1, integral=0.1)
"""With a full error, the knob passes its range in ten steps. The controller lowers these gains if it oscillates."""


class Course(msgspec.Struct, frozen=True):
    """The state of a control loop."""

    memory: pid.PidMemory
    damping: pid.Damping = pid.Damping()


def error_of(control: Control, measured: float) -> float:
    """Return the error relative to the target; positive if the knob must rise."""
    error = (control.target.value - measured) / (control.target.value or 1.0)
    return -error if control.lowers else error


def begin(control: Control, value: int) -> Course:
    """Return the state of a loop at rest at this value of the knob."""
    return Course(_pid(control).begin((value - control.least) / (control.most - control.least)))


def step(control: Control, course: Course, measured: float) -> Course:
    """Return the state after another measurement."""
    error = min(1.0, max(-1.0, error_of(control, measured)))
    error = 0.0 if abs(error) <= TOLERANCE else error
    damping = pid.damped(course.damping, error, NOISE) if error else course.damping
    return Course(_pid(control).step(course.memory, 0.0, -error, SECOND, damping.factor), damping)


def value_of(control: Control, course: Course, value: int) -> int:
    """Return the new value of the knob. It stays at `value` until the output is a whole unit away."""
    exact = control.least + course.memory.output * (control.most - control.least)
    if abs(exact - value) < control.unit * (1 - 1e-9):
        return value
    units = round((exact - control.least) / control.unit)
    return min(control.most, control.least + units * control.unit)


def _pid(control: Control) -> pid.Pid:
    gains = control.gains or AUTOMATIC
    return pid.Pid(pid.Gains(proportional=gains.proportional, integral=gains.integral), 0.0, 1.0)


__all__ = ["AUTOMATIC", "TOLERANCE", "Course", "begin", "error_of", "step", "value_of"]
