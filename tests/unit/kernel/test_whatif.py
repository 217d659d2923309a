"""Explain, why not, plan and unblock, as a user asks them."""

from typing import Any

import msgspec
import pytest

from poise.errors import Conflict, NotFound, SpecError
from poise.kernel.explain import job_report, question
from poise.kernel.find import find, found_report
from poise.kernel.ledger import arrays
from poise.kernel.messages import Submit
from poise.kernel.whatif import unblock, why_not
from poise.model.events import Preempted
from poise.model.reports.questions import Suggestion, UnblockReport, Waiting, WhyNot
from poise.model.resources import Device, Node
from poise.policy.suites import policy_named
from poise.testing import WALL, World, node
from poise.units import MINUTE, SECOND
from unit.asking import FEW, explained, planned


def waits(world: World, job: str) -> Waiting:
    [waiting] = explained(world, job).waiting
    return waiting


def not_on(world: World, job: str, name: str) -> WhyNot:
    view = world.controller.snapshot(world.now)
    return why_not(policy_named(world.ledger.leader.policy), view, question(world.ledger, world.state(job), view), name)


def unblocked(world: World, job: str) -> UnblockReport:
    view = world.controller.snapshot(world.now)
    return unblock(policy_named(world.ledger.leader.policy), view, question(world.ledger, world.state(job), view))


def suggested(world: World, job: str) -> dict[str, Suggestion]:
    return {suggestion.kind: suggestion for suggestion in unblocked(world, job).suggestions}


# --- explain ---------------------------------------------------------------------------------------------------------


def test_a_waiting_job_tells_who_is_in_its_way_and_until_when() -> None:
    world = World().nodes(2, gpus=1).job("a", gpu=1, expect="10m").job("b", gpu=1, expect="20m").round().start("a", "b")
    told = waits(world.after("1m").job("late", gpu=1).round(), "late")
    assert [reason.code for reason in told.reasons] == ["GPU_BUSY", "GPU_BUSY"]
    assert [(of.nodes, [reason.code for reason in of.reasons]) for of in told.refusing] == [
        (("n1",), ["GPU_BUSY"]),
        (("n2",), ["GPU_BUSY"]),
    ]
    [freeing] = told.frees
    assert (freeing.unit, freeing.left.mean, freeing.left.source) == ("j1.main", 9 * MINUTE, "declared")
    assert told.start is not None
    assert told.start.earliest is not None and told.start.latest is not None
    assert 0 < told.start.earliest < 9 * MINUTE < told.start.latest
    assert told.start.futures == FEW.futures
    assert (told.count, told.named, told.asks) == (1, ("j3.main",), "1 CPU, 1 GPU")


def test_what_is_not_preempted_before_its_minimum_run_time_says_so() -> None:
    world = World("poise").nodes(1, cpu=2).job("low", cpu=2, priority="low", expect="10m").round().start("low")
    world.after("8s").job("urgent", cpu=2, priority="urgent", expect="10s").job("same", cpu=2, priority="low").round()
    [freeing] = waits(world, "urgent").frees
    assert freeing.protected is not None
    assert freeing.protected.sentence() == (
        "j1.main cannot be preempted now: its minimum run time is 30.0 s, 22.0 s left"
    )
    [freeing] = waits(world, "same").frees
    assert freeing.protected is None, "of the same class"
    assert not any(of.protected for of in waits(world.after("22s"), "urgent").frees), "it has run for 30 s"


def test_what_is_never_preempted_says_so() -> None:
    world = World("poise").nodes(1, cpu=2).job("low", cpu=2, priority="low", expect="10m", preemptible=False)
    world.round().start("low").after("5m").job("urgent", cpu=2, priority="urgent", expect="10s").round()
    [freeing] = waits(world, "urgent").frees
    assert freeing.protected is not None and freeing.protected.have == "`preemptible: false`"


def test_who_is_served_before_it_is_told_with_the_reason() -> None:
    world = World().nodes(1).job("a", cpu=2).round().job("b", cpu=2, priority="high").job("c", cpu=2).round()
    told = waits(world, "c")
    assert told.ahead == 1
    assert [(of.unit, of.why) for of in told.first] == [("j2.main", "high")]


