"""`kernel/decided.py`: rounds, their decisions, and what was weighed."""

from typing import Any

from poise.kernel.decided import Rounds
from poise.kernel.ledger import Ledger
from poise.kernel.visible import OTHERS, Sight
from poise.model.events import Placed, Round
from poise.model.tenants import Bearer, Role
from poise.testing import WALL, World


def rounds_of(world: World) -> Rounds:
    following = Rounds(Ledger())
    for event in world.log:
        following.add(event)
    assert following.ledger.encode() == world.ledger.encode()
    return following


def crowded() -> World:
    """`a` gets one of two like nodes, `b` the other; `c` and `d` wait."""
    world = World().nodes(2, cpu=1)
    for name in "abcd":
        world.job(name, cpu=1, expect="1h")
    return world.round()


def test_a_round_names_what_was_placed_instead_of_what_and_what_is_held_why() -> None:
    world = crowded()
    told = rounds_of(world).latest()[::-1]
    placed = [made for one in told for made in one.made if made.what == "placed"]
    assert [(made.of, made.where) for made in placed] == [(("j1.main",), ("n1",)), (("j2.main",), ("n2",))]
    (event,) = (event for event in world.log if isinstance(event, Placed) and event.unit == "j1.main")
    assert tuple(placed[0].instead_of) == event.why.instead_of == ("n2",)
    assert (placed[0].score, placed[0].why) == (event.why.score, event.why.sentence())
    held = [made for one in told for made in one.made if made.what == "held"]
    assert held[-1].of == ("j3.main", "j4.main") and "CPU free" in held[-1].why
    assert {one.policy for one in told} == {"poise"} and all(one.at >= WALL for one in told)


def test_of_one_node_are_told_the_decisions_for_which_it_was_chosen_or_weighed() -> None:
    world = crowded()
    rounds, placed = rounds_of(world), [event for event in world.log if isinstance(event, Placed)]
    for node in ("n1", "n2", "n3"):
        wanted = {event.unit for event in placed if node in (event.spots[0].node, *event.why.instead_of)}
        assert {unit for one in rounds.latest(node=node) for made in one.made for unit in made.of} == wanted
        assert bool(wanted) == (node != "n3")


def test_each_round_ends_with_its_record() -> None:
    world = crowded()
    records = [number for number, event in enumerate(world.log, start=1) if isinstance(event, Round)]
    assert [one.revision for one in rounds_of(world).latest()] == records[::-1]


def test_a_log_from_before_rounds_were_recorded_has_one_for_each_instant() -> None:
    world = crowded().after("3s")
    world = world.start("a", "b").finish("a").round()
    with_rounds = rounds_of(world).latest()
    world.log = [event for event in world.log if not isinstance(event, Round)]
    following = Rounds(Ledger())
    for event in world.log:
        following.add(event)
    assert [one.made for one in following.latest()] and len(following.latest()) <= len(with_rounds)
    assert sum(len(one.made) for one in following.latest()) == sum(len(one.made) for one in with_rounds)


def test_a_preemption_says_for_whom_and_what_was_weighed() -> None:
    low: dict[str, Any] = {"gpu": 1, "priority": "low", "expect": "10h", "checkpoint": "1m"}
    world = World().nodes(1, gpus=1).job("low", **low).round().start("low").after("150s")
    world = world.job("now", gpu=1, priority="urgent", expect="10s").after("5s")
    (made,) = (made for one in rounds_of(world).latest() for made in one.made if made.what == "preempted")
    assert (made.of, made.to) == (("j1.main",), "j2.main")
    assert "yield to j2.main" in made.why and made.score


def test_the_latest_of_some_jobs_from_a_time_on() -> None:
    world = crowded().after("10s").start("a", "b").finish("b").round()
    rounds = rounds_of(world)
    assert [one.made[0].of for one in rounds.latest(1)] == [("j3.main",)]
    assert {made.of for one in rounds.latest(jobs=["j1"]) for made in one.made} == {("j1.main",)}
    assert all(one.at >= WALL + 5 for one in rounds.latest(since=WALL + 5))
    newest, *older = rounds.latest()
    assert rounds.latest(before=newest.revision) == older


def test_a_tenant_sees_decisions_on_its_own_work_without_the_names_of_others() -> None:
    low: dict[str, Any] = {"gpu": 1, "priority": "low", "expect": "10h", "checkpoint": "1m"}
    world = World().nodes(1, gpus=1).job("low", tenant="us", **low).round().start("low").after("150s")
    world = world.job("now", gpu=1, priority="urgent", expect="10s", tenant="them").after("5s")
    rounds = rounds_of(world)
    seen = rounds.latest(sight=Sight(rounds.ledger, Bearer("us", Role.VIEWER)))
    made = [made for one in seen for made in one.made]
    assert {of for one in made for of in one.of} == {"j1.main"}
    (order,) = (one for one in made if one.what == "preempted")
    assert order.to == OTHERS and "j2" not in order.why
