"""The control plane's host on one asyncio thread. Its callers await requests and follow events."""

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from poise.control.images import AS_NAMED, Images
from poise.control.intensity import UNKNOWN, Intensities
from poise.control.observers import Observers, Timings
from poise.control.shares import Turns
from poise.control.tally import Tally
from poise.drivers.beside import beside
from poise.drivers.plugins import with_latest_policy_here
from poise.drivers.system import SystemClock, boot_id, boottime
from poise.engine.host import AT_ONCE, Answer, Handle, Host
from poise.errors import NotLeading, PoiseError
from poise.kernel import messages
from poise.kernel.controller import Controller
from poise.kernel.ledger import Ledger
from poise.kernel.overview import Rates, rates
from poise.model.events import Event, JobSubmitted
from poise.model.messages import Fetch, Met, ToConsole
from poise.model.observed import Happened
from poise.model.spec import Compiled
from poise.ports import Clock, Decider, Store
from poise.units import SECOND, Instant

RECENT_EVENTS, RECENT_TASKS = 10_000, 10_000
"""Limits on the events kept in memory for followers of the stream, and on the tasks of the submitted jobs among them.
Older events are read from the log.
"""

FRESH = 2 * SECOND
"""New events were written just now, and tell the leader's time, if the previous look was less than this ago."""

READERS_FIRST = 0.5
"""Seconds for which no messages are processed while a reader waits for the log: longer than a commit takes on a busy
machine. If the disk is slower, one turn is processed after each such wait, so that nodes are heard.
"""

SAVED_BESIDE = 2_000
"""Number of units from which a separate process encodes the state; for fewer it takes at most about 10 ms."""

QUICKLY_COMPILED = 16 * 1024
"""Bytes up to which any request compiles within a few milliseconds."""

BROKEN = 70
"""Exit code of a control plane that met an internal error, or lost its log to another one."""

_log = logging.getLogger("poise.control")


def clock_of(ledger: Ledger) -> SystemClock:
    """Return a clock that resumes from the time in the log."""
    return SystemClock(Instant(ledger.leader.resume_at(boot_id(), boottime(), time.time())))


class Recent(deque[tuple[int, Event]]):
    """The latest events with their revisions. Drops the oldest beyond `RECENT_EVENTS` events, or beyond `RECENT_TASKS`
    tasks in submitted jobs, but keeps at least one event.
    """

    def __init__(self, events: Iterable[tuple[int, Event]] = ()) -> None:
        super().__init__()
        self._tasks = 0
        self.extend(events)

    def extend(self, events: Iterable[tuple[int, Event]]) -> None:
        for entry in events:
            self.append(entry)
            self._tasks += _tasks_in(entry[1])
            while len(self) > RECENT_EVENTS or (self._tasks > RECENT_TASKS and len(self) > 1):
                self._tasks -= _tasks_in(self.popleft()[1])


def _tasks_in(event: Event) -> int:
    return sum(len(unit.tasks) for unit in event.job.units) if isinstance(event, JobSubmitted) else 0


