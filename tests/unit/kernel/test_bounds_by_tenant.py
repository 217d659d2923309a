"""What is bounded is bounded for each tenant: nobody fills the queue, or the history, of another."""

from collections import Counter

import msgspec
import pytest

from poise.errors import Busy
from poise.kernel.controller import jobs
from poise.kernel.ledger import Ledger
from poise.kernel.messages import AddToken
from poise.model.events import Began, Event
from poise.model.tenants import Role
from poise.testing import World, replay


def submit(world: World, tenant: str, amount: int = 1) -> World:
    for _ in range(amount):
        world.job(tenant=tenant)
    return world


def kept(ledger: Ledger) -> Counter[str]:
    return Counter(job.tenant for job in ledger.jobs.values() if job.ended)


def cancelled(world: World) -> World:
    for job in [job.id for job in world.ledger.jobs.values() if not job.ended]:
        world.cancel(job)
    return world


def test_a_tenant_may_fill_half_of_what_the_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_UNFINISHED", 16)
    world = submit(World().nodes(1), "ann", 8)
    world.ask(AddToken(request=world.request(), tenant="bob", role=Role.SUBMITTER, hash="b" * 64))
    with pytest.raises(Busy, match="too much work of tenant `ann` is waiting already") as refused:
        submit(world, "ann")
    assert (refused.value.record.need, refused.value.record.have) == ("at most 8 units", "9")
    submit(world, "bob", 4)
    with pytest.raises(Busy, match="tenant `bob`"):
        submit(world, "bob")
    submit(world, "carol", 2)
    cancelled(world)
    submit(world, "bob", 8)


def test_who_is_alone_may_have_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_UNFINISHED", 16)
    world = submit(World().nodes(1), "default", 16)
    with pytest.raises(Busy, match="tenant `default`"):
        submit(world, "default")


def test_the_jobs_of_one_tenant_do_not_push_those_of_another_out_of_the_history() -> None:
    world = World(history=40, check=False).nodes(1)
    for tenant, amount in (("bob", 3), ("carol", 20), ("ann", 200)):
        cancelled(submit(world, tenant, amount))
    assert kept(world.ledger)["bob"] == 3
    assert 18 <= kept(world.ledger)["carol"] <= 20
    assert 17 <= kept(world.ledger)["ann"] <= 19 + 16
    own = [int(job.id[1:]) for job in world.ledger.jobs.values() if job.tenant == "ann"]
    assert own == [*range(223 - len(own) + 1, 224)], "the latest of them"


def test_a_log_of_before_forgets_as_it_did() -> None:
    """What an older version kept is what is there when its log is read."""
    world = World(history=40, check=False).nodes(1)
    for tenant, amount in (("bob", 3), ("ann", 200)):
        cancelled(submit(world, tenant, amount))

    def older(event: Event) -> Event:
        return Began(at=event.at, term=1, policy="poise", history=40, version="") if isinstance(event, Began) else event

    assert kept(replay(map(older, world.log))).keys() == {"ann"}
    assert kept(replay(world.log)) == kept(world.ledger)


def sweep(world: World, tenant: str, tasks: int, amount: int = 1) -> World:
    """Jobs of so many tasks, which end."""
    for _ in range(amount):
        cancelled(world.job(tenant=tenant, parts=tasks))
    return world


def tasks_kept(ledger: Ledger) -> Counter[str]:
    kept = Counter[str]()
    for job in ledger.jobs.values():
        kept[job.tenant] += len(job.units)
    return kept


def test_finished_jobs_are_forgotten_by_their_tasks_too() -> None:
    world = sweep(World(history=100, history_tasks=64).nodes(1), "ann", 8, amount=40)
    assert 64 <= tasks_kept(world.ledger)["ann"] <= 64 + 16
    latest = [job.id for job in world.ledger.jobs.values()]
    assert latest == [f"j{number}" for number in range(41 - len(latest), 41)], "the latest of them"
    assert len(world.ledger.jobs.tasks) == tasks_kept(world.ledger)["ann"], "and nothing else of the others"


def test_the_tasks_of_one_tenant_do_not_push_those_of_another_out_of_the_history() -> None:
    world = World(history=100, history_tasks=64).nodes(1)
    sweep(sweep(world, "bob", 4, amount=2), "ann", 8, amount=40)
    assert tasks_kept(world.ledger)["bob"] == 8
    sweep(world, "bob", 8, amount=40)
    assert 32 - 8 <= tasks_kept(world.ledger)["bob"] <= 32 + 16 + 8
    assert 32 - 8 <= tasks_kept(world.ledger)["ann"] <= 32 + 16


def test_the_job_that_has_just_ended_is_kept_however_large_it_is() -> None:
    world = World(history=100, history_tasks=16).nodes(1)
    for number in range(1, 4):
        sweep(world, "ann", 60)
        assert list(world.ledger.jobs) == [f"j{number}"]
    assert list(sweep(world, "ann", 1).ledger.jobs) == ["j4"]


def test_what_is_forgotten_by_its_tasks_is_the_same_after_a_restart() -> None:
    world = sweep(sweep(World(history=100, history_tasks=64).nodes(1), "bob", 4, amount=9), "ann", 8, amount=9)
    restarted = world.restart(from_checkpoint=True)
    sweep(sweep(restarted, "bob", 8, amount=9), "ann", 4, amount=9)
    assert replay(world.log).encode() == restarted.ledger.encode()


def test_a_log_of_before_keeps_all_tasks() -> None:
    world = sweep(World(history=100, history_tasks=64).nodes(1), "ann", 8, amount=20)

    def older(event: Event) -> Event:
        return msgspec.structs.replace(event, history_tasks=0) if isinstance(event, Began) else event

    assert tasks_kept(replay(map(older, world.log)))["ann"] == 160
