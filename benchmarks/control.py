"""Measure step responses of the controller that sets the concurrency of upstreams, with its own damping and without.

    python benchmarks/control.py [--loops | --memory | --replicas [--seed 1]] [--noise 0.2] [--json]

The plant responds to the logarithm of the limit with `gain` times its change, `delay` steps later, and is measured with
noise (standard deviation of the logarithm). The target is a factor of 7.4 (e squared) above the beginning. `settles` is
the number of steps until the error stays below a fifth, `over` how far the response exceeds the target, as a factor,
and `rest` the root mean square error of the last 60 of 200 steps.

`--loops` measures control loops of rules instead, with automatic gains and with those that a relay finds. The signal is
`gain` times twice the target at a full output, `delay` steps later, through a first-order lag of 0.7.

`--memory` measures memory limits that follow peaks (`poise.policy.memory`) for delays of 0 to 72 hours and noise of 0
to 30 %. One attempt starts every hour, and its peak is known `delay` hours later. The level of the peaks is 8 GiB for
30 days, 2 GiB for 30 days, then 8 GiB again. `down` is the number of days after the step down until the limit stays at
most half of its value before. `ran out` counts attempts that exceed their limit after the step up. The other figures
are for the last 10 days of each level: `at rest` is the part of attempts that exceed their limit, `slack` the mean
unused part of the limit, and `changes` the number of changes of the limit a day.

`--replicas` measures a control loop that holds the P99 latency of a simulated service at 80 % of its objective by extra
replicas, as in `examples/hold-latency.yaml`, with automatic gains and with those of a relay. Six requests a second
arrive for an hour. A replica answers one request in a second, or four in two; `delay` is the time until a new one is
ready, in steps of a minute, and `noise` the coefficient of variation of its times. Two replicas are too few, and five
have a P99 at the target. `settles` is the number of steps until the number of replicas stays within one of the number
at rest, `most` the largest number of extra replicas (of 8). Of the last 30 steps, `P99` is the mean in relation to the
objective, `rest` the standard deviation of the extra replicas, `changes` the number of changes, and `refused` the part
of the requests of the last half hour that got no answer.
"""

import argparse
import json
import sys
from itertools import pairwise
from math import exp
from random import Random
from statistics import fmean, median, pstdev
from typing import Any

import msgspec

from poise.model.control import Control, Gains
from poise.model.expressions import Compare, Read
from poise.model.servers import Server, Serving, Speed
from poise.model.serving import Limits
from poise.policy import control, memory
from poise.policy.pid import Damping, Pid, damped
from poise.policy.relay import RELAY, oscillation
from poise.units import HOUR, MINUTE, SECOND
from poise_lab.engine.serving import ANSWERED, ServiceTwin
from poise_lab.loops import on_service, tune_loops
from poise_lab.steered import Simulated
from poise_lab.traces.loads import Drawn, load_of
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
    course, outputs, errors = pid.begin(0.0), [0.0] * (delay + 1), []
    for _ in range(STEPS):
        reached = gain * outputs[-1 - delay]
        measured = reached + random.gauss(0, noise)
        if damps:
            damping = damped(damping, TARGET - measured, NOISE)
        course = pid.step(course, TARGET, measured, SECOND, damping.factor)
        outputs.append(course.output)
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


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a memory limit that follows peaks. `down` is in days."""

    delay: int
    noise: float
    down: float
    ran_out: int
    at_rest: float
    slack: float
    changes: float


def followed(delay: int, noise: float, seed: int = 1) -> Followed:
    random, limits, peaks, needs = Random(seed), [16 << 30], list[int](), list[memory.Need]()
    for hour in range(3 * LEVEL_DAYS * 24):
        level, limit = LEVELS[hour // (LEVEL_DAYS * 24)], limits[-1]
        peak = int(level * random.lognormvariate(0, noise))
        needs.append(memory.Need((hour + delay) * HOUR, memory.needed(min(peak, limit), ran_out=peak > limit)))
        known = needs[max(0, hour - 24 * REMEMBERED) : max(0, hour - delay)]
        limits.append(memory.fitted(limit, memory.quantile(known, hour * HOUR), MARGIN))
        peaks.append(peak)
    step = LEVEL_DAYS * 24
    exceeded = [peak > limit for peak, limit in zip(peaks, limits, strict=False)]
    low = [hour for hour in range(step, 2 * step) if limits[hour] > limits[step] / 2]
    rest = [hour for end in (1, 2, 3) for hour in range(end * step - 240, end * step)]
    return Followed(
        delay=delay,
        noise=noise,
        down=(max(low) + 1 - step) / 24,
        ran_out=sum(exceeded[2 * step :]),
        at_rest=sum(exceeded[hour] for hour in rest) / len(rest),
        slack=sum(1 - min(1.0, peaks[hour] / limits[hour]) for hour in rest) / len(rest),
        changes=sum(limits[hour] != limits[hour + 1] for hour in rest) / (len(rest) / 24),
    )


LEVELS, LEVEL_DAYS, REMEMBERED, MARGIN = (8 << 30, 2 << 30, 8 << 30), 30, 20, 0.15


def print_followed(rows: list[Followed]) -> None:
    print("| delay, hours | noise | down, days | ran out | at rest | slack | changes a day |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        figures = f"{row.down:.1f} | {row.ran_out} | {row.at_rest:.1%} | {row.slack:.0%} | {row.changes:.2f}"
        print(f"| {row.delay} | {row.noise:.0%} | {figures} |")


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a loop on the replicas of a service. `settles` is None if it never does."""

    gains: str
    delay: int
    noise: float
    settles: int | None
    most: int
    p99: float
    rest: float
    changes: int
    refused: float