def test_many_units_that_wait_alike_are_told_as_one() -> None:
    tasks: dict[str, Any] = {f"t{number}": {"cpu": 2} for number in range(500)}
    tasks["last"] = {"needs": list(tasks)}
    world = World(check=False).nodes(1).job("a", cpu=2).round().graph("g", tasks=tasks).round()
    alike, after = explained(world, "g").waiting
    assert (alike.count, len(alike.named)) == (500, 8)
    assert after.count == 1
    assert {reason.code for reason in after.reasons} == {"NEEDS"}
    assert explained(world, "g", everything=True).waiting[0].named[-1] == "j2.t499"


def test_large_fleets_are_told_by_kind_of_node() -> None:
    world = World(check=False)
    for number in range(20):
        world.join(node(f"small{number:02}", cpu=1)).join(node(f"large{number:02}", cpu=4, gpus=2))
    world.drain("large00").job(cpu=4, workers=19).round().job("late", cpu=2).round()
    told = waits(world, "late")
    found = {(of.count, tuple(reason.code for reason in of.reasons)) for of in told.refusing}
    assert found == {(20, ("CPU_TOO_SMALL",)), (19, ("CPU_BUSY",)), (1, ("NODE_DRAINED",))}
    busy = next(of for of in told.refusing if of.count == 19)
    assert len(busy.nodes) == 8
    assert busy.reasons[0].sentence() == "19 nodes like large01: at most 0 CPU free, 2 needed"
    everything = explained(world, "late", everything=True).waiting[0].refusing
    assert sorted(len(of.nodes) for of in everything) == [1, 19, 20]


def test_a_gang_of_which_one_is_missing() -> None:
    world = World().nodes(2, cpu=2).job("a", expect="1m").round().job("gang", workers=4).round()
    told = waits(world, "gang")
    assert told.reasons[0].code == "GANG_INCOMPLETE"
    roomy = next(of for of in told.refusing if of.nodes == ("n2",))
    assert [reason.code for reason in roomy.reasons] == ["GANG_INCOMPLETE"]
    assert told.asks == "4 tasks of 1 CPU"


def test_a_back_off_is_a_reason_and_the_earliest_start() -> None:
    retry = {"when": ["failed"], "backoff": "8s"}
    told = waits(World().nodes(1).job("a", retry=retry).round().finish("a", outcome="failed").after("2s"), "a")
    assert told.reasons[0].code == "BACKOFF"
    assert told.start is not None
    assert told.start.earliest == told.start.likely == 6 * SECOND


def test_what_is_to_begin_later_says_so_wherever_it_is_asked() -> None:
    world = World().nodes(1).job("a", begin="1h").round().after("10m")
    assert waits(world, "a").reasons[0].sentence() == "begins in 50m0s at the earliest"
    assert unblocked(world, "a").text == "it begins in 50m0s at the earliest; nothing brings that forward"
    told = planned(world, {"run": "true", "begin": "2h"})
    assert told.places == ()
    [later] = told.later
    assert [reason.sentence() for reason in later.reasons] == ["begins in 2h0m at the earliest"]
    told = planned(world, {"run": "true", "begin": "2h", "after": ["a"]})
    assert [reason.code for reason in told.later[0].reasons] == ["AFTER", "BEGINS"]


def test_what_waits_for_others_says_for_whom() -> None:
    world = World().nodes(1).job("first").round().job("next", after=["first"])
    [waiting] = explained(world, "next").waiting
    assert [reason.sentence() for reason in waiting.reasons] == ["waits for job j1"]


def test_what_runs_tells_why_there_and_what_is_left() -> None:
    world = World().nodes(2).job("a", expect="10m").round().start("a").after("4m")
    told = explained(world, "a")
    [going] = told.running
    assert (going.nodes, going.elapsed, going.left.mean, going.overrun) == (("n1",), 4 * MINUTE, 6 * MINUTE, False)
    assert going.why is not None
    assert going.why.instead_of == ("n2",)
    assert told.waiting == ()


def test_what_has_overrun_says_so_and_is_estimated_anew() -> None:
    world = World().nodes(1).job("a", expect="1m").round().start("a").after("5m")
    [going] = explained(world, "a").running
    assert (going.overrun, going.left.mean) == (True, 5 * MINUTE)


def test_what_was_learned_is_told_with_its_uncertainty() -> None:
    world = World().nodes(1)
    for _ in range(4):
        world.job(**{"class": "train"}).round().finish(f"j{len(world.ledger.jobs)}", run="10s", peak=2**30)
    told = waits(world.job("full", cpu=2).round().job("next", **{"class": "train"}).round(), "next").prediction
    assert told is not None
    [run] = told.run.values()
    assert (run.mean, run.source, told.runs) == (10 * SECOND, "history", 4)
    assert told.memory is not None
    assert told.memory.mean == 2**30


