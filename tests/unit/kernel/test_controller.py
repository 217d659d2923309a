"""The controller as a machine: what it says to messages, and when."""

from typing import Any

import msgspec
import pytest

from poise.errors import Busy, Conflict, Forbidden, InputError, NotFound, SpecError, StoreFull
from poise.kernel import messages
from poise.kernel.controller import ROUND, Controller, Settings, jobs
from poise.kernel.explain import node_report
from poise.kernel.ledger import Ledger
from poise.kernel.messages import (
    Append,
    Checkpoint,
    Decide,
    Decided,
    Drain,
    FromNode,
    GiveUp,
    Leave,
    Send,
    Submit,
    TryRecover,
)
from poise.kernel.verify import verify_place
from poise.model.decisions import Place, Plan, Preempt, Rejection, Spot, Why
from poise.model.events import (
    Finished,
    JobSubmitted,
    NodeDrained,
    NodeLost,
    NodeSuspected,
    NodeTrusted,
    NodeUnfit,
    Placed,
    Preempted,
    Remembered,
    encode_event,
)
from poise.model.jobs import Ending
from poise.model.messages import Acked, Attempt, Beat, Desired, Ended, Heard, Hello, Report, Running
from poise.model.reports.nodes import Drained
from poise.model.resources import DECLARED, Device, Node
from poise.model.spec import compile_spec
from poise.model.tenants import Bearer, Role
from poise.testing import WALL, World, node, replay
from poise.units import HOUR, MILLISECOND, SECOND, parse_duration

AGAIN: dict[str, Any] = {"limit": 3, "when": ["failed", "lost", "killed"], "backoff": "0s"}


def launches(world: World) -> list[str]:
    """Every attempt that was sent to a node."""
    return [
        str(launch.attempt)
        for send in world.sent
        if isinstance(send.message, Desired)
        for launch in send.message.launches
    ]


def last_desired(world: World) -> Desired:
    return next(send.message for send in reversed(world.sent) if isinstance(send.message, Desired))


# --- log first -------------------------------------------------------------------------------------------------------


def test_nothing_leaves_before_it_is_durable() -> None:
    world = World().nodes(1)
    world.slow_disk = True
    world.sent.clear()
    world.job("a").round()
    assert world.status("a") == "placed"  # state is applied at once
    assert (world.replies, world.sent) == ([], [])
    world.sync()
    assert [reply.value for reply in world.replies] == ["j1"]
    assert launches(world) == ["j1.main#1"]


def test_effects_wait_for_their_own_revision_only() -> None:
    world = World().nodes(1)
    world.slow_disk = True
    world.job("a")
    first = len(world.log)
    world.job("b")
    world.say(messages.Durable(first))
    assert [reply.value for reply in world.replies] == ["j1"]


def test_an_error_leaves_at_once_and_changes_nothing() -> None:
    world = World().nodes(1)
    world.slow_disk = True
    before = world.ledger.encode()
    with pytest.raises(NotFound):
        world.cancel("nothing")
    assert world.ledger.encode() == before


def test_events_are_appended_in_order_and_numbered() -> None:
    controller = Controller(Ledger(), Settings())
    [append] = controller.begin(1, boot="", boottime=0, wall=WALL)
    assert isinstance(append, Append)
    assert append.expected == 0
    effects = controller.handle(Submit(1, compile_spec({"run": "x"}, wall=WALL)), 2)
    assert [(effect.expected, len(effect.events)) for effect in effects if isinstance(effect, Append)] == [(1, 1)]


def test_a_checkpoint_follows_every_so_many_events() -> None:
    controller = Controller(Ledger(), Settings(checkpoint_every=3))
    controller.begin(1, boot="", boottime=0, wall=WALL)
    revisions = []
    for request in range(5):
        effects = controller.handle(Submit(request, compile_spec({"run": "x"}, wall=WALL)), 2)
        revisions += [controller.ledger.revision for effect in effects if isinstance(effect, Checkpoint)]
    assert revisions == [3, 6]


# --- a disk that is full ---------------------------------------------------------------------------------------------


def test_a_failed_append_drops_what_was_not_durable_and_nothing_else() -> None:
    world = World().nodes(1).job("kept")
    world.slow_disk = True
    world.job("dropped").cancel("kept").round()
    world.sent.clear()
    world.fail_disk()
    assert [job.name for job in world.ledger.jobs.values()] == ["kept"]
    assert world.status("kept") == "pending"
    refused = {reply.request: reply.error for reply in world.replies[1:]}
    assert isinstance(refused[2], StoreFull) and isinstance(refused[3], StoreFull)
    assert world.sent == []
    assert world.hung == ["n1"]


def test_while_the_disk_is_full_nothing_is_accepted_and_reads_go_on() -> None:
    world = World().nodes(1).job("a")
    world.fail_disk()
    with pytest.raises(StoreFull):
        world.job("b")
    with pytest.raises(StoreFull):
        world.cancel("a")
    with pytest.raises(StoreFull):
        world.drain("n1")
    assert not world.controller.accepting
    assert world.controller.durable == world.ledger.revision  # what is read is what the log has
    before = world.ledger.revision
    world.connect("n1")
    assert world.hung == ["n1", "n1"]
    assert world.ledger.revision == before


def test_it_goes_on_by_itself_when_there_is_space_again() -> None:
    world = World().nodes(1).job("a").after("1s")
    world.fail_disk()
    world.after("5s")
    assert not world.controller.accepting
    world.full_disk = False
    world.after("1100ms").connect("n1").after("1s")
    assert world.controller.accepting
    assert world.job("b").after("1s").status("b") == "placed"
    assert world.unit("a").epoch == 1


def test_a_full_disk_is_tried_once_a_second() -> None:
    world = World()
    world.fail_disk()
    tried = 0
    for _ in range(50):
        tried += sum(isinstance(effect, TryRecover) for effect in world.controller.tick(world.now))
        world.now += 100 * MILLISECOND
    assert tried == 5


def test_a_round_whose_answer_never_came_is_asked_for_again() -> None:
    world = World().nodes(1).job("a")
    assert decides(world)
    world.fail_disk()
    world.full_disk = False
    world.after("2s").connect("n1").after("1s")
    assert world.status("a") == "placed"


def test_a_plan_made_before_the_disk_was_full_is_not_applied() -> None:
    world = World().nodes(1).job("a")
    plan = world.plan()
    world.fail_disk()
    world.say(messages.Decided(plan))
    assert world.status("a") == "pending"


# --- requests --------------------------------------------------------------------------------------------------------


def test_a_submission_with_the_same_key_is_the_same_job() -> None:
    world = World()
    world.submit({"run": "x"}, key="k").submit({"run": "x"}, key="k").submit({"run": "x"}, key="l")
    assert [reply.value for reply in world.replies] == ["j1", "j1", "j2"]
    world.restart().submit({"run": "x"}, key="k")
    assert world.replies[-1].value == "j1"


def test_a_name_is_taken_until_its_job_is_over() -> None:
    world = World().nodes(1).job("a")
    with pytest.raises(Conflict, match="taken by an unfinished job") as caught:
        world.job("a")
    assert (caught.value.record.code, caught.value.record.field) == ("E107", "name")
    world.cancel("a").job("a")
    assert world.state("a").id == "j2"


def test_after_names_jobs_that_there_are() -> None:
    with pytest.raises(NotFound) as caught:
        World().job("a", after=["nothing"])
    assert (caught.value.record.code, caught.value.record.field) == ("E105", "after")


