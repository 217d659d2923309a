"""Two policies, each for a part of the nodes: what holds in any world, and the cases that a division could break."""

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis.stateful import run_state_machine_as_test
from many import many

from poise.errors import Conflict
from poise.kernel.ledger import UnitState
from poise.model.decisions import Decision, Hold, Place, Plan, Preempt, Resize, Spot, Why
from poise.model.events import Preempted
from poise.model.jobs import Ending
from poise.model.selection import ALL, Selection
from poise.model.views import Snapshot
from poise.policy.divided import Split
from poise.policy.split import check_divisible, divide
from poise.policy.suites import POLICIES, ClusterPolicy
from poise.testing import World, node
from poise.units import parse_duration
from unit.policy.test_properties import AS_DRAWN, CHANCE, Story, any_offer, any_work, leap, node_of, start_all, submit

HALF = Selection(share=500)


def split(trial: str, rest: str, nodes: Selection = HALF) -> Split:
    return Split(f"{trial}+{rest}@1", POLICIES[trial], POLICIES[rest], nodes)


def on(*names: str) -> Selection:
    return Selection(names=names)


def policy_of(world: World, job: str) -> str:
    """The policy that has placed a job."""
    unit = world.unit(job)
    assert unit.why is not None
    return unit.why.policy


# --- any world -------------------------------------------------------------------------------------------------------
class Divided(Story):
    """The same story as for each policy alone: nothing is over-allocated, each reason is there, all work gets done."""

    def _is_explained(self, unit: UnitState) -> None:
        found = self.world.reasons(unit.id)
        assert found, unit.id
        assert not {"NEXT_ROUND"} & {reason.code for reason in found}

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "world"):
            assert not self.world.controller.deciding.rejections, "each decision stands"


@pytest.mark.parametrize(
    ("trial", "rest", "share"),
    [
        ("srtf", "poise", 250),
        ("poise", "fifo", 500),
        ("fifo", "srtf", 500),
        ("las", "poise", 750),
        ("poise", "max-min", 500),
        ("tiresias", "edf", 500),
        ("goodput", "poise", 400),
        ("poise", "elasticflow", 500),
    ],
)
def test_whatever_happens(trial: str, rest: str, share: int) -> None:
    machine = type("Story", (Divided,), {"policy": split(trial, rest, Selection(share=share))})
    run_state_machine_as_test(machine, settings=settings(AS_DRAWN, max_examples=many(3, 12)))


def some_world(chance: Random, policy: Any) -> World:
    world = World(policy, throughputs={"x@fast": 3.0, "x@slow": 1.0})
    for number in range(1, chance.randint(2, 6) + 1):
        world.join(node_of(f"n{number}", any_offer(chance)))
    for _ in range(chance.randint(1, 12)):
        submit(world, any_work(chance))
    return world


def undisturbed(plan: Plan) -> Any:
    return plan.decisions, plan.until, plan.closed, plan.asks


@pytest.mark.parametrize(("share", "alone"), [(0, "poise"), (ALL, "srtf"), (0, "max-min"), (ALL, "max-min")])
@settings(AS_DRAWN, max_examples=many(15, 60), deadline=None)
@given(chance=CHANCE)
def test_none_and_all_of_the_nodes_are_one_policy_alone(share: int, alone: str, chance: Random) -> None:
    """Over some rounds, with what the policy remembers."""
    seed = chance.random()
    other = "edf"
    pair = (other, alone) if share == 0 else (alone, other)
    policies = POLICIES[alone], split(*pair, Selection(share=share))
    worlds = [some_world(Random(seed), policy) for policy in policies]  # noqa: S311 — the same world twice
    for _ in range(3):
        one, two = (undisturbed(world.plan()) for world in worlds)
        assert one == two
        for world in worlds:
            world.round()
            start_all(world)
            leap(world, 400_000_000_000)
            submit(world, any_work(Random(seed)))  # noqa: S311 — the same work in both


# --- what a division could break -------------------------------------------------------------------------------------
def test_each_policy_decides_for_its_nodes() -> None:
    """With `fifo` on trial on n1 and n2, and `poise` for the rest."""
    world = World(split("fifo", "poise", on("n1", "n2"))).nodes(4, cpu=4)
    for name in "abcd":
        world.job(name, cpu=4)
    world.round()
    decided = {world.where(name)[0]: policy_of(world, name) for name in "abcd"}
    assert decided == {"n1": "fifo", "n2": "fifo", "n3": "poise", "n4": "poise"}


