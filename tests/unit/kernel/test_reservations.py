"""Reservations: places that are kept for a tenant or for maintenance."""

from typing import Any

import pytest

from poise.errors import PoiseError
from poise.kernel.bookings import Accepted
from poise.kernel.verify import verify
from poise.model.decisions import Place, Rejection, Spot, Why
from poise.model.events import NodeDrained, Preempted, ReservationMoved, ReservationReleased
from poise.model.tenants import Bearer, Role
from poise.testing import World, replay
from poise.units import HOUR, SECOND

POLICIES = ["poise", "fifo", "static", "sjf", "edf", "goodput", "elasticflow", "max-min", "tiresias"]


def reserved(world: World, name: str = "night", **fields: Any) -> World:
    """A world with a firm reservation of one node for team-a, in an hour."""
    given: dict[str, Any] = {"tenant": "team-a", "nodes": 1, "begins": "+1h", "length": "2h"} | fields
    return world.reserve(name, **given)


def places(world: World, name: str) -> list[str]:
    [found] = [of for of in world.ledger.reservations.values() if of.reservation.name == name]
    return [spot.node for spot in found.places]


@pytest.mark.parametrize("policy", POLICIES)
def test_work_that_ends_before_a_reservation_is_placed_and_longer_work_waits_under_every_policy(policy: str) -> None:
    world = reserved(World(policy).nodes(1))
    world.job("brief", cpu=1, expect="10m").job("long", cpu=1, expect="50m").round()
    assert (world.where("long"), world.where("brief")) == ([], ["n1"])


def test_work_that_waits_for_a_reservation_names_the_node_the_time_and_what_it_needs() -> None:
    world = reserved(World().nodes(1)).job("long", cpu=1, expect="50m").round()
    [reason] = world.reasons("long")
    told = "n1: is reserved from 2023-11-14T23:13:20Z to 2023-11-15T01:13:20Z (r1); this needs 1h40m"
    assert reason.sentence() == told
    assert "team-a" not in told


def test_the_tenant_uses_its_reservation_and_others_do_not() -> None:
    world = reserved(World().nodes(1)).after("61m")
    world.job("mine", cpu=1, expect="1h", tenant="team-a").job("theirs", cpu=1, expect="1m").round()
    assert (world.where("mine"), world.codes("theirs")) == (["n1"], ["NODE_RESERVED"])


def test_after_its_window_a_reservation_is_over_and_its_node_is_free() -> None:
    world = reserved(World().nodes(1)).after("3h1s").job("a", cpu=1).round()
    assert world.where("a") == ["n1"]
    assert not world.ledger.reservations


def test_work_of_unknown_run_time_is_preempted_with_its_grace_before_a_firm_reservation_begins() -> None:
    world = reserved(World().nodes(1)).job("a", cpu=1).round().start("a").after("59m49s")
    assert not world.unit("a").stopping
    world.after("2s")
    [preempted] = [event for event in world.log if isinstance(event, Preempted)]
    assert preempted.why.rank == "n1 is reserved (r1)"
    begin = SECOND + HOUR
    assert preempted.at == begin - world.unit("a").spec.grace


def test_work_with_a_long_grace_that_comes_late_is_gone_when_a_firm_reservation_begins() -> None:
    world = reserved(World().nodes(1, cpu=4)).after("57m").job("a", cpu=1, grace="2m").round().start("a").after("59s")
    assert not any(isinstance(event, Preempted) for event in world.log)
    world.after("2s")
    assert any(isinstance(event, Preempted) for event in world.log)
    world.job("late", cpu=1, grace="2m").round()
    assert world.codes("late") == ["NODE_RESERVED"]


def test_work_that_may_not_be_preempted_needs_a_time_limit_that_ends_before() -> None:
    world = reserved(World().nodes(1, cpu=4))
    world.job("endless", cpu=1, preemptible=False, expect="1m")
    world.job("bounded", cpu=2, preemptible=False, **{"time-limit": "50m"}).round()
    assert (world.codes("endless"), world.where("bounded")) == (["NODE_RESERVED"], ["n1"])
    assert world.reasons("endless")[0].need == "a time limit, or `preemptible: true`"


def test_work_that_saves_itself_starts_before_a_reservation_if_some_checkpoints_fit() -> None:
    world = reserved(World().nodes(1)).job("train", cpu=1, expect="10h", checkpoint="1m").round()
    assert world.where("train") == ["n1"]


def test_a_soft_reservation_preempts_nothing_and_keeps_others_away_once_it_has_begun() -> None:
    world = reserved(World().nodes(1), soft=True).job("a", cpu=1).round().start("a").after("61m")
    assert not world.unit("a").stopping
    world.job("b", cpu=1).round()
    assert world.codes("b") == ["NODE_RESERVED"]


