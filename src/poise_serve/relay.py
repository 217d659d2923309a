"""A gateway of a group with own models: it reads requests, and relays them to the core (`poise_serve.core`).

Gateways do the work that takes most of the CPU time of a small request: HTTP, TLS, compressed bodies, and slow clients.
They share a port. The core batches the requests of all gateways.

If the core is killed, another one takes over, and gets all requests whose answer has not begun. A model may therefore
get a request twice. A request with which two cores were lost gets 502: it may be the cause. Changes of the
configuration are not sent again: their connections are closed. After `BACK_WITHIN` without a core, requests get 503.
"""

import asyncio
import secrets
import signal
import socket
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import msgspec

from poise.drivers import sockets
from poise.drivers.gateways import ADMIN
from poise_serve.asgi import ABORT, GONE, Receive, Scope, Send, came_at
from poise_serve.http import Server
from poise_serve.parent import Watched, Watchers, listen_to_signals, note_ending
from poise_serve.refusals import problem
from poise_serve.relayed import (
    Abort,
    Data,
    Gone,
    Headers,
    More,
    Open,
    Part,
    Ready,
    Taken,
    ToCore,
    decode_from_core,
)
from poise_serve.serve import DRAIN_SECONDS, watch_again
from poise_serve.wire import Frames, framed

DIAL_EVERY = 0.05
"""Interval in seconds at which a gateway tries to connect to the core."""

MOST_SENT = 2
"""Maximum number of cores that get one request."""

BACK_WITHIN = 30.0
"""Seconds without a core after which requests are refused."""


class Relay:
    """The ASGI application."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[int, _Request] = {}
        self._number = secrets.randbits(32)
        self._link: _Link | None = None
        """The latest connection to a core …"""
        self._core: _Link | None = None
        """… and the same, while that core takes requests."""
        self.is_ending = False
        """Whether it refuses requests if there is no core."""
        self._is_away = False
        self._dialling: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._dialling = asyncio.create_task(self._dial())

    def stop(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
        if self._link is not None:
            self._link.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        self._number += 1
        client = scope["client"]
        opened = Open(
            self._number,
            scope["method"],
            scope["path"],
            scope["query_string"],
            scope["headers"],
            (str(client[0]), int(client[1])) if client else None,
            message.get("body", b""),
            not message.get("more_body", False),
            came_at(scope),
        )
        request = self._open[opened.number] = _Request(opened, receive)
        scope["extensions"][GONE]["then"](partial(self._gone, request))
        if self._core is None and (self._is_away or self.is_ending):
            request.refuse()
        else:
            self._open_at_core(request)
        try:
            await self._pass_on(request, scope, send)
        finally:
            del self._open[opened.number]
            if request.feeding is not None:
                request.feeding.cancel()

    async def _pass_on(self, request: "_Request", scope: Scope, send: Send) -> None:
        """Send the parts of the answer to the client."""
        while (part := await request.next()) is not None:
            if isinstance(part, Abort):
                scope["extensions"][ABORT]["now"]()
                return
            if part.status:
                await send({"type": "http.response.start", "status": part.status, "headers": part.headers})
            await send({"type": "http.response.body", "body": part.body, "more_body": not part.is_last})
            if part.is_last:
                return
            self._write(Taken(request.number))

    def _gone(self, request: "_Request") -> None:
        request.is_over = True
        request.wake()
        self._write(Gone(request.number))

    # --- the core ----------------------------------------------------------------------------------------------------

    async def _dial(self) -> None:
        """Connect to the core. Refuse all requests while there is none for too long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + BACK_WITHIN
        while True:
            try:
                channel = sockets.connect(self._path, None)
                break
            except OSError:
                if loop.time() > until and not self._is_away:
                    self._is_away = True
                    for request in list(self._open.values()):
                        request.refuse()
            await asyncio.sleep(DIAL_EVERY)
        channel.setblocking(False)
        link = self._link = _Link(self)
        await loop.create_unix_connection(lambda: link, sock=channel)

    def ready(self, core: "_Link") -> None:
        """The core takes requests."""
        self._core, self._is_away = core, False
        for request in list(self._open.values()):
            if not request.is_over:
                self._open_at_core(request)

    def lost(self) -> None:
        """The core has disconnected: it was killed, or it is stopping."""
        self._core = None
        for request in list(self._open.values()):
            if not request.may_be_repeated:
                request.put(Abort(request.number))
            elif request.sent >= MOST_SENT:
                request.end(502, "two processes with the models were lost with this request", [])
            elif self.is_ending:
                request.refuse()
        self.start()

    def heard(self, message: More | Part | Abort) -> None:
        request = self._open.get(message.number)
        if request is None or request.is_over:
            return
        if isinstance(message, More):
            request.feeding = asyncio.create_task(self._feed(request))
        else:
            request.put(message)

    async def _feed(self, request: "_Request") -> None:
        """Send the next part of a body."""
        request.is_split = True
        message = await request.receive()
        if message["type"] == "http.request":
            self._write(Data(request.number, message.get("body", b""), not message.get("more_body", False)))
        else:
            self._gone(request)

    def _open_at_core(self, request: "_Request") -> None:
        if self._core is not None:
            request.sent += 1
            self._write(request.opened)

    def _write(self, message: ToCore) -> None:
        if self._core is not None:
            self._core.send(message)


