"""What the gateway answers to, over HTTP.

    POST /predict           the only service, or
    POST /predict/NAME      the one of that name
    GET  /healthz           200: the gateway lives
    GET  /readyz            200 once every service has a replica, else 503 and which have none
    GET  /metrics           Prometheus
    GET  /canaries          how versions on trial do
    /v1/...                 what upstreams answer, if there are any

A request may say `X-Request-Timeout-Seconds: N`, after which nobody waits for its answer any more, and `X-Poise-Lane:
deferred` where it may wait until there is nothing else to do.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from poise.gateway.asgi import Receive, Room, Scope, Send, answer
from poise.gateway.canary import Trial
from poise.gateway.service import STATUS, Asked, Service
from poise.gateway.wire import MOST_BODIES
from poise.kernel.batcher import Refuse
from poise.units import SECOND

App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 64 << 20
"""Bytes of a request's body."""

JSON = [(b"content-type", b"application/json")]


class Refused(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


class Gateway:
    """What is asked by name in `fronts`, the `services` behind, the `trials` of versions; the ASGI application of all
    that is no question to one of them, with `rest` under /v1/ if there is any.
    """

    def __init__(
        self,
        fronts: Mapping[str, Asked],
        services: Mapping[str, Service],
        trials: Mapping[str, Trial],
        registry: CollectorRegistry,
        rest: App | None = None,
    ) -> None:
        self._fronts = fronts
        self._services = services
        self._trials = trials
        self._registry = registry
        self._rest = rest
        self.draining = False
        self.room = Room(MOST_BODIES)  # so that any batch of them fits into a frame

    def admit(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> tuple[Asked, int, bool]:
        """The service that is asked, for how long whoever asks waits (nanoseconds, 0: as long as the service says), and
        whether the answer may be deferred. Raises `Refused`.
        """
        if method != "POST":
            raise Refused(405, f"{method} is not for this; ask with POST", headers={"allow": "POST"})
        if self.draining:
            raise Refused(503, "the gateway is ending", headers={"retry-after": "1"})
        service = self._service(path)
        timeout, deferred = 0, False
        for name, value in headers:
            if name == b"x-request-timeout-seconds":
                timeout = _seconds(value)
            elif name == b"x-poise-lane":
                deferred = value == b"deferred"
            elif name == b"content-length" and int(value) > MAX_BODY:
                raise too_large()
        return service, timeout, deferred

    def _service(self, path: str) -> Asked:
        name = path[len("/predict") :].lstrip("/")
        if not name and len(self._fronts) == 1:
            name = next(iter(self._fronts))
        if name in self._fronts:
            return self._fronts[name]
        raise Refused(404, f"there is no service `{name[:100]}`; known: {', '.join(self._fronts)}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if self._rest is not None and path.startswith("/v1/"):
            await self._rest(scope, receive, send)
        elif path == "/healthz":
            await answer(send, 200, b'{"status":"ok"}', JSON)
        elif path == "/readyz":
            await self._readiness(send)
        elif path == "/canaries":
            reports = {name: trial.report() for name, trial in self._trials.items()}
            await answer(send, 200, msgspec.json.encode(reports), JSON)
        elif path == "/metrics":
            for service in self._services.values():
                service.measure()
            await answer(send, 200, generate_latest(self._registry), [(b"content-type", CONTENT_TYPE_LATEST.encode())])
        else:
            known = [f"/predict/{name}" for name in self._fronts] + ["/v1/models"] * (self._rest is not None)
            message = f"there is nothing at {path[:100]}; there is {', '.join(known)}"
            await answer(send, 404, msgspec.json.encode({"error": {"code": 404, "message": message}}), JSON)

    async def _readiness(self, send: Send) -> None:
        without = [name for name in self._fronts if not self._services[name].replicas]
        body = msgspec.json.encode({"ready": not without and not self.draining, "without_replica": without})
        await answer(send, 503 if without or self.draining else 200, body, JSON)


def _seconds(text: bytes) -> int:
    try:
        timeout = int(float(text) * SECOND)
    except (ValueError, OverflowError):
        timeout = 0
    if timeout <= 0:
        raise Refused(400, "X-Request-Timeout-Seconds is a number above 0")
    return timeout


def too_large() -> Refused:
    return Refused(413, f"a body has {MAX_BODY >> 20} MiB at most")


def no_room() -> Refused:
    message = f"the bodies of those who wait have {MOST_BODIES >> 20} MiB together already"
    return Refused(503, message, headers={"retry-after": "1"})


def refusal(refuse: Refuse) -> Refused:
    """What whoever asked is told of a question that a service refuses."""
    status = STATUS[refuse.why]
    headers = {"retry-after": str(-(-max(refuse.after, 1) // SECOND))} if status == 503 else {}
    return Refused(status, refuse.message, headers=headers)


__all__ = ["MAX_BODY", "Gateway", "Refused", "no_room", "refusal", "too_large"]
