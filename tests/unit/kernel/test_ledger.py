"""The ledger by its life stories, and what a policy is shown of it."""

from typing import Any

import pytest

from poise.kernel.ledger import HEAD, MAX_PROFILES, PAST_ATTEMPTS, InvariantBroken, Ledger, deciding_ending
from poise.model.decisions import Spot, Why
from poise.model.events import Began, Finished, JobSubmitted, NodeJoined, Placed
from poise.model.jobs import Ending, Job, Retry, Task, Unit
from poise.model.resources import Shape
from poise.testing import World, node, replay
from poise.units import SECOND


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
        ("failed", {}, "failed"),
        ("failed", {"when": ["failed"]}, "pending"),
        ("failed", {"when": ["failed"], "limit": 0}, "failed"),
        ("killed", {}, "pending"),
        ("lost", {}, "pending"),
        ("oom", {}, "failed"),
        ("signal", {"when": ["signal"]}, "pending"),
        ("unstartable", {"when": ["failed", "killed", "signal", "oom", "lost"]}, "failed"),
        ("stopped", {"limit": 0}, "pending"),
        ("returned", {"limit": 0}, "pending"),
    ],
)
def test_what_follows_an_ending(outcome: Any, retry: dict[str, Any], then: str) -> None:
    assert World().nodes(1).job("a", retry=retry).round().finish("a", outcome=outcome).status("a") == then


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
    assert ledger.unfinished_jobs() == ledger.unfinished_units() == 0


def test_a_job_after_two_others_waits_for_both_and_ends_with_either() -> None:
    world = World().nodes(1).job("a").job("b").job("c", after=["a", "b", "a"]).round().finish("a")
    assert world.status("c") == "waiting"
    assert world.finish("b").status("c") == "pending"
    world.job("d", after=["c"]).job("e", after=["c", "d"]).cancel("c")
    assert (world.status("d"), world.status("e")) == ("failed", "failed")


def test_after_a_job_that_is_over() -> None:
    world = World().nodes(1).job("a").round().finish("a").job("b", after=["a"])
    assert world.status("b") == "pending"
    world.cancel("b").job("c", after=["b"])
    assert world.status("c") == "failed"


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
    assert [job.id for job in first.ledger.recent_jobs(20)] == ended
    assert [job.id for job in second.ledger.recent_jobs(20)] == ended
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
    assert [job.name for job in world.ledger.recent_jobs(1)] == ["b", "c"]
    assert [job.name for job in world.ledger.recent_jobs(0)] == ["c"]


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
    assert world.ledger.held_queue(queue) == ()


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


def test_time_neither_steps_back_nor_begins_before_one() -> None:
    ledger = Ledger()
    with pytest.raises(InvariantBroken):
        ledger.apply(Began(at=0, term=1, policy="", history=1, version=""))
    ledger.apply(Began(at=5, term=1, policy="", history=1, version=""))
    with pytest.raises(InvariantBroken):
        ledger.apply(Began(at=4, term=2, policy="", history=1, version=""))


def test_time_goes_on_where_the_log_ended() -> None:
    ledger = Ledger()
    assert ledger.resume_at("boot", 100, 1000.0) == 1
    ledger.apply(Began(at=10, term=1, policy="", history=1, version="", boot="boot", boottime=100, wall=1000.0))
    assert ledger.resume_at("boot", 350, 5.0) == 260  # the same boot: whatever the wall says
    assert ledger.resume_at("other", 7, 1002.0) == 10 + 2 * SECOND
    assert ledger.resume_at("other", 7, 5.0) == 10  # a wall that stepped back moves nothing
    assert ledger.wall(10 + SECOND) == 1001.0
    assert ledger.wall(0) == 0.0


def test_an_event_that_cannot_follow_is_a_bug() -> None:
    world = World().nodes(1).job("a").round().finish("a")
    with pytest.raises(InvariantBroken, match="finished, but is ended"):
        world.ledger.apply(Finished(at=world.now, task="j1.main", epoch=1, ending=Ending(outcome="done")))
    with pytest.raises(InvariantBroken, match="placed while done"):
        world.ledger.apply(Placed(at=world.now, unit="j1.main", epoch=2, spots=(Spot("n1"),), why=Why(policy="")))
