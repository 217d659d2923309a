"""The client's end of node channels: WebSockets over the socket of the control plane on this machine.

The scheduler of a cluster has one for each node, and each binding sends and receives a few frames, so frames must be
cheap. Frames from the control plane are read in place, and sent frames have a mask of zeros, which changes nothing.
(Masks protect proxies; there is no proxy on the socket of a home.)
"""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import Callable
from typing import cast

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
BINARY, CLOSE, PING, PONG = 0x82, 0x88, 0x89, 0x8A
"""First bytes of whole frames."""

MASKED, NO_MASK = 0x80, bytes(4)
END = b"\r\n\r\n"
MAX_HEAD = 64 * 1024


class Line(asyncio.Protocol):
    """One WebSocket at a path. `hear` gets each message. If either end fails, the connection ends, and `closed` is
    done.
    """

    def __init__(self, path: str, token: str, hear: Callable[[bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._hear, self._buffer = hear, bytearray()
        key = base64.b64encode(secrets.token_bytes(16))
        self._accept = base64.b64encode(hashlib.sha1(key + GUID, usedforsecurity=False).digest())
        self._head = (
            f"GET {path} HTTP/1.1\r\nHost: poise\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key.decode()}\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {token}\r\n\r\n"
        ).encode("ascii")

    def send(self, message: bytes) -> None:
        self._transport.write(_framed(BINARY, message))

    def abort(self) -> None:
        self._transport.abort()

    # --- the connection -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self.opened.done() and not self._opens():
            return
        place = 0
        while (end := self._end_of(place)) and not self._transport.is_closing():
            start, stop = end
            first, payload = self._buffer[place], bytes(self._buffer[start:stop])
            place = stop
            if first == BINARY:
                self._hear(payload)
            elif first == PING:
                self._transport.write(_framed(PONG, payload))
            elif first != PONG:  # it closes, or says what no control plane says
                self._transport.close()
        del self._buffer[:place]

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.opened, self.closed):
            if not future.done():
                future.set_exception(exc or ConnectionError("the control plane has closed the channel"))
                future.exception()  # it may be that nobody waits for it

    def _opens(self) -> bool:
        """Read the answer to the request; return whether the channel is open."""
        end = self._buffer.find(END)
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                self._transport.abort()
            return False
        status, *headers = bytes(self._buffer[:end]).split(b"\r\n")
        told = dict(line.lower().split(b":", 1) for line in headers if b":" in line)
        if b" 101" not in status or told.get(b"sec-websocket-accept", b"").strip() != self._accept.lower():
            self._transport.abort()
            return False
        del self._buffer[: end + len(END)]
        self.opened.set_result(None)
        return True

    def _end_of(self, place: int) -> tuple[int, int] | None:
        """Return where the payload of the frame at this place begins and ends; None if it is not yet complete."""
        buffer, there = self._buffer, len(self._buffer) - place
        if there < 2:
            return None
        length, start = buffer[place + 1], place + 2
        if length >= 126:
            size = 2 if length == 126 else 8
            start += size
            if there < 2 + size:
                return None
            length = int.from_bytes(buffer[place + 2 : start])
        return (start, start + length) if len(buffer) >= start + length else None


def _framed(first: int, data: bytes) -> bytes:
    length = len(data)
    if length < 126:
        return b"%c%c%b%b" % (first, MASKED | length, NO_MASK, data)
    if length < 2**16:
        return b"%c%c%b%b%b" % (first, MASKED | 126, length.to_bytes(2), NO_MASK, data)
    return b"%c%c%b%b%b" % (first, MASKED | 127, length.to_bytes(8), NO_MASK, data)
