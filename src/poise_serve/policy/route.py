"""Which replica a request goes to, and who goes first where requests wait.

A router sees a request and the replicas (`RouteView`) and names one that is open; it remembers nothing. What is drawn
comes from the view's seed, turns are counted in the view, and what a replica is foreseen to take is worked out before
(`poise_serve.model.speeds`, or a table of batches). The default is `expected-delay`; the others are what it is measured
beside, and `consistent-hash` is for requests that had better meet what an earlier one left behind.

Where requests wait for a replica they stand in two lanes: those that can still be answered in time, and the others,
deferred. `lane_of` says which, `next_lane` whose turn it is; the lists are the gateway's. A request is asked again when
it comes to the head of the first lane, since what could be met when it came may not be met any more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import ceil, floor, log
from typing import Literal
from zlib import crc32

from poise.policy.protocol import Policy
from poise_serve.model.routing import ReplicaView, Route, RouteView

RouterPolicy = Policy[RouteView, Route]
Lane = Literal["first", "deferred"]

BOUND = 1.25
"""Times its share of all that is outstanding that a replica may hold before keys go past it (Mirrokni, Thorup and
Zadimoghaddam, "Consistent hashing with bounded loads", 2018: a key then moves past O(1 / 0.25^2) replicas)."""

STALE = 3
"""Times what a request takes at a replica after which what the replica's metrics told is too old to count."""

DEFERRED_TURN = 8
"""One turn in so many is the deferred lane's, whoever waits in the first: an eighth of the capacity is what those that
cannot be met in time cost the others, and a deferred request waits for at most so many times those before it."""

_BITS = 64
_MASK = (1 << _BITS) - 1


@dataclass(frozen=True)
class Router:
    """A choice among the replicas that are open. With none the route is empty."""

    name: str
    choose: Callable[[RouteView, Sequence[ReplicaView]], ReplicaView]

    def decide(self, view: RouteView, /) -> Route:
        replicas = [replica for replica in view.replicas if replica.open]
        return Route(self.choose(view, replicas).name if replicas else "")


def foreseen(replica: ReplicaView) -> int:
    """Nanoseconds until the request would be answered there: what this router has in flight there, what others had
    when that was told and cannot have been done since, and the request itself.

    What was told counts for less with every nanosecond that has passed, and for nothing when it is old: metrics that
    say too much would make a replica that is free look busy.
    """
    told = max(0, replica.told - replica.age) if replica.age < STALE * replica.cost else 0
    return replica.backlog + told + replica.cost


# --- who takes it ----------------------------------------------------------------------------------------------------


def _random(view: RouteView, replicas: Sequence[ReplicaView]) -> ReplicaView:
    return replicas[_mix(view.seed) % len(replicas)]


def _round_robin(view: RouteView, replicas: Sequence[ReplicaView]) -> ReplicaView:
    return replicas[view.turn % len(replicas)]


