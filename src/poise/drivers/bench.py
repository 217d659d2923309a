"""Measures devices in its own process: run as `python -m poise.drivers.bench`; prints one JSON value per line.

    processor       numpy, or torch if installed: the CPUs that this process may use
    accelerators    torch: every device that it sees, in its order (CUDA, ROCm, Ascend with `torch_npu`)

Sizes are chosen so that a run lasts long enough on this device; each is run once to warm up, then several times. numpy
computes int8 and the 16-bit formats without the processor's units for them, so they are left out there; fp8 is left out
everywhere, because torch has no stable call for it.
"""

import argparse
import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec

from poise.model.measured import Sample, sample_of


class Effort(NamedTuple):
    """The duration of a run in seconds, the number of runs, and the bytes of a buffer that is copied."""

    seconds: float
    runs: int
    buffer: int


QUICK = Effort(0.1, 3, 64 * 2**20)
THOROUGH = Effort(0.25, 9, 512 * 2**20)
"""Buffers exceed the caches of processors; otherwise a copy would not reach the memory."""

SIZES = (1024, 2048, 4096, 8192, 16384)
"""Sizes of square matrices, in multiples of the tile sizes of matrix units."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Measured performance of one device of this process; `place` is its index here."""

    place: int
    library: str
    rates: dict[str, Sample] = {}
    bandwidth: Sample | None = None
    links: dict[str, Sample] = {}
    left_out: dict[str, str] = {}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m poise.drivers.bench", description="measure devices")
    parser.add_argument("what", choices=("processor", "accelerators"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    effort = QUICK if options.quick else THOROUGH
    reports = processor(effort) if options.what == "processor" else accelerators(effort)
    for report in reports:
        sys.stdout.write(json.dumps(msgspec.to_builtins(report)) + "\n")
        sys.stdout.flush()
    return 0


def processor(effort: Effort) -> Iterator[Report]:
    """Yield one report for all CPUs of this process together."""
    torch = _library("torch")
    if torch is not None:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        rates, left_out = _torch_rates(torch, _Torch(torch, "cpu", lambda: None), ("fp64", "fp32", "bf16"), effort)
        library = f"torch {torch.__version__}"
        left_out |= dict.fromkeys(("fp16", "int8"), "processors are not used for it through torch")
    else:
        rates, left_out, library = *_numpy_rates(effort), f"numpy {_numpy().__version__}"
    yield Report(place=0, library=library, rates=rates, bandwidth=_copy_rate(effort), left_out=left_out)


def accelerators(effort: Effort) -> Iterator[Report]:
    """Yield a report for each device that torch sees; exit with an error if torch is missing."""
    torch = _library("torch")
    if torch is None:
        raise SystemExit("torch is not installed")
    _library("torch_npu")  # makes `torch.npu`
    for name in ("cuda", "npu"):
        backend = getattr(torch, name, None)
        if backend is None or not backend.is_available():
            continue
        for place in range(backend.device_count()):
            backend.set_device(place)
            device = _Torch(torch, f"{name}:{place}", backend.synchronize)
            wanted = ("fp64", "fp32", "tf32", "bf16", "fp16", "int8") if name == "cuda" else ("fp32", "bf16", "fp16")
            rates, left_out = _torch_rates(torch, device, wanted, effort)
            yield Report(
                place=place,
                library=f"torch {torch.__version__}",
                rates=rates,
                bandwidth=device.copy_rate(effort),
                links=device.links(effort, [f"{name}:{other}" for other in range(backend.device_count())]),
                left_out=left_out,
            )
        return
    raise SystemExit("torch sees no device")


# --- with numpy ------------------------------------------------------------------------------------------------------


def _numpy_rates(effort: Effort) -> tuple[dict[str, Sample], dict[str, str]]:
    numpy = _numpy()
    rates = {}
    for name, kind in (("fp64", numpy.float64), ("fp32", numpy.float32)):

        def product(size: int, kind: Any = kind) -> Callable[[], object]:
            left, right = numpy.ones((size, size), kind), numpy.ones((size, size), kind)
            out = numpy.empty((size, size), kind)
            return lambda: numpy.matmul(left, right, out=out)

        rates[name] = _product_rate(product, effort)
    why = "numpy computes it without the processor's units for it"
    return rates, dict.fromkeys(("bf16", "fp16", "int8"), why)


def _copy_rate(effort: Effort) -> Sample:
    """Measure memory bandwidth: each CPU copies a part of a buffer, since one CPU cannot saturate the memory."""
    numpy = _numpy()
    workers = len(os.sched_getaffinity(0))
    count = effort.buffer // 8 // workers * workers
    source, target = numpy.ones(count), numpy.ones(count)
    parts = list(zip(numpy.split(target, workers), numpy.split(source, workers), strict=True))
    with ThreadPoolExecutor(workers) as pool:

        def copy() -> None:
            list(pool.map(lambda part: numpy.copyto(*part), parts))

        return sample_of(2 * count * 8, _times(copy, effort, lambda: None))


def _numpy() -> Any:
    return importlib.import_module("numpy")


# --- with torch ------------------------------------------------------------------------------------------------------


class _Torch:
    """A torch device. `wait` returns when all work on it is done."""

    def __init__(self, torch: Any, name: str, wait: Callable[[], None]) -> None:
        self._torch = torch
        self.name = name
        self.wait = wait

    def copy_rate(self, effort: Effort) -> Sample:
        source, target = self._buffer(self.name, effort), self._buffer(self.name, effort)
        return sample_of(2 * effort.buffer, _times(lambda: target.copy_(source), effort, self.wait))

    def links(self, effort: Effort, devices: list[str]) -> dict[str, Sample]:
        """Measure transfers to and from the host, whose memory is pinned so that the link is the limit, and to other
        devices."""
        own = self._buffer(self.name, effort)
        host = self._torch.empty(effort.buffer, dtype=self._torch.uint8)
        with contextlib.suppress(RuntimeError):  # without pinned memory the copy is slower
            host = host.pin_memory()
        ways = {"host to device": (own, host), "device to host": (host, own)}
        ways |= {
            f"device to device {place}": (self._buffer(other, effort), own)
            for place, other in enumerate(devices)
            if other != self.name
        }
        found = {}
        for name, (target, source) in ways.items():

            def copy(target: Any = target, source: Any = source) -> None:
                target.copy_(source, non_blocking=True)

            found[name] = sample_of(effort.buffer, _times(copy, effort, self.wait))
        return found

    def product(self, precision: str) -> Callable[[int], Callable[[], object]]:
        """Return a function that makes the product of two matrices of a size. Raises as torch if it has none."""
        torch = self._torch
        kind = {
            "fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32,
            "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8,
        }[precision]  # fmt: skip

        def make(size: int) -> Callable[[], object]:
            left = torch.ones((size, size), dtype=kind, device=self.name)
            right = torch.ones((size, size), dtype=kind, device=self.name)
            if precision == "int8":
                return lambda: torch._int_mm(left, right)
            out = torch.empty((size, size), dtype=kind, device=self.name)
            return lambda: torch.matmul(left, right, out=out)

        return make

    def _buffer(self, device: str, effort: Effort) -> Any:
        return self._torch.ones(effort.buffer, dtype=self._torch.uint8, device=device)


def _torch_rates(
    torch: Any, device: _Torch, precisions: tuple[str, ...], effort: Effort
) -> tuple[dict[str, Sample], dict[str, str]]:
    rates, left_out = {}, {}
    for precision in precisions:
        with contextlib.suppress(AttributeError):
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        try:
            rates[precision] = _product_rate(device.product(precision), effort, device.wait)
        except (RuntimeError, AttributeError, TypeError) as error:  # this device or this torch does not support it
            left_out[precision] = str(error).partition("\n")[0][:200]
    return rates, left_out


# --- timing ----------------------------------------------------------------------------------------------------------


def _product_rate(
    product: Callable[[int], Callable[[], object]], effort: Effort, wait: Callable[[], None] = lambda: None
) -> Sample:
    """Measure the product of the largest matrices that fit and multiply within the time of a run; or the smallest."""
    size = SIZES[0]
    once = _once(product(size), wait)
    for larger in SIZES[1:]:
        if once * (larger / size) ** 3 > effort.seconds:
            break
        try:
            once = _once(product(larger), wait)
        except (RuntimeError, MemoryError):  # out of memory
            break
        size = larger
    return sample_of(2 * size**3, _times(product(size), effort, wait))


def _once(work: Callable[[], object], wait: Callable[[], None]) -> float:
    """Return the seconds of the fastest of three runs, after one to warm up."""
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - began)
    return max(min(seconds[1:]), 1e-7)


def _times(work: Callable[[], object], effort: Effort, wait: Callable[[], None]) -> list[float]:
    """Return the mean seconds per call in each run; calls are repeated so that a run is long enough to measure."""
    often = max(1, round(effort.seconds / _once(work, wait)))
    seconds = []
    for _ in range(effort.runs):
        began = time.perf_counter()
        for _ in range(often):
            work()
        wait()
        seconds.append((time.perf_counter() - began) / often)
    return seconds


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


if __name__ == "__main__":
    sys.exit(main())
