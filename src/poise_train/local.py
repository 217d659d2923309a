"""Local SGD: each worker updates its own weights, and periodically all workers average them.

After Stich, "Local SGD converges fast and communicates little" (ICLR 2019), and Lin et al., "Don't use large
mini-batches, use local SGD" (ICLR 2020). Weights are exchanged only every `every` steps; otherwise the gang sends only
the few bytes of its agreement at the end of a step.

*Momentum.* The optimizer's tensors of a weight (momentum, Adam's moments) are averaged with it, so that after each
averaging the gang has one state for checkpoints and new workers. Averaging then sends twice as many bytes with
momentum, and three times with Adam. With `momentum="own"` each worker keeps its own, and a new worker takes over that
of one worker.

*Samples.* A step has the same samples, divided in the same way, as with any other exchange. A worker's gradient is
multiplied by the number of workers, so that the mean of their updates is the step that they would have made together,
even if shares differ. If a worker is killed, its updates since the last averaging are lost. Clipping applies to one
worker's gradient, not to the mean.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist

from poise.errors import Misused
from poise_train.exchange import Bucket, Counted


class LocalSGD(Counted):
    """Means of the weights every `every` steps, instead of sums of gradients in each. `momentum`: `mean` or `own`."""

    name = "local"

    def __init__(self, every: int = 8, momentum: Literal["mean", "own"] = "mean") -> None:
        super().__init__()
        if every < 1:
            raise Misused("the averaging interval must be at least 1 step", field="every", have=repr(every), hint="8")
        self.every, self.momentum = every, momentum
        self._apart = 0  # steps since the workers had the same weights
        self._optimizer: torch.optim.Optimizer | None = None

    def begin(self, bucket: Bucket, group: dist.ProcessGroup | None = None) -> Callable[[], object]:
        self._count(bucket, group)
        bucket.flat.mul_(dist.get_world_size(group))
        return bool

    def updated(self, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None = None) -> None:
        self._optimizer = optimizer
        self._apart += 1
        if self._apart >= self.every:
            self.even_out(group)

    def even_out(self, group: dist.ProcessGroup | None = None) -> None:
        """Average now. If a worker is lost meanwhile, nothing has changed."""
        if self._optimizer is None or not self._apart:
            return
        means = [tensor.detach().clone() for tensor in self._averaged(self._optimizer)]
        waits = [self._add_up(one, group) for one in means]
        for wait in waits:
            wait()
        world = dist.get_world_size(group)
        with torch.no_grad():
            for tensor, mean in zip(self._averaged(self._optimizer), means, strict=True):
                tensor.copy_(mean / world)
        self._apart = 0

    def state_dict(self) -> dict[str, Any]:
        return {"apart": self._apart}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        self._apart = int(state_dict.get("apart", 0))

    def _averaged(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """Return the tensors to average, in the same order on all workers."""
        weights = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
        found: list[torch.Tensor] = list(weights)
        if self.momentum == "mean":
            for weight in weights:
                state = optimizer.state.get(weight, {})
                found += [
                    state[name]
                    for name in sorted(state)
                    if isinstance(state[name], torch.Tensor) and state[name].shape == weight.shape
                ]
        return found


__all__ = ["LocalSGD"]