@pytest.mark.parametrize(
    ("fields", "have", "hint"),
    [
        ({"cpu": 64}, "closest is n2: has 8 CPU in all, 64 needed", "`--cpu 8` would fit on n2"),
        ({"cpu": 8, "gpu": 1}, "closest is n1: has 4 CPU in all, 8 needed", "`--cpu 4 --gpu 1` would fit on n1"),
        ({"memory": "1TiB"}, "closest is n1: has 8 GiB of memory in all, 1 TiB needed", "`--cpu 1 --memory 8GiB`"),
        (
            {"gpu": 1, "gpu_memory": "80GiB"},
            "closest is n1: fitting devices in all: 0",
            "--gpu 1 --gpu-memory 16GiB` would",
        ),
    ],
)
def test_what_no_node_has_says_which_comes_closest(fields: dict[str, Any], have: str, hint: str) -> None:
    world = World().join(node("n1", cpu=4, gpus=1, gpu_memory="16GiB")).join(node("n2", cpu=8))
    with pytest.raises(SpecError) as caught:
        world.job(**fields)
    record = caught.value.record
    assert record.code == "E110"
    assert have in record.have
    assert hint in record.hint


def test_a_gang_too_large_for_all_nodes_says_how_many_fit() -> None:
    with pytest.raises(SpecError) as caught:
        World().nodes(2, cpu=2).job("g", workers=5)
    assert (caught.value.record.field, caught.value.record.hint) == ("workers", "workers: 4")


def test_too_much_is_refused_whatever_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_UNFINISHED", 3)
    world = World().job("a").job(after=["a"]).job(after=["a"])
    with pytest.raises(Busy):
        world.job()
    world.nodes(1).finish_all().job()


def test_a_job_that_is_over_cannot_be_cancelled() -> None:
    world = World().nodes(1).job("a").round().finish("a")
    with pytest.raises(Conflict, match="over already"):
        world.cancel("a")


# --- rounds ----------------------------------------------------------------------------------------------------------


def decides(world: World) -> bool:
    return any(isinstance(effect, Decide) for effect in world.controller.tick(world.now))


def test_a_round_follows_an_event_and_then_every_200_ms_while_something_waits() -> None:
    world = World(check=False, poll=ROUND).nodes(1, cpu=1).job().job().after("1ms")
    rounds = len(world.plans)
    world.after("10s")
    assert len(world.plans) - rounds in range(49, 53)


def test_nothing_waits_nothing_is_decided() -> None:
    world = World(check=False).nodes(1).job().after("1s")
    rounds = len(world.plans)
    assert len(world.after("60s").plans) == rounds


def test_what_nobody_overtakes_is_not_decided_anew_for_what_comes_behind_it() -> None:
    def decides_for(policy: str, more: dict[str, Any]) -> bool:
        world = World(policy).nodes(1, cpu=2).job("runs", cpu=1, expect="1h").round().start("runs")
        world.job("first", cpu=2, expect="1h").job("second", cpu=2, memory="1GiB", expect="1h").after("1ms")
        assert world.codes("second") == (["BEHIND"] if policy == "fifo" else ["CPU_BUSY"]) and not decides(world)
        world.controller.handle(Submit(9, compile_spec(more, wall=WALL)), world.now)
        return decides(world)

    def decides_after_a_plan(more: dict[str, Any]) -> bool:
        """It comes while a round is decided that does not know of it, and that may let all start who waited."""
        world = World("fifo").nodes(1, cpu=2).job("runs", cpu=1, expect="1h").round().start("runs")
        world.job("first", cpu=2, expect="1h").job("second", cpu=2, memory="1GiB", expect="1h").after("1ms")
        world.controller.handle(messages.Cancel(8, "runs"), world.now)
        assert decides(world)
        world.controller.handle(Submit(9, compile_spec(more, wall=WALL)), world.now)
        world.controller.handle(messages.Decided(Plan(base=0, policy="fifo")), world.now)
        return decides(world)

    alike = {"run": "true", "resources": {"cpu": 2, "memory": "1GiB"}}
    assert decides_after_a_plan(alike)
    assert not decides_for("fifo", alike)
    assert decides_for("fifo", {"run": "true", "resources": {"memory": "1GiB"}})  # why that waits was not said yet
    for policy in ("poise", "sjf", "las"):
        assert decides_for(policy, alike), policy


def test_one_round_at_a_time() -> None:
    world = World().nodes(1).job()
    assert decides(world)
    world.controller.handle(Submit(9, compile_spec({"run": "x"}, wall=WALL)), world.now)
    assert not decides(world)  # the answer to the first is not in
    world.controller.handle(messages.Decided(Plan(base=0, policy="x")), world.now)
    assert decides(world)


def test_a_back_off_that_has_ended_wakes_once_and_does_not_spin() -> None:
    retry = {"limit": 3, "when": ["failed"], "backoff": "3s"}
    world = World(check=False).nodes(1, cpu=1).job("a", retry=retry).round().finish("a", outcome="failed")
    world.job("b", priority="urgent").after("1ms")
    ends = world.unit("a").not_before
    wakes = []
    while world.now < ends + SECOND:
        world.hear("n1", Beat()).tick()
        wakeup = world.controller.wakeup()
        assert wakeup is not None and wakeup > world.now
        wakes.append(wakeup)
        world.now = wakeup
    assert ends in wakes
    assert world.status("a") == "pending"


def test_after_a_full_head_the_rest_is_decided_at_once() -> None:
    world = World(check=False).nodes(1, cpu=300)
    for _ in range(300):
        world.job()
    world.tick().tick().tick()
    assert world.ledger.queues.pending == 0


def test_what_the_policy_remembers_comes_back_as_the_log_holds_it() -> None:
    world = World().nodes(1)
    world.say(messages.Decided(Plan(base=0, policy="x", memory={"b": (1, 2), "a": 1})))
    assert isinstance(world.log[-1], Remembered)
    seen = world.ledger.snapshot(world.now).memory
    assert (dict(seen), list(seen)) == ({"a": 1, "b": [1, 2]}, ["a", "b"])


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_a_silent_node_is_lost_and_its_work_placed_elsewhere() -> None:
    world = World().nodes(2).job("a").after("1s").start("a")
    assert world.where("a") == ["n1"]
    world.lose("n1")
    assert world.where("a") == ["n2"]
    assert world.unit("a").epoch == 2
    assert [past.ending.outcome for past in world.task("a")[1].past] == ["lost"]


def test_a_node_that_comes_back_in_time_goes_on() -> None:
    world = World().nodes(2).job("a").after("1s").start("a").disconnect("n1").after("2s").connect("n1").after("1s")
    assert (world.where("a"), world.unit("a").epoch) == (["n1"], 1)
    assert not any(isinstance(event, NodeLost) for event in world.log)


def test_a_fenced_attempt_is_told_to_stop_and_its_report_is_history() -> None:
    world = World().nodes(2).job("a").after("1s").start("a").lose("n1")
    old = Attempt("j1.main", 1)
    before = world.ledger.encode()
    world.hear("n1", Report(serial=1, ended=(Ended(attempt=old, ending=Ending(outcome="done")),)))
    assert world.ledger.encode() == before
    assert world.hung == ["n1"]
    world.sent.clear()
    world.connect("n1")
    desired = last_desired(world)
    assert desired.complete and old not in desired.keep
    assert world.status("a") == "placed"
    world.finish("a")
    assert world.status("a") == "done"


def test_an_ending_is_taken_from_the_current_epoch_and_node_only() -> None:
    world = World().nodes(2).job("a").round()
    before = world.ledger.encode()
    for name, epoch in (("n1", 0), ("n1", 2), ("n2", 1)):
        world.end(name, Attempt("j1.main", epoch), Ending(outcome="done"))
    world.end("n1", Attempt("j1.nothing", 1), Ending(outcome="done"))
    assert world.ledger.encode() == before
    world.finish("a").end("n1", Attempt("j1.main", 1), Ending(outcome="failed"))
    assert world.status("a") == "done"


