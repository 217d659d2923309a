"""When units start, in futures that follow the ledger's own rules."""

import re
import time
from functools import partial
from typing import Any

import pytest

from poise.engine import lookahead
from poise.engine.lookahead import NEVER, NO_TIME, TOO_LARGE, Bounds, LookAhead
from poise.model.reports.questions import Start
from poise.policy.suites import policy_named
from poise.testing import World
from poise.units import MINUTE, SECOND
from unit import asking
from unit.asking import BOUNDS, policy_of

expected = partial(asking.expected, bounds=BOUNDS)


def certain(policy: str, *runs: str) -> World:
    """One CPU, and classes `c12m` … of work that has always taken as long as their names say."""
    world = World(policy, check=False).nodes(1, cpu=1)
    for number in range(12):
        for run in runs:
            name = f"past-{run}-{number}"
            world.job(name, **{"class": f"c{run}"}).round().start(name).finish(name, run=run)
    return world


def about(start: Start) -> list[int]:
    """Minutes."""
    assert start.earliest is not None and start.likely is not None and start.latest is not None
    return [round(at / MINUTE) for at in (start.earliest, start.likely, start.latest)]


def test_what_has_room_starts_now() -> None:
    world = World().nodes(1).job("a")
    ahead = LookAhead(world.ledger, world.now, time.monotonic, bounds=BOUNDS)
    assert ahead.starts(policy_of(world), [["j1.main"]]) == [Start(earliest=0, likely=0, latest=0, futures=20)]


def test_what_runs_ends_first_and_then_what_is_ahead() -> None:
    world = certain("fifo", "10m").job("a", **{"class": "c10m"}).round().start("a").after("4m")
    for name in ("b", "c"):
        world.job(name, **{"class": "c10m"})
    world.round()
    assert about(expected(world, "b")) == [6, 6, 6]
    assert about(expected(world, "c")) == [16, 16, 16]


def test_the_first_of_those_alike_is_told() -> None:
    world = certain("fifo", "10m").job("a", **{"class": "c10m"}).round().start("a")
    world.graph("g", tasks={f"t{number}": {"class": "c10m"} for number in range(3)}).round()
    assert about(expected(world, "g")) == [10, 10, 10]
    assert about(expected(world, "g.t1")) == [20, 20, 20]


def test_an_unknown_run_time_is_named_where_its_end_is_waited_for() -> None:
    world = World("fifo").nodes(1).job("a", cpu=2).round().start("a").job("b", cpu=2).job("c", cpu=2, expect="1m")
    assert expected(world, "b").guesses == ("j1.main",)
    assert expected(world, "c").guesses == ("j1.main", "j2.main")
    world.finish("a", run="1m").round()
    assert expected(world, "c").guesses == (), "the class has run by now"


@pytest.mark.parametrize("policy", ["poise", "fifo", "sjf", "srtf", "las", "round-robin", "static"])
def test_what_no_end_makes_room_for_has_no_start(policy: str) -> None:
    world = World(policy).nodes(1).drain("n1").job("a").round()
    assert expected(world, "a") == Start(why=NEVER, futures=20)


def test_a_gang_waits_for_the_last_of_its_room() -> None:
    world = certain("poise", "10m", "90m").nodes(2, cpu=1)
    world.job("a", **{"class": "c10m"}).job("b", **{"class": "c90m"}).round().start("a", "b")
    world.job("gang", workers=2).round()
    assert about(expected(world, "gang"))[:2] == [90, 90]


def test_one_far_back_in_a_long_queue_starts_when_all_before_it_have() -> None:
    """A policy is shown the head of a queue."""
    world = World("fifo", check=False).nodes(1, cpu=10)
    for _ in range(300):
        world.job(expect="10s")
    told = expected(world, "j255", bounds=BOUNDS._replace(futures=3))
    assert told.likely == pytest.approx(250 * SECOND, rel=0.4)


def test_who_yields_comes_back_later() -> None:
    """The low one is asked to yield, starts over when the urgent one is done, and only then the last one starts."""
    world = World().nodes(1).job("a", cpu=2, priority="low", expect="1h").round().start("a").after("1m")
    world.job("b", cpu=2, priority="urgent", expect="10m").job("c", cpu=2, priority="low", expect="2h")
    first, last = expected(world, "b"), expected(world, "c")
    assert (first.earliest, first.latest) == (5 * SECOND, 5 * SECOND)  # half the grace
    assert last.earliest is not None and last.earliest > 5 * SECOND