def test_a_gang_that_needs_both_parts_starts() -> None:
    world = World(split("fifo", "poise", on("n1", "n2"))).nodes(4, cpu=4).job("gang", workers=4, cpu=4).round()
    assert sorted(world.where("gang")) == ["n1", "n2", "n3", "n4"]
    assert policy_of(world, "gang") == "poise"


def test_a_gang_whose_room_is_free_on_both_parts_starts() -> None:
    """One node of each part is free. Each part could hold the gang, but not before its own work ends."""
    world = World(split("fifo", "fifo", on("n1", "n2"))).nodes(4, cpu=4)
    for name in "abcd":
        world.job(name, cpu=4)
    start_all(world.round())
    world.finish(*(name for name in "abcd" if world.where(name)[0] in ("n2", "n4")))
    world.job("gang", workers=2, cpu=4).round()
    assert sorted(world.where("gang")) == ["n2", "n4"]


def test_a_gang_that_could_start_only_without_a_service_of_each_part_is_not_divided() -> None:
    """A service stays on one node of each part, so that neither can ever hold the gang, though the fleet can."""
    nodes = on("n1", "n2")
    world = World(split("fifo", "poise", nodes)).nodes(4, cpu=4)
    for name in ("n1", "n3"):
        world.job(f"on-{name}", resources={"cpu": 4, "node": name}, serves="chat")
    world.job("small", resources={"cpu": 4, "node": "n2"})
    start_all(world.round())
    assert divide(world.ledger.snapshot(world.now), nodes).rows == (0, 1)
    world.job("gang", workers=2, cpu=4)
    gang = world.unit("gang").id
    assert divide(world.ledger.snapshot(world.now), nodes).paused == f"{gang} needs nodes of both parts"
    world.finish("small").round()
    assert sorted(world.where("gang")) == ["n2", "n4"]


def test_a_gang_beyond_its_quota_ends_no_trial() -> None:
    nodes = on("n1", "n2")
    world = World(split("fifo", "poise", nodes)).nodes(4, cpu=4).job("gang", workers=4, cpu=4).quota("default", cpu=8)
    assert divide(world.ledger.snapshot(world.now), nodes).rows == (0, 1)


def test_work_for_the_devices_of_one_part_goes_there() -> None:
    """`fifo` lets nothing overtake; it is not shown the work that its nodes could never hold."""
    world = World(split("fifo", "fifo", on("n1"))).nodes(2, cpu=4).join(node("g1", cpu=4, gpus=1))
    world.job("first", gpu=1, cpu=1).job("second", gpu=1, cpu=1).job("third", cpu=4).job("fourth", cpu=4).round()
    assert world.where("first") == ["g1"]
    assert world.where("third") == ["n1"]
    assert world.status("second") == "pending"


def test_a_node_whose_work_runs_on_both_parts_is_lent_until_it_ends() -> None:
    nodes = on("n1", "n2")
    world = World(split("fifo", "poise", nodes)).nodes(4, cpu=4).job("gang", workers=4, cpu=3).round()
    start_all(world)
    assert divide(world.ledger.snapshot(world.now), nodes).lent == (0, 1)
    world.job("small", cpu=1).round()
    assert policy_of(world, "small") == "poise"
    start_all(world)
    world.finish(*(f"gang.main[{index}]" for index in range(4))).round()
    found = divide(world.ledger.snapshot(world.now), nodes)
    assert (found.rows, found.lent, found.paused) == ((0, 1), (), "")


def test_work_moves_off_a_node_that_is_emptied_to_the_other_part() -> None:
    nodes = on("n1")
    world = World(split("fifo", "poise", nodes)).nodes(2, cpu=4).job("a", cpu=2, checkpoint="1m").round()
    start_all(world)
    assert world.where("a") == ["n1"]
    world.drain("n1", moves=True)
    assert divide(world.ledger.snapshot(world.now), nodes).paused == "n1 is being emptied"
    world.round().finish("a", outcome="stopped").after("1m").round()
    assert world.where("a") == ["n2"]
    assert divide(world.ledger.snapshot(world.now), nodes).paused == ""


def test_a_unit_that_failed_on_the_only_node_of_a_part_goes_to_the_other() -> None:
    world = (
        World(split("fifo", "poise", on("n1")))
        .nodes(2, cpu=4)
        .job("a", cpu=2, retry={"limit": 2, "when": ["failed"]})
        .round()
    )
    start_all(world)
    assert world.where("a") == ["n1"]
    world.finish("a", outcome="failed").after("10m").round()
    assert world.where("a") == ["n2"]


