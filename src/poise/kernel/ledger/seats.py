"""The place of an attempt on a node."""

import msgspec

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.budgets import Budgets
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.nodes import Nodes
from poise.kernel.ledger.quotas import Quotas
from poise.kernel.ledger.room import Room
from poise.kernel.ledger.shares import Shares
from poise.kernel.ledger.units import Suspension, UnitState
from poise.model.decisions import Spot


class Seats(Room):
    """Keeps `Nodes`, `Quotas`, `Shares`, `Budgets` and `Active` consistent: only this room takes and releases
    resources, and writes `suspended` of a unit.
    """

    def __init__(
        self, active: Active, nodes: Nodes, quotas: Quotas, shares: Shares, budgets: Budgets, changes: Changes
    ) -> None:
        self._active, self._nodes, self._quotas, self._shares = active, nodes, quotas, shares
        self._budgets, self._changes = budgets, changes

    def take(self, unit: UnitState, index: int, spot: Spot, *, queued: bool = False) -> None:
        """Take the resources for the next attempt of a task."""
        task = unit.tasks[index]
        task.status, task.node, task.devices, task.cpus = "queued", spot.node, spot.devices, ()
        task.pid = task.started = task.ended = task.straggles = task.epoch = 0
        task.ending = None
        self._hold(unit, index, queued=queued)

    def started(self, unit: UnitState, index: int) -> None:
        """Note that an attempt has started: it holds its resources now, even if it was queued."""
        self._budgets.count(unit, index)

    def give_back(self, unit: UnitState, index: int) -> None:
        """Release the resources of an attempt, which is no longer suspended."""
        task, shape = unit.tasks[index], unit.shape
        self._active.unseat(unit, index, task.node, shape)
        self._quotas.count(unit, shape, -1)
        self._shares.count(unit, index, begins=False)
        self._budgets.discount(unit, index)
        self._nodes.give_back(task.node, unit, shape, task.devices)
        self._changes.residents.pop(unit.id, None)
        self._changes.rows.add(task.node)
        unit.suspended = None

    def suspend(self, unit: UnitState, at: int, since: int) -> None:
        """Release the resources of a unit of one task, except its memory."""
        task = unit.tasks[0]
        self.give_back(unit, 0)
        unit.suspended = Suspension(at, since, task.devices)
        task.devices = ()
        self._hold(unit, 0)

    def resume(self, unit: UnitState, suspended: Suspension) -> None:
        """Take the resources of a suspended unit again."""
        self.give_back(unit, 0)
        unit.tasks[0].devices = suspended.devices
        self._hold(unit, 0)

    def grow(self, unit: UnitState, memory: int) -> None:
        """Give the attempts of a unit this much memory each, more or less than they have."""
        active = [index for index, task in enumerate(unit.tasks) if task.active]
        for index in active:
            self.give_back(unit, index)
        shape = msgspec.structs.replace(unit.spec.shape, memory=memory)
        unit.spec = msgspec.structs.replace(unit.spec, shape=shape)
        for index in active:
            self._hold(unit, index)

    def _hold(self, unit: UnitState, index: int, *, queued: bool = False) -> None:
        task, shape = unit.tasks[index], unit.shape
        self._active.seat(unit, index, task.node, shape)
        self._quotas.count(unit, shape, 1)
        self._shares.count(unit, index, begins=True)
        if not queued:
            self._budgets.count(unit, index)
        self._nodes.take(task.node, unit, shape, task.devices, queued=queued)
        self._changes.residents.pop(unit.id, None)
        self._changes.rows.add(task.node)
