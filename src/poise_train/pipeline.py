"""Pipeline parallelism: a sequential model is split into stages over the workers, which process micro-batches in turn.

    pipe = Pipeline(model, inputs[:8], loss=cross_entropy, target=targets[:8], micro_batches=4)
    optimizer = torch.optim.Adam(pipe.parameters())         # of this worker's layers
    for inputs, targets in batches:                         # equal on all workers, 4 x 8 samples
        loss = pipe.step(inputs, targets)                   # forward and backward; the mean loss, on all workers
        optimizer.step()
        optimizer.zero_grad()
    print(pipe.told())

Layers are measured on the workers, and the model is split by their cost, the speed of each worker, the link bandwidth,
and the available memory (`poise_train/policy/pipeline.py`). PyTorch's stages and schedules do the work; the compute
time of each stage is measured, so that reports show the estimated and the measured bubble.

It works with one process, under `poise run --workers N`, and under torchrun. A running pipeline cannot be resized. Its
checkpoints can be restored with another number of workers, because they use the tensor names of the whole model.
"""

import os
import statistics
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from poise.decoding import json_decoder
from poise.drivers.heartbeat import step as beat
from poise.errors import Misused, NotFound
from poise.units import format_bytes
from poise_train.gang import Gang
from poise_train.layers import Clock, Loss, Measured, measure, measure_wires
from poise_train.policy.pipeline import (
    NORMAL,
    Device,
    Lack,
    Layer,
    NoRoom,
    Schedule,
    Stage,
    Wire,
    choose,
    cut_at,
    foresee,
    idle,
    partition,
)

RECENT_STEPS = 64
"""Number of recent steps for the measured bubble; the first steps, with PyTorch's buffer setup, are left out."""

TRIED = (1, 2, 4, 8)
"""Numbers of micro-batches to try, as multiples of the number of workers."""

_FIRST_STEPS = 2
_INDEX = "pipeline.json"
_HINT = "poise run --workers 4: with more workers each has fewer layers"


