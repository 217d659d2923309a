"""Measuring: on this machine's CPUs for real, and of accelerators what is asked of torch (of which a small one is made
here: there is no card to try it on)."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from poise.drivers import bench, measured
from poise.drivers.bench import Effort, accelerators, processor
from poise.errors import Fault
from poise.model.measured import Measured, Sample, processor_key, sample_of

BRIEF = Effort(0.0005, 3, 1 << 16)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SIZES", (16, 32))


class Tensor:
    """As much of one as is used."""

    def __init__(self, values: "np.ndarray[Any, Any]", device: str) -> None:
        self.values = values
        self.device = device

    def copy_(self, source: "Tensor", non_blocking: bool = False) -> None:
        self.values[...] = source.values

    def pin_memory(self) -> "Tensor":
        return self


def torch_with(**more: Any) -> Any:
    module: Any = ModuleType("torch")

    def make(shape: Any, dtype: Any, device: str = "cpu") -> Tensor:
        return Tensor(np.ones(shape, dtype), device)

    def matmul(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        if left.values.dtype == np.float16:
            raise RuntimeError("no half here\nand a long story")
        np.matmul(left.values, right.values, out=out.values)
        return out

    module.__version__ = "9"
    module.float64, module.float32, module.bfloat16 = np.float64, np.float32, np.int16
    module.float16, module.int8, module.uint8 = np.float16, np.int8, np.uint8
    module.ones = module.empty = make
    module.matmul = matmul
    module._int_mm = lambda left, right: np.matmul(left.values, right.values)
    module.set_num_threads = lambda count: None
    module.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False)))
    for name, value in more.items():
        setattr(module, name, value)
    return module


def with_torch(monkeypatch: pytest.MonkeyPatch, torch: ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch_npu", None)


def backend(count: int, waits: list[int]) -> SimpleNamespace:
    return SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: count,
        set_device=lambda place: None,
        synchronize=lambda: waits.append(1),
    )


def test_the_cpus_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch(monkeypatch, None)
    (report,) = processor(BRIEF)
    assert set(report.rates) == {"fp64", "fp32"}
    assert set(report.left_out) == {"bf16", "fp16", "int8"}
    for sample in (*report.rates.values(), report.bandwidth):
        assert sample is not None
        assert 0 < sample.least <= sample.median <= sample.most
        assert sample.runs == 3


def test_torch_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch(monkeypatch, torch_with())
    (report,) = processor(BRIEF)
    assert report.library == "torch 9"
    assert set(report.rates) == {"fp64", "fp32", "bf16"}


def test_every_device_that_torch_sees_is_measured_with_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    with_torch(monkeypatch, torch_with(cuda=backend(2, waits)))
    first, second = accelerators(BRIEF)
    assert (first.place, second.place) == (0, 1)
    assert set(first.rates) == {"fp64", "fp32", "tf32", "bf16", "int8"}
    assert first.left_out == {"fp16": "no half here"}
    assert set(first.links) == {"host to device", "device to host", "device to device 1"}
    assert set(second.links) == {"host to device", "device to host", "device to device 0"}
    assert waits != []


def test_matrices_that_do_not_fit_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    small_card = torch_with(cuda=backend(1, []))
    make: Callable[..., Tensor] = small_card.ones

    def short(shape: Any, dtype: Any, device: str = "cpu") -> Tensor:
        if isinstance(shape, tuple) and shape[0] > 16:
            raise RuntimeError("out of memory")
        return make(shape, dtype, device)

    small_card.ones = short
    with_torch(monkeypatch, small_card)
    (report,) = accelerators(BRIEF)
    assert {"fp64", "fp32"} <= set(report.rates)


def test_an_npu_is_measured_in_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = SimpleNamespace(is_available=lambda: False)
    with_torch(monkeypatch, torch_with(cuda=absent, npu=backend(1, [])))
    (report,) = accelerators(BRIEF)
    assert set(report.rates) == {"fp32", "bf16"}


def test_nothing_is_measured_without_torch_or_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch(monkeypatch, None)
    with pytest.raises(SystemExit, match="torch is not installed"):
        list(accelerators(BRIEF))
    with_torch(monkeypatch, torch_with())
    with pytest.raises(SystemExit, match="torch sees no device"):
        list(accelerators(BRIEF))


def test_operations_are_counted_as_said() -> None:
    assert sample_of(2 * 10**3, [1.0, 2.0]) == Sample(median=1500, least=1000, most=2000, runs=2)
    assert processor_key("EPYC", 1500) == "EPYC x 1.5"


def answer(code: int, out: str, err: str) -> Callable[..., Any]:
    return lambda *_, **__: subprocess.CompletedProcess([], code, out.encode(), err.encode())


def test_a_process_that_fails_to_measure_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps({"place": 0, "library": "x"})
    monkeypatch.setattr(subprocess, "run", answer(0, f"{line}\n{line}\n", ""))
    assert [report.library for report in measured.measure("accelerators", {}, devices=2)] == ["x", "x"]
    monkeypatch.setattr(subprocess, "run", answer(1, "", "much\ntorch is not installed\n"))
    with pytest.raises(Fault) as caught:
        measured.measure("accelerators", {})
    assert caught.value.record.have == "torch is not installed"

    def late(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("bench", 1)

    monkeypatch.setattr(subprocess, "run", late)
    with pytest.raises(Fault, match="takes too long"):
        measured.measure("processor", {})


def test_names_of_profiles_can_be_read_and_never_clash(tmp_path: Path) -> None:
    first = measured.profile_path(tmp_path, "GPU-1", "550/../x")
    assert first.parent == tmp_path
    assert first.name.startswith("GPU-1-550-..-x-")
    assert first != measured.profile_path(tmp_path, "GPU-1-550", "../x")
    one = Measured(device="d", model="m", driver="v", library="l", at=0.0)
    assert measured.save_measured(tmp_path / "new" / "profiles", one).exists()
    assert measured.load_measured(tmp_path / "new" / "profiles", "d", "v") == one
    assert one.figures() == {"rates": {}}
