"""More freedom does not make a schedule worse: properties of the policy `poise` on random worlds.

Each property changes one thing in a world (another node, elastic tasks, an earlier arrival, a later deadline,
preemption) and compares the weighted sum of completion times after the change with that before. A list scheduler has
anomalies (Graham, 1969): one world may get worse. So each property has two limits: one for every world, one for the
geometric mean over the worlds. Each docstring gives what was measured: the mean and the worst of the worlds of this
file, and the worst of 62 worlds (seeds 1 to 62), from which the limit for every world is taken.

The worlds are drawn from fixed seeds, so a failure here is a change of the policy and not of chance.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import exp, prod
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest

from poise.kernel.controller import Settings
from poise.model.decisions import Place, Plan, Preempt
from poise.model.jobs import CLASS_WEIGHT, Priority, Task, Unit
from poise.model.progress import Speedups
from poise.model.resources import Device, Node, Shape
from poise.model.views import Snapshot
from poise.model.workload import Arrival, Scaling, Seats, Steady, Truth, Workload
from poise.policy.recipe import compile_recipe
from poise.policy.suites import ClusterPolicy, Suite, policy_named
from poise.testing import World as Tiny
from poise.units import SECOND
from poise_lab.trial import simulate

POISE = policy_named("poise")
NEVER_PREEMPTS = Suite(
    compile_recipe({"kind": "policy", "name": "never-preempts", "extends": "poise", "preempt": None})
)

SEEDS = range(1, 9)
"""Eight worlds for each property: one trial takes 0.1 to 0.4 s of CPU."""

FEW = range(1, 5)
"""Fewer worlds where all trials are of this property alone, or take twice as long (elastic jobs)."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as drawn. Times in seconds; `run` is its true run time with `size` devices, `expect` what it declares.
    `deadline` counts from its arrival (0: none).
    """

    at: float
    run: float
    size: int
    expect: float
    loss: float
    weight: int
    priority: Priority
    checkpoint: int
    restore: int
    apart: float
    elastic: bool = False
    resizes: bool = False
    deadline: float = 0.0

    @property
    def worth(self) -> float:
        """Its weight, as the policy counts it."""
        return CLASS_WEIGHT[self.priority] * self.weight / 1000


class World(NamedTuple):
    """A fleet of `nodes` with `wide` devices each, and jobs. The place of a job in `jobs` is its identity."""

    nodes: int
    wide: int
    jobs: tuple[Job, ...]


class Tells(msgspec.Struct, frozen=True):
    """Reports how an elastic job scales."""

    scaling: Scaling

    def speedups(self, progress: float, seats: Seats, most: int, /, *, spread: bool) -> Speedups:
        together = tuple(round(1000 * self.scaling.speedup(tasks, 0)) for tasks in range(1, most + 1))
        return Speedups(together, tuple(round(1000 * self.scaling.speedup(tasks, 1)) for tasks in range(1, most + 1)))


class Ran(NamedTuple):
    """By job: the seconds at which it ended, and whether that was by its deadline."""

    ends: tuple[float, ...]
    met: int


def drawn(seed: int, *, exact: bool = False, free: bool = False) -> World:
    """A world of 12 to 25 jobs on 4 to 16 devices; `exact`: declared times are true, `free`: restoring is free."""
    draw = Random(f"more freedom {seed}")  # noqa: S311 - the same worlds each time
    wide = draw.choice([1, 2, 4])
    devices = draw.choice([4, 8, 8, 12, 16])
    count = draw.randint(12, 25)
    load, tail = draw.uniform(0.5, 2.0), draw.choice([0.5, 1.0, 1.5])
    error = draw.choice([0.0, 0.3, 0.54])
    weighted, classes = draw.random() < 0.4, draw.random() < 0.3
    checkpoint, restore = draw.choice([60, 300, 600]), draw.choice([0, 30, 120])
    resizes = draw.random() < 0.5
    shapes = []
    for _ in range(count):
        size = min(draw.choice([1, 1, 1, 2, 2, 4, 8]), devices // 2)
        shapes.append((min(86400.0, 1800 * exp(draw.gauss(0, tail))), size))
    span = sum(run * size for run, size in shapes) / devices / load
    jobs = [
        Job(
            at=round(draw.uniform(0, span)),
            run=run,
            size=size,
            expect=run * exp(draw.gauss(0, 1) * (0.0 if exact else error)),
            loss=draw.choice([0.0, 0.02, 0.1, 0.3]),
            weight=draw.choice([500, 1000, 3000]) if weighted else 1000,
            priority=Priority(draw.choice([1, 2, 2, 3])) if classes else Priority.MEDIUM,
            checkpoint=1 if free else checkpoint,
            restore=0 if free else restore,
            apart=1.0 if exact else 0.95,
            resizes=resizes,
        )
        for run, size in shapes
    ]
    return World(devices // wide, wide, tuple(jobs))


def run(world: World, policy: ClusterPolicy = POISE) -> Ran:
    """The twin's trial of it, to the end of every job."""
    arrivals = [(job.at, number, _arrival(job, number, world.wide)) for number, job in enumerate(world.jobs)]
    workload = Workload(name="drawn", arrivals=tuple(arrival for *_, arrival in sorted(arrivals, key=lambda a: a[:2])))
    result = simulate(workload, [_node(number, world.wide) for number in range(world.nodes)], policy, Settings())
    assert not result.refused and not result.stuck, (result.refused, result.stuck)
    ends = {job.name: job.ended / SECOND for job in result.jobs}
    assert all(end > 0 for end in ends.values())
    by_job = tuple(ends[f"job-{number}"] for number in range(len(world.jobs)))
    met = sum(job.deadline > 0 and end <= job.at + job.deadline for job, end in zip(world.jobs, by_job, strict=True))
    return Ran(by_job, met)


