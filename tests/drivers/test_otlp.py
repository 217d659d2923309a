"""Spans as OTLP, and what the environment says of the collector."""

import gzip
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from otlp import trace_service_pb2 as messages

from poise.drivers.otlp import Collector, Unsent, encode, endpoint, endpoint_in
from poise.errors import InputError
from poise.model.traces import Context, Link, Span, SpanEvent

CONTEXT = Context(b"\1" * 16, b"\2" * 8, b"\3" * 8, state="a=b")
SPAN = Span(
    context=CONTEXT,
    name="run train",
    start=10,
    end=30,
    attributes={"text": "ä", "whole": -3, "part": 0.5, "yes": True},
    events=(SpanEvent(20, "waits", {"why": "n1"}),),
    links=(Link(Context(b"\4" * 16, b"\5" * 8), {"poise.link": "needs"}),),
    error="failed",
)


class Answering:
    """A server that gives each request the next of its answers, and keeps what it was sent."""

    def __init__(self, *answers: tuple[int, dict[str, str], bytes]) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        left = list(answers)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                outer.headers.append(dict(self.headers))
                status, headers, body = left.pop(0)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def __enter__(self) -> "Answering":
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_a_span_is_what_opentelemetry_decodes() -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x, plain = 1",
        "OTEL_SERVICE_NAME": "lab",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
    }
    with Answering((200, {}, b"")) as server:
        assert Collector(server.url, environ).send([SPAN]) == 0
    request = messages.ExportTraceServiceRequest.FromString(gzip.decompress(server.bodies[0]))
    (of_resource,) = request.resource_spans
    resource = {one.key: one.value.string_value for one in of_resource.resource.attributes}
    assert (resource["service.name"], resource["deployment.environment"]) == ("lab", "test")
    (span,) = of_resource.scope_spans[0].spans
    assert (span.trace_id, span.span_id, span.parent_span_id) == (CONTEXT.trace, CONTEXT.span, CONTEXT.parent)
    assert (span.name, span.start_time_unix_nano, span.end_time_unix_nano, span.trace_state) == (
        "run train",
        10,
        30,
        "a=b",
    )
    values = {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
    assert values == {"text": "ä", "whole": -3, "part": 0.5, "yes": True}
    assert (span.events[0].name, span.links[0].span_id, span.status.message) == ("waits", b"\5" * 8, "failed")
    assert (server.headers[0]["authorization"], server.headers[0]["plain"]) == ("Bearer x", "1")


def test_a_span_from_before_1970_keeps_no_others_back() -> None:
    request = messages.ExportTraceServiceRequest.FromString(encode([msgspec.structs.replace(SPAN, start=-5), SPAN], {}))
    first, second = request.resource_spans[0].scope_spans[0].spans
    assert (first.start_time_unix_nano, second.start_time_unix_nano) == (0, 10)


def test_a_partly_refused_batch_is_counted_and_a_kept_connection_that_was_closed_is_opened_again() -> None:
    refused = messages.ExportTraceServiceResponse()
    refused.partial_success.rejected_spans = 3
    with Answering((200, {"Connection": "close"}, b""), (200, {}, refused.SerializeToString())) as server:
        collector = Collector(server.url, {})
        assert [collector.send([SPAN]), collector.send([SPAN])] == [0, 3]
        collector.close()


@pytest.mark.parametrize(
    "answer", [b"ok", b"\x0a", b"\x0a\x7f", b"\x80" * 40, b"\xff" * 40, b"\x0a\x02\x12\x09", b"{}"]
)
def test_an_answer_that_cannot_be_read_refuses_nothing(answer: bytes) -> None:
    with Answering((200, {}, answer)) as server:
        assert Collector(server.url, {}).send([SPAN]) == 0


@pytest.mark.parametrize(
    ("status", "headers", "again", "after"),
    [(503, {"Retry-After": "7"}, True, 7.0), (429, {}, True, 0.0), (401, {}, True, 0.0), (400, {}, False, 0.0),
     (500, {}, False, 0.0), (302, {"Location": "http://elsewhere/"}, False, 0.0)],
)  # fmt: skip
def test_which_answers_are_worth_another_try(status: int, headers: dict[str, str], again: bool, after: float) -> None:
    with Answering((status, headers, b"why")) as server, pytest.raises(Unsent) as raised:
        Collector(server.url, {}).send([SPAN])
    assert (raised.value.again, raised.value.after) == (again, after)
    assert f"answered {status}: why" in str(raised.value)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unsent) as raised:
        Collector(f"http://127.0.0.1:{port}/v1/traces", {}).send([SPAN])
    assert raised.value.again


@pytest.mark.parametrize(
    "url", ["", "collector:port", "ftp://a", "http://", "http://a:b", "http://u:p@a", "http://a b", "http://[::1"]
)
def test_what_is_no_url_of_a_collector(url: str) -> None:
    with pytest.raises(InputError) as raised:
        endpoint(url, "--traces")
    assert raised.value.record.field == "--traces"


def test_the_url_of_the_environment() -> None:
    assert endpoint_in({}) == ""
    both = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318/",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b/x/v1/traces",
    }
    assert endpoint_in(both) == "http://b/x/v1/traces"
    assert endpoint_in({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318/"}) == "http://a:4318/v1/traces"


@pytest.mark.parametrize("text", ["secret", "=secret", "a=b\nsecret"])
def test_headers_that_cannot_be_read_are_not_repeated(text: str) -> None:
    with pytest.raises(InputError) as raised:
        Collector("http://a/v1/traces", {"OTEL_EXPORTER_OTLP_HEADERS": text})
    assert "secret" not in json.dumps(str(raised.value.record))


def test_spans_are_sent_at_the_interval_of_the_environment() -> None:
    assert Collector("http://a/v1/traces", {}).every == 5.0
    assert Collector("http://a/v1/traces", {"OTEL_BSP_SCHEDULE_DELAY": "250"}).every == 0.25


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "soon", "99999999", "\u0661\u0662"])
def test_an_interval_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError) as raised:
        Collector("http://a/v1/traces", {"OTEL_BSP_SCHEDULE_DELAY": text})
    assert (raised.value.record.field, raised.value.record.have) == ("OTEL_BSP_SCHEDULE_DELAY", text)
