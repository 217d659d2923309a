"""Deadlines in a whole world."""

from poise.testing import World


def test_a_near_deadline_makes_ordinary_work_yield() -> None:
    world = World().nodes(1, gpus=1).job("long", gpu=1, expect="10h", checkpoint="30s").round().start("long")
    world.after("40m").job("due", gpu=1, expect="10m", deadline="11m").after("1s").round()
    assert world.status("due") in ("placed", "running")
    assert world.status("long") == "pending"


def test_a_far_deadline_waits_its_turn() -> None:
    """An hour of work in front of it is shorter, and the deadline leaves time for both."""
    world = World().nodes(1, gpus=1).job("short", gpu=1, expect="1h").round().start("short")
    world.job("due", gpu=1, expect="2h", deadline="20h").after("1s").round()
    assert (world.status("short"), world.status("due")) == ("running", "pending")


def test_who_is_on_time_does_not_yield_to_who_would_make_it_late() -> None:
    world = World().nodes(1, gpus=1).job("kept", gpu=1, expect="50m", deadline="1h", checkpoint="30s").round()
    world.start("kept").after("5m").job("short", gpu=1, expect="20m", deadline="2h").after("1s").round()
    assert world.status("kept") == "running"


def test_a_higher_class_makes_kept_work_yield() -> None:
    world = World().nodes(1, gpus=1).job("kept", gpu=1, priority="low", expect="50m", deadline="1h", checkpoint="30s")
    world.round().start("kept").after("5m").job("urgent", gpu=1, priority="urgent", expect="20m").after("1s").round()
    assert world.status("kept") == "pending"


def test_kept_work_without_devices_does_not_yield_to_its_class_either() -> None:
    world = World().nodes(1, cpu=1).job("kept", cpu=1, priority="low", expect="50m", deadline="1h", checkpoint="30s")
    world.round().start("kept").after("5m").job("same", cpu=1, priority="low", expect="20m").after("1s").round()
    assert world.status("kept") == "running"
