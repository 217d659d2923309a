"""Probes, on what drivers and tools really printed, and on everything that may be wrong with them."""

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.agent.__main__ import device_signals
from poise.drivers import amd, nvidia, probes
from poise.drivers.amd import AmdSmi, devices_of, uses_of
from poise.drivers.ascend import NpuSmi, chips_of
from poise.drivers.nvidia import Nvml
from poise.drivers.probes import (
    Accelerators,
    Finding,
    NoAnswerError,
    Use,
    ask,
    parse_json,
    shipped_and_installed,
    why_none,
)
from poise.model.resources import Device

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs a tool: a shell script of this name with these lines."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def install(name: str, lines: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)

    return install


class Fake:
    """A probe that answers what it is told to."""

    hint = "type this"
    rest = 0.0

    def __init__(self, name: str, *findings: Finding | Callable[[], Finding]) -> None:
        self.name = name
        self._findings = iter(findings)

    def find(self) -> Finding:
        finding = next(self._findings)
        return finding if isinstance(finding, Finding) else finding()

    def use(self, indices: Sequence[int]) -> dict[int, Use]:
        return {index: Use(index * 10, 0) for index in indices}


def cards(*indices: int) -> Finding:
    return Finding(tuple(Device(index=index, memory=1) for index in indices), driver="1")


# --- NVIDIA ----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something that can be loaded stands for the driver's library."""
    monkeypatch.setattr(nvidia, "LIBRARY", "libc.so.6")


def library(**functions: object) -> ModuleType:
    """A module that answers like NVML's binding."""
    module = ModuleType("pynvml")
    names = {"nvmlInit": lambda: None, "nvmlShutdown": lambda: None, **functions}
    for name, function in names.items():
        setattr(module, name, function)
    return module


class Timeout(Exception):
    """As the binding raises it when no event has come."""


def test_a_driver_tells_which_devices_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    critical = 8
    events = [(1, critical, 79), (0, critical, 31), (0, 1, 79), (1, critical, 94)]
    registered = []

    def wait(of: object, milliseconds: int) -> SimpleNamespace:
        assert (of, milliseconds) == ("events", 0), "it does not wait"
        if not events:
            raise Timeout
        device, kind, data = events.pop(0)
        return SimpleNamespace(device=device, eventType=kind, eventData=data)

    answers = library(
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda index: "NVIDIA H100",
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(total=80 << 30),
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
        nvmlEventSetCreate=lambda: "events",
        nvmlDeviceRegisterEvents=lambda handle, kind, of: registered.append((handle, kind)),
        nvmlEventSetWait_v2=wait,
        nvmlEventTypeXidCriticalError=critical,
        NVMLError_Timeout=Timeout,
    )
    monkeypatch.setitem(sys.modules, "pynvml", answers)
    accelerators = Accelerators([Nvml()])
    assert accelerators.faults() == [], "nothing has been found yet"
    accelerators.look()
    assert [(fault.index, fault.code) for fault in accelerators.faults()] == [(1, "XID 79"), (1, "XID 94")]
    assert accelerators.faults() == []
    assert registered == [(0, critical), (1, critical)]


def test_nvidia_devices_come_in_the_order_of_their_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = library(
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda index: [b"NVIDIA H100", "NVIDIA A100"][index],
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(total=(80 - 40 * index) << 30),
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
        nvmlSystemGetDriverVersion=lambda: b"550.54.15",
    )
    monkeypatch.setitem(sys.modules, "pynvml", answers)
    finding = Nvml().find()
    assert finding.driver == "550.54.15"
    assert [(device.index, device.model, device.memory, device.uuid) for device in finding.devices] == [
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
    known, unknown = Nvml().find().devices
    assert known.power == 550_000
    assert known.sources == {"memory": "driver", "power": "driver"}
    assert known.rates["bf16"] == 989_500_000_000_000
    assert known.backend == "cuda"
    assert unknown == Device(
        index=1, model="NVIDIA Frob", memory=80 << 30, uuid="GPU-1", backend="cuda", sources={"memory": "driver"}
    )


def test_use_is_read_from_the_devices_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = library(
        nvmlDeviceGetHandleByIndex=lambda index: [0, 1][index],
        nvmlDeviceGetUtilizationRates=lambda index: SimpleNamespace(gpu=37 + index, memory=12),
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(used=(1 + index) << 30),
        nvmlDeviceGetPowerUsage=lambda index: [310_500][index],  # the other does not tell
    )
    monkeypatch.setitem(sys.modules, "pynvml", answers)
    assert Nvml().use([0, 1, 7]) == {0: Use(370, 1 << 30, 120, 310_500), 1: Use(380, 2 << 30, 120)}


def test_no_nvidia_devices_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlInit=lambda: pytest.fail("it is imported for nothing")))
    monkeypatch.setattr(nvidia, "LIBRARY", "libno-driver-here.so.1")
    assert Nvml().find() == Finding(why_none="NVML does not answer: NVML Shared Library Not Found")
    monkeypatch.setattr(nvidia, "LIBRARY", "libc.so.6")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Nvml().find() == Finding(why_none="`nvidia-ml-py` is not installed")
    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlInit=fail))
    assert Nvml().find() == Finding(why_none="NVML does not answer: Driver Not Loaded", failed=True)
    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlDeviceGetCount=fail))
    assert Nvml().find() == Finding(why_none="NVML failed: Driver Not Loaded", failed=True)
    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlDeviceGetCount=lambda: 0))
    assert Nvml().find() == Finding(why_none="NVML answers, but there is no device")


