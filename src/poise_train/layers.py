"""What the layers of a model cost on this device, and what the wires between workers carry; measured, warm, medians.

Layers are measured one after the other as a pipeline would use them: on one micro-batch, forward and then backward, in
several rounds, so that what slows the machine for a moment slows no layer alone. Each is copied for it, so that nothing
of the model changes, and only one layer at a time needs room on the device. What other workers do on the machine
meanwhile is in the figures, as it will be when they all train.
"""

import copy
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from poise.errors import Misused
from poise.units import SECOND
from poise_train.policy.pipeline import Layer, Wire

ROUNDS, WARM, TIMES = 3, 2, 4
"""So often all layers are gone through; in each round a layer is run so often before it is measured, and then measured.
"""

SMALL, LARGE = 8, 2**20
"""Bytes that are sent to find out what a transfer takes whatever its size, and what it takes for its size."""

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Measured(NamedTuple):
    """A layer's cost, and a tensor without memory that is like what it gives."""

    layer: Layer
    output: torch.Tensor


class Clock:
    """How long a device computes: `with clock:` around what it does. On a GPU by its own events, since Python goes on
    while it computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._begun = self._total = 0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __enter__(self) -> None:
        if self._cuda:
            self._events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
            self._events[-1][0].record()
        else:
            self._begun = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        if self._cuda:
            self._events[-1][1].record()
        else:
            self._total += perf_counter_ns() - self._begun

    def take(self) -> int:
        """Nanoseconds since it was last asked."""
        if self._cuda:
            torch.cuda.synchronize()
            self._total = sum(int(begun.elapsed_time(ended) * 1e6) for begun, ended in self._events)
            self._events.clear()
        total, self._total = self._total, 0
        return total


def measure(
    layers: Sequence[tuple[str, nn.Module]],
    example: torch.Tensor,
    *,
    device: torch.device,
    loss: Loss | None = None,
    target: torch.Tensor | None = None,
    copies: int = 1,
) -> list[Measured]:
    """Each layer on what the ones before it make of the example, a micro-batch; with a loss also backward, the loss in
    the last layer's time. `copies` of the weights are held: themselves, their gradients, what the optimizer keeps.
    Raises Misused if a layer does not give one tensor.
    """
    aim = target.to(device) if target is not None else None
    losses = [None] * (len(layers) - 1) + [loss]
    given, outputs, sizes, before = [example.to(device)], list[torch.Tensor](), list[tuple[int, int]](), set[int]()
    times: list[list[tuple[int, int]]] = [[] for _ in layers]
    cards = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(cards), torch.set_grad_enabled(loss is not None):
        for turn in range(ROUNDS):
            for at, (name, one) in enumerate(layers):
                layer = copy.deepcopy(one).to(device)
                if turn == 0:
                    output, kept, before = _kept(name, layer, given[at], before)
                    outputs.append(torch.empty_like(output, device="meta").requires_grad_(output.requires_grad))
                    given.append(output.detach().requires_grad_(output.requires_grad))
                    weights = sum(tensor.nbytes for tensor in layer.parameters())
                    sizes.append((kept, copies * weights + sum(tensor.nbytes for tensor in layer.buffers())))
                times[at] += _times(layer, given[at], losses[at], aim, device)
    medians = [tuple(int(statistics.median(way)) for way in zip(*of, strict=True)) for of in times]
    return [
        Measured(Layer(name, forward, backward, output.nbytes, kept, held), output)
        for (name, _), (forward, backward), (kept, held), output in zip(layers, medians, sizes, outputs, strict=True)
    ]


def _kept(name: str, layer: nn.Module, given: torch.Tensor, before: set[int]) -> tuple[torch.Tensor, int, set[int]]:
    """What a layer gives, the bytes that it keeps for its backward beside its weights, and where they are: what the
    layer before it has kept already is not counted again.
    """
    weights = {one.untyped_storage().data_ptr() for one in (*layer.parameters(), *layer.buffers())}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = layer(given)
    if not isinstance(output, torch.Tensor):
        raise Misused(
            f"layer `{name}` returns no tensor",
            need="one tensor in, one tensor out, for each layer",
            have=type(output).__name__,
            hint="layers that pass on several tensors belong together in one nn.Module",
        )
    return output, sum(size for place, size in kept.items() if place not in before), set(kept)


def _times(
    layer: nn.Module, given: torch.Tensor, loss: Loss | None, target: torch.Tensor | None, device: torch.device
) -> list[tuple[int, int]]:
    """Nanoseconds of a forward and of its backward, some times."""
    clock, found = Clock(device), []
    for _ in range(WARM + TIMES):
        with clock:
            output = layer(given)
            if loss is not None and target is not None:
                output = loss(output, target)
        forward = clock.take()
        if output.requires_grad:
            slope = torch.ones_like(output)
            with clock:
                output.backward(slope)
            given.grad = None
        found.append((forward, clock.take()))
    return found[WARM:]


def measure_wires(group: dist.ProcessGroup | None, device: torch.device) -> list[Wire]:
    """What each worker's connection to the next one takes; all workers of the group call it and get the same."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    found = torch.zeros(2, max(1, world - 1), dtype=torch.int64, device=device)
    for first in range(world - 1):
        dist.barrier(group)
        for row, size in enumerate((SMALL, LARGE)):
            took = _there_and_back(group, rank, first, torch.zeros(size, dtype=torch.uint8, device=device))
            if rank == first:
                found[row, first] = took
    dist.all_reduce(found, group=group)
    small, large = found.tolist()
    return [
        Wire(latency, (LARGE - SMALL) * 8 * SECOND // max(1, more - latency))
        for latency, more in zip(small[: world - 1], large, strict=False)
    ]


def _there_and_back(group: dist.ProcessGroup | None, rank: int, first: int, load: torch.Tensor) -> int:
    """Nanoseconds of one way, the median of some times there and back between a worker and the next one."""
    took = []
    for _ in range(ROUNDS * (WARM + TIMES)):
        begun = perf_counter_ns()
        if rank == first:
            dist.send(load, group=group, group_dst=first + 1)
            dist.recv(load, group=group, group_src=first + 1)
        elif rank == first + 1:
            dist.recv(load, group=group, group_src=first)
            dist.send(load, group=group, group_dst=first)
        if load.device.type == "cuda":
            torch.cuda.synchronize()
        took.append(perf_counter_ns() - begun)
    return int(statistics.median(took[WARM:])) // 2
