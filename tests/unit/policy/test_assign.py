"""Unequal devices: who runs on which, by schedules that can be computed by hand."""

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.model.events import Event, Held, Placed, Preempted
from poise.model.jobs import Priority, Task, Unit
from poise.model.progress import Speedups
from poise.model.resources import Device, Node, Shape, Wants
from poise.model.workload import Arrival, Scaling, Seats, Steady, Truth
from poise.policy.assign import Entry, improve
from poise.policy.suites import policy_named
from poise.units import HOUR, MINUTE, SECOND

RATES = {"fast": 4.0, "slow": 1.0}
EVEN = {"fast": 1.0, "slow": 1.0}
HARDLY = {"fast": 1.1, "slow": 1.0}
BY_KIND = {"leans": RATES, "even": EVEN, "hardly": HARDLY}


NO_LOSS = Scaling(loss=0.0, apart=(1.0, 1.0, 1.0, 1.0))


class Tells(msgspec.Struct, frozen=True):
    """Reports how an elastic job scales."""

    scaling: Scaling

    def speedups(self, progress: float, seats: Seats, most: int, /, *, spread: bool) -> Speedups:
        told = tuple(round(1000 * self.scaling.speedup(tasks, 0)) for tasks in range(1, most + 1))
        return Speedups(told, told)


def node(name: str, model: str, devices: int = 1) -> Node:
    of = tuple(Device(index=index, memory=2**34, uuid=f"{name}-{index}", model=model) for index in range(devices))
    return Node(name=name, incarnation="1", cpu=2**40, memory=2**50, devices=of)


def job(kind: str, at: float, seconds: float, tasks: int = 1) -> Arrival:
    """So many seconds on the fast model; on the slow one by its class."""
    names = [f"main[{rank}]" if tasks > 1 else "main" for rank in range(tasks)]
    rates = BY_KIND[kind]
    unit = Unit(
        name="main",
        tasks=tuple(Task(name=name, argv=("work",), rank=rank, world=tasks) for rank, name in enumerate(names)),
        shape=Shape(gpus=1),
        kind=kind,
        expect=int(seconds * SECOND),
        checkpoint=SECOND,
    )
    pace = Steady(seconds * max(rates.values()), tasks, rates)
    return Arrival(at=int(at * SECOND), units=(unit,), truths={"main": Truth(pace=pace, saves=True)})


def elastic(kind: str, seconds: float, *, due: float = 0) -> Arrival:
    """One to four tasks that scale without loss and tell it; so many seconds with one on the fast model."""
    names = [f"main[{rank}]" for rank in range(4)]
    unit = Unit(
        name="main",
        tasks=tuple(Task(name=name, argv=("work",), rank=rank, world=4) for rank, name in enumerate(names)),
        least=1,
        shape=Shape(gpus=1),
        kind=kind,
        expect=int(seconds * SECOND),
        deadline=int(due * SECOND),
        checkpoint=SECOND,
    )
    rates = BY_KIND[kind]
    truth = Truth(pace=Steady(seconds * max(rates.values()), 1, rates, NO_LOSS), saves=True, telling=Tells(NO_LOSS))
    return Arrival(at=0, units=(unit,), truths={"main": truth})


class Run:
    def __init__(self, nodes: list[Node], *jobs: Arrival) -> None:
        self.events: list[Event] = []
        throughputs = {f"{kind}@{model}": rate for kind, rates in BY_KIND.items() for model, rate in rates.items()}
        self.twin = Twin(policy_named("poise"), Settings(throughputs=throughputs), observe=self.events.append)
        self.twin.add_nodes(nodes)
        for one in jobs:
            self.twin.arrive(one)
        assert self.twin.run()

    def ends(self) -> dict[str, float]:
        jobs = self.twin.ledger.jobs.values()
        return {one.id: round((one.ended - self.twin.began) / SECOND, 3) for one in jobs}

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def test_what_gains_most_from_the_fast_device_gets_it() -> None:
    """Both fit; the one that is as fast anywhere leaves the fast device to the other, whoever came first."""
    run = Run([node("n1", "fast"), node("n2", "slow")], job("even", 0, 400), job("leans", 0, 300))
    assert run.ends() == {"j1": 400, "j2": 300}
    assert run.of(Preempted) == []