class Plane(Host):
    """The host on asyncio's loop, for callers that wait and for followers of events. `observers` get its events, each
    on its own thread; `timings` and `tally` are two of them.

    `behind` is None while this control plane leads. Otherwise it is a standby: it applies the leader's events, answers
    reads, and refuses writes; `behind` is then the leader's address, or empty if the leader is unknown, for example
    while the store is `away` (the reason). `leads` returns whether a leader's lease still holds; until it ends, no
    other can lead.
    """

    behind: str | None = None
    away: str = ""

    def __init__(
        self,
        controller: Controller,
        store: Store,
        clock: Clock,
        decider: Decider,
        *,
        intensities: Intensities = UNKNOWN,
        images: Images = AS_NAMED,
        holds: Callable[[], bool] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(
            controller,
            store,
            clock,
            decider,
            self._loop,
            tell=_log.warning,
            holds=holds,
            leave=leave,
            guard=self._turns,
        )
        self.observers, self.timings = Observers(), Timings()
        self.observers.add(self.timings)
        self.tally = Tally(lambda: self.ledger)
        self.observers.add(self.tally)
        self.observe = self.observers.tell
        self.intensities = intensities
        self.images = images
        self._leads: Callable[[], bool] = lambda: True
        self._looked = 0
        self._recent = Recent()
        self._published = controller.durable
        self._followers: set[asyncio.Event] = set()
        self._watched: dict[tuple[str, tuple[str, ...]], set[asyncio.Future[None]]] = {}
        self._leaving = False
        self._readers: list[asyncio.Future[None]] = []
        self._readers_until = 0.0
        self._reading: Handle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._times_taken_back = 0
        self._compiling = Turns()
        self._paced: deque[asyncio.Future[None]] = deque()
        """Nodes that are read again when the inbox fits into one turn, in order."""
        self._crowded_until = 0

    # --- leading and standing by -------------------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        """Return whether anything can be written here."""
        return self.behind is None and self.controller.accepting

    def check_leading(self) -> None:
        """Raises `NotLeading`, with the address of the leader if known, unless this control plane leads."""
        if self.behind is None:
            return
        if self.behind:
            hint = "set POISE_CONTROL to the sockets and addresses of all"
            raise NotLeading("this control plane stands by", need=self.behind, hint=hint)
        if self.away:
            raise NotLeading(f"the leader is unknown: {self.away}", hint="retry when the store answers")
        raise NotLeading("this control plane stands by, and there is no leader yet", hint="retry: one will lead soon")

    def start_from(self, ledger: Ledger) -> None:
        """Stand by from this ledger: the events between it and the previous state are no longer in the log."""
        self.controller = Controller(ledger, self.controller.settings, self.controller.turns.calendar)
        self.clock = clock_of(ledger)
        self._recent.clear()
        self._published_up_to(ledger.revision)

    def take_in(self, events: Sequence[tuple[int, Event]], looked: int) -> None:
        """Apply the leader's new events. `looked` is the boot time of the look. If the previous look was recent, the
        last event gives the leader's current time, regardless of the wall clocks of the two machines.
        """
        fresh, self._looked = looked - self._looked < FRESH, looked
        if not events:
            return
        with or_die():
            for _, event in events:
                self.ledger.apply(event)
        self.clock = SystemClock(Instant(self.ledger.now)) if fresh else clock_of(self.ledger)
        self._recent.extend(events)
        self.observers.tell(Happened(first=events[0][0], events=tuple(event for _, event in events)))
        self._published_up_to(self.ledger.revision)

    def end(self) -> None:
        super().end()
        self.observers.close()

    def lead(self, term: int, leads: Callable[[], bool]) -> None:
        """Start to lead under a won term, from the applied state."""
        settings = with_latest_policy_here(self.controller.settings, self.ledger.leader.began)
        self.controller = Controller(self.ledger, settings, self.controller.turns.calendar)
        self._leads, self.behind = leads, None
        self.begin(boot=boot_id(), boottime=boottime(), term=term)

    @contextlib.contextmanager
    def _turns(self) -> Iterator[None]:
        self._check_lease()
        with or_die():
            yield

    def _check_lease(self) -> None:
        """Exit if the lease has expired: after a pause another control plane may lead."""
        if not self._leads():
            leave(NotLeading("the lease has expired"))

    # --- messages ----------------------------------------------------------------------------------------------------

    def ask(self, make: Callable[[int], messages.Message], answer: Answer) -> None:
        self.check_leading()
        super().ask(make, answer)

    async def request(self, make: Callable[[int], messages.Message]) -> Any:
        """Post a request and wait for its answer. Raises the error if it is refused."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def answer(reply: messages.Reply) -> None:
            if future.done():
                return
            if reply.error is not None:
                future.set_exception(reply.error)
            else:
                future.set_result(reply.value)

        self.ask(make, answer)
        return await future

    async def prepare(self, document: Any, tenant: str, size: int) -> Compiled:
        """Compile a tenant's request of `size` bytes for the current fleet; raises SpecError. A large request may take
        seconds, so it is compiled on a thread, one per tenant at a time.
        """
        controller, wall, now = self.controller, self.clock.wall(), self.clock.now()
        if size <= QUICKLY_COMPILED:
            compiled = controller.prepare(document, wall, now, tenant)
        else:
            async with self._compiling.of(tenant):
                compiled = await asyncio.to_thread(controller.preparing(document, wall, now, tenant))
        compiled = await self.images.pinned(compiled)
        return self.intensities.placed_in_time(compiled, wall, self.ledger.profiles) if compiled.flexible else compiled

    def tell(self, node: str, message: Met | Fetch | ToConsole) -> bool:
        """Send a message to a node without telling the controller. Return whether the node is connected."""
        channel = self._channels.get(node)
        if channel is not None:
            channel.send(message)
        return channel is not None

    async def settled(self) -> Ledger:
        """Return the ledger once its whole content is durable: readers see nothing that a crash could take back."""
        self._check_lease()
        while self.behind is None and self.controller.durable < self.ledger.revision:
            if not self._readers:
                self._readers_until = self._loop.time() + READERS_FIRST
            reader: asyncio.Future[None] = self._loop.create_future()
            self._readers.append(reader)
            await reader
        return self.ledger

    def crowded(self, wait: int = 0) -> None:
        """Tell the controller, once a second, that clients wait to connect, or were told to come back after `wait`
        nanoseconds: it must not declare nodes dead that are among them.
        """
        until = self.clock.now() + wait
        if self.behind is None and until > self._crowded_until + SECOND:
            self._crowded_until = until
            self.post(messages.Crowded(until))

    async def keep_pace(self) -> None:
        """Before a node is read again, wait until the inbox fits into one turn, after those that waited before. So
        each node has few messages in it, the network buffers the rest, and requests wait behind no more than that.
        """
        if not self.keeps_pace():
            turn: asyncio.Future[None] = self._loop.create_future()
            self._paced.append(turn)
            await turn

    def keeps_pace(self) -> bool:
        """Return whether the inbox fits into one turn, and nobody waits for that."""
        return not self._paced and len(self._inbox) <= AT_ONCE

    def _turn(self) -> None:
        super()._turn()
        if self._paced:
            self._read_on()

    def _read_on(self) -> None:
        """Let as many nodes be read again as fit into the next turn. The others follow after it, even if these have
        nothing more to say.
        """
        room = AT_ONCE - len(self._inbox)
        while self._paced and room > 0:
            turn = self._paced.popleft()
            if not turn.done():
                turn.set_result(None)
                room -= 1
        if self._paced:
            self._schedule()

    async def give_way(self) -> None:
        """Let other tasks run. If a reader waits, wait for the log too, which commits sooner meanwhile."""
        await asyncio.sleep(0)
        if self._readers:
            await self.settled()

    def _run(self) -> None:
        """Serve readers first: while a reader waits for the log, incoming messages wait too. Otherwise, under many
        submissions, the ledger would always be ahead of the log, and no reader would be answered.
        """
        if self._readers and (left := self._readers_until - self._loop.time()) > 0:
            if self._reading is None:
                self._reading = self._loop.call_later(left, self._go_on)
            return
        super()._run()
        self._readers_until = self._loop.time() + READERS_FIRST

    def _go_on(self) -> None:
        """Process the messages that arrived while readers waited."""
        self._reading = None
        super()._run()

    def _answer_readers(self) -> None:
        """Wake all waiting readers, now that everything is durable; they run before the next turn."""
        for reader in self._readers:
            if not reader.done():
                reader.set_result(None)
        self._readers.clear()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = self._loop.call_soon(self._go_on)

    # --- following ---------------------------------------------------------------------------------------------------

    def events_after(self, revision: int, limit: int) -> list[tuple[int, Event]]:
        """Return durable events after a revision, oldest first."""
        if self._recent and self._recent[0][0] <= revision + 1:
            found = [(at, event) for at, event in self._recent if revision < at <= self._published]
            return found[:limit]
        return [(at, event) for at, event in self.store.read(revision, limit) if at <= self._published]

    def rates(self) -> Rates:
        """Return the recent rates of placements, ends and returns, as far as events are in memory."""
        return rates((event for _, event in reversed(self._recent)), self.clock.now())

    def follow(self) -> asyncio.Event:
        """Return an event that is set whenever more events are durable; give it back with `unfollow`."""
        news = asyncio.Event()
        self._followers.add(news)
        return news

    def unfollow(self, news: asyncio.Event) -> None:
        self._followers.discard(news)

    async def over(self, job_id: str, units: tuple[str, ...], within: float) -> None:
        """Wait until the end of the job, or of these units, is durable, the time is up, or this process exits."""
        deadline = self._loop.time() + within
        awaited = (job_id, units)
        while (left := deadline - self._loop.time()) > 0 and not self._leaving:
            await self.settled()
            if self._is_over(awaited):
                return
            await self._watch(awaited, left)

    async def ends(self, job_id: str, within: float) -> None:
        """Wait until the job ends or the time limit passes. It forces no commit, so it is cheap to call often."""
        awaited: tuple[str, tuple[str, ...]] = (job_id, ())
        if not self._is_over(awaited):
            await self._watch(awaited, within)

    async def _watch(self, awaited: tuple[str, tuple[str, ...]], within: float) -> None:
        """Wait until the end is durable, the time limit passes, or this process is told to exit."""
        future: asyncio.Future[None] = self._loop.create_future()
        watching = self._watched.setdefault(awaited, set())
        watching.add(future)
        try:
            await asyncio.wait_for(future, within)
        except TimeoutError:
            return
        finally:
            watching.discard(future)
            if not watching and self._watched.get(awaited) is watching:
                del self._watched[awaited]

    def leaves(self) -> None:
        """Answer all waiting requests because this process is about to exit; clients ask the next one."""
        self._leaving = True
        self._answer_those_of(list(self._watched))

    def _appended(self, events: Sequence[Event], expected: int) -> None:
        self._recent.extend(enumerate(events, start=expected + 1))

    def _save(self) -> None:
        """Save the state: if it is large, in a forked copy of this process."""
        if len(self.ledger.jobs.units) < SAVED_BESIDE:
            super()._save()
        elif self._saving is None:
            self._saving = self._loop.create_task(self._save_beside())

    async def _save_beside(self) -> None:
        """Fork when this task first runs: between two turns, so that ledger and log agree."""
        revision, times = self.ledger.revision, self._times_taken_back
        try:
            try:
                state = await beside(self.ledger.compressed)
            except OSError as error:
                _log.warning("no copy of this process saves the state, so the event loop waits for that: %s", error)
                if not self._over:
                    super()._save()
                return
            if times == self._times_taken_back and not self._over:
                self.store.checkpoint(revision, state)
        except PoiseError as error:
            _log.warning("the state at revision %d is not saved: %s", revision, error)
        finally:
            self._saving = None

    def _taken_back(self, durable: int) -> None:
        self._times_taken_back += 1
        self._recent = Recent((at, event) for at, event in self._recent if at <= durable)

    def _published_up_to(self, revision: int) -> None:
        self._published = revision
        if revision >= self.ledger.revision:
            self._answer_readers()
        for news in self._followers:
            news.set()
        if self._watched:
            self._answer_those_of([awaited for awaited in self._watched if self._is_over(awaited)])

    def _answer_those_of(self, awaited: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        for one in awaited:
            for future in self._watched.pop(one):
                if not future.done():
                    future.set_result(None)

    def _is_over(self, awaited: tuple[str, tuple[str, ...]]) -> bool:
        job_id, units = awaited
        job = self.ledger.jobs.get(job_id)
        if job is None or job.ended:
            return True
        found = [self.ledger.jobs.unit(unit) for unit in units]
        return bool(found) and all(unit is None or unit.over for unit in found)


def leave(error: PoiseError) -> NoReturn:
    """Exit at once, as by kill -9: this process may no longer send or write anything."""
    _log.critical("%s; this control plane leaves it to them", error)
    os._exit(BROKEN)


@contextlib.contextmanager
def or_die() -> Iterator[None]:
    """Exit as by kill -9 on an unexpected error: ledger and log may differ. A restart recovers from the log."""
    try:
        yield
    except Exception:
        _log.critical("an internal error; starting again from the log", exc_info=True)
        os._exit(BROKEN)
