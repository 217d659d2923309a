"""The ledger by its life stories, and what a policy is shown of it."""

from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from poise.errors import InputError
from poise.kernel.explain import job_report
from poise.kernel.ledger import InvariantBroken, Ledger, deciding_ending
from poise.kernel.ledger.profiles import MAX_PROFILES
from poise.kernel.ledger.queues import HEAD
from poise.kernel.ledger.tasks import PAST_ATTEMPTS
from poise.kernel.messages import Decided
from poise.model.decisions import Plan, Preempt, Spot, Why
from poise.model.events import Began, Finished, JobSubmitted, NodeJoined, Placed, decode_event, encode_event
from poise.model.fleet import DEVICES
from poise.model.jobs import LOSSES, Ending, Job, Retry, Task, Unit
from poise.model.messages import Ended
from poise.model.resources import Shape
from poise.policy.suites import POLICIES
from poise.testing import World, node, replay
from poise.units import MINUTE, SECOND


def job(name: str, *, after: tuple[str, ...] = (), kind: str = "", **fields: Any) -> Job:
    unit = Unit(name="main", tasks=(Task(name="main", argv=("x",)),), kind=kind, **fields)
    return Job(id=name, units=(unit,), after=after)


def test_the_life_of_a_unit() -> None:
    world = World().nodes(1).graph("g", tasks={"a": {}, "b": {"needs": ["a"]}})
    assert (world.status("g.a"), world.status("g.b")) == ("pending", "waiting")
    assert world.round().status("g.a") == "active"
    assert world.finish("g.a").status("g.b") == "pending"
    assert world.round().finish("g.b").status("g") == "done"


@pytest.mark.parametrize(
    ("outcome", "retry", "then"),
    [
        ("failed", None, "failed"),
        ("failed", {}, "pending"),
        ("failed", {"limit": 2}, "pending"),
        ("failed", {"when": ["failed"]}, "pending"),
        ("failed", {"when": ["failed"], "limit": 0}, "failed"),
        ("killed", None, "pending"),
        ("lost", None, "pending"),
        ("lost", {"limit": 1}, "pending"),
        ("lost", {"limit": 0}, "failed"),
        ("oom", None, "failed"),
        ("oom", {}, "pending"),
        ("timeout", {}, "failed"),
        ("timeout", {"when": ["timeout"]}, "pending"),
        ("hung", None, "pending"),
        ("hung", {"when": ["lost"]}, "failed"),
        ("signal", {"when": ["signal"]}, "pending"),
        ("unstartable", {"when": ["failed", "killed", "signal", "oom", "lost"]}, "failed"),
        ("stopped", {"limit": 0}, "pending"),
        ("returned", {"limit": 0}, "pending"),
    ],
)
def test_what_follows_an_ending(outcome: Any, retry: dict[str, Any] | None, then: str) -> None:
    assert World().nodes(1).job("a", retry=retry).round().finish("a", outcome=outcome).status("a") == then


def test_lost_work_does_not_count_against_its_retries_unless_it_is_named() -> None:
    world = World().nodes(1).job("a", retry={"limit": 1, "backoff": 0})
    for outcome, then in (("lost", "pending"), ("lost", "pending"), ("failed", "pending"), ("lost", "pending")):
        world.round().finish("a", outcome=outcome)  # type: ignore[arg-type]
        assert world.status("a.main") == then
    assert world.round().finish("a", outcome="failed").status("a") == "failed"
    world.job("b", retry={"limit": 1, "when": ["lost", "failed"]}).round().finish("b", outcome="lost")
    assert world.round().finish("b", outcome="failed").status("b") == "failed"


def test_what_brings_down_each_of_its_nodes_is_given_up() -> None:
    world = World().nodes(1).job("a")
    for _ in range(LOSSES):
        world.round().finish("a", outcome="lost")
    assert world.status("a") == "pending"
    assert world.round().finish("a", outcome="lost").status("a") == "failed"