def test_short_work_that_hardly_gains_leaves_the_fast_device_to_long_work_that_does() -> None:
    """100 s or 110 s here, 120 s or 480 s there: the shorter is worth more on the fast device, both together less."""
    run = Run([node("n1", "fast"), node("n2", "slow")], job("hardly", 0, 100), job("leans", 0, 120))
    assert run.ends() == {"j1": 110, "j2": 120}
    assert run.of(Preempted) == []


def test_two_do_not_change_places_where_one_of_them_would_find_too_few_devices() -> None:
    """The gang would hardly be slower on slow devices, but there is one only."""
    nodes = [node("n1", "fast"), node("n2", "fast"), node("n3", "slow")]
    run = Run(nodes, job("hardly", 0, 100, tasks=2), job("leans", 0, 240))
    assert run.ends() == {"j1": 100, "j2": 100 + (240 - 100 / 4)}


def test_two_elastic_jobs_do_not_share_the_fast_devices_beside_idle_slow_ones() -> None:
    """100 s on four fast devices and 110 s on four slow ones; both would take 200 s on two fast ones each. The one on
    the slow ones has 9.091 s of its 100 s left when the fast ones are free, and goes there.
    """
    fleet = [node("n1", "fast", 4), node("n2", "slow", 4)]
    assert sorted(Run(fleet, elastic("hardly", 400), elastic("hardly", 400)).ends().values()) == [100, 109.091]


def test_the_fast_devices_go_to_the_elastic_job_that_is_on_time_only_there() -> None:
    """300 s on four fast devices, 1200 s on four slow ones. The other is shorter; it has the slow ones meanwhile, on
    which it takes 500 s, and at 300 s has done three fifths: the rest takes 50 s on the fast ones.
    """
    fleet = [node("n1", "fast", 4), node("n2", "slow", 4)]
    ends = Run(fleet, elastic("leans", 1200, due=400), elastic("leans", 500)).ends()
    assert ends["j1"] == 300
    assert 350 <= ends["j2"] <= 360


def test_a_short_elastic_job_makes_a_long_one_with_its_least_yield_on_unequal_devices() -> None:
    """Both devices are taken by jobs of 4000 s, each with its least. A job of 100 s comes after a minute."""
    fleet = [node("n1", "fast"), node("n2", "slow")]
    long = [elastic("even", 4000), elastic("even", 4000)]
    run = Run(fleet, *long, msgspec.structs.replace(elastic("even", 100), at=60 * SECOND))
    assert run.ends()["j3"] == 160
    assert len(run.of(Preempted)) == 1


def test_what_is_on_time_on_the_fast_device_only_gets_it_from_shorter_work() -> None:
    """The first has 550 s left on the fast device, which is worth more than 600 s. But the second is due after 750 s,
    and takes 2400 s on the slow one, where the first goes on meanwhile.
    """
    due = job("leans", 50, 600)
    due = msgspec.structs.replace(due, units=(msgspec.structs.replace(due.units[0], deadline=750 * SECOND),))
    ends = Run([node("n1", "fast"), node("n2", "slow")], job("leans", 0, 600), due).ends()
    assert ends["j2"] == 650
    assert ends["j1"] == 650 + 600 - 50 - 600 / 4


def test_work_does_not_start_on_the_slow_device_if_it_would_be_late_there() -> None:
    """The second is due after 2000 s, and takes 600 s on the fast device or 2400 s on the free slow one, where it would
    have to stay. The first leaves the fast device after 400 s.
    """
    due = job("leans", 50, 600)
    stays = msgspec.structs.replace(due.units[0], deadline=2000 * SECOND, preemptible=False)
    due = msgspec.structs.replace(due, units=(stays,))
    run = Run([node("n1", "fast"), node("n2", "slow")], job("leans", 0, 400), due)
    assert run.ends() == {"j1": 400, "j2": 1000}
    held = [reason for event in run.of(Held) for reason in event.reasons if reason.code == "LATE_ON"]
    assert (
        held[0].sentence() == "slow: it would miss its deadline there, and could not move: 40m0s expected, 33m20s left"
    )


