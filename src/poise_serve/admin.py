"""The admin API: the configuration of a gateway, and changes of it while requests run.

    GET  /admin/           the configuration, the state of upstreams and services, and past changes
    POST /admin/apply      {"documents": [...], "check": false, "models": []}: use these documents
    POST /admin/remove     {"name": NAME}: a service or an upstream
    POST /admin/drain      {"name": NAME, "undo": false}: an upstream, or a replica by the id of its job
    POST /admin/undo       restore the configuration before the latest change
    POST /admin/promote    {"name": SERVICE}: end its trial; its canary serves
    POST /admin/rollback   {"name": SERVICE}: end its trial; its canary ends

It is at two places: at a socket in the home, which only its owner can reach and which `poise service` uses; and at the
address of the gateway, for keys with the scope `admin`. Errors have the form of those of the control plane.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from poise.decoding import json_decoder
from poise.drivers.gateways import ADMIN, USER
from poise.errors import ErrorRecord, Forbidden, InputError, NotFound, PoiseError, SpecError
from poise_serve.asgi import ASKER, Gone, NoRoom, Receive, Room, Scope, Send, TooLarge, answer, client_of, whole_body
from poise_serve.live import Live
from poise_serve.model.changes import Apply, Named

MAX_BODY = 8 << 20
"""Maximum bytes of a request."""

_apply = json_decoder(Apply).decode
_named = json_decoder(Named).decode


class AdminError(msgspec.Struct, frozen=True):
    """The body of an error."""

    error: ErrorRecord


class Admin:
    """The ASGI application."""

    def __init__(self, live: Live, url: Callable[[], str]) -> None:
        """`url`: the address of the gateway, for reports."""
        self._live = live
        self._url = url
        self._room = Room(8 * MAX_BODY)
        self._changing: set[asyncio.Task[Any]] = set()
        self._routes: dict[str, Callable[[bytes, str], Awaitable[Any]]] = {
            "apply": self._apply,
            "remove": self._remove,
            "drain": self._drain,
            "undo": self._undo,
            "promote": self._promote,
            "rollback": self._roll_back,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 200
        try:
            told: Any = await self._told(scope, receive)
        except Gone:
            return
        except PoiseError as error:
            status, told = error.status, AdminError(error.record)
        await answer(send, status, msgspec.json.encode(told), [(b"content-type", b"application/json")])

    async def _told(self, scope: Scope, receive: Receive) -> Any:
        name, method = scope["path"].removeprefix(ADMIN), scope["method"]
        if not name and method in ("GET", "HEAD"):
            return self._live.report(self._url())
        route = self._routes.get(name)
        if route is None:
            have = ", ".join(f"{ADMIN}{one}" for one in self._routes)
            raise NotFound(f"there is no {scope['path'][:80]}", have=have, hint=f"POST {ADMIN}apply")
        if method != "POST":
            raise Forbidden(f"{method[:20]} is not for this", need="POST", have=method[:20])
        try:
            body = await whole_body(scope, receive, MAX_BODY, self._room)
        except (TooLarge, NoRoom):
            need = f"at most {MAX_BODY} bytes"
            raise InputError("the request is too large", code="E140", need=need, hint="fewer documents") from None
        self._room.give_back(len(body), client_of(scope))
        changing = asyncio.ensure_future(route(body, _user(scope)))  # goes on if the client disconnects
        self._changing.add(changing)
        changing.add_done_callback(self._changing.discard)
        return await asyncio.shield(changing)

    async def _apply(self, body: bytes, by: str) -> Any:
        asked = _read(_apply, body)
        return await self._live.apply(asked.documents, by, check=asked.check, models=asked.models)

    async def _remove(self, body: bytes, by: str) -> Any:
        return await self._live.remove(_read(_named, body).name, by)

    async def _drain(self, body: bytes, by: str) -> Any:
        asked = _read(_named, body)
        return await self._live.drain(asked.name, by, undo=asked.undo)

    async def _undo(self, body: bytes, by: str) -> Any:
        return await self._live.undo(by)

    async def _promote(self, body: bytes, by: str) -> Any:
        self._live.end_trial(_read(_named, body).name, by, promoted=True)
        return {}

    async def _roll_back(self, body: bytes, by: str) -> Any:
        self._live.end_trial(_read(_named, body).name, by, promoted=False)
        return {}


T = TypeVar("T")


def _read(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"the body cannot be read: {str(error) or 'nested too deep'}", field="body") from None


def _user(scope: Scope) -> str:
    """Return who makes the change: the name of the key, or at the socket the user who says so."""
    asker = scope["extensions"].get(ASKER)
    if asker is not None:
        return f"the key {asker.name}"
    name = next((value.decode("latin-1") for header, value in scope["headers"] if header == USER), "")
    return name[:80] or "a user of this machine"


__all__ = ["Admin", "AdminError"]
