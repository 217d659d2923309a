"""Learned policies: train, and compare with `poise` on other jobs, under shifted arrivals, and with hostile networks.

    python benchmarks/learned.py train --method dqn --out learned.npz [--steps 20000] [--episodes 16] [--jobs 160]
    python benchmarks/learned.py tell [--weights learned.npz] [--told 8] [--jobs 160]
    python benchmarks/learned.py hostile
    python benchmarks/learned.py latency
    python benchmarks/learned.py claim [--steps 20000] [--jobs 160]

`train` draws episodes from Pollux's workloads 1 to 3 (Qiao et al., OSDI 2021), in the sizes that users chose, on 16
nodes of 4 T4, with estimated run times. `tell` compares on workloads 4 to 6: as they are, as draws of blocks of their
jobs, and as draws that arrive twice as fast. `hostile` runs networks that pick the least worth, the longest, and by
random weights, on workloads 4 to 6 as they are. `latency` is the time of one choice with 1,000 waiting shapes. `claim`
is the stated workload of the claim FIFO 842 ms, 63 %, 14.7 → learned 315 ms, 89 %, 9.2 (response, use, energy cost for
1,000 tasks): clients in a closed loop send tasks of 1 and 5 devices to one node of 8. Training uses the same tasks in
an open loop, by other seeds.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import numpy as np
from clusters import nodes_of

from poise.drivers.weights import SHIPPED, read_weights, write_weights
from poise.engine.paired import Pairs, compare, in_words
from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.model.events import Event, Finished, JobSubmitted
from poise.model.jobs import Task, Unit
from poise.model.resources import Node, Shape
from poise.model.workload import Arrival, Steady, Truth, Workload
from poise.policy.learned import Choices
from poise.policy.network import ROOM_FEATURES, SHAPE_FEATURES, UNIT, Brain, Network, layers_of
from poise.policy.suites import POLICIES, ClusterPolicy, Suite, policy_named
from poise.testing import World
from poise.units import HOUR, MILLISECOND, SECOND
from poise_lab.learn.training import Ground, Study, learn, policy_with, tell
from poise_lab.traces.formats import read_trace
from poise_lab.traces.options import SIGMA, Options
from poise_lab.trial import row_of, simulate

SHAPES = 1000
MEAN, SPREAD = 0.2, 1.3
"""Mean run time of a task in seconds, and the standard deviation of its logarithm."""

WIDTHS = (1, 1, 1, 1, 5)
CLIENTS, THINK, TASKS = 32, 1.0, 2000
"""Number of clients, mean think time in seconds, and number of tasks."""

RATE = 19.0
"""Tasks a second in the open loop."""

BUSY_WATTS, IDLE_WATTS = 300.0, 60.0
PRICE = 0.8
"""Yuan for a kilowatt hour."""


def pollux(data: Path, numbers: Sequence[int]) -> Workload:
    """Return several workloads one after the other, an hour apart."""
    arrivals: list[Any] = []
    for number in numbers:
        workload = read_trace(data / f"pollux-osdi21/workloads/workload-{number}.csv", Options(devices_per_node=4))
        begin = arrivals[-1].at + HOUR if arrivals else 0
        arrivals += [msgspec.structs.replace(one, at=one.at + begin) for one in workload.arrivals]
    return msgspec.structs.replace(workload, name=f"pollux {numbers[0]} to {numbers[-1]}", arrivals=tuple(arrivals))


def ground(data: Path) -> Ground:
    return Ground(pollux(data, (1, 2, 3)), pollux(data, (4, 5, 6)), nodes_of({"T4": 16}, 4), Settings())


def told(pairs: Pairs) -> dict[str, Any]:
    return {"jobs": pairs.jobs, **{one.name: in_words(one) for one in pairs.figures}}


def as_they_are(data: Path, nodes: Sequence[Node], policy: ClusterPolicy) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    pairs = []
    for number in (4, 5, 6):
        workload = pollux(data, (number,))
        results = [simulate(workload, nodes, one, Settings()) for one in (policy_named("poise"), policy)]
        rows[f"workload {number}"] = [round(fmean(result.completions) / 3600, 4) for result in results]
        sides = [[row_of(job, result.measures.makespan) for job in result.jobs] for result in results]
        pairs += list(zip(*sides, strict=True))
    return rows | told(compare(pairs))


def bad(pick: str) -> Network:
    """Return a network that always picks the most or the least of a feature, or a random one."""
    features = len(SHAPE_FEATURES) + len(ROOM_FEATURES)
    chance = np.random.default_rng(1)
    arrays = {
        name: chance.integers(-UNIT, UNIT, size) if pick == "random" else np.zeros(size, np.int64)
        for name, size in layers_of(4).items()
    }
    if pick != "random":
        arrays["shape"][SHAPE_FEATURES.index(pick), 0] = -UNIT if pick == "worth" else UNIT
        arrays["shape_bias"][0, 0] = 4 * UNIT
        arrays["score"][0, 0] = arrays["pick"][0, 0] = UNIT
    return Network(
        arrays={name: rows.tolist() for name, rows in arrays.items()}, low=[-1e6] * features, high=[1e6] * features
    )


def latency() -> dict[str, Any]:
    world = World(policy_with(bad("random"))).nodes(32, gpus=8, cpu=512, memory="4TiB")
    for number in range(SHAPES):
        world.job(f"w{number}", gpu=1 + number % 8, cpu=1 + number // 8, memory="1GiB", expect=f"{1 + number % 97}m")
    world.job("held", gpu=8, workers=31, cpu=1)
    view = world.controller.snapshot(world.now)
    suite = POLICIES["poise"]
    assert isinstance(suite, Suite)
    brain = Brain(bad("random"))
    first, later = [], []
    for _ in range(50):
        draft, ordered = suite.ordered(view)
        began = time.perf_counter()
        choices = Choices(draft, list(ordered))
        seen = choices.look()
        assert seen is not None
        brain.choose(seen)
        first.append(time.perf_counter() - began)
        choices.take(0)
        began = time.perf_counter()
        seen = choices.look()
        if seen is not None:
            brain.choose(seen)
        later.append(time.perf_counter() - began)
    return {
        "shapes": len(view.backlog),
        "first choice of a round, ms": round(1000 * median(first), 3),
        "each further choice, ms": round(1000 * median(later), 3),
    }


class Tasks:
    """Tasks of the claim: widths and run times by a seed, with estimates as users give them."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def next(self, at: int) -> Arrival:
        width = self._chance.choice(WIDTHS)
        seconds = MEAN * self._chance.lognormvariate(-(SPREAD**2) / 2, SPREAD)
        guess = max(1, round(seconds * self._chance.lognormvariate(0.0, SIGMA) * SECOND))
        shape = Shape(cpu=1000, memory=2**30, gpus=width)
        unit = Unit(
            name="main", tasks=(Task(name="main", argv=("work",)),), shape=shape, kind=f"x{width}", expect=guess
        )
        return Arrival(at=at, units=(unit,), truths={"main": Truth(pace=Steady(seconds))})

    def pause(self, mean: float) -> int:
        return max(MILLISECOND, round(self._chance.expovariate(1 / mean) * SECOND))


