"""Fair shares: who is served first, what is taken back, and what no plan may do."""

from typing import Any

import pytest

from poise.kernel.ledger import Ledger
from poise.kernel.verify import above_share
from poise.model.decisions import Preempt, Why
from poise.model.events import Preempted
from poise.model.resources import Device, Node
from poise.policy.entitled import PROTECTED, Standing, level_in, served_first
from poise.testing import World, node, replay
from poise.units import DAY, HOUR, SECOND, format_duration

TWO = {"tenant": "research", "guaranteed": {"gpu": 2}}, {"tenant": "product", "guaranteed": {"gpu": 2}}


def devices(count: int = 4, **fields: Any) -> World:
    return World(**fields).join(node("n1", cpu=64, gpus=count))


def jobs(world: World, tenant: str, count: int, first: int = 1, **fields: Any) -> World:
    for number in range(first, first + count):
        world.job(f"{tenant[0]}{number}", tenant=tenant, gpu=1, **fields)
    return world


def stops(world: World) -> list[Preempted]:
    """Orders to make room for another."""
    return [event for event in world.log if isinstance(event, Preempted) and event.to]


def held(world: World, tenant: str) -> int:
    """Devices that its work holds and is not asked to give up."""
    return sum(
        len(task.devices)
        for unit in world.ledger.active.values()
        if world.ledger.jobs[unit.job].tenant == tenant and not unit.stopping
        for task in unit.tasks
        if task.active
    )


def test_idle_room_is_lent() -> None:
    world = jobs(devices().shares(*TWO), "research", 6).round()
    assert held(world, "research") == 4


def test_what_is_guaranteed_comes_before_what_is_borrowed_though_it_came_later() -> None:
    world = devices().shares(*TWO)
    jobs(jobs(world, "research", 4), "product", 4).round()
    assert (held(world, "research"), held(world, "product")) == (2, 2)


def test_a_unit_larger_than_the_guarantee_of_its_share_does_not_keep_smaller_ones_from_it() -> None:
    world = devices().shares(*TWO)
    world.job("wide", tenant="research", gpu=4, expect="1m")
    jobs(world, "research", 2, expect="1h")
    for number in (1, 2):
        world.job(f"p{number}", tenant="product", gpu=2, expect="10m")
    world.round()
    assert [world.status(name) for name in ("r1", "r2", "p1", "p2")] == ["placed", "placed", "placed", "pending"]


def test_the_guarantee_is_taken_back_and_no_more() -> None:
    world = jobs(devices().shares(*TWO), "research", 4).round().start("r1", "r2", "r3", "r4").after("10m")
    jobs(world, "product", 4).round()
    orders = stops(world)
    assert [world.ledger.jobs[order.unit.partition(".")[0]].tenant for order in orders] == ["research", "research"]
    assert {order.why.rank for order in orders} == {"product takes back what it is guaranteed"}
    world.settle()
    assert (held(world, "research"), held(world, "product")) == (2, 2)
    world.after("1h").settle()
    assert (held(world, "research"), held(world, "product")) == (2, 2)


def test_several_units_share_the_room_that_one_wide_unit_leaves() -> None:
    world = devices(4).join(node("n2", cpu=64, gpus=4))
    world.shares({"tenant": "research"}, {"tenant": "product", "guaranteed": {"gpu": 4}})
    world.job("wide", tenant="research", gpu=4).job("broad", tenant="research", gpu=4).round().start("wide", "broad")
    jobs(world.after("10m"), "product", 4).round()
    assert len(stops(world)) == 1
    world.settle()
    assert (held(world, "research"), held(world, "product")) == (4, 4)


def test_what_is_within_a_guarantee_is_not_stopped_for_anybody() -> None:
    world = jobs(devices(2).shares(*TWO), "research", 2).round().start("r1", "r2").after("10m")
    world.job("urgent", tenant="product", gpu=1, priority="urgent").round()
    assert held(world, "research") == 2  # four are guaranteed of two


def test_who_borrowed_less_of_late_is_served_first() -> None:
    world = devices(2).shares({"tenant": "research"}, {"tenant": "product"}, half_life="1h")
    jobs(world, "research", 2).round().start("r1", "r2").after("20m")
    jobs(jobs(world, "research", 2, 3), "product", 2)
    world.finish("r1", "r2", run="20m").settle()
    assert (held(world, "research"), held(world, "product")) == (0, 2)


