"""Files of the weights of learned policies: NumPy's `.npz`, with the study and a digest of the arrays.

A policy file names one (`weights: ours.npz`), relative to its own folder. Its content becomes part of the policy, so
the log holds it, and a replay needs no file.
"""

import io
import math
import os
import re
import stat
import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from poise.decoding import convert
from poise.errors import SpecError
from poise.policy.network import Network, check, layers_of

MAX_FILE = 4 * 2**20
"""Maximum bytes of a file, and of its content; the largest network takes 200 kB."""

_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_FLAGS = 0x80E
"""Flags of members that NumPy may write: the level of compression, sizes after the data, and names in UTF-8."""

_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<kind>[<>][iu][248]|\|[iu]1|[<>]f[48]|[<>]U[1-9][0-9]{0,6})', "
    rb"'fortran_order': (?P<columns>True|False), 'shape': \((?P<shape>|[0-9]{1,7},|[0-9]{1,7}, [0-9]{1,7})\), \} *\n",
    re.DOTALL,
)
"""The header of an array of at most two dimensions."""

_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
"""Errors that `zipfile` raises for a damaged file, besides ValueError."""

SHIPPED = Path(__file__).with_name("learned.npz")
"""The weights of the policy `learned`."""


def with_weights(document: Any, folder: Path) -> Any:
    """Return the document of a policy file with the content of the weights that it names, relative to `folder`. Raises
    `SpecError`.
    """
    if not isinstance(document, dict) or not isinstance(document.get("weights"), str):
        return document
    return document | {"weights": msgspec.to_builtins(read_weights(folder / document["weights"]))}


def read_weights(path: Path) -> Network:
    """Return the network in a file. Raises `SpecError` if it cannot be read, or is damaged."""
    try:
        arrays = _arrays(_content(path))
        layers = {name: arrays[name].tolist() for name in layers_of(1)}
        low, high = arrays["low"].tolist(), arrays["high"].tolist()
        names, values = (convert(arrays[name].tolist(), list[str]) for name in ("study_names", "study_values"))
        study = dict(zip(names, values, strict=True))
        network = convert({"arrays": layers, "low": low, "high": high, "study": study}, Network)
        check(network)
        msgspec.msgpack.encode(study)  # raises for characters that no text may have
        digest = str(arrays["digest"])
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), "`poise learn --apply ours.yaml` writes one") from None
    except (ValueError, KeyError, msgspec.ValidationError, *_DAMAGED) as error:
        raise _unreadable(path, f"it is not a file of weights: {error}", "`poise learn` writes such files") from None
    if digest != network.digest():
        raise _unreadable(path, "its arrays do not have its digest", "copy it again, or run `poise learn` again")
    return network


def write_weights(path: Path, network: Network) -> None:
    """Write a network to a file."""
    arrays: dict[str, Any] = {name: np.array(rows, np.int32) for name, rows in network.arrays.items()}
    arrays |= {"low": np.array(network.low), "high": np.array(network.high), "digest": np.array(network.digest())}
    arrays |= {"study_names": np.array([*network.study]), "study_values": np.array([*network.study.values()])}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    path.write_bytes(buffer.getvalue())


def _content(path: Path) -> bytes:
    """Return the content of a regular file. Raises OSError, and ValueError for other files and for large ones."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no regular file")
        content = file.read(MAX_FILE + 1)
    if len(content) > MAX_FILE:
        raise ValueError(f"it has more than {MAX_FILE:,} bytes")
    return content


def _arrays(content: bytes) -> dict[str, Any]:
    """Return the arrays of a file. Raises ValueError, or an error of `_DAMAGED`."""
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        members = packed.infolist()
        if sum(member.file_size for member in members) > MAX_FILE:
            raise ValueError(f"its arrays have more than {MAX_FILE:,} bytes")
        for member in members:
            if member.compress_type not in _PACKED or member.flag_bits & ~_FLAGS:
                raise ValueError(f"`{member.filename}` is encrypted, or compressed in another way than by NumPy")
        return {member.filename.removesuffix(".npy"): _array(_read(packed, member)) for member in members}


def _read(packed: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return the content of a member. With a size, no more than that is decompressed, whatever is packed."""
    with packed.open(member) as file:
        return file.read(member.file_size + 1)


def _array(content: bytes) -> Any:
    """Return the array in a member of a file. Nothing is allocated by what its header says: NumPy's own reader does
    that, and raises errors of many types for a damaged one. Raises ValueError.
    """
    header = _HEADER.match(content)
    if header is None:
        raise ValueError("a member is no array of numbers or texts, as NumPy writes it")
    kind = np.dtype(header["kind"].decode())
    shape = tuple(int(size) for size in header["shape"].split(b",") if size.strip())
    needed, have = math.prod(shape) * kind.itemsize, len(content) - header.end()
    if needed != have or (not needed and len(shape) > 1):
        raise ValueError(f"an array needs {needed:,} bytes by its header, and has {have:,}")
    order: Literal["C", "F"] = "F" if header["columns"] == b"True" else "C"
    return np.frombuffer(content, kind, offset=header.end()).reshape(shape, order=order)


def _unreadable(path: Path, why: str, hint: str) -> SpecError:
    return SpecError(f"the weights cannot be read: {why}", field="weights", have=str(path), hint=hint)
