"""What a machine offers, out of what its kernel and its drivers say."""

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from poise.drivers.devices import (
    DeviceMeter,
    Use,
    identity,
    incarnation_of,
    probe_devices,
    probe_node,
    total_memory_of,
    usable_cpu,
    usable_memory,
)
from poise.model.resources import Device

MEMINFO = "MemTotal:       24684096 kB\nMemFree:        1000 kB\n"


def test_a_node_is_what_may_really_be_used(tmp_path: Path) -> None:
    node = probe_node("here", tmp_path)
    assert node.name == "here"
    assert 0 < node.cpu <= len(os.sched_getaffinity(0)) * 1000
    assert 0 < node.memory <= total_memory_of(Path("/proc/meminfo").read_text())
    assert node.devices or node.labels["no-devices"]
    assert probe_node("here", tmp_path).incarnation == node.incarnation
    assert probe_node("here", tmp_path / "anew").incarnation != node.incarnation


def test_quotas_and_limits_are_respected() -> None:
    assert usable_cpu(8, 0) == 8000
    assert usable_cpu(8, 1500) == 1500
    assert usable_cpu(2, 4000) == 2000
    assert usable_memory(100, 0) == 100
    assert usable_memory(100, 60) == 60
    assert total_memory_of(MEMINFO) == 24684096 * 1024
    assert total_memory_of("") == 0


def test_the_identity_is_kept_and_made_anew_when_damaged(tmp_path: Path) -> None:
    first = identity(tmp_path / "home")
    assert identity(tmp_path / "home") == first
    (tmp_path / "home" / "identity").write_text("nonsense")
    assert identity(tmp_path / "home") != first
    assert incarnation_of("a" * 36, "b" * 32) == "aaaaaaaa-bbbbbbbb"


def library(**functions: object) -> ModuleType:
    """A module that answers like NVML's binding."""
    module = ModuleType("pynvml")
    names = {"nvmlInit": lambda: None, "nvmlShutdown": lambda: None, **functions}
    for name, function in names.items():
        setattr(module, name, function)
    return module


def test_devices_come_in_the_order_of_their_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = library(
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda index: [b"NVIDIA H100", "NVIDIA A100"][index],
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(total=(80 - 40 * index) << 30),
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
    )
    monkeypatch.setitem(sys.modules, "pynvml", answers)
    found = probe_devices().devices
    assert [(device.index, device.model, device.memory, device.uuid) for device in found] == [
        (0, "H100", 80 << 30, "GPU-0"),
        (1, "A100-40", 40 << 30, "GPU-1"),
    ]


def test_a_known_model_brings_its_figures_and_the_driver_knows_the_power_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = library(
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda index: ["NVIDIA H100 80GB HBM3", "NVIDIA Frob"][index],
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(total=80 << 30),
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
        nvmlDeviceGetPowerManagementLimit=lambda index: [550_000, None][index],
    )
    monkeypatch.setitem(sys.modules, "pynvml", answers)
    known, unknown = probe_devices().devices
    assert known.power == 550_000
    assert known.rates["bf16"] == 989_500_000_000_000
    assert known.backend == unknown.backend == "cuda"
    assert unknown == Device(index=1, model="NVIDIA Frob", memory=80 << 30, uuid="GPU-1", backend="cuda")


def test_use_is_read_from_the_devices_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = library(
        nvmlDeviceGetHandleByIndex=lambda index: [0, 1][index],
        nvmlDeviceGetUtilizationRates=lambda index: SimpleNamespace(gpu=37 + index),
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(used=(1 + index) << 30),
    )
    monkeypatch.setitem(sys.modules, "pynvml", answers)
    assert DeviceMeter().sample([0, 1, 7]) == {0: Use(370, 1 << 30), 1: Use(380, 2 << 30)}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert DeviceMeter().sample([0]) == {}


def test_no_devices_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert probe_devices().why_none == "`nvidia-ml-py` is not installed"
    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlInit=fail))
    assert probe_devices().why_none == "NVML does not answer: Driver Not Loaded"
    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlDeviceGetCount=fail))
    assert probe_devices().why_none == "NVML failed: Driver Not Loaded"
    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlDeviceGetCount=lambda: 0))
    assert probe_devices().why_none == "NVML answers, but there is no device"
