"""Spans for a collector of OpenTelemetry: OTLP in Protobuf, over HTTP.

Where to send and as whom is told by a URL, and by the environment variables that exporters of OpenTelemetry read:
`OTEL_EXPORTER_OTLP_ENDPOINT`, `_HEADERS`, `_CERTIFICATE` (each also as `OTEL_EXPORTER_OTLP_TRACES_…`),
`OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`.
"""

import gzip
import http.client
import socket
import ssl
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

from poise import __version__
from poise.errors import InputError, extra
from poise.model.traces import Span, SpanEvent, Value

try:
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
        ExportTraceServiceResponse,
    )
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    from opentelemetry.proto.trace.v1 import trace_pb2
except ImportError:
    raise InputError("sending traces needs opentelemetry-proto, which is not installed", hint=extra("traces")) from None

PATH = "/v1/traces"
SECONDS = 10.0
"""Time limit of a request, as of OpenTelemetry's exporters."""

MOST_ANSWER = 64 * 1024
"""Bytes of an answer that are read."""

AGAIN = frozenset({401, 403, 404, 408, 429, 502, 503, 504})
"""Statuses after which the same spans are sent again: those that OTLP names, and those of a collector, an address or a
token that a person mends."""


class Unsent(Exception):
    """Spans were not taken. `again`: the same may be taken later, at the earliest after so many seconds (0: unsaid)."""

    def __init__(self, why: str, *, again: bool, after: float = 0.0) -> None:
        super().__init__(why)
        self.again = again
        self.after = after


def endpoint(url: str, field: str) -> str:
    """The URL to which spans are posted: `/v1/traces` below the URL or `HOST:PORT` of a collector. Raises `InputError`.

    >>> endpoint("collector:4318", "--traces")
    'http://collector:4318/v1/traces'
    >>> endpoint("https://otlp.example/api/v1/traces", "--traces")
    'https://otlp.example/api/v1/traces'
    """
    given, url = url, url if "://" in url else f"http://{url}"
    try:
        split = urlsplit(url)
        valid = split.scheme in ("http", "https") and bool(split.hostname) and (split.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or any(letter.isspace() for letter in url) or split.username is not None:
        hint = "127.0.0.1:4318; a token belongs into OTEL_EXPORTER_OTLP_HEADERS"
        raise InputError(
            "this is not the URL of a collector", field=field, need="http(s)://HOST:PORT", have=given, hint=hint
        )
    return url if split.path.endswith(PATH) else url.rstrip("/") + PATH


def endpoint_in(environ: Mapping[str, str]) -> str:
    """The URL that the environment names for spans, or an empty text. Raises `InputError`."""
    if url := environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip():
        return endpoint(url, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if url := environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip():
        return endpoint(url, "OTEL_EXPORTER_OTLP_ENDPOINT")
    return ""


class Collector:
    """Where spans are sent, over one kept connection."""

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        """Raises `InputError` for an environment that cannot be read."""
        self.url = url
        split = urlsplit(url)
        self._host, self._path = split.hostname or "", split.path + (f"?{split.query}" if split.query else "")
        self._secure = split.scheme == "https"
        self._port = split.port or (443 if self._secure else 80)
        self._context: ssl.SSLContext | None = None
        if self._secure:
            authority = _either(environ, "CERTIFICATE")
            try:
                self._context = ssl.create_default_context(cafile=authority or None)
            except (OSError, ssl.SSLError) as error:
                name = "OTEL_EXPORTER_OTLP_CERTIFICATE"
                raise InputError(f"the certificates cannot be read: {error}", field=name, have=authority) from None
        self._headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "gzip",
            "User-Agent": f"poise/{__version__}",
            **_pairs(_either(environ, "HEADERS"), "OTEL_EXPORTER_OTLP_HEADERS"),
        }
        told = _pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""), "OTEL_RESOURCE_ATTRIBUTES")
        name = environ.get("OTEL_SERVICE_NAME") or told.get("service.name") or "poise"
        resource = told | {"service.name": name, "service.version": __version__, "telemetry.sdk.language": "python"}
        self._resource = Resource(attributes=_attributes(resource))
        self._connection: http.client.HTTPConnection | None = None

    def send(self, spans: Iterable[Span], seconds: float = SECONDS) -> int:
        """Send spans. Returns the number of those that the collector refused. Raises `Unsent`."""
        body = gzip.compress(encode(spans, self._resource), 1)
        try:
            status, after, content = self._post(body, seconds)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unsent(f"{self.url} does not answer: {str(error) or type(error).__name__}", again=True) from None
        if status != http.client.OK:
            why = content[:200].decode("utf-8", "replace") if content.isascii() else ""
            told = f"{self.url} answered {status}{f': {why}' if why else ''}"
            raise Unsent(told, again=status in AGAIN, after=float(after) if after.isdecimal() else 0.0)
        try:
            return int(ExportTraceServiceResponse.FromString(content).partial_success.rejected_spans)
        except DecodeError:
            return 0

    def _post(self, body: bytes, seconds: float) -> tuple[int, str, bytes]:
        """Once more over a new connection where the kept one has been closed meanwhile."""
        kept = self._connection is not None
        try:
            return self._once(body, seconds)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            if not kept:
                raise
            self.close()
            return self._once(body, seconds)

    def _once(self, body: bytes, seconds: float) -> tuple[int, str, bytes]:
        if self._connection is None:
            self._connection = (
                http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._context)
                if self._secure
                else http.client.HTTPConnection(self._host, self._port, timeout=seconds)
            )
        if isinstance(self._connection.sock, socket.socket):
            self._connection.sock.settimeout(seconds)
        self._connection.request("POST", self._path, body, self._headers)
        with self._connection.getresponse() as answer:
            content = answer.read(MOST_ANSWER)
            if not answer.isclosed():  # there is more than is read
                self.close()
            return answer.status, answer.headers.get("Retry-After", ""), content

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def encode(spans: Iterable[Span], resource: Resource) -> bytes:
    """A request of OTLP."""
    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add(resource=resource)
    of_scope = of_resource.scope_spans.add()
    of_scope.scope.name, of_scope.scope.version = "poise", __version__
    of_scope.spans.extend(map(_encoded, spans))
    return bytes(request.SerializeToString())


