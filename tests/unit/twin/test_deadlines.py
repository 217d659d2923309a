"""The chance that a job meets its deadlines."""

from typing import Any

import msgspec
import pytest

from poise.control.deadlines import answer
from poise.control.forecast import Target, foresee
from poise.engine.lookahead import Bounds
from poise.kernel.controller import Settings
from poise.kernel.ledger import Ledger
from poise.model.chances import DeadlineQuestion
from poise.model.reports.questions import DeadlineForecast
from poise.model.spec import compile_spec
from poise.policy.suites import policy_named
from poise.testing import WALL, World
from poise.units import MINUTE, SECOND

POLICY = policy_named("poise")


FEW = 30
"""Futures where the chance need not be exact."""


def asked(world: World, name: str, *units: str, **more: Any) -> DeadlineForecast:
    """Of a job of the log, on a copy of it."""
    job = world.state(name)
    names = units or tuple(unit.spec.name for unit in job.units)
    question = DeadlineQuestion(units=names, now=world.now, known=job.id, seconds=60.0, futures=FEW, **more)
    return answer(Ledger.decode(world.ledger.encode()), POLICY, Settings(), question)


def if_submitted(world: World, futures: int = FEW, **fields: Any) -> DeadlineForecast:
    """Of a job that is not there yet."""
    job = compile_spec({"run": "true"} | fields, wall=WALL).job("j99", {})
    names = tuple(unit.name for unit in job.units if unit.deadline)
    question = DeadlineQuestion(units=names, now=world.now, job=job, seconds=60.0, futures=futures)
    return answer(Ledger.decode(world.ledger.encode()), POLICY, Settings(), question)


def learned(runs: int = 12) -> World:
    """One CPU, and runs of a class that took ten minutes, give or take one."""
    world = World(check=False).nodes(1, cpu=1)
    for number in range(runs):
        world.job(f"run-{number}", **{"class": "known"}).round().start(f"run-{number}")
        world.after(f"{9 + number % 3}m").finish(f"run-{number}", run=f"{9 + number % 3}m")
    return world


KNOWN: dict[str, Any] = {"class": "known"}
UNKNOWN: dict[str, Any] = {"class": "unknown"}


def test_the_chance_falls_with_the_time_that_is_left() -> None:
    world = learned()
    chances = [if_submitted(world, futures=100, deadline=by, **KNOWN) for by in ("30m", "10m", "5m")]
    assert [told.due for told in chances] == [30 * MINUTE, 10 * MINUTE, 5 * MINUTE]
    assert chances[0].chance > 950
    assert 200 < chances[1].chance < 900
    assert chances[2].chance < 50
    for told in chances:
        assert (told.job, told.deadlines, told.futures, told.unknown) == ("j13", 1, 100, "")
        assert told.p50 is not None and told.p90 is not None
        assert told.p50 == pytest.approx(10 * MINUTE, rel=0.1)
        assert told.p50 < told.p90 < 14 * MINUTE


def test_what_waits_and_runs_before_it_counts() -> None:
    world = learned().job("busy", **KNOWN).round().start("busy").after("5m").job("next", deadline="17m", **KNOWN)
    told = asked(world, "next")
    assert told.job == world.state("next").id
    assert told.p50 == pytest.approx(15 * MINUTE, rel=0.1)
    assert 600 < told.chance < 999


def test_nothing_is_certain() -> None:
    """Of a hundred futures that are all on time, one more is not for sure."""
    assert if_submitted(learned(), futures=100, deadline="10h", **KNOWN).chance == 1000 * 101 // 102


def test_where_nothing_is_known_of_run_times_no_chance_is_given() -> None:
    world = World().nodes(1, cpu=1)
    told = if_submitted(world, deadline="10m")
    assert (told.chance, told.unknown, told.p50) == (-1, "run times", None)
    assert if_submitted(world, deadline="30m", expect="10m").chance > 800
    assert if_submitted(learned(), deadline="30m", **UNKNOWN).chance > 0, "other classes tell something"
    tasks = {"a": {"run": "x"}, "b": {"run": "y", "needs": ["a"], "expect": "1m", "deadline": "10m"}}
    job = compile_spec({"kind": "graph", "tasks": tasks}, wall=WALL).job("j1", {})
    question = DeadlineQuestion(units=("b",), now=world.now, job=job, seconds=60.0)
    told = answer(Ledger.decode(world.ledger.encode()), POLICY, Settings(), question)
    assert told.unknown == "run times", "nothing is known of what it needs"


def test_without_a_node_or_without_time_no_chance_is_given() -> None:
    assert if_submitted(World(), deadline="10m", expect="1m").unknown == "nodes"
    world = World().nodes(1, cpu=1).job("late", expect="1m", deadline="10m")
    question = DeadlineQuestion(units=("main",), now=world.now, known=world.state("late").id, seconds=1e-9)
    assert answer(Ledger.decode(world.ledger.encode()), POLICY, Settings(), question).unknown == "time"


def test_late_work_is_followed_to_its_end_and_not_cancelled() -> None:
    """`p90` is the deadline that would hold, whatever becomes of the work at this one."""
    world = learned()
    told = [if_submitted(world, deadline={"by": "5m", "if-late": how}, **KNOWN) for how in ("run", "cancel", "refuse")]
    assert told[0] == told[1] == told[2]
    assert told[0].p90 is not None and told[0].p90 > 10 * MINUTE


def test_what_is_cancelled_in_a_future_is_not_on_time() -> None:
    """In the futures of `poise eta` it is."""
    world = learned().job("busy", **KNOWN).round().start("busy")
    world.job("late", deadline={"by": "12m", "if-late": "cancel"}, **KNOWN)
    job = world.state("late")
    told = foresee(
        world.ledger, POLICY, Settings(), world.now, [Target(job, ("j14.main",), job.id)], bounds=Bounds(20, 60.0)
    )
    assert told.jobs[0].on_time < 100
    assert told.jobs[0].fails > 900


def test_the_deadlines_of_some_tasks_alone_may_be_asked_for() -> None:
    tasks = {"a": KNOWN | {"deadline": "9m"}, "b": KNOWN | {"deadline": "3h"}, "c": KNOWN}
    world = learned().graph("g", tasks=tasks)
    every, strict = asked(world, "g"), asked(world, "g", "b")
    assert (every.deadlines, strict.deadlines) == (2, 1)
    assert every.due == strict.due == 180 * MINUTE
    assert every.chance < 700 < strict.chance


def test_the_question_and_the_answer_travel_whole() -> None:
    job = compile_spec({"run": "x", "deadline": {"by": "1h", "if-late": "refuse"}}, wall=WALL).job("j1", {})
    question = DeadlineQuestion(units=("main",), now=7 * SECOND, job=job)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(question), type=DeadlineQuestion) == question
