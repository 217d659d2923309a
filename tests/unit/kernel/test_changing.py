"""Jobs that are held, released, changed and tried again after they were submitted."""

from typing import Any

import pytest

from poise.errors import Conflict, NotFound, PoiseError, SpecError
from poise.kernel.explain import job_report
from poise.kernel.visible import Sight
from poise.model.events import JobChanged, JobHeld, JobsRemoved
from poise.model.jobs import Priority
from poise.model.messages import Desired
from poise.model.tenants import Bearer, Role
from poise.testing import World, node, replay
from poise.units import HOUR, MINUTE

ANN = Bearer("ann", Role.SUBMITTER)
AN_HOUR: dict[str, Any] = {"time-limit": "1h"}
CHAIN: dict[str, dict[str, Any]] = {"a": {"run": "true"}, "b": {"run": "true", "needs": ["a"]}}


def checked(world: World) -> World:
    """Replay and a restart from the log, or from a checkpoint, give the same ledger."""
    world.ledger.check()
    assert replay(world.log).encode() == world.ledger.encode()
    return world


# --- hold and release ------------------------------------------------------------------------------------------------


def test_what_is_on_hold_does_not_start_until_it_is_released() -> None:
    world = World().nodes(1).job("a").hold("a").round()
    assert world.status("a") == "waiting"
    assert [reason.sentence() for reason in world.reasons("a")] == ["is on hold: `poise release j1` lets it start"]
    assert checked(world).hold("a", False).round().where("a") == ["n1"]
    checked(world)


def test_a_running_job_says_that_it_is_on_hold() -> None:
    world = World().nodes(1).job("a").round().start("a.main").hold("a")

    def shown() -> tuple[str, bool]:
        report = job_report(world.ledger, world.state("a"), world.now, tasks=True)
        return report.status, report.hold

    assert shown() == ("running", True)
    world.hold("a", False)
    assert shown() == ("running", False)
    world.hold("a").finish("a.main")
    assert shown() == ("done", False)


def test_a_job_is_submitted_on_hold() -> None:
    world = World().nodes(1).job("a", hold=True).round()
    assert (world.status("a"), world.codes("a")) == ("waiting", ["ON_HOLD"])
    assert checked(world).hold("a", False).round().status("a") == "placed"


def test_what_runs_goes_on_and_what_follows_it_waits() -> None:
    world = World().nodes(2).graph("g", tasks=CHAIN).round().start("g.a").hold("g").finish("g.a").round()
    assert [world.status("g.a"), world.status("g.b")] == ["done", "waiting"]
    checked(world.restart()).round()
    assert world.status("g.b") == "waiting"
    assert world.hold("g", False).round().status("g.b") == "active"


def test_what_fails_while_it_is_on_hold_is_tried_again_once_it_is_released() -> None:
    world = World().nodes(1).job("a", retry={"limit": 1}).round().start("a").hold("a").finish("a", outcome="failed")
    assert world.after("5m").round().status("a") == "waiting"
    assert checked(world).hold("a", False).round().status("a") == "placed"


def test_a_job_on_hold_that_comes_after_another_waits_for_both() -> None:
    world = World().nodes(1).job("a").round().start("a").job("b", after=["a"]).hold("b").finish("a").round()
    assert world.codes("b") == ["ON_HOLD"]
    assert world.hold("b", False).round().status("b") == "placed"
    world = World().nodes(1).job("a").round().start("a").job("b", after=["a"]).hold("b").hold("b", False).round()
    assert world.codes("b") == ["AFTER"]
    assert checked(world.finish("a").round()).status("b") == "placed"


def test_twice_is_once_and_who_may_not_is_refused() -> None:
    world = World().nodes(1).job("a").hold("a").hold("a").hold("a", False)
    assert [event.on for event in world.log if isinstance(event, JobHeld)] == [True, False]
    with pytest.raises(NotFound):
        world.hold("a", bearer=ANN)
    world.cancel("a")
    with pytest.raises(Conflict, match="is over already"):
        world.hold("a")


def test_a_held_job_can_be_cancelled() -> None:
    assert checked(World().nodes(1).job("a").hold("a").cancel("a")).status("a") == "cancelled"


