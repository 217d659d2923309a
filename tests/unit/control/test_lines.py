"""WebSockets, as the client of `websockets` and others speak them: what is said is heard whole, and what breaks the
rules ends its connection with the code that tells so.
"""

import asyncio
import logging
import os
import random
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.utils import apply_mask

from poise.config import Home
from poise.control import lines
from poise.control.guard import refuse
from poise.control.hot import Channel, at_once, hear_now
from poise.drivers.authority import server_context
from poise.drivers.security import ensure_home
from poise.errors import Busy
from poise.kernel.frames import Frames
from poise.model.calls import MAX_FRAME
from poise.model.messages import Acked, Met
from unit.control.open_door import entered
from unit.control.test_entrance import anybody, run, upgrade

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
BINARY, TEXT, CONT, PING, PONG, CLOSE = 0x82, 0x81, 0x80, 0x89, 0x8A, 0x88


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Says what it hears, until the other side ends."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


def spoken(path: Path, use: Callable[[ClientConnection], Awaitable[None]], **settings: Any) -> None:
    """With the client of `websockets`."""

    async def live() -> None:
        async with entered(echo, path), unix_connect(str(path), "ws://poise/v1/calls", **settings) as line:
            await use(line)

    run(live)


def frame(first: int, data: bytes = b"", *, masked: bool = True) -> bytes:
    mask, flag, length = b"mask" if masked else b"", 0x80 if masked else 0, len(data)
    if length < 126:
        head = bytes([first, flag | length])
    elif length < 2**16:
        head = bytes([first, flag | 126]) + struct.pack("!H", length)
    else:
        head = bytes([first, flag | 127]) + struct.pack("!Q", length)
    return head + mask + (apply_mask(data, mask) if masked else data)


async def said(ends: Ends) -> tuple[int, bytes]:
    """The next frame that comes: its first byte and what it holds."""
    first, length = await ends[0].readexactly(2)
    if length > 125:
        length = int.from_bytes(await ends[0].readexactly(2 if length == 126 else 8))
    return first, await ends[0].readexactly(length)


async def opened(path: Path) -> Ends:
    ends = await asyncio.open_unix_connection(path)
    ends[1].write(upgrade("/v1/calls"))
    assert b"101 Switching" in await ends[0].readuntil(b"\r\n\r\n")
    return ends


def raw(path: Path, use: Callable[[Ends], Awaitable[None]]) -> None:
    """With frames written by hand."""

    async def live() -> None:
        async with entered(echo, path):
            await use(await opened(path))

    run(live)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 2**16 - 1, 2**16, MAX_FRAME])
