"""The metadata of a checkpoint: the pieces of tensors that each worker wrote, and all values that are not tensors.

    step-120/                    complete: it got this name last
        manifest.json            a `Manifest` after its checksum
        shard-0.safetensors      tensors from worker 0
        shard-1.safetensors      …
    step-130.2.4.….partial/      being written, in turn 2 and epoch 4
        shard-0.json             the `Shard` of worker 0, which is done
    step-110.damaged/            did not read back as it was written
    step-100.cleared/            about to be removed
    fence-2.4.…                  the writer that may publish here, see `poise_train/fence.py`

The file `manifest.json` is valid JSON, and so is the manifest inside it. The first line has its checksum (CRC-32).
"""

from zlib import crc32

import msgspec

from poise.decoding import json_decoder

FORMAT = 1
"""Format version; increased when an older Poise could not read the new format."""


MANIFEST = "manifest.json"
"""File name of the manifest of a checkpoint, which is written last."""


class Piece(msgspec.Struct, frozen=True):
    """Rows `start` to `stop` (exclusive) of a tensor, or the value of a scalar: `size` bytes, stored as `name`.
    Pieces are listed in file order; `crc` is the CRC-32 of the bytes.
    """

    tensor: int
    name: str
    start: int
    stop: int
    size: int
    crc: int = 0


class Kind(msgspec.Struct, frozen=True):
    """A tensor: its name in the state, its safetensors type, and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """The file of one worker: `size` bytes; its beginning up to the first piece has the checksum `head`.

    `own` is the tree of the state that only this worker has. `kinds` are the tensors in it; their numbers follow those
    of the shared tensors. `failed` is the reason if there is no file.
    """

    step: int
    rank: int
    world: int
    size: int = 0
    head: int = 0
    pieces: list[Piece] = []
    own: msgspec.Raw = msgspec.Raw(b"null")
    kinds: list[Kind] = []
    failed: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A complete checkpoint of `step`. `at`: seconds since 1970; `took`: nanoseconds to write it, during `stall` of
    which training paused; `poise`: the version that wrote it. `tree` has the values that are not tensors, with
    references to the tensors, which `kinds` describes.
    """

    format: int
    step: int
    epoch: int
    world: int
    at: float
    took: int
    stall: int
    size: int
    tree: msgspec.Raw
    kinds: list[Kind]
    shards: list[Shard]
    score: float | None = None
    poise: str = ""


class _Head(msgspec.Struct, frozen=True):
    """The fields with which a manifest of any format begins."""

    format: int
    poise: str = ""


class OtherVersion(ValueError):
    """The checkpoint is complete, but needs another version of Poise, `need`."""

    def __init__(self, why: str, need: str) -> None:
        super().__init__(why)
        self.need = need


def seal(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return _head(body) + body + b"}\n"


def unseal(content: bytes) -> Manifest:
    """Return the manifest in the output of `seal`. Raises `ValueError` with one sentence if any bit differs, and
    `OtherVersion` if another version wrote it.
    """
    head, _, rest = content.partition(b"\n")
    body = rest.removesuffix(b"}\n")
    if head + b"\n" != _head(body) or body + b"}\n" != rest:
        raise ValueError("the manifest is not as it was written")
    wrote = _Head(format=0)
    try:
        wrote = json_decoder(_Head).decode(body)
        if wrote.format <= FORMAT:
            return json_decoder(Manifest).decode(body)
        why = f"format {wrote.format}, not {FORMAT}"
    except msgspec.MsgspecError as error:  # valid checksum: not damage
        why = str(error)
    raise OtherVersion(f"it was written by another version: {why}", writer(wrote.format, wrote.poise))


def writer(format: int, poise: str) -> str:
    """Return the version of Poise that wrote a manifest, or its format if the version is unknown."""
    return f"Poise {poise}" if poise else f"a Poise that writes format {format}"


def _head(body: bytes) -> bytes:
    return b'{"crc32": "%08x", "checkpoint":\n' % crc32(body)
