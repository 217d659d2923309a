"""Capabilities of known device models: memory, bandwidth, peak rates, power, each with its source.

These names identify a node's devices, so that `H100` in a job, in a throughput table and in a driver's name (`NVIDIA
H100 80GB HBM3`) are the same model. Rates are the vendor's peaks without sparsity (where a data sheet gives them with
sparsity, half of that), matrix units included, with accumulation in fp32 if a precision has two rates. Figures that no
vendor document states are left out: no rate, or 0. Measured figures belong to the profiles, not here.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from poise.model.resources import Device

TERA = 10**12
GIGA = 10**9

_VENDORS = frozenset({"nvidia", "tesla", "geforce", "amd", "instinct", "google", "cloud", "huawei"})
_FORM = re.compile(r"sxm\d?|pcie|oam|hbm\d?e?|\d+(?:gb?)?|tensor|core|gpu")
"""Words after a model's name that do not denote another model. Others do: `Laptop`, `NVL`, `Ti`, `MIG`."""

_SAME_MEMORY = 0.15
"""Maximum relative difference between a driver's memory figure and the data sheet's: 80 GB are 85.0e9 bytes to NVML."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `stem` is the pattern of its name in lower case; `memory` in bytes, its `bandwidth` in bytes per
    second, `rates` in operations per second by precision, `power` in milliwatts. Unknown figures are 0 or missing.
    `sizes` are other amounts of memory with which it is sold.
    """

    name: str
    stem: str
    source: str
    kind: str = "gpu"
    backend: str = "cuda"
    memory: int = 0
    bandwidth: int = 0
    rates: dict[str, int] = {}
    power: int = 0
    sizes: tuple[int, ...] = ()


def models_named(text: str, memory: int = 0) -> tuple[Entry, ...]:
    """Return the models that a name may denote: one (`NVIDIA A100-SXM4-80GB`), several (`A100`), or none.

    `memory` in bytes distinguishes models with the same name; 0 if it is unknown.
    """
    words = [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word and word not in _VENDORS]
    found = [(entry, form) for entry in CATALOGUE if (form := _form(entry, words)) is not None]
    if len(found) > 1:
        wants_pcie = any("pcie" in form for _, form in found)
        alike = [one for one in found if one[0].name.endswith("PCIe") == wants_pcie]
        found = alike or found
    sizes = [int(word.rstrip("gb")) * GIGA for _, form in found for word in form if word[0].isdigit()]
    size = sizes[0] if sizes else memory
    if len(found) > 1 and size:
        found = [one for one in found if _alike(one[0].memory, size)]
    return tuple(entry for entry, _ in found)


def device_of(model: str, index: int, **known: Any) -> Device:
    """Return a device of this model with the catalogue's figures, overridden by the `known` ones.

    `known` are fields of `Device`. A model that is not in the catalogue, or is ambiguous, keeps its name and gets only
    the known figures.
    """
    entries = models_named(model, known.get("memory", 0))
    if len(entries) != 1:
        return Device(index=index, model=model, **known)
    entry = entries[0]
    figures: dict[str, Any] = {
        "kind": entry.kind,
        "backend": entry.backend,
        "memory": entry.memory,
        "bandwidth": entry.bandwidth,
        "rates": entry.rates,
        "power": entry.power,
    }
    return Device(index=index, model=entry.name, **(figures | known))


def device_found(name: str, index: int, **known: Any) -> Device:
    """Return a device as described by its driver. A device with another amount of memory than its model counts as
    another model: a part of it (a slice, one of two dies), or a different model with the same driver name.
    """
    memory = known.get("memory", 0)
    entries = models_named(name, memory)
    sizes = [size for entry in entries for size in (entry.memory, *entry.sizes) if size]
    sources = {figure: "driver" for figure in ("memory", "bandwidth", "power") if known.get(figure)}
    if sizes and memory and not any(_alike(size, memory) for size in sizes):
        return Device(index=index, model=name, sources=sources, **known)
    return device_of(name, index, sources=sources, **known)


def entry_of(model: str) -> Entry | None:
    """Return the entry with exactly this name."""
    return _BY_NAME.get(model)


