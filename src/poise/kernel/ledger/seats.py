"""The place of an attempt on a node."""

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.nodes import Nodes
from poise.kernel.ledger.quotas import Quotas
from poise.kernel.ledger.room import Room
from poise.kernel.ledger.shares import Shares
from poise.kernel.ledger.units import UnitState
from poise.model.decisions import Spot


class Seats(Room):
    """Keeps `Nodes`, `Quotas`, `Shares` and `Active` consistent: only this room takes and releases resources."""

    def __init__(self, active: Active, nodes: Nodes, quotas: Quotas, shares: Shares, changes: Changes) -> None:
        self._active, self._nodes, self._quotas, self._shares = active, nodes, quotas, shares
        self._changes = changes

    def take(self, unit: UnitState, index: int, spot: Spot, *, queued: bool = False) -> None:
        """Take the resources for the next attempt of a task."""
        task, shape = unit.tasks[index], unit.shape
        task.status, task.node, task.devices, task.cpus = "queued", spot.node, spot.devices, ()
        task.pid = task.started = task.ended = task.straggles = task.epoch = 0
        task.ending = None
        self._active.seat(unit, index, spot.node, shape)
        self._quotas.count(unit, shape, 1)
        self._shares.count(unit, index, begins=True)
        self._nodes.take(spot.node, unit, shape, spot.devices, queued=queued)
        self._changes.residents.pop(unit.id, None)
        self._changes.rows.add(spot.node)

    def give_back(self, unit: UnitState, index: int) -> None:
        """Release the resources of an attempt."""
        task, shape = unit.tasks[index], unit.shape
        self._active.unseat(unit, index, task.node, shape)
        self._quotas.count(unit, shape, -1)
        self._shares.count(unit, index, begins=False)
        self._nodes.give_back(task.node, unit, shape, task.devices)
        self._changes.residents.pop(unit.id, None)
        self._changes.rows.add(task.node)