class Clients:
    """A closed loop: each client sends its next task a think time after the end of its last one."""

    def __init__(self, policy: ClusterPolicy, seed: int) -> None:
        self._tasks, self._left = Tasks(seed), TASKS
        self._sent: dict[str, int] = {}
        self._ends: list[tuple[int, float, float]] = []
        self._widths: dict[str, int] = {}
        self._twin = Twin(policy, Settings(), observe=self._take)
        self._twin.add_nodes(nodes_of({"A100": 1}, 8))
        for _ in range(CLIENTS):
            self._send(SECOND)

    def run(self) -> dict[str, float]:
        self._twin.run(None, watch=lambda: len(self._ends) < TASKS)
        seconds = (self._ends[-1][0] - self._twin.began) / SECOND
        busy = sum(work for *_, work in self._ends)
        joules = busy * BUSY_WATTS + max(0.0, seconds * 8 - busy) * IDLE_WATTS
        return {
            "mean ms": round(1000 * fmean(took for _, took, _ in self._ends), 1),
            "use": round(busy / seconds / 8, 3),
            "yuan for 1,000 tasks": round(joules / 3.6e6 * PRICE / TASKS * 1000, 4),
        }

    def _send(self, at: int) -> None:
        if self._left:
            self._left -= 1
            self._twin.arrive(self._tasks.next(at + self._tasks.pause(THINK)))

    def _take(self, event: Event) -> None:
        if isinstance(event, JobSubmitted):
            self._sent[event.job.id] = event.at
            self._widths[event.job.id] = event.job.units[0].shape.gpus
        elif isinstance(event, Finished):
            job = event.task.partition(".")[0]
            if event.ending.outcome == "done" and job in self._sent:
                run = event.ending.run / SECOND * self._widths.pop(job)
                self._ends.append((event.at, (event.at - self._sent.pop(job)) / SECOND, run))
                self._send(event.at - self._twin.began)


def open_loop(seed: int) -> Workload:
    """The same tasks in an open loop, for training."""
    tasks, at, made = Tasks(seed), 0, []
    for _ in range(TASKS):
        at += tasks.pause(1 / RATE)
        made.append(tasks.next(at))
    return Workload(name="the claim", arrivals=tuple(made))


def claim(study: Study) -> dict[str, Any]:
    ground = Ground(open_loop(study.seed), open_loop(study.seed + 1), nodes_of({"A100": 1}, 8), Settings())
    learned = learn(ground, study)
    policies = {name: policy_named(name) for name in ("fifo", "srtf", "poise")}
    policies["learned"] = policy_with(learned.network)
    found: dict[str, Any] = {name: Clients(policy, study.seed).run() for name, policy in policies.items()}
    return found | {"learned beside poise, open loop": told(learned.told)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "tell", "hostile", "latency", "claim"])
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--method", choices=["dqn", "ppo"], default="dqn")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--episodes", type=int, default=16, help="workloads to train on")
    parser.add_argument("--jobs", type=int, default=160, help="jobs in each workload")
    parser.add_argument("--told", type=int, default=8, help="workloads to compare on")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    study = Study(
        method=given.method, steps=given.steps, episodes=given.episodes, jobs=given.jobs, told=given.told,
        seed=given.seed,
    )  # fmt: skip
    found: dict[str, Any] = {}
    if given.what == "train":
        began = time.process_time()
        made = learn(ground(given.data), study)
        if given.out is not None:
            write_weights(given.out, made.network)
        seconds = round(time.process_time() - began, 1)
        found = {"digest": made.digest, "cloned": made.cloned, "CPU s": seconds, **told(made.told)}
    elif given.what == "tell":
        policy, of = policy_with(read_weights(given.weights)), ground(given.data)
        found["pollux 4 to 6"] = as_they_are(given.data, of.nodes, policy)
        found["draws"] = told(tell(of, study, policy))
        found["draws, twice as fast"] = told(tell(of, study, policy, load=2.0))
    elif given.what == "hostile":
        of = ground(given.data)
        for pick in ("worth", "run", "random"):
            found[pick] = as_they_are(given.data, of.nodes, policy_with(bad(pick)))
            print(pick, found[pick], file=sys.stderr, flush=True)
    elif given.what == "latency":
        found = latency()
    else:
        found = claim(study)
    json.dump(found, sys.stdout, indent=2, ensure_ascii=False)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
