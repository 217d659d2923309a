"""Deadlines that are lost: what is cancelled then, what goes on as ordinary work, and what is said of it."""

from typing import Any

import pytest

from poise.kernel.explain import exit_code, job_report, question
from poise.kernel.lateness import Least, ends, lost_deadlines
from poise.kernel.ledger import Ledger
from poise.model.deadlines import Missed
from poise.model.events import DeadlinesMissed, Placed, UnitsCancelled
from poise.model.messages import Attempt, Report, Told
from poise.model.progress import ALL
from poise.model.training import Training
from poise.testing import World, replay
from poise.units import MINUTE, SECOND

Tasks = dict[str, dict[str, Any]]


def cancel(by: str) -> dict[str, str]:
    return {"by": by, "if-late": "cancel"}


def busy(**fields: Any) -> World:
    """One CPU, taken for an hour."""
    return World().nodes(1, cpu=1).job("busy", cpu=1, expect="1h", preemptible=False, **fields).round().start("busy")


def events(world: World) -> list[DeadlinesMissed]:
    return [event for event in world.log if isinstance(event, DeadlinesMissed)]


def told(world: World, name: str) -> list[str]:
    """What `show` says of a task."""
    job, _, task = name.partition(".")
    report = job_report(world.ledger, world.state(job), world.now, tasks=True)
    return list(next(of.reasons for of in report.tasks if of.name == (task or "main")))


def same_after_replay(world: World) -> None:
    assert replay(world.log).encode() == world.ledger.encode()
    assert Ledger.decode(world.ledger.encode()).encode() == world.ledger.encode()


# --- cancelled -------------------------------------------------------------------------------------------------------


def test_work_is_cancelled_as_soon_as_the_least_that_is_left_no_longer_fits() -> None:
    """Ten minutes of work, due in fifteen: after five minutes of waiting it is too late."""
    world = busy().job("late", cpu=1, expect="10m", deadline=cancel("15m"))
    submitted = world.state("late").submitted
    assert world.controller.wakeup() is not None
    assert world.after("5m").status("late") == "pending", "it can still be met, to the nanosecond"
    assert world.after("1ms").status("late") == "cancelled"
    [event] = events(world)
    assert event.units == (Missed("j2.main", 10 * MINUTE),)
    assert 5 * MINUTE < event.at - submitted <= 5 * MINUTE + SECOND // 100
    assert told(world, "late") == [
        "cancelled: its deadline of 15m0s could not be met any more (at least 10m0s of work were left)"
    ]
    assert exit_code(world.state("late")) == 130
    same_after_replay(world)


def test_it_is_cancelled_before_it_takes_more_devices() -> None:
    """The room is free only after it is too late, and is given to the next one."""
    world = busy().job("late", cpu=1, expect="10m", deadline=cancel("15m")).job("next", cpu=1, expect="1m").after("6m")
    world.finish("busy", run="6m").round()
    assert [event.unit for event in world.log if isinstance(event, Placed)] == ["j1.main", "j3.main"]


def test_work_that_runs_is_stopped_when_its_deadline_has_passed() -> None:
    """It was to take ten minutes: while it runs, less is left by the minute, until the instant has passed."""
    world = World().nodes(1, cpu=1).job("runs", cpu=1, expect="10m", deadline=cancel("15m")).round().start("runs")
    assert world.after("14m59s").status("runs") == "running"
    assert world.after("2s").status("runs") == "cancelled"
    [event] = events(world)
    assert event.units == (Missed("j1.main", 0),)
    assert told(world, "runs") == ["cancelled: its deadline of 15m0s could not be met any more (it had passed)"]
    same_after_replay(world)


def test_work_that_has_to_begin_anew_is_cancelled_when_that_takes_too_long() -> None:
    retry = {"limit": 3, "backoff": "1s", "when": ["failed"]}
    world = World().nodes(1, cpu=1).job("again", cpu=1, expect="10m", deadline=cancel("15m"), retry=retry).round()
    world.start("again").after("8m").finish("again", outcome="failed", run="8m")
    assert world.after("2s").status("again") == "cancelled"


