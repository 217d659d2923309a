"""The twin: the real controller and policy, in virtual time, before nodes that do as the truth says."""

from collections.abc import Iterator
from typing import Any

import msgspec

from poise.engine.twin import DETECTED_AFTER, Twin
from poise.kernel.controller import Settings
from poise.kernel.ledger import Ledger
from poise.model.events import Event, Finished, NodeLost, Placed, Preempted, SpeedupsTold
from poise.model.jobs import Priority, Task, Unit
from poise.model.progress import Speedups
from poise.model.resources import Device, Node, Shape
from poise.model.workload import APART, ONE_NODE, ONE_RACK, Arrival, Scaling, Seats, Steady, Truth
from poise.policy.suites import policy_named
from poise.units import SECOND


def node(name: str, gpus: int = 1, model: str = "V100", **fields: Any) -> Node:
    devices = tuple(Device(index=at, memory=2**34, uuid=f"{name}-{at}", model=model) for at in range(gpus))
    return Node(name=name, incarnation="1", cpu=2**40, memory=2**50, devices=devices, **fields)


def arrival(
    at: float, seconds: float, *, tasks: int = 1, gpus: int = 1, truth: Truth | None = None, **unit: Any
) -> Arrival:
    names = [f"main[{rank}]" if tasks > 1 else "main" for rank in range(tasks)]
    made = Unit(
        name="main",
        tasks=tuple(Task(name=name, argv=("work",), rank=rank, world=tasks) for rank, name in enumerate(names)),
        shape=Shape(gpus=gpus),
        kind="work",
        expect=int(seconds * SECOND),
        **unit,
    )
    return Arrival(at=int(at * SECOND), units=(made,), truths={"main": truth or Truth(pace=Steady(seconds, tasks))})


class Run:
    """A twin, and what its log says."""

    def __init__(self, policy: str, nodes: list[Node], arrivals: list[Arrival], **settings: Any) -> None:
        self.events: list[Event] = []
        self.twin = Twin(policy_named(policy), Settings(**settings), observe=self.events.append)
        self.twin.add_nodes(nodes)
        for one in arrivals:
            self.twin.arrive(one)

    def ends(self) -> dict[str, float]:
        """When each job was done, in seconds."""
        assert self.twin.run()
        return {job.id: (job.ended - self.twin.began) / SECOND for job in self.twin.ledger.jobs.values() if job.ended}

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def test_first_come_first_served_by_hand() -> None:
    """One device: 10 s at 0, 5 s at 1, 1 s at 2."""
    run = Run("fifo", [node("n1")], [arrival(0, 10), arrival(1, 5), arrival(2, 1)])
    assert run.ends() == {"j1": 10, "j2": 15, "j3": 16}


def test_what_is_not_to_begin_yet_lets_others_go_first_and_waits_for_nothing() -> None:
    """One device: 10 s not before 30, then 15 s at once, and 20 s at 29, which find it free and in use."""
    run = Run("fifo", [node("n1")], [arrival(0, 10, begin=30 * SECOND), arrival(1, 15), arrival(29, 20)])
    assert run.ends() == {"j2": 16, "j3": 49, "j1": 59}
    assert run.twin.ledger.jobs["j1"].units[0].ready == run.twin.began + 30 * SECOND, "it waited from then on"


def test_jobs_that_are_read_in_turn_come_as_if_all_had_been_read_before() -> None:
    """Each ends when the next one comes, and two come at once: the order at an instant is in the log."""
    jobs = [arrival(at, 10) for at in (0, 0, 10, 20, 20, 30)]
    known, in_turn = Run("fifo", [node("n1")], jobs), Run("fifo", [node("n1")], [])
    read: list[tuple[int, float]] = []

    def coming() -> Iterator[Arrival]:
        for number, job in enumerate(jobs):
            read.append((number, in_turn.twin.now / SECOND))
            yield job

    in_turn.twin.arrive_in_turn(coming())
    assert in_turn.ends() == known.ends() == {f"j{number}": 10 * number for number in range(1, 7)}
    assert in_turn.events == known.events
    assert read == [(0, 0), (1, 0), (2, 0), (3, 10), (4, 20), (5, 20)]


