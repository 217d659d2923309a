"""Asked about the same moment, `explain`, `plan` and `eta` foresee the same start: they look at the same futures."""

import contextlib
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from many import many

from poise.control.forecast import Eta, Target, foresee
from poise.engine.lookahead import Range, view_settings
from poise.errors import SpecError
from poise.model.reports.questions import Start
from poise.testing import World
from poise.units import MINUTE
from unit.asking import FEW, expected, explained, planned, policy_of


def foreseen(world: World, name: str) -> Eta:
    job = world.state(name)
    target = Target(job, tuple(unit.id for unit in job.units), job.id)
    [eta] = foresee(world.ledger, policy_of(world), view_settings(world.ledger), world.now, [target], bounds=FEW).jobs
    return eta


def range_of(start: Start | None) -> Range:
    assert start is not None
    return Range(start.earliest, start.likely, start.latest)


def learned(policy: str) -> World:
    """One CPU, and classes of work that has always taken 12, 20 or 60 minutes."""
    world = World(policy).nodes(1, cpu=1)
    for number in range(10):
        for run in ("12m", "20m", "60m"):
            name = f"past-{run}-{number}"
            world.job(name, **{"class": f"c{run}"}).round().start(name).finish(name, run=run)
    return world


X: dict[str, Any] = {"class": "c12m"}


@pytest.mark.parametrize(("policy", "minutes"), [("fifo", 92), ("poise", 12), ("srtf", 12)])
def test_what_follows_what_runs_is_waited_for(policy: str, minutes: int) -> None:
    """By arrival within a class; and short work first."""
    world = learned(policy)
    tasks: dict[str, dict[str, Any]] = {
        "a": {"class": "c12m"},
        "b": {"class": "c60m", "needs": ["a"]},
        "c": {"class": "c20m", "needs": ["b"]},
    }
    world.graph("g", tasks=tasks, priority="urgent").round().start("g.a")
    [before] = planned(world, {"run": "true", **X}).waits
    world.job("x", **X).round()
    said = expected(world, "x")
    assert said.likely is not None and abs(said.likely - minutes * MINUTE) < MINUTE
    assert range_of(said) == range_of(before.start) == foreseen(world, "x").start


def test_where_run_times_are_declared_the_intervals_are_the_same_too() -> None:
    """a of ten minutes, then b of an hour, more urgent than x."""
    world = World("fifo").nodes(1, cpu=1)
    tasks: dict[str, dict[str, Any]] = {"a": {"expect": "10m"}, "b": {"expect": "60m", "needs": ["a"]}}
    world.graph("g", tasks=tasks, priority="high").round().start("g.a")
    [before] = planned(world, {"run": "true", "expect": "5m"}).waits
    world.job("x", expect="5m").round()
    said = expected(world, "x")
    assert said.earliest is not None and said.likely is not None and said.latest is not None
    assert 20 * MINUTE < said.earliest < said.likely < said.latest
    assert range_of(said) == range_of(before.start) == foreseen(world, "x").start


def test_a_job_that_comes_after_another_is_waited_for() -> None:
    world = learned("fifo")
    world.job("a", **{"class": "c12m"}).round().start("a")
    world.job("b", after=["a"], priority="urgent", **{"class": "c60m"}).job("x", **X).round()
    said = expected(world, "x")
    assert said.likely is not None and abs(said.likely - 72 * MINUTE) < MINUTE
    assert range_of(said) == foreseen(world, "x").start


def test_what_needs_two_comes_up_after_the_later_one() -> None:
    world = learned("fifo")
    tasks: dict[str, dict[str, Any]] = {
        "a": {"class": "c12m"},
        "b": {"class": "c20m"},
        "c": {"class": "c60m", "needs": ["a", "b"]},
    }
    world.graph("g", tasks=tasks, priority="urgent").round().start("g.a").job("x", **X).round()
    said = expected(world, "x")
    assert said.likely is not None and abs(said.likely - 92 * MINUTE) < MINUTE
    assert range_of(said) == foreseen(world, "x").start


jobs = st.lists(
    st.fixed_dictionaries(
        {
            "cpu": st.integers(1, 3),
            "priority": st.sampled_from(["low", "medium", "high"]),
            "weight": st.sampled_from([1, 50]),
            "preemptible": st.booleans(),
            "expect": st.sampled_from(["30s", "10m", "2h"]),
            "workers": st.integers(1, 2),
        },
        optional={"deadline": st.sampled_from(["20m", "3h"]), "checkpoint": st.just("1m")},
    ),
    min_size=2,
    max_size=7,
)


@pytest.mark.parametrize("policy", ["poise", "fifo", "srtf"])
@settings(max_examples=many(3, 6))
@given(jobs, st.integers(0, 5))
def test_all_who_ask_about_a_random_world_are_told_the_same(
    policy: str, asked: list[dict[str, Any]], running: int
) -> None:
    world = World(policy, check=False).nodes(2, cpu=3)
    for fields in asked[:running]:
        submit(world, fields)
    world.round()
    for unit in list(world.ledger.active.values()):
        world.start(*(f"{unit.job}.{task.name}" for task in unit.spec.tasks))
    world.after("1m")
    for fields in asked[running:-1]:
        submit(world, fields)
    world.round()
    plan = planned(world, document_of(asked[-1])) if fits(world, asked[-1]) else None
    submit(world, asked[-1])
    names = list(world.ledger.jobs)
    for name in dict.fromkeys((names[-1], *names[:1])):
        eta, waits = foreseen(world, name), explained(world, name).waiting
        assert [range_of(of.start) for of in waits] == [eta.start] * len(waits)
        assert [bool(of.start.guesses) for of in waits if of.start] == [eta.unknown == "start"] * len(waits)
    if plan is not None and plan.waits:
        assert range_of(plan.waits[0].start) == foreseen(world, names[-1]).start


def document_of(fields: dict[str, Any]) -> dict[str, Any]:
    fields = dict(fields)
    return {"run": "true", "resources": {"cpu": fields.pop("cpu")}, **fields}


def fits(world: World, fields: dict[str, Any]) -> bool:
    try:
        world.controller.prepare(document_of(fields), 0.0, world.now)
    except SpecError:
        return False
    return True


def submit(world: World, fields: dict[str, Any]) -> None:
    with contextlib.suppress(SpecError):  # a deadline that cannot be met is refused
        world.submit(document_of(fields))
