from poise.model.resources import Shape
from poise.policy.place import Draft, lacking, tightness
from poise.testing import World, node

ONE = Shape(cpu=1000)


def draft(world: World) -> Draft:
    return Draft(world.ledger.snapshot(world.now).nodes)


def test_what_is_placed_in_a_draft_can_be_undone() -> None:
    trial = draft(World().nodes(1, cpu=1))
    before = trial.savepoint()
    trial.place("n1", ONE)
    assert [reason.code for reason in trial.refusals_of("n1", ONE)] == ["CPU_BUSY"]
    trial.undo(before)
    assert trial.refusals_of("n1", ONE) == []


def test_kept_room_is_refused_by_name_until_it_is_undone() -> None:
    trial = draft(World().nodes(1, cpu=2))
    before = trial.savepoint()
    trial.keep_room("j9.main", Shape(cpu=2000))
    [reason] = trial.refusals_of("n1", ONE)
    assert (reason.code, reason.need) == ("RESERVED", "j9.main")
    assert [other.code for other in trial.refusals_of("n1", Shape(cpu=4000))] == ["CPU_TOO_SMALL"]
    trial.undo(before)
    assert trial.refusals_of("n1", ONE) == []


def test_room_is_kept_where_least_is_missing_and_leaves_the_rest() -> None:
    world = World().join(node("n1", cpu=4, gpus=1)).join(node("n2", cpu=8)).job(cpu=7).round()
    trial = draft(world)
    trial.keep_room("j9.main", Shape(cpu=3000))
    assert trial.refusals_of("n1", Shape(cpu=1000, gpus=1)) == []
    assert trial.refusals_of("n1", Shape(cpu=2000)) != []
    assert trial.refusals_of("n2", ONE) == []


def test_scores_prefer_little_left_over_and_idle_accelerators() -> None:
    nodes = World().join(node("n1", cpu=2)).join(node("n2", cpu=8)).join(node("n3", cpu=2, gpus=2)).ledger
    small, large, with_devices = nodes.snapshot(0).nodes
    assert tightness(small, ONE) > tightness(large, ONE)
    assert tightness(small, ONE) > tightness(with_devices, ONE)
    assert 0 <= tightness(large, ONE) <= 1
    assert lacking(small, Shape(cpu=4000)) == 0.5
    assert lacking(large, Shape(cpu=4000)) == 0
