"""Elastic units beside idle devices: they take what brings enough, once, and no more than their tenant may have."""

from typing import Any

import msgspec
import pytest

from poise.policy.growing import Unit, sizes
from poise.testing import World, node


def test_what_was_placed_in_the_size_that_pays_is_not_restarted_for_more() -> None:
    """Sixteen devices are idle. The eighth task brings 0.33 of what the first does, the ninth 0.29."""
    world = World().nodes(1, cpu=16, gpus=16).job("wide", workers="1..16", gpu=1, expect="20h", checkpoint="30s")
    world.round().start(*(f"wide.main[{rank}]" for rank in range(8)))
    assert world.unit("wide").size == 8
    for _ in range(5):
        world.after("10m").round()
    assert (world.status("wide"), world.unit("wide").preempted) == ("running", 0)


def test_elastic_units_of_a_tenant_share_what_its_quota_leaves() -> None:
    world = World().nodes(1, cpu=16, gpus=16).quota("lab", gpu=6)
    for name in ("a", "b"):
        world.submit(
            {"kind": "job", "name": name, "run": "true", "workers": "1..8", "resources": {"gpu": 1}}, tenant="lab"
        )
    world.round()
    assert world.unit("a").size + world.unit("b").size == 6


def _growing() -> World:
    """An elastic unit with two tasks, beside work on two devices that ends later."""
    world = World().nodes(1, cpu=8, gpus=4)
    world.job("fixed", gpu=2, expect="2h", **{"class": "other"}).round().start("fixed")
    world.job("grows", gpu=1, workers="1..4", expect="40h", checkpoint="30s").round()
    return world.start("grows.main[0]", "grows.main[1]").after("10m")


def test_a_unit_is_restarted_larger_where_there_is_room() -> None:
    world = _growing().finish("fixed").round().after("10m").round()
    assert (world.status("grows"), world.unit("grows").size) == ("placed", 4)


def test_nothing_is_restarted_to_grow_while_something_waits() -> None:
    """What it loses is done again, and the other waits for that too."""
    world = _growing().job("wide", gpu=4, expect="200h", priority="low").after("1s").round().finish("fixed").round()
    for _ in range(3):
        world.after("10m").round()
    assert (world.status("grows"), world.status("wide")) == ("running", "pending")


def test_work_without_devices_that_waits_keeps_none_from_growing() -> None:
    world = _growing().job("cpus", cpu=8, expect="200h").after("1s").round()
    world.finish("fixed").round().after("10m").round()
    assert (world.status("grows"), world.unit("grows").size, world.status("cpus")) == ("placed", 4, "pending")


LINEAR = tuple(map(float, range(9)))
"""Speeds with 0 to 8 tasks that scale without loss."""


def tasks(units: list[Unit]) -> dict[str, int]:
    """By unit, on eight devices alike."""
    return {unit: size.tasks for unit, size in sizes(units, [8]).items()}


def test_the_shorter_of_two_known_units_gets_more() -> None:
    """By place the short one counts 1.23 times (1 + 1 to the power 0.3), and scaling has no loss: it gets all."""
    short, long = Unit("short", LINEAR, 1, 8, 1, 600.0, 2.0), Unit("long", LINEAR, 1, 8, 1, 6000.0, 2.0)
    assert tasks([short, long]) == {"short": 8, "long": 0}


def test_units_of_unknown_length_share_evenly() -> None:
    units = [Unit(name, LINEAR, 1, 8, 1, work, 2.0, guess=True) for name, work in (("a", 1.0), ("b", 2.0))]
    assert tasks(units) == {"a": 4, "b": 4}


def test_a_running_unit_keeps_its_least_and_a_restart_must_pay() -> None:
    """To go from 6 tasks to fewer would lose 10 minutes of them, as much as ten minutes of 6 other tasks gain."""
    long = Unit("long", LINEAR, 2, 8, 1, 6000.0, 2.0, size=6, lost=600.0)
    short = Unit("short", LINEAR, 1, 8, 1, 600.0, 2.0)
    assert tasks([long, short]) == {"long": 6, "short": 2}
    assert tasks([long._replace(lost=0.0), short]) == {"long": 2, "short": 6}


def test_tasks_that_meet_a_deadline_come_first() -> None:
    due, short = Unit("due", LINEAR, 1, 8, 1, 6000.0, 2.0, pace=5.0), Unit("short", LINEAR, 1, 8, 1, 60.0, 2.0)
    assert tasks([short, due]) == {"short": 3, "due": 5}


def test_what_could_never_fit_and_what_is_too_much_to_weigh_is_left_out() -> None:
    assert tasks([Unit("wide", tuple(map(float, range(20))), 16, 19, 1, 60.0, 2.0)]) == {}


