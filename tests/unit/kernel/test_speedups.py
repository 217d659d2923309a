"""How running work scales, as it says itself: heard once, kept, and shown to policies."""

from poise.kernel.ledger import Ledger
from poise.kernel.visible import Sight
from poise.model.events import SpeedupsTold
from poise.model.messages import Attempt, Report, Told
from poise.model.progress import Speedups
from poise.model.tenants import Bearer, Role
from poise.testing import World, replay

HALF = Speedups((1000, 1500, 1750, 1875), (1000, 1400, 1600, 1700))


def told(world: World, speedups: Speedups, *, epoch: int = 1, serial: int = 50) -> World:
    attempt = Attempt("j1.main[0]", epoch)
    return world.hear(world.where("train")[0], Report(serial=serial, told=(Told(attempt=attempt, speedups=speedups),)))


def running() -> World:
    world = World().nodes(1, cpu=8, gpus=4).job("train", workers="1..4", gpu=1).round()
    return world.start(*(f"train.main[{rank}]" for rank in range(4)))


def heard(world: World) -> list[Speedups]:
    return [event.speedups for event in world.log if isinstance(event, SpeedupsTold)]


def test_a_policy_is_shown_what_work_says() -> None:
    world = told(running(), HALF)
    assert world.controller.snapshot(world.now).speedups == {"j1.main": HALF}


def test_what_has_hardly_changed_is_no_news() -> None:
    """By less than a twentieth."""
    world = told(told(running(), HALF), Speedups((1000, 1540, 1800, 1900), HALF.apart))
    assert heard(world) == [HALF]
    less = Speedups((1000, 1400, 1500, 1550), HALF.apart)
    assert heard(told(world, less)) == [HALF, less]


def test_an_earlier_attempt_is_not_heard() -> None:
    assert heard(told(running(), HALF, epoch=2)) == []


def test_no_more_is_kept_than_the_unit_has_tasks() -> None:
    world = told(running(), Speedups(tuple(range(100)), (1000, -5)))
    assert heard(world) == [Speedups((0, 1, 2, 3), (1000, 0))]


def test_it_outlives_a_restart_and_ends_with_its_unit() -> None:
    world = told(running(), HALF)
    for ledger in (replay(world.log), Ledger.decode(world.ledger.encode())):
        assert ledger.snapshot(world.now).speedups == {"j1.main": HALF}
        ledger.check()
    world.finish_all()
    assert world.ledger.snapshot(world.now).speedups == {}


def test_other_tenants_do_not_see_it() -> None:
    world = told(running(), HALF)
    [event] = [event for event in world.log if isinstance(event, SpeedupsTold)]
    assert Sight(world.ledger, Bearer("ann", Role.SUBMITTER)).event(event) is None
    assert Sight(world.ledger, Bearer("default", Role.SUBMITTER)).event(event) == event
