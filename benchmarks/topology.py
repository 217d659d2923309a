"""Compare ways to sum gradients over nodes with slow links: the time of each, and whether the chosen one is best.

    sudo python benchmarks/topology.py [--repeats 7] [--json]

Workers of one thread each run on nodes of their own, with links that the kernel's token bucket limits to 100 megabits a
second (`links.py`); inside a node there is no limit. Each gang chooses as a session does (`poise_train.topology`), and
then every way is measured, in turns. *Over the ring*: a ring's time over that of the chosen way. *Over the best*: the
chosen way's time over that of the fastest. A letter identifies a worker's node.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import links
import msgspec
from harness import Figure, absent, program, say

PLACED = ("aabb", "abab", "aaabbb", "abcd", "aabbccdd")
MEGABITS = 100.0
SIZES = (1 << 14, 1 << 18, 1 << 21)
NAMES = ("16 KiB", "256 KiB", "2 MiB")
BEST = 1.1
"""Maximum time of a choice over the best: ways that differ by less count as equal."""

SECONDS = 600.0


class Told(msgspec.Struct, frozen=True):
    """Results for one size: the chosen way, and the seconds of each turn by way."""

    size: int
    chosen: str
    taken: dict[str, list[float]]


def work(folder: str, rank: int, world: int, repeats: int) -> None:
    """Run one worker. A turn takes as long as its slowest worker; rank 0 records it."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    from poise_train import topology

    torch.set_num_threads(1)
    links.limit(MEGABITS)
    dist.init_process_group("gloo", store=FileStore(f"{folder}/store", world), rank=rank, world_size=world)
    begun = perf_counter()
    topology.learn(rank, world, form=60.0, talk=60.0)
    learned = perf_counter() - begun
    routes = topology.known()
    assert routes is not None
    told = []
    for size in SIZES:
        taken: dict[topology.Route, list[float]] = {route: [] for route in routes.seconds}
        for turn in range(1 + repeats):
            for route, times in taken.items():
                mine = torch.ones(size // 4)
                dist.barrier()
                begun = perf_counter()
                routes.begin(route, mine)()
                took = torch.tensor(perf_counter() - begun, dtype=torch.float64)
                dist.all_reduce(took, dist.ReduceOp.MAX)
                if turn:
                    times.append(float(took))
        told.append(Told(size, routes.best(size), {str(route): times for route, times in taken.items()}))
    if rank == 0:
        say(f"  chosen after {learned:.2f} s")
        Path(f"{folder}/told").write_bytes(msgspec.json.encode(told))
    dist.barrier()
    topology.forget()
    dist.destroy_process_group()


def measured(placed: str, repeats: int) -> list[Told]:
    with tempfile.TemporaryDirectory() as folder, links.nodes(len(set(placed))) as nodes:
        node_of = dict(zip(sorted(set(placed)), nodes, strict=True))
        rank_of = [sys.executable, __file__, "--world", str(len(placed)), "--repeats", str(repeats), "--rank"]
        ranks = [(node_of[letter], [*rank_of, str(rank)]) for rank, letter in enumerate(placed)]
        links.run(ranks, {"OUT": folder}, SECONDS)
        return msgspec.json.decode((Path(folder) / "told").read_bytes(), type=list[Told])


def figures(placed: str, told: list[Told]) -> list[Figure]:
    found = []
    for name, one in zip(NAMES, told, strict=True):
        times = {route: median(taken) for route, taken in one.taken.items()}
        say(f"{placed} {name}: " + ", ".join(f"{route} {1000 * taken:.1f} ms" for route, taken in times.items()))
        chosen = times[one.chosen]
        ratios = [ring / other for ring, other in zip(one.taken["ring"], one.taken[one.chosen], strict=True)]
        found += [
            Figure(name=f"{placed}, {name}: over the ring", unit="x", values=ratios, note=one.chosen),
            Figure(
                name=f"{placed}, {name}: over the best", unit="x", values=[chosen / min(times.values())], limit=BEST
            ),
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--world", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        work(os.environ["OUT"], given.rank, given.world, given.repeats)
        return

    def measure() -> list[Figure]:
        missing = links.why_not()
        if missing:
            return [absent("ways to add up", missing)]
        return [figure for placed in PLACED for figure in figures(placed, measured(placed, given.repeats))]

    raise SystemExit(program(measure, as_json=given.json))


if __name__ == "__main__":
    main()
