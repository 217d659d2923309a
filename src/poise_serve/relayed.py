"""Messages between the gateways of a group and its core: msgpack frames with a length prefix, as in `poise_serve.wire`.

The core says `Ready` to a gateway that connects. The gateway sends `Open` with the first part of the body. If the body
has more parts, the core asks for each with `More`, and gets `Data`. The core answers with `Part`s. The gateway confirms
each but the last with `Taken`, so that the core does not send faster than the client reads. `Gone`: the client has
disconnected. `Abort`: disconnect the client.
"""

import msgspec

from poise.decoding import msgpack_decoder

WINDOW = 16
"""Maximum number of parts of an answer that are not confirmed."""

Headers = list[tuple[bytes, bytes]]


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """A request. `client`: address and port. `is_whole`: whether `body` is all of it. `came`: when it came, in
    nanoseconds of the clock that all processes of a machine share.
    """

    number: int
    method: str
    path: str
    query: bytes
    headers: Headers
    client: tuple[str, int] | None
    body: bytes
    is_whole: bool
    came: int = 0


class Data(msgspec.Struct, frozen=True, array_like=True, tag="data"):
    """The next part of a body."""

    number: int
    body: bytes
    is_whole: bool


class Taken(msgspec.Struct, frozen=True, array_like=True, tag="taken"):
    """The client has read a part of its answer."""

    number: int


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """The client has disconnected."""

    number: int


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The core takes requests. The kernel also accepts connections to a process that is being killed."""


class More(msgspec.Struct, frozen=True, array_like=True, tag="more"):
    """Send the next part of the body."""

    number: int


class Part(msgspec.Struct, frozen=True, array_like=True, tag="part"):
    """A part of an answer. `status` and `headers` are in the first one only."""

    number: int
    body: bytes
    is_last: bool
    status: int = 0
    headers: Headers = []


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """Disconnect the client."""

    number: int


ToCore = Open | Data | Taken | Gone
FromCore = Ready | More | Part | Abort

decode_to_core: msgspec.msgpack.Decoder[ToCore] = msgpack_decoder(ToCore)
decode_from_core: msgspec.msgpack.Decoder[FromCore] = msgpack_decoder(FromCore)

__all__ = [
    "WINDOW",
    "Abort",
    "Data",
    "FromCore",
    "Gone",
    "Headers",
    "More",
    "Open",
    "Part",
    "Ready",
    "Taken",
    "ToCore",
    "decode_from_core",
    "decode_to_core",
]
