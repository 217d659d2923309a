"""How the gradients of the workers are added up.

While backward still runs, gradients are handed over in buckets, in one order at all workers; a bucket on its way costs
the worker nothing but the sending. What counts as sent is what a ring makes each of `n` workers give out: 2(n-1)/n
times the bytes (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist


class Bucket(NamedTuple):
    """Gradients that travel together. `flat` holds those of `parameters` one after another."""

    number: int
    flat: torch.Tensor
    parameters: tuple[torch.nn.Parameter, ...]


class Exchange(Protocol):
    """A way to add buckets up. `sent` counts the bytes that this process gave out, `plain` what it would have given out
    had each gradient gone out whole, in fp32.
    """

    name: str
    sent: int
    plain: int

    def begin(self, bucket: Bucket, group: dist.ProcessGroup | None = None) -> Callable[[], object]:
        """Start to add a bucket up over the group; does not wait. What it returns waits, and then `bucket.flat` is the
        sum. Both raise RuntimeError if a worker of the group has gone.
        """


class Plain:
    """Each gradient whole, as it is."""

    name = "plain"

    def __init__(self) -> None:
        self.sent = self.plain = 0

    def begin(self, bucket: Bucket, group: dist.ProcessGroup | None = None) -> Callable[[], object]:
        world = dist.get_world_size(group)
        self.sent += ring_bytes(bucket.flat.numel() * bucket.flat.element_size(), world)
        self.plain += ring_bytes(bucket.flat.numel() * 4, world)
        return begun(dist.all_reduce(bucket.flat, group=group, async_op=True))


def begun(work: dist.Work | None) -> Callable[[], object]:
    """How to wait for what was begun; nothing is where this process is not in the group."""
    return bool if work is None else work.wait


def ring_bytes(size: int, world: int) -> int:
    """What each of the workers gives out when a ring adds up so many bytes."""
    return 2 * (world - 1) * size // world


__all__ = ["Bucket", "Exchange", "Plain", "begun", "ring_bytes"]