def test_what_would_be_late_on_the_slow_device_gets_a_fast_one_of_work_that_has_no_deadline() -> None:
    """The first has least worth for its time on the fast devices, but its own deadline, after 2200 s, is kept. So the
    second leaves the other fast device to the third, which is due after 1100 s and takes 4000 s on the free slow one.
    There the second does 250 of its 1400 s in the meantime, and the rest on the fast device.
    """
    first, third = job("leans", 0, 2000), job("leans", 100, 1000)
    first = msgspec.structs.replace(first, units=(msgspec.structs.replace(first.units[0], deadline=2200 * SECOND),))
    third = msgspec.structs.replace(third, units=(msgspec.structs.replace(third.units[0], deadline=1100 * SECOND),))
    ends = Run([node("n1", "fast", 2), node("n2", "slow")], first, job("leans", 0, 1500), third).ends()
    assert ends == {"j1": 2000, "j2": 2250, "j3": 1100}


def test_no_room_is_kept_on_slow_devices_for_work_that_would_be_late_there() -> None:
    """The gang is due after 2200 s, and takes 600 s on the fast devices or 2400 s on the slow ones. It waits for the
    first, which leaves the fast ones after 1200 s. A third that comes after a long wait of the gang gets a slow device.
    """
    due = job("leans", 50, 600, tasks=2)
    stays = msgspec.structs.replace(due.units[0], deadline=2200 * SECOND, preemptible=False)
    due = msgspec.structs.replace(due, units=(stays,))
    first = job("leans", 0, 1200, tasks=2)
    first = msgspec.structs.replace(first, units=(msgspec.structs.replace(first.units[0], preemptible=False),))
    ends = Run([node("n1", "fast", 2), node("n2", "slow", 2)], first, due, job("even", 1100, 3000)).ends()
    assert ends == {"j1": 1200, "j2": 1800, "j3": 4100}


def test_work_that_would_be_late_on_the_slow_device_is_not_moved_there_for_shorter_work() -> None:
    """The first is due after 1100 s and keeps nothing of its work; on the slow device it takes 3600 s. The second has
    100 s and runs on a fast device only: it waits.
    """
    due, fast = job("leans", 0, 900), job("leans", 200, 100)
    lasting = msgspec.structs.replace(due.units[0], deadline=1100 * SECOND, checkpoint=0)
    due = msgspec.structs.replace(
        due, units=(lasting,), truths={"main": msgspec.structs.replace(due.truths["main"], saves=False)}
    )
    shape = msgspec.structs.replace(fast.units[0].shape, wants=Wants(models=("fast",)))
    fast = msgspec.structs.replace(fast, units=(msgspec.structs.replace(fast.units[0], shape=shape),))
    assert Run([node("n1", "fast"), node("n2", "slow")], due, fast).ends() == {"j1": 900, "j2": 1000}


def test_what_runs_on_a_slow_device_moves_to_a_fast_one_when_that_is_free() -> None:
    """The second needs 400 s on the slow device; after 100 s a quarter is done, and the rest takes 75 s."""
    run = Run([node("n1", "fast"), node("n2", "slow")], job("leans", 0, 100), job("leans", 0, 100.1))
    assert run.ends() == {"j1": 100, "j2": 175.1}
    assert [(event.unit, event.cause) for event in run.of(Preempted)] == [("j2.main", "move")]


def test_short_work_makes_long_work_yield_on_devices_alike() -> None:
    """Shortest remaining time first: 1,000 s of work yields to 100 s that come when it has 900 s left."""
    run = Run([node("n1", "fast")], job("even", 0, 1000), job("even", 100, 100))
    assert run.ends() == {"j2": 200, "j1": 1100}


def test_what_is_nearly_done_is_left_alone() -> None:
    run = Run([node("n1", "fast")], job("even", 0, 200), job("even", 150, 100))
    assert run.ends() == {"j1": 200, "j2": 300}


def test_a_gang_is_not_spread_over_fast_and_slow_devices() -> None:
    """Beside a fast device that is free, the gang of two takes the slow pair: on both models it would be no faster."""
    nodes = [node("n1", "fast"), node("n2", "slow"), node("n3", "slow")]
    run = Run(nodes, job("leans", 0, 100, tasks=2), job("leans", 0, 500))
    placed = {event.unit: sorted(spot.node for spot in event.spots) for event in run.of(Placed)}
    assert placed == {"j1.main": ["n2", "n3"], "j2.main": ["n1"]}


def test_what_has_no_room_on_its_best_model_runs_on_another() -> None:
    """Two devices of one node are fast together, but there is no such node: the slow one is better than none."""
    whole = msgspec.structs.replace(job("leans", 0, 100).units[0], shape=Shape(gpus=2))
    wide = msgspec.structs.replace(job("leans", 0, 100), units=(whole,))
    slow = tuple(Device(index=at, memory=2**34, uuid=f"n3-{at}", model="slow") for at in range(2))
    run = Run([node("n1", "fast"), node("n2", "fast"), msgspec.structs.replace(node("n3", "slow"), devices=slow)], wide)
    assert run.ends() == {"j1": 400}


