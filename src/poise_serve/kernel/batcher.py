"""Requests to one service, from when they come until they are answered or refused: a machine without a clock.

Requests wait in two lanes. A replica that is idle is sent what `policy.batching` says; what it answers teaches its
curve. Nothing that was accepted is lost: what a replica held that died is sent once more, each request alone, so that
one which kills whatever serves it kills two, and takes no other along. A batch that raised, or ran out of memory, is
sent again in halves, so that one request which breaks it is found by itself and refused by itself. A replica that has
held a batch for far too long is *overdue*: another one that is idle serves its requests as well, one by one, and the
first answer counts. In the end it *hangs*, and is replaced. Who is foreseen to be late is refused when it comes, before
it has cost anything.

Instants and durations are in nanoseconds. Every method returns what is to be done now.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import exp

import msgspec

from poise.model.serving import Curve, Limits
from poise.units import MILLISECOND, SECOND
from poise_serve.kernel.quarantine import LOSSES
from poise_serve.policy.batching import Batching, QueueView, Wait, foreseen

RATE_OVER = SECOND
"""Arrivals are counted over about so long."""

LOOK_EVERY = 100 * MILLISECOND
"""While somebody waits or is served, it is looked so often whether it has become too late."""

OVERDUE = 3.0
"""Times what its batch should take, and at least the objective, after which a replica is overdue …"""

OVERDUE_AFTER = 1 * SECOND
"""… or at least so long where there is no objective."""

HANGS = 10
"""Times what its batch should take, and the objective, after which a replica hangs …"""

LONGER = 2
"""… and times the longest of the last `LATELY` batches: some requests take far longer than most …"""

LATELY = 256

HANGS_AFTER = (5 * SECOND, 30 * SECOND)
"""… and at least so long: to stand still for a moment is no hang, and what a first batch takes, or the first of a size,
is not known: much may be compiled or tuned then. Between the two, half of the time-out where there is no objective:
then as much is left to answer what it holds."""

LAST_CHANCE = 0.5
"""Of its patience a request has waited for a replica that is overdue before it goes before those that wait."""

WAITS_LONGEST = 10 * SECOND
"""What may be late is served before all others once it has waited for so long: it does not starve."""

UNLUCKY = 0.01
"""The share of accepted requests that may be answered later than the objective says: it is told for the P99."""

MARGIN = 1.2
"""As long as nothing is known."""

MOST_MARGIN = 2.0
"""Where the machine itself stands still now and then, refusing more than that keeps no promise any better."""

REMEMBERED = 1024
"""Answers from which it is learned by how much what was foreseen is exceeded."""

WORTH_A_LOOK = 4
"""Of answers that were foreseen to take, with the margin, more than such a part of the objective."""

Why = str
"""full · late · expired · broken · lost · quarantined: why a request is refused."""


class Batch(msgspec.Struct, frozen=True):
    """Send these requests to the replica, filled up to `padded` items."""

    replica: str
    number: int
    requests: tuple[int, ...]
    padded: int


class Refuse(msgspec.Struct, frozen=True):
    """Tell whoever asked that there will be no answer; `after`: in how long it may ask again. `foreseen`: how long it
    would have taken, where that is why.
    """

    request: int
    why: Why
    message: str = ""
    after: int = 0
    foreseen: int = 0


class Replace(msgspec.Struct, frozen=True):
    """The replica hangs: say that it is `down`, and end it, so that it is started again."""

    replica: str


Effect = Batch | Refuse | Replace


class Request(msgspec.Struct):
    """`due`: when it must be answered; `foreseen`: when it was thought that it would be, as it came. `over`: it was
    `answered`, refused or cancelled, and is dropped wherever it still is. `held`: so many replicas serve it.
    """

    number: int
    came: int
    due: int
    foreseen: int
    losses: int = 0
    over: bool = False
    answered: bool = False
    held: int = 0


class Replica(msgspec.Struct):
    """One process that answers batches, one at a time. `busy`: until when, as foreseen; it is idle without a batch.
    `ran`: the sizes, with what they are filled up by, of the batches that it has answered; `padded` is the present one.
    """

    name: str
    curve: Curve
    batch: int = 0
    requests: list[Request] = []
    sent: int = 0
    busy: int = 0
    draining: bool = False
    warm: bool = False  # it has answered a batch
    padded: int = 0
    ran: set[int] = set()
    suspected: bool = False  # the last batch was a request with which another replica was lost


class Batcher:
    """The requests of one service and the replicas that answer them."""

    def __init__(self, limits: Limits, policy: Batching | None = None) -> None:
        self.limits = limits
        self.losses = LOSSES
        """A request is refused once so many replicas died, or were lost, while they served it."""
        self.policy = policy or Batching()
        self.replicas: dict[str, Replica] = {}
        self.margin = MARGIN
        """By this factor one accepted request in a hundred takes longer than foreseen."""
        self._overruns: deque[float] = deque(maxlen=REMEMBERED)
        self._took: deque[int] = deque(maxlen=LATELY)  # without first batches
        self._lanes: tuple[dict[int, Request], dict[int, Request]] = ({}, {})
        self._again: deque[list[Request]] = deque()  # sent before all others, each list by itself
        self._number = 0
        self._rate = 0.0
        self._came = 0
        self._held = 0  # since when a larger batch is waited for
        self._ask_at = 0
        self._gathering = False
        self._behind: list[Request] = []  # waited for the first replica to start
        self._started = 0

    # --- what is asked from outside ----------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return len(self._lanes[0]) + len(self._lanes[1]) + sum(map(len, self._again))

    @property
    def serving(self) -> int:
        return sum(len(replica.requests) for replica in self.replicas.values())

    def started(self, now: int) -> int:
        """The instant from which requests wait for capacity: a replica is ready, and every request that waited for it
        to start is over. Requests that came before it waited for a start. In the future as long as that lasts.
        """
        while self._behind and self._behind[-1].over:
            self._behind.pop()
            self._started = now
        return self._started if self.replicas and not self._behind else now + 1

    def rate(self, now: int) -> float:
        """Accepted requests in a nanosecond, lately."""
        return self._rate * exp(-(now - self._came) / RATE_OVER)

    def wakeup(self) -> int | None:
        """When to call `tick`, if nothing happens before."""
        if not self.waiting and not self.serving:
            return None
        return self._ask_at or -1

    # --- what happens ------------------------------------------------------------------------------------------------

    def arrive(
        self, number: int, now: int, *, timeout: int = 0, deferred: bool = False, suspect: bool = False
    ) -> list[Effect]:
        """A request has come. `timeout`: after which whoever asks gives it up, if that is sooner than the service. A
        `suspect` is one with which a replica was lost before: it is served alone.
        """
        limits = self.limits
        if self.waiting >= limits.queue:
            clears = self._clears_in(now)
            return [Refuse(number, "full", f"{limits.queue} requests wait already", clears, clears)]
        patience = min(timeout, limits.timeout) if timeout else limits.timeout
        ahead = self.waiting if deferred else len(self._lanes[0]) + sum(map(len, self._again))
        done = foreseen(now, ahead, self._open(now))
        if limits.objective and ahead and not deferred and (done - now) * self.margin > limits.objective:
            if not limits.defer:
                takes = int((done - now) * self.margin)
                why = _too_late(done - now, limits.objective)
                return [Refuse(number, "late", why, takes - limits.objective, takes)]
            deferred = True
        if done > now + patience:
            return [Refuse(number, "late", _too_late(done - now, patience), done - now - patience, done - now)]
        self._count(now)
        request = Request(number, now, now + patience, done, losses=int(suspect))
        if suspect:
            self._again.append([request])
        else:
            self._lanes[deferred][number] = request
        return self._serve(now)

    def gather(self) -> None:
        """Nothing is sent until `gathered`: what comes meanwhile comes together, at one instant."""
        self._gathering = True

    def gathered(self, now: int) -> list[Effect]:
        """All of it has come."""
        self._gathering = False
        return self._serve(now)

    def cancel(self, number: int) -> None:
        """Whoever asked has gone: it is not served if it waits, and its answer is dropped if it is being served."""
        for lane in self._lanes:
            if (waiting := lane.pop(number, None)) is not None:
                waiting.over = True
                return
        for group in self._groups():
            for request in group:
                if request.number == number:
                    request.over = True
                    return

    def up(self, name: str, now: int, known: Sequence[tuple[int, float]] = (), room: int = 0) -> list[Effect]:
        """A replica is ready. `known`: what batches take there, as far as that was tried, else what others take is gone
        by until it is seen; `room`: for how many items of one there is memory, 0 if that is not known.
        """
        curve = Curve(self.limits.batch, known)
        if not known:
            curve.borrow(max((other.curve.known() for other in self.replicas.values()), key=len, default=[]))
        curve.has_room(room)
        if not self.replicas:
            waiting = (lane.values() for lane in self._lanes)
            self._behind, self._started = [request for group in (*waiting, *self._again) for request in group], now
        self.replicas[name] = Replica(name, curve, warm=bool(known), ran={size for size, _ in known})
        return self._serve(now)

    def down(self, name: str, now: int, how: str = "died") -> list[Effect]:
        """A replica has gone; what it held is sent again."""
        replica = self.replicas.pop(name, None)
        if replica is None:
            return []
        effects = self._retry(replica, "lost", f"{name} {how} while it was served")
        return effects + self._serve(now)

    def drain(self, name: str) -> None:
        """It is sent nothing more."""
        if name in self.replicas:
            self.replicas[name].draining = True

    def answered(
        self, name: str, batch: int, took: int, items: int, now: int, room: int = 0
    ) -> tuple[list[int], list[Effect]]:
        """A replica has answered a batch: the model was given so many items, which took so long, and for so many there
        is `room` now. Who is to be told of it, and what is to be done now.
        """
        replica = self.replicas.get(name)
        if replica is None or replica.batch != batch:
            return [], []
        if items:
            replica.curve.learn(items, took)
        replica.curve.has_room(room)
        if replica.warm:
            self._took.append(now - replica.sent)
        replica.warm = True
        replica.ran.add(replica.padded)
        told = self._taken_from(replica)
        for request in told:
            request.over = request.answered = True
        if self.limits.objective:
            self._learn_margin(told, now)
        return [request.number for request in told], self._serve(now)

    def broke(self, name: str, batch: int, message: str, now: int) -> list[Effect]:
        """A replica could not answer a batch, and goes on. Who was alone in it is told; else it is sent in halves."""
        replica = self.replicas.get(name)
        if replica is None or replica.batch != batch:
            return []
        is_alone = len(replica.requests) == 1
        requests = self._taken_from(replica)
        if is_alone:
            return [*(_refused(request, "broken", message) for request in requests), *self._serve(now)]
        self._halve([request for request in requests if not request.held])
        return self._serve(now)

    def no_memory(self, name: str, batch: int, message: str, now: int) -> list[Effect]:
        """There was no memory for a batch: none is as large from now on, and this one is sent in halves."""
        replica = self.replicas.get(name)
        if replica is None or replica.batch != batch:
            return []
        replica.curve.lower((len(replica.requests) + 1) // 2)
        return self.broke(name, batch, message, now)

    def stood_still(self, late: int, now: int) -> None:
        """Nobody was heard for so long, since this machine itself stood still: no replica was silent meanwhile."""
        for replica in self.replicas.values():
            pause = min(late, now - replica.sent)
            replica.sent += pause
            replica.busy += pause

    def tick(self, now: int) -> list[Effect]:
        """What time alone brings."""
        effects: list[Effect] = []
        for lane in self._lanes:
            for request in [one for one in lane.values() if one.due <= now]:
                del lane[request.number]
                effects.append(_expired(request))
        for group in self._groups():
            effects += [_expired(request) for request in group if request.due <= now and not request.over]
        effects += [Replace(replica.name) for replica in self.replicas.values() if self._hangs(replica, now)]
        return effects + self._serve(now)

    # --- how ---------------------------------------------------------------------------------------------------------

    def _serve(self, now: int) -> list[Effect]:
        """Give idle replicas what is best, the quickest first."""
        if self._gathering:
            return []
        effects: list[Effect] = []
        self._ask_at = now + LOOK_EVERY if self.waiting or self.serving else 0
        idle = [replica for replica in self.replicas.values() if not replica.batch and not replica.draining]
        if len(idle) > 1:
            idle.sort(key=lambda replica: replica.curve.takes(1))
        for replica in idle:
            batch = self._next_batch(replica, now, effects)
            if batch is not None:
                effects.append(batch)
        return effects

    def _next_batch(self, replica: Replica, now: int, effects: list[Effect]) -> Batch | None:
        while self._again:
            if self._again[0][0].losses and replica.suspected and any(self._lanes):
                break  # one by one they would hold up everybody else
            group = _unfinished(self._again.popleft())
            fits, rest = group[: replica.curve.largest], group[replica.curve.largest :]
            if rest:
                self._again.appendleft(rest)
            if fits:
                return self._send(replica, fits, len(fits), now)
        if (request := self._overdue(now, LAST_CHANCE)) is not None:
            return self._send(replica, [request], 1, now)
        lane = self._lane(now)
        while lane and (first := next(iter(lane.values()))).due < now + replica.curve.takes(1):
            del lane[first.number]  # it would be late, and has cost nothing yet
            effects.append(_expired(first))
        if not lane:
            request = self._overdue(now)
            return None if request is None else self._send(replica, [request], 1, now)
        first = next(iter(lane.values()))
        verdict = self.policy.decide(
            QueueView(
                now=now,
                count=len(lane),
                curve=replica.curve,
                rate=self._share(replica, now),
                due=first.due,
                held=self._held,
                elsewhere=self._elsewhere(replica, len(lane), now),
                promised=first.came + self.limits.objective if self.limits.objective else 0,
            )
        )
        if isinstance(verdict, Wait):
            if verdict.until:
                self._held = self._held or now
                self._ask_at = min(self._ask_at, verdict.until)
            return None
        self._held = 0
        requests = [lane.pop(number) for number in list(islice(lane, verdict.count))]
        if lane is self._lanes[0]:  # what is filled up anyway is filled with those who may be late
            filling = list(islice(self._lanes[1], verdict.padded - verdict.count))
            requests += [self._lanes[1].pop(number) for number in filling]
        return self._send(replica, requests, verdict.padded, now)

    def _send(self, replica: Replica, requests: list[Request], padded: int, now: int) -> Batch:
        self._number += 1
        replica.batch, replica.requests, replica.sent = self._number, requests, now
        replica.padded, replica.suspected = padded, requests[0].losses > 0
        for request in requests:
            request.held += 1
        replica.busy = int(now + replica.curve.takes(min(len(requests), replica.curve.largest)))
        return Batch(replica.name, self._number, tuple([request.number for request in requests]), padded)

    def _lane(self, now: int) -> dict[int, Request]:
        """Which lane is served: the first, unless it is empty, or somebody in the second has waited for too long."""
        first, second = self._lanes
        if second and (not first or next(iter(second.values())).came <= now - WAITS_LONGEST):
            return second
        return first

    def _open(self, now: int) -> list[tuple[Curve, int]]:
        open_ones = [replica for replica in self.replicas.values() if not replica.draining]
        in_time = [replica for replica in open_ones if not self._is_overdue(replica, now)]
        return [(replica.curve, replica.busy) for replica in in_time or open_ones]

    def _overdue(self, now: int, waited: float = 0.0) -> Request | None:
        """A request that a replica which is overdue holds, and that has waited for this part of its patience. It is
        one that nobody else holds, and that no replica was lost with: alone it takes no other along.
        """
        for replica in self.replicas.values():
            if self._is_overdue(replica, now):
                for request in replica.requests:
                    is_fresh = request.held == 1 and not request.losses and not request.over
                    if is_fresh and now - request.came >= waited * (request.due - request.came):
                        return request
        return None

    def _is_overdue(self, replica: Replica, now: int) -> bool:
        usual = OVERDUE * (replica.busy - replica.sent)
        return replica.batch > 0 and now - replica.sent > max(usual, self.limits.objective or OVERDUE_AFTER)

    def _hangs(self, replica: Replica, now: int) -> bool:
        least, most = HANGS_AFTER
        if not replica.batch or now - replica.sent <= least:
            return False
        objective, timeout = self.limits.objective, self.limits.timeout
        is_known = replica.warm and replica.padded in replica.ran
        after = min(most, max(least, HANGS * objective if objective else timeout // 2)) if is_known else most
        return now - replica.sent > max(
            after, HANGS * (replica.busy - replica.sent), LONGER * max(self._took, default=0)
        )

    def _elsewhere(self, replica: Replica, waiting: int, now: int) -> int:
        """When quicker replicas that are busy now would be done with the last of so many that wait; 0 without one. By
        then whoever is served here has made room for those behind.
        """
        own = replica.curve.takes(1)
        quicker = [
            (other.curve, other.busy)
            for other in self.replicas.values()
            if other.batch and not other.draining and other.busy > now and other.curve.takes(1) < own
        ]
        return foreseen(now, waiting - 1, quicker) if quicker else 0

    def _share(self, replica: Replica, now: int) -> float:
        """The rate at which requests come that this replica is likely to get."""
        if len(self.replicas) == 1:
            return self.rate(now)
        paces = [other.curve.pace() for other in self.replicas.values()]
        own = replica.curve.pace()
        return self.rate(now) / (own * sum(1 / pace for pace in paces)) if own and all(paces) else 0.0

    def _count(self, now: int) -> None:
        self._rate = self.rate(now) + 1 / RATE_OVER
        self._came = now

    def _learn_margin(self, told: Sequence[Request], now: int) -> None:
        """What was foreseen to be brief says little of what waits for long, and is left out."""
        before = len(self._overruns)
        for request in told:
            thought = request.foreseen - request.came
            if thought * self.margin * WORTH_A_LOOK > self.limits.objective:
                self._overruns.append((now - request.came) / thought)
        if len(self._overruns) > before or before == REMEMBERED:
            overruns = sorted(self._overruns)
            self.margin = min(MOST_MARGIN, max(1.0, overruns[int((1 - UNLUCKY) * len(overruns))]))

    def _taken_from(self, replica: Replica) -> list[Request]:
        requests = replica.requests
        for request in requests:
            request.held -= 1
        replica.batch, replica.requests = 0, []
        return _unfinished(requests)

    def _groups(self) -> list[list[Request]]:
        """Requests that are being served, or are to be sent again."""
        return [*self._again, *(replica.requests for replica in self.replicas.values())]

    def _retry(self, replica: Replica, why: Why, message: str) -> list[Effect]:
        requests = self._taken_from(replica)
        if self.losses > 1:
            message += ", and so did another"
        refused: list[Effect] = []
        for request in reversed(requests):
            request.losses += 1
            if request.losses >= self.losses:
                refused.append(_refused(request, why, message))
            elif not request.held:
                self._again.appendleft([request])
        return refused

    def _halve(self, requests: list[Request]) -> None:
        middle = (len(requests) + 1) // 2
        self._again.extendleft(half for half in (requests[middle:], requests[:middle]) if half)

    def _clears_in(self, now: int) -> int:
        return max(0, foreseen(now, self.waiting, self._open(now)) - now)


def _too_late(delay: int, wanted: int) -> str:
    return f"it would take {delay / MILLISECOND:.0f} ms, which is more than {wanted / MILLISECOND:.0f} ms"


def _unfinished(requests: list[Request]) -> list[Request]:
    """Those of them for whom somebody still waits."""
    return [request for request in requests if not request.over]


def _refused(request: Request, why: Why, message: str) -> Refuse:
    request.over = True
    return Refuse(request.number, why, message)


def _expired(request: Request) -> Refuse:
    return _refused(request, "expired", f"not answered within {(request.due - request.came) / SECOND:g} s")


__all__ = ["Batch", "Batcher", "Effect", "Refuse", "Replace"]
