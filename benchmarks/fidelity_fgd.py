"""Compare the fragmentation of shared devices with the published figures of FGD, on the same pods and nodes.

    python benchmarks/fidelity_fgd.py --data ../shared/data/fgd-openb
    python benchmarks/fidelity_fgd.py --pods default --policies random,best-fit,fragmentation,prospects --seeds 3
    python benchmarks/fidelity_fgd.py --plain

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC
2023), and its artifact (hkust-adsl/kubernetes-scheduler-simulator, `expected_results`): 1,523 nodes with 6,212 GPUs.
The pods of a list arrive one by one in random order and never leave; the list is cut or resampled until the demand is
130 % of the GPUs. A pod that does not fit is rejected. The figure is the fraction of all GPUs that is allocated when
the arrived pods have requested 100 % and 130 %; published figures are means of ten orders.

Our figures come from the twin: the same controller, ledger and suite as live, one round for each pod. With `--plain`,
the figures of `random` come from a few independent lines of code: their difference from the published figures is not
due to the twin. `prospects` is our own term, and `poise` the unchanged default policy; both are compared with the best
published figure.
"""

import argparse
import csv
import gzip
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.kernel.messages import Cancel
from poise.model.events import Event, JobSubmitted, Placed
from poise.model.jobs import Task, Unit
from poise.model.resources import WHOLE, Device, Node, Shape, Wants
from poise.model.workload import Arrival, Steady, Truth
from poise.policy.recipe import RECIPES, Recipe
from poise.policy.suites import Suite
from poise.units import MILLISECOND

INFLATED = 1.3
"""Total demand of the pods over the number of GPUs."""

GAP = 10 * MILLISECOND
"""Time between two pods: run times and ends do not matter here."""

FOREVER = Steady(1e9)
MIB = 2**20


def by(term: str) -> Recipe:
    """Return a first-come, first-served recipe that maximizes this term of the node score."""
    return Recipe(name=term, order="arrival", score={term: 1.0}, spread=True)


POLICIES: Mapping[str, tuple[Recipe, str]] = {
    "random": (by("random"), "01-Random"),
    "best-fit": (by("tightness"), "05-BestFit"),
    "fragmentation": (by("fragmentation"), "06-FGD"),
    "prospects": (by("prospects"), "06-FGD"),
    "poise": (RECIPES[0], "06-FGD"),
}
"""The recipe of each policy, and its published name."""


class Run(NamedTuple):
    """One order of the pods under one policy: percent of GPUs allocated by percent requested, and CPU time per pod."""

    pods: str
    policy: str
    seed: int
    allocated: dict[int, float]
    came: int
    milliseconds: float


def nodes_of(data: Path) -> list[Node]:
    """Return the listed nodes. Device memory is ignored."""
    with (data / "openb_node_list_all_node.csv").open() as file:
        return [
            Node(
                name=row["sn"],
                incarnation="1",
                cpu=int(row["cpu_milli"]),
                memory=int(row["memory_mib"]) * MIB,
                devices=tuple(
                    Device(index=index, model=row["model"], uuid=f"{row['sn']}-{index}", share_cap=WHOLE)
                    for index in range(int(row["gpu"]))
                ),
            )
            for row in csv.DictReader(file)
        ]


def shapes_of(data: Path, pods: str) -> list[Shape]:
    """Return the request of each pod of a list."""
    with gzip.open(data / f"openb_pod_list_{pods}.csv.gz", "rt") as file:
        return [_shape(row) for row in csv.DictReader(file)]


def _shape(row: Mapping[str, str]) -> Shape:
    gpus = int(row["num_gpu"])
    models = tuple(filter(None, (row.get("gpu_spec") or "").split("|")))  # some lists lack this column
    return Shape(
        cpu=int(row["cpu_milli"]),
        memory=int(row["memory_mib"]) * MIB,
        gpus=gpus,
        share=int(row["gpu_milli"]) if gpus else WHOLE,
        wants=Wants(models=models),
    )


def inflated(shapes: Sequence[Shape], limit: int, seed: int) -> list[Shape]:
    """Return the pods in random order, cut or resampled to a demand of `limit` thousandths of devices."""
    chance = random.Random(seed)
    pods = list(shapes)
    chance.shuffle(pods)
    asked = sum(map(_asks, pods))
    while asked > limit:
        asked -= _asks(pods.pop(chance.randrange(len(pods))))
    while asked + _asks(more := chance.choice(shapes)) <= limit:
        pods.append(more)
        asked += _asks(more)
    return pods


def _asks(shape: Shape) -> int:
    return shape.gpus * shape.share