def test_room_that_is_kept_is_lent_for_as_long_as_ageing_takes() -> None:
    """The gang waits for the first to end, 1,900 s later. Ten minutes on, what would be gone by then still gets the
    device that is free, though it is of a lower class.
    """
    brief = job("even", 600, 100)
    low = msgspec.structs.replace(brief, units=(msgspec.structs.replace(brief.units[0], priority=Priority.LOW),))
    run = Run([node("n1", "fast"), node("n2", "fast")], job("even", 0, 2000), job("even", 100, 5000, tasks=2), low)
    assert run.ends() == {"j1": 2000, "j2": 7000, "j3": 700}


def test_no_room_is_kept_for_a_guess_where_what_runs_saves_itself() -> None:
    """Nobody knows how long the gang takes. It begins when the first ends, in its turn; until then the device that is
    free is not idle.
    """
    gang = job("even", 10, 50, tasks=2)
    guess = msgspec.structs.replace(gang, units=(msgspec.structs.replace(gang.units[0], kind="new", expect=0),))
    long = job("even", 0, 2000)
    saves = msgspec.structs.replace(long, units=(msgspec.structs.replace(long.units[0], checkpoint=5 * MINUTE),))
    run = Run([node("n1", "fast"), node("n2", "fast")], saves, guess, job("even", 600, 100))
    assert run.ends() == {"j1": 2000, "j3": 700, "j2": 2050}


@pytest.mark.parametrize(
    ("due", "ends", "yields"),
    [(22_000, {"j1": 2000, "j2": 4000}, []), (15_000, {"j2": 2600, "j1": 4000}, ["j1.main"])],
)
def test_of_two_jobs_of_unknown_length_the_one_that_is_due_first_runs(
    due: float, ends: dict[str, float], yields: list[str]
) -> None:
    """Nobody knows how long they take, so each must start at once for its deadline: they preempted each other by turns.
    Now the second, after 600 s, preempts the first only if it is due before 20,000 s.
    """
    jobs = []
    for kind, at, until in (("one", 0, 20_000), ("another", 600, due)):
        made = job("even", at, 2000)
        unit = msgspec.structs.replace(made.units[0], kind=kind, expect=0, deadline=round((until - at) * SECOND))
        jobs.append(msgspec.structs.replace(made, units=(unit,)))
    run = Run([node("n1", "fast")], *jobs)
    assert run.ends() == ends
    assert [event.unit for event in run.of(Preempted)] == yields


def test_a_share_of_a_device_that_is_free_makes_nobody_yield() -> None:
    low = msgspec.structs.replace(job("even", 0, 1000).units[0], priority=Priority.LOW)
    share = msgspec.structs.replace(
        job("even", 100, 10).units[0], shape=Shape(gpus=1, share=500), priority=Priority.URGENT
    )
    run = Run(
        [node("n1", "fast"), node("n2", "slow")],
        msgspec.structs.replace(job("even", 0, 1000), units=(low,)),
        msgspec.structs.replace(job("even", 100, 10), units=(share,)),
    )
    assert run.of(Preempted) == []
    assert run.ends() == {"j1": 1000, "j2": 110}


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 2), st.tuples(*[st.integers(1, 100)] * 3)), min_size=1, max_size=12
    ),
    st.tuples(*[st.integers(0, 4)] * 3),
)
def test_changing_places_makes_the_sum_no_smaller_and_takes_no_room_that_is_not_there(
    units: list[tuple[int, int, tuple[int, int, int]]], free: tuple[int, int, int]
) -> None:
    entries: list[Entry] = [
        (0.0, ordinal, f"j{ordinal}", devices, [(float(worth), model) for model, worth in enumerate(worths)])
        for ordinal, (devices, _, worths) in enumerate(units)
    ]
    target = {f"j{ordinal}": model for ordinal, (_, model, _) in enumerate(units)}
    room, before = dict(enumerate(free)), dict(target)

    def total(of: dict[str, int]) -> float:
        return sum(worths[of[unit]][0] for _, _, unit, _, worths in entries)

    improve(entries, target, room)
    assert target.keys() == before.keys()
    assert total(target) >= total(before)
    for model, left in room.items():
        freed = sum(devices for _, _, unit, devices, _ in entries if before[unit] == model)
        taken = sum(devices for _, _, unit, devices, _ in entries if target[unit] == model)
        assert 0 <= left == free[model] + freed - taken


