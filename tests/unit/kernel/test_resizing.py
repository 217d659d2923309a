"""Gangs that change their size while they run: the members that stay go on in the processes that they are."""

import pytest

from poise.kernel.explain import story, task_status
from poise.kernel.history import History
from poise.kernel.ledger import Ledger, attempt_of
from poise.kernel.messages import Decided
from poise.kernel.replay import replay
from poise.kernel.verify import verify_resize
from poise.model.decisions import Plan, Preempt, Rejection, Resize, Spot, Why
from poise.model.events import Preempted, Resized
from poise.model.jobs import Ending, Outcome
from poise.model.messages import Attempt, DeviceFault
from poise.model.training import Orders
from poise.policy import hypothetical
from poise.policy.resizing import SETTLES
from poise.policy.suites import policy_named
from poise.testing import World
from poise.units import SECOND
from unit.asking import expected

WHY = Why(policy="test")


def a_gang(workers: str = "2..4", nodes: int = 4, **fields: object) -> World:
    """Training with a worker on each of four nodes of one device, all running, that has said that it resizes."""
    world = World(recipe={}).nodes(nodes, cpu=2, gpus=1)
    world.job("train", workers=workers, gpu=1, **{"checkpoint": "10s", "expect": "1h", "priority": "low"} | fields)
    world.round()
    everybody = [f"train.main[{index}]" for index in range(world.unit("train").size)]
    return world.start(*everybody).resizes("train.main[0]")


def told(world: World) -> dict[str, tuple[int, int, int]]:
    """What those that are there were told last: by task, the generation, the world and the rank."""
    unit = world.unit("train")
    there = [attempt_of(unit, index) for index, task in enumerate(unit.tasks) if task.active]
    orders = {attempt.task.partition(".")[2]: world.orders[attempt] for attempt in there}
    return {name: (of.generation, of.world, of.rank) for name, of in orders.items()}


def ids(world: World) -> dict[str, int]:
    """The epochs in which those that are there were started."""
    unit = world.unit("train")
    return {unit.spec.tasks[index].name: unit.epoch_of(index) for index in unit.members}


def resize(world: World, **fields: object) -> World:
    decision = Resize(**{"unit": world.unit("train").id, "cause": "grow", "why": WHY} | fields)  # type: ignore[arg-type]
    return world.say(Decided(Plan(base=0, policy="test", decisions=(decision,))))


# --- a member is lost ------------------------------------------------------------------------------------------------


def test_who_is_left_goes_on_when_a_member_is_killed() -> None:
    world = a_gang().after("1s").finish("train.main[1]", outcome="killed")
    unit = world.unit("train")
    assert (unit.status, unit.size, unit.epoch, unit.stopping) == ("active", 3, 1, "")
    assert told(world) == {"main[0]": (1, 3, 0), "main[2]": (1, 3, 1), "main[3]": (1, 3, 2)}
    assert set(ids(world).values()) == {1}, "nobody was started anew"
    assert world.status("train") == "running"
    job = world.ledger.jobs[unit.job]
    assert task_status(job, unit, unit.tasks[1]) == "spare"


@pytest.mark.parametrize("outcome", ["killed", "signal", "hung", "lost", "unstartable"])
def test_below_its_least_a_gang_ends_as_any_other(outcome: Outcome) -> None:
    world = a_gang("3..4").after("1s")
    world.finish("train.main[3]", outcome=outcome)
    assert world.unit("train").size == 3
    world.finish("train.main[0]", outcome=outcome)
    assert world.unit("train").epoch != 1 or not world.where("train"), "its other members were stopped"


@pytest.mark.parametrize("outcome", ["failed", "oom"])
def test_what_the_work_itself_does_ends_the_gang(outcome: Outcome) -> None:
    world = a_gang(retry={"limit": 3, "backoff": "1s", "when": ["failed", "oom"]}).after("1s")
    world.finish("train.main[3]", outcome=outcome)
    assert world.unit("train").generation == 0
    assert world.status("train") == "pending"


def test_a_shell_that_tells_of_a_signal_is_a_member_that_was_lost() -> None:
    world = a_gang().after("1s").finish("train.main[2]", outcome="failed", code=137)
    assert (world.unit("train").size, world.unit("train").generation) == (3, 1)


def test_without_its_word_a_gang_is_started_anew() -> None:
    world = World().nodes(4, cpu=2, gpus=1).job("train", workers="2..4", gpu=1).round()
    world.start(*(f"train.main[{index}]" for index in range(4))).finish("train.main[1]", outcome="killed")
    assert not world.unit("train").generation
    assert world.unit("train").status != "active" or world.unit("train").epoch == 2


