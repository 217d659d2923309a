"""Measure the cost of a `/metrics` scrape for the control plane, and the number of series, on a large fleet.

    python benchmarks/metrics.py [--nodes 10000] [--tenants 1000] [--scrapes 20] [--json]

A fleet in memory: nodes of 8 devices in 40 models, a tenth of the nodes drained, all with a load and a minute of
measurements, so that every label has more values than are shown. Each tenant has two waiting jobs in separate queues. A
row of `seconds` is the median and the maximum of the scrapes:

* *loop*: CPU time on the thread of the event loop, which makes no decisions meanwhile. The limit is 20 ms.
* *longest turn*: the longest part of it without yielding to other tasks.
* *thread*: CPU time on another thread, to write the text.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Coroutine
from typing import Any, NamedTuple, cast

from poise import __version__
from poise.control.gauges import Gauges, standing
from poise.control.observers import Observers
from poise.control.plane import Plane
from poise.control.tally import Held, Minutes, Tally
from poise.drivers.exposition import text
from poise.model.load import Load
from poise.model.messages import Beat
from poise.model.metrics import Families
from poise.model.observed import Happened
from poise.model.resources import Device, Node
from poise.model.tenants import HOME
from poise.model.usage import SIGNALS, Window
from poise.testing import World

MODELS, DEVICES = 40, 8
LIMIT_SERIES, LIMIT_SECONDS = 3000, 0.020
GIB = 2**30


class Cost(NamedTuple):
    """Cost of one scrape: CPU seconds on the loop, its longest turn, CPU seconds on the thread, and the result."""

    loop: float
    longest: float
    thread: float
    text: bytes

    @property
    def series(self) -> int:
        return sum(not line.startswith(b"#") for line in self.text.splitlines())


class InMemory:
    """The part of a control plane that the metrics read, for a world in memory."""

    accepting, behind, away = True, None, ""

    def __init__(self, world: World) -> None:
        self.controller, self.ledger = world.controller, world.ledger
        self.observers, self.tally = Observers(), Tally(lambda: world.ledger)
        self.clock = self
        self._world = world

    def now(self) -> int:
        return self._world.now


def fleet(nodes: int, tenants: int) -> tuple[World, Minutes]:
    world, minutes = World(check=False), Minutes(lambda: None)
    for number in range(nodes):
        name, model = f"n{number:05}", f"model-{number % MODELS}"
        devices = tuple(
            Device(index=at, model=model, memory=80 * GIB, uuid=f"{name}-{at}", price=2_000_000)
            for at in range(DEVICES)
        )
        world.join(Node(name=name, incarnation="1", cpu=96_000, memory=1024 * GIB, devices=devices))
        busy = number * 1000 // nodes
        world.hear(name, Beat(load=Load(cpu=busy, load1=busy, memory=busy, disk=busy, network=busy)))
        signals = (busy,) * len(SIGNALS)
        minutes.take(name, [Window(60, signals, signals), Window(120, signals, signals)], Held(96.0, DEVICES, 48.0, 4))
        if number % 10 == 0:
            world.drain(name)
    for number in range(tenants):
        for gpus in (1, 2):
            spec = {"gpu": gpus, "cpu": 1 + number % 7, "priority": ("low", "high")[number % 2]}
            world.job(f"wants-{gpus}", tenant=f"tenant-{number}", **spec)
    return world, minutes


def scrape(plane: InMemory, gauges: Gauges) -> Cost:
    turns: list[float] = []
    seen = gauges.now(HOME)
    found = standing(cast(Plane, plane), __version__) | turned(seen, turns)
    began = time.thread_time()
    written = text(found | plane.tally.told())
    took = time.thread_time() - began
    return Cost(sum(turns), max(turns), took, written)


def turned(seen: Coroutine[Any, Any, Families], turns: list[float]) -> Families:
    """Return the result of the coroutine; append the CPU seconds of each of its loop turns to `turns`."""
    while True:
        began = time.thread_time()
        try:
            seen.send(None)
        except StopIteration as stop:
            return cast(Families, stop.value)
        finally:
            turns.append(time.thread_time() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--scrapes", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON value")
    options = parser.parse_args()
    world, minutes = fleet(options.nodes, options.tenants)
    plane = InMemory(world)
    plane.tally.observe(Happened(first=1, events=tuple(world.log)))
    gauges = Gauges(cast(Plane, plane), minutes)
    scrape(plane, gauges)  # the first scrape builds the fleet's columns, like any round
    costs = [scrape(plane, gauges) for _ in range(options.scrapes)]
    found = {
        "nodes": options.nodes,
        "tenants": options.tenants,
        "series": max(cost.series for cost in costs),
        "bytes": max(len(cost.text) for cost in costs),
        "seconds": {
            name: {"median": statistics.median(taken), "longest": max(taken)}
            for name, taken in (
                ("loop", [cost.loop for cost in costs]),
                ("longest turn", [cost.longest for cost in costs]),
                ("thread", [cost.thread for cost in costs]),
            )
        },
    }
    if options.json:
        print(json.dumps(found))
        return 0
    print(f"{found['series']} series ({LIMIT_SERIES} at most), {found['bytes']} bytes")
    for name, of in cast(dict[str, dict[str, float]], found["seconds"]).items():
        print(f"{name:14} {1000 * of['median']:7.2f} ms, at most {1000 * of['longest']:7.2f} ms")
    print(f"the limit of the loop is {1000 * LIMIT_SECONDS:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
