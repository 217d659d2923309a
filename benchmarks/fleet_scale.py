"""Measure a busy fleet in the twin while 1 % of its nodes are affected at once: loss, heat, growth, a device.

    python benchmarks/fleet_scale.py [--nodes 1000,10000] [--policy poise] [--part 0.01] [--json]

The fleet: nodes of 8 devices, 32 per rack, 95 % of the devices held by jobs of 1, 2, 4 and 8 devices and by gangs of
four times 8, each of which runs for days and saves a checkpoint every ten minutes. Then, an hour apart:

* *lost*: nodes are lost at once. From their loss to the last unit's new placement, in virtual time: the silence until
  they are declared lost (`DETECTED_AFTER`), and the time to decide and to stop the rest of gangs. CPU is the total on
  one core: the policy (`deciding`) and the rest of the control plane.
* *hot*: nodes report a CPU load above their capacity. From then until the last one has handed over a unit.
* *joined*: there are more jobs than room, and new nodes join. From then until the last new node is full.
* *device*: nodes return from a driver failure with one device less. The units on it are placed again.

`disturbed` counts units that were stopped although nothing happened to their resources: none, except for moves off hot
nodes. A claim to beat is 23 s at 1,000 and 67 s at 10,000 nodes from loss to recovery.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from poise.engine.twin import DETECTED_AFTER, Twin
from poise.kernel.controller import Settings
from poise.model.decisions import Plan
from poise.model.events import Event, Placed, Preempted
from poise.model.jobs import Task, Unit
from poise.model.load import Load
from poise.model.resources import Device, Node, Shape
from poise.model.views import Snapshot
from poise.model.workload import Arrival, Steady, Truth
from poise.policy.suites import ClusterPolicy, policy_named
from poise.units import HOUR, MILLISECOND, MINUTE, SECOND

DEVICES, RACK = 8, 32
BUSY = 0.95
GIB = 2**30
CLAIMED = {1000: 23.0, 10_000: 67.0}
"""Claimed seconds to recovery by number of nodes, from the requirements of this system."""

SIZES = ((1, 0.3), (2, 0.3), (4, 0.2), (8, 0.15), (32, 0.05))
"""Devices of a unit, and the fraction of the held devices that such units hold; 32 are a gang of four."""

UNITS = 200
"""Units of a job: they are submitted together, and independent."""

PATIENCE = 10 * MINUTE
"""Virtual time after which unfinished recoveries are reported as they are."""


class Timed:
    """A policy, and the CPU seconds of its decisions."""

    def __init__(self, policy: ClusterPolicy) -> None:
        self.name = policy.name
        self._policy = policy
        self.seconds: list[float] = []

    def decide(self, view: Snapshot, /) -> Plan:
        began = time.process_time()
        plan = self._policy.decide(view)
        self.seconds.append(time.process_time() - began)
        return plan


class Outcome(NamedTuple):
    """Outcome of one event on a fleet; times in seconds."""

    happened: str
    nodes: int
    units: int
    touched: int
    done: int
    virtual: float
    silence: float
    deciding: float
    longest: float
    cpu: float
    disturbed: int


def node(number: int, devices: int = DEVICES) -> Node:
    name = f"n{number:05}"
    return Node(
        name=name,
        incarnation="1",
        cpu=96_000,
        memory=1024 * GIB,
        devices=tuple(Device(index=at, model="A100-80", memory=80 * GIB, uuid=f"{name}-{at}") for at in range(devices)),
        rack=f"r{number // RACK:04}",
    )


def unit_of(name: str, devices: int) -> Unit:
    """Return a unit of `devices` devices: a gang if they are more than a node has."""
    tasks = max(1, devices // DEVICES)
    here = devices // tasks
    return Unit(
        name=name,
        tasks=tuple(
            Task(name=f"{name}[{rank}]" if tasks > 1 else name, argv=("work",), rank=rank, world=tasks)
            for rank in range(tasks)
        ),
        shape=Shape(cpu=8000 * here, memory=64 * GIB * here, gpus=here),
        kind=f"work{devices}",
        expect=72 * HOUR,
        checkpoint=10 * MINUTE,
    )


def jobs(devices: int, at: int, prefix: str = "w") -> Iterator[Arrival]:
    """Yield jobs with a total demand of `devices`, in random order."""
    units: list[Unit] = []
    for size, part in reversed(SIZES):
        units += [unit_of(f"{prefix}{size}x{number}", size) for number in range(round(devices * part / size))]
    random.Random(1).shuffle(units)
    for start in range(0, len(units), UNITS):
        some = tuple(units[start : start + UNITS])
        truths = {
            unit.name: Truth(
                pace=Steady(72 * 3600.0, len(unit.tasks)), checkpoint=10 * MINUTE, save=2 * SECOND,
                restore=60 * SECOND, saves=True,
            )
            for unit in some
        }  # fmt: skip
        yield Arrival(at=at, units=some, truths=truths)


class World:
    """A twin of a busy fleet, and the placements and stops in its log."""

    def __init__(self, nodes: int, policy: str) -> None:
        self.nodes = nodes
        self.policy = Timed(policy_named(policy))
        self.placed: dict[str, int] = {}
        self.preempted: dict[str, int] = {}
        self.twin = Twin(self.policy, Settings(), observe=self._take)
        self.twin.add_nodes(node(number) for number in range(nodes))
        for arrival in jobs(round(BUSY * nodes * DEVICES), SECOND):
            self.twin.arrive(arrival)
        self.twin.run(MINUTE)

    def _take(self, event: Event) -> None:
        if isinstance(event, Placed):
            self.placed[event.unit] = event.at - self.twin.began
        elif isinstance(event, Preempted):
            self.preempted[event.unit] = event.at - self.twin.began

    def on(self, names: Iterable[str]) -> set[str]:
        """Return the units that have an attempt on one of these nodes."""
        return {unit.id for name in names for unit, _ in self.twin.ledger.active.on(name)}

    def active(self) -> int:
        return len(self.twin.ledger.active)

    def see(
        self, happened: str, at: int, touched: set[str], since: Callable[[str], int], *, moved: bool = False
    ) -> Outcome:
        """Run until every touched unit was placed after `at`; `since` returns the instant of its placement."""
        self.twin.run(at - 1)
        rounds, began = len(self.policy.seconds), time.process_time()

        def waits() -> bool:
            return any(since(unit) < at for unit in touched)

        left = waits()
        while left and self.twin.now < at + PATIENCE:
            self.twin.run(self.twin.now + 200 * MILLISECOND)
            left = waits()
        cpu, decided = time.process_time() - began, self.policy.seconds[rounds:]
        done = [since(unit) for unit in touched if since(unit) >= at]
        asked = {unit for unit, when in self.preempted.items() if when >= at}
        return Outcome(
            happened=happened,
            nodes=self.nodes,
            units=self.active(),
            touched=len(touched),
            done=len(done),
            virtual=(max(done, default=at) - at) / SECOND,
            silence=DETECTED_AFTER / SECOND if happened == "lost" else 0.0,
            deciding=sum(decided),
            longest=max(decided, default=0.0),
            cpu=cpu,
            disturbed=0 if moved else len(asked - touched),
        )


def lost(world: World, names: Sequence[str], at: int) -> Outcome:
    """Lose the nodes at once."""
    world.twin.run(at - SECOND)
    touched = world.on(names)
    for name in names:
        world.twin.lose(name, at)
    return world.see("lost", at, touched, lambda unit: world.placed[unit])


def hot(world: World, names: Sequence[str], at: int) -> Outcome:
    """Overload the CPUs of the nodes that could hand over units, until they have done so."""
    world.twin.run(at - SECOND)
    ledger = world.twin.ledger
    single = {name: sum(len(unit.tasks) == 1 for unit, _ in ledger.active.on(name)) for name in names}
    names = [name for name in names if single[name] > 1]
    for name in names:
        world.twin.tell_load(name, at, Load(cpu=950, load1=1500))
    held = {name: world.on([name]) for name in names}

    def handed_over(name: str) -> int:
        return max((world.placed[unit] for unit in held[name] if world.preempted.get(unit, -1) >= at), default=-1)

    outcome = world.see("hot", at, set(names), handed_over, moved=True)
    for name in names:
        world.twin.tell_load(name, world.twin.now + SECOND, Load(cpu=300, load1=300))
    return outcome


def joined(world: World, count: int, at: int) -> Outcome:
    """Submit more jobs than fit, and then add nodes."""
    free = world.nodes * DEVICES  # an upper bound
    units = [unit_of(f"more{number}", DEVICES) for number in range(free // DEVICES // 10)]
    truths = {unit.name: Truth(pace=Steady(72 * 3600.0)) for unit in units}
    for start in range(0, len(units), UNITS):
        some = tuple(units[start : start + UNITS])
        world.twin.arrive(Arrival(at=at - 30 * MINUTE, units=some, truths={one.name: truths[one.name] for one in some}))
    world.twin.run(at - SECOND)
    names = [f"n{number:05}" for number in range(world.nodes, world.nodes + count)]
    world.twin.add_nodes([node(number) for number in range(world.nodes, world.nodes + count)], at)

    def full_at(name: str) -> int:
        return max((world.placed[unit] for unit in world.on([name])), default=-1)

    return world.see("joined", at, set(names), full_at)


def device(world: World, names: Sequence[str], at: int) -> Outcome:
    """Return the nodes without their last device."""
    world.twin.run(at - SECOND)
    ledger = world.twin.ledger
    touched = {
        unit.id for name in names for unit, index in ledger.active.on(name) if DEVICES - 1 in unit.tasks[index].devices
    }
    less = [msgspec.structs.replace(of, devices=of.devices[:-1]) for of in (ledger.nodes[name].node for name in names)]
    world.twin.add_nodes(less, at)
    return world.see("device", at, touched, lambda unit: world.placed[unit])


def measure(nodes: int, policy: str, part: float) -> list[Outcome]:
    """Run all four events, an hour apart, on different nodes of one fleet."""
    world = World(nodes, policy)
    count = max(1, round(part * nodes))
    names = sorted(world.twin.ledger.nodes)
    step = nodes // (4 * count)
    picked = names[:: max(1, step)]
    return [
        lost(world, picked[:count], HOUR),
        hot(world, picked[count : 2 * count], 2 * HOUR),
        device(world, picked[2 * count : 3 * count], 3 * HOUR),
        joined(world, count, 5 * HOUR),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="A busy fleet in which something happens to one node in a hundred.")
    parser.add_argument("--nodes", default="1000,10000")
    parser.add_argument("--policy", default="poise")
    parser.add_argument("--part", type=float, default=0.01)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    found = []
    for nodes in map(int, chosen.nodes.split(",")):
        for outcome in measure(nodes, chosen.policy, chosen.part):
            found.append(outcome)
            print(_line(outcome), file=sys.stderr if chosen.json else sys.stdout, flush=True)
    if chosen.json:
        print(json.dumps([_record(outcome) for outcome in found]))
    return 0


def _line(of: Outcome) -> str:
    claimed = f", claimed {CLAIMED[of.nodes]:g} s" if of.happened == "lost" and of.nodes in CLAIMED else ""
    silence = f" of which {of.silence:g} s silence" if of.silence else ""
    return (
        f"{of.nodes:>6} nodes, {of.units} units, {of.happened:7} {of.done} of {of.touched} in {of.virtual:.2f} s"
        f"{silence}{claimed}; CPU {of.cpu:.2f} s, of which deciding {of.deciding:.2f} s, longest round"
        f" {1000 * of.longest:.0f} ms; disturbed {of.disturbed}"
    )


def _record(of: Outcome) -> dict[str, Any]:
    return of._asdict() | ({"claimed": CLAIMED.get(of.nodes)} if of.happened == "lost" else {})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
