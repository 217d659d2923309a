"""Views and plans as bytes, so that a policy can decide in another process. No pickle: columns are raw bytes.

A fleet's fixed columns are recomputed from its nodes; only changing columns are sent. Nodes are left out if the reader
has them from the last view.

    view = decode_view(encode_view(view))

A returned plan is not trusted: `decode_plan` checks its types, and `check_plan` checks it against the view.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from poise.decoding import msgpack_decoder
from poise.model.decisions import Hold, Place, Plan, Preempt, Resize, Spot
from poise.model.fleet import CPU, MEMORY, NETWORK, Fleet, PoolView, Resident
from poise.model.quotas import asked
from poise.model.resources import WHOLE, Node, Shape, Wants
from poise.model.views import Candidate, Snapshot
from poise.policy.feasible import can_do

MAX_MEMORY = 2**20
"""Maximum bytes of a policy's memory, which is written to the log each time it changes."""


class Unsound(ValueError):
    """A plan that is malformed, or does not fit the view."""


class Column(msgspec.Struct, frozen=True, array_like=True):
    """An array: `dtype` in numpy's notation (`<i8`), its shape, its bytes in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class _Fleet(msgspec.Struct, frozen=True, array_like=True):
    """An encoded fleet; `nodes` is None if the reader has them. `columns` are those of `Fleet.CHANGING`."""

    nodes: tuple[Node, ...] | None
    columns: tuple[Column, ...]
    residents: list[tuple[Resident, ...]]
    pools: dict[str, dict[int, PoolView]]


class _View(msgspec.Struct, frozen=True, array_like=True):
    """An encoded snapshot: its fleet, and all its other fields."""

    fleet: _Fleet
    rest: msgspec.Raw


def _left_out(of: Any) -> None:
    """Replaces a snapshot's fleet, which is encoded separately."""
    if not isinstance(of, Fleet):
        raise NotImplementedError(f"a view holds what cannot be written: {type(of).__name__}")


def _to_come(kind: type, _: Any) -> Any:
    return kind()


_encoder = msgspec.msgpack.Encoder()
_without_fleet = msgspec.msgpack.Encoder(enc_hook=_left_out)
_views = msgpack_decoder(_View)
_rest = msgpack_decoder(Snapshot, _to_come)
_plans = msgpack_decoder(Plan)


def encode_view(view: Snapshot, known: tuple[Node, ...] | None = None) -> bytes:
    """Encode a view. `known` are the nodes of the last view that the reader got."""
    fleet = view.fleet
    sent = _Fleet(
        nodes=None if fleet.nodes is known else fleet.nodes,
        columns=tuple(_column(getattr(fleet, name)) for name in Fleet.CHANGING),
        residents=fleet.residents,
        pools=fleet.pools,
    )
    return _encoder.encode(_View(sent, msgspec.Raw(_without_fleet.encode(view))))


def decode_view(data: bytes, before: Fleet | None = None) -> Snapshot:
    """Return the snapshot; its changing columns are read-only. `before` is the fleet of the view read last.

    Raises ValueError for an invalid view, and for one without nodes if there is no `before`.
    """
    read = _views.decode(data)
    sent = read.fleet
    if sent.nodes is not None:
        fleet = Fleet(sent.nodes)
    elif before is not None:
        fleet = before.copy()
    else:
        raise ValueError("the view has its nodes left out, and there was none before it")
    for name, column in zip(Fleet.CHANGING, sent.columns, strict=True):
        setattr(fleet, name, np.frombuffer(column.data, np.dtype(column.dtype)).reshape(column.shape))
    fleet.residents, fleet.pools = sent.residents, sent.pools
    return msgspec.structs.replace(_rest.decode(read.rest), fleet=fleet)


def encode_plan(plan: Plan) -> bytes:
    """Encode a plan. Raises `Unsound` if it is not a plan, or cannot be encoded."""
    if not isinstance(plan, Plan):
        raise Unsound(f"`decide` gave a `{type(plan).__name__}`, not a Plan")
    try:
        return _encoder.encode(plan)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise Unsound(f"the plan holds what cannot be written: {error}") from None


def decode_plan(data: bytes, view: Snapshot) -> Plan:
    """Return the plan, if it is valid for this view. Raises `Unsound` with the first problem."""
    try:
        plan = _plans.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unsound(f"the plan is malformed: {error}") from None
    if plan.failed:
        raise Unsound(plan.failed)
    if plan.base != view.revision:
        raise Unsound(f"the plan is for revision {plan.base}, and the view is of {view.revision}")
    if plan.until is not None and plan.until <= view.now:
        raise Unsound("`until` is not later than now: that would be asked again without end")
    if plan.memory is not None and len(_encoder.encode(plan.memory)) > MAX_MEMORY:
        raise Unsound(f"`memory` is larger than {MAX_MEMORY} bytes")
    return plan


