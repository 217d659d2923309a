"""Messages between gateways before the same upstreams (`poise_serve.peers`)."""

from typing import Annotated, Literal

import msgspec

from poise_serve.model.routing import Amount, Asked

FIRST_ELSEWHERE = 1 << 32
"""Gateways that are heard over HTTP have numbers from here on, drawn at random; those of one machine begin at 0."""

Count = Annotated[int, msgspec.Meta(ge=0)]

Outcome = Literal["answered", "refused", "failed", "neither"]
"""Outcome of a request: a full answer; a refusal that is the request's fault, or means busy; a failure of the upstream;
or unknown, because the client disconnected.
"""


class Sent(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A request was sent to an upstream."""

    turn: int
    server: str
    model: str
    asked: Asked


class Began(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """An answer that streams has begun."""

    turn: int


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A request is over. `is_failure`: it failed, or took far too long. `took`: nanoseconds, without the time in which
    its client did not read. `wrote` and `cached` are as in `Estimates.answered`.
    """

    turn: int
    outcome: Outcome
    is_failure: bool
    took: int
    wrote: Amount
    cached: Annotated[float, msgspec.Meta(ge=0, le=1)] | None


class Alive(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The gateway serves, and has these requests in flight."""

    turns: list[int]


class Retried(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A retry was taken from the budget that all share."""


class Spent(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A key has spent requests and tokens of its allowances."""

    key: str
    requests: Count
    tokens: Count


class Joined(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The gateway has just started: it has no requests in flight, and knows of none."""


class Rests(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """An upstream has asked for a pause, of which this many nanoseconds are left."""

    server: str
    left: Count


class Probed(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """A probe has changed whether an upstream is healthy."""

    server: str
    is_healthy: bool


class Ejected(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """An upstream is ejected, told to a gateway that did not see its failures. `left`: nanoseconds of the `pause`."""

    server: str
    left: Count
    pause: Count


class Lost(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """An upstream was lost while it answered a prompt, named by its hash."""

    key: bytes
    server: str


class Cleared(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """A prompt with which an upstream was lost was answered."""

    key: bytes


News = Sent | Began | Ended | Alive | Retried | Spent | Joined | Rests | Probed | Ejected | Lost | Cleared


class Message(msgspec.Struct, frozen=True, array_like=True):
    """News of one gateway, by its number. `serial`: of the batch in which they came from another machine, or 0."""

    gateway: int
    news: News
    serial: int = 0


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """News of one gateway for those on another machine. `group`: the gateways of one machine and address. `serial`
    counts its batches. `at`: seconds since 1970.
    """

    group: str
    gateway: Annotated[int, msgspec.Meta(ge=FIRST_ELSEWHERE)]
    serial: Count
    at: Amount
    news: list[News]


__all__ = [
    "FIRST_ELSEWHERE",
    "Alive",
    "Batch",
    "Began",
    "Cleared",
    "Ejected",
    "Ended",
    "Joined",
    "Lost",
    "Message",
    "News",
    "Outcome",
    "Probed",
    "Rests",
    "Retried",
    "Sent",
    "Spent",
]
