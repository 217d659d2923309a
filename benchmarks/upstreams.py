"""Measure the CPU time of a front for one request to an upstream, and how many requests a second it passes on.

    python benchmarks/upstreams.py [--gateways 1] [--requests 4000] [--clients 8] [--rounds 5] [--letters 120] [--json]

`poise serve` stands before two servers that answer at once with 200 bytes. Clients keep their connections and send chat
requests of `letters` letters, without streams, each as soon as its answer is there. The CPU time is that of all gateway
processes, from the kernel's count of ticks. The median and the range of the rounds are shown; a first round, with a
tenth of the requests, does not count.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil
import uvloop
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


async def measured(given: argparse.Namespace, folder: Path) -> list[tuple[float, float]]:
    """Return the CPU milliseconds for a request, and the requests a second, of each round."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Server, "127.0.0.1", 0) for _ in range(2)]
    upstreams = [
        {"name": f"u{at}", "url": f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "limit": 1000}
        for at, server in enumerate(servers)
    ]
    file = folder / "upstreams.json"
    file.write_text(json.dumps({"kind": "upstreams", "upstreams": upstreams}))
    poise = Path(sys.executable).with_name("poise")
    command = [str(poise), "serve", str(file), "--port", "0", "--gateways", str(given.gateways), "--json"]
    front = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env=os.environ | {"POISE_HOME": str(folder / "home")}
    )
    if front.stdout is None:
        raise AssertionError("its output is a pipe")
    port = int(json.loads(await front.stdout.readuntil(b"}"))["url"].rpartition(":")[2])
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "x" * given.letters}], "max_tokens": 16}
    ).encode()
    rounds = []
    try:
        await _ready(port, body)
        for at in range(given.rounds + 1):
            many = given.requests // (1 if at else 10) // given.clients
            before, began = _cpu(front.pid), time.monotonic()
            await asyncio.gather(*(ask(port, many, body) for _ in range(given.clients)))
            took, asked = time.monotonic() - began, many * given.clients
            rounds.append(((_cpu(front.pid) - before) * 1000 / asked, asked / took))
    finally:
        front.terminate()
        await front.wait()
        for server in servers:
            server.close()
    return rounds[1:]


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
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = uvloop.run(measured(given, Path(folder)))
    if given.json:
        print(json.dumps(rounds))
        return
    for name, values in (
        ("CPU ms for a request", [cpu for cpu, _ in rounds]),
        ("requests/s", [rate for _, rate in rounds]),
    ):
        print(f"{name}: {statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})")


if __name__ == "__main__":
    main()