@pytest.mark.parametrize(
    ("retry", "said"),
    [
        (None, "killed, hung 3 times; lost work 3 times in addition"),
        ({"limit": 5}, "any failure 5 times; lost work 5 times in addition"),
        ({"limit": 1}, "any failure 1 time; lost work 3 times in addition"),
        ({"limit": 0}, "none"),
        ({"limit": 2, "when": ["lost", "oom"]}, "oom, lost 2 times"),
    ],
)
def test_what_is_retried_is_said(retry: dict[str, Any] | None, said: str) -> None:
    world = World().nodes(1).job("a", retry=retry)
    [task] = job_report(world.ledger, world.state("a"), world.now, tasks=True).tasks
    assert task.retries == said


def test_tries_are_limited_and_back_off_doubles() -> None:
    retry = {"limit": 2, "when": ["failed"], "backoff": "1s"}
    world = World().nodes(1).job("a", retry=retry).round()
    waits = []
    while world.status("a") != "failed":
        world.finish("a", outcome="failed")
        waits.append(max(0, world.unit("a").not_before - world.now) // SECOND)
        world.after("3s")
    assert (waits, world.unit("a").epoch, world.unit("a").tries) == ([1, 2, 0], 3, 3)


def test_earlier_attempts_are_kept_up_to_a_bound() -> None:
    retry = {"limit": 20, "when": ["failed"], "backoff": "0s"}
    world = World().nodes(1).job("a", retry=retry)
    for run in range(12):
        world.round().finish("a", outcome="failed", run=run)
    past = world.task("a")[1].past
    assert [attempt.epoch for attempt in past] == list(range(5, 13))
    assert len(past) == PAST_ATTEMPTS


def test_what_needs_a_failure_is_skipped_however_deep() -> None:
    tasks: dict[str, Any] = {"t0": {}, "side": {}}
    tasks |= {f"t{number}": {"needs": [f"t{number - 1}"]} for number in range(1, 3000)}
    world = World(check=False).nodes(1).graph("g", tasks=tasks).round().finish("g.t0", outcome="failed")
    assert world.status("g.t2999") == "skipped"
    assert world.status("g") == "running" or world.status("g") == "placed"
    assert world.finish("g.side").status("g") == "failed"


def test_a_chain_of_thousands_of_jobs_ends_with_its_first() -> None:
    ledger = Ledger()
    ledger.apply(Began(at=1, term=1, policy="poise", history=10_000, version=""))
    for number in range(5000):
        after = (f"j{number}",) if number else ()
        ledger.apply(JobSubmitted(at=2, job=job(f"j{number + 1}", after=after)))
    ledger.apply(NodeJoined(at=3, node=node()))
    ledger.apply(Placed(at=4, unit="j1.main", epoch=1, spots=(Spot("n1"),), why=Why(policy="")))
    ledger.apply(Finished(at=5, task="j1.main", epoch=1, ending=Ending(outcome="failed")))
    assert ledger.jobs.unfinished() == ledger.jobs.unfinished_units() == 0


def test_a_job_after_two_others_waits_for_both_and_ends_with_either() -> None:
    world = World().nodes(1).job("a").job("b").job("c", after=["a", "b", "a"]).round().finish("a")
    assert world.status("c") == "waiting"
    assert world.finish("b").status("c") == "pending"
    world.job("d", after=["c"]).job("e", after=["c", "d"]).cancel("c")
    assert (world.status("d"), world.status("e")) == ("skipped", "skipped")


def test_after_a_job_that_is_over() -> None:
    world = World().nodes(1).job("a").round().finish("a").job("b", after=["a"])
    assert world.status("b") == "pending"
    world.cancel("b").job("c", after=["b"])
    assert world.status("c") == "skipped"


def test_what_comes_after_ends_in_the_order_of_submission_also_after_a_restart() -> None:
    """Ten jobs and more: `j10` sorts before `j2`."""
    first, second = World(), World()
    for world in (first, second):
        world.nodes(1).job("a", retry={"limit": 0}).round()
        for _ in range(12):
            world.job(after=["a"])
    second.restart(from_checkpoint=True)
    for world in (first, second):
        world.finish("a", outcome="failed")
    ended = [f"j{number}" for number in range(1, 14)]
    assert [job.id for job in first.ledger.jobs.recent(20)] == ended
    assert [job.id for job in second.ledger.jobs.recent(20)] == ended
    assert replay(second.log).encode() == second.ledger.encode()


def test_old_jobs_leave_the_ledger_and_may_still_be_referred_to() -> None:
    world = (
        World(history=5).nodes(1, cpu=4).job("first").round().job("last", after=["first"]).finish("first", run="1ms")
    )
    assert world.status("last") == "pending"
    for _ in range(40):
        world.job().round().finish(*[attempt.task for attempt in world.held["n1"] if attempt.task != "j2.main"])
    assert "j1" not in world.ledger.jobs
    assert len(world.ledger.jobs) <= 5 + 16 + 1
    assert world.reasons("last") == []
    world.restart().finish_all()
    assert world.status("last") == "done"


def test_recent_jobs_are_the_latest() -> None:
    world = World().nodes(1).job("a").round().finish("a").job("b").round().finish("b").job("c")
    assert [job.name for job in world.ledger.jobs.recent(1)] == ["b", "c"]
    assert [job.name for job in world.ledger.jobs.recent(0)] == ["c"]


def test_a_name_finds_the_unfinished_job_then_the_latest() -> None:
    world = World().nodes(1).job("a").cancel("a").job("a").cancel("a")
    assert world.state("a").id == "j2"
    assert world.state("j1").id == "j1"


# --- gangs -----------------------------------------------------------------------------------------------------------


def test_a_gang_member_that_fails_stops_the_others_and_decides() -> None:
    world = World().nodes(1).job("g", workers=2, retry={"limit": 0}).round().start("g.main[0]", "g.main[1]")
    world.after("1s").finish("g.main[1]", outcome="oom", code=0)
    assert world.status("g") == "failed"
    assert [task.ending.outcome for task in world.unit("g").tasks if task.ending] == ["stopped", "oom"]
    assert deciding_ending(world.unit("g")).outcome == "oom"


def test_the_first_failure_in_time_decides() -> None:
    world = World().nodes(2, cpu=1).job("g", workers=2, retry={"limit": 0}).round()
    world.start("g.main[0]", "g.main[1]").disconnect("n1").finish("g.main[1]", outcome="oom").after("1s")
    world.connected.add("n1")
    world.held["n1"].clear()
    world.connect("n1")
    assert deciding_ending(world.unit("g")).outcome == "oom"
    assert world.status("g") == "failed"


def test_a_gang_whose_members_end_one_by_one_is_done() -> None:
    world = World().nodes(1).job("g", workers=2).round().finish("g.main[0]")
    assert world.status("g") == "placed"
    assert world.finish("g.main[1]").status("g") == "done"


# --- elastic units, shares of devices, artifacts, preemption ---------------------------------------------------------


def test_an_elastic_unit_is_as_large_as_there_was_room_for() -> None:
    world = World().nodes(1, cpu=3).job("e", workers="2..8").round()
    unit = world.unit("e")
    assert (unit.size, [task.status for task in unit.tasks]) == (3, ["queued"] * 3 + ["idle"] * 5)
    world.finish("e.main[0]", "e.main[1]", "e.main[2]")
    assert world.status("e") == "done"


def test_an_elastic_unit_whose_node_was_lost_starts_smaller_elsewhere() -> None:
    world = World().join(node("n1", cpu=4)).job("e", workers="2..4").round()
    assert world.where("e") == ["n1"] * 4
    world.join(node("n2", cpu=2)).lose("n1")
    assert world.where("e") == ["n2", "n2"]
    world.join(node("n1", cpu=4)).after("1s")
    assert world.where("e") == ["n2", "n2"]
    assert world.finish_all().status("e") == "done"


def test_shares_of_a_device_are_counted_by_holder() -> None:
    world = World().nodes(1, cpu=8, gpus=1, gpu_memory="16GiB")
    world.job("a", gpu=1, gpu_share=0.5, gpu_memory="4GiB").job("b", gpu=1, gpu_share=0.3, gpu_memory="2GiB").round()
    shares = world.ledger.nodes["n1"].shares["0"]
    assert [(of.holder, of.share, of.memory) for of in shares] == [
        ("j1.main", 500, 4 * 2**30),
        ("j2.main", 300, 2 * 2**30),
    ]
    fleet = world.ledger.snapshot(world.now).fleet
    assert (fleet.device_share[0, 0], fleet.device_memory[0, 0], fleet.free[DEVICES, 0]) == (200, 10 * 2**30, 0)
    world.finish("a", "b")
    assert world.ledger.nodes["n1"].shares == {}


def test_room_is_counted_by_the_artifact_that_was_chosen() -> None:
    artifacts: dict[str, Any] = {
        "cuda": {"run": "./cuda", "resources": {"cpu": 1, "gpu": 1, "backend": "cuda"}},
        "cpu": {"run": "./cpu", "resources": {"cpu": 4}},
    }
    world = World().nodes(1, cpu=4).submit({"name": "a", "artifacts": artifacts}).round()
    unit = world.unit("a")
    assert (unit.variant, unit.shape.cpu, world.ledger.nodes["n1"].used_cpu) == (1, 4000, 4000)
    [launch] = world.held["n1"].values()
    assert launch.argv == ("/bin/sh", "-c", "./cpu")
    world.finish("a")
    assert world.ledger.nodes["n1"].used_cpu == 0


def asked_to_yield(world: World, unit: str, to: str = "", cause: Any = "yield") -> World:
    """As if a policy had decided so."""
    preempt = Preempt(unit=unit, cause=cause, why=Why(policy="test"), to=to)
    return world.say(Decided(Plan(base=world.ledger.revision, policy="test", decisions=(preempt,))))


def test_preempted_work_keeps_its_place_and_its_service() -> None:
    world = World("fifo").nodes(1, cpu=8, gpus=2).job("first", gpu=2).job("second", gpu=2).round().start("first")
    asked_to_yield(world, "j1.main", to="j2.main")
    unit = world.unit("first")  # a scripted node stops at once, and says that it ran for no time
    assert (unit.status, unit.preempted, unit.tries, unit.lost, unit.stopping) == ("pending", 1, 0, 0, "")
    assert [of.unit for of in world.ledger.snapshot(world.now).candidates] == ["j1.main", "j2.main"]
    assert isinstance(world.log[-1], Finished)


def test_service_counts_the_run_times_the_devices_of_what_yielded_only() -> None:
    world = World("fifo").nodes(1, cpu=8, gpus=2)
    world.job("g", gpu=2, retry={"when": ["failed"], "backoff": "0s"}).round().start("g").disconnect("n1")
    asked_to_yield(world, "j1.main").connected.add("n1")
    [attempt] = world.held["n1"]
    world.connect("n1", ended=(Ended(attempt=attempt, ending=Ending(outcome="stopped", run=7 * SECOND)),))
    assert (world.unit("g").status, world.unit("g").attained) == ("pending", 14 * SECOND)
    world.round().start("g").finish("g", outcome="failed", run="5s")
    assert world.unit("g").attained == 14 * SECOND


def test_service_that_one_of_a_gang_has_had_is_shown_of_those_that_still_run() -> None:
    """They were shown as before, and after a restart with it."""
    world = World("fifo").nodes(2, cpu=1).job("g", workers=2).round().start("g.main[0]", "g.main[1]")
    world.disconnect("n1").disconnect("n2")
    asked_to_yield(world, "j1.main").connected.add("n1")
    [attempt] = world.held["n1"]
    world.connect("n1", ended=(Ended(attempt=attempt, ending=Ending(outcome="stopped", run=7 * SECOND)),))
    [running] = world.ledger.snapshot(world.now).fleet.residents[1]
    assert running.attained == 7 * SECOND


def test_what_moved_avoids_the_node_it_left_until_it_is_placed_again() -> None:
    world = World().nodes(2).job("a").round().start("a")
    asked_to_yield(world, "j1.main", cause="move")
    assert world.unit("a").avoid == "n1"
    assert world.round().where("a") == ["n2"]
    assert world.unit("a").avoid == ""


def test_elastic_units_are_seen_in_order_of_submission_whenever_they_were_placed() -> None:
    world = World().nodes(1, cpu=1).job("late", workers="1..2", priority="low").job("soon", workers="1..2").round()
    world.join(node("n2", cpu=1)).round()
    assert (world.where("soon"), world.where("late")) == (["n1"], ["n2"])
    assert [resident.unit for resident in world.ledger.snapshot(world.now).elastic] == ["j1.main", "j2.main"]


PLAIN = st.fixed_dictionaries(
    {"cpu": st.sampled_from(["0.5", 1, 2])},
    optional={
        "network": st.sampled_from(["100Mbit", "400Mbit"]),
        "workers": st.sampled_from([2, "1..3", "2..4"]),
        "priority": st.sampled_from(["urgent", "low"]),
        "preemptible": st.booleans(),
        "checkpoint": st.just("10s"),
    },
)
DEVICES_ASKED: tuple[dict[str, Any], ...] = (
    {},
    {"gpu": 1},
    {"gpu": 2, "gpu_memory": "6GiB"},
    {"gpu": 1, "gpu_share": 0.5, "gpu_memory": "6GiB"},
    {"gpu": 1, "gpu_share": 0.2, "gpu_memory": "1GiB"},
    {"gpu": 2, "gpu_share": 0.4},
)
BUILDS: dict[str, Any] = {
    "run": "",
    "artifacts": {
        "gpu": {"run": "./gpu", "resources": {"cpu": 1, "gpu": 1, "gpu_memory": "2GiB"}},
        "cpu": {"run": "./cpu", "resources": {"cpu": 2}},
    },
}
FIELDS = st.tuples(PLAIN, st.sampled_from((*DEVICES_ASKED, BUILDS))).map(lambda parts: {**parts[0], **parts[1]})


@given(
    policy=st.sampled_from(sorted(POLICIES)),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("submit"), FIELDS),
            st.tuples(st.sampled_from(["yield", "move", "grow", "shrink", "lose", "start", "end"]), st.integers(0, 5)),
            st.tuples(st.sampled_from(["wait"]), st.sampled_from([1, 31])),
        ),
        max_size=15,
    ),
)
def test_whatever_is_shared_elastic_or_preempted_adds_up_and_replays_to_the_same_bytes(
    policy: str, steps: list[tuple[str, Any]]
) -> None:
    """`World` checks every invariant after every message."""
    world = World(policy)
    for number, gpus in enumerate((2, 0, 1)):
        joining = node(f"n{number}", cpu=4, gpus=gpus, gpu_memory="8GiB")
        world.join(msgspec.structs.replace(joining, network=10**9))
    for step, of in steps:
        held = sorted(attempt for name in sorted(world.connected) for attempt in world.held[name])
        match step:
            case "submit":
                with suppress(InputError):
                    world.job(**of)
            case "wait":
                world.after(of * SECOND)
            case "lose":
                name = f"n{of % 3}"
                world.lose(name).connect(name)
            case "start" if held:
                world.start(held[of % len(held)].task)
            case "end" if held:
                world.finish(held[of % len(held)].task, run="20s")
            case "yield" | "move" | "grow" | "shrink":
                active = [
                    unit.id for job in world.ledger.jobs.values() for unit in job.units if unit.status == "active"
                ]
                if active:
                    asked_to_yield(world, active[of % len(active)], cause=step)
    assert replay(world.log).encode() == world.ledger.encode()
    again = replay(decode_event(encode_event(event)) for event in world.log)
    assert again.encode() == world.ledger.encode()
    world.restart(from_checkpoint=True).finish_all()
    assert all(job.ended for job in world.ledger.jobs.values())
    for state in world.ledger.nodes.values():
        assert (state.used_cpu, state.used_memory, state.used_network) == (0, 0, 0)
        assert (state.devices, state.shares, state.pools) == ({}, {}, {})