# --- the properties --------------------------------------------------------------------------------------------------


def test_one_more_node_does_not_make_it_worse() -> None:
    """Measured: mean 0.943, worst 1.016 (seed 7); worst of 62 worlds 1.016."""

    def ratio(seed: int) -> float:
        world = drawn(seed)
        return times_worse(world, as_drawn(seed), run(world._replace(nodes=world.nodes + 1)))

    judge(ratio, SEEDS, each=1.05, together=1.0)


def test_elastic_jobs_are_done_sooner_than_gangs() -> None:
    """A gang of n may have 1 to 2n tasks instead.

    Measured: mean 0.732, worst 0.877 (seed 1); worst of 62 worlds 0.933.
    """

    def ratio(seed: int) -> float:
        world = drawn(seed)
        return times_worse(world, as_drawn(seed), run(each_job(world, lambda job: {"elastic": True})))

    judge(ratio, FEW, each=1.0, together=0.9)


def test_an_earlier_arrival_does_not_make_it_worse() -> None:
    """One job arrives in half the time.

    Measured: mean 0.963, worst 0.992 (seed 3); worst of 62 worlds 1.078 (seed 52).
    """

    def ratio(seed: int) -> float:
        world = drawn(seed)
        chosen = any_job(world, seed)
        return times_worse(world, as_drawn(seed), run(changed(world, chosen, at=world.jobs[chosen].at / 2)))

    judge(ratio, SEEDS, each=1.1, together=1.0)


def test_a_later_deadline_does_not_make_others_late() -> None:
    """All jobs have a deadline of 1.2, 2 or 4 times their run and a minute; that of one becomes three times as late.

    Measured in 40 worlds (seeds 1 to 12 and 101 to 128): mean 0.994, worst 1.039 (seed 6). Four more deadlines are met
    in all; at worst two fewer in one world (seeds 5 and 112).
    """
    ratios, met = [], 0
    for seed in (*SEEDS, *range(101, 113)):
        world = with_deadlines(crowded(drawn(seed)), seed)
        chosen = any_job(world, seed)
        before, after = run(world), run(changed(world, chosen, deadline=3 * world.jobs[chosen].deadline))
        assert after.met >= before.met - 2, seed
        ratios.append(times_worse(world, before, after))
        met += after.met - before.met
    assert met >= 0 and max(ratios) <= 1.1 and mean(ratios) <= 1.01