def test_shortest_first_by_hand() -> None:
    run = Run("sjf", [node("n1")], [arrival(0, 10), arrival(1, 5), arrival(2, 1)])
    assert run.ends() == {"j1": 10, "j3": 11, "j2": 16}


def test_unequal_devices_take_unequal_times() -> None:
    truth = Truth(pace=Steady(100.0, rates={"V100": 1.0, "K80": 0.25}))
    run = Run("fifo", [node("n1", model="K80")], [arrival(0, 100, truth=truth)])
    assert run.ends() == {"j1": 400}


def test_a_gang_is_as_fast_as_its_slowest_and_slower_apart() -> None:
    scaling = Scaling(apart=(1.0, 0.5, 0.5, 0.25))
    pace = Steady(100.0, 2, {"K80": 0.5}, scaling)
    assert pace.left(0.0, Seats(("V100", "V100"), 1, ONE_NODE)) == 100
    assert pace.left(0.5, Seats(("V100", "V100"), 2, ONE_RACK)) == 100
    assert pace.left(0.0, Seats(("V100", "K80"), 2, APART)) == 800
    assert pace.reached(0.0, Seats(("V100", "V100"), 2, ONE_RACK), 100.0) == 0.5


def test_what_is_preempted_goes_on_where_it_was_and_pays_for_coming_back() -> None:
    truth = Truth(pace=Steady(3600.0), saves=True, save=2 * SECOND, restore=30 * SECOND)
    low = arrival(0, 3600, truth=truth, priority=Priority.LOW, checkpoint=60 * SECOND)
    run = Run("poise", [node("n1")], [low, arrival(600, 100, priority=Priority.URGENT)])
    ends = run.ends()
    assert len(run.of(Preempted)) == 1
    assert ends["j2"] == 702
    assert ends["j1"] == 702 + 30 + 3600 - 600  # while it saves itself it does not get on


def test_a_lost_node_takes_its_work_back_to_the_checkpoint() -> None:
    truth = Truth(pace=Steady(1000.0), checkpoint=100 * SECOND, restore=10 * SECOND)
    run = Run("fifo", [node("n1"), node("n2")], [arrival(0, 1000, truth=truth)])
    run.twin.lose("n1", 350 * SECOND)
    ends = run.ends()
    assert [event.name for event in run.of(NodeLost)] == ["n1"]
    assert ends == {"j1": 350 + DETECTED_AFTER / SECOND + 10 + 700}


class Halving(msgspec.Struct, frozen=True):
    """Work that scales by half as well once half of it is done."""

    def speedups(self, progress: float, seats: Seats, most: int, /, *, spread: bool) -> Speedups:
        more = 1000 if progress < 0.5 else 500
        return Speedups(*(tuple(1000 + more * tasks for tasks in range(most)) for _ in range(2)))


def test_running_work_tells_how_it_scales_when_that_has_changed() -> None:
    """It gets on from 10 s on, has done half at 110 s, and looks again each minute."""
    truth = Truth(pace=Steady(200.0, 2), start=10 * SECOND, telling=Halving())
    run = Run("fifo", [node("n1", gpus=2)], [arrival(0, 200, tasks=2, truth=truth)])
    assert run.ends() == {"j1": 210}
    told = [((event.at - run.twin.began) / SECOND, event.speedups.together) for event in run.of(SpeedupsTold)]
    assert told == [(10, (1000, 2000)), (130, (1000, 1500))]


def test_rounds_come_at_multiples_only() -> None:
    run = Run("fifo", [node("n1")], [arrival(1, 10), arrival(2, 10)], every=360 * SECOND)
    assert run.ends() == {"j1": 370, "j2": 730}
    assert {(event.at - run.twin.began) % (360 * SECOND) for event in run.of(Placed)} == {0}


def test_a_node_that_slows_down_delays_what_runs_there() -> None:
    run = Run("fifo", [node("n1")], [arrival(0, 100)])
    run.twin.slow("n1", 50 * SECOND, 2.0)
    run.twin.slow("n1", 100 * SECOND, 1.0)
    assert run.ends() == {"j1": 125}