# --- what a policy sees ----------------------------------------------------------------------------------------------


def test_a_snapshot_does_not_change_with_the_ledger() -> None:
    world = World().nodes(1).job("a", **{"class": "k"}).round().finish("a").job("b", **{"class": "k"})
    seen = world.ledger.snapshot(world.now)
    before = repr(seen)
    world.round().finish("b", run="9s").nodes(3).job("c", **{"class": "k"})
    assert repr(seen) == before


def test_a_retried_unit_keeps_its_place_in_the_queue() -> None:
    world = World("fifo").nodes(1, cpu=1).job("a").job("b").round().finish("a", outcome="lost")
    assert [candidate.unit for candidate in world.ledger.snapshot(world.now).candidates] == ["j1.main", "j2.main"]
    assert world.round().status("a") == "placed"


def test_of_a_long_queue_the_head_is_shown() -> None:
    world = World(check=False)
    for _ in range(HEAD + 10):
        world.job(**{"class": "x"})
    seen = world.ledger.snapshot(world.now)
    assert len(seen.candidates) == HEAD
    assert list(seen.backlog.values()) == [HEAD + 10]


def test_what_backs_off_is_not_shown_and_takes_no_place_in_the_head() -> None:
    retry = {"when": ["failed"], "backoff": "5s"}
    world = World().nodes(1, cpu=1).job("a", retry=retry).job("b").round().finish("a", outcome="failed")
    assert [candidate.unit for candidate in world.ledger.snapshot(world.now).candidates] == ["j2.main"]
    later = world.unit("a").not_before
    assert [candidate.unit for candidate in world.ledger.snapshot(later).candidates] == ["j1.main", "j2.main"]