def test_reports_are_acknowledged_even_if_they_are_history() -> None:
    world = World().nodes(1)
    world.hear("n1", Report(serial=5, ended=(Ended(attempt=Attempt("j9.main", 1), ending=Ending(outcome="done")),)))
    assert world.sent[-1] == Send("n1", Acked(serial=5))


def test_each_beat_is_answered_at_once_whatever_the_disk_does() -> None:
    world = World().nodes(1)
    world.slow_disk = True
    world.job("a").hear("n1", Beat(number=7))
    assert world.sent[-1] == Send("n1", Heard(beat=7))


def silence(world: World, *, until: str) -> float:
    """Seconds until the node n1 is lost, or has been silent for as long as that."""
    began = world.now
    world.connected.clear()  # it says nothing more, and its connection stays open
    while world.ledger.nodes["n1"].status == "up" and world.now < began + parse_duration(until):
        wakeup = world.controller.wakeup()
        assert wakeup is not None
        world.now = max(wakeup, world.now + MILLISECOND)
        world.tick()
    return round((world.now - began) / SECOND, 1)


def test_a_node_that_beats_each_second_is_lost_after_three() -> None:
    world = World().nodes(1).after("5s")
    assert silence(world, until="20s") == 3


def test_an_idle_node_is_given_the_time_that_it_promised() -> None:
    world = World().nodes(1).after("5s").hear("n1", Beat(every=10 * SECOND))
    assert silence(world, until="20s") == 12


def test_an_idle_node_that_is_sent_work_has_to_answer_soon() -> None:
    world = World().nodes(1).after("5s").hear("n1", Beat(every=10 * SECOND))
    world.now += 5 * SECOND
    world.job("a").round().hear("n1", Beat(every=10 * SECOND))  # said before it knew
    assert silence(world, until="20s") == 3


def test_an_idle_node_whose_connection_has_closed_has_to_come_back_soon() -> None:
    world = World().nodes(1).after("5s").hear("n1", Beat(every=10 * SECOND)).disconnect("n1")
    assert silence(world, until="20s") == 3


def test_a_node_is_given_up_at_once_where_what_runs_it_says_that_it_is_gone() -> None:
    world = World().nodes(2).job("a").round().start("a").after("1s")
    [at] = world.where("a")
    began = world.now
    world.ask(GiveUp(world.request(), (at,))).after("300ms")
    assert world.log[-1].at - began < SECOND and world.ledger.nodes[at].status == "lost"
    assert [event.said for event in world.log if isinstance(event, NodeLost)] == [True]
    assert world.hung == [at], "should it be there all the same, it has to say what it holds"
    assert world.where("a") != [at] and world.unit("a").epoch == 2
    world.connect(at)
    assert world.ledger.nodes[at].condition == "up"
    assert Attempt("j1.main", 1) not in last_desired(world).keep
    world.ask(GiveUp(world.request(), (at,))).ask(GiveUp(world.request(), (at,)))
    assert [event.name for event in world.log if isinstance(event, NodeLost)] == [at, at]


def test_a_node_that_is_lost_is_forgotten_once_nobody_misses_it() -> None:
    """One that holds work, is drained, or was declared may be missed."""
    world = World(forget_after=HOUR, declared=("n4",)).nodes(4, cpu=1).job("a").round().start("a")
    [at] = world.where("a")
    drained, gone = (name for name in ("n1", "n2", "n3") if name != at)
    world.ask(Drain(world.request(), drained, True))
    for name in ("n1", "n2", "n3", "n4"):
        world.disconnect(name)
    world.after("65s")
    assert {name: state.status for name, state in world.ledger.nodes.items()} == dict.fromkeys(world.known, "lost")
    world.after("58m")
    assert gone in world.ledger.nodes
    world.after("2m")
    assert sorted(world.ledger.nodes) == sorted({"n4", at, drained})
    world.connect(gone)
    assert world.ledger.nodes[gone].condition == "up"


def test_of_a_forgotten_node_no_address_is_left() -> None:
    world = World(forget_after=HOUR).nodes(2, cpu=1)
    world.ask(Leave(world.request(), "n1")).disconnect("n2").after("62m")
    assert not world.ledger.nodes
    assert not world.controller.contacts.addresses


def test_a_node_that_leaves_is_removed_at_once_and_is_no_outage() -> None:
    world = World(dead_after=10 * SECOND).nodes(2, cpu=1).after("1s")
    for name in ("n1", "n2"):
        world.ask(Leave(world.request(), name))
    assert not world.ledger.nodes
    world.connect("n1")
    assert world.ledger.nodes["n1"].condition == "up", "should it be there all the same, it is taken in anew"


def test_a_node_that_leaves_with_work_is_removed_once_that_is_elsewhere() -> None:
    world = World().nodes(2).job("a").round().start("a").after("1s")
    [at] = world.where("a")
    world.ask(Leave(world.request(), at))
    assert world.ledger.nodes[at].status == "lost"
    world.connected.discard(at)
    world.after("6s")
    assert world.where("a") != [at] and world.unit("a").epoch == 2
    assert at not in world.ledger.nodes


def test_a_node_that_leaves_and_comes_back_with_its_work_keeps_it() -> None:
    world = World().nodes(1).job("a").round().start("a").after("1s")
    world.ask(Leave(world.request(), "n1")).connect("n1").after("10s")
    assert world.ledger.nodes["n1"].condition == "up" and world.unit("a").epoch == 1


def test_a_node_of_a_declared_fleet_that_leaves_is_expected_back() -> None:
    world = World(declared=("n1",)).nodes(1).after("1s")
    world.ask(Leave(world.request(), "n1")).after("6s")
    assert world.ledger.nodes["n1"].status == "lost"


def test_a_node_leaves_only_with_the_token_that_it_joined_with() -> None:
    world = World().say(FromNode("n1", Hello(node=node("n1")), "t1"))
    its_own, another = (Bearer(role=Role.NODE, token=token) for token in ("t1", "t2"))
    with pytest.raises(Forbidden):
        world.ask(Leave(world.request(), "n1", another))
    assert world.ledger.nodes["n1"].status == "up"
    world.ask(Leave(world.request(), "n1", its_own))
    assert not world.ledger.nodes
    with pytest.raises(NotFound):
        world.ask(Leave(world.request(), "n1"))


def test_giving_up_a_node_that_has_never_joined_is_not_giving_up_one_whose_name_begins_alike() -> None:
    world = World().join(node("10.0.0.12")).job("a").round().start("a")
    with pytest.raises(NotFound):
        world.ask(GiveUp(world.request(), ("10.0.0.1",)))
    assert world.ledger.nodes["10.0.0.12"].status == "up"
    assert world.where("a") == ["10.0.0.12"] and not world.hung


def test_another_machine_of_a_name_is_told_from_the_one_that_is_heard_for_as_long_as_that_is() -> None:
    world = World().nodes(1)
    same, other = world.known["n1"], node("n1", incarnation="2")
    hears = world.controller.membership.hears_another
    assert hears(other, world.now) and not hears(same, world.now) and not hears(node("n2"), world.now)
    assert hears(other, world.now + 2 * SECOND) and not hears(other, world.now + 2 * SECOND + 1)
    world.after("5s").disconnect("n1")
    assert not hears(other, world.now), "it has hung up"


def test_beats_that_are_half_a_second_early_or_late_make_nobody_suspect() -> None:
    world = World().nodes(1)
    for early in (False, True) * 10:
        world.now += 2 * SECOND - 1 if early else MILLISECOND  # the most and the least between two of them
        world.tick().hear("n1", Beat())
    assert not any(isinstance(event, NodeSuspected | NodeTrusted) for event in world.log)