def test_what_is_said_is_heard_whatever_its_size(size: int, tmp_path: Path) -> None:
    async def use(line: ClientConnection) -> None:
        data = os.urandom(size)
        await line.send(data)
        assert await line.recv() == data
        await line.send("é" * (size // 2))
        assert await line.recv() == "é" * (size // 2)

    spoken(tmp_path / "sock", use, max_size=None, compression=None)


@pytest.mark.parametrize("takeover", [True, False])
def test_between_machines_it_is_compressed(takeover: bool, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    ensure_home(home)
    offer = ClientPerMessageDeflateFactory(
        client_max_window_bits=12, client_no_context_takeover=not takeover, server_no_context_takeover=not takeover
    )

    async def live() -> None:
        async with entered(echo, tmp_path, server_context(home, ["127.0.0.1"])) as at:
            host, port = at._listening[0].getsockname()
            where = f"wss://{host}:{port}/v1/calls"
            async with connect(where, ssl=anybody(), extensions=[offer], compression=None, max_size=None) as line:
                assert "permessage-deflate" in line.response.headers["Sec-WebSocket-Extensions"]  # type: ignore[union-attr]
                for data in (b"", b"again " * 1000, b"again " * 1000, bytes(MAX_FRAME), os.urandom(5000)):
                    await line.send(data)
                    assert await line.recv() == data
                await line.send([b"in ", b"several ", b"parts"])
                assert await line.recv() == b"in several parts"
                with pytest.raises(ConnectionClosed) as closed:
                    await line.send(bytes(MAX_FRAME + 1))
                    await line.recv()
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009

    run(live)


def test_on_one_machine_it_is_not_compressed_though_it_is_offered(tmp_path: Path) -> None:
    async def use(line: ClientConnection) -> None:
        assert line.response is not None
        assert "Sec-WebSocket-Extensions" not in line.response.headers
        await line.send(b"plain")
        assert await line.recv() == b"plain"

    spoken(tmp_path / "sock", use)


@pytest.mark.parametrize("seed", range(5))
def test_frames_are_read_wherever_the_network_cuts_them(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)  # noqa: S311 — the same cuts each time
    words = [chance.randbytes(chance.choice([0, 3, 125, 126, 300, 70_000])) for _ in range(20)]
    stream = b"".join(
        frame(BINARY, word)
        if chance.random() < 0.6
        else frame(0x02, word[:2]) + frame(PING, b"between") + frame(0x00, word[2:3]) + frame(CONT, word[3:])
        for word in words
    )

    async def use(ends: Ends) -> None:
        at = 0
        while at < len(stream):
            cut = at + chance.choice([1, 2, 5, 50, 5000, 100_000])
            ends[1].write(stream[at:cut])
            await ends[1].drain()
            await asyncio.sleep(0)
            at = cut
        heard: list[bytes] = []
        while len(heard) < len(words):
            first, data = await said(ends)
            if first == PONG:
                assert data == b"between"
            else:
                heard.append(data)
        assert heard == words

    raw(tmp_path / "sock", use)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (frame(BINARY, b"bare", masked=False), 1002),
        (frame(0xC2, b"compressed"), 1002),
        (frame(0xA2, b"reserved"), 1002),
        (frame(0x83, b"no such opcode"), 1002),
        (frame(0x8B, b"no such opcode"), 1002),
        (frame(0x09, b"half a ping"), 1002),
        (frame(PING, bytes(126)), 1002),
        (frame(CONT, b"of nothing"), 1002),
        (frame(0x02, b"begun") + frame(BINARY, b"anew"), 1002),
        (frame(CLOSE, b"\x03"), 1002),
        (frame(CLOSE, struct.pack("!H", 999)), 1002),
        (frame(CLOSE, struct.pack("!H", 1000) + b"\xff"), 1007),
        (frame(TEXT, b"\xff\xfe"), 1007),
        (bytes([0x02, 0x80 | 127]) + struct.pack("!Q", 2**63), 1009),
        (frame(0x02, bytes(MAX_FRAME)) + frame(CONT, b"more"), 1009),
    ],
)
def test_what_breaks_the_rules_ends_with_its_code(wrong: bytes, code: int, tmp_path: Path) -> None:
    async def use(ends: Ends) -> None:
        ends[1].write(wrong)
        first, data = await said(ends)
        assert (first, struct.unpack("!H", data[:2])[0]) == (CLOSE, code)
        assert await ends[0].read() == b""

    raw(tmp_path / "sock", use)


@pytest.mark.parametrize("payload", [b"", struct.pack("!H", 1000), struct.pack("!H", 4001) + b"enough"])
def test_who_closes_is_answered_and_its_handler_is_told(payload: bytes, tmp_path: Path) -> None:
    ended: list[Any] = []

    async def listens(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        ended.append(await receive())

    async def live() -> None:
        async with entered(listens, tmp_path / "sock"):
            ends = await opened(tmp_path / "sock")
            ends[1].write(frame(CLOSE, payload) + frame(BINARY, b"and more"))
            assert await said(ends) == (CLOSE, payload)
            assert await ends[0].read() == b""

    run(live)
    code = struct.unpack("!H", payload[:2])[0] if payload else 1005
    assert ended == [{"type": "websocket.disconnect", "code": code, "reason": payload[2:].decode()}]


@pytest.mark.parametrize("answers", [True, False])
def test_a_handler_that_closes_waits_for_the_other_side_for_a_while(
    answers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CLOSE_SECONDS", 0.1)

    async def closes(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 4404, "reason": "there is nothing"})

    async def live() -> None:
        async with entered(closes, tmp_path / "sock"):
            ends = await opened(tmp_path / "sock")
            assert await said(ends) == (CLOSE, struct.pack("!H", 4404) + b"there is nothing")
            ends[1].write(frame(BINARY, b"too late") + (frame(CLOSE, struct.pack("!H", 4404)) if answers else b""))
            assert await ends[0].read() == b""

    run(live)


def test_a_refusal_is_answered_whole_and_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def busy(scope: Any, receive: Any, send: Any) -> None:
        await refuse(scope, send, Busy("too many come", need="patience", hint="wait"), retry_after=3)

    async def live() -> None:
        async with entered(busy, tmp_path / "sock"):
            with pytest.raises(InvalidStatus) as refused:
                await unix_connect(str(tmp_path / "sock"), "ws://poise/v1/channel")
            response = refused.value.response
            assert (response.status_code, response.headers["Retry-After"]) == (503, "3")
            assert response.body is not None and b"too many come" in response.body

    with caplog.at_level(logging.INFO):
        run(live)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("Version: 13", "Version: 8", b"426"),
        ("GET ", "POST ", b"400"),
        ("Sec-WebSocket-Key: ", "Sec-WebSocket-Key: short", b"400"),
        ("Sec-WebSocket-Key: ", "No-Key: ", b"400"),
        ("/v1/calls", "http://poise", b"400"),
        ("/v1/calls", "/v1/\u00ffcalls", b"400"),
    ],
)
def test_what_asks_for_no_websocket_of_ours_is_refused(old: str, new: str, status: bytes, tmp_path: Path) -> None:
    async def live() -> None:
        async with entered(echo, tmp_path / "sock"):
            ends = await asyncio.open_unix_connection(tmp_path / "sock")
            ends[1].write(upgrade("/v1/calls").replace(old.encode(), new.encode()))
            answer = await ends[0].read()
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert (b"sec-websocket-version: 13" in answer) is (status == b"426")

    run(live)


def test_a_handler_that_fails_ends_its_connection_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/v1/workers":
            await send({"type": "websocket.accept"})
        raise ValueError("a bug")

    async def live() -> None:
        async with entered(fails, tmp_path / "sock"):
            ends = await asyncio.open_unix_connection(tmp_path / "sock")
            ends[1].write(upgrade("/v1/calls"))
            assert (await ends[0].read()).startswith(b"HTTP/1.1 500")
            ends = await asyncio.open_unix_connection(tmp_path / "sock")
            ends[1].write(upgrade("/v1/workers"))
            assert b"101 Switching" in await ends[0].read()

    run(live)
    assert sum("a bug" in str(record.exc_info) for record in caplog.records) == 2


def test_what_a_handler_does_not_take_is_not_read(tmp_path: Path) -> None:
    """The network holds it, and not the memory of the control plane; and it is all heard in the end."""
    held: list[int] = []

    async def live() -> None:
        wakes, over = asyncio.Event(), asyncio.Event()

        async def sleeps(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            await wakes.wait()
            line = receive.__self__
            held.append(sum(size for _, size in line._inbox) + len(line._buffer))
            total = 0
            while (message := await receive())["type"] == "websocket.receive":
                total += len(message["bytes"])
            held.append(total)
            over.set()

        async with entered(sleeps, tmp_path / "sock"):
            ends = await opened(tmp_path / "sock")
            word = frame(BINARY, bytes(50_000))
            for _ in range(100):
                ends[1].write(word)
            await asyncio.sleep(0.1)
            wakes.set()
            await ends[1].drain()
            ends[1].write(frame(CLOSE))
            await over.wait()

    run(live)
    assert held[0] < 2**20 and held[1] == 100 * 50_000


def test_what_is_said_at_once_and_what_waits_for_room_come_in_order(tmp_path: Path) -> None:
    taken: list[bool] = []

    async def says(scope: Any, receive: Any, send: Any) -> None:
        now = at_once(scope)

        def noted(frame: bytes) -> bool:
            taken.append(now(frame))
            return taken[-1]

        await receive()
        await send({"type": "websocket.accept"})
        channel = Channel(send, Frames(), now=noted)
        for _ in range(100):
            channel.send(Met(gang="j1.main", founded=1, name="here", data=bytes(50_000)))
        await receive()
        channel.send(Acked(serial=1))
        await receive()

    async def live() -> None:
        async with (
            entered(says, tmp_path / "sock"),
            unix_connect(str(tmp_path / "sock"), "ws://poise/v1/calls", max_size=None) as line,
        ):
            await asyncio.sleep(0.1)
            heard = [msgspec.msgpack.decode(await line.recv(decode=False))[0] for _ in range(100)]
            assert heard == list(range(1, 101))
            await line.send(b"go on")
            assert msgspec.msgpack.decode(await line.recv(decode=False))[0] == 101

    run(live)
    assert taken[0] and taken[-1] and not all(taken)


def test_whoever_is_connected_is_told_when_the_server_ends(tmp_path: Path) -> None:
    async def live() -> None:
        async with entered(echo, tmp_path / "sock"):
            ends = await opened(tmp_path / "sock")
        assert await said(ends) == (CLOSE, struct.pack("!H", 1012))

    run(live)


def test_a_path_is_read_as_http_reads_it(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def looks(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["path"], scope["query_string"], scope["type"], scope["scheme"]))

    async def live() -> None:
        async with entered(looks, tmp_path / "sock"):
            ends = await asyncio.open_unix_connection(tmp_path / "sock")
            ends[1].write(upgrade("/v1/a%20b?c=d"))
            assert (await ends[0].read()).startswith(b"HTTP/1.1 500")

    run(live)
    assert seen == [("/v1/a b", b"c=d", "websocket", "ws")]


def test_what_a_handler_takes_as_it_is_read_keeps_its_order(tmp_path: Path) -> None:
    """Only while it waits: what comes while it works waits for it, as everything does."""

    async def takes_numbers(scope: Any, receive: Any, send: Any) -> None:
        taken: list[bytes] = []

        def take(data: bytes) -> bool:
            if data.isdigit():
                taken.append(data)
            return data.isdigit()

        hear_now(scope, take)
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            if message["bytes"] == b"works":
                await asyncio.sleep(0.1)
            await send({"type": "websocket.send", "bytes": b" ".join([*taken, message["bytes"]])})
            taken.clear()

    async def live() -> None:
        path = tmp_path / "sock"
        async with entered(takes_numbers, path), unix_connect(str(path), "ws://poise/v1/calls") as line:
            for data in (b"1", b"2", b"a", b"3", b"works", b"4", b"b"):
                await line.send(data)
                await asyncio.sleep(0.02)
            assert [await line.recv() for _ in range(4)] == [b"1 2 a", b"3 works", b"4", b"b"]

    run(live)