def test_a_node_that_is_lost_takes_its_members_only() -> None:
    world = a_gang()
    lost = world.where("train")[2]
    world.disconnect(lost).after("2m")
    unit = world.unit("train")
    assert (unit.size, unit.generation) == (3, 1)
    assert lost not in world.where("train")
    world.connect(lost)
    stale = Attempt(f"{unit.job}.main[2]", 1)
    assert stale not in world.held[lost], "it is fenced off, and stopped when it comes back"


def test_two_nodes_that_are_lost_at_once_leave_a_gang_of_two() -> None:
    world = a_gang()
    for name in world.where("train")[:2]:
        world.disconnect(name)
    world.after("2m")
    assert world.unit("train").size == 2
    assert sorted(rank for _, _, rank in told(world).values()) == [0, 1]


# --- by decision -----------------------------------------------------------------------------------------------------


def test_it_makes_room_for_what_is_more_urgent_and_grows_back() -> None:
    world = a_gang().after("10s")
    world.job("now", gpu=1, priority="high", expect="30s").after("1s")
    [resized] = [event for event in world.log if isinstance(event, Resized)]
    assert resized.leaves and not resized.joins and resized.to == world.unit("now").id
    assert not [event for event in world.log if isinstance(event, Preempted)]
    assert world.status("now") == "placed"
    assert (world.unit("train").size, world.unit("train").epoch) == (3, 1)
    assert sorted(told(world).values()) == [(1, 3, 0), (1, 3, 1), (1, 3, 2)]
    world.start("now").after("5s").finish("now", run="5s").after("10s")
    unit = world.unit("train")
    assert (unit.size, unit.epoch, unit.generation) == (4, 2, 2)
    joined = f"main[{resized.leaves[0]}]"
    assert ids(world) == {name: 2 if name == joined else 1 for name in ids(world)}
    assert told(world)[joined] == (2, 4, 3), "who joins comes after those who were there"
    launch = world.held[unit.tasks[resized.leaves[0]].node][Attempt(f"{unit.job}.{joined}", 2)]
    assert (launch.founded, launch.generation, launch.rank, launch.world) == (1, 2, 3, 4)


def test_what_its_like_waits_for_is_given_up_too_but_no_more_than_it_can_spare() -> None:
    world = a_gang("3..4").after("10s").job("other", workers=2, gpu=1, priority="low", expect="1h").after("1s")
    assert world.unit("train").generation == 0
    assert world.status("other") == "pending"
    world.job("third", gpu=1, priority="low", expect="1h").after("1s")
    assert (world.unit("train").size, world.status("third")) == (3, "placed")


def test_what_is_less_urgent_waits() -> None:
    world = a_gang(priority="high").after("10s").job("later", gpu=1, priority="low", expect="10s").after("20s")
    assert world.unit("train").generation == 0
    assert world.codes("later")


def test_a_member_that_was_killed_is_replaced_and_ever_later_the_more_often() -> None:
    world = a_gang().after("1s")
    for often in (1, 2, 3):
        wait = SETTLES << often
        world.finish("train.main[3]", outcome="killed").after(wait - SECOND)
        assert world.unit("train").size == 3
        world.after("2s")
        assert world.unit("train").size == 4
        world.start("train.main[3]")
        assert world.unit("train").tasks[3].epoch == 0
        assert world.unit("train").epoch == 1 + often
    assert [past.epoch for past in world.unit("train").tasks[3].past] == [1, 2, 3]
    world.after("2m").finish("train.main[3]", outcome="killed").after((SETTLES << 1) + SECOND)
    assert world.unit("train").size == 4, "it had been steady, and begins to count anew"


def test_those_who_are_lost_together_count_once() -> None:
    world = a_gang("1..4")
    first, second = world.where("train")[:2]
    world.disconnect(first).disconnect(second).after("2m")
    assert (world.unit("train").size, world.unit("train").losses) == (2, 1)


