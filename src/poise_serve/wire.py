"""Protocol between gateway and replicas: msgpack frames with a length prefix (4 bytes).

Over a Unix socket the gateway begins with one byte and two descriptors: the shared buffers (see `shared`) for large
bodies and large answers. Over TLS a replica begins with `Enter`. It sends `Hello` after loading its model. Then it gets
`Work`, at most one besides the one that it does, and replies to each with `Answers`, or with `Broken` after a failure.
Bodies are those of the requests, unchanged.

A replica that serves several requests at once sends their number in `Hello`. It then gets up to this number of `Work`,
each with one request, and `Drop` for a request whose client has disconnected. It may send the answer in `Part`s before
its `Answers`, which then has no body. No body of it is in a shared buffer.

A process that several services share has one more connection. It begins with `Enter`, gets `Keep`, `Load` and `Unload`,
and replies with `Loading`, and then `Loaded` or `Failed`. Each loaded model then connects to its service as above.
"""

import struct
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from poise.decoding import msgpack_decoder

Schema = dict[str, Any]
"""A JSON Schema."""

LENGTH = struct.Struct(">I")
MAX_FRAME = 1 << 30

MOST_BODIES = MAX_FRAME - (1 << 20)
"""Maximum total bytes of bodies in one frame; the rest is for the other fields."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Position in the sender's buffer of body `number`, which is empty in the frame."""

    number: int
    at: int
    size: int


class Forms(msgspec.Struct, frozen=True, array_like=True):
    """Schemas of a model's inputs and results, by media type; `parts` are the referenced schemas, by name."""

    takes: dict[str, Schema]
    gives: dict[str, Schema]
    parts: dict[str, Schema] = {}


ANYTHING = Forms(takes={"application/json": {}}, gives={"application/json": {}})


class Enter(msgspec.Struct, frozen=True, array_like=True, tag="enter"):
    """First message of a replica on another machine: its `service`, by the path of the socket; its attempt, and the
    attempt's key.
    """

    service: str
    task: str
    epoch: int
    key: str

    @property
    def name(self) -> str:
        """Name of the replica, unique for each attempt."""
        return f"{self.task}.{self.epoch}"


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """A replica is ready. `known`: batch sizes measured at the start, with their nanoseconds. `room`: largest batch, in
    items, that fits in memory; 0 if unknown. `at_once`: number of requests that it serves at once, each by itself; 0 if
    it serves batches.
    """

    name: str
    known: list[tuple[int, float]] = []
    forms: Forms = ANYTHING
    room: int = 0
    at_once: int = 0


class Work(msgspec.Struct, frozen=True, array_like=True, tag="work"):
    """A batch. It is padded to `padded` items by repeating the last one. `traceparent`: context of its span. `ahead`:
    sent before the answers of the previous batch were read.
    """

    number: int
    padded: int
    bodies: list[bytes]
    places: list[Place] = []
    traceparent: str = ""
    ahead: bool = False


class Drop(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """The client of this request has gone."""

    number: int


class Part(msgspec.Struct, frozen=True, array_like=True, tag="part"):
    """A part of the answer to this request, and its media type, which is the same in all parts."""

    number: int
    kind: str
    body: bytes


EVENTS = "text/event-stream"


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """An HTTP status, a media type and a body."""

    status: int
    kind: str
    body: bytes


class Answers(msgspec.Struct, frozen=True, array_like=True, tag="answers"):
    """One answer for each request of the batch. `took`: nanoseconds; `items`: size of the padded batch; `room`: as in
    `Hello`.
    """

    number: int
    took: int
    items: int
    answers: list[Answer]
    places: list[Place] = []
    room: int = 0


class Broken(msgspec.Struct, frozen=True, array_like=True, tag="broken"):
    """The model raised an error, or the batch ran out of memory."""

    number: int
    why: Literal["raised", "memory"]
    message: str


class Load(msgspec.Struct, frozen=True, array_like=True, tag="load"):
    """Load the `model` of a service, which listens at `socket`, from this folder. `batch`: largest batch. `at_once`:
    number of requests to serve at once, if the model takes them one by one. `whole`: field of the service that needs
    whole answers, if any. `precision`: as of the service.
    """

    socket: str
    service: str
    model: str
    folder: str
    batch: int
    at_once: int
    whole: str = ""
    precision: str = ""


class Unload(msgspec.Struct, frozen=True, array_like=True, tag="unload"):
    """Answer the current requests of this model, and unload it."""

    socket: str


class Keep(msgspec.Struct, frozen=True, array_like=True, tag="keep"):
    """Unload all other models."""

    sockets: list[str]


class Loading(msgspec.Struct, frozen=True, array_like=True, tag="loading"):
    """The process begins to load this model."""

    socket: str


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    """This model is loaded."""

    socket: str


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """This model cannot be loaded, and the reason."""

    socket: str
    why: str


FromReplica = Hello | Answers | Broken | Part
ToReplica = Work | Drop
FromProcess = Enter | Loading | Loaded | Failed
ToProcess = Load | Unload | Keep


class Problem(msgspec.Struct, frozen=True):
    """An error. `code` is the HTTP status."""

    code: int
    message: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error outside /v1/."""

    error: Problem


encode = msgspec.msgpack.Encoder().encode
decode_to_replica: msgspec.msgpack.Decoder[ToReplica] = msgpack_decoder(ToReplica)
decode_enter: msgspec.msgpack.Decoder[Enter] = msgpack_decoder(Enter)
decode_from_replica: msgspec.msgpack.Decoder[FromReplica] = msgpack_decoder(FromReplica)
decode_from_process: msgspec.msgpack.Decoder[FromProcess] = msgpack_decoder(FromProcess)
decode_to_process: msgspec.msgpack.Decoder[ToProcess] = msgpack_decoder(ToProcess)


def error_body(status: int, message: str) -> bytes:
    """Encode an error for a client, in the form of all errors outside /v1/."""
    return msgspec.json.encode(ErrorBody(Problem(status, message)))


def framed(message: msgspec.Struct) -> bytes:
    data = encode(message)
    return LENGTH.pack(len(data)) + data


class Frames:
    """Collects bytes, and returns the complete frames in them, of at most `most` bytes."""

    def __init__(self, most: int = MAX_FRAME) -> None:
        self._most = most
        self._buffer = bytearray()

    def add(self, data: bytes) -> Iterator[bytes]:
        """Yield each complete frame. Raises `DecodeError` for one that is too large."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= LENGTH.size:
            length = LENGTH.unpack_from(buffer)[0]
            if length > self._most:
                raise msgspec.DecodeError(f"a frame of {length} bytes")
            end = LENGTH.size + length
            if len(buffer) < end:
                return
            frame = bytes(memoryview(buffer)[LENGTH.size : end])
            del buffer[:end]
            yield frame


__all__ = [
    "ANYTHING",
    "EVENTS",
    "LENGTH",
    "MAX_FRAME",
    "MOST_BODIES",
    "Answer",
    "Answers",
    "Broken",
    "Drop",
    "Enter",
    "ErrorBody",
    "Failed",
    "Forms",
    "Frames",
    "FromProcess",
    "FromReplica",
    "Hello",
    "Keep",
    "Load",
    "Loaded",
    "Loading",
    "Part",
    "Place",
    "ToProcess",
    "ToReplica",
    "Unload",
    "Work",
    "decode_enter",
    "decode_from_process",
    "decode_from_replica",
    "decode_to_process",
    "decode_to_replica",
    "error_body",
    "framed",
]