def test_a_node_that_is_silent_for_a_moment_gets_nothing_new_and_loses_nothing() -> None:
    world = World().nodes(2, cpu=1).job("a").round().start("a").after("1s")
    [at] = world.where("a")
    world.connected.discard(at)
    world.after("2001ms")
    assert world.ledger.nodes[at].condition == "suspect"
    assert world.status("a") == "running"
    other = next(name for name in world.connected)
    assert world.job("b").job("c").after("300ms").where("b") == [other]
    assert {(reason.code, reason.subject) for reason in world.reasons("c")} == {
        ("CPU_BUSY", other),
        ("NODE_SUSPECT", at),
    }
    world.hear(at, Beat())
    assert world.ledger.nodes[at].condition == "up"
    assert [type(event) for event in world.log if isinstance(event, NodeSuspected | NodeTrusted)] == [
        NodeSuspected,
        NodeTrusted,
    ]
    world.finish("a").after("300ms")
    assert world.where("c") == [at]


def test_suspicion_outlives_the_control_plane_and_ends_with_the_first_word() -> None:
    world = World().nodes(1).after("1s")
    world.connected.clear()
    world.after("2500ms").restart()
    assert world.ledger.nodes["n1"].condition == "suspect"
    world.connect("n1")
    assert world.ledger.nodes["n1"].condition == "up"


# --- exclusive work --------------------------------------------------------------------------------------------------

EXCLUSIVE: dict[str, Any] = {"lease": "exclusive", "retry": AGAIN}


def test_exclusive_work_of_a_lost_node_waits_until_no_copy_can_be_left() -> None:
    world = World().nodes(2, cpu=1).job("a", **EXCLUSIVE).round().start("a").after("1s")
    [at] = world.where("a")
    assert world.held[at][Attempt("j1.main", 1)].lease == 10 * SECOND
    lost = world.now + 3 * SECOND
    world.disconnect(at).after("4s")
    assert world.codes("a") == ["NODE_LOST", "LEASE"]
    assert "may still run on " + at in world.reasons("a")[1].sentence()
    world.after(lost + 10 * SECOND - 100 * MILLISECOND - world.now)
    assert world.where("a") == [at]
    world.after("300ms")
    assert (world.where("a") != [at], world.unit("a").epoch) == (True, 2)


def test_fenced_work_of_a_lost_node_is_placed_elsewhere_at_once() -> None:
    world = World().nodes(2, cpu=1).job("a", retry=AGAIN).round().start("a").after("1s")
    [at] = world.where("a")
    world.disconnect(at).after("3300ms")
    assert world.where("a") != [at]


def test_exclusive_work_of_a_node_that_is_said_to_be_gone_keeps_its_lease() -> None:
    """Ray says so of a machine whose raylet has ended: what runs there goes on until its lease is over."""
    world = World().nodes(2).job("a", **EXCLUSIVE).round().start("a").after("1s")
    [at] = world.where("a")
    given_up = world.now
    world.ask(GiveUp(world.request(), (at,))).after("20s")
    assert world.where("a") != [at]
    assert world.unit("a").placed >= given_up + world.controller.settings.lease


def test_a_plan_that_places_exclusive_work_too_early_is_refused() -> None:
    world = World().nodes(2, cpu=1).job("a", **EXCLUSIVE).round().start("a").after("1s")
    [at] = world.where("a")
    other = "n1" if at == "n2" else "n2"
    world.disconnect(at).after("4s")
    placed = verify_place(world.ledger, Place(unit="j1.main", spots=(Spot(other),), why=Why(policy="x")), world.now)
    assert isinstance(placed, Rejection)
    assert [reason.code for reason in placed.reasons] == ["LEASE"]


def test_the_lease_of_a_lost_node_outlives_the_control_plane() -> None:
    world = World().nodes(2, cpu=1).job("a", **EXCLUSIVE).round().start("a").after("1s")
    [at] = world.where("a")
    world.disconnect(at).after("5s").restart().after("7s")
    assert world.where("a") == [at]
    world.restart(from_checkpoint=True).after("1500ms")
    assert world.where("a") != [at]


def test_exclusive_work_goes_on_when_its_node_comes_back_in_time() -> None:
    world = World().nodes(2, cpu=1).job("a", **EXCLUSIVE).round().start("a").after("1s")
    [at] = world.where("a")
    world.disconnect(at).after("5s").connect(at).after("20s")
    assert (world.where("a"), world.status("a"), world.unit("a").epoch) == ([at], "running", 1)
    assert world.unit("a").leases == {}


def test_a_node_that_was_started_anew_holds_no_lease() -> None:
    world = World().nodes(2, cpu=1).job("a", **EXCLUSIVE).round().start("a").after("1s")
    [at] = world.where("a")
    world.disconnect(at).after("4s")
    world.held[at].clear()
    world.known[at] = msgspec.structs.replace(world.known[at], incarnation="2")
    world.connect(at).after("300ms")
    assert world.unit("a").epoch == 2


@pytest.mark.parametrize("boot", ["b007", "b008"])
@pytest.mark.parametrize("noticed", [False, True])
def test_exclusive_work_waits_when_another_agent_takes_the_name_of_its_node(noticed: bool, boot: str) -> None:
    """On Slurm, a second allocation may begin on a machine while the first one still ends its commands. And a machine
    that is cut off goes on while another one has its name.
    """
    first, second = node("n1", incarnation="b007-aaaa"), node("n1", incarnation=f"{boot}-bbbb")
    world = World().join(first).job("a", **EXCLUSIVE).round().start("a").after("1s")
    if noticed:
        world.ask(GiveUp(world.request(), ("n1",)))
    begun = world.now
    world.join(second).after("9s")
    assert (world.unit("a").epoch, world.codes("a")[-1]) == (1, "LEASE")
    world.after("1200ms")
    assert world.unit("a").epoch == 2
    assert world.unit("a").placed >= begun + world.controller.settings.lease


def test_a_gang_of_which_one_node_is_lost_waits_for_that_lease() -> None:
    world = World().nodes(3, cpu=1).job("a", workers=2, **EXCLUSIVE).round().start("a.main[0]", "a.main[1]").after("1s")
    lost = world.where("a")[0]
    world.disconnect(lost).after("5s")
    assert (world.status("a"), world.codes("a")) == ("pending", ["LEASE"])
    world.after("9s")
    assert world.unit("a").epoch == 2


def test_exclusive_work_whose_device_has_gone_may_run_until_its_node_has_been_told() -> None:
    world = World().nodes(2, cpu=1, gpus=1).job("a", gpu=1, **EXCLUSIVE).round().start("a").after("1s")
    [at] = world.where("a")
    world.known[at] = msgspec.structs.replace(world.known[at], devices=())
    world.connect(at).after("9s")
    assert (world.status("a"), world.codes("a")) == ("pending", ["LEASE"])
    assert world.after("1200ms").unit("a").epoch == 2


def test_whoever_speaks_without_having_said_hello_is_hung_up() -> None:
    world = World().nodes(1)
    world.lose("n1")
    assert world.hear("n1", Beat()).hung == ["n1"]
    assert world.connect("n1").hear("n1", Beat()).hung == ["n1"]


def test_hello_launch_that_never_arrived_is_sent_again() -> None:
    world = World().nodes(1).disconnect("n1").job("a").round()
    assert world.held["n1"] == {}
    world.connect("n1")
    assert launches(world) == ["j1.main#1"]
    assert world.unit("a").epoch == 1


def test_hello_what_it_holds_is_kept() -> None:
    world = World().nodes(1).job("a").job("b").round().start("a").disconnect("n1").connect("n1")
    desired = last_desired(world)
    assert [str(attempt) for attempt in desired.keep] == ["j1.main#1", "j2.main#1"]
    assert (desired.launches, desired.stops) == ((), ())


def test_hello_a_process_that_is_gone_is_lost() -> None:
    world = World().nodes(1).job("a", retry=AGAIN).round().start("a").disconnect("n1")
    world.held["n1"].clear()
    world.connect("n1").after("1s")
    assert world.unit("a").epoch == 2
    assert world.task("a")[1].past[0].ending.note == "its process was gone when the node came back"


