"""The API's router: maps a method and a path to a function, checks the role, and passes the parameters.

A route is an async function whose parameters define its input: `bearer` is the authenticated bearer, `request` the
request, `data` the body (JSON of the annotated type, or raw `bytes`). A name in braces in the path is a path parameter;
every other parameter is an optional query parameter (a trailing `_` is dropped from its name). The result is sent as
JSON unless it is a `Content`, a `Redirect` or a `Stream`.
"""

import asyncio
import contextlib
import gzip
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import cached_property
from http import HTTPStatus
from typing import Any, NamedTuple, get_origin
from urllib.parse import parse_qsl

import msgspec

from poise.control.guard import ErrorBody, Receive, Scope, Send, refuse, text_headers
from poise.control.hot import UNREADABLE
from poise.decoding import convert, json_decoder
from poise.errors import Fault, InputError, NotFound, PoiseError, SpecError
from poise.model.tenants import Role

Handler = Callable[..., Awaitable[Any]]

JSON = "application/json"
HINT = "`/v1/schema/openapi.json` lists the routes, and what each takes"

COMPRESSION, MIN_COMPRESSED = 1, 500
"""The fastest gzip level, because compression runs on the thread that schedules; and the body size in bytes below which
compression saves nothing."""

_log = logging.getLogger("poise.control")


class Request(NamedTuple):
    """A request as a route gets it. `body` is empty if the route has no `data`; `scheme` is `http` or `https`."""

    headers: Mapping[str, str]
    body: bytes
    scheme: str


class Content(NamedTuple):
    """A response that is not JSON."""

    body: bytes
    media_type: str


class Redirect(NamedTuple):
    """A redirect without a body."""

    location: str


class Stream(NamedTuple):
    """A response sent in pieces, without compression. It stops when the client disconnects."""

    pieces: AsyncIterator[bytes]
    media_type: str


class WrongMethodError(InputError):
    status = 405


class Given(NamedTuple):
    """A parameter of a route: its source (`path` or `query`), its name there, its type and its default."""

    place: str
    name: str
    kind: Any
    default: Any

    @property
    def repeats(self) -> bool:
        """Return whether it may occur several times; of any other parameter the last value counts."""
        return get_origin(self.kind) is tuple

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty


