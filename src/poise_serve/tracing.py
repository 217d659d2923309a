"""Records spans of requests and batches, for the exporter of the home.

A request in a sampled trace gets a span, and one in an unsampled trace gets none. Requests without a trace are sampled
at a configured share. The context of the span is passed on as `traceparent`. A batch has many requests and so no
parent: its span and theirs link to each other. Spans go to the exporter in datagrams, without waiting for it.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

from poise.model.traces import INTERNAL, MOST_LINKS, SERVER, Context, Link, Span, Value
from poise_serve.asgi import App, Receive, Scope, Send

TOGETHER, EVERY = 32, 0.5
"""Spans in one datagram, and the delay in seconds after which fewer are sent."""

MOST_TEXT = 200
"""Maximum length of a path or an error message in a span, in characters."""

TRACEPARENT, TRACESTATE = b"traceparent", b"tracestate"

Tell = Callable[[Sequence[Span]], None]


class Traced:
    """A sampled request: its span, and links to the spans of its batches."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.links: list[Link] = []


current: ContextVar[Traced | None] = ContextVar("poise_traced", default=None)
"""The sampled request of the running task, if any."""


class Tracing:
    """Records the spans of a gateway. `share` is the sampled share of the requests without a trace."""

    def __init__(self, share: float, tell: Tell) -> None:
        self._share = share
        self._tell = tell
        self._made: list[Span] = []
        self._timer: asyncio.TimerHandle | None = None
        self._chance = random.Random(os.urandom(16))  # noqa: S311 — sampling needs no secrecy

    def around(self, app: App) -> App:
        """Wrap an ASGI application, to record a span for each sampled request."""
        return partial(self._serve, app)

    async def _serve(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        context = self._context(scope["headers"]) if scope["method"] == "POST" else None
        if context is None:
            await app(scope, receive, send)
            return
        headers = [(name, value) for name, value in scope["headers"] if name != TRACEPARENT]
        scope["headers"] = [*headers, (TRACEPARENT, context.text.encode())]
        if not context.sampled:
            await app(scope, receive, send)
            return
        traced, began, status = Traced(context), time.time_ns(), 0

        async def noting(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        mark = current.set(traced)
        try:
            await app(scope, receive, noting)
        finally:
            current.reset(mark)
            path = scope["path"][:MOST_TEXT]
            attributes: dict[str, Value] = {"http.request.method": scope["method"], "url.path": path}
            if status:
                attributes["http.response.status_code"] = status
            self.tell(
                Span(
                    context=context,
                    name=f"{scope['method']} {path}",
                    start=began,
                    end=max(began, time.time_ns()),
                    kind=SERVER,
                    attributes=attributes,
                    links=tuple(traced.links),
                    error="" if 0 < status < 500 else f"status {status}" if status else "the client has gone",
                )
            )

    def _context(self, headers: Sequence[tuple[bytes, bytes]]) -> Context | None:
        """Return the span context of a request; None if it has no trace and is not sampled."""
        given = {name: value for name, value in headers if name in (TRACEPARENT, TRACESTATE)}
        parent = None
        if TRACEPARENT in given:
            state = given.get(TRACESTATE, b"").decode("latin-1")
            parent = Context.parse(given[TRACEPARENT].decode("latin-1"), state if state.isprintable() else "")
        if parent is not None:
            return parent.below(self._chance.randbytes(8))
        if self._chance.random() >= self._share:
            return None
        return Context(self._chance.randbytes(16), self._chance.randbytes(8))

    def batch(self, requests: Sequence[Traced]) -> Context:
        """Return the span context of a batch about to be sent, and link these requests to it."""
        context = Context(self._chance.randbytes(16), self._chance.randbytes(8))
        for request in requests:
            if len(request.links) < MOST_LINKS:
                request.links.append(Link(context, {"poise.link": "batch"}))
        return context

    def tell(self, span: Span) -> None:
        self._made.append(span)
        if len(self._made) >= TOGETHER:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        made, self._made = self._made, []
        if made:
            self._tell(made)


class Batches:
    """Records the spans of one service's batches, by their numbers."""

    def __init__(self, service: str, tracing: Tracing | None) -> None:
        self._service = service
        self._tracing = tracing
        self._asked: dict[int, tuple[Context, int, tuple[Link, ...]]] = {}

    def begin(self, number: int, requests: Sequence[Traced | None]) -> str:
        """Begin the span of a batch. Return the `traceparent` for its replica; empty if no request is sampled."""
        told = [request for request in requests if request is not None]
        if not told or self._tracing is None:
            return ""
        context = self._tracing.batch(told)
        links = tuple(Link(request.context, {"poise.link": "request"}) for request in told[:MOST_LINKS])
        self._asked[number] = context, time.time_ns(), links
        return context.text

    def end(self, replica: str, number: int, size: int, error: str = "") -> None:
        """End the span of a batch that was answered or failed."""
        if self._tracing is None or (asked := self._asked.pop(number, None)) is None:
            return
        context, began, links = asked
        attributes: dict[str, Value] = {"poise.service": self._service, "poise.replica": replica}
        if size:
            attributes["poise.batch.size"] = size
        self._tracing.tell(
            Span(
                context=context,
                name=f"batch {self._service}",
                start=began,
                end=max(began, time.time_ns()),
                kind=INTERNAL,
                attributes=attributes,
                links=links,
                error=error[:MOST_TEXT],
            )
        )


__all__ = ["Batches", "Traced", "Tracing", "current"]
