"""Current, peak and free memory: of this process as Linux reports it, and of a GPU as PyTorch reports it."""

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
        """Return the peak since `forget`."""

    def forget(self) -> None: ...

    def free(self) -> int: ...

    def give_back(self) -> None:
        """Release memory that is held but unused."""


class Process:
    """The memory of this process; its job may hold `limit` bytes (0: no limit)."""

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
    """The memory of a GPU, as `torch.cuda` counts it; the process may hold `limit` bytes (0: all of it). PyTorch
    releases its cached memory by itself when memory is short.
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
    """Return the job's memory limit in bytes, from POISE_MEMORY; 0 if it is not set."""
    limit = os.environ.get("POISE_MEMORY", "")
    return int(limit) if limit.isdecimal() else 0


def resident() -> int:
    """Return the resident bytes of this process; 0 if they are unknown."""
    return _marked("VmRSS")


def peak() -> int:
    """Return the peak of resident bytes since `forget_peak`."""
    return _marked("VmHWM")


def forget_peak() -> None:
    """Reset the peak to the current value (proc_pid_clear_refs(5))."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _marked(mark: str) -> int:
    with contextlib.suppress(OSError):
        found = re.search(rf"^{mark}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
        return 1024 * int(found[1]) if found else 0
    return 0


__all__ = ["Counted", "Device", "Process", "forget_peak", "limit_told", "peak", "resident"]
