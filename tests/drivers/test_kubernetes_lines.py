"""Node channels of the scheduler of a cluster, against the server of another implementation."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, unix_serve

from poise_kubernetes.lines import Line

SIZES = (0, 1, 125, 126, 65535, 65536, 300_000)

Talk = Callable[[ServerConnection], Coroutine[Any, Any, None]]


async def _opened(path: Path, hear: Callable[[bytes], None]) -> Line:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    _, line = await loop.create_connection(lambda: Line("/v1/channel", "secret", hear), sock=sock)
    await line.opened
    return line


def test_messages_of_all_sizes_come_back_whole_and_in_order(tmp_path: Path) -> None:
    heard: list[bytes] = []

    async def echo(server: ServerConnection) -> None:
        assert server.request is not None
        assert (server.request.path, server.request.headers["Authorization"]) == ("/v1/channel", "Bearer secret")
        async for message in server:
            await server.ping()
            await server.send(message)
            if len(message) == SIZES[-1]:
                await server.close()

    async def run() -> None:
        path = tmp_path / "s"
        async with unix_serve(echo, str(path), max_size=None, compression=None):
            line = await _opened(path, heard.append)
            for size in SIZES:
                line.send(bytes([size % 256]) * size)
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(line.closed, 10)

    asyncio.run(run())
    assert heard == [bytes([size % 256]) * size for size in SIZES]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 403 Forbidden\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: x\r\n\r\n",
        b"x" * 70_000,
        b"",
    ],
)
def test_a_channel_that_is_refused_is_lost(answer: bytes, tmp_path: Path) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async def run() -> None:
        path = tmp_path / "s"
        async with await asyncio.start_unix_server(refuse, str(path)):
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(_opened(path, lambda message: None), 10)

    asyncio.run(run())