def test_what_is_preempted_for_it_is_named() -> None:
    world = World("poise").nodes(1, cpu=2).job("low", cpu=2, priority="low", expect="10m").round().start("low")
    world.after("1s").job("urgent", cpu=2, priority="urgent", expect="10s").job("next", cpu=2, expect="10m").round()
    found = expected(world, "urgent")
    assert found.preempts == ("j1.main",)
    assert found.likely is not None and found.likely < MINUTE, "long before the end of the other one"
    assert found.displaced == {}
    after = expected(world, "next")
    assert (after.preempts, after.displaced) == ((), {"j1.main": "j2.main"}), "for the urgent one, before it"


def test_turns_of_schedules_come_on_time_and_are_waited_for() -> None:
    """The job of the turn in 10 minutes takes the node for an hour; what begins in 20 minutes finds it taken."""
    hourly: dict[str, Any] = {"every": "1h", "cpu": 2, "expect": "1h", "priority": "high"}
    world = World(dead_after=0).nodes(1, cpu=2).job("beat", **hourly).tick().cancel("beat-1").after("50m")
    world.job("late", cpu=2, begin="20m", expect="10m", preemptible=False)
    found = expected(world, "late")
    assert found.earliest is not None and found.earliest > 25 * MINUTE
    world.hold_schedule("beat")
    found = expected(world, "late")
    assert (found.earliest, found.latest) == (20 * MINUTE, 20 * MINUTE)


def test_what_is_tried_again_later_starts_no_sooner() -> None:
    world = World().nodes(1).job("a", begin="1h").round().after("10m")
    assert about(expected(world, "a")) == [50, 50, 50]


def test_what_was_cut_is_said_and_a_bound_is_given() -> None:
    world = World().nodes(1).job("a", cpu=2, expect="100s").round().start("a").after("40s").job("b", cpu=2)
    assert expected(world, "b", bounds=Bounds(20, 0.0)) == Start(earliest=60 * SECOND, why=NO_TIME)


def test_a_fleet_too_large_to_be_forked_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead, "LARGEST", 2)
    world = World().nodes(1).job("a", cpu=2, expect="100s").round().start("a").job("b", cpu=2)
    assert expected(world, "b") == Start(earliest=100 * SECOND, why=TOO_LARGE)


def test_the_ledger_goes_on_while_its_fork_is_looked_ahead_in() -> None:
    def asked() -> tuple[World, LookAhead]:
        world = World("fifo").nodes(1).job("a", cpu=2, expect="10m").round().start("a").job("b", cpu=2).round()
        return world, LookAhead(world.ledger, world.now, time.monotonic, bounds=BOUNDS)

    (_, still), (world, ahead) = asked(), asked()
    world.finish("a").round().start("b").job("c").round()
    before = world.ledger.encode()
    assert ahead.starts(policy_named("fifo"), [["j2.main"]]) == still.starts(policy_named("fifo"), [["j2.main"]])
    assert world.ledger.encode() == before
    world.ledger.check()


def test_of_a_job_that_is_not_submitted_nothing_is_left_behind() -> None:
    world = World("fifo").nodes(1).job("a", cpu=2, expect="10m").round().start("a")
    compiled = world.controller.prepare({"run": "true"}, 0.0, world.now)
    before = world.ledger.encode()
    job = world.controller.jobs.would_submit(compiled)
    ahead = LookAhead(world.ledger, world.now, time.monotonic, bounds=BOUNDS, job=job)
    [start] = ahead.starts(policy_named("fifo"), [["j2.main"]])
    assert start.likely == pytest.approx(8.5 * MINUTE, rel=0.3)
    assert world.ledger.encode() == before


def test_what_starts_in_some_futures_only_says_in_how_many_it_does_not() -> None:
    """Cancelled where it cannot be in time any more."""
    world = World("fifo").nodes(1).job("a", cpu=2, expect="30m").round().start("a")
    world.job("b", cpu=2, expect="1m", deadline={"by": "30m", "if-late": "cancel"}).round()
    told = expected(world, "b")
    assert told.earliest is not None and told.latest is None
    assert re.fullmatch(r"in ([2-9]|1[0-9]) of 20 futures nothing makes room for it", told.why)
