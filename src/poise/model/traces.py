"""Traces: the W3C trace context for propagation, and spans.

>>> context = Context.parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
>>> context.text if context else None
'00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
"""

import re
from collections.abc import Mapping

import msgspec

TRACEPARENT, TRACESTATE = "TRACEPARENT", "TRACESTATE"
"""Environment variables that carry a trace context (OpenTelemetry, *Environment variables as context propagation
carriers*).
"""

LONGEST_STATE = 512
"""Maximum length of a propagated trace state, the minimum that W3C requires; a longer one is dropped."""

MOST_EVENTS, MOST_LINKS = 128, 128
"""Maximum number of events and of links of one span: the defaults of OpenTelemetry."""

SAMPLED = 0x01

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")

Value = str | bool | int | float
"""A value of an attribute."""


class Context(msgspec.Struct, frozen=True):
    """A span in a trace: the ids of the trace (16 bytes), of the span and of its `parent` (8 bytes; empty for the
    root), and whether the trace is `sampled`. `state` is vendor data that is propagated unread.
    """

    trace: bytes
    span: bytes
    parent: bytes = b""
    sampled: bool = True
    state: str = ""

    @classmethod
    def parse(cls, traceparent: str, state: str = "") -> "Context | None":
        """Return the context of a `traceparent`, or None if it is invalid: then a new trace begins (W3C)."""
        found = _TRACEPARENT.fullmatch(traceparent.strip())
        if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
            return None
        trace, span = bytes.fromhex(found[2]), bytes.fromhex(found[3])
        if not any(trace) or not any(span):
            return None
        state = state if len(state) <= LONGEST_STATE else ""
        return cls(trace, span, sampled=bool(int(found[4], 16) & SAMPLED), state=state)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Context | None":
        """Return the context in an environment, if any."""
        return cls.parse(environ.get(TRACEPARENT, ""), environ.get(TRACESTATE, ""))

    @property
    def text(self) -> str:
        """The context as a `traceparent`."""
        return f"00-{self.trace.hex()}-{self.span.hex()}-{SAMPLED if self.sampled else 0:02x}"

    def below(self, span: bytes) -> "Context":
        """Return the context of a child span with this id."""
        return Context(self.trace, span, self.span, self.sampled, self.state)


def carried(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a valid trace context in an environment."""
    context = Context.of(environ)
    if context is None:
        return {}
    return {TRACEPARENT: environ[TRACEPARENT]} | ({TRACESTATE: context.state} if context.state else {})


class SpanEvent(msgspec.Struct, frozen=True):
    """An event in a span, in nanoseconds since 1970."""

    at: int
    name: str
    attributes: dict[str, Value] = {}


class Link(msgspec.Struct, frozen=True):
    """A related span of this or another trace, with attributes of the relation."""

    to: Context
    attributes: dict[str, Value] = {}


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A span: a period in a trace, in nanoseconds since 1970. It failed if there is an `error`."""

    context: Context
    name: str
    start: int
    end: int
    kind: int = 1
    attributes: dict[str, Value] = {}
    events: tuple[SpanEvent, ...] = ()
    links: tuple[Link, ...] = ()
    error: str = ""


INTERNAL, SERVER, CLIENT = 1, 2, 3
"""Kinds of spans, as in OTLP."""


class Exported(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of the exporter of a home: the `revision` up to which all spans were processed, and the numbers of spans
    that were `sent`, `refused` by the collector, and `lost` because the buffer was full. `error` is the reason why it
    waits, if it does.
    """

    revision: int = 0
    sent: int = 0
    refused: int = 0
    lost: int = 0
    error: str = ""
