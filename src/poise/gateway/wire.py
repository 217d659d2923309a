"""What gateway and replicas say to each other over a Unix socket: frames of msgpack behind their length (4 bytes).

The gateway begins with one byte and two descriptors: the buffers (see `shared`) of large bodies, and of large answers.
A replica says `Hello` once it has loaded its model. Then it is sent one `Work` at a time and answers each with
`Answers`, or with `Broken` if it could not; the bodies are those of the requests, as they came.
"""

import struct
from typing import Literal

import msgspec

LENGTH = struct.Struct(">I")
MAX_FRAME = 1 << 30

MOST_BODIES = MAX_FRAME - (1 << 20)
"""Bytes of all bodies in one frame; the rest is for what is said beside them."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where in the buffer of its sender the body is that is `number` of a frame, and empty there."""

    number: int
    at: int
    size: int


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """`known`: sizes that were tried when it started, and the nanoseconds that they took."""

    name: str
    known: list[tuple[int, float]] = []


class Work(msgspec.Struct, frozen=True, array_like=True, tag="work"):
    """A batch; the model is given `padded` items, of which the last is repeated."""

    number: int
    padded: int
    bodies: list[bytes]
    places: list[Place] = []


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """A status of HTTP, the media type and the body."""

    status: int
    kind: str
    body: bytes


class Answers(msgspec.Struct, frozen=True, array_like=True, tag="answers"):
    """One for each request of the batch, which took so many nanoseconds; the model was given `items`."""

    number: int
    took: int
    items: int
    answers: list[Answer]
    places: list[Place] = []


class Broken(msgspec.Struct, frozen=True, array_like=True, tag="broken"):
    """The model raised, or there was no memory for so many at once."""

    number: int
    why: Literal["raised", "memory"]
    message: str


FromReplica = Hello | Answers | Broken

encode = msgspec.msgpack.Encoder().encode
decode_work: msgspec.msgpack.Decoder[Work] = msgspec.msgpack.Decoder(Work)
decode_from_replica: msgspec.msgpack.Decoder[FromReplica] = msgspec.msgpack.Decoder(FromReplica)


def framed(message: Work | FromReplica) -> bytes:
    data = encode(message)
    return LENGTH.pack(len(data)) + data


__all__ = [
    "LENGTH",
    "MAX_FRAME",
    "MOST_BODIES",
    "Answer",
    "Answers",
    "Broken",
    "FromReplica",
    "Hello",
    "Place",
    "Work",
    "decode_from_replica",
    "decode_work",
    "framed",
]