@pytest.mark.parametrize("policy", ["poise", "fifo"])
def test_devices_are_reserved_apart_from_their_node(policy: str) -> None:
    world = World(policy).nodes(1, gpus=4, cpu=16)
    world.reserve("half", tenant="team-a", devices=2, begins="+1h", length="2h").after("61m")
    world.job("theirs", cpu=1, gpu=2, expect="1h").job("none", cpu=1, expect="1h").round()
    assert world.task("theirs.main")[1].devices == (2, 3)
    assert world.where("none") == ["n1"]
    world.job("mine", cpu=1, gpu=2, expect="1h", tenant="team-a").job("more", cpu=1, gpu=1, expect="1h").round()
    assert world.task("mine.main")[1].devices == (0, 1)
    assert world.where("more") == []


def test_work_that_lacks_only_reserved_devices_says_so() -> None:
    world = World().nodes(1, gpus=2, cpu=16)
    world.reserve("half", tenant="team-a", devices=1, begins="+1h", length="2h").after("61m")
    world.job("theirs", cpu=1, gpu=2, expect="1h").round()
    assert world.codes("theirs") == ["DEVICES_RESERVED"]


def test_verify_refuses_a_plan_that_breaks_a_reservation() -> None:
    world = reserved(World().nodes(1)).job("long", cpu=1, expect="50m")
    broken = Place(unit="j1.main", spots=(Spot("n1"),), why=Why(policy="broken"))
    found = verify(world.ledger, broken, world.now)
    assert isinstance(found, Rejection)
    assert [reason.code for reason in found.reasons] == ["NODE_RESERVED"]


def test_an_elastic_gang_grows_only_onto_nodes_that_are_not_reserved() -> None:
    world = reserved(World().nodes(3, cpu=1)).after("61m")
    [kept] = places(world, "night")
    world.job("gang", cpu=1, workers="1..3", expect="10h").round().round()
    assert kept not in world.where("gang")
    assert len(world.where("gang")) == 2


def test_nodes_are_chosen_so_that_windows_do_not_overlap() -> None:
    world = reserved(reserved(World().nodes(2), "a"), "b")
    assert {*places(world, "a"), *places(world, "b")} == {"n1", "n2"}
    with pytest.raises(PoiseError) as refused:
        reserved(world, "c", begins="+2h")
    assert refused.value.record.code == "E110"
    assert "reserved then: a (r1), b (r2)" in refused.value.record.have
    reserved(world, "d", begins="+3h")


def test_a_recurring_reservation_takes_other_nodes_in_windows_in_which_its_own_are_taken() -> None:
    world = World().nodes(2)
    for name, day in (("monday", "2023-11-20T09:00"), ("tuesday", "2023-11-21T09:00")):
        nodes = ["n1"] if name == "monday" else ["n2"]
        world.reserve(name, tenant="team-a", nodes=nodes, begins=day, length="8h")
    world.reserve("daily", tenant="team-b", nodes=1, begins="2023-11-20T09:00", length="1h", every="FREQ=DAILY;COUNT=3")
    [found] = [of for of in world.ledger.reservations.values() if of.reservation.name == "daily"]
    windows = list(world.ledger.reservations.windows(found.reservation.id, world.now))
    by_day = {window.told[13:15]: window.spots[0].node for window in windows}
    assert (by_day["20"], by_day["21"]) == ("n2", "n1")


def test_a_recurring_reservation_comes_back_each_time() -> None:
    world = reserved(World().nodes(1), every="FREQ=DAILY;COUNT=2").after("3h1m")
    world.job("between", cpu=1, expect="1h").round().start("between").after("30m").finish("between")
    assert world.status("between") == "done"
    world.after("22h").job("again", cpu=1, expect="1m").round()
    assert world.codes("again") == ["NODE_RESERVED"]


def test_a_window_moves_to_another_node_when_its_node_fails() -> None:
    world = reserved(World().nodes(2)).after("61m")
    [kept] = places(world, "night")
    [other] = {"n1", "n2"} - {kept}
    world.job("victim", cpu=1).round().start("victim")
    assert world.where("victim") == [other]
    world.lose(kept).after("1m")
    [moved] = [event for event in world.log if isinstance(event, ReservationMoved)]
    assert (moved.places, moved.why) == ((Spot(other),), f"{kept} failed")
    assert world.unit("victim").stopping or world.status("victim") == "pending"


def test_a_named_node_is_not_replaced() -> None:
    world = reserved(World().nodes(2), nodes=["n1"]).lose("n1").after("61m")
    assert not any(isinstance(event, ReservationMoved) for event in world.log)


def test_a_reservation_that_nobody_uses_is_released() -> None:
    world = reserved(World().nodes(1), release_after="20m").after("81m")
    assert [type(event) for event in world.log if isinstance(event, ReservationReleased)] == [ReservationReleased]
    world.job("theirs", cpu=1, expect="1h").round()
    assert world.where("theirs") == ["n1"]


def test_a_reservation_that_is_used_is_not_released() -> None:
    world = reserved(World().nodes(1), release_after="20m").after("61m")
    world.job("mine", cpu=1, expect="1h", tenant="team-a").round().start("mine").after("50m")
    assert not any(isinstance(event, ReservationReleased) for event in world.log)