def test_work_that_ends_well_after_it_was_asked_to_stop_is_done() -> None:
    world = World().nodes(1, cpu=1).job("runs", cpu=1, expect="10m", deadline=cancel("15m")).round().start("runs")
    world.held["n1"].clear()  # it takes its grace
    attempt = Attempt("j1.main", 1)
    assert world.after("15m1s").unit("runs").stopping == "cancel"
    assert told(world, "runs") == ["cancelled: its deadline of 15m0s could not be met any more (it had passed)"]
    world.finish(attempt.task, run="15m")
    assert (world.status("runs"), told(world, "runs")) == ("done", [])
    same_after_replay(world)


@pytest.mark.parametrize("parts", [{}, {"parts": 3}])
def test_a_retry_has_no_deadline_so_nothing_of_it_is_cancelled(parts: dict[str, Any]) -> None:
    world = busy().job("late", cpu=1, expect="10m", deadline=cancel("45m"), **parts).after("46m")
    assert world.state("late").ended
    world.retry("late").after("2h")
    assert {unit.status for unit in world.state("j3").units} == {"pending"}
    assert {event.job for event in events(world)} == {"j2"}


def test_where_nothing_is_known_of_run_times_the_instant_itself_counts() -> None:
    world = busy().job("late", cpu=1, deadline=cancel("15m"))
    assert world.after("14m59s").status("late") == "pending"
    assert world.after("2s").status("late") == "cancelled"


def test_what_has_been_saved_need_not_be_done_again() -> None:
    """Of twenty minutes ten are saved: ten are left, which fit."""
    fields = {"cpu": 1, "expect": "20m", "checkpoint": "1m", "deadline": cancel("30m"), "priority": "low"}
    world = World().nodes(1, cpu=1).job("saves", **fields).round().start("saves").after("10m")
    world.job("now", cpu=1, expect="5m", priority="urgent").round().round()
    assert world.unit("saves").saved == 10 * MINUTE
    assert Least(world.ledger).left(world.unit("saves"), world.now) == 10 * MINUTE
    assert world.start("now").after("9m59s").status("saves") == "pending"
    assert world.after("2s").status("saves") == "cancelled"


