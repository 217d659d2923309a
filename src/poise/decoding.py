"""Decoders for types, created by one thread at a time.

msgspec (0.22) analyses a struct at its first decoder and marks it as known before the analysis is complete. A second
thread that creates a decoder for it, or for a type that contains it, then reads incomplete data, and the process dies
of SIGSEGV. So all decoders come from here. For a known type this costs microseconds.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_making = threading.Lock()


@overload
def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder from JSON to a type."""
    with _making:
        return msgspec.json.Decoder(kind)


Hook = Callable[[type, Any], Any]
"""Creates an instance of a type that msgspec does not know from plain values."""


@overload
def msgpack_decoder(kind: type[T], hook: Hook | None = None) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: Any, hook: Hook | None = None) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: Any, hook: Hook | None = None) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder from MessagePack to a type."""
    with _making:
        return msgspec.msgpack.Decoder(kind, dec_hook=hook)


def convert(value: Any, kind: type[T], *, strict: bool = True, str_keys: bool = False) -> T:
    """Convert plain values to a type. See `msgspec.convert` for `strict` and `str_keys`."""
    msgpack_decoder(kind)
    return msgspec.convert(value, kind, strict=strict, str_keys=str_keys)
