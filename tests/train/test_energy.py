"""What training has used, by counters and by the model of power."""

import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs poise-scheduler[torch]")

from poise.model.power import POWER  # noqa: E402
from poise_train.energy import Meter  # noqa: E402
from poise_train.meters import Nvml, Rapl, cpu_seconds  # noqa: E402

CPU = torch.device("cpu")
MOST = 262_143_328_850
"""Microjoules at which a counter starts anew, as a server has it."""


class Counters:
    """Files as Linux has them: two packages, the cores of one as a part of it, and its memory apart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for zone, name in (("0", "package-0"), ("1", "package-1"), ("0:0", "core"), ("0:1", "dram"), ("2", "psys")):
            (folder / f"intel-rapl:{zone}").mkdir()
            (folder / f"intel-rapl:{zone}" / "name").write_text(f"{name}\n")
            (folder / f"intel-rapl:{zone}" / "max_energy_range_uj").write_text(f"{MOST}\n")
            self.show(zone, 1_000_000)

    def show(self, zone: str, energy: int) -> None:
        (self.folder / f"intel-rapl:{zone}" / "energy_uj").write_text(f"{energy}\n")


def work(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(1000))


def test_packages_and_memory_are_counted_and_counters_start_anew(tmp_path: Path) -> None:
    counters = Counters(tmp_path)
    counters.show("1", MOST - 1_000_000)
    rapl = Rapl(tmp_path)
    assert rapl.found and rapl.read() == 0
    counters.show("0", 6_000_000)  # 5 J
    counters.show("1", 2_000_000)  # 3 J, past its end
    counters.show("0:0", 5_000_000)  # of which some by the cores
    counters.show("0:1", 1_500_000)  # 0.5 J
    assert rapl.read() == 8500
    assert rapl.read() == 8500


def test_a_process_has_its_part_of_the_cpu_time_of_what_was_counted(tmp_path: Path) -> None:
    counters = Counters(tmp_path)
    meter = Meter(CPU, rapl=Rapl(tmp_path))
    own, busy = time.process_time(), cpu_seconds()
    work(0.5)
    counters.show("0", 101_000_000)  # 100 J
    found = meter.read()
    part = (time.process_time() - own) / (cpu_seconds() - busy)
    assert meter.source == "rapl, by CPU time"
    assert found == pytest.approx(100_000 * min(1.0, part), rel=0.2)
    assert meter.read() == found, "nothing more was counted"


def test_without_a_counter_it_is_the_model_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POISE_POWER", "200")
    meter = Meter(CPU, rapl=Rapl(tmp_path))
    assert meter.source == "model, by CPU time"
    began = time.monotonic()
    work(0.5)
    found, elapsed = meter.read(), time.monotonic() - began
    assert 0 < found <= POWER.joules(200 * elapsed, 200 * elapsed) * 1100
    assert meter.read() >= found


@pytest.mark.parametrize("told", ["", "much", "-3"])
def test_where_nothing_is_known_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv("POISE_POWER", told)
    meter = Meter(CPU, rapl=Rapl(tmp_path / "none"))
    work(0.01)
    assert (meter.read(), meter.source) == (0, "")


def test_devices_that_are_not_there_have_no_counter() -> None:
    assert not Nvml([]).found
    assert not Nvml(["GPU-00000000-0000-0000-0000-000000000000"]).found
