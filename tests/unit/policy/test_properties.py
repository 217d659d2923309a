"""What holds of every policy in any world: worlds, work and faults at random, judged from outside the policies.

What a node holds is counted from what it was sent, and not from the ledger. Runs last well over a round, so that
nothing is queued behind its like and all that a node holds takes room there.
"""

import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from many import many

from poise.errors import InputError
from poise.kernel.ledger import UnitState
from poise.kernel.messages import Decided, FromNode
from poise.model.decisions import Hold, Place, Plan, Preempt
from poise.model.events import Finished
from poise.model.jobs import Ending, Outcome
from poise.model.messages import Attempt, Beat, Launch
from poise.model.quotas import Amounts, asked
from poise.model.resources import SHARED_CAP, WHOLE, Link, Node, Shape
from poise.model.tenants import DEFAULT
from poise.policy.feasible import NAMED
from poise.policy.rank import LENDING, PATIENCE
from poise.policy.reclaim import LOOKED_AT
from poise.policy.suites import POLICIES
from poise.policy.waiting import AGEING
from poise.testing import World, node
from poise.units import SECOND, parse_duration

GIB = 2**30
GIGABIT = 10**9
ALL = sorted(POLICIES)
MEDIUM = 2
SPEEDS = {"x@fast": 3.0, "x@slow": 1.0}

CHANCE = st.randoms(use_true_random=True)
"""Whole worlds are drawn from one seed: drawn value by value, sixty examples would be too much like one another."""

AS_DRAWN = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
"""A world drawn from one seed does not get smaller by shrinking."""

LONGEST_BACKOFF = 60
"""Seconds (`Retry.delay`)."""

RESOURCES = ("cpu", "memory", "gpu", "gpu_memory", "gpu_share", "network", "where")

PLACES: list[dict[str, Any]] = [
    {"label": {"zone": "east"}},
    {"label": {"zone": ["east", "west"], "rack": "!r1"}},
    {"node": ["n1", "n2"]},
    {"exclude_node": "n1"},
]
"""Which nodes will do."""

GROUPS: list[dict[str, Any]] = [
    {"spread": "node"},
    {"spread": "zone"},
    {"together": "rack"},
    {"spread": "node", "together": "zone"},
]
"""On which nodes the tasks of a gang may run together."""


def any_offer(chance: Random) -> dict[str, Any]:
    """What a node offers: CPUs, GiB, (model, GiB) of its devices, Gbit/s (0: not said), zone, rack, whether
    devices are linked.
    """
    return {
        "cpu": chance.choice([1, 2, 4, 4, 8]),
        "memory": chance.choice([4, 8, 16]),
        "devices": [
            (chance.choice(["fast", "slow"]), chance.choice([16, 80])) for _ in range(chance.choice([0, 0, 1, 2, 3]))
        ],
        "network": chance.choice([0, 0, 10]),
        "zone": chance.choice(["", "east", "west"]),
        "rack": chance.choice(["", "r1", "r2"]),
        "linked": chance.random() < 0.3,
    }


def any_work(chance: Random) -> dict[str, Any]:
    """A job: what each task asks for, in CPUs, GiB and Gbit/s, and fields of the file."""
    work: dict[str, Any] = {
        "cpu": chance.choice([0.5, 1, 1, 1, 2, 3]),
        "memory": chance.choice([0, 0, 1, 3]),
        "gpu": chance.choice([0, 0, 0, 1, 1, 2]),
        "gpu_memory": chance.choice([0, 0, 8, 40]),
        "gpu_share": chance.choice([1.0, 1.0, 0.5, 0.25]),
        "network": chance.choice([0, 0, 0, 2]),
        "where": chance.choice([{}, {}, {}, *PLACES]),
        "workers": chance.choice([1, 1, 1, 1, 2, 3, "2..4"]),
        "priority": chance.choice(["urgent", "high", "medium", "medium", "low"]),
        "class": chance.choice(["x", "y", "z"]),
    }
    fields: dict[str, list[Any]] = {
        "expect": ["5s", "1m", "20m"],
        "deadline": ["10s", "1m", "1h"],
        "checkpoint": ["10s", "1m"],
        "preemptible": [False],
    }
    for field, values in fields.items():
        if chance.random() < 0.3:
            work[field] = chance.choice(values)
    if work["workers"] in (2, 3) and chance.random() < 0.5:
        work["where"] = work["where"] | chance.choice(GROUPS)
    return work


