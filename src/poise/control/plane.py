"""The control plane's host on one asyncio thread: requests that are awaited, and events that are followed."""

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from poise.engine.host import Host
from poise.errors import PoiseError
from poise.kernel import controller as machine
from poise.kernel.controller import Controller
from poise.kernel.ledger import Ledger
from poise.kernel.overview import Rates, rates
from poise.model.events import Event
from poise.model.messages import Met
from poise.ports import Clock, Decider, Store

RECENT_EVENTS = 10_000
"""Events kept in memory for those who follow the stream; older ones are read from the log."""

BROKEN = 70
"""Exit code of a control plane that met an internal error, or lost its log to another one."""

_log = logging.getLogger("poise.control")


class Plane(Host):
    """The host on asyncio's loop, for callers that wait and for those who follow what happens."""

    def __init__(
        self,
        controller: Controller,
        store: Store,
        clock: Clock,
        decider: Decider,
        *,
        holds: Callable[[], bool] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(
            controller, store, clock, decider, self._loop, tell=_log.warning, holds=holds, leave=_leave, guard=or_die
        )
        self._recent: deque[tuple[int, Event]] = deque(maxlen=RECENT_EVENTS)
        self._published = store.durable()
        self._followers: set[asyncio.Event] = set()
        self._watched: dict[tuple[str, tuple[str, ...]], set[asyncio.Future[None]]] = {}

    # --- messages ----------------------------------------------------------------------------------------------------

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

    def tell(self, node: str, met: Met) -> None:
        """What members of a gang have left for each other, if the node is connected; else it asks when it is."""
        channel = self._channels.get(node)
        if channel is not None:
            channel.send(met)

    async def settled(self) -> Ledger:
        """The ledger, once all that it holds now is durable: readers see nothing that a crash could take back."""
        while self.controller.durable < self.ledger.revision:
            with contextlib.suppress(PoiseError):  # not written after all: the ledger is what is durable again
                await self.request(machine.Barrier)
        return self.ledger

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

    def _appended(self, events: Sequence[Event], expected: int) -> None:
        self._recent.extend(enumerate(events, start=expected + 1))

    def _taken_back(self, durable: int) -> None:
        self._recent = deque(((at, event) for at, event in self._recent if at <= durable), RECENT_EVENTS)

    def _published_up_to(self, revision: int) -> None:
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


def _leave(error: PoiseError) -> NoReturn:
    """As by kill -9: nothing that is still to be said or written is this one's to say."""
    _log.critical("%s; this control plane leaves it to them", error)
    os._exit(BROKEN)


@contextlib.contextmanager
def or_die() -> Iterator[None]:
    """An error that nobody foresaw leaves ledger and log apart: end as by kill -9, and be started from the log."""
    try:
        yield
    except Exception:
        _log.critical("an internal error; starting again from the log", exc_info=True)
        os._exit(BROKEN)
