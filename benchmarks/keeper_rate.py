"""Measure the commands per second of two keepers, compared with a bare spawn loop.

    python benchmarks/keeper_rate.py [commands per round]

The floor is `posix_spawn` of `/bin/true`, two at a time, without bookkeeping. It is compared with the same commands
through `Keepers`: including orders, journal, logs, reports and the asyncio side, from queues that were filled before.
Three interleaved rounds; prints the medians as JSON.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from poise.drivers.process import Keepers
from poise.model.messages import Attempt, Ended, Launch, Running
from poise.model.resources import Shape

ROUNDS = 3
SLOTS = 2


def main() -> None:
    commands = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    floors: list[float] = []
    keepers: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            floors.append(floor_rate(commands))
            keepers.append(uvloop.run(keeper_rate(Path(folder, str(number)), commands)))
    floor, kept = statistics.median(floors), statistics.median(keepers)
    answer = {
        "commands": commands,
        "floor_per_second": round(floor),
        "keepers_per_second": round(kept),
        "ratio": round(kept / floor, 3),
        "floors": [round(rate) for rate in floors],
        "keepers": [round(rate) for rate in keepers],
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def floor_rate(commands: int) -> float:
    """Return the commands per second of a bare loop that keeps two running."""
    environment = {"PATH": "/usr/bin:/bin"}
    start = time.perf_counter()
    for number in range(commands):
        if number >= SLOTS:
            os.wait()
        os.posix_spawn("/bin/true", ["/bin/true"], environment)
    for _ in range(SLOTS):
        os.wait()
    return commands / (time.perf_counter() - start)


async def keeper_rate(folder: Path, commands: int) -> float:
    """Return the commands per second of two keepers with filled queues, until the last end has been reported."""
    executor = Keepers(folder / "keepers", folder / "logs")
    all_ended = asyncio.Event()
    left = SLOTS

    def on_change(_: Sequence[Running], ended: Sequence[Ended]) -> None:
        nonlocal left
        left -= len(ended)
        if left == 0:
            all_ended.set()

    executor.on_change = on_change
    await executor.open()
    try:
        for slot in range(SLOTS):  # keepers start on demand; exclude their startup
            executor.start(slot, launch(f"warm[{slot}]"), ())
        await all_ended.wait()
        all_ended.clear()
        launches = [launch(f"true[{number}]") for number in range(commands)]
        left = commands
        start = time.perf_counter()
        for number, order in enumerate(launches):
            executor.start(number % SLOTS, order, ())
        await all_ended.wait()
        rate = commands / (time.perf_counter() - start)
        executor.forget([Attempt(f"j1.true[{number}]", 1) for number in range(commands)])
        executor.forget([Attempt(f"j1.warm[{slot}]", 1) for slot in range(SLOTS)])
    finally:
        await executor.close(quit=True)
    return rate


def launch(task: str) -> Launch:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108 — a folder
    return Launch(attempt=Attempt(f"j1.{task}", 1), argv=("/bin/true",), shape=Shape(), slots=SLOTS, env=environment)


if __name__ == "__main__":
    main()
