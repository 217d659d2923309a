"""Kill every kind of process of a serving system while clients ask, and count the requests that fail.

    python benchmarks/serving_faults.py [--kills 100] [--half-open 500] [--slow 3000] [--clients 8] [--pause 1]
        [--seed 1] [--json]

Two gateways share an address before three servers, which are the tasks of a job (`discover`). Another gateway serves a
model of its own with two replicas. Clients ask both, each as soon as it has its answer. Meanwhile one process after the
other is killed with SIGKILL: gateways and the processes that watch them, replicas, servers, the control plane and the
agent. Whatever watches a process starts it again; `pause` seconds after it is back, the next is killed.

As many connections are half-open (they send half of a head, and nothing more), and as many are slow (they send a byte
of a body each second); both begin again when the gateway drops them.

A request may fail only with a connection that is cut, and only if a gateway was killed while it had the request. All
other failures are counted: refusals, errors, wrong answers, and cut connections without a kill.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
from harness import Figure, program, say

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from system.living import Living, free_port, kill, until
from system.serving import Serving
from system.test_serve_discovery import QUICK, SERVER

APP = "class Model:\n    def predict(self, batch):\n        return batch\n"
SERVERS, REPLICAS, GATEWAYS = 3, 2, 2

RETRIES = 1000
"""Each server is killed more often than a job would be retried by default."""

NOTICED = 0.1
"""Seconds in which the end of a killed process reaches its clients."""

PATIENCE = aiohttp.ClientTimeout(total=60)
BACK = 60.0

HALF = b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-le"
SLOW = b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n"


class System:
    """The running processes."""

    def __init__(self) -> None:
        self.living = Living()
        self.living.file("server.py", SERVER)
        self.living.file("app.py", APP)
        self.living.up()
        port = free_port()
        document = {
            "kind": "upstreams",
            "discover": [{"name": "fleet", "job": f"servers:{port}+part"}],
            "health": QUICK,
            "ejection": {"pause": "1s", "longest": "5s"},
        }
        self.living.file("up.json", json.dumps(document))
        self.front = Serving(self.living, "up.json", "--gateways", str(GATEWAYS), ready=False)
        self.own = Serving(self.living, "app.py:Model", "--replicas", str(REPLICAS), "--cpu", "0.5", ready=False)
        command = ("--", "python3", "server.py", str(port))
        asked = ("--parts", str(SERVERS), "--cpu", "0.1", "--retries", str(RETRIES), "--backoff", "100ms")
        submitted = self.living.poise("submit", "--name", "servers", *asked, *command)
        assert submitted.code == 0, submitted.err

    def wait(self) -> None:
        """Wait until every process is there that was started."""
        wanted = {"gateway": GATEWAYS + 1, "watcher": GATEWAYS + 1, "replica": REPLICAS, "server": SERVERS}
        wanted |= {"control plane": 1, "agent": 1}
        until(lambda: {kind: len(those) for kind, those in self.processes().items()} == wanted, "all are there",
              lambda: f"{self.processes()}\n{self.front.text[-2000:]}\n{self.own.text[-2000:]}", BACK)  # fmt: skip

    def processes(self) -> dict[str, list[int]]:
        """Return the processes to kill, by their kind."""
        found: dict[str, list[int]] = {"watcher": [], "gateway": [], "replica": [], "server": []}
        for lock in self.living.home.services.glob("*.lock"):
            with contextlib.suppress(OSError, ValueError):
                found["watcher"].append(int(lock.read_text()))
        others = {*found["watcher"], self.front.process.pid}  # this one only starts the gateways and passes signals on
        for pid, arguments in self.living.processes().items():
            if " serve " in arguments and pid not in others:
                found["gateway"].append(pid)
            elif "poise_serve.replica" in arguments and "keeper.py" not in arguments:
                found["replica"].append(pid)
            elif " server.py " in arguments and "keeper.py" not in arguments:
                found["server"].append(pid)
        for kind, what in (("control plane", "control"), ("agent", "agent")):
            found[kind] = [pid for pid in (self.living.pid(what),) if pid]
        return found

    def close(self) -> None:
        """End the gateways by the processes that watch them now, and then the rest."""
        try:
            for watcher in self.processes()["watcher"]:
                kill(watcher, signal.SIGTERM)
            until(lambda: not self.processes()["gateway"], "all gateways have ended", self.processes, BACK)
            for serving in (self.front, self.own):
                serving.end()
        finally:
            self.living.close()


class Failed(NamedTuple):
    """A failed request: when it began and ended, and the error. `is_cut`: its connection was cut."""

    began: float
    ended: float
    error: str
    is_cut: bool


class Clients:
    """Clients of both addresses, and how their requests ended."""

    def __init__(self, system: System, many: int) -> None:
        self._system, self._many = system, many
        self.answered = 0
        self.failed: list[Failed] = []
        self.is_over = False

    async def ask(self) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=PATIENCE) as session:
            await asyncio.gather(*(self._ask(session, number) for number in range(self._many)))

    async def _ask(self, session: aiohttp.ClientSession, number: int) -> None:
        turn = 0
        while not self.is_over:
            turn += 1
            text = f"{number}.{turn}"
            is_own = turn % 2 == 0
            server = self._system.own if is_own else self._system.front
            path, asked = ("predict", [text]) if is_own else ("v1/completions", {"model": "m", "prompt": text})
            began, is_cut = time.monotonic(), False
            try:
                async with session.post(f"http://{server.url}/{path}", json=asked) as answer:
                    told = await answer.text()
                    if answer.status == 200 and (not is_own or json.loads(told) == asked):
                        self.answered += 1
                        continue
                    error = f"HTTP {answer.status}: {told[:200]}"
            except (aiohttp.ClientError, OSError) as failure:
                error, is_cut = repr(failure), not isinstance(failure, TimeoutError)
            self.failed.append(Failed(began, time.monotonic(), f"{path}: {error}", is_cut))


def hold(port: int, half_open: int, slow: int) -> None:
    """Hold so many half-open and slow connections, until this process is ended."""

    async def one(head: bytes, more: bytes) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(1)
                continue
            with contextlib.suppress(OSError):
                writer.write(head)
                while not reader.at_eof() and not writer.transport.is_closing():
                    await asyncio.sleep(1)
                    writer.write(more)
            writer.close()

    async def all_of_them() -> None:
        half = [one(HALF, b"") for _ in range(half_open)]
        await asyncio.gather(*half, *(one(SLOW, b"x") for _ in range(slow)))

    asyncio.run(all_of_them())


def kill_all(system: System, kills: int, pause: float, seed: int) -> list[tuple[float, str]]:
    """Kill so many processes, each kind as often. Return when, and the kind of each."""
    chosen = random.Random(seed)
    done: list[tuple[float, str]] = []
    kinds: list[str] = []
    while len(done) < kills:
        system.wait()
        time.sleep(pause)
        there = system.processes()
        kinds = kinds or chosen.sample(sorted(there), len(there))
        kind = kinds.pop()
        if there[kind]:
            done.append((time.monotonic(), kind))
            kill(chosen.choice(there[kind]))
    system.wait()
    return done


async def measured(system: System, given: argparse.Namespace) -> list[Figure]:
    system.wait()
    clients = Clients(system, given.clients)
    port = int(system.front.url.rpartition(":")[2])
    holding = multiprocessing.get_context("spawn").Process(
        target=hold, args=(port, given.half_open, given.slow), daemon=True
    )
    holding.start()
    asking = asyncio.create_task(clients.ask())
    began = time.monotonic()
    try:
        kills = await asyncio.to_thread(kill_all, system, given.kills, given.pause, given.seed)
    finally:
        clients.is_over = True
        await asking
        holding.kill()
        holding.join()
    took = time.monotonic() - began
    cut, beyond = judged(clients.failed, [at for at, kind in kills if kind == "gateway"])
    for error, count in Counter(one.error for one in beyond).most_common(20):
        say(f"{count} times: {error}")
    counts = Counter(kind for _, kind in kills)
    note = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    figures: Sequence[tuple[str, int, float | None, str]] = (
        ("kills", len(kills), None, note),
        ("requests answered", clients.answered, None, f"{clients.answered / took:.0f} a second"),
        ("requests cut in a killed gateway", len(cut), None, ""),
        ("requests that failed beyond those", len(beyond), 0.0, ""),
    )
    return [
        Figure(name=name, unit="", values=[float(value)], limit=limit, note=why) for name, value, limit, why in figures
    ]


def judged(failed: Sequence[Failed], kills: Sequence[float]) -> tuple[list[Failed], list[Failed]]:
    """Return the requests that were cut in a killed gateway, and all other failed ones."""
    cut = [one for one in failed if one.is_cut and any(one.began - NOTICED <= at <= one.ended for at in kills)]
    return cut, [one for one in failed if one not in cut]


def measure(given: argparse.Namespace) -> list[Figure]:
    system = System()
    try:
        return asyncio.run(measured(system, given))
    finally:
        system.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options: Sequence[tuple[str, Callable[[str], float], float]] = (
        ("kills", int, 100), ("half-open", int, 500), ("slow", int, 3000), ("clients", int, 8), ("pause", float, 1.0),
        ("seed", int, 1),
    )  # fmt: skip
    for name, kind, default in options:
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    return program(lambda: measure(given), as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
