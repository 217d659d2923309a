"""What if: views with one thing changed, and when a unit is expected to start."""

import contextlib
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from poise.errors import SpecError
from poise.model.decisions import Place
from poise.model.resources import Shape
from poise.model.views import Candidate, Snapshot
from poise.policy.hypothetical import (
    Hypothesis,
    after,
    placed,
    starts,
    with_candidates,
    with_changed,
    with_drain,
    with_node,
    with_places,
    without,
)
from poise.policy.suites import policy_named
from poise.testing import World, node

POISE = policy_named("poise")


def view_of(world: World) -> Snapshot:
    return world.ledger.snapshot(world.now)


def waiting(view: Snapshot, job: str) -> Candidate:
    return next(candidate for candidate in view.candidates if candidate.job == job)


# --- views -----------------------------------------------------------------------------------------------------------


def test_work_that_is_placed_stays_what_it_is() -> None:
    world = World().nodes(2, cpu=4).quota("ann", cpu=9)
    fields: dict[str, Any] = {"weight": 50, "preemptible": False, "deadline": "2h", "expect": "10m", "priority": "high"}
    world.job("a", tenant="ann", workers=3, cpu=2, checkpoint={"every": "5m", "restore": "30s"}, **fields)
    world.job("b", cpu=2, workers={"min": 1, "max": 2}, expect="5m")
    view = view_of(world)
    decided = after(view, POISE.decide(view))
    world.round().start(*(f"a.main[{task}]" for task in range(3)), "b.main[0]")
    assert any(decided.fleet.residents)
    assert decided.fleet.residents == view_of(world).fleet.residents
    assert decided.elastic == view_of(world).elastic


def test_a_placement_takes_what_it_takes_in_the_ledger() -> None:
    world = World().join(node("n1", cpu=4, gpus=2)).job("a", cpu=2, memory="1GiB", gpu=1).job("b")
    view = view_of(world)
    decided = after(view, POISE.decide(view))
    world.round().start("a", "b")
    told = view_of(world)
    assert (decided.fleet.free == told.fleet.free).all()
    assert (decided.fleet.device_share == told.fleet.device_share).all()
    assert (decided.fleet.yielding == told.fleet.yielding).all()
    assert [resident.unit for resident in decided.fleet.residents[0]] == ["j1.main", "j2.main"]
    assert decided.candidates == ()
    assert decided.backlog == told.backlog == {}


def test_a_share_of_a_device_is_taken_and_given_back() -> None:
    world = World().join(node("n1", gpus=1)).job("a", gpu=1, gpu_share=0.5, gpu_memory="10GiB")
    view = view_of(world)
    [place] = [of for of in POISE.decide(view).decisions if isinstance(of, Place)]
    taken = with_places(view, [place])
    assert taken.fleet.free[:, 0].tolist()[3] == 0
    assert taken.fleet.device_share[0].tolist() == [500]
    assert taken.fleet.device_memory[0].tolist() == [70 * 2**30]
    assert without(taken, ["j1.main"]).fleet == view.fleet


def test_nothing_changes_the_view_that_it_was_made_from() -> None:
    world = World().nodes(2, gpus=2).job("a", gpu=1).round().job("b", gpu=2)
    view, same = view_of(world), view_of(world)
    candidate = waiting(view, "j2")
    with_changed(view, candidate, priority=0)
    with_drain(view, "n1", on=True)
    with_node(view, node("n9", gpus=4))
    without(view, ["j1.main", "j2.main"])
    with_candidates(view, [candidate])
    after(view, POISE.decide(view))
    assert view == same
    assert view.fleet == same.fleet


def test_an_attempt_that_has_ended_leaves_its_room() -> None:
    world = World().nodes(1).job("a", cpu=2).round().job("b", cpu=2).round()
    view = view_of(world)
    assert placed(POISE.decide(view), "j2.main") is None
    assert placed(POISE.decide(without(view, ["j1.main"])), "j2.main") is not None


def test_a_unit_that_asks_for_less_is_in_no_other_units_way() -> None:
    world = World().nodes(1).job("a").round()
    for _ in range(2):
        world.job(cpu=2)
    world.round()
    view = view_of(world)
    smaller = with_changed(view, waiting(view, "j3"), shape=Shape(1000))
    assert placed(POISE.decide(smaller), "j3.main") is not None
    assert sum(smaller.backlog.values()) == 2


def test_a_node_is_opened() -> None:
    world = World().nodes(1).drain("n1").job("a").round()
    view = view_of(world)
    assert placed(POISE.decide(with_drain(view, "n1", on=False)), "j1.main") is not None


def test_a_node_more_keeps_everything_else_where_it_is() -> None:
    world = World().join(node("b", cpu=2, gpus=1)).join(node("d", cpu=4)).job("a", gpu=1).round().job("w", cpu=4)
    world.drain("d").round()
    view = view_of(world)
    wider = with_node(view, node("c", cpu=8, gpus=3))
    assert wider.fleet.names == ("b", "c", "d")
    assert wider.fleet.closed.tolist() == [0, 0, 2]
    assert [len(residents) for residents in wider.fleet.residents] == [1, 0, 0]
    assert wider.fleet.free[0].tolist() == [1000, 8000, 4000]
    place = placed(POISE.decide(wider), "j2.main")
    assert place is not None
    assert place.spots[0].node == "c"


def test_who_yields_leaves_room_for_whom_it_yields_to() -> None:
    world = World().nodes(1).job("a", cpu=2, priority="low", expect="1h").round().start("a").after("1m")
    world.job("b", cpu=2, priority="urgent", expect="1m")
    found = starts(POISE, view_of(world), "j2.main")
    assert found is not None
    assert found[1] == ("j1.main",)


jobs = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 3), st.sampled_from(["low", "high"])), max_size=8
)


@given(jobs)
def test_placing_and_ending_gives_the_same_fleet(asked: list[tuple[int, int, int, str]]) -> None:
    """Whatever was placed: when all of it has ended, the columns are what they were."""
    world = World(check=False).nodes(3, cpu=4, gpus=2).job(gpu=1).round()
    for cpu, gpus, workers, priority in asked:
        with contextlib.suppress(SpecError):  # a gang that never fits is refused
            world.job(cpu=cpu, gpu=gpus, workers=workers, priority=priority)
    view = view_of(world)
    changed = Hypothesis(view)
    plan = POISE.decide(view)
    changed.carry_out(plan)
    for decision in plan.decisions:
        if isinstance(decision, Place):
            changed.end(decision.unit)
    assert changed.fleet == view.fleet
    assert (changed.fleet.free <= changed.fleet.total).all()