def test_reasons_go_with_the_queue_they_are_for() -> None:
    retry = {"when": ["failed"], "backoff": "1s"}
    world = World().nodes(1, cpu=1).job("a", retry=retry).round().finish("a", outcome="failed")
    world.job("b", priority="urgent").round().after("2s")
    assert world.codes("a") == ["CPU_BUSY"]
    queue = world.unit("a").queue
    world.finish("b").round()
    assert world.ledger.queues.held(queue) == ()


def test_times_of_a_graph_follow_what_is_learned() -> None:
    tasks: dict[str, Any] = {
        "a": {"class": "k", "expect": "1s"},
        "b": {"needs": ["a"], "expect": "5s"},
        "c": {"expect": "2s"},
    }
    world = World().nodes(1).graph("g", tasks=tasks, deadline="1m")
    assert (world.unit("g.a").tail, world.unit("g.c").slack) == (6 * SECOND, 4 * SECOND)
    assert world.unit("g.a").due == world.state("g").submitted + 55 * SECOND
    world.round().start("g.a", "g.c").after("3s").finish("g.a", run="3s")
    assert world.unit("g.c").slack == 6 * SECOND  # `a` took three seconds, not one
    [shown] = world.ledger.snapshot(world.now).candidates
    assert (shown.unit, shown.critical, shown.tail) == ("j1.b", True, 5 * SECOND)


