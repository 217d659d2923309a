"""Which notices of a job are due, and that each is dealt with once."""

from typing import Any

import pytest

from poise.errors import SpecError
from poise.kernel.explain import job_report
from poise.kernel.messages import NoticeDone
from poise.kernel.visible import Sight
from poise.model.events import Notified
from poise.model.tenants import Bearer, Role
from poise.testing import World, replay

HOOK = "webhook:https://hooks.example.org/poise"
ALL: dict[str, Any] = {"notify": [HOOK], "notify-on": ["start", "end", "failure"]}


def due(world: World, name: str) -> list[str]:
    world.ledger.check()
    assert replay(world.log).encode() == world.ledger.encode()
    job = world.state(name)
    assert (job.id in world.ledger.jobs.notifying) == bool(job.notices)
    return job.notices


def tell(world: World, job: str, notice: str, failed: str = "") -> World:
    return world.ask(NoticeDone(world.request(), job, notice, failed))


def test_what_is_told_when() -> None:
    world = World().nodes(1).job("a", **ALL).round()
    assert due(world, "a") == []
    assert due(world.start("a"), "a") == ["start/0"]
    assert due(world.finish("a"), "a") == ["start/0", "end/0"]


def test_what_ends_at_once_has_started_too() -> None:
    world = World().nodes(1).job("a", **ALL).round().finish("a")
    assert due(world, "a") == ["start/0", "end/0"]


@pytest.mark.parametrize(
    ("on", "outcome", "notices"),
    [
        ([], "done", ["end/0"]),
        ([], "failed", ["end/0"]),
        (["failure"], "done", []),
        (["failure"], "failed", ["failure/0"]),
        (["end", "failure"], "failed", ["end/0"]),
        (["start"], "failed", ["start/0"]),
    ],
)
def test_by_how_it_ends(on: list[str], outcome: Any, notices: list[str]) -> None:
    world = World().nodes(1).job("a", notify=[HOOK], retry={"limit": 0}, **{"notify-on": on}).round().start("a")
    assert due(world.finish("a", outcome=outcome), "a") == notices


def test_what_is_cancelled_has_ended_and_not_failed() -> None:
    fields: dict[str, Any] = {"notify": [HOOK], "notify-on": ["failure"]}
    world = World().nodes(1).job("a", notify=[HOOK]).job("b", **fields).cancel("a").cancel("b")
    assert (due(world, "a"), due(world, "b")) == (["end/0"], [])


def test_each_target_is_told_and_a_restart_loses_none() -> None:
    world = World().nodes(1).job("a", notify=[HOOK, "command:mail"]).round().finish("a")
    tell(world, "j1", "end/1")
    assert due(world.restart(), "a") == ["end/0"]
    assert due(world.restart(from_checkpoint=True), "a") == ["end/0"]
    assert due(tell(world, "j1", "end/0", "nobody answers"), "a") == []
    assert job_report(world.ledger, world.state("a"), world.now, tasks=True).unnotified == {"end/0": "nobody answers"}


def test_what_is_dealt_with_twice_is_recorded_once() -> None:
    world = World().nodes(1).job("a", notify=[HOOK]).round().finish("a")
    for _ in range(2):
        tell(world, "j1", "end/0")
    tell(world.remove("j1"), "j1", "end/0")
    assert len([event for event in world.log if isinstance(event, Notified)]) == 1
    assert not world.ledger.jobs.notifying


def test_a_removed_job_tells_nobody() -> None:
    world = World().nodes(1).job("a", notify=[HOOK]).round().finish("a").remove("a")
    assert not world.ledger.jobs.notifying
    world.ledger.check()


def test_jobs_of_a_schedule_and_retries_tell_the_same() -> None:
    world = World(dead_after=0).nodes(1).job("s", every="1h", notify=[HOOK], retry={"limit": 0}).tick().round()
    world.start("s-1").finish("s-1", outcome="failed").retry("s-1")
    assert [job.notify and job.notify.targets for job in world.ledger.jobs.values()] == [(HOOK,), (HOOK,)]


def test_a_tenant_sees_notices_of_its_own() -> None:
    world = World().nodes(1)
    for tenant in ("ann", "bob"):
        world.job(notify=[HOOK], tenant=tenant)
    world.cancel("j1").cancel("j2")
    tell(tell(world, "j1", "end/0"), "j2", "end/0")
    sight = Sight(world.ledger, Bearer("ann", Role.VIEWER))
    assert [sight.event(event) is not None for event in world.log if isinstance(event, Notified)] == [True, False]


@pytest.mark.parametrize(
    "target",
    [
        "https://hooks.example.org",
        "webhook:ftp://a",
        "webhook:https://",
        "webhook:https://ann:secret@a/b",
        "webhook:https://a:99999/",
        "webhook:https://a b/",
        "command:",
        "command:a/b",
        "command:mail ann",
        "webhook:https://a/" + 3000 * "x",
        "mail",
    ],
)
def test_what_is_no_target_is_refused(target: str) -> None:
    with pytest.raises(SpecError) as refused:
        World().job("a", notify=[target])
    assert refused.value.record.field == "notify[0]"


def test_moments_without_anybody_to_tell_are_refused() -> None:
    with pytest.raises(SpecError) as refused:
        World().job("a", **{"notify-on": ["end"]})
    assert refused.value.record.field == "notify-on"


def test_a_fork_does_not_learn_of_notices_and_turns() -> None:
    world = World(dead_after=0).nodes(1).job("a", notify=[HOOK]).job("s", every="1h").round().finish("a")
    fork = world.ledger.fork()
    before = fork.encode()
    tell(world, "j1", "end/0").after("1h").hold_schedule("s")
    assert fork.encode() == before
    assert world.ledger.encode() != before
