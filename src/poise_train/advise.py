"""An exchange that measures the job for some steps, recommends an exchange, and switches to it if allowed.

Training continues meanwhile, with plain gradients. For some steps buckets are sent only after backward: that gives the
step time without the exchange, and when each bucket is ready. For some more steps they are sent at once, as usual: that
gives the part of the communication that is hidden. Then, between two steps, collectives are timed on the job's own
link, and each exchange is tried on copies of the gradients, without and with sending. The time of the slowest worker
counts, so that all workers reach the same result; `poise_train.policy.advise` makes the recommendation.

It measures again after a change of the number of workers. Gradients that the previous exchange had not sent are added
to the first step of the next one.
"""

import math
import time
from collections.abc import Callable, Mapping
from itertools import product
from statistics import median
from typing import Any, Literal

import torch
import torch.distributed as dist

from poise.errors import Misused
from poise.model.progress import Speedups
from poise_train.compression import Half, PowerSGD, TopK
from poise_train.exchange import Bucket, Counted, Exchange, Plain
from poise_train.policy.advise import Advice, Candidate, Seen, advise
from poise_train.policy.communication import Link, Message, Pattern, Timing, Work, fitted_link, speedups
from poise_train.topology import add_up

WARM, APART, BESIDE = 2, 5, 5
"""Number of warm-up steps, of steps that send buckets after backward, and of steps that send them during backward."""

PROBES = (1 << 12, 1 << 16, 1 << 20)
"""Sizes in bytes of the timed collectives; the largest is close to a bucket's."""

REPEATS = 3
PATTERNS: tuple[Pattern, ...] = ("reduce", "gather")

Named = Literal["plain", "fp16", "bf16", "powersgd", "topk"]
KINDS: dict[Named, Callable[[], Exchange]] = {
    "plain": Plain,
    "fp16": Half,
    "bf16": lambda: Half(torch.bfloat16),
    "powersgd": PowerSGD,
    "topk": TopK,
}
"""Exchanges by name, with default settings."""


def exchange_named(name: Named | Literal["auto"]) -> Exchange:
    """Make an exchange by name. Raises Misused."""
    if name != "auto" and name not in KINDS:
        raise Misused(
            "this exchange is unknown",
            field="exchange",
            need=", ".join([*KINDS, "auto"]),
            have=repr(name),
            hint='poise.Session(model, optimizer, data, exchange="fp16")',
        )
    return Adviser() if name == "auto" else KINDS[name]()