def test_hello_what_ended_while_away_is_heard() -> None:
    world = World().nodes(1).job("a").round().start("a").disconnect("n1")
    [attempt] = world.held["n1"]
    world.held["n1"].clear()
    world.connect("n1", [Ended(attempt=attempt, ending=Ending(outcome="done", run=5))])
    assert world.status("a") == "done"
    assert last_desired(world).keep == ()


def test_hello_what_was_cancelled_while_away_is_stopped() -> None:
    world = World().nodes(1).job("a").job("b").round().start("a").disconnect("n1").cancel("a").cancel("b")
    assert (world.status("a"), world.status("b")) == ("running", "placed")
    del world.held["n1"][Attempt("j2.main", 1)]  # this one never arrived
    world.sent.clear()
    world.connect("n1")
    assert (world.status("a"), world.status("b")) == ("cancelled", "cancelled")
    assert launches(world) == []


def test_hello_of_a_gang_with_one_process_gone_stops_the_other_and_launches_none() -> None:
    """Also where the member that is gone is looked at after one that was never launched."""
    world = World().nodes(1).job("g", workers=2, retry=AGAIN).round().start("g.main[1]").disconnect("n1")
    world.held["n1"].clear()
    world.sent.clear()
    world.connect("n1")
    assert launches(world) == []
    assert world.status("g") == "pending"


def test_a_node_that_hangs_up_takes_nothing_with_it_that_is_for_others() -> None:
    """Answers to people, and what other nodes are to be told, leave once they are durable."""
    world = World().nodes(2, cpu=1)
    world.slow_disk = True
    world.job("a", cpu=1).job("b", cpu=1).round().sent.clear()
    [gone], [other] = world.where("a"), world.where("b")
    assert {gone, other} == {"n1", "n2"}
    world.disconnect(gone).sync()
    assert [reply.value for reply in world.replies] == ["j1", "j2"]
    assert [send.node for send in world.sent] == [other]
    assert launches(world) == ["j2.main#1"]


def test_hello_drops_what_waited_to_be_sent_before() -> None:
    world = World().nodes(1)
    world.slow_disk = True
    world.sent.clear()
    world.job("a").round().cancel("a").disconnect("n1").connect("n1").sync()
    assert launches(world) == []
    assert world.status("a") == "cancelled"


def test_another_incarnation_has_lost_everything() -> None:
    world = World().nodes(1).job("a", retry=AGAIN).round().start("a")
    world.join(node("n1", incarnation="2")).after("1s")
    assert world.unit("a").epoch == 2
    assert world.where("a") == ["n1"]


@pytest.mark.parametrize("lost_first", [False, True])
def test_a_gang_on_a_node_that_was_booted_anew(lost_first: bool) -> None:
    world = World().nodes(1).job("g", workers=2, retry=AGAIN).round().start("g.main[0]", "g.main[1]")
    if lost_first:
        world.lose("n1")
    world.join(node("n1", incarnation="2")).after("1s")
    assert (world.status("g"), world.unit("g").epoch) == ("placed", 2)


def test_a_gang_over_two_nodes_is_stopped_when_one_is_lost() -> None:
    world = World().nodes(2, cpu=2).job("g", workers=4, retry=AGAIN).round()
    world.start("g.main[0]", "g.main[3]").lose("n1")
    assert world.where("g") == []
    assert world.status("g") == "pending"
    assert world.held["n2"] == {}
    world.join(node("n1", cpu=2, incarnation="2")).after("1s")
    assert len(world.where("g")) == 4


def test_a_gang_whose_other_member_has_ended_waits_for_its_node() -> None:
    world = World().nodes(2, cpu=1).job("g", workers=2).round().finish("g.main[0]").lose("n2")
    assert world.task("g.main[1]")[1].status == "recovering"
    world.connect("n2").finish("g.main[1]")
    assert world.status("g") == "done"


def test_retries_that_are_used_up_wait_for_their_node() -> None:
    world = World().nodes(2).job("a", retry={"limit": 0}).round().start("a").lose("n1")
    assert world.codes("a") == ["NODE_LOST", "NEEDS_ITS_NODE"]
    assert world.unit("a").epoch == 1
    assert world.connect("n1").finish("a").status("a") == "done"


def test_each_lost_node_counts_as_a_try() -> None:
    world = World().nodes(3).job("a", retry={"limit": 1, "when": ["lost"]}).round().lose("n1")
    assert world.where("a") == ["n2"]
    assert world.lose("n2").codes("a")[-1] == "NEEDS_ITS_NODE"


def test_only_work_on_a_device_that_has_gone_is_touched() -> None:
    world = World().join(node("n1", cpu=4, gpus=2)).job("a", gpu=1, retry=AGAIN).job("b", gpu=1).job("c").round()
    world.join(node("n1", cpu=4, gpus=1))
    assert [world.status(name) for name in "abc"] == ["placed", "pending", "placed"]
    assert world.after("1s").codes("b") == ["GPU_BUSY"]


def lost(world: World) -> list[Finished]:
    return [event for event in world.log if isinstance(event, Finished) and event.ending.outcome != "done"]


def test_what_runs_goes_on_where_its_node_shrinks_and_nothing_new_begins_there() -> None:
    world = World().nodes(1, cpu=4).job("a", cpu=2).after("1s").job("b", cpu=2).after("1s").start("a", "b")
    world.join(node("n1", cpu=1)).job("c", cpu=1).after("10s")
    assert [world.status(name) for name in "abc"] == ["running", "running", "pending"]
    assert not lost(world)
    (reason,) = world.reasons("c")
    assert reason.sentence() == "n1: has shrunk: its work holds 3 CPU more than it offers, and 1 CPU is needed"
    world.finish("a").after("1s")
    assert [(reason.code, reason.have) for reason in world.reasons("c")] == [("NODE_SHRUNK", "1 CPU")]
    world.finish("b").after("1s")
    assert world.where("c") == ["n1"]
    assert replay(world.log).encode() == world.ledger.encode()


def test_what_has_not_begun_on_a_node_that_shrinks_begins_elsewhere_and_that_is_no_try() -> None:
    world = World().nodes(1, cpu=4).job("a", cpu=2).after("1s").job("b", cpu=1).after("1s").job("c", cpu=1).after("1s")
    world.start("a").join(node("n2", cpu=2)).join(node("n1", cpu=3)).after("1s")
    assert [world.where(name) for name in "abc"] == [["n1"], ["n1"], ["n2"]]
    assert [event.ending.outcome for event in lost(world)] == ["returned"]
    assert world.state("c").units[0].tries == 0


def test_what_never_came_to_a_node_that_has_shrunk_does_not_come_there() -> None:
    world = World().nodes(1, cpu=2).job("a", cpu=2).round()
    world.held["n1"].clear()
    world.join(node("n1", cpu=1)).join(node("n2", cpu=2)).after("1s")
    assert world.where("a") == ["n2"]


def test_a_gang_that_has_not_begun_as_a_whole_begins_elsewhere_as_a_whole() -> None:
    world = World().nodes(2, cpu=2).job("g", cpu=2, workers=2).round()
    world.join(node("n3", cpu=2)).join(node("n1", cpu=1)).after("1s")
    assert sorted(world.where("g")) == ["n2", "n3"]


def test_a_node_that_shrinks_to_less_than_its_memory_in_use_keeps_its_work() -> None:
    world = World().nodes(1, memory="8GiB").job("a", memory="6GiB").round().start("a")
    world.join(node("n1", memory="4GiB")).job("b", memory="1GiB").after("1s")
    assert world.status("a") == "running"
    assert ("NODE_SHRUNK", "2 GiB of memory") in [(reason.code, reason.have) for reason in world.reasons("b")]