def run(data: Path, pods: str, policy: str, seed: int) -> Run:
    """Run every pod in sequence."""
    nodes = nodes_of(data)
    capacity = sum(len(node.devices) for node in nodes) * WHOLE
    shapes = inflated(shapes_of(data, pods), round(INFLATED * capacity), seed)
    gate = Gate()
    recipe, _ = POLICIES[policy]
    twin = Twin(Suite(recipe), Settings(seed=seed), observe=gate.note)
    twin.add_nodes(nodes)
    names = [f"pod-{place}" for place in range(len(shapes))]
    for place, (shape, name) in enumerate(zip(shapes, names, strict=True)):
        twin.arrive(_arrival(place * GAP, shape, name))
        twin.timeline.call_at(place * GAP + GAP // 2, gate.turn_away, twin, name)
    began = time.process_time()
    twin.run(len(shapes) * GAP)
    took = time.process_time() - began
    means = by_demand(shapes, [name in gate.placed for name in names], capacity)
    return Run(pods, policy, seed, means, len(shapes), 1000 * took / len(shapes))


def by_demand(shapes: Sequence[Shape], placed: Sequence[bool], capacity: int) -> dict[int, float]:
    """Return the percent allocated by percent requested, both of all GPUs."""
    came = held = 0
    allocated: dict[int, list[float]] = {}
    for shape, found_room in zip(shapes, placed, strict=True):
        came += _asks(shape)
        held += _asks(shape) * found_room
        allocated.setdefault(round(100 * came / capacity), []).append(100 * held / capacity)
    return {percent: statistics.mean(values) for percent, values in allocated.items()}


def plainly(data: Path, pods: str, policy: str, seed: int) -> Run:
    """Return the result of random placement without any code of Poise: on any node and devices with room."""
    nodes = nodes_of(data)
    capacity = sum(len(node.devices) for node in nodes) * WHOLE
    shapes = inflated(shapes_of(data, pods), round(INFLATED * capacity), seed)
    cpu, memory = np.array([node.cpu for node in nodes]), np.array([node.memory for node in nodes])
    share = np.array([[WHOLE * (place < len(node.devices)) for place in range(8)] for node in nodes])
    models = [node.devices[0].model if node.devices else "" for node in nodes]
    chance = np.random.default_rng(seed)
    placed = []
    began = time.process_time()
    for shape in shapes:
        wanted = np.array([not shape.wants.models or model in shape.wants.models for model in models])
        room = (
            (cpu >= shape.cpu) & (memory >= shape.memory) & wanted & ((share >= shape.share).sum(axis=1) >= shape.gpus)
        )
        placed.append(bool(room.any()))
        if placed[-1]:
            row = chance.choice(np.flatnonzero(room))
            cpu[row] -= shape.cpu
            memory[row] -= shape.memory
            share[row, chance.choice(np.flatnonzero(share[row] >= shape.share), shape.gpus, replace=False)] -= (
                shape.share
            )
    took = time.process_time() - began
    return Run(pods, policy, seed, by_demand(shapes, placed, capacity), len(shapes), 1000 * took / len(shapes))


class Gate:
    """Tracks the placed pods and the waiting ones; a refused pod, which no node could ever run, is neither. Pods are
    identified by name, because refused jobs get no number.
    """

    def __init__(self) -> None:
        self.placed: set[str] = set()
        self.waiting: set[str] = set()
        self.names: dict[str, str] = {}

    def note(self, event: Event) -> None:
        if isinstance(event, JobSubmitted):
            self.names[event.job.id] = event.job.name
            self.waiting.add(event.job.name)
        elif isinstance(event, Placed):
            name = self.names[event.unit.partition(".")[0]]
            self.placed.add(name)
            self.waiting.discard(name)

    def turn_away(self, twin: Twin, name: str) -> None:
        if name in self.waiting:
            twin.host.ask(lambda request: Cancel(request, name), lambda reply: None)


def _arrival(at: int, shape: Shape, name: str) -> Arrival:
    unit = Unit(name="main", tasks=(Task(name="main", argv=("work",)),), shape=shape, kind="pod")
    return Arrival(at=at, units=(unit,), truths={"main": Truth(pace=FOREVER)}, name=name)


def published(data: Path) -> dict[tuple[str, str, int], float]:
    """Return the percent allocated by list of pods, policy (by its published name) and percent requested: means of ten
    orders.
    """
    found: dict[tuple[str, str, int], list[float]] = {}
    with gzip.open(data / "expected_analysis_allo_discrete.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            pods = row["workload"].removeprefix("openb_pod_list_")
            for percent in (100, 130):
                found.setdefault((pods, row["sc_policy"], percent), []).append(float(row[str(percent)]))
    return {key: statistics.mean(values) for key, values in found.items()}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Our placement of shared devices beside the published figures of FGD.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/fgd-openb"))
    parser.add_argument("--pods", default="default,gpushare100,gpuspec33")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="`random` without Poise")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    known = published(chosen.data)
    asked = [
        (pods, policy, seed)
        for pods in chosen.pods.split(",")
        for policy in ("random" if chosen.plain else chosen.policies).split(",")
        for seed in range(42, 42 + chosen.seeds)
    ]
    with ProcessPoolExecutor(chosen.processes) as pool:
        runs = list(pool.map(plainly if chosen.plain else run, [chosen.data] * len(asked), *zip(*asked, strict=True)))
    rows = [
        _row(known, pods, policy, runs) for pods, policy in dict.fromkeys((pods, policy) for pods, policy, _ in asked)
    ]
    if chosen.json:
        print(msgspec.json.encode(rows).decode())
        return 0
    print(f"{'pods':12} {'policy':18} {'at':>4} {'published':>9} {'ours':>7} {'off':>6} {'ms/pod':>7}")
    for row in rows:
        for percent in ("100", "130"):
            at = row[percent]
            print(
                f"{row['pods']:12} {row['policy']:18} {percent:>4} {at['published']:9.2f} {at['ours']:7.2f} "
                f"{at['off']:+6.2f} {row['ms_per_pod']:7.1f}"
            )
    return 0


def _row(known: Mapping[tuple[str, str, int], float], pods: str, policy: str, runs: Sequence[Run]) -> dict[str, Any]:
    mine = [run for run in runs if (run.pods, run.policy) == (pods, policy)]
    row: dict[str, Any] = {"pods": pods, "policy": policy, "orders": len(mine)}
    for percent in (100, 130):
        theirs, ours = (
            known[pods, POLICIES[policy][1], percent],
            statistics.mean(run.allocated[percent] for run in mine),
        )
        row[str(percent)] = {"published": round(theirs, 2), "ours": round(ours, 2), "off": round(ours - theirs, 2)}
    return row | {"ms_per_pod": round(statistics.mean(run.milliseconds for run in mine), 2)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
