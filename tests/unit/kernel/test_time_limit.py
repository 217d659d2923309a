"""A run-time limit: its node ends the attempt, and whoever plans knows it."""

from random import Random

import pytest

from poise.engine.futures import Draws
from poise.errors import SpecError
from poise.kernel.explain import job_report
from poise.model.messages import Desired
from poise.model.reports.jobs import Changed
from poise.model.tenants import HOME
from poise.model.workload import Steady
from poise.testing import World
from poise.units import HOUR, MINUTE, SECOND


def test_what_reaches_its_limit_ends_with_an_outcome_of_its_own() -> None:
    world = World().nodes(1).job("a", **{"time-limit": "2h"}).job("next", after=["a"]).round()
    [launch] = world.held["n1"].values()
    assert launch.time_limit == 2 * HOUR
    world.start("a.main").after("2h").finish("a.main", outcome="timeout", note="over its time limit of 7200 s")
    report = job_report(world.ledger, world.state("a"), world.now, tasks=True)
    [task] = report.tasks
    assert (report.status, report.exit_code, task.outcome, task.time_limit) == ("failed", 124, "timeout", 2 * HOUR)
    assert world.status("next.main") == "skipped"


def test_it_is_tried_again_only_where_its_retry_names_it() -> None:
    world = World().nodes(1).job("a", retry={"limit": 1, "when": ["timeout"]}, **{"time-limit": "1m"}).round()
    world.start("a.main").after("1m").finish("a.main", outcome="timeout").after("1s").round()
    assert world.unit("a").status == "active"
    world.start("a.main").after("1m").finish("a.main", outcome="timeout").after("1s")
    assert world.unit("a").status == "failed"


@pytest.mark.parametrize(
    ("said", "expected"),
    [({}, 2 * HOUR), ({"expect": "10m"}, 10 * MINUTE), ({"expect": "5h"}, 2 * HOUR)],
)
def test_the_planner_counts_on_no_more_than_the_limit(said: dict[str, str], expected: int) -> None:
    world = World().nodes(1).job("a", **{"time-limit": "2h"}, **said)
    assert world.unit("a").expected == expected


@pytest.mark.parametrize(("given", "left"), [("3h", 3 * HOUR), ("90m", 90 * MINUTE), (0, 0)])
def test_the_limit_of_what_runs_is_changed_on_its_node(given: str | int, left: int) -> None:
    """Also after the control plane was killed while the node could not be reached."""
    world = World().nodes(1).job("a", **{"time-limit": "2h"}).round().start("a.main").after("1h")
    world.change("a", HOME, **{"time-limit": given})
    [launch] = world.held["n1"].values()
    assert launch.time_limit == left
    assert world.replies[-1].value == Changed(job="j1", units=1, running=0)
    assert world.unit("a").expected == (left or SECOND), "the planner counts on the new one"
    world.disconnect("n1")
    world.change("a", HOME, **{"time-limit": "5h"})
    world.restart().connect("n1")
    [launch] = world.held["n1"].values()
    assert launch.time_limit == 5 * HOUR
    [task] = job_report(world.ledger, world.state("a"), world.now, tasks=True).tasks
    assert task.time_limit == 5 * HOUR


def test_a_node_is_told_of_no_limit_that_its_attempt_was_launched_with() -> None:
    world = World().nodes(1).job("a", **{"time-limit": "2h"}).round().start("a.main")
    world.change("a", HOME, **{"time-limit": "1h"}).finish("a.main", outcome="lost").after("10s").start("a.main")
    world.sent.clear()
    world.disconnect("n1").connect("n1")
    assert [send.message.limited for send in world.sent if isinstance(send.message, Desired)] == [()]


def test_no_future_of_it_lasts_longer() -> None:
    world = World().nodes(1).job("a", expect="1h", **{"time-limit": "61m"}).round().start("a.main").after("50m")
    for seed in range(20):
        truth = Draws(world.ledger, world.now, {}, ["j1"]).draw(Random(seed)).truths["j1.main"]  # noqa: S311
        assert isinstance(truth.pace, Steady)
        assert 50 * 60 <= truth.pace.seconds <= 61 * 60 + 1e-6


def test_a_deadline_within_the_limit_is_not_refused() -> None:
    """A limit says how long it may take, and not how long it has to."""
    with pytest.raises(SpecError, match="cannot be met"):
        World().nodes(1).job("a", deadline="1h", expect="2h")
    assert World().nodes(1).job("a", deadline="1h", **{"time-limit": "2h"}).error() is None