def node_of(name: str, offer: dict[str, Any], factor: int = 1) -> Node:
    """The node that offers this, with every amount times the factor."""
    sizes = [memory * GIB * factor for _, memory in offer["devices"]]
    made = node(name, cpu=offer["cpu"] * factor, memory=offer["memory"] * GIB * factor, gpus=len(sizes))
    devices = tuple(
        msgspec.structs.replace(device, model=model, memory=size)
        for device, (model, _), size in zip(made.devices, offer["devices"], sizes, strict=True)
    )
    links = (Link(a=0, b=1, bandwidth=GIGABIT),) if offer["linked"] and len(devices) > 1 else ()
    network = offer["network"] * GIGABIT * factor
    place = {"zone": offer["zone"], "rack": offer["rack"]}
    return msgspec.structs.replace(made, devices=devices, network=network, links=links, **place)


def document_of(work: dict[str, Any], factor: int = 1) -> dict[str, Any]:
    """The job file that asks for this, with every amount times the factor."""
    resources: dict[str, Any] = {"cpu": work["cpu"] * factor, "memory": work["memory"] * GIB * factor}
    resources |= {"network": work["network"] * GIGABIT * factor, **work["where"]}
    if work["gpu"]:
        resources |= {"gpu": work["gpu"], "gpu_share": work["gpu_share"]}
        resources["gpu_memory"] = work["gpu_memory"] * GIB * factor
    rest = {field: value for field, value in work.items() if field not in RESOURCES}
    return {"run": "true", "resources": resources, **rest}


def submit(world: World, work: dict[str, Any], factor: int = 1, tenant: str = DEFAULT) -> bool:
    """Whether it was accepted: what no node could ever run, or no quota hold, is refused at once."""
    try:
        world.submit(document_of(work, factor), tenant=tenant)
    except InputError:
        return False
    return True


def leap(world: World, nanoseconds: int) -> World:
    """Time passes at once; then connected nodes are heard of, and the controller may decide."""
    world.now += nanoseconds
    for name in sorted(world.connected):
        world.say(FromNode(name, Beat()))
    return world.tick()


def come_to_rest(world: World) -> None:
    """Whatever runs ends, second by second, until nothing is left. Raises AssertionError with what waits and why when
    nothing has run for longer than any back-off lasts.
    """
    idle, world.check = 0, False  # once a second is enough here
    while len(world.ledger.active) or world.ledger.queues.pending:
        idle = 0 if len(world.ledger.active) else idle + 1
        assert idle <= LONGEST_BACKOFF, {unit.id: world.codes(unit.id) for unit in units(world) if not unit.over}
        for name in sorted(world.connected):
            for attempt in sorted(world.held[name]):
                world.end(name, attempt, Ending(outcome="done", run=5 * SECOND))
        leap(world, SECOND).round().ledger.check()


def launches_on(world: World, name: str) -> list[Launch]:
    """What a node holds; of one that nobody can reach, nothing is known."""
    return list(world.held[name].values()) if name in world.connected else []


def start_all(world: World) -> None:
    """Whatever reachable nodes hold runs."""
    for name in sorted(world.connected):
        world.start(*(attempt.task for attempt in world.held[name] if attempt not in world.started))


def units(world: World) -> list[UnitState]:
    return [unit for job in world.ledger.jobs.values() for unit in job.units]


