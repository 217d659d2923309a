"""How much of the devices' free compute is in fragments: of no use to the work that is typical here.

After Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023, section 3: for a task m, all free compute of a node that could not take m is a fragment, and of one
that could, that of the devices which are too full for their part of m. The fragments of a node are the mean over the
typical work, weighted by how popular each shape is; a task goes where they grow least.

What is typical is what runs and what waits, as the view has it. The paper takes it from a trace of the past and looks
at CPU and devices; here memory and the memory of devices can be what a node lacks, too.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from poise.model.fleet import Bools, Fleet, Floats, Ints
from poise.model.resources import WHOLE, Shape
from poise.model.views import Snapshot
from poise.policy.feasible import ability

POPULAR = 0.95
"""Part of all work that the typical shapes make up, the most popular first; as in the paper's experiments."""

MOST_TYPICAL = 128
"""Typical shapes at most: each costs a look at every node that is scored."""


ENTRIES = 2**18
"""Nodes times typical shapes that are looked at together, so that what is worked out on the way stays small."""

Account = Callable[[Ints, Floats, Ints], Floats]
"""(M, L): thousandths of devices that are of use to a typical task that fits, of those that are free on the devices
that could take its part, by how many such tasks CPU and memory leave room for, and by what one of them takes (M, 1).
"""


def all_of_it(free: Ints, tasks: Floats, one: Ints) -> Floats:
    """Whatever is free there, as in the paper: others may share what the task leaves."""
    return free.astype(np.float64)


def as_foreseen(free: Ints, tasks: Floats, one: Ints) -> Floats:
    """The mean of three: one task, which is sure to find room; as many as CPU and memory leave room for, if more like
    it come; and all of it, if what comes asks for little of these.
    """
    return np.asarray((one + np.minimum(free, tasks * one) + free) / 3)


class Part(NamedTuple):
    """What a task takes of each of its devices: thousandths of compute, bytes, and which models of device will do."""

    share: int
    memory: int
    models: tuple[bool, ...]


class Typical:
    """The work that is typical, one column a shape: `weights` (M,) that add up to 1, `cpu`, `memory` and `gpus` (M,) of
    a task, and `part` (M,) of its devices, a number into `parts`.
    """

    __slots__ = ("cpu", "gpus", "memory", "part", "parts", "weights")

    def __init__(self, fleet: Fleet, counts: Iterable[tuple[Shape, float]]) -> None:
        """`counts` in any order, and not all zero."""
        chosen = _popular(counts)
        weights = np.array([count for _, count in chosen], np.float64)
        self.weights: Floats = weights / weights.sum()
        self.cpu: Ints = np.array([shape.cpu for shape, _ in chosen], np.int64)
        self.memory: Ints = np.array([shape.memory for shape, _ in chosen], np.int64)
        self.gpus: Ints = np.array([shape.gpus for shape, _ in chosen], np.int64)
        parts: dict[Part, int] = {}
        self.part: Ints = np.array(
            [parts.setdefault(_part_of(fleet, shape), len(parts)) for shape, _ in chosen], np.int64
        )
        self.parts = tuple(parts)


def typical(view: Snapshot) -> Typical | None:
    """What runs and what waits; None where there is nothing of either."""
    counts: Counter[Shape] = Counter(dict(view.running))
    shown: set[str] = set()
    for candidate in view.candidates:
        if candidate.queue not in shown:  # a queue is of one shape
            shown.add(candidate.queue)
            counts[candidate.shape] += candidate.tasks * view.backlog.get(candidate.queue, 1)
    return Typical(view.fleet, counts.items()) if counts else None


def fragments(
    fleet: Fleet,
    rows: Ints,
    cpu: Ints,
    memory: Ints,
    share: Ints,
    device_memory: Ints,
    typical: Typical,
    account: Account = all_of_it,
) -> Floats:
    """(L,): thousandths of the devices of each of L nodes that are fragments. `rows` (L,) says which nodes they are,
    which may come more than once; `cpu`, `memory` (L,), `share` and `device_memory` (L, D) what is free.
    """
    lost: Floats = np.maximum(share, 0).sum(axis=1).astype(np.float64)  # of a closed device there is nothing to lose
    at_once = max(1, ENTRIES // len(typical.weights))
    for start in range(0, len(rows), at_once):
        some = slice(start, start + at_once)
        useful = _of_use(fleet, rows[some], cpu[some], memory[some], share[some], device_memory[some], typical, account)
        lost[some] = np.subtract.reduce(np.vstack((lost[some], typical.weights[:, None] * useful)))
    return lost


def _of_use(
    fleet: Fleet,
    rows: Ints,
    cpu: Ints,
    memory: Ints,
    share: Ints,
    device_memory: Ints,
    typical: Typical,
    account: Account,
) -> Floats:
    """(M, L): thousandths of the devices of each node that are of use to each typical shape."""
    share, memory_left = share.T.copy(), device_memory.T  # device by device, so that sums over these are of long rows
    models, spare = fleet.device_model[rows].T, fleet.device_spare[rows].T
    parts = typical.parts
    least = np.array([part.share for part in parts], np.int64)[:, None, None]
    can: Bools = share >= np.where(least == WHOLE, WHOLE, least + spare)  # (parts, D, L)
    can &= np.take(np.array([part.models for part in parts]), models, axis=1)
    if any(part.memory for part in parts):
        can &= memory_left >= np.array([part.memory for part in parts], np.int64)[:, None, None]
    hosts, free = can.sum(axis=1), (can * np.maximum(share, 0)).sum(axis=1)
    tasks = np.minimum(_over(cpu, typical.cpu), _over(memory, typical.memory))
    gpus = typical.gpus[:, None]
    fits = (gpus > 0) & (hosts[typical.part] >= gpus) & (tasks >= 1)
    return np.where(fits, account(free[typical.part], tasks, gpus * least[typical.part, 0]), 0)


def _over(free: Ints, need: Ints) -> Floats:
    """(M, L): how often a task finds what it needs of something; what is kept for others is less than nothing."""
    plenty = np.where(free >= 0, np.inf, 0.0) + np.zeros((len(need), 1))
    return np.divide(free, need[:, None], out=plenty, where=need[:, None] > 0)


def _popular(counts: Iterable[tuple[Shape, float]]) -> list[tuple[Shape, float]]:
    """The most popular shapes, that make up `POPULAR` of all."""
    ordered = sorted(counts, key=lambda one: (-one[1], one[0].key()))
    enough, chosen = POPULAR * sum(count for _, count in ordered), []
    for shape, count in ordered[:MOST_TYPICAL]:
        if enough <= 0:
            break
        chosen.append((shape, count))
        enough -= count
    return chosen


def _part_of(fleet: Fleet, shape: Shape) -> Part:
    return Part(shape.share, shape.gpu_memory, tuple(ability(fleet, shape).models))
