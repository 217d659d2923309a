"""The front's view of its upstreams: their models, their free capacity, and waiting requests.

A request takes a place at an upstream and gives it back with its outcome. While all open upstreams are at their
concurrency limit, it waits for its model in one of two lanes: requests that can still meet their deadline go first, in
order of arrival; the others, and those that the client marked as deferred, go to the deferred lane, which does not
starve.

While no upstream of the model is up, requests also wait, each for at most `hold`, because servers restart, and refused
clients would only retry. Then they are refused, with the time to retry after. They are refused at once if no upstream
can be open in time. Requests that wait for room, and those that wait until an upstream is up, have separate queues of
the same length. In a full queue, the client with the most requests loses its newest one.

The upstreams may change while requests run. A removed one, and one that is drained, gets no more requests; those that
it has are answered. Two upstreams with one name are one upstream that was changed.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from math import ceil, log2
from typing import Any, NamedTuple

import msgspec

from poise.model.serving_upstreams import Front, Upstream
from poise.units import MILLISECOND, MINUTE, SECOND, format_duration
from poise_serve.kernel.lanes import Line, gives_way
from poise_serve.kernel.resilience import AT_FIRST, Breaker, Concurrency, Health, is_slow
from poise_serve.metrics import Metrics
from poise_serve.model.changes import UpstreamReport
from poise_serve.model.estimates import Estimates, Known
from poise_serve.model.news import Alive, Began, Ejected, Ended, Joined, News, Outcome, Rests, Sent
from poise_serve.model.prefixes import USUAL, Prefixes
from poise_serve.model.routing import Asked, RouteView
from poise_serve.openai import SOME_HAVE, Question, Refused, no_such_route, unknown_model
from poise_serve.peers import Peers
from poise_serve.policy.route import DEFAULT_ROUTER, Lane, lane_of, router_named

Choose = Callable[[RouteView], str]
"""A router: returns the name of an open replica for a request; empty to let it wait."""


def chooser(front: Front) -> Choose:
    """Return the router of a front."""
    router = router_named(front.router or DEFAULT_ROUTER)
    return lambda view: router.decide(view).replica


LACKS = 5 * MINUTE
"""Nanoseconds after which a route that an upstream did not have is tried there again."""

LONGEST_AWAY = 60
"""Maximum Retry-After in seconds: longer estimates are rarely right."""


class Member:
    """One upstream and its state."""

    def __init__(self, told: Upstream, front: Front, metrics: Metrics, now: int) -> None:
        self._gauge, self._ejected = metrics.running.labels(told.name), metrics.ejected.labels(told.name)
        self._limit, self._p99 = metrics.limit.labels(told.name), metrics.p99.labels(told.name)
        self.running = 0
        self.is_draining = False
        """Whether an operator lets it finish its requests, and sends it no more."""
        self._begin(told, front, now)

    def _begin(self, told: Upstream, front: Front, now: int) -> None:
        """Start to use a server, of which nothing is known yet."""
        self.told = told
        self.breaker = Breaker(front.ejection)
        self.health = Health(front.health, now)
        self.concurrency = None if told.concurrency is None else Concurrency(told.concurrency, told.limit, now)
        self.probed = ""
        """Why the latest probe has failed; empty if it has not."""
        self._limit.set(self.limit)
        self.others = 0
        """Requests that other gateways have in flight there."""
        self.resting = 0
        self.models: dict[str, Any] = {name: model_of(name, told.name) for name in told.models}
        self.lacking: dict[str, int] = {}
        """Routes that it did not have, and until when it is not asked for them again."""
        self.having: dict[str, str] = {}
        """Routes of `SOME_HAVE` that it has answered, each with a model."""

    def change(self, told: Upstream, front: Front, now: int) -> None:
        """Apply new settings. At another URL it is a new server; at the same one, its state stays."""
        before = self.told
        if told.url != before.url:
            self._begin(told, front, now)
            return
        self.told = told
        self.breaker.rules, self.health.rules = front.ejection, front.health
        if (told.concurrency, told.limit) != (before.concurrency, before.limit):
            self.concurrency = None if told.concurrency is None else Concurrency(told.concurrency, told.limit, now)
            self._limit.set(self.limit)
        if told.models != before.models and told.models:
            self.models = {name: model_of(name, told.name) for name in told.models}

    @property
    def name(self) -> str:
        return self.told.name

    @property
    def limit(self) -> int:
        """Current maximum number of concurrent requests."""
        return self.told.limit if self.concurrency is None else self.concurrency.limit

    def is_open(self, now: int) -> bool:
        """Whether it may get requests, if it has room."""
        is_well = self.health.state == "healthy" and now >= self.resting and self.breaker.is_open_to(now)
        return is_well and not self.is_draining

    def has_room(self, now: int) -> bool:
        return self.outstanding < self.health.may_have(now, self.limit) and self.is_open(now)

    @property
    def outstanding(self) -> int:
        """Requests that all gateways have in flight there."""
        return self.running + self.others

    def add(self, requests: int) -> None:
        self.running += requests
        self._gauge.set(self.running)
        if self.concurrency is not None:
            self.concurrency.on_sent(self.outstanding)

    def follow(self, took: int, now: int, *, answered: bool) -> None:
        """Adapt the concurrency limit to the time of a request, if it is adaptive."""
        if self.concurrency is not None:
            self.concurrency.on_over(took, now, answered=answered)
            self._limit.set(self.limit)
            self._p99.set(self.concurrency.p99 / SECOND)

    def report(self, now: int, held: int, *, is_leaving: bool) -> UpstreamReport:
        state = self.why_not(now) if not self.is_open(now) else "healthy"
        return UpstreamReport(
            name=self.name,
            url=self.told.url,
            state="leaving" if is_leaving else state,
            models=tuple(self.models),
            running=self.running,
            limit=self.limit,
            tier=self.told.tier,
            held=held,
        )

    def tell(self) -> None:
        """Set the metric that shows whether it is ejected."""
        self._ejected.set(self.breaker.is_ejected)

    def why_so_few(self) -> str:
        """Explain why the limit differs from the configured one; empty if it does not."""
        if self.concurrency is None or self.told.concurrency is None or self.limit == self.told.limit:
            return ""
        seen, aimed_at = format_duration(self.concurrency.p99), format_duration(self.told.concurrency.target)
        return f"`{self.name}` may have {self.limit}, since its P99 was {seen} and {aimed_at} is aimed at"

    def why_not(self, now: int) -> str:
        if self.is_draining:
            return "draining"
        if self.health.state != "healthy":
            return self.health.state
        return "asked us to wait" if now < self.resting else "ejected after it failed"

    def why_in_full(self, now: int) -> str:
        """Return why it gets no requests, with the reason of its probe."""
        why = self.why_not(now)
        return f"{why} ({self.probed})" if self.probed and why == self.health.state else why


class Place(NamedTuple):
    """A request at an upstream."""

    member: Member
    question: Question
    asked: Asked
    turn: int
    sent: int


class _Heard(NamedTuple):
    """A request of another gateway, and when this one heard that it was sent."""

    server: str
    at: int


class _Waiter(msgspec.Struct, eq=False):
    """A request that waits. `hold`: nanoseconds that it may wait while no upstream is up; `is_counted`: it has waited
    for that.
    """

    turn: int
    asked: Asked
    question: Question
    place: "asyncio.Future[Place]"
    client: str
    came: int
    hold: int
    is_counted: bool = False


_Key = tuple[str, str]
"""A model, and the route if not all servers have it: requests for it must not delay others for the model."""


class Pool:
    """All upstreams of a front."""

    def __init__(
        self,
        front: Front,
        choose: Choose,
        metrics: Metrics,
        now: Callable[[], int],
        own: Collection[str] = (),
        peers: Peers | None = None,
    ) -> None:
        """`own`: models that are served without an upstream. `peers`: other gateways before the same upstreams."""
        self._own = own
        self._peers = peers
        self._flying: dict[int, Sent] = {}
        self._theirs: dict[tuple[int, int], _Heard] = {}  # by gateway and turn
        if peers is not None:
            peers.in_flight = lambda: list(self._flying)
            peers.known.append(self._known)
            peers.heard.append(self._hear)
            peers.gone.append(lambda gateway: self._forget(gateway, ()))
        self._front = front
        self.choose = choose
        self._metrics = metrics
        self._now = now
        self._turn = 0
        self._waiting: dict[_Key, Line[_Waiter]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._ending: asyncio.TimerHandle | None = None
        self._outages: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self.on_held: Callable[[], None] = lambda: None
        """Called when requests begin to wait until an upstream is up."""
        self.members = [Member(told, front, metrics, now()) for told in front.upstreams]
        self._estimates = Estimates()
        for member in self.members:
            self._add(member, now())
        self._by_name = {member.name: member for member in self.members}

    def _add(self, member: Member, now: int) -> None:
        """Begin to estimate an upstream."""
        cache = member.told.cache
        self._estimates.add(member.name, now, keeps=USUAL if cache is None else float(cache))
        self._metrics.healthy.labels(member.name).set(0)

    def change(self, front: Front, upstreams: Sequence[Upstream]) -> list[Member]:
        """Use these settings, and at least these upstreams. Returns the members to probe now: they are new, or at
        another URL.
        """
        now, self._front = self._now(), front
        begun = []
        for told in upstreams:
            member = self._by_name.get(told.name)
            if member is None:
                member = self._by_name[told.name] = Member(told, front, self._metrics, now)
                self._add(member, now)
                begun.append(member)
            else:
                if told.url != member.told.url:
                    begun.append(member)
                if told.cache is not None and told.cache != member.told.cache:
                    self.prefixes(told.name).become(float(told.cache))
                member.change(told, front, now)
            if member not in self.members:  # new, or removed and not finished yet
                self.members.append(member)
        self.wake()
        return begun

    def keep(self, names: Collection[str]) -> None:
        """Send no more requests to upstreams with other names."""
        gone = [member for member in self.members if member.name not in names]
        self.members = [member for member in self.members if member.name in names]
        if self._front.discover:
            self._remember(gone)
        for member in gone:
            if not member.running:
                self._leave(member)
        self.wake()

    def states(self) -> list[UpstreamReport]:
        """Report all upstreams, and removed ones that still answer requests."""
        now, held = self._now(), self._held()
        return [
            member.report(now, held[member.name], is_leaving=member not in self.members)
            for member in self._by_name.values()
        ]

    def awaited(self) -> list[Member]:
        """Return the upstreams that are not healthy, and for which requests wait."""
        held = self._held()
        return [member for member in self.members if held[member.name] and member.health.state != "healthy"]

    def _held(self) -> "Counter[str]":
        """Count, by upstream, the requests that wait until it, or another one with the model, is up."""
        held: Counter[str] = Counter()
        for line in self._waiting.values():
            if line.since:
                with contextlib.suppress(Refused):
                    for member in self._serving(next(iter(line)).question):
                        held[member.name] += len(line)
        return held

    def came_up(self, member: Member) -> None:
        """Serve the requests that wait, as the upstream may have more of them (`Health.may_have`)."""
        for seconds in range(1, 1 + ceil(log2(max(1, member.limit / AT_FIRST)))):
            self._wake_in(seconds * SECOND)

    def _remember(self, gone: Iterable[Member]) -> None:
        """Remember for a while which models the removed upstreams had: another one may be found soon."""
        now = self._now()
        self._left = {model: until for model, until in self._left.items() if until > now}
        self._left |= {model: now + self._front.hold for member in gone for model in member.models}

    def drain(self, name: str, *, draining: bool) -> None:
        """Send no more requests to an upstream, or send it requests again. Unknown names have no effect."""
        if (member := self._by_name.get(name)) is not None:
            member.is_draining = draining
            self.wake()

    def _leave(self, member: Member) -> None:
        """Drop a removed upstream that has answered all its requests."""
        self._theirs = {known: heard for known, heard in self._theirs.items() if heard.server != member.name}
        del self._by_name[member.name]
        self._estimates.remove(member.name)
        self._metrics.forget(member.name)

    def models(self) -> dict[str, Any]:
        """Models for `/v1/models`, each as described by the first upstream that has it."""
        made: dict[str, Any] = {}
        for member in self.members:
            for name, model in member.models.items():
                made.setdefault(name, model)
        return made

    def serving(self, model: str, path: str = "") -> list[Member]:
        """Return the upstreams of a model that have this route. While none has the model, but one may have it that is
        not up, return those of unknown models. Raises `Refused` if no upstream can have the model.
        """
        found = [member for member in self.members if model in member.models]
        if path in SOME_HAVE and found:
            now = self._now()
            having = [member for member in found if now >= member.lacking.get(path, 0)]
            if not having:
                others = [(one.name, one.having[path]) for one in self.members if path in one.having]
                raise no_such_route(path, model, [f"`{member.name}`" for member in found], others)
            return having
        if found:
            return found
        silent = [member for member in self.members if not member.models]
        if not (
            (silent and (len(silent) == len(self.members) or any(one.health.state == "starting" for one in silent)))
            or (self._front.discover and not self.members)
            or self._left.get(model, 0) > self._now()
        ):
            raise unknown_model(model, [*self._own, *self.models()])
        return silent

    async def admit(
        self,
        question: Question,
        due: int,
        tried: Collection[str] = (),
        *,
        deferred: bool = False,
        client: str = "",
        may_hold: bool = True,
    ) -> Place:
        """Wait for a place for this request. Raises `Refused` if no upstream is up in time, or the queue is full.
        Upstreams in `tried` are used again only if no other is open. `deferred`: put it in the deferred lane. Without
        `may_hold`, it does not wait while no upstream is up.
        """
        began = self._now()
        self._turn += 1
        asked = Asked(size=question.size, key=question.key, due=due, prompt=question.prompt)
        place = None if _key_of(question) in self._waiting else self._take(asked, question, self._turn, tried)
        if place is None:
            hold = self._front.hold if may_hold else 0
            place = await self._wait(asked, question, "deferred" if deferred else "first", client, hold)
        self._metrics.routing.observe((self._now() - began) / MILLISECOND)
        return place

    def began(self, place: Place) -> None:
        """Record the first byte of an answer that streams."""
        self._estimates.began(place.member.name, str(place.turn), self._now())
        if self._peers is not None:
            self._peers.tell(Began(place.turn))

    def give_back(
        self, place: Place, outcome: Outcome, held: int, *, wrote: float = 0.0, cached: float | None = None
    ) -> None:
        """End a request at this upstream. `held`: nanoseconds during which its client did not read. `wrote` and
        `cached` are as in `Estimates.answered`. A request that took far too long counts as a failure even if its client
        disconnected, so that short client timeouts do not hide a hung upstream.
        """
        now, member = self._now(), place.member
        self._flying.pop(place.turn, None)
        took = now - place.sent - held
        is_failure = outcome == "failed" or (member in self.members and self._was_slow(place, took, now))
        if self._peers is not None:
            self._peers.tell(Ended(place.turn, outcome, is_failure, took, wrote, cached))
        member.add(-1)
        if member not in self.members:  # it was removed
            self._estimates.dropped(member.name, str(place.turn), now)
            if not member.running:
                self._leave(member)
            return
        if outcome == "answered":
            self._estimates.answered(member.name, str(place.turn), now, held, wrote=wrote, cached=cached)
        else:
            self._estimates.dropped(member.name, str(place.turn), now)
        self._judge(member, outcome, took, now, is_failure=is_failure)
        if self._waiting:
            self.wake()

    def _judge(
        self, member: Member, outcome: Outcome, took: int, now: int, *, is_failure: bool, own: bool = True
    ) -> None:
        """Learn from the outcome of a request, of this gateway or of another one, whether its upstream works, and how
        many requests it takes.
        """
        was_ejected = member.breaker.is_ejected
        member.follow(took, now, answered=outcome == "answered")
        if is_failure:
            self._failed(member, now, own=own)
        elif outcome == "neither":
            member.breaker.on_neither()
        else:
            member.breaker.on_success(now, own=own)
        if was_ejected != member.breaker.is_ejected:
            member.tell()
            if was_ejected:
                member.health.come_up(now)
                self.came_up(member)

    def prefixes(self, name: str) -> Prefixes:
        """Return the prompts that an upstream is believed to keep."""
        return self._estimates.prefixes(name)

    def failed(self, member: Member) -> None:
        """Record a failure of a request that was already given back."""
        was_ejected = member.breaker.is_ejected
        self._failed(member, self._now())
        if was_ejected != member.breaker.is_ejected:
            member.tell()
        if self._waiting:
            self.wake()

    def lacks(self, member: Member, path: str) -> None:
        """Record that an upstream has not this route."""
        member.lacking[path] = self._now() + LACKS
        member.having.pop(path, None)

    def rest(self, member: Member, seconds: float) -> None:
        """Pause an upstream that answered with Retry-After."""
        if not seconds:
            return
        pause = round(min(seconds * SECOND, self._front.ejection.longest))  # it may be infinite
        self._rest(member, pause)
        if self._peers is not None:
            self._peers.tell(Rests(member.name, pause))

    def _rest(self, member: Member, pause: int) -> None:
        member.resting = max(member.resting, self._now() + pause)
        self._wake_in(pause)

    def wake(self) -> None:
        """Serve waiting requests, the oldest first, after capacity or health has changed."""
        while True:
            heads = sorted((line.oldest(), key) for key, line in self._waiting.items())
            if not any(self._serve_next(key) for _, key in heads):
                return

    def close(self) -> None:
        for timer in (*self._timers, *filter(None, [self._ending])):
            timer.cancel()
        for line in self._waiting.values():
            for waiter in line:
                waiter.place.cancel()

    def _serve_next(self, key: _Key) -> bool:
        """Admit, defer or refuse the next waiting request. Returns whether to try another."""
        line = self._waiting[key]
        lane = line.next()
        waiter = line.lanes[lane][0]
        if not waiter.place.done():
            try:
                if lane == "first" and self._is_late(waiter):
                    line.defer()
                    self._metrics.deferred.labels(key[0]).inc()
                    return True
                place = self._take(waiter.asked, waiter.question, waiter.turn, ())
            except Refused as refused:
                waiter.place.set_exception(refused)
            else:
                if place is None:
                    self._look_at(line)
                    return False
                self._is_up(line, key[0])
                waiter.place.set_result(place)
        line.went(lane)
        if not line:
            del self._waiting[key]
        return bool(line)

    def _look_at(self, line: Line[_Waiter]) -> None:
        """Note whether the requests of this line wait for room, or until an upstream is up."""
        waiter = next(iter(line))
        if self._is_any_open(waiter.question):
            self._is_up(line, waiter.question.model)
        elif not line.since:
            line.since = self._now()
            for held in line:
                self._count_held(held)
            self._end_holds_in(0)  # some may not wait
            self.on_held()

    def _count_held(self, waiter: _Waiter) -> None:
        """Count a waiting request as held, once: an upstream may look up, and be down again."""
        if not waiter.is_counted:
            waiter.is_counted = True
            self._metrics.held.labels(waiter.question.model).inc()

    def _is_up(self, line: Line[_Waiter], model: str) -> None:
        if line.since:
            self._outages[model] = self._now() - line.since
            line.since = 0

    def _is_any_open(self, question: Question) -> bool:
        now = self._now()
        return any(member.is_open(now) for member in self._serving(question))

    def _end_holds_in(self, nanoseconds: int) -> None:
        """Check after this time, or earlier, which requests have waited too long for an upstream."""
        loop = asyncio.get_running_loop()
        at = loop.time() + nanoseconds / SECOND
        if self._ending is None or at < self._ending.when():
            if self._ending is not None:
                self._ending.cancel()
            self._ending = loop.call_at(at, self._end_holds)

    def _end_holds(self) -> None:
        """Refuse the requests that have waited for an upstream for `hold`."""
        self._ending = None
        self.wake()
        now, ends = self._now(), list[int]()
        for key, line in list(self._waiting.items()):
            for waiter in list(line) if line.since else []:
                end = max(waiter.came, line.since) + waiter.hold
                if end > now and self._may_open(waiter.question, end):
                    ends.append(end)
                elif not waiter.place.done():
                    self._give_up(key, waiter, self._down(waiter.question, line.since))
        if ends:
            self._end_holds_in(min(ends) - now)

    def _give_up(self, key: _Key, waiter: _Waiter, why: Refused) -> None:
        """Refuse a request that waits."""
        line = self._waiting[key]
        waiter.place.set_exception(why)
        line.remove(waiter)
        if not line:
            del self._waiting[key]

    def _is_late(self, waiter: _Waiter) -> bool:
        """Whether no upstream with room is expected to answer it in time."""
        now = self._now()
        room = [member for member in self._serving(waiter.question) if member.has_room(now)]
        if not room:
            return False
        view = self._view(waiter.asked, waiter.question.model, room, waiter.turn, now)
        return lane_of(view) == "deferred"

    def _take(self, asked: Asked, question: Question, turn: int, tried: Collection[str]) -> Place | None:
        """Take a place now; None if no upstream is open, or the open ones have no room. Raises `Refused` if none has
        the model.
        """
        now = self._now()
        serving = self._serving(question)
        untried = [member for member in serving if member.name not in tried and member.is_open(now)]
        open_ones = untried or [member for member in serving if member.is_open(now)]
        tiers = [member.told.tier for member in open_ones if member.has_room(now)]
        if not tiers:
            return None
        open_ones = [member for member in open_ones if member.told.tier == min(tiers)]
        chosen = self.choose(self._view(asked, question.model, open_ones, turn, now))
        if not chosen:
            return None
        member = self._by_name[chosen]
        member.add(1)
        member.breaker.on_sent()
        self._estimates.sent(member.name, str(turn), asked, now, question.model)
        sent = self._flying[turn] = Sent(turn, member.name, question.model, asked)
        if self._peers is not None:
            self._peers.tell(sent)
        return Place(member, question, asked, turn, now)

    def _serving(self, question: Question) -> list[Member]:
        return self.serving(question.model, question.path)

    def _view(self, asked: Asked, model: str, members: list[Member], turn: int, now: int) -> RouteView:
        known = [Known(one.name, one.told.weight, one.outstanding, one.has_room(now)) for one in members]
        return self._estimates.view(asked, known, turn, now, model)

    # --- other gateways ----------------------------------------------------------------------------------------------

    def _known(self) -> Iterable[News]:
        """What a gateway must know that has just started: requests in flight, and which upstreams get none."""
        now = self._now()
        yield from self._flying.values()
        for member in self.members:
            if (left := member.breaker.until - now) > 0:
                yield Ejected(member.name, left, member.breaker.pause)
            if (left := member.resting - now) > 0:
                yield Rests(member.name, left)

    def _hear(self, gateway: int, news: News) -> None:
        """Learn from the requests of another gateway as from own ones."""
        now = self._now()
        if isinstance(news, Sent):
            self._hear_sent(gateway, news, now)
        elif isinstance(news, Began):
            heard = self._theirs.get((gateway, news.turn))
            if heard is not None:
                self._estimates.began(heard.server, f"{gateway}.{news.turn}", now)
        elif isinstance(news, Ended):
            self._hear_ended(gateway, news, now)
        elif isinstance(news, Alive):
            self._forget(gateway, news.turns)
        elif isinstance(news, Joined):
            self._forget(gateway, ())  # of the one before it, which was killed
        elif isinstance(news, Rests) and news.server in self._by_name:
            self._rest(self._by_name[news.server], min(news.left, self._front.ejection.longest))
        elif isinstance(news, Ejected) and news.server in self._by_name:
            member = self._by_name[news.server]
            if not member.breaker.is_ejected and self._may_eject(member, now):
                longest = self._front.ejection.longest
                member.breaker.eject(now + min(news.left, longest), min(news.pause, longest))
                member.tell()
                self._wake_in(member.breaker.until - now)

    def _hear_sent(self, gateway: int, news: Sent, now: int) -> None:
        member = self._by_name.get(news.server)
        if member is None or (gateway, news.turn) in self._theirs:
            return
        self._theirs[gateway, news.turn] = _Heard(news.server, now)
        member.others += 1
        if member.concurrency is not None:
            member.concurrency.on_sent(member.outstanding)
        if member.breaker.is_open_to(now):
            member.breaker.on_sent()
        self._estimates.sent(news.server, f"{gateway}.{news.turn}", news.asked, now, news.model)

    def _hear_ended(self, gateway: int, news: Ended, now: int) -> None:
        heard = self._theirs.get((gateway, news.turn))
        if heard is None:
            return
        member, took = self._by_name[heard.server], max(0, news.took)
        if news.outcome == "answered":  # for as long as it took there: news take their time, too
            held = now - heard.at - took
            name = f"{gateway}.{news.turn}"
            self._estimates.answered(member.name, name, now, held, wrote=news.wrote, cached=news.cached)
        if member in self.members:
            self._judge(member, news.outcome, took, now, is_failure=news.is_failure, own=False)
        self._drop(gateway, news.turn)

    def _forget(self, gateway: int, but: Collection[int]) -> None:
        """Drop the requests of another gateway, except these."""
        kept = set(but)
        for of, turn in [known for known in self._theirs if known[0] == gateway and known[1] not in kept]:
            self._by_name[self._theirs[of, turn].server].breaker.on_neither()  # it may have been the trial
            self._drop(of, turn)

    def _drop(self, gateway: int, turn: int) -> None:
        heard = self._theirs.pop((gateway, turn), None)
        if heard is None:
            return
        member = self._by_name[heard.server]
        member.others -= 1
        self._estimates.dropped(member.name, f"{gateway}.{turn}", self._now())
        if self._waiting:
            self.wake()

    async def _wait(self, asked: Asked, question: Question, lane: Lane, client: str, hold: int) -> Place:
        now, key = self._now(), _key_of(question)
        line = self._waiting.get(key) or Line[_Waiter]()
        is_down = not self._is_any_open(question)
        if not is_down:
            self._is_up(line, question.model)
        elif not self._may_open(question, now + hold):
            raise self._down(question, line.since or now)
        self._make_room(asked, question, client, line.since or now if is_down else 0)
        place: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(self._turn, asked, question, place, client, now, hold)
        line = self._waiting.setdefault(key, line)
        line.lanes[lane].append(waiter)
        waiting = self._metrics.waiting.labels(question.model)
        waiting.inc()
        if is_down and line.since:
            self._count_held(waiter)
        elif is_down:
            self._look_at(line)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self.give_back(place.result(), "neither", 0)
            else:
                line.remove(waiter)
                if not line and self._waiting.get(key) is line:
                    del self._waiting[key]
            raise
        finally:
            waiting.dec()

    def _may_open(self, question: Question, by: int) -> bool:
        """Whether an upstream may be open by this instant: its time is unknown, or a pause is over by then. Drained
        upstreams stay closed.
        """
        serving = self._serving(question)
        members = [member for member in serving if not member.is_draining]
        is_unknown = not serving or any(member.health.state != "healthy" for member in members)
        ends = (max(member.breaker.until, member.resting) for member in members)
        return by > self._now() and (is_unknown or any(end <= by for end in ends))

    def _make_room(self, asked: Asked, question: Question, client: str, since: int) -> None:
        """Let another request wait: until an upstream is up, if none is (`since`), or for room. Raises `Refused` if the
        queue is full and no other client has more requests in it, whose newest one is refused otherwise.
        """
        lines = {key: line for key, line in self._waiting.items() if bool(line.since) == bool(since)}
        if sum(map(len, lines.values())) < self._front.queue:
            return
        waiters = [(key, waiter) for key, line in lines.items() for waiter in line if not waiter.place.done()]
        why = self._down(question, since) if since else self._full(asked, question)
        found = gives_way(Counter(waiter.client for _, waiter in waiters), client)
        if not found:
            raise why
        key, newest = max(((key, one) for key, one in waiters if one.client == found), key=lambda each: each[1].turn)
        self._give_up(key, newest, why)

    def _full(self, asked: Asked, question: Question) -> Refused:
        few = [why for member in self._serving(question) if (why := member.why_so_few())]
        message = "; ".join(["All upstreams are at their limit, and the queue is full", *few[:10]])
        away = self._seconds_away(asked, question)
        return Refused(429, message, code="overloaded", reason="overloaded", retry_after=away)

    def _was_slow(self, place: Place, took: int, now: int) -> bool:
        others = [
            self._estimates.lasting(member.name, place.asked, now, place.question.model)
            for member in self.members
            if member is not place.member and place.question.model in member.models
        ]
        return is_slow(took, [each for each in others if each], self._front.ejection)

    def _may_eject(self, member: Member, now: int) -> bool:
        """Whether each model of an upstream has another open one."""
        return all(
            any(other is not member and model in other.models and other.is_open(now) for other in self.members)
            for model in member.models
        )

    def _failed(self, member: Member, now: int, *, own: bool = True) -> None:
        if member.breaker.on_failure(now, may_eject=self._may_eject(member, now), own=own):
            self._metrics.ejections.labels(member.name).inc()
            self._wake_in(member.breaker.until - now)

    def _wake_in(self, nanoseconds: int) -> None:
        def woken() -> None:
            self._timers.discard(timer)
            self.wake()

        timer = asyncio.get_running_loop().call_later(nanoseconds / SECOND, woken)
        self._timers.add(timer)

    def _down(self, question: Question, since: int) -> Refused:
        """Return the refusal while no upstream of the model is up, since this instant. The time to retry after is that
        until the first pause ends. If none does, the outage is expected to last as long as the one before; once it has
        lasted longer, as long again.
        """
        now = self._now()
        try:
            members = self._serving(question)
        except Refused as unknown:
            return unknown
        said = ", ".join(f"`{member.name}` is {member.why_in_full(now)}" for member in members[:10]) or "none is known"
        back = [
            max(member.breaker.until, member.resting) - now for member in members if member.health.state == "healthy"
        ]
        lasted = now - since
        before = self._outages.get(question.model, 0)
        away = min((pause for pause in back if pause > 0), default=before - lasted if before > lasted else lasted)
        return Refused(
            503,
            f"No upstream can answer now: {said}",
            code="unavailable",
            reason="unavailable",
            retry_after=_seconds(away),
        )

    def _seconds_away(self, asked: Asked, question: Question) -> int:
        """Estimate in how many seconds the first upstream with the model could answer."""
        now = self._now()
        known = [self._estimates.known(one.name, asked, now, question.model) for one in self._serving(question)]
        away = [foreseen.backlog + foreseen.cost for foreseen in known]
        return _seconds(min(away))


def _key_of(question: Question) -> _Key:
    return question.model, question.path if question.path in SOME_HAVE else ""


def _seconds(nanoseconds: int) -> int:
    return max(1, min(LONGEST_AWAY, ceil(nanoseconds / SECOND)))


def model_of(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}