def room_left(world: World, name: str, shape: Shape) -> bool:
    """Whether one more task of the shape would fit beside what the node holds; any device will do for work here."""
    offered, held = world.known[name], launches_on(world, name)
    if not shape.where.admits(offered):
        return False
    if sum(launch.shape.cpu for launch in held) + shape.cpu > offered.cpu:
        return False
    if sum(launch.shape.memory for launch in held) + shape.memory > offered.memory:
        return False
    if offered.network and sum(launch.shape.network for launch in held) + shape.network > offered.network:
        return False
    could = 0
    for device in offered.devices:
        here = [launch.shape for launch in held if device.index in launch.devices]
        if shape.share == WHOLE:
            could += not here and device.memory >= shape.gpu_memory
        elif all(other.share != WHOLE for other in here):
            share, memory = sum(other.share for other in here), sum(other.gpu_memory for other in here)
            could += share + shape.share <= SHARED_CAP and memory + shape.gpu_memory <= device.memory
    return could >= shape.gpus


# --- S1, S2, S6, reasons, same view same verdict, no starvation -----------------------------------------------------
class Story(RuleBasedStateMachine):
    """Work comes and goes, nodes fail and come back; whatever the policy, nothing wrong happens, and all gets done."""

    policy = ""

    @initialize(chance=CHANCE)
    def begin(self, chance: Random) -> None:
        self.world = World(self.policy, seed=chance.randrange(4), throughputs=SPEEDS)
        self.bounds: dict[str, Amounts] = {}
        self.offers: dict[str, Node] = {}
        self.ran: dict[str, set[Attempt]] = {}
        for number in range(1, chance.randint(1, 6) + 1):
            self.offers[f"n{number}"] = node_of(f"n{number}", any_offer(chance))
            self.world.join(self.offers[f"n{number}"])
        self.submit_work(chance)

    # --- what people do ----------------------------------------------------------------------------------------------

    @rule(chance=CHANCE)
    def submit_work(self, chance: Random) -> None:
        for _ in range(chance.randint(1, 5)):
            work = any_work(chance)
            for _ in range(chance.choice([1, 1, 3])):
                submit(self.world, work, tenant=chance.choice([DEFAULT, "ann", "bob"]))
        self.world.round()

    @rule(chance=CHANCE, tenant=st.sampled_from(["ann", "bob"]))
    def set_quota(self, chance: Random, tenant: str) -> None:
        """What is held already may be more than a new quota, and is not taken away."""
        bounds = {
            "cpu": chance.choice([1, 2, 4]),
            "gpu": chance.choice([0.5, 1, 2]),
            "memory": chance.choice(["2GiB", "9GiB"]),
        }
        some = dict(chance.sample(sorted(bounds.items()), chance.randint(0, 3)))
        self.world.quota(tenant, none=not some, **some)
        self.bounds.pop(tenant, None)
        if some:
            quota, held = self.world.ledger.quotas[tenant], self.world.ledger.quotas.held(tenant)
            self.bounds[tenant] = Amounts(*map(max, quota.amounts, held))
        self.world.round()

    # --- what nodes and time do --------------------------------------------------------------------------------------

    @rule(duration=st.sampled_from(["200ms", "40s", "40s", "6m"]))
    def go_on(self, duration: str) -> None:
        """Whatever is held runs; time passes, and what yields then makes room."""
        start_all(self.world)
        leap(self.world, parse_duration(duration)).round().round()

    @rule(
        chance=CHANCE,
        count=st.integers(1, 6),
        outcome=st.sampled_from(["done", "done", "done", "failed", "killed", "oom", "lost"]),
        run=st.sampled_from(["5s", "2m"]),
    )
    def end(self, chance: Random, count: int, outcome: Outcome, run: str) -> None:
        held = [(name, attempt) for name in sorted(self.world.connected) for attempt in sorted(self.world.held[name])]
        for name, attempt in chance.sample(held, min(count, len(held))):
            if attempt in self.world.held[name]:  # the end of one member of a gang ends the others
                self.world.end(name, attempt, Ending(outcome=outcome, run=parse_duration(run)))
        self.world.round()

    @rule(chance=CHANCE, kind=st.sampled_from(["cancel", "drain", "empty", "lose", "come back", "reboot"]))
    def disturb(self, chance: Random, kind: str) -> None:
        """People and nodes do what nobody planned for."""
        world = self.world
        name = chance.choice(sorted(world.known))
        jobs = [job.id for job in world.ledger.jobs.values() if not job.ended]
        if kind == "cancel" and jobs:
            world.cancel(chance.choice(jobs))
        elif kind == "drain":
            world.drain(name, not world.ledger.nodes[name].drained)
        elif kind == "empty":
            world.drain(name, moves=True)
        elif kind == "lose" and name in world.connected:
            world.disconnect(name)
            leap(world, world.controller.settings.dead_after + SECOND)
        elif kind == "come back":
            for each in sorted(world.known):
                world.connect(each)
        elif kind == "reboot":
            known = world.known[name]
            world.join(msgspec.structs.replace(known, incarnation=known.incarnation + "+"))

    @rule(chance=CHANCE)
    def shrink(self, chance: Random) -> None:
        """A node offers less for a while. Nothing of what runs ends by that, and nothing else is let in."""
        world = self.world
        if not world.connected:
            return
        start_all(world)
        name = chance.choice(sorted(world.connected))
        before, known = len(world.log), world.known[name]
        part = chance.choice([0, 1, 2])
        world.join(msgspec.structs.replace(known, cpu=known.cpu * part // 4, memory=known.memory * part // 2))
        self.ran[name] = {launch.attempt for launch in launches_on(world, name)}
        assert not [event for event in world.log[before:] if isinstance(event, Finished)]
        world.round()

    @rule(chance=CHANCE)
    def grow(self, chance: Random) -> None:
        self.grow_again(chance.choice(sorted(self.world.known)))
        self.world.round()

    def grow_again(self, name: str) -> None:
        """It offers again what it has."""
        known, offer = self.world.known[name], self.offers[name]
        self.world.join(msgspec.structs.replace(known, cpu=offer.cpu, memory=offer.memory))

    @rule()
    def decide_twice(self) -> None:
        """Same view, same verdict."""
        assert self.world.plan() == self.world.plan()
        self.world.round()

    @rule()
    def ask_why(self) -> None:
        """Once rounds change nothing more, whatever is pending says why, and says it of every node."""
        self.world.settle()
        for unit in units(self.world):
            if unit.status == "pending":
                self._is_explained(unit)

    def _is_explained(self, unit: UnitState) -> None:
        found = self.world.reasons(unit.id)
        codes = [reason.code for reason in found]
        assert codes, unit.id
        assert "NEXT_ROUND" not in codes, (unit.id, codes)
        if self.policy == "static" or {"BACKOFF", "NO_NODES", "BEHIND", "QUOTA", "TURN"}.intersection(codes):
            return  # a unit of `static` has one place only; others have a reason beside which nodes do not matter
        named = {reason.subject for reason in found}
        silent = [name for name in sorted(self.world.known) if name not in named]
        if len(unit.spec.tasks) == 1:
            assert not silent, (unit.id, silent, codes)
        else:  # nodes where single tasks of a gang would fit are counted
            [gang] = [reason for reason in found if reason.code in ("GANG_INCOMPLETE", "SPREAD", "TOGETHER")]
            have = int(gang.have.partition(" ")[0])
            assert have < int(gang.need) == (unit.spec.least or len(unit.spec.tasks))
            assert all(room_left(self.world, name, unit.spec.shape) for name in silent), (unit.id, silent, codes)
            assert gang.code != "GANG_INCOMPLETE" or len(silent) <= have

    # --- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def s1_nothing_is_over_allocated(self) -> None:
        if not hasattr(self, "world"):
            return
        for name, offered in self.world.known.items():
            held = launches_on(self.world, name)
            assert not any(launch.queued for launch in held)
            new = [launch.shape for launch in held if launch.attempt not in self.ran.get(name, ())]
            for resource in ("cpu", "memory"):
                taken, begun = (sum(getattr(of, resource) for of in some) for some in ([of.shape for of in held], new))
                assert taken <= getattr(offered, resource) or not begun, f"{name} has shrunk"
            assert not offered.network or sum(launch.shape.network for launch in held) <= offered.network
            assert {index for launch in held for index in launch.devices} <= {of.index for of in offered.devices}
            for device in offered.devices:
                here = [launch.shape for launch in held if device.index in launch.devices]
                if any(shape.share == WHOLE for shape in here):
                    assert len(here) == 1
                else:
                    assert sum(shape.share for shape in here) <= SHARED_CAP
                    assert sum(shape.gpu_memory for shape in here) <= device.memory
                assert all(shape.gpu_memory <= device.memory for shape in here)
            assert all(len(set(launch.devices)) == launch.shape.gpus for launch in held)

    @invariant()
    def nothing_runs_where_it_may_not(self) -> None:
        if hasattr(self, "world"):
            for name, offered in self.world.known.items():
                assert all(launch.shape.where.admits(offered) for launch in launches_on(self.world, name))

    @invariant()
    def gangs_are_spread_and_together_as_they_have_to_be(self) -> None:
        for unit in units(self.world) if hasattr(self, "world") else ():
            where = unit.shape.where
            nodes = [self.world.known[task.node] for task in unit.tasks if task.active]
            values = [offered.label(where.spread) for offered in nodes]
            assert not where.spread or ("" not in values and len(set(values)) == len(values))
            values = [offered.label(where.together) for offered in nodes]
            assert not where.together or ("" not in values and len(set(values)) <= 1)

    @invariant()
    def s2_gangs_run_whole_or_not_at_all(self) -> None:
        if not hasattr(self, "world"):
            return
        held: Counter[str] = Counter()
        for name in self.world.known:
            for launch in launches_on(self.world, name):
                found = self.world.ledger.jobs.task(launch.attempt.task)
                assert found is not None
                assert found[0].epoch == launch.attempt.epoch
                held[found[0].id] += 1
        for unit in units(self.world):
            reachable = all(not task.active or task.node in self.world.connected for task in unit.tasks)
            if unit.status != "active":
                assert not held[unit.id], unit.id
            elif reachable and not unit.stopping:
                ended = sum(task.status == "ended" for task in unit.tasks)
                assert all(task.ending is None or task.ending.outcome == "done" for task in unit.tasks)
                assert held[unit.id] + ended == unit.size
                assert (unit.spec.least or len(unit.spec.tasks)) <= unit.size <= len(unit.spec.tasks)

    @invariant()
    def s6_nobody_holds_more_than_the_quota(self) -> None:
        if not hasattr(self, "world"):
            return
        for tenant, bound in self.bounds.items():
            held = Amounts()
            for name in self.world.known:
                for launch in launches_on(self.world, name):
                    job = self.world.ledger.jobs[launch.attempt.task.partition(".")[0]]
                    held = held.plus(asked(launch.shape), job.tenant == tenant)
            assert bound.holds(held), (tenant, bound, held)

    def teardown(self) -> None:
        """No starvation: faults and arrivals stop, whatever runs comes to its end, and every job is done."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for name in sorted(world.known):
            self.grow_again(name)
            world.drain(name, False)
        for tenant in self.bounds:  # lowered, it may be less than what was accepted before
            world.quota(tenant, none=True)
        given_up = {unit.job for unit in units(world) if unit.stopping}
        left = [job for job in world.ledger.jobs.values() if not job.ended and job.id not in given_up]
        come_to_rest(world)
        assert all(job.ended for job in world.ledger.jobs.values())
        assert all(unit.status == "done" for job in left for unit in job.units)


@pytest.mark.parametrize("policy", ALL)
def test_whatever_happens(policy: str) -> None:
    machine = type("Story", (Story,), {"policy": policy})
    run_state_machine_as_test(machine, settings=settings(AS_DRAWN, max_examples=many(2, 4)))


def test_elastic_units_come_in_the_same_order_after_a_restart() -> None:
    """Found above: the one submitted first is placed last."""
    World().nodes(1, cpu=4).job(workers="1..2", priority="low").job(workers="1..2", priority="high").round()


def test_a_gang_has_room_on_parts_of_several_devices() -> None:
    """Found above: three devices have three quarters each to give, nine in all; four tasks need two each, on different
    devices: 01, 02, 12, 01.
    """
    world = World().join(node("n1", cpu=4, gpus=3)).job("gang", workers=4, gpu=2, gpu_share=0.25).round()
    assert world.where("gang") == ["n1"] * 4


def test_the_tasks_of_a_gang_pass_over_partitions_that_could_never_hold_them() -> None:
    """Found above: unit 1 belongs to n2, and its second task to n3; but n3 is too small, whatever ends there."""
    world = World("static").join(node("n1", cpu=4)).join(node("n2", cpu=4)).join(node("n3", cpu=1))
    world.job("gang", workers=2, cpu=2).round()
    assert sorted(world.where("gang")) == ["n1", "n2"]


def test_the_tasks_of_a_gang_share_the_cpus_of_one_node() -> None:
    """Found above: a second task takes the CPUs after those of the first, and what is left of a CPU is used too."""
    world = World("static").nodes(1, cpu=4).job("gang", workers=2, cpu=2).round().start("gang.main[0]", "gang.main[1]")
    assert world.where("gang") == ["n1", "n1"]
    world.job("next", workers=2, cpu=2).round().finish("gang.main[0]", "gang.main[1]").round()
    assert world.where("next") == ["n1", "n1"]
    for cpu, tasks in ((3.5, 2), (3.5, 1), (0.5, 1)):
        world = World("static").nodes(1, cpu=cpu).job("gang", workers=tasks, cpu=cpu / tasks).round()
        assert world.where("gang") == ["n1"] * tasks


# --- no starvation while work keeps coming ---------------------------------------------------------------------------
def waited_under_a_stream(
    nodes: int,
    cpu: int,
    runs: Sequence[int],
    *,
    step: int,
    bound: int,
    gang: dict[str, Any],
    small: dict[str, Any],
    honest: bool = True,
) -> int:
    """Seconds until a gang that needs every CPU of the fleet starts, while there is always more small work waiting than
    fits; `runs` are the seconds that it takes in turn, as its user said if `honest`, else each is a class of its own
    and said to take a second. Every `step` seconds what is due ends, new work arrives and a round is decided. More
    than `bound` if it does not start by then.
    """
    world = World(check=False).nodes(nodes, cpu=cpu)
    ends: dict[Attempt, int] = {}
    seconds: dict[str, int] = {}

    def top_up() -> None:
        gang = world.ledger.jobs.named("gang") is not None
        while world.ledger.queues.pending - (gang and world.status("gang") == "pending") < 8:
            run = runs[len(seconds) % len(runs)]
            name = f"s{len(seconds)}"
            seconds[name] = run
            said = {"expect": f"{run}s", "class": f"small-{run}"} if honest else {"expect": "1s", "class": name}
            world.job(name, **said, **small)

    def decide() -> None:
        world.round()
        for of_node in world.held.values():
            for attempt in of_node:
                if attempt not in world.started:
                    world.start(attempt.task)
                    name = world.ledger.jobs[attempt.task.split(".")[0]].name
                    ends[attempt] = world.now + seconds.get(name, 0) * SECOND

    top_up()
    decide()
    world.job("gang", workers=nodes, cpu=cpu, **{"class": "gang", **gang})
    for waited in range(0, bound + step, step):
        top_up()
        decide()
        if world.where("gang"):
            return waited
        world.now += step * SECOND
        for name in sorted(world.held):
            for attempt in sorted(world.held[name]):
                if ends[attempt] <= world.now:
                    del ends[attempt]
                    world.end(name, attempt, Ending(outcome="done", run=seconds_of(world, attempt, seconds) * SECOND))
    return bound + step


def seconds_of(world: World, attempt: Attempt, seconds: dict[str, int]) -> int:
    return seconds[world.ledger.jobs[attempt.task.split(".")[0]].name]


STREAMS = st.lists(st.sampled_from([5, 10, 20, 30, 60]), min_size=1, max_size=6)


@settings(AS_DRAWN, max_examples=20)
@given(nodes=st.integers(1, 4), cpu=st.integers(1, 4), runs=STREAMS)
def test_a_gang_comes_through_a_stream_of_small_work(nodes: int, cpu: int, runs: list[int]) -> None:
    """The small work is shorter and goes first, until the patience of the gang is over. Then it waits for the eight
    that came before it, and for what runs.
    """
    step = 5
    bound = PATIENCE[MEDIUM] // SECOND + (8 // (nodes * cpu) + 2) * max(runs) + 2 * step
    gang = {"expect": "1h"}
    assert waited_under_a_stream(nodes, cpu, runs, step=step, bound=bound, gang=gang, small={}) <= bound


@settings(AS_DRAWN, max_examples=8)
@given(nodes=st.integers(1, 3), cpu=st.integers(1, 3), runs=STREAMS, priority=st.sampled_from(["medium", "urgent"]))
def test_a_gang_comes_through_a_stream_that_goes_before_it(
    nodes: int, cpu: int, runs: list[int], priority: str
) -> None:
    """The small work is more urgent, or has the longer path. Ageing raises a medium unit above all others after three
    steps of 5 min; then it waits for what runs, and for what is known to be gone by then.
    """
    step = 10
    bound = (MEDIUM + 1) * AGEING // SECOND + max(runs) + 2 * step
    gang, small = {"expect": "1s"}, {"priority": priority}
    assert waited_under_a_stream(nodes, cpu, runs, step=step, bound=bound, gang=gang, small=small) <= bound


@settings(AS_DRAWN, max_examples=8)
@given(nodes=st.integers(1, 3), cpu=st.integers(1, 3), runs=STREAMS)
def test_a_gang_comes_through_a_stream_that_never_ends_when_it_was_said_to(
    nodes: int, cpu: int, runs: list[int]
) -> None:
    """Its room is lent to what is said to be gone in time; after a while it is lent no more."""
    step = 10
    bound = (PATIENCE[MEDIUM] + LENDING) // SECOND + 2 * max(runs) + 2 * step
    waited = waited_under_a_stream(
        nodes, cpu, runs, step=step, bound=bound, gang={"expect": "1h"}, small={}, honest=False
    )
    assert waited <= bound


def test_a_gang_gets_more_nodes_than_are_looked_at_for_one_task() -> None:
    waited = waited_under_a_stream(LOOKED_AT + 8, 1, [30, 40, 50], step=10, bound=200, gang={"expect": "1h"}, small={})
    assert waited <= 200


# --- reasons in a fleet too large to name every node -----------------------------------------------------------------
@AS_DRAWN
@given(policy=st.sampled_from([name for name in ALL if name not in ("fifo", "static")]), chance=CHANCE)
def test_in_a_large_fleet_every_node_is_counted(policy: str, chance: Random) -> None:
    """Reasons are given by kind of node there: whatever is pending, and is one task, names or counts all nodes."""
    world = World(policy, check=False)
    offers = [any_offer(chance) for _ in range(chance.randint(1, 3))]
    for number in range(chance.randint(NAMED + 1, 4 * NAMED)):
        world.join(node_of(f"n{number}", chance.choice(offers)))
    for name in chance.sample(sorted(world.known), chance.randint(0, 8)):
        world.drain(name)
    for _ in range(chance.randint(1, 12)):
        work = any_work(chance)
        for _ in range(2 * NAMED):
            submit(world, work)
    world.settle()
    for unit in units(world):
        if unit.status == "pending":
            reasons = world.reasons(unit.id)
            assert reasons
            if len(unit.spec.tasks) == 1:
                subjects = {reason.subject for reason in reasons if reason.code not in ("PREEMPTING", "TURN")}
                assert sum(counted(subject) for subject in subjects) == len(world.known), (unit.id, subjects)


def counted(subject: str) -> int:
    """How many nodes a reason speaks of: `n1, n2` or `17 nodes like n3`."""
    number, _, like = subject.partition(" nodes like ")
    return int(number) if like else len(subject.split(", "))


# --- same view, same verdict; numbers without units ------------------------------------------------------------------
def gist(world: World, plan: Plan) -> list[tuple[Any, ...]]:
    """What was decided, without the numbers in its reasons: those tell amounts."""
    queues: dict[str, list[str]] = {}
    for unit in units(world):
        if unit.status == "pending":
            queues.setdefault(unit.queue, []).append(unit.id)
    told: list[tuple[Any, ...]] = []
    for decision in plan.decisions:
        if isinstance(decision, Place):
            told.append((decision.unit, decision.spots, decision.queued, decision.variant))
        elif isinstance(decision, Preempt):
            told.append((decision.unit, decision.cause, decision.to))
        elif isinstance(decision, Hold):
            reasons = [(reason.code, reason.subject) for reason in decision.reasons]
            told.append((queues[decision.queue], reasons))
    return told


def any_events(chance: Random) -> list[tuple[str, Any]]:
    """What happens in a world, in order: work is submitted, something held ends, seconds pass."""
    events: list[tuple[str, Any]] = []
    for _ in range(chance.randint(5, 20)):
        kind = chance.choice(["submit", "submit", "submit", "end", "wait"])
        if kind == "submit":
            events.append((kind, any_work(chance)))
        else:
            events.append((kind, chance.randrange(6) if kind == "end" else chance.choice([5, 40])))
    return events


def told_of(
    policy: str, offers: list[dict[str, Any]], events: Sequence[tuple[str, Any]], factor: int = 1
) -> list[list[tuple[Any, ...]]]:
    """What the policy decides in a world in which every amount is multiplied by the factor."""
    world = World(policy, check=False, throughputs=SPEEDS)
    for number, offer in enumerate(offers, 1):
        world.join(node_of(f"n{number}", offer, factor))
    told = []
    for event, what in events:
        if event == "submit":
            submit(world, what, factor)
        elif event == "wait":
            world.now += what * SECOND
        else:
            held = [(name, attempt) for name in sorted(world.held) for attempt in sorted(world.held[name])]
            for name, attempt in held[what : what + 1]:
                world.end(name, attempt, Ending(outcome="done", run=5 * SECOND))
        plan = world.plan()
        told.append(gist(world, plan))
        world.say(Decided(plan))
        start_all(world)
    return told


@AS_DRAWN
@given(policy=st.sampled_from(ALL), chance=CHANCE, factor=st.sampled_from([2, 3, 7, 1000]))
def test_amounts_have_no_scale(policy: str, chance: Random, factor: int) -> None:
    """Multiplying every amount of a world by a constant changes no decision. There are two nodes at least, since
    `static` cuts a single one by its CPUs.
    """
    offers = [any_offer(chance) for _ in range(chance.randint(2, 6))]
    events = any_events(chance)
    assert told_of(policy, offers, events) == told_of(policy, offers, events, factor)


def digest() -> str:
    """Every plan of every policy in a fixed set of worlds, as one number."""
    made = hashlib.sha256()
    for policy in ALL:
        for seed in range(6):
            chance = Random(seed)  # noqa: S311  worlds, and no secrets
            offers = [any_offer(chance) for _ in range(chance.randint(2, 6))]
            made.update(repr(told_of(policy, offers, any_events(chance))).encode())
    return made.hexdigest()


def test_hash_seeds_change_no_verdict() -> None:
    """Same view, same verdict, whatever seeds the hashes of texts: that of another process, and of this one."""
    ask = "from unit.policy.test_properties import digest; print(digest())"
    env = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run([sys.executable, "-c", ask], env=env, capture_output=True, text=True, check=True)
    assert told.stdout == digest() + "\n"