def offering(name: str, model: str) -> Node:
    device = Device(index=0, kind="gpu", model=model, memory=80 * 2**30)
    return msgspec.structs.replace(node(name, cpu=8), devices=(device,))


def test_what_is_declared_holds_where_its_class_was_not_measured() -> None:
    world = World().join(offering("n1", "fast")).join(offering("n2", "slow"))
    world.job("a", gpu=1, gpu_model="fast", **{"class": "k"}).round().start("a").finish("a", run="5s")
    world.job("full", gpu=1, workers=2, priority="high").round()
    told = waits(world.job("b", gpu=1, expect="10m", **{"class": "k"}).round(), "b").prediction
    assert told is not None
    assert {model: (run.mean, run.source) for model, run in told.run.items()} == {
        "fast": (5 * SECOND, "history"),
        "slow": (10 * MINUTE, "declared"),
    }


def grown() -> World:
    """An elastic gang that has run for 80 s in two tasks, of ten minutes, and begins again in four."""
    world = World().nodes(1, cpu=4).job("a", cpu=2).round().start("a")
    world.job("wide", workers="2..4", expect="10m", checkpoint={"every": "30s", "restore": "5s"}, **{"class": "k"})
    world.round().start("wide.main[0]", "wide.main[1]").after("70s").finish("a").after("10s")
    assert [of.cause for of in world.log if isinstance(of, Preempted)] == ["grow"]
    assert len(world.where("wide")) == 4
    for number in range(4):
        world.start(f"wide.main[{number}]")
    return world


def test_what_has_grown_has_less_left_and_does_not_begin_anew() -> None:
    """A minute of two tasks was saved, and is not done again: 18 of 20 minutes of work are left for four tasks."""
    [going] = explained(grown(), "wide").running
    assert going.left.mean == 4 * MINUTE + 30 * SECOND + 5 * SECOND
    assert going.left.source == "declared"
    assert going.prediction is not None
    assert {run.mean for run in going.prediction.run.values()} == {5 * MINUTE}


def test_what_has_grown_tells_of_its_class_what_its_least_tasks_would_have_taken() -> None:
    world = grown()
    for number in range(4):
        world.finish(f"wide.main[{number}]", run="4m")
    assert world.ledger.profiles["k"].mean == (2 * MINUTE + 16 * MINUTE) // 2


def test_a_finished_job_is_one_story() -> None:
    world = World().nodes(1).job("a").round().start("a").after("2s").finish("a", outcome="lost", note="gone", run="2s")
    world.after("2s").finish("a", run="3s")
    told = [of.text for of in explained(world, "a").story]
    assert told[0] == "submitted"
    assert told[1] == "attempt 1 of main on n1 was lost (gone), 2.0 s in"
    assert told[2].startswith("attempt 2 of main placed on n1: ")
    assert told[3] == "main was done, 3.0 s in"
    assert told[4].startswith("over: done, exit code 0, ")


def test_who_has_yielded_says_so() -> None:
    world = World().nodes(1).job("a", cpu=2, priority="low", expect="1h").round().start("a").after("1m")
    world.job("b", cpu=2, priority="urgent", expect="1m").after("2s").start("b").finish("b").after("2s")
    told = [of.text for of in explained(world, "a").story]
    assert any("was stopped" in text for text in told)
    assert any(text.startswith("main asked to yield to j2.main: gain ") for text in told)
    assert any(
        text.startswith("j1.main asked to yield to j2.main: gain ")
        for text in [of.text for of in explained(world, "b").story]
    )


def test_explaining_changes_nothing() -> None:
    world = World().nodes(2, gpus=1).job("a", gpu=1).round().start("a").job("b", gpu=1, workers=2, priority="urgent")
    before = world.ledger.encode()
    explained(world, "b")
    not_on(world, "b", "n1")
    unblocked(world, "b")
    planned(world, {"run": "true", "resources": {"gpu": 1}})
    assert world.ledger.encode() == before


# --- why not ---------------------------------------------------------------------------------------------------------


def test_every_reason_of_one_node() -> None:
    world = World().join(node("n1", cpu=4, memory="8GiB", gpus=1)).join(node("n2", cpu=1))
    world.job("a", cpu=4, memory="8GiB", gpu=1).round().job("b", cpu=4, memory="8GiB", gpu=1).round()
    told = not_on(world, "b", "n1")
    assert [reason.code for reason in told.reasons] == ["CPU_BUSY", "MEMORY_BUSY", "GPU_BUSY"]
    assert (told.fits, told.score) == (False, None)
    assert not_on(world, "b", "n2").reasons[0].code == "CPU_TOO_SMALL"