def test_preemption_does_not_make_it_worse() -> None:
    """Declared times are true, work saves itself each second, and restoring costs nothing.

    Measured: mean 0.937, worst 1.008 (seed 3); worst of 62 worlds 1.05 (seed 58).
    """

    def ratio(seed: int) -> float:
        world = drawn(seed, exact=True, free=True)
        return times_worse(world, run(world, NEVER_PREEMPTS), run(world))

    judge(ratio, SEEDS, each=1.08, together=1.0)


def test_who_is_restarted_to_grow_comes_back_larger() -> None:
    """All jobs are elastic, restart for another size, and have a deadline.

    Measured: all 664 restarts of 62 worlds (seeds 1 to 62). Before the policy looked for their room there were 2,158,
    of which 1,573 came back no larger.
    """
    grown = []
    for seed in FEW:
        world = each_job(with_deadlines(crowded(drawn(seed)), seed), lambda _: {"elastic": True, "resizes": False})
        grown += Watched().grown(world)
    assert len(grown) >= 5 and all(after > before for before, after in grown), grown


@pytest.mark.parametrize("elastic", [False, True], ids=["gangs", "some elastic"])
def test_hopeless_deadlines_change_nothing(elastic: bool) -> None:
    """Some jobs have deadlines that can be met, and some of the others get one that is shorter than their fastest run:
    every job ends at the same nanosecond. Deadlines are hopeless by the declared time as well as by the true one.

    Measured: no difference in 88 worlds drawn like these. Each job has a class of its own: jobs of one class without a
    deadline share a queue, and a deadline leaves it.
    """
    late = 0
    for seed in FEW[:3] if elastic else FEW:
        world = with_elastic(with_deadlines(drawn(seed), seed, some=0.4), seed, some=0.5 if elastic else 0.0)
        hopeless = with_hopeless(world, seed)
        late += sum(job != other for job, other in zip(hopeless.jobs, world.jobs, strict=True))
        assert run(hopeless).ends == run(world).ends, seed
    assert late >= 8  # else nothing was tested


@pytest.mark.parametrize("deadline", [{}, {"deadline": "4m"}], ids=["no deadline", "lost deadline"])
def test_a_lost_deadline_does_not_go_before_shorter_work(deadline: dict[str, str]) -> None:
    """After 5 minutes `late` cannot be on time, and `short` goes first as it would without that deadline.

    Each job has a class of its own: jobs of one class without a deadline share a queue, and a deadline leaves it.
    """
    world = Tiny().nodes(1, gpus=1).job("here", gpu=1, expect="1h", preemptible=False, **{"class": "other"})
    world.round().start("here").job("late", gpu=1, expect="3m", **deadline, **{"class": "a"})
    world.after("5m").job("short", gpu=1, expect="1m", **{"class": "b"}).finish("here").round()
    assert (world.status("short"), world.status("late")) == ("placed", "pending")


class Watched:
    """The policy `poise`, and the units that it stopped to grow, with their sizes."""

    def __init__(self) -> None:
        self.name = POISE.name
        self._before: dict[str, int] = {}
        self._grown: list[tuple[int, int]] = []

    def decide(self, view: Snapshot, /) -> Plan:
        plan = POISE.decide(view)
        sizes = {one.unit: one.size for one in view.elastic}
        for decision in plan.decisions:
            if isinstance(decision, Preempt) and decision.cause == "grow":
                self._before[decision.unit] = sizes[decision.unit]
            if isinstance(decision, Place) and decision.unit in self._before:
                self._grown.append((self._before.pop(decision.unit), len(decision.spots)))
        return plan

    def grown(self, world: World) -> list[tuple[int, int]]:
        """The size of each unit that was restarted to grow, before and after."""
        run(world, self)
        return self._grown


# --- how they are judged ---------------------------------------------------------------------------------------------


def judge(ratio: Callable[[int], float], seeds: Iterable[int], *, each: float, together: float) -> None:
    """Fail, with the seed, where one world is worse than `each` or their geometric mean is worse than `together`."""
    ratios = {seed: ratio(seed) for seed in seeds}
    assert {seed: found for seed, found in ratios.items() if found > each} == {}
    assert mean(list(ratios.values())) <= together, ratios


