"""Storms: faults with known causes on a simulated fleet under load, to test the diagnosis of their symptoms.

    storm = storm_of(7)
    events = rage(storm)

They run on the real control plane and node machines (`Simulation`). A storm has one cause, or two independent ones at
about the same time. Some attempts in a hundred also fail by chance.
"""

from collections.abc import Callable
from random import Random
from typing import Literal

import msgspec

from poise.engine.breaking import FAULTS
from poise.engine.scenario import Act, FaultKind, Incident, Scenario
from poise.engine.simulation import Moment, Simulation
from poise.model.events import Event
from poise.model.incidents import Element
from poise.model.jobs import Outcome
from poise.model.messages import Attempt
from poise.model.resources import Device, Node
from poise.model.tenants import DEFAULT
from poise.units import MILLISECOND, SECOND

StormKind = Literal["rack", "switch", "zone", "node", "flapping", "device", "program", "store", "clock", "policy"]
KINDS: tuple[StormKind, ...] = (
    "rack", "switch", "zone", "node", "flapping", "device", "program", "store", "clock", "policy",
)  # fmt: skip

BEGINS = 30 * SECOND
LASTS = 45 * SECOND
ENDS = 90 * SECOND
TWO_CAUSES = 0.3
"""The share of storms with two causes."""

PROGRAMS = 3
RACK_NODES = 4


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One cause: the broken element, the instant from which it is broken, and the nodes below it."""

    kind: StormKind
    cause: Element
    at: int
    nodes: tuple[str, ...] = ()


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet under load, and its faults."""

    seed: int
    scenario: Scenario
    faults: tuple[Fault, ...]


def storm_of(seed: int) -> Storm:
    """Return the storm of a seed."""
    random = Random(f"storm {seed}")
    zones, racks = random.choice(((1, 3), (2, 2), (2, 3), (3, 2)))
    nodes = tuple(
        _node(
            f"n{number + 1}", f"z{number // (racks * RACK_NODES) + 1}", f"r{number // RACK_NODES % racks + 1}", random
        )
        for number in range(zones * racks * RACK_NODES)
    )
    every = random.uniform(0.15, 0.4)
    acts = tuple(
        Act(
            at=int(number * every * SECOND),
            act="submit",
            key=f"k{number}",
            tenant=_tenant(random),
            document=_job(random),
        )
        for number in range(int(ENDS / SECOND / every))
    )
    scenario = Scenario(seed=seed, nodes=nodes, acts=acts, incidents=(), heals=ENDS + SECOND, ends=ENDS + 2 * SECOND)
    first = _fault(random, random.choice(KINDS), nodes, BEGINS)
    faults = [first]
    if random.random() < TWO_CAUSES:
        second = _fault(random, random.choice([of for of in KINDS if of != first.kind]), nodes, BEGINS + _soon(random))
        if not set(first.nodes) & set(second.nodes):
            faults.append(second)
    return Storm(seed=seed, scenario=scenario, faults=tuple(faults))


def _node(name: str, zone: str, rack: str, random: Random) -> Node:
    devices = tuple(
        Device(index=index, memory=16 * 2**30, uuid=f"{name}-{index}") for index in range(random.choice((2, 4)))
    )
    return Node(
        name=name, incarnation="0", cpu=8000, memory=32 * 2**30, zone=zone, rack=rack, devices=devices
    )  # fmt: skip


def _tenant(random: Random) -> str:
    return random.choice(("default", "alice", "bob"))


def _program(random: Random) -> str:
    """Return a program of a random tenant, named as in the log."""
    tenant = _tenant(random)
    return f"{'' if tenant == DEFAULT else f'{tenant}:'}p{random.randrange(PROGRAMS)}"


def _job(random: Random) -> dict[str, object]:
    resources = {"cpu": 1, "gpu": 1} if random.random() < 0.4 else {"cpu": 1}
    return {
        "run": f"work {random.uniform(2, 20):.3f}",
        "class": f"p{random.randrange(PROGRAMS)}",
        "resources": resources,
        "retry": {"limit": random.choice((0, 2)), "backoff": "1s"},
    }


def _soon(random: Random) -> int:
    return int(random.uniform(-5, 5) * SECOND)


