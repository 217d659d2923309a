"""Access control in front of every route of a gateway.

A web page can reach a gateway on the loopback, or in the network of its reader, in two ways: with a host name of its
own that resolves there (then Host is that name), or with a cross-site request (then Origin is its site). Both are
refused unless the site is allowed (CORS). Programs send no Origin, and the Host that they call.

If a gateway has keys, each request except a probe needs one. The key determines the permissions, the tenant
(`X-Poise-Tenant` is set to it) and the remaining allowances. Without keys, only programs on this machine may clear the
cache of answers.
"""

import ipaddress
import re
import time
from collections.abc import Collection, Iterable, MutableMapping
from functools import lru_cache
from typing import Any

from poise.drivers.gateways import ADMIN
from poise_serve.asgi import ASKER, App, Receive, Scope, Send, answer
from poise_serve.keys import Holder, Keys, Usage
from poise_serve.links import PEERS
from poise_serve.openai import FREE, LETTERS_PER_TOKEN, USAGE_WITHIN, is_api, told_prompt, told_tokens
from poise_serve.refusals import Refused, problem

ANY = "*"
"""Setting that allows all origins."""

REMEMBERED = 600
"""Seconds for which a browser may cache a preflight answer."""

SHOWN = b"retry-after, x-poise-upstream, cache-status, age"
"""Headers of answers that pages of other sites may read."""

_LOOKED_AT = frozenset(
    {
        b"host",
        b"origin",
        b"authorization",
        b"x-api-key",  # Anthropic's clients
        b"access-control-request-method",
        b"access-control-request-headers",
    }
)
_HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")


MODELS = "/v2/repository/models/"
"""The paths that load and unload models begin with this."""

PUBLIC = frozenset({"/healthz", "/readyz"})
"""Paths for probes, which need no key."""


