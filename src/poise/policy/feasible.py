"""Where a shape fits: every reason by name, and what could ever fit."""

from collections.abc import Iterable

from poise.model.decisions import Reason
from poise.model.resources import Device, Node, Shape
from poise.model.views import NodeView
from poise.units import format_bytes, format_cpu


def fitting(devices: Iterable[Device], shape: Shape) -> list[Device]:
    """The devices that have the memory the shape asks of each."""
    return [device for device in devices if device.memory >= shape.gpu_memory]


def refusals(node: NodeView, shape: Shape) -> list[Reason]:
    """Every reason why one task of this shape cannot start on this node now; none when it can."""
    if not node.open:
        wakes = "joined" if node.why_closed == "NODE_LOST" else "drained"
        return [
            Reason(code=node.why_closed, subject=node.name, wakes=wakes),
            *never(node, shape),
        ]
    if (  # the common case, without the cost of saying why
        shape.cpu <= node.free_cpu
        and shape.memory <= node.free_memory
        and (not shape.gpus or len(fitting(node.free_devices, shape)) >= shape.gpus)
    ):
        return []
    reasons = never(node, shape)
    if reasons:
        return reasons
    if node.free_cpu < shape.cpu:
        reasons.append(_busy("CPU_BUSY", node, format_cpu(shape.cpu), format_cpu(node.free_cpu)))
    if node.free_memory < shape.memory:
        reasons.append(_busy("MEMORY_BUSY", node, format_bytes(shape.memory), format_bytes(node.free_memory)))
    free = len(fitting(node.free_devices, shape))
    if free < shape.gpus:
        reasons.append(_busy("GPU_BUSY", node, str(shape.gpus), str(free)))
    return reasons


def never(node: Node | NodeView, shape: Shape) -> list[Reason]:
    """Every reason why a task of this shape could not start here even if the node were empty."""
    reasons = []
    if node.cpu < shape.cpu:
        reasons.append(_too_small("CPU_TOO_SMALL", node, format_cpu(shape.cpu), format_cpu(node.cpu)))
    if node.memory < shape.memory:
        reasons.append(_too_small("MEMORY_TOO_SMALL", node, format_bytes(shape.memory), format_bytes(node.memory)))
    have = len(fitting(node.devices, shape))
    if have < shape.gpus:
        reasons.append(_too_small("GPU_TOO_FEW", node, str(shape.gpus), str(have)))
    return reasons


def shortfall(node: Node, shape: Shape) -> float:
    """How much the empty node lacks for one task: the sum over resources of the missing share; 0 when it fits."""
    lacks = 0.0
    for have, need in (
        (node.cpu, shape.cpu),
        (node.memory, shape.memory),
        (len(fitting(node.devices, shape)), shape.gpus),
    ):
        lacks += max(0.0, 1 - have / need) if need else 0.0
    return lacks


def room_when_empty(node: Node | NodeView, shape: Shape, most: int) -> int:
    """How many tasks of this shape the empty node could hold, up to `most`."""
    if never(node, shape):
        return 0
    bounds = [most]
    if shape.cpu:
        bounds.append(node.cpu // shape.cpu)
    if shape.memory:
        bounds.append(node.memory // shape.memory)
    if shape.gpus:
        bounds.append(len(fitting(node.devices, shape)) // shape.gpus)
    return min(bounds)


def _busy(code: str, node: NodeView, need: str, have: str) -> Reason:
    return Reason(code=code, subject=node.name, need=need, have=have, wakes="finished")


def _too_small(code: str, node: Node | NodeView, need: str, have: str) -> Reason:
    return Reason(code=code, subject=node.name, need=need, have=have, fixable="never", wakes="joined")
