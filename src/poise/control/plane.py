"""The loop around the controller: messages in, effects carried out.

Everything runs on one asyncio thread. What arrives in one turn of the loop is handled together, so that one round
decides for all of it and one commit makes all of it durable.
"""

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from poise.errors import PoiseError, StoreFull
from poise.kernel import controller as machine
from poise.kernel.controller import Controller
from poise.kernel.ledger import Ledger
from poise.kernel.overview import Rates, rates
from poise.model.calls import FromCaller, FromWorker, Over
from poise.model.decisions import Plan
from poise.model.events import Event
from poise.model.messages import Attempt, FromAgent
from poise.ports import Clock, Decider, Store
from poise.units import SECOND

RECENT_EVENTS = 10_000
"""Events kept in memory for those who follow the stream; older ones are read from the log."""

STOOD_STILL = 1 * SECOND
HEAR_FIRST = 0.2
"""When this process wakes so much too late it was stopped (or the machine was), and nodes that kept on talking are not
to be taken for dead: what they said meanwhile is read first, for so many seconds."""

BROKEN = 70
"""Exit code of a control plane that met an internal error."""

_log = logging.getLogger("poise.control")
Answer = Callable[[machine.Reply], None]


class Channel(Protocol):
    """A connected agent, caller or worker."""

    def send(self, message: Any) -> None: ...
    def close(self) -> None: ...


