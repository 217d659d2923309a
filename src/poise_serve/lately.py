"""Computes figures of a service for its last minutes: rates, latency quantiles, refusals, batch sizes.

Prometheus stores the counters and computes such figures itself; `poise services` works without Prometheus. Counts are
kept in slots of five seconds, for the last five minutes. Latencies are counted in buckets that grow by 1.1 %, so a
quantile has that precision, and memory use does not depend on the number of requests.
"""

from collections import Counter, deque
from collections.abc import Mapping
from math import ceil, log2
from typing import NamedTuple

from poise.model.served import Served
from poise.units import MINUTE, SECOND

SLOT = 5 * SECOND
LONGEST = 5 * MINUTE

FINE = 64
"""Buckets per doubling of the latency."""

OK, FAULT = 200, 500


class _Slot:
    __slots__ = ("answers", "cached", "number", "refused", "sent", "sizes", "took", "waited")

    def __init__(self, number: int) -> None:
        self.number = number
        self.took: Counter[int] = Counter()
        self.answers: Counter[int] = Counter()
        self.refused: Counter[str] = Counter()
        self.sizes: Counter[int] = Counter()
        self.cached = 0
        self.sent = self.waited = 0

    def add(self, other: "_Slot") -> None:
        self.took.update(other.took)
        self.answers.update(other.answers)
        self.refused.update(other.refused)
        self.sizes.update(other.sizes)
        self.cached += other.cached
        self.sent += other.sent
        self.waited += other.waited


class Recent(NamedTuple):
    """Figures of the last `window` nanoseconds. `answered` counts answers of the model, `failed` those with an error,
    `faulty` those with status 500 and above; `cached` counts answers from the cache. Latencies are in nanoseconds,
    0 without answers. `wait_mean`: mean nanoseconds that a request waited for its batch.
    """

    window: int
    answered: int
    failed: int
    faulty: int
    cached: int
    p50: int
    p95: int
    p99: int
    refused: Mapping[str, int]
    batches: int
    batch_mean: float
    batch_max: int
    wait_mean: int

    def served(self, *, objective: int, waiting: int, ready: int, wanted: int) -> Served:
        """Return the state of the service, as the control plane gets it. Requests that the client cancelled do not
        count.
        """
        refused = sum(count for why, count in self.refused.items() if why != "cancelled")
        asked = self.answered + self.cached + refused
        return Served(
            rate=1000 * asked * SECOND // self.window,
            p99=self.p99,
            objective=objective,
            refused=1000 * refused // asked if asked else 0,
            waiting=waiting,
            ready=ready,
            wanted=wanted,
        )


class Lately:
    """Counts the outcomes of the requests to one service. Every call takes the monotonic time, in nanoseconds."""

    def __init__(self, began: int) -> None:
        self._began = began
        self._slots: deque[_Slot] = deque([_Slot(0)], maxlen=LONGEST // SLOT + 1)

    def answered(self, status: int, took: int, now: int, *, patient: bool = False) -> None:
        """Count an answer of a replica. The latency of a `patient` request is ignored: it has no objective."""
        slot = self._slot(now)
        slot.answers[status] += 1
        if not patient:
            slot.took[int(FINE * log2(max(1, took)))] += 1

    def refused(self, why: str, now: int) -> None:
        self._slot(now).refused[why] += 1

    def sent(self, requests: int, waited: int, now: int) -> None:
        """Count requests that are sent in a batch, and the nanoseconds that they waited, together."""
        slot = self._slot(now)
        slot.sent += requests
        slot.waited += waited

    def batch(self, size: int, now: int) -> None:
        self._slot(now).sizes[size] += 1

    def cached(self, now: int) -> None:
        self._slot(now).cached += 1

    def recent(self, window: int, now: int) -> Recent:
        """Return the figures of the last `window` nanoseconds, in whole slots (rounded up), or since the start."""
        first = max(0, self._number(now) - ceil(min(window, LONGEST) / SLOT))
        of = _Slot(first)
        for slot in self._slots:
            if slot.number >= first:
                of.add(slot)
        batches = of.sizes.total()
        return Recent(
            window=max(1, now - self._began - first * SLOT),
            answered=of.answers.total(),
            failed=of.answers.total() - of.answers[OK],
            faulty=sum(count for status, count in of.answers.items() if status >= FAULT),
            cached=of.cached,
            p50=_quantile(of.took, 0.5),
            p95=_quantile(of.took, 0.95),
            p99=_quantile(of.took, 0.99),
            refused=dict(sorted(of.refused.items())),
            batches=batches,
            batch_mean=sum(size * count for size, count in of.sizes.items()) / max(1, batches),
            batch_max=max(of.sizes, default=0),
            wait_mean=of.waited // max(1, of.sent),
        )

    def _number(self, now: int) -> int:
        return (now - self._began) // SLOT

    def _slot(self, now: int) -> _Slot:
        slot, number = self._slots[-1], self._number(now)
        if number > slot.number:
            slot = _Slot(number)
            self._slots.append(slot)
        return slot


def _quantile(took: Counter[int], part: float) -> int:
    """Return the upper edge of the bucket that contains this quantile of the latencies; 0 without latencies."""
    left = ceil(part * took.total())
    for bucket in sorted(took):
        left -= took[bucket]
        if left <= 0:
            return int(2 ** ((bucket + 1) / FINE))
    return 0


__all__ = ["LONGEST", "Lately", "Recent"]
