"""Deadlines in a whole world."""

import msgspec
import pytest

from poise.model.profiles import Profile
from poise.policy.timely import LOOKED_AT, chance_of, shorter_than, timely_in
from poise.testing import World, node
from poise.units import SECOND


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


def test_much_work_that_is_late_anyway_hides_no_deadline() -> None:
    world = World().nodes(1, gpus=1).job("kept", gpu=1, expect="50m", deadline="1h", checkpoint="30s").round()
    for number in range(LOOKED_AT + 1):
        world.job(f"late{number}", gpu=1, expect="58m", deadline="1h")
    world.start("kept").after("5m").job("short", gpu=1, expect="20m", deadline="2h").after("1s").round()
    assert world.status("kept") == "running"


def test_who_can_wait_for_running_work_does_not_put_its_deadline_at_risk() -> None:
    """`due` should start now, two deviations early, but would also be on time after `kept`."""
    world = World().nodes(1, gpus=1).job("kept", gpu=1, expect="20m", deadline="55m", checkpoint="30s").round()
    world.start("kept").after("1m").job("due", gpu=1, expect="30m", deadline="58m").after("1s").round()
    assert world.status("kept") == "running"


def test_not_even_a_higher_class_makes_kept_work_late() -> None:
    world = World().nodes(1, gpus=1).job("kept", gpu=1, priority="low", expect="50m", deadline="1h", checkpoint="30s")
    world.round().start("kept").after("5m").job("urgent", gpu=1, priority="urgent", expect="20m").after("1s").round()
    assert world.status("kept") == "running"


def test_what_has_to_start_now_goes_before_higher_classes() -> None:
    world = (
        World()
        .nodes(1, gpus=1)
        .job("here", gpu=1, expect="30m", preemptible=False, **{"class": "other"})
        .round()
        .start("here")
    )
    world.job("due", gpu=1, priority="low", expect="10m", deadline="50m")
    world.job("high", gpu=1, priority="high", expect="10m")
    world.after("30m").finish("here").round()
    assert (world.status("due"), world.status("high")) == ("placed", "pending")


def test_with_nothing_known_of_its_length_work_with_a_deadline_starts_at_once() -> None:
    world = World().nodes(1, gpus=1).job("long", gpu=1, expect="10h", checkpoint="30s").round().start("long")
    world.after("40m").job("due", gpu=1, deadline="10h").after("1s").round()
    assert world.status("due") in ("placed", "running")


def test_of_work_of_unknown_length_the_nearest_deadline_goes_first() -> None:
    world = World().nodes(1, gpus=1).job("long", gpu=1, expect="10h", checkpoint="30s").round().start("long")
    world.after("40m").job("far", gpu=1, deadline="10h").job("near", gpu=1, deadline="20m").after("1s").round()
    assert (world.status("far"), world.status("long")) == ("pending", "pending")
    assert world.status("near") in ("placed", "running")


def test_an_elastic_unit_gets_the_tasks_that_make_it_be_on_time() -> None:
    """Four hours on one device, 78 minutes on four. With the margin it takes all four, though the other is shorter."""
    world = World().nodes(1, cpu=8, gpus=4).job("other", gpu=1, workers="1..4", expect="1h")
    world.job("due", gpu=1, workers="1..4", expect="4h", deadline="2h30m").round()
    assert (world.unit("due").size, world.status("other")) == (4, "pending")


def test_kept_work_without_devices_does_not_yield_to_its_class_either() -> None:
    world = World().nodes(1, cpu=1).job("kept", cpu=1, priority="low", expect="50m", deadline="1h", checkpoint="30s")
    world.round().start("kept").after("5m").job("same", cpu=1, priority="low", expect="20m").after("1s").round()
    assert world.status("kept") == "running"


def test_a_deadline_where_no_node_has_joined_yet_is_waited_for() -> None:
    world = World().job("early", deadline="1h", expect="1m").round()
    assert world.status("early") == "pending"
    assert world.join(node("n1")).round().status("early") == "placed"


def test_running_work_with_time_left_yields_to_a_deadline_that_is_near() -> None:
    """After both, 90 minutes of its time are left. The margin of what waits is no reason to refuse that."""
    world = World().nodes(1, gpus=1).job("long", gpu=1, expect="5h", deadline="8h", checkpoint="30s").round()
    world.start("long").after("5m").job("due", gpu=1, expect="20m", deadline="30m").after("1s").round()
    assert world.status("due") in ("placed", "running")


