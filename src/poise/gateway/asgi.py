"""The little of ASGI that the gateway's applications share: its types, bounded bodies, whole answers."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

READ = ("GET", "HEAD", "OPTIONS")
"""The methods of what is only read …"""

ASK = ("POST", "OPTIONS")
"""… and of what is asked."""

ABORT = "poise.abort"
"""An extension of HTTP scopes: its `now` is a function that ends the connection and forgets what was not sent, which a
client that reads nothing would hold otherwise. `poise.gateway.connection` offers it."""


class TooLarge(Exception):
    """A body has more bytes than it may; nothing beyond them is kept."""


class NoRoom(Exception):
    """All bodies together have more bytes than they may."""


class Room:
    """Bytes of the bodies that are held at one time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0

    def take(self, size: int) -> None:
        """Raises `NoRoom`; it is taken nevertheless."""
        self._held += size
        if self._held > self._most:
            raise NoRoom

    def give_back(self, size: int) -> None:
        self._held -= size


class Gone(Exception):
    """The client has hung up before its request was complete."""


async def whole_body(scope: Scope, receive: Receive, most: int, room: Room) -> bytes:
    """The body of a request, refused before it is buffered where its length is told. Its room is the caller's then."""
    said = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if said.isdigit() and int(said) > most:
        raise TooLarge
    parts, seen = [], 0
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            part = message.get("body", b"")
            seen += len(part)
            room.take(len(part))
            if seen > most:
                raise TooLarge
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)
    except BaseException:
        room.give_back(seen)
        raise


async def answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def tell_methods(send: Send, allowed: tuple[str, ...]) -> None:
    """The answer to OPTIONS."""
    await answer(send, 200, b"", [(b"allow", ", ".join(allowed).encode())])


async def abort(scope: Scope) -> None:
    """End the connection at once. A server that does not offer it is told by an exception, and closes as it can."""
    found = (scope.get("extensions") or {}).get(ABORT)
    if found is None:
        raise ConnectionAbortedError("the answer cannot be completed")
    found["now"]()
    await asyncio.sleep(0)  # the server hears of it
