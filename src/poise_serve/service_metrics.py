"""Prometheus metrics of a service. Names known to dashboards are those of Ray Serve, of Triton for the cache, of
Micrometer for its tiers, and of Flagger for canaries. The others are named `poise_...`.
"""

import time
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from poise.drivers.exposition import Given
from poise.model.metrics import Bins, Labels, Metric
from poise.units import MILLISECOND
from poise_serve.lately import Lately

LATENCIES_MS = (1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 2000, 5000, 10_000, 30_000)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

BY_SERVICE = ("deployment",)
REQUESTS = Metric("serve_deployment_request_counter", "counter", "Answered requests", (*BY_SERVICE, "status"))
LATENCY = Metric(
    "serve_deployment_processing_latency_ms",
    "histogram",
    "Time from the arrival of a request to its answer",
    BY_SERVICE,
    LATENCIES_MS,
)
WAIT = Metric(
    "serve_batch_wait_time_ms", "histogram", "Time that a request waited for its batch", BY_SERVICE, LATENCIES_MS
)
EXECUTION = Metric(
    "serve_batch_execution_time_ms", "histogram", "Duration of a batch on its replica", BY_SERVICE, LATENCIES_MS
)
SIZE = Metric("serve_actual_batch_size", "histogram", "Requests in a batch", BY_SERVICE, SIZES)
HISTOGRAMS = (LATENCY, WAIT, EXECUTION, SIZE)
"""Metrics of each request and each batch. `prometheus_client` histograms would take a tenth of the time of a request.
"""


class Registry:
    """The metrics of all services of a gateway."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests: dict[Labels, float] = {}
        self.bins: dict[Metric, dict[Labels, Bins]] = {one: {} for one in HISTOGRAMS}
        registry.register(Given({REQUESTS: self.requests, **self.bins}))
        self.errors = Counter(
            "serve_deployment_error_counter", "Refused requests, by reason", (*BY_SERVICE, "reason"), registry=registry
        )
        self.broken = Counter(
            "poise_batches_broken", "Batches that a model could not answer", (*BY_SERVICE, "reason"), registry=registry
        )
        self.hits = Counter(
            "nv_cache_num_hits_per_model", "Requests that were answered from the cache", BY_SERVICE, registry=registry
        )
        self.misses = Counter(
            "nv_cache_num_misses_per_model", "Requests without an answer in the cache", BY_SERVICE, registry=registry
        )
        self.gets = Counter("cache_gets", "Cache lookups", (*BY_SERVICE, "tier", "result"), registry=registry)
        self.puts = Counter("cache_puts", "Answers written to the cache", (*BY_SERVICE, "tier"), registry=registry)
        self.evictions = Counter(
            "cache_evictions", "Answers evicted to make room for others", (*BY_SERVICE, "tier"), registry=registry
        )
        self.cached = Gauge("cache_size", "Answers in the cache", (*BY_SERVICE, "tier"), registry=registry)
        self.cached_bytes = Gauge(
            "cache_size_bytes", "Bytes of the answers in the cache", (*BY_SERVICE, "tier"), registry=registry
        )
        self.cache_failures = Counter(
            "cache_failures",
            "Requests that continued without a tier, by reason",
            (*BY_SERVICE, "tier", "reason"),
            registry=registry,
        )
        self.collapsed = Counter(
            "cache_collapsed",
            "Requests that waited for the answer to an identical one",
            (*BY_SERVICE, "tier"),
            registry=registry,
        )
        self.held = Counter(
            "poise_requests_held", "Requests that waited while no replica was ready", BY_SERVICE, registry=registry
        )
        self.queued = Gauge("serve_deployment_queued_queries", "Requests that wait", BY_SERVICE, registry=registry)
        self.processing = Gauge(
            "serve_replica_processing_queries", "Requests that replicas are processing", BY_SERVICE, registry=registry
        )
        self._canary_weight = Gauge(
            "flagger_canary_weight",
            "Percentage of requests that the version on trial answers",
            ("name",),
            registry=registry,
        )
        self._canary_status = Gauge(
            "flagger_canary_status", "0: on trial, 1: promoted, 2: rolled back", ("name",), registry=registry
        )
        self.replicas = Gauge(
            "serve_deployment_replica_healthy", "Replicas that are ready", BY_SERVICE, registry=registry
        )
        self.room = Gauge(
            "poise_batch_room",
            "Largest batch for which the replica with the least memory has room; 0 if unknown",
            BY_SERVICE,
            registry=registry,
        )

    def histogram(self, metric: Metric, name: str) -> Bins:
        """Return the histogram of a service."""
        return self.bins[metric].setdefault((name,), Bins(metric.buckets))

    def canary(self, name: str) -> Callable[[float, int], None]:
        """Return a function that sets the canary's share of requests and the state of its trial."""

        def told(part: float, status: int) -> None:
            self._canary_weight.labels(name).set(100 * part)
            self._canary_status.labels(name).set(status)

        return told


