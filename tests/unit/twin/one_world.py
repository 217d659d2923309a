"""Prints a trial in which much happens: the same text whatever texts are hashed to."""

import sys

from poise.kernel.controller import Settings
from poise.model.jobs import Task, Unit
from poise.model.resources import Device, Node, Shape
from poise.model.workload import Arrival, Steady, Truth, Workload
from poise.model.worldfile import compile_world
from poise.policy.suites import policy_named
from poise.units import SECOND
from poise_lab.trial import simulate

POLICIES = ("poise", "las")
RATES = {"V100": 1.0, "K80": 0.25}
WORLD = {
    "kind": "world",
    "losses": {"mtbf": "1h", "mttr": "2m"},
    "telemetry": {"every": "1m", "noise": "20%", "delay": "5s"},
}


def same_world() -> str:
    """A trial in which much happens, as text."""
    fleet = [
        Node(
            name=f"n{at}",
            incarnation="1",
            cpu=16_000,
            memory=2**40,
            devices=tuple(Device(index=index, memory=2**34, model=model) for index in range(2)),
        )
        for at, model in enumerate(("V100", "K80", "V100"))
    ]
    work = [
        Arrival(
            at=at * 40 * SECOND,
            units=(
                Unit(
                    name="main",
                    tasks=(Task(name="main", argv=("work",)),),
                    shape=Shape(gpus=1 + at % 2),
                    kind=f"k{at % 3}",
                    expect=300 * SECOND,
                    checkpoint=60 * SECOND,
                ),
            ),
            truths={"main": Truth(pace=Steady(100.0 + 37 * (at % 7), 1, RATES), checkpoint=60 * SECOND)},
        )
        for at in range(20)
    ]
    workload, world = Workload(name="one", arrivals=tuple(work)), compile_world(WORLD)
    return str([simulate(workload, fleet, policy_named(name), Settings(seed=3), world=world) for name in POLICIES])


if __name__ == "__main__":
    sys.stdout.write(same_world())
