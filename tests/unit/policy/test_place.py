"""Trying placements on a copy of the fleet's room."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from poise.model.decisions import Spot
from poise.model.resources import Shape
from poise.model.views import Candidate
from poise.policy.feasible import ability, capacity
from poise.policy.place import LOOKAHEAD, SCORED, Draft
from poise.policy.score import TERMS
from poise.testing import World, node
from poise.units import MILLISECOND, MINUTE

ONE = Shape(cpu=1000)
UNIT = Candidate(
    unit="j9.main", job="j9", ordinal=9, priority=2, kind="", shape=ONE, tasks=1, submitted=1, ready=1, tail=1,
    queue="own",
)  # fmt: skip


def draft(world: World, **weights: float) -> Draft:
    return Draft(world.ledger.snapshot(world.now), weights or {"fit": 1.0}, TERMS)


def codes(trial: Draft, name: str, shape: Shape = ONE) -> list[str]:
    return [reason.code for reason in trial.reasons_on(trial.fleet.rows[name], shape)]


def order(trial: Draft, shape: Shape = ONE) -> list[str]:
    """The nodes where the shape fits, best first."""
    return [trial.fleet.names[row] for row in trial.openings(UNIT, shape).rows]


def test_what_is_placed_in_a_draft_takes_room_there_and_not_in_the_view() -> None:
    world = World().nodes(1, cpu=1)
    trial = draft(world)
    assert trial.take(0, UNIT, ONE).node == "n1"
    assert codes(trial, "n1") == ["CPU_BUSY"]
    assert trial.best(UNIT, ONE) is None
    assert codes(Draft(trial.view, {"fit": 1.0}, TERMS), "n1") == []


def test_kept_room_is_refused_by_name() -> None:
    trial = draft(World().nodes(1, cpu=2))
    trial.keep(0, "j9.main", Shape(cpu=2000), until=0)
    [reason] = trial.reasons_on(0, ONE)
    assert (reason.code, reason.need) == ("RESERVED", "j9.main")
    assert codes(trial, "n1", Shape(cpu=4000)) == ["CPU_TOO_SMALL"]
    assert trial.best(UNIT, ONE) is None


def test_kept_room_leaves_the_rest() -> None:
    world = World().join(node("n1", cpu=4, gpus=1)).join(node("n2", cpu=8))
    trial = draft(world)
    trial.keep(0, "j9.main", Shape(cpu=3000), until=0)
    assert order(trial, Shape(cpu=1000, gpus=1)) == ["n1"]
    assert order(trial, Shape(cpu=2000)) == ["n2"]


def test_fit_prefers_little_left_over_and_idle_accelerators() -> None:
    world = World().join(node("n1", cpu=2)).join(node("n2", cpu=8)).join(node("n3", cpu=2, gpus=2))
    assert order(draft(world)) == ["n1", "n2", "n3"]
    scores = draft(world).openings(UNIT, ONE).scores
    assert scores == [0.5 * 0.5 + 0.2, 0.5 * 0.125 + 0.2, 0.5 * 0.5]  # CPU taken, and no device left idle


# --- one task at a time ----------------------------------------------------------------------------------------------


def taken(trial: Draft, unit: Candidate = UNIT, shape: Shape = ONE, count: int = 9) -> list[str]:
    """The nodes that tasks of a shape take one after the other, the best first, up to so many."""
    names: list[str] = []
    while len(names) < count and (found := trial.best(unit, shape)) is not None:
        names.append(trial.take(found[0], unit, shape).node)
    return names


def test_a_node_is_filled_before_the_next_and_spread_work_goes_round() -> None:
    world = World().nodes(3, cpu=2)
    assert taken(draft(world)) == ["n1", "n1", "n2", "n2", "n3", "n3"]
    spread = Draft(world.ledger.snapshot(world.now), {"load": 1.0}, TERMS, spread=True)
    assert taken(spread) == ["n1", "n2", "n3", "n1", "n2", "n3"]


def test_a_node_to_avoid_is_taken_if_there_is_no_other() -> None:
    avoiding = msgspec.structs.replace(UNIT, avoid="n1")
    assert taken(draft(World().nodes(2, cpu=2)), avoiding) == ["n2", "n2", "n1", "n1"]


def test_many_tasks_of_one_shape_are_taken_at_once() -> None:
    trial = draft(World().nodes(1, cpu=8, gpus=4))
    shape = Shape(gpus=1)
    assert trial.room_for(0, shape) == 4
    assert trial.take_many(0, UNIT, shape, 3) == [Spot("n1", (0,)), Spot("n1", (1,)), Spot("n1", (2,))]
    assert trial.room_for(0, shape) == 1
    assert trial.take(0, UNIT, shape) == Spot("n1", (3,))
    with pytest.raises(AssertionError, match="does not fit"):
        trial.take(0, UNIT, shape)


def test_more_nodes_are_looked_for_when_those_that_were_scored_are_full() -> None:
    world = World(check=False)
    for number in range(SCORED + 20):
        world.join(node(f"n{number:03}", cpu=1))
    trial = draft(world)
    found = trial.openings(UNIT, ONE)
    assert (len(found.rows), found.fitting, found.more) == (SCORED, SCORED + 20, True)
    assert len(set(taken(trial, count=1000))) == SCORED + 20


def test_a_gang_goes_where_all_it_could_use_fits_or_else_all_it_must_have() -> None:
    world = World().join(node("n1", cpu=2)).join(node("n2", cpu=4)).join(node("n3", cpu=8))
    trial = draft(world, first=1.0)
    assert [trial.best_whole(UNIT, ONE, least, most) for least, most in ((2, 2), (2, 4), (3, 9), (9, 9))] == [
        0,
        1,
        1,
        None,
    ]


# --- behind what is brief, and before what is kept -------------------------------------------------------------------


def brief(cpu: float = 1, nodes: int = 1, run: str = "10ms") -> World:
    """A class whose runs are known to be short, and which holds each node."""
    world = World().nodes(nodes, cpu=cpu)
    for _ in range(3):
        world.job(**{"class": "brief"})
    world.finish_all(run=run)
    for _ in range(nodes):
        world.job(**{"class": "brief"})
    return world.round()


def test_brief_work_waits_behind_its_like_where_least_waits() -> None:
    trial = draft(brief(nodes=2))
    behind = [trial.place_behind(UNIT, 10 * MILLISECOND) for _ in range(4)]
    assert behind == [Spot("n1"), Spot("n2"), Spot("n1"), Spot("n2")]


def test_no_more_waits_than_one_round_of_work() -> None:
    trial = draft(brief())
    assert sum(trial.place_behind(UNIT, 60 * MILLISECOND) is not None for _ in range(9)) == LOOKAHEAD // (
        60 * MILLISECOND
    )


@pytest.mark.parametrize(
    "fields", [{"tasks": 2}, {"recalled": True}, {"shape": Shape(gpus=1)}, {"shape": Shape(cpu=500)}]
)
def test_what_may_not_wait_behind_its_like_does_not(fields: dict[str, Any]) -> None:
    assert draft(brief()).place_behind(msgspec.structs.replace(UNIT, **fields), 10 * MILLISECOND) is None


def test_nothing_of_which_nothing_was_learned_or_that_is_long_waits_behind_its_like() -> None:
    trial = draft(brief())
    assert trial.place_behind(UNIT, 0) is None
    assert trial.place_behind(UNIT, LOOKAHEAD + 1) is None


def test_nothing_waits_where_room_is_kept() -> None:
    trial = draft(brief())
    trial.keep(0, "j99.main", ONE, until=0)
    assert trial.place_behind(UNIT, 10 * MILLISECOND) is None


def test_room_that_is_kept_is_there_meanwhile() -> None:
    world = World().nodes(2, cpu=2)
    trial = draft(world)
    trial.keep(0, "j99.main", Shape(cpu=2000), until=world.now + MINUTE)
    assert trial.room_meanwhile(ONE) == [0]
    assert trial.room_meanwhile(Shape(cpu=3000)) == []
    assert trial.room_meanwhile(Shape(gpus=1)) == []


# --- counts that are kept up to date ---------------------------------------------------------------------------------

SHAPES = (
    ONE,
    Shape(cpu=500, memory=2 * 2**30),
    Shape(cpu=100, gpus=1),
    Shape(cpu=100, gpus=2),
    Shape(cpu=100, gpus=1, share=300),
    Shape(cpu=100, gpus=2, share=200, gpu_memory=2**30),
)


@given(st.lists(st.tuples(st.sampled_from(["take", "many", "keep", "ask"]), st.sampled_from(SHAPES)), max_size=20))
def test_how_much_fits_is_the_same_as_if_it_were_counted_anew(steps: list[tuple[str, Shape]]) -> None:
    world = World().join(node("n1", cpu=4, gpus=2)).join(node("n2", cpu=2)).join(node("n3", cpu=3, gpus=3))
    trial = draft(world)
    for step, shape in steps:
        found = trial.best(UNIT, shape)
        room = 0 if found is None else trial.room_for(found[0], shape)
        match step:
            case "take" if found is not None:
                trial.take(found[0], UNIT, shape)
            case "many" if found is not None:
                trial.take_many(found[0], UNIT, shape, room)
            case "keep" if found is not None:
                trial.keep(found[0], "j99.main", shape, until=0)
            case _:
                trial.capacity(shape)
        assert (found is None) == (room == 0)
    arrays = (trial.free, trial.memory, trial.share)
    for shape in SHAPES:
        anew = capacity(trial.fleet, shape, ability(trial.fleet, shape), *arrays)
        assert trial.capacity(shape).tolist() == anew.tolist()
        assert (trial.best(UNIT, shape) is not None) == bool(anew.any())
