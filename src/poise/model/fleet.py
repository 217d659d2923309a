"""The fleet as columns: what every node has and has free, one row a node, for policies that look at all at once.

Rows are in order of the nodes' names. Amounts are integers as in the ledger. Whoever is handed a `Fleet` reads it and
never writes to it; the ledger keeps its own and hands out copies, so a view stays what it was.
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
"""Rows of `free` and `total`: milli-CPU, bytes, bits per second, devices of which nothing is taken."""

OPEN, LOST, DRAINED, SUSPECT, EMPTYING, UNFIT = range(6)
"""Values of `closed`."""

CONDITIONS = ("up", "lost", "drained", "suspect", "emptying", "unfit")
CLOSED_CODES = ("", "NODE_LOST", "NODE_DRAINED", "NODE_SUSPECT", "NODE_DRAINED", "NODE_UNFIT")
"""By value of `closed`: its name, and the reason it gives. One that is being emptied is drained, and what runs there
goes on elsewhere."""

CORDONED = -2 * WHOLE
"""What `device_share` says of a device that gives no room: so little that it is none when who is there has ended."""

LOW, MEDIUM, HIGH, HOT = range(4)
"""Load levels (`levels`); a hot node's has been high for a sustained window."""

CLASSES = 4
"""Priority classes."""


class PoolView(msgspec.Struct, frozen=True, array_like=True):
    """Attempts of one shape on one node: how many may run at once, and how many are there, waiting ones included.

    `long` counts those that are not known to be brief: nothing is queued behind them.
    """

    slots: int
    attempts: int
    long: int = 0


class Resident(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An attempt that holds room and is not known to be brief: what could be waited for, or asked to yield.

    `since` is the instant at which it started (or was placed). `kind` and `model` are the class and the model of device
    by which run times are learned, `declared` the run time its user said (0: none) and `work` what there is to do.
    `checkpoint` is the interval of its checkpoints, as it says itself or as declared (0: none), `kept` the instant
    since which it has done what is in none, if it tells of them, and `restore` what coming back costs; `preempted`
    is how often it has yielded, `moved` how often it was stopped for its own good, `saved` what of its earlier
    attempts need not be done again, in nanoseconds of one task, and `progress` what they themselves said of that, in
    millionths of all its work; `foreseen` is for how long this attempt runs in all, at the pace that it tells of itself
    (nanoseconds, 0: it does not); `size` and `least` are the tasks of its unit, now and
    at the least (0: all), `most` how many it could use; `attained` is the service of its earlier attempts; `due` is
    when it must end (0: no deadline) and `weight` its business weight in thousandths. `stopping`:
    its room is about to be free. `tenant` is whose quota it counts against, where there is one, `leaf` its share, where
    any are declared. What `serves` goes on until it is ended. One that `resizes` changes its size in place: `task` is
    its number in the unit, `resized` the instant of the latest change, and `losses` how often it has lost members of
    late. `gains` is how much faster it says that it is in its size than with its least tasks, in thousandths (0: it has
    not said).
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
    """The only attempt of a unit, on a node where it takes longer than its like, which took `expected`. Or a gang, of
    which a member there `computes` for so long in each step, and the others for as long as `expected`.
    """

    resident: Resident
    node: str
    expected: int
    computes: int = 0


class Phased(msgspec.Struct, frozen=True, kw_only=True):
    """A running unit whose training has come into another `phase`, in which it asks for another `shape`; and the nodes
    of its tasks.
    """

    resident: Resident
    phase: str
    shape: Shape
    nodes: tuple[str, ...]


class Fleet:
    """Columns over N nodes of at most D devices.

    `total` and `free` are int64 of shape (4, N), rows CPU, MEMORY, NETWORK, DEVICES; `closed`, `levels` int8 of shape
    (N,); `failures` float64 (N,), attempts lost or failed per attempt, smoothed; `device_model` int16 (N, D), an index
    into `models` and -1 where there is no device; `processor` int16 (N,), the same for the node's CPUs; `device_memory`
    and `device_share` int64 (N, D), what is free of each device (bytes, thousandths of its compute), `device_spare` how
    many of these are not for shares; `yielding` int64 (4, 4, N), by priority class what its preemptible attempts hold
    of each resource. `residents` holds a tuple per
    node, `pools` by key of shape and row. `rack` and `zone` number those that are named alike, `bandwidth` and
    `latency` int64 (N,) are of the node's network. `kind` int64 (N,) tells nodes apart that offer different things;
    `likes` is the first row of each kind, `alike` says by kind whether its devices are all of one model and not linked.
    `ends` has the nodes that end, and when.
    `abilities` is what readers have worked out, by shape, of what never changes, and `runs` what they have of run times
    with what they had it from; all copies share them.

    A column is listed in `CHANGING`, or its nodes say all of it: copies share it then, and a view that travels makes it
    again from the nodes.
    """

    CHANGING: ClassVar = ("free", "closed", "levels", "failures", "device_memory", "device_share", "yielding")
    """The arrays that change while the nodes stay; `residents` and `pools` do too."""

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
        """Every node open and empty."""
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

    def copy(self) -> "Fleet":
        """The same rows, in columns of its own."""
        made = object.__new__(Fleet)
        for name in Fleet.__slots__:
            setattr(made, name, getattr(self, name))
        for name in Fleet.CHANGING:
            setattr(made, name, getattr(self, name).copy())
        made.residents = self.residents.copy()
        made.pools = {key: dict(of) for key, of in self.pools.items()}
        return made

    def take_over(self, old: "Fleet") -> list[str]:
        """Say of every node that is what it was what `old` says of it; returns the names of the others."""
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
    """What devices of one model have in common: all that an estimate of speed or a check of ability looks at. One that
    has `failed` is known by its identity, and so a model of its own.
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

    @property
    def called(self) -> str:
        """The name by which runs on it are told apart from others, as `model_under` has it."""
        return self.name or self.kind


def model_of(device: Device) -> DeviceModel:
    """What a device has in common with others of its model."""
    rates = tuple(sorted(device.rates.items()))
    return DeviceModel(
        device.kind, device.model, device.backend, rates, device.bandwidth, device.ops, device.memory, device.failed,
        device.share_cap,
    )  # fmt: skip


def processor_of(node: Node) -> DeviceModel:
    """A node's CPUs as a device model: work without devices runs on them."""
    return DeviceModel("cpu", _called(node), "cpu", tuple(sorted(node.rates.items())), node.bandwidth)


def _called(node: Node) -> str:
    """What its CPUs are called."""
    return node.model or "cpu"


def model_under(node: Node, devices: tuple[int, ...]) -> str:
    """What an attempt with these devices of a node runs on, by which runs of a class are told apart: its first device's
    model, or that of the CPUs.
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
