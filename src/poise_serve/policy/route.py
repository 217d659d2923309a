"""Routing policies: the replica for a request, and the order of waiting requests.

A router gets a request and the replicas (`RouteView`) and names an open one; it is stateless. Randomness comes from the
view's seed, the turn is counted in the view, and estimates of replica speed are computed before
(`poise_serve.model.speeds`, or a table of batches). The default is `expected-delay`; the others are for comparison, and
`consistent-hash` is for requests that profit from state of earlier ones, such as a prompt cache.

Waiting requests are in two lanes: those that can still be answered in time, and deferred ones. `lane_of` selects the
lane, `next_lane` the lane to serve next; the gateway has the queues. A request is checked again at the head of the
first lane, because it may have become too late.
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
"""A replica may hold this multiple of its share of outstanding requests before keys move on (Mirrokni, Thorup and
Zadimoghaddam, "Consistent hashing with bounded loads", 2018: a key then moves past O(1 / 0.25^2) replicas)."""

STALE = 3
"""A replica's own metrics are ignored when they are older than this multiple of a request's time on it."""

DEFERRED_TURN = 8
"""One turn in this many serves the deferred lane, even if the first lane is not empty. So deferred requests use at most
an eighth of the capacity, and wait for at most this many times the requests ahead in their lane."""

_BITS = 64
_MASK = (1 << _BITS) - 1


@dataclass(frozen=True)
class Router:
    """Chooses among the open replicas. Without any, the route is empty."""

    name: str
    choose: Callable[[RouteView, Sequence[ReplicaView]], ReplicaView]

    def decide(self, view: RouteView, /) -> Route:
        replicas = [replica for replica in view.replicas if replica.open]
        return Route(self.choose(view, replicas).name if replicas else "")


def foreseen(replica: ReplicaView) -> int:
    """Estimate nanoseconds until the replica would answer the request: this router's requests in flight, those of
    others by the replica's metrics, less the time since, and the request itself.

    The reported load decreases with age, and is ignored when too old: outdated metrics would make a free replica look
    busy.
    """
    told = max(0, replica.told - replica.age) if replica.age < STALE * replica.cost else 0
    return replica.backlog + told + replica.cost


# --- routers ---------------------------------------------------------------------------------------------------------


def _random(view: RouteView, replicas: Sequence[ReplicaView]) -> ReplicaView:
    return replicas[_mix(view.seed) % len(replicas)]


def _round_robin(view: RouteView, replicas: Sequence[ReplicaView]) -> ReplicaView:
    return replicas[view.turn % len(replicas)]


def _weighted(view: RouteView, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """Smooth weighted round robin: turn `k` (from 0) of a replica of weight `w` is due at `(k + 1/2) / w`; turns are
    taken in order of due time (Webster's apportionment). Old turns are not simulated: before
    `(turn - n / 2) / sum(w)` there are at most `turn`, and at least `turn - n` of them.
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
    """Of two random replicas, take the one with fewer outstanding requests (Mitzenmacher, 2001); the first if equal."""
    if len(replicas) == 1:
        return replicas[0]
    drawn = _mix(view.seed)
    first = drawn % len(replicas)
    second = (drawn >> _BITS // 2) % (len(replicas) - 1)
    second += second >= first
    return min(replicas[first], replicas[second], key=lambda replica: replica.outstanding)


def _expected_delay(view: RouteView, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """Take the replica with the shortest expected delay, that of the others there included."""
    return _least(view, replicas, lambda replica: foreseen(replica) + replica.delays)


def _consistent_hash(view: RouteView, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """Order the replicas by key, names and weights only; take the first below its load limit.

    Rendezvous hashing: each replica gets a hash-derived exponential sample with its weight as the rate; the smallest is
    first. So each is first for its share of the keys, and adding or removing one moves no other keys (Thaler and
    Ravishankar, 1998; with weights Schindelhauer and Schomaker, 2005). Some replica is always below its limit, because
    the limits sum to more than the load.
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
    """Return the router of this name. Raises KeyError with the known names."""
    try:
        return ROUTERS[name]
    except KeyError:
        raise KeyError(f"there is no router `{name}`; known: {', '.join(ROUTERS)}") from None


# --- lanes -----------------------------------------------------------------------------------------------------------


def lane_of(view: RouteView) -> Lane:
    """Return "first" if an open replica is expected to answer in time, or there is no deadline."""
    if not view.asked.due:
        return "first"
    soonest = min((foreseen(replica) for replica in view.replicas if replica.open), default=None)
    return "first" if soonest is not None and view.now + soonest <= view.asked.due else "deferred"


def next_lane(turn: int, first: int, deferred: int) -> Lane | None:
    """Return the lane to serve next, given the lengths of both and the number served before; None if both are empty."""
    if first and not (deferred and turn % DEFERRED_TURN == DEFERRED_TURN - 1):
        return "first"
    return "deferred" if deferred else None


# --- helpers ---------------------------------------------------------------------------------------------------------


def _least(view: RouteView, replicas: Sequence[ReplicaView], what: Callable[[ReplicaView], int]) -> ReplicaView:
    """Return the replica with the minimum; ties go to fewer outstanding requests, then round robin."""
    count = len(replicas)
    keys = ((what(replica), replica.outstanding, (at - view.turn) % count) for at, replica in enumerate(replicas))
    return replicas[min((key, at) for at, key in enumerate(keys))[1]]


def _weighed(replicas: Sequence[ReplicaView]) -> list[tuple[float, ReplicaView]]:
    """Return replicas with a positive weight; if there are none, all with equal weights."""
    return [(each.weight, each) for each in replicas if each.weight > 0] or [(1.0, each) for each in replicas]


def _crc(text: str) -> int:
    return crc32(text.encode("utf-8", "surrogatepass"))


def _mix(value: int) -> int:
    """Return 64 pseudorandom bits (SplitMix64; Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31


def _unit(bits: int) -> float:
    """Map bits to the open interval from 0 to 1."""
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
