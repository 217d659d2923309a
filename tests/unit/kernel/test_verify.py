"""A plan is a proposal: what no longer holds is refused by name, and nothing else is disturbed."""

from typing import Any

from poise.kernel.controller import Decided
from poise.kernel.verify import verify_place
from poise.model.decisions import Hold, Place, Plan, Reason, Rejection, Spot, Why
from poise.model.events import Placed, PolicyFailed
from poise.testing import World, node

WHY = Why(policy="test")


def against(world: World, unit: str, *spots: Spot, queued: bool = False) -> list[str]:
    """Why a placement is refused; nothing when it is not."""
    verdict = verify_place(world.ledger, Place(unit=unit, spots=spots, why=WHY, queued=queued), world.now)
    return [reason.code for reason in verdict.reasons] if isinstance(verdict, Rejection) else []


def test_a_plan_that_holds_becomes_an_event_with_the_next_epoch() -> None:
    world = World().nodes(1).job("a")
    verdict = verify_place(world.ledger, Place(unit="j1.main", spots=(Spot("n1"),), why=WHY), world.now)
    assert isinstance(verdict, Placed)
    assert (verdict.epoch, verdict.spots, verdict.at) == (1, (Spot("n1"),), world.now)


def test_what_is_not_there_is_named() -> None:
    world = World().nodes(1).job("a")
    assert against(world, "j9.main", Spot("n1")) == ["UNKNOWN_UNIT"]
    assert against(world, "j1.main", Spot("n9")) == ["UNKNOWN_NODE"]


def test_what_has_been_placed_meanwhile_is_refused() -> None:
    world = World().nodes(2).job("a")
    plan = world.plan()
    world.round().say(Decided(plan))
    assert world.unit("a").epoch == 1
    assert against(world, "j1.main", Spot("n2")) == ["NOT_PENDING"]


def test_what_was_cancelled_meanwhile_is_refused() -> None:
    world = World().nodes(1).job("a")
    plan = world.plan()
    world.cancel("a").say(Decided(plan))
    assert world.status("a") == "cancelled"


def test_a_node_that_closed_meanwhile_refuses() -> None:
    world = World().nodes(1).job("a")
    assert against(world.drain("n1"), "j1.main", Spot("n1")) == ["NODE_DRAINED"]
    assert against(world.lose("n1"), "j1.main", Spot("n1")) == ["NODE_LOST", "NODE_DRAINED"]


def test_room_is_counted_over_all_spots_together() -> None:
    world = World().nodes(1, cpu=2, memory="2GiB").job("gang", workers=2, memory="1GiB").job(cpu="0.5", memory="1GiB")
    assert against(world, "j1.main", Spot("n1"), Spot("n1")) == []
    world.say(Decided(Plan(base=0, policy="test", decisions=(Place(unit="j2.main", spots=(Spot("n1"),), why=WHY),))))
    assert against(world, "j1.main", Spot("n1"), Spot("n1")) == ["CPU_BUSY", "MEMORY_BUSY"]


def test_part_of_a_gang_is_refused() -> None:
    world = World().nodes(1).job("gang", workers=2)
    assert against(world, "j1.main", Spot("n1")) == ["NOT_WHOLE"]


def test_devices_are_checked_one_by_one() -> None:
    world = World().join(node("n1", cpu=8, gpus=3, gpu_memory=("16GiB", "80GiB", "80GiB")))
    world.job("a", gpu=1, gpu_memory="40GiB").round().job("b", gpu=1, gpu_memory="40GiB").job("c", gpu=2)
    assert world.task("a")[1].devices == (1,)
    refused: list[tuple[tuple[int, ...], list[str]]] = [
        ((0,), ["DEVICE_TAKEN"]),  # too small
        ((1,), ["DEVICE_TAKEN"]),  # held
        ((7,), ["DEVICE_TAKEN"]),  # unknown
        ((), ["GPU_BUSY"]),
        ((0, 2), ["GPU_BUSY", "DEVICE_TAKEN"]),
        ((2,), []),
    ]
    for devices, codes in refused:
        assert against(world, "j2.main", Spot("n1", devices)) == codes, devices
    assert against(world, "j3.main", Spot("n1", (2, 2))) == ["DEVICE_TAKEN"]


def test_a_back_off_is_kept() -> None:
    retry: dict[str, Any] = {"when": ["failed"], "backoff": "5s"}
    world = World().nodes(1).job("a", retry=retry).round().finish("a", outcome="failed")
    assert against(world, "j1.main", Spot("n1")) == ["NOT_YET"]
    assert against(world.after("5s"), "j1.main", Spot("n1")) == ["NOT_PENDING"]  # decided again by itself


def test_only_brief_work_is_queued_and_only_behind_brief_work() -> None:
    world = World().nodes(1, cpu=1).job("long").round().job("new")
    assert against(world, "j2.main", Spot("n1"), queued=True) == ["NOT_BRIEF", "POOL_GONE"]
    world.cancel("new").finish_all()
    for _ in range(3):
        world.job(**{"class": "brief"})
    world.finish_all(run="1ms").job("holder", **{"class": "brief"}).round().job("next", **{"class": "brief"})
    unit = world.unit("next").id
    assert against(world, unit, Spot("n1"), queued=True) == []
    assert against(world, unit, Spot("n1", (0,)), queued=True) == ["NOT_BRIEF"]
    assert against(world.finish("holder", run="1ms"), unit, Spot("n1"), queued=True) == ["POOL_GONE"]


def test_reasons_for_a_queue_that_is_gone_are_not_kept() -> None:
    world = World().nodes(1)
    hold = Hold(queue="2/nothing//", reasons=(Reason(code="NO_NODES"),))
    before = world.ledger.revision
    assert world.say(Decided(Plan(base=before, policy="test", decisions=(hold,)))).ledger.revision == before


def test_a_policy_that_is_wrong_every_time_is_not_asked_every_time() -> None:
    class Wrong:
        name = "wrong"
        asked = 0

        def decide(self, view: Any, /) -> Plan:
            self.asked += 1
            place = Place(unit="j1.main", spots=(Spot("nowhere"),), why=WHY)
            return Plan(base=view.revision, policy=self.name, decisions=(place,))

    wrong = Wrong()
    world = World(wrong).nodes(1).job("a")
    for _ in range(100):
        world.tick()
    assert wrong.asked == 1
    world.after("1s")
    assert wrong.asked <= 8


def test_that_a_policy_failed_is_in_the_log() -> None:
    world = World().nodes(1)
    world.say(Decided(Plan(base=0, policy="fifo", failed="ZeroDivisionError: division by zero")))
    assert isinstance(world.log[-1], PolicyFailed)