def test_nothing_is_queued_behind_its_like_on_a_node_that_has_shrunk() -> None:
    world = World().nodes(1, cpu=2)
    for number in range(8):  # so that it is known to be brief
        world.job(f"brief-{number}", **{"class": "brief"}).round().start(f"brief-{number}")
        world.finish(f"brief-{number}", run="2ms")
    for name in "abc":
        world.job(name, **{"class": "brief"}).round()
    assert world.unit("c").queued
    world.start("a", "b").join(node("n1", cpu=1)).job("d", **{"class": "brief"}).after("1s")
    assert [world.status(name) for name in "abcd"] == ["running", "running", "pending", "pending"]
    assert not [event for event in lost(world) if event.ending.outcome != "returned"]


def test_new_capacity_is_used_in_the_next_round() -> None:
    world = World().nodes(1, cpu=1).job("a").job("b").after("1s")
    world.join(node("n2", cpu=1)).after("1ms")
    assert world.status("b") == "placed"


def test_a_node_that_can_start_nothing_gets_nothing_until_it_can() -> None:
    world = World().nodes(2, cpu=1).job("a").round()
    [unfit] = world.where("a")
    why = "nothing can be started: the disk is full"
    handed_back = Ended(attempt=Attempt("j1.main", 1), ending=Ending(outcome="returned", note=why))
    world.held[unfit].clear()
    world.hear(unfit, Report(serial=901, unfit=why, ended=(handed_back,))).after("1s")
    [other] = world.where("a")
    assert other != unfit
    assert world.ledger.nodes[unfit].condition == "unfit"
    assert node_report(world.ledger.nodes[unfit]).unfit == why
    world.job("b").after("5s")
    assert {(reason.code, reason.subject) for reason in world.reasons("b")} == {
        ("CPU_BUSY", other),
        ("NODE_UNFIT", unfit),
    }
    world.hear(unfit, Report(serial=902, unfit="")).after("1s")
    assert world.where("b") == [unfit]
    assert [event.why for event in world.log if isinstance(event, NodeUnfit)] == [why, ""]


def test_a_node_says_anew_that_it_can_start_nothing() -> None:
    world = World().nodes(1, cpu=1)
    world.hear("n1", Hello(node=world.known["n1"], unfit="no keeper"))
    assert world.job("a").after("1s").codes("a") == ["NODE_UNFIT"]
    world.connect("n1")
    assert world.after("1s").where("a") == ["n1"]


# --- draining and calling back ---------------------------------------------------------------------------------------


def brief(world: World, count: int) -> World:
    """`count` jobs of a class that is known to be short."""
    for _ in range(3):
        world.job(**{"class": "brief"})
    world.finish_all(run="1ms")
    for number in range(count):
        world.job(f"b{number}", **{"class": "brief"})
    return world


def test_a_drained_node_finishes_what_runs_and_hands_back_what_waits() -> None:
    world = brief(World().nodes(1, cpu=1), 2).round().start("b0")
    assert world.unit("b1").queued
    world.drain("n1")
    assert (world.status("b0"), world.status("b1")) == ("running", "pending")
    assert world.after("1s").codes("b1") == ["NODE_DRAINED"]
    world.finish("b0").drain("n1", False).after("1s")
    assert world.status("b1") == "placed"


def test_a_node_drained_while_away_hands_back_too() -> None:
    world = brief(World().nodes(1, cpu=1), 3).round().start("b0").disconnect("n1").drain("n1")
    del world.held["n1"][Attempt("j6.main", 1)]  # this one never arrived
    world.connect("n1")
    assert [world.status(name) for name in ("b0", "b1", "b2")] == ["running", "pending", "pending"]


def test_who_empties_a_node_is_told_how_many_go_and_stay() -> None:
    world = brief(World().nodes(1, cpu=8), 1).round().job("a").job("b", workers=2).job("c", preemptible=False).round()
    world.start("b0", "a", "b.main[0]", "b.main[1]", "c").drain("n1", moves=True)
    assert world.replies[-1].value == Drained("n1", moves=3, stays=2)
    assert world.ledger.nodes["n1"].condition == "emptying"
    world.drain("n1")
    assert world.replies[-1].value == Drained("n1")
    assert world.ledger.nodes["n1"].condition == "drained"


def test_a_node_is_emptied_again_after_a_restart() -> None:
    world = World().nodes(1).job("a").round().start("a").drain("n1", moves=True).restart().connect("n1")
    world.join(node("n2")).after("2s")
    assert world.where("a") == ["n2"]
    again = Ledger.decode(world.ledger.encode())
    assert again.nodes["n1"].condition == "emptying"


def test_one_device_of_a_node_is_not_emptied() -> None:
    with pytest.raises(InputError, match="one device") as refused:
        World().nodes(1, gpus=2).drain("n1:0", moves=True)
    assert refused.value.record.hint == "`poise drain --move n1`"


def test_what_is_drained_as_of_old_is_written_as_of_old() -> None:
    """Logs of older versions stay what they are."""
    assert encode_event(NodeDrained(at=1, name="n1", on=True)) == msgspec.msgpack.encode(
        {"type": "drained", "at": 1, "name": "n1", "on": True}
    )


def test_what_waits_behind_a_wrong_forecast_is_called_back_once() -> None:
    world = brief(World().nodes(2, cpu=1).drain("n2"), 2).round().start("b0").after("1s")
    assert world.unit("b1").queued and world.where("b1") == ["n1"]
    world.after("4s")
    assert world.codes("b1") == ["CPU_BUSY", "NODE_DRAINED"]
    assert world.unit("b1").tries == 0
    world.drain("n2", False).after("1s")
    assert world.where("b1") == ["n2"] and not world.unit("b1").queued


# --- cancelling ------------------------------------------------------------------------------------------------------


def test_cancel_while_it_waits() -> None:
    world = World().job("first").job("a", after=["first"]).job("b").cancel("a").cancel("b")
    assert (world.status("a"), world.status("b"), world.status("first")) == ("cancelled", "cancelled", "pending")


def test_cancel_while_it_backs_off() -> None:
    retry = {"when": ["failed"], "backoff": "10s"}
    world = World().nodes(1).job("a", retry=retry).round().finish("a", outcome="failed").cancel("a")
    assert world.status("a") == "cancelled"
    assert world.ledger.queues.wakeup(0) is None


def test_cancel_while_it_runs_stops_it() -> None:
    world = World().nodes(1).job("a").round().start("a").cancel("a")
    assert world.status("a") == "cancelled"
    assert world.task("a")[1].ending == Ending(outcome="stopped")


def test_cancel_while_it_is_lost() -> None:
    world = World().nodes(1).job("a").round().start("a").lose("n1").cancel("a")
    assert world.status("a") == "cancelled"
    assert last_desired(world.connect("n1")).keep == ()


def test_cancel_a_gang_that_is_being_stopped() -> None:
    world = World().nodes(2, cpu=1).job("g", workers=2, retry=AGAIN).round().start("g.main[0]").disconnect("n2")
    world.finish("g.main[0]", outcome="failed").cancel("g")
    assert world.status("g") == "placed"
    assert world.connect("n2").status("g") == "cancelled"


def test_cancel_a_graph_ends_each_part_its_own_way() -> None:
    tasks: dict[str, Any] = {"last": {"needs": ["mid"]}, "mid": {"needs": ["first"]}, "first": {}, "side": {}}
    world = World().nodes(1, cpu=1).graph("g", tasks=tasks).round().finish("g.first").round()
    world.cancel("g")
    assert {unit.spec.name: unit.status for unit in world.state("g").units} == {
        "first": "done",
        "mid": "cancelled",
        "last": "cancelled",
        "side": "cancelled",
    }