def test_an_ending_of_an_earlier_epoch_is_history() -> None:
    world = a_gang().after("1s").finish("train.main[3]", outcome="killed").after("12s")
    unit = world.unit("train")
    at = unit.tasks[3].node
    world.end(at, Attempt(f"{unit.job}.main[3]", 1), Ending(outcome="done"))
    assert unit.tasks[3].status == "queued"
    world.end(world.where("train")[0], Attempt(f"{unit.job}.main[0]", 2), Ending(outcome="done"))
    assert unit.tasks[0].status == "running", "it runs in epoch 1 still"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "nothing is to change"),
        ({"leaves": (0, 1, 2)}, "too few"),
        ({"leaves": (7,)}, "no member"),
        ({"joins": (Spot("n1", (0,)),)}, "idle"),
        ({"leaves": (0,), "joins": (Spot("n9", (0,)),)}, "idle"),
    ],
)
def test_what_cannot_be_is_refused_with_every_reason(fields: dict[str, object], word: str) -> None:
    world = a_gang()
    decision = Resize(**{"unit": world.unit("train").id, "cause": "grow", "why": WHY} | fields)  # type: ignore[arg-type]
    refused = verify_resize(world.ledger, decision, world.now)
    assert isinstance(refused, Rejection)
    assert word in "; ".join(reason.sentence() for reason in refused.reasons)


def test_a_gang_may_be_resized_again_before_it_has_done_as_it_was_told() -> None:
    world = a_gang("1..4")
    free = world.where("train")[3]
    world.finish("train.main[3]", outcome="killed")
    resize(world, leaves=(0,), joins=(Spot(free, (0,)),))
    unit = world.unit("train")
    assert unit.members == [1, 2, 3]
    assert told(world) == {"main[1]": (2, 3, 0), "main[2]": (2, 3, 1), "main[3]": (2, 3, 2)}
    resize(world, leaves=(3,))
    assert told(world) == {"main[1]": (3, 2, 0), "main[2]": (3, 2, 1)}


def test_a_quota_and_a_drained_node_hold_for_those_who_join() -> None:
    world = a_gang().after("1s").finish("train.main[3]", outcome="killed")
    free = world.unit("train").tasks[3].node
    world.drain(free)
    decision = Resize(unit=world.unit("train").id, cause="grow", why=WHY, joins=(Spot(free, (0,)),))
    refused = verify_resize(world.ledger, decision, world.now)
    assert isinstance(refused, Rejection) and {reason.code for reason in refused.reasons} == {"NODE_DRAINED"}


# --- what is told ----------------------------------------------------------------------------------------------------


def test_a_node_that_connects_again_is_told_what_it_missed() -> None:
    world = a_gang()
    at, attempt = world.where("train")[0], attempt_of(world.unit("train"), 0)
    world.disconnect(at).finish("train.main[3]", outcome="killed")
    assert world.orders[attempt].generation == 0
    world.connect(at)
    assert world.orders[attempt] == Orders(generation=1, world=3, rank=0)


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_a_control_plane_that_begins_anew_knows_the_gang_as_it_is(from_checkpoint: bool) -> None:
    world = a_gang().after("1s").finish("train.main[0]", outcome="killed").after("12s")
    before = told(world)
    world.orders.clear()
    world.restart(from_checkpoint=from_checkpoint)
    assert told(world) == before
    assert world.unit("train").founded == 1


@pytest.mark.parametrize("keep", range(1, 5))
def test_what_was_not_durable_has_not_happened_and_nobody_was_told(keep: int) -> None:
    """The control plane is killed before, between and after the records of a change."""
    world = a_gang().after("10s")
    world.slow_disk = True
    world.job("now", gpu=1, priority="high", expect="30s").after("200ms")
    generations = {orders.generation for orders in world.orders.values()}
    assert generations == {0}, "nothing leaves before it is durable"
    del world.log[world.durable + keep :]
    world.durable, world.slow_disk = len(world.log), False
    world.restart().after("10s")
    assert world.unit("train").size == 3 or world.status("now") in ("pending", "placed", "done")
    world.ledger.check()
    assert set(told(world).values()) == {
        (world.unit("train").generation, world.unit("train").size, rank) for rank in range(world.unit("train").size)
    }


def test_a_leaver_that_is_still_there_is_stopped_by_whoever_takes_the_log_next() -> None:
    world = a_gang()
    at, attempt = world.where("train")[3], attempt_of(world.unit("train"), 3)
    world.disconnect(at)
    resize(world, leaves=(3,))
    assert attempt in world.held[at]
    world.restart()
    world.connect(at)
    assert attempt not in world.held[at]
    assert world.unit("train").tasks[3].status == "idle"


