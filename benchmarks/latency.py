"""Measure the latency of acknowledged submissions, and the number accepted per second.

    python benchmarks/latency.py [--count 200] [--per-second 20] [--held 20000] [--rounds 3] [--json]

Acknowledged means durable. Single submissions are paced on an idle fleet, each of a command that can start at once, and
timed from the call to its answer. Between two of them, a bare SQLite commit of about a submission's size (WAL, FULL) on
the same disk shows the cost of the disk alone. For the rate, jobs are streamed to a fleet whose node is drained, so
that only their acceptance is measured: from the first line sent to the last durable receipt.
"""

import argparse
import contextlib
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import harness
from harness import NO_OP, Figure, percentile, rate, say

TARGET_P99_MS = 10.0
TARGET_RATE = 2000.0
ROW_BYTES = 256
INSERT = "INSERT INTO log(record) VALUES (?)"


def single(count: int, per_second: float) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each submission, and of each bare commit."""
    pause = 1 / per_second
    submissions, commits = [], []
    with harness.own_fleet(warm=harness.SLOTS) as fleet, contextlib.closing(_bare_log(fleet.home.root)) as bare:
        due = perf_counter()
        for _ in range(count):
            submissions.append(1e3 * _timed(lambda: fleet.client.submit(NO_OP)))
            _sleep_until(due + pause / 2)
            commits.append(1e3 * _timed(lambda: bare.execute(INSERT, (bytes(ROW_BYTES),))))
            due += pause
            _sleep_until(due)
        fleet.until_idle(count, perf_counter())
        fleet.check(harness.SLOTS + count)
    return submissions, commits


def held(count: int) -> float:
    """Return the seconds until `count` streamed jobs, which cannot run, are all durable."""
    with harness.own_fleet() as fleet:
        for node in fleet.client.nodes():
            fleet.client.drain(node.name)
        begun = perf_counter()
        fleet.submit(count)
        seconds = perf_counter() - begun
        left = fleet.client.status().unfinished
        if left != count:
            raise RuntimeError(f"{count} jobs were submitted, {left} are held")
    return seconds


def _bare_log(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE log(revision INTEGER PRIMARY KEY, record BLOB)")
    return connection


def _timed(act: Callable[[], object]) -> float:
    begun = perf_counter()
    act()
    return perf_counter() - begun


def _sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - perf_counter()))


def measure(count: int, per_second: float, held_jobs: int, rounds: int) -> list[Figure]:
    singles, batches = [], []
    for number in range(rounds):
        singles.append(single(count, per_second))
        batches.append(held(held_jobs))
        say(f"round {number + 1}: P99 {percentile(singles[-1][0], 99):.1f} ms, {held_jobs} held in {batches[-1]:.2f} s")

    def at(which: int, percent: float) -> list[float]:
        return [percentile(each[which], percent) for each in singles]

    return [
        Figure(name="submission acknowledged, idle, P50", unit="ms", values=at(0, 50)),
        Figure(name="submission acknowledged, idle, P99", unit="ms", values=at(0, 99), limit=TARGET_P99_MS),
        Figure(name="  bare SQLite commit beside it, P50", unit="ms", values=at(1, 50)),
        Figure(name="  bare SQLite commit beside it, P99", unit="ms", values=at(1, 99)),
        rate(f"submissions accepted in a stream, {held_jobs:,}", held_jobs, batches, limit=TARGET_RATE),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="how soon a submission is acknowledged, and how many per second")
    parser.add_argument("--count", type=int, default=200, help="single submissions in a round")
    parser.add_argument("--per-second", type=float, default=20.0, help="their pace")
    parser.add_argument("--held", type=int, default=20_000, help="submissions in a stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return harness.program(
        lambda: measure(options.count, options.per_second, options.held, options.rounds), as_json=options.json
    )


if __name__ == "__main__":
    sys.exit(main())
