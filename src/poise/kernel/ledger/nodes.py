"""Nodes, and the resources that attempts hold on each."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.places import NodeState, Pool, Share, device_key
from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.room import Handlers, InvariantBroken, Room, hold
from poise.kernel.ledger.state import State
from poise.kernel.ledger.units import UnitState
from poise.model.events import (
    NodeDrained,
    NodeForgotten,
    NodeJoined,
    NodeLevelled,
    NodeLost,
    NodeSuspected,
    NodeTrusted,
    NodeUnfit,
)
from poise.model.jobs import Ending
from poise.model.resources import WHOLE, Shape

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_keys, dict_values

UNSTABLE = 8
"""Each attempt moves a node's failure share by 1/8 of the difference, as TCP smooths round-trip times."""

OF_THE_NODE = ("lost", "killed", "unstartable")
"""Outcomes that count as failures of the node; other failures are those of the command."""


class Nodes(Room, dict[str, NodeState]):
    """Nodes by name, sorted by name. Owns `nodes`. They are sorted when they are iterated, because thousands may join
    in between.
    """

    def __init__(self, state: State, active: Active, queues: Queues, changes: Changes) -> None:
        super().__init__(sorted(state.nodes.items()))
        self._active, self._queues, self._changes, state.nodes = active, queues, changes, self
        self._in_order = True

    # --- as a dict ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[str]:
        self._put_in_order()
        return super().__iter__()

    def keys(self) -> "dict_keys[str, NodeState]":
        self._put_in_order()
        return super().keys()

    def values(self) -> "dict_values[str, NodeState]":
        self._put_in_order()
        return super().values()

    def items(self) -> "dict_items[str, NodeState]":
        self._put_in_order()
        return super().items()

    def _put_in_order(self) -> None:
        if not self._in_order:
            by_name = sorted(super().items())
            self.clear()
            self.update(by_name)
            self._in_order = True

    # --- room --------------------------------------------------------------------------------------------------------

    def take(self, name: str, unit: UnitState, shape: Shape, devices: tuple[int, ...], *, queued: bool) -> None:
        """Take resources for one attempt of a unit, in this shape."""
        node = self[name]
        key = shape.key()
        pool = node.pools.get(key)
        if pool is None:
            pool = node.pools[key] = Pool(shape)
        pool.attempts += 1
        if not unit.brief:
            pool.long += 1
        if not queued:
            pool.slots += 1
            node.used_cpu += shape.cpu
            node.used_memory += shape.memory
            node.used_network += shape.network
            asked = (shape.cpu, shape.memory, shape.network)
            if any(need and over > 0 for need, over in zip(asked, node.excess, strict=True)):
                raise InvariantBroken(f"{name} is over-allocated by {unit.id}: {node.excess}")
        for device in devices:
            key = device_key(device)
            if key in node.devices or (shape.share == WHOLE and key in node.shares):
                held = node.devices.get(key) or node.shares[key][0].holder
                raise InvariantBroken(f"device {device} of {name} is held by {held}")
            if shape.share == WHOLE:
                node.devices[key] = unit.id
            else:
                shares = node.shares.setdefault(key, [])
                shares.append(Share(unit.id, shape.share, shape.gpu_memory))
                offered = next(of for of in node.node.devices if of.index == device)
                if sum(share.share for share in shares) > offered.share_cap or (
                    shape.gpu_memory and sum(share.memory for share in shares) > offered.memory
                ):
                    raise InvariantBroken(f"device {device} of {name} is over-allocated by {unit.id}")

    def give_back(self, name: str, unit: UnitState, shape: Shape, devices: tuple[int, ...]) -> None:
        node = self[name]
        key = shape.key()
        pool = node.pools[key]
        pool.attempts -= 1
        if not unit.brief:
            pool.long -= 1
        if pool.slots > pool.attempts:
            pool.slots -= 1
            node.used_cpu -= shape.cpu
            node.used_memory -= shape.memory
            node.used_network -= shape.network
        if pool.attempts == 0:
            del node.pools[key]
        for device in devices:
            key = device_key(device)
            if shape.share == WHOLE:
                del node.devices[key]
            else:
                node.shares[key].remove(Share(unit.id, shape.share, shape.gpu_memory))
                if not node.shares[key]:
                    del node.shares[key]

    def count_end(self, name: str, ending: Ending) -> None:
        """Update the failure share of the node by the end of an attempt."""
        node = self[name]
        if ending.outcome in OF_THE_NODE:
            node.failures += (1000 - node.failures) // UNSTABLE
        elif node.failures and ending.outcome == "done":
            node.failures -= -(-node.failures // UNSTABLE)

    # --- events ------------------------------------------------------------------------------------------------------

    def handlers(self) -> Handlers:
        return {
            NodeJoined: self._joined,
            NodeLost: self._lost,
            NodeSuspected: self._suspected,
            NodeTrusted: self._trusted,
            NodeUnfit: self._unfit,
            NodeForgotten: self._forgotten,
            NodeDrained: self._drained,
            NodeLevelled: self._levelled,
        }

    def _joined(self, event: NodeJoined) -> None:
        name = event.node.name
        known = self.get(name)
        if known is None:
            self._in_order &= not self or next(reversed(self)) < name
            self[name] = NodeState(node=event.node, joined=event.at, by=event.by)
        else:
            if event.node.has_rebooted(known.node):
                self._queues.end_leases(name)
            known.node, known.status, known.joined, known.lost = event.node, "up", event.at, 0
            known.suspect, known.by = False, event.by or known.by
            for unit, index in self._active.on(name):
                task = unit.tasks[index]
                if task.status == "recovering":
                    task.status = "running" if task.started else "queued"
                    unit.leases.pop(name, None)
                    self._active.index_recovering(unit)
                    if unit.resizes:
                        self._changes.mark(unit)
        self._active.mark_node(name)
        self._changes.fleet = True

    def _lost(self, event: NodeLost) -> None:
        node = self[event.name]
        node.status, node.lost, node.suspect = "lost", event.at, False
        for unit, index in self._active.on(event.name):
            unit.tasks[index].status = "recovering"
            if unit.resizes:
                self._changes.mark(unit)  # it cannot resize while a member is lost
            if event.until and unit.spec.lease == "exclusive":
                unit.leases[event.name] = event.until
            self._active.index_recovering(unit)
        node.failures += (1000 - node.failures) // UNSTABLE
        node.level, node.hot = 0, False
        self._active.mark_node(event.name)

    def _suspected(self, event: NodeSuspected) -> None:
        self[event.name].suspect = True
        self._active.mark_node(event.name)

    def _trusted(self, event: NodeTrusted) -> None:
        self[event.name].suspect = False
        self._active.mark_node(event.name)

    def _unfit(self, event: NodeUnfit) -> None:
        self[event.name].unfit = event.why
        self._active.mark_node(event.name)

    def _forgotten(self, event: NodeForgotten) -> None:
        self._active.forget_node(event.name)
        del self[event.name]
        self._changes.rows.discard(event.name)
        self._changes.fleet = True

    def _drained(self, event: NodeDrained) -> None:
        node = self[event.name]
        node.drained, node.moves, node.drained_for = event.on, event.on and event.moves, event.reservation
        node.drained_by = event.by if event.on else ""
        self._active.mark_node(event.name)

    def _levelled(self, event: NodeLevelled) -> None:
        node = self[event.name]
        node.level, node.hot = event.level, event.hot
        self._changes.rows.add(event.name)

    # --- self-check --------------------------------------------------------------------------------------------------

    def check(self, anew: "Nodes") -> None:
        for name, state in self.items():
            self._check_room(name, state)

    def _check_room(self, name: str, state: NodeState) -> None:
        attempts: dict[str, list[bool]] = {}
        devices: dict[str, str] = {}
        shares: dict[str, list[Share]] = {}
        for unit, index in self._active.on(name):
            attempts.setdefault(unit.shape.key(), []).append(unit.brief)
            for device in unit.tasks[index].devices:
                hold(device_key(device) not in devices, f"device {device} of {name} is held twice")
                if unit.shape.share == WHOLE:
                    devices[device_key(device)] = unit.id
                else:
                    share = Share(unit.id, unit.shape.share, unit.shape.gpu_memory)
                    shares.setdefault(device_key(device), []).append(share)
        counted = {key: (pool.attempts, pool.attempts - pool.long) for key, pool in state.pools.items()}
        hold({key: (len(of), sum(of)) for key, of in attempts.items()} == counted, f"pools of {name} miscount")
        hold(all(0 < pool.slots <= pool.attempts for pool in state.pools.values()), f"a pool of {name} has no slot")
        used = sum(pool.slots * pool.shape.cpu for pool in state.pools.values())
        hold(used == state.used_cpu, f"{name} counts {state.used_cpu} milli-CPU used, pools hold {used}")
        memory = sum(pool.slots * pool.shape.memory for pool in state.pools.values())
        hold(memory == state.used_memory, f"memory of {name} does not add up")
        network = sum(pool.slots * pool.shape.network for pool in state.pools.values())
        hold(network == state.used_network, f"network of {name} does not add up")
        hold(devices == state.devices, f"devices of {name} do not add up")
        held = {key: sorted(of, key=_holder) for key, of in state.shares.items()}
        hold({key: sorted(of, key=_holder) for key, of in shares.items()} == held, f"shares of {name} do not add up")
        hold(not devices.keys() & shares.keys(), f"a device of {name} is held whole and in part")


def _holder(share: Share) -> tuple[str, int, int]:
    return (share.holder, share.share, share.memory)
