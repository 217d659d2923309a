"""Partitions a gang's replicated tensors among its workers, and writes each part as a safetensors file.

The concatenated bytes of all tensors are cut into equal parts; each cut is rounded up to the next row of its tensor. So
all workers write about the same number of bytes, and agree on the parts without communication. In a file, types with
larger items come first, so that every tensor is aligned for its type.

A file is written from one ordered staging buffer (`Staging`), and is read directly into the target tensors. Each piece
has its own CRC-32. It detects every flipped bit and every burst of up to 32 bits, and misses one in 2^32 other errors.
It protects against disk faults and partial writes, not against attackers: those who can change a shard can change the
manifest. It takes a third of the time of SHA-256 if the processor has SHA instructions, and less otherwise
(`benchmarks/checkpoint_stall.py`); that time would be lost to training.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from io import FileIO
from math import prod
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec
import torch

from poise_train.durable import created, put
from poise_train.model.checkpoints import Kind, Piece
from poise_train.trees import DTYPES

BLOCK = 1 << 22
"""Bytes of a block that is checksummed and written, or read and checksummed, at a time; fits in processor caches."""

_LENGTH = 8
"""Bytes of the little-endian length field of a safetensors header."""


def cut(kinds: Sequence[Kind], rank: int, world: int, first: Collection[int] = ()) -> list[Piece]:
    """Return the pieces that worker `rank` of `world` writes; tensors without elements have none. Worker 0 writes the
    tensors with numbers in `first`, whole.
    """
    total = sum(_size(kind) for number, kind in enumerate(kinds) if number not in first)
    begin, end = total * rank // world, total * (rank + 1) // world
    found: list[Piece] = []
    at = 0
    for number, kind in enumerate(kinds):
        size = _size(kind)
        if number in first:
            found += [Piece(number, kind.name, 0, _rows(kind), size)] if size and rank == 0 else []
            continue
        if size:
            row, rows = _row_size(kind), _rows(kind)
            start, stop = (min(rows, max(0, -((at - edge) // row))) for edge in (begin, end))
            if start < stop:
                whole = (start, stop) == (0, rows)
                name = kind.name if whole else f"{kind.name}[{start}:{stop}]"
                found.append(Piece(number, name, start, stop, (stop - start) * row))
        at += size
    return found


def uncut(kinds: Sequence[Kind], first: int) -> list[Piece]:
    """Return every tensor from number `first` on as one piece; empty tensors are omitted."""
    ones = enumerate(kinds[first:], first)
    return [Piece(number, kind.name, 0, _rows(kind), _size(kind)) for number, kind in ones if _size(kind)]


def rows_of(tensor: torch.Tensor, piece: Piece) -> torch.Tensor:
    """Return the rows of the tensor that belong to the piece."""
    return tensor[piece.start : piece.stop] if tensor.dim() else tensor


class Laid(NamedTuple):
    """A piece in a file: its tensor, its offset behind the head, and its shape."""

    piece: Piece
    kind: Kind
    at: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.piece.stop - self.piece.start, *self.kind.shape[1:]) if self.kind.shape else ()


def lay_out(pieces: Sequence[Piece], kinds: Sequence[Kind]) -> list[Laid]:
    """Place the pieces one after another, those with the largest items first."""
    laid, at = [], 0
    for piece in sorted(pieces, key=lambda piece: -DTYPES[kinds[piece.tensor].dtype].itemsize):
        laid.append(Laid(piece, kinds[piece.tensor], at))
        at += piece.size
    return laid


class Staging:
    """Staging buffer for tensors to write; reused, because it is large and slow to allocate. A GPU can copy
    asynchronously to `pinned` memory.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def make_room(self, size: int, *, pinned: bool) -> None:
        if self._memory.numel() < size or self._memory.is_pinned() != pinned:
            self._memory = torch.empty(0, dtype=torch.uint8)  # free the old buffer before allocating
            self._memory = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)

    def place(self, one: Laid) -> torch.Tensor:
        """Return a view of the piece in the buffer, as a tensor of its type and shape."""
        return self._memory[one.at : one.at + one.piece.size].view(DTYPES[one.kind.dtype]).view(one.shape)

    def bytes_of(self, one: Laid) -> memoryview:
        return _memory(self._memory)[one.at : one.at + one.piece.size]


class Written(NamedTuple):
    """A written file: its size, the checksum of its head, and its pieces with their checksums, in file order."""

    size: int
    head: int
    pieces: list[Piece]


def write(path: Path, laid: Sequence[Laid], staging: Staging) -> Written:
    """Write a complete file durably. Raises `OSError`."""
    entries: dict[str, object] = {
        one.piece.name: {"dtype": one.kind.dtype, "shape": one.shape, "data_offsets": (one.at, one.at + one.piece.size)}
        for one in laid
    }
    text = msgspec.json.encode({"__metadata__": {"format": "pt"}} | entries)
    text += b" " * (-len(text) % _LENGTH)
    head = len(text).to_bytes(_LENGTH, "little") + text
    pieces = []
    with created(path) as file:
        put(file, head)
        for one in laid:
            crc = 0
            for block in _blocks(staging.bytes_of(one)):
                crc = crc32(block, crc)
                put(file, block)
            pieces.append(msgspec.structs.replace(one.piece, crc=crc))
    return Written(len(head) + sum(one.piece.size for one in laid), crc32(head), pieces)


def read(path: Path, size: int, head: int, targets: Sequence[tuple[Piece, torch.Tensor]]) -> None:
    """Read a file into the `targets`, which are in file order and fill the file without gaps. Raises `Damaged`, also if
    the file is missing, and `OSError`.
    """
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    with file:
        have = os.fstat(file.fileno()).st_size
        if have != size:
            raise Damaged(f"{path.name} has {have:,} bytes, not {size:,}")
        start = bytearray(size - sum(piece.size for piece, _ in targets))
        if _filled(file, memoryview(start)) != head:
            raise Damaged(f"the head of {path.name} is not as it was written")
        for piece, target in targets:
            if _filled(file, _memory(target)) != piece.crc:
                raise Damaged(f"{piece.name} in {path.name} is not as it was written")


def shard_file(rank: int) -> str:
    return f"shard-{rank}.safetensors"


def shard_record(rank: int) -> str:
    """Return the name of the metadata file of a worker's shard."""
    return f"shard-{rank}.json"


class Damaged(Exception):
    """The checkpoint does not read back as it was written; the message is one sentence with the reason."""


def _filled(file: FileIO, memory: memoryview) -> int:
    """Read the next bytes of the file into the memory, and return their checksum."""
    crc = 0
    for block in _blocks(memory):
        rest = block
        while rest:
            count = file.readinto(rest)
            if not count:
                raise Damaged(f"{Path(str(file.name)).name} ends too early")
            rest = rest[count:]
        crc = crc32(block, crc)
    return crc


def _memory(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor, without a copy."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy().data)


def _blocks(memory: memoryview) -> Iterator[memoryview]:
    for at in range(0, len(memory), BLOCK):
        yield memory[at : at + BLOCK]


def _rows(kind: Kind) -> int:
    return kind.shape[0] if kind.shape else 1


def _size(kind: Kind) -> int:
    return prod(kind.shape) * DTYPES[kind.dtype].itemsize


def _row_size(kind: Kind) -> int:
    return prod(kind.shape[1:]) * DTYPES[kind.dtype].itemsize
