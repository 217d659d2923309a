"""The HTTP server: aiohttp in front of an ASGI application, with limits on the resources of each client.

aiohttp does parsing, keep-alive, pipelining, chunks and compressed bodies. Three features are added here, because
servers rarely have them:

* A client that sends its request or reads its answer too slowly is dropped. So half-open clients, and clients that send
  one byte at a time, hold only a socket, and not for long.
* A client that closes only its sending side (`nc -N`, `shutdown(SHUT_WR)`) gets its answer. A disconnected client sends
  the same FIN. The server distinguishes them by an interim answer (100 Continue), which HTTP/1.1 clients ignore: the
  system of a disconnected client answers it with a reset.
* A request with a transfer coding besides `chunked` is refused: aiohttp would pass its body on undecoded.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable, MutableMapping
from email.utils import formatdate
from functools import lru_cache
from http.client import responses
from typing import Any, cast

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from multidict import CIMultiDict, CIMultiDictProxy

from poise_serve.asgi import ABORT, CAME, GONE, App, Scope, answer
from poise_serve.refusals import problem

LOOK_EVERY = 5.0
"""Interval in seconds at which connections are checked …"""

MOVED = 4096
"""… and minimum number of bytes of a request or an answer to transfer in it."""

LOOK_AT_END = 0.02
"""Interval in seconds at which a stopping gateway checks whether all clients have their answers."""

IDLE = 75.0
"""Seconds after which a connection without a request is closed."""

LINGER = 10.0
"""Maximum seconds to read and drop the rest of a refused request before closing. A compressed body is not read."""

HANDSHAKE = 10.0
"""Timeout in seconds of the TLS handshake …"""

FAREWELL = 1.0
"""… and of the TLS shutdown, after which the connection is closed without it."""

MAX_CONNECTIONS = 10_000
MAX_HEADERS = 100
MAX_HEADER_BYTES = 16 * 1024
"""Maximum size of one header, and of the path of a request."""

FIRST_PROBE = 0.05
"""Seconds until the first check of a half-closed client; each further interval is twice the previous one."""

DECODED = ("", "identity", "gzip", "deflate")
"""Supported content codings of bodies. Others need packages that may be missing."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(web.RequestHandler):
    """One connection, checked periodically (`look`), because a timer per request would cost more than the request."""

    def __init__(self, server: "Server") -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=logging.getLogger("poise_serve.access"),  # disabled by default
            keepalive_timeout=IDLE,
            lingering_time=LINGER,
            max_headers=MAX_HEADERS,
            max_field_size=MAX_HEADER_BYTES,
            max_line_size=MAX_HEADER_BYTES,
        )
        self._server = server
        self.gone = asyncio.Event()
        self.is_reading = False
        """Whether the server waits for more of a request's body."""
        self.is_begun = False
        """Whether part of the current answer has been sent."""
        self._answering: web.BaseRequest | None = None
        self._then: Callable[[], object] = _nothing
        self.has_ended = False
        """Whether the client has closed its sending side."""
        self._got = self._came = 0
        self._at_rest = -1  # bytes received when it was last idle; -1: no request yet
        self._had = -1  # bytes received at the last check of a request in transfer; -1: not checked yet
        self._unsent = self._taken = 0  # at the last check
        self._written = 0  # bytes of completed answers

    # --- received data -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._server.open += 1
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._got += len(data)
        self._came = time.monotonic_ns()
        super().data_received(data)

    def eof_received(self) -> bool | None:  # type: ignore[override]  # aiohttp closes even with pending requests
        """Return whether the connection stays open to answer complete requests received before the end of input."""
        if self.has_ended:
            return True
        transport, request = self.transport, self._answering
        if transport is None or transport.get_extra_info("ssl_object") is not None:
            return None  # TLS does not support half-close
        if self.is_begun or (request is None and self._got == self._at_rest):
            return None  # the answer has begun, or no request is pending
        if request is not None and not request.content.is_eof():
            return None  # the rest of the request body will not arrive
        self.has_ended = True
        if request is not None:
            self._ask_for_life(request)
        else:
            asyncio.get_running_loop().call_later(FIRST_PROBE, self._close_if_idle)
        return True

    def _ask_for_life(self, request: web.BaseRequest) -> None:
        if request.version >= (1, 1):
            self.write(CONTINUE)
            self._probe(FIRST_PROBE)

    def _probe(self, pause: float) -> None:
        """Abort the connection if the system of a half-closed client has reset it."""
        transport = self.transport
        if transport is None:
            return
        if transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            transport.abort()
        else:
            asyncio.get_running_loop().call_later(pause, self._probe, 2 * pause)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._server.open -= 1
        self.gone.set()
        self._then()
        super().connection_lost(exc)

    def when_came(self) -> int:
        """Return when the latest data came, in nanoseconds."""
        return self._came

    def when_gone(self, then: Callable[[], object]) -> None:
        """Call `then` once, if the client disconnects before its request is answered."""
        self._then = then
        if self.gone.is_set():
            then()

    # --- answers -----------------------------------------------------------------------------------------------------

    def begin(self, request: web.BaseRequest) -> None:
        """Mark the request as being answered …"""
        self._answering, self._had = request, -1
        # do not linger on compressed bodies: aiohttp would decode them in one go, and they can be very large
        self._lingering_time = 0.0 if hdrs.CONTENT_ENCODING in request.headers else LINGER
        if self.has_ended:
            self._ask_for_life(request)

    def rest(self) -> None:
        """… until now."""
        if self._answering is not None:
            self._written += self._answering.writer.output_size
        self._answering, self.is_begun = None, False
        self._then, self._at_rest, self._had = _nothing, self._got, -1
        if self.has_ended:  # delayed, because more requests may have arrived before the end of input
            asyncio.get_running_loop().call_later(FIRST_PROBE, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._answering is None and self.transport is not None:
            self.transport.close()

    @property
    def is_ending(self) -> bool:
        return self._server.is_ending

    def write(self, data: bytes) -> None:
        """Write bytes that are not part of an answer."""
        if self.transport is not None:
            self.transport.write(data)

    def abort(self) -> None:
        """Close the connection at once, and discard unsent data."""
        if self.transport is not None:
            self.transport.abort()

    def refuse_rest(self, request: web.BaseRequest) -> None:
        """Close the sending side after an answer to an incomplete body. An uncompressed body is then read for a while,
        because a client that is still sending would not see its answer otherwise.
        """
        if not request.content.is_eof() and self.transport is not None and self.transport.can_write_eof():
            self.transport.write_eof()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Make the answer to an unreadable request or an internal error, in the common form of all errors."""
        if status == 500 and not isinstance(exc, ConnectionError):
            self.log_exception("%s %s", request.method, request.path[:200], exc_info=exc)
        if request.writer.output_size:
            raise ConnectionError("a part of the answer is sent already")
        if isinstance(exc, LineTooLong) or str(message).startswith("Too many headers"):
            status = 431
            message = f"A request has at most {MAX_HEADERS} headers, each of {MAX_HEADER_BYTES} bytes at most"
        told = message.partition(":\n")[0].strip() if message else "the gateway failed at this request"
        answer = web.Response(status=status, body=problem(request.path, status, told), headers=_JSON)
        answer.force_close()
        return answer

    # --- slow clients ------------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether an answer is pending or not fully sent."""
        return self._answering is not None or (self.transport is not None and self._waits_to_be_sent() > 0)

    def _waits_to_be_sent(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def look(self) -> None:
        """Drop the client if its request or answer has hardly moved since the last check."""
        if self.transport is None:
            return
        is_slow = self._expects() and self._had >= 0 and self._got - self._had < MOVED
        self._had = self._got if self._expects() else -1
        unsent = self._waits_to_be_sent()
        taken = self._written + (self._answering.writer.output_size if self._answering is not None else 0) - unsent
        is_stuck = unsent > 0 and taken - self._taken < min(MOVED, self._unsent)
        self._unsent, self._taken = unsent, taken
        if is_slow or is_stuck:
            self.transport.abort()

    def _expects(self) -> bool:
        """Whether more data is expected: of a body, or of a request that has begun or is the first."""
        return self.is_reading if self._answering is not None else self._got != self._at_rest


class Exchange:
    """One ASGI exchange: the request (`scope`, `receive`) and the response (`send`)."""

    def __init__(self, request: web.BaseRequest, connection: Connection) -> None:
        self._request = request
        self._connection = connection
        self._is_whole = False
        self._start: MutableMapping[str, Any] = {}
        self.answer: web.StreamResponse | None = None

    def scope(self) -> Scope:
        request, connection = self._request, self._connection
        headers = [(name.lower(), value) for name, value in request.raw_headers]
        if hdrs.CONTENT_ENCODING in request.headers:  # aiohttp decodes the body
            headers = [(name, value) for name, value in headers if name not in _OF_CODED]
        return {
            "type": "http",
            "method": request.method,
            "path": request.path,
            "query_string": request.rel_url.raw_query_string.encode(),
            "headers": headers,
            "client": request.transport.get_extra_info("peername") if request.transport is not None else None,
            "extensions": {
                ABORT: {"now": connection.abort},
                GONE: {"then": connection.when_gone},
                CAME: {"at": connection.when_came},
            },
        }

    async def receive(self) -> MutableMapping[str, Any]:
        connection, content = self._connection, self._request.content
        if self._is_whole:
            await connection.gone.wait()
            return {"type": "http.disconnect"}
        if not content.is_eof():
            if connection.has_ended:
                return {"type": "http.disconnect"}
            if not content.total_bytes and _waits(self._request):
                connection.write(CONTINUE)
        connection.is_reading = True
        try:
            chunk = await content.readany()
        except ConnectionError:
            return {"type": "http.disconnect"}
        finally:
            connection.is_reading = False
        self._is_whole = content.at_eof()
        if hdrs.CONTENT_ENCODING in self._request.headers:
            await asyncio.sleep(0)  # the next part may be there, to be decoded: `readany` lets nobody else have a turn
        return {"type": "http.request", "body": chunk, "more_body": not self._is_whole}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send a message; do nothing if the client has gone, which `receive` reports."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        body, is_last = message.get("body", b""), not message.get("more_body", False)
        try:
            if self.answer is not None or not is_last:
                await self._write_part(body)
            else:
                await self._write_whole(body)
            if is_last:
                await cast(web.StreamResponse, self.answer).write_eof()
                self._connection.refuse_rest(self._request)
        except ConnectionError:
            return

    async def _write_part(self, body: bytes) -> None:
        if self.answer is None:
            headers, is_last = self._begin()
            self.answer = made = web.StreamResponse(status=self._start["status"], headers=headers)
            # in HTTP/1.0, only the close marks the end of the body
            if is_last or (self._request.version < (1, 1) and hdrs.CONTENT_LENGTH not in headers):
                made.force_close()
            await made.prepare(self._request)
        if body:
            await self.answer.write(body)

    async def _write_whole(self, body: bytes) -> None:
        """Write an answer in one piece. aiohttp's `Response` would take a tenth of the time of a small request."""
        request, status = self._request, self._start["status"]
        headers, is_last = self._begin()
        headers.popall(hdrs.CONTENT_LENGTH, None)
        is_head = request.method == hdrs.METH_HEAD
        if status not in _WITHOUT_BODY and (body or not is_head):
            headers[hdrs.CONTENT_LENGTH] = str(len(body))
        headers[hdrs.DATE] = _date(int(time.time()))
        is_old = request.version < (1, 1)
        keeps = not is_last and request.keep_alive
        if keeps == is_old:
            headers[hdrs.CONNECTION] = "keep-alive" if keeps else "close"
        self.answer = Written(keeps)
        writer = request.writer
        await writer.write_headers(f"HTTP/1.{0 if is_old else 1} {status} {responses.get(status, '')}", headers)
        await writer.write_eof(b"" if is_head or status in _WITHOUT_BODY else body)

    def _begin(self) -> tuple[CIMultiDict[str], bool]:
        """Begin an answer. Return its headers, and whether the connection is closed after it."""
        self._connection.is_begun = True
        headers = [(name.decode("latin-1"), _text(value)) for name, value in self._start["headers"]]
        made = CIMultiDict(headers)
        made.setdefault(hdrs.SERVER, "poise")
        return made, self._connection.is_ending or not self._request.content.is_eof()


class Written(web.StreamResponse):
    """Tell aiohttp that the answer has been written, and whether the connection is kept."""

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps

    @property
    def keep_alive(self) -> bool:
        return self._keeps

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing."""


def _text(value: bytes) -> str:
    """Return the value of a header, which aiohttp writes as UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


@lru_cache(maxsize=1)
def _date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


class Server(web.Server):
    """Serves an application on one socket."""

    def __init__(self, app: App, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self._answer)
        self._app = app
        self._tls = tls
        self._listening: asyncio.Server | None = None
        self._looking: asyncio.Task[None] | None = None
        self.open = 0
        """Number of open connections; faster than aiohttp's `connections`, which builds a list."""
        self.is_ending = False
        """Whether each connection is closed after its next answer."""

    def __call__(self) -> Connection:
        return Connection(self)

    @property
    def clients(self) -> list[Connection]:
        return cast(list[Connection], self.connections)

    async def start(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._looking = loop.create_task(self._look())
        if listening.family == socket.AF_UNIX:
            self._listening = await loop.create_unix_server(self, sock=listening)
            return
        tls = self._tls
        self._listening = await loop.create_server(
            self,
            sock=listening,
            ssl=tls,
            ssl_handshake_timeout=HANDSHAKE if tls is not None else None,
            ssl_shutdown_timeout=FAREWELL if tls is not None else None,
        )

    async def stop(self) -> None:
        """Stop listening, and close all connections within a second."""
        if self._listening is not None:
            self._listening.close()
        if self._looking is not None:
            self._looking.cancel()
        self.pre_shutdown()
        await self.shutdown(1.0)

    async def taken(self) -> None:
        """Wait until all answers are passed to the operating system."""
        while any(one.owes for one in self.clients):  # noqa: ASYNC110 — there is no event
            await asyncio.sleep(LOOK_AT_END)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for one in self.clients:
                one.look()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast(Connection, request.protocol)
        exchange = Exchange(request, connection)
        connection.begin(request)
        try:
            if (refused := self._refused(request)) is not None:
                await _refuse(exchange, request, *refused)
            else:
                await self._app(exchange.scope(), exchange.receive, exchange.send)
        except (web.RequestPayloadError, HttpProcessingError) as error:
            if exchange.answer is not None:
                raise ConnectionError("the body cannot be read, and its answer has begun") from error
            await _refuse(exchange, request, 400, f"the body cannot be read: {error}")
        finally:
            connection.rest()
        if exchange.answer is None:
            connection.abort()
            raise ConnectionError("nobody waits for an answer")
        return exchange.answer

    def _refused(self, request: web.BaseRequest) -> tuple[int, str] | None:
        """Return the status and the reason if the server must refuse the request itself."""
        if self.open > MAX_CONNECTIONS:
            return 503, f"there are {MAX_CONNECTIONS} connections already"
        headers = request.headers
        if hdrs.TRANSFER_ENCODING not in headers and hdrs.CONTENT_ENCODING not in headers:
            return None
        coded = _said(headers, hdrs.TRANSFER_ENCODING)
        if coded not in ("", "chunked"):
            return 501, f"Transfer-Encoding is `chunked` or is not there, not `{coded[:80]}`; use Content-Encoding"
        coded = _said(headers, hdrs.CONTENT_ENCODING)
        if coded not in DECODED:
            return 415, f"Content-Encoding is `gzip`, `deflate` or is not there, not `{coded[:80]}`"
        return None


async def _refuse(exchange: Exchange, request: web.BaseRequest, status: int, message: str) -> None:
    await answer(
        exchange.send, status, problem(request.path, status, message), [(b"content-type", b"application/json")]
    )


def _said(headers: CIMultiDictProxy[str], name: str) -> str:
    return ",".join(headers.getall(name, ())).strip().lower()


def _waits(request: web.BaseRequest) -> bool:
    """Whether the client waits for 100 Continue before sending the body."""
    return request.version >= (1, 1) and request.headers.get(hdrs.EXPECT, "").lower() == "100-continue"


def _nothing() -> None:
    """Do nothing: the client has gone and waits for no answer."""


_WITHOUT_BODY = frozenset({*range(100, 200), 204, 304})
_OF_CODED = (b"content-encoding", b"content-length")
_JSON = {hdrs.CONTENT_TYPE: "application/json"}

__all__ = ["Connection", "Server"]
