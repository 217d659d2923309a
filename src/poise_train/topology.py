"""Selects the all-reduce algorithm of a gang, for unequal links inside and between nodes.

Inside a node transfers are almost free; between nodes they share a link. A *ring* of all workers (gloo's default) sends
each byte over a node's links as often as ring neighbours are on different nodes, in 2 (n - 1) rounds. In *levels* each
node sums its workers' tensors, one worker per node takes part in a ring of nodes, and broadcasts the sum inside its
node: each link carries 2 (m - 1)/m times the bytes, for any number of workers per node (as in the hierarchical
all-reduce of NCCL and Horovod). In a *tree* nodes are summed in pairs, pairs of pairs and so on, and the sum returns
the same way: 2 log2 m rounds, for small tensors on many nodes (Thakur et al., "Optimization of collective communication
operations in MPICH", 2005, section 4).

A new gang measures the algorithms with tensors of several sizes, and selects one for each tensor by its size. The time
of the slowest worker counts, so all workers make the same choice. Gangs on one node, and on fewer than four nodes with
one worker each, always use a ring. So do tensors on GPUs: NCCL chooses between rings and trees itself.

Sums are bitwise equal on all workers, but differ between algorithms, because the order of summation changes rounding.
"""

import hashlib
import math
import queue
import threading
import time
from bisect import bisect
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist

Route = Literal["ring", "levels", "tree"]

SIZES = {1 << 14: 5, 1 << 18: 3, 1 << 20: 2}
"""Tensor sizes in bytes for timing, and repetitions: short times are noisier, long ones cost more."""

BETTER = 0.9
"""Another algorithm replaces the ring only below this fraction of the ring's time, because times are noisy."""

TREE = 4
"""Minimum number of nodes at which a tree has fewer rounds than a ring."""


class Plan(NamedTuple):
    """Groups of ranks, with the first as the leader: each level reduces to its leaders, then `top` all-reduces, and the
    sum is broadcast back down.
    """

    levels: tuple[tuple[tuple[int, ...], ...], ...]
    top: tuple[int, ...]


def plans(nodes: Sequence[object]) -> dict[Route, Plan]:
    """Return algorithms that may be faster than the ring, given the node of each rank."""
    members: dict[object, list[int]] = {}
    for rank, node in enumerate(nodes):
        members.setdefault(node, []).append(rank)
    inside = tuple(tuple(one) for one in members.values() if len(one) > 1)
    leaders = tuple(one[0] for one in members.values())
    found: dict[Route, Plan] = {}
    if inside and len(leaders) > 1:
        found["levels"] = Plan((inside,), leaders)
    if len(leaders) >= TREE:
        levels = [inside] if inside else []
        while len(leaders) > 2:
            pairs = [leaders[at : at + 2] for at in range(0, len(leaders), 2)]
            levels.append(tuple(one for one in pairs if len(one) > 1))
            leaders = tuple(one[0] for one in pairs)
        found["tree"] = Plan(tuple(levels), leaders)
    return found


