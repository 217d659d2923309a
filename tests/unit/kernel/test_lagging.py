"""A gang that waits in each step for one of its members: it is seen by what its members say, and moves if that pays."""

import msgspec

from poise.kernel.ledger import Ledger
from poise.kernel.straggle import LAGS_FOR
from poise.model.events import Lagging, Preempted
from poise.model.messages import Attempt, Report, Told
from poise.model.training import Saved, Training
from poise.testing import World, node, replay
from poise.units import MILLISECOND, SECOND


def gang(*, workers: int = 3, nodes: int = 4) -> World:
    world = World().nodes(nodes, cpu=1).job("train", workers=workers, cpu=1, checkpoint="1m").round()
    return world.start(*(f"train.main[{rank}]" for rank in range(workers)))


def step(world: World, computes: list[int], *, seconds: int = 5, lasts: int = 0) -> World:
    """For so long every member says once in five seconds how long it computes, in milliseconds. In all it `lasts` for
    so many seconds (0: it does not say).
    """
    for _ in range(seconds // 5):
        for rank, time in enumerate(computes):
            training = Training(
                step=1,
                compute=time * MILLISECOND,
                progress=world.now // (lasts * 1000) if lasts and rank == 0 else -1,
                checkpoint=Saved(step=1, every=60 * SECOND) if rank == 0 else None,
            )
            told = Told(attempt=Attempt(f"j1.main[{rank}]", 1), training=training)
            world.hear(world.task(f"train.main[{rank}]")[1].node, Report(serial=50, told=(told,)))
        world.after("5s").tick()
    return world


def lagging(world: World) -> list[Lagging]:
    return [event for event in world.log if isinstance(event, Lagging)]


def test_a_member_at_half_speed_is_reported_with_evidence_within_a_minute() -> None:
    world = step(gang(), [100, 210, 100], seconds=60)
    [event] = lagging(world)
    assert (event.task, event.computes, event.usual, event.siblings) == (
        "j1.main[1]",
        210 * MILLISECOND,
        100 * MILLISECOND,
        2,
    )
    assert event.at <= 60 * SECOND
    assert "LAGGING" in world.codes("train")


def test_of_two_members_the_slower_one_lags() -> None:
    [event] = lagging(step(gang(workers=2), [100, 160], seconds=60))
    assert event.task == "j1.main[1]"


def test_what_is_hardly_slower_or_only_for_a_moment_is_no_news() -> None:
    assert lagging(step(gang(), [100, 145, 100], seconds=120)) == []
    world = gang()
    for _ in range(6):
        step(step(world, [100, 400, 100], seconds=LAGS_FOR // SECOND - 10), [100, 100, 100])
    assert lagging(world) == []


def test_members_on_other_models_of_device_are_not_compared() -> None:
    world = World()
    for name, model in (("n1", "A"), ("n2", "B")):
        offered = node(name, cpu=1, gpus=1)
        device = msgspec.structs.replace(offered.devices[0], model=model)
        world.join(msgspec.structs.replace(offered, devices=(device,)))
    world.job("train", workers=2, cpu=1, gpu=1).round().start("train.main[0]", "train.main[1]")
    assert lagging(step(world, [100, 300], seconds=120)) == []


def test_the_gang_moves_to_a_node_that_is_free_when_that_pays() -> None:
    """It has an hour to go, and waits for half of it."""
    world = step(gang(), [100, 210, 100], seconds=60, lasts=3600)
    slow = world.task("train.main[1]")[1].node
    for _ in range(30):
        step(world, [100, 210, 100], seconds=10, lasts=3600).round()
        if any(isinstance(event, Preempted) for event in world.log):
            break
    [order] = [event for event in world.log if isinstance(event, Preempted)]
    assert order.cause == "move"
    assert f"a gang waits for its member on {slow}" in order.why.rank
    world.round()
    assert world.unit("train").epoch == 2
    assert slow not in [world.task(f"train.main[{rank}]")[1].node for rank in range(3)]
    assert world.unit("train").lags is None


def test_it_stays_where_nothing_else_is_free() -> None:
    world = step(gang(nodes=3), [100, 210, 100], seconds=300, lasts=3600).round()
    assert lagging(world)
    assert not [event for event in world.log if isinstance(event, Preempted)]


def test_it_outlives_a_restart() -> None:
    world = step(gang(nodes=3), [100, 210, 100], seconds=60)
    for ledger in (replay(world.log), Ledger.decode(world.ledger.encode())):
        ledger.check()
        [seen] = ledger.snapshot(world.now).stragglers
        assert (seen.node, seen.computes) == (world.task("train.main[1]")[1].node, 210 * MILLISECOND)
