"""What is bounded is bounded for each tenant: nobody fills the queue, or the history, of another."""

from collections import Counter

import pytest

from poise.errors import Busy
from poise.kernel import controller
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
    monkeypatch.setattr(controller, "MAX_UNFINISHED", 16)
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
    monkeypatch.setattr(controller, "MAX_UNFINISHED", 16)
    world = submit(World().nodes(1), "default", 16)
    with pytest.raises(Busy, match="tenant `default`"):
        submit(world, "default")


def test_the_jobs_of_one_tenant_do_not_push_those_of_another_out_of_the_history() -> None:
    world = World(history=40).nodes(1)
    for tenant, amount in (("bob", 3), ("carol", 20), ("ann", 200)):
        cancelled(submit(world, tenant, amount))
    assert kept(world.ledger)["bob"] == 3
    assert 18 <= kept(world.ledger)["carol"] <= 20
    assert 17 <= kept(world.ledger)["ann"] <= 19 + 16
    own = [int(job.id[1:]) for job in world.ledger.jobs.values() if job.tenant == "ann"]
    assert own == [*range(223 - len(own) + 1, 224)], "the latest of them"


def test_a_log_of_before_forgets_as_it_did() -> None:
    """What an older version kept is what is there when its log is read."""
    world = World(history=40).nodes(1)
    for tenant, amount in (("bob", 3), ("ann", 200)):
        cancelled(submit(world, tenant, amount))

    def older(event: Event) -> Event:
        return Began(at=event.at, term=1, policy="poise", history=40, version="") if isinstance(event, Began) else event

    assert kept(replay(map(older, world.log))).keys() == {"ann"}
    assert kept(replay(world.log)) == kept(world.ledger)