def test_what_ended_before_the_stop_arrived_is_done() -> None:
    world = World().nodes(1).job("a").round().start("a").disconnect("n1").cancel("a")
    [attempt] = world.held["n1"]
    world.held["n1"].clear()
    world.connect("n1", [Ended(attempt=attempt, ending=Ending(outcome="done"))])
    assert world.status("a") == "done"


# --- the log tells ---------------------------------------------------------------------------------------------------


def test_the_story_of_a_job_in_events() -> None:
    world = World().nodes(1).job("a").round().finish("a", run="2s")
    story = [event for event in world.log if isinstance(event, JobSubmitted | Placed | Finished)]
    assert [type(event).__name__ for event in story] == ["JobSubmitted", "Placed", "Finished"]
    placed = story[1]
    assert isinstance(placed, Placed)
    assert (placed.epoch, placed.spots, placed.why.policy) == (1, (Spot("n1"),), "poise")


def test_a_launch_carries_all_a_node_needs() -> None:
    world = World().join(node("n1", cpu=4, gpus=2))
    world.job("g", run=["train"], workers=2, gpu=1, env={"A": "1"}, priority="high", grace="3s", hang="1m").round()
    first, second = world.held["n1"].values()
    assert (first.attempt, first.argv, first.env) == (Attempt("j1.main[0]", 1), ("train",), {"A": "1"})
    assert (first.rank, second.rank, first.world, first.gang) == (0, 1, 2, "j1.main")
    assert (first.devices, second.devices, first.slots, second.slots) == ((0,), (1,), 2, 2)
    assert (first.priority, first.grace, first.hang, first.queued) == (1, 3 * SECOND, 60 * SECOND, False)


def test_each_member_of_a_gang_is_told_on_which_machine_the_first_one_is() -> None:
    world = World()
    for name in ("n1", "n2"):
        world.join(node(name, cpu=1)).hear(name, Hello(node=world.known[name], address=f"10.0.0.{name[1]}"))
    world.job("g", workers=2, cpu=1).round()
    [first], [second] = (world.held[name].values() for name in ("n1", "n2"))
    there = "10.0.0.1" if first.rank == 0 else "10.0.0.2"
    assert {first.rank, second.rank} == {0, 1}
    assert first.first == second.first == there


def test_requests_of_every_kind_are_refused_in_words() -> None:
    world = World().nodes(1)
    with pytest.raises(InputError) as cancelled:
        world.cancel("x")
    with pytest.raises(InputError) as drained:
        world.drain("x")
    for record in (cancelled.value.record, drained.value.record):
        assert record.code == "E120"
        assert record.hint


def test_an_effect_for_a_node_that_has_gone_is_not_kept() -> None:
    world = World().nodes(1).disconnect("n1")
    world.sent.clear()
    world.job("a").round()
    assert world.sent == []


# --- preemption ------------------------------------------------------------------------------------------------------


def asked_to_yield(world: World, unit: str, to: str = "", base: int | None = None) -> World:
    """As if a policy had decided so, on the view of revision `base`: the newest one if nothing else is said."""
    preempt = Preempt(unit=unit, cause="yield", why=Why(policy="test"), to=to)
    at = world.ledger.revision if base is None else base
    return world.say(Decided(Plan(base=at, policy="test", decisions=(preempt,))))


def test_what_is_asked_to_yield_is_told_to_stop_and_waits_again() -> None:
    world = World("fifo").nodes(1, cpu=1).job("a").round().start("a").job("b")
    asked_to_yield(world, "j1.main", to="j2.main")
    assert Desired(stops=(Attempt("j1.main", 1),)) in [send.message for send in world.sent]
    [preempted] = [event for event in world.log if isinstance(event, Preempted)]
    assert (preempted.unit, preempted.epoch, preempted.cause, preempted.to) == ("j1.main", 1, "yield", "j2.main")
    assert (world.status("a"), world.unit("a").tries) == ("pending", 0)
    assert world.round().where("b") == ["n1"]  # the room was made for it, though `a` came first
    assert world.start("b").finish("b").round().unit("a").epoch == 2


def test_what_ended_before_it_was_told_to_yield_is_done() -> None:
    world = World().nodes(1).job("a").round().start("a").disconnect("n1")
    asked_to_yield(world, "j1.main")
    [attempt] = world.held["n1"]
    world.held["n1"].clear()
    world.connect("n1", [Ended(attempt=attempt, ending=Ending(outcome="done"))])
    assert (world.status("a"), world.unit("a").preempted) == ("done", 1)


def test_what_yields_on_a_node_that_is_lost_waits_again() -> None:
    world = World().nodes(1).job("a").round().start("a").disconnect("n1")
    asked_to_yield(world, "j1.main").lose("n1")
    assert world.status("a") == "pending"
    assert world.codes("a") == ["NODE_LOST"]


def test_what_yields_and_is_cancelled_is_cancelled() -> None:
    world = World().nodes(1).job("a").round().start("a").disconnect("n1")
    asked_to_yield(world, "j1.main").cancel("a").connect("n1")
    assert world.status("a") == "cancelled"


def test_every_member_of_a_gang_yields() -> None:
    world = World().nodes(2, cpu=1).job("g", workers=2).round().start("g.main[0]", "g.main[1]")
    asked_to_yield(world, "j1.main")
    assert world.status("g") == "pending"
    assert all(task.past[-1].ending.outcome == "stopped" for task in world.unit("g").tasks)
    assert world.held == {"n1": {}, "n2": {}}


def test_a_preemption_that_no_longer_holds_is_decided_again_if_the_view_was_old() -> None:
    world = World().nodes(1).job("a").round().start("a")
    old = world.ledger.revision
    world.finish("a").job("b").tick()
    asked_to_yield(world, "j1.main", base=old)
    assert not any(isinstance(event, Preempted) for event in world.log)
    assert any(isinstance(effect, Decide) for effect in world.controller.tick(world.now))


def test_preempted_work_goes_on_after_a_restart() -> None:
    world = World().nodes(1, cpu=1).job("a").round().start("a").disconnect("n1")
    asked_to_yield(world, "j1.main").restart()
    assert world.unit("a").stopping == "yield"
    assert world.connect("n1").status("a") == "pending"
    assert world.after("1s").unit("a").epoch == 2


# --- elastic units, artifacts, devices in part -----------------------------------------------------------------------


def test_an_elastic_gang_is_launched_in_the_size_it_got() -> None:
    world = World().nodes(1, cpu=3).job("e", workers="2..8").round()
    sent = list(world.held["n1"].values())
    assert [(launch.rank, launch.world, launch.gang) for launch in sent] == [
        (0, 3, "j1.main"),
        (1, 3, "j1.main"),
        (2, 3, "j1.main"),
    ]


def test_an_elastic_gang_is_accepted_for_its_least() -> None:
    world = World().nodes(1, cpu=3).job("e", workers="2..8")
    with pytest.raises(SpecError, match="can never start whole"):
        world.job(workers="4..8")
    assert world.ledger.jobs.unfinished() == 1


def test_work_is_accepted_if_any_of_its_artifacts_could_run() -> None:
    gpu, small, large = ({"run": "x", "resources": asked} for asked in ({"gpu": 1}, {"cpu": 1}, {"cpu": 9}))
    world = World().nodes(1, cpu=2).submit({"artifacts": {"gpu": gpu, "cpu": small}})
    assert world.ledger.jobs.unfinished() == 1
    with pytest.raises(SpecError) as refused:
        world.submit({"artifacts": {"gpu": gpu, "cpu": large}})
    assert refused.value.record.code == "E110"


def test_a_device_that_no_node_has_is_refused_in_words() -> None:
    devices = (Device(index=0, model="V100", memory=2**34),)
    world = World().join(msgspec.structs.replace(node(), devices=devices))
    with pytest.raises(SpecError) as refused:
        world.job(gpu=1, gpu_model="H100")
    assert refused.value.record.have == "V100"