def _encoded(span: Span) -> trace_pb2.Span:
    context = span.context
    return trace_pb2.Span(
        trace_id=context.trace,
        span_id=context.span,
        parent_span_id=context.parent,
        trace_state=context.state,
        flags=int(context.sampled),
        name=span.name,
        kind=span.kind,
        start_time_unix_nano=span.start,
        end_time_unix_nano=span.end,
        attributes=_attributes(span.attributes),
        events=map(_event, span.events),
        links=[
            trace_pb2.Span.Link(
                trace_id=link.to.trace,
                span_id=link.to.span,
                trace_state=link.to.state,
                flags=int(link.to.sampled),
                attributes=_attributes(link.attributes),
            )
            for link in span.links
        ],
        status=trace_pb2.Status(code=trace_pb2.Status.STATUS_CODE_ERROR, message=span.error) if span.error else None,
    )


def _event(event: SpanEvent) -> trace_pb2.Span.Event:
    return trace_pb2.Span.Event(time_unix_nano=event.at, name=event.name, attributes=_attributes(event.attributes))


def _attributes(told: Mapping[str, Value]) -> list[KeyValue]:
    return [KeyValue(key=name, value=_value(value)) for name, value in told.items()]


def _value(value: Value) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    return AnyValue(double_value=value) if isinstance(value, float) else AnyValue(string_value=value)


def _either(environ: Mapping[str, str], name: str) -> str:
    """What is set for traces, else for all signals."""
    return environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _pairs(text: str, field: str) -> dict[str, str]:
    """`a=1,b=two%20words`, as OpenTelemetry writes headers and attributes. Raises `InputError`, without the values."""
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = part.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not name or not equals or not name.isascii() or not (name + value).isprintable():
            raise InputError("this cannot be read", field=field, need="NAME=VALUE,NAME=VALUE")
        found[name] = value
    return found
