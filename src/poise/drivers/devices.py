"""The resources of this machine: its usable CPUs and memory, its accelerators, and its identity.

Probes find accelerators (`probes.py`). Their figures come from the catalogue, from the measurements of `poise
bench-devices`, and from `devices.yaml` of the home, in the order of `model/figures.py`. A node without devices has the
reason in its label `no-devices`.
"""

import logging
import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from poise.config import Home
from poise.drivers import containers
from poise.drivers.accounts import offered
from poise.drivers.kernellog import KernelLog
from poise.drivers.measured import load_measured
from poise.drivers.probes import Accelerators, Answer, Probe, Use, why_none
from poise.drivers.system import boot_id, cpu_quota, memory_limit
from poise.drivers.whole import write_whole
from poise.errors import SpecError, located
from poise.model.declared import Declared, with_declared
from poise.model.figures import with_figures, with_processor
from poise.model.measured import processor_key
from poise.model.messages import DeviceFault
from poise.model.resources import Device, Node

_log = logging.getLogger("poise.devices")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a machine that its node may offer, if others have the rest: milli-CPU, bytes of memory, and devices,
    each by its index or its driver's name. Its node gets these `labels` too, and ends at `until` (seconds since 1970;
    0: never).
    """

    cpu: int
    memory: int
    devices: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    until: float = 0.0

    def of(self, node: Node) -> Node:
        """Return that part of the machine. The number of CPUs is taken as given."""
        devices = tuple(of for of in node.devices if {str(of.index), of.uuid} & {*self.devices})
        memory, labels = min(self.memory, node.memory), node.labels | self.labels
        return msgspec.structs.replace(node, cpu=self.cpu, memory=memory, devices=devices, labels=labels)


class Inventory:
    """This machine, or a part of it, as a node, probed periodically. The node's folder in the home holds a random
    identity.
    """

    def __init__(
        self, name: str, home: Home, probes: Sequence[Probe] | None = None, *, part: Part | None = None
    ) -> None:
        self._name = name
        self._home = home
        self._part = part
        self._accelerators = Accelerators(probes)
        self._stock = containers.Stock()
        self._told = ""
        self._declared = Declared()
        self.answers: list[Answer] = []
        self.there: set[int] = set()  # devices of the machine, if only a part of it is offered

    def look(self) -> Node:
        """Return the node as it is now. An unreadable `devices.yaml` is logged once, and its last valid content stays
        in use."""
        self.answers = self._accelerators.look()
        cores = usable_cpu(len(os.sched_getaffinity(0)), cpu_quota())
        devices = [measured for answer in self.answers for measured in self._measured(answer)]
        node = Node(
            name=self._name,
            incarnation=incarnation_of(boot_id(), identity(self._home.node)),
            cpu=cores,
            memory=usable_memory(total_memory_of(Path("/proc/meminfo").read_text()), memory_limit()),
            labels={} if devices else {"no-devices": why_none(self.answers)},
            accounts=offered(),
            grows=True,
        )
        if profile := load_measured(self._home.profiles, processor_key(processor_name(), cores), ""):
            node = with_processor(node, profile.figures(), "measured")
        try:
            self._declared = declared_devices(self._home)
            self._told = ""
        except SpecError as error:  # its last valid content applies until it can be read again
            told = f"{error.record.message} ({error.record.field})"
            if told != self._told:
                self._told = told
                _log.warning("left out: %s", told)
        declared = self._declared
        node = with_processor(node, declared.processor, "declared") if declared.processor else node
        all_devices = with_declared(devices, declared)
        if podman := containers.engine():
            rootless = bool(node.accounts) and containers.are_rootless()
            labels = node.labels | containers.labels(all_devices, rootless=rootless)
            node = msgspec.structs.replace(node, labels=labels, images=self._stock.marks(podman))
        node = declared.place.of(msgspec.structs.replace(node, devices=all_devices))
        if self._part is None:
            return node
        self.there = {device.index for device in node.devices}
        return self._part.of(node)

    def use(self, indices: Iterable[int]) -> dict[int, Use]:
        """Return the use of devices by index; a device without an answer is left out."""
        return self._accelerators.use(indices)

    def faults(self, kernel: KernelLog) -> list[DeviceFault]:
        """Return devices that have failed since the last call, from their drivers and the kernel log. Each fault is
        returned once, even if both report it.
        """
        indices = {device.uuid: device.index for of in self.answers for device in of.finding.devices}
        return list(dict.fromkeys([*self._accelerators.faults(), *kernel.faults(indices)]))

    def _measured(self, answer: Answer) -> Iterable[Device]:
        for device in answer.finding.devices:
            profile = load_measured(self._home.profiles, device.uuid or device.model, answer.finding.driver)
            yield with_figures(device, profile.figures(), "measured") if profile else device


def probe_node(name: str, home: Home) -> Node:
    """Probe this machine once, and return it as a node."""
    return Inventory(name, home).look()


def declared_devices(home: Home) -> Declared:
    """Return the content of a home's `devices.yaml`; empty if there is none. Raises `SpecError`."""
    if not home.devices.exists():
        return Declared()
    from poise.drivers.yamlfile import load_yaml, place_in_file  # slow to import, as is what compiles it
    from poise.model.devicefile import compile_devices

    try:
        with located(place_in_file(home.devices)):
            return compile_devices(load_yaml(home.devices))
    except SpecError as error:  # name the file, which the user did not pass
        error.record = msgspec.structs.replace(error.record, message=f"`{home.devices.name}`: {error}")
        raise


def processor_name() -> str:
    """Return the kernel's name of the processor, or the architecture if it has none."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return os.uname().machine


def usable_cpu(cores: int, quota: int) -> int:
    """Return milli-CPU: the cores this process may run on, or its quota (0: none) if that is less."""
    return min(cores * 1000, quota) if quota else cores * 1000


def usable_memory(total: int, limit: int) -> int:
    """Return bytes: the memory of the machine, or the limit (0: none) if that is less."""
    return min(total, limit) if limit else total


def total_memory_of(meminfo: str) -> int:
    """Return the total bytes, from `/proc/meminfo`."""
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    return 0


def incarnation_of(boot: str, own: str) -> str:
    """Return an id that changes with a boot of the machine, and when the node's folder is recreated."""
    return f"{boot[:8]}-{own[:8]}"


def identity(home: Path) -> str:
    """Return the random id in the node's folder; create it if it is missing."""
    path = home / "identity"
    try:
        text = path.read_text().strip()
    except OSError:
        text = ""
    if len(text) != 32 or not all(sign in "0123456789abcdef" for sign in text):
        home.mkdir(parents=True, exist_ok=True)
        text = uuid.uuid4().hex
        write_whole(path, f"{text}\n".encode())
    return text
