"""Trying placements on a copy of the fleet's room: place, undo, and score what is left."""

from typing import NamedTuple

import msgspec

from poise.model.decisions import Reason, Spot
from poise.model.profiles import BRIEF
from poise.model.resources import Shape
from poise.model.views import Candidate, NodeView, PoolView
from poise.policy.feasible import fitting, never, refusals

LOOKAHEAD = BRIEF
"""Foreseen work in nanoseconds that may wait on a node behind running tasks of the same shape."""

MAX_BEHIND = 64
"""Attempts waiting per slot at most, however short they are."""


class Savepoint(NamedTuple):
    """What a draft held at one moment."""

    views: dict[str, NodeView]
    kept: dict[str, str]


class Draft:
    """A statement of hypothetical placements on an immutable snapshot's nodes."""

    def __init__(self, nodes: tuple[NodeView, ...]) -> None:
        self.nodes = nodes
        self._views = {node.name: node for node in nodes}
        self._kept: dict[str, str] = {}
        self._behind: dict[tuple[str, str], int] = {}

    def view(self, name: str) -> NodeView:
        """The node with what has been placed on it in this draft."""
        return self._views[name]

    def refusals(self, shape: Shape) -> dict[str, list[Reason]]:
        """For each node the reasons against one task of this shape; empty where it fits."""
        return {name: self.refusals_of(name, shape) for name in self._views}

    def refusals_of(self, name: str, shape: Shape) -> list[Reason]:
        """The reasons of one node; where room is kept that the shape would take, for whom."""
        node = self._views[name]
        reasons = refusals(node, shape)
        if reasons and name in self._kept and node.open and not never(node, shape):
            return [Reason(code="RESERVED", subject=name, need=self._kept[name], wakes="placed")]
        return reasons

    def keep_room(self, unit: str, shape: Shape) -> None:
        """Keep room for one task on the open node that lacks least for it, so that what ends there is not given away.

        Nothing else is placed there in this draft but what fits beside it. The caller knows that some open node could
        hold it, were it empty.
        """
        able = [node for node in self._views.values() if node.open and not never(node, shape)]
        node = min(able, key=lambda node: lacking(node, shape))
        devices = fitting(node.free_devices, shape)[: shape.gpus]
        self._views[node.name] = msgspec.structs.replace(
            node,
            free_cpu=node.free_cpu - shape.cpu,
            free_memory=node.free_memory - shape.memory,
            free_devices=tuple(device for device in node.free_devices if device not in devices),
        )
        self._kept.setdefault(node.name, unit)

    def place(self, name: str, shape: Shape, *, brief: bool = False) -> Spot:
        """Take room for one task; the caller has seen that it fits. The smallest fitting devices are taken.

        Others may be queued behind it in this draft if it is `brief`.
        """
        node = self._views[name]
        by_size = sorted(fitting(node.free_devices, shape), key=lambda device: (device.memory, device.index))
        taken = tuple(sorted(device.index for device in by_size[: shape.gpus]))
        pools = node.pools
        if not shape.gpus:
            pool = pools.get(shape.key(), PoolView(0, 0))
            added = PoolView(pool.slots + 1, pool.attempts + 1, pool.long + (not brief))
            pools = {**pools, shape.key(): added}
        self._views[name] = NodeView(
            name=node.name,
            open=node.open,
            why_closed=node.why_closed,
            cpu=node.cpu,
            memory=node.memory,
            free_cpu=node.free_cpu - shape.cpu,
            free_memory=node.free_memory - shape.memory,
            devices=node.devices,
            free_devices=tuple(device for device in node.free_devices if device.index not in taken),
            pools=pools,
        )
        return Spot(name, taken)

    def savepoint(self) -> Savepoint:
        return Savepoint(dict(self._views), dict(self._kept))

    def undo(self, savepoint: Savepoint) -> None:
        """Forget every placement since the savepoint, and all room kept since."""
        self._views, self._kept = savepoint

    def place_behind(self, candidate: Candidate, run: int) -> Spot | None:
        """A place behind brief tasks of the same shape, where so little work is foreseen that waiting costs little.

        `run` is the learned run time in nanoseconds; 0 (nothing learned) is never queued behind.
        """
        if not run or candidate.tasks > 1 or candidate.shape.gpus or candidate.recalled or run > LOOKAHEAD:
            return None
        key = candidate.shape.key()
        depth = min(MAX_BEHIND, LOOKAHEAD // run)
        best, best_load = None, float(depth)
        for node in self._views.values():
            pool = node.pools.get(key)
            if not node.open or pool is None or pool.slots <= pool.long or node.name in self._kept:
                continue
            brief = pool.slots - pool.long
            behind = pool.attempts - pool.slots + self._behind.get((node.name, key), 0)
            if behind / brief < best_load:
                best, best_load = node.name, behind / brief
        if best is None:
            return None
        self._behind[best, key] = self._behind.get((best, key), 0) + 1
        return Spot(best)


def lacking(node: NodeView, shape: Shape) -> float:
    """How much room one task of this shape lacks on a node now: the sum over resources of the missing share of its
    need.
    """
    lacks = 0.0
    for free, need in (
        (node.free_cpu, shape.cpu),
        (node.free_memory, shape.memory),
        (len(fitting(node.free_devices, shape)), shape.gpus),
    ):
        lacks += max(0.0, 1 - free / need) if need else 0.0
    return lacks


def tightness(node: NodeView, shape: Shape) -> float:
    """Score in [0, 1], higher is better: how little is left over, so that large work still finds room (best fit).

    Half for CPU, three tenths for memory, two tenths for leaving accelerators to those that ask for them.
    """
    cpu = 1 - (node.free_cpu - shape.cpu) / node.cpu if node.cpu else 1.0
    memory = 1 - (node.free_memory - shape.memory) / node.memory if node.memory else 1.0
    idle_devices = len(node.free_devices) - shape.gpus
    devices = 1 - idle_devices / len(node.devices) if node.devices else 1.0
    return round(0.5 * cpu + 0.3 * memory + 0.2 * devices, 4)
