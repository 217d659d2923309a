"""Measure the gain of a cache that gateways share: hits and latency on a recorded trace, in virtual time.

    python benchmarks/cache.py [--trace ../shared/data/mooncake-fast25/synthetic.csv] [--gateways 1,4,16]
        [--ttl 5m,1h] [--look 0.2ms] [--json]

The requests come from Mooncake's trace, where each request has a list of ids: one for each 512 tokens of its prompt,
equal in two requests if these tokens *and all before them* are equal. So there are two operations with exactly known
keys:

* `answer`: the whole request. The same ids and the same number of tokens are the same request; its duration is the
  twin's for its prompt and its answer on an H100.
* `block`: a stage that reads one block in its context and returns a vector of 3 KiB (an embedding, say); an id is a
  key. Its duration is that of 512 tokens of a prompt. A request asks for its blocks one after the other.

Requests arrive at their recorded times, at the gateways in turn. There is no queue: a model is always free. Answers are
cached by the gateways' own `Cache`, 64 MiB each and for five minutes (for four gateways also for an hour), and by a
model of the Redis, limited only by time; an answer that is not complete is not cached yet. A request for an operation
in progress waits for it: within its gateway, and with a Redis across all gateways, where it polls with the pauses of
`poise_serve/shared_answers.py`. The duration and the CPU time of a Redis lookup are measured on a real one (`make
servers`) with the gateways' own client; `--look` sets the duration, so that results are the same on every machine.

Then the same blocks at one gateway, beside another tenant that asks ten times as often and never repeats a key: the
hits of the first tenant with one list for all, and with a fair share for each.
"""

import argparse
import asyncio
import csv
import heapq
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from statistics import fmean, median
from time import monotonic, perf_counter, process_time, sleep
from typing import NamedTuple

import harness
from harness import Figure, percentile

from poise.units import HOUR, MILLISECOND, MINUTE, SECOND, format_duration, parse_duration
from poise_lab.traces.requests import PACES
from poise_serve.kernel.cache import Cache
from poise_serve.redis import Away, Redis
from poise_serve.shared_answers import PATIENCE, PAUSES

TRACE = Path("../shared/data/mooncake-fast25/synthetic.csv")
GATEWAYS = (1, 4, 16)
SHARED = 4
TTLS = (5 * MINUTE, HOUR)
SIZE = 64 << 20
MORE, LESS = 76 / 42, 65 / 180
"""Claimed ratios of sharing: of the hit rate and of the latency on the trace."""

TOKENS = 512
VECTOR = 3 << 10
"""Bytes of a vector: 384 numbers in JSON, or 768 in binary."""

PACE = PACES["H100"]
PER_TOKEN = 4
"""Bytes of a token of an answer."""

NOISE = 10
"""Number of requests of the non-repeating tenant per request of the other one."""

LOOKS = 2000
SERVER = Path(sys.prefix) / "debian/usr/bin/redis-server"


class Operation(NamedTuple):
    """An operation: its key, its duration (nanoseconds), and the bytes of its answer."""

    key: bytes
    takes: int
    size: int


class Request(NamedTuple):
    at: int
    operations: list[Operation]


class Told(NamedTuple):
    """Results of a replay: the hit rate of the operations, and the durations of operations and whole requests in
    milliseconds.
    """

    hits: float
    operations: list[float]
    requests: list[float]


# --- what is asked ---------------------------------------------------------------------------------------------------


def read(trace: Path) -> tuple[list[Request], list[Request]]:
    """Read the requests as whole answers and as blocks."""
    answers, blocks = [], []
    block = int(TOKENS * PACE.prompt * SECOND)
    with trace.open(newline="") as file:
        for row in csv.DictReader(file):
            at = int(row["arrival_ms"]) * MILLISECOND
            asked, told, ids = int(row["input_tokens"]), int(row["output_tokens"]), row["prefix_block_ids"]
            takes = int((asked * PACE.prompt + told * PACE.token) * SECOND)
            answers.append(Request(at, [Operation(f"{asked} {ids}".encode(), takes, told * PER_TOKEN)]))
            blocks.append(Request(at, [Operation(one.encode(), block, VECTOR) for one in ids.split()]))
    return answers, blocks


def repeated(requests: Sequence[Request]) -> float:
    """Return the fraction of operations that were asked before: the upper bound of any cache's hit rate."""
    keys = [one.key for request in requests for one in request.operations]
    return 1 - len(set(keys)) / len(keys)


