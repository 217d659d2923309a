"""Memory budget of this worker: its limit, its peak, and its division.

On a shared GPU the job's share is a hard limit of PyTorch's allocator: beyond it, only this process runs out of memory.
On the host the limit is POISE_MEMORY, which the node enforces.

A budget has three parts. If the gradients fit in the fraction `gradients`, their buffers are kept between steps.
Otherwise they are allocated during backward, all-reduced and released (`Reducer`), so that they do not coexist with
activations; up to the fraction `syncing` this is within the budget. On a shared GPU the fraction `activations` is
allocated when training begins and kept by the allocator, so that other jobs cannot take it.
"""

import os
from collections.abc import Mapping

import msgspec
import torch

from poise.drivers.memory import Counted, Device, Process, limit_told
from poise.errors import Misused
from poise.model.resources import WHOLE
from poise_train.batch import is_short

GPU_MEMORY, GPU_SHARE = "POISE_GPU_MEMORY", "POISE_GPU_SHARE"
"""Variables with a task's share of each shared device: memory in bytes, and compute in thousandths. The node sets them
(`drivers/process.py`).
"""


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Division of a worker's memory, as fractions: `gradients` that are kept between steps; `syncing`, including those
    that exist only during their sum; and `activations`, which are allocated at the start on a shared GPU. Raises
    Misused if they are inconsistent.
    """

    gradients: float = 0.4
    syncing: float = 0.6
    activations: float = 0.3

    def __post_init__(self) -> None:
        parts = (self.gradients, self.syncing, self.activations)
        if not 0 <= self.gradients <= self.syncing or min(parts) < 0 or self.syncing + self.activations > 1:
            raise Misused(
                "the memory shares are inconsistent",
                field="memory",
                need="0 <= gradients <= syncing, and syncing + activations <= 1",
                have=f"gradients {self.gradients:g}, syncing {self.syncing:g}, activations {self.activations:g}",
                hint="memory=Shares(gradients=0.4, syncing=0.6, activations=0.3)",
            )


class Budget:
    """The memory of a worker's device. `limit`: maximum bytes, 0 if not set; `most`: peak bytes so far."""

    def __init__(self, device: torch.device, shares: Shares | None = None) -> None:
        self.shares = shares or Shares()
        self._counted: Counted
        self._most = 0
        if device.type == "cuda":
            torch.cuda.set_device(device)
            total = torch.cuda.get_device_properties(device).total_memory
            self.limit = gpu_limit(total, os.environ)
            if self.limit:
                torch.cuda.set_per_process_memory_fraction(self.limit / total, device)
                self._lock(int(self.limit * self.shares.activations), device)
            self.total = self.limit or total
            self._counted = Device(torch.cuda, self.limit)
        else:
            self.total = self.limit = limit_told()
            self._counted = Process(self.limit)

    @property
    def most(self) -> int:
        self._most = max(self._most, self._counted.peak())
        return self._most

    def kept(self, gradients: int) -> bool:
        """Whether this number of bytes of gradients is kept between steps."""
        return not self.total or gradients <= self.shares.gradients * self.total

    def held(self) -> int:
        return self._counted.held()

    def peak(self) -> int:
        return self._counted.peak()

    def forget(self) -> None:
        """Reset the peak; `most` is kept."""
        self._most = max(self._most, self._counted.peak())
        self._counted.forget()

    def free(self) -> int:
        return self._counted.free()

    def give_back(self) -> None:
        self._counted.give_back()

    def _lock(self, size: int, device: torch.device) -> None:
        """Allocate and free memory once, because the allocator keeps it; if there is too little now, do nothing."""
        try:
            torch.empty(size, dtype=torch.uint8, device=device)
        except RuntimeError as error:
            if not is_short(error):
                raise


def gpu_limit(total: int, told: Mapping[str, str]) -> int:
    """The bytes of a device of so many that this job may hold, where it has only a part of it; else 0.

    >>> gpu_limit(80, {"POISE_GPU_SHARE": "250"}), gpu_limit(80, {"POISE_GPU_MEMORY": "10"}), gpu_limit(80, {})
    (20, 10, 0)
    """
    memory, share = told.get(GPU_MEMORY, ""), told.get(GPU_SHARE, "")
    if memory.isdecimal() and int(memory):
        return min(total, int(memory))
    return total * int(share) // WHOLE if share.isdecimal() and 0 < int(share) < WHOLE else 0


__all__ = ["GPU_MEMORY", "GPU_SHARE", "Budget", "Shares", "gpu_limit"]
