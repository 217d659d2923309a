"""Fragmentation of the devices' free compute: how much of it is useless to typical work.

After Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023, section 3. For a task m, all free compute of a node that cannot take m is a fragment; on a node that
can, the free compute of devices that are too full for their part of m is one. The fragments of a node are the mean over
the typical work, weighted by the popularity of each shape; a task goes where they grow least.

Typical work is the running and waiting work of the view. The paper takes it from a past trace and considers CPU and
devices; here a node can also lack memory or device memory.
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
"""Part of all work that the typical shapes cover, the most popular first; as in the paper's experiments."""

MOST_TYPICAL = 128
"""Maximum number of typical shapes: each is checked against every scored node."""


ENTRIES = 2**18
"""Maximum number of nodes times typical shapes computed at once, to limit memory."""

Account = Callable[[Ints, Floats, Ints], Floats]
"""(M, L): thousandths of devices that are useful to a typical task that fits. Inputs: the free part of devices that
could take its part, how many such tasks CPU and memory have room for, and what one of them takes (M, 1).
"""


def all_of_it(free: Ints, tasks: Floats, one: Ints) -> Floats:
    """Return all that is free there, as in the paper: others may share what the task leaves."""
    return free.astype(np.float64)


def as_foreseen(free: Ints, tasks: Floats, one: Ints) -> Floats:
    """Return the mean of three cases: one task, which is sure to find room; as many as CPU and memory have room for, if
    similar tasks follow; and all of it, if the following tasks need little CPU and memory.
    """
    return np.asarray((one + np.minimum(free, tasks * one) + free) / 3)


class Part(NamedTuple):
    """What a task takes of each of its devices: thousandths of compute, bytes, and the suitable device models."""

    share: int
    memory: int
    models: tuple[bool, ...]


class Typical:
    """The typical work, one column per shape: `weights` (M,) that add up to 1; `cpu`, `memory` and `gpus` (M,) of a
    task; and `part` (M,) of its devices, an index into `parts`.
    """

    __slots__ = ("cpu", "gpus", "memory", "part", "parts", "weights")

    def __init__(self, fleet: Fleet, counts: Iterable[tuple[Shape, float]]) -> None:
        """Take `counts` in any order, not all zero."""
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
    """Return the typical work of a view, running and waiting; None if there is none."""
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
    """Return (L,): the thousandths of the devices of each of L nodes that are fragments. `rows` (L,) names the nodes,
    possibly repeated; `cpu`, `memory` (L,), `share` and `device_memory` (L, D) are the free amounts.
    """
    lost: Floats = np.maximum(share, 0).sum(axis=1).astype(np.float64)  # a closed device has nothing to lose
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
    """Return (M, L): the thousandths of each node's devices that are useful to each typical shape."""
    share, memory_left = share.T.copy(), device_memory.T  # by device, so that sums run over long rows
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
    """Return (M, L): how many tasks a resource has room for; kept room can make the free amount negative."""
    plenty = np.where(free >= 0, np.inf, 0.0) + np.zeros((len(need), 1))
    return np.divide(free, need[:, None], out=plenty, where=need[:, None] > 0)


def _popular(counts: Iterable[tuple[Shape, float]]) -> list[tuple[Shape, float]]:
    """Return the most popular shapes that cover `POPULAR` of all."""
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