def test_a_node_that_fits_is_compared_with_the_chosen_one() -> None:
    world = World().join(node("n1", cpu=2)).join(node("n2", cpu=16)).job("a").round().start("a")
    told = not_on(world, "a", "n2")
    assert told.fits
    assert told.chosen == "n1"
    assert told.score is not None and told.chosen_score is not None
    assert told.score < told.chosen_score
    assert told.text.startswith("it fits; n1 is better (")
    assert "when it was placed" in told.text
    assert not_on(world, "a", "n1").text == "it is there"


def test_a_node_that_is_taken_in_this_round_says_by_whom() -> None:
    world = World().nodes(1).job("a", cpu=2, priority="high").job("b", cpu=2)
    told = not_on(world, "b", "n1")
    assert [reason.code for reason in told.reasons] == ["BEHIND", "CPU_BUSY"]
    assert told.reasons[0].subject == "j1.main"
    assert not_on(world, "a", "n1").text == "it is placed there in the next round"


def test_part_of_a_gang_would_fit() -> None:
    world = World().nodes(2, cpu=2).job("a").round().job("gang", workers=4).round()
    told = not_on(world, "gang", "n2")
    assert [(reason.code, reason.need, reason.have) for reason in told.reasons] == [("GANG_INCOMPLETE", "4", "2")]


def test_a_node_that_is_not_there() -> None:
    world = World().nodes(1).job("a")
    with pytest.raises(NotFound) as error:
        not_on(world, "a", "n7")
    assert error.value.record.have == "n1"
    world.round().finish("a")
    with pytest.raises(Conflict, match="nothing of job j1 waits"):
        not_on(world, "a", "n1")


# --- plan ------------------------------------------------------------------------------------------------------------


def test_a_plan_is_what_then_happens() -> None:
    world = World().nodes(2, gpus=2).job("a", gpu=1).round()
    document = {"run": "true", "resources": {"gpu": 2}, "workers": 1}
    told = planned(world, document)
    [place] = told.places
    assert told.revision == world.ledger.revision
    world.submit(document).round()
    unit = world.ledger.jobs.unit("j2.main")
    assert unit is not None
    assert [spot.node for spot in place.spots] == [task.node for task in unit.tasks]
    assert [spot.devices for spot in place.spots] == [task.devices for task in unit.tasks]
    assert place.named == ("j2.main",)


def test_a_plan_tells_who_would_yield() -> None:
    world = World().nodes(1).job("a", cpu=2, priority="low", expect="1h").round().start("a").after("1m")
    told = planned(world, {"run": "true", "resources": {"cpu": 2}, "priority": "urgent", "expect": "1m"})
    assert [(of.unit, of.to) for of in told.yields] == [("j1.main", "j2.main")]
    [waiting] = told.waits
    assert waiting.reasons[0].code == "PREEMPTING"
    assert waiting.start is not None
    assert (waiting.start.earliest, waiting.start.likely, waiting.start.latest) == (5 * SECOND,) * 3


def test_a_plan_of_a_graph_tells_what_comes_later() -> None:
    world = World().nodes(1, cpu=1)
    tasks = {"a": {"run": "true"}, "b": {"run": "true"}, "c": {"run": "true", "needs": ["a", "b"]}}
    told = planned(world, {"kind": "graph", "tasks": tasks})
    assert [of.named for of in told.places] == [("j1.a",)]
    assert [(of.count, of.named) for of in told.waits] == [(1, ("j1.b",))]
    [later] = told.later
    assert (later.named, [reason.need for reason in later.reasons]) == (("j1.c",), ["a", "b"])


@pytest.mark.parametrize(
    ("fields", "waits", "reason"),
    [({}, 1, "waits behind j1.main[3], which came first"), ({"at_most": 2}, 0, "waits for its turn: at most 2 of")],
)
def test_a_plan_of_an_array_counts_all_of_its_parts(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], waits: int, reason: str
) -> None:
    """Some exist at its submission, of which some are placed."""
    monkeypatch.setattr(arrays, "WINDOW", 4)
    world = World().nodes(1, cpu=3)
    told = planned(world, {"run": "true", "parts": 20_000, "merge": "true"} | fields)
    assert sum(of.count for of in told.waits) == waits
    later, merge = told.later
    assert sum(of.count for of in told.places) + waits + later.count == 20_000
    made = 20_000 - later.count
    assert later.named[:2] == (f"j1.main[{made}]", f"j1.main[{made + 1}]")
    assert later.reasons[0].sentence().startswith(reason)
    assert (merge.named, merge.reasons[0].sentence()) == (("j1.main.merge",), "waits for main")


