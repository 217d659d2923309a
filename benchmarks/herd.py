"""Measure a thousand nodes on one control plane: the cost of heartbeats, and the time until all reconnect.

    python benchmarks/herd.py [--nodes 1000] [--seconds 20] [--herds 3] [--submissions 10000] [--json]

The control plane is real, with its supervisor. The nodes are the real node machines, each with its own TLS connection
and load, all in one separate process; only their commands are simulated, with the durations that the commands state.

* *idle*: nothing runs; each node sends heartbeats at growing intervals, and reports changed measurements.
* *busy*: each node runs a command, and sends a heartbeat each second. CPU of the control plane, in intervals of five
  seconds.
* *herd*: the control plane is killed while each node runs a command; at the same time many jobs are submitted, as fast
  as they are accepted. *back*: from the kill until every node has been heard and answered. *placed*: until all
  submitted jobs have started. No node may be lost, and nothing may be started twice. *CPU per node*: the same without
  submissions, by the CPU time of the control plane from its first answer until all nodes are back; `--herds 0` measures
  nothing but that. Its *floor* is the cost of the same number of TLS connections to a bare `ssl` server with one
  thread, in sequence: each sends a message and gets an answer.
"""

import argparse
import asyncio
import contextlib
import itertools
import random
import re
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

import harness
import msgspec
import psutil
import uvloop
from harness import Figure, say

from poise.agent.__main__ import BUSY_SECONDS
from poise.client import Client
from poise.config import Address, Endpoint, Home
from poise.control.start import ensure_up
from poise.decoding import msgpack_decoder
from poise.drivers.authority import ensure_authority, server_context
from poise.drivers.lock import holder
from poise.drivers.reach import trusting
from poise.drivers.security import read_token
from poise.drivers.system import SystemClock
from poise.kernel import node as machine
from poise.kernel.frames import Broken, Frames
from poise.kernel.node import NodeMachine
from poise.model.jobs import Ending
from poise.model.load import Load
from poise.model.messages import Attempt, Ended, FromAgent, Kept, Launch, Met, Running, ToAgent
from poise.model.resources import Node
from poise.units import SECOND

TARGET_CPU_PERCENT = 20.0
TARGET_BACK_SECONDS = 15.0
TARGET_CPU_PER_NODE = 0.2  # milliseconds
PIECE_SECONDS = 5.0
SETTLE_SECONDS = 40.0
"""Seconds after which idle nodes have reached their longest heartbeat interval."""

FLOOR_CONNECTIONS = 1000
"""Maximum number of connections to the bare server, which share an interpreter with the nodes of this process."""

PATIENCE = 120.0
RECONNECT_SECONDS = (0.05, 1.0)
CPU, MEMORY = 2000, 8 * 2**30
AT_ONCE = 256
"""Handshakes at the same time, of all nodes together."""

KEY, NO_MASK, BINARY, CLOSE = "cGxheWVkIG5vZGUga2V5IQ==", bytes(4), 2, 8
RETRY_AFTER = re.compile(rb"(?i)\r\nretry-after: *([0-9]+)")
WORD = bytes(200)
"""A message as long as a node's first one."""

_to_agent: msgspec.msgpack.Decoder[tuple[int, ToAgent | Kept | Met]] = msgpack_decoder(tuple[int, ToAgent | Kept | Met])
_encode = msgspec.msgpack.Encoder().encode


