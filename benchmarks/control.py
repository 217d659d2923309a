"""Measure step responses of the controller that sets the concurrency of upstreams, with its own damping and without.

    python benchmarks/control.py [--noise 0.2] [--json]

The plant responds to the logarithm of the limit with `gain` times its change, `delay` steps later, and is measured with
noise (standard deviation of the logarithm). The target is a factor of 7.4 (e squared) above the beginning. `settles` is
the number of steps until the error stays below a fifth, `over` how far the response exceeds the target, as a factor,
and `rest` the root mean square error of the last 60 of 200 steps.
"""

import argparse
import json
import sys
from math import exp
from random import Random

import msgspec

from poise.policy.pid import Damping, Pid, damped
from poise.units import SECOND
from poise_serve.kernel.resilience import GAINS, NOISE

STEPS, LAST, TARGET, MOST, NEAR = 200, 60, 2.0, 4.2, 0.2
GAINS_OF_PLANTS, DELAYS = (0.5, 1.0, 2.0, 3.0), (0, 1, 3, 5)


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A step response; `settles` is None if it never does."""

    gain: float
    delay: int
    damped: bool
    settles: int | None
    over: float
    rest: float


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
    late = max((step for step, error in enumerate(errors) if abs(error) > NEAR), default=-1) + 1
    return Response(
        gain=gain,
        delay=delay,
        damped=damps,
        settles=late if late < STEPS - LAST else None,
        over=exp(max(0.0, -min(errors))),
        rest=(sum(error**2 for error in errors[-LAST:]) / LAST) ** 0.5,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    plants = [(gain, delay) for gain in GAINS_OF_PLANTS for delay in DELAYS]
    rows = [response(gain, delay, given.noise, damps=damps) for gain, delay in plants for damps in (True, False)]
    if given.json:
        print(json.dumps(msgspec.to_builtins(rows), indent=2))
        return 0
    print("| gain | delay | settles in steps | over | rest | without damping: settles | over | rest |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for own, plain in zip(rows[::2], rows[1::2], strict=True):
        cells = (f"{one.settles or 'never'} | {one.over:.2f} | {one.rest:.2f}" for one in (own, plain))
        print(f"| {own.gain:g} | {own.delay} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
