"""Cache in front of a service, which also collapses identical concurrent requests into one.

Requests are identified by tenant and body, compared as bytes or as JSON values. Only answers with 200 are cached: in
this process, and with `SharedAnswers` also for other gateways. A request identical to a pending one shares its answer
or refusal; a request with its own timeout, in the deferred lane, or with `no-cache` is sent separately.
"""

import asyncio
import time
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from poise.units import SECOND
from poise_serve.kernel.batcher import Refuse
from poise_serve.kernel.cache import Cache
from poise_serve.service import ANYBODY, Asker, Service, Tell
from poise_serve.service_metrics import CacheMetrics, ServiceMetrics
from poise_serve.shared_answers import SharedAnswers
from poise_serve.wire import Answer

MOST_READ = 1 << 18
"""Maximum bytes of a body compared as JSON, which takes milliseconds; larger ones are compared as bytes."""

OF_LATE = 0.2
"""Weight of the latest answer in the mean answer time."""


COLLAPSED = "; collapsed"
"""Suffix of the note for collapsed requests."""


class Noted(Answer, frozen=True, array_like=True):
    """An answer with header lines about its source (`Cache-Status` of RFC 9211, and `Age`)."""

    note: str


class Made(NamedTuple):
    """An answer, and the instant of its creation."""

    answer: Answer
    made: int


class _Flight:
    """A pending request, with all clients that wait for its answer."""

    def __init__(self, key: bytes, asker: Asker, body: bytes, timeout: int, deferred: bool) -> None:
        self.key = key
        self.asker = asker
        self.body = body
        self.timeout = timeout
        self.deferred = deferred
        self.began = time.monotonic_ns()
        self.tells: dict[int, Tell] = {}
        self.search: asyncio.Task[None] | None = None
        self.number = 0
        """Its number at the service, once sent."""
        self.sent = 0
        self.shared = ""
        """Key of its answer in the shared cache, if there is one."""
        self.errand = ""
        self.is_old = False
        """Whether the cache was cleared since it began."""

    @property
    def is_alone(self) -> bool:
        """Whether it is never collapsed with other requests."""
        return bool(self.timeout) or self.deferred or not self.asker.use


