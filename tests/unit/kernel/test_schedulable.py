from typing import Any

import pytest
from msgspec import structs

from poise.errors import SpecError
from poise.kernel.schedulable import prepare
from poise.model.resources import Device
from poise.testing import World, node


def refused(world: World, **fields: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        world.job(**fields)
    return caught.value


def test_a_deadline_below_the_critical_path_is_refused_with_what_would_do() -> None:
    world = World().nodes(1, cpu=4)
    tasks: dict[str, dict[str, Any]] = {
        "a": {"run": "x", "expect": "20m"},
        "b": {"run": "x", "needs": ["a"], "expect": "15m"},
    }
    with pytest.raises(SpecError) as caught:
        world.graph(tasks=tasks, deadline="30m")
    record = caught.value.record
    assert (record.code, record.field) == ("E108", "deadline")
    assert (record.need, record.have, record.hint) == ("at least 35m0s", "30m0s", "deadline: 2100s")
    world.graph(tasks=tasks, deadline="35m")


def test_a_deadline_below_all_work_over_all_capacity_is_refused() -> None:
    """Eight parts of ten minutes on four CPUs take twenty, however they are placed."""
    world = World().nodes(2, cpu=2)
    assert refused(world, parts=8, cpu=1, expect="10m", deadline="19m").record.need == "at least 20m0s"
    world.job(parts=8, cpu=1, expect="10m", deadline="20m")


def test_a_task_is_bound_by_what_it_needs_and_by_nothing_else() -> None:
    """Its own path takes fifteen minutes; what comes after it, or has nothing to do with it, may take hours."""
    world = World().nodes(1, cpu=1)
    tasks: dict[str, dict[str, Any]] = {
        "fetch": {"expect": "5m"},
        "first": {"needs": ["fetch"], "expect": "10m", "deadline": "15m"},
        "after": {"needs": ["first"], "expect": "3h"},
        "other": {"expect": "2h"},
    }
    world.graph("fits", tasks=tasks)
    tasks["first"]["deadline"] = "14m"
    with pytest.raises(SpecError) as caught:
        world.graph("late", tasks=tasks)
    record = caught.value.record
    assert (record.code, record.field, record.need) == ("E108", "tasks.first.deadline", "at least 15m0s")
    assert (record.have, record.hint) == ("14m0s", "deadline: 900s")


def test_a_later_deadline_is_bound_by_what_is_due_before_it_too() -> None:
    """On one CPU: ten minutes of work are due in ten, and ten more in fifteen."""
    tasks: dict[str, dict[str, Any]] = {
        "a": {"expect": "10m", "deadline": "10m"},
        "b": {"expect": "10m", "deadline": "15m"},
    }
    with pytest.raises(SpecError) as caught:
        World().nodes(1, cpu=1).graph(tasks=tasks)
    assert (caught.value.record.field, caught.value.record.need) == ("tasks.b.deadline", "at least 20m0s")
    World().nodes(1, cpu=2).graph(tasks=tasks)


def test_the_parts_of_a_task_are_due_together_and_their_merge_takes_what_it_takes() -> None:
    tasks: dict[str, dict[str, Any]] = {"cut": {"parts": 4, "merge": "true", "expect": "10m", "deadline": "20m"}}
    World().nodes(1, cpu=2).graph(tasks=tasks)
    with pytest.raises(SpecError) as caught:
        World().nodes(1, cpu=1).graph(tasks=tasks)
    assert (caught.value.record.field, caught.value.record.need) == ("tasks.cut.deadline", "at least 40m0s")


def test_an_elastic_gang_is_bound_by_all_the_tasks_that_it_can_use() -> None:
    World().nodes(1, cpu=4).job(workers="2..4", expect="10m", deadline="5m")
    assert refused(World().nodes(1, cpu=4), workers="2..4", expect="10m", deadline="4m").record.need == "at least 5m0s"


# --- what may be late ------------------------------------------------------------------------------------------------


def note(world: World, job: str) -> str:
    return world.state(job).note


def test_what_may_be_late_behind_what_waits_is_told_so_and_queued() -> None:
    world = World().nodes(1, cpu=1)
    world.job("first", cpu=1, expect="10m").job("late", cpu=1, expect="10m", deadline="15m")
    assert note(world, "first") == ""
    said = "what is ahead of it holds it up for 10m0s, and it takes at least 10m0s; due in 15m0s"
    assert note(world, "late") == f"it may be late: {said}"
    tasks: dict[str, dict[str, Any]] = {"a": {"expect": "10m", "deadline": "15m"}, "b": {"needs": ["a"]}}
    assert note(world.graph("graph", tasks=tasks), "graph").startswith("`a` may be late: ")


def test_what_fits_now_is_not_late() -> None:
    world = World().nodes(2, cpu=2).job("busy", cpu=2, expect="2h").round().start("busy")
    assert note(world.job("soon", cpu=1, expect="10m", deadline="11m"), "soon") == ""
    assert note(world.job("whole", cpu=2, expect="10m", deadline="11m"), "whole") != "", "soon is to go first"


@pytest.mark.parametrize(("deadline", "late"), [("13m", False), ("12m", True)])
def test_what_has_run_already_is_not_ahead_any_more(deadline: str, late: bool) -> None:
    """Of ten declared minutes eight have passed: two are left, or as many as half of its uncertainty, 2.5."""
    world = World().nodes(1, cpu=1).job("first", cpu=1, expect="10m").round().start("first").after("8m")
    world.job("next", cpu=1, expect="10m", deadline=deadline)
    assert ("holds it up for 2m30s" in note(world, "next")) == late


def test_work_on_devices_does_not_hold_up_work_on_cpus() -> None:
    world = World().nodes(1, cpu=8, gpus=1).job("train", gpu=1, expect="2h").round().start("train")
    world.job("more", gpu=1, expect="2h")
    assert note(world.job("cpu", cpu=4, expect="10m", deadline="11m"), "cpu") == ""
    assert "holds it up for 4h0m" in note(world.job("gpu", gpu=1, expect="10m", deadline="1h"), "gpu")


def test_work_that_runs_on_cpus_holds_up_work_on_devices_that_needs_these_too() -> None:
    world = World().nodes(1, cpu=4, gpus=1).job("cpu", cpu=4, expect="2h").round().start("cpu")
    assert "holds it up for 2h0m" in note(world.job("gpu", gpu=1, expect="10m", deadline="1h"), "gpu")


def test_what_is_large_in_something_that_is_not_short_takes_no_more_room() -> None:
    """The node holds four of either, since it has four devices."""
    world = World().nodes(1, cpu=32, gpus=4).job("fat", gpu=1, cpu=8, expect="2h", workers=3)
    assert note(world.job("thin", gpu=1, expect="10m", deadline="11m"), "thin") == ""


def test_work_that_could_as_well_run_elsewhere_is_counted_in_part() -> None:
    """Of four jobs of an hour that could run on either node, two are in the way of what only one of them could do."""
    world = World().nodes(1, cpu=2).join(node("n2", cpu=2, memory="64GiB"))
    for number in range(4):
        world.job(f"busy-{number}", cpu=2, expect="1h")
    world.job("large", cpu=2, memory="32GiB", expect="10m", deadline="1h")
    assert "holds it up for 2h0m" in note(world, "large")


def test_room_that_is_kept_for_a_gang_is_used_by_what_is_gone_in_time() -> None:
    world = World().nodes(2, cpu=1).job("busy", cpu=1, expect="2h").round().start("busy")
    world.job("gang", cpu=1, workers=2, expect="1h").round()
    assert note(world.job("short", cpu=1, expect="10m", deadline="11m"), "short") == ""
    assert "holds it up for 3h0m" in note(world.job("long", cpu=1, expect="2h", deadline="3h"), "long")


def test_work_of_a_lower_class_that_waits_is_not_ahead() -> None:
    world = World().nodes(1, cpu=1).job("low", cpu=1, expect="1h", priority="low")
    assert note(world.job("soon", cpu=1, expect="10m", deadline="11m"), "soon") == ""
    assert note(world.job("late", cpu=1, expect="10m", deadline="11m", priority="low"), "late") != ""


def test_work_that_could_not_run_there_is_not_ahead() -> None:
    world = World().nodes(1, cpu=2).join(node("n2", cpu=8)).job("large", cpu=8, expect="2h").round().start("large")
    world.job("next", cpu=8, expect="2h")
    assert note(world.job("small", cpu=2, expect="10m", deadline="11m"), "small") == ""


def test_parts_are_held_up_as_far_as_the_last_of_them_is() -> None:
    """Of two CPUs one is taken for ten minutes more: three parts of ten start at 0, 10 and 10 instead of 0, 0, 10."""

    def busy() -> World:
        return World().nodes(1, cpu=2).job("busy", cpu=1, expect="10m").round().start("busy")

    assert note(busy().job("three", cpu=1, parts=3, expect="10m", deadline="20m"), "three") == ""
    assert "holds it up for 10m0s" in note(busy().job("four", cpu=1, parts=4, expect="10m", deadline="25m"), "four")


def test_a_guess_refuses_nobody() -> None:
    World().nodes(1, cpu=1).job(cpu=1, deadline="1s")


def test_what_was_measured_counts_more_than_what_is_declared() -> None:
    world = World().nodes(1, cpu=1)
    for number in range(8):
        world.job(f"run-{number}", cpu=1, **{"class": "c"}).after("1s").start(f"run-{number}").finish(
            f"run-{number}", run="10m"
        )
    record = refused(world, cpu=1, expect="1m", deadline="5m", **{"class": "c"}).record
    assert record.code == "E108"


def test_what_can_be_cut_is_cut_finer_before_its_deadline_is_refused() -> None:
    """Twenty items of a minute each on twenty CPUs: two parts of ten take ten minutes, parts of two take two."""
    world = World().nodes(1, cpu=20)
    split = {"items": 20, "size": "auto"}
    world.job("easy", cpu=1, split=split, expect="20m", deadline="10m")
    world.job("tight", cpu=1, split=split, expect="20m", deadline="3m")
    assert [len(world.ledger.jobs.find(name).units) for name in ("easy", "tight")] == [2, 10]  # type: ignore[union-attr]
    assert refused(world, cpu=1, split=split, expect="20m", deadline="30s").record.code == "E108"


def test_a_busy_fleet_gets_smaller_parts() -> None:
    world = World().nodes(1, cpu=4).job("busy", cpu=2).after("1s").start("busy")
    world.job("cut", cpu=1, split={"items": 100})
    assert len(world.ledger.jobs.find("cut").units) == 20  # type: ignore[union-attr]


def test_an_uneven_fleet_gets_smaller_parts() -> None:
    slow = Device(index=0, kind="gpu", model="slow", rates={"fp32": 10**12})
    fast = Device(index=0, kind="gpu", model="fast", rates={"fp32": 2 * 10**12})
    world = World().join(structs.replace(node("n1", cpu=8), devices=(slow,)))
    world.join(structs.replace(node("n2", cpu=8), devices=(fast,)))
    world.job("cut", cpu=1, gpu=1, split={"items": 100}).job("even", cpu=1, split={"items": 100})
    assert len(world.ledger.jobs.find("cut").units) == 20  # type: ignore[union-attr]
    assert len(world.ledger.jobs.find("even").units) == 10  # type: ignore[union-attr]


def test_a_plain_job_is_compiled_without_a_look_at_the_fleet() -> None:
    """Thousands of these come in a second: how full the fleet is matters to what is cut by it, and to nothing else."""
    looked: list[str] = []

    def use() -> float:
        looked.append("use")
        return 0.5

    view = World().nodes(1).controller.snapshot
    prepare(lambda: view(1), use, {"run": "true"}, 0.0)
    assert looked == []
    prepare(lambda: view(1), use, {"run": "true", "split": {"items": 100}}, 0.0)
    assert looked == ["use"]
