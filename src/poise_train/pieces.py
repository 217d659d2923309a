"""Tensors of a gang that all have, cut into as many parts as it has workers, and a part as a file of safetensors.

All tensors one after another are one line of bytes, which is cut into equal parts; a cut goes to the next row of the
tensor that it falls into. So every worker writes about the same, whatever the tensors are, and all agree on who writes
what without a word. In its file, types with larger items come first: then every tensor lies where its type may.

A file is written from one piece of memory in which all lies in order (`Staging`), and is read straight into the tensors
that are wanted. Each piece has a CRC-32 of its own. That notices every single flipped bit and every burst of up to 32,
and lets one in four thousand million other damages pass; faults of disks and half-written files are what it is for, and
whoever can change a shard can change the manifest. It takes a third of the time of SHA-256 where the processor has
instructions for that, and less elsewhere (`benchmarks/checkpoint_stall.py`): time that training would have.
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
"""Bytes that are checked and written, or read and checked, at a time: they fit in the caches of a processor."""

_LENGTH = 8
"""Bytes of the length of the head of a file of safetensors, least significant first."""


def cut(kinds: Sequence[Kind], rank: int, world: int, first: Collection[int] = ()) -> list[Piece]:
    """What worker `rank` of `world` writes; of tensors without elements there is nothing to write. Those whose numbers
    are in `first` are worker 0's, whole.
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
    """Every tensor from number `first` on, in one piece each."""
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
    """One after another, the largest items first."""
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
            self._memory = torch.empty(0, dtype=torch.uint8)  # what there was is free before there is more
            self._memory = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)

    def place(self, one: Laid) -> torch.Tensor:
        """Where the piece lies, as a tensor of its type and shape."""
        return self._memory[one.at : one.at + one.piece.size].view(DTYPES[one.kind.dtype]).view(one.shape)

    def bytes_of(self, one: Laid) -> memoryview:
        return _memory(self._memory)[one.at : one.at + one.piece.size]


class Written(NamedTuple):
    """A file: its size, the checksum of its head, and its pieces with theirs, in the order of the file."""

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
    """Into the `targets`, which are in the order of the file, lie without gaps and fill it. Raises `Damaged`, also for
    what is not there, and `OSError`.
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
    """The name of what a worker says of its file."""
    return f"shard-{rank}.json"


class Damaged(Exception):
    """A checkpoint does not read back as it was written: one sentence on what is wrong."""


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
    """The bytes of a tensor whose elements lie one after another."""
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
