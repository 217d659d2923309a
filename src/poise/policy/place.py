"""Trying placements on a copy of the fleet's room: place, undo, and score what is left."""

from typing import NamedTuple

from poise.model.decisions import Reason, Spot
from poise.model.resources import Device, Shape
from poise.model.views import Candidate, NodeView, PoolView
from poise.policy.feasible import fitting, refusals
from poise.units import MILLISECOND

LOOKAHEAD = 200 * MILLISECOND
"""Foreseen work that may wait on a node behind a running task of the same shape: one round of deciding."""

MAX_BEHIND = 64
"""Attempts waiting per slot at most, however short they are."""


class Room(NamedTuple):
    """What is free on one node."""

    node: NodeView
    cpu: int
    memory: int
    devices: tuple[Device, ...]


class Draft:
    """A statement of hypothetical placements on an immutable snapshot's nodes."""

    def __init__(self, nodes: tuple[NodeView, ...]) -> None:
        self.nodes = nodes
        self._views = {node.name: node for node in nodes}
        self._behind: dict[tuple[str, str], int] = {}

    def view(self, name: str) -> NodeView:
        """The node with what has been placed on it in this draft."""
        return self._views[name]

    def views(self) -> list[NodeView]:
        return [self._views[node.name] for node in self.nodes]

    def refusals(self, shape: Shape) -> dict[str, list[Reason]]:
        """For each node the reasons against one task of this shape; empty where it fits."""
        return {node.name: refusals(node, shape) for node in self._views.values()}

    def place(self, name: str, shape: Shape) -> Spot:
        """Take room for one task; the caller has seen that it fits. The smallest fitting devices are taken."""
        node = self._views[name]
        by_size = sorted(fitting(node.free_devices, shape), key=lambda device: (device.memory, device.index))
        taken = tuple(sorted(device.index for device in by_size[: shape.gpus]))
        pools = node.pools
        if not shape.gpus:
            pool = pools.get(shape.key(), PoolView(0, 0))
            pools = {**pools, shape.key(): PoolView(pool.slots + 1, pool.attempts + 1)}
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

    def savepoint(self) -> dict[str, NodeView]:
        return dict(self._views)

    def undo(self, savepoint: dict[str, NodeView]) -> None:
        """Forget every placement since the savepoint."""
        self._views = savepoint

    def place_behind(self, candidate: Candidate, run: int) -> Spot | None:
        """A place behind tasks of the same shape, where foreseen work is short enough that waiting there costs little.

        `run` is the learned run time in nanoseconds; 0 (nothing learned) is never queued behind.
        """
        if not run or candidate.tasks > 1 or candidate.shape.gpus or run > LOOKAHEAD:
            return None
        key = candidate.shape.key()
        depth = min(MAX_BEHIND, LOOKAHEAD // run)
        best, best_load = None, float(depth)
        for node in self._views.values():
            pool = node.pools.get(key)
            if not node.open or pool is None or not pool.slots:
                continue
            behind = pool.attempts - pool.slots + self._behind.get((node.name, key), 0)
            if behind / pool.slots < best_load:
                best, best_load = node.name, behind / pool.slots
        if best is None:
            return None
        self._behind[best, key] = self._behind.get((best, key), 0) + 1
        return Spot(best)


def tightness(node: NodeView, shape: Shape) -> float:
    """Score in [0, 1], higher is better: how little is left over, so that large work still finds room (best fit).

    Half for CPU, three tenths for memory, two tenths for leaving accelerators to those that ask for them.
    """
    cpu = 1 - (node.free_cpu - shape.cpu) / node.cpu if node.cpu else 1.0
    memory = 1 - (node.free_memory - shape.memory) / node.memory if node.memory else 1.0
    idle_devices = len(node.free_devices) - shape.gpus
    devices = 1 - idle_devices / len(node.devices) if node.devices else 1.0
    return round(0.5 * cpu + 0.3 * memory + 0.2 * devices, 4)
