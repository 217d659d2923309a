"""Schedules of the policies that share time out, worked out by hand, as they come about in the twin.

Turns take 360 s. A unit is owed its share of the time that has passed and of the turn to come, less what it has had;
who is owed most goes first, ties by arrival. What yields loses nothing.
"""

from typing import Any

import pytest

from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.model.events import Event, Placed, Preempted
from poise.model.jobs import Task, Unit
from poise.model.resources import Device, Node, Shape
from poise.model.workload import Arrival, Steady, Truth
from poise.policy.suites import policy_named
from poise.testing import World, node
from poise.units import SECOND

EVEN: dict[str, float] = {}


def fleet(**models: int) -> list[Node]:
    """So many nodes of one device each, by model; nodes are `v100-0` and so on."""
    return [
        Node(
            name=f"{model.lower()}-{number}",
            incarnation="1",
            cpu=1000,
            memory=2**34,
            devices=(Device(index=0, memory=2**34, uuid=f"{model}-{number}", model=model),),
        )
        for model, count in models.items()
        for number in range(count)
    ]


class Run:
    """A twin; jobs are `j1` and so on, each of a class of its own whose speeds are declared."""

    def __init__(self, policy: str, nodes: list[Node]) -> None:
        self.events: list[Event] = []
        self.nodes = nodes
        self.arrivals: list[Arrival] = []
        self.policy = policy
        self.throughputs: dict[str, float] = {}

    def job(
        self,
        seconds: float,
        at: float = 0,
        gang: int = 1,
        rates: dict[str, float] = EVEN,
        saves: bool = True,
        **fields: Any,
    ) -> "Run":
        """Work of so many seconds on the fastest model. It begins anew after a preemption, unless it `saves`."""
        kind = f"class{len(self.arrivals)}"
        self.throughputs |= {f"{kind}@{model}": rate for model, rate in rates.items()}
        names = [f"main[{rank}]" for rank in range(gang)] if gang > 1 else ["main"]
        tasks = tuple(Task(name=name, argv=("work",), rank=rank, world=gang) for rank, name in enumerate(names))
        unit = Unit(
            name="main", tasks=tasks, shape=Shape(cpu=0, gpus=1), kind=kind, expect=int(seconds * SECOND), **fields
        )
        truth = Truth(pace=Steady(seconds, gang, rates), saves=saves, reports=saves)
        self.arrivals.append(Arrival(at=int(at * SECOND), units=(unit,), truths={"main": truth}))
        return self

    def ends(self, until: float = 0) -> dict[str, float]:
        """When each job is done, in seconds; all must be by `until`, if it is given."""
        settings = Settings(every=360 * SECOND, throughputs=self.throughputs)
        self.twin = twin = Twin(policy_named(self.policy), settings, observe=self.events.append)
        twin.add_nodes(self.nodes)
        for arrival in self.arrivals:
            twin.arrive(arrival)
        assert twin.run(round(until * SECOND) or None)
        return {job.id: (job.ended - twin.began) / SECOND for job in twin.ledger.jobs.values() if job.ended}

    def placements(self) -> list[tuple[float, str, str]]:
        """When, which job, on which models."""
        return [
            ((event.at - self.twin.began) / SECOND, event.unit.partition(".")[0], models)
            for event in self.events
            if isinstance(event, Placed)
            for models in [" ".join(sorted({spot.node.partition("-")[0] for spot in event.spots}))]
        ]


def test_max_min_takes_turns() -> None:
    """One device, 720 s of work each: j1, j2, j1, j2."""
    run = Run("max-min", fleet(V100=1)).job(720).job(720)
    assert run.ends() == {"j1": 1080, "j2": 1440}
    assert [job for _, job, _ in run.placements()] == ["j1", "j2", "j1", "j2"]


def test_max_min_lets_run_on_who_stays() -> None:
    """Each has its better device for itself: nobody moves, and each is placed once."""
    run = Run("max-min", fleet(V100=1, K80=1))
    run.job(1000, rates={"V100": 1.0, "K80": 0.25}).job(1000, rates={"V100": 1.0, "K80": 1.0})
    assert run.ends() == {"j1": 1000, "j2": 1000}
    assert run.placements() == [(0, "j1", "v100"), (0, "j2", "k80")]


def test_max_min_gives_weight_its_share() -> None:
    """Weights 1 and 3: owed 90 and 270 s; then 180 and 180, the first by arrival; then j2 again, and again.

    ====  ============  ===========
    at    owed j1, j2   turn of
    ====  ============  ===========
    0     90, 270       j2
    360   180, 180      j1
    720   -90, 450      j2
    1080  0, 360        j2
    1440  alone         j1
    ====  ============  ===========
    """
    run = Run("max-min", fleet(V100=1)).job(720, weight=1000).job(1080, weight=3000)
    assert run.ends() == {"j1": 1800, "j2": 1440}
    assert [job for _, job, _ in run.placements()] == ["j2", "j1", "j2", "j1"]


def test_a_gang_is_on_one_model_and_has_less_time() -> None:
    """Two V100 and one K80, where j1 takes two devices and j2 one. j1 fits on the V100 only, where each is owed device
    time alike; j2 is as fast on the K80, so that j1 has both V100 all the time.
    """
    run = Run("max-min", fleet(V100=2, K80=1)).job(1000, gang=2).job(1000)
    assert run.ends() == {"j1": 1000, "j2": 1000}
    assert run.placements() == [(0, "j1", "v100"), (0, "j2", "k80")]


