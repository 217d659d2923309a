"""Measure the accuracy of the predicted time of a collective, and project it to 4, 8 and 16 nodes.

    sudo python benchmarks/communication_model.py [--repeats 15] [--json]

Four ranks of one thread each run on nodes of their own whose links are limited by the kernel's token bucket
(`links.py`). Gradient sums and gathers of several sizes are measured with 2, 3 and 4 ranks at several rates. The model
of `poise_train.policy.communication` is fitted to the measurements of 2 and 4 workers, at the lowest and the highest
rate, of every other size. All others are predicted: with 3 workers, at the middle rate, of the sizes between.

The projection uses only the model: none of it was measured. It takes a node of the claim (1,800 samples/s of ResNet-50
alone, 25.6 million weights in buckets that become ready evenly over backward, two thirds of a step) and predicts 4, 8
and 16 of them, with the latency and the share of the wire that were fitted here, over links of typical rates. The claim
for comparison: 7,200, 13,800 and 25,600 samples/s, which is 96 % and 89 % of the scaled rate of four nodes.
"""

import argparse
import os
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter

import links
import msgspec
from harness import Figure, absent, program, say

from poise_train.policy.communication import Costs, Message, Timing, Work, fitted, seconds, step_seconds

WORLDS = (2, 3, 4)
RATES = (50.0, 100.0, 200.0)
"""Megabits a second: slow enough that the link is the bottleneck, with four ranks on two cores."""

SIZES = (256, 512, 1024, 2048, 4096)
"""Sizes of sums in KiB; for gathers, each worker has a quarter of that."""

WITHIN = 10.0
WARM = 2
SECONDS = 1500.0

CLAIMED = {4: 7200.0, 8: 13_800.0, 16: 25_600.0}
WEIGHTS = 25_557_032
NODE_RATE = CLAIMED[4] / 4
NODE_BATCH = 256
BACKWARD = 2 / 3
BUCKETS = 4
GIGABITS = (10, 25, 100)
HANDLING = 1e-10
"""Seconds per byte on hosts with such links: ten gigabytes a second."""


def work(folder: str, rank: int, repeats: int) -> None:
    """Run one rank with all settings in sequence; rank 0 writes the median durations."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(f"{folder}/store", WORLDS[-1]), rank=rank, world_size=WORLDS[-1])
    groups = {world: dist.new_group(list(range(world))) for world in WORLDS}
    told: list[Timing] = []
    for rate in RATES:
        links.limit(rate)
        for world, size, pattern in product(WORLDS, SIZES, ("reduce", "gather")):
            dist.barrier()
            if rank >= world:
                continue
            mine = torch.zeros(size * 256 if pattern == "reduce" else size * 64)
            others = [torch.empty_like(mine) for _ in range(world)]
            taken = []
            for _ in range(WARM + repeats):
                dist.barrier(groups[world])
                begun = perf_counter()
                if pattern == "reduce":
                    dist.all_reduce(mine, group=groups[world])
                else:
                    dist.all_gather(others, mine, group=groups[world])
                taken.append(perf_counter() - begun)
            bytes_a_second = rate * 1e6 / 8
            told.append(Timing(pattern, mine.numel() * 4, world, bytes_a_second, median(taken[WARM:])))  # type: ignore[arg-type]
    if rank == 0:
        Path(f"{folder}/told").write_bytes(msgspec.json.encode(told))
    dist.barrier()
    dist.destroy_process_group()


def measured(repeats: int) -> list[Timing]:
    with tempfile.TemporaryDirectory() as folder, links.nodes(WORLDS[-1]) as nodes:
        rank_of = [sys.executable, __file__, "--repeats", str(repeats), "--rank"]
        links.run([(node, [*rank_of, str(rank)]) for rank, node in enumerate(nodes)], {"OUT": folder}, SECONDS)
        return msgspec.json.decode((Path(folder) / "told").read_bytes(), type=list[Timing])


def known(one: Timing) -> bool:
    """Return whether the model is fitted to a measurement; the others are held out."""
    sizes = sorted({size * 1024 // (1 if one.pattern == "reduce" else 4) for size in SIZES})
    rates = {rate * 1e6 / 8 for rate in (RATES[0], RATES[-1])}
    return one.workers != 3 and one.rate in rates and sizes.index(one.size) % 2 == 0


def held_out(timings: list[Timing], costs: Costs) -> list[Figure]:
    found = []
    others = [one for one in timings if not known(one)]
    say(f"fitted to {len(timings) - len(others)} settings, {len(others)} held out: {costs}")
    off = {
        one: 100 * (seconds(one.pattern, one.size, one.workers, costs.on(one.rate)) / one.seconds - 1) for one in others
    }
    for one, error in sorted(off.items(), key=lambda item: -abs(item[1]))[:5]:
        say(f"  {error:+6.1f} %  {one}")
    for pattern in ("reduce", "gather"):
        errors = [abs(error) for one, error in off.items() if one.pattern == pattern]
        inside = sum(error <= WITHIN for error in errors)
        note = f"{inside} of {len(errors)} within {WITHIN:.0f} %"
        found.append(Figure(name=f"held-out {pattern}: error", unit="%", values=errors, limit=WITHIN, note=note))
        found.append(Figure(name=f"held-out {pattern}: worst error", unit="%", values=[max(errors)], limit=WITHIN))
    return found


def projection(costs: Costs) -> list[Figure]:
    """Return the projection, which uses only the model."""
    compute = NODE_BATCH / NODE_RATE
    backward = BACKWARD * compute
    part = WEIGHTS * 4 // BUCKETS
    messages = tuple(Message(compute - backward * (BUCKETS - bucket - 1) / BUCKETS, part) for bucket in range(BUCKETS))
    node = Work(NODE_BATCH, compute, compute, messages)
    found = []
    for gigabits, (nodes, claim) in product(GIGABITS, CLAIMED.items()):
        link = Costs(*(one._replace(handling=HANDLING) for one in costs)).on(gigabits * 1e9 / 8)
        rate = nodes * NODE_BATCH / step_seconds(node, 1.0, nodes, link)
        found.append(
            Figure(
                name=f"model only: {nodes} nodes, {gigabits} Gbit/s: part of linear",
                unit="%",
                values=[100 * rate / (nodes * NODE_RATE)],
                note=f"{rate:,.0f} samples/s; claimed {claim:,.0f}, {100 * claim / (nodes * NODE_RATE):.0f} %",
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        work(os.environ["OUT"], given.rank, given.repeats)
        return

    def measure() -> list[Figure]:
        missing = links.why_not()
        if missing:
            return [absent("held-out collectives: error", missing)]
        timings = measured(given.repeats)
        costs = fitted([one for one in timings if known(one)])
        return [*held_out(timings, costs), *projection(costs)]

    raise SystemExit(program(measure, as_json=given.json))


if __name__ == "__main__":
    main()
