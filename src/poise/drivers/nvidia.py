"""NVIDIA devices, through NVML. It needs `pynvml` and a working driver."""

import contextlib
import ctypes
import importlib
from collections.abc import Sequence
from typing import Any

from poise.drivers.probes import Finding, Use
from poise.errors import extra
from poise.model.catalogue import device_found
from poise.model.device_codes import XID
from poise.model.messages import DeviceFault
from poise.model.resources import Device
from poise.model.usage import UNKNOWN

CRITICAL = {code: known.meaning for code, known in XID.items() if known.hardware}
"""XID codes after which a device must not get work until a person has checked it: those for which NVIDIA blames the
device or requires its reset, not those that a program can cause (13, 31, 43, 45)."""

LIBRARY = "libnvidia-ml.so.1"
"""The driver's library. If it is missing, the binding is not imported, which saves 50 ms of CPU time."""

MOST_AT_ONCE = 256
"""Maximum number of events per call; a driver may repeat one for ever."""


class Nvml:
    """Devices in their driver's order."""

    name = "NVML"
    hint = extra("nvidia")
    rest = 0.0

    def __init__(self) -> None:
        self._library: Any = None
        self._events: Any = None
        self._handles: dict[Any, int] = {}

    def find(self) -> Finding:
        try:
            ctypes.CDLL(LIBRARY)
        except OSError:
            return Finding(why_none="NVML does not answer: NVML Shared Library Not Found")
        try:
            nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            return Finding(why_none="`nvidia-ml-py` is not installed")
        try:
            nvml.nvmlInit()
        except Exception as error:  # any error means that this machine has no usable driver
            return Finding(why_none=f"NVML does not answer: {error}", failed=True)
        try:
            devices = tuple(_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
            driver = ""
            with contextlib.suppress(Exception):  # only measurements under another driver depend on it
                driver = _text(nvml.nvmlSystemGetDriverVersion())
            return Finding(devices, "" if devices else "NVML answers, but there is no device", driver)
        except Exception as error:  # a driver that fails midway is reported like a missing one
            return Finding(why_none=f"NVML failed: {error}", failed=True)
        finally:
            nvml.nvmlShutdown()

    def faults(self) -> list[DeviceFault]:
        """Return faults from the driver's events; each event is delivered once, to the listener at that time."""
        nvml = self._open()
        if self._events is None:
            self._events = nvml.nvmlEventSetCreate()
            for index in range(nvml.nvmlDeviceGetCount()):
                with contextlib.suppress(Exception):  # a device without event support is skipped
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
                    self._handles[_address(handle)] = index
        found = []
        for _ in range(MOST_AT_ONCE if self._handles else 0):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError_Timeout:  # no more events
                break
            number, code = self._handles.get(_address(event.device)), int(event.eventData)
            if number is not None and event.eventType == nvml.nvmlEventTypeXidCriticalError and code in CRITICAL:
                found.append(DeviceFault(index=number, code=f"XID {code}", text=CRITICAL[code]))
        return found

    def _open(self) -> Any:
        if self._library is None:
            nvml: Any = importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._library = nvml
        return self._library

    def use(self, indices: Sequence[int]) -> dict[int, Use]:
        self._open()
        found = {}
        for index in indices:
            with contextlib.suppress(Exception):  # it is gone, or its driver is being replaced
                handle = self._library.nvmlDeviceGetHandleByIndex(index)
                rates, used = (
                    self._library.nvmlDeviceGetUtilizationRates(handle),
                    int(self._library.nvmlDeviceGetMemoryInfo(handle).used),
                )
                power = UNKNOWN
                with contextlib.suppress(Exception):  # not every card reports it
                    power = int(self._library.nvmlDeviceGetPowerUsage(handle))
                found[index] = Use(int(rates.gpu) * 10, used, int(rates.memory) * 10, power)
        return found


def _device(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    known: dict[str, Any] = {
        "kind": "gpu",
        "backend": "cuda",
        "memory": int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
    }
    with contextlib.suppress(Exception):  # not every card reports it; the catalogue has its maximum
        known["power"] = int(nvml.nvmlDeviceGetPowerManagementLimit(handle))
    return device_found(_text(nvml.nvmlDeviceGetName(handle)), index, **known)


def _address(handle: Any) -> Any:
    """Return the identity of a handle: two for the same device do not compare equal. A lost device has no number."""
    return ctypes.cast(handle, ctypes.c_void_p).value if isinstance(handle, ctypes._Pointer) else handle


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
