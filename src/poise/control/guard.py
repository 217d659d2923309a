"""The gate in front of every route: deny by default.

A request needs a token in `Authorization: Bearer …`, a Host that names this machine, and no Origin of another site (so
that no page in a browser can reach the API, whatever name it resolves to). Only `PUBLIC` needs no token. The scope gets
the `bearer`; each route names the role that it requires, and a route without one is closed to all. Bodies are limited
before they are buffered.
"""

import contextlib
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any

import msgspec

from poise.config import MAX_BODY
from poise.control.gatekeeper import Gatekeeper
from poise.control.shares import Shares
from poise.drivers.reach import AUTHORITY, STANDBY
from poise.errors import Busy, ErrorRecord, Forbidden, InputError, NotLeading, PoiseError
from poise.model.tenants import HOME, Bearer, Role

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

DASHBOARD = "/"
"""Redirects a browser to the dashboard."""

SIGN_IN, SIGN_IN_DEVICE, SIGN_IN_PAGE = "/v1/sign-in", "/v1/sign-in/device", "/v1/sign-in/page"
"""Routes for people who have no token yet. Each request contains a proof of identity from an issuer."""

PUBLIC = frozenset({"/healthz", AUTHORITY, DASHBOARD, SIGN_IN, SIGN_IN_DEVICE, SIGN_IN_PAGE})
KEYED = frozenset({"/v1/workers", "/v1/attempts/files"})
"""Routes that take the key of an attempt instead of a token, and check it themselves."""

HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]", "poise"})
_HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")

REFUSED, MAX_REASON = 4400, 123
"""Close codes of WebSockets that end with an error start at this number; the reason has at most this many bytes."""

WEBSOCKETS = {"/v1/channel": "channel", "/v1/calls": "calls", "/v1/workers": "workers"}


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error response."""

    error: ErrorRecord


class Guard:
    """ASGI application that checks each request. Bare handlers get submission streams and WebSockets."""

    def __init__(
        self,
        gate: Gatekeeper,
        rest: App,
        hot: dict[str, tuple[Role | None, App]],
        during: Callable[[], contextlib.AbstractContextManager[None]],
        names: Collection[str] = (),
    ) -> None:
        """`hot` maps names to bare handlers with their required role (None: the handler checks a key itself); `rest`
        checks roles itself. `during` wraps every accepted request except WebSockets. `names` are this machine's names
        for other machines.
        """
        self._hosts = HOSTS | {f"[{name}]" if ":" in name else name.lower() for name in names}
        self._gate = gate
        self._rest = rest
        self._hot = hot
        self._during = during
        self._shares = Shares()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = text_headers(scope)
        try:
            bearer = self._checked(scope["path"], headers)
        except PoiseError as error:
            self._gate.refused(error, scope["path"])
            await refuse(scope, send, error)
            return
        app, body = self._rest, bounded(receive)
        hot = self._hot.get(_hot_key(scope, headers))
        if bearer is not None:
            scope["bearer"] = bearer
        if hot is not None:
            needed, app = hot
            body = receive
            try:
                if bearer is not None:
                    self._gate.allow(bearer, needed, scope["path"])
                self._gate.check_leading()
            except (Forbidden, NotLeading) as error:
                await refuse(scope, send, error)
                return
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._shares.of(bearer or HOME))
            except Busy as error:
                self._gate.refused(error, scope["path"], bearer)
                await refuse(scope, send, error)
                return
            if scope["type"] == "websocket":
                await app(scope, receive, send)
                return
            if (behind := self._gate.behind) is not None:
                send = marked(send, behind)
            with self._during():
                await app(scope, body, send)

    def _checked(self, path: str, headers: dict[str, str]) -> Bearer | None:
        """Return the bearer, or None if the path needs no token. Raises the refusal."""
        host = headers.get("host", "")
        if _host_name(host.lower()) not in self._hosts:
            raise Forbidden("the Host is not this machine", code="E131", field="Host", have=host[:80])
        origin = headers.get("origin")
        if origin is not None and origin.split("//", 1)[-1] != host:
            raise Forbidden("requests from other sites are refused", code="E131", field="Origin", have=origin[:80])
        if path in PUBLIC or path in KEYED:
            return None
        bearer = self._gate.bearer(secret_of(headers))
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > MAX_BODY and not is_stream(headers):
            raise too_large(length)
        return bearer


class TooLargeError(InputError):
    status = 413
    default_code = "E140"


def too_large(have: str) -> TooLargeError:
    return TooLargeError(
        "the request is too large",
        need=f"at most {MAX_BODY} bytes",
        have=have,
        hint="a task cut by data (`parts`), or several jobs as application/x-ndjson",
    )


def bounded(receive: Receive) -> Receive:
    """Limit the body while it is read, because its length may be unknown (chunked)."""
    seen = 0

    async def checked() -> MutableMapping[str, Any]:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY:
            raise too_large(f"more than {seen - 1} bytes")
        return message

    return checked


def marked(send: Send, behind: str) -> Send:
    """Mark responses of a standby with a header: they may be slightly out of date."""

    async def send_marked(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (STANDBY.lower().encode(), behind.encode())]
        await send(message)

    return send_marked


async def refuse(scope: Scope, send: Send, error: PoiseError, *, retry_after: int = 0) -> None:
    """Answer with an error, also instead of a WebSocket. `retry_after` is in seconds; 0: no such header."""
    body = msgspec.json.encode(ErrorBody(error.record))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.status == 401:  # a retry must open a new connection, and those are limited
        headers += [(b"www-authenticate", b"Bearer"), (b"connection", b"close")]
    if retry_after:
        headers.append((b"retry-after", str(retry_after).encode()))
    kind = "websocket.http" if scope["type"] == "websocket" else "http"
    await send({"type": f"{kind}.response.start", "status": error.status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": body})


async def hang_up(send: Send, error: PoiseError) -> None:
    """Close a WebSocket with an error; its text is cut to the limit."""
    why = f"{error.record.message}; {error.record.hint}".encode()[:MAX_REASON].decode(errors="ignore")
    await send({"type": "websocket.close", "code": REFUSED + error.status % 100, "reason": why})


def _host_name(host: str) -> str:
    """Return the host name without the port; empty if the Host is invalid."""
    match = _HOST.fullmatch(host)
    return match[1] if match is not None and int(match[2] or 0) < 2**16 else ""


def secret_of(headers: Mapping[str, str]) -> str:
    """Return the bearer token of a request; empty if there is none."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given if scheme.lower() == "bearer" else ""


def text_headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _hot_key(scope: Scope, headers: dict[str, str]) -> str:
    if scope["type"] == "websocket":
        return WEBSOCKETS.get(scope["path"], "")
    if scope["method"] == "POST" and scope["path"] == "/v1/jobs" and is_stream(headers):
        return "submissions"
    return ""


def is_stream(headers: dict[str, str]) -> bool:
    """Return whether the body is lines of JSON, each with its own size limit."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/x-ndjson"
