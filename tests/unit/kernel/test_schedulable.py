from typing import Any

import pytest
from msgspec import structs

from poise.errors import SpecError
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


def test_what_may_be_late_behind_what_waits_is_told_so_and_queued() -> None:
    world = World().nodes(1, cpu=1)
    world.job("first", cpu=1, expect="10m").job("late", cpu=1, expect="10m", deadline="15m")
    assert world.ledger.find_job("first").note == ""  # type: ignore[union-attr]
    note = world.ledger.find_job("late").note  # type: ignore[union-attr]
    assert note == "it may be late: 10m0s of work is ahead of it, and it takes at least 10m0s; due in 15m0s"


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
    assert [len(world.ledger.find_job(name).units) for name in ("easy", "tight")] == [2, 10]  # type: ignore[union-attr]
    assert refused(world, cpu=1, split=split, expect="20m", deadline="30s").record.code == "E108"


def test_a_busy_fleet_gets_smaller_parts() -> None:
    world = World().nodes(1, cpu=4).job("busy", cpu=2).after("1s").start("busy")
    world.job("cut", cpu=1, split={"items": 100})
    assert len(world.ledger.find_job("cut").units) == 20  # type: ignore[union-attr]


def test_an_uneven_fleet_gets_smaller_parts() -> None:
    slow = Device(index=0, kind="gpu", model="slow", rates={"fp32": 10**12})
    fast = Device(index=0, kind="gpu", model="fast", rates={"fp32": 2 * 10**12})
    world = World().join(structs.replace(node("n1", cpu=8), devices=(slow,)))
    world.join(structs.replace(node("n2", cpu=8), devices=(fast,)))
    world.job("cut", cpu=1, gpu=1, split={"items": 100}).job("even", cpu=1, split={"items": 100})
    assert len(world.ledger.find_job("cut").units) == 20  # type: ignore[union-attr]
    assert len(world.ledger.find_job("even").units) == 10  # type: ignore[union-attr]
