"""Exchanges that send less than the whole gradient.

`Half` sends fp16 or bf16. `PowerSGD` sends two thin matrices for each large one (Vogels et al., "PowerSGD: Practical
low-rank gradient compression for distributed optimization", NeurIPS 2019, algorithms 1 and 2). `TopK` sends the few
largest entries (Lin et al., "Deep gradient compression", ICLR 2018, without its momentum correction).

`PowerSGD` and `TopK` keep the part that they do not send as a residual, and add it to the gradient of the next step:
nothing is lost, only delayed (Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019). Each worker keeps its own
residual. Before a checkpoint, or before the gang changes, residuals are summed over the gang, and each worker that
continues takes an equal share, for any number of workers. Only the residual of a killed worker since then is lost. A
step with a sum that is not finite leaves residuals unchanged. They have the units of the gradient: after a change of
the loss scale they are wrong by its factor.

Collectives are issued in the same order on all workers. So the second collective of each bucket is issued for all
buckets in order when the first bucket is waited for, and never by a callback, whose time differs between workers.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from poise_train.exchange import Bucket, Counted
from poise_train.topology import ring_bytes

SAMPLE = 8192
"""Number of entries from which `TopK` estimates its threshold: with 1 % sent, the number of entries above it then has a
standard deviation of 11 % (binomial).
"""

SPARE = 1.25
"""The threshold targets this multiple of the entries to send; the largest of those above it are sent."""

PAYS = 2.0
"""A matrix is compressed if that reduces its size by this factor; `torch.distributed` has the same in its PowerSGD."""


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
    """Keeps residuals by bucket. Those of a step are committed when the next step begins or the state is read, so that
    an aborted step can be repeated from the residuals before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._residuals: dict[int, torch.Tensor] = {}
        self._left: dict[int, torch.Tensor] = {}
        self._holders = 0  # number of workers with equal residuals; 0: they differ

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
        """Return the total residuals of all workers if they were evened out since the last step; otherwise none, as
        they differ between workers.
        """
        self._settle()
        numbers = sorted(self._residuals) if self._holders else []
        return {"residuals": [self._residuals[number] * self._holders for number in numbers]}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Restore residuals, including those of another kind of exchange."""
        self.abandon()
        self._residuals = dict(enumerate(one.clone() for one in state_dict.get("residuals", ())))
        self._holders = 1

    def _settle(self) -> None:
        if self._left:
            self._holders = 0
        self._residuals.update(self._left)
        self._left.clear()

    def _owed(self, bucket: Bucket) -> torch.Tensor:
        """Return the gradient plus the residual, in fp32, as a new tensor."""
        if bucket.number == 0:  # the first bucket of a step
            self._settle()
        kept = self._residuals.get(bucket.number)
        if kept is None or kept.numel() != bucket.flat.numel():  # from another model: ignore it
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
        self._draw = torch.Generator().manual_seed(seed)  # equal on all workers
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
        """Return the residuals, and the state of the power method, which is equal on all workers."""
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
        """Return the rank for a matrix of this shape; 0 means uncompressed."""
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
    """A bucket being sent: first the P and the uncompressed tensors, then the Q."""

    def __init__(self, exchange: PowerSGD, bucket: Bucket, group: dist.ProcessGroup | None) -> None:
        self.exchange, self.bucket, self.group = exchange, bucket, group
        self.wait: Callable[[], object] = bool
        self.owed = exchange._owed(bucket)
        self.residual = torch.zeros_like(self.owed)
        self.matrices: list[torch.Tensor] = []  # views into `owed`, like `whole`
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
        """Sum tensors over the gang in one message; the sums get the same shapes, as `added`."""
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
            values[:] = math.nan  # so that all workers see it
        message = torch.zeros(2 * most, dtype=torch.int32, device=owed.device)
        message[: len(places)] = values.view(torch.int32)
        message[most : most + len(places)] = places.to(torch.int32)
        gathered, wait = self._gather(message, group)

        def finish() -> None:
            wait()
            total = torch.zeros_like(owed)
            for one in gathered:  # in the same order on all workers, for bitwise equal sums
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
        """Return the indices of at most `most`, approximately largest, entries."""
        sizes = owed.abs()
        sample = sizes
        if len(sizes) > SAMPLE:
            sample = sizes[torch.randint(len(sizes), (SAMPLE,), generator=self._draw).to(sizes.device)]
        above = min(len(sample), max(1, round(SPARE * most / len(sizes) * len(sample))))
        threshold = sample.kthvalue(len(sample) - above + 1).values.clamp(min=torch.finfo(sizes.dtype).tiny)
        places = (sizes >= threshold).nonzero().flatten()
        return places if len(places) <= most else places[sizes[places].topk(most, sorted=False).indices]


__all__ = ["Half", "PowerSGD", "TopK"]
