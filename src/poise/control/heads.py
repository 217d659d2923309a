"""HTTP/1.1 for the control plane, with limits on the time and the bytes until a request is complete.

A client without a token costs a descriptor and the bytes that it sends. The same limits apply to the rest of a request
that was answered before its body was complete.
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
"""Time limit for the head of a request, and for the rest of a request that was already answered."""

MAX_HEAD = 64 * 1024
MAX_LEFT = 256 * 2**20


class Heads(Taking, HttpToolsProtocol):
    """One connection. `has_asked` is called when the head of a request is complete, or the connection is lost."""

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
        if self._in_head:  # ignore trailers after a body
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._has_asked()
        self._has_come()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._has_come()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """Hand over to `Lines`; uvicorn would serialize the request again for another parser."""
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
        """Answer 431, unless an answer to an earlier request is in progress."""
        if self.cycle is None or self.cycle.response_complete:
            error = TooLargeError("the headers are too large", need=f"at most {MAX_HEAD} bytes", hint="fewer headers")
            body = msgspec.json.encode(ErrorBody(error.record))
            head = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\n"
            self.transport.write(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
