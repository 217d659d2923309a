"""Decoders into types, made by one thread at a time.

msgspec (0.22) works out what a struct is made of when it is first decoded into, and calls it known before it is done: a
second thread that decodes into it, or into a type that holds it, reads what is not there yet, and SIGSEGV ends the
process. So all that decodes into a type has its decoder from here; what is worked out already costs microseconds.
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
    """What decodes JSON into a type."""
    with _making:
        return msgspec.json.Decoder(kind)


Hook = Callable[[type, Any], Any]
"""Makes an instance of a type that msgspec does not know, out of plain values."""


@overload
def msgpack_decoder(kind: type[T], hook: Hook | None = None) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: Any, hook: Hook | None = None) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: Any, hook: Hook | None = None) -> msgspec.msgpack.Decoder[Any]:
    """What decodes MessagePack into a type."""
    with _making:
        return msgspec.msgpack.Decoder(kind, dec_hook=hook)


def convert(value: Any, kind: type[T], *, strict: bool = True, str_keys: bool = False) -> T:
    """Plain values as a type; `strict` and `str_keys` as of `msgspec.convert`."""
    msgpack_decoder(kind)
    return msgspec.convert(value, kind, strict=strict, str_keys=str_keys)
