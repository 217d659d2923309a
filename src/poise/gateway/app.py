"""The gateway's HTTP side, as bare ASGI: bodies are bounded and handed on as they are, answers come back as they are.

    POST /predict           the only service, or
    POST /predict/NAME      the one of that name
    GET  /healthz           200: the gateway lives
    GET  /readyz            200 once every service has a replica, else 503 and which have none
    GET  /metrics           Prometheus

A request may say `X-Request-Timeout: SECONDS`, after which nobody waits for its answer any more, and `X-Poise-Lane:
deferred` where it may wait until there is nothing else to do.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from poise.gateway.service import STATUS, Service
from poise.gateway.wire import Answer
from poise.kernel.batcher import Refuse
from poise.units import SECOND

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 64 << 20
"""Bytes of a request's body."""

WATCH_AFTER = 0.1
"""Whether whoever asked has gone is only looked at after so many seconds: most answers are there before."""

JSON = b"application/json"

GONE = "gone"
"""Nobody is there to be told."""


class Refused(Exception):
    """A request that never reaches a service."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


class Gateway:
    """The ASGI application: `services` by name, and, under /v1/, `rest` if there is any."""

    def __init__(self, services: Mapping[str, Service], registry: CollectorRegistry, rest: App | None = None) -> None:
        self._services = services
        self._registry = registry
        self._rest = rest
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path.startswith("/predict"):
            await self._predict(scope, receive, send)
        elif self._rest is not None and path.startswith("/v1/"):
            await self._rest(scope, receive, send)
        elif path == "/healthz":
            await _answer(send, 200, b'{"status":"ok"}', JSON)
        elif path == "/readyz":
            await self._readiness(send)
        elif path == "/metrics":
            self._measure()
            await _answer(send, 200, generate_latest(self._registry), b"text/plain; version=0.0.4; charset=utf-8")
        else:
            known = ", ".join(f"/predict/{name}" for name in self._services)
            await refuse(send, Refused(404, f"there is nothing at {path[:100]}; there is {known or '/v1/models'}"))

    async def _predict(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            service = self._service(scope)
            timeout, deferred = _wishes(scope)
            body = await _body(scope, receive)
        except Refused as error:
            await refuse(send, error)
            return
        except ConnectionError:
            return
        number, answer = service.ask(body, timeout, deferred)
        watch = asyncio.get_running_loop().call_later(WATCH_AFTER, _watch, service, number, answer, receive)
        try:
            told = await answer
        except asyncio.CancelledError:
            service.cancel(number)
            raise
        finally:
            watch.cancel()
        if isinstance(told, Answer):
            await _answer(send, told.status, told.body, told.kind.encode())
        elif told.why != GONE:
            await refuse(send, _refusal(told))

    def _service(self, scope: Scope) -> Service:
        if scope["method"] != "POST":
            raise Refused(405, f"{scope['method']} is not for this; ask with POST", headers={"allow": "POST"})
        if self.draining:
            raise Refused(503, "the gateway is ending", headers={"retry-after": "1", "connection": "close"})
        name = scope["path"][len("/predict") :].lstrip("/")
        service = self._services.get(name)
        if service is None:
            if not name and len(self._services) == 1:
                return next(iter(self._services.values()))
            raise Refused(404, f"there is no service `{name[:100]}`; known: {', '.join(self._services)}")
        return service

    def _measure(self) -> None:
        for service in self._services.values():
            service.measure()

    async def _readiness(self, send: Send) -> None:
        without = [name for name, service in self._services.items() if not service.replicas]
        body = msgspec.json.encode({"ready": not without and not self.draining, "without_replica": without})
        await _answer(send, 503 if without or self.draining else 200, body, JSON)


def _watch(service: Service, number: int, answer: "asyncio.Future[Answer | Refuse]", receive: Receive) -> None:
    """From now on, a client that goes away takes its request with it."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not answer.done():
            service.cancel(number)
            answer.set_result(Refuse(number, GONE))

    watching = asyncio.ensure_future(until_gone())
    answer.add_done_callback(lambda _: watching.cancel())


def _wishes(scope: Scope) -> tuple[int, bool]:
    """How long whoever asks waits, in nanoseconds (0: as long as the service says), and whether it may be deferred."""
    timeout, deferred = 0, False
    for name, value in scope["headers"]:
        if name == b"x-request-timeout":
            try:
                timeout = int(float(value) * SECOND)
            except (ValueError, OverflowError):
                timeout = 0
            if timeout <= 0:
                raise Refused(400, "X-Request-Timeout is a number of seconds above 0")
        elif name == b"x-poise-lane":
            deferred = value == b"deferred"
    return timeout, deferred


async def _body(scope: Scope, receive: Receive) -> bytes:
    """The whole body, refused before it is held where it is too large."""
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > MAX_BODY:
            raise _too_large()
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        if message["type"] == "http.disconnect":
            raise ConnectionError
        return body
    parts, size = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            raise _too_large()
    return b"".join(parts)


def _too_large() -> Refused:
    return Refused(413, f"a body has {MAX_BODY >> 20} MiB at most", headers={"connection": "close"})


def _refusal(refuse: Refuse) -> Refused:
    status = STATUS[refuse.why]
    headers = {"retry-after": str(-(-max(refuse.after, 1) // SECOND))} if status == 503 else {}
    return Refused(status, refuse.message, headers=headers)


async def refuse(send: Send, error: Refused) -> None:
    """Tell an error in the one form of all errors."""
    body = msgspec.json.encode({"error": {"code": error.status, "message": error.message}})
    more = [(name.encode(), value.encode()) for name, value in error.headers.items()]
    await _answer(send, error.status, body, JSON, more)


async def _answer(
    send: Send, status: int, body: bytes, kind: bytes, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers + more if more else headers})
    await send({"type": "http.response.body", "body": body})


__all__ = ["Gateway", "Refused", "refuse"]
