"""A plan is a proposal: each decision is checked against the ledger as it is now, which may be newer than the plan's base.

What holds becomes an event; what does not is refused by name, and the next round decides again.
"""

from poise.kernel.ledger import Ledger, NodeState, UnitState
from poise.model.decisions import Place, Reason, Rejection, Spot
from poise.model.events import Placed
from poise.model.resources import Shape
from poise.units import format_bytes, format_cpu


def verify_place(ledger: Ledger, place: Place, now: int) -> Placed | Rejection:
    """The event for a placement, or every reason against it."""
    unit = ledger.unit(place.unit)
    if unit is None:
        return _refuse(place, Reason(code="UNKNOWN_UNIT", subject=place.unit, fixable="never"))
    recovering = unit.status == "active" and any(task.status == "recovering" for task in unit.tasks)
    if unit.status != "pending" and not recovering:
        return _refuse(place, Reason(code="NOT_PENDING", subject=place.unit, have=unit.status, fixable="never"))
    if unit.stopping or unit.not_before > now:
        return _refuse(place, Reason(code="NOT_YET", subject=place.unit))
    if len(place.spots) != len(unit.tasks):
        need, have = str(len(unit.tasks)), str(len(place.spots))
        return _refuse(place, Reason(code="GANG_INCOMPLETE", subject=place.unit, need=need, have=have))
    reason = _refused_behind(ledger, unit, place) if place.queued else _refused_room(ledger, unit.spec.shape, place.spots)
    if reason is not None:
        return _refuse(place, reason)
    return Placed(
        at=now, unit=place.unit, epoch=unit.epoch + 1, spots=place.spots, why=place.why, queued=place.queued
    )


def _refused_room(ledger: Ledger, shape: Shape, spots: tuple[Spot, ...]) -> Reason | None:
    """Room for all spots together, device by device."""
    cpu: dict[str, int] = {}
    memory: dict[str, int] = {}
    devices: set[tuple[str, int]] = set()
    for spot in spots:
        node = ledger.nodes.get(spot.node)
        closed = _closed(node, spot.node)
        if node is None or closed is not None:
            return closed
        cpu[spot.node] = cpu.get(spot.node, node.used_cpu) + shape.cpu
        memory[spot.node] = memory.get(spot.node, node.used_memory) + shape.memory
        if cpu[spot.node] > node.node.cpu:
            have = format_cpu(node.node.cpu - node.used_cpu)
            return Reason(code="CPU_BUSY", subject=spot.node, need=format_cpu(shape.cpu), have=have)
        if memory[spot.node] > node.node.memory:
            have = format_bytes(node.node.memory - node.used_memory)
            return Reason(code="MEMORY_BUSY", subject=spot.node, need=format_bytes(shape.memory), have=have)
        known = {device.index: device for device in node.node.devices}
        for index in spot.devices:
            taken = index in node.devices or (spot.node, index) in devices
            if taken or index not in known or known[index].memory < shape.gpu_memory:
                return Reason(code="GPU_BUSY", subject=spot.node, need=str(shape.gpus), have=f"device {index}")
            devices.add((spot.node, index))
        if len(spot.devices) != shape.gpus:
            return Reason(code="GPU_BUSY", subject=spot.node, need=str(shape.gpus), have=str(len(spot.devices)))
    return None


def _refused_behind(ledger: Ledger, unit: UnitState, place: Place) -> Reason | None:
    """A queued placement joins a pool that holds room; if the pool has emptied meanwhile, there is nothing to wait behind."""
    spot = place.spots[0]
    node = ledger.nodes.get(spot.node)
    closed = _closed(node, spot.node)
    if node is None or closed is not None:
        return closed
    if len(place.spots) != 1 or unit.spec.shape.gpus or unit.spec.shape.key() not in node.pools:
        return Reason(code="POOL_GONE", subject=spot.node)
    return None


def _closed(node: NodeState | None, name: str) -> Reason | None:
    if node is None:
        return Reason(code="UNKNOWN_NODE", subject=name, fixable="never")
    if node.status == "lost":
        return Reason(code="NODE_LOST", subject=name)
    return Reason(code="NODE_DRAINED", subject=name) if node.drained else None


def _refuse(place: Place, reason: Reason) -> Rejection:
    return Rejection(unit=place.unit, reason=reason)
