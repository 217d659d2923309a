"""Decide which allocations to request from Slurm: partition, number of nodes, share of each node, and duration.

`wanted` takes the waiting work and returns the allocations that are missing beside the existing ones. The number of
nodes follows from the expected run times: each node must get at least `WORTH` seconds of work, or `WORTH_IDLE` if it is
idle, so that a campaign of brief tasks does not request hundreds of nodes; and there are no more nodes than tasks can
use at once. The duration follows from the same work and from the longest task, so that nearly all tasks end before the
allocation does. Short allocations of one node start soonest, so only gangs get several nodes at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from poise.model.reports.demand import Demand
from poise.model.resources import ANYWHERE, SUBSTRATE, Node, Where
from poise.units import SECOND
from poise_slurm.commands import Kind
from poise_slurm.settings import Settings

WORTH, WORTH_IDLE = 300, 10
"""Minimum work in seconds that makes another node worth its start; and for an idle node, which starts at once and
delays nobody.
"""

GUESS = 900
"""Assumed run time, in seconds, of a task with an unknown run time."""

LEAST, STEP = 600, 300
"""Seconds of the shortest allocation, and step of longer ones: equal requests are easier on the scheduler."""

SPARE = 1.25
"""Duration of an allocation relative to its expected work: run times are estimates."""

MIB = 2**20

PILOT_MEMORY = 256
"""MiB of each node that are reserved for the pilot and its agent."""

UNCOUNTED = 64
"""A site with less memory per node than this many MiB, as by default, does not count memory."""


ANY_NODE = Node(name="", incarnation="", cpu=0, memory=0, labels={SUBSTRATE: "slurm"})
"""The known properties of a node before Slurm has chosen it."""


class Shape(NamedTuple):
    """An allocation to request: `nodes` nodes at once, the CPUs, MiB of memory and GPUs of each, and the duration in
    minutes.
    """

    partition: str
    nodes: int
    cpus: int
    memory: int
    gpus: int
    minutes: int


class Standing(NamedTuple):
    """An existing allocation: `left` seconds, or its full duration before it starts. It is `busy` for this many seconds
    before any of its work is expected to end.
    """

    shape: Shape
    left: int
    busy: int = 0


class Refused(NamedTuple):
    """Work for which no partition has an allocation, and the reason."""

    demand: Demand
    why: str


def wanted(
    demand: Sequence[Demand], kinds: Sequence[Kind], standing: Sequence[Standing], settings: Settings
) -> tuple[list[Shape], list[Refused]]:
    """Return the missing allocations, and the work that can have none."""
    room = settings.nodes - sum(one.shape.nodes for one in standing)
    left = list(standing)
    asked: list[Shape] = []
    refused: list[Refused] = []
    placed: dict[tuple[Kind, int, int, int, int], Demand] = {}  # equal requests of all classes
    for work in demand:
        kind = kind_for(work, kinds, settings)
        if isinstance(kind, str):
            refused.append(Refused(work, kind))
            continue
        key = kind, -work.together, -work.gpus, -work.cpu, -work.memory
        placed[key] = _together(placed[key], work) if key in placed else work
    for (kind, *_), work in sorted(placed.items(), key=lambda item: item[0][1:]):
        for shape in _shapes(work, kind, settings):
            there = next((one for one in left if _serves(one, shape, work, settings)), None)
            if there is not None:
                left.remove(there)
            elif shape.nodes <= room:
                room -= shape.nodes
                asked.append(shape)
    return asked, refused


def kind_for(work: Demand, kinds: Sequence[Kind], settings: Settings) -> Kind | str:
    """Return the nodes to request: partitions with idle nodes first, then those with short jobs, since these start
    soonest. If there are none, return the reason as text.
    """
    if not may_run(work):
        return f"it asks for {work.where}, and Slurm chooses the nodes"
    allowed = [kind for kind in kinds if not settings.partitions or kind.partition in settings.partitions]
    if not allowed:
        return "no partition is open"
    large = [kind for kind in allowed if slots_of(work, kind) and kind.nodes * slots_of(work, kind) >= work.together]
    if not large:
        return f"no partition has such nodes: {work.cpu / 1000:g} CPU, {work.memory // MIB} MiB, {work.gpus} GPU"
    if all(-(-work.together // slots_of(work, kind)) > settings.nodes for kind in large):
        return f"{work.together} tasks start together, and `nodes={settings.nodes}` is too few for them"
    enough = [kind for kind in large if _limit(kind, settings) >= needed(work, settings)]
    if not enough:
        most = max(_limit(kind, settings) for kind in large)
        runs = f"{_longest(work)} s before {settings.drain} s to drain"
        return f"it may run for {runs}, and allocations last {most} s at most"
    return min(enough, key=lambda kind: (not kind.idle, kind.limit, kind.cpus, kind.partition))


def may_run(work: Demand) -> bool:
    """Return whether the work requires nothing of its node that Poise cannot ask Slurm for."""
    return not work.where or _only_asks_for_slurm(work.shape.where)


def slots_of(work: Demand, kind: Kind) -> int:
    """Return how many tasks a whole node of this kind runs at once."""
    bounds = [kind.cpus * 1000 // work.cpu if work.cpu else kind.cpus]
    if work.memory:
        bounds.append((kind.memory - PILOT_MEMORY) * MIB // work.memory)
    if work.gpus:
        bounds.append(kind.gpus // work.gpus)
    return max(0, min(bounds))


def slots_in(work: Demand, shape: Shape) -> int:
    """Return how many tasks an allocation runs at once; 0 if that is too few for its gang."""
    bounds = [shape.cpus * 1000 // work.cpu if work.cpu else shape.cpus]
    if work.memory and shape.memory:
        bounds.append((shape.memory - PILOT_MEMORY) * MIB // work.memory)
    if work.gpus:
        bounds.append(shape.gpus // work.gpus)
    slots = shape.nodes * max(0, min(bounds))
    return slots if slots >= work.together else 0


def needed(work: Demand, settings: Settings) -> int:
    """Return the seconds that an allocation must have left to be useful for this work."""
    return _longest(work) + settings.drain


def _longest(work: Demand) -> int:
    return max(-(-work.longest // SECOND), GUESS if work.unknown else 0)


def _together(one: Demand, other: Demand) -> Demand:
    """Merge two demands with the same request."""
    return msgspec.structs.replace(
        one,
        tasks=one.tasks + other.tasks,
        work=one.work + other.work,
        longest=max(one.longest, other.longest),
        unknown=one.unknown + other.unknown,
    )


def _only_asks_for_slurm(where: Where) -> bool:
    """Return whether all requirements are met by any node of this substrate."""
    others = [one for one in (*where.labels, *where.without_labels) if one[0] != SUBSTRATE]
    only_labels = msgspec.structs.replace(where, labels=(), without_labels=()) == ANYWHERE
    return only_labels and not others and where.admits(ANY_NODE)


def _limit(kind: Kind, settings: Settings) -> int:
    return min(kind.limit, settings.time)


def _shapes(work: Demand, kind: Kind, settings: Settings) -> list[Shape]:
    """Return all allocations that this work should have, regardless of existing ones."""
    slots = slots_of(work, kind)
    seconds = work.work / SECOND + work.unknown * GUESS
    together = -(-work.together // slots)
    useful = -(-work.tasks // slots)
    worth = max(_nodes_for(seconds, slots, WORTH), min(kind.idle, _nodes_for(seconds, slots, WORTH_IDLE)))
    nodes = max(together, min(useful, settings.nodes, worth, kind.nodes))
    busy = min(slots, -(-work.tasks // nodes))  # tasks on a node at once
    lasts = needed(work, settings) + SPARE * max(0.0, seconds / (nodes * busy) - _longest(work))
    lasts = min(_limit(kind, settings), max(LEAST, -(-int(lasts) // STEP) * STEP))
    cpus = min(kind.cpus, max(1, -(-work.cpu * busy // 1000)))
    memory = 0
    if kind.memory > UNCOUNTED:
        asked = -(-work.memory * busy // MIB) + PILOT_MEMORY
        memory = min(kind.memory, max(asked, kind.memory * cpus // kind.cpus))
    shape = Shape(kind.partition, together, cpus, memory, work.gpus * busy, int(lasts) // 60)
    return [shape] * max(1, nodes // together)


def _nodes_for(seconds: float, slots: int, worth: int) -> int:
    """Return the number of nodes at which each gets `worth` seconds of work."""
    return -(-int(seconds) // (slots * worth))


def _serves(one: Standing, shape: Shape, work: Demand, settings: Settings) -> bool:
    """Whether an existing allocation replaces this one; one that is busy for long does not."""
    memory = not work.memory or (one.shape.memory - PILOT_MEMORY) * MIB >= work.memory
    large = memory and one.shape.cpus >= shape.cpus and one.shape.gpus >= shape.gpus
    soon = one.busy <= WORTH and one.left - one.busy >= needed(work, settings)
    return large and soon and one.shape.nodes >= shape.nodes