def test_equal_shares_take_turns_within_one_round_and_weights_count() -> None:
    world = devices(6).shares({"tenant": "research", "weight": 2}, {"tenant": "product"})
    jobs(jobs(world, "research", 6), "product", 6).round()
    assert (held(world, "research"), held(world, "product")) == (4, 2)


def test_a_class_comes_before_shares() -> None:
    world = devices(2).shares(*TWO)
    jobs(world, "research", 2)
    world.job("first", tenant="other", gpu=2, priority="high").round()
    assert world.status("first") == "placed"


def test_users_share_what_their_tenant_has() -> None:
    users = {"user": "ann", "in": "research"}, {"user": "bob", "in": "research"}
    world = devices().shares(*TWO, *users)
    for number in range(4):
        world.submit({"run": "true", "name": f"a{number}", "resources": {"gpu": 1}}, user="ann", tenant="research")
    world.submit({"run": "true", "name": "bob", "resources": {"gpu": 1}}, user="bob", tenant="research")
    jobs(world, "product", 2).round()
    assert held(world, "product") == 2
    assert [world.status(name) for name in ("a0", "a1", "bob")] == ["placed", "pending", "placed"]


def test_a_limit_bounds_a_tenant_and_is_told() -> None:
    world = jobs(devices().shares({"tenant": "research", "limit": {"gpu": 1}}), "research", 2).round()
    assert [reason.sentence() for reason in world.reasons("r2")] == [
        "the limit of the share research leaves no room for 1 GPU"
    ]
    world.job("wide", tenant="research", workers="1..4", gpu=1).finish("r1").settle().finish("r2").settle()
    assert held(world, "research") == 1


def test_what_is_not_lent_stays_free() -> None:
    world = devices().shares({"tenant": "product", "guaranteed": {"gpu": 3}, "lends": False})
    jobs(world, "research", 2).round()
    assert (held(world, "research"), world.codes("r2")) == (1, ["NOT_LENT"])
    jobs(world, "product", 3).round()
    assert held(world, "product") == 3


def test_a_guarantee_of_a_model_is_taken_back_on_that_model() -> None:
    cards = tuple(Device(index=index, memory=2**36, model=model) for index, model in enumerate(("H100", "H100", "T4")))
    world = World().join(Node(name="n1", incarnation="1", cpu=64_000, memory=2**40, devices=cards))
    world.shares({"tenant": "product", "guaranteed": {"H100": 1}}, {"tenant": "research"})
    jobs(world, "research", 3).round().start("r1", "r2", "r3").after("10m")
    jobs(world, "product", 2).round()
    [order] = stops(world)
    assert world.ledger.jobs[order.unit.partition(".")[0]].tenant == "research"
    world.settle()
    placed = [world.task(name)[1].devices for name in ("p1", "p2") if world.status(name) == "placed"]
    assert placed and set(placed) <= {(0,), (1,)}


def test_a_plan_whose_beneficiary_ends_above_its_victims_share_is_refused() -> None:
    world = devices(4).shares({"tenant": "research"}, {"tenant": "product"})
    jobs(jobs(world, "research", 2), "product", 3).round()
    running = [name for name in ("r1", "r2", "p1", "p2", "p3") if world.status(name) == "placed"]
    world.start(*running).after("10m")
    victim = next(name for name in running if name.startswith("r"))
    waiting = next(name for name in ("p1", "p2", "p3") if world.status(name) == "pending")
    plan = Preempt(unit=world.unit(victim).id, cause="yield", why=Why(policy="x"), to=world.unit(waiting).id)
    found = above_share(world.ledger, [plan], world.now)
    assert [(one.unit, one.reasons[0].code) for one in found.values()] == [(world.unit(victim).id, "ABOVE_SHARE")]


def test_a_unit_that_borrows_does_not_push_another_share_below_its_guarantee() -> None:
    """A wide unit is more than the loan of its share, which would take the rest back at once."""
    shares = {"tenant": "research", "guaranteed": {"gpu": 2}}, {"tenant": "product"}
    world = devices(6).shares(*shares, half_life="1h")
    world.job("wide", tenant="research", gpu=4).round().start("wide").after("3h")
    world.job("p1", tenant="product", gpu=2).round().start("p1").after("5m")
    world.job("p2", tenant="product", gpu=2)
    plan = Preempt(unit=world.unit("wide").id, cause="yield", why=Why(policy="x"), to=world.unit("p2").id)
    found = above_share(world.ledger, [plan], world.now)
    assert [one.reasons[0].code for one in found.values()] == ["ABOVE_SHARE"]
    world.shares({"tenant": "research"}, {"tenant": "product"}, half_life="1h")
    assert not above_share(world.ledger, [plan], world.now)  # all of it is a loan: the same debts allow it