class Saved(msgspec.Struct, frozen=True):
    """Index of a checkpoint folder: the step, and the files with its tensors. Written last, so it is never partial."""

    step: int
    files: tuple[str, ...]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """How a model was split, and the estimated and measured (median) times of a step, in nanoseconds. `ends` is the
    index behind the last layer of each stage.
    """

    schedule: Schedule
    micro_batches: int
    layers: tuple[str, ...]
    ends: tuple[int, ...]
    speeds: tuple[int, ...]
    memory: tuple[int, ...]
    foreseen_time: int
    foreseen_busy: tuple[int, ...]
    time: int
    busy: tuple[int, ...]
    steps: int

    @property
    def foreseen_bubble(self) -> float:
        return idle(self.foreseen_time, self.foreseen_busy)

    @property
    def bubble(self) -> float:
        """Measured share of the workers' time in which they are idle."""
        return idle(self.time, self.busy)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("stage", "layers", "speed", "memory", "foreseen", "measured")]
        for at, (start, stop) in enumerate(pairwise((0, *self.ends))):
            names = self.layers[start] if stop == start + 1 else f"{self.layers[start]} to {self.layers[stop - 1]}"
            busy = [f"{times[at] / 1e6:.1f} ms" if times else "-" for times in (self.foreseen_busy, self.busy)]
            rows.append((str(at), names, f"{self.speeds[at] / 1000:.2f}", format_bytes(self.memory[at]), *busy))
        rows.append(("step", "", "", "", f"{self.foreseen_time / 1e6:.1f} ms", f"{self.time / 1e6:.1f} ms"))
        rows.append(("bubble", "", "", "", f"{self.foreseen_bubble:.1%}", f"{self.bubble:.1%}"))
        widths = [max(len(row[column]) for row in rows) for column in range(6)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


class Pipeline:
    """This worker's stage of `model`, whose children take one tensor each and pass one to the next, like those of an
    `nn.Sequential`.

    `example` is one micro-batch; all micro-batches have its size, and a step takes `micro_batches` of them. Without
    `micro_batches`, the example is a batch, and layers are measured with several micro-batch sizes to find the best.
    With a `loss` (a mean over its micro-batch) and the `target` of the example it trains, by `schedule`: `1f1b` or
    `gpipe`. Without one it only answers. `memory` is the limit of the stage on this worker (-1: no limit; default on a
    GPU: its free memory). It must hold `copies` of the weights: the weights, their gradients, and the state of the
    optimizer (by default 4, as for Adam, and 1 without a loss). `ends` sets the end of each stage instead of computing
    it.

    Raises Misused for an unsupported model, or number of workers or micro-batches; and E110 with every reason why it
    does not fit.
    """

    def __init__(
        self,
        model: nn.Module,
        example: torch.Tensor,
        *,
        loss: Loss | None = None,
        target: torch.Tensor | None = None,
        micro_batches: int = 0,
        schedule: Schedule = "1f1b",
        memory: int | None = None,
        copies: int = 0,
        ends: Sequence[int] = (),
        device: torch.device | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.device = device or next((one.device for one in model.parameters()), torch.device("cpu"))
        self.schedule: Schedule = schedule if loss is not None else "forward"
        self.micro_batches = micro_batches
        self._group = group
        together(self.device)
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self._check(loss, target, len(example))
        children = list(model.named_children())
        copies = copies or (4 if loss else 1)

        def costs(samples: int) -> list[Measured]:
            some = None if target is None else target[:samples]
            return measure(children, example[:samples], device=self.device, loss=loss, target=some, copies=copies)

        if not micro_batches:
            self.micro_batches = self._choose(costs, len(example), self._room(memory))
            example = example[: len(example) // self.micro_batches]
        measured = costs(len(example))
        self.layers, devices, wires = self._agreed(measured, self._room(memory))
        self.stages = self._cut(devices, wires, ends)
        self._build(children, example, measured, loss)

    def _check(self, loss: Loss | None, target: torch.Tensor | None, samples: int) -> None:
        if loss is not None and target is None:
            raise Misused("the loss of the example needs its target", field="target", hint="target=targets[:8]")
        many = self.micro_batches or samples
        if self.schedule == "1f1b" and many < self.world:
            raise Misused(
                "1F1B needs at least as many micro-batches as stages",
                field="micro_batches",
                need=f"at least {self.world}",
                have=str(many),
                hint='schedule="gpipe"',
            )

    def _choose(self, costs: Callable[[int], list[Measured]], batch: int, memory: int) -> int:
        """Return the number of micro-batches with the shortest estimated step, of those in `TRIED`."""
        agreed = {
            batch // many: self._agreed(costs(batch // many), memory)
            for many in (self.world * each for each in TRIED)
            if batch % many == 0
        }
        if not agreed:
            need = f"a multiple of {self.world}, the number of workers"
            raise Misused(
                "the batch size is not a multiple of the number of workers", field="example", need=need, have=str(batch)
            )
        _, devices, wires = agreed[max(agreed)]
        layers = {size: one for size, (one, _, _) in agreed.items()}
        chosen = choose(layers, batch, devices, wires, schedule=self.schedule)
        if isinstance(chosen, dict):
            raise _no_room(chosen[min(chosen)])
        return chosen.micro_batches

    def _room(self, memory: int | None) -> int:
        if memory is None:
            return torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else -1
        return memory

    def _agreed(self, measured: Sequence[Measured], memory: int) -> tuple[tuple[Layer, ...], list[Device], list[Wire]]:
        """Return the inputs of the partition, equal on all workers: the layers as measured by worker 0, each worker's
        relative speed and its memory, and the links.
        """
        layers = [one.layer for one in measured]
        mine = torch.tensor([memory, sum(one.forward + one.backward for one in layers)], device=self.device)
        all_of = [torch.zeros_like(mine) for _ in range(self.world)]
        dist.all_gather(all_of, mine, group=self._group)
        costs = torch.tensor([[one.forward, one.backward] for one in layers], device=self.device)
        dist.broadcast(costs, group=self._group, group_src=0)
        normal = int(all_of[0][1])
        devices = [
            Device(f"worker {at}", max(1, NORMAL * normal // max(1, int(total))), int(room))
            for at, (room, total) in enumerate(all_of)
        ]
        agreed = tuple(
            one._replace(forward=forward, backward=backward)
            for one, (forward, backward) in zip(layers, costs.tolist(), strict=True)
        )
        return agreed, devices, measure_wires(self._group, self.device)

    def _cut(self, devices: Sequence[Device], wires: Sequence[Wire], ends: Sequence[int]) -> tuple[Stage, ...]:
        schedule, many = self.schedule, self.micro_batches
        if ends:
            return cut_at(ends, self.layers, devices, wires, schedule=schedule, micro_batches=many)
        found = partition(self.layers, devices, wires, schedule=schedule, micro_batches=many)
        if isinstance(found, NoRoom):
            raise _no_room(found)
        return found

    def _build(
        self,
        children: Sequence[tuple[str, nn.Module]],
        example: torch.Tensor,
        measured: Sequence[Measured],
        loss: Loss | None,
    ) -> None:
        """Build a PyTorch stage of this worker's layers, under their names in the whole model.

        The stage gets the measured shapes of its inputs and outputs: otherwise PyTorch's stages would exchange them by
        pickle.
        """
        stage = self.stages[self.rank]
        self.module = nn.Sequential(OrderedDict(children[stage.start : stage.stop])).to(self.device)
        self._clock = Clock(self.device)
        comes = measured[stage.start - 1].output if stage.start else example.to("meta")
        self._stage = _TimedStage(
            self._clock,
            self.module,
            self.rank,
            self.world,
            self.device,
            input_args=comes,
            output_args=measured[stage.stop - 1].output,
            group=self._group,
        )
        kind = Schedule1F1B if self.schedule == "1f1b" else ScheduleGPipe
        self._schedule = kind(self._stage, self.micro_batches, None if loss is None else self._timed(loss))
        self._samples = self.micro_batches * example.shape[0]
        self._steps: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=RECENT_STEPS)
        self._count = 0

    def _timed(self, loss: Loss) -> Loss:
        def timed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            with self._clock:
                return loss(output, target)

        return timed

    # --- public interface --------------------------------------------------------------------------------------------

    @property
    def last(self) -> bool:
        """Whether this worker has the last stage, which returns the outputs."""
        return self.rank == self.world - 1

    def parameters(self) -> Iterator[nn.Parameter]:
        """Of this worker's layers."""
        return self.module.parameters()

    def step(self, inputs: torch.Tensor, target: torch.Tensor) -> float:
        """Compute the gradients of the mean loss over a batch; returns that loss, on all workers. All workers call it,
        with the same batch: the first stage takes the inputs, the last one the target. Reset the gradients of the
        previous step first.
        """
        if self.schedule == "forward":
            raise Misused(
                "a pipeline without a loss cannot train", hint="Pipeline(..., loss=cross_entropy, target=...)"
            )
        losses: list[torch.Tensor] = []
        self._run(inputs, target=target.to(self.device) if self.last else None, losses=losses, return_outputs=False)
        return self._agree(float(torch.stack(losses).detach().mean()) if losses else 0.0)

    def answer(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """The output of the model for a batch: on the last worker, None on the others. All workers call it, with the
        same batch. Micro-batches go through each layer in order.
        """
        if self.schedule != "forward":
            raise Misused("a pipeline with a loss can only train", hint="Pipeline(model, example, micro_batches=8)")
        with torch.no_grad():
            output: torch.Tensor | None = self._run(inputs)
        self._agree(0.0)
        return output

    def _run(self, inputs: torch.Tensor, **how: Any) -> Any:
        if len(inputs) != self._samples:
            raise Misused(
                "the batch has another size than the example of the pipeline",
                field="inputs",
                need=f"{self._samples} samples, in {self.micro_batches} micro-batches",
                have=str(len(inputs)),
            )
        self._begun = perf_counter_ns()
        return self._schedule.step(*([inputs.to(self.device)] if self.rank == 0 else []), **how)

    def _agree(self, loss: float) -> float:
        """Exchange times and the loss of a step between all workers, which wait for each other. Returns the loss."""
        busy, took = self._clock.take(), perf_counter_ns() - self._begun
        told = torch.zeros(1 + 2 * self.world, dtype=torch.float64, device=self.device)
        told[0], told[1 + self.rank], told[1 + self.world + self.rank] = loss, busy, took
        dist.all_reduce(told, group=self._group)
        beat()
        self._count += 1
        if self._count > _FIRST_STEPS:
            all_busy, all_took = told[1:].long().split(self.world)
            self._steps.append((int(all_took.max()), tuple(all_busy.tolist())))
        return float(told[0])

    def told(self) -> Told:
        """The cut of the model, and the estimated and measured times of a step."""
        foreseen = foresee(self.stages, self.micro_batches, self.schedule)
        times, busy = [time for time, _ in self._steps], zip(*(busy for _, busy in self._steps), strict=True)
        return Told(
            schedule=self.schedule,
            micro_batches=self.micro_batches,
            layers=tuple(layer.name for layer in self.layers),
            ends=tuple(stage.stop for stage in self.stages),
            speeds=tuple(stage.device.speed for stage in self.stages),
            memory=tuple(stage.memory for stage in self.stages),
            foreseen_time=foreseen.time,
            foreseen_busy=foreseen.busy,
            time=int(statistics.median(times)) if times else 0,
            busy=tuple(int(statistics.median(one)) for one in busy),
            steps=len(times),
        )

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, folder: Path, step: int, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Each worker writes its layers, and their optimizer state, under the names of the whole model; the folder has
        this step once all have written. All workers call it; they share the folder.
        """
        folder.mkdir(parents=True, exist_ok=True)
        names = tuple(f"{step}.{at}-of-{self.world}.safetensors" for at in range(self.world))
        _publish(folder / names[self.rank], save(self._tensors(optimizer)))
        dist.barrier(self._group)
        if self.rank == 0:
            _publish(folder / _INDEX, msgspec.json.encode(Saved(step, names)))
            for old in set(folder.glob("*.safetensors")) - {folder / name for name in names}:
                old.unlink()
        dist.barrier(self._group)

    def restore(self, folder: Path, optimizer: torch.optim.Optimizer | None = None) -> int:
        """Load this worker's layers from a checkpoint of any number of workers; returns its step, -1 if there is none.
        All workers call it. Raises NotFound if a tensor of the model is missing.
        """
        if not (folder / _INDEX).exists():
            return -1
        saved = json_decoder(Saved).decode((folder / _INDEX).read_bytes())
        found: dict[str, torch.Tensor] = {}
        own = self.module.state_dict()
        for file in saved.files:
            with safe_open(folder / file, "pt", device=str(self.device)) as tensors:
                for key in tensors.keys():  # noqa: SIM118  it is no mapping
                    if key.split("/", 1)[0] in own:
                        found[key] = tensors.get_tensor(key)
        missing = [name for name in own if name not in found]
        if missing:
            raise NotFound(f"`{folder}` has no `{missing[0]}`", need=", ".join(missing), have=f"{len(found)} tensors")
        self.module.load_state_dict({name: found[name] for name in own})
        for name, parameter in self.module.named_parameters() if optimizer is not None else ():
            kept = {key.split("/", 1)[1]: one for key, one in found.items() if key.startswith(f"{name}/")}
            if kept and optimizer is not None:
                optimizer.state[parameter] = kept
        return saved.step

    def _tensors(self, optimizer: torch.optim.Optimizer | None) -> dict[str, torch.Tensor]:
        """Tensors to save: `3.weight` is a weight, `3.weight/exp_avg` its optimizer state."""
        found = {name: tensor.contiguous() for name, tensor in self.module.state_dict().items()}
        for name, parameter in self.module.named_parameters() if optimizer is not None else ():
            for key, value in optimizer.state.get(parameter, {}).items() if optimizer is not None else ():
                if value is not None:
                    found[f"{name}/{key}"] = torch.as_tensor(value).contiguous()
        return found


def together(device: torch.device) -> None:
    """Form the process group, once per process: successive pipelines share it. PyTorch's stages need a group even with
    a single worker.
    """
    if not dist.is_initialized():
        Gang(device).form()
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)


class _TimedStage(PipelineStage):
    """PyTorch's stage, with a clock for its compute time without waiting."""

    def __init__(self, clock: Clock, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._clock = clock

    def forward_one_chunk(self, *args: Any, **named: Any) -> Any:
        with self._clock:
            return super().forward_one_chunk(*args, **named)

    def backward_one_chunk(self, *args: Any, **named: Any) -> Any:
        with self._clock:
            return super().backward_one_chunk(*args, **named)


def _no_room(found: NoRoom) -> Misused:
    """Make one error with every reason."""

    def one(lack: Lack) -> Misused:
        need, have = (
            (format_bytes(lack.need), format_bytes(lack.have))
            if lack.unit == "bytes"
            else (f"{lack.need} {lack.unit}", f"{lack.have} {lack.unit}")
        )
        return Misused(f"there is no room for {lack.subject}", code="E110", need=need, have=have, hint=_HINT)

    first, *others = [one(lack) for lack in found.lacks]
    first.record = msgspec.structs.replace(first.record, others=tuple(other.record for other in others))
    return first


def _publish(path: Path, content: bytes) -> None:
    """Write a file atomically and durably."""
    draft = path.with_name(f"{path.name}.new")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


__all__ = ["Pipeline", "Told"]
