"""The floor for commands: keep two running with `posix_spawn`, no records of any kind. Prints the seconds.

    python -S floor.py COUNT

A process of its own, so that nothing else of a benchmark is waited for, and nothing of it slows the loop.
"""

import os
import sys
from time import perf_counter

SLOTS = 2


def spawn_pool(count: int) -> float:
    """Seconds for `count` runs of `/bin/true`, two at a time."""
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