def _fault(random: Random, kind: StormKind, nodes: tuple[Node, ...], at: int) -> Fault:
    of = random.choice(nodes)
    rack = tuple(node.name for node in nodes if (node.zone, node.rack) == (of.zone, of.rack))
    zone = tuple(node.name for node in nodes if node.zone == of.zone)
    match kind:
        case "rack" | "switch":
            return Fault(kind=kind, cause=Element("rack", f"{of.zone}/{of.rack}"), at=at, nodes=rack)
        case "zone" if len(zone) < len(nodes) / 2:  # the control plane gives up no nodes if most of the fleet is lost
            return Fault(kind=kind, cause=Element("zone", of.zone), at=at, nodes=zone)
        case "node" | "flapping" | "zone":
            return Fault(
                kind="node" if kind == "zone" else kind, cause=Element("node", of.name), at=at, nodes=(of.name,)
            )
        case "device":
            number = random.choice(of.devices).index
            return Fault(kind=kind, cause=Element("device", f"{of.name}:{number}"), at=at, nodes=(of.name,))
        case "program":
            return Fault(kind=kind, cause=Element("program", _program(random)), at=at)
        case "store":
            return Fault(kind=kind, cause=Element("store"), at=at)
        case "clock":
            return Fault(kind=kind, cause=Element("clock"), at=at)
        case "policy":
            return Fault(kind=kind, cause=Element("policy", "poise"), at=at)


def rage(storm: Storm) -> list[Event]:
    """Run a storm to its end; return its durable events in order, from revision 1."""
    events: list[Event] = []

    def note(moment: Moment) -> None:
        if isinstance(moment.what, Event):
            events.append(moment.what)

    simulation = Simulation(storm.scenario, watch=note)
    for fault in storm.faults:
        random = Random(f"{storm.seed} {fault.kind}")
        for at, befall in _turns(simulation, fault, random):
            simulation.timeline.call_at(at, befall)
    simulation.run(until=ENDS)
    return events


def _turns(simulation: Simulation, fault: Fault, random: Random) -> list[tuple[int, Callable[[], None]]]:
    """Return the instants and calls that cause the fault."""
    at, over = fault.at, fault.at + LASTS

    def one(kind: FaultKind, node: str = "", amount: float = 0.0, lasts: int = LASTS) -> Callable[[], None]:
        incident = Incident(at=at, fault=kind, lasts=lasts, node=node, amount=amount, draw=random.randrange(2**32))

        def befall() -> None:
            undo = FAULTS[kind](simulation, incident, Random(incident.draw))
            if undo is not None:
                simulation.timeline.call_in(lasts, undo)

        return befall

    match fault.kind:
        case "rack" | "zone":
            return [(at + random.randrange(2 * SECOND), one("machine-off", node)) for node in fault.nodes]
        case "switch":
            return [(at + random.randrange(SECOND), one("cut", node)) for node in fault.nodes]
        case "node" if random.random() < 0.5:
            return [(at, one("machine-off", fault.nodes[0]))]
        case "node":
            outcomes: tuple[Outcome, ...] = ("failed", "killed", "signal")
            return _ending(simulation, fault, random, lambda node, _: node in fault.nodes, outcomes)
        case "flapping":
            return [(at, one("flap", fault.nodes[0]))]
        case "device":
            name, _, index = fault.cause.name.rpartition(":")

            def fail() -> None:
                machine = simulation.machines[name]
                machine.agent.call_soon(machine.fail_device, int(index))

            return [(at, fail)]
        case "program":
            return _ending(simulation, fault, random, lambda _, kind: kind == fault.cause.name, ("failed",))
        case "store":
            return [(at, one("slow-disk", amount=random.uniform(1.5, 4)))]
        case "clock":
            return [(at, one("wall-clock", amount=random.choice((60, 3600)), lasts=0))]
        case "policy":
            return [(at, one("policy-raises"))] if over else []


def _ending(
    simulation: Simulation,
    fault: Fault,
    random: Random,
    meets: Callable[[str, str], bool],
    outcomes: tuple[Outcome, ...],
) -> list[tuple[int, Callable[[], None]]]:
    """End matching attempts soon after their start."""
    step = 500 * MILLISECOND

    def end() -> None:
        for name, machine in simulation.machines.items():
            found: list[Attempt] = [
                attempt
                for attempt in machine.executor.running()
                if meets(name, machine.executor.copies[attempt][1].launch.kind)
            ]
            for attempt in found:
                machine.executor.kill(attempt, random.choice(outcomes))

    return [(fault.at + number * step, end) for number in range(LASTS // step)]
