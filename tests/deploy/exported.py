"""The names of the series that Poise exports, and those that a query asks for."""

import re

from prometheus_client import CollectorRegistry

from poise.control.metrics import METRICS
from poise_serve.keys import Usage
from poise_serve.metrics import Metrics
from poise_serve.service_metrics import Registry

PROCESS = (
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_start_time_seconds",
)
SUFFIXES = ("_bucket", "_count", "_sum")
_QUOTED = re.compile(r'"[^"]*"')
_GROUPED = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_MATCHERS = re.compile(r"\{[^}]*\}|\[[^\]]*\]")
_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
WORDS = frozenset({
    "sum", "count", "max", "min", "avg", "rate", "increase", "histogram_quantile", "absent", "or", "and", "unless",
    "topk", "vector",
})  # fmt: skip
"""Functions and operators of PromQL that the rules and boards use."""


def exported() -> set[str]:
    """Of the control plane and of the gateway: as declared, which tests compare with what is scraped."""
    registry = CollectorRegistry()
    for make in (Registry, Metrics, Usage):
        make(registry)
    names = {*PROCESS, *registry._names_to_collectors}
    for metric in METRICS:
        names |= {f"{metric.name}{of}" for of in SUFFIXES} if metric.kind == "histogram" else {metric.name}
    return names


def metrics_in(query: str) -> set[str]:
    """The names of metrics in a query of PromQL."""
    bare = _MATCHERS.sub(" ", _GROUPED.sub(" ", _QUOTED.sub(" ", query)))
    words = set(_WORD.findall(re.sub(r"(?<![\w:])[0-9.]+(e[0-9]+)?\b", " ", bare)))
    return words - WORDS
