"""Measure the rate of a model behind one gateway, and behind several with a core (`poise serve --gateways N`).

    python benchmarks/own_gateways.py [--gateways 1,2] [--clients 64] [--seconds 5] [--rounds 3] [--json]

The model only returns its inputs, in batches of up to 64, with one replica. Clients in two processes keep connections
open, and send the next request as soon as they have an answer. CPU per request is that of the processes that serve,
without clients, replica and control plane; that of the core, or of the only gateway, is shown separately. On a machine
with two cores, clients, gateways, core and replica share them: the rate shows the total cost, and the CPU of the core
shows the rate that one core of a larger machine can reach.
"""

import argparse
import multiprocessing
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil
from harness import Figure, program, say

from poise.drivers.gateways import gateway_files

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from system.living import Living
from system.serving import Serving

APP = "class Model:\n    def predict(self, batch: list[float]) -> list[float]:\n        return batch\n"
REQUEST = b"POST /predict HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n1.5"
PROCESSES = 2


class Measured(NamedTuple):
    """Answers per second, and CPU in ms per answer: of all that serve, and of the process that has the model."""

    rate: float
    cpu: float
    core: float


def ask(port: int, clients: int, seconds: float, counted: "multiprocessing.Queue[int]") -> None:
    """Keep this number of requests open, and count the answers."""
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(clients)]
    end, count = time.monotonic() + seconds, 0
    for one in connections:
        one.sendall(REQUEST)
    while time.monotonic() < end:
        for one in connections:
            assert one.recv(4096).startswith(b"HTTP/1.1 200")
            one.sendall(REQUEST)
        count += clients
    counted.put(count)


def measured(living: Living, gateways: int, clients: int, seconds: float) -> Measured:
    serving = Serving(living, "app.py:Model", "--gateways", str(gateways), ready=False)
    serving.until_said("1 of 1 ready")
    port = int(serving.url.rpartition(":")[2])
    run(port, clients, 1.0)  # connections of all gateways, and learned durations
    pids = [pid for pid, command in living.processes().items() if " serve " in command]
    before = {pid: cpu_of(pid) for pid in pids}
    count = run(port, clients, seconds)
    used = {pid: 1e3 * (cpu_of(pid) - before[pid]) / count for pid in pids}
    core = core_of(living)
    assert serving.end() == 0
    return Measured(count / seconds, sum(used.values()), used[core])


def core_of(living: Living) -> int:
    """Return the process that has the model: the core, or the only gateway."""
    (record,) = gateway_files(living.home.services)
    watcher = record.with_suffix(".lock").read_text().strip()
    return int(Path(f"/proc/{watcher}/task/{watcher}/children").read_text().split()[0])


def run(port: int, clients: int, seconds: float) -> int:
    counted: multiprocessing.Queue[int] = multiprocessing.Queue()
    asking = [
        multiprocessing.Process(target=ask, args=(port, clients // PROCESSES, seconds, counted))
        for _ in range(PROCESSES)
    ]
    for one in asking:
        one.start()
    count = sum(counted.get() for _ in asking)
    for one in asking:
        one.join()
    return count


def cpu_of(pid: int) -> float:
    return sum(psutil.Process(pid).cpu_times()[:2])


def measure(gateways: list[int], clients: int, seconds: float, rounds: int) -> list[Figure]:
    found: dict[int, list[Measured]] = {one: [] for one in gateways}
    living = Living()
    try:
        living.file("app.py", APP)
        living.up()
        for _ in range(rounds):
            for one in gateways:
                found[one].append(measured(living, one, clients, seconds))
                say(f"{one} gateways: {found[one][-1]}")
    finally:
        living.close()
    figures = []
    for one, rows in found.items():
        name = f"{one} gateway{'s' if one > 1 else ''}"
        core = "the core" if one > 1 else "the gateway"
        figures += [
            Figure(name=f"{name}, answers", unit="/s", values=[row.rate for row in rows]),
            Figure(name=f"{name}, CPU per request of all that serve", unit="ms", values=[row.cpu for row in rows]),
            Figure(name=f"{name}, CPU per request of {core}", unit="ms", values=[row.core for row in rows]),
        ]
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateways", type=lambda text: [int(one) for one in text.split(",")], default=[1, 2])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    return program(lambda: measure(given.gateways, given.clients, given.seconds, given.rounds), as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