def test_a_gang_does_not_leave_for_work_that_is_worth_more_on_each_device_but_less_in_all() -> None:
    """The gang has 300 s left on both fast devices when 400 s of work for one of them come. That is worth more per
    device, but the other device would be idle: the gang would end 400 s later, and the work 225 s sooner.
    """
    fleet = [node("n1", "fast"), node("n2", "fast"), node("n3", "slow")]
    run = Run(fleet, job("leans", 0, 400, tasks=2), job("leans", 100, 400))
    assert run.ends() == {"j1": 400, "j2": 400 + (400 - 300 / 4)}
    assert [(event.unit, event.cause) for event in run.of(Preempted)] == [("j2.main", "move")]


def test_work_without_checkpoints_does_not_start_over_on_another_model_for_others() -> None:
    """The first is nearly as fast on the slow device, which is free, but would lose its 100 s. The second gets the slow
    device, and after 900 s, a quarter as fast, has 75 s left for the fast one.
    """
    first = job("hardly", 0, 1000)
    loses_all = msgspec.structs.replace(first.units[0], checkpoint=0)
    truths = {"main": msgspec.structs.replace(first.truths["main"], saves=False)}
    first = msgspec.structs.replace(first, units=(loses_all,), truths=truths)
    run = Run([node("n1", "fast"), node("n2", "slow")], first, job("leans", 100, 300))
    assert run.ends() == {"j1": 1000, "j2": 1075}
    assert [(event.unit, event.cause) for event in run.of(Preempted)] == [("j2.main", "move")]


def test_every_preemption_on_unequal_devices_gains_more_than_it_costs() -> None:
    """Thirty random worlds of gangs and single tasks, some due: what comes is worth more than all that leaves."""
    found = 0
    for seed in range(1, 31):
        draw = Random(f"stated {seed}")  # noqa: S311 - the same worlds each time
        arrivals = []
        for _ in range(12):
            one = job(
                draw.choice(list(BY_KIND)), draw.uniform(0, 900), draw.uniform(30, 900), draw.choice([1, 1, 2, 3])
            )
            unit = msgspec.structs.replace(
                one.units[0],
                deadline=int(draw.choice([0, 0, 2000]) * SECOND),
                checkpoint=draw.choice([1, 60, 0]) * SECOND,
            )
            arrivals.append(msgspec.structs.replace(one, units=(unit,)))
        fleet = [node(f"n{number}", draw.choice(list(RATES)), draw.choice([1, 2, 4])) for number in range(4)]
        decided = Run(fleet, *arrivals).of(Preempted)
        for one in decided:
            others = [event for event in decided if (event.at, event.cause, event.to) == (one.at, one.cause, one.to)]
            leaving = others if one.cause == "yield" else [one]
            assert one.why.score["worth"] > 0.99 * sum(event.why.score["instead"] for event in leaving)
        found += len(decided)
    assert found > 50


def test_work_that_waits_for_hours_asks_for_few_rounds() -> None:
    """Nothing is known of the run times, and none is worth more than another that has run: one device, 60 units."""

    def unknown(number: int) -> Arrival:
        one = job("even", 7 * number, 20_000)
        unit = msgspec.structs.replace(one.units[0], expect=0, kind=f"of-{number}", checkpoint=0)
        truth = msgspec.structs.replace(one.truths["main"], saves=False)
        return msgspec.structs.replace(one, units=(unit,), truths={"main": truth})

    twin = Twin(policy_named("poise"), Settings())
    twin.add_nodes([node("n1", "fast")])
    for number in range(60):
        twin.arrive(unknown(number))
    twin.run(5 * HOUR)
    assert twin.rounds < 3 * 60


def test_work_is_preempted_soon_after_it_may_be() -> None:
    """The second is worth ten times as much, and comes when the first has run for 10 s. Every unit may run for 30 s,
    and the search is repeated after 30 s.
    """
    run = Run([node("n1", "fast")], job("even", 0, 40_000), job("even", 10, 4_000))
    assert run.ends() == {"j2": 4040, "j1": 44_000}
