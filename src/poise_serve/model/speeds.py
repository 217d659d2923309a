"""How fast replicas answer, learned from what they have answered; and what is in flight there.

Small things, together in a `Reckoner`, which a router keeps for the replicas of one service:

* `Sizes`: how much the size of a request says of the time that it takes. Sizes are only estimates (tokens of which most
  are still to be written, bytes of a picture), and the replica that is slowest is offered those that look small: taken
  at their word they would make it look slower still. So work is `(size / usual size)^tells`, with the slope learned.
* `Speed`: nanoseconds for a request of the usual size on one replica, and `Throughput`, the same of one that serves
  several side by side.
* `InFlight`: requests that were sent and are not answered, and how long these still take.
* `Crowds`: how much longer a request takes for those beside it.

Requests may be of several *kinds*, such as the models that one server has: how fast a replica is, and what sizes and
crowds say, is learned of each kind by itself; what is in flight is waited for whatever its kind.

A replica is taken to serve one after the other until it answers out of turn. Time counts from the answer before, or
from when it was sent if nothing was in flight, and all that is in flight is waited for.

One that has answered out of turn serves several side by side: it has slots, or batches that others join, or it divides
itself. There time counts from when it was sent, and is taken to be `cost * crowd^s`, where `crowd` is how many were in
flight meanwhile, itself included, at the mean over time, and `s` is the slope of least squares, as for sizes: 0 while
slots are free, 1 where all divide the replica or wait for slots, between these where batches slow down as they grow.
Crowds larger than those seen are taken to slow it down in proportion, or what has room would be sent everything until
it answers.
"""

from collections.abc import Collection, Iterable, Mapping
from math import exp, exp2, inf, log, sqrt
from statistics import median
from typing import NamedTuple

import msgspec

from poise.units import MILLISECOND, SECOND
from poise_serve.model.routing import Asked, ReplicaView, RouteView

UNKNOWN = 100.0 * MILLISECOND
"""Of a replica when nothing is known of any. Only how replicas compare matters until the first has answered."""

BY_HEART = 3
"""Answers that what is foreseen of a new replica counts as."""

LEAST_WEIGHT = 0.05
"""Of the newest answer, once there are many."""

OUTLIER = 4.0
"""Times what was foreseen that an answer counts as at most."""

SLOW = 2.0
"""Times what was foreseen from which on an answer is slow. Each one in a row doubles the weight of the newest: one of
seven exponential times is slow, and of four in a row all are in one of three thousand."""

MOST_WEIGHT = 0.5

USUAL_WEIGHT = 0.005
"""Of the newest answer in what a replica usually takes."""

FADES = 60 * SECOND
"""Without an answer for so long, half of what set a replica apart from what it usually takes is forgotten: one that was
slow for a while is tried again, one that is slow is not."""

SHORTEST = 1.0
"""Nanoseconds that a pace is at least."""

MOST_WORK = 1e6
"""Times the usual that a request counts as at most, and of which it counts as no less than one: what says its size may
say anything.
"""

SIZES_KEPT = 1000
"""Answers over which the slope is taken."""

BELIEVED = 20
"""Answers that the belief counts as that sizes are proportional to times."""

TOGETHER = 4
"""Answers of which is learned at a time what crowds do."""


