"""Worlds beside a log: with the policy that decides they are what happens, with another what would have happened."""

from collections.abc import Iterable
from functools import cache
from random import Random
from typing import Any

import pytest
from many import many

from poise.engine.paired import FEWEST, compare
from poise.engine.parallel import LIVE, RATE, Worlds
from poise.engine.twin import BURST
from poise.kernel.controller import Settings
from poise.kernel.ledger import Ledger
from poise.kernel.messages import Cancel, Drain
from poise.model.decisions import Plan
from poise.model.jobs import GRACE, Priority
from poise.model.views import Snapshot
from poise.model.workload import Arrival, Steady, Truth
from poise.model.worlds import Row
from poise.policy.suites import policy_named
from poise.units import DAY, HOUR, MINUTE, SECOND
from unit.engine.test_twin import Run, arrival, node

MANY = 60


def work(at: float, seconds: float, *, tasks: int = 1, rates: dict[str, float] | None = None, **unit: Any) -> Arrival:
    """A job that ends and comes back as the worlds take it that jobs do."""
    truth = Truth(
        pace=Steady(seconds, tasks, rates or {}), checkpoint=unit.get("checkpoint", 0),
        restore=unit.get("restore", 0), save=GRACE // 2, reports=False,
    )  # fmt: skip
    return arrival(at, seconds, tasks=tasks, truth=truth, **unit)


def drawn(seed: int, jobs: int = MANY) -> list[Arrival]:
    """Jobs of very different lengths that come faster than two nodes can do them; a few gangs, some of them urgent."""
    random, at, made = Random(seed), 0.0, []  # noqa: S311
    for _ in range(jobs):
        at += random.expovariate(1 / 20)
        made.append(
            work(
                at,
                random.lognormvariate(4, 1.2),
                tasks=random.choice([1, 1, 1, 2]),
                priority=random.choice([Priority.MEDIUM, Priority.MEDIUM, Priority.HIGH]),
                checkpoint=30 * SECOND,
                restore=5 * SECOND,
            )
        )
    return made


def lived(policy: str, arrivals: Iterable[Arrival], nodes: int = 2) -> Run:
    run = Run(policy, [node(f"n{number}", gpus=2) for number in range(nodes)], list(arrivals))
    run.ends()
    return run


@cache
def lived_as_drawn(policy: str, seed: int) -> Run:
    """Several tests compare with it, and none changes it."""
    return lived(policy, drawn(seed))


class Beside:
    """Worlds that follow what was lived, from an instant on, by steps of the clock."""

    def __init__(self, run: Run, *policies: str, since: float = 0.0, **options: Any) -> None:
        self.run, ledger = run, Ledger()
        self.left = list(run.events)
        began = run.twin.began + int(since * SECOND)
        while self.left and self.left[0].at <= began and ledger.revision < 4 + 10**9 * bool(since):
            ledger.apply(self.left.pop(0))
        live = policy_named(run.twin.decider.policy.name)
        self.worlds = Worlds(
            ledger, live, {name: policy_named(name) for name in policies}, Settings(), ledger.now, **options
        )

    def follow(self, step: float = 0.0) -> "Beside":
        """All that is left, and look each so many seconds (0: at the end only)."""
        next_look = self.worlds.since
        for event in self.left:
            while step and next_look < event.at:
                self.worlds.advance(next_look)
                next_look += int(step * SECOND)
            self.worlds.take(event)
        self.worlds.advance(self.run.twin.began + self.run.twin.now + 30 * DAY)
        self.left.clear()
        return self

    def ends(self, world: str) -> dict[str, int]:
        return ends_of(self.worlds.worlds[world].twin.ledger)


def ends_of(ledger: Ledger) -> dict[str, int]:
    return {job.id: job.ended for job in ledger.jobs.values()}


