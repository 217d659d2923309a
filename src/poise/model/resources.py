"""Resource amounts of nodes and tasks, and shapes.

Tasks of equal `Shape` are interchangeable for placement: they fit on the same nodes and leave the same resources free.
"""

import re
from functools import lru_cache
from typing import Annotated

import msgspec

from poise.errors import SpecError
from poise.units import format_bytes, format_cpu, format_rate

PLENTY = 2**62
"""An unlimited amount, such as the network of a node that did not report it: never a reason to refuse a task."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**56)]
Rate = Annotated[int, msgspec.Meta(ge=0, le=PLENTY)]
"""Limits for amounts that a node reports, because sums over a fleet use 64 bits. Checked when a message is decoded."""

WHOLE = 1000
"""Thousandths of a device's compute: all of it."""

Part = Annotated[int, msgspec.Meta(ge=0, le=WHOLE)]

SHARED_CAP = 800
"""Thousandths of a device's compute that shares may take together, unless the device declares another value; the rest
absorbs the overhead of sharing.
"""

_NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:-]{0,254}")

DECLARED = {"declared": "true"}
"""Label of a node whose resources are declared in a file, not detected."""


ANY_ACCOUNT = "*"
"""Stands for every Unix account that a node knows: a directory service may not list them."""

MOST_ACCOUNTS = 1024

CONTAINERS = {"containers": "yes"}
"""Label of a node that runs a task in a container of its image."""


ROOTLESS = "containers-rootless"
"""Label of a node that runs containers as the Unix account of their owner; its value is `yes`."""


MOST_IMAGES = 256

MAX_DEVICES = 64
"""Maximum number of devices of one node."""

MAX_TEXT = 128
"""Maximum length of a text about a node or a device, such as its model."""


def image_mark(image: str) -> str:
    """Return the mark of an image: equal for equal digests, or for equal names without one. Nodes report their images
    by marks, which do not show the names to other tenants.

    >>> image_mark("a/b:1@sha256:12") == image_mark("sha256:12"), image_mark("a/b:1") == image_mark("a/b:2")
    (True, False)
    """
    from hashlib import blake2b  # commands import this module, and need no hashes

    name, _, digest = image.rpartition("@")
    return blake2b((digest if name else image).encode(), digest_size=8).hexdigest()


def contained(kind: str) -> str:
    """Return the name of the label of a node that can pass its devices of this kind to containers; its value is `yes`,
    as of `CONTAINERS`.
    """
    return f"containers-{kind}"


ALLOCATED = "allocation"
"""Label of a node that another system has allocated on request: the system may allocate larger nodes as well. The value
is the id of the allocation in that system.
"""


SUBSTRATE = "substrate"
"""Label of a node that is a machine of a cluster (`poise up --on`). The value is the name of the substrate."""


