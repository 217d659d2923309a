"""Spans of requests: which are told of, and what is passed on."""

import asyncio
from collections.abc import MutableMapping, Sequence
from typing import Any

import pytest

from poise.model.traces import Context, Span
from poise_serve.asgi import Receive, Scope, Send
from poise_serve.tracing import Batches, Tracing, current

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = PARENT[:-1] + "0"


class Gateway:
    """Answers with a status, and keeps the header that it was given; asks a batch if it has `batches`."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.seen: list[str] = []
        self.batches: Batches | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        self.seen.append(headers.get(b"traceparent", b"").decode())
        if self.batches is not None:
            self.batches.begin(7, [current.get(), None])
            self.batches.end("j1.main.1", 7, 2)
        if self.status:
            await send({"type": "http.response.start", "status": self.status, "headers": []})
            await send({"type": "http.response.body", "body": b""})


def asked(
    tracing: Tracing, app: Gateway, *parents: str, method: str = "POST", path: str = "/predict"
) -> list[MutableMapping[str, Any]]:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def run() -> None:
        around = tracing.around(app)
        for parent in parents:
            headers = [(b"traceparent", parent.encode())] if parent else []
            await around({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
        tracing.flush()

    asyncio.run(run())
    return sent


def made(share: float = 0.0) -> tuple[Tracing, list[Span]]:
    spans: list[Span] = []

    def tell(some: Sequence[Span]) -> None:
        spans.extend(some)

    return Tracing(share, tell), spans


def test_a_sampled_parent_decides_and_its_child_is_passed_on() -> None:
    (tracing, spans), app = made(), Gateway()
    assert [message["type"] for message in asked(tracing, app, PARENT)] == ["http.response.start", "http.response.body"]
    (span,) = spans
    parent = Context.parse(PARENT)
    assert parent is not None and (span.context.trace, span.context.parent) == (parent.trace, parent.span)
    assert app.seen == [span.context.text] and app.seen != [PARENT]
    assert span.start <= span.end and not span.error


def test_an_unsampled_parent_is_passed_on_and_not_told_of() -> None:
    (tracing, spans), app = made(1.0), Gateway()
    asked(tracing, app, UNSAMPLED)
    assert spans == [] and app.seen[0].startswith(UNSAMPLED[:36]) and app.seen[0].endswith("-00")


@pytest.mark.parametrize(("share", "told"), [(0.0, 0), (1.0, 100)])
def test_a_share_of_those_without_a_trace_is_told_of(share: float, told: int) -> None:
    (tracing, spans), app = made(share), Gateway()
    asked(tracing, app, *[""] * 100)
    assert len(spans) == told and len(set(app.seen)) == max(1, told)
    assert len({span.context.trace for span in spans}) == told


def test_what_is_only_read_is_not_told_of() -> None:
    (tracing, spans), app = made(1.0), Gateway()
    asked(tracing, app, PARENT, method="GET", path="/metrics")
    assert spans == [] and app.seen == [PARENT]


@pytest.mark.parametrize(("status", "error"), [(200, ""), (422, ""), (503, "status 503"), (0, "the client has gone")])
def test_what_counts_as_an_error(status: int, error: str) -> None:
    tracing, spans = made()
    asked(tracing, Gateway(status), PARENT)
    assert [span.error for span in spans] == [error]


def test_a_batch_and_its_requests_link_to_each_other() -> None:
    (tracing, spans), app = made(), Gateway()
    app.batches = Batches("digits", tracing)
    asked(tracing, app, PARENT, "")
    batch, request = spans
    assert (batch.name, batch.attributes["poise.batch.size"]) == ("batch digits", 2)
    assert [link.to for link in batch.links] == [request.context]
    assert [link.to for link in request.links] == [batch.context]
    assert batch.context.trace != request.context.trace
