"""Measure the interactive commands, and the startup of Poise.

    python benchmarks/starting.py [--rounds 11] [--json]

Each round uses a new state directory: `python -c pass` as the floor, `poise run -- true` with nothing running, three
times the same with everything up, and `poise ls`; then, in another one, the CPU that `poise up` and the processes that
it starts have used when it ends. Poise is compiled to bytecode first, as after pip.
"""

import argparse
import compileall
import resource
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from time import perf_counter

import harness
from harness import Figure, ratio

import poise
from poise.client import Client

POISE = Path(sys.executable).with_name("poise")
RUN = (str(POISE), "run", "--", "true")
FIRST_SECONDS, NEXT_SECONDS, LIST_SECONDS, START_SECONDS = 0.6, 0.1, 0.08, 0.4
NEXT = 3
"""Number of runs per round with everything up; the median counts, because the first can start another keeper."""


def measure(rounds: int) -> list[Figure]:
    """Return all figures; those of commands also as multiples of the floor of their round."""
    compileall.compile_dir(Path(poise.__file__).parents[1], quiet=1)
    took: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        before = _of_children()
        took["floor"].append(seconds(sys.executable, "-c", "pass"))
        took["floor's CPU"].append(_of_children() - before)
        with harness.own_home() as home:
            environ = harness.environ_of(home)
            took["first"].append(seconds(*RUN, environ=environ))
            took["next"].append(median(seconds(*RUN, environ=environ) for _ in range(NEXT)))
            took["ls"].append(seconds(str(POISE), "ls", environ=environ))
        with harness.own_home() as home:
            took["start"].append(start(harness.Fleet(home, Client(home))))
    commands = (
        ("poise run -- true, nothing running", "first", FIRST_SECONDS),
        ("poise run -- true, everything up", "next", NEXT_SECONDS),
        ("poise ls", "ls", LIST_SECONDS),
    )
    figures = [Figure(name="python -c pass", unit="s", values=took["floor"])]
    for name, what, limit in commands:
        figures.append(Figure(name=name, unit="s", values=took[what], limit=limit))
        figures.append(ratio("  times python -c pass", took[what], took["floor"]))
    return [
        *figures,
        Figure(name="poise up, and what it starts: CPU", unit="s", values=took["start"], limit=START_SECONDS),
        ratio("  times python -c pass", took["start"], took["floor's CPU"]),
    ]


def seconds(*command: str, environ: dict[str, str] | None = None) -> float:
    begun = perf_counter()
    subprocess.run(command, check=True, env=environ, stdin=subprocess.DEVNULL, capture_output=True)
    return perf_counter() - begun


def start(fleet: harness.Fleet) -> float:
    """Return the CPU seconds of `poise up`, and of the processes it started."""
    before = _of_children()
    seconds(str(POISE), "up", environ=harness.environ_of(fleet.home))
    used = _of_children() - before
    return used + sum(used_by(process.pid) for group in fleet.processes().values() for process in group)


def used_by(pid: int) -> float:
    """Return the CPU seconds of a process by its clock, because `/proc` gives only hundredths."""
    scheduler = 2
    return time.clock_gettime((~pid << 3) | scheduler)


def _of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description="what the commands cost that people wait for, and a start")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return harness.program(lambda: measure(options.rounds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
