"""What a person says of devices that were found: which are meant, and what it changes."""

from typing import Any

import pytest

from poise.errors import SpecError
from poise.model.catalogue import TERA, device_found
from poise.model.declared import with_declared
from poise.model.devicefile import compile_devices
from poise.model.fleetfile import compile_fleet
from poise.model.reports.nodes import report_of
from poise.model.resources import Device


def found() -> list[Device]:
    return [
        device_found("NVIDIA A10", 0, memory=24 * 10**9, uuid="GPU-0", kind="gpu", backend="cuda"),
        device_found("NVIDIA A100-SXM4-80GB", 1, memory=85_899_345_920, kind="gpu", backend="cuda"),
        device_found("AMD Instinct MI250", 2, memory=64 << 30, kind="gpu", backend="rocm", driver_index=0),
        device_found("910B3", 3, memory=64 << 30, kind="npu", backend="cann"),
    ]


def declared(*entries: dict[str, Any]) -> tuple[Device, ...]:
    return with_declared(found(), compile_devices({"kind": "devices", "devices": list(entries)}))


def test_the_words_of_the_capability_are_understood() -> None:
    entry = {
        "type": "GPU",
        "compute_power": "20 TFLOPS",
        "memory": "80 GB",
        "bandwidth": "900 GB/s",
        "supported_ops": ["matmul", "conv2d"],
    }
    first, _, _, npu = declared(entry)
    assert (first.rates["fp32"], first.memory, first.bandwidth) == (20 * TERA, 80 * 10**9, 900 * 10**9)
    assert first.ops == ("matmul", "conv2d")
    assert npu == found()[3]
    document = {"kind": "fleet", "name": "f", "nodes": {"n": {"cpu": 1, "memory": "1GiB", "devices": [entry]}}}
    (node,) = compile_fleet(document).nodes
    (report,) = report_of(node).devices
    assert (report.kind, report.rates["fp32"], report.ops) == ("gpu", 20 * TERA, ("matmul", "conv2d"))
    assert set(report.sources.values()) == {"declared"}


@pytest.mark.parametrize(
    ("entry", "indices"),
    [
        ({"price": 1}, [0, 1, 2, 3]),
        ({"index": 2, "price": 1}, [2]),
        ({"model": "A100", "price": 1}, [1]),
        ({"model": "AMD Instinct MI250", "price": 1}, [2]),
        ({"kind": "npu", "price": 1}, [3]),
        ({"kind": "npu", "model": "A10", "price": 1}, []),
        ({"index": 9, "price": 1}, []),
    ],
)
def test_entries_are_about_an_index_or_a_model_or_a_kind(entry: dict[str, Any], indices: list[int]) -> None:
    assert [device.index for device in declared(entry) if device.price] == indices
    unused = compile_devices({"devices": [entry]}).unused(found())
    assert unused == ([] if indices else ["devices[0]"])


def test_the_last_entry_goes_first_and_a_rate_of_nothing_is_a_precision_less() -> None:
    device, *_ = declared({"rates": {"fp16": "1 TFLOPS", "int8": 0}}, {"model": "A10", "rates": {"fp16": "2 TFLOPS"}})
    assert device.rates["fp16"] == 2 * TERA
    assert "int8" not in device.rates
    assert device.rates["fp32"] == 31.2 * TERA


def test_a_device_can_be_called_by_another_name_and_keeps_what_is_its_own() -> None:
    device = declared({"index": 2, "model": "MI300X", "memory": "60GB"})[2]
    assert (device.model, device.memory, device.driver_index, device.backend) == ("MI300X", 60 * 10**9, 0, "rocm")
    assert device.rates["fp16"] == 1307.4 * TERA
    assert device.sources == {"memory": "declared"}


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"kind": "fleet"}, "kind"),
        ({"devices": [{"prize": 1}]}, "devices[0].prize"),
        ({"devices": [{"count": 2}]}, "devices[0].count"),
        ({"devices": [{"index": -1}]}, "devices[0].index"),
        ({"devices": [{}, {"memory": "much"}]}, "devices[1].memory"),
        ({"processor": {"rates": {"fp12": 1}}}, "processor.rates.fp12"),
        ({"labels": {"a b": 1}}, "labels.a b"),
        ({"labels": {"team": ["vision"]}}, "labels.team"),
        ({"machines": []}, "machines"),
        ([], ""),
    ],
)
def test_what_is_wrong_is_told_by_its_path(document: Any, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        compile_devices(document)
    assert caught.value.record.field == field