def test_a_unit_runs_for_a_minute_before_it_is_stopped_for_another_share() -> None:
    world = jobs(devices().shares(*TWO), "research", 4).round().start("r1", "r2", "r3", "r4").after("40s")
    jobs(world, "product", 1).round()
    plan = Preempt(unit=world.unit("r1").id, cause="yield", why=Why(policy="x"), to=world.unit("p1").id)
    found = above_share(world.ledger, [plan], world.now)
    assert not stops(world) and [one.reasons[0].code for one in found.values()] == ["PROTECTED"]
    world.after("20s").round()
    assert len(stops(world)) == 1


@pytest.mark.parametrize("came", ["10s", "31s", "45s"])
@pytest.mark.parametrize(
    "uses",
    [
        {"cpu": 1, "expect": "1h"},
        {"gpu": 1, "serves": "chat"},
        {"gpu": 1, "expect": "1h"},  # devices are weighed by worth
    ],
)
def test_what_waits_for_another_share_gets_room_when_the_minute_is_over(uses: dict[str, Any], came: str) -> None:
    """No event comes at the end of the minute, so the policy has to ask for a round then."""
    world = World().join(node("n1", cpu=4, gpus=4)).shares({"tenant": "research"}, {"tenant": "product"})
    of = {"cpu": 1} if "cpu" in uses else {"gpu": 1}
    world.job("p1", tenant="product", expect="10h", preemptible=False, **of)
    for name in ("r1", "r2", "r3"):
        world.job(name, tenant="research", expect="10h", priority="low", **of)
    world.round().start("p1", "r1", "r2", "r3").after(came)
    world.job("p2", tenant="product", priority="urgent", **uses).after("2m")
    [stop] = stops(world)
    assert stop.to == world.unit("p2").id
    assert 0 <= stop.at - world.unit(stop.unit).placed - PROTECTED <= SECOND


@pytest.mark.parametrize(("guaranteed", "size"), [(0, 3), (2, 3), (3, 4)])
def test_a_gang_that_resizes_gives_back_what_it_borrows_at_once_and_no_more(guaranteed: int, size: int) -> None:
    """The others go on, so the minute does not apply. The levels after one member has left decide: with three
    guaranteed, the share that gains would borrow more than the other.
    """
    world = World(recipe={}).nodes(4, cpu=2, gpus=1)
    world.shares({"tenant": "research", "guaranteed": {"gpu": guaranteed}}, {"tenant": "product"})
    world.job("train", tenant="research", workers="2..4", gpu=1, checkpoint="10s", expect="1h", priority="low")
    world.round().start(*(f"train.main[{rank}]" for rank in range(4))).resizes("train.main[0]").after("10s")
    world.job("p1", tenant="product", gpu=1, priority="urgent", expect="30m").after("2s")
    assert world.unit("train").size == size and not stops(world)


def test_two_that_each_could_evict_one_may_not_both_of_the_same_plan() -> None:
    """The loop of Kueue's issue 14543: each eviction is lawful by itself, and the plan as a whole is not."""
    world = devices(4).shares(
        {"tenant": "product", "guaranteed": {"gpu": 1}}, {"tenant": "research", "guaranteed": {"gpu": 3}}
    )
    jobs(world, "research", 4).round().start("r1", "r2", "r3", "r4").after("10m")
    jobs(world, "product", 2)
    to = [world.unit(name).id for name in ("p1", "p2")]
    plan = [
        Preempt(unit=world.unit(name).id, cause="yield", why=Why(policy="x"), to=to[number])
        for number, name in enumerate(("r1", "r2"))
    ]
    assert list(above_share(world.ledger, plan, world.now)) == [1]


def test_room_that_was_promised_is_not_taken_back_twice() -> None:
    """The next plan comes before the first one is carried out: what is asked to stop counts as gone."""
    world = devices(4).shares(
        {"tenant": "product", "guaranteed": {"gpu": 1}}, {"tenant": "research", "guaranteed": {"gpu": 2}}
    )
    jobs(world, "research", 4).round().start("r1", "r2", "r3", "r4").after("10m")
    jobs(world, "product", 2)
    ledger, why = world.ledger.fork(), Why(policy="x")
    r1, r2, p1, p2 = (world.unit(name) for name in ("r1", "r2", "p1", "p2"))
    ledger.apply(Preempted(at=world.now, unit=r1.id, epoch=r1.epoch, cause="yield", why=why, to=p1.id))
    ledger.check()
    assert above_share(ledger, [Preempt(unit=r2.id, cause="yield", why=why, to=p2.id)], world.now)
    assert not above_share(world.ledger, [Preempt(unit=r2.id, cause="yield", why=why, to=p2.id)], world.now)