@pytest.mark.parametrize("fields", [{"hold": True}, {"begin": "1h"}])
def test_a_plan_of_an_array_that_starts_later_counts_all_of_its_parts(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    monkeypatch.setattr(arrays, "WINDOW", 4)
    [later] = planned(World().nodes(1), {"run": "true", "parts": 20_000} | fields).later
    assert later.count == 20_000


def test_a_part_of_an_array_that_does_not_exist_yet_says_what_is_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "WINDOW", 4)
    world = World().nodes(1, cpu=3).job("a", parts=20_000).round()
    [task] = found_report(world.ledger, find(world.ledger, "a.main[500]"), world.now).tasks
    assert list(task.reasons) == ["waits behind j1.main[6], which came first"]


def test_a_plan_of_what_comes_after_another_job() -> None:
    world = World().nodes(1).job("first").round()
    told = planned(world, {"run": "true", "after": ["first"]})
    assert told.places == ()
    assert [reason.sentence() for reason in told.later[0].reasons] == ["waits for job j1"]


def test_a_plan_is_refused_with_what_the_submission_would_be_refused_with() -> None:
    world = World().nodes(1).job("a")
    with pytest.raises(SpecError, match="more than any node has"):
        planned(world, {"run": "true", "resources": {"cpu": 64}})
    with pytest.raises(Conflict, match="is taken"):
        planned(world, {"run": "true", "name": "a"})
    with pytest.raises(NotFound):
        planned(world, {"run": "true", "after": ["nobody"]})


def test_a_submission_is_refused_when_the_world_has_moved_since_its_plan() -> None:
    world = World().nodes(1)
    document = {"run": "true"}
    revision = planned(world, document).revision
    compiled = world.controller.prepare(document, WALL, world.now)
    world.job("meanwhile").say(Submit(90, compiled, if_revision=revision))
    refused = world.error()
    assert isinstance(refused, Conflict)
    assert refused.record.need == f"revision {revision}"
    assert refused.record.have == f"revision {revision + 1}"
    world.say(Submit(91, compiled, key="again", if_revision=revision + 1))
    assert world.replies[-1].value == "j2"
    world.say(Submit(92, compiled, key="again", if_revision=revision + 1))
    assert world.replies[-1].value == "j2", "the same submission again is the same job"


# --- unblock ---------------------------------------------------------------------------------------------------------


def test_the_smallest_change_of_each_kind() -> None:
    world = World().join(node("n1", cpu=8, memory="16GiB"))
    world.job("a", cpu=2, memory="10GiB", expect="1h").round().start("a").after("1m")
    world.job("b", memory="8GiB").round()
    found = suggested(world, "b")
    assert found["memory"].command == "--memory 6GiB"
    assert found["memory"].size == 0.25
    assert found["end"].command == "poise cancel j1"
    assert found["node"].text == "one more node like n1"
    assert "cpu" not in found
    assert next(iter(found)) == "memory"


def test_a_job_that_ends_takes_with_it_what_of_it_waits() -> None:
    both: dict[str, dict[str, Any]] = {
        "runs": {"cpu": 2, "preemptible": False},
        "waits": {"cpu": 2, "priority": "urgent"},
    }
    world = World().nodes(1, cpu=2).graph("both", tasks=both).round().job("mine", cpu=2).after("1s")
    assert "poise cancel j1" in [of.command for of in unblocked(world, "j2").suggestions]


def test_what_asks_for_something_else_is_submitted_anew() -> None:
    """Behind `other`, which came after it and takes the CPU that is free for one second."""
    world = World("fifo").nodes(1, cpu=2).job("running", cpu=1, expect="1h").round()
    world.job("mine", cpu=2).job("other", cpu=1, expect="1h").after("1s")
    assert not [of for of in unblocked(world, "j2").suggestions if of.kind == "cpu"]


def test_what_is_asked_to_yield_says_for_whom() -> None:
    world = World().nodes(1).job("a", cpu=2, priority="low", expect="1h").round().start("a").after("1m")
    world.connected.clear()  # it is told to stop, and takes its time
    world.job("b", cpu=2, priority="urgent", expect="1m").round()
    [going] = explained(world, "a").running
    assert (going.status, going.left.source) == ("stopping", "is being stopped")
    assert next(reason.sentence() for reason in going.reasons).startswith("is asked to yield to j2.main: gain ")


