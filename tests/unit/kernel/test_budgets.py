"""Budgets: what is spent, alerts, holds and renewals; never a kill, and the same after every replay."""

import random
from typing import Any

import pytest

from poise.errors import PoiseError, SpecError
from poise.kernel.accounts import Accounts
from poise.kernel.explain import budget_report, job_report
from poise.kernel.ledger import Ledger
from poise.kernel.messages import HoldJob
from poise.kernel.visible import Sight
from poise.model.budgets import ONE
from poise.model.events import BudgetReached, BudgetTurned, JobHeld, Noticed
from poise.model.reports.tenants import BudgetReport
from poise.model.tenants import Bearer, Role
from poise.testing import World, node, replay
from poise.units import HOUR

RESEARCH = {"name": "research", "tenant": "research", "amount": "$0.1"}


def world_with(*budgets: dict[str, Any], devices: int = 2, **more: Any) -> World:
    """The world begins on Tuesday, 2023-11-14 at 22:13:20 UTC. A device without a known model costs $1 an hour."""
    return World().join(node("n1", cpu=8, gpus=devices)).budgets(*budgets, **more)


def report(world: World, name: str = "research") -> BudgetReport:
    return budget_report(world.ledger, name, world.now)


def reached(world: World) -> list[int]:
    return [event.share for event in world.log if isinstance(event, BudgetReached)]


def test_what_work_holds_is_spent_and_told_at_its_shares() -> None:
    world = world_with(RESEARCH).job("a", gpu=2, tenant="research").job("b", gpu=2, tenant="other")
    world.round().start("a").after("72s")
    told = report(world)
    assert (round(told.spent, 3), told.rate, told.every, told.at_limit) == (0.04, 2.0, "month", "alert")
    world.after("36s")
    assert reached(world) == [50]
    assert round(report(world).runs_out - world.ledger.leader.wall(world.now)) == 72
    world.after("80s")
    assert reached(world) == [50, 80, 100]
    assert [event.text for event in world.log if isinstance(event, Noticed)][-1].startswith(
        "budget research: $0.10 of $0.10 is spent"
    )
    assert world.status("a") == "running", "work is never stopped for a budget"
    world.job("c", cpu=1, tenant="research").round()
    assert world.status("c") == "placed", "an alert holds nothing"
    assert replay(world.log).encode() == world.ledger.encode()


def test_a_spent_budget_holds_new_work_until_it_is_renewed() -> None:
    budget = RESEARCH | {"amount": "1h", "every": "day", "at_limit": "hold"}
    world = world_with(budget).job("a", gpu=1, tenant="research").job("big", gpu=2, tenant="research")
    world.round().start("a").after("59m")
    world.job("early", cpu=1, tenant="research").round()
    assert world.status("early") == "placed"
    world.after("2m").job("late", cpu=1, tenant="research").job("free", cpu=1, tenant="other").after("1s").round()
    assert [world.status(name) for name in ("a", "early", "late", "big", "free")] == [
        *("running", "placed", "waiting", "waiting", "placed"),
    ]
    (why,) = world.reasons("late")
    assert why.sentence() == (
        "waits until the budget research is renewed or raised: 1.02 device hours of 1 device hours is spent; "
        "it renews at 2023-11-15 00:00 UTC"
    )
    with pytest.raises(PoiseError, match="the budget `research` holds"):
        world.ask(HoldJob(request=world.request(), job="j4", on=False))
    assert report(world).holding == 2
    told = [job_report(world.ledger, world.ledger.jobs[job], world.now, tasks=False) for job in ("j3", "j4")]
    assert [(job.hold, job.budget) for job in told] == [(False, ""), (True, "research")]
    world.finish("a").after("47m").round()
    assert [world.status(name) for name in ("late", "big")] == ["placed", "placed"]
    assert (report(world).holding, reached(world)) == (0, [50, 80, 100])
    overs = [event.text for event in world.log if isinstance(event, Noticed) and event.over]
    assert overs == ["budget research is renewed"]
    assert replay(world.log).encode() == world.ledger.encode()


