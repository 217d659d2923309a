"""ASGI helpers of the gateway's applications: types, bodies with a size limit, and complete answers."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeVar

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

READ = ("GET", "HEAD", "OPTIONS")
"""Methods of read-only routes …"""

ASK = ("POST", "OPTIONS")
"""… and of inference routes."""

ABORT = "poise.abort"
"""An extension of HTTP scopes: its `now` is a function that closes the connection and discards unsent data, which a
client that reads nothing would keep in memory otherwise. `poise_serve.http` provides it."""


GONE = "poise.gone"
"""An extension: its `then` takes a function, called once if the client disconnects before it is answered."""


CAME = "poise.came"
"""An extension: its `at` returns when the latest data of the request arrived, in nanoseconds. A busy process takes
milliseconds to start on a request.
"""


ASKER = "poise.asker"
"""An extension: the API key of a request, if the gateway uses keys (`poise_serve.door`)."""


class Asker(Protocol):
    @property
    def name(self) -> str:
        """Name of the key."""

    def may_ask(self, model: str) -> bool:
        """Whether the key may use this model; then usage is counted for this model."""


def may_ask(scope: Scope, model: str) -> bool:
    """Whether the key of a request, if any, may use this model."""
    asker: Asker | None = scope["extensions"].get(ASKER)
    return asker is None or asker.may_ask(model)


class TooLarge(Exception):
    """A body is over its size limit; no more of it is buffered."""


class NoRoom(Exception):
    """The total size of all bodies is over its limit."""


SMALL = 64 << 10
"""A body up to this size is accepted regardless of its client's other bodies, as many clients may share a proxy."""

SHARE = 4
"""Several bodies of one client may use at most 1/4 of the total."""


class Room:
    """Accounts for the bytes of buffered bodies, in total and by client."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._of: Counter[str] = Counter()

    def take(self, size: int, client: str, so_far: int) -> None:
        """Add `size` bytes of a body, now of `so_far` bytes. Raises `NoRoom` over the limit, but counts them anyway."""
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
    """Return the client to account a request to: its key, otherwise its address."""
    asker: Asker | None = scope["extensions"].get(ASKER)
    if asker is not None:
        return asker.name
    return str(scope["client"][0]) if scope["client"] else ""


def came_at(scope: Scope) -> int:
    """Return when the latest data of the request arrived, in nanoseconds; 0 if the server does not report it."""
    found = scope["extensions"].get(CAME)
    return int(found["at"]()) if found is not None else 0


class Gone(Exception):
    """The client has disconnected before it was answered."""


async def whole_body(scope: Scope, receive: Receive, most: int, room: Room) -> bytes:
    """Read a request's body. A too large Content-Length is refused before buffering. The caller gives back its room."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > most:
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
    """Wait for the answer; raises `Gone` if the client disconnects first. A task waiting for `http.disconnect` would
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
    """Answer an OPTIONS request."""
    await answer(send, 200, b"", [(b"allow", ", ".join(allowed).encode())])


async def abort(scope: Scope) -> None:
    """Close the connection at once. For a server without this extension, raise an exception instead."""
    found = (scope.get("extensions") or {}).get(ABORT)
    if found is None:
        raise ConnectionAbortedError("the answer cannot be completed")
    found["now"]()
    await asyncio.sleep(0)  # let the server handle it
