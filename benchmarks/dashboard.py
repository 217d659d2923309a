"""Measure the cost of open dashboard pages for the control plane, and their delay in showing a change.

    python benchmarks/dashboard.py [--pages 50] [--seconds 10] [--per-second 20] [--rounds 3] [--json]

A real control plane and agent on two cores run short commands at a steady pace. Each round measures twice: without a
dashboard, and with a dashboard and `--pages` browsers, each with its own session and stream. The figures are the CPU
time of the control plane, the durations of its rounds, and the time of a submission from its call to its answer. With
pages, also the time from that answer until the first and the last page shows the job.
"""

import argparse
import json
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import harness
import psutil
from harness import Figure, Fleet, percentile, say

from poise.config import Home
from poise.dashboard.serve import new_link
from poise.drivers.dashboards import Running
from poise.drivers.http import Connection
from poise.drivers.lock import holder

POISE = Path(sys.executable).with_name("poise")
TARGET_LAG_MS = 200.0
TARGET_ROUNDS = 1.0
"""Maximum slowdown of rounds in percent, at the 99th percentile."""


class Measured(NamedTuple):
    """Percent of a core, milliseconds of rounds and submissions (P99), and the delay of each job until pages
    show it.
    """

    cpu: float
    rounds: float
    submissions: float
    first: list[float]
    last: list[float]


