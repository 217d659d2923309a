"""A service whose answers are kept for a while, and that is asked once where many ask the same at once.

What is asked is told apart by its body, byte by byte. Only answers with 200 are kept. Who asks the same as somebody who
is waiting gets the same answer, or the same refusal, at the same moment; a question with a time of its own, or that may
be deferred, is asked by itself, but finds what is kept.
"""

import time
from functools import partial
from hashlib import blake2b

from poise.gateway.service import Service, Tell
from poise.gateway.service_metrics import ServiceMetrics
from poise.gateway.wire import Answer
from poise.kernel.batcher import Refuse
from poise.kernel.cache import Cache


class _Flight:
    """One question to the service, and everybody who waits for its answer."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.number = 0
        self.tells: dict[int, Tell] = {}


class Cached:
    """Asked and cancelled as a `Service` is."""

    def __init__(self, service: Service, cache: Cache[Answer], metrics: ServiceMetrics) -> None:
        self._service = service
        self._cache = cache
        self._metrics = metrics
        self._asked = 0
        self._flights: dict[bytes, _Flight] = {}
        self._waiting: dict[int, _Flight] = {}

    def ask(self, body: bytes, tell: Tell, timeout: int = 0, deferred: bool = False) -> int:
        """As `Service.ask`."""
        self._asked += 1
        handle, key = self._asked, blake2b(body, digest_size=16).digest()
        kept = self._cache.get(key, time.monotonic_ns())
        self._metrics.looked_up(hit=kept is not None)
        if kept is not None:
            tell(kept)
            return handle
        alone = bool(timeout) or deferred
        flight = None if alone else self._flights.get(key)
        if flight is not None:
            flight.tells[handle] = tell
            self._waiting[handle] = flight
            return handle
        flight = self._waiting[handle] = _Flight(key)
        flight.tells[handle] = tell
        if not alone:
            self._flights[key] = flight
        flight.number = self._service.ask(body, partial(self._told, flight), timeout, deferred)
        return handle

    def cancel(self, number: int) -> None:
        """As `Service.cancel`; the service is told once nobody waits for the answer any more."""
        flight = self._waiting.pop(number, None)
        if flight is None:
            return
        del flight.tells[number]
        if not flight.tells:
            self._forget(flight)
            self._service.cancel(flight.number)

    def _told(self, flight: _Flight, told: Answer | Refuse) -> None:
        self._forget(flight)
        if isinstance(told, Answer) and told.status == 200:
            self._cache.put(flight.key, told, len(told.body), time.monotonic_ns())
        for handle, tell in flight.tells.items():
            del self._waiting[handle]
            tell(told)

    def _forget(self, flight: _Flight) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]


__all__ = ["Cached"]