def apart(ends: dict[str, int], others: dict[str, int]) -> dict[str, float]:
    """Seconds by which jobs end at another instant."""
    assert ends.keys() == others.keys()
    assert all(ends.values()) and all(others.values())
    return {job: (ends[job] - others[job]) / SECOND for job in ends if abs(ends[job] - others[job]) > SECOND // 1000}


@pytest.mark.parametrize("policy", ["fifo", "srtf", "poise"])
@pytest.mark.parametrize("step", [0.0, 7.0])
def test_the_world_of_the_policy_that_decides_is_what_happens(policy: str, step: float) -> None:
    run = lived_as_drawn(policy, 1)
    assert apart(Beside(run).follow(step).ends(LIVE), ends_of(run.twin.ledger)) == {}


@pytest.mark.parametrize("policy", ["sjf", "srtf", "poise"])
@pytest.mark.parametrize("step", [0.0, 7.0])
def test_the_world_of_another_policy_is_what_would_have_happened(policy: str, step: float) -> None:
    """Nothing that it needs to know is told before it was seen under the policy that decides."""
    beside = Beside(lived_as_drawn("fifo", 2), policy).follow(step)
    assert apart(beside.ends(policy), ends_of(lived_as_drawn(policy, 2).twin.ledger)) == {}
    assert not beside.worlds.worlds[policy].guessed


def test_it_begins_in_the_middle_with_what_runs_there() -> None:
    run = lived("fifo", drawn(3))
    beside = Beside(run, "sjf", since=400).follow(5.0)
    assert apart(beside.ends(LIVE), ends_of(run.twin.ledger)) == {}
    rows = [(live, shadow) for _, live, shadow in beside.worlds.compared("sjf")]
    assert 10 < len(rows) < MANY
    assert sum(live.time for live, _ in rows) > sum(shadow.time for _, shadow in rows)


def test_a_world_waits_for_what_nobody_knows_yet() -> None:
    """Under `sjf` the third gang would start after the first: how long it takes is known when it has ended live."""
    run = lived("fifo", [work(0, 100, tasks=2), work(1, 1000, tasks=2), work(2, 10, tasks=2)], nodes=1)
    beside = Beside(run, "sjf")
    world = beside.worlds.worlds["sjf"]
    for event in beside.left:
        if event.at < run.twin.began + 500 * SECOND:
            beside.worlds.take(event)
    beside.worlds.advance(run.twin.began + 500 * SECOND)
    assert (world.now - world.since) // SECOND == 100
    assert world.twin.unsure == {"j3.main"}
    assert beside.worlds.until("sjf") == world.now < beside.worlds.worlds[LIVE].now


def test_beyond_its_patience_it_takes_an_estimate_and_says_so() -> None:
    arrivals = [work(0, 3000, tasks=2), work(1, 4000, tasks=2), work(2, 10, tasks=2)]
    beside = Beside(lived("fifo", arrivals, nodes=1), "sjf", patience=10 * MINUTE).follow(60)
    world = beside.worlds.worlds["sjf"]
    assert world.guessed == {"j3.main"}
    assert world.twin.ledger.jobs["j3"].ended - world.since == 3010 * SECOND


def test_what_users_and_machines_do_is_done_in_each_world() -> None:
    run = Run("fifo", [node("n1"), node("n2")], [work(10 * at, 100) for at in range(12)])
    run.twin.ask(lambda request: Cancel(request, "j9"), 85 * SECOND)
    run.twin.ask(lambda request: Drain(request, "n1", True), 150 * SECOND)
    run.twin.ask(lambda request: Drain(request, "n1", False), 400 * SECOND)
    run.twin.lose("n2", 500 * SECOND)
    run.twin.add_nodes([node("n2")], 700 * SECOND)
    run.ends()
    beside = Beside(run, "sjf").follow(9.0)
    ledger = beside.worlds.worlds["sjf"].twin.ledger
    assert ledger.jobs["j9"].units[0].status == "cancelled"
    # The node is lost here when that is known, ten seconds after it was lost there.
    assert max(apart(beside.ends(LIVE), ends_of(run.twin.ledger)).values(), default=0) <= 10


def test_a_run_time_seen_on_another_model_is_converted_and_counted() -> None:
    """Work of the class takes twice as long on the slow model, as the table says."""
    rates = {"fast": 1.0, "slow": 0.5}
    nodes = [node("a-slow", model="slow"), node("b-fast", model="fast")]
    arrivals = [work(0, 100, rates=rates), work(1, 100, rates=rates)]
    run = Run("fifo", nodes, arrivals)
    run.ends()
    ledger = Ledger()
    for event in run.events[:4]:
        ledger.apply(event)
    table = {"work@fast": 1.0, "work@slow": 0.5}
    worlds = Worlds(
        ledger, policy_named("fifo"), {"other": policy_named("poise")}, Settings(throughputs=table), ledger.now
    )
    for event in run.events[4:]:
        worlds.take(event)
    worlds.advance(run.twin.began + DAY)
    world = worlds.worlds["other"]
    live = run.twin.ledger.jobs["j1"]
    assert live.ended - run.twin.began == 200 * SECOND
    assert world.twin.ledger.jobs["j1"].ended - run.twin.began == 100 * SECOND
    assert "j1.main" in world.converted


class Failing:
    name = "failing"

    def decide(self, view: Snapshot, /) -> Plan:
        raise ZeroDivisionError("a policy of somebody")


def test_a_policy_that_fails_ends_its_own_world_only() -> None:
    run = lived("fifo", drawn(4, 10))
    beside = Beside(run)
    worlds = Worlds(beside.worlds.ledger, policy_named("fifo"), {"failing": Failing()}, Settings(), beside.worlds.since)
    beside.worlds = worlds
    beside.follow(20)
    assert "a policy of somebody" in worlds.worlds["failing"].failed
    assert apart(beside.ends(LIVE), ends_of(run.twin.ledger)) == {}


# --- figures ---------------------------------------------------------------------------------------------------------


def row(time: float, wait: float = 0.0, late: int = 0) -> Row:
    return Row(round(time * SECOND), round(wait * SECOND), late, 0, round(time * SECOND), 1)


def test_the_same_world_is_no_better() -> None:
    rows = [row(each, each / 2) for each in range(1, 101)]
    found = compare(zip(rows, rows, strict=True), 0)
    assert [(figure.difference, figure.low, figure.high) for figure in found.figures] == [(0, 0, 0)] * 4


def test_a_gain_of_each_job_is_told_with_its_interval() -> None:
    random = Random(5)  # noqa: S311
    pairs = [
        (row(time), row(time * random.uniform(0.8, 0.9))) for time in (random.expovariate(0.01) for _ in range(400))
    ]
    found = compare(pairs, 0).completion
    assert found is not None
    assert found.low < found.difference < found.high < 0
    assert found.difference / found.live == pytest.approx(-0.15, abs=0.02)


def test_of_few_jobs_nothing_is_told() -> None:
    rows = [row(10.0)] * (FEWEST - 1)
    found = compare(zip(rows, rows, strict=True), 0)
    assert (found.jobs, found.figures) == (FEWEST - 1, ())


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Streams of jobs that wait for each other: 200 of 300 jobs, whose mean difference is known from a long one."""

    def stream(seed: int, jobs: int) -> list[tuple[Row, Row]]:
        random, level, made = Random(seed), 0.0, []  # noqa: S311
        for _ in range(jobs):
            level = 0.8 * level + random.gauss(0, 1)
            made.append((row(1000), row(1000 + 10 * level)))
        return made

    within = 0
    streams = many(80, 200)
    for seed in range(streams):
        found = compare(stream(seed, 300), 0, level=0.8, seed=seed, drawn=200).completion
        assert found is not None
        within += found.low <= 0 <= found.high
    assert within / streams >= 0.65, within


def test_what_has_not_ended_counts_with_the_time_until_now() -> None:
    """A policy that starves long work looks no better for it."""
    run = lived("fifo", [work(0, 1000), *[work(1 + at, 100) for at in range(30)]], nodes=1)
    beside = Beside(run, "sjf")
    for event in beside.left:
        if event.at > run.twin.began + HOUR // 4:
            break
        beside.worlds.take(event)
        beside.worlds.advance(event.at)
    rows = {job: (live, shadow) for job, live, shadow in beside.worlds.compared("sjf")}
    until = beside.worlds.until("sjf")
    open_rows = [shadow for _, shadow in rows.values() if not shadow.ended]
    assert open_rows and all(one.time <= until - beside.worlds.since for one in open_rows)


def test_a_busy_world_decides_on_many_events_at_once() -> None:
    """A hundred jobs a second: after a burst there are few rounds, and no job ends much later than it did."""
    random = Random(5)  # noqa: S311
    arrivals = [work(at / 100, random.uniform(1, 3)) for at in range(300)]
    run = lived("fifo", arrivals, nodes=150)
    beside = Beside(run).follow(1.0)
    rounds = beside.worlds.worlds[LIVE].twin.rounds
    assert BURST < rounds < BURST + 7 * RATE, "it lasts six seconds"
    late = apart(beside.ends(LIVE), ends_of(run.twin.ledger))
    assert 0 < max(late.values()) < 4 / RATE
    assert min(late.values()) >= 0
