"""How busy a node is, from what exporters print: Prometheus' own for nodes, and DCGM's."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from poise.drivers import exporters
from poise.drivers.exporters import Answer, Exporters, Told, samples_of, told_by
from poise.model.usage import Collecting, Window

# Names, units and layout of dcgm-exporter's default counters (etc/default-counters.csv); the figures are made up.
DCGM = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-aa",device="nvidia0",modelName="Tesla T4",Hostname="h"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-bb",device="nvidia1",modelName="Tesla T4",Hostname="h"} 30
# HELP DCGM_FI_DEV_MEM_COPY_UTIL Memory utilization (in %).
# TYPE DCGM_FI_DEV_MEM_COPY_UTIL gauge
DCGM_FI_DEV_MEM_COPY_UTIL{gpu="0",UUID="GPU-aa",device="nvidia0",modelName="Tesla T4",Hostname="h"} 40
DCGM_FI_DEV_MEM_COPY_UTIL{gpu="1", UUID="GPU-bb"} 9223372036854775794
# HELP DCGM_FI_DEV_FB_FREE Framebuffer memory free (in MiB).
# TYPE DCGM_FI_DEV_FB_FREE gauge
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-aa",device="nvidia0",modelName="Tesla T4",Hostname="h"} 10000
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-bb",device="nvidia1",modelName="Tesla T4",Hostname="h"} 5000
# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-aa",device="nvidia0",modelName="Tesla T4",Hostname="h"} 5000
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-bb",device="nvidia1",modelName="Tesla T4",Hostname="h"} 0
# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-aa",device="nvidia0",modelName="Tesla T4",Hostname="h"} 68.244000
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-bb",device="nvidia1",modelName="Tesla T4",Hostname="h"} 140737488355328
"""

NODE = """\
node_cpu_seconds_total{{cpu="0",mode="idle"}} {idle}
node_cpu_seconds_total{{cpu="0",mode="iowait"}} 5
node_cpu_seconds_total{{cpu="0",mode="user"}} {user}
node_cpu_seconds_total{{cpu="1",mode="idle"}} {idle}
node_cpu_seconds_total{{cpu="1",mode="user"}} {user}
node_load1 3.0
node_memory_MemTotal_bytes 1.6e+10
node_memory_MemAvailable_bytes 1.2e+10
node_disk_io_time_seconds_total{{device="sda"}} {disk}
node_disk_io_time_seconds_total{{device="sdb"}} 7
node_network_speed_bytes{{device="eth0"}} 1.25e+08
node_network_speed_bytes{{device="eth1"}} -125000
node_network_receive_bytes_total{{device="eth0"}} {received}
node_network_receive_bytes_total{{device="lo"}} {received}
node_network_transmit_bytes_total{{device="eth0"}} 1
node_rapl_package_joules_total{{index="0",path="/sys"}} {joules}
"""


def told(at: float, text: str) -> Answer:
    found: dict[str, dict[exporters.Labels, float]] = {}
    for name, labels, value in samples_of(text):
        found.setdefault(name, {})[labels] = value
    return Answer(at, found)


def test_a_machine_is_as_busy_as_its_counters_have_grown() -> None:
    before = told(100.0, NODE.format(idle=1000, user=50, disk=3, received=0, joules=500))
    now = told(110.0, NODE.format(idle=1004, user=56, disk=5, received=2.5e8, joules=1500))
    load, signals = told_by(before, now)
    assert load is not None
    assert signals == {"cpu": 600, "memory": 250, "disk": 200, "network": 200, "power": 100_000}
    assert (load.cpu, load.load1, load.memory, load.disk, load.network) == (600, 1500, 250, 200, 200)


def test_devices_are_as_busy_as_dcgm_says_and_what_it_does_not_know_is_left_out() -> None:
    load, signals = told_by(told(100.0, ""), told(110.0, DCGM))
    assert load is None, "nobody tells how busy the machine is"
    assert signals == {"device": 600, "device_bandwidth": 400, "device_memory": 250, "device_power": 68_244}


def test_a_counter_that_has_begun_anew_tells_nothing() -> None:
    before = told(100.0, NODE.format(idle=1000, user=50, disk=3, received=0, joules=500))
    now = told(110.0, NODE.format(idle=1, user=0, disk=0, received=0, joules=0))
    assert told_by(before, now) == Told(None, {})


def test_who_does_not_answer_or_tells_no_metrics_is_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporters, "REST", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    asked = Exporters([f"http://127.0.0.1:{port}/metrics"])
    assert [asked.sample() for _ in range(3)] == [None, Told(None, {}), Told(None, {})]
    assert len([one for one in caplog.records if str(port) in one.getMessage()]) == 1


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Whoever asks gets this for an answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    asker, _ = server.accept()
                except OSError:
                    return
                with asker:
                    asker.recv(65536)
                    try:
                        answer(asker)
                    except OSError:
                        continue

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        server.shutdown(socket.SHUT_RDWR)
        serving.join()


def drip(asker: socket.socket) -> None:
    asker.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        asker.sendall(b"#")
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda asker: asker.sendall(b"\0\xff no HTTP at all\r\n\r\n"), "no HTTP at all"),
        (lambda asker: asker.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n"), "headers"),
        (lambda asker: asker.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nnode_load1 12"), "too soon"),
        (lambda asker: asker.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"# so much\n" * 2**15), "more than"),
        (drip, "not done"),
    ],
)
def test_whatever_answers_in_its_place_tells_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, answer: Callable[[socket.socket], None], why: str
) -> None:
    """No HTTP, too many headers, half of it, too much of it, or so slowly that it takes for ever."""
    monkeypatch.setattr(exporters, "REST", 0.0)
    monkeypatch.setattr(exporters, "TIMEOUT", 0.2)
    monkeypatch.setattr(exporters, "MAX_BYTES", 2**18)
    with answering(answer) as url:
        asked = Exporters([url])
        assert [asked.sample() for _ in range(2)] == [None, Told(None, {})]
    (warning,) = caplog.messages
    assert why in warning


def test_an_address_that_is_none_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert Exporters(["http://127.0.0.1:9/a\x7fb"]).sample() is None
    assert "control characters" in caplog.text


@pytest.mark.parametrize("absurd", ["-5", "1e14", "1e30", "1e308", "NaN", "+Inf", "-Inf"])
def test_figures_that_nothing_has_can_still_be_said(absurd: str) -> None:
    """What the control plane refuses to read loses the node that said it."""
    text = "".join(
        f'{name}{{of="{number}"}} {absurd}\n'
        for name in (
            "node_load1", "node_memory_MemTotal_bytes", "node_memory_MemAvailable_bytes", "node_network_speed_bytes",
            "node_network_receive_bytes_total", "node_disk_io_time_seconds_total", "node_rapl_package_joules_total",
            "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE",
            "DCGM_FI_DEV_POWER_USAGE",
        )
        for number in range(9)
    )  # fmt: skip
    load, signals = told_by(told(100.0, NODE.format(idle=1, user=1, disk=0, received=0, joules=0)), told(
        110.0, NODE.format(idle=2, user=2, disk=0, received=0, joules=0) + text
    ))  # fmt: skip
    assert load is not None
    assert 0 <= load.load1 <= 2**53
    collecting = Collecting()
    collecting.take(1_700_000_000, signals)
    window = collecting.take(1_700_000_060, signals)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(window), type=Window) == window
