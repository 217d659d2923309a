"""Files of the weights of learned policies: NumPy's `.npz`, with the study and a digest of the arrays.

A policy file names one (`weights: ours.npz`), relative to its own folder. Its content becomes part of the policy, so
the log holds it, and a replay needs no file.
"""

import io
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from poise.decoding import convert
from poise.errors import SpecError
from poise.policy.network import Network, check, layers_of

MAX_FILE = 4 * 2**20
"""Maximum bytes of a file, and of its content; the largest network takes 200 kB."""

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
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), "`poise learn --apply ours.yaml` writes one") from None
    try:
        arrays = _arrays(content)
        layers = {name: arrays[name].tolist() for name in layers_of(1)}
        low, high = arrays["low"].tolist(), arrays["high"].tolist()
        study = dict(zip(arrays["study_names"].tolist(), arrays["study_values"].tolist(), strict=True))
        network = convert({"arrays": layers, "low": low, "high": high, "study": study}, Network)
        check(network)
        digest = str(arrays["digest"])
    except (ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
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


def _arrays(content: bytes) -> dict[str, Any]:
    """Return the arrays of a file. Raises ValueError, or `BadZipFile`, for content that is none or too large."""
    if len(content) > MAX_FILE:
        raise ValueError(f"it has more than {MAX_FILE:,} bytes")
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        if sum(entry.file_size for entry in packed.infolist()) > MAX_FILE:
            raise ValueError(f"its arrays have more than {MAX_FILE:,} bytes")
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def _unreadable(path: Path, why: str, hint: str) -> SpecError:
    return SpecError(f"the weights cannot be read: {why}", field="weights", have=str(path), hint=hint)
