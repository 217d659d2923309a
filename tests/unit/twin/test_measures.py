"""Every figure of a trial, worked out by hand on three jobs."""

import tracemalloc
import weakref
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.model.jobs import Priority, Work
from poise.model.resources import Device, Node
from poise.model.workload import Arrival, Steady, Truth, Workload
from poise.model.worldfile import World, compile_world
from poise.policy.suites import policy_named
from poise.units import HOUR, SECOND
from poise_lab.measures import ratios
from poise_lab.traces.formats import read_trace
from poise_lab.trial import Result, simulate
from unit.engine.test_twin import arrival


def node(name: str, gpus: int = 1, model: str = "V100", **fields: Any) -> Node:
    devices = tuple(Device(index=at, memory=2**34, model=model, power=300_000, price=2_000_000) for at in range(gpus))
    return Node(name=name, incarnation="1", cpu=8000, memory=2**40, devices=devices, **fields)


def trial(policy: str, nodes: list[Node], arrivals: list[Arrival], **options: Any) -> Result:
    workload = Workload(name="by hand", arrivals=tuple(arrivals))
    return simulate(workload, nodes, policy_named(policy), Settings(), **options)


def three() -> Result:
    """One device: 100 s at 0, 50 s at 10 with a minute and a half to go, 20 s at 20. Under `fifo` they end at 100, 150
    and 170.
    """
    jobs = [arrival(0, 100), arrival(10, 50, deadline=90 * SECOND), arrival(20, 20, deadline=150 * SECOND)]
    return trial("fifo", [node("n1")], jobs, world=World(idle=0.25, busy=0.75, kg_per_kwh=0.5))


def test_a_trial_leaves_nothing_behind() -> None:
    """Thousands of trials run in one process."""
    twins: list[weakref.ref[Twin]] = []
    trial("poise", [node("n1")], [arrival(0, 10)], begin=lambda twin: twins.append(weakref.ref(twin)))
    assert twins[0]() is None


def test_a_job_that_has_ended_takes_little_memory() -> None:
    """Neither the jobs to come nor those that have ended exist as objects. Of an ended one about 200 bytes are kept;
    the figures sort its times at the end; and msgspec keeps the memory of up to 2,000 records of a size for other ones.
    """

    def peak(jobs: int) -> int:
        tracemalloc.start()
        try:
            workload = read_trace(f"poisson:jobs={jobs},rate=600,most=1,median=10,spread=1")
            result = simulate(workload, [node("n1", gpus=8)], policy_named("fifo"), Settings(history=100))
            assert result.measures.done == len(result.jobs) == jobs
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(200), peak(1000)
    assert many - few < 800 * 800


def test_no_number_is_too_large_for_a_result() -> None:
    """Twelve jobs of 30 years on eight devices: 2 * 10**18 nanoseconds of each device, and 9 * 10**18 until the end."""
    told = trial("fifo", [node("n1", gpus=8)], [arrival(at, 9e8, gpus=8) for at in range(12)])
    assert [job.service for job in told.jobs] == [8 * 9 * 10**17] * 12
    assert told.measures.completion.longest == (12 * 9 * 10**8 - 11) * SECOND


def test_times_of_three_jobs() -> None:
    measures = three().measures
    assert (measures.jobs, measures.done, measures.failed, measures.unfinished) == (3, 3, 0, 0)
    assert measures.makespan == 170 * SECOND
    assert measures.completion.mean == (100 + 140 + 150) * SECOND // 3
    assert (measures.completion.p50, measures.completion.p99) == (140 * SECOND, 150 * SECOND)
    assert measures.waiting.mean == measures.starting.mean == (0 + 90 + 130) * SECOND // 3


def test_what_is_to_begin_later_waits_for_nobody_until_then() -> None:
    """For an hour from its submission; it ends 10 s later, and 10 s after its deadline in the second trial."""
    for deadline, met in ((HOUR + 20 * SECOND, 1), (HOUR + 5 * SECOND, 0)):
        one = arrival(0, 10, deadline=deadline)
        later = replace(one, units=tuple(replace(unit, begin=HOUR) for unit in one.units))
        measures = trial("fifo", [node("n1")], [later]).measures
        assert (measures.waiting.mean, measures.starting.mean) == (0, 0)
        assert (measures.completion.mean, measures.makespan) == (10 * SECOND, HOUR + 10 * SECOND)
        assert (measures.slowdown.mean, measures.rho.mean, measures.unfair) == (1.0, 1.0, 0.0)
        assert (measures.deadlines, measures.met) == (1, met)


