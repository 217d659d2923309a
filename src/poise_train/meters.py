"""Counters of energy: of NVIDIA's GPUs (NVML) and of Intel's and AMD's processors (RAPL).

NVML is asked through its library, without a package: all that is needed is one function. RAPL's counters are files
(Linux, Documentation/power/powercap/powercap.rst), which only root may read on most machines, and which start anew at a
maximum; virtual machines have none. Energy is in millijoules.
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
    """All packages of this machine, and their memory where that is counted apart, as far as they can be read."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        self._zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if _counts(zone)]
        self._last = [_number(zone / "energy_uj") for zone in self._zones]
        self._sum = 0

    @property
    def found(self) -> bool:
        return bool(self._zones)

    def read(self) -> int:
        """Since this was made. To be asked every few minutes: a counter of 262 kJ starts anew after eleven at 400 W."""
        for place, zone in enumerate(self._zones):
            with contextlib.suppress(OSError, ValueError):
                now = _number(zone / "energy_uj")
                self._sum += risen(self._last[place], now, _number(zone / "max_energy_range_uj"))
                self._last[place] = now
        return self._sum // MICRO


class Nvml:
    """GPUs by what CUDA calls them (`GPU-…`)."""

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
            self._handles = []  # all of them, or it is not the energy of what was asked about
        self._first = self._total()

    @property
    def found(self) -> bool:
        return bool(self._handles)

    def read(self) -> int:
        """Since this was made."""
        return self._total() - self._first

    def users(self) -> int:
        """How many processes compute on these devices, as far as that is told: in a container it may not be."""
        pids: set[int] = set()
        for handle in self._handles:
            count, room = ctypes.c_uint(64), (_Running * 64)()
            if not self._library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), room):
                pids |= {one.pid for one in room[: count.value]}
        return max(1, len(pids))

    def _total(self) -> int:
        return sum(self._count(one) or 0 for one in self._handles)

    def _count(self, handle: ctypes.c_void_p) -> int | None:
        """Since its driver was loaded; None where it has no counter (before Volta)."""
        energy = ctypes.c_ulonglong()
        failed = self._library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(energy))
        return None if failed else int(energy.value)


class _Running(ctypes.Structure):
    """`nvmlProcessInfo_t` of the third version of the call."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute", ctypes.c_uint),
    )


def risen(before: int, now: int, most: int) -> int:
    """By how much a counter has risen that starts anew after `most`.

    >>> risen(90, 10, 100)
    20
    """
    return now - before if now >= before else now - before + most


def cpu_seconds() -> float:
    """For how long all processors of this machine have been busy, since it was started."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        user, nice, system, _, _, irq, soft = map(int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8])
        return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _counts(zone: Path) -> bool:
    """Whether its energy can be read and is not part of another's that is: of packages, and of memory apart."""
    with contextlib.suppress(OSError, ValueError):
        name = (zone / "name").read_text().strip()
        _number(zone / "energy_uj")
        return name.startswith("package") or name == "dram"
    return False


def _number(path: Path) -> int:
    return int(path.read_text())


__all__ = ["Nvml", "Rapl", "cpu_seconds", "risen"]
