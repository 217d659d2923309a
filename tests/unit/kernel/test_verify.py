"""A plan is a proposal: what no longer holds is refused by name, and nothing else is disturbed."""

from typing import Any

import msgspec

from poise.kernel.messages import Decided
from poise.kernel.verify import verify_place, verify_preempt
from poise.model.decisions import Hold, Place, Plan, Preempt, Reason, Rejection, Spot, Why
from poise.model.events import Placed, PolicyFailed, Preempted
from poise.model.messages import DeviceFault
from poise.model.resources import Device
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
    verdicts: list[tuple[tuple[int, ...], list[str]]] = [
        ((0,), ["DEVICE_TAKEN"]),  # too small
        ((1,), ["DEVICE_TAKEN"]),  # held
        ((7,), ["DEVICE_TAKEN"]),  # unknown
        ((), ["GPU_BUSY"]),
        ((0, 2), ["GPU_BUSY", "DEVICE_TAKEN"]),
        ((2,), []),
    ]
    for devices, codes in verdicts:
        assert against(world, "j2.main", Spot("n1", devices)) == codes, devices
    assert against(world, "j3.main", Spot("n1", (2, 2))) == ["DEVICE_TAKEN"]


def test_a_device_that_has_failed_meanwhile_is_refused() -> None:
    world = World().nodes(1, gpus=2).job("a", gpu=1).fault("n1", DeviceFault(index=0, code="XID 79"))
    assert against(world, "j1.main", Spot("n1", (0,))) == ["DEVICE_TAKEN"]
    assert against(world, "j1.main", Spot("n1", (1,))) == []


def test_more_than_the_quota_leaves_by_now_is_refused() -> None:
    world = World().nodes(2, cpu=4).job("a", tenant="ann", cpu=2).job("b", tenant="ann", cpu=2).quota("ann", cpu=3)
    assert against(world, "j2.main", Spot("n2")) == []
    world.say(Decided(Plan(base=0, policy="test", decisions=(Place(unit="j1.main", spots=(Spot("n1"),), why=WHY),))))
    assert against(world, "j2.main", Spot("n2")) == ["QUOTA"]


def test_a_back_off_is_kept() -> None:
    retry: dict[str, Any] = {"when": ["failed"], "backoff": "5s"}
    world = World().nodes(1).job("a", retry=retry).round().finish("a", outcome="failed")
    assert against(world, "j1.main", Spot("n1")) == ["NOT_YET"]
    assert against(world.after("5s"), "j1.main", Spot("n1")) == ["NOT_PENDING"]  # decided again by itself


def test_shares_of_a_device_are_checked_together() -> None:
    world = World().nodes(1, cpu=9, gpus=1, gpu_memory="16GiB")
    half = {"gpu": 1, "gpu_share": 0.5, "gpu_memory": "4GiB"}
    world.job("a", **half).round().job("b", **half).job("c", gpu=1, gpu_share=0.3, gpu_memory="13GiB").job("d", gpu=1)
    world.job("e", gpu=1, gpu_share=0.3, gpu_memory="12GiB")
    assert against(world, "j2.main", Spot("n1", (0,))) == ["DEVICE_TAKEN"]  # 500 + 500 of the 800 thousandths
    assert against(world, "j3.main", Spot("n1", (0,))) == ["DEVICE_TAKEN"]  # 4 + 13 of its 16 GiB
    assert against(world, "j4.main", Spot("n1", (0,))) == ["DEVICE_TAKEN"]  # whole, and it is shared
    assert against(world, "j5.main", Spot("n1", (0,))) == []
    world.finish("a")
    assert against(world, "j2.main", Spot("n1", (0,))) == []
    world.round()
    assert world.unit("d").status == "pending"


def test_a_device_that_is_not_what_was_asked_for_is_refused() -> None:
    world = World().nodes(1, gpus=1).job("a", gpu=1)
    npu = Device(index=0, kind="npu", model="Ascend-910B", memory=64 * 2**30)
    world.join(msgspec.structs.replace(world.known["n1"], devices=(npu,)))
    assert against(world, "j1.main", Spot("n1", (0,))) == ["DEVICE_TAKEN"]


