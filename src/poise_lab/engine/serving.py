"""Simulates requests in virtual time: a service, or a front with upstreams, with the live state machines and policies.

`ServiceTwin` drives the batcher and the scaler of a gateway; `FrontTwin` drives the router with its learned speeds, the
breakers, the probes and the retry budget of a front. Only the drivers differ: time is a heap of future events, and the
duration of a batch comes from a table instead of a clock. All randomness comes from the seed.

    trial = ServiceTwin(limits, serving, Open(requests), replicas=2)
    stories = trial.run()

An upstream reads prompts one after the other and writes nothing meanwhile; then it does one step for all requests that
have begun, like a server with continuous batching. Requests above its `slots` wait there in order of arrival. A server
with a `cache` reads only the tokens of a prompt that follow the longest prefix that it keeps, and forgets the least
recently used blocks. The first byte of an answer comes when its prompt is read, and its end tells how many were kept.

Open loop: requests arrive at fixed times. Closed loop (`Clients`): each client sends its next request a think time
after an answer or a refusal. Instants and durations are in nanoseconds.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from math import log, sqrt
from random import Random
from typing import Literal, NamedTuple, Protocol

from poise.model.scaling import Announced, ScaleRules
from poise.model.servers import Server, Serving, Speed
from poise.model.serving import Limits
from poise.model.serving_upstreams import Front, Upstream
from poise.model.worldfile import Change, Losses
from poise.policy.replicas import ReplicaPolicy
from poise.units import SECOND
from poise_serve.kernel.batcher import Batch, Batcher, Effect, Refuse, Replace
from poise_serve.kernel.lanes import Line
from poise_serve.kernel.quarantine import LOSSES
from poise_serve.kernel.resilience import Breaker, Health, RetryBudget, is_slow
from poise_serve.kernel.scaler import LOOK_EVERY, Scaler, Seen, with_orders
from poise_serve.model.estimates import Estimates, Known
from poise_serve.model.prefixes import USUAL
from poise_serve.model.routing import Asked, Prompt, RouteView
from poise_serve.policy.batching import Batching
from poise_serve.policy.route import RouterPolicy, lane_of

ANSWERED = ""
"""Reason of a request that was answered."""

CANCELLED = "cancelled"


class Request(NamedTuple):
    """One request. `size` is its duration relative to the usual one, `prompt` and `tokens` are the numbers of tokens
    read and written, and `guess` is the size that a router expects at arrival. Requests with the same `key` should go
    to the same server. `blocks`: names of the blocks of the prompt, `block` tokens each (512 in Mooncake's traces);
    prompts that begin with the same blocks begin with the same tokens.
    """

    at: int
    size: float = 1.0
    prompt: int = 0
    tokens: int = 0
    guess: float = 1.0
    key: str = ""
    blocks: tuple[int, ...] = ()
    block: int = 512


class Story(NamedTuple):
    """The history of a request: when it arrived, when it ended, and the reason if it was not answered."""

    came: int
    over: int
    why: str = ANSWERED

    @property
    def took(self) -> int:
        return self.over - self.came


class Load(Protocol):
    """A source of requests."""

    def begin(self) -> Iterator[Request]:
        """Return the requests that arrive independently of answers, in order of time."""
        ...

    def after(self, now: int) -> Request | None:
        """Return the request that follows the end of another one, if any."""
        ...


class Open:
    """An open loop: these requests, at their arrival times."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests = requests

    def begin(self) -> Iterator[Request]:
        return iter(self._requests)

    def after(self, now: int) -> Request | None:
        return None


class Clients:
    """A closed loop: the clients send `many` requests in total, with a `think` time between an answer and the next."""

    def __init__(self, clients: int, many: int, think: Callable[[], int], draw: Callable[[int], Request]) -> None:
        """Create a source; `draw` makes the request that arrives at an instant."""
        self._clients = clients
        self._left = many
        self._think = think
        self._draw = draw

    def begin(self) -> Iterator[Request]:
        first = min(self._clients, self._left)
        self._left -= first
        return iter(sorted(self._draw(self._think()) for _ in range(first)))

    def after(self, now: int) -> Request | None:
        if not self._left:
            return None
        self._left -= 1
        return self._draw(now + self._think())


class Place:
    """A place for a replica. `there` is false while it is lost. Durations are in nanoseconds: `paid` counts from the
    request for the replica, `ready` is the time in which it could serve, and `worked` the time in which it was busy.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.there = True
        self.paid = self.ready = self.worked = 0


class Trial(ABC):
    """Base of both twins: virtual time, the source of requests, their histories, and replicas that fail and recover."""

    def __init__(
        self,
        serving: Serving,
        load: Load,
        *,
        seed: int = 0,
        losses: Losses | None = None,
        changes: Sequence[Change] = (),
    ) -> None:
        self.now = 0
        self.stories: list[Story] = []
        self.places = [Place(server) for server in serving.servers]
        self._serving = serving
        self._load = load
        self._spread = Random(f"{seed} spread")
        self._hang_up = Random(f"{seed} hang up")
        self._chance = Random(f"{seed} losses")
        self._losses = losses
        self._changes = changes
        self._next: list[tuple[int, int, Callable[[], None]]] = []
        self._foreseen = 0
        self._coming = load.begin()
        self._due = self._asked = 0
        self._open: dict[int, Request] = {}

    def run(self) -> list[Story]:
        """Run until every request is over; return the stories in the order in which they ended."""
        by_name = {place.server.name: place for place in self.places}
        for change in reversed(self._changes):
            by_name[change.node].there = not change.there  # a place whose first change is to join is absent before it
        for change in self._changes:
            self._at(change.at, partial(self._comes if change.there else self._goes, by_name[change.node]))
        if self._losses is not None:
            for place in self.places:
                self._lose_later(place, self._losses)
        self._start()
        self._ask_next()
        while self._due or self._open:
            self.now, _, happens = heappop(self._next)
            happens()
        self._end()
        return self.stories

    def every(self, interval: int, happens: Callable[[], None]) -> None:
        """Call `happens` at this interval, while requests are open or due."""

        def again() -> None:
            happens()
            self._at(self.now + interval, again)

        self._at(self.now + interval, again)

    # --- specific to each twin
    # -------------------------------------------------------------------------------------------

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...

    @abstractmethod
    def _ask(self, number: int, request: Request) -> None: ...

    @abstractmethod
    def _cancel(self, number: int) -> None: ...

    @abstractmethod
    def _goes(self, place: Place, noticed: int = 0) -> None:
        """Fail a place; the failure is noticed `noticed` nanoseconds later."""

    @abstractmethod
    def _comes(self, place: Place) -> None: ...

    # --- shared by both twins
    # --------------------------------------------------------------------------------------------

    def _at(self, instant: int, happens: Callable[[], None]) -> None:
        """Schedule an event. Events at the same instant happen in the order in which they were scheduled."""
        self._foreseen += 1
        heappush(self._next, (max(self.now, instant), self._foreseen, happens))

    def _ask_next(self) -> None:
        request = next(self._coming, None)
        if request is not None:
            self._due += 1
            self._at(request.at, partial(self._arrives, request, True))

    def _arrives(self, request: Request, others: bool) -> None:
        self._due -= 1
        if others:
            self._ask_next()
        number = self._asked = self._asked + 1
        self._open[number] = request
        hang_up = self._serving.hang_up
        if hang_up is not None and self._hang_up.random() < hang_up.share:
            self._at(self.now + hang_up.after, partial(self._hangs_up, number))
        self._ask(number, request)

    def _hangs_up(self, number: int) -> None:
        if number in self._open:
            self._cancel(number)
            self._over(number, CANCELLED)

    def _over(self, number: int, why: str = ANSWERED) -> None:
        request = self._open.pop(number, None)
        if request is None:
            return
        self.stories.append(Story(request.at, self.now, why))
        following = self._load.after(self.now)
        if following is not None:
            self._due += 1
            self._at(following.at, partial(self._arrives, following, False))

    def _varied(self, takes: float) -> int:
        """Return a random duration: log-normal with the same mean."""
        if self._serving.spread:
            square = log(1 + self._serving.spread**2)
            takes *= self._spread.lognormvariate(-square / 2, sqrt(square))
        return max(1, round(takes))

    def _lose_later(self, place: Place, losses: Losses) -> None:
        def lose() -> None:
            self._goes(place, losses.detected)
            self._at(self.now + round(self._chance.expovariate(1 / losses.mttr)), back)

        def back() -> None:
            self._comes(place)
            self._lose_later(place, losses)

        self._at(self.now + round(self._chance.expovariate(1 / losses.mtbf)), lose)


# --- a service -------------------------------------------------------------------------------------------------------


class _Job:
    """A replica of a service. `ready` and `sent` are the instants at which it became ready and got its batch; -1 if it
    has not. `over` means that it answers no more requests.
    """

    def __init__(self, name: str, place: Place, now: int) -> None:
        self.name = name
        self.place = place
        self.asked = now
        self.ready = -1
        self.sent = -1
        self.leaving = self.over = False


class ServiceTwin(Trial):
    """One service in virtual time: it simulates the service code of a gateway. It has a fixed number of `replicas`, or
    the number that the `scaler` chooses within the `rules`; the initial ones are ready.
    """

    name = "service"

    def __init__(
        self,
        limits: Limits,
        serving: Serving,
        load: Load,
        *,
        replicas: int = 1,
        rules: ScaleRules | None = None,
        window: int = 10 * SECOND,
        scaler: ReplicaPolicy | None = None,
        announced: Sequence[Announced] = (),
        batching: Batching | None = None,
        seed: int = 0,
        losses: Losses | None = None,
        changes: Sequence[Change] = (),
    ) -> None:
        """`announced`: known future load, in nanoseconds of virtual time."""
        super().__init__(serving, load, seed=seed, losses=losses, changes=changes)
        self.batcher = Batcher(limits, batching)
        self.said: list[tuple[int, str]] = []
        """Instants and reasons of changes to the number of replicas."""
        self.ordered = 0
        """Replicas that rules of a control plane add to the target number, within its limits; negative: remove."""
        self._replicas = replicas
        self._rules = rules
        self._scaler = None
        if rules is not None and scaler is not None:
            self._scaler = Scaler(
                self,
                rules,
                window,
                scaler,
                lambda line: self.said.append((self.now, line)),
                0,
                announced=announced,
            )
        self.seen = Seen()
        self._jobs: list[_Job] = []
        self._by_name: dict[str, _Job] = {}  # jobs that the batcher knows
        self._started, self._start_up = 0, serving.start
        self._timer = self._timer_at = 0

    @property
    def replicas(self) -> int:
        return len(self._by_name)

    @property
    def started(self) -> int:
        """Number of requested replicas, ready or not."""
        return len([job for job in self._jobs if not job.leaving])

    def _start(self) -> None:
        self._look()

    def _end(self) -> None:
        for job in list(self._jobs):
            self._stop(job)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _ask(self, number: int, request: Request) -> None:
        self.seen.ask(len(self._open))
        self._do(self.batcher.arrive(number, self.now))

    def _cancel(self, number: int) -> None:
        self.batcher.cancel(number)

    def _do(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Batch):
                self._send(effect)
            elif isinstance(effect, Refuse):
                came = self._open[effect.request].at
                if came >= self.batcher.started(self.now):
                    self.seen.refuse(effect.why, max(effect.foreseen, self.now - came))
                self._over(effect.request, effect.why)
            elif isinstance(effect, Replace):
                self._lose(self._by_name[effect.replica])
        self._arm()

    def _send(self, batch: Batch) -> None:
        job = self._by_name[batch.replica]
        requests = [self._open[number] for number in batch.requests]
        asked = [(request.size, request.prompt, request.tokens) for request in requests]
        took = self._varied(job.place.server.speed.batch_takes(asked, batch.padded))
        job.sent = self.now
        self._at(self.now + took, partial(self._answered, job, batch, took))

    def _answered(self, job: _Job, batch: Batch, took: int) -> None:
        if job.over:
            return
        job.place.worked += took
        job.sent = -1
        told, effects = self.batcher.answered(job.name, batch.number, took, batch.padded, self.now)
        self.batcher.written(self.now)
        self._do(effects)
        self.seen.busy += took
        for number in told:
            if number in self._open:
                came = self._open[number].at
                if came >= self.batcher.started(self.now):
                    self.seen.took.append(self.now - came)
                self._over(number)
        if job.leaving:
            self._stop(job)

    def _arm(self) -> None:
        """Set a timer for the batcher's next instant, unless an earlier timer is set."""
        due = self.batcher.wakeup()
        if due is None or self.now < self._timer_at <= due:
            return
        self._timer_at = max(self.now, due)
        self._timer += 1
        self._at(self._timer_at, partial(self._ticks, self._timer))

    def _ticks(self, timer: int) -> None:
        if timer == self._timer:
            self._timer_at = 0
            self._do(self.batcher.tick(self.now))

    # --- replicas ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Start or drain replicas to reach the wanted number, as far as there are places."""
        wanted = self._replicas if self._scaler is None else self._scaler.look(self.now, self._start_up)
        wanted = with_orders(wanted, self.ordered, self._rules)
        taken = {job.place for job in self._jobs}
        free = [place for place in self.places if place.there and place not in taken]
        for place in free[: max(0, wanted - self.started)]:
            self._started += 1
            job = _Job(f"{place.server.name}.{self._started}", place, self.now)
            self._jobs.append(job)
            self._at(self.now + (self._serving.start if self.now else 0), partial(self._is_ready, job))
        for job in [job for job in self._jobs if not job.leaving][wanted:]:
            job.leaving = True
            self.batcher.drain(job.name)
            if job.sent < 0:
                self._stop(job)
        self._at(self.now + LOOK_EVERY, self._look)

    def _is_ready(self, job: _Job) -> None:
        if job.over:
            return
        job.ready = self.now
        if job.asked:  # the initial ones are ready at once, which says nothing of others
            self._start_up = self.now - job.asked
        self._by_name[job.name] = job
        self._do(self.batcher.up(job.name, self.now))

    def _stop(self, job: _Job) -> None:
        """Stop a replica: its cost ends, and other replicas serve its requests."""
        if job not in self._jobs:
            return
        self._silence(job)
        self._jobs.remove(job)
        if self._by_name.pop(job.name, None) is not None:
            self._do(self.batcher.down(job.name, self.now))

    def _lose(self, job: _Job, noticed: int = 0) -> None:
        self._silence(job)
        self._at(self.now + noticed, partial(self._stop, job))

    def _silence(self, job: _Job) -> None:
        if job.over:
            return
        job.over = True
        job.place.paid += self.now - job.asked
        if job.ready >= 0:
            job.place.ready += self.now - job.ready
        if job.sent >= 0:
            job.place.worked += self.now - job.sent

    def _goes(self, place: Place, noticed: int = 0) -> None:
        place.there = False
        for job in [job for job in self._jobs if job.place is place and not job.over]:
            self._lose(job, noticed)

    def _comes(self, place: Place) -> None:
        place.there = True


# --- a front before upstreams ----------------------------------------------------------------------------------------


class _Member:
    """An upstream: its state as seen by the front, and the server itself."""

    def __init__(self, told: Upstream, place: Place, front: Front) -> None:
        self.told = told
        self.place = place
        self.breaker = Breaker(front.ejection)
        self.health = Health(front.health, 0)
        self.health.on_probe(0, went_well=place.there)
        self.running = 0
        self.waiting: deque[int] = deque()
        self.to_read: deque[int] = deque()
        self.reading = -1  # instant at which reading the current prompt ends; -1 if none
        self.writing: list[tuple[float, int]] = []  # the step at which each request completes
        self.done = 0.0  # number of steps completed
        self.since = 0
        self.plan = 0
        self.kept: dict[int, None] = {}  # blocks of prompts, in order of last use

    @property
    def name(self) -> str:
        return self.told.name

    @property
    def speed(self) -> Speed:
        return self.place.server.speed

    def is_open(self, now: int) -> bool:
        return self.health.state == "healthy" and self.breaker.is_open_to(now)

    def has_room(self, now: int) -> bool:
        return self.running < self.told.limit and self.is_open(now)

    @property
    def begun(self) -> int:
        return len(self.to_read) + len(self.writing)

    def serve(self, now: int) -> None:
        """Advance the server's progress to now."""
        if self.begun:
            self.place.worked += now - self.since
        if self.writing and self.reading < 0:
            self.done += (now - self.since) / self.speed.steps_take(len(self.writing))
        self.since = now

    def to_be_read(self, request: Request) -> int:
        """Return the number of tokens of a prompt that the server does not keep; at least one."""
        kept = next((at for at, one in enumerate(request.blocks) if one not in self.kept), len(request.blocks))
        return max(min(1, request.prompt), request.prompt - kept * request.block)

    def keep(self, request: Request) -> None:
        """Keep a prompt that was read, as far as there is room."""
        for one in reversed(request.blocks):  # the last block is the first to be forgotten
            self.kept.pop(one, None)
            self.kept[one] = None
        while len(self.kept) * request.block > self.place.server.cache:
            del self.kept[next(iter(self.kept))]

    def forget(self, number: int) -> None:
        if self.to_read and self.to_read[0] == number:
            self.reading = -1
        for line in (self.waiting, self.to_read):
            if number in line:
                line.remove(number)
        self.writing = [one for one in self.writing if one[1] != number]
        heapify(self.writing)


class _Waiter(NamedTuple):
    """A request that waits for an upstream."""

    number: int
    turn: int
    asked: Asked


class SentTo(NamedTuple):
    """The upstream that serves a request, and the instant at which it was sent there."""

    member: _Member
    turn: int
    at: int
    asked: Asked


Outcome = Literal["answered", "failed", "neither"]


class FrontTwin(Trial):
    """Upstreams behind a front: simulates `gateway.pool` and `gateway.upstreams` in virtual time. The server of the
    same name in the world determines the speed of each upstream.
    """

    def __init__(
        self,
        front: Front,
        serving: Serving,
        load: Load,
        router: RouterPolicy,
        *,
        seed: int = 0,
        losses: Losses | None = None,
        changes: Sequence[Change] = (),
    ) -> None:
        super().__init__(serving, load, seed=seed, losses=losses, changes=changes)
        by_name = {place.server.name: place for place in self.places}
        self.places = [by_name[told.name] for told in front.upstreams]
        self._front = front
        self._router = router
        self._estimates = Estimates()
        self._budget = RetryBudget(front.retries)
        self._members: dict[str, _Member] = {}
        self._turn = 0
        self._line: Line[_Waiter] = Line()
        self._sent: dict[int, SentTo] = {}
        self._tried: dict[int, set[str]] = {}
        self._cached: dict[int, float] = {}  # part of each prompt that its server had kept
        self.keyed = 0
        """Number of requests with a key."""
        self._lost: dict[int, int] = {}  # number of servers lost while they served the request

    def _start(self) -> None:
        for told, place in zip(self._front.upstreams, self.places, strict=True):
            self._members[told.name] = _Member(told, place, self._front)
            self._estimates.add(told.name, 0, keeps=USUAL if told.cache is None else float(told.cache))
        self._at(self._front.health.every, self._probe)

    def _end(self) -> None:
        for place in self.places:
            place.paid = place.ready = self.now

    def _probe(self) -> None:
        for member in self._members.values():
            member.health.on_probe(self.now, went_well=member.place.there)
        self._wake()
        self._at(self.now + self._front.health.every, self._probe)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _ask(self, number: int, request: Request) -> None:
        self._budget.on_request(self.now)
        self.keyed += bool(request.key)
        self._tried[number] = set()
        self._at(self.now + self._front.timeout, partial(self._expires, number))
        self._admit(number)

    def _prompt(self, request: Request) -> Prompt | None:
        """Return the prompt as the router sees it: without the length of the answer."""
        if not (request.prompt and request.tokens):
            return None
        return Prompt(float(request.prompt), blocks=request.blocks, block=float(request.block), streams=True)

    def _admit(self, number: int) -> None:
        """Send a request or put it in the queue. A server that was tried before is used again only if no other one is
        open.
        """
        self._turn += 1
        request, front = self._open[number], self._front
        due = request.at + min(front.timeout, front.objective or front.timeout)
        asked = Asked(size=request.guess, key=request.key, due=due, prompt=self._prompt(request))
        waiter = _Waiter(number, self._turn, asked)
        if not self._line and self._take(waiter, self._tried[number]):
            return
        if len(self._line) >= front.queue:
            self._over(number, "overloaded")
        else:
            self._line.lanes["first"].append(waiter)

    def _take(self, waiter: _Waiter, tried: Collection[str] = ()) -> bool:
        """Return whether the request need not wait: it is sent, or refused because no upstream is open."""
        number, now = waiter.number, self.now
        members = [member for member in self._members.values() if member.is_open(now)]
        if not members:
            self._over(number, "unavailable")
            return True
        members = [member for member in members if member.name not in tried] or members
        if not any(member.has_room(now) for member in members):
            return False
        chosen = self._router.decide(self._view(waiter, members)).replica
        if not chosen:
            return False
        member = self._members[chosen]
        member.running += 1
        member.breaker.on_sent()
        self._estimates.sent(chosen, str(waiter.turn), waiter.asked, now)
        self._sent[number] = SentTo(member, waiter.turn, now, waiter.asked)
        self._tried[number].add(chosen)
        if member.place.there:
            member.serve(now)
            member.waiting.append(number)
            self._go_on(member)
        else:
            self._at(now, partial(self._fails, number, was_sent=False))
        return True

    def _view(self, waiter: _Waiter, members: Iterable[_Member]) -> RouteView:
        known = [Known(one.name, one.told.weight, one.running, one.has_room(self.now)) for one in members]
        return self._estimates.view(waiter.asked, known, waiter.turn, self.now)

    def _wake(self) -> None:
        while self._line:
            lane = self._line.next()
            waiter = self._line.lanes[lane][0]
            if waiter.number in self._open:
                if lane == "first" and self._is_late(waiter):
                    self._line.defer()
                    continue
                if not self._take(waiter):
                    return
            self._line.went(lane)

    def _is_late(self, waiter: _Waiter) -> bool:
        """Return whether every upstream with room is forecast to answer too late."""
        room = [member for member in self._members.values() if member.has_room(self.now)]
        return bool(room) and lane_of(self._view(waiter, room)) == "deferred"

    def _give_back(self, number: int, outcome: Outcome) -> SentTo:
        sent, cached = self._sent.pop(number), self._cached.pop(number, None)
        member, now = sent.member, self.now
        member.running -= 1
        others = [
            self._estimates.lasting(other.name, sent.asked, now)
            for other in self._members.values()
            if other is not member
        ]
        slow = is_slow(now - sent.at, [each for each in others if each], self._front.ejection)
        if outcome == "answered":
            wrote = float(self._open[number].tokens)
            self._estimates.answered(member.name, str(sent.turn), now, wrote=wrote, cached=cached)
        else:
            self._estimates.dropped(member.name, str(sent.turn), now)
        if outcome == "failed" or slow:
            others_open = any(other is not member and other.is_open(now) for other in self._members.values())
            if member.breaker.on_failure(now, may_eject=others_open):
                self._at(member.breaker.until, self._wake)
        elif outcome == "neither":
            member.breaker.on_neither()
        else:
            member.breaker.on_success(now)
        return sent

    def _fails(self, number: int, was_sent: bool) -> None:
        """Handle a lost connection. Retry on another upstream if the budget allows it, at most once if the request
        `was_sent`.
        """
        if number not in self._sent:
            return
        self._lost[number] = self._lost.get(number, 0) + was_sent
        may_again = len(self._tried[number]) <= self._front.retries.most and self._lost[number] < LOSSES
        again = may_again and self._budget.take(self.now)
        self._give_back(number, "failed")
        self._wake()
        if again:
            self._admit(number)
        else:
            self._over(number, "connection")

    def _expires(self, number: int) -> None:
        if number in self._open:
            self._drop(number, "failed")
            self._over(number, "timeout")
            self._wake()

    def _cancel(self, number: int) -> None:
        self._drop(number, "neither")

    def _drop(self, number: int, outcome: Outcome) -> None:
        if number in self._sent:
            member = self._give_back(number, outcome).member
            member.serve(self.now)
            member.forget(number)
            self._go_on(member)
        else:
            for waiter in [one for lane in self._line.lanes.values() for one in lane if one.number == number]:
                self._line.remove(waiter)

    # --- servers -----------------------------------------------------------------------------------------------------

    def _go_on(self, member: _Member) -> None:
        """Start requests that have a slot, and schedule the next completion."""
        slots = member.place.server.slots
        while member.waiting and (not slots or member.begun < slots):
            number = member.waiting.popleft()
            if member.speed.reading_takes(self._open[number].prompt):
                member.to_read.append(number)
            else:
                self._begins(member, number)
        member.plan += 1
        if member.to_read:
            if member.reading < 0:
                takes = member.speed.reading_takes(member.to_be_read(self._open[member.to_read[0]]))
                member.reading = self.now + self._varied(takes)
            self._at(member.reading, partial(self._has_read, member, member.plan))
        elif member.writing:
            left = max(0.0, member.writing[0][0] - member.done) * member.speed.steps_take(len(member.writing))
            self._at(self.now + max(1, round(left)), partial(self._has_written, member, member.plan))

    def _begins(self, member: _Member, number: int) -> None:
        """Begin to write an answer."""
        request, sent = self._open[number], self._sent[number]
        self._estimates.began(member.name, str(sent.turn), self.now)
        steps = member.speed.steps(request.size, request.tokens)
        varied = self._varied(steps * SECOND) / SECOND if self._serving.spread else steps
        heappush(member.writing, (member.done + varied, number))

    def _has_read(self, member: _Member, plan: int) -> None:
        if plan != member.plan:
            return
        member.serve(self.now)
        member.reading = -1
        number = member.to_read.popleft()
        request = self._open[number]
        self._cached[number] = 1.0 - member.to_be_read(request) / request.prompt
        member.keep(request)
        self._begins(member, number)
        self._go_on(member)

    def _has_written(self, member: _Member, plan: int) -> None:
        if plan != member.plan:
            return
        member.serve(self.now)
        member.done, number = heappop(member.writing)
        self._go_on(member)
        self._give_back(number, "answered")
        self._over(number)
        self._wake()

    def _goes(self, place: Place, noticed: int = 0) -> None:
        place.there = False
        member = self._members[place.server.name]
        member.serve(self.now)
        held = [*member.waiting, *member.to_read, *(number for _, number in member.writing)]
        for number in held:
            member.forget(number)
            self._at(self.now + noticed, partial(self._fails, number, was_sent=True))
        member.plan += 1

    def _comes(self, place: Place) -> None:
        def is_there() -> None:
            place.there = True
            member = self._members[place.server.name]
            member.since = self.now
            member.kept.clear()

        self._at(self.now + self._serving.start, is_there)


__all__ = [
    "ANSWERED", "CANCELLED", "Clients", "FrontTwin", "Load", "Open", "Place", "Request", "ServiceTwin", "Story",
    "Trial",
]  # fmt: skip
