"""Decide which Pods to create: on which nodes, and how large. Pure: no input or output, no clock.

`wanted` takes the waiting work and returns what is missing beside the Pods that start or are idle. The number of tasks
that get room at once follows from the expected run times: each place must get at least `WORTH` seconds of work, so that
a campaign of brief tasks does not take the whole cluster. A gang gets room for all of it or none. A node gets one new
Pod at a time, for all work that it has room for.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from poise.model.fleet import model_of
from poise.model.reports.demand import Demand
from poise.model.resources import ANY_GPU, ANYWHERE, Node
from poise.policy.feasible import can_serve
from poise.units import SECOND, format_bytes, format_cpu
from poise_kubernetes.offers import PILOT_MEMORY, Grant
from poise_kubernetes.records import device_of

WORTH = 10
"""Minimum work, in seconds, that makes a place in a Pod worth its start."""

GUESS = 60
"""Assumed run time, in seconds, of a task with an unknown run time."""

GIB = 2**30

PLENTY = 2**20
"""Maximum number of tasks on one node, for tasks that request nothing."""


class Room(NamedTuple):
    """A node that may get a Pod, or a Pod that starts or is idle: its `free` amounts, its maximum `size`, and the Poise
    node that it would be. With `for_devices`, a taint keeps off Pods that request no accelerators.
    """

    free: Mapping[str, int]
    size: Mapping[str, int]
    offered: Node
    for_devices: bool = False


class Unmet(NamedTuple):
    """Work that gets no Pod now, and the reason. `hopeless` work gets none unless something changes."""

    demand: Demand
    why: str
    hopeless: bool


class _Place:
    """What is left of a node or a Pod while work is assigned to it, and what was assigned."""

    def __init__(self, amounts: Mapping[str, int], offered: Node, for_devices: bool = False) -> None:
        device = device_of(amounts)
        self.offered, self.for_devices = offered, for_devices
        self.cpu = amounts.get("cpu", 0)
        self.memory = amounts.get("memory", 0) - PILOT_MEMORY
        self.number = amounts.get(device, 0)
        self.given = Grant(offered.name, 0, 0, device)

    @property
    def is_used(self) -> bool:
        return bool(self.given.cpu or self.given.memory or self.given.number)

    def admits(self, work: Demand) -> bool:
        """Whether the work may run there, whatever is free. Work without accelerators may join other work on a node
        that is for accelerators.
        """
        if not work.shape.where.allows(self.offered):
            return False
        if self.for_devices and not (work.gpus or self.given.number):
            return False
        return not work.gpus or any(can_serve(model_of(device), work.shape) for device in self.offered.devices)

    def slots(self, work: Demand) -> int:
        """Return how many tasks fit."""
        bounds = [1 if work.shape.where.spread else PLENTY]
        if work.cpu:
            bounds.append(self.cpu // work.cpu)
        if work.memory:
            bounds.append(self.memory // work.memory)
        if work.gpus:
            bounds.append(self.number // work.gpus)
        return max(0, min(bounds)) if self.memory >= 0 and self.admits(work) else 0

    def give(self, work: Demand, tasks: int) -> None:
        """Assign tasks. Work without a memory request gets the same fraction of the memory as of the CPUs."""
        cpu, number = work.cpu * tasks, work.gpus * tasks
        memory = work.memory * tasks or (self.memory * cpu // self.cpu if self.cpu else 0)
        self.cpu, self.memory, self.number = self.cpu - cpu, self.memory - memory, self.number - number
        given = self.given
        self.given = given._replace(cpu=given.cpu + cpu, memory=given.memory + memory, number=given.number + number)


def wanted(
    demand: Sequence[Demand], rooms: Sequence[Room], standing: Sequence[Room], most: int, waiting: int = 0
) -> tuple[list[Grant], list[Unmet]]:
    """Return the Pods to create, at most `most`, and the work that gets none. `standing` are Pods that start or are
    idle. Up to `waiting` more Pods may be created for nodes that do not exist yet; they name none.
    """
    there = [_Place(room.free, room.offered) for room in standing]
    free = [_Place(room.free, room.offered, room.for_devices) for room in rooms]
    unmet: list[Unmet] = []
    for work in sorted(demand, key=lambda of: (-of.together, -of.gpus, -of.cpu, -of.memory)):
        found = _spread(work, [*there, *_ordered(work, free, most)])
        if sum(tasks for _, tasks in found) < max(1, work.together):
            unmet.append(_why_not(work, rooms, most))
            continue
        for place, tasks in found:
            place.give(work, tasks)
    grants = [place.given for place in free if place.is_used]
    for one in unmet:
        more = _for_new_nodes(one.demand, rooms)
        if len(more) <= min(waiting, most - len(grants)):
            grants += more
            waiting -= len(more)
    return [grant._replace(memory=grant.memory + PILOT_MEMORY) for grant in grants], unmet


def slots_for(work: Demand, rooms: Sequence[Room], most: int) -> int:
    """Return how many tasks could run at once in Pods on these nodes, at most `most` Pods."""
    places = _ordered(work, [_Place(room.free, room.offered, room.for_devices) for room in rooms], most)
    if work.shape.where.groups:
        return sum(tasks for _, tasks in _spread(work, places))
    return min(work.tasks, sum(place.slots(work) for place in places))


def slots_on_new_nodes(work: Demand, rooms: Sequence[Room], most: int) -> int:
    """Return how many tasks could run at once in at most `most` Pods on nodes that an autoscaler adds."""
    return _largest(work, rooms) * most if _may_be_on_new_nodes(work) else 0


def why_not(work: Demand, rooms: Sequence[Room], most: int) -> str:
    """Return why work gets no Pod."""
    return _why_not(work, rooms, most).why


def _ordered(work: Demand, free: Sequence[_Place], most: int) -> list[_Place]:
    """Return the nodes in order of use: those that get a Pod anyway, then those without accelerators, then those with
    the most room; no more than may get a Pod.
    """
    taken = [one for one in free if one.is_used]
    others = [one for one in free if not one.is_used and one.slots(work)]
    others.sort(key=lambda one: (bool(one.number) and not work.gpus, -one.slots(work), one.offered.name))
    return [*taken, *others[: max(0, most - len(taken))]]


def _spread(work: Demand, places: Sequence[_Place]) -> list[tuple[_Place, int]]:
    """Distribute the tasks that should have room at once over these places as far as possible. A gang that runs on one
    value of a label gets the value with the most room; a gang that is spread over a label gets each value once.
    """
    where = work.shape.where
    if where.together:
        rooms: dict[str, int] = {}
        for place in places:
            value = place.offered.label(where.together)
            rooms[value] = rooms.get(value, 0) + place.slots(work)
        best = max(rooms, key=lambda value: rooms[value], default="")
        places = [place for place in places if place.offered.label(where.together) == best]
    left = _at_once(work)
    found, used = [], set[str]()
    for place in places:
        value = place.offered.label(where.spread)
        here = min(left, place.slots(work))
        if here > 0 and not (where.spread and value in used):
            found.append((place, here))
            used.add(value)
            left -= here
    return found


def _for_new_nodes(work: Demand, rooms: Sequence[Room]) -> list[Grant]:
    """Return Pods for nodes that an autoscaler adds: as large as the largest existing node would hold, or one task
    each. None for work that requests more than amounts, since the properties of a new node are unknown.
    """
    if not _may_be_on_new_nodes(work):
        return []
    whole = [_Place(room.size, room.offered) for room in rooms]
    each = _largest(work, rooms)
    device = next((one.given.device for one in whole if one.given.device), "nvidia.com/gpu") if work.gpus else ""
    tasks, found = _at_once(work), list[Grant]()
    while tasks > 0:
        here = min(each, tasks)
        found.append(Grant("", work.cpu * here, (work.memory or GIB) * here, device, work.gpus * here))
        tasks -= here
    return found[: max(1, -(-work.together // each))]


def _may_be_on_new_nodes(work: Demand) -> bool:
    return work.shape.where == ANYWHERE and work.shape.wants == ANY_GPU


def _largest(work: Demand, rooms: Sequence[Room]) -> int:
    """Return how many tasks the largest existing node would hold if it were empty; at least one."""
    return max((_Place(room.size, room.offered, room.for_devices).slots(work) for room in rooms), default=0) or 1


def _at_once(work: Demand) -> int:
    """Return the number of tasks that should have room at once."""
    seconds = work.work / SECOND + work.unknown * GUESS
    return min(work.tasks, max(work.together, -(-int(seconds) // WORTH), 1))


def _why_not(work: Demand, rooms: Sequence[Room], most: int) -> Unmet:
    if most <= 0:
        return Unmet(work, "`pods` are all in use", False)
    needs = f"{format_cpu(work.cpu)} CPU, {format_bytes(work.memory + PILOT_MEMORY)}, {work.gpus} GPU"
    whole = [_Place(room.size, room.offered, room.for_devices) for room in rooms]
    if not whole:
        return Unmet(work, "no node may get a Pod now", True)
    if all(one.for_devices for one in whole) and not work.gpus:
        return Unmet(work, "the taints of all nodes keep off Pods that request no GPU", True)
    if not any(one.admits(work) for one in whole):
        return Unmet(work, f"no node that Poise may use is what it asks for: {work.shape.describe()}", True)
    if not any(one.slots(work) for one in whole):
        return Unmet(work, f"no node that Poise may use is large enough: {needs}", True)
    if sum(tasks for _, tasks in _spread(work, whole)) < work.together:
        return Unmet(work, f"{work.together} tasks start together, and all nodes have too little room for them", True)
    return Unmet(work, f"others hold the room: {needs} for each of {max(1, work.together)}", False)
