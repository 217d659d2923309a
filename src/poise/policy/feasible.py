"""Feasibility: where a shape fits, over all nodes at once or on one node, and every reason where it does not."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from poise.model.decisions import Reason
from poise.model.fleet import (
    CLOSED_CODES,
    CORDONED,
    CPU,
    DEVICES,
    MEMORY,
    NETWORK,
    Bools,
    DeviceModel,
    Fleet,
    Ints,
    model_of,
    processor_of,
)
from poise.model.resources import ANYWHERE, PLENTY, WHOLE, Node, Shape, Wants, Where
from poise.units import format_bytes, format_cpu, format_duration, format_rate

FALLBACKS: Mapping[str, tuple[str, ...]] = {
    "fp8": ("fp16", "bf16", "fp32"),
    "int8": ("fp16", "bf16", "fp32"),
    "fp16": ("bf16", "fp32"),
    "bf16": ("fp16", "fp32"),
    "tf32": ("fp32",),
    "fp32": ("fp64",),
    "fp64": (),
}
"""Fallback precisions on a device that lacks a precision, in order of preference."""

MOST_TASKS = 1_000_000
"""Maximum number of tasks of one node, for a shape that requests nothing."""

MOST_SHAPES = 4096
"""Maximum number of shapes with cached abilities; the cache is cleared when it is full."""

ELSEWHERE, ENDING, RESERVED = range(len(CLOSED_CODES), len(CLOSED_CODES) + 3)
"""Values of `closed` for a node where a shape may not run, for a node that ends before its work would, and for a node
that is reserved before.
"""

NAMED = 8
"""Fleets of up to this many nodes get reasons by node; larger ones by kind of node."""


def precision_on(model: DeviceModel, precision: str) -> str | None:
    """Return the precision that work of `precision` runs in on this model; None where it cannot run."""
    if not precision or not model.rates:
        return precision
    has = dict(model.rates)
    return next((name for name in (precision, *FALLBACKS.get(precision, ())) if has.get(name)), None)


def can_do(model: DeviceModel, wants: Wants) -> bool:
    """Return whether a device meets `wants`: kind, model, backend, precision (or a fallback), operators."""
    return (
        model.kind == wants.kind
        and (not wants.models or model.name in wants.models)
        and (not model.failed or model.failed not in wants.without)
        and (not model.kept or wants.may_use(model.kept))
        and (not wants.backend or not model.backend or model.backend == wants.backend)
        and (not model.ops or all(op in model.ops for op in wants.ops))
        and precision_on(model, wants.precision) is not None
    )


def can_serve(model: DeviceModel, shape: Shape) -> bool:
    """Return whether an empty device of this model can take its part of a task: suitable and large enough."""
    shared = shape.share == WHOLE or shape.share <= model.share_cap
    return shared and model.memory >= shape.gpu_memory and can_do(model, shape.wants)


class Ability(NamedTuple):
    """What the nodes of each kind, and the devices of each model, can do for a shape when empty.

    `models`: by device model (and a last False for `no device`), whether such a device could serve the shape on a
    node where it may run; `called`: the names of these models. `room`: by kind of node, how many tasks an empty
    node holds if they may run there; `most`: how many the whole fleet holds. `uniform`: by kind, whether all
    devices are suitable, so that counting them suffices; `exact`: whether that is true of all kinds. `where`: by
    row, whether an empty node holds any; `everywhere`: whether all nodes do. `never` caches, by row, why a task
    could never start.
    """

    models: list[bool]
    called: list[str]
    room: Ints
    uniform: list[bool]
    most: int
    exact: bool
    where: Bools
    everywhere: bool
    never: dict[int, tuple[Reason, ...]]

    def by_row(self, fleet: Fleet) -> Ints:
        """Return (N,): how many tasks each node holds when empty; 0 where none may run."""
        return np.where(self.where, self.room[fleet.kind], 0)


def ability(fleet: Fleet, shape: Shape) -> Ability:
    """Return what the fleet can do for a shape; read-only, computed once for each shape and fleet."""
    found: Ability | None = fleet.abilities.get(shape)
    if found is None:
        if len(fleet.abilities) >= MOST_SHAPES:
            fleet.abilities.clear()
        found = fleet.abilities[shape] = _ability(fleet, shape)
    return found


def _ability(fleet: Fleet, shape: Shape) -> Ability:
    """Compute abilities once for each kind of node, of which there are few, and restrictions once for each node."""
    models = [can_serve(model, shape) for model in fleet.models] + [False]
    likes = list(fleet.likes)
    device_models = fleet.device_model[likes].astype(np.int64)
    has = device_models >= 0
    may = np.take(np.array(models), device_models)
    room = fleet.total[CPU, likes] // shape.cpu if shape.cpu else np.full(len(likes), PLENTY)
    if shape.memory:
        room = np.minimum(room, fleet.total[MEMORY, likes] // shape.memory)
    if shape.network:
        room = np.minimum(room, fleet.total[NETWORK, likes] // shape.network)
    if shape.gpus:
        room = np.minimum(room, _tasks_of(shape, _parts(fleet, shape, device_models) * may))
    elif shape.wants.ops or shape.wants.precision or shape.wants.backend:
        asks = _of_processor(shape.wants)
        can = np.array([can_do(model, asks) for model in fleet.models], bool)
        room = np.where(can[fleet.processor[likes]], room, 0)
    uniform: list[bool] = (may == has).all(axis=1).tolist()
    where = np.take(room > 0, fleet.kind)
    if shape.where != ANYWHERE:
        admitted = np.array([shape.where.admits(node) for node in fleet.nodes], bool)
        where &= admitted
        on = set(fleet.device_model[admitted].ravel().tolist())
        models = [able and model in on for model, able in enumerate(models)]
    for array in (room, where):
        array.setflags(write=False)
    most = room_when_empty(room, np.bincount(fleet.kind[where], minlength=len(likes)))
    if shape.where.groups:
        by_row = np.minimum(np.where(where, room[fleet.kind], 0), MOST_TASKS)
        most = int(grouped(fleet, shape.where, by_row).sum())
    called = list(dict.fromkeys(model.called for model, can in zip(fleet.models, models, strict=False) if can))
    return Ability(models, called, room, uniform, most, all(uniform), where, bool(where.all()), {})


def room_when_empty(room: Ints, nodes: Ints) -> int:
    """Return how many tasks empty nodes could hold, by tasks per node (`room`) and number of `nodes` of each kind."""
    return sum(min(here, MOST_TASKS) * count for here, count in zip(room.tolist(), nodes.tolist(), strict=True))


def _of_processor(wants: Wants) -> Wants:
    """Return the requirements of work without devices on the CPUs."""
    return Wants(kind="cpu", backend=wants.backend, precision=wants.precision, ops=wants.ops)


def fits(fleet: Fleet, shape: Shape, able: Ability, free: Ints, memory: Ints, share: Ints) -> Ints:
    """Return the rows of the open nodes where one task of the shape fits in the free room: arrays as in `Fleet`,
    possibly with hypothetical work on them.
    """
    mask: Bools = free[CPU] >= shape.cpu
    if shape.gpus and shape.share == WHOLE:
        enough: Bools = free[DEVICES] >= shape.gpus
        rows: Ints = enough.nonzero()[0]
        if not len(rows):
            return rows
        mask &= enough
    mask &= fleet.closed == 0
    if shape.memory:
        mask &= free[MEMORY] >= shape.memory
    if shape.network:
        mask &= free[NETWORK] >= shape.network
    if not able.everywhere:
        mask &= able.where
    rows = mask.nonzero()[0]
    if shape.gpus and (shape.share != WHOLE or not able.exact):
        rows = rows[usable_devices(fleet, shape, able, memory[rows], share[rows], rows).sum(axis=1) >= shape.gpus]
    return rows


def usable_devices(fleet: Fleet, shape: Shape, able: Ability, memory: Ints, share: Ints, rows: Ints) -> Bools:
    """Return (rows, D): the devices that could each take their part of one task now."""
    least = WHOLE if shape.share == WHOLE else shape.share + fleet.device_spare[rows]
    usable: Bools = np.take(np.array(able.models), fleet.device_model[rows])
    usable &= share >= least
    if shape.gpu_memory:
        usable &= memory >= shape.gpu_memory
    return usable


def capacity(fleet: Fleet, shape: Shape, able: Ability, free: Ints, memory: Ints, share: Ints) -> Ints:
    """Return (N,): how many tasks of the shape each node could take now; 0 where it is closed."""
    room = np.zeros(len(fleet), np.int64)
    rows = fits(fleet, shape, able, free, memory, share)
    if len(rows):
        room[rows] = capacity_on(rows, fleet, shape, able, free, memory, share)
    return room


def capacity_on(rows: Ints, fleet: Fleet, shape: Shape, able: Ability, free: Ints, memory: Ints, share: Ints) -> Ints:
    """Return how many tasks of the shape each of these open, suitable nodes could take now."""
    here = free[CPU, rows] // shape.cpu if shape.cpu else np.full(len(rows), PLENTY)
    if shape.memory:
        here = np.minimum(here, free[MEMORY, rows] // shape.memory)
    if shape.network:
        here = np.minimum(here, free[NETWORK, rows] // shape.network)
    if shape.gpus and shape.share == WHOLE and able.exact:
        here = np.minimum(here, free[DEVICES, rows] // shape.gpus)
    elif shape.gpus:
        usable = usable_devices(fleet, shape, able, memory[rows], share[rows], rows).astype(np.int64)
        if shape.share != WHOLE:
            usable *= (share[rows] - fleet.device_spare[rows]) // shape.share
            if shape.gpu_memory:
                usable = np.minimum(usable, memory[rows] // shape.gpu_memory)
        else:  # devices with kept room look free but are not
            here = np.minimum(here, free[DEVICES, rows] // shape.gpus)
        here = np.minimum(here, _tasks_of(shape, usable))
    return np.asarray(np.maximum(here, 0))


def grouped(fleet: Fleet, where: Where, room: Ints) -> Ints:
    """Return (N,): the part of the `room` on each node that one gang may use, however its tasks are placed in it.

    With `spread` by a label: one task for each value, on the node with the least room. With `together` by a label: the
    room of the value that has most.
    """
    if where.spread:
        of = values_of(fleet, where.spread)
        rows = np.flatnonzero((room > 0) & (of >= 0))
        rows = rows[np.lexsort((rows, room[rows]))]
        _, first = np.unique(of[rows], return_index=True)
        room = np.zeros_like(room)
        room[rows[first]] = 1
    if where.together:
        of = values_of(fleet, where.together)
        room = np.where(of >= 0, room, 0)
        if room.any():
            room = np.where(of == np.bincount(of[of >= 0], weights=room[of >= 0]).argmax(), room, 0)
    return room


def values_of(fleet: Fleet, label: str) -> Ints:
    """Return (N,): the number of each node's value of a label, -1 where it has none."""
    known: Ints | None = fleet.runs.get(("label", label))
    if known is None:
        numbers: dict[str, int] = {"": -1}
        values = [node.label(label) for node in fleet.nodes]
        known = np.array([numbers.setdefault(value, len(numbers) - 1) for value in values], np.int64)
        fleet.runs["label", label] = known
    return known


