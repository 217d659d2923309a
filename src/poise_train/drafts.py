"""Copies the training state to separate memory for a checkpoint, with the shortest possible pause of training.

Tensors that may change at any moment are copied at once. Most tensors are changed only by the optimizer; another thread
copies them while the next gradients are computed (J. Mohan et al., CheckFreq, FAST 2021). Afterwards the version of
each tensor shows whether it stayed unchanged. A GPU copies asynchronously, in stream order.
"""

import threading
from collections.abc import Collection
from time import perf_counter_ns

import torch

from poise.units import MILLISECOND
from poise_train.model.checkpoints import Kind
from poise_train.pieces import Damaged, Laid, Staging, rows_of
from poise_train.trees import Taken


class Draft:
    """A checkpoint in progress: its values that are not tensors, the places of its pieces, and the remaining copies."""

    def __init__(
        self,
        step: int,
        score: float | None,
        tree: bytes,
        own: bytes,
        taken: Taken,
        shared: int,
        first: frozenset[int],
        laid: list[Laid],
    ) -> None:
        self.step = step
        self.score = score
        self.tree, self.own = tree, own
        self.kinds: list[Kind] = taken.kinds[:shared]
        self.first = first  # kinds that worker 0 writes, whole
        self.own_kinds: list[Kind] = taken.kinds[shared:]
        self.laid = laid
        self.staging = Staging()
        self.copied = threading.Event()
        self.later: list[tuple[Laid, torch.Tensor, int]] = []
        self.began = perf_counter_ns()
        self.stall = 0
        self._tensors = taken.tensors
        self._clocks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def copy(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Copy the tensors now, except those that only the optimizer changes; `copy_later` copies these.

        A GPU copies asynchronously and in stream order: later operations on the same tensors follow the copy.
        """
        ones = [(one, self._tensors[one.piece.tensor]) for one in self.laid]
        devices = {tensor.device for _, tensor in ones if tensor.is_cuda}
        self.staging.make_room(sum(one.piece.size for one in self.laid), pinned=bool(devices))
        steady = _storages(optimizer) if optimizer is not None else ()
        begun = {device: _clock(device) for device in devices}
        with torch.no_grad():
            for one, tensor in ones:
                if not tensor.is_cuda and not tensor.is_inference() and storage(tensor) in steady:
                    self.later.append((one, tensor, tensor._version))
                else:
                    self._copy(one, tensor)
        self._clocks = [(begun[device], _clock(device)) for device in devices]
        self._tensors = []
        if not self.later:
            self.copied.set()

    def copy_later(self) -> None:
        """Copy the remaining tensors. Raises `Damaged` if one was changed meanwhile by anything but its optimizer."""
        with torch.no_grad():
            for one, tensor, _ in self.later:
                self._copy(one, tensor)
        changed = [one.kind.name for one, tensor, version in self.later if tensor._version != version]
        self.later.clear()
        self.copied.set()
        for begun, ended in self._clocks:
            ended.synchronize()
            self.stall += int(begun.elapsed_time(ended) * MILLISECOND)
        if changed:
            raise Damaged(f"{changed[0]} was changed while it was copied, and not by the optimizer's step")

    def _copy(self, one: Laid, tensor: torch.Tensor) -> None:
        self.staging.place(one).copy_(rows_of(tensor, one.piece), non_blocking=tensor.is_cuda)


def _storages(optimizer: torch.optim.Optimizer) -> Collection[int]:
    """Return the storage addresses of the optimizer's parameters and state."""
    ones = [one for group in optimizer.param_groups for one in group["params"]]
    ones += [one for state in optimizer.state.values() for one in state.values() if isinstance(one, torch.Tensor)]
    return {storage(one) for one in ones}


def storage(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage, which views of one tensor share."""
    return tensor.untyped_storage().data_ptr()


def _clock(device: torch.device) -> torch.cuda.Event:
    with torch.cuda.device(device):
        clock = torch.cuda.Event(enable_timing=True)
        clock.record()
    return clock
