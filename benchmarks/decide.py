"""Measure the speed of decisions and explanations: one round over a large fleet, in bulk, and how it scales.

    python benchmarks/decide.py [--nodes 10000] [--pending 100000] [--shapes 200] [--rounds 5] [--json]

The world is a real ledger: nodes of 8 devices in racks of 32, of two models; preemptible running jobs of the medium
class; pending jobs of all four classes and of eight tenants with quotas, two of which are tight; one job in five
hundred is a gang of four. *Round*: nearly all devices are held, and `--gaps` devices are free, on which some 1,000
tasks are placed. *Bulk*: all devices are free, and every unit in the view fits. "Decide" is the policy alone, on one
core; "whole" is the view, the decision, its verification, its durable append and its application.
*Active*: 2,048 jobs on 128 devices of two models, all of which can be moved.
The floor of "bulk" is a bare loop that creates such an answer: a record with a name and a place for each task.
"""

import argparse
import asyncio
import contextlib
import gc
import random
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import perf_counter

import harness
from harness import Figure

from poise.drivers.sqlite import SqliteStore
from poise.drivers.system import settle_memory
from poise.engine.lookahead import LookAhead
from poise.kernel.explain import question
from poise.kernel.ledger import Ledger, queues
from poise.kernel.verify import verify_place, verify_preempt, verify_resize
from poise.kernel.whatif import explain
from poise.model.decisions import Hold, Place, Plan, Preempt, Resize, Spot, Why
from poise.model.events import (
    Began,
    Event,
    Held,
    JobSubmitted,
    NodeJoined,
    Placed,
    Preempted,
    QuotaSet,
    Resized,
    Started,
    decode_event,
    encode_event,
)
from poise.model.jobs import Job, Priority, Task, Unit
from poise.model.quotas import Quota
from poise.model.resources import WHOLE, Device, Node, Shape
from poise.model.views import Snapshot
from poise.policy.suites import policy_named
from poise.units import HOUR, MINUTE, SECOND

GIB = 2**30
DEVICES = 8
MODELS = ("A100-80", "H100")
GANG_ONE_IN = 500
GANG_OF = 4
BULK_SHOWN = 40_000
TENANTS = 8