def gang_incomplete(fleet: Fleet, where: Where, needed: int, have: int) -> Reason:
    """Return the reason that there is room for fewer tasks of a gang than it needs."""
    if where.spread:
        of = values_of(fleet, where.spread)
        names = list(dict.fromkeys(fleet.nodes[row].label(where.spread) for row in np.flatnonzero(of >= 0).tolist()))
        there = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
        return Reason(code="SPREAD", subject=where.spread, need=str(needed), have=f"{have} of {there}")
    if where.together:
        return Reason(code="TOGETHER", subject=where.together, need=str(needed), have=str(have))
    return Reason(code="GANG_INCOMPLETE", need=str(needed), have=str(have))


def capacity_when_empty(fleet: Fleet, shape: Shape) -> int:
    """Return how many tasks of the shape the whole fleet could hold with nothing else on it."""
    return ability(fleet, shape).most


def _parts(fleet: Fleet, shape: Shape, device_models: Ints) -> Ints:
    """Return (kinds, D): how many parts of the shape's size one empty device has."""
    if shape.share == WHOLE:
        return (device_models >= 0).astype(np.int64)
    sizes = np.array([*(model.memory for model in fleet.models), 0], np.int64)[device_models]
    parts = np.array([*(model.share_cap for model in fleet.models), 0], np.int64)[device_models] // shape.share
    return np.minimum(parts, sizes // shape.gpu_memory) if shape.gpu_memory else parts


def _tasks_of(shape: Shape, parts: Ints) -> Ints:
    """Return how many tasks fit on devices with these free parts (rows, D); each task needs a part of `gpus` different
    devices.

    This is the largest t with `sum(min(parts, t)) >= t * gpus`: no device serves one task twice.
    """
    if shape.gpus == 1:
        return np.asarray(parts.sum(axis=1))
    most = parts.sum(axis=1) // shape.gpus
    while True:
        fits = np.minimum(parts, most[:, None]).sum(axis=1) // shape.gpus
        if (fits >= most).all():
            return np.asarray(most)
        most = np.minimum(most, fits)


def refusals(fleet: Fleet, row: int, shape: Shape) -> list[Reason]:
    """Return every reason why one task of this shape cannot start on this node now; none if it can."""
    node, able = fleet.nodes[row], ability(fleet, shape)
    known = able.never.get(row)
    if known is None:
        known = able.never[row] = tuple(never(node, shape))
    reasons = list(known)
    if fleet.closed[row]:
        return [closed_reason(int(fleet.closed[row]), node.name), *reasons]
    if reasons:
        return reasons
    free = fleet.free[:, row].tolist()
    for code, need, left, shown, what in (
        ("CPU_BUSY", shape.cpu, free[CPU], format_cpu, " CPU"),
        ("MEMORY_BUSY", shape.memory, free[MEMORY], format_bytes, " of memory"),
        ("NETWORK_BUSY", shape.network, free[NETWORK], format_rate, ""),
    ):
        if left < 0 and (need or code == "CPU_BUSY"):
            reasons.append(_busy("NODE_SHRUNK", node.name, shown(need) + what, shown(-left) + what))
        elif left < need:
            reasons.append(_busy(code, node.name, shown(need), shown(left)))
    if shape.gpus:
        usable = _usable_on(fleet, row, shape, able)
        if usable < shape.gpus:
            reasons.append(_busy("GPU_BUSY", node.name, str(shape.gpus), str(usable)))
            reasons += _cordoned(fleet, row, shape)
    return reasons


def _usable_on(fleet: Fleet, row: int, shape: Shape, able: Ability) -> int:
    """Return how many devices of one node are in `usable_devices`. For one row plain numbers are faster than arrays."""
    models, memory = fleet.device_model[row].tolist(), fleet.device_memory[row].tolist()
    share, spare = fleet.device_share[row].tolist(), fleet.device_spare[row].tolist()
    whole, least = shape.share == WHOLE, shape.gpu_memory
    return sum(
        able.models[model] and has >= (WHOLE if whole else shape.share + kept) and not (least and free < least)
        for model, free, has, kept in zip(models, memory, share, spare, strict=True)
    )


def _cordoned(fleet: Fleet, row: int, shape: Shape) -> list[Reason]:
    """Return a reason that names the suitable devices of a node that are cordoned."""
    node = fleet.nodes[row]
    shares = fleet.device_share[row].tolist()
    if min(shares, default=0) > CORDONED // 2:
        return []
    closed = [
        str(device.index)
        for device, share in zip(node.devices, shares, strict=False)
        if share <= CORDONED // 2 and can_do(model_of(device), shape.wants)
    ]
    have = ", ".join(closed)
    return [Reason(code="DEVICE_CORDONED", subject=node.name, have=have)] if closed else []


def closed_reason(closed: int, subject: str) -> Reason:
    """Return why nothing is placed on a closed node, by its value of `closed`."""
    return Reason(code=CLOSED_CODES[closed], subject=subject)


def never(node: Node, shape: Shape) -> list[Reason]:
    """Return every reason why a task of this shape could not start here even if the node were empty."""
    reasons = []
    if not shape.where.allows(node):
        reasons.append(_too_small("OTHER_NODE", node.name, shape.where.describe(), ""))
    elif told := shape.where.kept_on(node.name):
        reasons.append(_reserved("NODE_RESERVED", node.name, told, shape))
    elif not shape.where.admits(node):
        reasons.append(_ends(node.name, shape.where))
    if node.cpu < shape.cpu:
        reasons.append(_too_small("CPU_TOO_SMALL", node.name, format_cpu(shape.cpu), format_cpu(node.cpu)))
    if node.memory < shape.memory:
        reasons.append(_too_small("MEMORY_TOO_SMALL", node.name, format_bytes(shape.memory), format_bytes(node.memory)))
    if node.network and node.network < shape.network:
        need, have = format_rate(shape.network), format_rate(node.network)
        reasons.append(_too_small("NETWORK_TOO_SMALL", node.name, need, have))
    if shape.gpus:
        right = [model for model in map(model_of, node.devices) if can_do(model, shape.wants)]
        large = [model for model in right if can_serve(model, shape)]
        if shape.wants.kept and (told := _kept_devices(node, shape, shape.gpus - len(large))):
            reasons.append(_reserved("DEVICES_RESERVED", node.name, told, shape))
        elif node.devices and not right:
            have = ", ".join(dict.fromkeys(device.model or device.kind for device in node.devices))
            reasons.append(_too_small("NO_SUCH_DEVICE", node.name, shape.describe_devices(), have))
        elif len(large) < shape.gpus:
            shared = max((model.share_cap for model in right), default=WHOLE)
            if shape.share != WHOLE and shape.share > shared:
                need, have = f"{shape.share / WHOLE:g}", f"{shared / WHOLE:g}"
                reasons.append(_too_small("SHARE_TOO_LARGE", node.name, need, have))
            else:
                reasons.append(_too_small("GPU_TOO_FEW", node.name, str(shape.gpus), str(len(large))))
    elif not reasons and not can_do(processor_of(node), _of_processor(shape.wants)):
        need = " ".join(part for part in (shape.wants.backend, shape.wants.precision, *shape.wants.ops) if part)
        reasons.append(_too_small("NO_SUCH_DEVICE", node.name, need, "its CPUs"))
    return reasons


def _kept_devices(node: Node, shape: Shape, short: int) -> str:
    """Return the time for which the missing devices are reserved, as text; empty if others are missing."""
    if short <= 0:
        return ""
    unkept = msgspec.structs.replace(shape, wants=msgspec.structs.replace(shape.wants, kept=()))
    more = [of for of in node.devices if of.kept and can_serve(model_of(of), unkept)]
    barring = [told for of in more for name, told in shape.wants.kept if name in of.kept]
    return barring[0] if len(barring) >= short else ""


def _reserved(code: str, subject: str, told: str, shape: Shape) -> Reason:
    lasts = shape.where.lasts
    need = "a time limit, or `preemptible: true`" if lasts >= PLENTY else format_duration(lasts)
    return Reason(code=code, subject=subject, need=need, have=told)


def shortfall(node: Node, shape: Shape) -> float:
    """Return how much the empty node lacks for one task: the sum over resources of the missing part; 0 if it fits."""
    devices = sum(can_serve(model_of(device), shape) for device in node.devices)
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
    """The largest free amounts per kind of node: enough to explain why a shape fits nowhere, without examining every
    node. It holds for shapes with the same `where`.
    """

    def __init__(self, fleet: Fleet, free: Ints, where: Where = ANYWHERE) -> None:
        self._fleet, closed = fleet, fleet.closed
        if where != ANYWHERE:
            closed = np.where([where.admits(node) for node in fleet.nodes], closed, np.int8(ENDING))
            if where.kept:
                kept = dict(where.kept)
                closed = np.where([name not in kept for name in fleet.names], closed, np.int8(RESERVED))
            closed = np.where([where.allows(node) for node in fleet.nodes], closed, np.int8(ELSEWHERE))
        self._kinds = kinds = _kinds_of(fleet, closed, where)
        opened = free if kinds.all_open else np.where(closed == 0, free, -1)
        most = np.maximum.reduceat(opened[:, kinds.order], kinds.starts, axis=1)
        self._most: list[list[int]] = most.T.tolist()

    def reasons(self, shape: Shape, able: Ability) -> list[Reason]:
        """Return why no node of each kind has room, then the nodes that are closed."""
        fleet, reasons = self._fleet, []
        for kind, subject in self._kinds.opened:
            if not able.room[kind]:
                like = fleet.nodes[fleet.likes[kind]]
                lacks = never(like, msgspec.structs.replace(shape, where=ANYWHERE))
                reasons += [_renamed(reason, subject) for reason in lacks]
                continue
            cpu, memory, network, devices = (max(0, most) for most in self._most[kind])
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
        return reasons + self._kinds.closed


class _Kinds(NamedTuple):
    """Nodes in `order` of their kinds; each kind begins at `starts`. `opened` holds the kinds with open nodes and the
    names of those nodes; `closed` the reasons for the closed nodes, which `key` identifies.
    """

    key: bytes
    order: Ints
    starts: Ints
    all_open: bool
    opened: list[tuple[int, str]]
    closed: list[Reason]


def _kinds_of(fleet: Fleet, shut: NDArray[np.int8], where: Where) -> _Kinds:
    """Return the nodes by kind; recomputed when other nodes are `shut`."""
    key = shut.tobytes()
    known: _Kinds | None = fleet.runs.get("kinds")
    if known is None or known.key != key:
        order = np.argsort(fleet.kind, kind="stable")
        counts = np.bincount(fleet.kind)
        starts = np.cumsum(counts) - counts
        opened = [rows[shut[rows] == 0] for rows in np.split(order, starts[1:])]
        closed = [
            closed_reason(code, _name_them(fleet, rows))
            for code in range(1, len(CLOSED_CODES))
            if len(rows := np.flatnonzero(shut == code))
        ]
        if len(rows := np.flatnonzero(shut == ELSEWHERE)):
            closed.append(_too_small("OTHER_NODE", _name_them(fleet, rows), where.describe(), ""))
        if len(rows := np.flatnonzero(shut == ENDING)):
            closed.append(_ends(_name_them(fleet, rows), where, [fleet.names[row] for row in rows]))
        if len(rows := np.flatnonzero(shut == RESERVED)):
            latest = max(where.kept_on(fleet.names[row]) for row in rows.tolist())
            closed.append(_reserved("NODE_RESERVED", _name_them(fleet, rows), latest, Shape(where=where)))
        named = [(kind, _name_them(fleet, rows)) for kind, rows in enumerate(opened) if len(rows)]
        known = fleet.runs["kinds"] = _Kinds(key, order, starts, not closed, named, closed)
    return known


def _ends(subject: str, where: Where, names: Sequence[str] = ()) -> Reason:
    """Return the reason that the node ends before the work; of several nodes, with the longest remaining time."""
    left = max(of for name, of in where.ending if name in (names or (subject,)))
    return Reason(code="NODE_ENDS", subject=subject, need=format_duration(where.lasts), have=format_duration(left))


def _name_them(fleet: Fleet, rows: Sequence[int] | Ints) -> str:
    if len(rows) <= 4:
        return ", ".join(fleet.names[row] for row in rows)
    return f"{len(rows)} nodes like {fleet.names[rows[0]]}"


def _renamed(reason: Reason, subject: str) -> Reason:
    return Reason(code=reason.code, subject=subject, need=reason.need, have=reason.have, fixable="never")


def _busy(code: str, subject: str, need: str, have: str) -> Reason:
    return Reason(code=code, subject=subject, need=need, have=have)


def _too_small(code: str, subject: str, need: str, have: str) -> Reason:
    return Reason(code=code, subject=subject, need=need, have=have, fixable="never")
