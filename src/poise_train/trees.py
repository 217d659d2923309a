"""Splits a state, such as `{"model": model.state_dict(), "epoch": 3}`, into a JSON tree and its tensors.

A state may contain mappings, lists, tuples, texts, numbers, None, bytes and dense tensors. Saving rejects anything
else, so that restoring cannot fail on it. Reading runs no code: nothing uses pickle.

    state                  tree
    None, True, 3, 0.5     unchanged; numbers that JSON does not have: {"float": "nan"}, {"int": "2 to the 100, say"}
    "text", [1, 2]         unchanged
    (1, 2)                 {"tuple": [1, 2]}
    {"a": 1, 0: 2}         {"map": [["a", 1], [0, 2]]}
    b"bytes"               {"bytes": "in base64"}
    a tensor               {"tensor": its number}; a tensor at two places is stored once
"""

import base64
import math
from collections.abc import Mapping
from typing import Any

import torch

from poise.errors import SpecError
from poise_train.model.checkpoints import Kind

DEEPEST = 64
_PLAIN = 2**53
"""Integers up to this are stored as JSON numbers: every JSON reader represents them exactly."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
"""Types by their safetensors names."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Taken:
    """The `tensors` of a state, and their descriptions (`kinds`, with unique names)."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.kinds: list[Kind] = []
        self._names: set[str] = set()
        self._known: dict[tuple[Any, ...], int] = {}

    def tree(self, state: Any, name: str = "") -> Any:
        """Add a state and return its tree. Tensors are named by `name` and their places in the state. Raises
        `SpecError` with the place of a value that cannot be saved.
        """
        return self._tree(state, (name,) if name else ())

    def _tree(self, value: Any, place: tuple[str, ...]) -> Any:
        if len(place) > DEEPEST:
            raise _refused(place[:3], f"a state is {DEEPEST} levels deep at most", "it holds itself, or is deeper")
        match value:
            case None | bool():
                return value
            case str():
                return str(value)
            case int():
                return int(value) if abs(value) <= _PLAIN else {"int": str(int(value))}
            case float():
                return float(value) if math.isfinite(value) else {"float": repr(float(value))}
            case bytes() | bytearray():
                return {"bytes": base64.b64encode(value).decode()}
            case torch.Tensor():
                return {"tensor": self._number(value, place)}
            case list():
                return [self._tree(one, (*place, str(at))) for at, one in enumerate(value)]
            case tuple():
                return {"tuple": [self._tree(one, (*place, str(at))) for at, one in enumerate(value)]}
            case Mapping():
                return {
                    "map": [[self._key(key, place), self._tree(one, (*place, str(key)))] for key, one in value.items()]
                }
        hint = "torch.from_numpy(ARRAY), NUMBER.item(), or the `state_dict()` of an object"
        raise _refused(
            place, "tensors, numbers, texts, bytes, None, lists, tuples and mappings", type(value).__name__, hint
        )

    def _key(self, key: Any, place: tuple[str, ...]) -> Any:
        if isinstance(key, torch.Tensor) or not isinstance(key, str | int | float | bytes | tuple | None):
            raise _refused(place, "keys that are texts, numbers, bytes or tuples", type(key).__name__)
        return self._tree(key, place)

    def _number(self, tensor: torch.Tensor, place: tuple[str, ...]) -> int:
        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
        if not is_plain or tensor.is_quantized or tensor.is_meta:
            kind = f"{type(tensor).__name__}, {tensor.layout}, {tensor.dtype} on {tensor.device}"
            hint = "TENSOR.full_tensor(), TENSOR.to_dense()"
            raise _refused(place, "dense tensors that each worker has whole", kind, hint)
        if tensor.dtype not in _NAMES:
            hint = "torch.view_as_real(TENSOR)" if tensor.is_complex() else "TENSOR.to(...) another type"
            raise _refused(place, f"tensors of {', '.join(_NAMES.values())}", str(tensor.dtype), hint)
        shape = tuple(tensor.shape)
        flags = tensor.is_conj(), tensor.is_neg()
        lies = (tensor.device, tensor.data_ptr(), tensor.dtype, shape, tensor.stride(), flags)
        if lies in self._known and tensor.numel():
            return self._known[lies]
        name = ".".join(place) or "tensor"
        while name in self._names:
            name += "'"
        self._names.add(name)
        self._known[lies] = len(self.tensors)
        self.tensors.append(tensor)
        self.kinds.append(Kind(name, _NAMES[tensor.dtype], shape))
        return len(self.tensors) - 1


def put_together(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """Rebuild a state from its tree. Raises `ValueError` for an invalid tree."""
    match tree:
        case None | bool() | int() | float() | str():
            return tree
        case list():
            return [put_together(one, tensors) for one in tree]
        case {"tuple": list(ones)}:
            return tuple(put_together(one, tensors) for one in ones)
        case {"map": list(pairs)}:
            return {put_together(key, tensors): put_together(one, tensors) for key, one in pairs}
        case {"bytes": str(text)}:
            return base64.b64decode(text, validate=True)
        case {"int": str(text)}:
            return int(text)
        case {"float": str(text)}:
            return float(text)
        case {"tensor": int(number)} if 0 <= number < len(tensors):
            return tensors[number]
    raise ValueError(f"a tree of a state does not hold such: {str(tree)[:80]}")


def _refused(place: tuple[str, ...], need: str, have: str, hint: str = "") -> SpecError:
    where = "state" + "".join(f"[{part}]" for part in place)
    return SpecError(f"{where} cannot be saved in a checkpoint", field=where, need=need, have=have, hint=hint)
