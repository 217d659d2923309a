"""The state of training as one value, and how it comes from one worker to the others.

A state is what `state_dict` gives, nested: mappings, lists, numbers, texts and tensors. It is sent as msgpack in which
each tensor is a reference, and then the tensors one after another. Nothing that is received can run code.
"""

from typing import Any

import msgspec
import torch
import torch.distributed as dist

_TENSOR = 1
_DTYPES = {str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


class _Of(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that follows."""

    place: int
    dtype: str
    shape: tuple[int, ...]


def take_apart(state: Any) -> tuple[bytes, list[torch.Tensor]]:
    """The state without its tensors, and these in the order in which it names them."""
    tensors: list[torch.Tensor] = []

    def named(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"training cannot keep a {type(value).__name__}: tensors, numbers, texts, lists, mappings")
        tensors.append(value)
        of = _Of(len(tensors) - 1, str(value.dtype).removeprefix("torch."), tuple(value.shape))
        return msgspec.msgpack.Ext(_TENSOR, msgspec.msgpack.encode(of))

    return msgspec.msgpack.encode(state, enc_hook=named), tensors


def put_together(text: bytes, tensors: list[torch.Tensor]) -> Any:
    """The state from its two parts."""

    def at(code: int, data: memoryview) -> torch.Tensor:
        return tensors[msgspec.msgpack.decode(data, type=_Of).place]

    return msgspec.msgpack.decode(text, ext_hook=at, strict=False)


def shapes(text: bytes) -> list[torch.Tensor]:
    """Empty tensors for those that the first part names."""
    found: list[_Of] = []

    def at(code: int, data: memoryview) -> None:
        found.append(msgspec.msgpack.decode(data, type=_Of))

    msgspec.msgpack.decode(text, ext_hook=at, strict=False)
    return [torch.empty(of.shape, dtype=_DTYPES[of.dtype]) for of in sorted(found, key=lambda of: of.place)]


def broadcast(state: Any, source: int, rank: int, device: torch.device) -> Any:
    """The state of worker `source`, at each worker; called by all of them. `state` is looked at there only."""
    text, tensors = take_apart(state) if rank == source else (b"", [])
    length = torch.tensor([len(text)])
    dist.broadcast(length, source)
    raw = torch.empty(int(length), dtype=torch.uint8)
    if rank == source:
        raw = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    dist.broadcast(raw, source)
    if rank != source:
        text = raw.numpy().tobytes()
        tensors = shapes(text)
    there = [tensor.detach().to(device).contiguous() for tensor in tensors]
    for tensor in there:
        dist.broadcast(tensor, source)
    return state if rank == source else put_together(text, there)


__all__ = ["broadcast", "put_together", "shapes", "take_apart"]
