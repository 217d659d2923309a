"""Where a shape fits: over all nodes at once, on one node, and every reason by name where it does not."""

from collections.abc import Mapping, Sequence

import numpy as np

from poise.model.decisions import Reason
from poise.model.fleet import (
    CLOSED_CODES,
    CPU,
    DEVICES,
    LOST,
    MEMORY,
    NETWORK,
    PLENTY,
    Bools,
    DeviceModel,
    Fleet,
    Ints,
    model_of,
)
from poise.model.resources import SHARED_CAP, WHOLE, Node, Shape, Wants
from poise.units import format_bytes, format_cpu, format_rate

FALLBACKS: Mapping[str, tuple[str, ...]] = {
    "fp8": ("fp16", "bf16", "fp32"),
    "int8": ("fp16", "bf16", "fp32"),
    "fp16": ("bf16", "fp32"),
    "bf16": ("fp16", "fp32"),
    "tf32": ("fp32",),
    "fp32": ("fp64",),
    "fp64": (),
}
"""By precision, what takes its place on a device that lacks it, in this order."""

NAMED = 8
"""Fleets of up to so many nodes get their reasons node by node; larger ones by kind of node."""


def precision_on(model: DeviceModel, precision: str) -> str | None:
    """The precision that work of `precision` runs in on this model; None where it cannot run."""
    if not precision or not model.rates:
        return precision
    has = dict(model.rates)
    return next((name for name in (precision, *FALLBACKS.get(precision, ())) if has.get(name)), None)


def can_do(model: DeviceModel, wants: Wants) -> bool:
    """Whether a device of this model is what is wanted: kind, model, backend, precision (or a wider one), operators."""
    return (
        model.kind == wants.kind
        and (not wants.models or model.name in wants.models)
        and (not wants.backend or not model.backend or model.backend == wants.backend)
        and (not model.ops or all(op in model.ops for op in wants.ops))
        and precision_on(model, wants.precision) is not None
    )


def able(fleet: Fleet, shape: Shape) -> list[bool]:
    """By device model of the fleet, whether it could serve the shape were it free; one more False for `no device`."""
    fits = [can_do(model, shape.wants) and model.memory >= shape.gpu_memory for model in fleet.models]
    return [*fits, False]


def able_nodes(fleet: Fleet, shape: Shape) -> Bools | None:
    """Where the CPUs can do what work without devices wants; None: everywhere."""
    wants = shape.wants
    if shape.gpus or not (wants.ops or wants.precision or wants.backend):
        return None
    asks = Wants(kind="cpu", backend=wants.backend, precision=wants.precision, ops=wants.ops)
    fits: Bools = np.array([can_do(model, asks) for model in fleet.models], bool)
    return np.take(fits, fleet.processor)


def fits(fleet: Fleet, shape: Shape, free: Ints, memory: Ints, share: Ints) -> Bools:
    """Where one task of the shape fits in what is free: arrays as of `Fleet`, perhaps with hypothetical work on it."""
    mask: Bools = (fleet.closed == 0) & (free[CPU] >= shape.cpu)
    if shape.memory:
        mask &= free[MEMORY] >= shape.memory
    if shape.network:
        mask &= free[NETWORK] >= shape.network
    if shape.gpus:
        if shape.share == WHOLE:
            mask &= free[DEVICES] >= shape.gpus
        rows = np.flatnonzero(mask)
        usable = usable_devices(fleet, shape, memory[rows], share[rows], rows)
        mask[rows] = usable.sum(axis=1) >= shape.gpus
    elif (nodes := able_nodes(fleet, shape)) is not None:
        mask &= nodes
    return mask


def usable_devices(fleet: Fleet, shape: Shape, memory: Ints, share: Ints, rows: Ints) -> Bools:
    """(rows, D): the devices that could each take their part of one task now."""
    least = WHOLE if shape.share == WHOLE else shape.share + WHOLE - SHARED_CAP
    may = np.take(np.array(able(fleet, shape), bool), fleet.device_model[rows])
    usable: Bools = may & (share >= least) & (memory >= shape.gpu_memory)
    return usable


