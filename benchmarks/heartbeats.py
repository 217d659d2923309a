"""Measure false suspicions and losses of live nodes while their machine is heavily overloaded.

    python benchmarks/heartbeats.py [--nodes 20] [--seconds 12] [--json]

A real control plane, and the agent of each node of a declared fleet, run on two cores of one machine. Each node holds a
job, so that it sends a heartbeat each second, and runs short commands. Then the machine is overloaded: by as many
spinning processes as there are cores, twice and four times as many; and by sixteen times as many plus two that write
and sync the disk of the log. The control plane itself is also stopped (SIGSTOP), repeatedly, while its nodes continue.
It records each heartbeat at the instant by which it measures silence (`heard.py`).

*interval*: from one heartbeat of a node to its next. *late*: the part beyond the promised interval; a node is suspect
after 1 s, and lost after 2 s (on one machine). *false suspicions* and *false losses*: those that the control plane
reported of nodes that were all alive.

*phi accrual* (Hayashibara et al. 2004) is evaluated on the same heartbeats. At each heartbeat it has the mean and the
deviation of up to 1,000 earlier intervals. It takes the node for dead if the next interval is longer than all but one
in 10^threshold of such a normal distribution, with at least 100 ms of deviation, as in Akka; or of an exponential one,
as in Cassandra. *false alarms*: longer intervals while the control plane was not stopped. *waits*: the silence that it
would tolerate after a heartbeat, as the median and the maximum over all heartbeats. For comparison, a limit that is
learned in the simplest way: twice the largest lateness of the last 1,000 heartbeats, with a minimum.
"""

import argparse
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import heard
from harness import Figure, Unit, percentile, program, say
from heard import Note

from poise.drivers.system import boottime
from poise.units import SECOND

CORES = 2
SPIN = "while True: pass"
SYNC = """
import os, sys
data = os.urandom(2**18)
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.seek(0)
        for _ in range(16):
            file.write(data)
            os.fsync(file.fileno())
"""
CHURN_SECONDS = 0.25
WINDOW = 1000
LEAST_WORDS = 10
"""Minimum number of heartbeats of a node before a learning detector decides."""

LEAST_DEVIATION = 0.1
THRESHOLDS = (3, 5, 8, 12)
LEAST_LATENESS = (0.1, 0.3, 0.5)


class Load(NamedTuple):
    """Processes that spin and that sync, and the seconds for which the control plane is alternately stopped and
    running.
    """

    name: str
    spinning: int = 0
    syncing: int = 0
    stopped: float = 0.0


LOADS = (
    Load("idle machine"),
    Load("1 spinning process a core", CORES),
    Load("2 a core", 2 * CORES),
    Load("4 a core", 4 * CORES),
    Load("16 a core and 2 syncing", 16 * CORES, 2),
    Load("control plane stopped for 0.9 s, often", stopped=0.9),
    Load("control plane stopped for 2.5 s, often", stopped=2.5),
)


class Word(NamedTuple):
    """A heartbeat of a node: its arrival, the interval since the previous one, and the part of it beyond the
    promise.
    """

    at: int
    interval: float
    late: float


@contextmanager
def busy(load: Load, folder: Path) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-S", "-c", SPIN]) for _ in range(load.spinning)]
    started += [
        subprocess.Popen([sys.executable, "-S", "-c", SYNC, str(folder / f"sync{number}")])
        for number in range(load.syncing)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def record(nodes: int, seconds: float) -> tuple[list[Note], dict[Load, tuple[int, int]]]:
    """Return the recorded messages, and the time span of each load."""
    spans: dict[Load, tuple[int, int]] = {}
    with heard.fleet(nodes) as fleet, tempfile.TemporaryDirectory(dir=fleet.home.root) as folder:
        for _ in fleet.names:
            fleet.client.submit({"run": ["sleep", "600"], "resources": {"cpu": 1.5}})
        for load in LOADS:
            with busy(load, Path(folder)):
                time.sleep(1)
                begun = boottime()
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    if load.stopped:
                        _stop(fleet.control.pid, load.stopped)
                    else:
                        fleet.client.submit({"run": ["true"], "resources": {"cpu": 0.2}})
                        time.sleep(CHURN_SECONDS)
                spans[load] = begun, boottime()
            say(f"{load.name}: recorded")
            time.sleep(1)
        return fleet.end(), spans


def _stop(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)
    time.sleep(seconds)


def words_of(notes: Sequence[Note]) -> dict[str, list[Word]]:
    """Return the heartbeats of each node, in order."""
    words: dict[str, list[Word]] = {}
    last: dict[str, Note] = {}
    for note in notes:
        if note.kind != "word":
            continue
        before = last.get(note.node)
        if before is not None:
            interval = (note.at - before.at) / SECOND
            words.setdefault(note.node, []).append(Word(note.at, interval, interval - before.every / SECOND))
        last[note.node] = note
    return words


# --- detectors -------------------------------------------------------------------------------------------------------


Detector = Callable[[Sequence[Word]], float]
"""Returns the seconds of silence that the detector tolerates after these heartbeats."""


def normal(threshold: float) -> Detector:
    """Phi accrual as in Akka: the quantile of the normal distribution that is exceeded once in 10^threshold."""
    quantile = statistics.NormalDist().inv_cdf(1 - 10**-threshold)

    def after(words: Sequence[Word]) -> float:
        intervals = [word.interval for word in words]
        mean = math.fsum(intervals) / len(intervals)
        deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in intervals) / len(intervals))
        return mean + quantile * max(LEAST_DEVIATION, deviation)

    return after