def test_work_that_tells_its_progress_is_measured_by_that() -> None:
    world = World().nodes(1, cpu=1).job("trains", cpu=1, expect="20m", deadline=cancel("30m")).round().start("trains")
    said = Training(step=1, progress=ALL // 10)
    world.after("10m").hear("n1", Report(serial=99, told=(Told(attempt=Attempt("j1.main", 1), training=said),)))
    assert Least(world.ledger).left(world.unit("trains"), world.now) == 18 * MINUTE
    assert world.after("5m").status("trains") == "running"
    said = Training(step=2, progress=ALL // 5)
    world.hear("n1", Report(serial=100, told=(Told(attempt=Attempt("j1.main", 1), training=said),)))
    assert world.after("1s").status("trains") == "cancelled", "16 minutes are left of the work, and 15 of time"


def test_an_elastic_gang_is_measured_by_all_the_tasks_that_it_can_use() -> None:
    """Twenty minutes with two tasks are ten with four."""
    fields = {"cpu": 1, "workers": "2..4", "expect": "20m", "deadline": cancel("30m")}
    world = World().nodes(1, cpu=2).job("gang", **fields).round()
    assert Least(world.ledger).left(world.unit("gang"), world.now) == 10 * MINUTE
    world.start("gang.main[0]", "gang.main[1]").after("10m")
    assert Least(world.ledger).left(world.unit("gang"), world.now) == 5 * MINUTE, "half of it is done by half of them"
    assert world.after("19m").status("gang") == "running"
    assert world.after("2m").status("gang") == "cancelled"


def test_a_begin_counts_too() -> None:
    world = World().nodes(1, cpu=1).job("later", cpu=1, begin="1h", expect="10m", deadline=cancel("71m"))
    assert ends(world.state("later"), Least(world.ledger), world.now)["main"].at == world.now + 70 * MINUTE
    world.job("busy", cpu=1, expect="2h").round().start("busy")
    assert world.after("60m59s").status("later") == "pending"
    assert world.after("3s").status("later") == "cancelled"


def test_what_serves_calls_or_has_no_deadline_is_never_looked_at() -> None:
    world = busy().job("plain", cpu=1).job("due", cpu=1, expect="10m", deadline="11m").job("f", parts=2, calls=True)
    assert not world.ledger.jobs.cancelling
    world.after("12m")
    assert [world.status(name) for name in ("plain", "due")] == ["pending", "pending"]


# --- in a graph ------------------------------------------------------------------------------------------------------

CHAIN: Tasks = {
    "prepare": {"cpu": 1, "expect": "5m"},
    "train": {"cpu": 1, "expect": "10m", "needs": ["prepare"], "deadline": cancel("20m")},
    "test": {"cpu": 1, "expect": "5m", "needs": ["train"]},
    "other": {"cpu": 1, "expect": "5m"},
}


def statuses(world: World, *tasks: str) -> list[str]:
    return [world.status(f"g.{task}") for task in tasks]


def test_what_needs_it_is_skipped_and_what_only_it_needs_is_cancelled_too() -> None:
    world = busy().graph("g", tasks=CHAIN)
    assert set(statuses(world.after("5m"), *CHAIN)) == {"pending", "waiting"}
    world.after("1ms")
    assert statuses(world, *CHAIN) == ["cancelled", "cancelled", "skipped", "pending"]
    [event] = events(world)
    assert event.units == (Missed("j2.prepare", of="j2.train"), Missed("j2.train", 15 * MINUTE))
    assert told(world, "g.prepare") == ["cancelled: only train needs it, whose deadline could not be met any more"]
    assert told(world, "g.test") == ["skipped: train was not done"]
    same_after_replay(world)


def test_what_runs_for_it_alone_is_stopped() -> None:
    world = World().nodes(1, cpu=1).graph("g", tasks=CHAIN).round().start("g.prepare").after("9m")
    assert statuses(world, "prepare", "train") == ["active", "waiting"], "it may end at any moment"
    world.after("1m").after("2s")
    assert statuses(world, "prepare", "train", "test") == ["cancelled", "cancelled", "skipped"]


def test_what_others_need_as_well_goes_on_and_is_due_by_their_deadlines() -> None:
    tasks = CHAIN | {"report": {"cpu": 1, "expect": "5m", "needs": ["prepare"], "deadline": "2h"}}
    world = busy().graph("g", tasks=tasks)
    submitted = world.state("g").submitted
    assert world.unit("g.prepare").due == submitted + 10 * MINUTE
    world.after("5m").after("1ms")
    assert statuses(world, "prepare", "train", "report") == ["pending", "cancelled", "waiting"]
    assert world.unit("g.prepare").due == submitted + 115 * MINUTE
    same_after_replay(world)


def test_what_has_a_deadline_of_its_own_that_cancels_nothing_goes_on() -> None:
    own = CHAIN["prepare"] | {"deadline": "1h"}
    world = busy().graph("g", tasks=CHAIN | {"prepare": own}).after("5m").after("1ms")
    assert statuses(world, "prepare", "train") == ["pending", "cancelled"]


def test_a_job_is_cancelled_with_all_that_leads_to_its_end() -> None:
    """Parts and their merge: what is left of the parts would be merged by nobody."""
    world = World().nodes(1, cpu=1).job("cut", cpu=1, parts=3, merge="true", expect="5m", deadline=cancel("20m"))
    for part in range(2):
        world.round().start(f"cut.main[{part}]").after("7m").finish(f"cut.main[{part}]", run="7m")
    world.round().start("cut.main[2]").after("7m")
    assert [unit.status for unit in world.state("cut").units] == ["done", "done", "cancelled", "cancelled"]
    assert world.status("cut") == "cancelled"
    same_after_replay(world)


def test_of_a_sweep_the_tasks_that_cannot_be_in_time_are_cancelled_and_the_others_go_on() -> None:
    fields = {"cpu": 1, "sweep": {"seed": "1..4"}, "expect": "10m", "deadline": cancel("25m")}
    world = World().nodes(1, cpu=2).job("s", **fields).round()
    world.start("s.main[0]", "s.main[1]").after("16m")
    assert [unit.status for unit in world.state("s").units] == ["active", "active", "cancelled", "cancelled"]
    assert world.finish("s.main[0]", "s.main[1]", run="16m").status("s") == "cancelled"
    [event] = events(world)
    assert len(event.units) == 2


def test_a_part_that_is_cancelled_passes_its_turn_on() -> None:
    world = World().nodes(1, cpu=1).job("busy", cpu=1).round()
    world.job("j", cpu=1, parts=4, at_most=1).round().cancel("j.main[0]").cancel("j.main[2]")
    assert [unit.status for unit in world.state("j").units] == ["cancelled", "pending", "cancelled", "waiting"]
    world.start("busy").finish("busy").after("1s").start("j.main[1]").finish("j.main[1]").after("1s")
    assert [unit.status for unit in world.state("j").units] == ["cancelled", "done", "cancelled", "active"]
    same_after_replay(world)


def test_a_log_in_which_turns_were_not_passed_on_makes_the_state_that_it_made_then() -> None:
    world = World().nodes(1, cpu=1).job("busy", cpu=1).round().job("j", cpu=1, parts=3, at_most=1)
    ledger = replay(world.log)
    ledger.apply(UnitsCancelled(at=world.now, job="j2", units=("j2.main[0]",)))
    assert [unit.status for unit in ledger.jobs["j2"].units] == ["cancelled", "waiting", "waiting"]


# --- when it is looked -----------------------------------------------------------------------------------------------


def test_a_control_plane_that_starts_anew_finds_the_same() -> None:
    for stop in ("3m", "6m"):
        world = busy().job("late", cpu=1, expect="10m", deadline=cancel("15m")).after("1m")
        world.now += int(stop[0]) * MINUTE
        for from_checkpoint in (False, True):
            world.restart(from_checkpoint=from_checkpoint).after("1ms")
        assert world.status("late") == ("pending" if stop == "3m" else "cancelled")
        assert len(events(world)) == (stop == "6m")


def test_it_is_recorded_once_and_looked_at_no_more() -> None:
    world = busy().job("late", cpu=1, expect="10m", deadline=cancel("15m")).after("30m")
    assert len(events(world)) == 1
    assert not world.ledger.jobs.cancelling


def test_what_was_not_written_is_found_again() -> None:
    world = busy().job("late", cpu=1, expect="10m", deadline=cancel("15m")).after("5m")
    world.slow_disk = True
    world.after("1ms")
    assert world.status("late") == "cancelled"
    world.slow_disk = False
    world.fail_disk()
    assert world.status("late") == "pending"
    world.full_disk = False
    assert world.after("3s").status("late") == "cancelled"


def test_what_is_learned_meanwhile_counts_within_a_second() -> None:
    """Nothing was known of its class; now six runs of it have taken twenty minutes each, give or take less and less."""
    alike = {"class": "c"}
    world = World().nodes(1, cpu=1).job("run-0", cpu=1, **alike).round().start("run-0")
    world.job("late", cpu=1, priority="low", deadline=cancel("12m"), **alike)
    seen = []
    for number in range(6):
        world.job(f"run-{number + 1}", cpu=1, priority="urgent", **alike)
        world.finish(f"run-{number}", run="20m").after("1s").start(f"run-{number + 1}")
        seen.append(world.status("late"))
    assert seen == ["pending"] * 5 + ["cancelled"]


def test_no_round_is_asked_for_by_looking_again_and_again() -> None:
    """While nothing changes, the only instant to wake for is the one at which the deadline is lost."""
    world = busy().job("late", cpu=1, expect="10m", deadline=cancel("15m")).after("2s")
    world.disconnect("n1")
    lateness = world.controller.jobs.lateness
    assert lateness.wakeup(world.ledger) is not None
    list(lateness.missed(world.ledger, world.now + 2 * SECOND))
    assert lateness.wakeup(world.ledger) == world.state("late").submitted + 5 * MINUTE + 1


# --- goes on ---------------------------------------------------------------------------------------------------------


def test_work_that_is_late_and_may_run_says_that_it_is_ordinary_work_now() -> None:
    world = busy().job("late", cpu=1, expect="10m", deadline="15m")
    assert lost_deadlines(world.ledger, world.state("late"), world.now) == {}
    world.after("6m")
    assert told(world, "late")[-1] == (
        "its deadline of 15m0s cannot be met any more (at least 10m0s of work are left, and 9m0s of time): "
        "treated as ordinary work"
    )
    world.after("10m")
    assert told(world, "late")[-1].endswith("(it passed 1m0s ago): treated as ordinary work")
    world.finish("busy", run="16m").round().start("late")
    assert world.status("late") == "running"
    assert told(world, "late")[-1].endswith("treated as ordinary work")
    assert told(world.finish("late"), "late") == []
    assert events(world) == []


def test_work_that_was_accepted_as_likely_goes_on_like_any_other() -> None:
    world = busy().job("strict", cpu=1, expect="10m", deadline={"by": "15m", "if-late": "refuse"}).after("16m")
    assert world.status("strict") == "pending"
    assert told(world, "strict")[-1].endswith("treated as ordinary work")


def test_what_leads_to_lost_deadlines_only_says_so_too() -> None:
    tasks: Tasks = {
        "a": {"cpu": 1, "expect": "5m"},
        "b": {"cpu": 1, "expect": "10m", "needs": ["a"], "deadline": "16m"},
        "c": {"cpu": 1, "expect": "1m", "needs": ["a"]},
    }
    world = busy().graph("g", tasks=tasks).after("2m")
    assert told(world, "g.a")[-1].startswith("the deadline of b cannot be met any more (at least 15m0s of work")
    assert told(world, "g.b")[-1].startswith("its deadline of 16m0s cannot be met any more")
    assert not any("deadline" in reason for reason in told(world, "g.c"))
    tasks["c"]["deadline"] = "1h"
    world = busy().graph("g", tasks=tasks).after("2m")
    assert not any("deadline" in reason for reason in told(world, "g.a")), "another deadline depends on it"


@pytest.mark.parametrize("started", [False, True])
def test_an_explanation_tells_it_of_what_waits_and_of_what_runs(started: bool) -> None:
    world = World().nodes(1, cpu=1).job("late", cpu=1, expect="10m", deadline="10m")
    if started:
        world.round().start("late")
    else:
        world.job("busy", cpu=1, priority="urgent").drain("n1")
    world.after("11m")
    asked = question(world.ledger, world.state("late"), world.controller.snapshot(world.now))
    reasons = asked.active[0].reasons if started else asked.pending[0].late
    assert [reason.code for reason in reasons] == ["LATE"]


def test_the_story_of_what_was_cancelled_tells_the_deadline() -> None:
    world = busy().job("late", cpu=1, expect="10m", deadline=cancel("15m")).after("6m")
    asked = question(world.ledger, world.state("late"), world.controller.snapshot(world.now))
    assert [told.text for told in asked.story][1:] == [
        "main cancelled: its deadline of 15m0s could not be met any more (at least 10m0s of work were left)",
        "over: cancelled, exit code 130, 5m0s in all",
    ]