def check_plan(plan: Plan, view: Snapshot) -> None:
    """Raise `Unsound` unless a decoded plan refers only to items of the view, decides on each unit once, and fits into
    the view's free room. Otherwise the ledger would refuse it round after round, and nothing would start.
    """
    waiting = {candidate.unit: candidate for candidate in view.candidates}
    residents = (*view.fleet.residents, view.elastic)
    running = {resident.unit: resident for of_node in residents for resident in of_node}
    taking = _Taking(view.fleet)
    quotas = dict(view.quotas)
    decided: set[str] = set()
    for decision in plan.decisions:
        if isinstance(decision, Hold):
            if decision.queue not in view.backlog:
                raise Unsound(f"there is no queue `{decision.queue}`")
            continue
        if decision.unit in decided:
            raise Unsound(f"`{decision.unit}` is decided on twice")
        decided.add(decision.unit)
        if isinstance(decision, Preempt | Resize) and decision.unit not in running:
            raise Unsound(f"there is no unit that runs named `{decision.unit}`")
        if isinstance(decision, Preempt):
            continue
        if isinstance(decision, Resize):
            _check_spots(decision.unit, decision.joins, view.fleet)
            resident = running[decision.unit]
            taking.take(decision.unit, decision.joins, resident.shape)
            if resident.tenant in quotas:
                quotas[resident.tenant] = quotas[resident.tenant].plus(asked(resident.shape, len(decision.joins)), -1)
            continue
        candidate = waiting.get(decision.unit)
        if candidate is None:
            raise Unsound(f"there is no unit that waits named `{decision.unit}`")
        _check_place(decision, candidate, view.fleet)
        shape = (candidate.shape, *candidate.others)[decision.variant]
        if not decision.queued:
            taking.take(decision.unit, decision.spots, shape)
        if candidate.tenant in quotas and not candidate.recovering:
            quotas[candidate.tenant] = quotas[candidate.tenant].plus(asked(shape, len(decision.spots)), -1)
    taking.check()
    for tenant, left in quotas.items():
        if any(now < min(0, before) for now, before in zip(left, view.quotas[tenant], strict=True)):
            raise Unsound(f"the quota of {tenant} has not the room for all that is placed")


def _check_place(place: Place, candidate: Candidate, fleet: Fleet) -> None:
    if not 0 <= place.variant <= len(candidate.others):
        raise Unsound(f"`{place.unit}` has no artifact number {place.variant}")
    least = candidate.least or candidate.tasks
    if not least <= len(place.spots) <= candidate.tasks:
        raise Unsound(f"`{place.unit}` has {len(place.spots)} spots, and needs {least} to {candidate.tasks}")
    _check_spots(place.unit, place.spots, fleet)


def _check_spots(unit: str, spots: Iterable[Spot], fleet: Fleet) -> None:
    for spot in spots:
        row = fleet.rows.get(spot.node)
        if row is None:
            raise Unsound(f"there is no node `{spot.node}`")
        if fleet.closed[row]:
            raise Unsound(f"node `{spot.node}` is closed: `{unit}` cannot go there")


class _Taking:
    """The total that a plan takes of every node and device."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._nodes: dict[int, list[int]] = {}
        self._devices: dict[tuple[int, int], list[int]] = {}
        self._places: dict[int, dict[int, int]] = {}
        self._able: dict[tuple[int, Wants], bool] = {}

    def take(self, unit: str, spots: Iterable[Spot], shape: Shape) -> None:
        for spot in spots:
            row = self._fleet.rows[spot.node]
            if not shape.where.admits(self._fleet.nodes[row]):
                raise Unsound(f"`{unit}` may not run on {spot.node}")
            taken = self._nodes.setdefault(row, [0, 0, 0])
            taken[CPU] += shape.cpu
            taken[MEMORY] += shape.memory
            taken[NETWORK] += shape.network
            if len(spot.devices) != shape.gpus:
                raise Unsound(f"`{unit}` gets {len(spot.devices)} devices of {spot.node}, and needs {shape.gpus}")
            for index in spot.devices:
                self._take_device(unit, row, index, shape)

    def _take_device(self, unit: str, row: int, index: int, shape: Shape) -> None:
        fleet = self._fleet
        places = self._places.get(row)
        if places is None:
            places = self._places[row] = {device.index: at for at, device in enumerate(fleet.nodes[row].devices)}
        at = places.get(index)
        if at is None:
            raise Unsound(f"{fleet.names[row]} has no device {index}")
        model = int(fleet.device_model[row, at])
        able = self._able.get((model, shape.wants))
        if able is None:
            able = self._able[model, shape.wants] = can_do(fleet.models[model], shape.wants)
        if not able:
            raise Unsound(f"device {index} of {fleet.names[row]} is not what `{unit}` asks for")
        spare = 0 if shape.share == WHOLE else int(fleet.device_spare[row, at])
        taken = self._devices.setdefault((row, at), [spare, 0])
        taken[0] += shape.share
        taken[1] += shape.gpu_memory

    def check(self) -> None:
        fleet = self._fleet
        for row, needs in self._nodes.items():
            for resource, name in ((CPU, "CPU"), (MEMORY, "memory"), (NETWORK, "network")):
                have, need = int(fleet.free[resource, row]), needs[resource]
                if need > have and need:
                    raise Unsound(f"{fleet.names[row]} has not the {name} for all that is placed there")
        for (row, at), (share, memory) in self._devices.items():
            if share > fleet.device_share[row, at] or memory > fleet.device_memory[row, at]:
                index = fleet.nodes[row].devices[at].index
                raise Unsound(f"device {index} of {fleet.names[row]} has not the room for all that is placed there")


def _column(array: Any) -> Column:
    packed = np.ascontiguousarray(array)
    return Column(packed.dtype.str, packed.shape, packed.tobytes())