def test_what_runs_is_seen_to_be_due_earlier_when_what_follows_is_learned_to_take_longer() -> None:
    tasks: dict[str, dict[str, Any]] = {
        "a": {"cpu": 1, "expect": "5m"},
        "b": {"cpu": 1, "needs": ["a"], "expect": "9m", "deadline": "2h", "class": "alike"},
        "c": {"cpu": 1, "expect": "1m", "class": "alike"},
    }
    world = World().nodes(2, cpu=1).graph("g", tasks=tasks).round().start("g.a", "g.c")
    assert world.unit("g.a").due == world.state("g").submitted + 111 * MINUTE
    world.after("9m").finish("g.c", run="9m")  # nine times what was declared; so `b` takes 27m, between 9m and 81m
    assert world.unit("g.a").due == world.state("g").submitted + 93 * MINUTE
    fleet = world.controller.snapshot(world.now).fleet
    assert [of.due for residents in fleet.residents for of in residents] == [world.unit("g.a").due]


def test_a_class_learns_one_run_time_from_a_gang_and_the_resources_of_all_its_members() -> None:
    world = World().nodes(4, cpu=1).job("g", workers=4, expect="1m", **{"class": "k"}).round()
    members = [f"g.main[{rank}]" for rank in range(4)]
    world.start(*members).after("2m").finish(*members[:3], run="2m", peak=100)
    assert "k" not in world.ledger.profiles
    world.finish(members[3], run="2m", peak=900)
    known = world.ledger.profiles["k"]
    assert (known.count, known.mean, known.deviation) == (1, 2 * MINUTE, MINUTE)
    assert (known.peak, known.memory > 100) == (900, True)


