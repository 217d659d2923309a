"""Metrics as Prometheus' text, for the gateway and the control plane."""

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from poise.model.metrics import Bins, Families, Metric, Values

disable_created_metrics()  # type: ignore[no-untyped-call]  # the start time of every series doubles the text


def text_of(registry: CollectorRegistry) -> bytes:
    """Return the metrics of a registry."""
    return generate_latest(registry)


def text(families: Families) -> bytes:
    """Return these metrics, and those of this process (CPU, memory, open files, start time)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Given(families))
    ProcessCollector(registry=registry)
    return text_of(registry)


class Given(Collector):
    """Collects the current values of these metrics. Another thread may add labels during a collection."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterator[Family]:
        for metric, values in self._families.items():
            yield _histogram(metric, values) if metric.kind == "histogram" else _plain(metric, values)

    def describe(self) -> Iterator[Family]:
        """Return the metrics, including those that have no labels yet."""
        return self.collect()


def _plain(metric: Metric, values: Values) -> Family:
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = make(metric.name, metric.about, labels=metric.labels)
    for labels, value in list(values.items()):
        if isinstance(value, Bins):
            raise TypeError(f"{metric.name} is no histogram")
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, values: Mapping[tuple[str, ...], object]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.about, labels=metric.labels)
    bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
    for labels, bins in list(values.items()):
        if not isinstance(bins, Bins):
            raise TypeError(f"{metric.name} is a histogram")
        family.add_metric(labels, list(zip(bounds, accumulate(bins.counts), strict=True)), bins.total)
    return family


__all__ = ["CONTENT_TYPE", "Given", "text", "text_of"]