class World:
    """A ledger of `nodes` nodes, full except for about `gaps` devices, with `pending` jobs."""

    def __init__(self, nodes: int, pending: int, shapes: int, gaps: int | None) -> None:
        self.ledger = Ledger()
        self.now = SECOND
        self._random = random.Random(1)
        self._apply(Began(at=self.now, term=1, policy="poise", history=1000, version=""))
        for number in range(nodes):
            self._apply(NodeJoined(at=self.now, node=_node(number)))
        if gaps is not None:
            self._fill(nodes, gaps)
        self.now += 10 * MINUTE  # running jobs can be preempted by now
        for tenant in range(TENANTS):
            tight = tenant >= TENANTS - 2  # tight quotas are used up in the bulk
            quota = Quota(cpu=10**9, gpus=(200 if tight else 20_000) * WHOLE)
            self._apply(QuotaSet(at=self.now, tenant=f"tenant-{tenant}", quota=quota))
        asked = [self._shape() for _ in range(shapes)]
        for number in range(pending):
            self._submit(number, asked[number % shapes], number % shapes)
        self.now += SECOND

    def snapshot(self, shown: int | None = None) -> Snapshot:
        """Return the policy's view: that of the control plane, or one with about `shown` units in all."""
        if shown is None:
            return self.ledger.snapshot(self.now)
        bounds = queues.HEAD, queues.SHOWN
        queues.HEAD = queues.SHOWN = shown
        try:
            return self.ledger.snapshot(self.now)
        finally:
            queues.HEAD, queues.SHOWN = bounds

    def carry_out(self, plan: Plan) -> list[Event]:
        """Verify and apply the plan as the controller does; return the events to append."""
        events: list[Event] = []
        for decision in plan.decisions:
            event: object
            if isinstance(decision, Place):
                event = verify_place(self.ledger, decision, self.now)
            elif isinstance(decision, Preempt):
                event = verify_preempt(self.ledger, decision, self.now)
            elif isinstance(decision, Resize):
                event = verify_resize(self.ledger, decision, self.now)
            else:
                event = Held(at=self.now, queue=decision.queue, reasons=decision.reasons)
            if not isinstance(event, Placed | Preempted | Resized | Held):
                raise RuntimeError(f"refused: {event}")
            self.ledger.apply(event)
            events.append(event)
        return events

    def _apply(self, event: Event) -> None:
        self.ledger.apply(event)

    def _shape(self) -> Shape:
        pick = self._random
        gpus = pick.choice((0, 1, 1, 1, 2))
        memory = pick.choice((4, 8, 16, 32)) * GIB + pick.randrange(1024) * 2**20
        return Shape(cpu=pick.choice((1000, 2000, 4000)), memory=memory, gpus=gpus)

    def _submit(self, number: int, shape: Shape, kind: int) -> None:
        tasks = GANG_OF if number % GANG_ONE_IN == 0 else 1
        unit = Unit(
            name="main",
            tasks=tuple(Task(name=f"main[{rank}]" if tasks > 1 else "main", argv=("true",)) for rank in range(tasks)),
            shape=shape,
            priority=Priority(kind % 4),
            kind=f"class-{kind}",
            expect=5 * MINUTE,
        )
        job = Job(id=self.ledger.jobs.next_id(), units=(unit,), tenant=f"tenant-{kind % TENANTS}")
        self._apply(JobSubmitted(at=self.now, job=job))

    def _fill(self, nodes: int, gaps: int) -> None:
        """Fill all devices of most nodes, and half of the devices of the remaining nodes."""
        partly = max(1, gaps * 2 // DEVICES)  # half-filled nodes
        for number in range(nodes):
            gpus = DEVICES // 2 if number % max(1, nodes // partly) == 0 else DEVICES
            shape = Shape(cpu=8000 * gpus, memory=56 * GIB * gpus, gpus=gpus)
            unit = Unit(
                name="main", tasks=(Task(name="main", argv=("true",)),), shape=shape, kind="filler", expect=60 * MINUTE
            )
            job = self.ledger.jobs.next_id()
            self._apply(JobSubmitted(at=self.now, job=Job(id=job, units=(unit,))))
            spot = Spot(f"n{number:05d}", tuple(range(gpus)))
            why = Why(policy="poise")
            self._apply(Placed(at=self.now, unit=f"{job}.main", epoch=1, spots=(spot,), why=why))
            self._apply(Started(at=self.now, task=f"{job}.main", epoch=1, pid=1))

    def run_and_wait(self, nodes: int, jobs: int) -> None:
        """Submit jobs of one device each, with run times from minutes to a day: they run on the available devices, the
        others wait.
        """
        places = [(number, device) for number in range(nodes) for device in range(DEVICES)]
        for number in range(jobs):
            if number == len(places):
                self.now += HOUR
            unit = Unit(
                name="main",
                tasks=(Task(name="main", argv=("true",)),),
                shape=Shape(cpu=1000, memory=GIB, gpus=1),
                kind=f"class-{number % 26}",
                expect=round(5 * MINUTE * 300 ** self._random.random()),
                checkpoint=MINUTE,
            )
            job = self.ledger.jobs.next_id()
            self._apply(JobSubmitted(at=self.now, job=Job(id=job, units=(unit,))))
            if number < len(places):
                on, device = places[number]
                spot, why = Spot(f"n{on:05d}", (device,)), Why(policy="poise")
                self._apply(Placed(at=self.now, unit=f"{job}.main", epoch=1, spots=(spot,), why=why))
                self._apply(Started(at=self.now, task=f"{job}.main", epoch=1, pid=1))
        self.now += HOUR


def _node(number: int) -> Node:
    model = MODELS[number % len(MODELS)]
    devices = tuple(Device(index=index, model=model, memory=80 * 10**9) for index in range(DEVICES))
    return Node(
        name=f"n{number:05d}", incarnation="1", cpu=64_000, memory=512 * GIB, rack=f"r{number // 32}", devices=devices
    )


def decide_only(view: Snapshot, rounds: int) -> tuple[list[float], Plan]:
    """Return the seconds of the policy alone, and its plan."""
    policy = policy_named("poise")
    plan = policy.decide(view)
    seconds = []
    for _ in range(rounds):
        begun = perf_counter()
        policy.decide(view)
        seconds.append(perf_counter() - begun)
    return seconds, plan


def explaining(world: World, rounds: int) -> list[float]:
    """Return the seconds to explain why a job waits and when it is expected to start, for jobs across the backlog."""
    policy = policy_named("poise")
    pending = [job for job in world.ledger.jobs.values() if job.units[0].status == "pending"]
    seconds = []
    for number in range(rounds):
        job = pending[number * (len(pending) - 1) // max(1, rounds - 1)]
        begun = perf_counter()
        view = world.ledger.snapshot(world.now)
        ahead = LookAhead(world.ledger, view.now, perf_counter)
        explain(policy, view, question(world.ledger, job, view), partial(ahead.starts, policy))
        seconds.append(perf_counter() - begun)
    return seconds


def placements(plan: Plan) -> int:
    """Return the number of placed tasks."""
    return sum(len(decision.spots) for decision in plan.decisions if isinstance(decision, Place))


def bare(count: int, rounds: int) -> list[float]:
    """Return the seconds to create the records alone, without decisions."""
    seconds = []
    why = Why(policy="none")
    for _ in range(rounds):
        begun = perf_counter()
        made = [Place(unit=f"j{number}.main", spots=(Spot("n00001", (0,)),), why=why) for number in range(count)]
        seconds.append(perf_counter() - begun)
        del made
    return seconds


def whole(world: World) -> float:
    """Return the seconds of view, decision, verification, durable append and application, which changes the world."""

    async def run(folder: Path) -> float:
        loop = asyncio.get_running_loop()
        store: SqliteStore[Event] = SqliteStore(
            folder / "log.db", encode_event, decode_event, call_soon=loop.call_soon_threadsafe
        )
        with contextlib.closing(store):
            durable: asyncio.Future[None] = loop.create_future()
            begun = perf_counter()
            events = world.carry_out(policy_named("poise").decide(world.snapshot()))
            last = store.append(events, expected=0)

            def on_durable(revision: int) -> None:
                if revision >= last and not durable.done():
                    durable.set_result(None)

            store.on_durable = on_durable
            if store.durable() < last:
                await durable
            return perf_counter() - begun

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(Path(folder)))


def measure(nodes: int, pending: int, shapes: int, gaps: int, rounds: int, *, curves: bool = True) -> list[Figure]:
    """Return all figures; `curves` adds the scaling of a round with each of its dimensions."""
    figures = []
    world = World(nodes, pending, shapes, gaps)
    settle_memory()
    begun = perf_counter()
    view = world.snapshot()
    first_view = perf_counter() - begun
    seconds, plan = decide_only(view, rounds)
    placed, held = placements(plan), sum(isinstance(decision, Hold) for decision in plan.decisions)
    asked = sum(isinstance(decision, Preempt) for decision in plan.decisions)
    title = f"{nodes:,} nodes x {DEVICES}, {pending:,} pending in {shapes} shapes"
    note = f"{placed} placed, {asked} asked to yield, {held} queues held; first view {first_view * 1e3:.0f} ms"
    full_size = nodes >= 10_000 and pending >= 100_000
    figures.append(
        Figure(
            name=f"one round, {title}: decide",
            unit="ms",
            values=[each * 1e3 for each in seconds],
            limit=50 if full_size else None,
            note=note,
        )
    )

    def explained(world: World, when: str, limit: float) -> Figure:
        return Figure(
            name=f"explain of a pending job{when}, {title}",
            unit="ms",
            values=[each * 1e3 for each in explaining(world, rounds)],
            limit=limit if full_size else None,
            note="the first job, the last one and some between",
        )

    figures.append(explained(world, f" before a round that places {placed:,} tasks", 200))
    values = [whole(world) * 1e3]
    figures.append(
        Figure(name=f"one round, {title}: whole", unit="ms", values=values, note="first round of that world")
    )
    figures.append(explained(world, " between rounds", 50))
    del world, view, plan
    figures += bulk(nodes, min(pending, BULK_SHOWN), shapes, rounds, target=full_size)
    figures += active(2048, rounds, target=full_size)
    if curves:
        figures += grow(rounds)
    return figures


def bulk(nodes: int, pending: int, shapes: int, rounds: int, *, target: bool) -> list[Figure]:
    """Measure a bulk decision: every unit in the view fits."""
    gc.unfreeze()
    gc.collect()
    world = World(nodes, pending, shapes, None)
    settle_memory()
    seconds, plan = decide_only(world.snapshot(pending), rounds)
    placed = placements(plan)
    rate = harness.rate(
        f"bulk, {nodes:,} nodes, {placed:,} tasks: decide", placed, seconds, limit=100_000 if target else None
    )
    base = harness.rate(f"bulk, {placed:,} bare records (floor)", placed, bare(placed, rounds))
    return [rate, base]


def active(jobs: int, rounds: int, *, target: bool) -> list[Figure]:
    """Measure one decision on 16 nodes of 8 devices, of two models. Each device is held by its own job, and all other
    jobs wait. Run times differ, and every job can be moved.
    """
    nodes = 16
    gc.unfreeze()
    gc.collect()
    world = World(nodes, 0, 1, None)
    world.run_and_wait(nodes, jobs)
    settle_memory()
    seconds, plan = decide_only(world.snapshot(jobs), rounds)
    asked = sum(isinstance(decision, Preempt) for decision in plan.decisions)
    return [
        Figure(
            name=f"one decision, {jobs:,} active jobs on {nodes * DEVICES} devices of two models",
            unit="ms",
            values=[each * 1e3 for each in seconds],
            limit=50 if target else None,
            note=f"{asked} asked to yield or to move",
        )
    ]


def grow(rounds: int) -> list[Figure]:
    """Scale one dimension at a time, with small values of the others."""
    figures = []
    for name, sizes in {
        "nodes": [(count, 10_000, 50, 200) for count in (100, 1000, 10_000)],
        "pending": [(1000, count, 50, 200) for count in (1000, 10_000, 100_000)],
        "shapes": [(1000, 10_000, count, 200) for count in (10, 100, 1000)],
        "gaps": [(1000, 10_000, 50, count) for count in (100, 400, 1600)],
    }.items():
        for size in sizes:
            gc.unfreeze()
            gc.collect()
            world = World(*size)
            settle_memory()
            seconds, plan = decide_only(world.snapshot(), rounds)
            shown = dict(zip(("nodes", "pending", "shapes", "gaps"), size, strict=True))[name]
            figures.append(
                Figure(
                    name=f"a round by {name}: {shown:,}",
                    unit="ms",
                    values=[each * 1e3 for each in seconds],
                    note=f"{placements(plan)} placed",
                )
            )
    return figures


def sizes_of(options: argparse.Namespace) -> Iterator[int]:
    yield from (options.nodes, options.pending, options.shapes, options.gaps, options.rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description="how fast the core decides")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--pending", type=int, default=100_000)
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--gaps", type=int, default=480, help="devices that are free; as many tasks again need none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-curves", action="store_true", help="without the growth curves")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    return harness.program(lambda: measure(*sizes_of(options), curves=not options.no_curves), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
