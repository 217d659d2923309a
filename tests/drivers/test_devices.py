"""What a machine offers, out of what its kernel and its drivers say."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from poise.config import Home
from poise.drivers.devices import (
    Inventory,
    identity,
    incarnation_of,
    probe_node,
    processor_name,
    total_memory_of,
    usable_cpu,
    usable_memory,
)
from poise.drivers.measured import load_measured, profile_path, save_measured
from poise.drivers.probes import Finding, Use
from poise.model.catalogue import TERA, device_found
from poise.model.figures import sources_of
from poise.model.measured import Measured, Sample, processor_key
from poise.model.resources import Device

MEMINFO = "MemTotal:       24684096 kB\nMemFree:        1000 kB\n"


def test_a_node_is_what_may_really_be_used(tmp_path: Path) -> None:
    node = probe_node("here", Home(tmp_path))
    assert node.name == "here"
    assert 0 < node.cpu <= len(os.sched_getaffinity(0)) * 1000
    assert 0 < node.memory <= total_memory_of(Path("/proc/meminfo").read_text())
    assert node.devices or node.labels["no-devices"]
    assert probe_node("here", Home(tmp_path)).incarnation == node.incarnation
    assert probe_node("here", Home(tmp_path / "anew")).incarnation != node.incarnation


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


class One:
    """A probe that finds one card."""

    name, hint, rest = "one", "", 0.0

    def find(self) -> Finding:
        device = device_found("NVIDIA A10", 0, memory=24146608128, uuid="GPU-1", kind="gpu", backend="cuda")
        return Finding((device,), driver="550.1")

    def use(self, indices: Sequence[int]) -> dict[int, Use]:
        return {}


def measured(device: str, driver: str, **rates: int) -> Measured:
    samples = {name: Sample(median=rate, least=rate, most=rate, runs=1) for name, rate in rates.items()}
    bandwidth = Sample(median=500 * 10**9, least=1, most=500 * 10**9, runs=3)
    return Measured(
        device=device, model="A10", driver=driver, library="torch 2", at=1.0, rates=samples, bandwidth=bandwidth
    )


def test_a_person_goes_before_a_measurement_and_that_before_the_data_sheet(tmp_path: Path) -> None:
    home = Home(tmp_path)
    inventory = Inventory("here", home, [One()])
    (device,) = inventory.look().devices
    assert sources_of(device)["rates.fp16"] == sources_of(device)["bandwidth"] == "catalogue"
    assert sources_of(device)["memory"] == "driver"
    save_measured(home.profiles, measured("GPU-1", "550.1", fp16=90 * TERA))
    (device,) = inventory.look().devices
    assert (device.rates["fp16"], device.rates["fp32"]) == (90 * TERA, 31.2 * TERA)
    assert sources_of(device)["rates.fp16"] == sources_of(device)["bandwidth"] == "measured"
    home.devices.write_text("devices: [{model: A10, rates: {fp16: 80 TFLOPS, int8: 0}, price: 0.6}]\n")
    (device,) = inventory.look().devices
    assert device.rates["fp16"] == 80 * TERA
    assert "int8" not in device.rates
    assert (device.price, device.bandwidth) == (600_000, 500 * 10**9)
    sources = sources_of(device)
    assert (sources["rates.fp16"], sources["price"], sources["bandwidth"]) == ("declared", "declared", "measured")
    assert sources["rates.fp32"] == "catalogue"


def test_what_was_measured_under_another_driver_says_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path)
    save_measured(home.profiles, measured("GPU-1", "535.0", fp16=1))
    save_measured(home.profiles, measured("GPU-2", "550.1", fp16=1))
    (device,) = Inventory("here", home, [One()]).look().devices
    assert device.rates["fp16"] == 125 * TERA
    path = save_measured(home.profiles, measured("GPU-1", "550.1", fp16=1))
    assert path == profile_path(home.profiles, "GPU-1", "550.1")
    path.write_text("nonsense")
    assert load_measured(home.profiles, "GPU-1", "550.1") is None


def test_the_processor_has_figures_too(tmp_path: Path) -> None:
    home = Home(tmp_path)
    node = Inventory("here", home, []).look()
    assert node.grows, "its keepers can raise a memory limit"
    assert (node.rates, node.bandwidth) == ({}, 0)
    save_measured(home.profiles, measured(processor_key(processor_name(), node.cpu), "", fp32=7))
    assert Inventory("here", home, []).look().rates == {"fp32": 7}
    home.devices.write_text("{zone: east, labels: {team: vision}}")
    node = Inventory("here", home, []).look()
    assert (node.zone, node.label("team"), node.label("zone")) == ("east", "vision", "east")
    home.devices.write_text("processor: {compute_power: 2 TFLOPS}\n")
    node = Inventory("here", home, []).look()
    assert (node.rates["fp32"], node.bandwidth) == (2 * TERA, 500 * 10**9)
    assert sources_of(node) == {"rates.fp32": "declared", "bandwidth": "measured"}


def test_a_bad_file_of_devices_is_told_once_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Home(tmp_path)
    home.devices.write_text("devices: [{model: A10, prize: 0.6}]\n")
    inventory = Inventory("here", home, [One()])
    with caplog.at_level(logging.WARNING):
        assert [inventory.look().devices[0].price for _ in range(3)] == [0, 0, 0]
    assert [record.getMessage() for record in caplog.records if "prize" in record.getMessage()] != []
    assert len(caplog.records) == 1


def test_what_a_file_of_devices_said_holds_until_it_can_be_read_again(tmp_path: Path) -> None:
    home = Home(tmp_path)
    inventory = Inventory("here", home, [])
    for text, zone in (("zone: east", "east"), ("zone: [", "east"), ("zone: west", "west")):
        home.devices.write_text(text)
        assert inventory.look().zone == zone
    home.devices.unlink()
    assert inventory.look().zone == ""


def test_a_node_without_devices_says_why(tmp_path: Path) -> None:
    class Broken(One):
        name = "broken"

        def find(self) -> Finding:
            return Finding(why_none="it hangs", failed=True)

    assert Inventory("here", Home(tmp_path), [Broken()]).look().labels["no-devices"] == "broken: it hangs"
    assert Inventory("here", Home(tmp_path), []).look().devices == ()
    assert Device(index=0).sources == {}