def test_level_is_told_with_the_time_until_then() -> None:
    world = devices(2).shares({"tenant": "research"}, {"tenant": "product"}, half_life="1h")
    world.job("r1", tenant="research", gpu=2).round().start("r1").after("20m").finish("r1", run="20m")
    world.job("p1", tenant="product", gpu=2).round().start("p1")
    jobs(world, "research", 1, 2)
    view = world.controller.snapshot(world.now)
    [candidate] = [one for one in view.candidates if one.leaf == "research"]
    assert served_first(view, candidate).startswith("its share `research` is served first")  # nobody else waits
    jobs(world, "product", 1, 2)
    view = world.controller.snapshot(world.now)
    told = served_first(view, next(one for one in view.candidates if one.leaf == "research"))
    assert told.startswith("share `product` is served first: it has used 0 % of its share of late, `research` 200 %")
    standing = Standing(view.shares) if view.shares is not None else None
    assert standing is not None
    at = level_in(standing, standing.path("research")[0], standing.path("product")[0])
    assert at is not None and f"level in {format_duration(at)} (P50" in told
    later = world.after(at).controller.snapshot(world.now).shares
    assert later is not None
    debts = dict(zip([node.name for node in later.tree.nodes], later.debts, strict=True))
    assert abs(debts["research"] - debts["product"]) < debts["research"] // 1000


def test_debts_are_the_same_when_the_log_is_read_again() -> None:
    world = devices().shares({"tenant": "research", "guaranteed": {"gpu": 1}}, {"tenant": "product"}, half_life="1d")
    jobs(world, "research", 3).round().start("r1", "r2", "r3").after("3h")
    world.finish("r1", run="3h").after("5h").finish("r2", run="8h").settle()
    again = replay(world.log)
    assert again.encode() == world.ledger.encode()
    assert Ledger.decode(world.ledger.encode()).shares.view(world.now + DAY) == again.shares.view(world.now + DAY)
    view = world.ledger.shares.view(world.now)
    assert view is not None
    debts = dict(zip([one.name for one in view.tree.nodes], view.debts, strict=True))
    borrowed = 2 * 3 + 1 * 5  # device hours at a dollar each, of which hours ago a little has decayed
    assert 0.8 * borrowed < debts["research"] / 10**9 < borrowed
    assert debts["product"] == 0


def test_shares_may_change_while_work_runs_and_waits() -> None:
    world = devices(2).shares(*TWO)
    jobs(jobs(world, "research", 3), "product", 2).round()
    world.shares({"tenant": "research", "weight": 3}, {"user": "ann", "in": "research"}).settle()
    world.shares().settle()
    assert world.ledger.shares.tree is None
    assert replay(world.log).encode() == world.ledger.encode()


def test_nothing_is_stopped_twice_in_turn() -> None:
    """With debts that change all the time, work of four tenants comes and goes for days: nobody is stopped for one that
    is stopped for the other next.
    """
    names = "alpha", "beta", "gamma", "delta"
    world = devices(8).shares(*({"tenant": name, "guaranteed": {"gpu": 2}} for name in names))
    for number in range(48):
        tenant = names[number * 7 % 4]
        world.job(f"{tenant}-{number}", tenant=tenant, gpu=1 + number % 3)
        world.round().start(
            *[
                world.ledger.jobs[unit.job].name
                for unit in world.ledger.active.values()
                if unit.tasks[0].status == "queued"
            ]
        )
        world.after("20m")
        for unit in list(world.ledger.active.values()):
            if unit.stopping:
                world.finish(world.ledger.jobs[unit.job].name, outcome="stopped")
            elif world.now - unit.placed > 2 * HOUR:
                world.finish(world.ledger.jobs[unit.job].name, run="2h")
    orders = stops(world)
    pairs = {(event.unit, event.to) for event in orders}
    assert orders
    assert not any((to, unit) in pairs for unit, to in pairs)
    assert world.now > 10 * HOUR + SECOND
