"""What a tenant's work may hold at once: bounded at every placement, told by name, and never taken away afterwards."""

import pytest

from poise.errors import SpecError
from poise.kernel.explain import question
from poise.kernel.whatif import unblock
from poise.model.quotas import Amounts
from poise.policy.suites import policy_named
from poise.testing import World, node, replay
from unit.asking import explained, planned


def test_work_beyond_the_quota_waits_and_says_so() -> None:
    world = World().nodes(1, cpu=4).quota("ann", cpu=2).job("a", tenant="ann", cpu=2).job("b", tenant="ann").round()
    assert (world.status("a"), world.status("b")) == ("placed", "pending")
    assert [reason.sentence() for reason in world.reasons("b")] == ["the quota of ann has 0 CPU left, 1 CPU needed"]
    assert world.finish("a").round().status("b") == "placed"


def test_others_are_not_held_up_by_it() -> None:
    for policy in ("poise", "fifo", "static"):
        world = World(policy).nodes(1, cpu=4).quota("ann", cpu=1).job("a", tenant="ann").job("b", tenant="ann").round()
        assert world.job("c", tenant="bob").round().status("c") == "placed"


def test_shares_of_devices_and_members_of_gangs_count() -> None:
    world = World().join(node("n1", cpu=8, gpus=2)).quota("ann", gpu=1.5)
    world.job("gang", tenant="ann", workers=2, gpu=1, gpu_share=0.5).job("more", tenant="ann", gpu=1).round()
    assert (len(world.where("gang")), world.status("more")) == (2, "pending")
    assert world.reasons("more")[0].sentence() == "the quota of ann has 0.5 GPU left, 1 GPU needed"


def test_an_elastic_gang_takes_what_its_quota_leaves() -> None:
    world = World().nodes(1, cpu=8).quota("ann", cpu=3).job("wide", tenant="ann", workers="1..8").round()
    assert len(world.where("wide")) == 3


def test_what_is_more_than_the_whole_quota_is_refused() -> None:
    world = World().nodes(1, cpu=8).quota("ann", cpu=3)
    with pytest.raises(SpecError) as refused:
        world.job("wide", tenant="ann", cpu=4)
    assert (refused.value.record.code, refused.value.record.need) == ("E110", "4 CPU")
    assert refused.value.record.have == "a quota of 3 CPU"
    assert world.job("wide", tenant="bob", cpu=4).round().status("wide") == "placed"


def test_a_lowered_quota_takes_nothing_away_and_a_lifted_one_lets_go_on() -> None:
    world = (
        World().nodes(1, cpu=4).job("a", tenant="ann", cpu=3).round().quota("ann", cpu=1).job("b", tenant="ann").round()
    )
    assert (world.status("a"), world.status("b")) == ("placed", "pending")
    assert world.quota("ann", none=True).round().status("b") == "placed"


def test_work_of_a_lost_node_is_placed_elsewhere_in_the_room_that_it_holds_itself() -> None:
    world = World().nodes(2).quota("ann", cpu=1).job("a", tenant="ann").round().start("a")
    world.lose("n1").after("5s")
    assert (world.where("a"), world.ledger.quotas.held("ann").cpu) == (["n2"], 1000)


@pytest.mark.parametrize("policy", ["poise", "fifo", "finish-time-fair"])
def test_more_devices_than_a_lowered_quota_do_not_hold_up_work_without_any(policy: str) -> None:
    world = World(policy).join(node("n1", cpu=4, gpus=2)).job("a", tenant="ann", gpu=2).round()
    world.quota("ann", gpu=1).job("b", tenant="ann").job("c", tenant="ann", gpu=1).round()
    assert (world.status("b"), world.status("c")) == ("placed", "pending")
    assert next(reason.sentence() for reason in world.reasons("c")) == "the quota of ann has 0 GPU left, 1 GPU needed"


def test_brief_work_of_a_bounded_tenant_does_not_wait_behind_that_of_others() -> None:
    world = World().nodes(1, cpu=1).quota("ann", cpu=1)
    for name in ("ann", "bob"):
        for number in range(4):
            world.job(f"{name}{number}", tenant=name).round().finish(f"{name}{number}", run="10ms")
    world.job("runs", tenant="bob").job("waits", tenant="ann").round()
    assert world.status("waits") == "pending"


def test_unblock_says_whose_end_helps() -> None:
    world = World().nodes(1, cpu=4).quota("ann", cpu=2).job("a", tenant="ann", cpu=2, expect="1h").round().start("a")
    world.job("b", tenant="ann").after("1s")
    view = world.controller.snapshot(world.now)
    asked = question(world.ledger, world.state("b"), view)
    policy = policy_named(world.ledger.leader.policy)
    [waiting] = explained(world, "b").waiting
    assert waiting.reasons[0].code == "QUOTA"
    assert waiting.start is not None
    assert waiting.start.likely is not None
    assert [of.command for of in unblock(policy, view, asked).suggestions] == ["poise cancel j1"]


def test_a_plan_knows_of_it() -> None:
    world = World().nodes(1, cpu=4).quota("ann", cpu=1).job("a", tenant="ann").round()
    for tenant, codes in (("ann", ["QUOTA"]), ("bob", [])):
        told = planned(world, {"run": "true"}, tenant=tenant)
        assert [reason.code for waiting in told.waits for reason in waiting.reasons] == codes


def test_it_is_in_the_log() -> None:
    world = (
        World().nodes(1, cpu=4).quota("ann", cpu=2, gpu=1).job("a", tenant="ann", cpu=2).job("b", tenant="ann").round()
    )
    again = replay(world.log)
    assert again.encode() == world.ledger.encode()
    assert again.quotas == world.ledger.quotas
    assert again.quotas.held("ann") == world.ledger.quotas.held("ann") != Amounts()
