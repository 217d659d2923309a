"""What this machine offers: the CPUs and the memory that may really be used, its accelerators, and its identity.

NVIDIA devices are found through `pynvml` when it is installed and a driver answers; what they can do comes from the
catalogue. Without them a node has none, and says why in the label `no-devices`.
"""

import contextlib
import importlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from poise.drivers.system import boot_id, cpu_quota, memory_limit
from poise.model.catalogue import device_of
from poise.model.resources import Device, Node


class Found(NamedTuple):
    """The accelerators of this machine, or why there are none."""

    devices: tuple[Device, ...]
    why_none: str = ""


def probe_node(name: str, home: Path) -> Node:
    """This machine as a node. `home` is the node's folder: a random identity is kept there."""
    found = probe_devices()
    return Node(
        name=name,
        incarnation=incarnation_of(boot_id(), identity(home)),
        cpu=usable_cpu(len(os.sched_getaffinity(0)), cpu_quota()),
        memory=usable_memory(total_memory_of(Path("/proc/meminfo").read_text()), memory_limit()),
        devices=found.devices,
        labels={} if found.devices else {"no-devices": found.why_none},
    )


def probe_devices() -> Found:
    """NVIDIA devices in the order of their driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return Found((), "`nvidia-ml-py` is not installed")
    try:
        nvml.nvmlInit()
    except Exception as error:  # whatever it raises, this machine has no usable driver
        return Found((), f"NVML does not answer: {error}")
    try:
        devices = tuple(_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        return Found(devices, "" if devices else "NVML answers, but there is no device")
    except Exception as error:  # a driver that fails half-way is reported like one that is not there
        return Found((), f"NVML failed: {error}")
    finally:
        nvml.nvmlShutdown()


class Use(NamedTuple):
    """How busy a device was in the driver's last sampling period, in thousandths, and its used memory in bytes."""

    busy: int
    memory: int


class DeviceMeter:
    """Reads the use of NVIDIA devices, again and again. Where no driver answers there is nothing to read."""

    def __init__(self) -> None:
        self._nvml: Any = None

    def sample(self, indices: Iterable[int]) -> dict[int, Use]:
        """By index; a device that does not answer is left out."""
        try:
            if self._nvml is None:
                nvml: Any = importlib.import_module("pynvml")
                nvml.nvmlInit()
                self._nvml = nvml
        except Exception:  # no library or no driver: whatever it raises, there is nothing to measure with
            return {}
        found = {}
        for index in indices:
            with contextlib.suppress(Exception):  # it has gone, or its driver is being replaced
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                busy = int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) * 10
                found[index] = Use(busy, int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used))
        return found


def usable_cpu(cores: int, quota: int) -> int:
    """Milli-CPU: the cores this process may run on, or its quota (0: none) if that is less."""
    return min(cores * 1000, quota) if quota else cores * 1000


def usable_memory(total: int, limit: int) -> int:
    """Bytes: what the machine has, or the limit (0: none) if that is less."""
    return min(total, limit) if limit else total


def total_memory_of(meminfo: str) -> int:
    """Bytes out of `/proc/meminfo`."""
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    return 0


def incarnation_of(boot: str, own: str) -> str:
    """Changes with a boot of the machine, and when the node's folder is made anew."""
    return f"{boot[:8]}-{own[:8]}"


def identity(home: Path) -> str:
    """The random id in the node's folder; made when it is missing."""
    path = home / "identity"
    try:
        text = path.read_text().strip()
    except OSError:
        text = ""
    if len(text) != 32 or not all(sign in "0123456789abcdef" for sign in text):
        home.mkdir(parents=True, exist_ok=True)
        text = uuid.uuid4().hex
        fresh = path.with_suffix(".new")
        fresh.write_text(text + "\n")
        fresh.replace(path)
    return text


def _device(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    known: dict[str, Any] = {
        "kind": "gpu",
        "backend": "cuda",
        "memory": int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
    }
    with contextlib.suppress(Exception):  # not every card tells; the catalogue knows what it may take
        known["power"] = int(nvml.nvmlDeviceGetPowerManagementLimit(handle))
    return device_of(_text(nvml.nvmlDeviceGetName(handle)), index, **known)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