def test_fairness_of_three_jobs() -> None:
    measures = three().measures
    slowdowns = [1.0, 140 / 50, 150 / 20]
    assert measures.slowdown == ratios(slowdowns)
    assert measures.jain == pytest.approx(sum(slowdowns) ** 2 / 3 / sum(x * x for x in slowdowns))
    # what is asked of one device: 1 until 10, 2 until 20, 3 until 100, 2 until 150, then 1
    contention = [
        (10 + 20 + 240) / 100,
        (20 + 240 + 100) / 140,
        (240 + 100 + 20) / 150,
    ]
    rhos = [100 / 100 / contention[0], 140 / 50 / contention[1], 150 / 20 / contention[2]]
    assert measures.rho.mean == pytest.approx(sum(rhos) / 3)
    assert measures.rho.worst == pytest.approx(max(rhos))
    assert measures.unfair == pytest.approx(2 / 3)
    assert (measures.deadlines, measures.met) == (2, 1)


def test_an_equal_share_of_unequal_devices_is_of_their_mean_speed() -> None:
    """On a V100 in 100 s and on any of three K80 in 400 s, so at the mean speed in 228.6 s: who gets the V100 does
    better than that, who gets a K80 worse; nothing else asks for devices.
    """
    nodes = [node("n1", model="V100"), *(node(f"n{number}", model="K80") for number in (2, 3, 4))]
    truth = Truth(pace=Steady(100, rates={"K80": 0.25}))
    jobs = [msgspec.structs.replace(arrival(0, 100), truths={"main": truth})] * 2
    result = trial("fifo", nodes, jobs)
    assert [job.completion for job in result.jobs] == [100 * SECOND, 400 * SECOND]
    mean = 4 / (1 / 100 + 3 / 400)
    assert [job.rho for job in result.jobs] == [pytest.approx(time / mean) for time in (100, 400)]


def test_use_energy_and_money_of_three_jobs() -> None:
    """A device of 300 W and 2 dollars an hour, held all the time; eight cores of which one is."""
    measures = three().measures
    use = measures.use
    assert (use["V100"].there, use["V100"].held, use["V100"].good) == (1, 1, 1)
    assert use["cpu"].held == pytest.approx(1 / 8)
    assert measures.energy == pytest.approx(0.75 * 300 * 170 / 3.6e6)
    assert measures.co2 == pytest.approx(measures.energy / 2)
    assert measures.price == measures.paid == pytest.approx(2 * 170 / 3600)
    jobs = three().jobs
    assert [job.energy for job in jobs] == pytest.approx([0.75 * 300 * run for run in (100, 50, 20)])
    assert sum(job.price for job in jobs) == pytest.approx(measures.paid)


def by_hour(flexible: str) -> Result:
    """One device; two jobs of an hour that come at the beginning of a day whose third hour is clean."""
    power = {"kg_per_kwh": [1.0, 1.0, 0.1, *[1.0] * 21], "flexible": flexible, "idle": 0, "busy": 1.0}
    world = compile_world({"kind": "world", "name": "grid", "power": power})
    jobs = [arrival(0, 3600, deadline=2 * HOUR), arrival(0, 3600)]
    return trial("fifo", [node("n1")], jobs, world=world)


def test_co2_is_that_of_the_hours_in_which_devices_draw_power() -> None:
    at_once, later = by_hour("0s"), by_hour("6h")
    hour = 0.3  # kWh of the device
    assert at_once.measures.co2 == pytest.approx(2 * hour)
    assert later.measures.co2 == pytest.approx(1.1 * hour)
    assert later.measures.met == 1, "a deadline leaves no time to wait"
    assert at_once.measures.energy == later.measures.energy == pytest.approx(2 * hour)


def test_operations_per_watt() -> None:
    """3.6e15 operations in 100 s at 225 W."""
    measures = trial(
        "fifo", [node("n1")], [arrival(0, 100, work=Work(flops=36 * 10**14))], world=World(busy=0.75)
    ).measures
    assert measures.per_watt == pytest.approx(36e14 / 100 / 225)


def test_what_nobody_holds_draws_power_and_costs() -> None:
    measures = trial("fifo", [node("n1", 2)], [arrival(0, 100)], world=World(idle=0.25, busy=0.75)).measures
    assert measures.use["V100"].held == pytest.approx(0.5)
    assert measures.energy == pytest.approx((0.75 + 0.25) * 300 * 100 / 3.6e6)
    assert (measures.price, measures.paid) == pytest.approx((4 * 100 / 3600, 2 * 100 / 3600))