def test_a_running_unit_keeps_its_least_beside_one_that_would_be_late() -> None:
    due, long = Unit("due", LINEAR, 1, 8, 1, 6000.0, 16.0, pace=7.0), Unit("long", LINEAR, 2, 8, 1, 60.0, 2.0, size=2)
    assert tasks([long, due])["long"] >= 2


UNEQUAL = [4, 4]
"""Devices of a fast model, and of one that is half as fast."""


def two_models(name: str, work: float, **fields: Any) -> Unit:
    return Unit(name, LINEAR, 1, 4, 1, work, 2.0, rates=(1.0, 0.5), **fields)


def test_two_elastic_units_share_two_models_and_no_device_is_idle() -> None:
    """Both on the fast model would do the work of 4 tasks, one on each that of 6. The shorter counts 1.23 times."""
    assert sizes([two_models("long", 6000.0), two_models("short", 600.0)], UNEQUAL) == {"short": (4, 0), "long": (4, 1)}


def test_what_is_on_time_only_on_the_fast_model_gets_it() -> None:
    """The longer one needs three fast tasks, or six slow ones, and there are four of these; without the deadline the
    shorter has the fast model, see above.
    """
    units = [two_models("long", 6000.0, pace=3.0), two_models("short", 600.0)]
    assert sizes(units, UNEQUAL) == {"long": (4, 0), "short": (4, 1)}


@pytest.mark.parametrize(("moves", "on"), [(599.0, 0), (601.0, 1)])
def test_a_running_unit_changes_its_model_where_that_pays(moves: float, on: int) -> None:
    """Four fast tasks do the work of two more than four slow ones, in ten minutes 1200 s. The move loses so many
    seconds of the work of two.
    """
    assert sizes([two_models("runs", 6000.0, size=4, here=1, moves=moves)], UNEQUAL) == {"runs": (4, on)}


@pytest.mark.parametrize(("moves", "on"), [(99.0, 0), (101.0, 1)])
def test_a_unit_that_is_done_soon_changes_its_model_only_for_what_it_gains_until_then(moves: float, on: int) -> None:
    """As above, but the unit is done in 100 s where it is: until then the fast tasks do 200 s more."""
    assert sizes([two_models("runs", 200.0, size=4, here=1, moves=moves)], UNEQUAL) == {"runs": (4, on)}


def test_a_unit_that_runs_keeps_its_least_on_its_model() -> None:
    """The other counts 1.23 times: with three fast devices 3.69 + 1, with the slow one 0.62 + 4."""
    here, other = two_models("here", 6e6, size=1, here=0, moves=1e9), two_models("other", 60.0)
    assert sizes([here, other], [4, 1]) == {"here": (1, 0), "other": (3, 0)}


def test_what_cannot_run_on_a_model_is_given_none_of_it() -> None:
    units = [two_models(name, 600.0)._replace(rates=(0.0, 1.0)) for name in ("a", "b")]
    assert {size.model for size in sizes(units, UNEQUAL).values() if size.tasks} == {1}


def on_two_models() -> World:
    """Two fast devices and two slow ones, one of which is taken, as in `poise demo`."""
    world = World("poise")
    for name in ("fast", "slow"):
        offer = node(name, cpu=4, gpus=2)
        devices = tuple(msgspec.structs.replace(one, model=name) for one in offer.devices)
        world.join(msgspec.structs.replace(offer, devices=devices))
    return world.job("other", resources={"cpu": 1, "gpu": 1, "gpu_model": "slow"}, expect="10m").round().start("other")


def test_what_was_declared_does_not_say_which_model_an_elastic_unit_should_have() -> None:
    world = on_two_models().job("training", resources={"cpu": 1, "gpu": 1}, workers="1..4", expect="30s").round()
    assert sorted(world.where("training")) == ["fast", "fast", "slow"]


def test_a_run_on_one_model_does_not_keep_elastic_work_from_devices_of_that_model() -> None:
    """It gave way to work that is known as the same class, and was measured on the fast devices only."""
    world = on_two_models()
    world.job("training", resources={"cpu": 1, "gpu": 1}, workers="1..4", priority="low", expect="30s").round()
    members = [f"training.main[{rank}]" for rank in range(3)]
    world.start(*members).resizes(*members).after("3s")
    fast = {"cpu": 1, "gpu": 1, "gpu_model": "fast"}
    world.job("urgent", workers=2, resources=fast, priority="urgent", deadline="12s", expect="4s").round()
    world.finish("training.main[1]", "training.main[2]", outcome="stopped").round()
    assert world.where("urgent") == ["fast", "fast"]
    runs = "urgent.main[0]", "urgent.main[1]"
    world.start(*runs).after("3s").finish(*runs, run="3s").after("3s").round()
    assert len(world.where("training")) > 1