class Sizes(msgspec.Struct, frozen=True):
    """What logarithms of sizes, or of crowds, say of those of times: means, spread and joint spread. Times are over
    those of a request of the usual size on the same replica; beside crowds over work. The newest weigh most.
    """

    count: int = 0
    size: float = 0.0
    time: float = 0.0
    spread: float = 0.0
    joint: float = 0.0

    @property
    def tells(self) -> float:
        """The slope of what was observed."""
        return self.slope(BELIEVED)

    def slope(self, believed: float) -> float:
        """Of least squares, between 0 (times do not depend on sizes) and 1 (they are proportional), which counts as
        what so many have shown.
        """
        if self.spread <= 0.0:
            return 1.0
        belief = believed / self.count
        return min(1.0, max(0.0, (self.joint / self.spread + belief) / (1.0 + belief)))

    def work(self, size: float) -> float:
        """What it is foreseen to be, in requests of the usual size; 1 if its size is not known."""
        if not (self.count and 0.0 < size < inf):
            return 1.0
        most = log(MOST_WORK)
        return exp(max(-most, min(self.tells * (log(size) - self.size), most)))

    def observe(self, size: float, took: float) -> "Sizes":
        """With one more answer that took so long, in times of the usual."""
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
        """Of a crowd larger than the usual and a standard deviation nothing is known, and it counts in proportion."""
        known = min(many, exp(self._seen.size + sqrt(self._seen.spread)))
        return float(known ** self._seen.slope(BELIEVED / TOGETHER)) * many / known


class Speed(msgspec.Struct, frozen=True):
    """Nanoseconds for a request of the usual size: an exponentially weighted mean (`pace`), and one over many more
    answers (`usual`). `slow`: how many answers in a row were, `seen`: the instant of the last.
    """

    pace: float = UNKNOWN
    usual: float = UNKNOWN
    count: int = 0
    slow: int = 0
    seen: int = 0

    @classmethod
    def of(cls, like: Iterable["Speed | Throughput"], now: int) -> "Speed":
        """Of a new replica: the middle of those that are like it, as if it had answered as often as `BY_HEART`."""
        paces = [speed.at(now) for speed in like if speed.count]
        pace = median(paces) if paces else UNKNOWN
        return cls(pace=pace, usual=pace, count=BY_HEART if paces else 0, seen=now)

    def at(self, now: int) -> float:
        """The pace as far as it is remembered at this instant."""
        return self.usual + (self.pace - self.usual) * exp2(-max(0, now - self.seen) / FADES)

    def observe(self, work: float, busy: int, now: int) -> "Speed":
        """With one more answer: `work` as it was foreseen when it was sent, `busy` the time that it took."""
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
    """Of answers, the newest weighing most: what they took in nanoseconds, what work they were, and how many."""

    took: float = 0.0
    work: float = 0.0
    answers: float = 0.0

    @property
    def pace(self) -> float:
        return self.took / self.work

    def add(self, work: float, took: float, weight: float) -> "Sums":
        """One more. It counts as at most `OUTLIER` times what one of its work should take, or of the mean work: a small
        one that waited for others takes as long as these do.
        """
        if self.answers:
            took = min(took, OUTLIER * self.pace * max(work, self.work / self.answers))
        kept = 1.0 - weight
        return Sums(kept * self.took + took, kept * self.work + work, kept * self.answers + 1.0)


class Throughput(msgspec.Struct, frozen=True):
    """Nanoseconds for a request of the usual size, by itself, of a replica that serves several side by side: all that
    answers took over all the work that they were, and the same over many more (`usually`). What one small request took
    there says nothing, as it may have waited for a large one; the sum does, whoever waited for whom.
    """

    lately: Sums = Sums()
    usually: Sums = Sums()
    count: int = 0
    seen: int = 0

    @classmethod
    def of(cls, speed: Speed, now: int) -> "Throughput":
        """Of one that was taken to serve one after the other."""
        many = float(min(speed.count, BY_HEART))
        return cls(Sums(many * speed.at(now), many, many), Sums(many * speed.usual, many, many), speed.count, now)

    def at(self, now: int) -> float:
        """The pace as far as it is remembered at this instant."""
        pace, usual = self.lately.pace, self.usually.pace
        return max(SHORTEST, usual + (pace - usual) * exp2(-max(0, now - self.seen) / FADES))

    def observe(self, work: float, took: float, now: int) -> "Throughput":
        """With one more answer: what it would have taken by itself."""
        lately = (
            msgspec.structs.replace(self.lately, took=self.lately.work * self.at(now)) if self.count else self.lately
        )
        return Throughput(
            lately.add(work, took, LEAST_WEIGHT), self.usually.add(work, took, USUAL_WEIGHT), self.count + 1, now
        )