def test_the_chance_to_be_on_time_by_the_mean_deviation() -> None:
    """100 s are left, with a mean deviation of 50 s (62.7 s of standard deviation): Phi(0.957) and Phi(0)."""
    assert chance_of(160 * SECOND, 100 * SECOND, 50 * SECOND) == pytest.approx(0.831, abs=0.001)
    assert chance_of(100 * SECOND, 100 * SECOND, 50 * SECOND) == 0.5


def test_for_a_deadline_work_that_loses_something_yields_though_much_waits() -> None:
    """With 30 units waiting, an hour of lost work counts 30 times. That is no reason to miss a deadline."""
    world = World().nodes(1, gpus=1).job("long", gpu=1, expect="10h").round().start("long").after("1h")
    for number in range(30):
        world.job(f"w{number}", gpu=1, expect="9h")
    world.job("due", gpu=1, expect="10m", deadline="15m").after("1s").round()
    assert world.status("due") in ("placed", "running")
    assert world.status("long") == "pending"


def _after_runs_of_ten_minutes() -> World:
    """Three runs of the class `c` took ten minutes: 10 minutes with a mean deviation of 3.2. Long work is running."""
    world = World().nodes(1, gpus=1)
    for name in ("first", "second", "third"):
        world.job(name, gpu=1, **{"class": "c"}).round().start(name).after("10m").finish(name, run="10m")
    return world.job("long", gpu=1, expect="10h", checkpoint="30s").round().start("long").after("40m")


def test_a_deadline_says_that_the_run_is_expected_to_be_shorter() -> None:
    """Its user says no run time, and a deadline below the mean of its class: many runs of the class are shorter."""
    world = _after_runs_of_ten_minutes().job("due", gpu=1, deadline="9m", **{"class": "c"}).after("1s").round()
    assert (world.status("due"), world.status("long")) == ("placed", "pending")


@pytest.mark.parametrize("deviation", [0, 1])
def test_a_run_of_a_class_without_deviation_that_has_taken_exactly_its_time(deviation: int) -> None:
    """Its class says that no time is left for it. It ends at any moment, and nothing is uncertain."""
    world = World().nodes(1, gpus=1).job("due", gpu=1, deadline="1h", **{"class": "c"}).round().start("due").after("1s")
    view = world.controller.snapshot(world.now)
    profile = Profile(count=100, mean=SECOND, deviation=deviation)
    view = msgspec.structs.replace(view, profiles={"c": profile, "c@gpu": profile})
    promise = timely_in(view).promised[world.unit("due").id]
    assert (promise.left, promise.deviation) == (1, 0)


def test_a_declared_run_time_is_believed_before_a_deadline() -> None:
    """After two minutes there are nine for its ten: it is late, and shorter work goes first."""
    world = World().nodes(1, gpus=1).job("here", gpu=1, expect="1h", preemptible=False, **{"class": "other"}).round()
    world.start("here").job("due", gpu=1, expect="10m", deadline="11m").job("short", gpu=1, expect="1m")
    world.after("2m").finish("here").round()
    assert (world.status("short"), world.status("due")) == ("placed", "pending")


def test_what_is_foreseen_of_a_run_that_is_known_to_be_shorter() -> None:
    """A normal distribution below its mean has its mean one mean deviation lower, and 0.6 of its deviation (the
    half-normal: the square root of 1 - 2 / pi). Far below its bound nothing changes.
    """
    mean, deviation = shorter_than(1000 * SECOND, 10 * SECOND, 1000 * SECOND)
    assert mean / SECOND == pytest.approx(990)
    assert deviation / SECOND == pytest.approx(6.028, abs=1e-3)
    assert shorter_than(1000 * SECOND, 10 * SECOND, 2000 * SECOND) == (1000 * SECOND, 10 * SECOND)


@pytest.mark.parametrize("most", [1, 10, 100, 300])
def test_a_run_that_is_known_to_be_shorter_takes_some_time(most: int) -> None:
    mean, deviation = shorter_than(100 * SECOND, 50 * SECOND, most * SECOND)
    assert 0 < mean < most * SECOND and 0 < deviation < 50 * SECOND
