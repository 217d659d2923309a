"""Measure the time to pass a tensor to a replica and its result back: by shared memory, socket and TCP.

    python benchmarks/handover.py [--rounds 9] [--shared-from BYTES] [--json FILE]

One request at a time, of equal size in both directions, to a model that returns its input: nothing else is measured.
*shared*: `poise_serve/service.py` and a replica process, unchanged. *socket*: the same two with an unreachable size
limit for shared bodies (`--shared-from 1` shares bodies of all sizes, which is how the limit was found). *TCP*: the
bare bytes to a process that echoes them over loopback: the least cost of a network path on this machine. Each round
takes the paths in turn; each figure is the median over the rounds of each round's median.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from prometheus_client import CollectorRegistry

from poise.model.serving import Limits
from poise_serve import shared
from poise_serve.kernel.batcher import Refuse
from poise_serve.service import Service
from poise_serve.service_metrics import Registry, ServiceMetrics
from poise_serve.wire import Answer

SIZES = [1 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 48 << 20]
OUT_OF_REACH = 1 << 62
ONE_ROUND = 0.15
"""Approximate seconds per size and path."""

MODEL = """
import numpy as np

class Echo:
    def decode(self, body: memoryview):
        return np.frombuffer(body, np.uint8)

    def predict(self, batch):
        return batch

    def encode(self, result):
        return result.data
"""

REPLICA = """
import sys
from poise_serve import replica, shared
shared.SHARED_FROM = int(sys.argv.pop())
sys.exit(replica.main())
"""

ECHO = """
import socket, struct, sys
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
there, _ = listening.accept()
there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while head := there.recv(8, socket.MSG_WAITALL):
    data = bytearray(struct.unpack(">Q", head)[0])
    view, got = memoryview(data), 0
    while got < len(data):
        got += there.recv_into(view[got:])
    there.sendall(data)
"""

Ask = Callable[[bytes], Awaitable[None]]


async def replica(folder: Path, name: str, shared_from: int) -> tuple[Service, subprocess.Popen[bytes]]:
    """Run a service with one ready replica."""
    metrics = ServiceMetrics(Registry(CollectorRegistry()), name)
    service = Service(name, Limits(timeout=60_000_000_000), folder / f"{name}.sock", metrics)
    await service.start()
    env = os.environ | {
        "POISE_SERVICE_NAME": name,
        "POISE_SERVICE_SOCKET": str(service.path),
        "POISE_SERVICE_BATCH": "1",
    }
    (folder / "echo.py").write_text(MODEL)
    process = subprocess.Popen(  # noqa: ASYNC220 — it is back before anything is timed
        [sys.executable, "-c", REPLICA, "echo.py:Echo", str(shared_from)], cwd=folder, env=env
    )
    await service.ready()
    return service, process


def through(service: Service, shared_from: int) -> Ask:
    async def ask(body: bytes) -> None:
        shared.SHARED_FROM = shared_from
        answer: asyncio.Future[Answer | Refuse] = asyncio.get_running_loop().create_future()
        service.ask(body, answer.set_result)
        told = await answer
        if not isinstance(told, Answer) or len(told.body) != len(body):
            raise AssertionError(told)

    return ask


def over_tcp(port: int) -> Ask:
    there = socket.create_connection(("127.0.0.1", port))
    there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def both_ways(body: bytes) -> None:
        there.sendall(struct.pack(">Q", len(body)))
        there.sendall(body)
        data = bytearray(len(body))
        view, got = memoryview(data), 0
        while got < len(data):
            got += there.recv_into(view[got:])

    async def ask(body: bytes) -> None:
        both_ways(body)

    return ask


async def took(ask: Ask, body: bytes) -> float:
    """Return the median duration in milliseconds of the requests that fit into a fraction of a second."""
    await ask(body)
    times: list[float] = []
    over = time.perf_counter() + ONE_ROUND
    while time.perf_counter() < over or len(times) < 3:
        began = time.perf_counter()
        await ask(body)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


async def measure(rounds: int, own: int) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with_memory, first = await replica(folder, "shared", own)
        without, second = await replica(folder, "socket", OUT_OF_REACH)
        echo = subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE)  # noqa: ASYNC220 — as above
        assert echo.stdout is not None
        paths = {
            "shared": through(with_memory, own),
            "socket": through(without, OUT_OF_REACH),
            "TCP": over_tcp(int(echo.stdout.readline())),
        }
        seen: dict[tuple[int, str], list[float]] = defaultdict(list)
        for _ in range(rounds):
            for size in SIZES:
                body = os.urandom(size)
                for name, ask in paths.items():
                    seen[size, name].append(await took(ask, body))
        for service in (with_memory, without):
            await service.stop()
        for process in (first, second, echo):
            process.kill()
            process.wait()
    return [{"bytes": size} | {f"{name} ms": statistics.median(seen[size, name]) for name in paths} for size in SIZES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--shared-from", type=int, default=shared.SHARED_FROM, help="bytes; to find the best limit")
    given = parser.parse_args()
    rows = uvloop.run(measure(given.rounds, given.shared_from))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    print("| body | shared ms | socket ms | TCP ms | socket / shared | shared, both ways |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        size, memory, sock, tcp = int(row["bytes"]), row["shared ms"], row["socket ms"], row["TCP ms"]
        rate = 2 * 8 * size / (memory / 1000) / 1e9
        print(
            f"| {size >> 10:,} KiB | {memory:.3f} | {sock:.3f} | {tcp:.3f} | {sock / memory:.2f} | {rate:.1f} Gbit/s |"
        )


if __name__ == "__main__":
    main()
