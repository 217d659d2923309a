"""Sends spans to an OpenTelemetry collector: OTLP in Protobuf, over HTTP.

The messages are encoded here instead of with `opentelemetry-proto`. With that package installed, Ray does not start
without its own dashboard: Ray mistakes the bare `opentelemetry` package for all of OpenTelemetry.

The destination and the credentials come from a URL and from the standard environment variables of exporters:
`OTEL_EXPORTER_OTLP_ENDPOINT`, `_HEADERS`, `_CERTIFICATE` (each also as `OTEL_EXPORTER_OTLP_TRACES_…`),
`OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`. So does the interval of sending: `OTEL_BSP_SCHEDULE_DELAY`.
"""

import gzip
import http.client
import socket
import ssl
import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from urllib.parse import unquote, urlsplit

from poise import __version__
from poise.errors import InputError
from poise.model.traces import Link, Span, SpanEvent, Value

PATH = "/v1/traces"
SECONDS = 10.0
"""Time limit of a request, as in OpenTelemetry's exporters."""

DELAY_MS, LEAST_DELAY_MS, MOST_DELAY_MS = 5000, 10, 60_000
"""Milliseconds between two times of sending: the default, as in OpenTelemetry's exporters, and the limits."""

MOST_ANSWER = 64 * 1024
"""Maximum bytes of an answer to read."""

AGAIN = frozenset({401, 403, 404, 408, 429, 502, 503, 504})
"""Statuses after which the same spans are sent again: those that OTLP names, and those that fixing a collector, an
address or a token would resolve."""


STATUS_ERROR = 2


class Unsent(Exception):
    """The collector did not accept spans. `again`: a retry may succeed, after at least `after` seconds (0: unknown)."""

    def __init__(self, why: str, *, again: bool, after: float = 0.0) -> None:
        super().__init__(why)
        self.again = again
        self.after = after


