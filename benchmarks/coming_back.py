"""Measure the control plane's cost of a reconnecting node, without network: TLS handshake, WebSocket, messages.

    python benchmarks/coming_back.py [--rounds 40] [--json]

Handshakes are made in memory, both full and resumed by a session ticket. Requests and frames are passed to the protocol
of the control plane, and to that of uvicorn (on `websockets`) for comparison, in batches of a hundred connections. Each
connection sends a message of 200 bytes, as nodes do first, and gets an answer; then each sends short messages. All
times are CPU of this thread; the figure is the minimum, because other work on the machine only adds to it.
"""

import argparse
import asyncio
import base64
import os
import ssl
import sys
from collections.abc import Iterable
from time import thread_time
from typing import Any, cast

import harness
import uvloop
from harness import Figure
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.utils import apply_mask

from poise.control.heads import Heads
from poise.control.lines import Lines
from poise.drivers.authority import ensure_authority, server_context
from poise.drivers.security import ensure_home

AT_ONCE, WORDS = 100, 5
OFFER = "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=12; client_max_window_bits=12\r\n"


class Theirs(Heads):
    """Passes a WebSocket to uvicorn's protocol."""

    handle_websocket_upgrade = HttpToolsProtocol.handle_websocket_upgrade


class Wire(asyncio.Transport):
    """A transport that counts writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.protocol: Any = None
        self.taken = 0

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        self.taken += 1

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing: the connection stays open."""

    abort = pause_reading = resume_reading = close


def frame(data: bytes) -> bytes:
    """Return a client frame with a length of one byte, or of two more bytes."""
    head = bytes([0x82, 0x80 | len(data)]) if len(data) < 126 else b"\x82\xfe" + len(data).to_bytes(2)
    return head + b"mask" + apply_mask(data, b"mask")


def request(extensions: str) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        "GET /v1/channel HTTP/1.1\r\nHost: 127.0.0.1:7000\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n{extensions}Authorization: Bearer {'x' * 40}\r\n"
        "User-Agent: Python/3.11 websockets/17.4\r\n\r\n"
    ).encode()


async def answering(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "bytes": b"an answer of some bytes"})


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def cost(http: type[HttpToolsProtocol], config: Config, extensions: str, rounds: int) -> tuple[float, float]:
    """Return the milliseconds to open a connection and answer its first message, and for each later message."""
    opened, said, state = [], [], ServerState()
    first, word = frame(bytes(200)), frame(bytes(20))
    for _ in range(rounds):
        requests, wires = [request(extensions) for _ in range(AT_ONCE)], [Wire() for _ in range(AT_ONCE)]
        begun = thread_time()
        for wire, asks in zip(wires, requests, strict=True):
            arguments: Iterable[Any] = (lambda: None, config, state, {})
            wire.protocol = cast(Any, http)(*arguments)
            wire.protocol.connection_made(wire)
            wire.protocol.data_received(asks)
        await turns(3)
        for wire in wires:
            wire.protocol.data_received(first)
        await turns(5)
        opened.append((thread_time() - begun) / AT_ONCE)
        before, begun = wires[0].taken, thread_time()
        for _ in range(WORDS):
            for wire in wires:
                wire.protocol.data_received(word)
            await turns(5)
        said.append((thread_time() - begun) / AT_ONCE / WORDS)
        if wires[0].taken - before != WORDS:
            raise RuntimeError("a word was not answered")
        for wire in wires:
            wire.protocol.connection_lost(None)
        await turns(5)
    return 1e3 * min(opened), 1e3 * min(said)


def handshakes(count: int, *, resumed: bool) -> tuple[float, float]:
    """Return the milliseconds of a handshake for the server and for the client."""
    with harness.own_home() as home:
        ensure_home(home)
        server, client = server_context(home, ["127.0.0.1"]), ssl.create_default_context()
        client.load_verify_locations(cadata=ensure_authority(home).decode("ascii"))
    server.num_tickets = int(resumed)
    session, costs = None, []
    for number in range(count):
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        asks = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1", session=session)
        answers = server.wrap_bio(to_server, to_client, server_side=True)
        spent = dict.fromkeys((asks, answers), 0.0)
        while not (shaken(asks, spent) & shaken(answers, spent)):
            """Each side waits for the messages of the other."""
        answers.write(b"a word, and before it a ticket")
        asks.read()
        if resumed:
            if answers.session_reused is not (number > 0):
                raise RuntimeError("the session was not resumed")
            session = asks.session
        costs.append((spent[answers], spent[asks]))
    server_side, client_side = zip(*costs[1:], strict=True)
    return 1e3 * min(server_side), 1e3 * min(client_side)


def shaken(side: ssl.SSLObject, spent: dict[ssl.SSLObject, float]) -> bool:
    """Return whether the handshake is done on this side."""
    begun = thread_time()
    try:
        side.do_handshake()
        return True
    except ssl.SSLWantReadError:
        return False
    finally:
        spent[side] += thread_time() - begun


def measure(rounds: int) -> list[Figure]:
    figures = []
    for which, resumed in (("whole", False), ("resumed by a ticket", True)):
        for side, value in zip(("server", "client"), handshakes(10 * rounds, resumed=resumed), strict=True):
            figures.append(Figure(name=f"TLS handshake, {which}: the {side}", unit="ms", values=[value]))
    for compressed, extensions in (("", ""), (", compressed", OFFER)):
        for whose, http, ws in (("uvicorn's", Theirs, WebSocketsSansIOProtocol), ("the control plane's", Heads, Lines)):
            config = Config(answering, ws=ws, log_config=None, access_log=False, ws_ping_interval=None)
            config.load()
            opened, said = uvloop.run(cost(http, config, extensions, rounds))
            name = f"{whose}{compressed}: "
            figures.append(Figure(name=name + "opened, and its first word answered", unit="ms", values=[opened]))
            figures.append(Figure(name=name + "a word answered", unit="ms", values=[said]))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="what a node that comes back costs the control plane")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return harness.program(lambda: measure(options.rounds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
