"""HTTP as the control plane is asked by it: whoever connects has so long to say what is wanted, and so many bytes.

Nobody has shown a token by then, and each connection holds a descriptor and what came over it. What is no longer asked
for, since it was answered before it had come, is bounded in the same way.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from poise.control.guard import ErrorBody, Scope, TooLargeError
from poise.control.lines import Lines
from poise.drivers.taking import Taking

SECONDS = 10.0
"""Within so long a request has begun and its headers are there, and what is left of an answered one has come."""

MAX_HEAD = 64 * 1024
MAX_LEFT = 256 * 2**20


class Heads(Taking, HttpToolsProtocol):
    """One connection. `has_asked` is called once the head of a request is there, or the connection is lost."""

    def __init__(self, has_asked: Callable[[], None], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._has_asked = has_asked
        self._late: asyncio.TimerHandle | None = None
        self._in_head = False
        self._room = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_asked()
        self._has_come()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._late is None:
            return
        self._room -= len(data)
        if self._room < 0:
            if self._in_head:
                self._refuse()
            self._has_come()
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:
            self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # what comes behind a body is read by nobody
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._has_asked()
        self._has_come()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._has_come()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """The inherited way writes the request out again, for another parser."""
        self.connections.discard(self)
        line = Lines(self.config, self.server_state, self.app_state)
        self.transport.set_protocol(line)
        line.open(self.transport, cast(Scope, self.scope), self.url)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._expect(MAX_LEFT)

    def _expect_head(self) -> None:
        self._in_head = True
        self._expect(MAX_HEAD)

    def _expect(self, room: int) -> None:
        if self._late is not None:
            self._late.cancel()
        self._room = room
        self._late = self.loop.call_later(SECONDS, self.transport.abort)

    def _has_come(self) -> None:
        self._in_head = False
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse(self) -> None:
        """Unless an answer to what came before is on its way."""
        if self.cycle is None or self.cycle.response_complete:
            error = TooLargeError("the headers are too large", need=f"at most {MAX_HEAD} bytes", hint="fewer headers")
            body = msgspec.json.encode(ErrorBody(error.record))
            head = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\n"
            self.transport.write(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