CAPTIONS = Serving(
    servers=tuple(Server(name=f"r{at}", speed=Speed(step=((1, SECOND), (4, 2.0 * SECOND)))) for at in range(12))
)
RATE, LASTS, REST = 6.0, HOUR, 30
RULE: dict[str, Any] = {
    "name": "hold",
    "mode": "on",
    "trigger": "nodes_up > 0",
    "actions": [
        {
            "control": {
                "knob": "replicas",
                "of": "captions",
                "target": {"service_p99_of_objective": "80%"},
                "effect": "lowers",
                "least": 0,
                "most": 8,
            }
        }
    ],
}


def held(delay: int, noise: float, seed: int) -> list[Held]:
    def begin() -> ServiceTwin:
        requests = load_of(Drawn(loop="poisson", rate=RATE, requests=round(RATE * LASTS / SECOND)), seed)
        serving = msgspec.structs.replace(CAPTIONS, start=delay * MINUTE, spread=noise)
        twin = ServiceTwin(Limits(objective=5 * SECOND), serving, requests, replicas=2, seed=seed)
        twins.append(twin)
        return twin

    twins: list[ServiceTwin] = []
    run = on_service(Simulated("captions", 5 * SECOND, begin))
    [loop] = tune_loops({"kind": "rules", "rules": [RULE]}, run)
    rows = []
    for one, twin in zip(loop.responses, twins[1:], strict=True):
        extra = [round(8 * output) for output in one.output]
        rest = extra[-REST:]
        usual = median(rest)
        late = max((step for step, value in enumerate(extra) if abs(value - usual) > 1), default=-1) + 1
        last = [story for story in twin.stories if story.came >= LASTS // 2]
        rows.append(
            Held(
                gains=one.label,
                delay=delay,
                noise=noise,
                settles=late if late < len(extra) - REST else None,
                most=max(extra),
                p99=fmean(one.measured[-REST:]),
                rest=pstdev(rest),
                changes=sum(before != after for before, after in pairwise(rest)),
                refused=sum(story.why != ANSWERED for story in last) / len(last),
            )
        )
    return rows


def print_held(rows: list[Held]) -> None:
    print("| delay | noise | gains | settles in steps | most | P99 | rest | changes | refused |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        figures = f"{row.settles if row.settles is not None else 'never'} | {row.most} | {row.p99:.2f} | {row.rest:.2f}"
        print(f"| {row.delay} | {row.noise:.0%} | {row.gains} | {figures} | {row.changes} | {row.refused:.1%} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--loops", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--replicas", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.replicas:
        holds = [row for delay in DELAYS for noise in (0.0, 0.1, 0.3) for row in held(delay, noise, given.seed)]
        if given.json:
            print(json.dumps(msgspec.to_builtins(holds), indent=2))
        else:
            print_held(holds)
        return 0
    if given.memory:
        limits = [followed(delay, noise) for delay in (0, 6, 24, 72) for noise in (0.0, 0.1, 0.3)]
        if given.json:
            print(json.dumps(msgspec.to_builtins(limits), indent=2))
        else:
            print_followed(limits)
        return 0
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
