"""Measure policies in shadow: the cost of their simulated fleets, and the accuracy of their predictions.

    python benchmarks/shadow.py cost [--nodes 100] [--jobs 3000] [--rate 100] [--json]
    python benchmarks/shadow.py predict [--days 20] [--jobs 150] [--json]

`cost`: a simulated fleet in the role of the live one accepts `--rate` jobs a second, each of one device. The CPU time
is that of following its log with a fleet of the current policy and one of the policy in shadow, and without the second.

`predict`: on each day, a fleet of two device models in the role of the live one uses `fifo`, with `srtf` in shadow.
Then the same day runs under `srtf`. The figure is the fraction of days on which the real difference of mean completion
times lies in the predicted interval. Run times on the other model are converted by a table with an error of `--error`
for each class of work.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Sequence

from poise.control.worlds import LOOK_SECONDS
from poise.drivers.system import settle_memory
from poise.engine.paired import compare
from poise.engine.parallel import Worlds
from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.kernel.ledger import Ledger
from poise.model.events import Event, NodeJoined, Placed
from poise.model.jobs import GRACE, Task, Unit
from poise.model.resources import Device, Node, Shape
from poise.model.workload import Arrival, Steady, Truth
from poise.policy.suites import policy_named
from poise.units import DAY, HOUR, MINUTE, SECOND

LEVEL = 0.8
CLASSES = ("a", "b", "c", "d")


def node(name: str, gpus: int, model: str) -> Node:
    devices = tuple(Device(index=at, memory=2**34, uuid=f"{name}-{at}", model=model) for at in range(gpus))
    return Node(name=name, incarnation="1", cpu=2**40, memory=2**50, devices=devices)


def arrival(at: float, seconds: float, kind: str, rates: dict[str, float], expect: float) -> Arrival:
    unit = Unit(
        name="main",
        tasks=(Task(name="main", argv=("work",), rank=0, world=1),),
        shape=Shape(gpus=1),
        kind=kind,
        expect=round(expect * SECOND),
        checkpoint=MINUTE,
    )
    truth = Truth(pace=Steady(seconds, 1, rates), checkpoint=MINUTE, save=GRACE // 2, reports=False)
    return Arrival(at=round(at * SECOND), units=(unit,), truths={"main": truth})


def live(
    policy: str, nodes: Sequence[Node], arrivals: Sequence[Arrival], settings: Settings
) -> tuple[Twin, list[Event]]:
    events: list[Event] = []
    twin = Twin(policy_named(policy), settings, observe=events.append)
    twin.add_nodes(nodes)
    for one in arrivals:
        twin.arrive(one)
    twin.run()
    return twin, events


def worlds_of(events: Sequence[Event], shadows: Sequence[str], settings: Settings, nodes: int) -> tuple[Worlds, int]:
    """Return the worlds at the instant at which all nodes have joined, and the number of events until then."""
    ledger, joined, taken = Ledger(), 0, 0
    for event in events:
        ledger.apply(event)
        taken, joined = taken + 1, joined + isinstance(event, NodeJoined)
        if joined == nodes:
            break
    policies = {name: policy_named(name) for name in shadows}
    return Worlds(ledger, policy_named(ledger.leader.policy), policies, settings, ledger.now), taken


def cost(asked: argparse.Namespace) -> dict[str, float]:
    draw = random.Random(asked.seed)
    nodes = [node(f"n{at}", 8, "A100-80") for at in range(asked.nodes)]
    busy = 0.9 * 8 * asked.nodes / asked.rate
    arrivals = [
        arrival(at / asked.rate, seconds := draw.expovariate(1 / busy), "a", {}, seconds) for at in range(asked.jobs)
    ]
    twin, events = live("poise", nodes, arrivals, Settings())
    decisions = sum(isinstance(event, Placed) for event in events)
    told: dict[str, float] = {"decisions": decisions, "rate": asked.rate}
    for name, shadows in (("both", ["srtf"]), ("current", [])):
        worlds, taken = worlds_of(events, shadows, Settings(), len(nodes))
        settle_memory()
        began, look = time.process_time(), worlds.since
        for event in events[taken:]:
            if event.at > look:
                worlds.advance(look)
                look = event.at + round(LOOK_SECONDS * SECOND)
            worlds.take(event)
        worlds.advance(twin.began + twin.now + DAY)
        told[f"{name} ms"] = 1000 * (time.process_time() - began) / decisions
    told["core"] = told["both ms"] / 1000 * asked.rate
    return told


def predict(asked: argparse.Namespace) -> dict[str, float]:
    nodes = [node("slow", 4, "V100"), node("fast", 4, "A100-80")]
    within = later = 0
    differences: list[tuple[float, float, float]] = []
    for day in range(asked.days):
        draw = random.Random(f"{asked.seed}/{day}")
        true = {kind: draw.uniform(0.3, 0.8) for kind in CLASSES}
        known = {kind: rate * math.exp(draw.gauss(0, asked.error)) for kind, rate in true.items()}
        settings = Settings(
            throughputs={f"{kind}@A100-80": 1.0 for kind in CLASSES} | {f"{kind}@V100": known[kind] for kind in CLASSES}
        )
        at, arrivals = 0.0, []
        for _ in range(asked.jobs):
            at += draw.expovariate(asked.jobs / (12 * HOUR / SECOND))
            kind, seconds = draw.choice(CLASSES), min(4 * 3600, draw.lognormvariate(6.8, 1.1))
            rates = {"V100": true[kind]}
            arrivals.append(arrival(at, seconds, kind, rates, seconds * math.exp(draw.gauss(0, 0.5))))
        twin, events = live("fifo", nodes, arrivals, settings)
        worlds, taken = worlds_of(events, ["srtf"], settings, len(nodes))
        look = worlds.since
        for event in events[taken:]:
            while event.at > look:
                worlds.advance(look)
                look += 5 * MINUTE
            worlds.take(event)
        worlds.advance(twin.began + twin.now + 10 * DAY)
        pairs = [(was, then) for _, was, then in worlds.compared("srtf")]
        found = compare(pairs, 0, level=LEVEL).completion
        really, _ = live("srtf", nodes, arrivals, settings)
        was, then = (mean(of) for of in (twin, really))
        if found is None:
            continue
        later += bool(worlds.worlds["srtf"].guessed)
        within += found.low <= then - was <= found.high
        differences.append((found.difference / found.live, (then - was) / was, (found.high - found.low) / found.live))
    told = len(differences)
    return {
        "days": told,
        "within": within / told,
        "predicted": sum(one for one, _, _ in differences) / told,
        "really": sum(one for _, one, _ in differences) / told,
        "error": sum(abs(one - other) for one, other, _ in differences) / told,
        "width": sum(one for _, _, one in differences) / told,
        "days with estimates": later,
    }


def mean(twin: Twin) -> float:
    jobs = twin.ledger.jobs.values()
    return sum(job.ended - job.submitted for job in jobs) / len(jobs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cost", "predict"])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--days", type=int, default=20)
    parser.add_argument("--error", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    asked.jobs = asked.jobs or {"cost": 3000, "predict": 150}[asked.what]
    told = cost(asked) if asked.what == "cost" else predict(asked)
    if asked.json:
        json.dump(told, sys.stdout)
        print()
    else:
        for name, value in told.items():
            print(f"{name:<20} {value:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