class Route:
    """One method of one path. `role` is the required role; a route without one is closed to all, unless its path is
    public. `status` is the status of its response.
    """

    def __init__(
        self, method: str, path: str, handler: Handler, *, summary: str, role: Role | None, status: int
    ) -> None:
        self.method = method
        self.path = path
        self.summary = summary
        self.role = role
        self.status = status
        self.handler = handler
        kinds = handler.__annotations__
        self.returns = kinds["return"]
        self.body = kinds.get("data")
        """The type of the body; None without one."""
        self._takes_bearer = "bearer" in kinds
        self._takes_request = "request" in kinds

    @cached_property
    def parameters(self) -> dict[str, Given]:
        """By their names in the function. Looked up at the first request: a control plane starts with 93 routes."""
        return {
            name: Given(
                "path" if f"{{{name}}}" in self.path else "query",
                name.removesuffix("_"),
                self.handler.__annotations__[name],
                one.default,
            )
            for name, one in inspect.signature(self.handler).parameters.items()
            if name not in ("bearer", "request", "data")
        }

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any] | None:
        return json_decoder(self.body) if self.body not in (None, bytes) else None

    async def answer(self, scope: Scope, receive: Receive, names: Mapping[str, str]) -> Any:
        """Call the function; return its result. `names` are the path parameters. Raises `PoiseError`, `GoneError`."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given: dict[str, Any] = {}
        for name, one in self.parameters.items():
            said = [names[one.name]] if one.place == "path" else [text for key, text in query if key == one.name]
            if said:
                given[name] = _converted(one, said)
        if self._takes_bearer:
            given["bearer"] = scope["bearer"]
        body = b""
        if self.body is not None:
            body = await _whole(receive)
            given["data"] = body if self._decoder is None else _decoded(self._decoder, body)
        if self._takes_request:
            given["request"] = Request(text_headers(scope), body, scope.get("scheme", "http"))
        return await self.handler(**given)


class GoneError(Exception):
    """The client disconnected before its request was complete."""


class Routes:
    """ASGI application of routes. `allow` raises `PoiseError` unless the bearer has the required role."""

    def __init__(self, allow: Callable[[Scope, Role | None], None]) -> None:
        self._allow = allow
        self._paths: dict[str, dict[str, Route]] = {}

    def get(self, path: str, **said: Any) -> Callable[[Handler], Handler]:
        return self._adding("GET", path, **said)

    def post(self, path: str, **said: Any) -> Callable[[Handler], Handler]:
        return self._adding("POST", path, **said)

    def put(self, path: str, **said: Any) -> Callable[[Handler], Handler]:
        return self._adding("PUT", path, **said)

    def delete(self, path: str, **said: Any) -> Callable[[Handler], Handler]:
        return self._adding("DELETE", path, **said)

    def _adding(
        self, method: str, path: str, *, summary: str, role: Role | None = None, status: int = 200
    ) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            route = Route(method, path, handler, summary=summary, role=role, status=status)
            self._paths.setdefault(path, {})[method] = route
            return handler

        return add

    def __iter__(self) -> Iterator[Route]:
        for methods in self._paths.values():
            yield from methods.values()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        methods, names = self._fitting(path)
        if scope["type"] == "websocket" or not methods:
            await refuse(scope, send, NotFound("there is no such route", field=path, hint=HINT))
            return
        allowed = ", ".join(sorted({*methods, "OPTIONS"}))
        if scope["method"] == "OPTIONS":
            await _send(send, 204, b"", [(b"allow", allowed.encode())])
            return
        try:
            route = methods.get(scope["method"])
            if route is None:
                raise WrongMethodError("the route has no such method", field=path, need=allowed, hint=HINT)
            self._allow(scope, route.role)
            told = await route.answer(scope, receive, names)
        except GoneError:
            return
        except PoiseError as error:
            more = [(b"allow", allowed.encode())] if isinstance(error, WrongMethodError) else []
            await _answer(scope, send, error.status, msgspec.json.encode(ErrorBody(error.record)), JSON, more)
        except Exception as error:
            _log.error("%s %s failed", scope["method"], path, exc_info=error)
            fault = Fault(f"an internal error: {type(error).__name__}")
            await _answer(scope, send, 500, msgspec.json.encode(ErrorBody(fault.record)), JSON)
        else:
            if isinstance(told, Stream):
                await _stream(receive, send, route.status, told)
            elif isinstance(told, Redirect):
                await _send(send, route.status, b"", [(b"location", told.location.encode("latin-1"))])
            elif isinstance(told, Content):
                await _answer(scope, send, route.status, told.body, told.media_type)
            else:
                await _answer(scope, send, route.status, msgspec.json.encode(told), JSON)

    def _fitting(self, path: str) -> tuple[Mapping[str, Route], dict[str, str]]:
        """Return the routes of a path by method, and its path parameters."""
        path = path.rstrip("/") or "/"
        if path in self._paths:
            return self._paths[path], {}
        parts = path.split("/")
        for shape, methods in self._paths.items():
            if "{" in shape and (names := _names(shape.split("/"), parts)) is not None:
                return methods, names
        return {}, {}


def _names(shape: list[str], parts: list[str]) -> dict[str, str] | None:
    """Return the path parameters; None if the path does not match the shape."""
    if len(shape) != len(parts):
        return None
    names = {}
    for wanted, part in zip(shape, parts, strict=True):
        if wanted.startswith("{") and part:
            names[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return names


def _converted(one: Given, said: list[str]) -> Any:
    try:
        return convert(said if one.repeats else said[-1], one.kind, strict=False)
    except msgspec.ValidationError as error:
        raise SpecError(_lowered(str(error)), field=one.name, have=said[-1][:100], hint=HINT) from None


def _decoded(decoder: "msgspec.json.Decoder[Any]", body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        raise SpecError(_lowered(message), field=place.strip("`").removeprefix("$").lstrip("."), hint=HINT) from None
    except UNREADABLE as error:
        raise SpecError("the body is not JSON", code="E101", have=str(error), hint=HINT) from None


def _lowered(message: str) -> str:
    """Lower the first letter, as in all our messages."""
    return message[:1].lower() + message[1:]


async def _whole(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _answer(
    scope: Scope, send: Send, status: int, body: bytes, media_type: str, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [(b"content-type", media_type.encode()), *(more or [])]
    if len(body) >= MIN_COMPRESSED and "gzip" in text_headers(scope).get("accept-encoding", ""):
        body = gzip.compress(body, COMPRESSION, mtime=0)
        headers += [(b"content-encoding", b"gzip"), (b"vary", b"Accept-Encoding")]
    await _send(send, status, body, headers)


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    if status != HTTPStatus.NO_CONTENT:
        headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(receive: Receive, send: Send, status: int, stream: Stream) -> None:
    """Send all pieces, or stop when the client disconnects; then close their source."""

    async def write() -> None:
        async with contextlib.aclosing(stream.pieces) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", stream.media_type.encode())],
        }
    )
    writing, leaving = asyncio.create_task(write()), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if writing.done():
            writing.result()
    finally:
        for task in (writing, leaving):
            task.cancel()
        await asyncio.gather(writing, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
