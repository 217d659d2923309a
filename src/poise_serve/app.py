"""The routes of the gateway, over HTTP.

    POST /predict           the only service, or
    POST /predict/NAME      the one of that name
    GET  /healthz           200: the gateway lives
    GET  /readyz            200 once every service has a replica, else 503 and which have none
    GET  /metrics           Prometheus
    GET  /canaries          how versions on trial do
    GET  /openapi.json      all of this, and what each model takes and gives
    DELETE /cache/NAME      forget what is kept of this service's answers, on all gateways
    /v1/...                 OpenAI's API: what upstreams answer, and services that say so, if there are any; and the
                            other routes of model servers (`poise_serve.openai`)
    /v2/...                 KServe's protocol (`poise_serve.kserve`)
    /admin/...              changes of the configuration (`poise_serve.admin`)
    POST /peers             news of gateways on other machines (`poise_serve.links`)

A request may say `X-Request-Timeout-Seconds: N`, after which nobody waits for its answer any more, and `X-Poise-Lane:
deferred` where it may wait until there is nothing else to do. Of a service with a cache it may say `Cache-Control:
no-cache` (a new answer) or `no-store` (one that is not kept either), and `X-Poise-Tenant: NAME`: it is told nothing
that others were told. With keys the gateway sets the tenant to that of the key (`poise_serve.door`); without, it
believes any name.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from poise.drivers.exposition import CONTENT_TYPE, text_of
from poise.drivers.gateways import ADMIN
from poise.errors import SpecError
from poise.model.servicefile import MAX_BODY
from poise.units import SECOND
from poise_serve.asgi import (
    ASK,
    READ,
    App,
    Gone,
    NoRoom,
    Receive,
    Room,
    Scope,
    Send,
    TooLarge,
    answer,
    came_at,
    client_of,
    may_ask,
    tell_methods,
    until_gone,
    whole_body,
)
from poise_serve.cached import Cached, Noted
from poise_serve.canary import Trial
from poise_serve.kernel.batcher import Refuse
from poise_serve.kserve import PREFIX, Inferences, KServe
from poise_serve.links import MAX_BATCH, PEERS, SIGNATURE
from poise_serve.openai import MOST_SECONDS, is_api
from poise_serve.peers import Peers
from poise_serve.refusals import Refused, no_room, refusal, too_large
from poise_serve.schema import document
from poise_serve.service import Asked, Asker, Service
from poise_serve.streams import Streamed, pass_on
from poise_serve.upstreams import Upstreams
from poise_serve.wire import MOST_BODIES, Answer, error_body

JSON = "application/json"
CACHE = "/cache/"
FORGET = ("DELETE",)
BELOW_PREFIX = f"{PREFIX}/"

_READ = frozenset({b"x-request-timeout-seconds", b"x-poise-lane", b"x-poise-tenant", b"cache-control"})
"""Request headers that `admit` reads."""


class Gateway:
    """The ASGI application. `fronts`: receivers of requests by name; `services`: all services; `trials`: canary trials;
    `kept`: caches by the name in requests. These are live. `rest`: the application under /v1/, if any; `admin`: the
    one under /admin/.
    """

    def __init__(
        self,
        fronts: Mapping[str, Asked],
        services: Mapping[str, Service],
        trials: Mapping[str, Trial],
        kept: Mapping[str, Collection[Cached]],
        registry: CollectorRegistry,
        rest: Upstreams | None = None,
        peers: Peers | None = None,
        models: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """`peers`: other gateways, whose metrics are shown with its own. `models`: as of `Running`."""
        self._peers = peers
        self._fronts = fronts
        self._services = services
        self._trials = trials
        self._kept = kept
        self._registry = registry
        self.rest = rest
        self.admin: App | None = None
        self._measuring: asyncio.Task[bytes] | None = None
        self.draining = False
        self.room = Room(MOST_BODIES)  # a limit that lets any batch fit into a frame
        inferences = Inferences(services, models if models is not None else {}, self._admit_named)
        self.kserve = KServe(inferences, self.room)

    def admit(self, name: str, scope: Scope) -> tuple[Asked, int, bool, Asker]:
        """Return the service of this name, the client's timeout (nanoseconds, 0: that of the service), whether it is
        deferred, and the client with its cache settings. Raises `Refused`.
        """
        if self.draining:
            raise Refused(503, "the gateway is ending", headers={"retry-after": "1"})
        service = self._front(name)
        timeout, deferred, asker = 0, False, Asker(client=client_of(scope))
        for header, value in scope["headers"]:
            if header not in _READ:
                continue
            if header == b"x-request-timeout-seconds":
                timeout = _seconds(value)
            elif header == b"x-poise-lane":
                deferred = _is_deferred(value)
            else:
                asker = _saying(asker, header, value)
        return service, timeout, deferred, asker

    def _admit_named(self, name: str, scope: Scope) -> tuple[Asked, int, bool, Asker]:
        service, timeout, deferred, asker = self.admit(self._name(f"/predict/{name}"), scope)
        return service, timeout, deferred, replace(asker, came=came_at(scope))

    def _name(self, path: str) -> str:
        """Return the name of the requested service, which may be unknown."""
        name = path[len("/predict") :].lstrip("/")
        return next(iter(self._fronts)) if not name and len(self._fronts) == 1 else name

    def _front(self, name: str) -> Asked:
        """Return the service that answers requests to this name. Raises `Refused`."""
        if (found := self._fronts.get(name)) is None:
            raise Refused(404, f"there is no service `{name[:100]}`; known: {', '.join(self._fronts)}")
        return found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if self.rest is not None and is_api(path):
            await self.rest(scope, receive, send)
            return
        if path == PREFIX or path.startswith(BELOW_PREFIX):
            await self.kserve(scope, receive, send)
            return
        if self._peers is not None and self._peers.links.is_open and path == PEERS:
            await self._hear(self._peers, scope, receive, send)
            return
        if self.admin is not None and path.startswith(ADMIN):
            await self.admin(scope, receive, send)
            return
        more: list[tuple[bytes, bytes]] = []
        try:
            allowed = self._methods(path)
            if method == "OPTIONS":
                await tell_methods(send, allowed)
                return
            if method not in allowed:
                message = f"{method} is not for this; ask with {allowed[0]}"
                raise Refused(405, message, headers={"allow": ", ".join(allowed)})
            if allowed is ASK:
                made = await self._ask(scope, receive)
                if isinstance(made, Streamed):
                    await pass_on(scope, send, made.kind, made.stream)
                    return
                status, body, kind, more = made.status, made.body, made.kind, _notes(made)
            elif allowed is FORGET:
                status, body, kind = await self._forget(path.removeprefix(CACHE))
            else:
                status, body, kind = await self._told(path)
        except Refused as error:
            status, body, kind = error.status, error_body(error.status, error.message), JSON
            more = [(name.encode(), value.encode()) for name, value in error.headers.items()]
        except Gone:
            return
        await answer(send, status, body, [(b"content-type", kind.encode()), *more] if status != 204 else more)

    async def _hear(self, peers: Peers, scope: Scope, receive: Receive, send: Send) -> None:
        """Take the news of a gateway on another machine, which are signed."""
        signature = next((value for name, value in scope["headers"] if name == SIGNATURE.encode()), b"")
        status = 413
        try:
            body = await whole_body(scope, receive, MAX_BATCH, self.room)
            self.room.give_back(len(body), client_of(scope))
            status = peers.links.receive(body, signature.decode("latin-1"))
        except Gone:
            return
        except (TooLarge, NoRoom):
            pass
        await answer(send, status, b"", [])

    async def _ask(self, scope: Scope, receive: Receive) -> Answer:
        """Return an answer. Raises `Refused`, and `Gone` if the client disconnects, which cancels the request."""
        name = self._name(scope["path"])
        service, timeout, deferred, asker = self.admit(name, scope)
        if not may_ask(scope, name):
            raise Refused(403, f"this key may not ask `{name}`")
        most = self._services[name].batcher.limits.body if name in self._services else MAX_BODY
        try:
            body = await whole_body(scope, receive, most, self.room)
        except TooLarge:
            raise too_large(most) from None
        except NoRoom:
            raise no_room() from None
        told: asyncio.Future[Answer | Refuse] = asyncio.get_running_loop().create_future()

        def tell(one: Answer | Refuse) -> None:
            if not told.done():
                told.set_result(one)

        try:
            service = self._front(name)  # another version may serve since the body began
            asker = replace(asker, came=came_at(scope))  # its body may have taken long
            number = service.ask(body, tell, timeout, deferred, asker)
            try:
                made = told.result() if told.done() else await until_gone(scope, told)
            except BaseException:
                service.cancel(number)
                raise
        finally:
            self.room.give_back(len(body), asker.client)
        if isinstance(made, Refuse):
            raise refusal(made)
        return made

    def _methods(self, path: str) -> tuple[str, ...]:
        if path == "/predict" or path.startswith("/predict/"):
            self._front(self._name(path))
            return ASK
        if path in ("/healthz", "/readyz", "/metrics", "/canaries", "/openapi.json"):
            return READ
        if path.startswith(CACHE):
            return FORGET
        known = [f"/predict/{name}" for name in self._fronts] + ["/v1/models"] * (self.rest is not None)
        raise Refused(404, f"there is nothing at {path[:100]}; there is {', '.join(known)}, /openapi.json")

    async def _forget(self, name: str) -> tuple[int, bytes, str]:
        """Clear the caches of a service. Returns status (202 if Redis is unreachable), body and media type."""
        kept = self._kept.get(name)
        if not kept:
            raise Refused(404, f"nothing is kept of `{name[:100]}`; of {', '.join(self._kept) or 'no service'} it is")
        if all([await one.forget() for one in tuple(kept)]):
            return 204, b"", JSON
        told = {"message": "forgotten here; the Redis is away, and other gateways are told once it is back"}
        return 202, msgspec.json.encode(told), JSON

    async def _told(self, path: str) -> tuple[int, bytes, str]:
        """Answer a read-only route. Returns status, body and media type."""
        if path == "/metrics":
            if self._measuring is None:
                self._measuring = asyncio.create_task(self._measure())
                self._measuring.add_done_callback(self._measured)
            return 200, await asyncio.shield(self._measuring), CONTENT_TYPE
        status = 200
        told: dict[str, Any] = {"status": "ok"}
        if path == "/readyz":
            without = [name for name in self._fronts if not self._services[name].replicas]
            status = 503 if without or self.draining else 200
            told = {"ready": status == 200, "without_replica": without}
        elif path == "/canaries":
            told = {name: trial.report() for name, trial in self._trials.items()}
        elif path == "/openapi.json":
            forms = {name: self._services[name].forms for name in self._fronts}
            told = document(forms, self._kept, None if self.rest is None else self.rest.models)
        return status, msgspec.json.encode(told), JSON

    async def _measure(self) -> bytes:
        """Return the metrics as text, shared by concurrent scrapes. Encoded in a thread, because it takes milliseconds
        per thousand series.
        """
        for service in self._services.values():
            service.measure()
        for kept in self._kept.values():
            for one in kept:
                one.measure()
        own = await asyncio.to_thread(text_of, self._registry)
        return own if self._peers is None else await self._peers.metrics(own)

    def _measured(self, measured: "asyncio.Task[bytes]") -> None:
        self._measuring = None
        if not measured.cancelled():
            measured.exception()  # the client may have disconnected


def _notes(made: Answer) -> list[tuple[bytes, bytes]]:
    """Return the headers that describe the source of an answer."""
    if not isinstance(made, Noted):
        return []
    lines = made.note.encode().split(b"\r\n")
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]


def _is_deferred(lane: bytes) -> bool:
    if lane != b"deferred":
        raise Refused(400, "X-Poise-Lane is `deferred`, or is not there")
    return True


def _saying(asker: Asker, name: bytes, value: bytes) -> Asker:
    try:
        return asker.saying(name, value)
    except SpecError as error:
        raise Refused(400, f"{error.record.field}: {error.record.message}") from None


def _seconds(text: bytes) -> int:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < MOST_SECONDS or b"_" in text:  # `float` accepts underscores
        raise Refused(400, f"X-Request-Timeout-Seconds is a number above 0 and below {MOST_SECONDS}")
    return max(1, int(seconds * SECOND))


__all__ = ["Gateway"]
