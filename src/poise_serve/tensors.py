"""Tensors of the Open Inference Protocol (KServe's version 2) as inputs and results of models.

The first dimension of a tensor counts the items of a request: item `i` of a model's batch is row `i`. With one input,
an item is its row: a number, a text, or nested lists. A model whose inputs are records gets one input for each field.
The results of the items become one output, `output`, or one for each field of their records.

Data is JSON, or follows the JSON in binary form: little-endian, in the order of the tensors, with a length of four
bytes before each element of type BYTES. Elements of type BYTES are UTF-8 text here.
"""

import struct
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from poise.decoding import json_decoder

MOST_ITEMS = 2048
"""Maximum number of items in a request."""

MOST_TENSORS = 256
MOST_DIMENSIONS = 16

KINDS: dict[str, str] = {
    "BOOL": "?",
    "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
    "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
    "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
"""The types of elements as types of numpy. BYTES has a form of its own."""

BYTES = "BYTES"
INPUT, OUTPUT = "input", "output"
BINARY_SIZE, BINARY, ALL_BINARY = "binary_data_size", "binary_data", "binary_data_output"
_LENGTH = struct.Struct("<I")

Array = NDArray[Any]


class WrongTensor(Exception):
    """A request, or a result, has no form in this protocol. The message says where."""


class Tensor(msgspec.Struct, omit_defaults=True):
    """A tensor as JSON. Without `data`, its bytes follow the JSON."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: Any = None


class Wanted(msgspec.Struct):
    """An output that the client asks for."""

    name: str
    parameters: dict[str, Any] = {}


class Inference(msgspec.Struct):
    """A request. It may have other fields."""

    inputs: list[Tensor]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[Wanted] = []


class Inferred(msgspec.Struct, omit_defaults=True):
    """An answer."""

    model_name: str
    model_version: str
    outputs: list[Tensor]
    id: str = ""


_inference = json_decoder(Inference).decode
_rows = json_decoder(Any).decode


def read(body: bytes, length: int | None) -> tuple[Inference, dict[str, Array]]:
    """Read a request and its inputs. `length`: bytes of its JSON, if binary data follows. Raises `WrongTensor`."""
    if length is not None and not 0 <= length <= len(body):
        raise WrongTensor(f"Inference-Header-Content-Length is {length}, and the body has {len(body)} bytes")
    try:
        asked = _inference(body if length is None else body[:length])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WrongTensor(f"the body is no inference request: {str(error) or 'nested too deep'}") from None
    if not 1 <= len(asked.inputs) <= MOST_TENSORS:
        raise WrongTensor(f"a request has 1 to {MOST_TENSORS} inputs, not {len(asked.inputs)}")
    binary = memoryview(body)[length if length is not None else len(body) :]
    arrays: dict[str, Array] = {}
    for tensor in asked.inputs:
        size = tensor.parameters.get(BINARY_SIZE)
        if tensor.name in arrays:
            raise WrongTensor(f"two inputs are named `{tensor.name[:80]}`")
        if size is None:
            arrays[tensor.name] = of_json(tensor)
        else:
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(binary):
                raise WrongTensor(f"`{tensor.name[:80]}` has {len(binary)} bytes of binary data, not {size}")
            arrays[tensor.name] = _of_bytes(tensor, binary[:size])
            binary = binary[size:]
    if len(binary):
        raise WrongTensor(f"{len(binary)} bytes of binary data belong to no input")
    return asked, arrays


def items(arrays: Mapping[str, Array], fields: Sequence[str]) -> list[bytes]:
    """Return the items of a request as JSON. `fields`: those of the model's records, if it takes records. Raises
    `WrongTensor`.
    """
    counts = {name: array.shape[0] for name, array in arrays.items()}
    count = next(iter(counts.values()))
    if len(set(counts.values())) > 1:
        raise WrongTensor(f"all inputs have the same first dimension, the number of items; here: {counts}")
    if not 1 <= count <= MOST_ITEMS:
        raise WrongTensor(f"a request has 1 to {MOST_ITEMS} items, and this one has {count}")
    columns = {name: array.tolist() for name, array in arrays.items()}
    encode = msgspec.json.encode
    if len(columns) == 1 and next(iter(columns)) not in fields:
        return [encode(row) for row in next(iter(columns.values()))]
    return [encode({name: column[at] for name, column in columns.items()}) for at in range(count)]


def outputs(results: Sequence[bytes], wanted: Sequence[str]) -> dict[str, Array]:
    """Return the results of the items, given as JSON, as arrays by their names. `wanted`: only these. Raises
    `WrongTensor`.
    """
    rows: list[Any] = [_rows(result) for result in results]
    if all(isinstance(row, dict) and row for row in rows):
        names = list(rows[0])
        if any(row.keys() != rows[0].keys() for row in rows):
            raise WrongTensor("the results of the items have different fields")
        columns = {name: [row[name] for row in rows] for name in names}
    else:
        columns = {OUTPUT: rows}
    unknown = [name for name in wanted if name not in columns]
    if unknown:
        raise WrongTensor(f"the model has no output `{unknown[0][:80]}`; it has {', '.join(columns)}")
    return {name: _made(name, columns[name]) for name in (wanted or columns)}


def write(inferred: Inferred, arrays: Mapping[str, Array], binary: Mapping[str, bool]) -> tuple[bytes, int | None]:
    """Return the body of an answer with these outputs, and the bytes of its JSON if binary data follows."""
    parts: list[bytes] = []
    for name, array in arrays.items():
        tensor = Tensor(name, list(array.shape), datatype_of(array))
        if binary.get(name):
            parts.append(to_bytes(array))
            tensor.parameters = {BINARY_SIZE: len(parts[-1])}
        else:
            tensor.data = array.ravel().tolist()
        inferred.outputs.append(tensor)
    head = msgspec.json.encode(inferred)
    return b"".join([head, *parts]), len(head) if parts else None


def datatype_of(array: Array) -> str:
    if array.dtype.kind in "OU":
        return BYTES
    return next(name for name, kind in KINDS.items() if np.dtype(kind) == array.dtype)


def to_bytes(array: Array) -> bytes:
    """Return the elements in binary form."""
    if array.dtype.kind != "O":
        return array.tobytes()
    return b"".join(_LENGTH.pack(len(one)) + one for one in (str(each).encode() for each in array.ravel()))


def of_json(tensor: Tensor) -> Array:
    """Return the elements of a tensor from its `data`. Raises `WrongTensor`."""
    if not isinstance(tensor.data, list):
        raise WrongTensor(f"`{tensor.name[:80]}` has no data")
    return _shaped(tensor, _flat(tensor, tensor.data))


def _flat(tensor: Tensor, data: list[Any]) -> list[Any]:
    """Return nested lists as one list, in the order of rows."""
    for _ in range(MOST_DIMENSIONS):
        if not any(isinstance(one, list) for one in data):
            return data
        if not all(isinstance(one, list) for one in data):
            break
        data = [element for one in data for element in one]
    raise WrongTensor(f"the data of `{tensor.name[:80]}` is not rectangular")


def _shaped(tensor: Tensor, elements: Sequence[Any]) -> Array:
    count = _count(tensor)
    if len(elements) != count:
        message = f"`{tensor.name[:80]}` has {len(elements)} elements, and its shape {tensor.shape} needs {count}"
        raise WrongTensor(message)
    if tensor.datatype == BYTES:
        if not all(isinstance(one, str) for one in elements):
            raise WrongTensor(f"the elements of `{tensor.name[:80]}` are texts, as its datatype is BYTES")
        array: Array = np.empty(count, dtype=object)
        array[:] = elements
        return array.reshape(tensor.shape)
    allowed = _ALLOWED.get(tensor.datatype[:2], (int,))
    if not all(type(one) in allowed for one in elements):
        raise WrongTensor(f"the elements of `{tensor.name[:80]}` are not of its datatype, {tensor.datatype}")
    try:
        return np.array(elements, dtype=KINDS[tensor.datatype]).reshape(tensor.shape)
    except (OverflowError, ValueError) as error:
        raise WrongTensor(f"`{tensor.name[:80]}`: {error}") from None


_ALLOWED: dict[str, tuple[type, ...]] = {"BO": (bool,), "FP": (int, float)}
"""Types of elements in JSON by the beginning of the datatype; integers for the others."""


def _of_bytes(tensor: Tensor, data: memoryview) -> Array:
    count = _count(tensor)
    if tensor.datatype == BYTES:
        return _shaped(tensor, texts(tensor, data))
    kind = np.dtype(KINDS[tensor.datatype])
    if len(data) != count * kind.itemsize:
        message = f"`{tensor.name[:80]}` has {len(data)} bytes, and its shape and datatype need {count * kind.itemsize}"
        raise WrongTensor(message)
    return np.frombuffer(data, dtype=kind).reshape(tensor.shape)


def texts(tensor: Tensor, data: memoryview) -> list[str]:
    """Return the elements of a tensor of type BYTES from their binary form. Raises `WrongTensor`."""
    found, at = [], 0
    try:
        while at < len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            if at + length > len(data):
                raise WrongTensor(f"an element of `{tensor.name[:80]}` is cut")
            found.append(str(data[at : at + length], "utf-8"))
            at += length
    except (struct.error, UnicodeDecodeError) as error:
        raise WrongTensor(f"`{tensor.name[:80]}`: {error}") from None
    return found


def _count(tensor: Tensor) -> int:
    """Return the number of elements. Raises `WrongTensor` for an invalid shape or datatype."""
    if tensor.datatype != BYTES and tensor.datatype not in KINDS:
        known = ", ".join((*KINDS, BYTES))
        raise WrongTensor(f"there is no datatype `{tensor.datatype[:20]}`; there are {known}")
    shape = tensor.shape
    if not 1 <= len(shape) <= MOST_DIMENSIONS or not all(0 < size < 2**31 for size in shape):
        need = f"1 to {MOST_DIMENSIONS} sizes above 0, first the number of items"
        raise WrongTensor(f"the shape of `{tensor.name[:80]}` has {need}")
    return prod(shape)


def _made(name: str, column: list[Any]) -> Array:
    """Return an output of these rows."""
    flat, shape = column, [len(column)]
    while all(isinstance(one, list) for one in flat) and len({len(one) for one in flat}) == 1 and flat[0]:
        shape.append(len(flat[0]))
        flat = [element for one in flat for element in one]
    kind = next((kind for kinds, kind in _RESULTS if all(type(one) in kinds for one in flat)), None)
    if kind is None:
        raise WrongTensor(f"the results of `{name[:80]}` are no tensor: they are not rectangular, or have other values")
    try:
        return np.array(flat, dtype=kind).reshape(shape)
    except OverflowError as error:
        raise WrongTensor(f"the results of `{name[:80]}` are no tensor: {error}") from None


_RESULTS: tuple[tuple[tuple[type, ...], Any], ...] = (
    ((bool,), "?"),
    ((int,), "<i8"),
    ((int, float), "<f8"),
    ((str,), object),
)
"""Types of results in JSON, each with its type of numpy."""


__all__ = [
    "ALL_BINARY",
    "BINARY",
    "BYTES",
    "INPUT",
    "OUTPUT",
    "Inference",
    "Inferred",
    "Tensor",
    "Wanted",
    "WrongTensor",
    "datatype_of",
    "items",
    "of_json",
    "outputs",
    "read",
    "texts",
    "to_bytes",
    "write",
]
