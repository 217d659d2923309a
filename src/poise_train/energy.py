"""Measures the energy of this worker, with hardware counters or the power model of its devices.

    meter = Meter(device)
    meter.read()            # millijoules since its creation
    meter.source            # "nvml", "nvml, 1 of 3 processes", "rapl, by CPU time", "model of H200", or "": not known

A counter covers a whole device. On a shared device the result is an estimate, as `source` says: processes share the
energy of a GPU equally, and that of processors by CPU time, so that the users of a machine also bear its idle power.
Without a counter, the power model for busy and idle devices is applied to the power cap (POISE_POWER in watts, or that
of the catalogue). The energy of DataLoader worker processes is not included.
"""

import os
import time
from collections.abc import Callable

import torch

from poise.model.catalogue import device_found
from poise.model.power import POWER
from poise_train.meters import Nvml, Rapl, cpu_seconds

POWER_TOLD = "POISE_POWER"
"""Environment variable with the power cap of the device in watts, used without a hardware counter."""


class Meter:
    """Energy meter of one worker, counting from its creation."""

    def __init__(self, device: torch.device, *, rapl: Rapl | None = None) -> None:
        self.source = ""
        self._energy = self._before = 0.0
        self._own, self._all = time.process_time(), cpu_seconds()
        self._counter: Callable[[], float] = float  # millijoules of the whole device
        self._part: Callable[[], float] = self._of_cpu_time
        if device.type == "cuda":
            self._on_gpu(device)
        else:
            self._on_processors(rapl or Rapl())

    def read(self) -> int:
        """Return millijoules so far. Call it at least every few minutes, because counters wrap around."""
        now = self._counter()
        self._energy += (now - self._before) * self._part()
        self._before = now
        return int(self._energy)

    def _on_gpu(self, device: torch.device) -> None:
        known = torch.cuda.get_device_properties(device)
        nvml = Nvml([f"GPU-{known.uuid}"])
        if nvml.found:
            self.source, self._counter = "nvml", nvml.read

            def part() -> float:
                users = nvml.users()
                if users > 1:
                    self.source = f"nvml, 1 of {users} processes"
                return 1 / users

            self._part = part
            return
        model = device_found(known.name, device.index or 0, memory=known.total_memory)
        cap = _told() or model.power / 1000
        if cap:
            self.source, began = f"model of {model.model}", time.monotonic()
            self._part = lambda: 1.0

            def drawn() -> float:
                held = cap * (time.monotonic() - began)
                return POWER.joules(held, held) * 1000

            self._counter = drawn

    def _on_processors(self, rapl: Rapl) -> None:
        if rapl.found:
            self.source, self._counter = "rapl, by CPU time", rapl.read
        elif cap := _told():
            self.source, began, busy, cores = "model, by CPU time", time.monotonic(), self._all, os.cpu_count() or 1

            def drawn() -> float:
                return POWER.joules(cap * (time.monotonic() - began), cap * (cpu_seconds() - busy) / cores) * 1000

            self._counter = drawn

    def _of_cpu_time(self) -> float:
        """Return this process's share of all CPU time since the last call."""
        own, busy = time.process_time(), cpu_seconds()
        mine, whole = own - self._own, busy - self._all
        self._own, self._all = own, busy
        return min(1.0, mine / whole) if whole > 0 else 1.0


def _told() -> float:
    """Return POISE_POWER in watts; 0 if it is not set or not a number."""
    try:
        return max(0.0, float(os.environ.get(POWER_TOLD, "") or 0))
    except ValueError:
        return 0.0


__all__ = ["POWER_TOLD", "Meter"]
