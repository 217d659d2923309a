"""The core of a group of gateways with own models: the process that has the services, and answers the relayed requests.

It replaces `poise_serve.http` there. The application is the same, with keys, limits, batches, caches and changes. So
these apply to the requests of all gateways together. The requests of a gateway that is killed are cancelled. If the
core is killed, gateways send their requests to the next one (`poise_serve.relay`).
"""

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, cast

import msgspec

from poise.drivers import sockets
from poise_serve.asgi import ABORT, CAME, GONE, App, Scope, answer
from poise_serve.refusals import problem
from poise_serve.relayed import (
    WINDOW,
    Abort,
    Data,
    FromCore,
    Headers,
    More,
    Open,
    Part,
    Ready,
    Taken,
    ToCore,
    decode_to_core,
)
from poise_serve.wire import Frames, framed

LOOK_AT_END = 0.02
"""Interval in seconds at which a stopping core checks whether gateways have all answers."""

_log = logging.getLogger(__name__)


class Core:
    """Serves an application to the gateways that connect to a socket."""

    def __init__(self, app: App, path: Path) -> None:
        self.app = app
        self.is_ending = False
        """As of `http.Server`; gateways close the connections of clients themselves."""
        self.is_over = False
        """Whether it has stopped."""
        self.links: set[_Link] = set()
        self._path = path
        self._listening: asyncio.Server | None = None

    async def start(self, _: socket.socket) -> None:
        """Listen for gateways. The socket only reserves their address."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_unix_server(lambda: _Link(self), sock=sockets.listen(self._path))

    async def stop(self) -> None:
        self.is_over = True
        if self._listening is not None:
            self._listening.close()
            self._path.unlink(missing_ok=True)
        for link in list(self.links):
            link.close()

    async def taken(self) -> None:
        """Wait until gateways have all answers."""
        while any(link.owes for link in self.links):  # noqa: ASYNC110 — there is no event
            await asyncio.sleep(LOOK_AT_END)


class _Link(asyncio.Protocol):
    """The connection of one gateway."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._frames = Frames()
        self._open: dict[int, _Exchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._core.links.add(self)
        if self._core.is_over:
            self.close()
        else:
            self.send(Ready())

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.add(data):
                self._take(decode_to_core.decode(frame))
        except msgspec.DecodeError:
            self.close()

    def _take(self, message: ToCore) -> None:
        if isinstance(message, Open):
            exchange = self._open[message.number] = _Exchange(message, self.send)
            task = asyncio.get_running_loop().create_task(self._answer(exchange))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        known = self._open.get(message.number)
        if known is None:
            return
        if isinstance(message, Data):
            known.add(message)
        elif isinstance(message, Taken):
            known.taken()
        else:
            known.leave()

    async def _answer(self, exchange: "_Exchange") -> None:
        try:
            await self._core.app(exchange.scope, exchange.receive, exchange.send)
        except Exception:
            path = exchange.scope["path"]
            _log.exception("%s %s", exchange.scope["method"], path[:200])
            if not exchange.has_begun:
                body = problem(path, 500, "the gateway failed at this request")
                await answer(exchange.send, 500, body, [(b"content-type", b"application/json")])
        finally:
            del self._open[exchange.number]
            if not exchange.is_answered and not exchange.is_gone:
                self.send(Abort(exchange.number))

    def connection_lost(self, _: Exception | None) -> None:
        self._core.links.discard(self)
        for exchange in list(self._open.values()):
            exchange.leave()

    @property
    def owes(self) -> bool:
        """Whether an answer is pending or not fully sent."""
        return bool(self._open) or (self._transport is not None and self._transport.get_write_buffer_size() > 0)

    def send(self, message: FromCore) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Exchange:
    """One ASGI exchange."""

    def __init__(self, opened: Open, send: Callable[[FromCore], None]) -> None:
        self.number = opened.number
        self.has_begun = self.is_answered = self.is_gone = False
        self._came = opened.came
        self.scope: Scope = {
            "type": "http",
            "method": opened.method,
            "path": opened.path,
            "query_string": opened.query,
            "headers": opened.headers,
            "client": opened.client,
            "extensions": {
                ABORT: {"now": self._abort},
                GONE: {"then": self._when_gone},
                CAME: {"at": lambda: self._came},
            },
        }
        self._send = send
        self._parts = deque([Data(opened.number, opened.body, opened.is_whole)])
        self._is_whole = False
        self._some = asyncio.Event()
        self._then: Callable[[], object] = lambda: None
        self._head: tuple[int, Headers] = (0, [])
        self._unconfirmed = 0

    # --- the gateway's messages --------------------------------------------------------------------------------------

    def add(self, data: Data) -> None:
        self._came = time.monotonic_ns()
        self._parts.append(data)
        self._some.set()

    def taken(self) -> None:
        self._unconfirmed -= 1
        self._some.set()

    def leave(self) -> None:
        """The client has disconnected."""
        self.is_gone = True
        self._some.set()
        self._then()

    # --- the application ---------------------------------------------------------------------------------------------

    async def receive(self) -> MutableMapping[str, Any]:
        if not self._parts and not self._is_whole and not self.is_gone:
            self._send(More(self.number))
        while not self._parts and not self.is_gone:
            await self._changed()
        if self.is_gone:
            return {"type": "http.disconnect"}
        data = self._parts.popleft()
        self._is_whole = data.is_whole
        return {"type": "http.request", "body": data.body, "more_body": not data.is_whole}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send a message; do nothing if the client has disconnected, which `receive` reports."""
        if message["type"] == "http.response.start":
            self._head = (message["status"], message["headers"])
            return
        is_last = not message.get("more_body", False)
        while self._unconfirmed >= WINDOW and not self.is_gone:
            await self._changed()
        if self.is_gone or self.is_answered:
            return
        self._unconfirmed += 1
        self.has_begun, self.is_answered = True, is_last
        self._send(Part(self.number, bytes(message.get("body", b"")), is_last, *self._head))
        self._head = (0, [])

    async def _changed(self) -> None:
        self._some.clear()
        await self._some.wait()

    def _when_gone(self, then: Callable[[], object]) -> None:
        self._then = then
        if self.is_gone:
            then()

    def _abort(self) -> None:
        if not self.is_answered:
            self.is_answered = True
            self._send(Abort(self.number))


__all__ = ["Core"]
