"""Chooses batch size and timing for a replica, from the measured times of each batch size.

Both an idle replica and a batch of the wrong size cost waiting time. With `n` waiting requests, a batch of `b` takes
`takes(b)`, and the remaining ones `clears(n - b)` (see `model.serving`). All `n` requests wait while the batch runs,
and `n - b` while the rest does, as do those expected to arrive while the replica is busy. The best batch minimizes:

    cost(b) = (n + a) takes(b) + (n - b + a) rest(n - b)          a = rate x clears(n) / (1 - load)

which is the sum of waiting and service times, except for how the rest is split. Without further arrivals (a = 0) the
split is optimal for the present requests; with increasing load, throughput counts more. The rest takes `clears(m)` if
no request joins it. If more wait than fit into a batch, others will fill up the last one: `rest(m)` is then between
`clears(m)` and `m x pace`, by the load.

Waiting for one more request pays if it saves more than the waiting ones lose (it is expected in `1 / rate`):

    n (1 / rate + takes(n+1) - takes(n)) + takes(n+1)  <  takes(n) - 1 / rate + takes(1)

The right side is the time that the next request would otherwise wait behind a batch that has just begun, and then be
served alone. The decision is repeated at each arrival, and never makes the first request late.

With a `wait`, an idle replica also waits where this only saves its time: at most that long, while another request is
expected before, and as long as a fuller batch takes less time per request.
"""

from collections.abc import Iterable
from math import ceil

import msgspec

from poise.model.serving import Curve

BUSIEST = 0.95
"""Upper limit of the load in the estimate of arrivals, which diverges at 1."""

DEAREST = 1.5
"""A smaller batch meets the objective of its requests at the expense of later ones. Its time per item may be at most
this multiple of that of the larger batch, and the replica must keep up with its requests at that time.
"""

PATIENT = 2.0
"""Stop waiting for a request expected in `1 / rate` after this multiple of that time."""


class QueueView(msgspec.Struct, frozen=True):
    """What waits for one replica that is idle now; instants and durations in nanoseconds.

    `count`: how many wait. `due`: when the first of them must be done (0: no limit). `rate`: how many come in a
    nanosecond, of those that this replica is likely to get. `held`: since when a larger batch has been waited for
    already, 0 if it has not. `elsewhere`: when others would be done with them, 0 if there are none. `promised`: when
    the first is to be answered by the objective, 0 without one. `wait`: how long a fuller batch may be waited for that
    only saves time of the replica.
    """

    now: int
    count: int
    curve: Curve
    rate: float = 0.0
    due: int = 0
    held: int = 0
    elsewhere: int = 0
    promised: int = 0
    wait: int = 0


class Send(msgspec.Struct, frozen=True):
    """Send the first `count` requests, padded to `padded` items if that is faster."""

    count: int
    padded: int


class Wait(msgspec.Struct, frozen=True):
    """Decide again at the next arrival or finished batch, or at `until` (0: no time limit)."""

    until: int


class Batching:
    """Batching policy for every load."""

    name = "adaptive"

    def decide(self, view: QueueView, /) -> Send | Wait:
        curve, waiting = view.curve, view.count
        size = best_size(curve, waiting, view.rate)
        if view.promised and view.now + curve.takes(size) > view.promised:
            within = max((one for one in range(1, size) if view.now + curve.takes(one) <= view.promised), default=size)
            each = curve.takes(within) / within
            if each <= DEAREST * curve.takes(size) / size and view.rate * each <= BUSIEST:
                size = within
        if view.elsewhere and view.now + curve.takes(size) > view.elsewhere:
            size = max((one for one in range(1, size) if view.now + curve.takes(one) <= view.elsewhere), default=0)
            if not size:
                return Wait(0)
        until = _waits_until(view, size)
        return Wait(until) if until > view.now else Send(size, curve.padded(size))


def _waits_until(view: QueueView, size: int) -> int:
    """Return until when to wait for a larger batch than `size`; 0 if one is not worth it."""
    curve, waiting = view.curve, view.count
    if not view.rate or waiting >= curve.largest:
        return 0
    gap, since, until = 1 / view.rate, view.held or view.now, 0
    if size == waiting and waiting_pays(curve, waiting, gap):
        until = int(since + PATIENT * gap)
    latest = since + view.wait
    if latest > until and (more := fuller(curve, waiting, int((latest - view.now) / gap))):
        in_time = view.promised - int(curve.takes(more)) if view.promised else latest
        until = max(until, min(latest, in_time))
    return 0 if view.due and view.due < until + curve.takes(waiting + 1) else until


def best_size(curve: Curve, waiting: int, rate: float) -> int:
    """Return the best batch size for this number of waiting requests."""
    most = min(waiting, curve.largest)
    if most == 1:
        return 1
    pace = curve.pace()
    load = min(BUSIEST, rate * pace)
    coming = rate * curve.clears(waiting) / (1 - load)
    joined = load if waiting > curve.largest else 0.0

    def cost(size: int) -> float:
        left = waiting - size
        rest = curve.clears(left)
        if joined:
            rest += joined * (left * pace - rest)
        return (waiting + coming) * curve.takes(size) + (left + coming) * rest

    return min(range(most, 0, -1), key=cost)


def waiting_pays(curve: Curve, waiting: int, gap: float) -> bool:
    """Whether waiting for one more request, expected within `gap` nanoseconds, reduces the total time."""
    now, more = curve.takes(waiting), curve.takes(waiting + 1)
    if gap >= now:
        return False
    return waiting * (gap + more - now) + more < now - gap + curve.takes(1)


def fuller(curve: Curve, waiting: int, coming: int) -> int:
    """Return the best batch size with at most `coming` more requests; 0 if none takes less time per request."""
    now = curve.clears(waiting) / waiting
    sizes = range(waiting + 1, min(waiting + coming, curve.largest) + 1)
    best = min(sizes, key=lambda size: curve.takes(size) / size, default=0)
    return best if best and curve.takes(best) / best < now else 0


def foreseen(now: int, waiting: int, replicas: Iterable[tuple[Curve, int]]) -> int:
    """Estimate when a new request is answered, behind `waiting` others, by replicas that are each busy until an
    instant. Each replica serves its share of the queue, by its pace.
    """
    known = list(replicas)
    if len(known) == 1:
        [(curve, busy)] = known
        return int(max(now, busy) + curve.clears(waiting + 1)) if curve.pace() else now
    paces = [(curve, max(now, busy), curve.pace()) for curve, busy in known]
    if any(not pace for _, _, pace in paces):
        return now  # a replica has no measurements yet
    together = sum(1 / pace for _, _, pace in paces)
    return min(
        (int(free + curve.clears(ceil((waiting + 1) / (pace * together)))) for curve, free, pace in paces), default=now
    )


__all__ = ["Batching", "QueueView", "Send", "Wait", "best_size", "foreseen", "waiting_pays"]