def test_every_suggestion_does_what_it_says() -> None:
    """Typed, the smaller request starts in the next round."""
    world = World().join(node("n1", cpu=8)).join(node("n2", cpu=4)).job("a", cpu=5).job("b", cpu=4).round()
    world.job("c", cpu=4).round()
    found = suggested(world, "c")
    assert found["cpu"].command == "--cpu 3"
    world.job("smaller", cpu=3).round()
    assert world.where("smaller") == list(found["cpu"].nodes)


@pytest.mark.parametrize("moves", [False, True])
def test_a_drained_node_is_opened_first(moves: bool) -> None:
    world = World().nodes(2).job("a", cpu=2).round().drain("n2", moves=moves).job("b", cpu=2).round()
    first = unblocked(world, "b").suggestions[0]
    assert (first.kind, first.command, first.nodes) == ("open", "poise drain --undo n2", ("n2",))
    world.drain("n2", on=False).round()
    assert world.where("b") == ["n2"]


def test_fewer_workers() -> None:
    world = World().nodes(3, cpu=1).job("a").round().job("gang", workers=3).round()
    found = suggested(world, "gang")
    assert found["workers"].command == "--workers 2"
    assert found["workers"].nodes == ("n2", "n3")


def test_a_wish_too_many() -> None:
    world = World().join(node("n1", cpu=4, gpus=2, gpu_memory=("80GiB", "16GiB")))
    world.job("a", gpu=1, gpu_memory="40GiB").round().job("b", gpu=1, gpu_memory="40GiB").round()
    found = suggested(world, "b")
    assert found["gpu_memory"].command == "--gpu-memory 16GiB"
    assert found["wishes"].text == "any device memory will do"


def test_another_node_than_it_asked_for() -> None:
    world = World().nodes(2, cpu=1).job("a", node="n1").round().job("b", node="n1").round()
    assert [reason.code for reason in world.reasons("b")] == ["CPU_BUSY", "OTHER_NODE"]
    found = suggested(world, "b")["wishes"]
    assert (found.text, found.nodes) == ("any node will do", ("n2",))
    assert found.command == "poise set j2.main node="


def test_a_higher_priority_and_who_yields_to_it() -> None:
    world = World().nodes(1).job("a", cpu=2, expect="10h", checkpoint="1m").round().start("a").after("90s")
    world.job("b", cpu=2, expect="1s").round()
    found = suggested(world, "b")
    assert found["priority"].command == "--priority high"
    assert found["priority"].yields == ("j1.main",)


def test_the_job_that_loses_least_ends() -> None:
    world = World().nodes(2).job("old", cpu=2).round().start("old").after("10m").job("new", cpu=2).round().start("new")
    world.after("1m").job("late", cpu=2).round()
    assert suggested(world, "late")["end"].command == "poise cancel j2"


def test_less_of_everything_where_one_thing_is_not_enough() -> None:
    world = World().join(node("n1", cpu=4, memory="8GiB")).job("a", cpu=2, memory="4GiB").round()
    world.job("b", cpu=3, memory="6GiB").round()
    found = suggested(world, "b")
    assert found["smaller"].command == "--cpu 2 --memory 4GiB"
    assert "cpu" not in found and "memory" not in found


def test_amounts_to_type_are_readable() -> None:
    world = World().join(msgspec.structs.replace(node("n1", cpu=8, gpus=2, gpu_memory=80 * 10**9), network=400 * 10**9))
    world.job("a", network="100Gbit").job("b", network="350Gbit", gpu=1, gpu_memory="70GiB").round()
    assert suggested(world, "b")["network"].command == "--network 300Gbit"
    world.job("c", gpu=2, gpu_memory="70GiB").round().job("d", gpu=1, gpu_memory="70GiB").round()
    with pytest.raises(SpecError) as refused:
        world.job("e", gpu=1, gpu_memory="79GiB", network="1Tbit")
    assert "`--cpu 1 --network 400Gbit --gpu 1 --gpu-memory 74.5GiB`" in refused.value.record.hint


def test_a_node_that_is_not_there_yet_has_no_name() -> None:
    world = World().nodes(1, cpu=4).job("a", cpu=4).round().job("b", cpu=4).round()
    more = suggested(world, "b")["node"]
    assert (more.text, more.nodes) == ("one more node like n1", ("the new one",))


