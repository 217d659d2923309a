"""Trying placements on a copy of the fleet's room."""

from poise.model.resources import Shape
from poise.model.views import Candidate
from poise.policy.place import Draft
from poise.policy.score import TERMS
from poise.testing import World, node

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