class PlayedNode(asyncio.Protocol):
    """The node side of an agent, with simulated commands.

    It speaks WebSocket by itself, with masks of zeros, which change nothing: all nodes together must cost less than the
    control plane.
    """

    def __init__(
        self, number: int, address: Address, token: str, clock: SystemClock, ways_in: asyncio.Semaphore
    ) -> None:
        name, high, low = f"n{number}", *divmod(number, 250)
        self._from = f"127.{1 + high // 250}.{high % 250}.{low + 1}"  # every machine has its own address
        self._address, self._clock, self._ways_in = address, clock, ways_in
        self._request = (
            f"GET /v1/channel HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {token}\r\n\r\n"
        ).encode()
        self._machine = NodeMachine(Node(name=name, incarnation="played", cpu=CPU, memory=MEMORY), [])
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0
        self._load = random.Random(name)
        self._gone: asyncio.Future[float] | None = None
        self._transport: asyncio.Transport | None = None
        self._is_open = False
        self._data = bytearray()
        self._frames = Frames()
        self.started = 0
        self.back_at = 0.0

    async def run(self, trusted: ssl.SSLContext) -> None:
        loop, pause = asyncio.get_running_loop(), RECONNECT_SECONDS[0]
        while True:
            turned_away = 0.0
            self._gone = loop.create_future()
            try:
                async with self._ways_in:
                    await loop.create_connection(
                        lambda: self,
                        self._address.host,
                        self._address.port,
                        ssl=trusted,
                        server_hostname=self._address.host,
                        ssl_handshake_timeout=BUSY_SECONDS[1],
                        local_addr=(self._from, 0),
                    )
                turned_away = await self._gone
                pause = RECONNECT_SECONDS[0] if not turned_away else pause
            except OSError:
                pass
            self._feed(machine.Disconnected())
            await asyncio.sleep(turned_away + self._load.random() if turned_away else pause)
            pause = min(RECONNECT_SECONDS[1], pause * 2)

    # --- the connection ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._data.clear()
        self._is_open, self._frames = False, Frames()
        self._transport.write(self._request)

    def connection_lost(self, _: Exception | None) -> None:
        self._leave(0.0)

    def _leave(self, turned_away: float) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._is_open, self._transport = False, None
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(turned_away)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._is_open:
            head, ended, rest = self._data.partition(b"\r\n\r\n")
            if not ended:
                return
            if not head.startswith(b"HTTP/1.1 101 "):
                told = RETRY_AFTER.search(head)
                self._leave(float(told[1]) if told else RECONNECT_SECONDS[1])
                return
            self._data, self._is_open = rest, True
            self._feed(machine.Connected())
        try:
            self._read()
        except Broken:
            self._leave(0.0)

    def _read(self) -> None:
        """Take all whole frames. Raises `Broken`."""
        data, at = self._data, 0
        while len(data) >= at + 2 and self._is_open:
            length, head = data[at + 1], at + 2
            if length > 125:
                wide = 2 if length == 126 else 8
                length, head = int.from_bytes(data[head : head + wide]), head + wide
            if len(data) < head + length:
                break
            kind, at, content = data[at] & 15, head + length, bytes(data[head : head + length])
            if kind == CLOSE:
                raise Broken("it closes")
            if kind == BINARY:
                serial, message = _to_agent.decode(content)
                if self._frames.hears(serial) and not isinstance(message, Kept | Met):
                    self.back_at = self.back_at or time.monotonic()
                    self._feed(message)
        del data[:at]

    def _say(self, message: FromAgent) -> None:
        if not self._is_open or self._transport is None:
            return
        data = _encode((self._frames.number(), message))
        size = len(data)
        length = b"%c" % (128 | size) if size < 126 else b"%c%b" % (254, size.to_bytes(2))
        self._transport.write(b"%c%b%b%b" % (128 | BINARY, length, NO_MASK, data))

    # --- the node ----------------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Report a load that drifts at random, as on a real machine."""
        self._feed(Load(cpu=round(self._load.gauss(400, 30)), load1=400, memory=round(self._load.gauss(300, 3))))

    def _feed(self, message: machine.Message) -> None:
        self._perform(self._machine.handle(message, self._clock.now()))

    def _tick(self) -> None:
        self._timer = None
        self._perform(self._machine.tick(self._clock.now()))

    def _perform(self, effects: list[machine.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, machine.Start):
                self._start(effect.launch)
            elif isinstance(effect, machine.Stop):
                self._end(effect.attempt, "killed")
            elif isinstance(effect, machine.Say):
                self._say(effect.message)
            elif isinstance(effect, machine.Hang):
                self._leave(0.0)
        due = self._machine.wakeup()
        if due is not None and (self._timer is None or self._due > due):
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            wait = max(0.0, (due - self._clock.now()) / SECOND)
            self._timer = asyncio.get_running_loop().call_later(wait, self._tick)

    def _start(self, launch: Launch) -> None:
        self.started += 1
        loop = asyncio.get_running_loop()
        loop.call_soon(self._feed, machine.Changed(running=(Running(attempt=launch.attempt, pid=1),)))
        loop.call_later(float(launch.argv[1]), self._end, launch.attempt, "exited")

    def _end(self, attempt: Attempt, outcome: str) -> None:
        ending = Ending(outcome="done" if outcome == "exited" else "killed")
        self._feed(machine.Changed(ended=(Ended(attempt=attempt, ending=ending),)))


class Swarm:
    """All nodes, on their own event loop."""

    def __init__(self, home: Home, count: int) -> None:
        clock, token = SystemClock.of_the_boot(), read_token(home)
        address = Address.parse(msgspec.json.decode(home.endpoint.read_bytes(), type=Endpoint).address)
        ways_in, self._trusted = asyncio.Semaphore(AT_ONCE), trusting(address)
        self._trusted.check_hostname, self._trusted.verify_mode = False, ssl.CERT_NONE  # cheaper, as zero masks are
        self.nodes = [PlayedNode(number, address, token, clock, ways_in) for number in range(count)]
        self._loop = uvloop.new_event_loop()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), daemon=True)

    def __enter__(self) -> "Swarm":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def started(self) -> int:
        return sum(node.started for node in self.nodes)

    def leave(self) -> None:
        """Reset the nodes, to count the reconnections from now on."""
        for node in self.nodes:
            node.back_at = 0.0

    def back(self) -> float:
        """Return when the last node had reconnected; 0 while one is missing."""
        times = [node.back_at for node in self.nodes]
        return max(times) if all(times) else 0.0

    async def _run(self) -> None:
        tasks = [asyncio.create_task(node.run(self._trusted)) for node in self.nodes]
        samples = asyncio.create_task(self._sample())
        await asyncio.to_thread(self._over.wait)
        for task in (samples, *tasks):
            task.cancel()
        await asyncio.gather(samples, *tasks, return_exceptions=True)

    async def _sample(self) -> None:
        """Sample each node once a second, a few at a time."""
        for number in itertools.cycle(range(20)):
            for node in self.nodes[number::20]:
                node.sample()
            await asyncio.sleep(0.05)


