"""How many of those that wait are sent to a replica together, and when: from what batches of each size take there.

The idea. A replica that is idle costs everybody who waits; so does one that is busy with a batch larger or smaller than
pays. With `n` waiting, a batch of `b` of them takes `takes(b)` and what is left `clears(n - b)` (see `model.serving`).
All `n` wait while the batch runs, `n - b` while the rest does, and so do those who are expected to come as long as the
replica is busy. The batch is the one that makes this least:

    cost(b) = (n + a) takes(b) + (n - b + a) clears(n - b)          a = rate x clears(n) / (1 - load)

which is the sum of the times that they wait and are served, to within what the rest is divided into. Where nobody else
comes (a = 0) it divides as is best for those that are here; the busier the replica, the more it is the throughput that
counts. No size and no wait is set by hand.

Waiting for one more pays where what it saves is more than what those lose who wait for it (in `1 / rate` it comes):

    n (1 / rate + takes(n+1) - takes(n)) + takes(n+1)  <  takes(n) - 1 / rate + takes(1)

The right side is what the one who comes would have to wait behind a batch that has just begun, and then be served
alone. It is asked again with everybody who comes, and nobody is waited for whom the first could be late.
"""

from collections.abc import Iterable
from math import ceil

import msgspec

from poise.model.serving import Curve

BUSIEST = 0.95
"""Above this load the number of those who are expected to come is not made larger any more: it has no end at 1."""

DEAREST = 1.5
"""A smaller batch keeps the promise to those who are in it at the cost of those behind, who wait longer: one of its
items may take so many times as long as one of the larger.
"""

PATIENT = 2.0
"""Somebody expected in `1 / rate` who has not come after this many times that is not waited for any longer."""


class QueueView(msgspec.Struct, frozen=True):
    """What waits for one replica that is idle now; instants and durations in nanoseconds.

    `count`: how many wait, the oldest since `since`. `due`: when the first of them must be done (0: no limit). `rate`:
    how many come in a nanosecond, of those that this replica is likely to get. `held`: since when a larger batch has
    been waited for already, 0 if it has not. `elsewhere`: when others would be done with them, 0 if there are none.
    `promised`: when the first is to be answered by the objective, 0 without one.
    """

    now: int
    count: int
    curve: Curve
    rate: float = 0.0
    due: int = 0
    held: int = 0
    elsewhere: int = 0
    promised: int = 0


class Send(msgspec.Struct, frozen=True):
    """Send the first `count`, filled up to `padded` items where that is quicker."""

    count: int
    padded: int


class Wait(msgspec.Struct, frozen=True):
    """Ask again when somebody comes or another replica is done, or at that instant (0: only then)."""

    until: int


class Batching:
    """One policy for every load: nothing to set."""

    name = "adaptive"

    def decide(self, view: QueueView, /) -> Send | Wait:
        curve, waiting = view.curve, view.count
        largest = curve.largest
        size = best_size(curve, waiting, view.rate)
        if view.promised and view.now + curve.takes(size) > view.promised:
            within = max((one for one in range(1, size) if view.now + curve.takes(one) <= view.promised), default=size)
            if curve.takes(within) / within <= DEAREST * curve.takes(size) / size:
                size = within
        if view.elsewhere and view.now + curve.takes(size) > view.elsewhere:
            size = max((one for one in range(1, size) if view.now + curve.takes(one) <= view.elsewhere), default=0)
            if not size:
                return Wait(0)
        if size == waiting < largest and view.rate and waiting_pays(curve, waiting, 1 / view.rate):
            until = int((view.held or view.now) + PATIENT / view.rate)
            if until > view.now and (not view.due or view.due >= until + curve.takes(waiting + 1)):
                return Wait(until)
        return Send(size, curve.padded(size))


def best_size(curve: Curve, waiting: int, rate: float) -> int:
    """How many of so many are sent now."""
    most = min(waiting, curve.largest)
    if most == 1:
        return 1
    load = min(BUSIEST, rate * curve.pace())
    coming = rate * curve.clears(waiting) / (1 - load)

    def cost(size: int) -> float:
        left = waiting - size
        return (waiting + coming) * curve.takes(size) + (left + coming) * curve.clears(left)

    return min(range(most, 0, -1), key=cost)


def waiting_pays(curve: Curve, waiting: int, gap: float) -> bool:
    """Whether those who wait had better wait for one more, who is expected within `gap` nanoseconds."""
    now, more = curve.takes(waiting), curve.takes(waiting + 1)
    if gap >= now:
        return False
    return waiting * (gap + more - now) + more < now - gap + curve.takes(1)


def foreseen(now: int, waiting: int, replicas: Iterable[tuple[Curve, int]]) -> int:
    """When somebody who comes now is answered, behind so many who wait for the same replicas, each of which is busy
    until an instant. Each serves its share of the queue, by its pace.
    """
    paces = [(curve, max(now, busy), curve.pace()) for curve, busy in replicas]
    if any(not pace for _, _, pace in paces):
        return now  # of one of them nothing is known yet
    together = sum(1 / pace for _, _, pace in paces)
    return min(
        (int(free + curve.clears(ceil((waiting + 1) / (pace * together)))) for curve, free, pace in paces), default=now
    )


__all__ = ["Batching", "QueueView", "Send", "Wait", "best_size", "foreseen", "waiting_pays"]
