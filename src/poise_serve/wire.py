"""What gateway and replicas say to each other: frames of msgpack behind their length (4 bytes).

Over a Unix socket the gateway begins with one byte and two descriptors: the buffers (see `shared`) of large bodies,
and of large answers. Over TLS a replica begins with `Enter`. It says `Hello` once it has loaded its model. Then it is
sent one `Work` at a time and answers each with `Answers`, or with `Broken` if it could not; the bodies are those of
the requests, as they came.
"""

import struct
from typing import Any, Literal

import msgspec

from poise.decoding import msgpack_decoder

Schema = dict[str, Any]
"""A JSON Schema."""

LENGTH = struct.Struct(">I")
MAX_FRAME = 1 << 30

MOST_BODIES = MAX_FRAME - (1 << 20)
"""Bytes of all bodies in one frame; the rest is for what is said beside them."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where in the buffer of its sender the body is that is `number` of a frame, and empty there."""

    number: int
    at: int
    size: int


class Forms(msgspec.Struct, frozen=True, array_like=True):
    """What a model takes and gives, by media type; `parts` are the schemas that these refer to, by name."""

    takes: dict[str, Schema]
    gives: dict[str, Schema]
    parts: dict[str, Schema] = {}


ANYTHING = Forms(takes={"application/json": {}}, gives={"application/json": {}})


class Enter(msgspec.Struct, frozen=True, array_like=True, tag="enter"):
    """Of a replica on another machine: the `service` that asked for it, by the path of its socket; which attempt it is,
    and the key of that.
    """

    service: str
    task: str
    epoch: int
    key: str

    @property
    def name(self) -> str:
        """That of the replica: no other attempt has it."""
        return f"{self.task}.{self.epoch}"


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """`known`: sizes that were tried when it started, and the nanoseconds that they took. `room`: for how many items of
    a batch there is memory, 0 if that is not known.
    """

    name: str
    known: list[tuple[int, float]] = []
    forms: Forms = ANYTHING
    room: int = 0


class Work(msgspec.Struct, frozen=True, array_like=True, tag="work"):
    """A batch; the model is given `padded` items, of which the last is repeated. `traceparent` is that of its span."""

    number: int
    padded: int
    bodies: list[bytes]
    places: list[Place] = []
    traceparent: str = ""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """A status of HTTP, the media type and the body."""

    status: int
    kind: str
    body: bytes


class Answers(msgspec.Struct, frozen=True, array_like=True, tag="answers"):
    """One for each request of the batch, which took so many nanoseconds; the model was given `items`. `room`: as in
    `Hello`.
    """

    number: int
    took: int
    items: int
    answers: list[Answer]
    places: list[Place] = []
    room: int = 0


class Broken(msgspec.Struct, frozen=True, array_like=True, tag="broken"):
    """The model raised, or there was no memory for so many at once."""

    number: int
    why: Literal["raised", "memory"]
    message: str


FromReplica = Hello | Answers | Broken


class Problem(msgspec.Struct, frozen=True):
    """`code` is the status of HTTP."""

    code: int
    message: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error outside /v1/."""

    error: Problem


encode = msgspec.msgpack.Encoder().encode
decode_work: msgspec.msgpack.Decoder[Work] = msgpack_decoder(Work)
decode_enter: msgspec.msgpack.Decoder[Enter] = msgpack_decoder(Enter)
decode_from_replica: msgspec.msgpack.Decoder[FromReplica] = msgpack_decoder(FromReplica)


def error_body(status: int, message: str) -> bytes:
    """The one form of all errors that are told to clients, outside /v1/."""
    return msgspec.json.encode(ErrorBody(Problem(status, message)))


def framed(message: Work | FromReplica | Enter) -> bytes:
    data = encode(message)
    return LENGTH.pack(len(data)) + data


__all__ = [
    "ANYTHING",
    "LENGTH",
    "MAX_FRAME",
    "MOST_BODIES",
    "Answer",
    "Answers",
    "Broken",
    "Enter",
    "ErrorBody",
    "Forms",
    "FromReplica",
    "Hello",
    "Place",
    "Work",
    "decode_enter",
    "decode_from_replica",
    "decode_work",
    "error_body",
    "framed",
]
