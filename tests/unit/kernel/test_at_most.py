"""Of the parts of a task so many run at once; the next one has its turn when one has ended."""

from poise.kernel.ledger import Ledger
from poise.testing import World, replay


def running(world: World) -> list[int]:
    return [part for part in range(6) if world.status(f"j.main[{part}]") == "active"]


def test_so_many_run_at_once_and_the_next_when_one_ends() -> None:
    world = World().nodes(1, cpu=8).job("j", parts=6, at_most=2).round()
    assert running(world) == [0, 1]
    assert world.codes("j.main[5]") == ["AT_MOST"]
    assert running(world.finish("j.main[1]").round()) == [0, 2]
    assert world.finish_all().status("j") == "done"


def test_who_fails_makes_room_too_and_who_is_tried_again_keeps_its_turn() -> None:
    world = World().nodes(1, cpu=8).job("j", parts=6, at_most=2, retry={"limit": 1, "when": ["failed"]}).round()
    assert running(world.finish("j.main[0]", outcome="failed").round()) == [1]
    assert running(world.after("2s").round()) == [0, 1]
    assert running(world.finish("j.main[0]", outcome="failed").round()) == [1, 2]


def test_turns_wait_for_needs_too() -> None:
    tasks = {"a": {"run": "x"}, "b": {"run": "x", "parts": 3, "at_most": 1, "needs": ["a"], "merge": "y"}}
    world = World().nodes(1, cpu=8).submit({"kind": "graph", "name": "g", "tasks": tasks}).round()
    assert world.codes("g.b[0]") == ["NEEDS"]
    assert world.codes("g.b[1]") == ["NEEDS", "AT_MOST"]
    world.finish("g.a").round()
    assert [world.status(f"g.b[{part}]") for part in range(3)] == ["active", "waiting", "waiting"]
    assert world.finish_all().status("g") == "done"


def test_a_job_that_is_cancelled_starts_none_of_them() -> None:
    world = World().nodes(1, cpu=8).job("j", parts=6, at_most=2).round().cancel("j").round()
    assert running(world.finish_all(outcome="stopped")) == []
    assert world.status("j") == "cancelled"


def test_what_follows_a_failure_is_skipped_whole() -> None:
    world = World().nodes(1, cpu=8).job("first").job("j", parts=4, at_most=1, after=["first"]).round()
    world.finish("first.main", outcome="failed").round()
    assert [world.status(f"j.main[{part}]") for part in range(4)] == ["skipped"] * 4


def test_turns_survive_a_restart() -> None:
    world = World().nodes(1, cpu=8).job("j", parts=6, at_most=2).round().finish("j.main[0]").round()
    state = world.ledger.encode()
    assert replay(world.log).encode() == state
    assert Ledger.decode(state).jobs["j1"].turns == {"main": 1}