def test_a_raised_or_removed_budget_releases_and_the_sum_stays() -> None:
    budget = RESEARCH | {"amount": "$0.01", "at_limit": "hold"}
    world = world_with(budget).job("a", gpu=1, tenant="research").round().start("a").after("72s")
    world.job("b", cpu=1, tenant="research").after("1s").round()
    assert world.status("b") == "waiting"
    world.budgets(budget | {"amount": "$0.05"}).after("1s").round()
    assert (world.status("b"), round(report(world).spent, 2)) == ("placed", 0.02)
    world.budgets(budget).job("c", cpu=1, tenant="research").after("1s").round()
    assert world.status("c") == "waiting"
    world.budgets().after("1s").round()
    assert (world.status("c"), len(world.ledger.budgets)) == ("placed", 0)
    overs = [event.text for event in world.log if isinstance(event, Noticed) and event.over]
    assert overs[-1] == "budget research was removed or covers other work", "its incident closes"


def test_a_hold_of_a_user_stays_when_the_budget_is_renewed() -> None:
    budget = RESEARCH | {"amount": "$1", "every": "day", "at_limit": "hold"}
    world = world_with(budget).job("a", gpu=1, tenant="research").round().start("a")
    world.job("b", cpu=1, tenant="research")
    world.ask(HoldJob(request=world.request(), job="j2", on=True)).after("70m").finish("a").after("1h").round()
    assert world.status("b") == "waiting"
    assert [event.budget for event in world.log if isinstance(event, JobHeld)] == [""]


def test_work_counts_once_for_each_budget_that_covers_it() -> None:
    world = world_with(
        RESEARCH,
        {"name": "vision", "project": "vision", "amount": "100h"},
        {"name": "ann", "user": "ann", "amount": "$50"},
        {"name": "both", "tenant": "research", "user": "ann", "amount": "$50"},
        {"name": "others", "tenant": "others", "amount": "$50"},
    )
    world.submit({"run": "x", "project": "vision", "resources": {"gpu": 1}}, user="ann", tenant="research")
    world.round().start("j1").after("72s")
    spent = {name: round(100 * report(world, name).spent, 2) for name in world.ledger.budgets}
    assert spent == {"research": 2, "vision": 2, "ann": 2, "both": 2, "others": 0}


def test_periods_begin_in_the_time_zone_and_a_clock_that_goes_back_renews_nothing() -> None:
    world = world_with(RESEARCH | {"every": "day"}, time_zone="Europe/Zurich").after("1s")
    assert report(world).ends - world.ledger.leader.wall(world.now) == pytest.approx(2800 - 1, abs=1)
    world.after("47m")
    world.ahead = -7200
    world.after("2m")
    assert sum(isinstance(event, BudgetTurned) for event in world.log) == 2


def test_a_tenant_sees_its_own_budgets_only() -> None:
    world = world_with(
        RESEARCH,
        {"name": "theirs", "tenant": "product", "amount": "$0.1"},
        {"name": "a", "user": "ann", "amount": "$1"},
    )
    world.job("a", gpu=2, tenant="product").round().start("a").after("2m")
    for tenant, role, seen in (
        ("research", Role.VIEWER, ["research"]),
        ("product", Role.SUBMITTER, ["theirs"]),
        ("none", Role.OPERATOR, ["research", "theirs", "a"]),
    ):
        sight = Sight(world.ledger, Bearer(tenant, role))
        assert [of.name for of in sight.budgets(world.now)] == seen
        noticed = [event for event in world.log if isinstance(event, Noticed)]
        assert bool(noticed) and all(bool(sight.event(event)) == ("theirs" in seen) for event in noticed)