def test_shares_of_a_device_slow_each_other_down() -> None:
    half = Shape(gpus=1, share=400)
    jobs = [
        Arrival(
            at=0,
            units=(Unit(name="main", tasks=(Task(name="main", argv=("work",)),), shape=half, expect=100 * SECOND),),
            truths={"main": Truth(pace=Steady(seconds))},
        )
        for seconds in (100.0, 50.0)
    ]
    events: list[Event] = []
    twin = Twin(
        policy_named("fifo"), Settings(), observe=events.append, interference=lambda share, others: 1 + others / 800
    )
    twin.add_nodes([node("n1")])
    for one in jobs:
        twin.arrive(one)
    twin.run()
    done = [event for event in events if isinstance(event, Finished)]
    assert [(event.task, (event.at - twin.began) / SECOND) for event in done] == [("j2.main", 75.0), ("j1.main", 125.0)]


def half_way(policy: str, nodes: list[Node], arrivals: list[Arrival], at: float) -> tuple[Run, Twin]:
    """A world that is stopped at an instant, and a twin that goes on from its ledger."""
    run = Run(policy, nodes, arrivals)
    run.twin.run(int(at * SECOND))
    truths = {
        unit.id: arrivals[number].truths[unit.spec.name]
        for number, job in enumerate(run.twin.ledger.jobs.values())
        for unit in job.units
    }
    twin = Twin(
        policy_named(policy),
        Settings(),
        observe=run.events.append,
        ledger=Ledger.decode(run.twin.ledger.encode()),
        truths=truths,
        at=run.twin.began + run.twin.now,
    )
    twin.add_nodes(state.node for state in twin.ledger.nodes.values() if state.status == "up")
    return run, twin


def ends_of(twin: Twin, began: int) -> dict[str, float]:
    assert twin.run()
    twin.ledger.check()
    return {job.id: (job.ended - began) / SECOND for job in twin.ledger.jobs.values()}


def test_a_twin_goes_on_from_where_a_world_stood() -> None:
    """One runs, one waits: both end when they would have, and nothing starts anew."""
    run, twin = half_way("fifo", [node("n1")], [arrival(0, 100), arrival(10, 20)], at=30)
    assert ends_of(twin, run.twin.began) == {"j1": 100, "j2": 120}
    assert len(run.of(Placed)) == 2
    assert [event.ending.run // SECOND for event in run.of(Finished)] == [100, 20]


def test_a_gang_that_runs_goes_on_and_what_yields_ends() -> None:
    truth = Truth(pace=Steady(3600.0, 2), saves=True, save=30 * SECOND)
    low = arrival(0, 3600, tasks=2, gpus=1, truth=truth, priority=Priority.LOW, checkpoint=60 * SECOND)
    urgent = arrival(600, 100, priority=Priority.URGENT)
    run, twin = half_way("poise", [node("n1"), node("n2")], [low, urgent], at=615)
    assert len(run.of(Preempted)) == 1
    ends = ends_of(twin, run.twin.began)
    assert ends["j2"] == 615 + 30 + 100  # the twin does not know for how long it has been saving itself
    assert run.of(Finished)[0].ending.run == 645 * SECOND


def test_work_that_had_yielded_before_goes_on_from_what_it_kept() -> None:
    run, _ = half_way("fifo", [node("n1")], [arrival(0, 100), arrival(0, 100)], at=30)
    other = Twin(
        policy_named("fifo"), Settings(), ledger=Ledger.decode(run.twin.ledger.encode()),
        truths={name: Truth(pace=Steady(100.0)) for name in ("j1.main", "j2.main")},
        progress={"j2.main": 0.75}, at=run.twin.began + run.twin.now,
    )  # fmt: skip
    other.add_nodes(state.node for state in other.ledger.nodes.values())
    assert ends_of(other, run.twin.began) == {"j1": 100, "j2": 125}


def test_what_ran_on_a_lost_node_is_tried_elsewhere() -> None:
    run, twin = half_way("fifo", [node("n1"), node("n2")], [arrival(0, 100), arrival(0, 10)], at=30)
    place = twin.ledger.jobs["j1"].units[0].tasks[0].node
    twin.lose(place, 0, detected_after=0)
    assert ends_of(twin, run.twin.began) == {"j1": 130, "j2": 10}