def test_network_is_counted_over_all_spots_together() -> None:
    world = World().join(msgspec.structs.replace(node(), network=10**9)).job("g", workers=2, network="400Mbit")
    assert against(world, "j1.main", Spot("n1"), Spot("n1")) == []
    world.job("more", cpu=0, network="300Mbit")
    world.say(Decided(Plan(base=0, policy="test", decisions=(Place(unit="j2.main", spots=(Spot("n1"),), why=WHY),))))
    assert against(world, "j1.main", Spot("n1"), Spot("n1")) == ["NETWORK_BUSY"]


def test_an_elastic_unit_may_get_any_number_from_its_least_to_its_most() -> None:
    world = World().nodes(1, cpu=8).job("e", workers="2..4")
    verdicts = {count: against(world, "j1.main", *[Spot("n1")] * count) for count in (0, 1, 2, 3, 4, 5)}
    assert verdicts == {0: ["NOT_WHOLE"], 1: ["NOT_WHOLE"], 2: [], 3: [], 4: [], 5: ["NOT_WHOLE"]}


def test_an_artifact_is_checked_in_its_own_shape() -> None:
    artifacts: dict[str, Any] = {
        "gpu": {"run": "./gpu", "resources": {"cpu": 1, "gpu": 1}},
        "cpu": {"run": "./cpu", "resources": {"cpu": 2}},
    }
    world = World().nodes(1, cpu=2, gpus=1).job("holder", gpu=1).round().submit({"name": "a", "artifacts": artifacts})

    def verdict(variant: int, *devices: int) -> list[str]:
        place = Place(unit="j2.main", spots=(Spot("n1", devices),), why=WHY, variant=variant)
        found = verify_place(world.ledger, place, world.now)
        return [reason.code for reason in found.reasons] if isinstance(found, Rejection) else []

    assert verdict(0, 0) == ["DEVICE_TAKEN"]
    assert verdict(1) == ["CPU_BUSY"]
    assert verdict(2) == verdict(-1) == ["UNKNOWN_VARIANT"]
    world.finish("holder")
    assert verdict(0, 0) == verdict(1) == []


# --- preemption ------------------------------------------------------------------------------------------------------


def refused(world: World, unit: str, to: str = "") -> list[tuple[str, str]]:
    """Why a preemption is refused, and what each reason found; nothing when it is not."""
    verdict = verify_preempt(world.ledger, Preempt(unit=unit, cause="yield", why=WHY, to=to), world.now)
    return [(reason.code, reason.have) for reason in verdict.reasons] if isinstance(verdict, Rejection) else []


def test_a_preemption_that_holds_becomes_an_event_of_the_same_epoch() -> None:
    world = World().nodes(1, cpu=1).job("a").round().start("a").job("b", priority="urgent")
    preempt = Preempt(unit="j1.main", cause="yield", why=WHY, to="j2.main")
    assert verify_preempt(world.ledger, preempt, world.now) == Preempted(
        at=world.now, unit="j1.main", epoch=1, cause="yield", why=WHY, to="j2.main"
    )


def test_who_may_not_be_asked_to_yield_is_named() -> None:
    world = World().nodes(1, cpu=2).job("a", preemptible=False).job("b").round().start("a", "b").job("c")
    assert refused(world, "j9.main") == [("UNKNOWN_UNIT", "")]
    assert refused(world, "j3.main") == [("NOT_RUNNING", "pending")]
    assert refused(world, "j1.main") == [("PROTECTED", "`preemptible: false`")]
    assert refused(world.disconnect("n1").cancel("b"), "j2.main") == [("PROTECTED", "it is being stopped already")]


def test_nobody_yields_for_what_does_not_wait() -> None:
    world = World().nodes(1, cpu=2).job("a").job("b").round().start("a", "b")
    assert refused(world, "j1.main", to="j2.main") == [("NOT_PENDING", "active")]
    assert refused(world, "j1.main", to="j9.main") == [("NOT_PENDING", "gone")]


def test_what_waits_behind_its_like_is_not_running() -> None:
    world = World().nodes(1, cpu=1)
    for _ in range(3):
        world.job(**{"class": "brief"})
    world.finish_all(run="1ms").job("holder", **{"class": "brief"}).job("next", **{"class": "brief"}).round()
    assert world.unit("next").queued
    assert refused(world, world.unit("next").id) == [("NOT_RUNNING", "queued")]


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
