"""How much memory this process holds, has held, and may still have, as Linux tells; and of a GPU, as PyTorch does."""

import contextlib
import ctypes
import os
import re
from pathlib import Path
from typing import Any, Protocol

from poise.drivers.system import free_memory

_STATUS = Path("/proc/self/status")


class Counted(Protocol):
    """Bytes of one memory."""

    def held(self) -> int: ...

    def peak(self) -> int:
        """The most held since `forget`."""

    def forget(self) -> None: ...

    def free(self) -> int: ...

    def give_back(self) -> None:
        """What is held and not used."""


class Process:
    """The memory of this process, of which its job may hold `limit` (0: no limit)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def held(self) -> int:
        return resident()

    def peak(self) -> int:
        return peak()

    def forget(self) -> None:
        forget_peak()

    def free(self) -> int:
        free = free_memory()
        return max(0, min(free, self.limit - self.held()) if self.limit else free)

    def give_back(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


class Device:
    """The memory of a GPU, as `torch.cuda` counts it, of which the process may hold `limit` (0: all of it). What it
    keeps for later it gives back when it is short of it.
    """

    def __init__(self, cuda: Any, limit: int = 0) -> None:
        self._cuda = cuda
        self.limit = limit

    def held(self) -> int:
        return int(self._cuda.memory_allocated())

    def peak(self) -> int:
        return int(self._cuda.max_memory_allocated())

    def forget(self) -> None:
        self._cuda.reset_peak_memory_stats()

    def free(self) -> int:
        held = self.held()
        free = int(self._cuda.mem_get_info()[0] + self._cuda.memory_reserved()) - held
        return max(0, min(free, self.limit - held) if self.limit else free)

    def give_back(self) -> None:
        pass


def limit_told() -> int:
    """The bytes that the job may hold, by POISE_MEMORY; 0 where it does not tell."""
    limit = os.environ.get("POISE_MEMORY", "")
    return int(limit) if limit.isdecimal() else 0


def resident() -> int:
    """Bytes that this process holds; 0 where that is not told."""
    return _marked("VmRSS")


def peak() -> int:
    """The most bytes that it has held since `forget_peak`."""
    return _marked("VmHWM")


def forget_peak() -> None:
    """The most is what it holds now (proc_pid_clear_refs(5))."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _marked(mark: str) -> int:
    with contextlib.suppress(OSError):
        found = re.search(rf"^{mark}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
        return 1024 * int(found[1]) if found else 0
    return 0


__all__ = ["Counted", "Device", "Process", "forget_peak", "limit_told", "peak", "resident"]