class Wants(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """Requirements for a device. Empty fields require nothing.

    `models` lists acceptable models; `backend` is the backend of the artifact (cuda, rocm, cann, …); `precision` is the
    precision of the work, or the next wider one that the device has; `ops` must all be supported. `without` lists the
    identities of devices that have failed this work before. In a snapshot, `kept` lists the reservations whose devices
    this work may not use now, each with its time as text.
    """

    kind: str = "gpu"
    models: tuple[str, ...] = ()
    backend: str = ""
    precision: str = ""
    ops: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()

    def may_use(self, reservations: tuple[str, ...]) -> bool:
        """Whether the work may use a device of these reservations."""
        return not self.kept or not any(name in reservations for name, _ in self.kept)


ANY_GPU = Wants()

Labels = tuple[tuple[str, tuple[str, ...]], ...]
"""Label names, each with its acceptable values."""


class Where(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """Requirements for the node of a task. Empty fields require nothing.

    `nodes` lists the allowed nodes, `without` the excluded ones. For each of `labels` a node must have one of the
    values, and none of those in `without_labels`. A node's zone, rack and name (`node`) are labels too. The tasks of a
    gang run on different values of the label `spread`, and on one value of the label `together`.

    In a snapshot, `ending` lists the nodes that end before the work would, with their remaining time in nanoseconds,
    rounded to minutes; the work needs a node that `lasts` for this many nanoseconds. `kept` lists the nodes that are
    reserved before the work would end, each with the time of the reservation as text. The task runs as the Unix
    `account` of its owner, which the node must offer (empty: as the user of the node's agent). Nodes that have its
    `image`, given by its mark, are preferred.
    """

    nodes: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    labels: Labels = ()
    without_labels: Labels = ()
    spread: str = ""
    together: str = ""
    ending: tuple[tuple[str, int], ...] = ()
    lasts: int = 0
    kept: tuple[tuple[str, str], ...] = ()
    account: str = ""
    image: str = ""

    @property
    def groups(self) -> bool:
        """Whether the tasks of a gang constrain each other's nodes."""
        return bool(self.spread or self.together)

    def admits(self, node: "Node") -> bool:
        """Whether a task may run on this node, and the node lasts long enough and is not reserved before."""
        if (self.ending and any(name == node.name for name, _ in self.ending)) or self.kept_on(node.name):
            return False
        return self.allows(node)

    def kept_on(self, node: str) -> str:
        """Return the time for which a node is reserved, as text; empty if it is not."""
        return next((told for name, told in self.kept if name == node), "") if self.kept else ""

    def allows(self, node: "Node") -> bool:
        """Whether a task may run on this node, regardless of when the node ends."""
        if (self.nodes and node.name not in self.nodes) or node.name in self.without:
            return False
        if self.account and not node.runs_as(self.account):
            return False
        if self.groups and not all(node.label(name) for name in (self.spread, self.together) if name):
            return False
        return all(node.label(name) in values for name, values in self.labels) and not any(
            node.label(name) in values for name, values in self.without_labels
        )

    def describe(self) -> str:
        """Describe for people: `node gpu-1 or gpu-2, zone=eu, not spot=yes`; the flags use the same terms."""
        told = [f"node {' or '.join(self.nodes)}"] if self.nodes else []
        told += [f"{name}={' or '.join(values)}" for name, values in self.labels]
        told += [f"not {name}={' or '.join(values)}" for name, values in self.without_labels]
        told += [f"not node {' or '.join(self.without)}"] if self.without else []
        told += [f"account {self.account}"] if self.account else []
        told += [f"a different {self.spread} for each task"] if self.spread else []
        return ", ".join(told + ([f"one {self.together} for all tasks"] if self.together else []))


ANYWHERE = Where()


class Shape(msgspec.Struct, frozen=True, omit_defaults=True, cache_hash=True):
    """Resources that one task requests of one node.

    `cpu` in milli-CPU, `memory` and `gpu_memory` in bytes (`gpu_memory` per device), `gpus` in devices, `share` in
    thousandths of each device's compute, `network` in bits per second. A memory of 0 means no request: nothing is
    reserved and nothing is limited. `where` constrains the node.
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
        """Whether it requests a share of one device."""
        return self.gpus == 1 and self.share != WHOLE

    @property
    def suspended(self) -> "Shape":
        """The resources that a task of this shape keeps while it is suspended: its memory."""
        return Shape(cpu=0, memory=self.memory)

    def key(self) -> str:
        """Return a short text that is equal for equal shapes; a key for mappings in the ledger."""
        return _key_of(self)

    def describe(self) -> str:
        """Describe for people: `2 CPU, 8 GiB, 1 GPU of 12 GiB`; `1 CPU on zone=eu`; `1 CPU, not node n1`."""
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
        """Describe the devices for people, with all requirements: `2 H100 GPU of 40 GiB`, `0.5 of a GPU`."""
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
    if shape.where.image:
        plain = f"{plain}~{shape.where.image}"
    if shape.share == WHOLE and not shape.network and shape.wants == ANY_GPU:
        return plain
    wants = shape.wants
    asks = (wants.kind, "+".join(wants.models), wants.backend, wants.precision, "+".join(wants.ops))
    without = f".{'+'.join(wants.without)}" if wants.without else ""
    return f"{plain}.{shape.share}.{shape.network}.{'.'.join(asks)}{without}"


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accelerator of a node. `index` is its position on the node, `uuid` its driver's name for it.

    `rates` are peak operations per second by precision, `bandwidth` bytes per second of its memory, `ops` the supported
    operators (empty: not reported, so all), `socket` its host socket, `price` micro-dollars per hour, `power` its cap
    in milliwatts, `share_cap` the thousandths of its compute that shares may take together. Unknown values are 0 or
    empty. `driver_index` is the driver's number for it if that is not `index`. `sources` maps figures to their origin
    (`model/figures.py`) unless it is the catalogue. `failed` is its identity if it has ever failed. A `withdrawn`
    device is no longer offered, but its running work continues. `kept` are the reservations that take it. Only the
    ledger sets these three fields; no node reports them.
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
    kept: tuple[str, ...] = ()

    @property
    def maker(self) -> str:
        """Return `nvidia`, `amd` or `ascend`: the family of drivers that shows or hides it."""
        if self.kind in ("npu", "ascend") or self.backend == "cann":
            return "ascend"
        return "amd" if "rocm" in (self.kind, self.backend) or self.kind in ("amd", "hip") else "nvidia"


def identity_of(node: str, device: Device) -> str:
    """Return the permanent identity of a device: its driver's name for it, else its place."""
    return device.uuid or f"{node}:{device.index}"


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A direct connection of two devices of one node: `bandwidth` in bits per second, `latency` in nanoseconds."""

    a: Count
    b: Count
    kind: str = "nvlink"
    bandwidth: Rate = 0
    latency: Rate = 0


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One agent identity and the resources it offers.

    `incarnation` changes when the machine reboots or the node's folder is recreated: work of an older incarnation is
    lost. Its processes are certainly gone only after a reboot of the same machine. `cpu` in milli-CPU, `memory` in
    bytes, `network` in bits per second and `latency` in nanoseconds to the rest of the fleet (0: not reported). `model`
    names its processor, `rates` and `bandwidth` are its capabilities and `sources` their origins, as for a device. Work
    may run there `until` an instant (0: no end): work that is expected to take longer is not placed there. Commands may
    run there as the Unix `accounts`; `ANY_ACCOUNT` stands for all that the node knows. `images` are the marks of images
    of containers that it has, at most `MOST_IMAGES`. If it `grows` work, it can raise the memory limit of a running
    command.
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
    accounts: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_ACCOUNTS)] = ()
    images: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_IMAGES)] = ()
    grows: bool = False

    def has_rebooted(self, before: "Node") -> bool:
        """Whether this is the machine that was there `before`, after a boot. An incarnation names the boot, then the
        node's folder; without the same folder, it may be another machine, and the first may still run.
        """
        (boot, _, folder), (earlier, _, same) = self.incarnation.partition("-"), before.incarnation.partition("-")
        return boot != earlier and folder == same

    def runs_as(self, account: str) -> bool:
        """Whether commands can run here as a Unix account."""
        return account in self.accounts or ANY_ACCOUNT in self.accounts

    def label(self, name: str) -> str:
        """Return the value of a label, including `zone`, `rack` and `node`; empty if there is none of this name."""
        return self.labels.get(name) or {"zone": self.zone, "rack": self.rack, "node": self.name}.get(name, "")


def check_node_name(name: str, field: str) -> None:
    """Check the name of a node. Raises `SpecError` for a name that is invalid in a path, a line or a command."""
    if not _NAME.fullmatch(name):
        raise SpecError(
            "a node's name has at most 255 letters, digits, `.`, `_`, `:` and `-`",
            code="E107",
            field=field,
            have=ascii(name[:80]),
            hint="give it another name: `--name`",
        )


def is_larger(node: Node, before: Node) -> bool:
    """Whether a node offers more than before, beyond the small differences in kernel memory between boots."""
    grown = node.cpu > before.cpu or node.memory > before.memory + before.memory // 16
    return grown or len(node.devices) > len(before.devices)


def is_declared(node: Node) -> bool:
    """Whether the node's resources are declared in a file, not detected."""
    return "declared" in node.labels
