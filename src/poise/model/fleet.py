"""The fleet as columns: capacity and free resources of every node, one row per node, for vectorized policies.

Rows are in order of the nodes' names. Amounts are integers as in the ledger. Treat a `Fleet` that you receive as
read-only; the ledger keeps its own and hands out copies, so that a view never changes.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from poise.model.jobs import NO_WORK, WEIGHT, Work
from poise.model.resources import PLENTY, SHARED_CAP, WHOLE, Device, Node, Shape

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

CPU, MEMORY, NETWORK, DEVICES = range(4)
"""Rows of `free` and `total`: milli-CPU, bytes, bits per second, devices that are completely free."""

OPEN, LOST, DRAINED, SUSPECT, EMPTYING, UNFIT = range(6)
"""Values of `closed`."""

CONDITIONS = ("up", "lost", "drained", "suspect", "emptying", "unfit")
CLOSED_CODES = ("", "NODE_LOST", "NODE_DRAINED", "NODE_SUSPECT", "NODE_DRAINED", "NODE_UNFIT")
"""By value of `closed`: its name, and its reason code. A node that is `emptying` is drained, and its running work moves
to other nodes.
"""

CORDONED = -2 * WHOLE
"""Value of `device_share` for a cordoned device: low enough to stay negative when its current work has ended."""

LOW, MEDIUM, HIGH, HOT = range(4)
"""Load levels (`levels`); the load of a hot node has been high for a sustained window."""

CLASSES = 4
"""Priority classes."""

MAX_PARTS = 4
"""Maximum number of parts of a fleet whose constant columns are cached."""


class PoolView(msgspec.Struct, frozen=True, array_like=True):
    """Attempts of one shape on one node: the maximum number that may run at once, and the current number including
    queued ones.

    `long` counts attempts that are not known to be brief: nothing is queued behind them.
    """

    slots: int
    attempts: int
    long: int = 0


class Resident(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An attempt that holds resources and is not known to be brief: a candidate to wait for or to preempt.

    `since` is the instant of its start (or placement). `kind` and `model` are the class and the device model by which
    run times are learned, `declared` the declared run time (0: none) and `work` its declared work. `checkpoint` is its
    checkpoint interval, reported or declared (0: none), `kept` the instant of its last checkpoint, if it reports them,
    and `restore` the cost of resuming. `preempted` counts its preemptions, `moved` how often it was stopped for its own
    good, `saved` is the progress of its earlier attempts that need not be repeated, in nanoseconds of one task, and
    `progress` the progress that these attempts reported, in millionths of all its work. `foreseen` is the predicted
    total run time of this attempt at its reported pace (nanoseconds, 0: not reported). `size` and `least` are the
    current and the minimum number of tasks of its unit (0: all), `most` the maximum. `attained` is the service of its
    earlier attempts; `due` is its deadline (0: none) and `weight` its business weight in thousandths. `stopping`: its
    resources are about to be free. `tenant` is the tenant whose quota it counts against, if any, `leaf` its share, if
    shares are declared. A unit that `serves` runs until it is stopped. A unit that `resizes` changes its size in place:
    `task` is its number in the unit, `resized` the instant of the latest change, and `losses` the number of members it
    lost recently. `gains` is its reported speedup over its minimum size, in thousandths (0: not reported).
    """

    unit: str
    ordinal: int
    priority: int
    shape: Shape
    kind: str
    since: int
    model: str = ""
    declared: int = 0
    devices: tuple[int, ...] = ()
    checkpoint: int = 0
    kept: int = 0
    restore: int = 0
    preempted: int = 0
    moved: int = 0
    preemptible: bool = True
    stopping: bool = False
    running: bool = False
    size: int = 1
    least: int = 0
    most: int = 1
    attained: int = 0
    work: Work = NO_WORK
    saved: int = 0
    progress: int = 0
    foreseen: int = 0
    outlived: int = 0
    due: int = 0
    weight: int = WEIGHT
    tenant: str = ""
    leaf: str = ""
    serves: str = ""
    task: int = 0
    resizes: bool = False
    resized: int = 0
    losses: int = 0
    gains: int = 0


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A straggler: the only attempt of a unit, on a node where it takes longer than similar attempts, which took
    `expected`. Or a gang with a member that `computes` for this long in each step, while the others take `expected`.
    """

    resident: Resident
    node: str
    expected: int
    computes: int = 0


class Phased(msgspec.Struct, frozen=True, kw_only=True):
    """A running unit whose training has entered another `phase`, in which it requests another `shape`; and the nodes of
    its tasks.
    """

    resident: Resident
    phase: str
    shape: Shape
    nodes: tuple[str, ...]


class Fleet:
    """Columns over N nodes of at most D devices.

    `total` and `free` are int64 of shape (4, N), rows CPU, MEMORY, NETWORK, DEVICES; `closed`, `levels` int8 of shape
    (N,); `failures` float64 (N,), the smoothed fraction of attempts lost or failed; `device_model` int16 (N, D), an
    index into `models`, -1 for no device; `processor` int16 (N,), the same for the node's CPUs; `device_memory` and
    `device_share` int64 (N, D), the free amounts of each device (bytes, thousandths of its compute), `device_spare` the
    thousandths that are not available for shares; `yielding` int64 (4, 4, N), by priority class the amount of each
    resource that preemptible attempts hold. `residents` holds a tuple per node, `pools` is keyed by shape and row.
    `rack` and `zone` number the distinct names, `bandwidth` and `latency` int64 (N,) describe the node's network.
    `kind` int64 (N,) is equal for nodes with equal hardware; `likes` is the first row of each kind, `alike` says by
    kind whether its devices are all of one model and not linked. `ends` lists the nodes with an end time, and that
    time. `abilities` caches constant facts by shape, and `runs` caches run times with their source data; all copies
    share them.

    A column is either listed in `CHANGING` or derived from the nodes alone: copies share it then, and a view that
    travels rebuilds it from the nodes. If the fleet `grows`, other systems may allocate more nodes than it has.
    """

    CHANGING: ClassVar = ("free", "closed", "levels", "failures", "device_memory", "device_share", "yielding")
    """Arrays that change while the nodes stay; `residents` and `pools` do too."""

    __slots__ = (
        "abilities",
        "alike",
        "bandwidth",
        "closed",
        "device_memory",
        "device_model",
        "device_share",
        "device_spare",
        "ends",
        "failures",
        "free",
        "grows",
        "kind",
        "latency",
        "levels",
        "likes",
        "models",
        "names",
        "nodes",
        "pools",
        "processor",
        "rack",
        "residents",
        "rows",
        "runs",
        "total",
        "yielding",
        "zone",
    )

    def __init__(self, nodes: Sequence[Node] = ()) -> None:
        """Create a fleet with every node open and empty."""
        self.nodes = tuple(nodes)
        self.names = tuple(node.name for node in nodes)
        self.ends = tuple((node.name, node.until) for node in nodes if node.until)
        self.rows = {name: row for row, name in enumerate(self.names)}
        count, width = len(nodes), max((len(node.devices) for node in nodes), default=0)
        self.total: Ints = np.zeros((4, count), np.int64)
        self.closed: NDArray[np.int8] = np.zeros(count, np.int8)
        self.levels: NDArray[np.int8] = np.zeros(count, np.int8)
        self.failures: Floats = np.zeros(count)
        self.device_model: NDArray[np.int16] = np.full((count, width), -1, np.int16)
        self.device_memory: Ints = np.zeros((count, width), np.int64)
        self.device_share: Ints = np.zeros((count, width), np.int64)
        self.device_spare: Ints = np.zeros((count, width), np.int64)
        self.yielding: Ints = np.zeros((CLASSES, 4, count), np.int64)
        self.residents: list[tuple[Resident, ...]] = [()] * count
        self.pools: dict[str, dict[int, PoolView]] = {}
        self.processor: NDArray[np.int16] = np.zeros(count, np.int16)
        self.kind: Ints = np.zeros(count, np.int64)
        models: dict[DeviceModel, int] = {}
        kinds: dict[object, int] = {}
        likes: list[int] = []
        for row, node in enumerate(nodes):
            self.total[:, row] = (node.cpu, node.memory, node.network or PLENTY, len(node.devices))
            self.processor[row] = models.setdefault(processor_of(node), len(models))
            for place, device in enumerate(node.devices):
                self.device_model[row, place] = models.setdefault(model_of(device), len(models))
                self.device_memory[row, place] = device.memory
                self.device_share[row, place] = WHOLE
                self.device_spare[row, place] = WHOLE - device.share_cap
            processor = int(self.processor[row])
            offers = (node.cpu, node.memory, node.network, processor, self.device_model[row].tobytes(), node.links)
            self.kind[row] = kinds.setdefault(offers, len(kinds))
            if len(likes) < len(kinds):
                likes.append(row)
        self.zone: Ints = _numbered([node.zone for node in nodes])
        self.rack: Ints = _numbered([(node.zone, node.rack) for node in nodes])
        self.bandwidth: Ints = np.array([node.network for node in nodes], np.int64)
        self.latency: Ints = np.array([node.latency for node in nodes], np.int64)
        self.models = tuple(models)
        self.likes = tuple(likes)
        self.alike = [not nodes[row].links and len(set(self.device_model[row].tolist()) - {-1}) < 2 for row in likes]
        self.free: Ints = self.total.copy()
        self.abilities: dict[Shape, Any] = {}
        self.runs: dict[Any, Any] = {}
        self.grows = False

    def copy(self) -> "Fleet":
        """Return a fleet with the same rows and its own copies of the changing columns."""
        made = object.__new__(Fleet)
        for name in Fleet.__slots__:
            setattr(made, name, getattr(self, name))
        for name in Fleet.CHANGING:
            setattr(made, name, getattr(self, name).copy())
        made.residents = self.residents.copy()
        made.pools = {key: dict(of) for key, of in self.pools.items()}
        return made

    def part(self, rows: Sequence[int]) -> "Fleet":
        """Return a fleet of only these rows, with their present state. Its constant columns are cached with this fleet,
        for the parts that were used last.
        """
        key, known = tuple(rows), self.runs.get("parts", {})
        empty: Fleet | None = known.get(key)
        if empty is None:
            empty = Fleet([self.nodes[row] for row in key])
            self.runs["parts"] = dict([*known.items()][-MAX_PARTS + 1 :]) | {key: empty}
        made, width, index = empty.copy(), empty.device_share.shape[1], np.array(key, np.int64)
        for name in Fleet.CHANGING:
            theirs = getattr(self, name)
            setattr(made, name, theirs[index, :width] if name.startswith("device_") else theirs[..., index])
        made.residents = [self.residents[row] for row in key]
        places = {row: place for place, row in enumerate(key)}
        for shape, pools in self.pools.items():
            here = {places[row]: pool for row, pool in pools.items() if row in places}
            if here:
                made.pools[shape] = here
        made.grows = self.grows
        return made

    def emptied(self) -> "Fleet":
        """Return a copy as if nothing ran. Its closed nodes and cordoned devices stay closed."""
        bare: Fleet | None = self.runs.get("bare")
        if bare is None:
            bare = self.runs["bare"] = Fleet(self.nodes)
        made = self.copy()
        made.device_share = np.where(self.device_share < 0, self.device_share, bare.device_share)
        made.device_memory = bare.device_memory.copy()
        made.free = self.total.copy()
        made.free[DEVICES] = (made.device_share == WHOLE).sum(axis=1)
        made.yielding = bare.yielding.copy()
        made.residents = [()] * len(self)
        made.pools = {}
        return made

    def take_over(self, old: "Fleet") -> list[str]:
        """Copy the state of every unchanged node from `old`; return the names of the other nodes."""
        rows = [
            row
            for row, node in enumerate(self.nodes)
            if (of := old.rows.get(node.name)) is not None and (old.nodes[of] is node or old.nodes[of] == node)
        ]
        before = [old.rows[self.names[row]] for row in rows]
        width = min(self.device_share.shape[1], old.device_share.shape[1])
        for name in Fleet.CHANGING:
            ours, theirs = getattr(self, name), getattr(old, name)
            if name.startswith("device_"):
                ours[rows, :width] = theirs[before, :width]
            else:
                ours[..., rows] = theirs[..., before]
        for row, of in zip(rows, before, strict=True):
            self.residents[row] = old.residents[of]
        moved = dict(zip(before, rows, strict=True))
        for key, pools in old.pools.items():
            kept = {moved[of]: pool for of, pool in pools.items() if of in moved}
            if kept:
                self.pools[key] = kept
        same = set(rows)
        return [name for row, name in enumerate(self.names) if row not in same]

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fleet):
            return NotImplemented
        return (
            self.nodes == other.nodes
            and self.residents == other.residents
            and self.pools == other.pools
            and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in Fleet.CHANGING)
        )

    __hash__ = None  # type: ignore[assignment]


class DeviceModel(msgspec.Struct, frozen=True, array_like=True):
    """Common properties of devices of one model: all inputs of speed estimates and capability checks. A `failed` device
    is known by its identity, and so is a model of its own; devices of other reservations (`kept`) are other models.
    """

    kind: str
    name: str
    backend: str = ""
    rates: tuple[tuple[str, int], ...] = ()
    bandwidth: int = 0
    ops: tuple[str, ...] = ()
    memory: int = 0
    failed: str = ""
    share_cap: int = SHARED_CAP
    kept: tuple[str, ...] = ()

    @property
    def called(self) -> str:
        """The name that distinguishes its run times from those of other models, as in `model_under`."""
        return self.name or self.kind


def model_of(device: Device) -> DeviceModel:
    """Return the model of a device."""
    rates = tuple(sorted(device.rates.items()))
    return DeviceModel(
        device.kind, device.model, device.backend, rates, device.bandwidth, device.ops, device.memory, device.failed,
        device.share_cap, device.kept,
    )  # fmt: skip


def processor_of(node: Node) -> DeviceModel:
    """Return a node's CPUs as a device model, for work without devices."""
    return DeviceModel("cpu", _called(node), "cpu", tuple(sorted(node.rates.items())), node.bandwidth)


def _called(node: Node) -> str:
    """Return the name of a node's CPUs."""
    return node.model or "cpu"


def model_under(node: Node, devices: tuple[int, ...]) -> str:
    """Return the model that distinguishes run times of an attempt with these devices of a node: that of its first
    device, or of the CPUs.
    """
    if not devices:
        return _called(node)
    first = devices[0]
    for device in node.devices:
        if device.index == first:
            return device.model or device.kind
    return ""


def _numbered(names: Sequence[object]) -> Ints:
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
