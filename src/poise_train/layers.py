"""Measures the costs of a model's layers on this device, and the connections between workers: medians after a warm-up.

Layers are measured one after another as in a pipeline: forward and backward on one micro-batch. They are measured in
several rounds, so that a short slowdown of the machine does not affect a single layer. A copy of each layer is
measured, so that the model does not change, and only one layer at a time needs memory on the device. The times include
the load of other workers on the machine, as in training.
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
"""Number of rounds over all layers; in each round, the number of warm-up runs of a layer, and of measured runs."""

SMALL, LARGE = 8, 2**20
"""Message sizes in bytes, to measure the latency of a transfer and its bandwidth."""

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Measured(NamedTuple):
    """A layer's cost, and a meta tensor like its output."""

    layer: Layer
    output: torch.Tensor


class Clock:
    """Measures the computing time of a device: use `with clock:` around the work. On a GPU it uses CUDA events, because
    the GPU computes asynchronously.
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
        """Return the measured nanoseconds since the last call."""
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
    """Measure each layer on the output of the previous ones for the example, a micro-batch. With a loss, also measure
    backward; the last layer's time includes the loss. `copies`: number of copies of the weights in memory (weights,
    gradients, optimizer state). Raises Misused if a layer does not return one tensor.
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
    """Return a layer's output, the bytes that it saves for backward besides its weights, and their addresses. Storage
    that the previous layer has saved is not counted again.
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
    """Return the nanoseconds of `TIMES` forward and backward passes, after the warm-up."""
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
    """Measure each worker's connection to the next one; all workers of the group call it and get the same result."""
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
    """Return the nanoseconds of one way: half of the median round trip between a worker and the next one."""
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
