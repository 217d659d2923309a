"""Values of calls, between a caller's process and its workers: encoded by one, decoded by the other, opaque to all
processes in between.

* `m`: msgpack, for values that it restores exactly: None, booleans, numbers, texts, bytes, and lists and dictionaries
  (with text keys) of these;
* `a`: a numpy array, as its type, its shape and its raw bytes;
* `p`: anything else, as a pickle that the user's own process wrote and the user's own process reads. Functions and
  classes that cannot be imported (of a notebook, for example) are sent by value, through cloudpickle.

Up to `INLINE` bytes are sent inside records; larger values go to a file.
"""

import functools
import os
import pickle
import secrets
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec

from poise.errors import NotFound
from poise.model.calls import INLINE, Value

_MOST_LOOKED_AT = 256
"""Maximum number of elements to check one by one; larger values are faster to pickle."""

_INT = range(-(2**63), 2**64)
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode
_PLAIN = frozenset((type(None), bool, float, str, bytes))


SCRIPT = "__poise_main__"
"""The name under which a worker loads the script that is the caller's `__main__`. In the caller it is an alias of
`__main__`, so that both can unpickle the other's data.
"""


class Placeholder:
    """A placeholder in the arguments of a call for the result of an earlier one."""

    def __init__(self, number: int) -> None:
        self.number = number


def encode(value: Any, folder: Path) -> Value:
    """Encode a value; a large one goes to a new file in `folder`. Raises what pickling raises."""
    if is_plain(value):
        try:
            return _placed("m", _pack(value), folder)
        except (ValueError, RecursionError):  # a lone surrogate, for example
            return _placed("p", pickled(value), folder)
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject and value.dtype.names is None:
        head = _pack([value.dtype.str, list(value.shape)])
        data = numpy.ascontiguousarray(value).tobytes()
        return _placed("a", len(head).to_bytes(4, "little") + head + data, folder)
    return _placed("p", pickled(value), folder)


def decode(value: Value) -> Any:
    """Return the decoded value. Raises NotFound if its file is gone, and any exception of unpickling."""
    data = value.data
    if value.file:
        try:
            data = Path(value.file).read_bytes()
        except OSError as error:
            raise NotFound(
                f"the file of a value cannot be read: {error.strerror}", field=value.file, hint="call it again"
            ) from None
    if value.encoding == "m":
        return _unpack(data)
    if value.encoding == "a":
        import numpy

        end = 4 + int.from_bytes(data[:4], "little")
        kind, shape = _unpack(data[4:end])
        return numpy.frombuffer(data, dtype=kind, offset=end).reshape(shape).copy()
    return pickle.loads(data)  # noqa: S301 — written by a process of the same user, for this one


def discard(value: Value) -> None:
    """Remove its file, if it has one."""
    if value.file:
        Path(value.file).unlink(missing_ok=True)


def pickled(value: Any) -> bytes:
    """Use the standard pickle if possible, else cloudpickle: for lambdas, and definitions in a notebook."""
    if program():
        try:
            return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError):
            pass
    return bytes(cloudpickle.dumps(value))


MODULE = "-m "


def program() -> str:
    """Return the program that is `__main__`: a script, or `-m` and the name of a module; "" for a notebook or a prompt,
    which workers cannot load.
    """
    main = sys.modules["__main__"]
    loaded = getattr(main, "__poise_script__", "")
    if loaded:
        return str(loaded)
    spec = getattr(main, "__spec__", None)
    return _program_in(getattr(main, "__file__", None) or "", spec.name if spec is not None else "")


@functools.cache
def _program_in(path: str, module: str) -> str:
    """Return the program's name, cached because every pickled value needs it."""
    if not Path(path).is_file():
        return ""
    return MODULE + module if module else str(Path(path).resolve())


def is_plain(value: Any) -> bool:
    """Return whether msgpack restores exactly this value: no tuple, no subclass, only text keys, no huge integer."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is int:
        return value in _INT
    return kind in (list, dict) and _look(value, _MOST_LOOKED_AT) >= 0


def _look(value: Any, left: int) -> int:
    """Return how many more elements may be checked; negative if one is not plain, or there are too many."""
    kind = type(value)
    if kind in _PLAIN:
        return left - 1
    if kind is int:
        return left - 1 if value in _INT else -1
    if kind is list:
        for item in value:
            left = _look(item, left)
            if left < 0:
                return left
        return left
    if kind is dict:
        for key, item in value.items():
            left = _look(item, left) if type(key) is str else -1
            if left < 0:
                return left
        return left
    return -1


def _placed(encoding: str, data: bytes, folder: Path) -> Value:
    if len(data) <= INLINE:
        return Value(encoding, data)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / secrets.token_hex(8)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
    except OSError:  # a partial value would keep a full disk full
        path.unlink(missing_ok=True)
        raise
    return Value(encoding, b"", str(path), len(data))