def times_worse(world: World, before: Ran, after: Ran) -> float:
    """The weighted sum of completion times after a change, as a multiple of that before; all count from the arrivals
    in `world`, so a job that arrives earlier is not charged for that.
    """
    was = sum(job.worth * (end - job.at) for job, end in zip(world.jobs, before.ends, strict=True))
    now = sum(job.worth * (end - job.at) for job, end in zip(world.jobs, after.ends, strict=True))
    return now / was


def mean(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return prod(ratios) ** (1 / len(ratios))


def changed(world: World, number: int, **fields: Any) -> World:
    """The same world with one job changed."""
    jobs = list(world.jobs)
    jobs[number] = msgspec.structs.replace(jobs[number], **fields)
    return world._replace(jobs=tuple(jobs))


def each_job(world: World, fields: Callable[[Job], dict[str, Any]]) -> World:
    """The same world with these fields of each job changed."""
    return world._replace(jobs=tuple(msgspec.structs.replace(job, **fields(job)) for job in world.jobs))


def any_job(world: World, seed: int) -> int:
    """The place of one of the jobs."""
    return Random(seed).randrange(len(world.jobs))  # noqa: S311


def crowded(world: World) -> World:
    """All jobs arrive within 0.6 of the time."""
    return each_job(world, lambda job: {"at": round(0.6 * job.at)})


def with_deadlines(world: World, seed: int, some: float = 1.0) -> World:
    """A deadline of 1.2, 2 or 4 times its run and a minute for all jobs, or for this part of them."""
    draw = Random(f"deadlines {seed}")  # noqa: S311

    def fields(job: Job) -> dict[str, Any]:
        deadline = round(job.run * draw.choice([1.2, 2, 4]) + 60)
        return {"deadline": deadline} if draw.random() < some else {}

    return each_job(world, fields)


def with_elastic(world: World, seed: int, some: float) -> World:
    """This part of the jobs is elastic."""
    draw = Random(f"elastic {seed}")  # noqa: S311
    return each_job(world, lambda job: {"elastic": draw.random() < some})


def with_hopeless(world: World, seed: int) -> World:
    """Half of the jobs without a deadline get one that not even twice the devices can meet."""
    draw = Random(f"hopeless {seed}")  # noqa: S311

    def fields(job: Job) -> dict[str, Any]:
        return {"deadline": 0.4 * min(job.run, job.expect)} if not job.deadline and draw.random() < 0.5 else {}

    return each_job(world, fields)


@cache
def as_drawn(seed: int) -> Ran:
    """What becomes of the world of this seed as it is; three properties compare with it."""
    return run(drawn(seed))


def _node(number: int, wide: int) -> Node:
    name = f"n{number:02}"
    devices = tuple(Device(index=index, memory=2**36, uuid=f"{name}-{index}", model="H100") for index in range(wide))
    return Node(name=name, incarnation="1", cpu=2**30, memory=2**40, devices=devices)


def _arrival(job: Job, number: int, wide: int) -> Arrival:
    scaling = Scaling(loss=job.loss, apart=(1.0, job.apart, job.apart, job.apart))
    alone = job.run * scaling.speedup(job.size)
    tasks, least = (2 * job.size, 1) if job.elastic else (job.size, 0)
    checkpoint, restore = job.checkpoint * SECOND, job.restore * SECOND
    expect = job.expect * (scaling.speedup(job.size) if job.elastic else 1.0)
    unit = Unit(
        name="main",
        tasks=_tasks(tasks),
        least=least,
        shape=Shape(cpu=0, gpus=1),
        priority=job.priority,
        weight=job.weight,
        deadline=round(job.deadline * SECOND),
        expect=max(1, round(expect * SECOND)),
        kind=f"kind-{number}",
        checkpoint=checkpoint,
        restore=restore,
    )
    truth = Truth(
        pace=Steady(alone, 1, {}, scaling),
        checkpoint=checkpoint,
        saves=True,
        restore=restore,
        telling=Tells(scaling) if job.elastic else None,
        resizes=job.elastic and job.resizes,
    )
    return Arrival(at=round(job.at * SECOND), units=(unit,), truths={"main": truth}, name=f"job-{number}")


def _tasks(count: int) -> tuple[Task, ...]:
    if count == 1:
        return (Task(name="main", argv=("none",)),)
    return tuple(Task(name=f"main[{rank}]", argv=("none",), rank=rank, world=count) for rank in range(count))
