"""NVIDIA devices, through NVML: `pynvml` must be installed and a driver must answer."""

import contextlib
import importlib
from collections.abc import Sequence
from typing import Any

from poise.drivers.probes import Finding, Use
from poise.model.catalogue import device_found
from poise.model.resources import Device


class Nvml:
    """Devices in the order of their driver."""

    name = "NVML"
    hint = "pip install 'poise[nvidia]'"
    rest = 0.0

    def __init__(self) -> None:
        self._library: Any = None

    def find(self) -> Finding:
        try:
            nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            return Finding(why_none="`nvidia-ml-py` is not installed")
        try:
            nvml.nvmlInit()
        except Exception as error:  # whatever it raises, this machine has no usable driver
            missing = type(error).__name__ == "NVMLError_LibraryNotFound"
            return Finding(why_none=f"NVML does not answer: {error}", failed=not missing)
        try:
            devices = tuple(_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
            driver = ""
            with contextlib.suppress(Exception):  # only what was measured under another driver asks for it
                driver = _text(nvml.nvmlSystemGetDriverVersion())
            return Finding(devices, "" if devices else "NVML answers, but there is no device", driver)
        except Exception as error:  # a driver that fails half-way is reported like one that is not there
            return Finding(why_none=f"NVML failed: {error}", failed=True)
        finally:
            nvml.nvmlShutdown()

    def use(self, indices: Sequence[int]) -> dict[int, Use]:
        if self._library is None:
            nvml: Any = importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._library = nvml
        found = {}
        for index in indices:
            with contextlib.suppress(Exception):  # it has gone, or its driver is being replaced
                handle = self._library.nvmlDeviceGetHandleByIndex(index)
                busy = int(self._library.nvmlDeviceGetUtilizationRates(handle).gpu) * 10
                found[index] = Use(busy, int(self._library.nvmlDeviceGetMemoryInfo(handle).used))
        return found


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
    return device_found(_text(nvml.nvmlDeviceGetName(handle)), index, **known)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