def test_what_it_did_in_each_size_is_counted_once() -> None:
    world = a_gang().after("10s").finish("train.main[3]", outcome="killed")  # 10 s of 4
    unit = world.unit("train")
    assert unit.carried == unit.attained == 40 * SECOND
    resident = world.ledger.snapshot(world.now).elastic[0]
    assert (resident.size, resident.saved, resident.since) == (3, 40 * SECOND, world.now)
    for name in sorted(world.known):
        world.drain(name)  # it does not grow back
    resize(world, leaves=(2,)).after("20s")  # and 20 s of 2
    for index in range(2):
        world.finish(f"train.main[{index}]", run="30s")
    profile = world.ledger.profiles[unit.spec.kind]
    assert profile.mean == pytest.approx((10 * 4 + 20 * 2) * SECOND / 2, rel=0.01), "of its least, which is 2"


def test_what_it_did_is_kept_when_it_yields_as_a_whole() -> None:
    world = a_gang("1..2", nodes=2).after("10s")
    for name in sorted(world.known):
        world.drain(name)
    world.finish("train.main[1]", outcome="killed").after("25s")
    decision = Preempt(unit=world.unit("train").id, cause="yield", why=WHY)
    world.say(Decided(Plan(base=0, policy="test", decisions=(decision,))))
    unit = world.unit("train")
    assert world.status("train") == "pending"
    assert unit.saved == (10 * 2 + 20) * SECOND, "all of it in two, and of it alone what is in its latest checkpoint"
    assert unit.attained == (10 * 2 + 25) * SECOND


def test_a_device_that_failed_a_member_is_not_given_to_another_of_it() -> None:
    world = a_gang().after("1s")
    at = world.where("train")[3]
    world.fault(at, DeviceFault(index=0, code="XID 79"))
    assert world.unit("train").size == 3
    world.drain(f"{at}:0", on=False).after("1m")
    assert at not in world.where("train")
    decision = Resize(unit=world.unit("train").id, cause="grow", why=WHY, joins=(Spot(at, (0,)),))
    refused = verify_resize(world.ledger, decision, world.now)
    assert isinstance(refused, Rejection) and "DEVICE_TAKEN" in {reason.code for reason in refused.reasons}


def test_it_is_explained_and_told_in_the_history() -> None:
    world = a_gang().after("10s").job("now", gpu=1, priority="high", expect="30s").after("1s")
    job = world.state("train")
    told_of_it = [told.text for told in story(world.ledger, job, job.units, 100)]
    assert any("go on smaller" in text and "1 task leaves" in text for text in told_of_it)
    history = History(Ledger())
    for event in world.log:
        history.add(event)
    told_of = history.report(world.now)
    assert [one.subject for one in told_of.happenings if one.kind == "resized"] == [world.unit("train").id]


def test_a_replay_decides_the_same() -> None:
    world = a_gang().after("10s").job("now", gpu=1, priority="high", expect="30s").after("1s").start("now")
    world.after("5s").finish("now", run="5s").after("20s")
    assert any(isinstance(event, Resized) and event.joins for event in world.log)
    found = replay(world.log, choose=lambda began: policy_named("poise"))
    assert found.same and found.rounds > 2


def test_what_if_sees_the_room_that_members_leave() -> None:
    world = a_gang().after("10s").job("now", gpu=1, priority="high", expect="30s")
    view = world.controller.snapshot(world.now)
    found = hypothetical.starts(policy_named("poise"), view, world.unit("now").id)
    assert found is not None
    assert found[1] == (world.unit("train").id,)


def test_goodput_grows_it_in_place() -> None:
    world = World("goodput").nodes(1, cpu=8, gpus=4)
    world.job("train", workers="1..4", gpu=1, checkpoint="10s").round()
    world.start(*(f"train.main[{index}]" for index in range(world.unit("train").size))).resizes("train.main[0]")
    for _ in range(5):
        unit = world.after("61s").unit("train")
        world.start(*(unit.spec.tasks[index].name.join(("train.", "")) for index in unit.members))
    assert unit.size == 4
    assert not [event for event in world.log if isinstance(event, Preempted)]


def test_a_forecast_counts_on_what_members_leave_and_that_the_others_go_on() -> None:
    world = a_gang().after("10s").job("now", gpu=1, priority="high", expect="30s")
    world.job("all", workers=4, gpu=1, priority="low", expect="10h")
    soon, later = expected(world, "now"), expected(world, "all")
    assert soon.likely is not None and soon.likely <= 10 * SECOND
    assert later.likely is not None and later.likely > 1800 * SECOND, (
        "not before the gang has ended, of which most is left"
    )