def test_a_gang_of_which_a_member_fails_teaches_nothing_of_its_run_time() -> None:
    world = World().nodes(2, cpu=1).job("g", workers=2, **{"class": "k"}).round()
    world.start("g.main[0]", "g.main[1]").after("1m")
    world.finish("g.main[0]", run="1m", outcome="failed", code=1).finish("g.main[1]", run="1m")
    assert "k" not in world.ledger.profiles


def test_profiles_are_bounded_and_the_oldest_forgotten() -> None:
    ledger = Ledger()
    ledger.apply(Began(at=1, term=1, policy="poise", history=10, version=""))
    ledger.apply(NodeJoined(at=1, node=node()))
    for number in range(MAX_PROFILES + 1):
        kind = "kept" if number % 100 == 0 else f"k{number}"
        ledger.apply(JobSubmitted(at=2, job=job(f"j{number}", kind=kind, shape=Shape(cpu=0), retry=Retry())))
        ledger.apply(Placed(at=2, unit=f"j{number}.main", epoch=1, spots=(Spot("n1"),), why=Why(policy="")))
        ledger.apply(Finished(at=2, task=f"j{number}.main", epoch=1, ending=Ending(outcome="done", run=1)))
    assert len(ledger.profiles) <= MAX_PROFILES
    assert ledger.profiles["kept"].count > 30


