"""The control plane's WebSocket server. It refuses a frame above the size limit from its header, before reading it, and
disconnects a client that does not read.

It implements the server's part of RFC 6455 with the interface of ASGI. Thousands of nodes reconnect at once after an
outage, and each idle node sends a message every ten seconds, so connections and frames must be cheap: `Heads` parses
the request, a frame is read in place, and reading pauses only while a handler is behind.
"""

import asyncio
import base64
import binascii
import hashlib
import logging
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.server import ServerState
from websockets.exceptions import InvalidHeader, NegotiationError, PayloadTooBig, ProtocolError
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import Close, Frame, Opcode
from websockets.headers import build_extension, parse_extension

from poise.control.guard import App, Scope
from poise.drivers.taking import Taking
from poise.model.calls import MAX_FRAME
from poise.model.messages import MAX_NODE_FRAME

try:
    from websockets.speedups import apply_mask
except ImportError:  # if the C extension was not compiled
    from websockets.utils import apply_mask

LARGER = {"/v1/channel": MAX_NODE_FRAME}
"""Maximum bytes of a message by path, if it is not `MAX_FRAME`."""

SAY_NOW = "poise.say_now"
"""The ASGI extension by which a handler sends a frame at once if there is room."""

HEAR_NOW = "poise.hear_now"
"""The ASGI extension by which a handler gets messages in the call that reads them."""

MAX_WAITING, MAX_WAITING_BYTES = 16, 2**18
"""Limits on messages that wait for their handler, in number and bytes; beyond, reading pauses."""

CLOSE_SECONDS = 10.0
"""Seconds for the peer to complete the closing handshake."""

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
FIN, RSV, RSV1, OPCODE, CONTROL = 0x80, 0x70, 0x40, 0x0F, 0x08
MASKED, LENGTH = 0x80, 0x7F
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

NORMAL, BROKEN, NO_TEXT, TOO_LARGE, RESTARTS = 1000, 1002, 1007, 1009, 1012
NOTHING_SAID, LOST = 1005, 1006

DEFLATE = ServerPerMessageDeflateFactory(
    server_max_window_bits=12, client_max_window_bits=12, compress_settings={"memLevel": 5}
)

_log = logging.getLogger("poise.control")


