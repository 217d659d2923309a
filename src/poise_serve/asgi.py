"""The little of ASGI that the gateway's applications share: its types, bounded bodies, whole answers."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeVar

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

READ = ("GET", "HEAD", "OPTIONS")
"""The methods of what is only read …"""

ASK = ("POST", "OPTIONS")
"""… and of what is asked."""

ABORT = "poise.abort"
"""An extension of HTTP scopes: its `now` is a function that ends the connection and forgets what was not sent, which a
client that reads nothing would hold otherwise. `poise_serve.http` offers it."""


GONE = "poise.gone"
"""Another: its `then` takes a function, which is called once if the client goes before it is answered."""


ASKER = "poise.asker"
"""Another: the key that a request came with, where a gateway has keys (`poise_serve.door`)."""


class Asker(Protocol):
    @property
    def name(self) -> str:
        """That of the key."""

    def may_ask(self, model: str) -> bool:
        """Whether the key may ask this model; it is counted as asked."""


def may_ask(scope: Scope, model: str) -> bool:
    """Whether whoever sent a request may ask this model."""
    asker: Asker | None = scope["extensions"].get(ASKER)
    return asker is None or asker.may_ask(model)


class TooLarge(Exception):
    """A body has more bytes than it may; nothing beyond them is kept."""


class NoRoom(Exception):
    """All bodies together have more bytes than they may."""


SMALL = 64 << 10
"""Bytes up to which a body is let in whatever else its client holds: many may ask through one proxy."""

SHARE = 4
"""The bodies of one client have this part of the room at most, if they are several."""


class Room:
    """Bytes of the bodies that are held at one time, of all clients and of each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._of: Counter[str] = Counter()

    def take(self, size: int, client: str, so_far: int) -> None:
        """More of a body, which has `so_far` that many bytes with it. Raises `NoRoom`; it is taken nevertheless."""
        self._held += size
        self._of[client] += size
        is_alone = self._of[client] == so_far
        if self._held > self._most or (self._of[client] > self._most // SHARE and so_far > SMALL and not is_alone):
            raise NoRoom

    def give_back(self, size: int, client: str) -> None:
        self._held -= size
        self._of[client] -= size
        if not self._of[client]:
            del self._of[client]


def client_of(scope: Scope) -> str:
    """Who sends a request, as far as what clients may hold goes: its key, or else its address."""
    asker: Asker | None = scope["extensions"].get(ASKER)
    if asker is not None:
        return asker.name
    return str(scope["client"][0]) if scope["client"] else ""


class Gone(Exception):
    """The client has hung up before its request was complete."""


async def whole_body(scope: Scope, receive: Receive, most: int, room: Room) -> bytes:
    """The body of a request, refused before it is buffered where its length is told. Its room is the caller's then."""
    said = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if said.isdigit() and int(said) > most:
        raise TooLarge
    parts, seen, client = [], 0, client_of(scope)
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            part = message.get("body", b"")
            seen += len(part)
            room.take(len(part), client, seen)
            if seen > most:
                raise TooLarge
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)
    except BaseException:
        room.give_back(seen, client)
        raise


T = TypeVar("T")


async def until_gone(scope: Scope, told: "asyncio.Future[T]") -> T:
    """What is told, unless the client goes before: then raises `Gone`. A task that waits for `http.disconnect` would
    cost as much as the rest of a small request.
    """
    scope["extensions"][GONE]["then"](told.cancel)
    try:
        return await told
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            raise Gone from None
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