class Adviser(Counted):
    """`switch`: apply the recommendation; otherwise only report it (`advice`, `advised`) and keep plain gradients."""

    name = "auto"

    def __init__(self, *, switch: bool = True, among: tuple[Named, ...] = ("fp16", "bf16", "powersgd", "topk")) -> None:
        super().__init__()
        self.advice = ""
        self.advised: Advice | None = None
        self._measured: tuple[int, Work, Link] | None = None
        self._switch, self._among = switch, among
        self._chosen: Exchange = Plain()
        self._owed: dict[int, torch.Tensor] = {}  # by the previous exchange
        self._loaded: list[torch.Tensor] = []
        self._world = 0
        self._began = time.perf_counter()
        self._ready: list[tuple[float, int]] = []
        self._took: list[float] = []
        self._restart()

    def begin(self, bucket: Bucket, group: dist.ProcessGroup | None = None) -> Callable[[], object]:
        now = _now(bucket.flat.device if self._step < WARM + APART else None)
        if bucket.number == 0:
            self._ready.clear()
            self._took.clear()
            self._waited = self._ended = 0.0
        self._ready.append((now - self._began, bucket.flat.numel() * bucket.flat.element_size()))
        owed = self._owed.get(bucket.number)
        if owed is not None and owed.numel() == bucket.flat.numel():
            bucket.flat.add_(owed.to(bucket.flat))
        if self.advised is not None:
            return self._chosen.begin(bucket, group)
        wait = None if self._step < WARM + APART else self._chosen.begin(bucket, group)

        def finish() -> None:
            begun = _now(bucket.flat.device)
            self._ended = self._ended or begun - self._began
            (wait or self._chosen.begin(bucket, group))()
            took = _now(bucket.flat.device) - begun
            self._took.append(took)
            self._waited += took
            if self._step == WARM + APART + BESIDE - 1:
                self._buckets[bucket.number] = bucket._replace(flat=bucket.flat.clone())

        return finish

    def updated(self, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None = None) -> None:
        self._chosen.updated(optimizer, group)
        self._owed.clear()
        if self.advised is None and self._ready:
            total = time.perf_counter() - self._began
            if WARM <= self._step < WARM + APART:
                compute = total - self._waited
                self._apart.append([compute, self._ended, *(ready for ready, _ in self._ready)])
                self._sums.append(list(self._took))
            elif self._step >= WARM + APART:
                self._beside.append(total)
            self._step += 1
            if self._step == WARM + APART + BESIDE:
                self._conclude(group)
        self._began = time.perf_counter()

    def speedups(self, effective: int) -> Speedups | None:
        """Estimate the speedups of a job with `effective` samples per step, for up to twice the measured number of
        workers; beyond that it would be a guess. Uses the measured link inside and between nodes.
        """
        if self._measured is None:
            return None
        world, work, link = self._measured
        return speedups(work._replace(samples=max(1, effective // world)), effective, 2 * world, link, link)

    @property
    def sent(self) -> int:
        return self._sent_before + self._chosen.sent

    @sent.setter
    def sent(self, value: int) -> None:
        self._sent_before = value

    @property
    def plain(self) -> int:
        return self._plain_before + self._chosen.plain

    @plain.setter
    def plain(self, value: int) -> None:
        self._plain_before = value

    def abandon(self) -> None:
        self._chosen.abandon()

    def even_out(self, group: dist.ProcessGroup | None = None) -> None:
        self._chosen.even_out(group)

    def share(self, world: int) -> None:
        self._chosen.share(world)
        self._owed.update({number: one / world for number, one in enumerate(self._loaded)})
        self._loaded = []
        if self._world and world != self._world:
            self._become(Plain())
            self._restart()
        self._world = world
        self._began = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        return {"residuals": self._loaded} if self._loaded else self._chosen.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        self._loaded = list(state_dict.get("residuals", ()))
        self._become(Plain(), owing=False)
        self._restart()

    # --- evaluation --------------------------------------------------------------------------------------------------

    def _restart(self) -> None:
        self.advised, self._step, self._began = None, 0, time.perf_counter()
        self._apart: list[list[float]] = []
        self._sums: list[list[float]] = []
        self._beside: list[float] = []
        self._buckets: dict[int, Bucket] = {}
        self._ready.clear()
        self._took.clear()
        self._waited = self._ended = 0.0

    def _conclude(self, group: dist.ProcessGroup | None) -> None:
        world = dist.get_world_size(group)
        link = self._time_link(group)
        own = [median(column) for column in zip(*self._apart, strict=True)] + [median(self._beside)]
        compute, ends, *ready, plain = _slowest(own, group)
        buckets = [self._buckets[number] for number in sorted(self._buckets)]
        names: tuple[Named, ...] = ("plain", *self._among)
        tried = [_tried(name, buckets, group) for name in names]
        taken = iter(_slowest([one for _, making, _, reading in tried for one in (*making, reading)], group))
        candidates = []
        sent = _slowest([_sending(name, buckets, group) for name in names], group)
        for name, (during, making, after, _), whole in zip(names, tried, sent, strict=True):
            timed = tuple(Message(at, size, kind) for at, (kind, size) in zip(ready, during, strict=True))
            late = tuple(Message(ends, size, kind) for kind, size in after)
            candidates.append(Candidate(name, timed, tuple(next(taken) for _ in making), late, next(taken), whole))
        self.advised = advise(Seen(world, compute, ends, plain, link), candidates)
        mine = next(one for one in candidates if one.name == (self.advised.choice if self._switch else "plain"))
        made = sum(mine.making)
        work = Work(1, compute + made + mine.reading, ends + made, (*mine.during, *mine.after))
        self._measured = world, work, link
        self.advice = f"{self.advised.choice}: {self.advised.reason}"
        self._buckets.clear()
        if self._switch:
            self._become(KINDS[next(name for name in names if name == self.advised.choice)]())

    def _become(self, exchange: Exchange, *, owing: bool = True) -> None:
        if owing:
            self._owed.update(self._chosen.owed())
        self._sent_before, self._plain_before = self.sent, self.plain
        self._chosen = exchange

    def _time_link(self, group: dist.ProcessGroup | None) -> Link:
        """Fit the link to the times of the job's own buckets and of collectives timed now. The minimum over the workers
        counts, because the others' times include waiting for the last worker.
        """
        world, taken = dist.get_world_size(group), [median(column) for column in zip(*self._sums, strict=True)]
        settings: list[tuple[Pattern, int]] = [("reduce", size) for _, size in self._ready]
        device = self._buckets[0].flat.device
        for pattern, size in product(PATTERNS, PROBES):
            mine = torch.zeros(size // 4, device=device)
            others = [torch.empty_like(mine) for _ in range(world)]
            times = []
            for _ in range(REPEATS):
                dist.barrier(group)
                begun = _now(device)
                if pattern == "reduce":
                    add_up(mine, group)[0]()
                else:
                    dist.all_gather(others, mine, group=group)
                times.append(_now(device) - begun)
            settings.append((pattern, size))
            taken.append(median(times))
        quickest = [-one for one in _slowest([-one for one in taken], group)]
        return fitted_link([Timing(*one, world, 1.0, took) for one, took in zip(settings, quickest, strict=True)])


Sent = list[tuple[Pattern, int]]


def _tried(
    name: Named, buckets: list[Bucket], group: dist.ProcessGroup | None
) -> tuple[Sent, list[float], Sent, float]:
    """Try an exchange without sending. Returns its messages during backward, the seconds to encode each bucket, its
    messages after backward, and the seconds to decode all; minima of some turns after a warm-up.
    """
    exchange = _SILENT[name]()
    making, reading = [math.inf] * len(buckets), math.inf
    for turn in range(1 + REPEATS):
        exchange.said = []
        copies = [one._replace(flat=one.flat.clone()) for one in buckets]
        taken, waits = [], []
        for one in copies:
            begun = _now(one.flat.device)
            waits.append(exchange.begin(one, group))
            taken.append(_now(one.flat.device) - begun)
        during, exchange.said = exchange.said, []
        begun = _now(copies[0].flat.device)
        for wait in waits:
            wait()
        if turn:
            reading = min(reading, _now(copies[0].flat.device) - begun)
            making = [min(pair) for pair in zip(making, taken, strict=True)]
    return during, making, exchange.said, reading


def _sending(name: Named, buckets: list[Bucket], group: dist.ProcessGroup | None) -> float:
    """Time an exchange with sending and no other work, in seconds: the median of some turns after a warm-up."""
    exchange, times = KINDS[name](), []
    for _ in range(1 + REPEATS):
        copies = [one._replace(flat=one.flat.clone()) for one in buckets]
        dist.barrier(group)
        begun = _now(copies[0].flat.device)
        for wait in [exchange.begin(one, group) for one in copies]:
            wait()
        times.append(_now(copies[0].flat.device) - begun)
    return median(times[1:])


class _Silent(Counted):
    """Sends nothing, and records its messages."""

    said: Sent

    def _add_up(self, tensor: torch.Tensor, group: dist.ProcessGroup | None) -> Callable[[], object]:
        self.said.append(("reduce", tensor.numel() * tensor.element_size()))
        return bool

    def _gather(
        self, tensor: torch.Tensor, group: dist.ProcessGroup | None
    ) -> tuple[list[torch.Tensor], Callable[[], object]]:
        self.said.append(("gather", tensor.numel() * tensor.element_size()))
        return [tensor.clone() for _ in range(dist.get_world_size(group))], bool


class _SilentPlain(_Silent, Plain):
    pass


class _SilentHalf(_Silent, Half):
    pass


class _SilentPowerSGD(_Silent, PowerSGD):
    pass


class _SilentTopK(_Silent, TopK):
    pass


_SILENT: dict[Named, Callable[[], Any]] = {
    "plain": _SilentPlain,
    "fp16": _SilentHalf,
    "bf16": lambda: _SilentHalf(torch.bfloat16),
    "powersgd": _SilentPowerSGD,
    "topk": _SilentTopK,
}


def _now(device: torch.device | None) -> float:
    """Return the time after synchronizing the device; pass a device only while measuring."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _slowest(own: list[float], group: dist.ProcessGroup | None) -> list[float]:
    """Return the maximum of each number over the workers; equal on all of them."""
    numbers = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(numbers, dist.ReduceOp.MAX, group=group)
    return [float(one) for one in numbers]


__all__ = ["KINDS", "Adviser", "Named", "exchange_named"]