def test_min_makespan_takes_turns_by_what_is_left() -> None:
    """720 s and 1440 s of work on one device: a third and two thirds of it.

    ====  ============  ===========
    at    owed j1, j2   turn of
    ====  ============  ===========
    0     120, 240      j2
    360   240, 120      j1
    720   0, 360        j2
    1080  120, 240      j2
    1440  240, 120      j1
    1800  -, 360        j2
    ====  ============  ===========
    """
    run = Run("min-makespan", fleet(V100=1)).job(720).job(1440)
    assert run.ends() == {"j1": 1800, "j2": 2160}


def test_min_makespan_gives_the_longest_the_fast_device() -> None:
    rates = {"V100": 1.0, "K80": 0.5}
    run = Run("min-makespan", fleet(V100=1, K80=1)).job(300, rates=rates).job(1800, rates=rates)
    assert run.ends()["j2"] == 1800
    assert run.placements() == [(0, "j1", "k80"), (0, "j2", "v100")]


def test_finish_time_fair_makes_up_for_waiting() -> None:
    """j1, 1080 s, has the device alone until 360 s, and 720 s to go; j2, 720 s, came at 100 s. With x of it for j1,
    (360 + 720/x) / (360 + 1440) = (260 + 720/(1 - x)) / 1440 gives 0.45.

    ====  ============  ===========
    at    owed j1, j2   turn of
    ====  ============  ===========
    360   162, 198      j2
    720   324, 36       j1
    1080  126, 234      j2, which is done
    1440                j1
    ====  ============  ===========
    """
    run = Run("finish-time-fair", fleet(V100=1)).job(1080).job(720, at=100)
    assert run.ends() == {"j1": 1800, "j2": 1440}


def test_agnostic_takes_a_device_for_a_device() -> None:
    """Both have half of the time on each, whatever they gain there: they change places after every turn."""
    rates = {"V100": 1.0, "K80": 0.5}
    run = Run("max-min-agnostic", fleet(V100=1, K80=1)).job(1080, rates=rates).job(1080, rates=rates)
    assert run.ends() == {"j1": 1440, "j2": 1440}
    assert [job for _, job, _ in run.placements()].count("j1") == 4


def test_fifo_fastest_moves_to_what_is_faster() -> None:
    """j2 starts on the K80, four times as slow, and moves when j1 leaves the V100: by 360 s it has done 90 s. So does
    j3, when j2 has.
    """
    rates = {"V100": 1.0, "K80": 0.25}
    run = Run("fifo-fastest", fleet(V100=1, K80=1)).job(360, rates=rates).job(360, rates=rates).job(100, rates=rates)
    assert run.ends() == {"j1": 360, "j2": 630, "j3": 730}
    assert run.placements() == [
        (0, "j1", "v100"),
        (0, "j2", "k80"),
        (360, "j2", "v100"),
        (360, "j3", "k80"),
        (720, "j3", "v100"),
    ]


def test_fifo_fastest_lets_nobody_overtake() -> None:
    run = Run("fifo-fastest", fleet(V100=2)).job(360).job(360, gang=2).job(100)
    assert run.ends() == {"j1": 360, "j2": 720, "j3": 820}


def test_what_no_share_claims_is_used_all_the_same() -> None:
    """A gang of two that has one of three turns leaves a device over in the others."""
    run = Run("max-min", fleet(V100=2)).job(720, gang=2).job(720).job(720)
    run.ends()
    assert [job for at, job, _ in run.placements() if at == 0] == ["j2", "j3"]
    assert not [event for event in run.events if isinstance(event, Preempted) and event.unit.startswith("j1")][1:]


def test_work_without_devices_takes_part_in_nothing() -> None:
    world = World("max-min").join(node("n1", cpu=2, gpus=1)).job("a", cpu=1, gpu=1).job("b", cpu=1).job("c", cpu=1)
    world.round()
    assert [world.status(name) for name in "abc"] == ["placed", "placed", "pending"]
    assert world.codes("c") == ["CPU_BUSY"]


def test_a_unit_that_waits_for_its_turn_says_so() -> None:
    world = World("max-min").join(node("n1", gpus=1)).job("a", gpu=1).job("b", gpu=1)
    world.round()
    assert world.codes("b")[0] == "TURN"


def test_what_may_not_yield_keeps_its_device() -> None:
    world = World("max-min").join(node("n1", cpu=4, gpus=1)).job("a", gpu=1, preemptible=False)
    world.round().job("b", gpu=1).after("6m").round()
    assert world.where("a") == ["n1"]
    assert world.codes("b") == ["GPU_BUSY"]


@pytest.mark.parametrize("policy", ["max-min", "finish-time-fair", "min-makespan", "max-min-agnostic"])
@pytest.mark.parametrize("checkpoint", [0, 60, 600])
def test_work_that_keeps_nothing_of_its_turns_ends(policy: str, checkpoint: int) -> None:
    """Three of 2,000 s on one device take turns of 360 s, and begin anew in each: they declare no checkpoints, or some
    that are not there.
    """
    run = Run(policy, fleet(V100=1))
    for at in range(3):
        run.job(2000, at=at, saves=False, checkpoint=checkpoint * SECOND)
    assert len(run.ends(until=200_000)) == 3
