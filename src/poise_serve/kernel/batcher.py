"""State machine for the requests of one service, from arrival to answer or refusal. Time is an argument.

Requests wait in two lanes. An idle replica gets the batch that `policy.batching` chooses; the time of each answer
updates its curve. No accepted request is lost. When a replica dies, its requests are retried once, each alone: a
request that kills replicas kills two of them, and fails no other request. A batch that raised, or ran out of memory, is
sent again in halves, so that a request that breaks its batch is isolated and refused alone. A replica that has held a
batch far too long is *overdue*: idle replicas serve its requests too, one by one, and the first answer is used. After
that it *hangs*, and is replaced. A request with an estimate later than its deadline is refused on arrival, before it
has used any capacity.

If more requests wait than fit into a batch, the next one is sent *ahead*, shortly before the replica is expected to
answer. So the replica is not idle until its answer is read.

While no replica is up, requests wait for one, each for at most `Limits.hold`. The objective does not count that time.

Instants and durations are in nanoseconds. Every method returns the effects to carry out now.
"""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Sequence
from itertools import islice
from math import ceil, exp

import msgspec

from poise.model.serving import Curve, Limits
from poise.units import MILLISECOND, SECOND, format_duration
from poise_serve.kernel.quarantine import LOSSES
from poise_serve.policy.batching import Batching, QueueView, Send, Wait, foreseen

RATE_OVER = SECOND
"""Time constant of the arrival rate."""

LOOK_EVERY = 100 * MILLISECOND
"""Interval at which deadlines are checked while requests wait or are served."""

OVERDUE = 3.0
"""A replica is overdue after this multiple of its batch's estimated time, and at least the objective …"""

OVERDUE_AFTER = 1 * SECOND
"""… or, without an objective, at least this long."""

HANGS = 10
"""A replica hangs after this multiple of its batch's estimated time and of the objective …"""

LONGER = 2
"""… and this multiple of the longest of the last `LATELY` batches, as some requests take far longer than most …"""

LATELY = 256

HANGS_AFTER = (5 * SECOND, 30 * SECOND)
"""… within these limits. A short pause is no hang. The larger one applies to a first batch, or the first of a size,
which may include compilation or tuning. Without an objective, half of the timeout within these limits, which leaves
the other half to retry the requests."""

LAST_CHANCE = 0.5
"""Fraction of its timeout after which a request on an overdue replica is retried ahead of the queue."""

LONGEST_AWAY = 60 * SECOND
"""Maximum time to retry after, if it is derived only from the elapsed time."""

WAITS_LONGEST = 10 * SECOND
"""A deferred request is served first after waiting this long, so that it does not starve."""

UNLUCKY = 0.01
"""Fraction of accepted requests that may miss the objective, which is defined for the P99."""

MARGIN = 1.2
"""Initial margin, before any answers."""

MOST_MARGIN = 2.0
"""Upper limit of the margin. On a machine with pauses, refusing more requests does not improve the P99."""

REMEMBERED = 4096
"""Number of recent answers from which the margin is estimated."""

EVERY = 4
"""Only every fourth answer of a batch is one of them: answers of a batch are alike, and a P99 needs several hundred
batches.
"""

WORTH_A_LOOK = 4
"""Only answers with an estimate, times the margin, above 1/4 of the objective update the margin."""

Why = str
"""full · late · expired · broken · lost · quarantined · unavailable: why a request is refused."""


class Batch(msgspec.Struct, frozen=True):
    """Send these requests to the replica, filled up to `padded` items. `ahead`: it still serves another batch."""

    replica: str
    number: int
    requests: tuple[int, ...]
    padded: int
    ahead: bool = False


class Refuse(msgspec.Struct, frozen=True):
    """Refuse the request. `after`: delay before a retry. `foreseen`: the estimated time to answer, if that is the
    reason.
    """

    request: int
    why: Why
    message: str = ""
    after: int = 0
    foreseen: int = 0


class Replace(msgspec.Struct, frozen=True):
    """The replica hangs: call `down` for it and kill it, so that it is restarted."""

    replica: str


Effect = Batch | Refuse | Replace