# --- virtual time ----------------------------------------------------------------------------------------------------


def replay(requests: Sequence[Request], gateways: int, ttl: int, look: int | None) -> Told:
    """Replay the requests. `look` is the duration of a Redis lookup in nanoseconds; without it, each gateway has only
    its own cache.
    """
    own = [Cache[bool](SIZE, ttl) for _ in range(gateways)]
    redis = Cache[bool](1 << 60, ttl)
    asked: dict[tuple[int, bytes], int] = {}  # completion instant by gateway; -1 for all
    hits = 0
    operations: list[float] = []
    took: list[float] = []
    turn = count()
    todo: list[tuple[int, int, Callable[[int], None]]] = []

    def later(at: int, what: Callable[[int], None]) -> None:
        heapq.heappush(todo, (at, next(turn), what))

    def begin(request: Request, place: int, began: int, now: int) -> None:
        """Start the operation at this place of the request."""
        nonlocal hits
        if place == len(request.operations):
            took.append((now - began) / MILLISECOND)
            return
        gateway, one = took_by[id(request)], request.operations[place]

        def go_on(at: int) -> None:
            operations.append((at - now) / MILLISECOND)
            begin(request, place + 1, began, at)

        def keep(at: int) -> None:
            if asked.get((gateway, one.key)) == at:
                del asked[gateway, one.key]
            own[gateway].put(one.key, True, one.size, at)
            go_on(at)

        def answered(at: int) -> None:
            del asked[-1, one.key]
            redis.put(one.key, True, one.size, at)

        def looked(at: int) -> None:
            """Handle the result of a lookup in the Redis."""
            nonlocal hits
            if redis.get(one.key, at):
                hits += 1
                keep(at)
            elif (end := asked.get((-1, one.key))) is not None:
                found = again(at, end, look or 0)
                asked[gateway, one.key] = found
                later(found, keep)
            else:
                end = at + (look or 0) + one.takes  # claim the operation first
                asked[-1, one.key] = asked[gateway, one.key] = end
                later(end, answered)
                later(end, keep)

        if own[gateway].get(one.key, now):
            hits += 1
            go_on(now)
        elif (end := asked.get((gateway, one.key))) is not None:
            later(end, go_on)
        elif look is not None:
            later(now + look, looked)
        else:
            asked[gateway, one.key] = now + one.takes
            later(now + one.takes, keep)

    took_by = {id(request): number % gateways for number, request in enumerate(requests)}
    for request in requests:
        later(request.at, lambda at, request=request: begin(request, 0, at, at))  # type: ignore[misc]
    while todo:
        at, _, what = heapq.heappop(todo)
        what(at)
    return Told(hits / len(operations), operations, took)


def again(now: int, end: int, look: int) -> int:
    """Return when a waiting gateway finds the answer that is ready at `end`."""
    pause = PAUSES[0]
    while True:
        now += pause + look
        if now >= end:
            return now
        pause = min(2 * pause, PAUSES[1])


def beside_noise(requests: Sequence[Request], ttl: int, *, fair: bool) -> float:
    """Return the hit rate while another tenant asks `NOISE` times as often."""
    cache, hits, many, noise = Cache[bool](SIZE, ttl), 0, 0, count()
    for request in requests:
        for one in request.operations:
            many += 1
            if cache.get(one.key, request.at):
                hits += 1
            else:
                cache.put(one.key, True, one.size, request.at, "repeats" if fair else "")
            for _ in range(NOISE):
                cache.put(b"noise %d" % next(noise), True, one.size, request.at, "never repeats" if fair else "")
    return hits / many


# --- a real Redis ----------------------------------------------------------------------------------------------------


class Looked(NamedTuple):
    """Milliseconds of each lookup in a real Redis, and the CPU time per lookup."""

    took: list[float]
    computed: float


def real_looks() -> Looked | None:
    """Measure sequential lookups of a cached answer of `VECTOR` bytes; None without a Redis."""
    if not SERVER.exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "redis.sock"
        libraries = ":".join(str(place) for place in SERVER.parents[2].glob("usr/lib/*-linux-gnu"))
        command = [str(SERVER), "--port", "0", "--unixsocket", str(path), "--save", ""]
        server = subprocess.Popen(
            command, cwd=folder, env=os.environ | {"LD_LIBRARY_PATH": libraries}, stdout=subprocess.DEVNULL
        )
        try:
            until = monotonic() + harness.START_SECONDS
            while not path.exists() and monotonic() < until:
                sleep(0.01)
            return asyncio.run(_looks(f"unix://{path}"))
        finally:
            server.kill()
            server.wait()


