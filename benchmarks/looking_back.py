"""Measure the time and the memory to replay a full log of a large fleet.

    python benchmarks/looking_back.py [--nodes 10000] [--records 1000000] [--json]

A log of `--records` records is generated for a fleet with eight devices per node: jobs of one device that are
submitted, placed, started and done, one in fifty failed. Then the dashboard's follower reads it and gets the requests
of a page: for the first picture (40 rows, 1,200 pixels), for windows of all sizes and positions, and for past instants
all over the log.
"""

import argparse
import json
import random
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import msgspec
from harness import percentile, say

from poise.config import Home
from poise.dashboard import chronicle as module
from poise.dashboard.chronicle import Book, Chronicle
from poise.dashboard.past import _bars
from poise.drivers.past import Moment
from poise.drivers.sqlite import SqliteStore
from poise.kernel.ledger import Ledger
from poise.model.decisions import Spot, Why
from poise.model.events import (
    Began,
    Event,
    Finished,
    JobSubmitted,
    NodeJoined,
    Placed,
    Started,
    decode_event,
    encode_event,
)
from poise.model.jobs import Ending, Job
from poise.model.resources import Device, Node
from poise.testing import WALL, World
from poise.units import SECOND

DEVICES = 8
ROWS, PIXELS = 40, 1200
ASKED = 40
CHECKPOINT_EVERY = 20_000


def template() -> Job:
    """Return a job of one device, as submitted."""
    world = World().nodes(1, gpus=1).job("train", gpu=1)
    (event,) = (event for event in world.log if isinstance(event, JobSubmitted))
    return event.job


def events(nodes: int, records: int, seed: int) -> Iterator[Event]:
    """Yield the events of jobs on the fleet's devices, each placed as soon as its device is free."""
    draw = random.Random(seed)
    now = SECOND
    yield Began(at=now, term=1, policy="fifo", history=10_000, version="", boot="boot", boottime=now, wall=WALL)
    for number in range(nodes):
        devices = tuple(Device(index=index, memory=2**34, uuid=f"{number}-{index}") for index in range(DEVICES))
        yield NodeJoined(
            at=now, node=Node(name=f"n{number}", incarnation="1", cpu=64_000, memory=2**38, devices=devices)
        )
    job, count, written = template(), 0, nodes + 1
    free = [(number, index) for number in range(nodes) for index in range(DEVICES)]
    draw.shuffle(free)
    running: list[tuple[int, int, int, int]] = []
    while written < records:
        now += draw.randrange(20_000_000)
        count += 1
        name = f"j{count}"
        if not free or (running and draw.random() < 0.5):
            placed, at, node, device = running.pop(draw.randrange(len(running)))
            failed = draw.random() < 0.02
            ending = Ending(outcome="failed" if failed else "done", code=int(failed), run=now - at)
            yield Finished(at=now, task=f"j{placed}.main", epoch=1, ending=ending)
            free.append((node, device))
            count -= 1
            written += 1
            continue
        place = draw.randrange(len(free))
        free[place], free[-1] = free[-1], free[place]
        node, device = free.pop()
        unit = msgspec.structs.replace(job.units[0])
        yield JobSubmitted(at=now, job=msgspec.structs.replace(job, id=name, name="", units=(unit,)))
        spot = Spot(node=f"n{node}", devices=(device,))
        yield Placed(at=now, unit=f"{name}.main", epoch=1, spots=(spot,), why=Why(policy="fifo", rank="medium"))
        now += 1_000_000
        yield Started(at=now, task=f"{name}.main", epoch=1)
        running.append((count, now, node, device))
        written += 3


def write(home: Home, nodes: int, records: int) -> int:
    """Write the log, with occasional checkpoints like a control plane; return its last revision."""
    home.root.mkdir()
    store = SqliteStore(home.log, encode_event, decode_event)
    ledger = Ledger()
    batch: list[Event] = []
    written = 0
    for event in events(nodes, records, seed=1):
        batch.append(event)
        ledger.apply(event)
        if len(batch) == CHECKPOINT_EVERY:
            written = store.append(batch, expected=written)
            store.checkpoint(written, ledger.compressed())
            batch = []
    written = store.append(batch, expected=written)
    store.close()
    return written


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(nodes: int, records: int) -> dict[str, float]:
    module.PATIENCE = 3600.0
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home")
        say(f"writing a log of {records:,} records")
        write(home, nodes, records)
        chronicle, before = Chronicle(home), memory()
        begun = perf_counter()
        chronicle.ask(lambda book: None)
        recent = perf_counter() - begun
        while not chronicle.ask(lambda book: chronicle._is_complete):
            time.sleep(0.1)
        read = perf_counter() - begun
        grown = memory() - before

        def picture(book: Book, since: int, until: int, first: int) -> bytes:
            told = book.window(book.ledger.now, since, until, pixels=PIXELS, first=first, count=ROWS)
            return msgspec.json.encode(_bars(told))

        last = chronicle.ask(lambda book: book.ledger.now)
        total = chronicle.ask(lambda book: book.window(last, 0, last, pixels=1, count=1).total)
        begun = perf_counter()
        chronicle.ask(lambda book: picture(book, last - 900 * SECOND, last, 0))
        first = perf_counter() - begun
        draw = random.Random(2)
        windows, sizes = [], []
        for _ in range(ASKED):
            span = int(last * draw.random() ** 4) + SECOND
            since = draw.randrange(max(1, last - span))
            row = draw.randrange(total)
            begun = perf_counter()
            sizes.append(len(chronicle.ask(lambda book: picture(book, since, since + span, row))))  # noqa: B023
            windows.append(perf_counter() - begun)
        moments = []
        for _ in range(ASKED // 4):
            begun = perf_counter()
            chronicle.at(Moment(revision=draw.randrange(nodes + 2, records)))
            moments.append(perf_counter() - begun)
    return {
        "s until recent pictures": recent,
        "s until the whole log": read,
        "MiB more": grown,
        "rows": float(total),
        "first picture, ms": 1000 * first,
        "window, ms, median": 1000 * percentile(windows, 50),
        "window, ms, P99": 1000 * percentile(windows, 99),
        "window, KiB, largest": max(sizes) / 1024,
        "past moment, s, median": percentile(moments, 50),
        "past moment, s, longest": max(moments),
        "threads": float(threading.active_count()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    told = measure(given.nodes, given.records)
    if given.json:
        print(json.dumps(told))
        return
    for name, value in told.items():
        print(f"{name:26} {value:,.2f}")


if __name__ == "__main__":
    main()
