"""Measure the durable log against plain `sqlite3` with the same settings, and the shared stores. Prints JSON.

    python benchmarks/store_rate.py [folder]

The folder should be on the relevant disk; the default is the current folder. Rows of the store are encoded, checksummed
and acknowledged through the writer thread; rows of the plain loop are ready-made bytes. PostgreSQL and three members of
etcd run in the system's folder for temporary files (`make servers` fetches them); `bytes_per_row` is the growth of
etcd's database, all of which counts toward its quota.
"""

import asyncio
import contextlib
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import msgspec
import pytest

from poise.drivers.grouped import GroupedStore
from poise.drivers.led import lease_at, log_at, store_at
from poise.drivers.sqlite import SqliteStore
from poise.units import MINUTE

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

BATCHES = (1, 10, 100)
SECONDS = 1.0  # per figure; short, because the machine is shared
START_ROWS = 100_000


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """A record of about the size and shape of a placement."""

    task: str
    node: str
    epoch: int
    devices: tuple[int, ...]


ROW = Sample(task="train-7f3a/0", node="n03", epoch=4, devices=(0, 1, 2, 3))
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Sample).decode


Opened = Callable[[Callable[[Callable[[], None]], object] | None], GroupedStore]
"""Opens a store with this callback to its owner."""


def in_file(folder: Path) -> Opened:
    return lambda call_soon: SqliteStore(folder / "log.db", encode, decode, call_soon=call_soon)


def shared(url: str) -> Opened:
    def opened(call_soon: Callable[[Callable[[], None]], object] | None) -> GroupedStore:
        store = store_at(url, encode, decode, call_soon=call_soon)
        lease = lease_at(url, holder="benchmark", address="", token="", lasts=MINUTE, on_lost=print)
        store.lead(lease.take())
        lease.release()
        lease.close()
        return store

    return opened


class Acknowledged:
    """Waits on the loop for a revision to become durable."""

    def __init__(self, store: GroupedStore) -> None:
        self._store = store
        self._waiting: tuple[int, asyncio.Future[None]] | None = None
        store.on_durable = self._on_durable

    def _on_durable(self, revision: int) -> None:
        if self._waiting is not None and revision >= self._waiting[0]:
            self._waiting[1].set_result(None)
            self._waiting = None

    async def revision(self, revision: int) -> None:
        if self._store.durable() < revision:
            self._waiting = (revision, asyncio.get_running_loop().create_future())
            await self._waiting[1]


async def store_commits(opened: Opened, batch: int) -> list[float]:
    """Return the seconds per commit of `batch` rows: each is acknowledged before the next is appended."""
    with contextlib.closing(opened(asyncio.get_running_loop().call_soon_threadsafe)) as store:
        acknowledged, rows, last, seconds = Acknowledged(store), [ROW] * batch, 0, []
        for started in ticks():
            last = store.append(rows, expected=last)
            await acknowledged.revision(last)
            seconds.append(perf_counter() - started)
        return seconds


async def store_stream(opened: Opened) -> float:
    """Return the rows per second in batches of 100 when appends do not wait for one another, as in the control
    plane.
    """
    with contextlib.closing(opened(asyncio.get_running_loop().call_soon_threadsafe)) as store:
        acknowledged, rows, last, begun = Acknowledged(store), [ROW] * 100, 0, perf_counter()
        for _ in ticks():
            last = store.append(rows, expected=last)
            if last - store.durable() > 50_000:
                await acknowledged.revision(last)
        await acknowledged.revision(last)
        return last / (perf_counter() - begun)


def plain_commits(folder: Path, batch: int) -> list[float]:
    """Return the same for plain `sqlite3`."""
    connection = sqlite3.connect(folder / "plain.db", isolation_level=None)
    with contextlib.closing(connection):
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE log(revision INTEGER PRIMARY KEY, record BLOB)")
        record, last, seconds = bytes(5) + encode(ROW), 0, []
        for started in ticks():
            connection.execute("BEGIN IMMEDIATE")
            rows = [(revision, record) for revision in range(last + 1, last + batch + 1)]
            connection.executemany("INSERT INTO log VALUES (?, ?)", rows)
            connection.execute("COMMIT")
            last += batch
            seconds.append(perf_counter() - started)
        return seconds


def start(folder: Path) -> dict[str, float]:
    """Return the seconds to open, verify and decode a long log."""
    path = folder / "log.db"
    with contextlib.closing(SqliteStore(path, encode, decode)) as store:
        for last in range(0, START_ROWS, 1000):
            store.append([ROW] * 1000, expected=last)
    begun = perf_counter()
    with contextlib.closing(SqliteStore(path, encode, decode)) as store:
        opened = perf_counter()
        count = sum(1 for _ in store.read())
        done = perf_counter()
    return {"rows": count, "open_and_verify_s": round(opened - begun, 3), "read_and_decode_s": round(done - opened, 3)}


def ticks() -> Iterator[float]:
    end = perf_counter() + SECONDS
    while (now := perf_counter()) < end:
        yield now


def summary(batch: int, seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "rows_per_s": round(batch * len(ordered) / sum(ordered)),
        "p50_ms": round(ordered[len(ordered) // 2] * 1e3, 3),
        "p99_ms": round(ordered[len(ordered) * 99 // 100] * 1e3, 3),
    }


def measure(parent: Path) -> dict[str, object]:
    figures: dict[str, object] = {"sqlite": sqlite3.sqlite_version}
    for batch in BATCHES:
        with tempfile.TemporaryDirectory(dir=parent) as name:
            folder = Path(name)
            figures[f"batch_{batch}"] = {
                "store": summary(batch, asyncio.run(store_commits(in_file(folder), batch))),
                "plain": summary(batch, plain_commits(folder, batch)),
            }
    with tempfile.TemporaryDirectory(dir=parent) as name:
        figures["stream_of_100_rows_per_s"] = round(asyncio.run(store_stream(in_file(Path(name)))))
    with tempfile.TemporaryDirectory(dir=parent) as name:
        figures["start"] = start(Path(name))
    for kind in ("postgres", "etcd"):
        with contextlib.suppress(pytest.skip.Exception):
            figures[kind] = measure_shared(kind)
    return figures


def measure_shared(kind: str) -> dict[str, object]:
    from drivers import etcd_server, postgres_server

    with etcd_server.running() if kind == "etcd" else postgres_server.running() as server:

        def size() -> int:
            if not isinstance(server, etcd_server.EtcdServer):
                return 0
            time.sleep(1)  # etcd updates the size at intervals
            return int(server.ask("maintenance/status", {})["dbSizeInUse"])

        figures: dict[str, object] = {}
        for batch in BATCHES:
            url, before = server.database(), size()
            seconds = asyncio.run(store_commits(shared(url), batch))
            found = summary(batch, seconds)
            if kind == "etcd":
                found["bytes_per_row"] = round((size() - before) / batch / len(seconds))
            figures[f"batch_{batch}"] = found
        url = server.database()
        figures["stream_of_100_rows_per_s"] = round(asyncio.run(store_stream(shared(url))))
        begun = perf_counter()
        with contextlib.closing(log_at(url, decode)) as reader:
            figures["read_rows_per_s"] = round(sum(1 for _ in reader.read()) / (perf_counter() - begun))
        return figures


if __name__ == "__main__":
    parent = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    sys.stdout.write(json.dumps(measure(parent), indent=2) + "\n")
