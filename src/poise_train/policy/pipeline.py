"""Splits a sequential model into stages for unequal devices, and estimates a step under a micro-batch schedule.

`partition` minimizes the time of the slowest stage, which limits the throughput of a pipeline in the steady state. Of
all optimal splits it takes one with the smallest total time, which is the time to fill and drain the pipeline, and of
these the one with the earliest ends. It is exact: a dynamic program over the start of the next stage, in O(P L^2) for P
devices in a fixed order and L layers. In any order the state includes the used devices: at most O(2^P P L^2), less if
some devices are equal.

`foresee` simulates the operations of each device in order, with the times of the actual stages. The closed form of the
bubble, (P - 1) / (M + P - 1) (Huang et al., *GPipe*, 2019, section 2.3), holds only for equal stages without transfers;
there the two agree.

The receiving stage pays for a transfer: PyTorch's GPipe and 1F1B post a receive just before the computation that needs
it, and gloo and NCCL move data only after that. So a transfer never overlaps the receiver's computation, however early
it could start.

Times are nanoseconds per micro-batch, sizes bytes, speeds thousandths of the device on which layers were measured, and
bandwidths bits per second.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from poise.units import SECOND

Schedule = Literal["forward", "gpipe", "1f1b"]
"""`forward`: inference. `gpipe`: all forwards, then all backwards. `1f1b`: the fewest micro-batches in flight that keep
all stages busy (Narayanan et al., *Memory-efficient pipeline-parallel DNN training*, ICML 2021)."""

MOST_DEVICES = 16
"""Maximum number of devices to order; each further device of a different kind doubles the work."""

NORMAL = 1000
"""The speed of the device on which layers were measured."""


class Layer(NamedTuple):
    """Measured cost of one layer for one micro-batch.

    `output`: bytes sent to the next layer. `kept`: bytes kept for its backward. `held`: permanent bytes, of weights,
    gradients and optimizer state.
    """

    name: str
    forward: int
    backward: int = 0
    output: int = 0
    kept: int = 0
    held: int = 0


class Device(NamedTuple):
    """`memory`: maximum bytes of a stage on this device; -1: no limit."""

    name: str
    speed: int = NORMAL
    memory: int = -1


class Wire(NamedTuple):
    """Link between two devices: `latency` of one transfer; a `bandwidth` of 0 means unlimited."""

    latency: int = 0
    bandwidth: int = 0

    def carries(self, size: int) -> int:
        """Transfer time of this number of bytes."""
        return self.latency + (-(-size * 8 * SECOND // self.bandwidth) if self.bandwidth else 0)


class Stage(NamedTuple):
    """The layers from `start` up to `stop` on one device. `takes` and `takes_back`: transfer times before a forward and
    a backward. `memory`: peak bytes.
    """

    device: Device
    start: int
    stop: int
    forward: int
    backward: int = 0
    takes: int = 0
    takes_back: int = 0
    memory: int = 0

    @property
    def time(self) -> int:
        """Time of one micro-batch, including transfers."""
        return self.forward + self.backward + self.takes + self.takes_back

    @property
    def fits(self) -> bool:
        return not 0 <= self.device.memory < self.memory


class Lack(NamedTuple):
    """A reason why there is no partition: `subject` needs more than is available."""

    subject: str
    need: int
    have: int
    unit: Literal["bytes", "layers", "micro-batches"]


class NoRoom(NamedTuple):
    """There is no partition, with all the reasons."""

    lacks: tuple[Lack, ...]


class Foreseen(NamedTuple):
    """Estimate of one step: its time, and the compute time of each device."""

    time: int
    busy: tuple[int, ...]

    @property
    def bubble(self) -> float:
        """Share of the devices' time in which they are idle."""
        return idle(self.time, self.busy)


class Move(NamedTuple):
    """One operation of a device: the forward or the backward of a micro-batch through one stage."""

    stage: int
    micro: int
    back: bool = False


class Chosen(NamedTuple):
    """The best micro-batch size, its number per step, its stages, and the estimated step. `passed`: for each other
    size, the estimated step, or why there is none.
    """

    size: int
    micro_batches: int
    stages: tuple[Stage, ...]
    foreseen: Foreseen
    passed: Mapping[int, Foreseen | NoRoom]


