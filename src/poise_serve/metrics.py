"""Prometheus metrics of the front, at `/metrics`.

Metrics use names known to dashboards where they exist: those of vLLM's router (`vllm:...`; `server` is the name of an
upstream here) and Ray Serve (`serve_...`). The others are named `poise_...`.
"""

from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
)

from poise.drivers.exposition import CONTENT_TYPE, text_of
from poise_serve.asgi import Receive, Scope, Send, answer

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Buckets of vLLM's router, with smaller ones added: small models answer in milliseconds."""

MILLISECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 10.0, 100.0, 1000.0, 10_000.0)


class Metrics:
    """The metrics, and an ASGI application that exports them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(name, about, labels, registry=registry)

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(name, about, labels, registry=registry)

        def histogram(name: str, about: str, buckets: Any, *labels: str) -> Histogram:
            return Histogram(name, about, labels, buckets=buckets, registry=registry)

        self.requests = counter("vllm:num_incoming_requests", "Requests for a known model", "model")
        self.errors = counter(
            "vllm:request_errors", "Requests that got an error, by its type", "server", "model", "error_type"
        )
        self.latency = histogram(
            "vllm:request_latency_seconds",
            "Time from the request to the last byte of its answer",
            SECONDS,
            "server",
            "model",
            "status",
        )
        self.running = gauge("vllm:num_requests_running", "Requests that an upstream is processing", "server")
        self.waiting = gauge("vllm:num_requests_waiting", "Requests that wait for room on an upstream", "model")
        self.held = counter(
            "poise_upstream_requests_held", "Requests that waited while no upstream of their model was up", "model"
        )
        self.healthy = gauge("vllm:healthy_pods_total", "1: its probes succeed", "server")
        self.routing = histogram(
            "serve_request_router_fulfillment_time_ms",
            "Time to get an upstream for a request, including waiting",
            MILLISECONDS,
        )
        self.first_byte = histogram(
            "poise_time_to_first_byte_seconds",
            "Time from the request to the first byte of its answer",
            SECONDS,
            "model",
        )
        self.retries = counter("poise_upstream_retries", "Retries after this upstream failed", "server", "reason")
        self.ejected = gauge("poise_upstream_ejected", "1: it failed and gets no requests", "server")
        self.ejections = counter("poise_upstream_ejections", "Number of ejections", "server")
        self.deferred = counter(
            "poise_requests_deferred", "Requests that waited until they could no longer be answered in time", "model"
        )
        self.limit = gauge("poise_upstream_limit", "Current limit of its concurrent requests", "server")
        self.p99 = gauge(
            "poise_upstream_p99_seconds", "P99 latency that its limit last followed, if it follows one", "server"
        )
        self.late = counter("poise_objective_missed", "Answers that took longer than the objective", "model")
        self.fallbacks = counter(
            "poise_model_fallbacks",
            "Requests that another model answered, by the reason",
            "model",
            "fallback",
            "reason",
        )

    def forget(self, server: str) -> None:
        """Remove the current values of an upstream that is no more. Its counts stay."""
        for gauge in (self.running, self.healthy, self.ejected, self.limit, self.p99):
            gauge.remove(server)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", CONTENT_TYPE.encode())]
        await answer(send, 200, text_of(self.registry), headers)