def test_short_times_are_bounded_in_a_slowdown() -> None:
    """1 s of work that waits 19: 20 s over 10, and not over 1."""
    measures = trial("fifo", [node("n1")], [arrival(0, 20), arrival(1, 1)]).measures
    assert measures.slowdown.worst == 2.0


def test_preemption_and_what_it_costs() -> None:
    """After 600 s it yields, saves itself for 2 s, and needs 30 s to come back."""
    truth = Truth(pace=Steady(3600.0), saves=True, save=2 * SECOND, restore=30 * SECOND)
    low = arrival(0, 3600, truth=truth, priority=Priority.LOW, checkpoint=60 * SECOND)
    told = trial("poise", [node("n1")], [low, arrival(600, 100, priority=Priority.URGENT)])
    measures = told.measures
    assert measures.preemptions == {"yield": 1}
    assert (measures.overhead.saving, measures.overhead.restoring) == pytest.approx((2 / 3600, 30 / 3600))
    assert (measures.overhead.lost, measures.overhead.stalled, measures.migrations) == (0, 0, 0)
    held = 3600 + 100 + 32
    assert measures.overhead.share == pytest.approx(32 / held)
    assert measures.use["V100"].good == pytest.approx((held - 32) / held)
    assert told.jobs[0].wasted == 32 * SECOND
    assert told.jobs[0].run == (3600 + 32) * SECOND
    assert measures.waiting.longest == 100 * SECOND


def test_work_that_is_done_again_is_lost() -> None:
    """Without a checkpoint, all 600 s."""
    low = arrival(0, 900, priority=Priority.LOW, checkpoint=60 * SECOND)
    measures = trial("poise", [node("n1")], [low, arrival(600, 100, priority=Priority.URGENT)]).measures
    assert measures.preemptions == {"yield": 1}
    assert measures.overhead.lost == pytest.approx(600 / 3600)


def test_devices_that_nothing_waiting_could_use_are_stranded() -> None:
    """Two nodes of 4: three devices of each are taken for 100 s, and a job of 2 waits for the two that are left."""
    nodes = [node("n1", 4), node("n2", 4)]
    jobs = [arrival(0, 100, gpus=3), arrival(0, 100, gpus=3), arrival(0, 10, gpus=2)]
    measures = trial("fifo", nodes, jobs).measures
    assert (measures.stranded, measures.fragmentation) == pytest.approx((2 / 8, 1.0))
    jobs = [arrival(0, 100, gpus=3), arrival(0, 100, gpus=4), arrival(0, 10, gpus=4), arrival(0, 10, gpus=1)]
    measures = trial("fifo", nodes, jobs).measures  # the last could use what is left, and must not overtake
    assert (measures.stranded, measures.fragmentation) == (0, 0)


def test_curves_add_up() -> None:
    told = three()
    curves = told.curves
    assert curves.width == SECOND
    assert sum(curves.held["V100"]) == pytest.approx(170)
    assert sum(curves.waiting) == pytest.approx(90 + 130)
    assert max(curves.running) == 1


def test_a_long_trial_has_no_more_points() -> None:
    day = 24 * 3600
    told = trial("fifo", [node("n1")], [arrival(number * day, day / 2) for number in range(40)])
    assert len(told.curves.running) <= 512
    assert sum(told.curves.running) * told.curves.width / SECOND == pytest.approx(20 * day, rel=0.01)


def test_attempts_are_remembered_when_asked_for() -> None:
    told = trial("fifo", [node("n1")], [arrival(0, 100), arrival(10, 50)], spans=1)
    assert [(span.task, span.since, span.until, span.outcome) for span in told.spans] == [
        ("j1.main", 0, 100 * SECOND, "done")
    ]
    assert told.forgotten == 1


def test_until_ends_it_early() -> None:
    measures = trial("fifo", [node("n1")], [arrival(0, 100), arrival(0, 100)], until=150 * SECOND).measures
    assert (measures.done, measures.unfinished, measures.makespan) == (1, 1, 150 * SECOND)
    assert measures.use["V100"].held == 1


def test_a_job_that_fits_nowhere_never_ends() -> None:
    told = trial("fifo", [node("n1")], [arrival(0, 100), arrival(0, 10, gpus=2)])
    assert told.measures.unfinished + told.measures.refused == 1
    assert told.measures.completion.mean == 100 * SECOND
    assert HOUR > told.measures.makespan >= 100 * SECOND