def per_watt(device: Device) -> dict[str, int]:
    """Return peak operations per joule by precision (operations per second and watt); empty if the power is unknown."""
    return {name: rate * 1000 // device.power for name, rate in device.rates.items()} if device.power else {}


def _alike(size: int, memory: int) -> bool:
    return abs(size - memory) <= _SAME_MEMORY * memory


def _form(entry: Entry, words: Sequence[str]) -> Sequence[str] | None:
    """Return the words after the model's name; None if the name does not match."""
    for end in range(1, len(words) + 1):
        if re.fullmatch(entry.stem, "".join(words[:end])) and all(_FORM.fullmatch(word) for word in words[end:]):
            return words[end:]
    return None


def _tera(**rates: float) -> dict[str, int]:
    return {name: round(rate * TERA) for name, rate in rates.items()}


def _watts(watts: int) -> int:
    return watts * 1000


CATALOGUE: tuple[Entry, ...] = (
    Entry(
        name="V100",
        stem="v100",
        source="NVIDIA V100 data sheet (January 2020), SXM2 with the smaller memory",
        memory=16 * GIGA,
        sizes=(32 * GIGA,),
        bandwidth=900 * GIGA,
        rates=_tera(fp64=7.8, fp32=15.7, fp16=125),
        power=_watts(300),
    ),
    Entry(
        name="T4",
        stem="t4",
        source="NVIDIA T4 data sheet (2019)",
        memory=16 * GIGA,
        bandwidth=320 * GIGA,
        rates=_tera(fp32=8.1, fp16=65, int8=130),
        power=_watts(70),
    ),
    Entry(
        name="L4",
        stem="l4",
        source="NVIDIA L4 data sheet (2023); its rates are with sparsity, halved here",
        memory=24 * GIGA,
        bandwidth=300 * GIGA,
        rates=_tera(fp32=30.3, tf32=60, bf16=121, fp16=121, fp8=242.5, int8=242.5),
        power=_watts(72),
    ),
    Entry(
        name="A10",
        stem="a10",
        source="NVIDIA A10 data sheet (2021)",
        memory=24 * GIGA,
        bandwidth=600 * GIGA,
        rates=_tera(fp32=31.2, tf32=62.5, bf16=125, fp16=125, int8=250),
        power=_watts(150),
    ),
    Entry(
        name="A100-40",
        stem="a100",
        source="NVIDIA A100 data sheet (2020), SXM4; the PCIe card is limited to 250 W",
        memory=40 * GIGA,
        bandwidth=1555 * GIGA,
        rates=_tera(fp64=19.5, fp32=19.5, tf32=156, bf16=312, fp16=312, int8=624),
        power=_watts(400),
    ),
    Entry(
        name="A100-80",
        stem="a100",
        source="NVIDIA A100 data sheet (June 2021), SXM4; the PCIe card has 1,935 GB/s and is limited to 300 W",
        memory=80 * GIGA,
        bandwidth=2039 * GIGA,
        rates=_tera(fp64=19.5, fp32=19.5, tf32=156, bf16=312, fp16=312, int8=624),
        power=_watts(400),
    ),
    Entry(
        name="H100",
        stem="h100",
        source="NVIDIA H100 data sheet (2023), SXM5; its rates are with sparsity, halved here",
        memory=80 * GIGA,
        bandwidth=3350 * GIGA,
        rates=_tera(fp64=67, fp32=67, tf32=494.5, bf16=989.5, fp16=989.5, fp8=1979, int8=1979),
        power=_watts(700),
    ),
    Entry(
        name="H100-PCIe",
        stem="h100",
        source="NVIDIA H100 data sheet (2023), PCIe; its rates are with sparsity, halved here",
        memory=80 * GIGA,
        bandwidth=2000 * GIGA,
        rates=_tera(fp64=51, fp32=51, tf32=378, bf16=756.5, fp16=756.5, fp8=1513, int8=1513),
        power=_watts(350),
    ),
    Entry(
        name="H200",
        stem="h200",
        source="NVIDIA H200 data sheet (2023), SXM; its rates are with sparsity, halved here",
        memory=141 * GIGA,
        bandwidth=4800 * GIGA,
        rates=_tera(fp64=67, fp32=67, tf32=494.5, bf16=989.5, fp16=989.5, fp8=1979, int8=1979),
        power=_watts(700),
    ),
    Entry(
        name="L40S",
        stem="l40s",
        source="NVIDIA L40S data sheet (2023)",
        memory=48 * GIGA,
        bandwidth=864 * GIGA,
        rates=_tera(fp32=91.6, tf32=183, bf16=362.05, fp16=362.05, fp8=733, int8=733),
        power=_watts(350),
    ),
    Entry(
        name="RTX3090",
        stem="rtx3090",
        source="NVIDIA Ampere GA102 GPU architecture white paper (V2.0, 2021), appendix A",
        memory=24 * GIGA,
        bandwidth=936 * GIGA,
        rates=_tera(fp32=35.6, tf32=35.6, bf16=71, fp16=71, int8=284),
        power=_watts(350),
    ),
    Entry(
        name="RTX4090",
        stem="rtx4090",
        source="NVIDIA Ada GPU architecture white paper (V2.01, 2023), appendix A",
        memory=24 * GIGA,
        bandwidth=1008 * GIGA,
        rates=_tera(fp32=82.6, tf32=82.6, bf16=165.2, fp16=165.2, fp8=330.3, int8=660.6),
        power=_watts(450),
    ),
    Entry(
        name="MI250",
        stem="mi250",
        source="AMD Instinct MI250 data sheet (November 2021); of both dies, which a driver shows as two of 64 GB",
        backend="rocm",
        memory=128 * GIGA,
        bandwidth=3200 * GIGA,
        rates=_tera(fp64=90.5, fp32=90.5, bf16=362.1, fp16=362.1, int8=362.1),
        power=_watts(500),
    ),
    Entry(
        name="MI300X",
        stem="mi300x",
        source="AMD Instinct MI300X data sheet (December 2023)",
        backend="rocm",
        memory=192 * GIGA,
        bandwidth=5300 * GIGA,
        rates=_tera(fp64=163.4, fp32=163.4, tf32=653.7, bf16=1307.4, fp16=1307.4, fp8=2614.9, int8=2614.9),
        power=_watts(750),
    ),
    Entry(
        name="Ascend910",
        stem="ascend910a?",
        source="Huawei at its launch (August 2019) for the rates and 310 W; Linley newsletter (October 2019) for 32 GB",
        kind="npu",
        backend="cann",
        memory=32 * GIGA,
        rates=_tera(fp16=256, int8=512),
        power=_watts(310),
    ),
    Entry(
        name="Ascend910B",
        stem=r"ascend910b(?:\dc?)?",
        source="its maker publishes no figures, and others differ (256 to 320 TFLOPS in fp16, 0.4 to 1.2 TB/s): "
        "declare or measure them; its forms (B1 to B4) have 32 or 64 GiB, as `npu-smi` reports",
        kind="npu",
        backend="cann",
    ),
    Entry(
        name="Ascend910C",
        stem="ascend910c",
        source="one die of it, which `npu-smi` calls `Ascend910` and gives 65,536 MB; its maker publishes no figures",
        kind="npu",
        backend="cann",
        memory=64 * 2**30,
    ),
    Entry(
        name="TPUv4",
        stem="tpuv4",
        source="Google Cloud documentation, TPU v4 (per chip; 1,228 GB/s of 32 GiB, at most 192 W)",
        kind="tpu",
        backend="xla",
        memory=32 * 2**30,
        bandwidth=1228 * GIGA,
        rates=_tera(bf16=275, int8=275),
        power=_watts(192),
    ),
    Entry(
        name="AppleM",
        stem=r"applem(?:[13](?:pro|max|ultra)?|2ultra|4(?:max)?)?",
        source="a family of chips without a common figure, of which no rates are published: declare those of yours",
        backend="mps",
    ),
    Entry(
        name="AppleM2",
        stem="applem2",
        source="Apple, M2 Pro and M2 Max (January 2023): of the memory, shared with the CPU; no rates are published",
        backend="mps",
        bandwidth=100 * GIGA,
    ),
    Entry(
        name="AppleM2Pro",
        stem="applem2pro",
        source="Apple, M2 Pro and M2 Max (January 2023): of the memory, shared with the CPU; no rates are published",
        backend="mps",
        bandwidth=200 * GIGA,
    ),
    Entry(
        name="AppleM2Max",
        stem="applem2max",
        source="Apple, M2 Pro and M2 Max (January 2023): of the memory, shared with the CPU; no rates are published",
        backend="mps",
        bandwidth=400 * GIGA,
    ),
    Entry(
        name="AppleM4Pro",
        stem="applem4pro",
        source="Apple, M4 Pro and M4 Max (October 2024): of the memory, shared with the CPU; no rates are published",
        backend="mps",
        bandwidth=273 * GIGA,
    ),
    Entry(
        name="cpu",
        stem="cpu",
        source="any processor: declare or measure what yours can do",
        kind="cpu",
        backend="cpu",
    ),
)

_BY_NAME = {entry.name: entry for entry in CATALOGUE}