class Request(msgspec.Struct):
    """`due`: deadline. `foreseen`: estimated completion time, made on arrival. `over`: it was `answered`, refused or
    cancelled, and is skipped wherever it is still queued. `held`: number of replicas that serve it.
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
    """A process that answers one batch at a time. `busy`: estimated end of the current batch; it is idle without one.
    `ran`: padded sizes of the batches that it has answered; `padded`: padded size of the current one. `next`: the batch
    that was sent ahead, with its requests.
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
    alone: bool = False  # other replicas do not serve its requests meanwhile, however long they take
    next: Batch | None = None
    next_requests: list[Request] = []

    @property
    def free(self) -> int:
        """Estimated end of the batches that it has."""
        if self.next is None:
            return self.busy
        return self.busy + int(self.curve.takes(min(len(self.next_requests), self.curve.largest)))


def process_of(name: str) -> str:
    """Return the name of the process of a replica, or of a slot of it (`j1.main.1#3`)."""
    return name.partition("#")[0]


class Batcher:
    """The requests of one service and the replicas that answer them."""

    def __init__(self, limits: Limits, policy: Batching | None = None, ahead: int = 0) -> None:
        self.limits = limits
        self.ahead = ahead
        """Nanoseconds before the expected end of a batch at which the next one may be sent; 0: never."""
        self.losses = LOSSES
        """A request is refused after this number of replicas died, or were lost, while serving it."""
        self.policy = policy or Batching()
        self.replicas: dict[str, Replica] = {}
        self.margin = MARGIN
        """P99 of actual over estimated time of accepted requests."""
        self._overruns: deque[float] = deque()
        self._in_order: list[float] = []  # the same, sorted
        self._told: list[Request] = []  # answered, and perhaps not written yet
        self._took: deque[int] = deque(maxlen=LATELY)  # without first batches
        self._lanes: tuple[dict[int, Request], dict[int, Request]] = ({}, {})
        self._again: deque[list[Request]] = deque()  # retries, sent before the lanes, one batch per list
        self._number = 0
        self._rate = 0.0
        self._came = 0
        self._held = 0  # start of the wait for a larger batch
        self._ask_at = 0
        self.is_gathering = False
        """Whether nothing is sent until `gathered`."""
        self._behind: list[Request] = []  # waited for the first replica to start
        self._started = 0
        self._down = 0  # since when there is no replica; 0 if there is one, or if no request has come since
        self.start_up = 0
        """Nanoseconds that the latest replica took to start; 0 if none did."""

    # --- queries -----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        first, second = self._lanes
        return len(first) + len(second) + (sum(map(len, self._again)) if self._again else 0)

    @property
    def serving(self) -> int:
        return sum(len(replica.requests) + len(replica.next_requests) for replica in self.replicas.values())

    @property
    def idle(self) -> int:
        """Number of replicas that could be sent a batch now."""
        return sum(not replica.batch and not replica.draining for replica in self.replicas.values())

    def started(self, now: int) -> int:
        """The instant from which requests wait for capacity only: a replica is ready, and every request that waited
        for it to start is over. Earlier requests waited for a start. Until then, an instant in the future.
        """
        while self._behind and self._behind[-1].over:
            self._behind.pop()
            self._started = now
        return self._started if self.replicas and not self._behind else now + 1

    def rate(self, now: int) -> float:
        """Recent rate of requests, including refused ones, per nanosecond."""
        return self._rate * exp(-(now - self._came) / RATE_OVER)

    def wakeup(self) -> int | None:
        """When to call `tick` if no event comes first; None if idle."""
        if not self.waiting and not self.serving:
            return None
        return self._ask_at or -1

    # --- events ------------------------------------------------------------------------------------------------------

    def arrive(
        self, number: int, now: int, *, came: int = 0, timeout: int = 0, deferred: bool = False, suspect: bool = False
    ) -> list[Effect]:
        """A request has arrived; its client has been waiting since `came` (0: now). `timeout`: the client's own
        timeout, if shorter than that of the service. A `suspect` was being served when a replica was lost: it is served
        alone.
        """
        limits, came = self.limits, came or now
        self._count(now)
        if not self.replicas and not self._down:
            self._down = now
        waiting = self.waiting
        if waiting >= limits.queue:
            clears = self._clears_in(now) if self.replicas else self._starts_in(now)
            return [Refuse(number, "full", f"{limits.queue} requests wait already", clears, clears)]
        patience = min(timeout, limits.timeout) if timeout else limits.timeout
        ahead = waiting if deferred else waiting - len(self._lanes[1])
        done = foreseen(now, ahead, self._open(now))
        takes = now - came + int((done - now) * self.margin)
        if limits.objective and ahead and not deferred and takes > limits.objective:
            if not limits.defer:
                why = _too_late(done - came, limits.objective)
                return [Refuse(number, "late", why, takes - limits.objective, takes)]
            deferred = True
        if done > came + patience:
            return [Refuse(number, "late", _too_late(done - came, patience), done - came - patience, done - came)]
        request = Request(number, came, came + patience, done, losses=int(suspect))
        if suspect:
            self._again.append([request])
        else:
            self._lanes[deferred][number] = request
        return self._serve(now)

    def gather(self) -> None:
        """Send nothing until `gathered`; batch the requests that arrive meanwhile as one arrival."""
        self.is_gathering = True

    def gathered(self, now: int) -> list[Effect]:
        """End `gather` and serve the gathered requests."""
        self.is_gathering = False
        return self._serve(now)

    def cancel(self, number: int) -> None:
        """The client has disconnected: drop a waiting request, or the answer of one that is being served."""
        for lane in self._lanes:
            if (waiting := lane.pop(number, None)) is not None:
                waiting.over = True
                return
        for group in self._groups():
            for request in group:
                if request.number == number:
                    request.over = True
                    return

    def begun(self, name: str, now: int) -> None:
        """The replica sends parts of its answer: its requests are not refused, retried or served elsewhere any more."""
        replica = self.replicas[name]
        replica.sent = max(replica.sent, now)  # it does not hang
        for request in replica.requests:
            request.over = True

    def up(
        self, name: str, now: int, known: Sequence[tuple[int, float]] = (), room: int = 0, *, alone: bool = False
    ) -> list[Effect]:
        """A replica is ready. `known`: measured batch times; without any, those of another replica are used at first.
        `room`: largest batch, in items, that fits in its memory; 0 if unknown. `alone`: its requests are not served by
        others meanwhile: they may take very different times, and it would serve most of them itself.
        """
        curve = Curve(self.limits.batch, known)
        if not known:
            curve.borrow(max((other.curve.known() for other in self.replicas.values()), key=len, default=[]))
        curve.has_room(room)
        self._down = 0
        if not self.replicas:
            waiting = (lane.values() for lane in self._lanes)
            self._behind, self._started = [request for group in (*waiting, *self._again) for request in group], now
        self.replicas[name] = Replica(name, curve, warm=bool(known), ran={size for size, _ in known}, alone=alone)
        return self._serve(now)

    def down(self, name: str, now: int, how: str = "died") -> list[Effect]:
        """A replica is lost; retry its requests."""
        replica = self.replicas.pop(name, None)
        if replica is None:
            return []
        if ahead := [request for request in self._given_back(replica.next_requests) if not request.held]:
            self._again.appendleft(ahead)
        replica.next_requests = []
        effects = self._retry(replica, "lost", f"{name} {how} while it was served")
        self._down = 0 if self.replicas else now
        return effects + self._serve(now)

    def starts(self, name: str, now: int) -> None:
        """The replica starts the batch only now: it had to wait for its turn in its process."""
        replica = self.replicas[name]
        replica.busy += now - replica.sent
        replica.sent = now

    def take_back(self, name: str, now: int) -> None:
        """The replica has not started its batch: let another one serve it, before other requests."""
        if requests := self._taken_from(self.replicas[name], now):
            self._again.appendleft(requests)

    def drain(self, name: str) -> None:
        """Send no more batches to this replica."""
        if name in self.replicas:
            self.replicas[name].draining = True

    def answered(
        self, name: str, batch: int, took: int, items: int, now: int, room: int = 0
    ) -> tuple[list[int], list[Effect]]:
        """A replica has answered a batch of `items` items, in `took` nanoseconds; `room` is its new largest batch.
        Returns the numbers of the requests to answer, and the effects.
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
        told = self._taken_from(replica, now)
        for request in told:
            request.over = request.answered = True
        if self.limits.objective:
            self._told += told
        return [request.number for request in told], self._serve(now)

    def written(self, now: int) -> None:
        """The answers since the last call have been written to the clients: learn the errors of their estimates. A busy
        process takes milliseconds to write the answers of a batch.
        """
        for request in self._told[::EVERY]:
            self._learn_margin(request, now)
        if self._told and self._in_order:
            self.margin = min(MOST_MARGIN, max(1.0, self._in_order[int((1 - UNLUCKY) * len(self._in_order))]))
        self._told.clear()

    def broke(self, name: str, batch: int, message: str, now: int) -> list[Effect]:
        """A batch failed and its replica continues. Refuse a single request; retry a larger batch in halves."""
        replica = self.replicas.get(name)
        if replica is None or replica.batch != batch:
            return []
        is_alone = len(replica.requests) == 1
        requests = self._taken_from(replica, now)
        if is_alone:
            return [*(_refused(request, "broken", message) for request in requests), *self._serve(now)]
        self._halve([request for request in requests if not request.held])
        return self._serve(now)

    def no_memory(self, name: str, batch: int, message: str, now: int) -> list[Effect]:
        """A batch ran out of memory: lower the largest batch of the replica and retry this one in halves."""
        replica = self.replicas.get(name)
        if replica is None or replica.batch != batch:
            return []
        replica.curve.lower((len(replica.requests) + 1) // 2)
        return self.broke(name, batch, message, now)

    def stood_still(self, late: int, now: int) -> None:
        """This machine was paused for `late` nanoseconds: do not count the pause against the replicas."""
        for replica in self.replicas.values():
            pause = min(late, now - replica.sent)
            replica.sent += pause
            replica.busy += pause

    def tick(self, now: int) -> list[Effect]:
        """Handle the passage of time: expired requests, hung replicas and due batches."""
        effects: list[Effect] = [] if self.replicas else self._give_up(now)
        for lane in self._lanes:
            for request in [one for one in lane.values() if one.due <= now]:
                del lane[request.number]
                effects.append(_expired(request))
        for group in self._groups():
            effects += [_expired(request) for request in group if request.due <= now and not request.over]
        effects += [Replace(replica.name) for replica in self.replicas.values() if self._hangs(replica, now)]
        return effects + self._serve(now)

    def queued(self, number: int) -> bool:
        """Whether a request waits in a lane."""
        return any(number in lane for lane in self._lanes)

    # --- internals ---------------------------------------------------------------------------------------------------

    def _serve(self, now: int) -> list[Effect]:
        """Give each idle replica its best batch, the fastest replica first."""
        if self.is_gathering:
            return []
        effects: list[Effect] = []
        self._ask_at = now + LOOK_EVERY if self.waiting or self.serving else 0
        idle = [replica for replica in self.replicas.values() if not replica.batch and not replica.draining]
        for replica in self._fastest_first(idle):
            batch = self._next_batch(replica, now, effects)
            if batch is not None:
                effects.append(batch)
        if self.ahead and not self._again and self.waiting:
            effects += filter(None, [self._sent_ahead(replica, now) for replica in self.replicas.values()])
        return effects

    def _fastest_first(self, idle: list[Replica]) -> list[Replica]:
        """Sort replicas by the time that they take for a request, with those that their process has already."""
        if len(idle) < 2 or not idle[0].alone:
            return sorted(idle, key=lambda replica: replica.curve.takes(1))
        shared = self._busy_slots()
        takes: dict[str, tuple[float, int]] = {}  # a replica that has not answered yet takes no time
        for replica in idle:
            process = process_of(replica.name)
            shared[process] += 1
            takes[replica.name] = shared[process] * replica.curve.takes(1), shared[process]
        return sorted(idle, key=lambda replica: takes[replica.name])

    def _sent_ahead(self, replica: Replica, now: int) -> Batch | None:
        """Return the batch that this replica gets before it has answered the current one, if there is one."""
        lane, curve = self._lane(now), replica.curve
        is_able = replica.batch and not replica.next and replica.warm and not replica.draining and not replica.alone
        if not is_able or len(lane) <= curve.largest or now > replica.busy + self.ahead:
            return None
        if now < replica.busy - self.ahead:
            self._ask_at = min(self._ask_at, replica.busy - self.ahead)
            return None
        verdict = self._decide(replica, lane, max(now, replica.busy))
        first = next(iter(lane.values()))
        if isinstance(verdict, Wait) or first.due < replica.busy + curve.takes(verdict.count):
            return None
        self._number += 1
        requests = self._taken_by(lane, verdict)
        for request in requests:
            request.held += 1
        numbers = tuple([request.number for request in requests])
        replica.next = Batch(replica.name, self._number, numbers, verdict.padded, ahead=True)
        replica.next_requests = requests
        return replica.next

    def _next_batch(self, replica: Replica, now: int, effects: list[Effect]) -> Batch | None:
        while self._again:
            if self._again[0][0].losses and replica.suspected and any(self._lanes):
                break  # suspects, served one by one, would delay all other requests
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
            del lane[first.number]  # it would be late, and has used no capacity yet
            effects.append(_expired(first))
        if not lane:
            request = self._overdue(now)
            return None if request is None else self._send(replica, [request], 1, now)
        verdict = self._decide(replica, lane, now)
        if isinstance(verdict, Wait):
            if verdict.until:
                self._held = self._held or now
                self._ask_at = min(self._ask_at, verdict.until)
            return None
        self._held = 0
        return self._send(replica, self._taken_by(lane, verdict), verdict.padded, now)

    def _decide(self, replica: Replica, lane: dict[int, Request], now: int) -> Send | Wait:
        """Return the policy's decision for a replica that is idle at that time."""
        first = next(iter(lane.values()))
        return self.policy.decide(
            QueueView(
                now=now,
                count=len(lane),
                curve=replica.curve,
                rate=self._share(replica, now),
                due=first.due,
                held=self._held,
                elsewhere=self._elsewhere(replica, len(lane), now),
                promised=first.came + self.limits.objective if self.limits.objective else 0,
                wait=self.limits.wait,
            )
        )

    def _taken_by(self, lane: dict[int, Request], verdict: Send) -> list[Request]:
        """Take the requests of a batch out of its lane, and fill padding with deferred ones."""
        requests = [lane.pop(number) for number in list(islice(lane, verdict.count))]
        if lane is self._lanes[0]:
            filling = list(islice(self._lanes[1], verdict.padded - verdict.count))
            requests += [self._lanes[1].pop(number) for number in filling]
        return requests

    def _send(self, replica: Replica, requests: list[Request], padded: int, now: int) -> Batch:
        self._number += 1
        for request in requests:
            request.held += 1
        batch = Batch(replica.name, self._number, tuple([request.number for request in requests]), padded)
        self._begins(replica, batch, requests, now)
        return batch

    def _begins(self, replica: Replica, batch: Batch, requests: list[Request], now: int) -> None:
        """Note that a replica serves this batch from now on."""
        replica.batch, replica.requests, replica.sent = batch.number, requests, now
        replica.padded, replica.suspected = batch.padded, requests[0].losses > 0
        replica.busy = int(now + replica.curve.takes(min(len(requests), replica.curve.largest)))

    def _lane(self, now: int) -> dict[int, Request]:
        """Return the lane to serve: the first, unless it is empty or a request in the second has waited too long."""
        first, second = self._lanes
        if second and (not first or next(iter(second.values())).came <= now - WAITS_LONGEST):
            return second
        return first

    def _open(self, now: int) -> list[tuple[Curve, int]]:
        open_ones = [replica for replica in self.replicas.values() if not replica.draining]
        in_time = [(replica.curve, replica.free) for replica in open_ones if not self._is_overdue(replica, now)]
        return in_time or [(replica.curve, replica.free) for replica in open_ones]

    def _overdue(self, now: int, waited: float = 0.0) -> Request | None:
        """Return a request of an overdue replica that has waited for this fraction of its timeout. Only one that no
        other replica serves, and no lost replica served.
        """
        for replica in self.replicas.values():
            if self._is_overdue(replica, now):
                for request in (*replica.requests, *replica.next_requests):
                    is_fresh = request.held == 1 and not request.losses and not request.over
                    if is_fresh and now - request.came >= waited * (request.due - request.came):
                        return request
        return None

    def _is_overdue(self, replica: Replica, now: int) -> bool:
        usual = OVERDUE * (replica.busy - replica.sent)
        return (
            replica.batch > 0
            and not replica.alone
            and now - replica.sent > max(usual, self.limits.objective or OVERDUE_AFTER)
        )

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
        """Estimate when the faster busy replicas would finish the last of `waiting` requests; 0 without such replicas.
        A request served here before then makes room for later ones.
        """
        own = replica.curve.takes(1)
        quicker = [
            other
            for other in self.replicas.values()
            if other.batch and not other.draining and other.busy > now and other.curve.takes(1) < own
        ]
        if not quicker:
            return 0
        if not replica.alone:
            return foreseen(now, waiting - 1, [(other.curve, other.free) for other in quicker])
        busy = self._busy_slots()
        paces = {process_of(other.name): other.curve.takes(1) for other in quicker}
        together = sum(1 / pace for pace in paces.values())
        done = min(pace * (busy[name] + ceil(waiting / (pace * together))) for name, pace in paces.items())
        return max(1, int(now + done - own * busy[process_of(replica.name)]))

    def _busy_slots(self) -> "Counter[str]":
        """Count the requests of each process, which share it: with each one more, all of them are expected to take
        longer by the time of one.
        """
        return Counter(process_of(replica.name) for replica in self.replicas.values() if replica.batch)

    def _share(self, replica: Replica, now: int) -> float:
        """This replica's expected share of the request rate."""
        if len(self.replicas) == 1:
            return self.rate(now)
        paces = [other.curve.pace() for other in self.replicas.values()]
        own = replica.curve.pace()
        return self.rate(now) / (own * sum(1 / pace for pace in paces)) if own and all(paces) else 0.0

    def _count(self, now: int) -> None:
        self._rate = self.rate(now) + 1 / RATE_OVER
        self._came = now

    def _learn_margin(self, request: Request, now: int) -> None:
        """Record the error of an estimate. Short estimates are left out, because they say little about long waits."""
        thought = request.foreseen - request.came
        if thought * self.margin * WORTH_A_LOOK > self.limits.objective:
            if len(self._overruns) == REMEMBERED:
                del self._in_order[bisect_left(self._in_order, self._overruns.popleft())]
            self._overruns.append((now - request.came) / thought)
            insort(self._in_order, self._overruns[-1])

    def _taken_from(self, replica: Replica, now: int) -> list[Request]:
        """Take the requests of the current batch. A replica that has another one serves it from now on."""
        requests, batch, ahead = replica.requests, replica.next, replica.next_requests
        replica.batch, replica.requests, replica.next, replica.next_requests = 0, [], None, []
        if batch is not None:
            self._begins(replica, batch, ahead, now)
        return self._given_back(requests)

    def _given_back(self, requests: list[Request]) -> list[Request]:
        """Note that a replica serves these requests no more. Returns those that are not over."""
        for request in requests:
            request.held -= 1
        return _unfinished(requests)

    def _groups(self) -> list[list[Request]]:
        """Requests that are being served or retried."""
        having = self.replicas.values()
        return [*self._again, *(one.requests for one in having), *(one.next_requests for one in having)]

    def _retry(self, replica: Replica, why: Why, message: str) -> list[Effect]:
        requests = self._given_back(replica.requests)
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

    def _give_up(self, now: int) -> list[Effect]:
        """Refuse the requests that have waited for a replica for `hold`."""
        waiting = [request for lane in self._lanes for request in lane.values()]
        waiting += [request for group in self._again for request in group if not request.over]
        over = [request for request in waiting if max(request.came, self._down) + self.limits.hold <= now]
        for request in over:
            request.over = True
            for lane in self._lanes:
                lane.pop(request.number, None)
        message = f"no replica was ready for {format_duration(self.limits.hold)}"
        return [Refuse(request.number, "unavailable", message, self._starts_in(now)) for request in over]

    def _starts_in(self, now: int) -> int:
        """Estimate when a replica is ready: after the time that the latest one took to start. If there is none, or the
        current start has taken longer, after as much time again.
        """
        lasted = now - self._down
        return self.start_up - lasted if self.start_up > lasted else min(lasted, LONGEST_AWAY)

    def _clears_in(self, now: int) -> int:
        return max(0, foreseen(now, self.waiting, self._open(now)) - now)


def _too_late(delay: int, wanted: int) -> str:
    return f"it would take {delay / MILLISECOND:.0f} ms, which is more than {wanted / MILLISECOND:.0f} ms"


def _unfinished(requests: list[Request]) -> list[Request]:
    """Return the requests that are not over."""
    return [request for request in requests if not request.over]


def _refused(request: Request, why: Why, message: str) -> Refuse:
    request.over = True
    return Refuse(request.number, why, message)


def _expired(request: Request) -> Refuse:
    return _refused(request, "expired", f"not answered within {(request.due - request.came) / SECOND:g} s")


__all__ = ["Batch", "Batcher", "Effect", "Refuse", "Replace", "process_of"]
