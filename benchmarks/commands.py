"""Measure no-op commands on two slots, each submitted separately with its own log records, until all are done.

    python benchmarks/commands.py [--count 1000] [--rounds 5] [--big 10000]
                                  [--peers floor,poise,hyperqueue,slurm,ray-jobs] [--peers-folder DIR] [--json]

Compared with the floor (a bare loop that keeps two running) and the installed peers, in turns, round by round. The
ratio to the floor is taken within each round. `done` means that the end of every job is durable. Peers that need
seconds per job get fewer jobs and rounds, because their rate does not depend on the number.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import harness
import peers
from harness import NO_OP, Figure, absent, rate, ratio, say

TARGET = 1.5
WARM = 20
SLOW_ROUNDS = 2
BIG_ROUNDS = 3
OTHERS = "above 20 % the ratios below say little: the floor suffers most"
SYSTEMS = ("floor", "poise", *(peer.name for peer in peers.PEERS.values() if peer.script))


@dataclass(frozen=True)
class Line:
    """One way to run commands: `turn` returns the seconds for a count."""

    name: str
    turn: Callable[[int], float]
    count: int
    rounds: int


def stream(count: int) -> float:
    """Submit through one connection, with a line and a durable receipt for each job."""
    with harness.own_fleet(warm=WARM) as fleet:
        begun = perf_counter()
        for receipt in fleet.client.submit_stream(NO_OP for _ in range(count)):
            if receipt.error is not None:
                raise RuntimeError(receipt.error.message)
        fleet.until_idle(count, begun)
        seconds = perf_counter() - begun
        fleet.check(WARM + count)
    return seconds


def calls(count: int) -> float:
    """Submit with blocking calls in sequence, each answered when it is durable."""
    with harness.own_fleet(warm=WARM) as fleet:
        begun = perf_counter()
        for _ in range(count):
            fleet.client.submit(NO_OP)
        fleet.until_idle(count, begun)
        seconds = perf_counter() - begun
        fleet.check(WARM + count)
    return seconds


def lines(systems: Sequence[str], folder: Path, count: int, rounds: int) -> list[Line]:
    """Return the measured systems of each round, in order."""

    def peer(name: str, mode: str) -> Callable[[int], float]:
        return lambda number: peers.turn(folder, name, mode, number).seconds

    few = min(rounds, SLOW_ROUNDS)
    known = {
        "floor": [Line("floor: posix_spawn, two at a time", harness.floor, count, rounds)],
        "poise": [
            Line("Poise, submitted in a stream", stream, count, rounds),
            Line("Poise, one blocking call after the other", calls, count, rounds),
        ],
        "hyperqueue": [
            Line("HyperQueue, a job each", peer("hyperqueue", "separate"), count, rounds),
            Line("HyperQueue, one job of all", peer("hyperqueue", "one-job"), count, rounds),
        ],
        "slurm": [Line("Slurm, one node", peer("slurm", "separate"), min(30, count), few)],
        "ray-jobs": [Line("Ray Jobs", peer("ray-jobs", "separate"), min(5, count), few)],
    }
    return [line for system in systems for line in known[system]]


def measure(systems: Sequence[str], folder: Path, count: int, rounds: int, big: int) -> list[Figure]:
    """Run the benchmark. `big` adds up to three rounds of that many jobs with the floor and Poise alone."""
    figures = _interleaved(lines(systems, folder, count, rounds), rounds)
    if big:
        rounds = min(rounds, BIG_ROUNDS)
        large = [line for line in lines(systems, folder, big, rounds) if line.turn in (harness.floor, stream)]
        figures += _interleaved(large, rounds)
    return figures


def _interleaved(measured: Sequence[Line], rounds: int) -> list[Figure]:
    seconds: dict[str, list[float]] = defaultdict(list)
    missing: dict[str, str] = {}
    others: list[float] = []
    for number in range(rounds):
        others.append(harness.other_work())
        for line in measured:
            if number >= line.rounds or line.name in missing:
                continue
            try:
                seconds[line.name].append(line.turn(line.count))
            except peers.Absent as reason:
                missing[line.name] = str(reason)
            else:
                say(f"round {number + 1}: {line.name}: {line.count} in {seconds[line.name][-1]:.2f} s")
    figures = [Figure(name="other work on the machine, of a core", unit="%", values=others, note=OTHERS)]
    floor = next((seconds[line.name] for line in measured if line.turn is harness.floor), [])
    for line in measured:
        label = f"{line.name}, {line.count:,}"
        if line.name in missing:
            figures.append(absent(label, missing[line.name]))
            continue
        figures.append(rate(label, line.count, seconds[line.name]))
        if floor and line.turn in (stream, calls):
            limit = TARGET if line.turn is stream else None
            figures.append(ratio(f"  times the floor, {line.count:,}", seconds[line.name], floor, limit=limit))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="no-op commands on two slots, beside a bare loop and other schedulers")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--big", type=int, default=10_000, help="further rounds with so many; 0: none")
    parser.add_argument("--peers", default=",".join(SYSTEMS), help="which to run, with commas between")
    parser.add_argument("--peers-folder", type=Path, default=peers.FOLDER)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    systems = [name for name in options.peers.split(",") if name]
    unknown = [name for name in systems if name not in SYSTEMS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    folder: Path = options.peers_folder.resolve()
    return harness.program(
        lambda: measure(systems, folder, options.count, options.rounds, options.big), as_json=options.json
    )


if __name__ == "__main__":
    sys.exit(main())