def _nearer(pace: float, took: float, weight: float) -> float:
    return pace + weight * (min(took, OUTLIER * pace) - pace)


class Sent(NamedTuple):
    """A request, and the work that it was foreseen to be, in requests of the usual size of its kind. `crowded`: the
    count of `InFlight` when it was sent.
    """

    size: float
    work: float
    at: int
    crowded: int
    kind: str


class InFlight:
    """What this router has sent to one replica and what is not answered, in the order in which it was sent. `beside`:
    some answer came out of turn.
    """

    def __init__(self) -> None:
        self._sent: dict[str, Sent] = {}
        self._work: dict[str, float] = {}
        self.beside = False
        self._crowded = self._counted = 0  # nanoseconds that were waited by all requests together, until when
        self._served = 0  # the instant since when what is oldest is served, if it was sent by then

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def kinds(self) -> Collection[str]:
        """Of which kinds something is in flight."""
        return self._work.keys()

    def sent(self, request: str, size: float, work: float, now: int, kind: str = "") -> None:
        self._count(now)
        self._sent[request] = Sent(size, work, now, self._crowded, kind)
        self._work[kind] = self._work.get(kind, 0.0) + work

    def answered(self, request: str, now: int) -> tuple[Sent, int] | None:
        """What it was, and the nanoseconds since the answer before; None if it is not in flight."""
        first = next(iter(self._sent), None)
        sent = self._take(request, now)
        if sent is None:
            return None
        self.beside |= request != first
        busy, self._served = max(0, now - max(sent.at, self._served)), now
        return sent, busy

    def dropped(self, request: str, now: int) -> None:
        """It is not answered, and will not be; if it was served, the next is from now on."""
        if next(iter(self._sent), None) == request:
            self._served = now
        self._take(request, now)

    def crowd(self, sent: Sent, now: int) -> float:
        """How many were in flight since this one was sent, itself included, at the mean over time."""
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

    def left(self, paces: Mapping[str, float], now: int) -> int:
        """Nanoseconds that all of it is foreseen to take from now, by the pace of each kind. What is served lasts as
        much longer as it has lasted, if that is more than what is left by its size: large sizes are rare, and it is one
        of them.
        """
        if not self._sent:
            return 0
        oldest = next(iter(self._sent.values()))
        served = max(0, now - max(oldest.at, self._served))
        whole = oldest.work * paces[oldest.kind]
        rest = max(0.0, sum(work * paces[kind] for kind, work in self._work.items()) - whole)
        return int(rest + max(whole - served, served))


class Known(NamedTuple):
    """A replica as whoever routes knows it without what was learned: its weight, how many requests it has from there,
    and whether it may be sent one more.
    """

    name: str
    weight: float
    running: int
    has_room: bool


class _Kind:
    """What is known of requests of one kind: what their sizes say, and by replica how fast it is, how long they last
    there beside others, and what crowds do to them.
    """

    def __init__(self) -> None:
        self.sizes = Sizes()
        self.speeds: dict[str, Speed | Throughput] = {}
        self.lasting: dict[str, Speed] = {}
        self.crowds: dict[str, Crowds] = {}