def capacity(fleet: Fleet, shape: Shape, free: Ints, memory: Ints, share: Ints) -> Ints:
    """(N,): how many tasks of the shape each node could take now."""
    room = np.where(fleet.closed == 0, free[CPU] // shape.cpu if shape.cpu else PLENTY, 0)
    if shape.memory:
        room = np.minimum(room, free[MEMORY] // shape.memory)
    if shape.network:
        room = np.minimum(room, free[NETWORK] // shape.network)
    if shape.gpus:
        rows = np.flatnonzero(room > 0)
        slots = usable_devices(fleet, shape, memory[rows], share[rows], rows).astype(np.int64)
        if shape.share != WHOLE:
            slots *= (share[rows] - (WHOLE - SHARED_CAP)) // shape.share
            if shape.gpu_memory:
                slots = np.minimum(slots, memory[rows] // shape.gpu_memory)
        devices = np.zeros_like(room)
        devices[rows] = slots.sum(axis=1) // shape.gpus
        if shape.share == WHOLE:  # fewer than there seem to be where some are kept for somebody
            devices = np.minimum(devices, free[DEVICES] // shape.gpus)
        room = np.minimum(room, devices)
    elif (nodes := able_nodes(fleet, shape)) is not None:
        room = np.where(nodes, room, 0)
    return np.maximum(room, 0)


def capacity_when_empty(fleet: Fleet, shape: Shape, *, open_only: bool = False) -> Ints:
    """(N,): how many tasks of the shape each node could hold with nothing else on it."""
    empty = Fleet(()) if not len(fleet) else fleet
    sizes = np.array([*(model.memory for model in empty.models), 0], np.int64)
    memory = sizes[empty.device_model]
    share = np.where(empty.device_model >= 0, WHOLE, 0)
    room = capacity(_opened(empty), shape, empty.total, memory, share)
    return np.where(empty.closed == 0, room, 0) if open_only else room


def refusals(fleet: Fleet, row: int, shape: Shape) -> list[Reason]:
    """Every reason why one task of this shape cannot start on this node now; none when it can."""
    node = fleet.nodes[row]
    reasons = never(node, shape)
    if fleet.closed[row]:
        wakes = "joined" if fleet.closed[row] == LOST else "drained"
        return [Reason(code=CLOSED_CODES[fleet.closed[row]], subject=node.name, wakes=wakes), *reasons]
    if reasons:
        return reasons
    free = [int(amount) for amount in fleet.free[:, row]]
    if free[CPU] < shape.cpu:
        reasons.append(_busy("CPU_BUSY", node.name, format_cpu(shape.cpu), format_cpu(free[CPU])))
    if free[MEMORY] < shape.memory:
        reasons.append(_busy("MEMORY_BUSY", node.name, format_bytes(shape.memory), format_bytes(free[MEMORY])))
    if free[NETWORK] < shape.network:
        reasons.append(_busy("NETWORK_BUSY", node.name, format_rate(shape.network), format_rate(free[NETWORK])))
    if shape.gpus:
        rows = np.array([row])
        usable = int(usable_devices(fleet, shape, fleet.device_memory[rows], fleet.device_share[rows], rows).sum())
        if usable < shape.gpus:
            reasons.append(_busy("GPU_BUSY", node.name, str(shape.gpus), str(usable)))
    return reasons


def never(node: Node, shape: Shape) -> list[Reason]:
    """Every reason why a task of this shape could not start here even if the node were empty."""
    reasons = []
    if node.cpu < shape.cpu:
        reasons.append(_too_small("CPU_TOO_SMALL", node.name, format_cpu(shape.cpu), format_cpu(node.cpu)))
    if node.memory < shape.memory:
        reasons.append(_too_small("MEMORY_TOO_SMALL", node.name, format_bytes(shape.memory), format_bytes(node.memory)))
    if node.network and node.network < shape.network:
        need, have = format_rate(shape.network), format_rate(node.network)
        reasons.append(_too_small("NETWORK_TOO_SMALL", node.name, need, have))
    if shape.gpus:
        right = [model for model in map(model_of, node.devices) if can_do(model, shape.wants)]
        large = [model for model in right if model.memory >= shape.gpu_memory]
        if node.devices and not right:
            have = ", ".join(dict.fromkeys(device.model or device.kind for device in node.devices))
            reasons.append(_too_small("NO_SUCH_DEVICE", node.name, shape.describe_devices(), have))
        elif len(large) < shape.gpus:
            reasons.append(_too_small("GPU_TOO_FEW", node.name, str(shape.gpus), str(len(large))))
    else:
        fleet = Fleet((node,))
        nodes = able_nodes(fleet, shape)
        if nodes is not None and not nodes[0]:
            need = " ".join(part for part in (shape.wants.precision, *shape.wants.ops) if part)
            reasons.append(_too_small("NO_SUCH_DEVICE", node.name, need, "its CPUs"))
    return reasons


def shortfall(node: Node, shape: Shape) -> float:
    """How much the empty node lacks for one task: the sum over resources of the missing share; 0 when it fits."""
    devices = sum(
        can_do(model, shape.wants) and model.memory >= shape.gpu_memory for model in map(model_of, node.devices)
    )
    lacks = 0.0
    for have, need in (
        (node.cpu, shape.cpu),
        (node.memory, shape.memory),
        (node.network or PLENTY, shape.network),
        (devices, shape.gpus),
    ):
        lacks += max(0.0, 1 - have / need) if need else 0.0
    return lacks


class Summary:
    """What is free at most per kind of node: enough to say why a shape fits nowhere, without looking at every node."""

    def __init__(self, fleet: Fleet, free: Ints) -> None:
        self._fleet = fleet
        self._free = free
        order = np.argsort(fleet.kind, kind="stable")
        self._sorted = fleet.kind[order]
        starts = np.flatnonzero(np.r_[True, self._sorted[1:] != self._sorted[:-1]])
        opened = np.where(fleet.closed == 0, free, -1)[:, order]
        self._most = np.maximum.reduceat(opened, starts, axis=1)
        self._kinds = self._sorted[starts]
        self._rows = np.split(order, starts[1:])

    def reasons(self, shape: Shape) -> list[Reason]:
        """By kind of node: why none of that kind has room; then the nodes that are closed."""
        fleet, reasons = self._fleet, []
        for place, kind in enumerate(self._kinds.tolist()):
            rows = self._rows[place]
            like = fleet.nodes[fleet.likes[kind]]
            opened = rows[fleet.closed[rows] == 0]
            if not len(opened):
                continue
            subject = _name_them(fleet, opened)
            hopeless = never(like, shape)
            if hopeless:
                reasons += [_renamed(reason, subject) for reason in hopeless]
                continue
            cpu, memory, network, devices = (int(amount) for amount in self._most[:, place])
            found = []
            if cpu < shape.cpu:
                found.append(_busy("CPU_BUSY", subject, format_cpu(shape.cpu), f"at most {format_cpu(cpu)}"))
            if memory < shape.memory:
                need, have = format_bytes(shape.memory), format_bytes(memory)
                found.append(_busy("MEMORY_BUSY", subject, need, f"at most {have}"))
            if network < shape.network:
                need, have = format_rate(shape.network), format_rate(network)
                found.append(_busy("NETWORK_BUSY", subject, need, f"at most {have}"))
            if shape.gpus and shape.share == WHOLE and devices < shape.gpus:
                found.append(_busy("GPU_BUSY", subject, str(shape.gpus), f"at most {devices}"))
            reasons += found or [_busy("NOT_AT_ONCE", subject, shape.describe(), "")]
        for code in (1, 2):
            rows = np.flatnonzero(fleet.closed == code)
            if len(rows):
                wakes = "joined" if code == LOST else "drained"
                reasons.append(Reason(code=CLOSED_CODES[code], subject=_name_them(fleet, rows), wakes=wakes))
        return reasons


def _name_them(fleet: Fleet, rows: Sequence[int] | Ints) -> str:
    if len(rows) <= 4:
        return ", ".join(fleet.names[row] for row in rows)
    return f"{len(rows)} nodes like {fleet.names[rows[0]]}"


def _renamed(reason: Reason, subject: str) -> Reason:
    return Reason(
        code=reason.code, subject=subject, need=reason.need, have=reason.have, fixable="never", wakes="joined"
    )


def _opened(fleet: Fleet) -> Fleet:
    made = fleet.copy()
    made.closed[:] = 0
    return made


def _busy(code: str, subject: str, need: str, have: str) -> Reason:
    return Reason(code=code, subject=subject, need=need, have=have, wakes="finished")


def _too_small(code: str, subject: str, need: str, have: str) -> Reason:
    return Reason(code=code, subject=subject, need=need, have=have, fixable="never", wakes="joined")