def test_nothing_is_preempted_for_work_that_the_other_part_has_room_for() -> None:
    """`srtf` on trial would preempt the long job for the short one, but n2 is free. Without n2 it does."""
    for count, status in ((2, "active"), (1, "pending")):
        world = World(split("srtf", "poise", on("n1"))).nodes(3, cpu=4).drain("n3")
        world.job("long", resources={"cpu": 4, "node": "n1"}, expect="10h", checkpoint="1m")
        if count == 1:
            world.job("other", resources={"cpu": 4, "node": "n2"}, expect="10h", preemptible=False)
        start_all(world.round())
        leap(world, parse_duration("1h"))
        world.job("short", cpu=4, expect="1m").round()
        assert world.unit("short").status == status
        assert any(isinstance(event, Preempted) for event in world.log) == (count == 1)


@pytest.mark.parametrize("quota", [4, 8])
def test_a_quota_counts_for_both_parts_together(quota: int) -> None:
    world = World(split("fifo", "poise", on("n1", "n2"))).nodes(4, cpu=4).quota("default", cpu=quota)
    for name in "abcd":
        world.job(name, cpu=4)
    world.round()
    assert sum(world.status(name) != "pending" for name in "abcd") == quota // 4
    assert not world.controller.deciding.rejections


def test_a_guarantee_that_is_not_lent_may_be_kept_free_on_either_part() -> None:
    """Two of four devices are kept for ann. So bob gets two, whichever part has the room."""
    world = World(split("fifo", "poise", on("n1", "n2")))
    for number in range(1, 5):
        world.join(node(f"n{number}", cpu=4, gpus=1))
    world.shares({"tenant": "ann", "guaranteed": {"gpu": 2}, "lends": False}, {"tenant": "bob"})
    for name in "abc":
        world.job(name, tenant="bob", gpu=1)
    world.round()
    assert sum(world.status(name) != "pending" for name in "abc") == 2
    assert not world.controller.deciding.rejections


@pytest.mark.parametrize(("kept", "status"), [(2, "pending"), (1, "active")])
def test_a_gang_that_grows_on_one_part_leaves_the_other_only_what_is_not_kept(kept: int, status: str) -> None:
    """The gang on trial takes a second one of four devices; two, or one of them, are kept for ann."""
    world = World(split("poise", "fifo", on("n1", "n2")))
    for number in range(1, 5):
        world.join(node(f"n{number}", cpu=2 if number < 3 else 4, gpus=1))
    world.shares({"tenant": "ann", "guaranteed": {"gpu": kept}, "lends": False}, {"tenant": "bob"}).drain("n2")
    world.job("gang", tenant="bob", workers="1..2", gpu=1, cpu=2, checkpoint="10s", expect="1h").round()
    world.start("gang.main[0]").resizes("gang.main[0]").after("10m")
    world.drain("n2", on=False)
    world.job("other", tenant="bob", gpu=1, cpu=4).round()
    assert (world.unit("gang").size, world.unit("other").status) == (2, status)
    assert not world.controller.deciding.rejections


class Foreign:
    """A policy in Python that adds a decision to those of `fifo`."""

    name = "foreign"

    def __init__(self, *more: Decision) -> None:
        self._more = more

    def decide(self, view: Snapshot, /) -> Plan:
        plan = POLICIES["fifo"].decide(view)
        return msgspec.structs.replace(plan, decisions=(*self._more, *plan.decisions))


WHY = Why(policy="foreign")