def test_a_new_node_is_compared_with_one_that_takes_work() -> None:
    world = World().nodes(2, cpu=4).job("a", cpu=4).job("b", cpu=4).round()
    world.drain("n1").job("c", cpu=4).round()
    assert suggested(world, "c")["node"].text == "one more node like n2"
    world.drain("n2")
    assert suggested(world, "c")["node"].text == "one more node like n1, which takes no work now"


def test_the_smallest_change_is_told_first() -> None:
    """One class of four is a smaller change than half of the CPUs; what costs others, and hardware, come last."""
    world = World().nodes(1, cpu=4).job("a", cpu=2, expect="10h", checkpoint="1m").round().start("a").after("90s")
    world.job("b", cpu=4, expect="1s").round()
    found = unblocked(world, "b").suggestions
    assert [(of.kind, of.size) for of in found[:2]] == [("priority", 0.25), ("cpu", 0.5)]
    assert [of.kind for of in found[2:]] == ["end", "node"]


def test_work_on_a_lost_node_is_told_what_it_waits_for() -> None:
    world = World().nodes(2).job("a", cpu=2).job("b", cpu=2).round().start("a", "b").lose("n1")
    told = unblocked(world, "a")
    assert told.text == "n1: is lost; it goes on if the node comes back, and starts elsewhere as soon as there is room"
    assert "poise cancel j2" in [of.command for of in told.suggestions]
    world.finish("b")
    assert unblocked(world, "a").text == "n1: is lost; it is placed elsewhere in the next round"


def test_work_that_may_not_start_elsewhere_waits_for_its_node() -> None:
    world = World().nodes(2).job("a", cpu=2, retry={"when": ["failed"]}).round().start("a").lose("n1")
    told = unblocked(world, "a")
    assert told.text.startswith("n1: is lost; ") and told.text.endswith("; it goes on if the node comes back")
    assert not told.suggestions


def test_what_waits_for_others_is_told_for_whom() -> None:
    world = World().nodes(1).graph("g", tasks={"a": {"run": "true"}, "b": {"run": "true", "needs": ["a"]}}).round()
    found = find(world.ledger, "g.b")
    view = world.controller.snapshot(world.now)
    asked = question(world.ledger, found.job, view, units=found.units)
    assert unblock(policy_named("poise"), view, asked).text == "nothing of it is blocked: it waits for a"
    told = explained(world, "g.b")
    assert [of.named for of in told.waiting] == [("j1.b",)] and not told.running


def test_what_is_not_blocked_says_so() -> None:
    world = World().nodes(1).job("a")
    assert unblocked(world, "a").text == "nothing blocks it: it is placed in the next round"
    assert unblocked(world.round(), "a").text == "nothing of it is blocked: it runs"
    assert unblocked(world.finish("a"), "a").text == "nothing of it is blocked: it is done"


def test_without_any_node_nothing_helps_and_it_is_said() -> None:
    assert unblocked(World().job("a").round(), "a").text == "no single change was found that lets it start now"


@pytest.mark.parametrize("policy", ["poise", "fifo", "sjf", "srtf", "las", "mlfq", "round-robin", "static"])
def test_every_policy_can_be_asked(policy: str) -> None:
    world = World(policy).nodes(2, gpus=1).job("a", gpu=1).job("b", gpu=1).round().start("a", "b")
    world.job("c", gpu=1, workers=2).round()
    told = waits(world, "c")
    assert told.reasons and told.start is not None
    assert not_on(world, "c", "n1").reasons
    assert unblocked(world, "c").suggestions or unblocked(world, "c").text
    planned(world, {"run": "true", "resources": {"gpu": 1}})


def test_one_far_back_in_a_long_queue_is_told_how_many_come_first() -> None:
    world = World(check=False).nodes(1, cpu=2).job("a", cpu=2, expect="10m").round().start("a")
    for _ in range(300):
        world.job(cpu=2, expect="10s")
    world.round()
    [told] = explained(world, "j301", bounds=FEW._replace(futures=3)).waiting
    assert told.ahead == 299
    assert told.reasons[-1].sentence() == "waits behind 171 more of its kind, which came first"
    assert told.start is not None
    assert told.start.likely is not None and told.start.likely > 10 * MINUTE


# --- several artifacts -----------------------------------------------------------------------------------------------

ARTIFACTS: dict[str, Any] = {
    "cuda": {"run": "./cuda", "resources": {"gpu": 1, "gpu_model": "fast"}},
    "cpu": {"run": "./cpu", "resources": {"cpu": 4}},
}