def _weighted(view: RouteView, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """Smooth turns by weight: the turn `k` (from 0) of a replica of weight `w` is due at `(k + 1/2) / w`, and turns are
    taken as they are due (the apportionment of Webster). Those due long ago need not be counted one by one: until
    `(turn - n / 2) / sum(w)` no more than `turn` have been, and no fewer than `turn - n`.
    """
    weighed = _weighed(replicas)
    total = sum(weight for weight, _ in weighed)
    since = max(0.0, (view.turn - len(weighed) / 2) / total)
    had = [floor(weight * since + 0.5) for weight, _ in weighed]
    due = [((k + 0.5) / weighed[at][0], at, k) for at, k in enumerate(had)]
    heapify(due)
    for _ in range(view.turn - sum(had)):
        _, at, k = due[0]
        heapreplace(due, ((k + 1.5) / weighed[at][0], at, k + 1))
    return weighed[due[0][1]][1]


def _least_outstanding(view: RouteView, replicas: Sequence[ReplicaView]) -> ReplicaView:
    return _least(view, replicas, lambda replica: replica.outstanding)


def _power_of_two(view: RouteView, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """Of two that are drawn, the one with less outstanding (Mitzenmacher, 2001); the first drawn if that is alike."""
    if len(replicas) == 1:
        return replicas[0]
    drawn = _mix(view.seed)
    first = drawn % len(replicas)
    second = (drawn >> _BITS // 2) % (len(replicas) - 1)
    second += second >= first
    return min(replicas[first], replicas[second], key=lambda replica: replica.outstanding)


def _expected_delay(view: RouteView, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """Where it is foreseen to be answered first (Shortest Expected Delay)."""
    return _least(view, replicas, foreseen)


def _consistent_hash(view: RouteView, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """The replicas in an order that depends on nothing but the key, their names and weights; the first of them that
    holds less than its bound.

    Rendezvous hashing: each draws from an exponential distribution of its weight, least first, so that each comes
    first for its share of the keys, and one that comes or goes moves no keys but its own (Thaler and Ravishankar,
    1998; with weights Schindelhauer and Schomaker, 2005). Not all can be at their bounds: these add up to more than
    there is.
    """
    key = view.asked.key
    if not key:
        return _expected_delay(view, replicas)
    weighed = _weighed(replicas)
    hashed = _mix(_crc(key))
    weighed.sort(key=lambda each: -log(_unit(_mix(hashed ^ _crc(each[1].name)))) / each[0])
    allowed = BOUND * (1 + sum(each.outstanding for _, each in weighed)) / sum(weight for weight, _ in weighed)
    return next(each for weight, each in weighed if each.outstanding < ceil(allowed * weight))


DEFAULT_ROUTER = "expected-delay"

BY_KEY = "consistent-hash"
"""Routes requests without a key as `DEFAULT_ROUTER` does."""

ROUTERS: dict[str, RouterPolicy] = {
    router.name: router
    for router in (
        Router(DEFAULT_ROUTER, _expected_delay),
        Router(BY_KEY, _consistent_hash),
        Router("least-outstanding", _least_outstanding),
        Router("power-of-two", _power_of_two),
        Router("weighted", _weighted),
        Router("round-robin", _round_robin),
        Router("random", _random),
    )
}


def router_named(name: str) -> RouterPolicy:
    """The router of this name. Raises KeyError with the known names."""
    try:
        return ROUTERS[name]
    except KeyError:
        raise KeyError(f"there is no router `{name}`; known: {', '.join(ROUTERS)}") from None


# --- who goes first --------------------------------------------------------------------------------------------------


def lane_of(view: RouteView) -> Lane:
    """Whether some open replica is foreseen to answer in time. What has no instant to be answered by is never late."""
    if not view.asked.due:
        return "first"
    soonest = min((foreseen(replica) for replica in view.replicas if replica.open), default=None)
    return "first" if soonest is not None and view.now + soonest <= view.asked.due else "deferred"


def next_lane(turn: int, first: int, deferred: int) -> Lane | None:
    """Whose head goes next, where so many wait in each lane and `turn` went before; None if nobody waits."""
    if first and not (deferred and turn % DEFERRED_TURN == DEFERRED_TURN - 1):
        return "first"
    return "deferred" if deferred else None


# --- helpers ---------------------------------------------------------------------------------------------------------


def _least(view: RouteView, replicas: Sequence[ReplicaView], what: Callable[[ReplicaView], int]) -> ReplicaView:
    """The replica with least of it; of those alike one with less outstanding, and then they take turns."""
    count = len(replicas)
    keys = ((what(replica), replica.outstanding, (at - view.turn) % count) for at, replica in enumerate(replicas))
    return replicas[min((key, at) for at, key in enumerate(keys))[1]]


def _weighed(replicas: Sequence[ReplicaView]) -> list[tuple[float, ReplicaView]]:
    """Those that have a weight; with none that has, all alike."""
    return [(each.weight, each) for each in replicas if each.weight > 0] or [(1.0, each) for each in replicas]


def _crc(text: str) -> int:
    return crc32(text.encode("utf-8", "surrogatepass"))


def _mix(value: int) -> int:
    """64 bits that look drawn (SplitMix64; Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31


def _unit(bits: int) -> float:
    """Between 0 and 1, and neither."""
    return ((bits >> 12) + 0.5) / (1 << 52)


__all__ = [
    "BY_KEY",
    "DEFAULT_ROUTER",
    "ROUTERS",
    "Lane",
    "Router",
    "RouterPolicy",
    "foreseen",
    "lane_of",
    "next_lane",
    "router_named",
]