@pytest.mark.parametrize("is_on_trial", [True, False])
@pytest.mark.parametrize(
    "wrong",
    [
        Place(unit="j9.main", spots=(Spot("n1"),), why=WHY),
        Place(unit="c", spots=(Spot("n2"), Spot("n9")), why=WHY),
        Place(unit="c", spots=(Spot("n1"),), why=WHY, variant=1),
        Resize(unit="j9.main", cause="grow", why=WHY, joins=(Spot("n1"),)),
        Resize(unit="a", cause="grow", why=WHY, joins=(Spot("n2"),)),
        Preempt(unit="j9.main", cause="move", why=WHY),
    ],
)
def test_a_decision_on_units_or_nodes_of_no_part_ends_nothing(
    is_on_trial: bool, wrong: Place | Resize | Preempt
) -> None:
    """The other decisions of both policies stand."""
    world = World(split("fifo", "fifo", on("n1"))).nodes(2, cpu=4).quota("default", cpu=64)
    start_all(world.job("a", cpu=2).job("b", cpu=4).round())
    world.job("c", cpu=2)
    there = "n1" if world.where("a") == ["n1"] else "n2"
    unit = world.unit(wrong.unit).id if len(wrong.unit) == 1 else wrong.unit
    foreign, fifo = Foreign(msgspec.structs.replace(wrong, unit=unit)), POLICIES["fifo"]
    policies: tuple[ClusterPolicy, ClusterPolicy] = (foreign, fifo) if is_on_trial else (fifo, foreign)
    plan = Split("foreign+fifo@1", *policies, on("n1")).decide(world.ledger.snapshot(world.now))
    [placed] = [of for of in plan.decisions if not isinstance(of, Hold)]
    assert isinstance(placed, Place)
    assert (placed.unit, placed.spots) == (world.unit("c").id, (Spot(there),))


@pytest.mark.parametrize("is_on_trial", [True, False])
def test_a_policy_decides_for_no_node_and_no_unit_of_the_other_part(is_on_trial: bool) -> None:
    world = World(split("fifo", "fifo", on("n1"))).nodes(2, cpu=4)
    start_all(world.job("a", cpu=3).job("b", cpu=3).round())
    world.job("c", cpu=1)
    other = "n2" if is_on_trial else "n1"
    [there] = [world.unit(name).id for name in "ab" if world.where(name) == [other]]
    foreign = Foreign(
        Place(unit=world.unit("c").id, spots=(Spot(other),), why=WHY), Preempt(unit=there, cause="move", why=WHY)
    )
    policies = (foreign, Foreign()) if is_on_trial else (Foreign(), foreign)
    plan = Split("foreign+fifo@1", *policies, on("n1")).decide(world.ledger.snapshot(world.now))
    assert [of.why.policy for of in plan.decisions if not isinstance(of, Hold)] == ["fifo"]


def test_a_gang_that_needs_both_parts_starts_while_small_work_keeps_coming() -> None:
    """More small work waits at any time than fits on one node; each takes a minute."""
    world = World(split("fifo", "poise", on("n1", "n2")), check=False).nodes(4, cpu=4)
    small = 0
    for _ in range(60):
        while world.ledger.queues.pending < 8:
            small += 1
            world.job(f"s{small}", cpu=2, expect="1m", **{"class": "small"})
        if small == 8:
            start_all(world.round())
            world.job("gang", workers=4, cpu=4, expect="1m")
        leap(world, parse_duration("20s"))
        for name in sorted(world.connected):
            for attempt in sorted(world.held[name]):
                if world.now - world.started[attempt] >= parse_duration("1m"):
                    world.end(name, attempt, Ending(outcome="done", run=parse_duration("1m")))
        start_all(world.round())
        if world.status("gang") != "pending":
            return
    raise AssertionError(world.codes("gang"))


# --- what it is made of ----------------------------------------------------------------------------------------------
@settings(AS_DRAWN, max_examples=many(15, 60), deadline=None)
@given(chance=CHANCE)
def test_the_parts_of_a_fleet_are_the_fleet(chance: Random) -> None:
    """All rows are the same fleet, each part has the state of its rows, and an emptied fleet is as before any work."""
    world = some_world(chance, "poise")
    empty = world.ledger.snapshot(world.now).fleet
    start_all(world.round().round())
    fleet = world.ledger.snapshot(world.now).fleet
    assert fleet.part(range(len(fleet))) == fleet
    assert fleet.emptied() == empty
    rows = sorted(chance.sample(range(len(fleet)), chance.randint(1, len(fleet))))
    part = fleet.part(rows)
    assert part.names == tuple(fleet.names[row] for row in rows)
    assert part.residents == [fleet.residents[row] for row in rows]
    assert part.free.tolist() == fleet.free[:, rows].tolist()
    assert fleet.part(rows) == part, "from the cache too"


@pytest.mark.parametrize(("trial", "rest"), [("poise", "poise"), ("static", "poise"), ("srtf", "static")])
def test_policies_that_cannot_share_a_fleet_are_refused(trial: str, rest: str) -> None:
    with pytest.raises(Conflict):
        check_divisible(trial, rest)
