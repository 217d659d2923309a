"""Decides which Pods to create: on which nodes, and how large. Pure: no input or output, no clock.

It is asked again and again with what waits, and answers with what is missing beside the Pods that begin or are idle.
The number of tasks that get room at once follows from the expected run times: each place must get at least `WORTH` of
work, so that a campaign of brief tasks does not take the whole cluster. A gang gets room for all of it or none. A node
gets one new Pod at a time, for all work that it has room for.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from poise.model.reports import Demand
from poise.units import SECOND, format_bytes, format_cpu
from poise_kubernetes.records import device_of

WORTH = 10
"""Seconds of work for a place in a Pod, below which it is not worth its start."""

GUESS = 60
"""Seconds that a task is taken to run of which nobody knows it."""

MIB = 2**20

PILOT_MEMORY = 256 * MIB
"""Bytes of each Pod that the pilot and its agent need for themselves."""


class Room(NamedTuple):
    """A node that may get a Pod: what is `free` there now, and the `size` that it has for Pods."""

    node: str
    free: Mapping[str, int]
    size: Mapping[str, int]


class Grant(NamedTuple):
    """What a Pod has of its node: milli-CPU, bytes of memory, and so many of the accelerators that are called `device`.
    The memory of the pilot is in it.
    """

    node: str
    cpu: int
    memory: int
    device: str = ""
    number: int = 0


class Unmet(NamedTuple):
    """Work that gets no Pod now, and why not. One that is `hopeless` gets none unless something changes."""

    demand: Demand
    why: str
    hopeless: bool


class _Left:
    """What is left of a node, or of a Pod, while work is given room there; and what was given of it."""

    def __init__(self, node: str, cpu: int, memory: int, device: str, count: int) -> None:
        self.node, self.cpu, self.memory, self.device, self.count = node, cpu, memory, device, count
        self.given = Grant(node, 0, 0, device)

    def slots(self, work: Demand) -> int:
        """How many tasks fit; a whole cluster can hold no more than some number of any."""
        bounds = [2**20]
        if work.cpu:
            bounds.append(self.cpu // work.cpu)
        if work.memory:
            bounds.append(self.memory // work.memory)
        if work.gpus:
            bounds.append(self.count // work.gpus)
        return max(0, min(bounds))

    def give(self, work: Demand, tasks: int) -> None:
        """Work that says nothing of memory gets as large a part of it as of the CPUs."""
        cpu, count = work.cpu * tasks, work.gpus * tasks
        memory = work.memory * tasks or (self.memory * cpu // self.cpu if self.cpu else 0)
        self.cpu, self.memory, self.count = self.cpu - cpu, self.memory - memory, self.count - count
        given = self.given
        self.given = given._replace(cpu=given.cpu + cpu, memory=given.memory + memory, number=given.number + count)


def wanted(
    demand: Sequence[Demand], rooms: Sequence[Room], standing: Sequence[Grant], most: int
) -> tuple[list[Grant], list[Unmet]]:
    """The Pods to create, `most` of them at most, and the work that gets none. `standing` are Pods that begin or are
    idle.
    """
    there = [_Left(of.node, of.cpu, of.memory - PILOT_MEMORY, of.device, of.number) for of in standing]
    free = [_left_of(room.node, room.free) for room in rooms]
    unmet: list[Unmet] = []
    for work in sorted(demand, key=lambda of: (-of.together, -of.gpus, -of.cpu, -of.memory)):
        if work.where:
            why = f"it asks for {work.where}, and Poise chooses nodes of Kubernetes by their free resources only"
            unmet.append(Unmet(work, why, True))
            continue
        places = _places(work)
        standing_for = _spread(work, there, places)
        new = _spread(work, _ordered(work, free, most), places - sum(tasks for _, tasks in standing_for))
        if sum(tasks for _, tasks in (*standing_for, *new)) < max(1, work.together):
            unmet.append(_why_not(work, rooms, most))
            continue
        for place, tasks in (*standing_for, *new):
            place.give(work, tasks)
    grants = [one.given for one in free if one.given.cpu or one.given.memory or one.given.number]
    return [one._replace(memory=one.memory + PILOT_MEMORY) for one in grants], unmet


def _left_of(node: str, amounts: Mapping[str, int]) -> _Left:
    device = device_of(amounts)
    return _Left(node, amounts.get("cpu", 0), amounts.get("memory", 0) - PILOT_MEMORY, device, amounts.get(device, 0))


def _places(work: Demand) -> int:
    """Tasks that shall have room at once."""
    seconds = work.work / SECOND + work.unknown * GUESS
    return min(work.tasks, max(work.together, -(-int(seconds) // WORTH), 1))


def _ordered(work: Demand, free: Sequence[_Left], most: int) -> list[_Left]:
    """Nodes in the order in which they are used: those that get a Pod anyway, then those without accelerators, then
    those with the most room. No more than may get a Pod.
    """
    taken = [one for one in free if one.given.cpu or one.given.memory or one.given.number]
    others = [one for one in free if one not in taken and one.slots(work)]
    others.sort(key=lambda one: (bool(one.count) and not work.gpus, -one.slots(work), one.node))
    return [*taken, *others[: max(0, most - len(taken))]]


def _spread(work: Demand, places: Sequence[_Left], tasks: int) -> list[tuple[_Left, int]]:
    """So many tasks over these places, as far as they go."""
    found = []
    for place in places:
        here = min(tasks, place.slots(work))
        if here > 0:
            found.append((place, here))
            tasks -= here
    return found


def _why_not(work: Demand, rooms: Sequence[Room], most: int) -> Unmet:
    needs = f"{format_cpu(work.cpu)} CPU, {format_bytes(work.memory + PILOT_MEMORY)}, {work.gpus} GPU"
    if most <= 0:
        return Unmet(work, "`pods` are all in use", False)
    whole = [_left_of(room.node, room.size) for room in rooms]
    if not any(one.slots(work) for one in whole):
        return Unmet(work, f"no node that Poise may use is large enough: {needs}", True)
    if sum(one.slots(work) for one in whole) < work.together:
        return Unmet(work, f"{work.together} tasks start together, and all nodes have too little room for them", True)
    return Unmet(work, f"others hold the room: {needs} for each of {max(1, work.together)}", False)
