"""Whoever comes in: strangers have so much time and so much room, and nobody is waited for who takes nothing."""

import asyncio
import base64
import contextlib
import os
import selectors
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from poise.config import Home
from poise.control import entrance, heads
from poise.control.entrance import Entrance
from poise.drivers import sockets, taking
from poise.drivers.authority import server_context
from poise.drivers.security import ensure_home
from poise.drivers.taking import Taking
from poise.model.calls import MAX_FRAME
from unit.control.desk import OWNER
from unit.control.open_door import entered, open_door

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HELLO = b"GET /healthz HTTP/1.1\r\nHost: poise\r\n\r\n"


def run(use: Callable[[], Awaitable[None]], *, loop: Callable[[Any], None] = uvloop.run) -> None:
    loop(asyncio.wait_for(use(), 20))


async def greet(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers anything."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


async def is_answered(ends: Ends) -> bool:
    """Whether what it asks is answered, and not hung up on."""
    ends[1].write(HELLO)
    try:
        return (await ends[0].readuntil(b"\r\n\r\nhi")).startswith(b"HTTP/1.1 200")
    except (ConnectionError, EOFError):
        return False


async def is_closed(ends: Ends) -> bool:
    """Waits until the other side has nothing more to say: True."""
    try:
        return await ends[0].read() is not None
    except ConnectionError:
        return True


def anybody() -> ssl.SSLContext:
    """Takes whoever answers."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def beyond(at: Entrance, context: ssl.SSLContext | None = None) -> Ends:
    host, port = at._listening[0].getsockname()
    return await asyncio.open_connection(host, port, ssl=context)


def test_the_one_that_is_silent_for_longest_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many connections that say nothing keep nobody out."""
    monkeypatch.setattr(entrance, "MAX_SILENT", 8)

    async def use() -> None:
        path = tmp_path / "sock"
        async with entered(greet, path):
            silent = [await asyncio.open_unix_connection(path) for _ in range(100)]
            asks = await asyncio.open_unix_connection(path)
            assert await is_answered(asks)
            assert all([await is_closed(ends) for ends in silent[:92]]), "the first of them are gone"
            assert await is_answered(silent[-1]), "the latest may still ask"
            assert await is_answered(asks), "and who has asked may ask again"

    run(use)


def test_who_has_asked_already_does_not_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said may not have been read when many come at once."""
    monkeypatch.setattr(entrance, "MAX_SILENT", 8)

    async def use() -> None:
        path = tmp_path / "sock"
        async with entered(greet, path):
            with contextlib.ExitStack() as stack:
                asks = stack.enter_context(sockets.connect(path))  # nobody is let in before this task waits
                asks.sendall(HELLO)
                silent = [stack.enter_context(sockets.connect(path)) for _ in range(100)]
                asks.setblocking(False)
                assert (await asyncio.get_running_loop().sock_recv(asks, 12)) == b"HTTP/1.1 200"
                assert len(silent) == 100

    run(use)


def test_where_all_have_begun_to_ask_the_next_of_their_origin_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand nodes that come back at once are let in as they can be, and nobody else waits for them."""
    monkeypatch.setattr(entrance, "MAX_STRANGERS", 4)
    origin = "here"
    monkeypatch.setattr(entrance, "origin_of", lambda *_: origin)

    async def use() -> None:
        nonlocal origin
        path = tmp_path / "sock"
        async with entered(greet, path):
            begun = []
            for _ in range(4):
                begun.append(await asyncio.open_unix_connection(path))
                begun[-1][1].write(HELLO[:20])
            following = [await asyncio.open_unix_connection(path) for _ in range(20)]
            asking = [asyncio.create_task(is_answered(ends)) for ends in following]
            origin = "elsewhere"
            assert await is_answered(await asyncio.open_unix_connection(path))
            begun[0][1].write(HELLO[20:])
            assert all(await asyncio.gather(*asking)), "one after the other in the place that was left"

    run(use)


def test_the_cost_of_an_arrival_does_not_grow_with_the_number_of_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of thousands of addresses come back at once; who has gone is forgotten all the same."""
    looks = 0

    def counted(strangers: entrance.Strangers) -> int:
        nonlocal looks
        looks += 1
        return strangers.taken_in

    monkeypatch.setattr(entrance.Strangers, "__len__", counted)

    async def use() -> None:
        origins = entrance.Origins(lambda: None)
        for number in range(4000):
            origins.of(f"n{number}").taken_in = 1
        assert looks < 2 * 4000
        for strangers in origins.values():
            strangers.taken_in = 0
        for number in range(8000):
            assert origins.of(f"m{number}") is origins.of(f"m{number}")
        assert len(origins) < 4000 + 2 * entrance.FEW_ORIGINS

    run(use)


def test_of_one_origin_so_many_handshakes_go_on_and_others_do_not_wait_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands side by side would each take longer than their clients wait."""
    monkeypatch.setattr(entrance, "HANDSHAKES_OF_ONE", 2)
    origins, third_came = ["here"] * 3 + ["elsewhere"], asyncio.Event()

    def origin(*_: Any) -> str:
        if len(origins) == 2:
            third_came.set()
        return origins.pop(0)

    monkeypatch.setattr(entrance, "origin_of", origin)
    home = Home(tmp_path / "home")
    ensure_home(home)

    async def use() -> None:
        async with entered(greet, tmp_path / "sock", server_context(home, ["127.0.0.1"])) as tls:
            begun = [await beyond(tls) for _ in range(2)]
            for _, writer in begun:
                writer.write(b"\x16")
            third = asyncio.create_task(beyond(tls, anybody()))
            await third_came.wait()
            assert await is_answered(await beyond(tls, anybody()))
            assert not third.done()
            begun[0][1].close()
            assert await is_answered(await third)

    run(use)


class Jumps(selectors.DefaultSelector):
    """Does not wait where nothing is ready: the time jumps."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        self.now += 0.0 if ready else timeout or 0.0
        return ready


class Jumping(asyncio.SelectorEventLoop):
    """Its time stands still while there is something to do, and then jumps to what is to be done next."""

    def __init__(self) -> None:
        self._jumps = Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now


def jumping(use: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=Jumping) as runner:
        runner.run(use())


async def taken_in(many: int, seconds: float, on_crowded: Callable[[], None] = lambda: None) -> tuple[list[float], int]:
    """When the handshakes of connections of one origin that come at once were done, each of which takes `seconds`;
    and the maximum number of them that went on side by side. Returns when all are done or turned away.
    """
    loop, origin = asyncio.get_running_loop(), entrance.Origins(on_crowded).of("here")
    done, under_way, most = [], 0, 0

    async def take_in(sock: socket.socket, no_stranger: Callable[[], None]) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await asyncio.sleep(seconds)
        finally:
            under_way -= 1
        done.append(loop.time())
        sock.close()
        no_stranger()

    ends = [socket.socketpair() for _ in range(many)]
    for theirs, ours in ends:
        ours.setblocking(False)
        theirs.sendall(b"\x16")
        entrance.Arrival(ours, origin, take_in)
    await asyncio.sleep(entrance.SILENT_SECONDS + 3 * entrance.HANDSHAKE_SECONDS)
    assert not len(origin)
    for theirs, _ in ends:
        theirs.close()
    return done, most


def test_on_a_slow_machine_handshakes_do_not_end_for_each_other() -> None:
    """All of them take longer than a slot is held. Each that was begun is done, and those that wait follow."""

    async def use() -> None:
        slots, takes = entrance.HANDSHAKES_OF_ONE, 2.5 * entrance.SLOW_SECONDS
        done, most = await taken_in(4 * slots, takes)
        assert done == [turn * entrance.SLOW_SECONDS + takes for turn in range(4) for _ in range(slots)]
        assert most == 3 * slots

    jumping(use)


def test_it_is_known_when_clients_wait_long_for_their_handshakes() -> None:
    """Nodes may be among them, which are not dead."""

    async def use() -> None:
        slots, crowded = entrance.HANDSHAKES_OF_ONE, list[float]()
        loop = asyncio.get_running_loop()
        await taken_in(slots, 5.0, lambda: crowded.append(loop.time()))
        assert not crowded, "none of them waits"
        began = loop.time()
        await taken_in(2 * slots, 5.0, lambda: crowded.append(loop.time() - began))
        assert crowded == [entrance.SLOW_SECONDS] * slots

    jumping(use)


def test_a_handshake_that_waited_for_its_slot_has_its_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have waited nearly too long are first in turn, and would all be begun for nothing."""
    monkeypatch.setattr(entrance, "HANDSHAKE_SECONDS", 10.0)
    monkeypatch.setattr(entrance, "SLOW_SECONDS", 3.0)

    async def use() -> None:
        slots = entrance.HANDSHAKES_OF_ONE
        done, most = await taken_in(10 * slots, 9.5)
        assert done == [begun + 9.5 for begun in (0, 3, 6, 9) for _ in range(slots)]
        assert most == 4 * slots
        assert await taken_in(slots, 10.5) == ([], slots), "and no more than that"

    jumping(use)


@pytest.mark.parametrize("pool", ["HANDSHAKES", "HANDSHAKES_OF_ONE"])
def test_a_handshake_that_stops_gives_its_slot_to_one_that_waits(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that send one byte and stop delay an honest one by much less than a handshake may take."""
    monkeypatch.setattr(entrance, pool, 1)
    monkeypatch.setattr(entrance, "SLOW_SECONDS", 0.02)
    monkeypatch.setattr(entrance, "HANDSHAKE_SECONDS", 60.0)
    home = Home(tmp_path / "home")
    ensure_home(home)

    async def use() -> None:
        async with entered(greet, tmp_path / "sock", server_context(home, ["127.0.0.1"])) as tls:
            stopped = [await beyond(tls) for _ in range(10)]
            for _, writer in stopped:
                writer.write(b"\x16")
            assert await is_answered(await beyond(tls, anybody()))
            assert not any(reader.at_eof() for reader, _ in stopped), "nobody was hung up on for it"

    run(use)


def test_the_wait_for_a_slot_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "HANDSHAKES_OF_ONE", 1)
    monkeypatch.setattr(entrance, "SLOW_SECONDS", 60.0)
    monkeypatch.setattr(entrance, "HANDSHAKE_SECONDS", 0.2)
    home = Home(tmp_path / "home")
    ensure_home(home)

    async def use() -> None:
        async with entered(greet, tmp_path / "sock", server_context(home, ["127.0.0.1"])) as tls:
            stopped = [await beyond(tls) for _ in range(200)]  # one after the other they would take 40 s
            for _, writer in stopped:
                writer.write(b"\x16")
            assert all([await is_closed(ends) for ends in stopped])

    run(use)


def test_who_waits_too_long_for_its_turn_is_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "MAX_STRANGERS", 1)
    monkeypatch.setattr(entrance, "HANDSHAKE_SECONDS", 0.2)

    async def use() -> None:
        path = tmp_path / "sock"
        async with entered(greet, path):
            begun = await asyncio.open_unix_connection(path)
            begun[1].write(HELLO[:20])
            following = await asyncio.open_unix_connection(path)
            assert not await is_answered(following)
            begun[1].write(HELLO[20:])
            assert (await begun[0].readuntil(b"\r\n\r\nhi")).startswith(b"HTTP/1.1 200")

    run(use)


def test_whoever_does_not_say_what_is_wanted_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has shown a token before the head of a request is there, nor needs one to go on after an answer."""
    monkeypatch.setattr(entrance, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(entrance, "HANDSHAKE_SECONDS", 0.2)
    monkeypatch.setattr(heads, "SECONDS", 0.2)
    home = Home(tmp_path / "home")
    ensure_home(home)
    trusting = anybody()
    whole = b"POST /v1/jobs HTTP/1.1\r\nHost: poise\r\nContent-Length: 100000\r\n\r\n"

    async def by_bytes(ends: Ends, begun: bytes) -> None:
        ends[1].write(begun)
        talking = asyncio.create_task(talk(ends[1]))
        assert await is_closed(ends)
        talking.cancel()

    async def talk(writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(0.01)
            writer.write(b"x")

    async def use() -> None:
        path = tmp_path / "sock"
        async with entered(greet, path), entered(greet, path, server_context(home, ["127.0.0.1"])) as tls:
            cases = {"nothing": b"", "half a head": whole[:30]}
            for name, begun in cases.items():
                for ends in (await asyncio.open_unix_connection(path), await beyond(tls, trusting)):
                    ends[1].write(begun)
                    assert await is_closed(ends), name
            for begun in (whole[:20], whole):
                await by_bytes(await asyncio.open_unix_connection(path), begun)
            for begun in (b"", b"\x16\x03\x01"):  # a handshake that is not begun, and one that does not go on
                ends = await beyond(tls)
                ends[1].write(begun)
                assert await is_closed(ends)
            assert await is_answered(await beyond(tls, trusting))

    run(use)


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_whoever_takes_nothing_is_hung_up_on(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "SECONDS", 0.2)
    ended = asyncio.Event()

    async def without_end(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        sending = asyncio.create_task(send_on(send))
        while (await receive())["type"] != f"{scope['type']}.disconnect":
            pass
        sending.cancel()
        ended.set()

    async def send_on(send: Any) -> None:
        first = {"type": "http.response.start", "status": 200, "headers": []}
        await send(first if kind == "http" else {"type": "websocket.accept"})
        more = {"type": "http.response.body", "body": bytes(2**16), "more_body": True}
        while True:
            await send(more if kind == "http" else {"type": "websocket.send", "bytes": bytes(2**16)})
            await asyncio.sleep(0)

    async def use() -> None:
        path = tmp_path / "sock"
        async with entered(without_end, path):
            ends = await asyncio.open_unix_connection(path)
            ends[1].write(upgrade("/v1/calls") if kind == "websocket" else HELLO)
            await ended.wait()

    run(use)


def upgrade(path: str) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: poise\r\nAuthorization: Bearer {OWNER}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    ).encode()


def test_one_that_takes_slowly_is_waited_for() -> None:
    class Slow:
        """What waits for one that takes so many bytes between two looks."""

        def __init__(self, takes: int) -> None:
            self.takes, self.waiting, self.looks = takes, 20 * taking.LEAST, 0

        def get_write_buffer_size(self) -> int:
            self.waiting -= self.takes
            return max(0, self.waiting)

        def abort(self) -> None:
            self.looks = -1

    class Loop:
        def __init__(self) -> None:
            self.todo: list[Callable[[], None]] = []

        def call_later(self, seconds: float, call: Callable[[int], None], before: int) -> Any:
            self.todo.append(lambda: call(before))

    for takes, stays in ((taking.LEAST, True), (taking.LEAST - 1, False)):
        loop, slow = Loop(), Slow(takes)
        watched = Taking()
        watched.loop, watched.transport = cast(Any, loop), cast(Any, slow)
        watched.pause_writing()
        for _ in range(10):
            if loop.todo:
                loop.todo.pop()()
        assert (slow.looks == 0) is stays


@pytest.mark.parametrize("beyond_here", [False, True])
def test_a_frame_that_is_too_large_is_refused_by_its_length(beyond_here: bool, tmp_path: Path) -> None:
    """Of a caller, or of a worker: none of it is read, and it takes no memory."""
    path, home = tmp_path / "sock", Home(tmp_path / "home")
    ensure_home(home)

    async def use() -> None:
        context = server_context(home, ["127.0.0.1"]) if beyond_here else None
        async with open_door(tmp_path) as door, entered(door.app, path, context) as at:
            ends = await (beyond(at, anybody()) if beyond_here else asyncio.open_unix_connection(path))
            ends[1].write(upgrade("/v1/calls"))
            assert b"101 Switching" in await ends[0].readuntil(b"\r\n\r\n")
            ends[1].write(bytes([0x82, 0x80 | 127]) + struct.pack("!Q", MAX_FRAME + 1) + bytes(4))
            ended = await ends[0].read()
            assert ended[0] == 0x88
            assert struct.unpack("!H", ended[2:4])[0] == 1009

    run(use)
