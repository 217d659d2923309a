"""Measure the CPU time of a front for one request to an upstream, and how many requests a second it passes on.

    python benchmarks/upstreams.py [--front poise,aiohttp,bytes] [--gateways 1] [--requests 4000]
        [--clients 8] [--rounds 5] [--letters 120] [--json]

`poise serve` stands before two servers that answer at once with 200 bytes. Clients keep their connections and send chat
requests of `letters` letters, without streams, each as soon as its answer is there. The CPU time is that of all gateway
processes, from the kernel's count of ticks. The median and the range of the rounds are shown; a first round, with a
tenth of the requests, does not count.

Two other fronts show the least that a front costs. `aiohttp` passes requests and answers on with the server and the
client of aiohttp, and does nothing else. `bytes` passes bytes on between two connections, and reads no HTTP. The fronts
take turns, round by round.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import uvloop
from aiohttp import web
from harness import OTHERS_SECONDS

ANSWER = (
    b'{"id":"1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":30,"completion_tokens":1,"total_tokens":31}}'
)
MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class Server(asyncio.Protocol):
    """Answers each request at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._data = transport, b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, _, rest = self._data.partition(b"\r\n\r\n")
            length = _length(head)
            if len(rest) < length:
                return
            self._data = rest[length:]
            body = ANSWER if head.startswith(b"POST") else MODELS
            self._transport.write(HEAD % (len(body), body))  # type: ignore[attr-defined]


def _length(head: bytes) -> int:
    said = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(said[0].partition(b":")[2]) if said else 0


async def ask(port: int, many: int, body: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    request += b"content-length: %d\r\n\r\n%b" % (len(body), body)
    for _ in range(many):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise AssertionError(head.decode())
        await reader.readexactly(_length(head))
    writer.close()


async def measured(given: argparse.Namespace, folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the CPU milliseconds for a request, and the requests a second, of each round of each front."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Server, "127.0.0.1", 0) for _ in range(2)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "x" * given.letters}], "max_tokens": 16}
    ).encode()
    rounds: dict[str, list[tuple[float, float]]] = {}
    async with contextlib.AsyncExitStack() as stack:
        fronts = {
            name: await stack.enter_async_context(_running(_command(name, ports, given, folder), folder))
            for name in given.front.split(",")
        }
        for at in range(given.rounds + 1):
            many = given.requests // (1 if at else 10) // given.clients
            for name, (process, port) in fronts.items():
                await _ready(port, body)
                before, began = _cpu(process), time.monotonic()
                await asyncio.gather(*(ask(port, many, body) for _ in range(given.clients)))
                took, asked = time.monotonic() - began, many * given.clients
                rounds.setdefault(name, []).append(((_cpu(process) - before) * 1000 / asked, asked / took))
    for server in servers:
        server.close()
    return {name: of[1:] for name, of in rounds.items()}


def _command(front: str, ports: list[int], given: argparse.Namespace, folder: Path) -> list[str]:
    if front != "poise":
        return [sys.executable, __file__, "--front", front, "--to", ",".join(map(str, ports))]
    upstreams = [{"name": f"u{at}", "url": f"127.0.0.1:{port}", "limit": 1000} for at, port in enumerate(ports)]
    file = folder / "upstreams.json"
    file.write_text(json.dumps({"kind": "upstreams", "upstreams": upstreams}))
    poise = Path(sys.executable).with_name("poise")
    return [str(poise), "serve", str(file), "--port", "0", "--gateways", str(given.gateways), "--json"]


@contextlib.asynccontextmanager
async def _running(command: list[str], folder: Path) -> AsyncIterator[tuple[int, int]]:
    """Start a front; yields its process and its port."""
    env = os.environ | {"POISE_HOME": str(folder / "home")}
    front = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=env)
    if front.stdout is None:
        raise AssertionError("its output is a pipe")
    try:
        yield front.pid, int(json.loads(await front.stdout.readuntil(b"}"))["url"].rpartition(":")[2])
    finally:
        front.terminate()
        await front.wait()


async def pass_on(front: str, ports: list[int]) -> None:
    """Be a front that only passes requests on, until SIGTERM."""
    loop, to = asyncio.get_running_loop(), itertools.cycle(ports)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            url, body = f"http://127.0.0.1:{next(to)}{request.path}", await request.read()
            async with session.request(request.method, url, data=body, headers=request.headers) as got:
                return web.Response(status=got.status, body=await got.read(), content_type=got.content_type)

        made = web.Server(answer) if front == "aiohttp" else lambda: _Side(next(to))
        server = await loop.create_server(made, "127.0.0.1", 0)
        print(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
        await server.serve_forever()


class _Side(asyncio.Protocol):
    """One side of a connection that passes bytes on: `to` is a port, or the other side."""

    def __init__(self, to: "int | _Side") -> None:
        self._to = to
        self._early = b""
        self.transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        if isinstance(self._to, int):
            self._dialling = asyncio.get_running_loop().create_task(self._dial(self._to))

    async def _dial(self, port: int) -> None:
        _, other = await asyncio.get_running_loop().create_connection(lambda: _Side(self), "127.0.0.1", port)
        self._to = other
        self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        self._early += data
        if isinstance(self._to, _Side) and self._to.transport is not None:
            self._to.transport.write(self._early)
            self._early = b""

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(self._to, _Side) and self._to.transport is not None:
            self._to.transport.close()


async def _ready(port: int, body: bytes) -> None:
    while True:
        try:
            await ask(port, 1, body)
        except (OSError, AssertionError, asyncio.IncompleteReadError):
            await asyncio.sleep(OTHERS_SECONDS)
        else:
            return


def _cpu(process: int) -> float:
    parent = psutil.Process(process)
    return sum(sum(one.cpu_times()[:2]) for one in (parent, *parent.children(recursive=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("gateways", 1), ("requests", 4000), ("clients", 8), ("rounds", 5), ("letters", 120)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--front", default="poise,aiohttp,bytes", help="fronts to compare")
    parser.add_argument("--to", default="", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.to:
        uvloop.run(pass_on(given.front, [int(port) for port in given.to.split(",")]))
        return
    with tempfile.TemporaryDirectory() as folder:
        fronts = uvloop.run(measured(given, Path(folder)))
    if given.json:
        print(json.dumps(fronts))
        return
    for front, rounds in fronts.items():
        for name, values in (
            ("CPU ms for a request", [cpu for cpu, _ in rounds]),
            ("requests/s", [rate for _, rate in rounds]),
        ):
            print(f"{front}, {name}: {statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})")


if __name__ == "__main__":
    main()
