"""Measure functions on warm workers: Poise compared with Ray tasks and the standard library's pools, in turns.

    python benchmarks/functions.py [--calls 10000] [--items 1000000] [--rounds 5] [--json]

A turn is a separate process with two workers that are up and have been called. *singly*: `calls` calls of a function
that returns its argument, submitted one by one by one caller, with all results awaited. For each call, Poise writes an
acceptance record and a return record to its log, synced; the others store nothing. *map*: `items` items of the same, in
order, each system with its own chunking: `Task.map`, and `imap` of `multiprocessing` with its default (one item per
message) and with 1,000. Figures are calls or items per second.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor

import harness
import peers
from harness import Figure

WORKERS = 2
FEW = 100_000
"""Number of items if each is a separate message: enough for a rate."""

TARGET_TIMES_RAY = 5.0
TURN_SECONDS = 600.0
Turn = dict[str, float]


def same(value: int) -> int:
    return value


def per_second(count: int, results: Callable[[], Iterable[int]]) -> float:
    begun = time.perf_counter()
    total = sum(results())
    seconds = time.perf_counter() - begun
    if total != count * (count - 1) // 2:
        raise RuntimeError(f"the results of {count} calls do not add up")
    return count / seconds


def poise_turn(calls: int, items: int) -> Turn:
    import poise

    task = poise.task(same)
    poise.gather([task.submit(value) for value in range(100)])
    return {
        "singly": per_second(calls, lambda: poise.gather([task.submit(value) for value in range(calls)])),
        "map": per_second(items, lambda: task.map(range(items))),
    }


def pool_turn(calls: int, items: int) -> Turn:
    with ProcessPoolExecutor(WORKERS) as pool:
        list(pool.map(same, range(100)))

        def awaited() -> list[int]:
            return [future.result() for future in [pool.submit(same, value) for value in range(calls)]]

        singly = per_second(calls, awaited)
    with multiprocessing.Pool(WORKERS) as processes:
        processes.map(same, range(100))
        few = min(items, FEW)
        return {
            "singly": singly,
            "imap": per_second(few, lambda: processes.imap(same, range(few))),
            "imap, 1,000 a message": per_second(items, lambda: processes.imap(same, range(items), chunksize=1000)),
        }


def turn_of(name: str, calls: int, items: int) -> Turn:
    """Run one turn in a fresh process. Raises `peers.Absent` if the peer is not installed or does not run."""
    counts = [str(calls), str(items)]
    with harness.own_home() as home, tempfile.TemporaryDirectory(prefix="pb-") as work:
        command = [sys.executable, __file__, "--turn", name, "--calls", counts[0], "--items", counts[1]]
        if name == "ray":
            python = peers.python_of(peers.FOLDER, peers.PEERS["ray-jobs"])
            command = [python, str(peers.SCRIPTS / "ray_tasks.py"), *counts]
        environ = os.environ | {"POISE_HOME": str(home.root), "TMPDIR": work}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TURN_SECONDS, check=False)
    if done.returncode != 0:
        raise peers.Absent(f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}")
    found: Turn = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(calls: int, items: int, rounds: int) -> list[Figure]:
    found: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    for number in range(rounds):
        for name in ("poise", "ray", "pool"):
            try:
                turn = turn_of(name, calls, items)
            except peers.Absent as why:
                missing[name] = str(why)
                continue
            for figure, value in turn.items():
                found.setdefault(f"{name}, {figure}", []).append(value)
        harness.say(f"round {number + 1}: {', '.join(f'{name} {values[-1]:,.0f}/s' for name, values in found.items())}")
    figures = [
        Figure(name=f"functions: {name}", unit="/s", values=values, larger=True) for name, values in found.items()
    ]
    figures += [harness.absent(f"functions: {name}", why) for name, why in missing.items()]
    if len(found.get("ray, singly", ())) == len(found["poise, singly"]):
        times = harness.ratio("functions: singly, times Ray", found["poise, singly"], found["ray, singly"])
        figures.append(Figure(name=times.name, unit="x", values=times.values, limit=TARGET_TIMES_RAY, larger=True))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--turn", choices=("poise", "pool"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        turn = {"poise": poise_turn, "pool": pool_turn}[options.turn]
        print(json.dumps(turn(options.calls, options.items)))
        return 0
    return harness.program(lambda: measure(options.calls, options.items, options.rounds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