def endpoint(url: str, field: str) -> str:
    """Return the URL for spans: `/v1/traces` below the URL or `HOST:PORT` of a collector. Raises `InputError`.

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
        hint = "127.0.0.1:4318; put a token in OTEL_EXPORTER_OTLP_HEADERS"
        raise InputError(
            "this is not the URL of a collector", field=field, need="http(s)://HOST:PORT", have=given, hint=hint
        )
    return url if split.path.endswith(PATH) else url.rstrip("/") + PATH


def endpoint_in(environ: Mapping[str, str]) -> str:
    """Return the URL that the environment names for spans, or "". Raises `InputError`."""
    if url := environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip():
        return endpoint(url, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if url := environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip():
        return endpoint(url, "OTEL_EXPORTER_OTLP_ENDPOINT")
    return ""


class Collector:
    """Sends spans to one collector over a persistent connection."""

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        """Raises `InputError` if an environment variable is malformed."""
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
        self._resource = resource
        self.every = _delay(environ)
        """Seconds between two times of sending."""
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
        return _refused(content)

    def _post(self, body: bytes, seconds: float) -> tuple[int, str, bytes]:
        """Send a request. Retry it over a new connection if the server has closed the persistent one."""
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
            if not answer.isclosed():  # the answer is longer than the limit
                self.close()
            return answer.status, answer.headers.get("Retry-After", ""), content

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def encode(spans: Iterable[Span], resource: Mapping[str, Value]) -> bytes:
    """Return an OTLP request. Field numbers: `opentelemetry/proto/collector/trace/v1/trace_service.proto` and its
    imports, version 1.
    """
    scope = _text(1, "poise") + _text(2, __version__)
    of_scope = _bytes(1, scope) + b"".join(_bytes(2, _encoded(span)) for span in spans)
    return _bytes(1, _bytes(1, _attributes(1, resource)) + _bytes(2, of_scope))


def _encoded(span: Span) -> bytes:
    context = span.context
    parts = [
        _TRACE_ID, context.trace,
        _SPAN_ID, context.span,
        _text(3, context.state) if context.state else b"",
        _PARENT_ID + context.parent if context.parent else b"",
        _text(5, span.name),
        _number(6, span.kind),
        _START, max(0, span.start).to_bytes(8, "little"),
        _END, max(0, span.end).to_bytes(8, "little"),
        *[_attribute(9, name, value) for name, value in span.attributes.items()],
        *[_bytes(11, _event(event)) for event in span.events],
        *[_bytes(13, _link(link)) for link in span.links],
        _bytes(15, _text(2, span.error) + _number(3, STATUS_ERROR)) if span.error else b"",
        _flags(16, sampled=context.sampled),
    ]  # fmt: skip
    return b"".join(parts)


def _event(event: SpanEvent) -> bytes:
    return _fixed(1, event.at) + _text(2, event.name) + _attributes(3, event.attributes)


def _link(link: Link) -> bytes:
    to = link.to
    ids = _bytes(1, to.trace) + _bytes(2, to.span) + _text(3, to.state)
    return ids + _attributes(4, link.attributes) + _flags(6, sampled=to.sampled)


def _attributes(number: int, told: Mapping[str, Value]) -> bytes:
    return b"".join([_attribute(number, name, value) for name, value in told.items()])


@lru_cache(4096, typed=True)
def _attribute(number: int, name: str, value: Value) -> bytes:
    """Encode an attribute, with a cache, because spans share most values: nodes, classes, reasons."""
    return _bytes(number, _text(1, name) + _bytes(2, _value(value)))


def _value(value: Value) -> bytes:
    if isinstance(value, bool):
        return _number(2, value)
    if isinstance(value, int):
        return _number(3, value)
    return _FEW[4 << 3 | _FIXED64] + struct.pack("<d", value) if isinstance(value, float) else _text(1, value)


# --- the encoding of Protocol Buffers ---------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    return _FEW[value] if 0 <= value < 512 else _digits(value)


def _digits(value: int) -> bytes:
    value &= 2**64 - 1
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


_FEW = tuple(map(_digits, range(512)))
"""Encodings of frequent numbers: keys, lengths and small values."""


_LENGTH, _FIXED64, _FIXED32 = 2, 1, 5
"""Wire types; varints have type 0."""

_TRACE_ID, _SPAN_ID, _PARENT_ID = (bytes((number << 3 | _LENGTH, size)) for number, size in ((1, 16), (2, 8), (4, 8)))
_START, _END = (bytes((number << 3 | _FIXED64,)) for number in (7, 8))
"""The start of each span: the keys of its ids with their lengths, and the keys of its times."""


def _number(number: int, value: int) -> bytes:
    return _FEW[number << 3] + _varint(value)


def _fixed(number: int, value: int) -> bytes:
    return _FEW[number << 3 | _FIXED64] + max(0, value).to_bytes(8, "little")


def _flags(number: int, *, sampled: bool) -> bytes:
    return _FEW[number << 3 | _FIXED32] + sampled.to_bytes(4, "little")


def _bytes(number: int, value: bytes) -> bytes:
    return _FEW[number << 3 | _LENGTH] + _varint(len(value)) + value


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode("utf-8", "replace"))


def _refused(answer: bytes) -> int:
    """Return the number of rejected spans in an answer (`partial_success.rejected_spans`); 0 if it is unreadable."""
    try:
        return int.from_bytes(_found(1, _found(1, answer)), "big")
    except (IndexError, ValueError):
        return 0


def _found(number: int, message: bytes) -> bytes:
    """Return the value of a field: the bytes of a length-delimited field, a number as eight bytes; empty if absent.
    Raises IndexError or ValueError if `message` is malformed.
    """
    at, found = 0, b""
    while at < len(message):
        key, at = _read_varint(message, at)
        wire = key & 7
        if wire == 0:
            value, at = _read_varint(message, at)
            content = value.to_bytes(8, "big")
        else:
            if wire == 2:
                length, at = _read_varint(message, at)
            else:
                length = {1: 8, 5: 4}.get(wire, len(message) + 1)
            content, at = message[at : at + length], at + length
            if at > len(message):
                raise ValueError("it ends too early")
        found = content if key >> 3 == number else found
    return found


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    value = shift = 0
    while True:
        value |= (message[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if message[at - 1] < 0x80:
            return value & (2**64 - 1), at


def _either(environ: Mapping[str, str], name: str) -> str:
    """Return the setting for traces, or else the one for all signals."""
    return environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _delay(environ: Mapping[str, str]) -> float:
    """Return the seconds that the environment gives between two times of sending. Raises `InputError`."""
    name = "OTEL_BSP_SCHEDULE_DELAY"
    told = environ.get(name, "").strip() or str(DELAY_MS)
    if not (told.isascii() and told.isdecimal()) or not LEAST_DELAY_MS <= int(told) <= MOST_DELAY_MS:
        need = f"whole milliseconds, {LEAST_DELAY_MS} to {MOST_DELAY_MS}"
        raise InputError("this is not an interval", field=name, need=need, have=told, hint=f"{name}={DELAY_MS}")
    return int(told) / 1000


def _pairs(text: str, field: str) -> dict[str, str]:
    """Parse `a=1,b=two%20words`, OpenTelemetry's form of headers and attributes. Raises `InputError`, without the
    values."""
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = part.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not name or not equals or not name.isascii() or not (name + value).isprintable():
            raise InputError("this cannot be read", field=field, need="NAME=VALUE,NAME=VALUE")
        found[name] = value
    return found
