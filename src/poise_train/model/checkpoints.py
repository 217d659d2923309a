"""What lies in a checkpoint beside its tensors: who wrote which piece of which, and everything that is no tensor.

    step-120/                    whole: it got this name last of all
        manifest.json            a `Manifest` behind a checksum of it
        shard-0.safetensors      tensors, of worker 0
        shard-1.safetensors      …
    step-130.2.4.….partial/      being written, by what began here as the second, in its epoch 4
        shard-0.json             the `Shard` of worker 0: it is done
    step-110.damaged/            did not read back as it was written
    step-100.cleared/            about to be removed
    fence-2.4.…                  who may publish here, see `poise_train/fence.py`

The manifest is JSON, twice: the first line has the checksum (CRC-32) of the bytes that follow it.
"""

from zlib import crc32

import msgspec

from poise.decoding import json_decoder

FORMAT = 1
"""It goes up when an older Poise could not read what is written."""


MANIFEST = "manifest.json"
"""What the manifest of a checkpoint is called; it is written last."""


class Piece(msgspec.Struct, frozen=True):
    """Rows from `start` up to `stop` of a tensor (of one without dimensions: its number), `size` bytes under `name` in
    the file, in the order of the file; `crc` is their CRC-32.
    """

    tensor: int
    name: str
    start: int
    stop: int
    size: int
    crc: int = 0


class Kind(msgspec.Struct, frozen=True):
    """A tensor: what it is called where it lies in the state, its type as safetensors calls it, and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker wrote: a file of `size` bytes, whose beginning up to the first piece has the checksum `head`.

    `own` is the tree of its own state, which no other worker has; `kinds` are the tensors of that, whose numbers follow
    those of the tensors that all have. `failed` says why there is no file.
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
    """A checkpoint of `step`, whole. `at`: seconds since 1970; `took` nanoseconds to write, for `stall` of which
    training stood still; `poise` is the version that wrote it. `tree` is what is no tensor, with places for the tensors
    in it, which `kinds` describes.
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
    """What a manifest of any format says first of all."""

    format: int
    poise: str = ""


class OtherVersion(ValueError):
    """It is whole, but this Poise cannot read it; `need` can."""

    def __init__(self, why: str, need: str) -> None:
        super().__init__(why)
        self.need = need


def seal(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return _head(body) + body + b"}\n"


def unseal(content: bytes) -> Manifest:
    """Raises `ValueError` with a sentence for anything but what `seal` made, to the last bit; `OtherVersion` for what
    another one made.
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
    except msgspec.MsgspecError as error:  # the checksum holds: it was written so on purpose
        why = str(error)
    raise OtherVersion(f"it was written by another version: {why}", writer(wrote.format, wrote.poise))


def writer(format: int, poise: str) -> str:
    """Who wrote a manifest, as well as it says."""
    return f"Poise {poise}" if poise else f"a Poise that writes format {format}"


def _head(body: bytes) -> bytes:
    return b'{"crc32": "%08x", "checkpoint":\n' % crc32(body)