class _Request:
    """A request, and the parts of its answer."""

    def __init__(self, opened: Open, receive: Receive) -> None:
        self.opened, self.receive = opened, receive
        self.number = opened.number
        self.feeding: asyncio.Task[None] | None = None
        self.is_split = not opened.is_whole
        """Whether parts of its body were sent, and are not kept."""
        self.is_over = False
        """Whether its client has disconnected."""
        self.sent = 0
        """Number of cores that got it."""
        self._has_begun = False
        self._parts: deque[Part | Abort] = deque()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def may_be_repeated(self) -> bool:
        """Whether another core may get it."""
        return not self._has_begun and not self.is_split and not self.opened.path.startswith(ADMIN)

    async def next(self) -> Part | Abort | None:
        """Wait for the next part of the answer; None if the client has disconnected."""
        while not self._parts and not self.is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return None if self.is_over else self._parts.popleft()

    def put(self, part: Part | Abort) -> None:
        self._has_begun = True
        self._parts.append(part)
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def refuse(self) -> None:
        """Answer that there is no core."""
        self.end(503, "the process that has the models is not running; retry later", [(b"retry-after", b"5")])

    def end(self, status: int, why: str, headers: Headers) -> None:
        """Answer with an error."""
        body = problem(self.opened.path, status, why)
        self.put(Part(self.number, body, True, status, [(b"content-type", b"application/json"), *headers]))


class _Link(asyncio.Protocol):
    """The connection to the core."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.add(data):
                message = decode_from_core.decode(frame)
                if isinstance(message, Ready):
                    self._relay.ready(self)
                else:
                    self._relay.heard(message)
        except msgspec.DecodeError:
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        if not self._is_closed:
            self._relay.lost()

    def send(self, message: ToCore) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(message))

    def close(self) -> None:
        self._is_closed = True
        if self._transport is not None:
            self._transport.close()


async def relay(
    listening: socket.socket,
    path: Path,
    record: Path,
    watched: Watched,
    lock: int,
    say: Callable[[str], None],
    tls: ssl.SSLContext | None = None,
) -> None:
    """Relay requests to the core at `path` until SIGTERM or SIGINT, and then until they are answered. `record`: the
    file of the gateway. The other parameters are those of `serve`.
    """
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    listen_to_signals()
    watchers = Watchers(watched, listening, lock, record)
    loop.add_reader(watchers.gone, watch_again, watchers, stop, say)
    relaying = Relay(path)
    relaying.start()
    server = Server(relaying, tls)
    await server.start(listening)
    await stop.wait()
    note_ending(record)
    server.is_ending = relaying.is_ending = True
    draining, hurried = (asyncio.create_task(one) for one in (server.taken(), hurry.wait()))
    await asyncio.wait([draining, hurried], timeout=DRAIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, hurried):
        task.cancel()
    await server.stop()
    relaying.stop()
    loop.remove_reader(watchers.gone)


__all__ = ["Relay", "relay"]
