"""Views and plans as bytes, so that a policy can decide in another process. No pickle: columns are raw bytes.

A fleet's fixed columns follow from its nodes and are made again; only what changes travels. Nodes are left out when
whoever reads has them from the view before.

    view = decode_view(encode_view(view))

A plan that comes back is not trusted: `decode_plan` checks its types, and that it speaks of what the view shows.
"""

from typing import Any

import msgspec
import numpy as np

from poise.model.decisions import Place, Plan, Preempt, Spot
from poise.model.fleet import Fleet, PoolView, Resident
from poise.model.profiles import Profile
from poise.model.resources import Node
from poise.model.views import Candidate, Snapshot

COLUMNS = ("free", "closed", "levels", "failures", "device_memory", "device_share", "yielding")
"""Of a fleet, what is not given by its nodes."""

MAX_MEMORY = 2**20
"""Bytes of what a policy asks to be handed back: it is written to the log each time that it changes."""


class Column(msgspec.Struct, frozen=True, array_like=True):
    """An array: `dtype` as numpy writes it (`<i8`), its shape, its bytes in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class _View(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot as it travels; `nodes` is None where the reader has them."""

    nodes: tuple[Node, ...] | None
    columns: tuple[Column, ...]
    residents: list[tuple[Resident, ...]]
    pools: dict[str, dict[int, PoolView]]
    revision: int
    now: int
    candidates: tuple[Candidate, ...]
    backlog: dict[str, int]
    profiles: dict[str, Profile]
    throughputs: dict[str, float]
    memory: dict[str, Any]
    elastic: tuple[Resident, ...]
    triggers: tuple[str, ...]
    seed: int


_encoder = msgspec.msgpack.Encoder()
_views = msgspec.msgpack.Decoder(_View)
_plans = msgspec.msgpack.Decoder(Plan)


def encode_view(view: Snapshot, known: tuple[Node, ...] | None = None) -> bytes:
    """`known` are the nodes of the view that the reader had last."""
    fleet = view.fleet
    return _encoder.encode(
        _View(
            nodes=None if fleet.nodes is known else fleet.nodes,
            columns=tuple(_column(getattr(fleet, name)) for name in COLUMNS),
            residents=fleet.residents,
            pools=fleet.pools,
            revision=view.revision,
            now=view.now,
            candidates=view.candidates,
            backlog=dict(view.backlog),
            profiles=dict(view.profiles),
            throughputs=dict(view.throughputs),
            memory=dict(view.memory),
            elastic=view.elastic,
            triggers=view.triggers,
            seed=view.seed,
        )
    )


def decode_view(data: bytes, before: Fleet | None = None) -> Snapshot:
    """The snapshot; its columns that change cannot be written to. `before` is the fleet of the view read last.

    Raises ValueError for what is no view, or has its nodes left out where there is no `before`.
    """
    read = _views.decode(data)
    if read.nodes is not None:
        fleet = Fleet(read.nodes)
    elif before is not None:
        fleet = before.copy()
    else:
        raise ValueError("the view has its nodes left out, and there was none before it")
    for name, column in zip(COLUMNS, read.columns, strict=True):
        setattr(fleet, name, np.frombuffer(column.data, np.dtype(column.dtype)).reshape(column.shape))
    fleet.residents, fleet.pools = read.residents, read.pools
    return Snapshot(
        revision=read.revision,
        now=read.now,
        fleet=fleet,
        candidates=read.candidates,
        backlog=read.backlog,
        profiles=read.profiles,
        throughputs=read.throughputs,
        memory=read.memory,
        elastic=read.elastic,
        triggers=read.triggers,
        seed=read.seed,
    )


def encode_plan(plan: Plan) -> bytes:
    """Raises ValueError for what is no plan, or holds what cannot travel."""
    if not isinstance(plan, Plan):
        raise ValueError(f"`decide` gave a `{type(plan).__name__}`, not a Plan")
    try:
        return _encoder.encode(plan)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise ValueError(f"the plan holds what cannot be written: {error}") from None


def decode_plan(data: bytes, view: Snapshot) -> Plan:
    """The plan, if it is one for this view. Raises ValueError with the first thing that is wrong with it."""
    try:
        plan = _plans.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the plan is malformed: {error}") from None
    if plan.failed:
        raise ValueError(plan.failed)
    if plan.base != view.revision:
        raise ValueError(f"the plan is for revision {plan.base}, and the view is of {view.revision}")
    if plan.until is not None and plan.until <= view.now:
        raise ValueError("`until` is not later than now: that would be asked again without end")
    if plan.memory is not None and len(_encoder.encode(plan.memory)) > MAX_MEMORY:
        raise ValueError(f"`memory` is larger than {MAX_MEMORY} bytes")
    _check_named(plan, view)
    return plan


def _check_named(plan: Plan, view: Snapshot) -> None:
    """Whether units, nodes and queues are those of the view, and each is decided on once."""
    waiting = {candidate.unit for candidate in view.candidates}
    running = {resident.unit for residents in (*view.fleet.residents, view.elastic) for resident in residents}
    decided: set[str] = set()
    for decision in plan.decisions:
        if isinstance(decision, Place):
            name, known, what = decision.unit, waiting, "unit that waits"
            _check_spots(decision.unit, decision.spots, view.fleet)
        elif isinstance(decision, Preempt):
            name, known, what = decision.unit, running, "unit that runs"
        else:
            if decision.queue not in view.backlog:
                raise ValueError(f"there is no queue `{decision.queue}`")
            continue
        if name not in known:
            raise ValueError(f"there is no {what} named `{name}`")
        if name in decided:
            raise ValueError(f"`{name}` is decided on twice")
        decided.add(name)


def _check_spots(unit: str, spots: tuple[Spot, ...], fleet: Fleet) -> None:
    if not spots:
        raise ValueError(f"`{unit}` is placed nowhere")
    for spot in spots:
        if spot.node not in fleet.rows:
            raise ValueError(f"there is no node `{spot.node}`")


def _column(array: Any) -> Column:
    packed = np.ascontiguousarray(array)
    return Column(packed.dtype.str, packed.shape, packed.tobytes())
