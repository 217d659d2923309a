"""Asked about the same moment, `explain`, `plan` and `eta` foresee the same start, where run times are certain."""

from typing import Any

import pytest

from poise.kernel import whatif
from poise.kernel.controller import Settings
from poise.kernel.explain import question
from poise.model.reports import Start
from poise.model.spec import compile_spec
from poise.model.views import MOST_FOLLOWERS
from poise.policy.suites import policy_named
from poise.testing import World
from poise.twin.forecast import Bounds, Range, Target, foresee
from poise.units import MINUTE

BOUNDS = Bounds(futures=20, seconds=60.0)


def learned(policy: str) -> World:
    """One CPU, and classes of work that has always taken 12, 20 or 60 minutes."""
    world = World(policy).nodes(1, cpu=1)
    for number in range(10):
        for run in ("12m", "20m", "60m"):
            name = f"past-{run}-{number}"
            world.job(name, **{"class": f"c{run}"}).round().start(name).finish(name, run=run)
    return world


def explained(world: World, name: str) -> Start:
    view, job = world.controller.snapshot(world.now), world.state(name)
    [waiting] = whatif.explain(
        policy_named(world.ledger.leader.policy), view, question(world.ledger, job, view)
    ).waiting
    assert waiting.start is not None
    return waiting.start


def foreseen(world: World, name: str) -> Range:
    job = world.state(name)
    target = Target(job, tuple(unit.id for unit in job.units), job.id)
    policy = policy_named(world.ledger.leader.policy)
    [eta] = foresee(world.ledger, policy, Settings(), world.now, [target], bounds=BOUNDS).jobs
    assert eta.start is not None
    return eta.start


def planned(world: World, **fields: object) -> Start:
    """What is foreseen of a job that is not submitted."""
    view = world.controller.snapshot(world.now)
    job = world.controller.would_submit(compile_spec({"run": "true", **fields}, wall=0.0))
    told = whatif.plan(policy_named(world.ledger.leader.policy), view, whatif.propose(world.ledger, job, world.now))
    [waiting] = told.waits
    assert waiting.start is not None
    return waiting.start


X = {"class": "c12m"}


def task(kind: str, *needs: str) -> dict[str, Any]:
    return {"class": kind, "needs": list(needs)}


@pytest.mark.parametrize("policy", ["fifo", "poise", "srtf"])
def test_what_follows_what_runs_is_waited_for(policy: str) -> None:
    world = learned(policy)
    tasks: dict[str, dict[str, Any]] = {
        "a": {"class": "c12m"},
        "b": {"class": "c60m", "needs": ["a"]},
        "c": {"class": "c20m", "needs": ["b"]},
    }
    world.graph("g", tasks=tasks, priority="urgent").round().start("g.a")
    before = planned(world, **X)
    world.job("x", **X).round()
    said, drawn = explained(world, "x"), foreseen(world, "x")
    assert said.likely is not None and drawn.p50 is not None
    assert abs(said.likely - drawn.p50) < MINUTE
    assert before.likely == said.likely


def test_a_job_that_comes_after_another_is_waited_for() -> None:
    world = learned("fifo")
    world.job("a", **{"class": "c12m"}).round().start("a")
    world.job("b", after=["a"], priority="urgent", **{"class": "c60m"}).job("x", **X).round()
    said, drawn = explained(world, "x"), foreseen(world, "x")
    assert said.likely is not None and drawn.p50 is not None
    assert abs(said.likely - 72 * MINUTE) < MINUTE
    assert abs(said.likely - drawn.p50) < MINUTE


def test_what_needs_two_comes_up_after_the_later_one() -> None:
    world = learned("fifo")
    tasks: dict[str, dict[str, Any]] = {
        "a": {"class": "c12m"},
        "b": {"class": "c20m"},
        "c": {"class": "c60m", "needs": ["a", "b"]},
    }
    world.graph("g", tasks=tasks, priority="urgent").round().start("g.a").job("x", **X).round()
    said, drawn = explained(world, "x"), foreseen(world, "x")
    assert said.likely is not None and drawn.p50 is not None
    assert abs(said.likely - 92 * MINUTE) < MINUTE
    assert abs(said.likely - drawn.p50) < MINUTE


def test_what_waits_for_very_much_is_not_looked_ahead_to() -> None:
    world = World().nodes(1, cpu=1)
    world.graph("big", tasks={f"t{number}": {} for number in range(MOST_FOLLOWERS + 1)})
    world.graph("small", tasks={"a": {}, "b": {"needs": ["a"]}})
    world.job("far", after=["big"]).job("near", after=["small"])
    names = {follower.candidate.job: follower.needs for follower in world.ledger.shown.followers()}
    small, near = world.state("small").id, world.state("near").id
    assert names == {small: {f"{small}.a"}, near: {f"{small}.a", f"{small}.b"}}