class Cached:
    """Takes requests like a `Service`."""

    def __init__(
        self,
        service: Service,
        cache: Cache[Made],
        metrics: ServiceMetrics,
        shared: SharedAnswers | None = None,
        canonical: bool = False,
    ) -> None:
        self._service = service
        self._cache = cache
        self._metrics = CacheMetrics(metrics.registry, metrics.name)
        self._lately = metrics.lately
        self._shared = shared
        self._canonical = canonical
        self._asked = 0
        self._takes = 0
        self._flights: dict[bytes, _Flight] = {}
        self._waiting: dict[int, _Flight] = {}
        self._searching: set[asyncio.Task[None]] = set()
        if shared is not None:
            shared.on_forgotten = self._forget_here

    async def start(self) -> None:
        if self._shared is not None:
            await self._shared.start()

    async def searched(self) -> None:
        """Wait until all cache lookups are done."""
        if self._searching:
            await asyncio.wait(self._searching)

    async def stop(self) -> None:
        if self._shared is not None:
            await self._shared.stop()

    def measure(self) -> None:
        """Set the gauges that are computed only when metrics are scraped."""
        self._metrics.now(len(self._cache), self._cache.size, self._cache.evicted)

    async def forget(self) -> bool:
        """Clear the cache. Returns whether all gateways were notified; the others are notified later."""
        self._forget_here()
        return self._shared is None or await self._shared.forget()

    # --- questions ---------------------------------------------------------------------------------------------------

    def ask(self, body: bytes, tell: Tell, timeout: int = 0, deferred: bool = False, asker: Asker = ANYBODY) -> int:
        """See `Service.ask`."""
        self._asked += 1
        handle, key, now = self._asked, self._key(asker.tenant, body), time.monotonic_ns()
        kept = self._cache.get(key, now) if asker.use else None
        if asker.use:
            self._metrics.looked_up("process", hit=kept is not None)
        if kept is not None:
            self._metrics.answered(hit=True)
            self._lately.cached(now)
            tell(_noted(kept.answer, self._hit(now - kept.made)))
            return handle
        flight = _Flight(key, asker, body, timeout, deferred)
        if not flight.is_alone:
            flight = self._flights.setdefault(key, flight)
            if flight.tells:
                self._metrics.collapsed("process")
        flight.tells[handle] = tell
        self._waiting[handle] = flight
        if len(flight.tells) == 1:
            self._begin(flight)
        return handle

    def cancel(self, number: int) -> None:
        """See `Service.cancel`. Cancels at the service when no other client waits for the answer."""
        flight = self._waiting.pop(number, None)
        if flight is None:
            return
        del flight.tells[number]
        if flight.tells:
            return
        self._land(flight)
        if flight.number:
            self._service.cancel(flight.number)
            self._share(flight, None)
        elif flight.search is not None:
            flight.search.cancel()

    def _key(self, tenant: str, body: bytes) -> bytes:
        if self._canonical and len(body) <= MOST_READ:
            body = canonical(body)
        return blake2b(body, digest_size=32, key=blake2b(tenant.encode(), digest_size=32).digest()).digest()

    def _begin(self, flight: _Flight) -> None:
        if self._shared is None or not self._shared.is_there:
            self._send(flight)
            return
        flight.shared = self._shared.key(flight.key)
        if not flight.asker.use:
            self._send(flight)
            return
        flight.search = asyncio.create_task(self._search(self._shared, flight))
        self._searching.add(flight.search)
        flight.search.add_done_callback(self._searching.discard)

    async def _search(self, shared: SharedAnswers, flight: _Flight) -> None:
        found = await shared.find(flight.shared, self._takes, flight.is_alone)
        flight.errand = found.errand
        if found.answer is None:
            self._send(flight)
            return
        self._keep(flight, found.answer, found.age)
        note = self._hit(found.age, "; detail=redis")
        self._tell(flight, found.answer, note)

    def _send(self, flight: _Flight) -> None:
        """Send the request to the service, with the remaining timeout."""
        flight.sent = time.monotonic_ns()
        timeout = max(1, flight.timeout - (flight.sent - flight.began)) if flight.timeout else 0
        flight.number = self._service.ask(
            flight.body, partial(self._told, flight), timeout, flight.deferred, Asker(client=flight.asker.client)
        )

    # --- answers -----------------------------------------------------------------------------------------------------

    def _told(self, flight: _Flight, told: Answer | Refuse) -> None:
        if isinstance(told, Refuse):
            self._share(flight, None)
            self._tell(flight, told)
            return
        took = time.monotonic_ns() - flight.sent
        self._takes = int(OF_LATE * took + (1 - OF_LATE) * self._takes) if self._takes else took
        is_kept = told.status == 200 and flight.asker.keep
        if is_kept:
            self._keep(flight, told, 0)
        self._share(flight, told if is_kept else None)
        why = "fwd=miss" if flight.asker.use else "fwd=request"
        note = f"cache-status: poise; {why}{'; stored' if is_kept else ''}"
        self._tell(flight, told, note)

    def _tell(self, flight: _Flight, told: Answer | Refuse, note: str = "") -> None:
        """Answer all waiting clients. The note marks collapsed requests after the first."""
        self._land(flight)
        is_hit, now = not flight.sent, time.monotonic_ns()
        for handle, tell in flight.tells.items():
            del self._waiting[handle]
            self._metrics.answered(hit=is_hit)
            if is_hit:
                self._lately.cached(now)
            tell(_noted(told, note) if isinstance(told, Answer) else told)
            note = note if is_hit or note.endswith(COLLAPSED) else note + COLLAPSED

    def _keep(self, flight: _Flight, answer: Answer, age: int) -> None:
        if not flight.is_old:
            made = time.monotonic_ns() - age
            self._cache.put(flight.key, Made(answer, made), len(answer.body), made, flight.asker.tenant)
            self._metrics.kept("process")

    def _share(self, flight: _Flight, answer: Answer | None) -> None:
        if self._shared is not None and flight.shared:
            self._shared.keep(flight.shared, answer, flight.errand)

    def _hit(self, age: int, more: str = "") -> str:
        left = max(0, self._cache.ttl - age)
        return f"age: {age // SECOND}\r\ncache-status: poise; hit; ttl={left // SECOND}{more}"

    def _land(self, flight: _Flight) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    def _forget_here(self) -> None:
        """Clear the cache of this process. Pending answers are still delivered, but not cached."""
        self._cache.clear()
        for flight in self._waiting.values():
            flight.is_old = True
        self._flights.clear()


def _noted(answer: Answer, note: str) -> Noted:
    return Noted(answer.status, answer.kind, answer.body, note)


def canonical(body: bytes) -> bytes:
    """Canonical form of a JSON body: sorted keys, no spaces. Other bodies are returned unchanged."""
    try:
        return msgspec.json.encode(msgspec.json.decode(body), order="sorted")
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return body


__all__ = ["Cached", "Made", "Noted", "canonical"]
