"""Cancelling a job, or some of its tasks."""

from typing import Any

import pytest

from poise.errors import Conflict, NotFound
from poise.kernel.explain import exit_code
from poise.kernel.messages import CancelJobs
from poise.kernel.visible import Sight
from poise.model.events import JobCancelled, JobsCancelled, UnitsCancelled
from poise.model.quotas import Amounts
from poise.model.tenants import Bearer, Role
from poise.testing import World, replay

CHAIN: dict[str, dict[str, Any]] = {
    "a": {"run": "true"},
    "b": {"run": "true", "needs": ["a"]},
    "c": {"run": "true", "needs": ["b"]},
    "d": {},
}


def test_a_task_that_waits_never_starts_and_what_needs_it_is_skipped() -> None:
    world = World().nodes(2).graph("g", tasks=CHAIN).round().cancel("g.b")
    assert [world.status(f"g.{task}") for task in "abcd"] == ["active", "cancelled", "skipped", "active"]
    assert world.start("g.a", "g.d").finish("g.a", "g.d").status("g") == "cancelled"
    assert exit_code(world.state("g")) == 130
    assert replay(world.log).encode() == world.ledger.encode()


def test_a_task_that_runs_is_stopped_and_the_rest_goes_on() -> None:
    world = World().nodes(2).graph("g", tasks=CHAIN).round().start("g.a", "g.d").cancel("g.a")
    assert [world.status(f"g.{task}") for task in "abcd"] == ["cancelled", "skipped", "skipped", "active"]
    assert not world.state("g").ended
    assert world.finish("g.d").status("g") == "cancelled"


def test_a_failure_weighs_more_than_what_was_cancelled() -> None:
    world = World().nodes(2).graph("g", tasks=CHAIN).round().cancel("g.b")
    world.start("g.a", "g.d").finish("g.a").finish("g.d", outcome="failed", code=3)
    assert (world.status("g"), exit_code(world.state("g"))) == ("failed", 3)


def test_all_parts_of_a_task_or_one_of_them() -> None:
    world = World().nodes(1, cpu=1000).graph("g", tasks={"shard": {"run": "true", "parts": 3, "merge": "true"}})
    world.cancel("g.shard[1]")
    assert [unit.status for unit in world.state("g").units] == ["pending", "cancelled", "pending", "skipped"]
    world.cancel("g.shard")
    assert [unit.status for unit in world.state("g").units] == ["cancelled", "cancelled", "cancelled", "skipped"]
    assert world.status("g") == "cancelled"


def test_one_task_of_a_gang_is_not_cancelled_alone() -> None:
    world = World().nodes(2).graph("g", tasks={"train": {"run": "true", "workers": 2}}).round()
    with pytest.raises(Conflict) as refused:
        world.cancel("g.train[1]")
    assert refused.value.record.hint == "`poise cancel j1.train`"
    assert world.cancel("g.train").status("g") == "cancelled"


def test_cancelling_is_recorded_once_and_as_it_was_asked() -> None:
    world = World().nodes(1).graph("g", tasks=CHAIN).cancel("g.b").cancel("g")
    assert [event for event in world.log if isinstance(event, JobCancelled | UnitsCancelled)] == [
        UnitsCancelled(at=world.now, job="j1", units=("j1.b",)),
        JobCancelled(at=world.now, job="j1"),
    ]
    for name in ("g", "g.b"):
        with pytest.raises(Conflict, match="is over already"):
            world.cancel(name)
    with pytest.raises(NotFound):
        world.cancel("g.zzz")


def test_what_comes_after_a_job_of_which_a_task_was_cancelled_is_not_run() -> None:
    world = World().nodes(2).graph("g", tasks=CHAIN).job("after", after=["g"]).round().cancel("g.c")
    world.start("g.a", "g.d").finish("g.a", "g.d").after("1s").start("g.b").finish("g.b")
    assert (world.status("g"), world.status("after")) == ("cancelled", "skipped")


def test_all_jobs_are_cancelled_at_once_and_what_is_over_or_forgotten_is_passed_over() -> None:
    world = World(history=0).nodes(1, cpu=1).job("runs").job("waits").graph("g", tasks=CHAIN).round()
    world.start("runs").job("over").cancel("over")
    names = tuple(job.id for job in world.ledger.jobs.values() if not job.ended)
    world.ask(CancelJobs(world.request(), ("j6591", *names, "over")))
    assert world.replies[-1].value == dict.fromkeys(names, "default")
    assert [world.status(name) for name in ("runs", "waits", "g")] == ["cancelled"] * 3
    recorded = [event for event in world.log if isinstance(event, JobsCancelled)]
    assert recorded == [JobsCancelled(at=world.now, jobs=names)], "one record for all"
    before = world.ledger.revision
    world.ask(CancelJobs(world.request(), names))
    assert (world.replies[-1].value, world.ledger.revision) == ({}, before)
    world.ledger.check()
    assert replay(world.log).encode() == world.ledger.encode()


def test_what_comes_after_another_job_that_is_cancelled_with_it_is_cancelled_too() -> None:
    """And not skipped, as what comes after a job that was cancelled alone."""
    world = World().nodes(1, cpu=1).job("first").job("second", after=["first"]).job("third", after=["second"])
    world.ask(CancelJobs(world.request(), ("j1", "j2")))
    assert (world.replies[-1].value, [world.status(name) for name in ("first", "second")]) == (
        {"j1": "default", "j2": "default"},
        ["cancelled"] * 2,
    )
    assert [unit.status for unit in world.state("third").units] == ["skipped"]
    world.ledger.check()
    assert replay(world.log).encode() == world.ledger.encode()


def test_a_record_of_many_cancelled_jobs_shows_a_tenant_its_own() -> None:
    world = World().nodes(1, cpu=1)
    world.submit({"run": "true"}, tenant="alice").submit({"run": "true"}, tenant="bob")
    world.ask(CancelJobs(world.request(), ("j1", "j2")))
    record = world.log[-1]
    assert isinstance(record, JobsCancelled)
    shown = [Sight(world.ledger, Bearer(tenant, Role.VIEWER)).event(record) for tenant in ("alice", "carol")]
    assert shown == [JobsCancelled(at=world.now, jobs=("j1",)), None]


def test_who_cancels_all_cancels_nothing_of_other_tenants() -> None:
    world = World().nodes(1, cpu=1)
    world.submit({"run": "true"}, tenant="alice").submit({"run": "true"}, tenant="bob")
    world.ask(CancelJobs(world.request(), ("j1", "j2"), Bearer("alice", Role.SUBMITTER)))
    assert [world.status(job) for job in ("j1", "j2")] == ["cancelled", "pending"]


def test_a_quota_is_given_back_when_what_held_it_is_cancelled() -> None:
    world = World().nodes(1, cpu=4).quota("alice", cpu=2)
    for _ in range(2):
        world.submit({"run": "true", "resources": {"cpu": 2}}, tenant="alice")
    world.round().start("j1")
    assert [world.status(job) for job in ("j1", "j2")] == ["running", "pending"]
    assert world.codes("j2") == ["QUOTA"]
    assert world.ledger.quotas.held("alice").cpu == 2000
    world.cancel("j1").round()
    assert world.where("j2") == ["n1"]
    world.cancel("j2")
    assert world.ledger.quotas.held("alice") == Amounts()
