"""Known models: one name however a driver spells it, and only figures that somebody published."""

import pytest

from poise.model.catalogue import CATALOGUE, TERA, device_found, device_of, models_named, per_watt
from poise.model.resources import Device

PRECISIONS = {"fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"}


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA A100 80GB PCIe", "A100-80"),
        ("A100-80", "A100-80"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("H100", "H100"),
        ("NVIDIA H200", "H200"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla V100-PCIE-32GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("RTX 3090", "RTX3090"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("Ascend 910", "Ascend910"),
        ("Ascend 910B", "Ascend910B"),
        ("TPU v4", "TPUv4"),
        ("Ascend910B3", "Ascend910B"),
        ("Ascend910B4-1", "Ascend910B"),
        ("Ascend910A", "Ascend910"),
        ("Apple M2 Max", "AppleM2Max"),
        ("Apple M3", "AppleM"),
        ("Apple M4 Max", "AppleM"),
        ("CPU", "cpu"),
    ],
)
def test_a_model_has_one_name_however_it_is_spelled(said: str, name: str) -> None:
    assert [entry.name for entry in models_named(said)] == [name]


@pytest.mark.parametrize(
    "said",
    [
        "",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A10G",
        "NVIDIA H100 NVL",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "AMD Instinct MI250X",
        "NVIDIA B200",
    ],
)
def test_what_only_looks_alike_is_not_known(said: str) -> None:
    assert models_named(said) == ()


def test_a_family_name_stands_for_its_forms_until_the_memory_is_known() -> None:
    assert [entry.name for entry in models_named("A100")] == ["A100-40", "A100-80"]
    assert [entry.name for entry in models_named("A100", 85_899_345_920)] == ["A100-80"]
    assert [entry.name for entry in models_named("A100", 80 * 10**9)] == ["A100-80"]
    assert [entry.name for entry in models_named("A100", 42_949_672_960)] == ["A100-40"]


def test_a_device_gets_the_figures_of_its_model_and_what_is_known_goes_first() -> None:
    device = device_of("NVIDIA H100 80GB HBM3", 3, memory=85_520_809_984, uuid="GPU-3")
    assert (device.index, device.model, device.memory, device.uuid) == (3, "H100", 85_520_809_984, "GPU-3")
    assert device.rates["fp16"] == 989.5 * TERA
    assert device.bandwidth == 3_350 * 10**9
    assert device.power == 700_000
    assert device.backend == "cuda"


def test_a_model_that_nobody_knows_keeps_its_name() -> None:
    assert device_of("Frob 9", 0, memory=5) == Device(index=0, model="Frob 9", memory=5)


@pytest.mark.parametrize(
    ("said", "gib", "model", "fp16"),
    [
        ("Tesla V100-SXM2-32GB", 32, "V100", 125 * TERA),
        ("AMD Instinct MI300X", 192, "MI300X", 1307.4 * TERA),
        ("AMD Instinct MI300X", 24, "AMD Instinct MI300X", None),
        ("AMD Instinct MI250", 64, "AMD Instinct MI250", None),
    ],
)
def test_a_part_of_a_device_is_not_given_the_figures_of_the_whole(
    said: str, gib: int, model: str, fp16: float | None
) -> None:
    device = device_found(said, 0, memory=gib << 30)
    assert (device.model, device.rates.get("fp16")) == (model, fp16)
    assert device.sources == {"memory": "driver"}


def test_performance_per_watt() -> None:
    assert per_watt(device_of("T4", 0))["int8"] == 130 * TERA // 70
    assert per_watt(device_of("Ascend910B", 0)) == {}


def test_every_figure_has_a_source_and_makes_sense() -> None:
    assert len({entry.name for entry in CATALOGUE}) == len(CATALOGUE)
    for entry in CATALOGUE:
        assert entry.source
        assert set(entry.rates) <= PRECISIONS, entry.name
        assert [entry] == list(models_named(entry.name)), entry.name
        narrow = [entry.rates[name] for name in ("fp64", "fp32", "fp16", "fp8") if name in entry.rates]
        assert narrow == sorted(narrow), f"{entry.name}: a narrower precision is slower"
