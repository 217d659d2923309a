"""Defines how the gradients of the workers are added up.

While backward still runs, gradients are passed on in buckets, in the same order on all workers; a bucket in transit
costs a worker only the sending. In a ring, each of `n` workers sends 2(n-1)/n times the bytes (Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009); `topology` has other algorithms.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from poise_train.topology import add_up, begun, ring_bytes


class Bucket(NamedTuple):
    """Gradients that are sent together. `flat` has those of `parameters` one after another."""

    number: int
    flat: torch.Tensor
    parameters: tuple[torch.nn.Parameter, ...]


@runtime_checkable
class Exchange(Protocol):
    """A method to add up buckets. `sent` counts the bytes that this process sent, `plain` those that it would have sent
    with whole fp32 gradients. `advice` is its recommendation, if any.
    """

    name: str
    advice: str
    sent: int
    plain: int

    def begin(self, bucket: Bucket, group: dist.ProcessGroup | None = None) -> Callable[[], object]:
        """Start to add up a bucket over the group, without waiting. Return a function that waits; after it,
        `bucket.flat` is the sum. Both raise RuntimeError if a worker of the group is lost.
        """

    def abandon(self) -> None:
        """Abandon the current step, which will be repeated."""

    def updated(self, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None = None) -> None:
        """Handle an optimizer step, which all workers have made."""

    def even_out(self, group: dist.ProcessGroup | None = None) -> None:
        """Divide the private state of the workers evenly, so that any worker can pass on all of it. All workers call it
        before a state is saved or the gang changes.
        """

    def share(self, world: int) -> None:
        """Take this worker's equal part of the evened out or loaded state, in a gang of `world` workers."""

    def owed(self) -> dict[int, torch.Tensor]:
        """Return the gradients that this worker has not sent yet, by bucket."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None: ...


class Counted:
    """Base of exchanges: adds up, counts bytes, and has no state."""

    advice = ""

    def __init__(self) -> None:
        self.sent = self.plain = 0

    def abandon(self) -> None:
        pass

    def updated(self, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None = None) -> None:
        pass

    def even_out(self, group: dist.ProcessGroup | None = None) -> None:
        pass

    def share(self, world: int) -> None:
        pass

    def owed(self) -> dict[int, torch.Tensor]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        pass

    def _count(self, bucket: Bucket, group: dist.ProcessGroup | None) -> None:
        self.plain += ring_bytes(bucket.flat.numel() * 4, dist.get_world_size(group))

    def _add_up(self, tensor: torch.Tensor, group: dist.ProcessGroup | None) -> Callable[[], object]:
        wait, sent = add_up(tensor, group)
        self.sent += sent
        return wait

    def _gather(
        self, tensor: torch.Tensor, group: dist.ProcessGroup | None
    ) -> tuple[list[torch.Tensor], Callable[[], object]]:
        """Start to gather the tensors of all workers. Return them by rank, and the function that waits for them."""
        world = dist.get_world_size(group)
        self.sent += (world - 1) * tensor.numel() * tensor.element_size()
        gathered = [torch.empty_like(tensor) for _ in range(world)]
        return gathered, begun(dist.all_gather(gathered, tensor, group=group, async_op=True))


class Plain(Counted):
    """Sends whole gradients, unchanged."""

    name = "plain"

    def begin(self, bucket: Bucket, group: dist.ProcessGroup | None = None) -> Callable[[], object]:
        self._count(bucket, group)
        return self._add_up(bucket.flat, group)


__all__ = ["Bucket", "Counted", "Exchange", "Plain"]