# --- bytes and time --------------------------------------------------------------------------------------------------


def test_a_ledger_with_a_held_device_survives_encoding() -> None:
    world = World().nodes(1, gpus=2).job("a", gpu=2).round()
    again = Ledger.decode(world.ledger.encode())
    assert again.encode() == world.ledger.encode()
    assert again.nodes["n1"].devices == {"0": "j1.main", "1": "j1.main"}


def test_nodes_are_seen_in_the_same_order_whenever_they_joined() -> None:
    world = World().join(node("b")).join(node("a"))
    names = list(world.ledger.snapshot(world.now).fleet.names)
    assert names == ["a", "b"]
    assert list(Ledger.decode(world.ledger.encode()).snapshot(0).fleet.names) == names


def test_queues_and_shapes_are_seen_in_the_same_order_whenever_they_came() -> None:
    world = World("fifo", check=False).nodes(1, cpu=8)
    for cpu in (3, 1, 2):
        world.job(cpu=cpu).round()
    for number, cpu in enumerate((7, 4, 6)):
        world.job(f"waits{number}", cpu=cpu)
    world.job("again", cpu=7).cancel("waits0")  # its queue was made first, and all that is left in it came last
    world.job(cpu=2).finish("j1.main")
    live, reloaded = world.ledger.snapshot(world.now), Ledger.decode(world.ledger.encode()).snapshot(world.now)
    assert list(live.backlog) == list(reloaded.backlog)
    assert list(live.running) == list(reloaded.running)
    assert [len(live.backlog), len(live.running)] == [4, 2]


