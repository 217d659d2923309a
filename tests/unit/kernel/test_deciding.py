"""Deciding takes time: what the controller does between asking for a plan and being handed it."""

from poise.kernel.controller import ROUND
from poise.kernel.messages import Decide, Decided
from poise.model.decisions import Plan
from poise.testing import World
from poise.units import SECOND


def asked(world: World) -> Decide:
    """The controller asks for a plan, and nobody answers yet."""
    effects = world.controller.tick(world.now)
    return next(effect for effect in effects if isinstance(effect, Decide))


def thinking() -> tuple[World, Decide]:
    world = World(poll=ROUND).job("waits").after("1s")
    world.now += SECOND
    return world, asked(world)


def test_there_is_nothing_to_wake_up_for_while_a_plan_is_being_made() -> None:
    world, decide = thinking()
    world.now += SECOND
    wakeup = world.controller.wakeup()
    assert wakeup is None or wakeup > world.now
    world.say(Decided(Plan(base=decide.view.revision, policy="slow")))
    assert (world.controller.wakeup() or 0) <= world.now


def test_one_plan_is_made_at_a_time() -> None:
    world, _ = thinking()
    world.now += SECOND
    assert not any(isinstance(effect, Decide) for effect in world.controller.tick(world.now))


def test_what_fires_while_a_plan_is_made_is_told_to_the_next_round() -> None:
    world, decide = thinking()
    world.controller.cadence.fired.append("late")  # as a trigger does
    world.say(Decided(Plan(base=decide.view.revision, policy="slow")))
    world.now += SECOND
    assert asked(world).view.triggers == ("late",)
    world.say(Decided(Plan(base=decide.view.revision, policy="slow")))
    world.now += SECOND
    assert asked(world).view.triggers == ()
