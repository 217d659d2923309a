"""A plan is a proposal: each decision is checked against the ledger as it is now, which may be newer than the plan's
base.

What holds becomes an event; what does not is refused by name, and the next round decides again.
"""

from poise.kernel.ledger import Ledger, NodeState, device_key
from poise.model.decisions import Place, Reason, Rejection, Spot
from poise.model.events import Placed
from poise.model.resources import Shape
from poise.units import format_bytes, format_cpu


def verify_place(ledger: Ledger, place: Place, now: int) -> Placed | Rejection:
    """The event for a placement, or every reason against it."""
    unit = ledger.unit(place.unit)
    if unit is None:
        return _refuse(place, [Reason(code="UNKNOWN_UNIT", subject=place.unit, fixable="never")])
    reasons = []
    if not ledger.may_be_placed(unit):
        reasons.append(Reason(code="NOT_PENDING", subject=place.unit, have=unit.status, fixable="never"))
    if unit.stopping or unit.not_before > now:
        reasons.append(Reason(code="NOT_YET", subject=place.unit))
    if len(place.spots) != len(unit.tasks):
        need, have = str(len(unit.tasks)), str(len(place.spots))
        reasons.append(Reason(code="NOT_WHOLE", subject=place.unit, need=need, have=have))
    brief = ledger.is_brief(unit)
    shape = unit.spec.shape
    if place.queued:
        reasons += _against_waiting(ledger, shape, place.spots, brief)
    else:
        reasons += _against_room(ledger, shape, place.spots)
    if reasons:
        return _refuse(place, reasons)
    return Placed(
        at=now,
        unit=place.unit,
        epoch=unit.epoch + 1,
        spots=place.spots,
        why=place.why,
        queued=place.queued,
        brief=brief,
    )


def _against_room(ledger: Ledger, shape: Shape, spots: tuple[Spot, ...]) -> list[Reason]:
    """Whether there is room for all spots together, node by node and device by device."""
    reasons: list[Reason] = []
    for name in dict.fromkeys(spot.node for spot in spots):
        node = ledger.nodes.get(name)
        if node is None or node.status == "lost" or node.drained:
            reasons += _closed(node, name)
            continue
        here = [spot for spot in spots if spot.node == name]
        cpu, memory = len(here) * shape.cpu, len(here) * shape.memory
        free_cpu, free_memory = node.node.cpu - node.used_cpu, node.node.memory - node.used_memory
        if cpu > free_cpu:
            reasons.append(Reason(code="CPU_BUSY", subject=name, need=format_cpu(cpu), have=format_cpu(free_cpu)))
        if memory > free_memory:
            need, have = format_bytes(memory), format_bytes(free_memory)
            reasons.append(Reason(code="MEMORY_BUSY", subject=name, need=need, have=have))
        reasons += _against_devices(node, shape, here)
    return reasons


def _against_devices(node: NodeState, shape: Shape, spots: list[Spot]) -> list[Reason]:
    reasons: list[Reason] = []
    name = node.node.name
    free = {
        device.index
        for device in node.node.devices
        if device_key(device.index) not in node.devices and device.memory >= shape.gpu_memory
    }
    for spot in spots:
        if len(spot.devices) != shape.gpus:
            have = str(len(spot.devices))
            reasons.append(Reason(code="GPU_BUSY", subject=name, need=str(shape.gpus), have=have))
        for index in spot.devices:
            if index not in free:
                need = format_bytes(shape.gpu_memory)
                reasons.append(Reason(code="DEVICE_TAKEN", subject=name, need=need, have=str(index)))
            free.discard(index)
    return reasons


def _against_waiting(ledger: Ledger, shape: Shape, spots: tuple[Spot, ...], brief: bool) -> list[Reason]:
    """Brief work joins a pool where brief work runs; if that has ended meanwhile, there is nothing to wait behind."""
    reasons = []
    if not brief or len(spots) != 1 or spots[0].devices:
        reasons.append(Reason(code="NOT_BRIEF", fixable="never"))
    for spot in spots[:1]:
        node = ledger.nodes.get(spot.node)
        if node is None or node.status == "lost" or node.drained:
            reasons += _closed(node, spot.node)
            continue
        pool = node.pools.get(shape.key())
        if pool is None or pool.slots <= pool.long:
            reasons.append(Reason(code="POOL_GONE", subject=spot.node))
    return reasons


def _closed(node: NodeState | None, name: str) -> list[Reason]:
    if node is None:
        return [Reason(code="UNKNOWN_NODE", subject=name, fixable="never")]
    reasons = [Reason(code="NODE_LOST", subject=name)] if node.status == "lost" else []
    return [*reasons, Reason(code="NODE_DRAINED", subject=name)] if node.drained else reasons


def _refuse(place: Place, reasons: list[Reason]) -> Rejection:
    return Rejection(unit=place.unit, reasons=tuple(reasons))