async def _looks(url: str) -> Looked:
    redis = Redis(url, None, PATIENCE)
    took, computed = [], process_time()
    await redis.put("answer", bytes(VECTOR), MINUTE)
    for _ in range(LOOKS):
        began = perf_counter()
        try:
            await redis.get("answer")
        except Away:
            continue
        took.append((perf_counter() - began) * 1e3)
    computed = (process_time() - computed) / LOOKS * 1e3
    await redis.close()
    return Looked(took, computed)


# --- figures ---------------------------------------------------------------------------------------------------------


def measure(trace: Path, gateways: Sequence[int], ttls: Sequence[int], look: int = 0) -> list[Figure]:
    """Run the benchmark. `ttls` are in nanoseconds; the first applies to answers and to every number of gateways, the
    others to four gateways. `look` replaces the measured duration of a lookup.
    """
    looked = None if look or not trace.exists() else real_looks()
    if not trace.exists() or not (look or looked):
        missing = f"{SERVER.name}, which `make servers` fetches" if trace.exists() else str(trace)
        return [harness.absent("hits of a cache that gateways share", f"absent: {missing}")]
    figures = []
    if looked is not None:
        look = int(median(looked.took) * MILLISECOND)
        figures += [
            Figure(name="a look into a Redis on this machine, one after the other", unit="ms", values=looked.took),
            Figure(name="the same, P99", unit="ms", values=[percentile(looked.took, 99)]),
            Figure(name="what a gateway computes for it", unit="ms", values=[looked.computed]),
        ]
    answers, blocks = read(trace)
    for name, requests in (("answer", answers), ("block", blocks)):
        figures.append(Figure(name=f"{name}: was asked before", unit="%", values=[100 * repeated(requests)]))
    cases = [("answer", answers, SHARED, ttls[0])]
    cases += [("block", blocks, many, ttls[0]) for many in gateways]
    cases += [("block", blocks, SHARED, ttl) for ttl in ttls[1:]]
    for name, requests, many, ttl in cases:
        title = f"{name}, {many} gateway{'s' * (many > 1)}, {format_duration(ttl)}"
        figures += _compared(title, replay(requests, many, ttl, None), replay(requests, many, ttl, look))
    for how, fair in (("one list for all", False), ("a fair share for each", True)):
        title = f"block, beside a tenant that never repeats, {how}: hits"
        figures.append(Figure(name=title, unit="%", values=[100 * beside_noise(blocks, ttls[0], fair=fair)]))
    return figures


def _compared(name: str, own: Told, shared: Told) -> list[Figure]:
    """Compare without and with a Redis."""

    def figure(what: str, unit: harness.Unit, value: float) -> Figure:
        return Figure(name=f"{name}: {what}", unit=unit, values=[value])

    made = []
    for how, told in (("each its own", own), ("a Redis behind", shared)):
        made += [
            figure(f"{how}, hits", "%", 100 * told.hits),
            figure(f"{how}, an operation", "ms", fmean(told.operations)),
            figure(f"{how}, a request", "ms", fmean(told.requests)),
            figure(f"{how}, a request, P99", "ms", percentile(told.requests, 99)),
        ]
    more = shared.hits / own.hits
    less = fmean(shared.operations) / fmean(own.operations)
    return [
        *made,
        Figure(name=f"{name}: hits over those without", unit="x", values=[more], limit=MORE, larger=True),
        Figure(name=f"{name}: time of an operation over that without", unit="x", values=[less], limit=LESS),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="hits and latency of what gateways keep, each its own and shared")
    parser.add_argument("--trace", type=Path, default=TRACE, help="Mooncake's, as a CSV")
    parser.add_argument("--gateways", default=",".join(map(str, GATEWAYS)), help="how many, of each replay")
    parser.add_argument("--ttl", default=",".join(map(format_duration, TTLS)), help="for how long an answer is good")
    parser.add_argument("--look", default="0s", help="what a look into the Redis takes [default: as measured]")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    gateways = [int(one) for one in options.gateways.split(",")]
    ttls = [parse_duration(one) for one in options.ttl.split(",")]
    look = parse_duration(options.look)
    return harness.program(lambda: measure(options.trace, gateways, ttls, look), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
