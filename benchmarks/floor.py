"""Measure the floor for commands: keep two running with `posix_spawn`, without records. Prints the seconds.

    python -S floor.py COUNT

This is a separate process, so that the rest of a benchmark does not slow the loop down.
"""

import os
import sys
from time import perf_counter

SLOTS = 2


def spawn_pool(count: int) -> float:
    """Return the seconds for `count` runs of `/bin/true`, two at a time."""
    program = "/bin/true"
    begun = perf_counter()
    live, left = 0, count
    while left or live:
        while live < SLOTS and left:
            os.posix_spawn(program, [program], os.environ)
            live += 1
            left -= 1
        os.waitpid(-1, 0)
        live -= 1
    return perf_counter() - begun


if __name__ == "__main__":
    spawn_pool(20)
    print(spawn_pool(int(sys.argv[1])))
