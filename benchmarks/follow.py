"""Measure the cost of syncing a working tree: unchanged, one file changed, new, and large during submissions.

    python benchmarks/follow.py [--files 100000] [--rounds 5] [--json]

The command is `poise submit --sync --hold`, with everything up, in a tree of small files in folders of 100, compared
with the same command without `--sync`. Each round sends a tree that is new to the control plane, sends it again, and
again after a change of one file. The files are old enough that their timestamps are trusted. While the new tree is
sent, another client requests the status every 10 ms: its P99 is compared with that of a quiet control plane, because
that answer waits for the decision loop.
"""

import argparse
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import quantiles
from time import perf_counter

import harness
from harness import Figure, ratio

from poise.client import Client
from poise.config import Home
from poise.drivers.worktree import SETTLED

POISE = Path(sys.executable).with_name("poise")
UNCHANGED_SECONDS, CHANGED_SECONDS = 1.0, 1.5
IN_A_FOLDER = 100
ASK_SECONDS = 0.01


def measure(files: int, rounds: int) -> list[Figure]:
    took: dict[str, list[float]] = defaultdict(list)
    with harness.own_home() as home:
        environ = harness.environ_of(home)
        subprocess.run([str(POISE), "up", "--port", "0"], check=True, env=environ, capture_output=True)
        for number in range(rounds):
            tree = home.root.parent / f"tree-{number}"
            make(tree, files, number)
            time.sleep(2 * SETTLED / 1e9)
            took["plain"].append(submit(tree, environ))
            took["quiet"].append(p99_while(home, quietly)[0])
            send = partial(submit, tree, environ, "--sync")
            beside, first = p99_while(home, send)
            took["beside"].append(beside)
            took["first"].append(first)
            took["unchanged"].append(submit(tree, environ, "--sync"))
            (tree / "d0" / "f0.py").write_text(f"changed in {number}\n")
            took["changed"].append(submit(tree, environ, "--sync"))
    return [
        Figure(name="poise submit, no files", unit="s", values=took["plain"]),
        Figure(name=f"{files} files for the first time", unit="s", values=took["first"]),
        Figure(name=f"{files} files, unchanged", unit="s", values=took["unchanged"], limit=UNCHANGED_SECONDS),
        ratio("  times poise submit", took["unchanged"], took["plain"]),
        Figure(name=f"{files} files, one changed", unit="s", values=took["changed"], limit=CHANGED_SECONDS),
        ratio("  times poise submit", took["changed"], took["plain"]),
        Figure(name="P99 of an answer, quiet", unit="ms", values=[1000 * one for one in took["quiet"]]),
        Figure(name="P99 while the tree is sent", unit="ms", values=[1000 * one for one in took["beside"]]),
        ratio("  times quiet", took["beside"], took["quiet"]),
    ]


def make(tree: Path, files: int, seed: int) -> None:
    """Make a tree of new files."""
    for number in range(files):
        folder = tree / f"d{number // IN_A_FOLDER}"
        if number % IN_A_FOLDER == 0:
            folder.mkdir(parents=True)
        (folder / f"f{number % IN_A_FOLDER}.py").write_text(f"{seed} {number}\n" * 20)


def submit(tree: Path, environ: dict[str, str], *flags: str) -> float:
    """Return the seconds of the command."""
    begun = perf_counter()
    command = [str(POISE), "submit", "--hold", "-q", *flags, "--", "true"]
    subprocess.run(command, check=True, env=environ, cwd=tree, stdin=subprocess.DEVNULL, capture_output=True)
    return perf_counter() - begun


def quietly() -> float:
    """Do nothing for a while."""
    time.sleep(2)
    return 2.0


def p99_while(home: Home, act: Callable[[], float]) -> tuple[float, float]:
    """Return the P99 of the answers, in seconds, while `act` runs, and the result of `act`."""
    over, answers = threading.Event(), list[float]()

    def ask() -> None:
        with Client(home) as client:
            while not over.is_set():
                begun = perf_counter()
                client.status()
                answers.append(perf_counter() - begun)
                time.sleep(ASK_SECONDS)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        found = act()
    finally:
        over.set()
        asking.join()
    return quantiles(answers, n=100)[98], found


def main() -> int:
    parser = argparse.ArgumentParser(description="what it costs to bring a working tree along")
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return harness.program(lambda: measure(options.files, options.rounds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
