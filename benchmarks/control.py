"""Measure step responses of the controller that sets the concurrency of upstreams, with its own damping and without.

    python benchmarks/control.py [--loops] [--noise 0.2] [--json]

The plant responds to the logarithm of the limit with `gain` times its change, `delay` steps later, and is measured with
noise (standard deviation of the logarithm). The target is a factor of 7.4 (e squared) above the beginning. `settles` is
the number of steps until the error stays below a fifth, `over` how far the response exceeds the target, as a factor,
and `rest` the root mean square error of the last 60 of 200 steps.

`--loops` measures control loops of rules instead, with automatic gains and with those that a relay finds. The signal is
`gain` times twice the target at a full output, `delay` steps later, through a first-order lag of 0.7.
"""

import argparse
import json
import sys
from math import exp
from random import Random

import msgspec

from poise.model.control import Control, Gains
from poise.model.expressions import Compare, Read
from poise.policy import control
from poise.policy.pid import Damping, Pid, damped
from poise.policy.relay import RELAY, oscillation
from poise.units import SECOND
from poise_serve.kernel.resilience import GAINS, NOISE

STEPS, LAST, TARGET, MOST, NEAR = 200, 60, 2.0, 4.2, 0.2
GAINS_OF_PLANTS, DELAYS = (0.5, 1.0, 2.0, 3.0), (0, 1, 3, 5)


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A step response; `settles` is None if it never does. `gains` is what sets the gains."""

    gains: str
    gain: float
    delay: int
    settles: int | None
    over: float
    rest: float


def summed(gains: str, gain: float, delay: int, errors: list[float], over: float) -> Response:
    late = max((step for step, error in enumerate(errors) if abs(error) > NEAR), default=-1) + 1
    return Response(
        gains=gains,
        gain=gain,
        delay=delay,
        settles=late if late < STEPS - LAST else None,
        over=over,
        rest=(sum(error**2 for error in errors[-LAST:]) / LAST) ** 0.5,
    )


def response(gain: float, delay: int, noise: float, *, damps: bool, seed: int = 1) -> Response:
    random, pid, damping = Random(seed), Pid(GAINS, 0.0, MOST), Damping()
    memory, outputs, errors = pid.begin(0.0), [0.0] * (delay + 1), []
    for _ in range(STEPS):
        reached = gain * outputs[-1 - delay]
        measured = reached + random.gauss(0, noise)
        if damps:
            damping = damped(damping, TARGET - measured, NOISE)
        memory = pid.step(memory, TARGET, measured, SECOND, damping.factor)
        outputs.append(memory.output)
        errors.append(TARGET - reached)
    return summed("damped" if damps else "fixed", gain, delay, errors, exp(max(0.0, -min(errors))))


def loop(gains: Gains | None, gain: float, delay: int, noise: float) -> tuple[list[float], list[float], list[float]]:
    """Return the relative errors as measured and without noise, and the outputs, of a control loop of a rule."""
    rule = Control("quota.gpu", "ann", Compare(Read("running"), "==", 100.0), 0, 1000, 1, gains=gains)
    random, course, value, reached = Random(1), control.begin(rule, 0), 0, 0.0
    outputs, seen, true = [0.0] * (delay + 1), [], []
    for _ in range(STEPS):
        reached = 0.7 * reached + 0.3 * 200 * gain * outputs[-1 - delay]
        measured = reached * (1 + random.gauss(0, noise))
        seen.append(control.error_of(rule, measured))
        true.append(control.error_of(rule, reached))
        course = control.step(rule, course, measured)
        value = control.value_of(rule, course, value)
        outputs.append(value / 1000)
    return seen, true, outputs[delay + 1 :]


def loop_response(label: str, gains: Gains | None, gain: float, delay: int, noise: float) -> Response:
    _, errors, _ = loop(gains, gain, delay, noise)
    return summed(label, gain, delay, errors, max(0.0, -min(errors)) + 1)


def loops(noise: float) -> list[Response]:
    rows = []
    for gain in GAINS_OF_PLANTS:
        for delay in DELAYS:
            seen, _, outputs = loop(RELAY, gain, delay, noise)
            wave = oscillation(seen, outputs)
            rows += [
                loop_response("auto", None, gain, delay, noise),
                loop_response("tuned", wave.gains if wave is not None else None, gain, delay, noise),
            ]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--loops", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    plants = [(gain, delay) for gain in GAINS_OF_PLANTS for delay in DELAYS]
    if given.loops:
        rows = loops(given.noise)
    else:
        rows = [response(gain, delay, given.noise, damps=damps) for gain, delay in plants for damps in (True, False)]
    if given.json:
        print(json.dumps(msgspec.to_builtins(rows), indent=2))
        return 0
    first, second = rows[0].gains, rows[1].gains
    print(f"| gain | delay | {first}: settles in steps | over | rest | {second}: settles | over | rest |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for own, plain in zip(rows[::2], rows[1::2], strict=True):
        cells = (f"{one.settles or 'never'} | {one.over:.2f} | {one.rest:.2f}" for one in (own, plain))
        print(f"| {own.gain:g} | {own.delay} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
