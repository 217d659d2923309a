"""How the gradients of the workers are added up.

While backward still runs, gradients are handed over in buckets, in one order at all workers; a bucket on its way costs
the worker nothing but the sending. A ring makes each of `n` workers give out 2(n-1)/n times the bytes (Patarasuk and
Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009); other ways are in `topology`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from poise_train.topology import add_up, begun, ring_bytes


class Bucket(NamedTuple):
    """Gradients that travel together. `flat` holds those of `parameters` one after another."""

    number: int
    flat: torch.Tensor
    parameters: tuple[torch.nn.Parameter, ...]


@runtime_checkable
class Exchange(Protocol):
    """A way to add buckets up. `sent` counts the bytes that this process gave out, `plain` what it would have given out
    had each gradient gone out whole, in fp32. `advice` is what it recommends, if it does.
    """

    name: str
    advice: str
    sent: int
    plain: int

    def begin(self, bucket: Bucket, group: dist.ProcessGroup | None = None) -> Callable[[], object]:
        """Start to add a bucket up over the group; does not wait. What it returns waits, and then `bucket.flat` is the
        sum. Both raise RuntimeError if a worker of the group has gone.
        """

    def abandon(self) -> None:
        """The step that has begun is not completed, and will be done again."""

    def updated(self, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None = None) -> None:
        """The optimizer has made a step, at all workers."""

    def even_out(self, group: dist.ProcessGroup | None = None) -> None:
        """Called by all workers before a state is kept or the gang changes: what each holds for itself is shared out
        evenly, so that any of them can hand all of it on.
        """

    def share(self, world: int) -> None:
        """The gang has this many workers now: take an equal part of what was evened out or loaded."""

    def owed(self) -> dict[int, torch.Tensor]:
        """What this worker has not sent, by bucket."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None: ...


class Counted:
    """What exchanges do alike: add up, count, and have nothing to keep."""

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
        """Everyone's, by rank, once it was waited for."""
        world = dist.get_world_size(group)
        self.sent += (world - 1) * tensor.numel() * tensor.element_size()
        gathered = [torch.empty_like(tensor) for _ in range(world)]
        return gathered, begun(dist.all_gather(gathered, tensor, group=group, async_op=True))


class Plain(Counted):
    """Each gradient whole, as it is."""

    name = "plain"

    def begin(self, bucket: Bucket, group: dist.ProcessGroup | None = None) -> Callable[[], object]:
        self._count(bucket, group)
        return self._add_up(bucket.flat, group)


__all__ = ["Bucket", "Counted", "Exchange", "Plain"]
