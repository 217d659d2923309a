"""One connection of a client, bounded in what it may send before it is answered, and in how slowly.

uvicorn's own protocol keeps as many headers as are sent, and waits for the rest of a request as long as it takes. Here
a request that hardly gets on ends its connection, and so do headers that are too many or too large: with 431 while
nothing else is being answered, else without a word. So neither half-open clients nor those that send a byte at a time
hold more than a socket, or for long.
"""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from poise.gateway.asgi import ABORT
from poise.gateway.openai import error_body

MAX_HEADERS = 100
MAX_HEADER_BYTES = 64 * 1024
"""Of all headers and the path of one request."""


MOVED = 4096
"""Bytes that must come between two looks at a request that is on its way."""


class Connection(HttpToolsProtocol):
    """Looked at now and then (`look`): a timer for each request would cost more than the request."""

    def connection_made(self, transport: Any) -> None:
        self._header_bytes = 0
        self._in_headers = False
        self._begun = False  # a request began in what came last: of that, some may be another's
        self._got = 0
        self._expect(True)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._got += len(data)
        self._begun = False
        super().data_received(data)
        if self._in_headers and not self._begun and not self.transport.is_closing():
            self._has_room(len(data))  # the parser keeps what is not a whole header yet
        if self.transport.is_closing():
            self._expect(False)

    def on_message_begin(self) -> None:
        self._header_bytes = 0
        self._in_headers = self._begun = True
        self._expect(True)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._has_room(len(url)):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_room(len(name) + len(value)) and len(self.headers) < MAX_HEADERS:
            super().on_header(name, value)
        else:
            self._refuse_headers()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        if self.transport.is_closing():
            return
        self.scope["extensions"] = {ABORT: {"now": self.transport.abort}}
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._expect(False)
        if not self.transport.is_closing():
            super().on_message_complete()

    def _has_room(self, more: int) -> bool:
        self._header_bytes += more
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse_headers()
        return not self.transport.is_closing()

    def _refuse_headers(self) -> None:
        if self.transport.is_closing():
            return
        if not self._is_answering():
            message = f"A request has at most {MAX_HEADERS} headers, of {MAX_HEADER_BYTES} bytes together"
            body = error_body(431, message, "headers_too_large")
            head = f"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(f"{head}content-type: application/json\r\nconnection: close\r\n\r\n".encode() + body)
        self._in_headers = False
        self.transport.close()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect(self, more: bool) -> None:
        """Whether more of a request is to come; from now on."""
        self._expects = more
        self._had = -1  # bytes, at the last look since then

    def look(self) -> None:
        """End it if a request that is on its way has hardly got on since the last look."""
        if not self._expects or self.transport is None:
            return
        if self.flow.read_paused:  # it is we who take no more of it
            self._had = -1
            return
        if self._had >= 0 and self._got - self._had < MOVED:
            self.transport.abort()
        self._had = self._got
