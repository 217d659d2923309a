"""Gangs that resize, in the twin: they go on at the speed of the size that they have, and are started once."""

import pytest

from poise.engine.twin import DETECTED_AFTER
from poise.kernel.ledger import Ledger
from poise.kernel.messages import Drain
from poise.model.events import Placed, Preempted, Resized
from poise.model.jobs import Priority
from poise.model.workload import Arrival, Steady, Truth
from poise.units import SECOND
from unit.engine.test_twin import Run, arrival, node


def training(at: float = 0.0) -> Arrival:
    """100 s of work with two tasks."""
    truth = Truth(pace=Steady(100, 2), resizes=True, checkpoint=10 * SECOND, saves=True)
    return arrival(at, 100, tasks=2, least=1, truth=truth, priority=Priority.LOW, checkpoint=10 * SECOND)


def test_what_has_lost_a_member_goes_on_half_as_fast() -> None:
    run = Run("poise", [node("n1"), node("n2")], [training()])
    run.twin.lose("n2", at=20 * SECOND)
    assert run.ends() == {"j1": pytest.approx(20 + 160)}
    assert len(run.of(Placed)) == 1


def test_it_grows_when_a_node_joins() -> None:
    run = Run("poise", [node("n1")], [training()])
    run.twin.add_nodes([node("n2")], at=20 * SECOND)
    assert run.ends() == {"j1": pytest.approx(20 + 90)}
    assert [len(event.joins) for event in run.of(Resized)] == [1]
    assert not run.of(Preempted)


def test_it_makes_room_for_what_is_urgent_and_takes_it_back() -> None:
    urgent = arrival(20, 10, priority=Priority.URGENT)
    run = Run("poise", [node("n1"), node("n2")], [training(), urgent])
    ends = run.ends()
    assert ends["j2"] == pytest.approx(30, abs=1)
    assert ends["j1"] == pytest.approx(20 + 10 + 75, abs=1), "10 s of one, and what is left of two"
    assert [(len(of.leaves), len(of.joins)) for of in run.of(Resized)] == [(1, 0), (0, 1)]
    assert len(run.of(Placed)) == 2


def test_what_it_learns_of_its_class_is_what_all_of_it_took() -> None:
    run = Run("poise", [node("n1"), node("n2")], [training()])
    run.twin.lose("n2", at=20 * SECOND)
    run.ends()
    mean = run.twin.ledger.profiles["work"].mean
    known = (20 * 2 + 160) * SECOND + DETECTED_AFTER  # until then it was counted as two
    assert mean == pytest.approx(known, rel=0.01)


def test_a_future_follows_a_gang_as_it_has_become() -> None:
    """From a ledger in which it has been resized: what is left goes on in that size."""
    run = Run("poise", [node("n1"), node("n2")], [training()])
    run.twin.ask(lambda request: Drain(request, "n2", on=True), at=15 * SECOND)
    run.twin.lose("n2", at=20 * SECOND, detected_after=0)
    run.twin.run(60 * SECOND)
    ledger = Ledger.decode(run.twin.ledger.encode())
    unit = ledger.jobs["j1"].units[0]
    assert (unit.size, unit.generation) == (1, 1)
    ledger.check()
    assert unit.carried == 40 * SECOND