# --- Ascend ----------------------------------------------------------------------------------------------------------


def test_ascend_devices_are_read_from_the_table(tool: Callable[[str, str], None]) -> None:
    tool("npu-smi", f'[ "$*" = info ] && cat {RECORDED}/npu-smi-910b2.txt')
    finding = NpuSmi().find()
    assert finding.driver == "24.1.0.3"
    assert [(one.index, one.kind, one.backend, one.model, one.memory) for one in finding.devices] == [
        (index, "npu", "cann", "Ascend910B", 64 << 30) for index in range(3)
    ]
    assert [one.uuid for one in finding.devices] == ["0000:C1:00.0", "0000:C2:00.0", "0000:81:00.0"]
    assert finding.devices[0].rates == {}


def test_how_busy_ascend_devices_are(tool: Callable[[str, str], None]) -> None:
    tool("npu-smi", f"cat {RECORDED}/npu-smi-910b4-busy.txt")
    assert NpuSmi().use([1, 7]) == {1: Use(0, 29267 << 20, power=89_500)}


def test_each_die_of_a_card_is_a_device_and_no_first_generation(tool: Callable[[str, str], None]) -> None:
    tool("npu-smi", f"cat {RECORDED}/npu-smi-a3.txt")
    assert [(one.index, one.model, one.rates) for one in NpuSmi().find().devices] == [
        (index, "Ascend910C", {}) for index in range(3)
    ]
    assert NpuSmi().use([2, 3]) == {2: Use(0, 31877 << 20)}


def test_a_chip_that_is_not_well_is_left_out_and_keeps_its_number(tool: Callable[[str, str], None]) -> None:
    tool("npu-smi", f"sed '0,/OK   /s//Alarm/' {RECORDED}/npu-smi-910b2.txt")
    finding = NpuSmi().find()
    assert [one.index for one in finding.devices] == [1, 2]
    assert finding.why_none == "device 0 says Alarm"


@pytest.mark.parametrize("lines", [3, 5, 7, 8])
def test_a_table_that_is_cut_off_is_no_answer(lines: int) -> None:
    text = "\n".join(recorded("npu-smi-910b2.txt").splitlines()[:lines])
    if lines == 5 or lines == 8:
        assert len(chips_of(text)) == (lines == 8)
    else:
        with pytest.raises(NoAnswerError):
            chips_of(text)


# --- AMD -------------------------------------------------------------------------------------------------------------


def test_amd_devices_are_read_from_two_answers(tool: Callable[[str, str], None]) -> None:
    tool(
        "amd-smi",
        f"echo WARNING: User is missing the following required groups: render\n"
        f"case $1 in list) cat {RECORDED}/amd-smi-list.json;; static) cat {RECORDED}/amd-smi-static.json;; esac",
    )
    finding = AmdSmi().find()
    assert finding.driver == "6.17.1-300.fc43.x86_64"
    (device,) = finding.devices
    assert (device.index, device.kind, device.backend, device.memory) == (0, "gpu", "rocm", 32 << 30)
    assert device.model.startswith("Strix Halo")
    assert device.uuid == "00ff1586-0000-1000-8000-000000000000"
    assert (device.rates, device.power) == ({}, 0)


