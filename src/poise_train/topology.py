"""By which way the workers of a gang add tensors up, where links between them are unequal.

Inside a node bytes cost next to nothing, between nodes they share a link. A *ring* of all workers (what gloo does by
itself) sends each byte over the links of a node as often as neighbours in the ring are on different nodes, in 2 (n - 1)
rounds. In *levels* each node adds up what its workers have, one worker of each node takes part in a ring of nodes, and
hands the sum on inside its node: each link carries 2 (m - 1)/m times the bytes, however many workers a node has (what
NCCL and Horovod do in their hierarchical sums). In a *tree* the nodes are added up in pairs, pairs of pairs and so on,
and the sum comes back the same way: 2 log2 m rounds, for small tensors on many nodes (Thakur et al., "Optimization of
collective communication operations in MPICH", 2005, section 4).

Which is quickest is measured when a gang has formed, with tensors of several sizes, and chosen for each tensor by its
size: the slowest worker counts, so all come to one answer. Gangs on one node, and of nodes that have one worker
each and are fewer than four, have a ring. So have tensors on GPUs: NCCL chooses between rings and trees itself.

Sums are the same to the bit at all workers, but not between ways: adding in another order rounds otherwise.
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
"""Bytes of tensors with which ways are timed, and how often: short times are disturbed more, long ones cost more."""

BETTER = 0.9
"""Another way than the ring is taken where it needs less than this part of the ring's time: times are noisy."""

TREE = 4
"""With so many nodes a tree has fewer rounds than a ring."""


class Plan(NamedTuple):
    """Groups of ranks, the first of each leading it: level after level they are added up to those who lead, then `top`
    adds up all there is, and it goes back down.
    """

    levels: tuple[tuple[tuple[int, ...], ...], ...]
    top: tuple[int, ...]


def plans(nodes: Sequence[object]) -> dict[Route, Plan]:
    """Ways that may be quicker than the ring, given the node of each rank."""
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
    """The ways of one gang, and which to take. To be made by all of its workers at once; raises RuntimeError if one of
    them goes meanwhile. `seconds` is how long a tensor of each of SIZES took.
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
                    if ranks not in self._groups:  # all make all of them, in one order
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
        """The way for a tensor of so many bytes."""

        def foreseen(route: Route) -> float:
            """Between two sizes that were timed, and beyond the largest, in a straight line."""
            known = sorted(self.seconds[route].items())
            place = min(max(1, bisect([one for one, _ in known], size)), len(known) - 1)
            (less, small), (more, large) = known[place - 1 : place + 1]
            return small + max(0.0, (large - small) / (more - less)) * max(0, size - less)

        quickest = min(self.seconds, key=foreseen)
        return quickest if foreseen(quickest) < BETTER * foreseen("ring") else "ring"

    def begin(self, route: Route, tensor: torch.Tensor) -> Callable[[], object]:
        """Start to add up; what it returns waits, and then the tensor is the sum. One after another, in one order."""
        if route == "ring":
            return begun(dist.all_reduce(tensor, async_op=True))
        done: Future[None] = Future()
        self._work.put((route, tensor, done))
        if self._lost:
            raise RuntimeError(self._lost)
        return done.result

    def sent(self, route: Route, size: int) -> int:
        """Bytes that this worker gives out for a tensor of so many."""
        if route == "ring":
            return ring_bytes(size, self._world)
        plan = self._plans[route]
        inside = sum(_level_bytes(size, len(group), group.index(self._rank)) for group in self._mine(plan))
        return inside + (ring_bytes(size, len(plan.top)) if self._rank in plan.top else 0)

    def close(self) -> None:
        """Nothing more is added up. gloo ends what is under way, here and at the others, when its groups are freed."""
        self._lost = self._lost or "the gang is no more"
        self._groups.clear()
        self._work.put(None)

    def _carry(self) -> None:
        """Adding up goes level by level, and training goes on meanwhile: so it has a thread of its own. Once a worker
        is lost nothing else is begun, which somebody might wait for; and of the error only its words are kept, as its
        frames hold the group.
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
        """The groups that this worker is in, from the lowest level."""
        return [group for level in plan.levels for group in level if self._rank in group]

    def _time(self) -> None:
        """A turn takes as long as its slowest worker, and of the turns the quickest counts."""
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
    """Find the ways of the default group, by all its workers at once: they wait for each other for `form` seconds now,
    for `talk` later. Raises RuntimeError if one of them goes.
    """
    global _routes
    nodes = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(nodes, torch.tensor([_node()]))
    found = plans([int(one) for one in nodes])
    _routes = Routes(rank, world, found, form, talk) if found else None


def forget() -> None:
    """The gang is no more."""
    global _routes
    if _routes is not None:
        _routes.close()
        _routes = None


def abort() -> None:
    """End whatever is under way between the workers: NCCL at once, gloo once the groups are freed, which no call that
    still waits in one of them lets happen.
    """
    if _routes is not None:
        _routes.close()
    if dist.group.WORLD is not None:
        dist.group.WORLD.abort()


def add_up(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> tuple[Callable[[], object], int]:
    """Start to add up over the group, in the best way; not to be waited for until what is returned is called. And how
    many bytes this worker gives out for it.
    """
    size = tensor.numel() * tensor.element_size()
    if _routes is None or group is not None or tensor.device.type != "cpu":
        return begun(dist.all_reduce(tensor, group=group, async_op=True)), ring_bytes(size, dist.get_world_size(group))
    route = _routes.best(size)
    return _routes.begin(route, tensor), _routes.sent(route, size)


def known() -> Routes | None:
    """The ways of the default group; None where a ring is all there is."""
    return _routes


def begun(work: dist.Work | None) -> Callable[[], object]:
    """How to wait for what was begun; nothing is where this process is not in the group."""
    return bool if work is None else work.wait


def ring_bytes(size: int, world: int) -> int:
    """What each of the workers gives out when a ring adds up so many bytes."""
    return 2 * (world - 1) * size // world


def _level_bytes(size: int, world: int, place: int) -> int:
    """What one of a group gives out when gloo adds up to the first, by a ring from which everyone's part goes there,
    and when it brings the sum back, by a binomial tree.
    """
    parts = world - 1 + (place > 0)
    sends = sum(place + (1 << step) < world for step in range(place.bit_length(), (world - 1).bit_length()))
    return size * parts // world + size * sends


def _node() -> int:
    """The same for processes that reach each other without a link: one machine, since one boot, one network on it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    name = f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")


__all__ = ["Plan", "Route", "Routes", "abort", "add_up", "begun", "forget", "known", "learn", "plans", "ring_bytes"]