def test_time_neither_steps_back_nor_begins_before_one() -> None:
    ledger = Ledger()
    with pytest.raises(InvariantBroken):
        ledger.apply(Began(at=0, term=1, policy="", history=1, version=""))
    ledger.apply(Began(at=5, term=1, policy="", history=1, version=""))
    with pytest.raises(InvariantBroken):
        ledger.apply(Began(at=4, term=2, policy="", history=1, version=""))


def test_time_goes_on_where_the_log_ended() -> None:
    ledger = Ledger()
    assert ledger.leader.resume_at("boot", 100, 1000.0) == 1
    ledger.apply(Began(at=10, term=1, policy="", history=1, version="", boot="boot", boottime=100, wall=1000.0))
    assert ledger.leader.resume_at("boot", 350, 5.0) == 260  # the same boot: whatever the wall says
    assert ledger.leader.resume_at("other", 7, 1002.0) == 10 + 2 * SECOND
    assert ledger.leader.resume_at("other", 7, 5.0) == 10  # a wall that stepped back moves nothing
    assert ledger.leader.wall(10 + SECOND) == 1001.0
    assert ledger.leader.wall(0) == 0.0


def test_an_event_that_cannot_follow_is_a_bug() -> None:
    world = World().nodes(1).job("a").round().finish("a")
    with pytest.raises(InvariantBroken, match="finished, but is ended"):
        world.ledger.apply(Finished(at=world.now, task="j1.main", epoch=1, ending=Ending(outcome="done")))
    with pytest.raises(InvariantBroken, match="placed while done"):
        world.ledger.apply(Placed(at=world.now, unit="j1.main", epoch=2, spots=(Spot("n1"),), why=Why(policy="")))


def test_the_state_of_a_long_queue_is_compressed_for_a_checkpoint() -> None:
    """It is read as one that is not, as older versions have written it."""
    world = World().nodes(1, cpu=1)
    for _ in range(200):
        world.submit({"run": "true"})
    ledger = world.ledger
    assert len(ledger.compressed()) < len(ledger.encode()) / 4
    assert all(Ledger.decode(state).encode() == ledger.encode() for state in (ledger.compressed(), ledger.encode()))


def test_a_checkpoint_and_a_log_from_before_units_could_yield_still_read() -> None:
    """What is absent is read as the default, and a policy sees the same."""
    world = World().nodes(1, cpu=2, gpus=1).job("a", gpu=1).round().start("a").job("b", workers=2)
    later = {"size", "variant", "attained", "preempted", "avoid", "depth", "note", "used_network", "shares", "level"}
    later |= {"hot", "failures", "least", "variants", "work", "checkpoint", "restore", "preemptible", "weight"}
    later |= {"share", "network", "wants", "memory_deviation", "cpu_deviation", "device", "device_deviation"}
    checkpoint = without(msgspec.msgpack.decode(world.ledger.encode()), later)
    events = [without(msgspec.msgpack.decode(encode_event(event)), later) for event in world.log]
    for old in (
        Ledger.decode(msgspec.msgpack.encode(checkpoint)),
        replay(decode_event(msgspec.msgpack.encode(event)) for event in events),
    ):
        old.check()
        assert old.snapshot(world.now) == world.ledger.snapshot(world.now)
        assert [unit.size for job in old.jobs.values() for unit in job.units] == [1, 0]


def without(value: Any, names: set[str]) -> Any:
    """A decoded record without these fields, at any depth."""
    if isinstance(value, dict):
        return {key: without(of, names) for key, of in value.items() if key not in names}
    return [without(of, names) for of in value] if isinstance(value, list) else value
