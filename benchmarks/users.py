"""Measure how long a command takes to start as another user, beside `posix_spawn` as this one. Needs root.

    python benchmarks/users.py [--rounds 11] [--account NAME] [--json]

A process like a keeper, with the same interpreter and the same modules, starts `true` by turns: by `posix_spawn`, and
as an account with all that Poise does for it (a namespace with its own /tmp and /proc, limits, ids). The time is from
the call until the command has ended. Each round is the median of 100 starts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
from harness import Figure

from poise.drivers import keeper
from poise.drivers.accounts import offered
from poise.model.resources import ANY_ACCOUNT

STARTS = 100
MORE_SECONDS = 0.002

LIKE_A_KEEPER = """
import gc, json, os, statistics, sys, time
import importlib.util as of
spec = of.spec_from_file_location("keeper", sys.argv[1])
keeper = of.module_from_spec(spec)
spec.loader.exec_module(keeper)
owner = keeper.owners()
name, tmp, starts = sys.argv[2], sys.argv[3], int(sys.argv[4])
request = owner.Request({"account": name, "tmp": tmp})
gc.collect(); gc.freeze(); gc.disable()
def plain():
    return os.posix_spawn("/bin/true", ["true"], {}, setsid=True)
def owned():
    return owner.spawn(request, lambda: "/bin/true", ["true"], {})
took = {plain: [], owned: []}
for _ in range(starts):
    for start in took:
        begun = time.perf_counter()
        os.waitpid(start(), 0)
        took[start].append(time.perf_counter() - begun)
print(json.dumps([statistics.median(took[plain]), statistics.median(took[owned])]))
"""


def measure(rounds: int, account: str) -> list[Figure]:
    """Return the time of both, and of the difference in each round."""
    plain, owned = [], []
    with tempfile.TemporaryDirectory(dir="/var/lib") as tmp:
        Path(tmp).chmod(0o777)
        for _ in range(rounds):
            command = [sys.executable, "-I", "-S", "-c", LIKE_A_KEEPER, keeper.__file__, account, tmp, str(STARTS)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            first, second = json.loads(done.stdout)
            plain.append(first)
            owned.append(second)
    more = [long - short for long, short in zip(owned, plain, strict=True)]
    return [
        Figure(name="posix_spawn of `true`, until it has ended", unit="s", values=plain),
        Figure(name="the same as another user", unit="s", values=owned),
        Figure(name="  more than posix_spawn", unit="s", values=more, limit=MORE_SECONDS),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="how long a command takes to start as another user")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--account", default="", help="the account [default: the first of this machine]")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    named = [name for name in offered() if name != ANY_ACCOUNT]
    account = options.account or (named[0] if named else "")
    if not account or os.geteuid() != 0:
        sys.stderr.write("this needs root, and an account of a person on this machine\n")
        return 1
    return harness.program(lambda: measure(options.rounds, account), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
