"""Exchanges that send less than the whole gradient.

`Half` sends fp16 or bf16. `PowerSGD` sends two thin matrices for each large one (Vogels et al., "PowerSGD: Practical
low-rank gradient compression for distributed optimization", NeurIPS 2019, algorithms 1 and 2). `TopK` sends the few
largest entries (Lin et al., "Deep gradient compression", ICLR 2018, without its momentum correction).

What `PowerSGD` and `TopK` do not send they keep, as a residual, and add it to the gradient of the next step: nothing is
lost, it comes later (Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019). Each worker's residual is what it
has not sent itself. Before a checkpoint, or before a gang changes, they are evened out: then the sum over the gang is
known to all, and each of those who go on, however many they are, takes an equal part. Only what a killed worker still
owed of its last steps is gone. A step whose sum is not finite leaves residuals as they were. They are in the units of
the gradient: where a loss is scaled, they are off by the factor whenever that changes.

Collectives are issued in one order at all workers. So what comes second for a bucket is issued when the first bucket is
waited for, for all buckets in order, and never by a callback, whose time differs between workers.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from poise_train.exchange import Bucket, Counted
from poise_train.topology import ring_bytes

SAMPLE = 8192
"""Entries from which `TopK` estimates its threshold: with one in a hundred sent, the number of those above it is then
within 11 % in the mean (a binomial's spread).
"""

SPARE = 1.25
"""How many times as many entries as are to be sent the threshold is meant to leave; the largest of them are sent."""

PAYS = 2.0
"""A matrix is sent as two if that is less by this factor: what `torch.distributed` takes for its PowerSGD too."""


class Half(Counted):
    """Each gradient in 16 bits: half the bytes. fp16 is more precise but overflows above 65,504 and loses values below
    6e-8; bf16 has the range of fp32 and three digits. The sum is also in 16 bits.
    """

    def __init__(self, dtype: torch.dtype = torch.float16) -> None:
        super().__init__()
        self.name = {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
        self.dtype = dtype

    def begin(self, bucket: Bucket, group: dist.ProcessGroup | None = None) -> Callable[[], object]:
        self._count(bucket, group)
        small = bucket.flat.to(self.dtype)
        wait = self._add_up(small, group)

        def finish() -> None:
            wait()
            bucket.flat.copy_(small)

        return finish


class _ErrorFeedback(Counted):
    """Keeps what was not sent, by bucket. What a step leaves is what counts once the next begins or the state is asked
    for: a step that breaks off in the middle is done again, from what was kept before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._residuals: dict[int, torch.Tensor] = {}
        self._left: dict[int, torch.Tensor] = {}
        self._holders = 0  # how many hold the same residuals; 0: each its own

    def abandon(self) -> None:
        self._left.clear()

    def even_out(self, group: dist.ProcessGroup | None = None) -> None:
        self._settle()
        world = dist.get_world_size(group)
        waits = [self._add_up(self._residuals[number], group) for number in sorted(self._residuals)]
        for wait in waits:
            wait()
        for one in self._residuals.values():
            one /= world
        self._holders = world

    def share(self, world: int) -> None:
        if self._holders:
            for one in self._residuals.values():
                one *= self._holders / world
            self._holders = world

    def owed(self) -> dict[int, torch.Tensor]:
        self._settle()
        return self._residuals

    def state_dict(self) -> dict[str, Any]:
        """What all workers together have not sent, if that was evened out since the last step; else it is each one's
        own, and not handed on.
        """
        self._settle()
        numbers = sorted(self._residuals) if self._holders else []
        return {"residuals": [self._residuals[number] * self._holders for number in numbers]}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on from it. What another kind of exchange has not sent is taken over as well."""
        self.abandon()
        self._residuals = dict(enumerate(one.clone() for one in state_dict.get("residuals", ())))
        self._holders = 1

    def _settle(self) -> None:
        if self._left:
            self._holders = 0
        self._residuals.update(self._left)
        self._left.clear()

    def _owed(self, bucket: Bucket) -> torch.Tensor:
        """The gradient with what was not sent of those before, in fp32; a new tensor."""
        if bucket.number == 0:  # the first of a step
            self._settle()
        kept = self._residuals.get(bucket.number)
        if kept is None or kept.numel() != bucket.flat.numel():  # of another model: it means nothing here
            return bucket.flat.to(torch.float32, copy=True)
        return bucket.flat.float() + kept.to(bucket.flat.device)


class PowerSGD(_ErrorFeedback):
    """Each large matrix M (n by m; a convolution's by its outputs) as P (n by `rank`) and Q (m by `rank`), where P Q'
    approximates the sum of all workers' M. This is one step of the power method, which starts from the result of the
    last step. A tensor that does not become smaller by half is sent uncompressed, with the P.
    """

    name = "powersgd"

    def __init__(self, rank: int = 2, seed: int = 0) -> None:
        super().__init__()
        self.rank = rank
        self._draw = torch.Generator().manual_seed(seed)  # the same at all workers
        self._directions: dict[int, list[torch.Tensor]] = {}
        self._new: dict[int, list[torch.Tensor]] = {}
        self._begun: list[_LowRank] = []

    def begin(self, bucket: Bucket, group: dist.ProcessGroup | None = None) -> Callable[[], object]:
        self._count(bucket, group)
        task = _LowRank(self, bucket, group)
        self._begun.append(task)
        return task.finish

    def abandon(self) -> None:
        super().abandon()
        self._new.clear()
        self._begun.clear()

    def state_dict(self) -> dict[str, Any]:
        """The residuals, and where the power method goes on, which is the same at all workers."""
        residuals = super().state_dict()
        return {**residuals, "directions": [self._directions[number] for number in sorted(self._directions)]}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        super().load_state_dict(state_dict)
        self._directions = {number: list(of) for number, of in enumerate(state_dict.get("directions", ()))}

    def _settle(self) -> None:
        super()._settle()
        self._directions.update(self._new)
        self._new.clear()

    def _leave(self, number: int, residual: torch.Tensor, directions: list[torch.Tensor]) -> None:
        self._left[number], self._new[number] = residual, directions

    def _second_for_all(self) -> None:
        begun, self._begun = self._begun, []
        for task in begun:
            task.second()

    def _rank_of(self, n: int, m: int) -> int:
        """With which rank such a matrix is sent; 0: as it is."""
        rank = min(self.rank, n, m)
        return rank if (n + m) * rank * PAYS < n * m else 0

    def _directions_of(self, number: int, matrices: list[torch.Tensor]) -> list[torch.Tensor]:
        shapes = [(one.shape[1], self._rank_of(*one.shape)) for one in matrices]
        known = self._directions.get(number, [])
        if [one.shape for one in known] != shapes:
            known = [torch.randn(*shape, generator=self._draw) for shape in shapes]
            self._directions[number] = known
        return [one.to(matrix) for one, matrix in zip(known, matrices, strict=True)]


class _LowRank:
    """A bucket on its way: first the P and what is sent whole, then the Q."""

    def __init__(self, exchange: PowerSGD, bucket: Bucket, group: dist.ProcessGroup | None) -> None:
        self.exchange, self.bucket, self.group = exchange, bucket, group
        self.wait: Callable[[], object] = bool
        self.owed = exchange._owed(bucket)
        self.residual = torch.zeros_like(self.owed)
        self.matrices: list[torch.Tensor] = []  # views into `owed`, as are those that are sent whole
        self.left_out: list[torch.Tensor] = []  # views into `residual`
        self.whole: list[torch.Tensor] = []
        sizes = [one.numel() for one in bucket.parameters]
        for parameter, owed, kept in zip(
            bucket.parameters, self.owed.split(sizes), self.residual.split(sizes), strict=True
        ):
            rows = parameter.shape[0] if parameter.dim() > 1 else 1
            if exchange._rank_of(rows, owed.numel() // rows):
                self.matrices.append(owed.view(rows, -1))
                self.left_out.append(kept.view(rows, -1))
            else:
                self.whole.append(owed)
        directions = exchange._directions_of(bucket.number, self.matrices)
        self._send([*(one @ right for one, right in zip(self.matrices, directions, strict=True)), *self.whole])

    def second(self) -> None:
        self.wait()
        thin = len(self.matrices)
        for one, total in zip(self.whole, self.added[thin:], strict=True):
            one.copy_(total)
        self.lefts = [torch.linalg.qr(one).Q for one in self.added[:thin]]
        rights = [one.T @ left for one, left in zip(self.matrices, self.lefts, strict=True)]
        for kept, one, left, right in zip(self.left_out, self.matrices, self.lefts, rights, strict=True):
            torch.sub(one, left @ right.T, out=kept)
        self._send(rights)

    def finish(self) -> None:
        self.exchange._second_for_all()
        self.wait()
        for one, left, right in zip(self.matrices, self.lefts, self.added, strict=True):
            torch.matmul(left, right.T, out=one)
        self.bucket.flat.copy_(self.owed)
        if math.isfinite(float(self.owed.sum())):
            self.exchange._leave(self.bucket.number, self.residual, self.added)

    def _send(self, tensors: list[torch.Tensor]) -> None:
        """In one message, which comes back as `added`, in the same shapes."""
        if not tensors:
            self.added, self.wait = [], bool
            return
        message = torch.cat([one.flatten() for one in tensors])
        self.wait = self.exchange._add_up(message, self.group)
        parts = message.split([one.numel() for one in tensors])
        self.added = [part.view(one.shape) for part, one in zip(parts, tensors, strict=True)]


class TopK(_ErrorFeedback):
    """The largest entries, a fraction `part` of all, each with its position: eight bytes an entry, from every worker to
    every worker. This is less than in a ring if `part` is below 1 / workers; otherwise a bucket is sent uncompressed.

    The largest entries are those above a threshold, estimated from a sample: O(entries) comparisons, and a sort only of
    the sample and of the few selected entries. If the threshold selects too few, fewer are sent in a message of the
    same length.
    """

    name = "topk"

    def __init__(self, part: float = 0.01, seed: int = 0) -> None:
        super().__init__()
        self.part = part
        self._draw = torch.Generator().manual_seed(seed)

    def begin(self, bucket: Bucket, group: dist.ProcessGroup | None = None) -> Callable[[], object]:
        self._count(bucket, group)
        world, entries = dist.get_world_size(group), bucket.flat.numel()
        most = max(1, math.ceil(self.part * entries))
        owed = self._owed(bucket)
        if 8 * most * (world - 1) >= ring_bytes(4 * entries, world):
            return self._whole(bucket, owed, group)
        places = self._largest(owed, most)
        values = owed[places]
        if not math.isfinite(float(owed.sum())):
            values[:] = math.nan  # all are to see it
        message = torch.zeros(2 * most, dtype=torch.int32, device=owed.device)
        message[: len(places)] = values.view(torch.int32)
        message[most : most + len(places)] = places.to(torch.int32)
        gathered, wait = self._gather(message, group)

        def finish() -> None:
            wait()
            total = torch.zeros_like(owed)
            for one in gathered:  # in one order at all workers: the sums are the same to the bit
                total.index_add_(0, one[most:].long(), one[:most].view(torch.float32))
            bucket.flat.copy_(total)
            if math.isfinite(float(total.sum())):
                owed[places] = 0.0
                self._left[bucket.number] = owed

        return finish

    def _whole(self, bucket: Bucket, owed: torch.Tensor, group: dist.ProcessGroup | None) -> Callable[[], object]:
        wait = self._add_up(owed, group)

        def finish() -> None:
            wait()
            bucket.flat.copy_(owed)
            if bucket.number in self._residuals and math.isfinite(float(owed.sum())):
                self._left[bucket.number] = torch.zeros_like(owed)

        return finish

    def _largest(self, owed: torch.Tensor, most: int) -> torch.Tensor:
        """Places of about the `most` largest entries, no more than that."""
        sizes = owed.abs()
        sample = sizes
        if len(sizes) > SAMPLE:
            sample = sizes[torch.randint(len(sizes), (SAMPLE,), generator=self._draw).to(sizes.device)]
        above = min(len(sample), max(1, round(SPARE * most / len(sizes) * len(sample))))
        threshold = sample.kthvalue(len(sample) - above + 1).values.clamp(min=torch.finfo(sizes.dtype).tiny)
        places = (sizes >= threshold).nonzero().flatten()
        return places if len(places) <= most else places[sizes[places].topk(most, sorted=False).indices]


__all__ = ["Half", "PowerSGD", "TopK"]