def exponential(threshold: float) -> Detector:
    """Phi accrual as in Cassandra."""
    return lambda words: threshold * math.log(10) * math.fsum(word.interval for word in words) / len(words)


def bound(least: float) -> Detector:
    """Tolerate twice the largest lateness, beyond the promised second."""
    return lambda words: 1 + max(least, 2 * max(word.late for word in words))


def would_have(detector: Detector, words: dict[str, list[Word]]) -> tuple[int, list[float]]:
    """Return the detector's false alarms, and its wait after each heartbeat."""
    alarms, waits = 0, []
    for of in words.values():
        known: deque[Word] = deque(maxlen=WINDOW)
        for word in of:
            if len(known) >= LEAST_WORDS:
                waits.append(detector(known))
                alarms += word.interval > waits[-1]
            known.append(word)
    return alarms, waits


# --- figures ---------------------------------------------------------------------------------------------------------


def measure(nodes: int, seconds: float) -> list[Figure]:
    notes, spans = record(nodes, seconds)
    words = words_of(notes)
    learned = {node: [word for word in of if _is_judged(word, spans)] for node, of in words.items()}
    figures: list[Figure] = []
    for load, (begun, ended) in spans.items():
        within = [word for of in words.values() for word in of if begun <= word.at <= ended]
        figures += _intervals(load.name, within)
        held_up = [note.late / SECOND for note in notes if note.kind == "late" and begun <= note.at <= ended]
        figures.append(
            _figure(f"{load.name}: the control plane's loop woke late by at most", "s", [max(held_up, default=0.0)])
        )
        for kind, what in (("suspected", "suspicions"), ("lost", "losses")):
            false = sum(note.kind == kind and begun <= note.at <= ended for note in notes)
            figures.append(_figure(f"{load.name}: false {what}", "", [float(false)], limit=0))
    detectors: list[tuple[str, Detector]] = [(f"phi {of} (normal)", normal(of)) for of in THRESHOLDS]
    detectors += [(f"phi {of} (exponential)", exponential(of)) for of in THRESHOLDS]
    detectors += [(f"twice the largest lateness, {least:g} s at least", bound(least)) for least in LEAST_LATENESS]
    for name, detector in detectors:
        alarms, waits = would_have(detector, learned)
        note = f"of {len(waits):,} intervals"
        figures.append(_figure(f"{name}: false alarms", "", [float(alarms)], note=note))
        figures.append(_figure(f"{name}: waits, median", "s", [statistics.median(waits)]))
        figures.append(_figure(f"{name}: waits, longest", "s", [max(waits)]))
    return figures


def _is_judged(word: Word, spans: dict[Load, tuple[int, int]]) -> bool:
    """Return whether a heartbeat counts: while the control plane itself was stopped, its nodes were not late."""
    return any(begun <= word.at <= ended for load, (begun, ended) in spans.items() if not load.stopped)


def _intervals(load: str, words: Sequence[Word]) -> list[Figure]:
    intervals, late = [word.interval for word in words], [max(0.0, word.late) for word in words]
    found = [(f"{load}: interval, {name}", of) for name, of in _tail(intervals)]
    found += [(f"{load}: late, {name}", of) for name, of in _tail(late)[1:]]
    return [_figure(name, "s", [of], note=f"{len(words):,} words") for name, of in found]


def _tail(values: Sequence[float]) -> list[tuple[str, float]]:
    shares = [("median", 50.0), ("P99", 99.0), ("P99.9", 99.9), ("largest", 100.0)]
    return [(name, percentile(values, share)) for name, share in shares]


def _figure(name: str, unit: Unit, values: list[float], *, limit: float | None = None, note: str = "") -> Figure:
    return Figure(name=name, unit=unit, values=values, limit=limit, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    raise SystemExit(program(lambda: measure(given.nodes, given.seconds), as_json=given.json))


if __name__ == "__main__":
    main()