def built(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {"name": name, "artifacts": ARTIFACTS, "class": "k", **fields}


def measured() -> World:
    """A device and plain nodes; the class took five seconds on the device and a minute on CPUs."""
    world = World().join(offering("n1", "fast")).join(node("n2", cpu=4)).join(node("n3", cpu=2))
    runs: dict[str, dict[str, Any]] = {"5s": {"gpu": 1, "gpu_model": "fast"}, "1m": {"cpu": 1}}
    for run, resources in runs.items():
        world.job(run, **resources, **{"class": "k"}).round().start(run).finish(run, run=run)
    return world


def test_the_artifact_that_runs_is_named_and_its_own_time_is_what_is_left() -> None:
    world = measured().submit(built("a")).submit(built("b")).submit(built("c")).round().start("a", "b")
    [first], [second] = (explained(world, name).running for name in "ab")
    assert [(of.nodes, of.artifact, of.left.mean) for of in (first, second)] == [
        (("n1",), "cuda", 5 * SECOND),
        (("n2",), "cpu", MINUTE),
    ]
    assert any("placed on n1 as cuda" in of.text for of in explained(world, "a").story)
    report = job_report(world.ledger, world.state("b"), world.now, tasks=True)
    assert [task.artifact for task in report.tasks] == ["cpu"]
    [place] = planned(measured(), built("next")).places
    assert (place.artifact, place.spots[0].node) == ("cuda", "n1")


def test_a_node_refuses_every_artifact_with_its_own_reason_or_none() -> None:
    world = measured().job("full", cpu=4).round().submit(built("a")).submit(built("b")).round()
    told = waits(world.submit(built("c")).round(), "c")
    found = {of.nodes: [(reason.code, reason.need) for reason in of.reasons] for of in told.refusing}
    assert ("n3",) in found
    assert found["n3",] == [("GPU_TOO_FEW", "1"), ("CPU_TOO_SMALL", "4")]
    assert [(reason.code) for reason in not_on(world, "c", "n3").reasons] == ["GPU_TOO_FEW", "CPU_TOO_SMALL"]


def test_of_many_nodes_only_those_refuse_on_which_no_artifact_has_room() -> None:
    world = World(check=False)
    for number in range(10):
        world.join(offering(f"gpu{number}", "fast")).join(node(f"small{number}", cpu=2))
    for name in ("gang", "more"):
        world.submit(built(name, workers=10)).round()
    told = waits(world.submit(built("late")).round(), "late")
    assert {(of.count, tuple(reason.code for reason in of.reasons)) for of in told.refusing} == {
        (10, ("GPU_BUSY", "CPU_BUSY")),
        (10, ("GPU_TOO_FEW", "CPU_TOO_SMALL")),
    }


def test_a_node_for_another_artifact_is_compared_by_what_is_foreseen() -> None:
    world = measured().submit(built("a")).round().start("a")
    told = not_on(world, "a", "n2")
    assert (told.fits, told.artifact, told.chosen, told.chosen_artifact) == (True, "cpu", "n1", "cuda")
    assert told.text.startswith("it fits as cpu, in 1m0s by history; cuda on n1 in 5.0 s by history")
    refused = not_on(world, "a", "n3")
    assert [reason.code for reason in refused.reasons] == ["GPU_TOO_FEW", "CPU_TOO_SMALL"]


def test_a_quota_below_what_waits_is_told_by_unblock() -> None:
    world = World().nodes(1).submit({"name": "big", "run": "true", "resources": {"cpu": 2}}, tenant="ann")
    world.quota("ann", cpu=1).round()
    told = unblocked(world, "j1").text
    assert "it needs 2 CPU, more than the whole quota of tenant `ann` (1 CPU)" in told
    world.quota("ann", cpu=2)
    assert "quota" not in unblocked(world, "j1").text


def test_nodes_that_a_pinned_job_does_not_ask_for_are_told_as_one() -> None:
    world = World().nodes(4, cpu=1).job("a", node="n2").job("b", node="n2").round()
    told = [(of.count, of.nodes, [reason.sentence() for reason in of.reasons]) for of in waits(world, "b").refusing]
    assert told == [
        (1, ("n2",), ["n2: 0 CPU free, 1 needed"]),
        (3, ("n1", "n3", "n4"), ["3 other nodes: is not an allowed node: node n2 needed"]),
    ]
    everything = explained(world, "b", everything=True).waiting[0].refusing
    assert [of.nodes for of in everything] == [("n1",), ("n2",), ("n3",), ("n4",)]