class ServiceMetrics:
    """Metrics of one service. `now` is the monotonic time in nanoseconds."""

    def __init__(self, registry: Registry, name: str) -> None:
        self.registry, self.name = registry, name
        self.lately = Lately(time.monotonic_ns())
        self._requests = registry.requests
        self._requests.setdefault((name, "200"), 0)  # a rate needs a zero before the first count
        self._latency, self._wait, self._execution, self._size = (registry.histogram(one, name) for one in HISTOGRAMS)
        self._held = registry.held.labels(name)

    def answered(self, status: int, took: int, now: int, *, patient: bool) -> None:
        """Count an answer. `patient`: the objective does not apply to it."""
        labels = (self.name, str(status))
        self._requests[labels] = self._requests.get(labels, 0) + 1
        self._latency.add(took / MILLISECOND)
        self.lately.answered(status, took, now, patient=patient)

    def sent(self, waits: Sequence[int], now: int) -> None:
        """Count a batch that is sent. `waits`: nanoseconds that each of its requests waited."""
        for wait in waits:
            self._wait.add(wait / MILLISECOND)
        self.lately.sent(len(waits), sum(waits), now)

    def batch(self, size: int, took: int, now: int) -> None:
        self._size.add(size)
        self._execution.add(took / MILLISECOND)
        self.lately.batch(size, now)

    def refused(self, why: str, now: int) -> None:
        self.registry.errors.labels(self.name, why).inc()
        self.lately.refused(why, now)

    def held(self, requests: int) -> None:
        """Count requests that wait while no replica is ready."""
        self._held.inc(requests)

    def broken(self, why: str) -> None:
        self.registry.broken.labels(self.name, why).inc()

    def now(self, queued: int, processing: int, replicas: int, room: int) -> None:
        """Set the gauges when metrics are scraped."""
        self.registry.queued.labels(self.name).set(queued)
        self.registry.processing.labels(self.name).set(processing)
        self.registry.replicas.labels(self.name).set(replicas)
        self.registry.room.labels(self.name).set(room)


Tier = Literal["process", "redis"]


class CacheMetrics:
    """Metrics of one service's cache."""

    def __init__(self, registry: Registry, name: str) -> None:
        self._registry, self._name = registry, name
        self._answered = {True: registry.hits.labels(name), False: registry.misses.labels(name)}
        self._gets = {
            (tier, hit): registry.gets.labels(name, tier, "hit" if hit else "miss")
            for tier in get_args(Tier)
            for hit in (True, False)
        }
        self._puts = {tier: registry.puts.labels(name, tier) for tier in get_args(Tier)}
        self._evicted = 0

    def answered(self, *, hit: bool) -> None:
        """Count a request; `hit`: it was answered from any tier of the cache."""
        self._answered[hit].inc()

    def looked_up(self, tier: Tier, *, hit: bool) -> None:
        self._gets[tier, hit].inc()

    def kept(self, tier: Tier) -> None:
        self._puts[tier].inc()

    def collapsed(self, tier: Tier) -> None:
        """Count a request that waited for an identical one, of this gateway, or of another through Redis."""
        self._registry.collapsed.labels(self._name, tier).inc()

    def failed(self, tier: Tier, why: str) -> None:
        self._registry.cache_failures.labels(self._name, tier, why).inc()

    def now(self, entries: int, size: int, evicted: int) -> None:
        """Set the gauges of this process when metrics are scraped; `evicted`: total since the start."""
        self._registry.cached.labels(self._name, "process").set(entries)
        self._registry.cached_bytes.labels(self._name, "process").set(size)
        self._registry.evictions.labels(self._name, "process").inc(evicted - self._evicted)
        self._evicted = evicted


__all__ = ["CacheMetrics", "Registry", "ServiceMetrics", "Tier"]