class Pages:
    """Browsers that read their streams; `seen` contains the instants at which each got a job, by job name."""

    def __init__(self, home: Home, running: Running, count: int) -> None:
        self.seen: dict[str, list[float]] = {}
        self._stop = False
        self._sockets = selectors.DefaultSelector()
        for _ in range(count):
            self._sockets.register(
                _stream(running, new_link(home, running.url).partition("#link=")[2]), selectors.EVENT_READ
            )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop = True
        self._thread.join()
        for key in list(self._sockets.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._sockets.close()

    def _read(self) -> None:
        known: dict[int, set[bytes]] = {}
        begun: dict[int, bytes] = {}
        while not self._stop:
            for key, _ in self._sockets.select(0.2):
                data, now = key.fileobj.recv(1 << 20), perf_counter()  # type: ignore[union-attr]
                whole, end, begun[key.fd] = (begun.get(key.fd, b"") + data).rpartition(b"\n\n")
                for part in (whole + end).split(b'"name":"bench-')[1:]:
                    name = part.partition(b'"')[0]
                    if name not in known.setdefault(key.fd, set()):
                        known[key.fd].add(name)
                        self.seen.setdefault(f"bench-{name.decode()}", []).append(now)


def _stream(running: Running, link: str) -> socket.socket:
    """Open the stream of a browser that used this link."""
    host = f"127.0.0.1:{running.port}"
    with Connection(socket.create_connection(("127.0.0.1", running.port))) as connection:
        body = json.dumps({"link": link}).encode()
        answer = connection.ask("POST", "/session", {"Host": host}, body)
        cookie = answer.headers["set-cookie"].partition(";")[0]
    stream = socket.create_connection(("127.0.0.1", running.port))
    stream.sendall(f"GET /stream HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n".encode())
    return stream


@contextmanager
def dashboard(home: Home) -> Iterator[Running]:
    process = subprocess.Popen(
        [POISE, "dashboard", "--json", "--port", "0"], stdout=subprocess.PIPE, env={"POISE_HOME": str(home.root)}
    )
    try:
        lines = b""
        while not lines.endswith(b"}\n"):
            lines += process.stdout.readline()  # type: ignore[union-attr]
        yield Running(int(json.loads(lines)["url"].rstrip("/").rpartition(":")[2]))
    finally:
        process.terminate()
        process.wait()


def one(pages: int, seconds: float, per_second: float) -> Measured:
    with harness.own_fleet(warm=harness.SLOTS) as fleet, ExitStack() as stack:
        seen: dict[str, list[float]] = {}
        if pages:
            reading = Pages(fleet.home, stack.enter_context(dashboard(fleet.home)), pages)
            stack.callback(reading.close)
            seen = reading.seen
            time.sleep(1)
        cpu, took, answered = paced(fleet, seconds, per_second)
        time.sleep(1)
        first, last = shown(seen, answered, pages)
        return Measured(cpu, slowest_round(fleet), percentile(took, 99), first, last)


def slowest_round(fleet: Fleet) -> float:
    """Return the milliseconds of the phases of a round (P99 of the latest thousand)."""
    phases = fleet.client.status().phases
    return sum(phases[name].p99 for name in ("view", "decide", "wait", "apply")) / 1e6


def shown(seen: dict[str, list[float]], answered: dict[str, float], pages: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds from the answer to each submission until the first and the last page had its job."""
    waited = [
        [1e3 * (instant - answered[name]) for instant in instants]
        for name, instants in seen.items()
        if name in answered and len(instants) == pages
    ]
    if pages and len(waited) < len(answered):
        raise RuntimeError(f"of {len(answered)} jobs, {len(waited)} came to all pages")
    return [min(of) for of in waited], [max(of) for of in waited]


def paced(
    fleet: Fleet, seconds: float, per_second: float, first: int = 0
) -> tuple[float, list[float], dict[str, float]]:
    """Submit at a steady pace. Return the control plane's percent of a core, the milliseconds of submissions, and the
    instants of the answers. Job numbers start at `first`.
    """
    process = psutil.Process(holder(fleet.home.lock))
    answered: dict[str, float] = {}
    took = []
    before, begun = process.cpu_times(), perf_counter()
    for number in range(int(seconds * per_second)):
        time.sleep(max(0.0, begun + number / per_second - perf_counter()))
        asked = perf_counter()
        name = f"bench-{first + number}"
        fleet.client.submit({**harness.NO_OP, "name": name})
        answered[name] = perf_counter()
        took.append(1e3 * (answered[name] - asked))
    after, elapsed = process.cpu_times(), perf_counter() - begun
    return 100 * (after.user + after.system - before.user - before.system) / elapsed, took, answered


def measure(pages: int, seconds: float, per_second: float, rounds: int) -> list[Figure]:
    harness.two_cores()
    without, beside = [], []
    for number in range(rounds):
        without.append(one(0, seconds, per_second))
        beside.append(one(pages, seconds, per_second))
        say(f"round {number + 1}: CPU {without[-1].cpu:.1f} % and {beside[-1].cpu:.1f} %")
    slower = [100 * (with_pages.rounds / alone.rounds - 1) for alone, with_pages in zip(without, beside, strict=True)]
    return [
        Figure(name="CPU of the control plane, no page", unit="%", values=[of.cpu for of in without]),
        Figure(name=f"CPU of the control plane, {pages} pages", unit="%", values=[of.cpu for of in beside]),
        Figure(name="phases of a round, P99, no page", unit="ms", values=[of.rounds for of in without]),
        Figure(name=f"phases of a round, P99, {pages} pages", unit="ms", values=[of.rounds for of in beside]),
        Figure(name="  slower with pages", unit="%", values=slower, limit=TARGET_ROUNDS),
        Figure(name="submission acknowledged, P99, no page", unit="ms", values=[of.submissions for of in without]),
        Figure(
            name=f"submission acknowledged, P99, {pages} pages", unit="ms", values=[of.submissions for of in beside]
        ),
        Figure(name="shown by the first page, P50", unit="ms", values=[percentile(of.first, 50) for of in beside]),
        Figure(
            name="shown by the last page, P99",
            unit="ms",
            values=[percentile(of.last, 99) for of in beside],
            limit=TARGET_LAG_MS,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="what open pages of the dashboard cost the control plane")
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0, help="of load in each measurement")
    parser.add_argument("--per-second", type=float, default=20.0, help="jobs submitted in a second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return harness.program(
        lambda: measure(options.pages, options.seconds, options.per_second, options.rounds), as_json=options.json
    )


if __name__ == "__main__":
    sys.exit(main())
