"""The fleet as columns of numbers, updated in place."""

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.cordons import Cordons
from poise.kernel.ledger.leader import Leader
from poise.kernel.ledger.nodes import Nodes
from poise.kernel.ledger.places import NodeState, device_key
from poise.kernel.ledger.reservations import Reservations
from poise.kernel.ledger.room import Room
from poise.kernel.ledger.shown import Shown
from poise.model.fleet import CLASSES, CONDITIONS, CORDONED, CPU, DEVICES, HOT, MEMORY, NETWORK, Fleet, PoolView
from poise.model.resources import PLENTY, WHOLE


class Columns(Room):
    """Columns of all nodes. A read refreshes the rows of the nodes that have changed since the last read."""

    def __init__(
        self,
        active: Active,
        nodes: Nodes,
        cordons: Cordons,
        reservations: Reservations,
        leader: Leader,
        shown: Shown,
        changes: Changes,
    ) -> None:
        self._active, self._nodes, self._cordons, self._leader = active, nodes, cordons, leader
        self._reservations = reservations
        self._shown, self._changes = shown, changes
        self._fleet: Fleet | None = None
        self.grows = False  # as `Fleet.grows`; a setting of the control plane
        self._shared: set[str] = set()  # nodes that had shared devices at the last refresh
        self._open = [0, 0, 0, 0]  # totals of the open nodes: CPU, devices, free CPU, free devices
        self._opened: dict[str, tuple[int, int, int, int]] = {}  # the same for each node

    def fork_of(self, other: "Columns") -> None:
        """Start with the columns of another ledger in the same state."""
        self._fleet, self._shared, self.grows = other.fleet().copy(), other._shared.copy(), other.grows
        self._open, self._opened = other._open.copy(), other._opened.copy()
        self._changes.candidates = other._changes.candidates.copy()

    def fleet(self) -> Fleet:
        """Return the current fleet. It belongs to the ledger: read it at once, or copy it."""
        fleet = self.room()
        moved = self._changes.moved
        for name in sorted(moved):
            self._refresh_residents(fleet, fleet.rows[name], self._nodes[name])
        moved.clear()
        return fleet

    def room(self) -> Fleet:
        """Return the fleet with current free resources; its residents may be out of date. Cheaper than `fleet`."""
        if self._fleet is None or self._changes.fleet:
            self._fleet = self._made_anew(self._fleet if self._fleet is not None else Fleet())
        self._fleet.grows = self.grows
        for name in sorted(self._changes.rows):
            self._refresh(self._fleet, self._fleet.rows[name], self._nodes[name])
        self._changes.moved |= self._changes.rows
        self._changes.rows.clear()
        return self._fleet

    def _made_anew(self, before: Fleet) -> Fleet:
        """Return new columns, after nodes have joined, changed or left."""
        seen = (self._cordons.seen(state.node) for state in self._nodes.values())
        fleet = Fleet([self._reservations.marked(node) for node in seen])
        self._changes.rows.update(fleet.take_over(before))
        self._changes.fleet = False
        self._changes.moved &= self._nodes.keys()
        for name in sorted(self._opened.keys() - self._nodes.keys()):
            self._count_open(name, (0, 0, 0, 0))
            del self._opened[name]
        return fleet

    def use(self) -> int:
        """Return the used share of the open nodes' CPUs or of their devices, whichever is larger, in thousandths."""
        self.room()
        cpu, devices, free_cpu, free_devices = self._open
        shares = ((free_cpu, cpu), (free_devices, devices))
        return max([int(1000 - 1000 * left / of) for left, of in shares if of], default=0)

    def _refresh(self, fleet: Fleet, row: int, state: NodeState) -> None:
        """Write the free resources of one node into its row."""
        node = state.node
        network = (node.network or PLENTY) - state.used_network
        if state.shares or self._cordons or node.name in self._shared:
            share, memory = self._parts(state)
            fleet.device_memory[row, : len(memory)] = memory
            (self._shared.add if state.shares else self._shared.discard)(node.name)
        else:
            taken = state.devices
            share = [
                CORDONED if device.withdrawn else 0 if device_key(device.index) in taken else WHOLE
                for device in node.devices
            ]
        fleet.device_share[row, : len(share)] = share
        cpu, free, columns = node.cpu - state.used_cpu, share.count(WHOLE), fleet.free
        columns[CPU, row], columns[MEMORY, row], columns[DEVICES, row] = cpu, node.memory - state.used_memory, free
        columns[NETWORK, row] = network
        closed = fleet.closed[row] = CONDITIONS.index(state.condition)
        self._count_open(node.name, (0, 0, 0, 0) if closed else (node.cpu, len(node.devices), max(0, cpu), free))
        fleet.levels[row] = HOT if state.hot else state.level
        fleet.failures[row] = state.failures / 1000

    def _parts(self, state: NodeState) -> tuple[list[int], list[int]]:
        """Return the free compute (thousandths) and free memory (bytes) of each device."""
        share, memory = [], []
        for device in state.node.devices:
            key = device_key(device.index)
            shares = state.shares.get(key, ())
            taken = sum([of.share for of in shares]) if shares else WHOLE if key in state.devices else 0
            share.append(CORDONED if self._cordons.closes(state.node.name, device) else WHOLE - taken)
            memory.append(device.memory - (sum([of.memory for of in shares]) if shares else 0))
        return share, memory

    def _count_open(self, name: str, amounts: tuple[int, int, int, int]) -> None:
        """Update the totals of the open nodes by one node's amounts."""
        of, before = self._open, self._opened.get(name, (0, 0, 0, 0))
        self._opened[name] = amounts
        for place in range(4):
            of[place] += amounts[place] - before[place]

    def _refresh_residents(self, fleet: Fleet, row: int, state: NodeState) -> None:
        """Write the residents of one node into its row. Unchanged residents stay the same objects."""
        everything = self._leader.fixed
        residents = []
        yielding = [[0] * 4 for _ in range(CLASSES)]
        for unit, index in self._active.on(state.node.name):
            if (unit.brief and not everything) or unit.queued:
                continue
            resident = self._shown.resident_on(unit, index)
            residents.append(resident)
            if resident.preemptible and not resident.stopping:
                shape, held = resident.shape, yielding[resident.priority]
                held[CPU] += shape.cpu
                held[MEMORY] += shape.memory
                held[NETWORK] += shape.network
                held[DEVICES] += shape.gpus
        fleet.yielding[:, :, row] = yielding
        fleet.residents[row] = tuple(residents)
        for key in [key for key, of in fleet.pools.items() if of.pop(row, None) is not None and not of]:
            del fleet.pools[key]
        for key, pool in state.pools.items():
            if pool.slots > pool.long:
                fleet.pools.setdefault(key, {})[row] = PoolView(pool.slots, pool.attempts, pool.long)
