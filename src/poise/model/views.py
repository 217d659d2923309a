"""What a policy sees: an immutable snapshot of the ledger, with estimates and never truths."""

from collections.abc import Mapping
from typing import Any

import msgspec

from poise.model.profiles import Profile
from poise.model.resources import Device, Shape


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that could be placed now.

    `expected` is the foreseen run time and `tail` the foreseen length of the longest path from this unit's start to the
    end of its graph, in nanoseconds; `due` is the instant by which it must end for every deadline after it, 0 for none.
    `queue` names the units that are alike to placement. `recovering` units are still held by a lost node; a `recalled`
    one was queued behind its like in vain, and needs room of its own.
    """

    unit: str
    job: str
    ordinal: int
    priority: int
    kind: str
    shape: Shape
    tasks: int
    submitted: int
    ready: int
    tail: int
    queue: str
    expected: int = 0
    due: int = 0
    critical: bool = False
    recovering: bool = False
    recalled: bool = False


class PoolView(msgspec.Struct, frozen=True):
    """Attempts of one shape on one node: how many may run at once, and how many are there, waiting ones included.

    `long` counts those that are not known to be brief: nothing is queued behind them.
    """

    slots: int
    attempts: int
    long: int = 0


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node and the room on it. `cpu` in milli-CPU, memory in bytes; `free_devices` are whole free devices."""

    name: str
    open: bool
    why_closed: str
    cpu: int
    memory: int
    free_cpu: int
    free_memory: int
    devices: tuple[Device, ...]
    free_devices: tuple[Device, ...]
    pools: Mapping[str, PoolView]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All a cluster policy may read. Candidates come in order of submission; of a long queue only the head is shown.

    `profiles` holds the classes of the candidates shown. `active` lists the units that hold room of their own; only
    `static` is shown it.
    """

    revision: int
    now: int
    nodes: tuple[NodeView, ...]
    candidates: tuple[Candidate, ...]
    backlog: Mapping[str, int]
    profiles: Mapping[str, Profile]
    active: tuple["ActiveView", ...] = ()
    memory: Mapping[str, Any] = {}
    seed: int = 0


class ActiveView(msgspec.Struct, frozen=True, array_like=True):
    """A unit that holds room: its ordinal, milli-CPU per task, and the node of each task."""

    ordinal: int
    cpu: int
    nodes: tuple[str, ...]
