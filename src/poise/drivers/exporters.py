"""The load of a node, from existing exporters: Prometheus' node exporter, and NVIDIA's for DCGM.

Counters are read every `REST` seconds; the difference between two reads is the use in between. Names and units:
`node_exporter` 1.x (`node_cpu_seconds_total` and so on), and `dcgm-exporter`'s default counters (`DCGM_FI_DEV_GPU_UTIL`
and so on).
"""

import logging
import time
import urllib.request
from collections.abc import Iterable, Mapping
from http.client import HTTPException
from math import isfinite
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from poise.model.load import Load
from poise.model.usage import MOST

REST = 5.0
TIMEOUT = 2.0
MAX_BYTES = 8 * 2**20

BLANK = 2.0**47
"""From this value on, DCGM means unknown (`DCGM_FP64_BLANK` and, near 2**63, `DCGM_INT64_BLANK`)."""

_log = logging.getLogger("poise.exporters")

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[str, Mapping[Labels, float]]
"""Samples by name of the metric, then by labels."""


class Answer(NamedTuple):
    """The answers of all exporters, and their time (seconds, monotonic)."""

    at: float
    samples: Samples


class Told(NamedTuple):
    """The load, if it is completely known, and the known signals (`model/usage.SIGNALS`)."""

    load: Load | None
    signals: dict[str, int]


class Exporters:
    """The exporters of one node. One that does not answer is logged once, and contributes nothing."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._urls = tuple(urls)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._last: Answer | None = None
        self._silent: set[str] = set()

    def sample(self) -> Told | None:
        """Return load and signals since the last read; None at first, and within `REST` seconds of it."""
        now = time.monotonic()
        if self._last is not None and now < self._last.at + REST:
            return None
        last, self._last = self._last, Answer(now, self._ask())
        return told_by(last, self._last) if last is not None else None

    def _ask(self) -> Samples:
        found: dict[str, dict[Labels, float]] = {}
        for url in self._urls:
            try:
                for name, labels, value in samples_of(self._answer(url)):
                    found.setdefault(name, {})[labels] = value
                self._silent.discard(url)
            except (OSError, HTTPException, ValueError) as error:  # unreachable, too slow, or not metrics
                if url not in self._silent:
                    self._silent.add(url)
                    _log.warning("%s does not tell how busy its node is: %s", url, error)
        return found

    def _answer(self, url: str) -> str:
        """Return an exporter's whole answer. Raises OSError, HTTPException, or ValueError."""
        late = time.monotonic() + TIMEOUT
        data = bytearray()
        with self._opener.open(url, timeout=TIMEOUT) as answer:
            while some := answer.read1(2**16):
                data += some
                if len(data) > MAX_BYTES:
                    raise ValueError(f"it says more than {MAX_BYTES >> 20} MiB")
                if time.monotonic() > late:
                    raise TimeoutError(f"it is not done after {TIMEOUT:.0f} s")
            if answer.length:
                raise ValueError(f"it ended {answer.length} bytes too soon")
        return data.decode()


def samples_of(text: str) -> Iterable[tuple[str, Labels, float]]:
    """Yield name, labels and value of each sample of an exporter's text. Raises ValueError if it is malformed."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            blank = sample.name.startswith("DCGM_") and sample.value >= BLANK
            if isfinite(sample.value) and not blank:
                yield sample.name, tuple(sorted(sample.labels.items())), sample.value


def told_by(before: Answer, now: Answer) -> Told:
    """Return the load and signals between two answers."""
    elapsed = now.at - before.at
    grown = {
        name: {labels: value - before.samples.get(name, {}).get(labels, value) for labels, value in of.items()}
        for name, of in now.samples.items()
    }
    signals = _of_devices(now.samples)
    cpu = grown.get("node_cpu_seconds_total", {})
    everything = sum(cpu.values())
    if elapsed <= 0 or everything <= 0 or min(cpu.values()) < 0:  # a counter that falls has begun anew
        return Told(None, signals)
    idle = sum(value for labels, value in cpu.items() if dict(labels).get("mode") in ("idle", "iowait"))
    cores = len({dict(labels).get("cpu") for labels in cpu})
    signals["cpu"] = _thousandths(1 - idle / everything)
    load1 = _one(now.samples, "node_load1")
    total, available = (
        _one(now.samples, "node_memory_MemTotal_bytes"),
        _one(now.samples, "node_memory_MemAvailable_bytes"),
    )
    if total and available is not None:
        signals["memory"] = _thousandths(1 - available / total)
    if disks := grown.get("node_disk_io_time_seconds_total"):
        signals["disk"] = _thousandths(max(disks.values()) / elapsed)
    if (network := _network(now.samples, grown, elapsed)) is not None:
        signals["network"] = network
    if packages := grown.get("node_rapl_package_joules_total"):
        signals["power"] = _whole(sum(packages.values()) / elapsed * 1000)
    load = Load(
        cpu=signals["cpu"],
        load1=_whole((load1 or 0.0) * 1000 / cores),
        memory=signals.get("memory", 0),
        disk=signals.get("disk", 0),
        network=signals.get("network", 0),
    )
    return Told(load, signals)


def _network(samples: Samples, grown: Samples, elapsed: float) -> int | None:
    """Return the use of the busier direction of the busiest link of known speed, or None."""
    uses = []
    for labels, speed in samples.get("node_network_speed_bytes", {}).items():
        ways = ("node_network_receive_bytes_total", "node_network_transmit_bytes_total")
        if speed > 0:
            uses.append(max(grown.get(way, {}).get(labels, 0.0) for way in ways) / speed / elapsed)
    return _thousandths(max(uses)) if uses else None


def _of_devices(samples: Samples) -> dict[str, int]:
    """Return the mean utilization of all devices, and their total power."""
    signals = {}
    for signal, name in (("device", "DCGM_FI_DEV_GPU_UTIL"), ("device_bandwidth", "DCGM_FI_DEV_MEM_COPY_UTIL")):
        if of := samples.get(name):
            signals[signal] = _thousandths(sum(of.values()) / len(of) / 100)
    used, free = (sum(samples.get(f"DCGM_FI_DEV_FB_{what}", {}).values()) for what in ("USED", "FREE"))
    if used + free > 0:
        signals["device_memory"] = _thousandths(used / (used + free))
    if power := samples.get("DCGM_FI_DEV_POWER_USAGE"):
        signals["device_power"] = _whole(sum(power.values()) * 1000)
    return signals


def _one(samples: Samples, name: str) -> float | None:
    return next(iter(samples.get(name, {}).values()), None)


def _thousandths(share: float) -> int:
    return _whole(1000 * min(1.0, share))


def _whole(amount: float) -> int:
    """Clamp a value to the range of messages: an invalid message would disconnect the node."""
    return round(min(float(MOST), max(0.0, amount)))