def until(holds: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not in {seconds:g} s: {what}")
        time.sleep(0.1)


def cpu_share(home: Home, seconds: float) -> list[float]:
    """Return the CPU of the control plane, in percent of a core, by interval."""
    process, shares = psutil.Process(holder(home.lock)), []
    for _ in range(max(1, round(seconds / PIECE_SECONDS))):
        before, begun = sum(process.cpu_times()[:2]), time.perf_counter()
        time.sleep(PIECE_SECONDS)
        shares.append(100 * (sum(process.cpu_times()[:2]) - before) / (time.perf_counter() - begun))
    return shares


def hold(client: Client, nodes: int, seconds: float) -> str:
    """Run a command on each node for `seconds`."""
    return client.submit({"run": ["sleep", str(seconds)], "parts": nodes, "resources": {"cpu": CPU / 1000 / 2}})


class Back(NamedTuple):
    """Seconds from a kill until all nodes are back, until all submissions are acknowledged, and until all have started;
    and CPU seconds of the control plane, from its first answer until the end.
    """

    back: float
    taken: float
    placed: float
    cpu: float


def herd(home: Home, client: Client, swarm: Swarm, submissions: int) -> Back:
    """Kill the control plane, submit jobs, and wait until everything has recovered."""
    count = len(swarm.nodes)
    swarm.leave()
    began = swarm.started()
    killed = time.monotonic()
    psutil.Process(holder(home.lock)).kill()
    acknowledged = 0
    with Client(home, patience=PATIENCE) as submitter:
        submitter.status()
        process = psutil.Process(holder(home.lock))
        cpu = sum(process.cpu_times()[:2])
        work = ({"run": ["sleep", "0.5"], "resources": {"cpu": 0.1}} for _ in range(submissions))
        for receipt in submitter.submit_stream(work):
            acknowledged += receipt.error is None
    taken = time.monotonic()
    if acknowledged != submissions:
        raise RuntimeError(f"{acknowledged} of {submissions} were acknowledged")
    until(lambda: swarm.started() - began >= submissions, "all has started")
    placed = time.monotonic()
    until(swarm.back, "all are back")
    cpu = sum(process.cpu_times()[:2]) - cpu
    lost = [event for event in client.events(after=0, follow=False) if b'"type":"lost"' in event]
    if lost:
        raise RuntimeError(f"{len(lost)} of {count} nodes were taken for lost")
    until(lambda: client.status().unfinished == 1, "only what is held is left")
    if swarm.started() - began != submissions:
        raise RuntimeError("something was started twice")
    found = Back(swarm.back() - killed, taken - killed, placed - killed, cpu)
    say(
        f"herd: all {count} back after {found.back:.1f} s, {submissions} submissions started after {found.placed:.1f} s"
    )
    return found


def floor(home: Home, count: int) -> float:
    """Return the CPU seconds of a bare server for `count` connections."""
    command = [sys.executable, __file__, "--bare", str(home.root), "--nodes", str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, contextlib.ExitStack() as held:
        if server.stdout is None:
            raise RuntimeError("nobody listens")
        port = int(server.stdout.readline())
        context = ssl.create_default_context(cadata=ensure_authority(home).decode("ascii"))
        for _ in range(count):
            plain = socket.create_connection(("127.0.0.1", port))
            channel = held.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            channel.sendall(WORD)
            channel.recv(len(WORD))
        return float(server.stdout.readline())


def bare(root: Path, count: int) -> int:
    """Run that server: print the port, and then its CPU time."""
    context = server_context(Home(root), ["127.0.0.1"], of="bare")
    with socket.create_server(("127.0.0.1", 0)) as listening, contextlib.ExitStack() as held, files_for_all():
        print(listening.getsockname()[1], flush=True)
        before = time.process_time()
        for _ in range(count):
            channel = held.enter_context(context.wrap_socket(listening.accept()[0], server_side=True))
            channel.sendall(channel.recv(len(WORD)))
        print(time.process_time() - before, flush=True)
    return 0


def measure(nodes: int = 1000, seconds: float = 20.0, herds: int = 3, submissions: int = 10_000) -> list[Figure]:
    with files_for_all(), harness.own_home() as home, _alone(home) as client, Swarm(home, nodes) as swarm:
        until(lambda: client.status().nodes == nodes, "all nodes have joined")
        say(f"herd: {nodes} nodes have joined; they settle for {SETTLE_SECONDS:.0f} s")
        time.sleep(SETTLE_SECONDS)
        idle = cpu_share(home, seconds)
        say("herd: each node runs a command")
        job = hold(client, nodes, 3600.0)
        until(lambda: swarm.started() >= nodes, "a command on each")
        time.sleep(PIECE_SECONDS)
        busy = cpu_share(home, seconds)
        say("herd: without submissions")
        alone = herd(home, client, swarm, 0)
        time.sleep(PIECE_SECONDS)
        found = []
        for turn in range(herds):
            say(f"herd: turn {turn + 1} of {herds}")
            found.append(herd(home, client, swarm, submissions))
            time.sleep(PIECE_SECONDS)
        client.cancel(job)
        client.wait(job)
        connections = min(nodes, FLOOR_CONNECTIONS)
        bare_server = floor(home, connections)
    of = f"{nodes} nodes"
    per_node, least = 1000 * alone.cpu / nodes, 1000 * bare_server / connections
    figures = [
        Figure(name=f"heartbeats of {of}, idle: CPU of a core", unit="%", values=idle, limit=TARGET_CPU_PERCENT),
        Figure(name=f"heartbeats of {of}, busy: CPU of a core", unit="%", values=busy, limit=TARGET_CPU_PERCENT),
        Figure(name=f"herd of {of}, nothing else: until all are back", unit="s", values=[alone.back]),
        Figure(name="  CPU of the control plane per node", unit="ms", values=[per_node], limit=TARGET_CPU_PER_NODE),
        Figure(name="  CPU of a bare TLS server per connection", unit="ms", values=[least]),
    ]
    if not found:
        return figures
    return [
        *figures,
        Figure(
            name=f"herd of {of}: killed until all are back",
            unit="s",
            values=[one.back for one in found],
            limit=TARGET_BACK_SECONDS,
        ),
        Figure(
            name=f"  until {submissions:,} submissions are acknowledged",
            unit="s",
            values=[one.taken for one in found],
        ),
        Figure(name="  until all of them have started", unit="s", values=[one.placed for one in found]),
    ]


@contextlib.contextmanager
def files_for_all() -> Iterator[None]:
    """Raise the limit on open files to its maximum within the context."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _alone(home: Home) -> Iterator[Client]:
    """Run a control plane without an agent on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    with contextlib.closing(ensure_up(home, "--port", "0", "--no-agent", "--listen", place)) as client:
        yield client


def main() -> int:
    parser = argparse.ArgumentParser(description="a thousand nodes on one control plane")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--herds", type=int, default=3)
    parser.add_argument("--submissions", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        return bare(options.bare, options.nodes)
    sizes = (options.nodes, options.seconds, options.herds, options.submissions)
    return harness.program(lambda: measure(*sizes), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
