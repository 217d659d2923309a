"""Amounts of what a node has and a task asks for, and the shapes by which tasks are told apart.

Tasks of equal `Shape` are interchangeable to placement: they fit on the same nodes and leave the same room.
"""

import re
from functools import lru_cache
from typing import Annotated

import msgspec

from poise.errors import SpecError
from poise.units import format_bytes, format_cpu, format_rate

PLENTY = 2**62
"""An amount without bound, such as the network of a node that did not say: never the reason to refuse."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**56)]
Rate = Annotated[int, msgspec.Meta(ge=0, le=PLENTY)]
"""What a node may say of itself: sums over a fleet are kept in 64 bits. Checked where a message is read."""

WHOLE = 1000
"""Thousandths of a device's compute: all of it."""

Part = Annotated[int, msgspec.Meta(ge=0, le=WHOLE)]

SHARED_CAP = 800
"""Thousandths of a device's compute that shares may take together, unless it is said otherwise of the device; the rest
absorbs what sharing itself costs."""

_NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:-]{0,254}")

DECLARED = {"declared": "true"}
"""The label of a node that offers what a file says, and not what was found."""


ALLOCATED = "allocation"
"""The label of a node that another system has allocated because it was asked to: it may allocate larger ones as well.
Its value is the id of the allocation there."""