def test_maintenance_drains_its_nodes_and_opens_them_again() -> None:
    world = World().nodes(2).reserve("upgrade", maintenance=True, nodes=["n1"], begins="+1h", length="30m")
    world.after("61m")
    assert world.ledger.nodes["n1"].condition == "emptying"
    world.after("30m")
    assert world.ledger.nodes["n1"].condition == "up"
    assert [event.on for event in world.log if isinstance(event, NodeDrained)] == [True, False]


def test_maintenance_without_an_end_lasts_until_it_is_cancelled() -> None:
    world = World().nodes(1).reserve("upgrade", maintenance=True, nodes=["n1"], begins="+1h").after("9h")
    assert world.ledger.nodes["n1"].drained
    world.unreserve("upgrade").after("1s").job("a", cpu=1).round()
    assert world.where("a") == ["n1"]


def test_a_node_that_was_drained_by_hand_stays_drained_after_maintenance() -> None:
    world = World().nodes(1).reserve("upgrade", maintenance=True, nodes=["n1"], begins="+1h", length="30m")
    world.drain("n1").after("2h")
    assert world.ledger.nodes["n1"].drained


def test_a_wall_clock_that_is_set_moves_the_windows() -> None:
    world = reserved(World().nodes(1))
    world.ahead = 3600
    world.tick().job("theirs", cpu=1, expect="1m").round()
    assert world.codes("theirs") == ["NODE_RESERVED"]
    assert abs(world.ledger.leader.wall(world.now) - world.wall) < 0.001


def test_the_same_reservation_twice_changes_nothing_and_another_one_replaces_it() -> None:
    world = World().nodes(2)
    fields: dict[str, Any] = {"tenant": "team-a", "nodes": 1, "begins": "2023-11-20T09:00", "length": "8h"}
    world.reserve("day", **fields).reserve("day", **fields)
    assert [*world.ledger.reservations] == ["r1"]
    world.reserve("day", **fields | {"length": "9h"})
    assert [*world.ledger.reservations] == ["r2"]
    accepted = [reply.value for reply in world.replies][-1]
    assert isinstance(accepted[0], Accepted)


def test_a_tenant_cannot_cancel_the_reservation_of_another() -> None:
    world = reserved(World().nodes(1))
    with pytest.raises(PoiseError) as refused:
        world.unreserve("night", Bearer("team-b", Role.SUBMITTER))
    assert refused.value.record.code == "E120"


def test_a_log_with_reservations_replays_to_the_same_state_and_survives_a_restart() -> None:
    world = World().nodes(2, gpus=2)
    world.reserve("half", tenant="team-a", devices=1, begins="+10m", length="1h", every="FREQ=DAILY;COUNT=3")
    reserved(world, nodes=1, begins="+10m").after("11m").lose("n1").after("1m")
    assert replay(world.log).encode() == world.ledger.encode()
    before = world.ledger.reservations.booked(world.now).windows
    world.restart(from_checkpoint=True)
    assert world.ledger.reservations.booked(world.now).windows == before


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"begins": "2023-01-01T00:00"}, "the reservation begins in the past"),
        ({"length": "0s"}, "the reservation has no length"),
        ({"nodes": 3}, "the fleet has too few nodes for this reservation"),
        ({"nodes": 0}, "a reservation takes nodes or devices"),
        ({"nodes": -1}, "the number is out of range"),
        ({"nodes": ["n7"]}, "there is no node `n7`"),
        ({"nodes": ["n1", "n1"]}, "a node is named twice"),
        ({"model": "H100"}, "the fleet has too few nodes for this reservation"),
        ({"tenant": ""}, "a reservation is for a tenant or for maintenance"),
        ({"maintenance": True}, "a reservation is for a tenant or for maintenance"),
        ({"every": "FREQ=DAILY"}, "the recurrence rule never ends"),
        ({"every": "FREQ=DAILY;COUNT=1000000"}, "the recurrence rule has too many instances"),
        ({"every": "FREQ=SECONDLY;COUNT=5"}, "the recurrence rule cannot be read"),
        ({"every": "FREQ=DAILY;BYHOUR=3;COUNT=5"}, "recurrence rules with BYHOUR are not supported"),
        ({"every": "FREQ=YEARLY;COUNT=50"}, "the recurrence rule goes too far into the future"),
        ({"every": "FREQ=DAILY;COUNT=2", "length": "25h"}, "the windows of the reservation overlap"),
        ({"begins": "tomorrow"}, "the time cannot be read"),
        ({"begins": ""}, "the time cannot be read"),
        ({"time_zone": "Mars/Olympus"}, "this time zone is not known"),
        ({"release_after": "soon"}, "the quantity cannot be read"),
    ],
)
def test_a_reservation_that_cannot_be_is_refused_before_anything_happens(fields: dict[str, Any], said: str) -> None:
    world = World().nodes(2)
    before = world.ledger.revision
    with pytest.raises(PoiseError, match=said):
        reserved(world, **fields)
    assert world.ledger.revision == before