def idle(time: int, busy: Sequence[int]) -> float:
    """Return the bubble: the share of the devices' time in which they are idle."""
    return 1 - sum(busy) / (time * len(busy)) if time else 0.0


# --- where to cut ---------------------------------------------------------------------------------------------------


def partition(
    layers: Sequence[Layer],
    devices: Sequence[Device],
    wires: Wire | Sequence[Wire] = Wire(),  # noqa: B008  it is frozen
    *,
    schedule: Schedule = "1f1b",
    micro_batches: int = 1,
    any_order: bool = False,
) -> tuple[Stage, ...] | NoRoom:
    """Assign at least one layer to each device, and minimize the time of the slowest stage.

    `wires` connect each device to the next; with `any_order`, a single one is used for all. Memory is counted for
    `micro_batches` per step.
    """
    if any_order and not isinstance(wires, Wire):
        raise ValueError("devices change their order only if all are connected alike")
    if any_order and len(devices) > MOST_DEVICES:
        raise ValueError(f"at most {MOST_DEVICES} devices are put in order, not {len(devices)}")
    if len(layers) < len(devices):
        return NoRoom((Lack("the devices", len(devices), len(layers), "layers"),))
    row = _Row(layers, devices, wires, schedule, micro_batches, any_order)
    slowest = row.least(max, None)
    if slowest is None:
        return NoRoom(_lacks(row))
    return row.cut(slowest)


def cut_at(
    ends: Sequence[int],
    layers: Sequence[Layer],
    devices: Sequence[Device],
    wires: Wire | Sequence[Wire] = Wire(),  # noqa: B008  it is frozen
    *,
    schedule: Schedule = "1f1b",
    micro_batches: int = 1,
) -> tuple[Stage, ...]:
    """Return the stages that end before these layers, even if they do not fit."""
    if len(ends) != len(devices) or sorted({0, *ends}) != [0, *ends] or ends[-1] != len(layers):
        raise ValueError(f"{len(devices)} stages of {len(layers)} layers do not end at {list(ends)}")
    row = _Row(layers, devices, wires, schedule, micro_batches, any_order=False)
    return tuple(row.stage(at, at, start, stop) for at, (start, stop) in enumerate(pairwise([0, *ends])))


