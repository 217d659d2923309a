"""Gradient buckets, which are all-reduced over the gang while backward still runs.

Each parameter's gradient is a view into the flat tensor of its bucket, so nothing is copied. Buckets are filled from
the last parameter to the first, in the order of backward, and sent in the same order on all workers, regardless of
which is full first. Parameters without a gradient, and workers without samples in a step, contribute zeros.

If memory is needed for activations, buckets release theirs between steps (`kept`): backward allocates each gradient,
which is then copied into its bucket.

A step that ran out of memory is repeated. Buckets already sent are complete, and other workers wait for them: they
are kept, and their parameters get no gradient in the repetition.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from poise_train.batch import is_short
from poise_train.exchange import Bucket, Exchange
from poise_train.gang import WorkerLost
from poise_train.topology import add_up, known

FIRST_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20
"""Sizes of the first bucket, which is to leave early, and of the others: as DistributedDataParallel has them
(S. Li et al., "PyTorch Distributed", VLDB 2020, section 4.2)."""


class Reducer:
    """Sums the gradients of `parameters` over the gang in each step. Call `begin` before the last backward of a step,
    and `finish` after it; then each gradient is the sum over the gang, until `clear`. `ready` is applied to a bucket's
    gradients before it is sent. `kept` decides by their bytes whether buckets are kept between steps.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        exchange: Exchange,
        *,
        ready: Callable[[torch.Tensor], None] = lambda flat: None,
        kept: Callable[[int], bool] = lambda size: True,
    ) -> None:
        self.exchange = exchange
        self._finish_bucket = ready
        self.buckets: list[Bucket] = []
        self._views: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._where: dict[torch.nn.Parameter, int] = {}
        self._open: list[set[torch.nn.Parameter]] = []
        self._waits: list[Callable[[], object]] = []
        self._sending = False
        self._lost = ""
        self._used: set[torch.nn.Parameter] = set()  # got a gradient in this step
        self.skips = True  # whether some parameters got no gradient; unknown at first
        self._steps = 0
        for group in _grouped([one for one in parameters if one.requires_grad]):
            self._add(group)
        self._kept = kept(sum(bucket.flat.nbytes for bucket in self.buckets))
        self._still: list[torch.nn.Parameter] = []
        self._hooks = [
            one.register_post_accumulate_grad_hook(partial(self._ready))  # a method of its own for each parameter
            for one in self._views
        ]
        self.clear()

    @property
    def all_out(self) -> bool:
        return len(self._waits) == len(self.buckets)

    @property
    def route(self) -> str:
        """All-reduce algorithm of the largest bucket, if it is sent uncompressed; empty: ring."""
        routes = known()
        best = "ring" if routes is None else routes.best(max(bucket.flat.nbytes for bucket in self.buckets))
        return "" if best == "ring" else best

    def begin(self, *, early: bool = True) -> None:
        """Prepare for the last backward of this step: each bucket is sent when it is full, or only in `finish` if not
        `early`.
        """
        self._sending = early
        self._open = [set(bucket.parameters) for bucket in self.buckets]

    def finish(self, *, careful: bool = False) -> None:
        """Send the remaining buckets, and wait for all sums. Raises WorkerLost.

        With `careful` on all workers, a parameter without a gradient on any worker has none, as with a single worker;
        otherwise its gradient is zero, with which an optimizer may still change it.
        """
        used = [1] * len(self._views)
        if not self._lost:
            try:
                self._send(all_of_them=True)
                count = torch.tensor([one in self._used for one in self._views], dtype=torch.int32) if careful else None
                wait_for_count = add_up(count)[0] if count is not None else bool
                for wait in self._waits:
                    wait()
                wait_for_count()
                used = count.tolist() if count is not None else used
            except RuntimeError as error:
                self._lost = str(error) or "it has gone"
        self._steps += 1
        passed_by = bool(self._used) and len(self._used) < len(self._views)
        self.skips = passed_by or (self.skips and self._steps > 1)
        self._used.clear()
        for (parameter, view), many in zip(self._views.items(), used, strict=True):
            parameter.grad = view if many else None
        lost, self._lost, self._sending = self._lost, "", False
        self._waits.clear()
        self._thaw()
        if lost:
            raise WorkerLost(lost)

    def clear(self) -> None:
        """Zero all gradients and attach them to the buckets, or release them if they are not kept."""
        for bucket in self.buckets:
            if self._kept:
                bucket.flat.zero_()
            else:
                bucket.flat.untyped_storage().resize_(0)
        for parameter, view in self._views.items():
            parameter.grad = view if self._kept else None

    def again(self) -> None:
        """Prepare to repeat the step, except for buckets already sent."""
        self._sending = False
        for bucket in self.buckets[: len(self._waits)]:
            for one in bucket.parameters:
                one.requires_grad_(False)
            self._still += bucket.parameters
        for bucket in self.buckets[len(self._waits) :]:
            there = bucket.flat.untyped_storage().size() > 0
            if there:
                bucket.flat.zero_()
            for one in bucket.parameters:
                one.grad = self._views[one] if there else None

    def close(self) -> None:
        """Detach from the parameters and clear their gradients."""
        for hook in self._hooks:
            hook.remove()
        self._thaw()
        for parameter in self._views:
            parameter.grad = None

    def _add(self, parameters: list[torch.nn.Parameter]) -> None:
        first = parameters[0]
        flat = torch.zeros(sum(one.numel() for one in parameters), dtype=first.dtype, device=first.device)
        bucket = Bucket(len(self.buckets), flat, tuple(parameters))
        start = 0
        for one in parameters:
            self._views[one] = flat[start : start + one.numel()].view(one.shape)
            self._where[one] = bucket.number
            start += one.numel()
        self.buckets.append(bucket)

    def _ready(self, parameter: torch.nn.Parameter) -> None:
        """Handle a parameter whose gradient is complete in this backward."""
        view = self._views[parameter]
        self._used.add(parameter)
        self._ask_for(self.buckets[self._where[parameter]])
        if parameter.grad is not None and parameter.grad.data_ptr() != view.data_ptr():
            view.copy_(parameter.grad)  # it was set to None meanwhile
            parameter.grad = view
        if self._sending and not self._lost:
            self._open[self._where[parameter]].discard(parameter)
            try:
                self._send()
            except RuntimeError as error:
                if is_short(error):
                    raise
                self._lost = str(error) or "it has gone"  # let backward finish; `finish` raises

    def _send(self, *, all_of_them: bool = False) -> None:
        while len(self._waits) < len(self.buckets) and (all_of_them or not self._open[len(self._waits)]):
            bucket = self.buckets[len(self._waits)]
            self._ask_for(bucket)
            self._finish_bucket(bucket.flat)
            self._waits.append(self.exchange.begin(bucket))

    def _ask_for(self, bucket: Bucket) -> None:
        """Allocate the bucket's memory if it was released."""
        if not bucket.flat.untyped_storage().size():
            bucket.flat.untyped_storage().resize_(bucket.flat.nbytes)
            bucket.flat.zero_()

    def _thaw(self) -> None:
        for one in self._still:
            one.requires_grad_(True)
        self._still.clear()


def _grouped(parameters: list[torch.nn.Parameter]) -> Iterable[list[torch.nn.Parameter]]:
    """Group parameters from the last to the first, by dtype and device, up to the bucket size."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = {}
    for one in reversed(parameters):
        kinds.setdefault((one.dtype, one.device), []).append(one)
    most = FIRST_BYTES
    for alike in kinds.values():
        group: list[torch.nn.Parameter] = []
        size = 0
        for one in alike:
            if group and size + one.numel() * one.element_size() > most:
                yield group
                group, size, most = [], 0, BUCKET_BYTES
            group.append(one)
            size += one.numel() * one.element_size()
        yield group


__all__ = ["Reducer"]