class Routes:
    """The all-reduce algorithms of one gang. All workers construct it together; raises RuntimeError if one is lost
    meanwhile. `seconds`: measured time for each of SIZES.
    """

    def __init__(self, rank: int, world: int, found: dict[Route, Plan], form: float, talk: float) -> None:
        self._rank, self._world, self._plans = rank, world, found
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self.seconds: dict[Route, dict[int, float]] = {}
        self._lost = ""
        self._work: queue.SimpleQueue[tuple[Route, torch.Tensor, Future[None]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._carry, daemon=True).start()
        try:
            for plan in found.values():
                for ranks in (*(group for level in plan.levels for group in level), plan.top):
                    if ranks not in self._groups:  # all workers make all groups, in the same order
                        self._groups[ranks] = dist.new_group(
                            list(ranks), timeout=timedelta(seconds=form), backend="gloo"
                        )
            self._groups = {ranks: group for ranks, group in self._groups.items() if rank in ranks}
            self._time()
            for group in self._groups.values():
                dist.distributed_c10d._set_pg_timeout(timedelta(seconds=talk), group)
        except BaseException:
            self.close()
            raise

    def best(self, size: int) -> Route:
        """Return the algorithm for a tensor of `size` bytes."""

        def foreseen(route: Route) -> float:
            """Interpolate linearly between timed sizes, and extrapolate beyond the largest."""
            known = sorted(self.seconds[route].items())
            place = min(max(1, bisect([one for one, _ in known], size)), len(known) - 1)
            (less, small), (more, large) = known[place - 1 : place + 1]
            return small + max(0.0, (large - small) / (more - less)) * max(0, size - less)

        quickest = min(self.seconds, key=foreseen)
        return quickest if foreseen(quickest) < BETTER * foreseen("ring") else "ring"

    def begin(self, route: Route, tensor: torch.Tensor) -> Callable[[], object]:
        """Start an all-reduce in place; the returned function waits for it. They run one after another, in order."""
        if route == "ring":
            return begun(dist.all_reduce(tensor, async_op=True))
        done: Future[None] = Future()
        self._work.put((route, tensor, done))
        if self._lost:
            raise RuntimeError(self._lost)
        return done.result

    def sent(self, route: Route, size: int) -> int:
        """Return the bytes that this worker sends for a tensor of `size` bytes."""
        if route == "ring":
            return ring_bytes(size, self._world)
        plan = self._plans[route]
        inside = sum(_level_bytes(size, len(group), group.index(self._rank)) for group in self._mine(plan))
        return inside + (ring_bytes(size, len(plan.top)) if self._rank in plan.top else 0)

    def close(self) -> None:
        """Stop. gloo aborts running operations, here and on the other workers, when its groups are freed."""
        self._lost = self._lost or "the gang is no more"
        self._groups.clear()
        self._work.put(None)

    def _carry(self) -> None:
        """Run multi-level all-reduces in a separate thread, while training continues. After the loss of a worker, start
        no more operations. Keep only the text of the error, because its frames hold the group.
        """
        while (given := self._work.get()) is not None:
            route, tensor, done = given
            if not self._lost:
                try:
                    self._add_up(self._plans[route], tensor)
                except Exception as error:
                    self._lost = self._lost or str(error) or "it has gone"
            if self._lost:
                done.set_exception(RuntimeError(self._lost))
            else:
                done.set_result(None)
            del given, tensor, done

    def _add_up(self, plan: Plan, tensor: torch.Tensor) -> None:
        mine = self._mine(plan)
        for group in mine:
            dist.reduce(tensor, group[0], group=self._groups[group])
        if self._rank in plan.top:
            dist.all_reduce(tensor, group=self._groups[plan.top])
        for group in reversed(mine):
            dist.broadcast(tensor, group[0], group=self._groups[group])

    def _mine(self, plan: Plan) -> list[tuple[int, ...]]:
        """Return the groups of this worker, from the lowest level."""
        return [group for level in plan.levels for group in level if self._rank in group]

    def _time(self) -> None:
        """Time the algorithms: the maximum over workers for each turn, and the minimum over turns."""
        routes: tuple[Route, ...] = ("ring", *self._plans)
        settings = [(route, size, turn) for size, turns in SIZES.items() for turn in range(turns) for route in routes]
        taken = torch.zeros(len(settings), dtype=torch.float64)
        for number, (route, size, _) in enumerate(settings):
            tensor = torch.zeros(size // 4)
            dist.barrier()
            begun = time.perf_counter()
            self.begin(route, tensor)()
            taken[number] = time.perf_counter() - begun
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        self.seconds = {route: dict.fromkeys(SIZES, math.inf) for route in routes}
        for (route, size, _), took in zip(settings, taken.tolist(), strict=True):
            self.seconds[route][size] = min(self.seconds[route][size], took)


_routes: Routes | None = None


def learn(rank: int, world: int, *, form: float, talk: float) -> None:
    """Measure the algorithms of the default group, on all its workers together. `form` and `talk`: timeouts in seconds
    now and later. Raises RuntimeError if a worker is lost.
    """
    global _routes
    nodes = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(nodes, torch.tensor([_node()]))
    found = plans([int(one) for one in nodes])
    _routes = Routes(rank, world, found, form, talk) if found else None


def forget() -> None:
    """Discard the algorithms of a gang that has ended."""
    global _routes
    if _routes is not None:
        _routes.close()
        _routes = None


def abort() -> None:
    """Abort running collectives: NCCL at once, gloo when the groups are freed, which a call waiting in one of them
    prevents.
    """
    if _routes is not None:
        _routes.close()
    if dist.group.WORLD is not None:
        dist.group.WORLD.abort()


def add_up(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> tuple[Callable[[], object], int]:
    """Start an all-reduce with the best algorithm. Returns a function that waits for it, and the bytes that this worker
    sends.
    """
    size = tensor.numel() * tensor.element_size()
    if _routes is None or group is not None or tensor.device.type != "cpu":
        return begun(dist.all_reduce(tensor, group=group, async_op=True)), ring_bytes(size, dist.get_world_size(group))
    route = _routes.best(size)
    return _routes.begin(route, tensor), _routes.sent(route, size)


def known() -> Routes | None:
    """Return the algorithms of the default group; None if there is only the ring."""
    return _routes


def begun(work: dist.Work | None) -> Callable[[], object]:
    """Return the wait function of an operation; a no-op if this process is not in the group."""
    return bool if work is None else work.wait


def ring_bytes(size: int, world: int) -> int:
    """Return the bytes that each worker sends in a ring all-reduce of `size` bytes."""
    return 2 * (world - 1) * size // world


def _level_bytes(size: int, world: int, place: int) -> int:
    """Return the bytes that a worker sends in gloo's reduce to the first rank (a ring, then a gather) and its broadcast
    of the sum (a binomial tree).
    """
    parts = world - 1 + (place > 0)
    sends = sum(place + (1 << step) < world for step in range(place.bit_length(), (world - 1).bit_length()))
    return size * parts // world + size * sends


def _node() -> int:
    """Return an id of the boot and the network namespace, equal for processes that need no link between them."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    name = f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")


__all__ = ["Plan", "Route", "Routes", "abort", "add_up", "begun", "forget", "known", "learn", "plans", "ring_bytes"]