class Wrong(Exception):
    """The peer violated the WebSocket protocol; the connection is closed with this code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Lines(Taking, asyncio.Protocol):
    """One WebSocket. `open` takes over the connection, with the request for the upgrade."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        self.loop = asyncio.get_running_loop()
        self._app = cast(App, config.loaded_app)
        self._connections, self._tasks = cast(set[Any], server_state.connections), server_state.tasks
        self._compresses = config.ws_per_message_deflate
        self._app_state = app_state
        self._accepts = b""  # the head of the accepting response, until it is sent
        self._refusal: list[bytes] = []
        self._answered = False
        self._deflate: Any = None  # an extension of `websockets`, which has incomplete types
        self._most = MAX_FRAME
        self._buffer = bytearray()
        self._opcode, self._parts, self._size = CONT, list[bytes](), 0  # fragments of an incomplete message
        self._inbox: deque[tuple[dict[str, Any], int]] = deque()
        self._waiting = 0
        self._reader: asyncio.Future[None] | None = None
        self._taker: Callable[[bytes], bool] | None = None
        self._paused = False
        self._room: asyncio.Event | None = None  # set while the write buffer is above its limit
        self._closing = False  # a close frame was sent
        self._over = False  # all further input is ignored
        self._lost = False
        self._late: asyncio.TimerHandle | None = None

    def open(self, transport: asyncio.Transport, scope: Scope, url: bytes) -> None:
        """Start with the HTTP scope of the request; the parts of it that depend on `url` are added here."""
        self.transport = transport
        self._connections.add(self)
        headers = dict(scope["headers"])
        try:
            raw_path, query = _parts_of(url)
            path = unquote(raw_path.decode("ascii"))
            self._most = LARGER.get(path, MAX_FRAME)
            self._accepts = self._head_of_answer(scope["method"], headers)
        except Wrong as error:
            version = [(b"sec-websocket-version", b"13")] if error.code == HTTPStatus.UPGRADE_REQUIRED else []
            self._refuse(error.code, version, f"{error}\n".encode())
            return
        wanted = headers.get(b"sec-websocket-protocol", b"").decode("latin-1").split(",")
        asked = {
            **scope,
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "scheme": "wss" if scope["scheme"] == "https" else "ws",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "subprotocols": [name.strip() for name in wanted if name.strip()],
            "extensions": {"websocket.http.response": {}, SAY_NOW: self.say_now, HEAR_NOW: self.hear_now},
        }
        self._deliver({"type": "websocket.connect"})
        task = self.loop.create_task(self._serve(asked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _head_of_answer(self, method: str, headers: dict[bytes, bytes]) -> bytes:
        """Return the head of the 101 response. Raises `Wrong` with the status of a refusal."""
        if method != "GET":
            raise Wrong(HTTPStatus.BAD_REQUEST, "a WebSocket is asked for by GET")
        if headers.get(b"sec-websocket-version", b"").strip() != b"13":
            raise Wrong(HTTPStatus.UPGRADE_REQUIRED, "the version of WebSockets here is 13")
        key = headers.get(b"sec-websocket-key", b"").strip()
        try:
            is_key = len(base64.b64decode(key, validate=True)) == 16
        except binascii.Error:
            is_key = False
        if not is_key:
            raise Wrong(HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Key is to have 16 bytes, as base64")
        accept = base64.b64encode(hashlib.sha1(key + GUID, usedforsecurity=False).digest())
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += b"Sec-WebSocket-Accept: %s\r\n" % accept
        offers = headers.get(b"sec-websocket-extensions")
        if offers and self._compresses:
            try:
                head += self._agree(offers.decode("latin-1"))
            except InvalidHeader as error:
                raise Wrong(HTTPStatus.BAD_REQUEST, str(error)) from None
        return head + b"\r\n"

    def _agree(self, offers: str) -> bytes:
        """Accept the first compression offer that can be met, if any; return its header."""
        for name, parameters in parse_extension(offers):
            if name == DEFLATE.name:
                try:
                    agreed, self._deflate = DEFLATE.process_request_params(parameters, [])
                except NegotiationError:
                    continue
                return f"Sec-WebSocket-Extensions: {build_extension([(name, agreed)])}\r\n".encode()
        return b""

    # --- interface for the handler -----------------------------------------------------------------------------------

    async def _serve(self, scope: Scope) -> None:
        try:
            await self._app(scope, self.receive, self.send)
        except ClientDisconnected:
            pass
        except Exception:
            _log.exception("a WebSocket was not served")
        if not self._answered:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, [], b"Internal Server Error\n")
        elif self._late is None:
            self.transport.close()

    async def receive(self) -> dict[str, Any]:
        while not self._inbox:
            self._reader = self.loop.create_future()
            await self._reader
        message, size = self._inbox.popleft()
        self._waiting -= size
        if not self._inbox:
            self._read_on()
        return message

    def _read_on(self) -> None:
        if self._paused and not self._over:
            self._paused = False
            self.transport.resume_reading()

    async def send(self, message: Any) -> None:
        if self._room is not None:
            await self._room.wait()
        if self._lost:
            raise ClientDisconnected
        kind = message["type"]
        if kind == "websocket.send":
            if self._closing:
                raise ClientDisconnected
            data = message.get("bytes")
            said = (TEXT, message["text"].encode()) if data is None else (BINARY, data)
            self.transport.write(self._framed(*said))
        elif kind == "websocket.accept":
            self._answered = True
            more = (b"%s: %s\r\n" % header for header in message.get("headers", ()))
            self.transport.write(self._accepts[:-2] + b"".join(more) + b"\r\n")
        elif kind == "websocket.close" and self._answered:
            self._close(message.get("code", NORMAL), message.get("reason") or "")
        elif kind == "websocket.close":
            self._refuse(HTTPStatus.FORBIDDEN, [], b"")
        elif kind == "websocket.http.response.start":
            self._answered = True
            self._refusal = [_head(message["status"], message.get("headers", ()))]
        else:  # websocket.http.response.body
            self._refusal.append(message.get("body", b""))
            if not message.get("more_body", False):
                self._hang_up(b"".join(self._refusal), LOST)

    def say_now(self, data: bytes) -> bool:
        """Send a frame if there is room; return whether it was sent."""
        if self._room is not None or self._closing or self._over:
            return False
        self.transport.write(self._framed(BINARY, data))
        return True

    def hear_now(self, taker: Callable[[bytes], bool]) -> None:
        """Offer binary messages to `taker` first, while the handler waits in `receive`. It returns whether it has taken
        the message, and must not raise; `receive` returns the others. A task that wakes for each message costs more
        than a short one itself.
        """
        self._taker = taker

    def _framed(self, opcode: int, data: bytes) -> bytes:
        first = FIN | opcode
        if self._deflate is not None:
            data, first = self._deflate.encode(Frame(Opcode.BINARY, data)).data, first | RSV1
        length = len(data)
        if length < 126:
            return b"%c%c%b" % (first, length, data)
        if length < 2**16:
            return b"%c%c%b%b" % (first, 126, length.to_bytes(2), data)
        return b"%c%c%b%b" % (first, 127, length.to_bytes(8), data)

    def _close(self, code: int, reason: str) -> None:
        """Send a close frame, and close the connection after a time limit."""
        if self._closing or self.transport.is_closing():
            return
        self._deliver({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._say_closed(Close(code, reason).serialize())
        self._read_on()
        self._late = self.loop.call_later(CLOSE_SECONDS, self.transport.close)

    def _say_closed(self, payload: bytes) -> None:
        self._closing = True
        self.transport.write(b"%c%c%b" % (FIN | CLOSE, len(payload), payload))

    def _refuse(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Refuse the upgrade with an HTTP response."""
        self._answered = True
        plain = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
        self._hang_up(_head(status, [*headers, *plain]) + body, LOST)

    def _hang_up(self, last: bytes, code: int) -> None:
        """Send these last bytes and close the connection."""
        self._over = True
        self._deliver({"type": "websocket.disconnect", "code": code})
        if not self.transport.is_closing():
            self.transport.write(last)
            self.transport.close()

    def shutdown(self) -> None:
        """Close, because the server is about to exit."""
        if not self._answered:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, [], b"Internal Server Error\n")
            return
        if not self._closing:
            self._deliver({"type": "websocket.disconnect", "code": RESTARTS})
            self._say_closed(Close(RESTARTS, "").serialize())
        self._over = True
        self.transport.close()

    # --- incoming frames ---------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        buffer, at = self._buffer, 0
        buffer += data
        try:
            while not self._over and len(buffer) >= at + 2:
                first, second = buffer[at], buffer[at + 1]
                length, head = second & LENGTH, at + 2
                if length > 125:
                    wide = 2 if length == 126 else 8
                    if len(buffer) < head + wide:
                        break
                    length = int.from_bytes(buffer[head : head + wide])
                    head += wide
                self._check(first, second, length)
                end = head + 4 + length
                if len(buffer) < end:
                    break
                self._take(first, apply_mask(buffer[head + 4 : end], buffer[head : head + 4]))
                at = end
        except Wrong as error:
            if not self._closing:
                self._say_closed(Close(error.code, str(error)).serialize())
            self._hang_up(b"", error.code)
        if self._over:
            buffer.clear()
        else:
            del buffer[:at]

    def _check(self, first: int, second: int, length: int) -> None:
        """Check a frame by its header, before its payload arrives. Raises `Wrong`."""
        opcode = first & OPCODE
        if not second & MASKED:
            raise Wrong(BROKEN, "a frame is not masked")
        if opcode & CONTROL:
            if opcode > PONG or first & (FIN | RSV) != FIN or length > 125:
                raise Wrong(BROKEN, "this is no control frame")
            return
        if first & RSV and (first & RSV != RSV1 or opcode == CONT or self._deflate is None):
            raise Wrong(BROKEN, "a reserved bit is set")
        if opcode > BINARY or (opcode == CONT) is not (self._opcode != CONT):
            raise Wrong(BROKEN, "this frame cannot come here")
        if self._size + length > self._most:
            raise self._too_large()

    def _take(self, first: int, data: bytes) -> None:
        opcode, is_last = first & OPCODE, bool(first & FIN)
        if opcode & CONTROL:
            self._control(opcode, data)
            return
        if self._deflate is not None:
            data = self._inflated(Frame(Opcode(opcode), data, is_last, bool(first & RSV1)))
        if opcode != CONT and is_last:
            self._hear(opcode, data)
            return
        self._opcode = opcode or self._opcode
        self._parts.append(data)
        self._size += len(data)
        if is_last:
            opcode, data = self._opcode, b"".join(self._parts)
            self._opcode, self._parts, self._size = CONT, [], 0
            self._hear(opcode, data)

    def _inflated(self, frame: Frame) -> bytes:
        room = self._most - self._size
        try:
            data = cast(bytes, self._deflate.decode(frame, max_size=max(1, room)).data)  # 0 would mean no limit
        except PayloadTooBig:
            raise self._too_large() from None
        except ProtocolError as error:
            raise Wrong(BROKEN, str(error)) from None
        if len(data) > room:
            raise self._too_large()
        return data

    def _too_large(self) -> Wrong:
        return Wrong(TOO_LARGE, f"a message has at most {self._most} bytes")

    def _hear(self, opcode: int, data: bytes) -> None:
        if self._closing:
            return
        waits = self._reader is not None and not self._reader.done()
        if self._taker is not None and waits and opcode == BINARY and self._taker(data):
            return
        try:
            said = {"bytes": data} if opcode == BINARY else {"text": data.decode()}
        except UnicodeDecodeError:
            raise Wrong(NO_TEXT, "this is no text") from None
        self._deliver({"type": "websocket.receive", **said}, len(data))

    def _control(self, opcode: int, data: bytes) -> None:
        if opcode == PING and not self._closing and self._room is None:
            self.transport.write(b"%c%c%b" % (FIN | PONG, len(data), data))
        elif opcode == CLOSE and self._closing:
            self._over = True
            self.transport.close()
        elif opcode == CLOSE:
            try:
                close = Close.parse(data)
            except ProtocolError as error:
                raise Wrong(BROKEN, str(error)) from None
            except UnicodeDecodeError:
                raise Wrong(NO_TEXT, "the reason is no text") from None
            self._over = True
            self._deliver({"type": "websocket.disconnect", "code": int(close.code), "reason": close.reason})
            self._say_closed(data)
            self.transport.close()

    def _deliver(self, message: dict[str, Any], size: int = 0) -> None:
        self._inbox.append((message, size))
        self._waiting += size
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        too_much = len(self._inbox) > MAX_WAITING or self._waiting > MAX_WAITING_BYTES
        if too_much and not self._paused and not self._over:
            self._paused = True
            self.transport.pause_reading()

    # --- the connection ----------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._room = asyncio.Event()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._make_room()
        super().resume_writing()

    def _make_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._over = True
        self._connections.discard(self)
        self._make_room()
        if self._late is not None:
            self._late.cancel()
        self._deliver({"type": "websocket.disconnect", "code": NOTHING_SAID if self._answered else LOST})
        super().connection_lost(exc)


def _parts_of(url: bytes) -> tuple[bytes, bytes]:
    """Return the path and the query. Raises `Wrong` with the status of a refusal."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        parsed = None
    if parsed is None or not parsed.path or not parsed.path.isascii():
        raise Wrong(HTTPStatus.BAD_REQUEST, "this is no path of a WebSocket")
    return parsed.path, parsed.query or b""


def _head(status: int, headers: Any) -> bytes:
    """Return the head of a plain HTTP response that refuses the WebSocket and closes the connection."""
    phrase = HTTPStatus(status).phrase.encode()
    kept = ((name, value) for name, value in headers if name.lower() != b"connection")
    lines = b"".join(b"%s: %s\r\n" % header for header in kept)
    return b"HTTP/1.1 %d %s\r\n%sconnection: close\r\n\r\n" % (status, phrase, lines)