def test_only_work_that_shares_a_device_that_has_gone_is_touched() -> None:
    half = {"gpu": 1, "gpu_share": 0.4}
    world = World().nodes(1, cpu=8, gpus=2).job("a", **half).job("b", **half).job("c", gpu=1).round()
    assert [world.task(name)[1].devices for name in "abc"] == [(0,), (0,), (1,)]
    known = world.known["n1"]
    world.join(msgspec.structs.replace(known, devices=known.devices[1:]))
    assert [world.status(name) for name in "abc"] == ["pending", "pending", "placed"]


def withdraw(world: World, *devices: int) -> World:
    """The node has these devices, and offers them no longer."""
    offer = world.known["n1"]
    left = tuple(device for device in offer.devices if device.index not in devices)
    holds = world.held["n1"]
    return world.hear(
        "n1",
        Hello(
            node=msgspec.structs.replace(offer, devices=left),
            running=tuple(Running(attempt=attempt, pid=1) for attempt in holds if attempt in world.started),
            queued=tuple(attempt for attempt in holds if attempt not in world.started),
            withdrawn=devices,
        ),
    )


def test_work_on_a_device_that_is_offered_no_longer_goes_on_and_nothing_new_comes_there() -> None:
    world = World().join(node("n1", cpu=4, gpus=2)).job("a", gpu=1).job("b", gpu=1).round().start("a", "b")
    held = {name: world.task(name)[1].devices for name in "ab"}
    withdraw(world, *held["b"]).job("c", gpu=1).after("1s")
    assert [world.status(name) for name in "abc"] == ["running", "running", "pending"]
    assert [world.task(name)[1].devices for name in "ab"] == [held["a"], held["b"]]
    assert world.codes("c") == ["GPU_BUSY", "DEVICE_CORDONED"]
    world.finish("b").after("1s")
    assert world.status("c") == "pending", "it is free, and not offered"
    world.connect("n1").after("1s")
    assert world.task("c")[1].devices == held["b"]
    assert not lost(world)
    assert replay(world.log).encode() == world.ledger.encode()


def test_work_that_has_not_begun_on_a_withdrawn_device_begins_elsewhere() -> None:
    world = World().join(node("n1", cpu=4, gpus=2)).job("a", gpu=1).round()
    [device] = world.task("a")[1].devices
    withdraw(world, device).after("1s")
    assert world.task("a")[1].devices == (1 - device,)
    assert [event.ending.outcome for event in lost(world)] == ["returned"]


def test_a_shared_device_that_is_withdrawn_takes_nobody_in() -> None:
    world = World().nodes(1, gpus=1).job("a", gpu=1, gpu_share=0.5).round().start("a")
    withdraw(world, 0).job("b", gpu=1, gpu_share=0.25).after("1s")
    assert [world.status(name) for name in "ab"] == ["running", "pending"]


def test_a_node_whose_network_shrinks_keeps_what_runs() -> None:
    world = World().join(msgspec.structs.replace(node(), network=10**9)).job("a", network="700Mbit").round().start("a")
    world.join(msgspec.structs.replace(world.known["n1"], network=5 * 10**8)).job("b", network="1Mbit").after("1s")
    assert [world.status(name) for name in "ab"] == ["running", "pending"]


def test_a_device_whose_memory_shrinks_keeps_what_runs() -> None:
    world = World().nodes(1, gpus=1, gpu_memory="16GiB")
    world.job("a", gpu=1, gpu_share=0.5, gpu_memory="10GiB").round().start("a")
    [device] = world.known["n1"].devices
    world.join(msgspec.structs.replace(world.known["n1"], devices=(msgspec.structs.replace(device, memory=2**33),)))
    world.job("b", gpu=1, gpu_share=0.25, gpu_memory="1GiB").after("1s")
    assert [world.status(name) for name in "ab"] == ["running", "pending"]


# --- another fleet ---------------------------------------------------------------------------------------------------


def declared(name: str, **offers: Any) -> Node:
    return msgspec.structs.replace(node(name, **offers), labels=DECLARED)


def test_nodes_of_an_earlier_fleet_are_forgotten_and_their_work_runs_elsewhere() -> None:
    world = World(declared=("a1", "a2")).join(declared("a1")).join(declared("a2")).job("j", cpu=2).job("k", cpu=2)
    world.round().start("j", "k").disconnect("a1").disconnect("a2")
    world.restart(declared=("b1",)).join(declared("b1", cpu=4)).round()
    assert list(world.ledger.nodes) == ["b1"]
    assert (world.where("j"), world.where("k")) == (["b1"], ["b1"])
    assert [past.ending.outcome for past in world.unit("j").tasks[0].past] == ["lost"]
    assert world.start("j", "k").finish("j", "k").status("j") == "done"
    assert replay(world.log).encode() == world.ledger.encode()


def test_without_a_declared_fleet_only_this_machine_is_left() -> None:
    world = World(declared=("a1",)).join(declared("a1")).disconnect("a1").restart(declared=()).join(node("vm"))
    assert list(world.ledger.nodes) == ["vm"]
    assert list(world.restart(declared=()).ledger.nodes) == ["vm"]
    assert list(world.disconnect("vm").restart(declared=("a1",)).ledger.nodes) == []


def test_a_restart_with_the_same_fleet_forgets_nothing() -> None:
    world = World(declared=("a1",)).join(declared("a1")).job("j").round().start("j").restart()
    assert world.where("j") == ["a1"]
    assert world.unit("j").epoch == 1


def test_a_gang_with_one_task_on_a_forgotten_node_starts_anew_as_a_whole() -> None:
    world = World(declared=("a1", "a2")).join(declared("a1", cpu=1)).join(declared("a2", cpu=1)).job("g", workers=2)
    world.round().start("g.main[0]", "g.main[1]").disconnect("a1")
    world.restart(declared=("a2", "b1")).join(declared("b1", cpu=1)).settle()
    assert sorted(world.where("g")) == ["a2", "b1"]
    assert world.unit("g").epoch == 2


def test_an_elastic_gang_goes_on_where_a_finished_task_ran_on_a_forgotten_node() -> None:
    world = World(declared=("a1", "a2")).join(declared("a1", cpu=1)).join(declared("a2", cpu=1))
    world.job("g", workers="1..2").round().start("g.main[0]", "g.main[1]")
    first = world.task("g.main[0]")[1].node
    world.finish("g.main[0]").disconnect(first).restart(declared=tuple({"a1", "a2"} - {first})).settle()
    assert world.status("g") == "running"


def test_work_that_is_not_tried_again_fails_with_its_node() -> None:
    world = World(declared=("a1",)).join(declared("a1")).job("j", retry={"when": ["failed"]}).round().start("j")
    world.disconnect("a1").restart(declared=("b1",)).join(declared("b1"))
    assert world.status("j") == "failed"
    assert world.task("j")[1].ending.note == "node a1 is no longer part of the fleet"  # type: ignore[union-attr]


def test_a_lease_does_not_end_because_the_wall_clock_was_wrong_at_a_boot() -> None:
    """Found by seed 890: after a boot the log's time goes on by the wall clock, and that had jumped by an hour."""
    world = World().nodes(2, cpu=1).job("alone", cpu=1, lease="exclusive").round().start("alone")
    lost = world.where("alone")[0]
    world.lose(lost)
    left = world.unit("alone").leases[lost] - world.now
    assert 0 < left <= 10 * SECOND
    ledger = replay(world.log)
    before = ledger.now
    again = Controller(ledger, world.controller.settings)
    again.begin(world.now + HOUR, boot="another", boottime=1, wall=WALL + 3600)
    assert ledger.jobs.unit("j1.main") is not None
    assert ledger.jobs.unit("j1.main").leases[lost] == world.now + HOUR + left + (world.now - before)  # type: ignore[union-attr]