class _Row:
    """The search. A state is the set of used devices (as bits), and the first unassigned layer."""

    def __init__(
        self,
        layers: Sequence[Layer],
        devices: Sequence[Device],
        wires: Wire | Sequence[Wire],
        schedule: Schedule,
        micro_batches: int,
        any_order: bool,
    ) -> None:
        self.chain = [wires] * (len(devices) - 1) if isinstance(wires, Wire) else list(wires)
        if len(self.chain) != len(devices) - 1:
            raise ValueError(f"{len(devices)} devices have {len(devices) - 1} wires between, not {len(self.chain)}")
        self.layers, self.devices, self.any_order = layers, devices, any_order
        self.schedule, self.micro_batches = schedule, micro_batches
        self._forward, self._backward, self._kept, self._held = (
            [0, *accumulate(of)]
            for of in zip(*((one.forward, one.backward, one.kept, one.held) for one in layers), strict=True)
        )
        self.stage = cache(self._stage)

    def nexts(self, used: int) -> list[int]:
        """Return candidates for the next device: of equal devices only the first free one."""
        if not self.any_order:
            return [used.bit_count()]
        free = [index for index in range(len(self.devices)) if not used >> index & 1]
        alike: dict[tuple[int, int], int] = {}
        for index in free:
            alike.setdefault((self.devices[index].speed, self.devices[index].memory), index)
        return list(alike.values())

    def _stage(self, index: int, place: int, start: int, stop: int) -> Stage:
        """Make a stage of these layers on a device at position `place`."""
        device, last = self.devices[index], len(self.devices) - 1
        trains = self.schedule != "forward"
        forward = -(-(self._forward[stop] - self._forward[start]) * NORMAL // device.speed)
        backward = -(-(self._backward[stop] - self._backward[start]) * NORMAL // device.speed) if trains else 0
        comes = self.layers[start - 1].output if start else 0
        gives = self.layers[stop - 1].output if not trains or place < last else 0
        # PyTorch has a buffer per received micro-batch and gradient; in inference, outputs stay until the end
        memory = self._held[stop] - self._held[start] + (comes + gives) * self.micro_batches
        if trains:
            under_way = in_flight(self.schedule, place, last + 1, self.micro_batches)
            memory += under_way * (self._kept[stop] - self._kept[start])
        takes = self.chain[place - 1].carries(comes) if place else 0
        takes_back = self.chain[place].carries(gives) if trains and place < last else 0
        return Stage(device, start, stop, forward, backward, takes, takes_back, memory)

    def options(self, used: int, start: int) -> list[tuple[int, int, Stage]]:
        """Return the possible next stages, each with the used devices and the first unassigned layer after it."""
        place, left = used.bit_count(), len(self.devices) - used.bit_count() - 1
        stops = range(start + 1, len(self.layers) - left + 1) if left else [len(self.layers)]
        found = []
        for stop in stops:
            for index in self.nexts(used):
                stage = self.stage(index, place, start, stop)
                if stage.fits:
                    found.append((used | 1 << index, stop, stage))
        return found

    def least(self, join: Callable[[int, int], int], limit: int | None) -> int | None:
        """Return the minimum over all splits of the stage times combined by `join`, with no stage above `limit`."""

        @cache
        def rest(used: int, start: int) -> int | None:
            if used.bit_count() == len(self.devices):
                return 0
            best: int | None = None
            for after, stop, stage in self.options(used, start):
                if limit is not None and stage.time > limit:
                    continue
                further = rest(after, stop)
                if further is not None and (best is None or join(stage.time, further) < best):
                    best = join(stage.time, further)
            return best

        self._rest = rest
        return rest(0, 0)

    def furthest(self) -> int:
        """Return the maximum number of layers that fit on the devices in order."""
        reached, seen = {(0, 0)}, 0
        for place in range(len(self.devices)):
            reached = {
                (used | 1 << index, stop)
                for used, start in reached
                for index in self.nexts(used)
                for stop in range(start + 1, len(self.layers) + 1)
                if self.stage(index, place, start, stop).fits
            }
            seen = max([seen, *(stop for _, stop in reached)])
        return seen

    def cut(self, slowest: int) -> tuple[Stage, ...]:
        """Return the stages with no stage above `slowest`, the smallest total time, and the earliest ends."""
        total = self.least(operator.add, slowest)
        stages: list[Stage] = []
        used, start = 0, 0
        while used.bit_count() < len(self.devices):
            for after, stop, stage in self.options(used, start):
                further = self._rest(after, stop) if stage.time <= slowest else None
                if further is not None and total is not None and stage.time + further == total:
                    stages.append(stage)
                    used, start, total = after, stop, further
                    break
        return tuple(stages)


def _lacks(row: _Row) -> tuple[Lack, ...]:
    """Return every reason why memory does not suffice: each layer too large for any device, the total, and the number
    of layers that fit in order.
    """
    trains = row.schedule != "forward"
    needs = [layer.held + (layer.kept if trains else 0) for layer in row.layers]
    memory = [device.memory for device in row.devices]
    lacks = []
    if min(memory) >= 0:
        lacks += [
            Lack(layer.name, need, max(memory), "bytes")
            for layer, need in zip(row.layers, needs, strict=True)
            if need > max(memory)
        ]
        if sum(needs) > sum(memory):
            lacks.append(Lack("all layers", sum(needs), sum(memory), "bytes"))
    lacks.append(Lack("the devices in a row", len(row.layers), row.furthest(), "layers"))
    return tuple(lacks)


# --- what a schedule makes of it ------------------------------------------------------------------------------------


def in_flight(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> int:
    """Return the maximum number of micro-batches of a stage between their forward and backward."""
    match schedule:
        case "forward":
            return 1
        case "gpipe":
            return micro_batches
        case _:
            return min(micro_batches, stages - stage)


def moves(schedule: Schedule, device: int, devices: int, micro_batches: int, rounds: int = 1) -> list[Move]:
    """Return the operations of a device in order, as in PyTorch's schedules.

    With `rounds` above 1, 1F1B is *interleaved*: a device has `rounds` stages, with numbers `devices` apart (Narayanan
    et al., *Efficient large-scale language model training*, SC 2021, section 2.2). A group of as many micro-batches as
    devices goes through all of its stages, then the next group.
    """
    if schedule != "1f1b" and rounds > 1:
        raise ValueError(f"only 1f1b goes round the devices several times, not {schedule}")
    if rounds > 1 and micro_batches % devices:
        raise ValueError(f"to go round {devices} devices takes a multiple of {devices} micro-batches")
    group = devices if rounds > 1 else micro_batches
    order = [
        (place, first + micro)
        for first in range(0, micro_batches, group)
        for place in range(rounds)
        for micro in range(group)
    ]
    forwards = [Move(device + place * devices, micro) for place, micro in order]
    backwards = [Move(device + (rounds - 1 - place) * devices, micro, True) for place, micro in order]
    match schedule:
        case "forward":
            return forwards
        case "gpipe":
            return forwards + backwards
    behind = devices - 1 - device
    ahead = min(len(forwards), (rounds - 1) * devices + 2 * behind + 1 if rounds > 1 else behind + 1)
    steady = [move for pair in zip(backwards, forwards[ahead:], strict=False) for move in pair]
    return forwards[:ahead] + steady + backwards[len(forwards) - ahead :]


def foresee(stages: Sequence[Stage], micro_batches: int, schedule: Schedule, rounds: int = 1) -> Foreseen:
    """Simulate one step: a device starts its next operation once it is free and the input is computed; then it waits
    for the transfer, and computes.
    """
    devices = len(stages) // rounds
    lines = [moves(schedule, device, devices, micro_batches, rounds) for device in range(devices)]
    made: dict[Move, int] = {}
    free, busy, done = [0] * devices, [0] * devices, [0] * devices
    while any(done[device] < len(line) for device, line in enumerate(lines)):
        before = len(made)
        for device, line in enumerate(lines):
            for move in line[done[device] :]:
                ready = _ready(move, stages, made)
                if ready is None:
                    break
                stage = stages[move.stage]
                works = stage.backward if move.back else stage.forward
                made[move] = free[device] = max(free[device], ready) + _transfer(move, stage) + works
                busy[device] += works
                done[device] += 1
        if len(made) == before:
            raise AssertionError("devices wait for each other in a circle")
    return Foreseen(max(free), tuple(busy))


def _ready(move: Move, stages: Sequence[Stage], made: Mapping[Move, int]) -> int | None:
    """Return when the input of an operation is computed; None if it is not yet."""
    source = move.stage + 1 if move.back else move.stage - 1
    return made.get(Move(source, move.micro, move.back)) if 0 <= source < len(stages) else 0


def _transfer(move: Move, stage: Stage) -> int:
    return stage.takes_back if move.back else stage.takes


def choose(
    measured: Mapping[int, Sequence[Layer]],
    batch: int,
    devices: Sequence[Device],
    wires: Wire | Sequence[Wire] = Wire(),  # noqa: B008  it is frozen
    *,
    schedule: Schedule = "1f1b",
    any_order: bool = False,
) -> Chosen | dict[int, NoRoom]:
    """Choose the micro-batch size with the fastest step of `batch` samples, of those with measured layers; the largest
    of equal ones. Smaller micro-batches reduce the bubble, but layers take longer per sample, and there are more
    transfers. Without a possible size, return the reasons for each divisor of `batch`.
    """
    tried: dict[int, tuple[tuple[Stage, ...], Foreseen] | NoRoom] = {}
    for size in sorted(measured, reverse=True):
        if batch % size:
            continue
        many = batch // size
        if schedule == "1f1b" and many < len(devices):  # PyTorch's refuses
            tried[size] = NoRoom((Lack("1f1b", len(devices), many, "micro-batches"),))
            continue
        stages = partition(measured[size], devices, wires, schedule=schedule, micro_batches=many, any_order=any_order)
        tried[size] = stages if isinstance(stages, NoRoom) else (stages, foresee(stages, many, schedule))
    found = {size: one for size, one in tried.items() if not isinstance(one, NoRoom)}
    if not found:
        return {size: one for size, one in tried.items() if isinstance(one, NoRoom)}
    size = min(found, key=lambda size: found[size][1].time)
    stages, foreseen = found[size]
    passed = {other: one if isinstance(one, NoRoom) else one[1] for other, one in tried.items() if other != size}
    return Chosen(size, batch // size, stages, foreseen, passed)
