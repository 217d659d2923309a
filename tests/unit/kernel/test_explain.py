from typing import Any

from poise.kernel.explain import exit_code, job_report, node_report, story
from poise.model.reports.jobs import JobReport, TaskReport
from poise.testing import WALL, World, node
from poise.units import SECOND


def report(world: World, name: str) -> JobReport:
    return job_report(world.ledger, world.state(name), world.now, tasks=True)


def only(world: World, name: str) -> TaskReport:
    [task] = report(world, name).tasks
    return task


def test_every_reason_a_unit_waits_for() -> None:
    tasks: dict[str, Any] = {"a": {}, "b": {}, "c": {"needs": ["a", "b"]}}
    world = World().nodes(1).job("first").graph("g", tasks=tasks, after=["first"])
    assert [reason.sentence() for reason in world.reasons("g.c")] == [
        "waits for a",
        "waits for b",
        "waits for job j1",
    ]
    assert world.codes("first") == ["NEXT_ROUND"]
    assert world.round().codes("first") == []


def test_back_off_is_told_with_what_is_left_of_it() -> None:
    retry: dict[str, Any] = {"when": ["failed"], "backoff": "8s"}
    world = World().nodes(1).job("a", retry=retry).round().finish("a", outcome="failed").after("2s")
    assert [reason.sentence() for reason in world.reasons("a")] == ["retries in 6.0 s"]


def test_a_task_from_its_submission_to_its_end() -> None:
    world = World().nodes(1).job("a").after("2s")
    assert (only(world, "a").status, only(world, "a").exit_code, only(world, "a").pid) == ("placed", None, None)
    world.start("a").after("3s")
    running = only(world, "a")
    assert running.pid
    assert (running.status, running.run, running.node) == ("running", 3 * SECOND, "n1")
    world.finish("a", run="3s", result='{"accuracy": 0.9}', peak=5)
    done = report(world, "a")
    assert (done.status, done.exit_code, done.counts) == ("done", 0, {"done": 1})
    assert (done.tasks[0].result, done.tasks[0].peak, done.tasks[0].pid) == ({"accuracy": 0.9}, 5, None)
    assert done.submitted == WALL
    assert done.ended > done.submitted


def test_a_result_that_is_no_json_is_told_as_it_is() -> None:
    assert only(World().nodes(1).job("a").round().finish("a", result="{nan"), "a").result == "{nan"


def test_exit_codes_are_those_of_a_shell() -> None:
    def ends(**ending: Any) -> int | None:
        return exit_code(World().nodes(1).job("a", retry={"limit": 0}).round().finish("a", **ending).state("a"))

    assert ends() == 0
    assert ends(outcome="failed", code=3) == 3
    assert ends(outcome="signal", signal=15) == 143
    assert ends(outcome="killed", signal=9) == 137
    assert ends(outcome="oom", signal=9) == 137
    assert ends(outcome="hung", signal=15) == 124
    assert ends(outcome="lost") == 125
    assert ends(outcome="unstartable", code=127) == 127
    assert exit_code(World().job("a").state("a")) is None
    assert exit_code(World().job("a").cancel("a").state("a")) == 130


def test_a_gang_ends_with_the_code_of_who_failed_first() -> None:
    world = World().nodes(1).job("g", workers=2, retry={"limit": 0}).round()
    world.start("g.main[0]", "g.main[1]").finish("g.main[1]", outcome="failed", code=7)
    assert report(world, "g").exit_code == 7


def test_who_was_stopped_for_another_of_its_gang_has_not_failed() -> None:
    world = World().nodes(2).job("g", workers=3, retry={"limit": 0}).round()
    world.start("g.main[0]", "g.main[1]", "g.main[2]").finish("g.main[1]", outcome="killed", signal=9)
    world.finish("g.main[0]", outcome="stopped").finish("g.main[2]", outcome="stopped")
    told = report(world, "g")
    assert [task.status for task in told.tasks] == ["stopped", "failed", "stopped"]
    assert (told.status, told.counts, told.exit_code) == ("failed", {"stopped": 2, "failed": 1}, 137)
    happened = [one.text for one in story(world.ledger, world.state("g"), world.state("g").units, 10)]
    assert any("main[1] was killed" in text and "2 others were stopped for it" in text for text in happened)


def test_earlier_attempts_are_told() -> None:
    world = World().nodes(1).job("a").round().finish("a", outcome="lost", note="gone").after("2s").finish("a")
    [attempt] = only(world, "a").attempts
    assert (attempt.epoch, attempt.outcome, attempt.note) == (1, "lost", "gone")
    assert only(world, "a").epoch == 2


def test_what_has_yielded_is_not_shown_where_it_was() -> None:
    world = World().join(node("n1", cpu=2, gpus=1)).job("a", cpu=2, gpu=1, priority="low", expect="1h").round()
    world.start("a").after("1m").job("b", cpu=2, priority="urgent", expect="1m").after("2s").start("b").after("1s")
    shown = report(world, "a").tasks[0]
    assert (shown.status, shown.node, shown.devices, shown.cpus, shown.why) == ("pending", "", (), (), "")
    assert [(of.node, of.outcome) for of in shown.attempts] == [("n1", "stopped")]
    assert shown.reasons


def test_a_graph_shows_its_critical_path_and_what_remains() -> None:
    tasks: dict[str, Any] = {"a": {"expect": "1s"}, "b": {"needs": ["a"], "expect": "5s"}, "c": {"expect": "2s"}}
    world = World().nodes(1).graph("g", tasks=tasks)
    told = report(world, "g")
    assert (told.critical_path, told.remaining, told.command) == (("a", "b"), 6 * SECOND, "graph of 3 tasks")
    assert [(task.name, task.critical, task.slack) for task in told.tasks] == [
        ("a", True, 0),
        ("b", True, 0),
        ("c", False, 4 * SECOND),
    ]


def test_what_held_up_a_graph_counts_with_all_its_attempts() -> None:
    tasks: dict[str, Any] = {
        "a": {"expect": "1s"},
        "b": {"needs": ["a"], "expect": "4s", "retry": {"when": ["failed"], "backoff": "1s"}},
        "c": {"needs": ["a"], "expect": "5s"},
        "d": {"needs": ["b", "c"], "expect": "1s"},
    }
    world = World().nodes(1).graph("g", tasks=tasks).round().start("g.a").after("1s").finish("g.a", run="1s").round()
    world.start("g.b", "g.c").after("3s").finish("g.b", outcome="failed", run="3s").after("2s").finish("g.c", run="5s")
    world.round().start("g.b").after("4s").finish("g.b", run="4s").round().start("g.d").after("1s")
    world.finish("g.d", run="1s")
    told = report(world, "g")
    assert told.status == "done" and told.critical_path == ("a", "b", "d")
    assert {task.name: task.slack for task in told.tasks} == {"a": 0, "b": 0, "c": 4 * SECOND, "d": 0}


def test_a_node_with_what_is_taken_on_it() -> None:
    world = World().join(node("n1", cpu=4, gpus=2)).job("a", gpu=1, memory="1GiB").round()
    told = node_report(world.ledger.nodes["n1"])
    assert (told.status, told.cpu_used, told.memory_used, told.running, told.queued) == ("up", 1000, 2**30, 1, 0)
    assert [device.held_by for device in told.devices] == ["j1.main", ""]
    world.drain("n1")
    assert node_report(world.ledger.nodes["n1"]).status == "drained"
    world.drain("n1", moves=True)
    assert node_report(world.ledger.nodes["n1"]).status == "emptying"
    world.lose("n1")
    assert node_report(world.ledger.nodes["n1"]).status == "lost"
