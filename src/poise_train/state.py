"""Broadcasts the state of training from one worker to the others, in the form of checkpoints (`trees`): first the tree,
then each tensor. Received data cannot run code.
"""

from typing import Any

import msgspec
import torch
import torch.distributed as dist

from poise.decoding import msgpack_decoder
from poise_train.model.checkpoints import Kind
from poise_train.trees import DTYPES, Taken, put_together


class _Sent(msgspec.Struct, frozen=True, array_like=True):
    """A state without the contents of its tensors, which follow."""

    tree: Any
    kinds: list[Kind]


def broadcast(state: Any, source: int, rank: int, device: torch.device) -> Any:
    """Return the state of worker `source` on each worker; all workers call it. `state` is used only on `source`."""
    taken, text = Taken(), b""
    if rank == source:
        tree = taken.tree(state)
        text = msgspec.msgpack.encode(_Sent(tree, taken.kinds))
    length = torch.tensor([len(text)])
    dist.broadcast(length, source)
    raw = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(raw, source)
    if rank == source:
        for tensor in taken.tensors:
            dist.broadcast(tensor.detach().to(device).contiguous(), source)
        return state
    sent = msgpack_decoder(_Sent).decode(raw.numpy().tobytes())
    tensors = [torch.empty(kind.shape, dtype=DTYPES[kind.dtype], device=device) for kind in sent.kinds]
    for tensor in tensors:
        dist.broadcast(tensor, source)
    return put_together(sent.tree, tensors)


__all__ = ["broadcast"]