class Wants(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """What a device must be. Empty fields ask for nothing.

    `models` names any that will do; `backend` is what the artifact was built for (cuda, rocm, cann, …); `precision` is
    the one the work would use, or the next wider one the device has; `ops` must all be supported. `without` names
    devices that have failed this work before: by their identity.
    """

    kind: str = "gpu"
    models: tuple[str, ...] = ()
    backend: str = ""
    precision: str = ""
    ops: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


ANY_GPU = Wants()

Labels = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of labels, each with values of which any will do."""


class Where(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """Which nodes a task may run on. Empty fields ask for nothing.

    `nodes` names any that will do, `without` those that will not; of each of `labels` a node must have one of the
    values, and none of those in `without_labels`. A node's zone, rack and name (`node`) are labels too. Of a gang, all
    tasks run on different values of the label `spread`, and on one value of the label `together`.

    In a snapshot, `ending` names the nodes that end before the work would, with the nanoseconds that they have left in
    whole minutes; the work needs one that `lasts` for so many.
    """

    nodes: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    labels: Labels = ()
    without_labels: Labels = ()
    spread: str = ""
    together: str = ""
    ending: tuple[tuple[str, int], ...] = ()
    lasts: int = 0

    @property
    def groups(self) -> bool:
        """Whether the tasks of a gang may not run on just any nodes that each could run on."""
        return bool(self.spread or self.together)

    def admits(self, node: "Node") -> bool:
        """Whether a task may run on this node, and it lasts for long enough."""
        return self.allows(node) and not (self.ending and any(name == node.name for name, _ in self.ending))

    def allows(self, node: "Node") -> bool:
        """Whether a task may run on this node, for as long as it is there."""
        if (self.nodes and node.name not in self.nodes) or node.name in self.without:
            return False
        if self.groups and not all(node.label(name) for name in (self.spread, self.together) if name):
            return False
        return all(node.label(name) in values for name, values in self.labels) and not any(
            node.label(name) in values for name, values in self.without_labels
        )

    def describe(self) -> str:
        """For people: `node gpu-1 or gpu-2, zone=eu, not spot=yes`; the flags say the same."""
        told = [f"node {' or '.join(self.nodes)}"] if self.nodes else []
        told += [f"{name}={' or '.join(values)}" for name, values in self.labels]
        told += [f"not {name}={' or '.join(values)}" for name, values in self.without_labels]
        told += [f"not node {' or '.join(self.without)}"] if self.without else []
        told += [f"a different {self.spread} for each task"] if self.spread else []
        return ", ".join(told + ([f"one {self.together} for all tasks"] if self.together else []))


ANYWHERE = Where()


class Shape(msgspec.Struct, frozen=True, omit_defaults=True, cache_hash=True):
    """What one task asks of one node.

    `cpu` in milli-CPU, `memory` and `gpu_memory` in bytes (`gpu_memory` per device), `gpus` in devices, `share` in
    thousandths of each device's compute, `network` in bits per second. A memory of 0 means that none was asked for:
    nothing is reserved and nothing is limited. `where` says which nodes will do.
    """

    cpu: int = 1000
    memory: int = 0
    gpus: int = 0
    gpu_memory: int = 0
    share: int = WHOLE
    network: int = 0
    wants: Wants = ANY_GPU
    where: Where = ANYWHERE

    @property
    def is_part(self) -> bool:
        """Whether it asks for a share of one device."""
        return self.gpus == 1 and self.share != WHOLE

    def key(self) -> str:
        """A short text that is equal for equal shapes; keys maps in the ledger."""
        return _key_of(self)

    def describe(self) -> str:
        """For people: `2 CPU, 8 GiB, 1 GPU of 12 GiB`; `1 CPU on zone=eu`; `1 CPU, not node n1`."""
        parts = [f"{format_cpu(self.cpu)} CPU"]
        if self.memory:
            parts.append(format_bytes(self.memory))
        if self.gpus:
            parts.append(self.describe_devices())
        if self.network:
            parts.append(format_rate(self.network))
        where = self.where.describe()
        if where.startswith("not "):
            return ", ".join([*parts, where])
        return ", ".join(parts) + (f" on {where}" if where else "")

    def describe_devices(self) -> str:
        """For people: `2 H100 GPU of 40 GiB`, `0.5 of a GPU`; of what it needs to be, all that was asked."""
        wants = self.wants
        name = " ".join(part for part in ("/".join(wants.models), wants.backend, wants.kind.upper()) if part)
        text = f"{self.gpus} {name}" if self.share == WHOLE else f"{self.share / WHOLE:g} of {self.gpus} {name}"
        text += f" of {format_bytes(self.gpu_memory)}" if self.gpu_memory else ""
        text += f" with {wants.precision}" if wants.precision else ""
        text += f" for {', '.join(wants.ops)}" if wants.ops else ""
        return text + (f" other than {', '.join(wants.without)}" if wants.without else "")


@lru_cache(maxsize=4096)
def _key_of(shape: Shape) -> str:
    plain = f"{shape.cpu}.{shape.memory}.{shape.gpus}.{shape.gpu_memory}"
    if where := shape.where.describe():
        plain = f"{plain}@{where}"
    if shape.share == WHOLE and not shape.network and shape.wants == ANY_GPU:
        return plain
    wants = shape.wants
    asks = (wants.kind, "+".join(wants.models), wants.backend, wants.precision, "+".join(wants.ops))
    without = f".{'+'.join(wants.without)}" if wants.without else ""
    return f"{plain}.{shape.share}.{shape.network}.{'.'.join(asks)}{without}"


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accelerator of a node. `index` is its position on the node, `uuid` what its driver calls it.

    `rates` are peak operations per second by precision, `bandwidth` bytes per second of its memory, `ops` the operators
    it supports (none: not said, so all are), `socket` the host socket it hangs on, `price` micro-dollars per hour,
    `power` its cap in milliwatts, `share_cap` the thousandths of its compute that shares may take together. What is not
    known is 0 or empty. `driver_index` is the number that its driver gives
    it where it is not `index`. `sources` tells who said a figure (`model/figures.py`), where it is not the catalogue.
    `failed` is its identity if it has ever failed. A `withdrawn` one is offered no longer, while its work goes on. No
    node says that of itself: it is what the ledger knows.
    """

    index: Count
    kind: str = "gpu"
    model: str = ""
    memory: Amount = 0
    uuid: str = ""
    backend: str = ""
    rates: dict[str, Rate] = {}
    bandwidth: Rate = 0
    ops: tuple[str, ...] = ()
    socket: Count = 0
    price: Rate = 0
    power: Rate = 0
    share_cap: Part = SHARED_CAP
    driver_index: Count | None = None
    sources: dict[str, str] = {}
    failed: str = ""
    withdrawn: bool = False


def identity_of(node: str, device: Device) -> str:
    """What a device is known by, wherever it turns up again: the name that its driver gives it, else its place."""
    return device.uuid or f"{node}:{device.index}"


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A direct connection of two devices of one node: `bandwidth` in bits per second, `latency` in nanoseconds."""

    a: Count
    b: Count
    kind: str = "nvlink"
    bandwidth: Rate = 0
    latency: Rate = 0


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One agent identity and what it offers.

    `incarnation` changes when the machine is booted or the node's folder is made anew: processes of an older
    incarnation are gone. `cpu` in milli-CPU, `memory` in bytes, `network` in bits per second and `latency` in
    nanoseconds to the rest of the fleet (0: not said). `model` names its processor, `rates` and `bandwidth` are what it
    can do and `sources` who said so, as of a device. Work may run there `until` an instant (0: without end): nothing is
    placed there that is expected to take longer.
    """

    name: str
    incarnation: str
    cpu: Count
    memory: Amount
    devices: tuple[Device, ...] = ()
    labels: dict[str, str] = {}
    zone: str = ""
    rack: str = ""
    network: Rate = 0
    latency: Rate = 0
    links: tuple[Link, ...] = ()
    model: str = ""
    rates: dict[str, Rate] = {}
    bandwidth: Rate = 0
    sources: dict[str, str] = {}
    until: int = 0

    def label(self, name: str) -> str:
        """The value of a label, `zone`, `rack` and `node` among them; empty where it has none of this name."""
        return self.labels.get(name) or {"zone": self.zone, "rack": self.rack, "node": self.name}.get(name, "")


def check_node_name(name: str, field: str) -> None:
    """Machines have names of their own. Raises `SpecError` for what no path, line or command takes."""
    if not _NAME.fullmatch(name):
        raise SpecError(
            "a node's name has at most 255 letters, digits, `.`, `_`, `:` and `-`",
            code="E107",
            field=field,
            have=ascii(name[:80]),
            hint="give it another name: `--name`",
        )


def is_larger(node: Node, before: Node) -> bool:
    """Whether it has more to offer than it had, by more than what a kernel takes of the memory from boot to boot."""
    grown = node.cpu > before.cpu or node.memory > before.memory + before.memory // 16
    return grown or len(node.devices) > len(before.devices)


def is_declared(node: Node) -> bool:
    """Whether it offers what a file says, and not what was found."""
    return "declared" in node.labels