def test_the_sum_is_what_usage_tells_and_survives_any_checkpoint() -> None:
    """Random work on devices and parts of them, with a control plane that is killed."""
    for seed in range(3):
        chance, world = random.Random(seed), World()  # noqa: S311 — not a secret
        world.join(node("n1", cpu=8, gpus=2)).join(node("n2", cpu=8, gpus=2))
        budget = {"tenant": "default", "every": "year"}
        world.budgets(budget | {"name": "all", "amount": "$1000"}, budget | {"name": "hours", "amount": "9h"})
        for number in range(12):
            size = chance.choice([{"gpu": 1}, {"gpu": 2}, {"cpu": 2}, {"gpu": 1, "gpu_share": 0.5}])
            world.submit({"run": "x", "resources": size})
            world.round()
            for unit in list(world.ledger.active.values()):
                if unit.tasks[0].status == "queued":
                    world.start(unit.job)
            world.after(f"{chance.randint(1, 60)}s")
            if number == 6:
                world.restart(from_checkpoint=True)
            running = [unit.job for unit in world.ledger.active.values() if unit.tasks[0].status == "running"]
            if running and chance.random() < 0.7:
                world.finish(chance.choice(running))
        accounts = Accounts(Ledger())
        for event in world.log:
            accounts.add(event)
        (row,) = accounts.usage(0, world.now, ())
        assert report(world, "all").spent == pytest.approx(row.charge, abs=1e-7), seed
        assert report(world, "hours").spent == pytest.approx(row.device_hours, abs=1e-7), seed
        again = Ledger.decode(world.ledger.encode())
        again.check()
        assert again.encode() == world.ledger.encode() == replay(world.log).encode()
        assert again.budgets.spent("all", world.now + ONE) == world.ledger.budgets.spent("all", world.now + ONE)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"amount": "10"}, "budgets[0].amount"),
        ({"amount": "$0"}, "budgets[0].amount"),
        ({"amount": "$-1"}, "budgets[0].amount"),
        ({"amount": "99999999999h"}, "budgets[0].amount"),
        ({"tenant": ""}, "budgets[0]"),
        ({"tenant": "a/b"}, "budgets[0].tenant"),
        ({"every": "hour"}, "budgets[0].every"),
        ({"alerts": [0]}, "budgets[0].alerts"),
        ({"at_limit": "kill"}, "budgets[0].at_limit"),
        ({"user": "x\n"}, "budgets[0].user"),
    ],
)
def test_a_wrong_budget_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as raised:
        world_with(RESEARCH | fields)
    assert [record.field for record in raised.value.record.all()] == [field]


def test_a_name_that_is_used_twice_is_refused() -> None:
    with pytest.raises(SpecError, match="twice"):
        world_with(RESEARCH, RESEARCH)


def test_an_unknown_time_zone_is_refused_beside_other_errors_and_without_budgets() -> None:
    for budgets, fields in ((), ["time_zone"]), ((RESEARCH | {"amount": "$0"},), ["time_zone", "budgets[0].amount"]):
        with pytest.raises(SpecError) as raised:
            world_with(*budgets, time_zone="Nowhere/Else")
        assert [record.field for record in raised.value.record.all()] == fields


def test_a_hold_of_a_user_on_a_job_of_a_spent_budget_stays_when_the_budget_is_renewed() -> None:
    budget = RESEARCH | {"amount": "1h", "every": "day", "at_limit": "hold"}
    world = world_with(budget).job("a", gpu=1, tenant="research").job("big", gpu=2, tenant="research")
    world.round().start("a").after("61m")
    assert report(world).holding == 1
    world.ask(HoldJob(request=world.request(), job="j2", on=True)).finish("a").after("1h").round()
    assert world.status("big") == "waiting", "the user has not released it"
    world.ask(HoldJob(request=world.request(), job="j2", on=False)).round()
    assert world.status("big") == "placed"
    assert replay(world.log).encode() == world.ledger.encode()


def test_a_period_that_begins_while_no_control_plane_runs_counts_from_its_beginning() -> None:
    budget = RESEARCH | {"amount": "40h", "every": "day"}
    world = world_with(budget).job("a", gpu=2, tenant="research").round().start("a").after("80m")
    assert report(world).spent == pytest.approx(2 * 80 / 60)
    world.now += 8 * HOUR
    world.after("1s")
    since_midnight = (80 * 60 + 8 * 3600 + 1) - 6400
    assert report(world).spent == pytest.approx(2 * since_midnight / 3600)
    assert report(world).runs_out == pytest.approx(report(world).begins + 20 * 3600, abs=1)
    assert replay(world.log).encode() == world.ledger.encode()
