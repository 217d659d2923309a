"""Check claims of beating static allocation: one documented workload per claim, with all baselines in one run.

    python benchmarks/claims.py [--workload equal,unequal,batch|all] [--policies poise,static,…] [--seed 1] [--json]

*equal* and *unequal*: requests from clients in a closed loop (each sends its next request a think time after the
answer), one node per device. Sizes are lognormal with a mean of 200 ms on the fastest device and a squared coefficient
of variation of 4; no policy knows them. A request that takes longer than `TIMEOUT` counts as failed. Equal: 4 devices,
12 clients with a think time of 2 mean services. Unequal: devices with speeds of 1, 0.8, 0.4 and 0.22, 14 clients with a
think time of half a service.
*batch*: 400 jobs of four classes that arrive within an hour, on 8 V100, 8 P100 and 16 K80, on which each class has its
own speeds. The mean run time is half an hour on the fastest model, lognormal with a squared coefficient of variation of
1, and estimated within a factor of 2.

Claimed against static allocation: 412 to 203 ms in the mean, 63 to 89 % busy, 4.2 to 0.7 % failed (equal); 2.3 times
the throughput on a mixed fleet (unequal); 68 to 92 % busy, completion 37 % less, throughput 28 % more (batch). `static`
assigns requests to devices in turn, regardless of their queues. In an open loop, arrivals do not depend on answers, so
all work-conserving policies are equally busy, and no such claim about use is possible: `--open 15` sends 15 requests a
second.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.model.events import Event, Finished, JobSubmitted
from poise.model.jobs import Task, Unit
from poise.model.resources import Device, Node, Shape
from poise.model.workload import Arrival, Steady, Truth, Workload
from poise.policy.suites import policy_named
from poise.units import HOUR, MILLISECOND, MINUTE, SECOND
from poise_lab.trial import simulate

POLICIES = "static,random,round-robin,weighted-round-robin,least-loaded,fifo,sjf,srtf,las,mlfq,poise"
MEAN = 0.2
"""Mean seconds of a request on the fastest device."""


def sigma(square: float) -> float:
    """Return the sigma of a lognormal with this squared coefficient of variation."""
    return math.sqrt(math.log(1 + square))


SPREAD, BATCH_SPREAD = sigma(4), sigma(1)

TIMEOUT = 10 * MEAN
REQUESTS, WARM = 6000, 500


class Loop(NamedTuple):
    """A closed loop: the speeds of the devices, the number of clients, and their think time in mean services."""

    speeds: tuple[float, ...]
    clients: int
    think: float


LOOPS = {"equal": Loop((1.0, 1.0, 1.0, 1.0), 12, 2.0), "unequal": Loop((1.0, 0.8, 0.4, 0.22), 14, 0.5)}

CLASSES = {
    "vision": {"V100": 1.0, "P100": 0.5, "K80": 0.25},
    "language": {"V100": 1.0, "P100": 0.35, "K80": 0.1},
    "recommendation": {"V100": 1.0, "P100": 0.9, "K80": 0.7},
    "tabular": {"V100": 1.0, "P100": 0.8, "K80": 0.6},
}
"""Speeds by class and model: some classes are ten times as fast on the newest device, others hardly faster."""

FLEET = {"V100": 8, "P100": 8, "K80": 16}
JOBS = 400


def node(name: str, model: str) -> Node:
    device = Device(index=0, model=model, memory=2**34, uuid=name)
    return Node(name=name, incarnation="1", cpu=64_000, memory=2**38, devices=(device,))


def unit(kind: str, expect: int = 0) -> Unit:
    task = Task(name="main", argv=("work",))
    return Unit(name="main", tasks=(task,), shape=Shape(cpu=1000, memory=2**30, gpus=1), kind=kind, expect=expect)


class Requests:
    """Clients in a closed loop, or the same requests in an open loop at `rate`."""

    def __init__(self, loop: Loop, policy: str, seed: int, *, rate: float) -> None:
        self._random = random.Random(seed)
        self._loop = loop
        self._sent: dict[str, int] = {}
        self._left = REQUESTS
        self._open = rate > 0
        self.times: list[tuple[int, float, int]] = []
        models = [f"x{speed:g}" for speed in loop.speeds]
        self._rates = dict(zip(models, loop.speeds, strict=True))
        self._twin = Twin(policy_named(policy), Settings(), observe=self._take)
        self._twin.add_nodes(node(f"n{number}", model) for number, model in enumerate(models))
        at = SECOND
        for _ in range(REQUESTS if self._open else loop.clients):
            at += round(self._random.expovariate(rate or 1 / MEAN) * SECOND)
            self._send(at)

    def run(self) -> dict[str, float]:
        self._twin.run(None, watch=lambda: len(self.times) < REQUESTS)
        began, counted = self.times[WARM][0], self.times[WARM:]
        seconds = (counted[-1][0] - began) / SECOND
        times = sorted(time for _, time, _ in counted)
        busy = sum(min(run, at - began) for at, _, run in counted) / SECOND
        return {
            "mean_ms": 1000 * fmean(times),
            "p99_ms": 1000 * times[int(0.99 * len(times))],
            "failed": sum(time > TIMEOUT for time in times) / len(times),
            "busy": busy / seconds / len(self._loop.speeds),
            "per_second": len(counted) / seconds,
        }

    def _send(self, at: int) -> None:
        if self._left:
            self._left -= 1
            size = MEAN * self._random.lognormvariate(-(SPREAD**2) / 2, SPREAD)
            truth = Truth(pace=Steady(size, rates=self._rates))
            self._twin.arrive(Arrival(at=at, units=(unit("request"),), truths={"main": truth}))

    def _take(self, event: Event) -> None:
        if isinstance(event, JobSubmitted):
            self._sent[event.job.id] = event.at
        elif isinstance(event, Finished):
            took = (event.at - self._sent.pop(event.task.partition(".")[0])) / SECOND
            self.times.append((event.at, took, event.ending.run))
            if not self._open:
                think = self._loop.think * MEAN * self._random.expovariate(1.0)
                self._send(event.at - self._twin.began + max(MILLISECOND, round(think * SECOND)))


def requests(loop: Loop, policy: str, *, seed: int, rate: float) -> dict[str, float]:
    return Requests(loop, policy, seed, rate=rate).run()


def batch(policy: str, *, seed: int) -> dict[str, float]:
    chance = random.Random(seed)
    arrivals = []
    for at in sorted(chance.randrange(HOUR) for _ in range(JOBS)):
        kind = chance.choice(list(CLASSES))
        seconds = 1800 * chance.lognormvariate(-(BATCH_SPREAD**2) / 2, BATCH_SPREAD)
        truth = Truth(pace=Steady(seconds, rates=CLASSES[kind]), checkpoint=MINUTE, saves=True, restore=10 * SECOND)
        expect = round(seconds * chance.lognormvariate(0, 0.54) * SECOND)
        arrivals.append(Arrival(at=at, units=(unit(kind, max(SECOND, expect)),), truths={"main": truth}))
    nodes = [node(f"{model}-{number}", model) for model, count in FLEET.items() for number in range(count)]
    speeds = {f"{kind}@{model}": rate for kind, rates in CLASSES.items() for model, rate in rates.items()}
    workload = Workload(name="batch", arrivals=tuple(arrivals), throughputs=speeds)
    result = simulate(workload, nodes, policy_named(policy), Settings())
    makespan = max(job.ended for job in result.jobs) / SECOND
    times = sorted(result.completions)
    return {
        "mean_min": fmean(times) / 60,
        "p99_min": times[int(0.99 * len(times))] / 60,
        "busy": sum(job.run for job in result.jobs) / SECOND / makespan / len(nodes),
        "per_hour": len(times) / makespan * 3600,
    }


def table(title: str, rows: dict[str, dict[str, float]], against: str) -> None:
    print(f"\n{title}; in brackets times `{against}`")
    base = rows.get(against)
    for policy, row in rows.items():
        cells = [
            f"{name} {value:.4g}" + (f" ({value / base[name]:.2f})" if base and base[name] else "")
            for name, value in row.items()
        ]
        print(f"  {policy:22} {'  '.join(f'{cell:24}' for cell in cells)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="all")
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--open", type=float, default=0.0, metavar="RATE", help="requests a second, in an open loop")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    runs: dict[str, Callable[[str], dict[str, float]]] = {
        name: partial(requests, loop, seed=given.seed, rate=given.open) for name, loop in LOOPS.items()
    }
    runs["batch"] = partial(batch, seed=given.seed)
    names: Sequence[str] = list(runs) if given.workload == "all" else given.workload.split(",")
    if unknown := [name for name in names if name not in runs]:
        parser.error(f"there is no workload `{unknown[0]}`; known: {', '.join(runs)}")
    found: dict[str, Any] = {}
    for name in names:
        rows = {}
        for policy in given.policies.split(","):
            print(f"{name}, {policy} …", end="\r", file=sys.stderr)
            rows[policy] = runs[name](policy)
        found[name] = rows
        if not given.json:
            table(name, rows, "static")
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