# --- after any, after failure ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "outcome", "status"),
    [
        ("after", "done", "placed"),
        ("after", "failed", "skipped"),
        ("after-any", "done", "placed"),
        ("after-any", "failed", "placed"),
        ("after-failure", "done", "skipped"),
        ("after-failure", "failed", "placed"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_job_begins_by_how_the_other_ended(how: str, outcome: str, status: str, late: bool) -> None:
    world, fields = World().nodes(2).job("a", retry={"limit": 0}).round().start("a"), {how: ["j1"]}
    if not late:
        world.job("b", **fields).round()
        assert world.codes("b") == ["AFTER"]
    world.finish("a", outcome=outcome)  # type: ignore[arg-type]
    if late:
        world.job("b", **fields)
    assert world.round().status("b") == status
    if status == "skipped":
        assert world.reasons("b")[0].sentence() == f"skipped: job j1 (a) ended as {outcome}"
    checked(world)


def test_what_was_cancelled_has_not_failed() -> None:
    world = World().nodes(1).job("a").job("b", **{"after-failure": ["a"]}).job("c", **{"after-any": ["a"]}).cancel("a")
    assert [world.status("b"), world.round().status("c")] == ["skipped", "placed"]


def test_one_job_is_not_awaited_in_two_ways() -> None:
    world = World().nodes(1).job("a")
    with pytest.raises(SpecError, match="in two ways"):
        world.job("b", after=["a"], **{"after-any": ["j1"]})
    with pytest.raises(NotFound) as refused:
        world.job("b", **{"after-failure": ["x"]})
    assert refused.value.record.field == "after-failure"


# --- change ----------------------------------------------------------------------------------------------------------


def test_what_waits_asks_for_something_else() -> None:
    world = World().nodes(1, cpu=2).job("a", cpu=2).round().start("a").job("b", cpu=2).round()
    assert world.status("b") == "pending"
    world.finish("a").change("b", cpu=1, memory="1GiB").round()
    assert (world.unit("b").shape.cpu, world.unit("b").shape.memory, world.status("b")) == (1000, 2**30, "placed")
    checked(world)


def test_a_higher_priority_goes_first() -> None:
    world = World().nodes(1, cpu=1).job("a").round().start("a").job("b").job("c").round().change("c", priority="high")
    assert checked(world.finish("a").round()).where("c") == ["n1"]
    assert world.status("b") == "pending"
    checked(world.restart())


def test_what_runs_changes_its_class_and_keeps_what_it_holds() -> None:
    world = World().nodes(1, cpu=2).job("a", cpu=2, preemptible=False).round().start("a")
    world.change("a", cpu=1, priority="low", preemptible=True, **AN_HOUR)
    unit = world.unit("a")
    assert (unit.shape.cpu, unit.spec.priority, unit.spec.preemptible) == (2000, Priority.LOW, True)
    assert world.replies[-1].value.running == 1
    [resident] = world.controller.snapshot(world.now).fleet.residents[0]
    assert (resident.priority, resident.preemptible) == (int(Priority.LOW), True)
    checked(world.finish("a"))


def test_what_runs_gets_other_resources_when_it_is_tried_again() -> None:
    world = World().nodes(1, cpu=2).job("a", memory="64MiB", retry={"limit": 2}).round().start("a")
    world.change("a", memory="1GiB").change("a", memory="1GiB", priority="high")
    assert [event.paths for event in world.log if isinstance(event, JobChanged)] == [
        ("shape.memory",),
        ("priority", "shape.memory"),
    ]
    assert (world.unit("a").shape.memory, world.unit("a").spec.priority) == (64 * 2**20, Priority.HIGH)
    checked(world.restart()).finish("a", outcome="failed").after("5m").round()
    assert (world.unit("a").shape.memory, world.status("a")) == (2**30, "placed")
    assert world.change("a", memory="1GiB").replies[-1].value.units == 0
    checked(world)


def test_a_deadline_counts_from_now() -> None:
    world = World().nodes(1, cpu=1).job("a", expect="10m").job("b").after("30m").round().change("b", deadline="2h")
    assert world.unit("b").due == world.state("b").submitted + 30 * MINUTE + 2 * HOUR
    world.change("b", deadline={"by": "1s", "if-late": "cancel"}, expect="1h").after("5s").round()
    assert world.status("b") == "cancelled"
    checked(world)


def test_a_deadline_that_nobody_has_any_more() -> None:
    world = World().nodes(1, cpu=1).job("a").round().start("a").job("b", deadline={"by": "1m", "if-late": "cancel"})
    world.change("b", deadline=None).after("5m").round()
    assert (world.status("b"), world.unit("b").due) == ("pending", 0)
    checked(world)


def test_one_task_of_a_graph() -> None:
    world = World().nodes(1).graph("g", tasks=CHAIN).change("g.b", memory="2GiB")
    assert [unit.shape.memory for unit in world.state("g").units] == [0, 2 * 2**30]
    [event] = [event for event in world.log if isinstance(event, JobChanged)]
    assert (event.units, event.paths) == (("j1.b",), ("shape.memory",))


def test_what_cannot_be_is_refused_and_nothing_changes() -> None:
    world = World().nodes(1, cpu=2).job("a").round().job("b")
    for fields, field in (({"cpu": 4}, "resources"), ({"name": "c"}, "name"), ({"workers": 2}, "workers")):
        with pytest.raises(PoiseError) as refused:
            world.change("b", **fields)
        assert refused.value.record.field == field
    with pytest.raises(SpecError, match="no change is given"):
        world.change("b")
    with pytest.raises(NotFound):
        world.change("b", bearer=ANN, priority="high")
    assert not [event for event in world.log if isinstance(event, JobChanged)]


def test_what_is_said_of_devices_is_said_of_those_that_it_has() -> None:
    world = World().join(node("n1", gpus=2, gpu_memory="40GiB")).job("a", gpu=2).change("a", gpu_memory="8GiB")
    assert (world.unit("a").shape.gpus, world.unit("a").shape.gpu_memory) == (2, 8 * 2**30)
    with pytest.raises(Conflict, match="asks for no device"):
        world.job("b").change("b", gpu_memory="8GiB")
    with pytest.raises(Conflict, match="asks for no device"):
        world.change("a", gpu=0)
    assert world.change("a", gpu=0, gpu_memory=0).unit("a").shape.gpus == 0


def test_the_same_value_changes_nothing() -> None:
    world = World().nodes(1).job("a", priority="high").change("a", priority="high")
    assert world.replies[-1].value.units == 0
    assert not [event for event in world.log if isinstance(event, JobChanged)]


def test_a_node_that_it_may_run_on() -> None:
    world = World().join(node("n1")).join(node("n2")).job("a", node="n1").change("a", node="n2").round()
    assert world.where("a") == ["n2"]


def test_a_tenant_sees_changes_of_its_own() -> None:
    world = World().nodes(1).job("a", tenant="ann").job("b").change("j1", priority="low").change("b", priority="low")
    sight = Sight(world.ledger, ANN)
    shown = [sight.event(event) for event in world.log if isinstance(event, JobChanged)]
    assert [event is not None for event in shown] == [True, False]


# --- retry -----------------------------------------------------------------------------------------------------------


def test_what_was_not_done_is_a_job_of_its_own() -> None:
    tasks = CHAIN | {"b": CHAIN["b"] | {"retry": {"limit": 0}}, "c": {"run": "true", "needs": ["a", "b"]}}
    world = World().nodes(2).graph("g", tasks=tasks, deadline="1h").round().start("g.a")
    with pytest.raises(Conflict, match="is not over"):
        world.retry("g")
    world.finish("g.a").round().start("g.b").finish("g.b", outcome="failed")
    assert world.retry("g").replies[-1].value == "j2"
    again = world.state("j2")
    assert [(unit.spec.name, unit.spec.needs, unit.spec.deadline) for unit in again.units] == [
        ("b", (), 0),
        ("c", ("b",), 0),
    ]
    assert (again.name, again.note) == ("g", "retry of j1")
    world.round().start("j2.b").finish("j2.b").round().start("j2.c").finish("j2.c")
    assert checked(world).status("j2") == "done"
    with pytest.raises(Conflict, match="all of job j2 is done"):
        world.retry("j2")


def test_what_is_tried_again_already_is_not_tried_twice() -> None:
    world = World().nodes(2).job(retry={"limit": 0}).round().start("j1").finish("j1", outcome="failed").retry("j1")
    with pytest.raises(Conflict, match="j2 already retries j1"):
        world.retry("j1")
    world.round().start("j2").finish("j2", outcome="failed")
    assert world.retry("j1").replies[-1].value == "j3"
    world.job(retry={"limit": 0}, stdin=True).round().start("j4").finish("j4", outcome="failed")
    with pytest.raises(Conflict, match="was given input"):
        world.retry("j4")


def test_parts_of_which_only_some_run_at_once() -> None:
    world = World(check=False).nodes(1, cpu=8).job("s", parts=6, retry={"limit": 0}, at_most=2)
    for number in range(6):
        world.round().start(f"s.main[{number}]")
        world.finish(f"s.main[{number}]", outcome="done" if number in (0, 3) else "failed")
    world.retry("s").round()
    assert [unit.spec.name for unit in world.state("j2").units] == [f"main[{number}]" for number in (1, 2, 4, 5)]
    for expected in (["1", "2"], ["2", "4"], ["4", "5"], ["5"]):
        active = [unit.spec.name[5:-1] for unit in world.round().state("j2").units if unit.status == "active"]
        assert active == expected
        world.start(f"j2.main[{expected[0]}]").finish(f"j2.main[{expected[0]}]")
    assert checked(world).status("j2") == "done"


def test_the_name_of_another_that_is_not_over_is_not_taken() -> None:
    world = World().nodes(1).job("a", retry={"limit": 0}).round().start("a").finish("a", outcome="failed").job("a")
    with pytest.raises(Conflict, match="is taken"):
        world.retry("j1")


# --- remove ----------------------------------------------------------------------------------------------------------


def test_an_ended_job_is_removed_and_is_not_there_any_more() -> None:
    world = World().nodes(1).job("a").job("b").round().start("a").finish("a")
    assert checked(world.remove("a")).replies[-1].value == ("j1",)
    assert list(world.ledger.jobs) == ["j2"]
    with pytest.raises(NotFound):
        world.remove("j1")
    checked(world.restart(from_checkpoint=True)).job("a")
    assert world.state("a").id == "j3", "ids are not given twice"


def test_of_several_jobs_all_are_removed_or_none() -> None:
    world = World().nodes(1).job("a").job("b").job("c").cancel("a").cancel("b")
    for names, error in ((("a", "c"), Conflict), (("a", "x"), NotFound), (("a", "j2.main"), Conflict)):
        with pytest.raises(error):
            world.remove(*names)
    assert world.remove("a", "b", "j1").replies[-1].value == ("j1", "j2")
    with pytest.raises(Conflict) as refused:
        world.remove("c")
    assert "poise cancel j3" in refused.value.record.hint


def test_what_came_after_a_removed_job_goes_on() -> None:
    world = World().nodes(2).job("a").job("x").round().start("a", "x").job("b", after=["a", "x"])
    world.finish("a").remove("a").round()
    assert [reason.need for reason in world.reasons("b")] == ["j2"]
    checked(world.restart()).finish("x").round()
    assert world.status("b") == "placed"
    world.job("c", retry={"limit": 0}).round().start("c").job("d", after=["c"]).finish("c", outcome="failed")
    assert checked(world.remove("c")).status("d") == "skipped"
    with pytest.raises(NotFound, match="there is no job `c`"):
        world.job("e", after=["c"])


def test_a_job_comes_after_a_whole_job() -> None:
    world = World().nodes(1).job("grid", parts=3)
    for name in ("grid.main[1]", "j1.main"):
        with pytest.raises(NotFound, match="after a whole job") as refused:
            world.job("next", after=[name])
        assert "tasks of one job have `needs`" in refused.value.record.hint


def test_a_tenant_removes_and_sees_removals_of_its_own_only() -> None:
    world = World().nodes(1).job("a", tenant="ann").job("b").cancel("j1").cancel("j2")
    with pytest.raises(NotFound):
        world.remove("j2", bearer=ANN)
    world.remove("j1", "j2")
    shown = [Sight(world.ledger, ANN).event(event) for event in world.log if isinstance(event, JobsRemoved)]
    assert [event and event.jobs for event in shown] == [("j1",), None]


def test_nodes_on_which_it_ran_remove_its_output() -> None:
    world = World().join(node("n1", cpu=1)).join(node("n2", cpu=1)).join(node("n3", cpu=1))
    world.job("a", node="n1").job("b", node="n2").round().start("a", "b").finish("a", "b").job("c").cancel("c")
    world.disconnect("n2").remove("a", "b", "c")
    told = [(send.node, send.message.removed) for send in world.sent if isinstance(send.message, Desired)]
    assert [one for one in told if one[1]] == [("n1", ("j1",))]


def test_a_job_that_served_calls_is_removed() -> None:
    world = World().nodes(1).job("a", calls=True).round()
    world.cancel("a").finish_all(outcome="stopped")
    checked(world.remove("a").after("1m"))
