"""Workloads drawn from a trace: blocks of its jobs, in random order, with the gaps between their arrivals."""

import random

import msgspec

from poise.model.workload import Arrival, Workload

BLOCK = 10
"""Number of consecutive jobs that stay together, so that bursts survive."""


def drawn(workload: Workload, seed: int, jobs: int, load: float = 1.0) -> Workload:
    """Return a workload of `jobs` jobs; `load` divides the gaps between arrivals."""
    chance = random.Random(seed)  # noqa: S311 what a seed decides is no secret
    arrivals = tuple(workload.arrivals)
    made: list[Arrival] = []
    at = 0
    while len(made) < jobs:
        first = chance.randint(0, max(0, len(arrivals) - BLOCK))
        for place in range(first, min(first + BLOCK, len(arrivals))):
            if place and made:
                at += round((arrivals[place].at - arrivals[place - 1].at) / load)
            made.append(msgspec.structs.replace(arrivals[place], at=at, name=""))  # a job may be drawn twice
    return msgspec.structs.replace(workload, name=f"{workload.name}, draw {seed}", arrivals=tuple(made[:jobs]))