def test_the_newer_shape_is_read_too() -> None:
    listed = parse_json(recorded("amd-smi-list.json"))
    static = parse_json(recorded("amd-smi-static-mi300x.json"))
    static["gpu_data"][0] |= parse_json(recorded("amd-smi-limit.json"))["gpu_data"][0]
    (device,), driver = devices_of(listed, static)
    assert (device.model, driver) == ("MI300X", "6.19.14")
    assert device.memory == 196592 << 20
    assert device.power == 100_000
    assert device.sources == {"memory": "driver", "power": "driver"}
    assert device.rates["bf16"] == 1_307_400_000_000_000


def test_how_busy_amd_devices_are(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = parse_json(recorded("amd-smi-metric.json"))
    assert uses_of(metric) == {0: Use(420, 0, bandwidth=10)}
    # The recording was asked for `--usage` alone.
    metric[0]["power"] = {"socket_power": {"value": 96, "unit": "W"}}
    metric[0]["mem_usage"] = {"total_vram": {"value": 16368, "unit": "MB"}, "used_vram": {"value": 14569, "unit": "MB"}}
    answers = {"list": recorded("amd-smi-list.json"), "metric": json.dumps(metric)}
    monkeypatch.setattr(amd, "ask", lambda *command: answers[command[1]])
    assert AmdSmi().use([0, 3]) == {0: Use(420, 14569 << 20, 10, 96_000)}


def test_amd_devices_are_counted_as_the_runtime_counts_them() -> None:
    listed = [{"gpu": 0, "node_id": 5, "uuid": "a"}, {"gpu": 1, "node_id": 4, "uuid": "b"}]
    static = [
        {"gpu": gpu, "asic": {"market_name": "AMD Instinct MI210"}, "vram": {"size": {"value": 65520, "unit": "MB"}}}
        for gpu in (0, 1)
    ]
    devices, _ = devices_of(listed, static)
    assert [(device.index, device.uuid) for device in devices] == [(0, "b"), (1, "a")]


@pytest.mark.parametrize("answer", ["[1]", "{}", '{"gpu_data": 3}', '[{"gpu": 0}]', '"x"', "null"])
def test_answers_in_another_shape_are_none(answer: str, tool: Callable[[str, str], None]) -> None:
    tool("amd-smi", f"echo '{answer}'")
    finding = AmdSmi().find()
    assert finding.devices == ()
    assert finding.failed or finding.why_none


@given(st.text(alphabet='|+=- \n/:.0123456789abNPUOKHealth{}[]",', max_size=300), st.integers(0, 1200))
def test_no_text_raises_anything_else(noise: str, cut: int) -> None:
    for text in (noise, recorded("npu-smi-a3.txt")[:cut] + noise, noise + recorded("amd-smi-static.json")[:cut]):
        with contextlib.suppress(NoAnswerError):
            chips_of(text)
        with contextlib.suppress(NoAnswerError):
            devices_of(parse_json(text), parse_json(text))


# --- tools that do not answer ----------------------------------------------------------------------------------------


def test_a_tool_is_bounded_in_time_and_output(tool: Callable[[str, str], None]) -> None:
    tool("slow", "sleep 60 & sleep 60")
    began = time.monotonic()
    with pytest.raises(NoAnswerError, match=r"has not answered within 0.1 s"):
        ask("slow", seconds=0.1)
    assert time.monotonic() - began < 5
    tool("loud", "yes")
    with pytest.raises(NoAnswerError, match="prints more than 1 KiB"):
        ask("loud", most=1024)
    tool("angry", "echo no; exit 3")
    with pytest.raises(NoAnswerError, match="ended with 3"):
        ask("angry")
    with pytest.raises(NoAnswerError, match="is not installed") as caught:
        ask("missing-tool")
    assert not caught.value.finding().failed
    tool("fine", "echo; echo yes")
    assert ask("fine") == "\nyes\n"


def test_devices_are_numbered_over_all_probes() -> None:
    accelerators = Accelerators([Fake("a", cards(0, 1)), Fake("b", Finding(why_none="none")), Fake("c", cards(0, 2))])
    answers = accelerators.look()
    devices = [device for answer in answers for device in answer.finding.devices]
    assert [(device.index, device.driver_index) for device in devices] == [(0, None), (1, None), (2, 0), (3, 2)]
    assert accelerators.use([1, 3, 9]) == {1: Use(10, 0), 3: Use(20, 0)}


@pytest.fixture
def held() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_how_busy_devices_are_delays_nobody(held: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "USE_SECONDS", 0.05)
    asked = []

    class Slow(Fake):
        def use(self, indices: Sequence[int]) -> dict[int, Use]:
            asked.append(1)
            held.wait()
            return super().use(indices)

    accelerators = Accelerators([Slow("a", cards(3))])
    accelerators.look()
    assert [accelerators.use([0]) for _ in range(3)] == [{}, {}, {}]
    assert len(asked) == 1
    held.set()
    assert accelerators.use([0]) == {0: Use(30, 0)}


def test_a_tool_is_left_to_rest_between_two_questions() -> None:
    class Tool(Fake):
        rest = 60.0

    accelerators = Accelerators([Tool("a", cards(1))])
    accelerators.look()
    assert [accelerators.use([0]) for _ in range(3)] == [{0: Use(10, 0)}, {}, {}]


def test_no_driver_makes_more_of_devices_than_a_node_may_have() -> None:
    many = Finding(tuple(Device(index=index, model="a@b" * 99) for index in range(1000)))
    (answer,) = Accelerators([Fake("a", many)]).look()
    assert len(answer.finding.devices) == 64
    assert "@" not in answer.finding.devices[0].model
    assert len(answer.finding.devices[0].model) == 128


def test_one_hiccup_loses_no_device_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    failing = Finding(why_none="it hangs", failed=True)
    accelerators = Accelerators([Fake("a", cards(0), *[failing] * 5, cards(0))])
    with caplog.at_level(logging.WARNING):
        seen = [len(accelerators.look()[0].finding.devices) for _ in range(7)]
    assert seen == [1, 1, 1, 1, 0, 0, 1]
    assert [record.getMessage() for record in caplog.records] == ["a: it hangs"]


def test_devices_that_a_driver_says_are_gone_are_gone() -> None:
    accelerators = Accelerators([Fake("a", cards(0), Finding(why_none="no device"))])
    assert [len(accelerators.look()[0].finding.devices) for _ in range(2)] == [1, 0]


def test_a_probe_that_hangs_is_left_behind_and_not_asked_twice(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "ANSWER_SECONDS", 0.05)
    asked = []

    def hang() -> Finding:
        asked.append(1)
        held.wait()
        return cards(0)

    accelerators = Accelerators([Fake("a", hang, hang), Fake("b", cards(0), cards(0))])
    for _ in range(2):
        hung, well = accelerators.look()
        assert (hung.finding.failed, len(well.finding.devices)) == (True, 1)
    assert len(asked) == 1
    assert "not answered" in why_none(accelerators.look()[:1])


def test_a_probe_that_raises_or_talks_nonsense_stops_nothing() -> None:
    def burst() -> Finding:
        raise ValueError("burst")

    (answer,) = Accelerators([Fake("a", burst)]).look()
    assert answer.finding == Finding(why_none="ValueError: burst", failed=True)
    (answer,) = Accelerators([Fake("a", lambda: None)]).look()  # type: ignore[arg-type, return-value]
    assert answer.finding.failed


def test_packages_bring_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Fake("frobs", cards(0))
    points = [
        SimpleNamespace(name="frobs", value="a:b", load=lambda: good),
        SimpleNamespace(name="junk", value="a:c", load=lambda: 3),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points if group == "poise.probes" else [])
    found = shipped_and_installed()
    assert [probe.name for probe in found] == ["NVML", "npu-smi", "amd-smi", "frobs", "junk"]
    assert "cannot be loaded" in found[-1].find().why_none


# --- what they say of a node -----------------------------------------------------------------------------------------


def test_signals_are_of_all_devices_that_answer_as_far_as_they_tell() -> None:
    memory = {0: 100, 1: 300, 2: 1000}
    seen = {0: Use(900, 50, bandwidth=400, power=70_000), 1: Use(100, 50, power=30_000)}
    assert device_signals(seen, memory) == {
        "device": 500, "device_memory": 250, "device_bandwidth": 400, "device_power": 100_000
    }  # fmt: skip
    assert device_signals({2: Use(10, 0)}, memory) == {"device": 10, "device_memory": 0}
    assert device_signals({}, memory) == {}