class Plane:
    """Owner of controller and store. `post` is called on the loop's thread only."""

    def __init__(self, controller: Controller, store: Store, clock: Clock, decider: Decider) -> None:
        self.controller = controller
        self.store = store
        self.clock = clock
        self._decider = decider
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[machine.Message] = deque()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._due: int | None = None
        self._requests: dict[int, Answer] = {}
        self._next_request = 0
        self._channels: dict[str, Channel] = {}
        self._callers: dict[str, Channel] = {}
        self._workers: dict[Attempt, Channel] = {}
        self._recent: deque[tuple[int, Event]] = deque(maxlen=RECENT_EVENTS)
        self._published = store.durable()
        self._followers: set[asyncio.Event] = set()
        self._watched: dict[tuple[str, tuple[str, ...]], set[asyncio.Future[None]]] = {}
        store.on_durable = self._on_durable
        store.on_failed = self._on_failed

    @property
    def ledger(self) -> Ledger:
        return self.controller.ledger

    def begin(self, *, boot: str, boottime: int) -> None:
        """Take the log."""
        self._perform(self.controller.begin(self.clock.now(), boot=boot, boottime=boottime, wall=self.clock.wall()))
        self._schedule()

    # --- messages ----------------------------------------------------------------------------------------------------

    def post(self, message: machine.Message) -> None:
        """Hand a message to the controller in the next turn of the loop."""
        self._inbox.append(message)
        self._schedule()

    def ask(self, make: Callable[[int], machine.Message], answer: Answer) -> None:
        """Post a request; `answer` is called when it is durable, or refused."""
        self._next_request += 1
        self._requests[self._next_request] = answer
        self.post(make(self._next_request))

    async def request(self, make: Callable[[int], machine.Message]) -> Any:
        """Post a request and wait for its answer. Raises what it was refused with."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def answer(reply: machine.Reply) -> None:
            if future.done():
                return
            if reply.error is not None:
                future.set_exception(reply.error)
            else:
                future.set_result(reply.value)

        self.ask(make, answer)
        return await future

    async def settled(self) -> Ledger:
        """The ledger, once all that it holds now is durable: readers see nothing that a crash could take back."""
        while self.controller.durable < self.ledger.revision:
            with contextlib.suppress(PoiseError):  # not written after all: the ledger is what is durable again
                await self.request(machine.Barrier)
        return self.ledger

    # --- agents ------------------------------------------------------------------------------------------------------

    def connect(self, node: str, channel: Channel) -> None:
        """An agent has said hello; the newest connection of a node wins."""
        old = self._channels.get(node)
        if old is not None and old is not channel:
            old.close()
        self._channels[node] = channel

    def disconnect(self, node: str, channel: Channel) -> None:
        if self._channels.get(node) is channel:
            del self._channels[node]
            self.post(machine.Gone(node))

    def hear(self, node: str, channel: Channel, message: FromAgent) -> None:
        """A message from a node; only its newest connection is heard."""
        if self._channels.get(node) is channel:
            self.post(machine.FromNode(node, message))

    # --- callers and workers -----------------------------------------------------------------------------------------

    def connect_caller(self, job: str, channel: Channel) -> None:
        """The newest connection of a job's caller wins, as it does of a node and of a worker."""
        old = self._callers.get(job)
        if old is not None and old is not channel:
            old.close()
        self._callers[job] = channel

    def hear_caller(self, job: str, channel: Channel, message: FromCaller) -> None:
        if self._callers.get(job) is channel:
            self.post(machine.FromJobCaller(job, message))

    def disconnect_caller(self, job: str, channel: Channel) -> None:
        if self._callers.get(job) is channel:
            del self._callers[job]
            self.post(machine.CallerGone(job))

    def connect_worker(self, attempt: Attempt, channel: Channel) -> None:
        old = self._workers.get(attempt)
        if old is not None and old is not channel:
            old.close()
        self._workers[attempt] = channel

    def hear_worker(self, attempt: Attempt, channel: Channel, message: FromWorker) -> None:
        if self._workers.get(attempt) is channel:
            self.post(machine.FromCallWorker(attempt, message))

    def disconnect_worker(self, attempt: Attempt, channel: Channel) -> None:
        if self._workers.get(attempt) is channel:
            del self._workers[attempt]

    def _hang_up(self, channels: dict[Any, Channel]) -> None:
        for channel in channels.values():
            channel.close()
        channels.clear()

    # --- following ---------------------------------------------------------------------------------------------------

    def events_after(self, revision: int, limit: int) -> list[tuple[int, Event]]:
        """Durable events after a revision, oldest first."""
        if self._recent and self._recent[0][0] <= revision + 1:
            found = [(at, event) for at, event in self._recent if revision < at <= self._published]
            return found[:limit]
        return [(at, event) for at, event in self.store.read(revision, limit) if at <= self._published]

    def rates(self) -> Rates:
        """What has been placed, has ended and has returned lately, as far as it is remembered."""
        return rates((event for _, event in reversed(self._recent)), self.clock.now())

    def follow(self) -> asyncio.Event:
        """Set whenever more events are durable; give it back with `unfollow`."""
        news = asyncio.Event()
        self._followers.add(news)
        return news

    def unfollow(self, news: asyncio.Event) -> None:
        self._followers.discard(news)

    async def over(self, job_id: str, units: tuple[str, ...], within: float) -> None:
        """Wait until the end of the job, or of these units of it, is durable, or the time is up."""
        deadline = self._loop.time() + within
        awaited = (job_id, units)
        while (left := deadline - self._loop.time()) > 0:
            await self.settled()
            if self._is_over(awaited):
                return
            future: asyncio.Future[None] = self._loop.create_future()
            watching = self._watched.setdefault(awaited, set())
            watching.add(future)
            try:
                await asyncio.wait_for(future, left)
            except TimeoutError:
                return
            finally:
                watching.discard(future)
                if not watching and self._watched.get(awaited) is watching:
                    del self._watched[awaited]

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """One turn: all messages, then time, then rounds until nothing more is to be decided."""
        with or_die():
            self._turn()

    def _turn(self) -> None:
        now = self.clock.now()
        if self._due is not None and now - self._due > STOOD_STILL:
            self._due = None
            self._loop.call_later(HEAR_FIRST, self._run)
            return
        self._scheduled = False
        effects: list[machine.Effect] = []
        while self._inbox:
            effects.extend(self.controller.handle(self._inbox.popleft(), now))
        effects.extend(self.controller.tick(now))
        self._perform(effects)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._due = None
        wakeup = self.controller.wakeup()
        if wakeup is not None:
            self._due = wakeup
            delay = max(0.0, (wakeup - self.clock.now()) / SECOND)
            self._timer = self._loop.call_later(delay, self._schedule)

    def _perform(self, effects: Sequence[machine.Effect]) -> None:
        appends: list[Event] = []
        expected = -1
        for effect in effects:
            match effect:
                case machine.Append():
                    if not appends:
                        expected = effect.expected
                    appends.extend(effect.events)
                case machine.Reply():
                    answer = self._requests.pop(effect.request, None)
                    if answer is not None:
                        answer(effect)
                case machine.Send():
                    channel = self._channels.get(effect.node)
                    if channel is not None:
                        channel.send(effect.message)
                case machine.SayCaller():
                    channel = self._callers.get(effect.job)
                    if channel is not None:
                        channel.send(effect.message)
                case machine.SayWorker():
                    channel = self._workers.get(effect.attempt)
                    if channel is not None:
                        channel.send(effect.message)
                case machine.HangCaller():
                    _log.warning("the caller of %s is hung up on: %s", effect.job, effect.error)
                    channel = self._callers.pop(effect.job, None)
                    if channel is not None:  # told why, it leaves by itself; nothing more is heard of it
                        channel.send(Over(f"a call was refused: {effect.error}"))
                        self.post(machine.CallerGone(effect.job))
                case machine.HangCalls():
                    self._hang_up(self._callers)
                    self._hang_up(self._workers)
                case machine.Decide():
                    self._decider.decide(effect.view, self._on_plan)
                case machine.Hang():
                    channel = self._channels.pop(effect.node, None)
                    if channel is not None:
                        channel.close()
                case machine.Checkpoint():
                    self._append(appends, expected)
                    appends, expected = [], -1
                    self.store.checkpoint(effect.revision, effect.state)
                case machine.TryRecover():
                    if self.store.recover():
                        _log.warning("the log can be written again")
                        self.post(machine.Recovered())
        self._append(appends, expected)

    def _on_plan(self, plan: Plan) -> None:
        self.post(machine.Decided(plan))

    def _append(self, events: Sequence[Event], expected: int) -> None:
        if not events:
            return
        try:
            self.store.append(events, expected=expected)
        except PoiseError as error:
            if self.controller.accepting:
                self._loop.call_soon(self._on_failed, error)
            return
        self._recent.extend(enumerate(events, start=expected + 1))

    def _on_durable(self, revision: int) -> None:
        with or_die():
            self._perform(self.controller.handle(machine.Durable(revision), self.clock.now()))
            self._publish(revision)
            if self._inbox:
                self._schedule()

    def _publish(self, revision: int) -> None:
        self._published = revision
        for news in self._followers:
            news.set()
        if self._watched:
            for awaited in [awaited for awaited in self._watched if self._is_over(awaited)]:
                for future in self._watched.pop(awaited):
                    if not future.done():
                        future.set_result(None)

    def _is_over(self, awaited: tuple[str, tuple[str, ...]]) -> bool:
        job_id, units = awaited
        job = self.ledger.jobs.get(job_id)
        if job is None or job.ended:
            return True
        found = [self.ledger.unit(unit) for unit in units]
        return bool(found) and all(unit is None or unit.over for unit in found)

    def _on_failed(self, error: Exception) -> None:
        """The log cannot be written: back to what is durable."""
        with or_die():
            self._go_back(error)

    def _go_back(self, error: Exception) -> None:
        if not self.controller.accepting:
            return
        _log.error("the log cannot be written: %s", error)
        known = error if isinstance(error, PoiseError) else StoreFull(str(error))
        self._recent = deque(((at, event) for at, event in self._recent if at <= self.store.durable()), RECENT_EVENTS)
        ledger = load_ledger(self.store)
        self._perform(self.controller.handle(machine.AppendFailed(ledger, known), self.clock.now()))
        self._schedule()


@contextlib.contextmanager
def or_die() -> Iterator[None]:
    """An error that nobody foresaw leaves ledger and log apart: end as by kill -9, and be started from the log."""
    try:
        yield
    except Exception:
        _log.critical("an internal error; starting again from the log", exc_info=True)
        os._exit(BROKEN)


def load_ledger(store: Store) -> Ledger:
    """The ledger as the log has it: the latest checkpoint and every event after it."""
    checkpoint = store.latest_checkpoint()
    ledger = Ledger.decode(checkpoint.state) if checkpoint else Ledger()
    for _, event in store.read(ledger.revision):
        ledger.apply(event)
    return ledger