class Door:
    """ASGI middleware for access control."""

    def __init__(
        self,
        app: App,
        names: Collection[str] = (),
        origins: Collection[str] = (),
        keys: Keys | None = None,
        usage: Usage | None = None,
    ) -> None:
        """`names`: host names of this machine besides `localhost` and its addresses. `origins`: allowed origins of web
        pages. `usage`: metrics of the `keys`, if there are any.
        """
        self._app = app
        self._keys, self._usage = keys, usage
        self._names = {"localhost", *(name.lower() for name in names)}
        self._origins = {origin.lower() for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == PEERS:  # other gateways sign what they send, whatever name they use for this one
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _LOOKED_AT}
        host, origin = headers.get(b"host", "").lower(), headers.get(b"origin", "").lower()
        try:
            self._check_host(host)
            if origin and origin.split("//", 1)[-1] != host:
                self._check_origin(origin)
                shared = _shared(headers[b"origin"])
                if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                    await answer(send, 204, b"", [*shared, *_preflight(headers)])
                    return
                send = _with(send, shared)
            await self._enter(scope, receive, send, headers)
        except Refused as error:
            more = [(name.encode(), value.encode()) for name, value in error.headers.items()]
            body = problem(scope["path"], error.status, error.message)
            await answer(send, error.status, body, [(b"content-type", b"application/json"), *more])

    async def _enter(self, scope: Scope, receive: Receive, send: Send, headers: MutableMapping[bytes, str]) -> None:
        needed = _needed(scope["method"], scope["path"])
        if self._keys is None or self._usage is None or needed is None:
            if needed == "admin":
                raise Refused(403, "`poise service` on this machine changes the configuration; others need keys")
            if needed == "forget" and not _is_here(scope):
                raise Refused(403, "only programs on this machine may forget answers; `poise serve --keys` lets others")
            await self._app(scope, receive, send)
            return
        holder = await self._keys.holder(_secret(headers))
        try:
            if needed and needed not in holder.scopes:
                raise Refused(403, f"the key `{holder.name}` has not the scope `{needed}`")
            if needed == "ask":
                holder.take(time.monotonic_ns())
        except Refused as error:
            self._usage.refused.labels(holder.name, holder.tenant, str(error.status)).inc()
            raise
        metered = Metered(holder, scope, receive, send)
        try:
            await self._app(metered.scope, metered.receive, metered.send)
        finally:
            metered.count(self._usage)

    async def key_of(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the name of the key of a request; empty if none is needed. Raises `Refused` if it is unknown."""
        if self._keys is None:
            return ""
        return (await self._keys.holder(_secret({name: value.decode("latin-1") for name, value in headers}))).name

    def _check_host(self, host: str) -> None:
        """Check the Host header. It may be missing, as in HTTP/1.0; browsers always send it."""
        if not host or _is_address(host) or (name := _name(host)) in self._names:
            return
        message = (
            f"the Host `{host[:80]}` is not this machine; `poise serve --host-name {name[:80] or 'NAME'}` adds a name"
        )
        raise Refused(403, message)

    def _check_origin(self, origin: str) -> None:
        if ANY not in self._origins and origin not in self._origins:
            message = f"pages of `{origin[:80]}` may not ask here; `poise serve --cors ORIGIN` lets those of a site in"
            raise Refused(403, message)


class Metered:
    """A request with an API key, and its metered usage."""

    def __init__(self, holder: Holder, scope: Scope, receive: Receive, send: Send) -> None:
        hidden = {b"x-poise-tenant", *((b"accept-encoding",) if holder.is_metered else ())}  # usage is read in answers
        headers = [(name, value) for name, value in scope["headers"] if name not in hidden]
        headers.append((b"x-poise-tenant", holder.tenant.encode()))
        self.scope = {**scope, "headers": headers, "extensions": {**scope["extensions"], ASKER: self}}
        self._counts = is_api(scope["path"]) and scope["path"] not in FREE
        self._holder = holder
        self._receive, self._send = receive, send
        self._model = ""
        self._status = 0
        self._asked = self._answered = self._events = 0
        self._first = self._end = b""

    @property
    def name(self) -> str:
        return self._holder.name

    def may_ask(self, model: str) -> bool:
        if self._holder.may_ask(model):
            self._model = model
            return True
        return False

    async def receive(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        self._asked += len(message.get("body", b""))
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif self._counts:
            body = message.get("body", b"")
            self._answered += len(body)
            self._events += body.count(b"data: ")
            if len(self._first) < USAGE_WITHIN:
                self._first += body[: USAGE_WITHIN - len(self._first)]
            self._end = (self._end + body)[-USAGE_WITHIN:]
        await self._send(message)

    def count(self, usage: Usage) -> None:
        """Record the usage after the request has ended in any way."""
        if not self._model:
            return
        holder, model = self._holder, self._model
        usage.requests.labels(holder.name, holder.tenant, model, str(self._status)).inc()
        if not self._counts or self._status != 200:
            return
        prompt = told_prompt(self._end)
        if prompt is None:  # a stream of Anthropic's tells it at its beginning
            prompt = told_prompt(self._first)
        took = {"prompt": prompt, "completion": told_tokens(self._end, "completion")}
        if took["prompt"] is None:  # a stream without usage, or an interrupted one
            took = {
                "prompt": self._asked // LETTERS_PER_TOKEN,
                "completion": self._events or self._answered // LETTERS_PER_TOKEN,
            }
        for kind, tokens in took.items():
            usage.tokens.labels(holder.name, holder.tenant, model, kind).inc(tokens or 0)
        holder.spend(sum(tokens or 0 for tokens in took.values()), time.monotonic_ns())


def _needed(method: str, path: str) -> str | None:
    """The scope that a request needs; an empty one: any key; None: no key."""
    if path in PUBLIC:
        return None
    if path.startswith("/cache/"):
        return "forget"
    if path.startswith((ADMIN, MODELS)):
        return "admin"
    if path in ("/metrics", "/canaries"):
        return "read"
    return "ask" if method == "POST" else ""


def _secret(headers: MutableMapping[bytes, str]) -> str:
    """Return the key in a request's headers; empty without one."""
    scheme, _, secret = headers.get(b"authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else headers.get(b"x-api-key", "").strip()


def _is_here(scope: Scope) -> bool:
    """Return whether the client is a program on this machine, and not a proxy: a proxy names its client in a header."""
    client = scope["client"]
    if client is None or any(name in (b"forwarded", b"x-forwarded-for") for name, _ in scope["headers"]):
        return False
    address = ipaddress.ip_address(client[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _name(host: str) -> str:
    """Return the name or the address in a Host header, without the port; empty if the header is invalid."""
    match = _HOST.fullmatch(host)
    return match[1].strip("[]") if match is not None and int(match[2] or 0) < 2**16 else ""


@lru_cache(maxsize=256)
def _is_address(host: str) -> bool:
    """Whether a Host header is an IP address, which is safe: DNS rebinding needs a name."""
    try:
        ipaddress.ip_address(_name(host))
    except ValueError:
        return False
    return True


def _shared(origin: str) -> list[tuple[bytes, bytes]]:
    """Return the CORS headers that let a page of this origin read an answer."""
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", SHOWN),
        (b"vary", b"Origin"),
    ]


def _preflight(headers: MutableMapping[bytes, str]) -> list[tuple[bytes, bytes]]:
    """Return the headers that allow the requested method and headers; keys are checked with the request itself."""
    wanted = headers.get(b"access-control-request-headers", "")
    return [
        (b"access-control-allow-methods", headers[b"access-control-request-method"].encode("latin-1")),
        *([(b"access-control-allow-headers", wanted.encode("latin-1"))] if wanted else []),
        (b"access-control-max-age", str(REMEMBERED).encode()),
    ]


def _with(send: Send, more: list[tuple[bytes, bytes]]) -> Send:
    """Wrap `send` to add headers to the answer."""

    async def send_more(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return send_more


__all__ = ["ANY", "Door", "Metered"]
