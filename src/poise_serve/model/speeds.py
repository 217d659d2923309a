"""Estimates of replica speed, learned from answers, and of the work in flight.

The classes are combined in a `Reckoner`, which a router keeps for the replicas of one service:

* `Sizes`: how well the size of a request predicts its time. Sizes are only estimates (tokens mostly not generated yet,
  bytes of an image), and the slowest replica gets the requests that look small: assuming that time is proportional to
  size would make it look even slower. So work is `(size / usual size)^tells`, with a learned exponent.
* `Speed`: nanoseconds for a request of the usual size on one replica, and `Throughput`, the same for a replica that
  serves requests concurrently.
* `InFlight`: requests that are sent and not answered, and an estimate of their remaining time.
* `Crowds`: slowdown of a request by concurrent requests.

Requests may be of several *kinds*, such as the models of one server: speeds, sizes and crowds are learned for each kind
separately; requests in flight of all kinds count as work ahead.

A replica is assumed to serve one request at a time until it answers out of order. The time of a request starts at the
previous answer, or when it was sent if nothing was in flight, and all requests in flight count as work ahead.

A replica that has answered out of order serves requests concurrently: by slots, continuous batching or time sharing.
There the time of a request starts when it was sent, and is modelled as `cost * crowd^s`, where `crowd` is the mean
number of requests in flight meanwhile, itself included, and `s` is a least-squares slope, as for sizes: 0 while slots
are free, 1 if requests share the replica or wait for slots, between them if batches slow down as they grow. The
slowdown beyond the crowds seen so far is assumed to be proportional; otherwise a replica with room would be sent all
requests until it answers.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from math import exp, exp2, inf, log, sqrt
from statistics import median
from typing import NamedTuple

import msgspec

from poise.units import MILLISECOND, SECOND

UNKNOWN = 100.0 * MILLISECOND
"""Initial pace before any replica has answered. Until then only the comparison of replicas matters."""

BY_HEART = 3
"""Number of answers that the estimate for a new replica counts as."""

LEAST_WEIGHT = 0.05
"""Minimum weight of the latest answer."""

OUTLIER = 4.0
"""An answer counts as at most this multiple of its estimate."""

SLOW = 2.0
"""An answer is slow above this multiple of its estimate. Each consecutive slow answer doubles the weight of the latest:
with exponential times, one in seven is slow, and four in a row happen once in three thousand."""

MOST_WEIGHT = 0.5

USUAL_WEIGHT = 0.005
"""Minimum weight of the latest answer in the long-term mean."""

FADES = 60 * SECOND
"""Half-life, without answers, of a replica's deviation from its long-term mean: a temporarily slow replica is tried
again, a permanently slow one is not."""

SHORTEST = 1.0
"""Minimum pace, in nanoseconds."""

MOST_WORK = 1e6
"""A request counts as at most this multiple of the usual work, and at least its inverse: sizes come from clients and
may have any value.
"""

SIZES_KEPT = 1000
"""Number of answers over which the slope is averaged."""

BELIEVED = 20
"""Weight, in answers, of the prior that times are proportional to sizes."""

TOGETHER = 4
"""Number of answers in a group from which the effect of crowds is learned."""


class Sizes(msgspec.Struct, frozen=True):
    """Regression of log time on log size, or on log crowd: means, variance and covariance. Times are relative to those
    of a request of the usual size on the same replica; for crowds, to the work. Recent answers weigh most.
    """

    count: int = 0
    size: float = 0.0
    time: float = 0.0
    spread: float = 0.0
    joint: float = 0.0

    @property
    def tells(self) -> float:
        """Slope with the usual prior."""
        return self.slope(BELIEVED)

    def slope(self, believed: float) -> float:
        """Least-squares slope, from 0 (times do not depend on sizes) to 1 (proportional). The prior is 1, with the
        weight of `believed` answers.
        """
        if self.spread <= 0.0:
            return 1.0
        belief = believed / self.count
        return min(1.0, max(0.0, (self.joint / self.spread + belief) / (1.0 + belief)))

    def work(self, size: float) -> float:
        """Estimated work of a request, in requests of the usual size; 1 if its size is unknown."""
        if not (self.count and 0.0 < size < inf):
            return 1.0
        most = log(MOST_WORK)
        return exp(max(-most, min(self.tells * (log(size) - self.size), most)))

    def observe(self, size: float, took: float) -> "Sizes":
        """Add an answer; `took` is relative to a request of the usual size."""
        if not (0.0 < size < inf and took > 0.0):
            return self
        x, y = log(size), log(took)
        count = self.count + 1
        weight = 1.0 / min(count, SIZES_KEPT)
        dx, dy = x - self.size, y - self.time
        return Sizes(
            count,
            self.size + weight * dx,
            self.time + weight * dy,
            (1.0 - weight) * (self.spread + weight * dx * dx),  # Welford's update, weighted (West, 1979)
            (1.0 - weight) * (self.joint + weight * dx * dy),
        )


class Crowds:
    """Slowdown of a request that runs concurrently with others: a power of the number of concurrent requests.

    The exponent is fitted to groups of answers. The time of a single answer depends mostly on which requests it waited
    for; a slope fitted to such noise is too flat, as if concurrency cost nothing.
    """

    def __init__(self) -> None:
        self._seen = Sizes()
        self._answers = 0
        self._crowd = self._took = self._work = 0.0

    def observe(self, crowd: float, work: float, took: float) -> None:
        """Add an answer: its work, its duration, and the number of concurrent requests including itself."""
        self._answers += 1
        self._crowd += crowd * took
        self._took += took
        self._work += work
        if self._answers == TOGETHER:
            self._seen = self._seen.observe(self._crowd / max(1.0, self._took), self._took / self._work)
            self._answers = 0
            self._crowd = self._took = self._work = 0.0

    def slower(self, many: float) -> float:
        """Slowdown by a crowd. It is proportional beyond the mean plus one standard deviation of the crowds seen."""
        known = min(many, exp(self._seen.size + sqrt(self._seen.spread)))
        return float(known ** self._seen.slope(BELIEVED / TOGETHER)) * many / known


class Speed(msgspec.Struct, frozen=True):
    """Nanoseconds for a request of the usual size: an exponentially weighted mean (`pace`), and one over many more
    answers (`usual`). `slow`: number of consecutive slow answers; `seen`: the instant of the latest answer.
    """

    pace: float = UNKNOWN
    usual: float = UNKNOWN
    count: int = 0
    slow: int = 0
    seen: int = 0

    @classmethod
    def of(cls, like: Iterable["Speed | Throughput"], now: int) -> "Speed":
        """Estimate a new replica by the median of similar ones, with the weight of `BY_HEART` answers."""
        paces = [speed.at(now) for speed in like if speed.count]
        pace = median(paces) if paces else UNKNOWN
        return cls(pace=pace, usual=pace, count=BY_HEART if paces else 0, seen=now)

    def at(self, now: int) -> float:
        """The pace as far as it is remembered at this instant."""
        return self.usual + (self.pace - self.usual) * exp2(-max(0, now - self.seen) / FADES)

    def observe(self, work: float, busy: int, now: int) -> "Speed":
        """Add an answer: its estimated work when it was sent, and its time in nanoseconds."""
        took, pace = max(SHORTEST, busy / work), self.at(now)
        if not self.count:
            return Speed(pace=took, usual=took, count=1, seen=now)
        count = self.count + 1
        slow = self.slow + 1 if took > SLOW * pace else 0
        newest = min(MOST_WEIGHT, LEAST_WEIGHT * 2.0 ** max(0, slow - 1))
        return Speed(
            _nearer(pace, took, max(1.0 / count, newest)),
            _nearer(self.usual, took, max(1.0 / count, USUAL_WEIGHT)),
            count,
            slow,
            now,
        )


class Sums(msgspec.Struct, frozen=True):
    """Exponentially weighted sums over answers: nanoseconds, work and count."""

    took: float = 0.0
    work: float = 0.0
    answers: float = 0.0

    @property
    def pace(self) -> float:
        return self.took / self.work

    def add(self, work: float, took: float, weight: float) -> "Sums":
        """Add an answer. Its time counts as at most `OUTLIER` times the estimate for its work, or for the mean work if
        larger: a small request that waited for others takes as long as they do.
        """
        if self.answers:
            took = min(took, OUTLIER * self.pace * max(work, self.work / self.answers))
        kept = 1.0 - weight
        return Sums(kept * self.took + took, kept * self.work + work, kept * self.answers + 1.0)


class Throughput(msgspec.Struct, frozen=True):
    """Nanoseconds for a single request of the usual size, on a replica that serves requests concurrently: total time
    over total work of the answers, recent (`lately`) and long-term (`usually`). The time of one small request says
    nothing, because it may have waited for a large one; the sums do not depend on who waited for whom.
    """

    lately: Sums = Sums()
    usually: Sums = Sums()
    count: int = 0
    seen: int = 0

    @classmethod
    def of(cls, speed: Speed, now: int) -> "Throughput":
        """Convert the estimate of a replica that was assumed to serve one request at a time."""
        many = float(min(speed.count, BY_HEART))
        return cls(Sums(many * speed.at(now), many, many), Sums(many * speed.usual, many, many), speed.count, now)

    def at(self, now: int) -> float:
        """The pace as far as it is remembered at this instant."""
        pace, usual = self.lately.pace, self.usually.pace
        return max(SHORTEST, usual + (pace - usual) * exp2(-max(0, now - self.seen) / FADES))

    def observe(self, work: float, took: float, now: int, crowd: float = 1.0) -> "Throughput":
        """Add an answer; `took` is its time without concurrent requests. The sums remember a whole `crowd` at least,
        because those that were served at once were all slow or all fast.
        """
        lately = (
            msgspec.structs.replace(self.lately, took=self.lately.work * self.at(now)) if self.count else self.lately
        )
        return Throughput(
            lately.add(work, took, min(LEAST_WEIGHT, 1.0 / crowd)),
            self.usually.add(work, took, USUAL_WEIGHT),
            self.count + 1,
            now,
        )


def _nearer(pace: float, took: float, weight: float) -> float:
    return pace + weight * (min(took, OUTLIER * pace) - pace)


class Sent(NamedTuple):
    """A request and its estimated work, in requests of the usual size of its kind. `crowded`: the integral kept by
    `InFlight` when it was sent.
    """

    size: float
    work: float
    at: int
    crowded: int
    kind: Hashable


class InFlight:
    """Requests from this router to one replica that are not answered yet, in sending order. `beside`: some answer came
    out of order.
    """

    def __init__(self) -> None:
        self._sent: dict[str, Sent] = {}
        self._work: dict[Hashable, float] = {}
        self.beside = False
        self._crowded = self._counted = 0  # request-nanoseconds in flight, and the instant of that count
        self._served = 0  # start of service of the oldest request, if it was sent by then

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def kinds(self) -> Collection[Hashable]:
        """Kinds of the requests in flight."""
        return self._work.keys()

    def sent(self, request: str, size: float, work: float, now: int, kind: Hashable = "") -> None:
        self._count(now)
        self._sent[request] = Sent(size, work, now, self._crowded, kind)
        self._work[kind] = self._work.get(kind, 0.0) + work

    def answered(self, request: str, now: int) -> tuple[Sent, int] | None:
        """Remove an answered request. Returns it and its service time in nanoseconds; None if it is not in flight."""
        first = next(iter(self._sent), None)
        sent = self._take(request, now)
        if sent is None:
            return None
        self.beside |= request != first
        busy, self._served = max(0, now - max(sent.at, self._served)), now
        return sent, busy

    def dropped(self, request: str, now: int) -> None:
        """Remove a request without an answer; if it was being served, service of the next one starts now."""
        if next(iter(self._sent), None) == request:
            self._served = now
        self._take(request, now)

    def crowd(self, sent: Sent, now: int) -> float:
        """Mean number of requests in flight since this one was sent, itself included."""
        self._count(now)
        return max(1.0, (self._crowded - sent.crowded) / max(1, now - sent.at))

    def _count(self, now: int) -> None:
        self._crowded += len(self._sent) * (now - self._counted)
        self._counted = now

    def _take(self, request: str, now: int) -> Sent | None:
        self._count(now)
        sent = self._sent.pop(request, None)
        if sent is not None:
            self._work[sent.kind] -= sent.work
        if not self._sent:
            self._work.clear()
        return sent

    def left(self, paces: Mapping[Hashable, float], now: int) -> int:
        """Estimated nanoseconds to serve all requests in flight, by the pace of each kind. The remaining time of the
        oldest is at least the time that it has taken so far: a long time so far makes a large request likely.
        """
        if not self._sent:
            return 0
        oldest = next(iter(self._sent.values()))
        served = max(0, now - max(oldest.at, self._served))
        whole = oldest.work * paces[oldest.kind]
        rest = max(0.0, sum(work * paces[kind] for kind, work in self._work.items()) - whole)
        return int(rest + max(whole - served, served))


class _Kind:
    """Estimates for one kind of request: the effect of sizes, and for each replica its speed, the time of requests
    including the effect of concurrency, and the effect of crowds.
    """

    def __init__(self) -> None:
        self.sizes = Sizes()
        self.speeds: dict[str, Speed | Throughput] = {}
        self.lasting: dict[str, Speed] = {}
        self.crowds: dict[str, Crowds] = {}


class Reckoner:
    """A router's estimates for the replicas of one service, from its requests and their answers. `like`: a replica's
    class (such as a device model), used to estimate new replicas. `kind`: a request's class (such as a model), among
    those that the same replicas answer.
    """

    def __init__(self) -> None:
        self._likes: dict[str, str] = {}
        self._flights: dict[str, InFlight] = {}
        self._kinds: dict[Hashable, _Kind] = {}

    def add(self, replica: str, now: int, like: str = "") -> None:
        """Add a replica, estimated by replicas of the same class, or by all if none of these has answered."""
        self._likes[replica] = like
        self._flights[replica] = InFlight()
        for kind in self._kinds.values():
            self._enter(kind, replica, now)

    def remove(self, replica: str) -> None:
        del self._likes[replica], self._flights[replica]
        for kind in self._kinds.values():
            del kind.speeds[replica], kind.lasting[replica], kind.crowds[replica]

    def _kind(self, name: Hashable, now: int) -> _Kind:
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = _Kind()
            for replica in self._likes:
                self._enter(kind, replica, now)
        return kind

    def _enter(self, kind: _Kind, replica: str, now: int) -> None:
        kind.crowds[replica] = Crowds()
        kind.lasting[replica] = Speed()
        kind.speeds[replica] = self._new(kind, replica, now)

    def _new(self, kind: _Kind, replica: str, now: int) -> Speed:
        alike = [speed for name, speed in kind.speeds.items() if self._likes[name] == self._likes[replica]]
        known = [speed for speed in alike if speed.count]
        return Speed.of(known or kind.speeds.values(), now)

    def sent(self, replica: str, request: str, size: float, now: int, kind: Hashable = "") -> None:
        self._flights[replica].sent(request, size, self._kind(kind, now).sizes.work(size), now, kind)

    def answered(self, replica: str, request: str, now: int, held: int = 0, size: float = 0.0) -> None:
        """Record an answer. `held`: nanoseconds during which its client did not read and blocked the replica. `size`:
        that of the request, if it turned out to be another one than was expected.
        """
        flight = self._flights[replica]
        known = flight.answered(request, now)
        if known is None:
            return
        sent, busy = known
        kind = self._kinds[sent.kind]
        if size > 0.0:
            sent = sent._replace(size=size, work=kind.sizes.work(size))
        lasted = max(0, now - sent.at - held)
        kind.lasting[replica] = kind.lasting[replica].observe(sent.work, lasted, now)
        busy, before = min(busy, lasted), kind.speeds[replica]
        speed: Speed | Throughput
        if flight.beside:
            crowd = flight.crowd(sent, now)
            kind.crowds[replica].observe(crowd, sent.work, lasted)
            busy = int(lasted / kind.crowds[replica].slower(crowd))
            before = before if isinstance(before, Throughput) else Throughput.of(before, now)
            speed = before.observe(sent.work, busy, now, crowd)
        else:
            speed = before.observe(sent.work, busy, now)
        kind.speeds[replica] = speed
        if not before.count:  # the first answer also updates the replicas that have not answered
            kind.speeds |= {name: self._new(kind, name, now) for name, one in kind.speeds.items() if not one.count}
        kind.sizes = kind.sizes.observe(sent.size, min(busy / speed.at(now), OUTLIER * sent.work))

    def dropped(self, replica: str, request: str, now: int) -> None:
        """Remove a cancelled or failed request; estimates do not change."""
        self._flights[replica].dropped(request, now)

    def known(self, replica: str, size: float, now: int, kind: Hashable = "") -> tuple[int, int, int]:
        """Return `outstanding`, `backlog` and `cost` of a `ReplicaView`, for a request of this size and kind."""
        flight, asked = self._flights[replica], self._kind(kind, now)
        paces = {name: self._kinds[name].speeds[replica].at(now) for name in flight.kinds}
        outstanding, left = len(flight), flight.left(paces, now)
        if flight.beside and outstanding:
            left = int(left * (asked.crowds[replica].slower(outstanding + 1.0) - 1.0) / outstanding)
        return outstanding, left, int(asked.speeds[replica].at(now) * asked.sizes.work(size))

    def lasting(self, replica: str, size: float, now: int, kind: Hashable = "") -> float:
        """Estimated nanoseconds from sending a request of this size to the end of its answer, including the effect of
        concurrent requests; 0 before the first answer.
        """
        asked = self._kind(kind, now)
        lasting = asked.lasting[replica]
        return lasting.at(now) * asked.sizes.work(size) if lasting.count else 0.0


__all__ = ["Crowds", "InFlight", "Reckoner", "Sent", "Sizes", "Speed", "Sums", "Throughput"]
