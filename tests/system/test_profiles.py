"""`poise profile`: how busy live nodes have been, of which one is looked at and one tells by a real exporter."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from poise.drivers import exporters
from poise.drivers.exporters import Exporters
from poise.drivers.system import HostMeter
from system.living import Living, until

NODE_EXPORTER = Path(sys.prefix) / "debian/usr/bin/prometheus-node-exporter"

FLEET = """
kind: fleet
name: lab
nodes:
  own: {cpu: 2, memory: 2GiB}
  told: {cpu: 2, memory: 2GiB, exporters: [%s]}
"""


@contextmanager
def served() -> Iterator[str]:
    """The real one, as Debian has it: the URL of its metrics."""
    if not NODE_EXPORTER.exists():
        pytest.skip(f"{NODE_EXPORTER.name} is not there: `make servers` fetches it from Debian's packages")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(NODE_EXPORTER), f"--web.listen-address=127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/metrics"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def lab() -> Iterator[Living]:
    living = Living()
    try:
        with served() as url:
            living.file("fleet.yaml", FLEET % url)
            done = living.poise("up", "--port", "0", "--fleet", "fleet.yaml")
            assert done.code == 0, done.err
            until(lambda: all(one["signals"] for one in profiles(living)), "both were looked at", living.messages, 60)
            yield living
    except BaseException:
        living.destroy()
        raise
    living.close()


def profiles(living: Living) -> list[dict[str, Any]]:
    return list(living.poise("profile", "--json").value)


def test_each_node_tells_what_is_measured_there(lab: Living) -> None:
    own, told = profiles(lab)
    assert (own["node"], own["by"], told["node"], told["by"]) == ("own", "cpu", "told", "cpu")
    assert set(own["signals"]) == {"cpu", "memory", "disk", "failures"}, "of its commands' network nothing is known"
    assert {"cpu", "memory", "failures"} <= set(told["signals"])
    assert 0 < told["signals"]["memory"]["mean"] < 1000
    assert own["signals"]["cpu"]["mean"] < 100, "it runs nothing"
    assert own["pattern"] == ""
    assert "of 10 minutes have been seen" in own["why"]


def test_one_node_is_shown_with_every_signal(lab: Living) -> None:
    shown = lab.poise("profile", "own")
    assert shown.code == 0
    assert shown.out.decode().splitlines()[0].startswith("own: ")
    assert [line.split()[0] for line in shown.out.decode().splitlines()[1:]] == [
        "SIGNAL",
        "cpu",
        "memory",
        "disk",
        "failures",
    ]
    assert lab.poise("profile", "own", "--json").value["node"] == "own"


def test_a_node_that_is_not_there_is_named(lab: Living) -> None:
    refused = lab.poise("profile", "onw")
    assert refused.code == 1
    assert "there is no node `onw`" in refused.err
    assert "own" in refused.err


def test_what_was_seen_is_told_without_a_control_plane(lab: Living) -> None:
    """Last of all: it ends what the others ask."""
    before = {one["node"]: one["minutes"] for one in profiles(lab)}
    assert lab.poise("down").code == 0
    after = {one["node"]: one["minutes"] for one in profiles(lab)}
    assert after.keys() == before.keys()
    assert all(after[name] >= before[name] for name in before)
    sizes = [path.stat().st_size for path in Path(lab.home.series).iterdir()]
    assert len(sizes) == 2
    assert max(sizes) < 400_000


def test_the_real_exporter_says_what_this_machine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """One core is kept busy; memory is what the machine itself tells, to a tenth."""
    monkeypatch.setattr(exporters, "REST", 0.0)
    with served() as url, subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        asked = Exporters([url])
        try:
            assert asked.sample() is None
            time.sleep(1.5)
            found = asked.sample()
        finally:
            busy.kill()
    assert found is not None
    load, signals = found
    assert 0 < signals["cpu"] <= 1000
    meter = HostMeter(1000, int(next(iter(_metric(asked, "node_memory_MemTotal_bytes")))))
    meter.sample()
    time.sleep(0.2)
    own = meter.sample()
    assert own is not None
    if meter._memory_place is None:  # no cgroup sets a limit of its own
        assert abs(signals["memory"] - own.memory) < 100
    assert load is not None
    assert load.cpu == signals["cpu"]


def _metric(asked: Exporters, name: str) -> Iterator[float]:
    assert asked._last is not None
    yield from asked._last.samples[name].values()
