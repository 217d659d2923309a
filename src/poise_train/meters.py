"""Reads energy counters: of NVIDIA GPUs (NVML) and of Intel and AMD processors (RAPL).

NVML is called through its C library, without a package, because few functions are needed. RAPL's counters are files
(Linux, Documentation/power/powercap/powercap.rst). On most machines only root may read them; they wrap around at a
maximum, and virtual machines have none. Energy is in millijoules.
"""

import contextlib
import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")

MICRO = 1000
"""RAPL counts microjoules."""


class Rapl:
    """Readable counters of all processor packages of this machine, and of their memory if counted separately."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        self._zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if _counts(zone)]
        self._last = [_number(zone / "energy_uj") for zone in self._zones]
        self._sum = 0

    @property
    def found(self) -> bool:
        return bool(self._zones)

    def read(self) -> int:
        """Return millijoules since creation. Call it every few minutes: at 400 W a 262 kJ counter wraps after 11."""
        for place, zone in enumerate(self._zones):
            with contextlib.suppress(OSError, ValueError):
                now = _number(zone / "energy_uj")
                self._sum += risen(self._last[place], now, _number(zone / "max_energy_range_uj"))
                self._last[place] = now
        return self._sum // MICRO


class Nvml:
    """Counters of GPUs, by their CUDA identities (`GPU-…`)."""

    def __init__(self, identities: Sequence[str]) -> None:
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
            if self._library.nvmlInit_v2():
                return
        except (OSError, AttributeError):
            return
        for identity in identities:
            handle = ctypes.c_void_p()
            if not self._library.nvmlDeviceGetHandleByUUID(identity.encode(), ctypes.byref(handle)):
                self._handles.append(handle)
        if len(self._handles) != len(identities) or any(self._count(one) is None for one in self._handles):
            self._handles = []  # a part of them would give too little energy
        self._first = self._total()

    @property
    def found(self) -> bool:
        return bool(self._handles)

    def read(self) -> int:
        """Return millijoules since creation."""
        return self._total() - self._first

    def users(self) -> int:
        """Return the number of processes that compute on these devices; at least 1. Containers may hide processes."""
        pids: set[int] = set()
        for handle in self._handles:
            count, room = ctypes.c_uint(64), (_Running * 64)()
            if not self._library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), room):
                pids |= {one.pid for one in room[: count.value]}
        return max(1, len(pids))

    def _total(self) -> int:
        return sum(self._count(one) or 0 for one in self._handles)

    def _count(self, handle: ctypes.c_void_p) -> int | None:
        """Return millijoules since the driver was loaded; None if the GPU has no counter (before Volta)."""
        energy = ctypes.c_ulonglong()
        failed = self._library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(energy))
        return None if failed else int(energy.value)


class _Running(ctypes.Structure):
    """`nvmlProcessInfo_t` of version 3 of the function."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute", ctypes.c_uint),
    )


def risen(before: int, now: int, most: int) -> int:
    """Return the increase of a counter that wraps around at `most`.

    >>> risen(90, 10, 100)
    20
    """
    return now - before if now >= before else now - before + most


def cpu_seconds() -> float:
    """Return the busy time of all processors since boot, in seconds; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        user, nice, system, _, _, irq, soft = map(int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8])
        return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _counts(zone: Path) -> bool:
    """Whether to count a zone: it is readable, and not a part of another one. These are packages and their memory."""
    with contextlib.suppress(OSError, ValueError):
        name = (zone / "name").read_text().strip()
        _number(zone / "energy_uj")
        return name.startswith("package") or name == "dram"
    return False


def _number(path: Path) -> int:
    return int(path.read_text())


__all__ = ["Nvml", "Rapl", "cpu_seconds", "risen"]