class Reckoner:
    """What a router knows of the replicas of one service by what it sent and what they answered. `like` of a replica:
    what sets it apart (a device model, say), so that a new one is foreseen to be as fast as its like. `kind` of a
    request: what sets it apart from others that the same replicas answer.
    """

    def __init__(self) -> None:
        self._likes: dict[str, str] = {}
        self._flights: dict[str, InFlight] = {}
        self._kinds: dict[str, _Kind] = {}

    def add(self, replica: str, now: int, like: str = "") -> None:
        """With none like it of which anything is known, it is foreseen to be as fast as all."""
        self._likes[replica] = like
        self._flights[replica] = InFlight()
        for kind in self._kinds.values():
            self._enter(kind, replica, now)

    def remove(self, replica: str) -> None:
        del self._likes[replica], self._flights[replica]
        for kind in self._kinds.values():
            del kind.speeds[replica], kind.lasting[replica], kind.crowds[replica]

    def _kind(self, name: str, now: int) -> _Kind:
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

    def sent(self, replica: str, request: str, size: float, now: int, kind: str = "") -> None:
        self._flights[replica].sent(request, size, self._kind(kind, now).sizes.work(size), now, kind)

    def answered(self, replica: str, request: str, now: int, held: int = 0) -> None:
        """`held`: nanoseconds of it that whoever asked did not take more of the answer, and held the replica up."""
        flight = self._flights[replica]
        known = flight.answered(request, now)
        if known is None:
            return
        sent, busy = known
        kind = self._kinds[sent.kind]
        lasted = max(0, now - sent.at - held)
        kind.lasting[replica] = kind.lasting[replica].observe(sent.work, lasted, now)
        busy, before = min(busy, lasted), kind.speeds[replica]
        if flight.beside:
            crowd = flight.crowd(sent, now)
            kind.crowds[replica].observe(crowd, sent.work, lasted)
            busy = int(lasted / kind.crowds[replica].slower(crowd))
            before = before if isinstance(before, Throughput) else Throughput.of(before, now)
        speed = kind.speeds[replica] = before.observe(sent.work, busy, now)
        if not before.count:  # it is the first of all: until now nothing was known of the others either
            kind.speeds |= {name: self._new(kind, name, now) for name, one in kind.speeds.items() if not one.count}
        kind.sizes = kind.sizes.observe(sent.size, min(busy / speed.at(now), OUTLIER * sent.work))

    def dropped(self, replica: str, request: str, now: int) -> None:
        """It was cancelled, or failed: nothing is learned from that."""
        self._flights[replica].dropped(request, now)

    def known(self, replica: str, size: float, now: int, kind: str = "") -> tuple[int, int, int]:
        """`outstanding`, `backlog` and `cost` of a `ReplicaView`, for a request of this size and kind."""
        flight, asked = self._flights[replica], self._kind(kind, now)
        paces = {name: self._kinds[name].speeds[replica].at(now) for name in flight.kinds}
        outstanding, left = len(flight), flight.left(paces, now)
        if flight.beside and outstanding:
            left = int(left * (asked.crowds[replica].slower(outstanding + 1.0) - 1.0) / outstanding)
        return outstanding, left, int(asked.speeds[replica].at(now) * asked.sizes.work(size))

    def view(self, asked: Asked, servers: Iterable[Known], turn: int, now: int, kind: str = "") -> RouteView:
        """What a router is shown of a request and of those that could take it. Chance is the turn's."""
        replicas = []
        for server in servers:
            _, backlog, cost = self.known(server.name, asked.size, now, kind)
            replicas.append(
                ReplicaView(
                    name=server.name,
                    weight=server.weight,
                    outstanding=server.running,
                    backlog=backlog,
                    cost=cost,
                    open=server.has_room,
                )
            )
        return RouteView(now=now, asked=asked, replicas=tuple(replicas), turn=turn, seed=turn)

    def lasting(self, replica: str, size: float, now: int, kind: str = "") -> float:
        """Nanoseconds from sending to the end of the answer that a request of this size takes there, with all that was
        beside others; 0 before the first answer.
        """
        asked = self._kind(kind, now)
        lasting = asked.lasting[replica]
        return lasting.at(now) * asked.sizes.work(size) if lasting.count else 0.0


__all__ = ["Crowds", "InFlight", "Known", "Reckoner", "Sent", "Sizes", "Speed", "Sums", "Throughput"]
