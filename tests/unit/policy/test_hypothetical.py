"""What if: views with one thing changed, and when a unit is expected to start."""

import contextlib
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from poise.errors import SpecError
from poise.kernel.ledger import UnitState
from poise.model.decisions import Place
from poise.model.resources import Shape
from poise.model.views import Candidate, Snapshot
from poise.policy.hypothetical import (
    Forecast,
    Hypothesis,
    after,
    expected_start,
    placed,
    starts,
    waiting_again,
    with_candidates,
    with_changed,
    with_drain,
    with_node,
    with_places,
    without,
)
from poise.policy.suites import policy_named
from poise.testing import World, node
from poise.units import MINUTE, SECOND

POISE = policy_named("poise")


def view_of(world: World) -> Snapshot:
    return world.ledger.snapshot(world.now)


def waiting(view: Snapshot, job: str) -> Candidate:
    return next(candidate for candidate in view.candidates if candidate.job == job)


def forecast(world: World, job: str) -> Forecast:
    view = view_of(world)
    return expected_start(policy_named(world.ledger.leader.policy), view, waiting(view, job))


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


def test_work_that_yields_waits_again_as_what_it_is() -> None:
    world = World().nodes(1, cpu=2).job("a", cpu=2, weight=50, deadline="2h", checkpoint="5m", expect="1h")
    view = view_of(world)
    forked = Hypothesis(view)
    plan = POISE.decide(view)
    forked.carry_out(plan)
    resident = forked.fleet.residents[0][0]
    forked.end("j1.main")
    forked.add(waiting_again(resident, view.now + MINUTE, 60 * MINUTE))
    again, was = waiting(forked.view(), "j1"), waiting(view, "j1")
    own = {"ready", "queue", "preempted", "expected", "tail"}
    for name in Candidate.__struct_fields__:
        assert name in own or getattr(again, name) == getattr(was, name), name
    assert again.preempted == 1


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


# --- expected start --------------------------------------------------------------------------------------------------


def test_what_has_room_starts_now() -> None:
    world = World().nodes(1).job("a")
    assert forecast(world, "j1") == Forecast(world.now, world.now, world.now)


def test_a_unit_starts_when_what_runs_is_expected_to_end() -> None:
    """Declared to take 100 s, give or take half of it; 40 s have passed."""
    world = World().nodes(1).job("a", cpu=2, expect="100s").round().start("a").after("40s").job("b", cpu=2)
    found = forecast(world, "j2")
    assert found.likely == world.now + 60 * SECOND
    assert found.earliest == world.now + 10 * SECOND
    assert found.latest == world.now + 160 * SECOND
    assert found.guesses == ()


def test_what_is_ahead_of_it_runs_first() -> None:
    world = World("fifo").nodes(1)
    for _ in range(4):
        world.job(cpu=2, expect="10s")
    world.round().start("j1")
    found = forecast(world, "j4")
    assert found.likely == world.now + 30 * SECOND
    assert found.earliest is not None and found.latest is not None
    assert found.earliest < found.likely < found.latest


def test_an_unknown_run_time_is_named() -> None:
    world = World().nodes(1).job("a", cpu=2).round().start("a").job("b", cpu=2)
    assert forecast(world, "j2").guesses == ("j1.main",)


def test_what_has_overrun_is_estimated_anew() -> None:
    """Declared 10 s, it runs for 60 s: as long again, or at once, or three times as long."""
    world = World().nodes(1).job("a", cpu=2, expect="10s").round().start("a").after("1m").job("b", cpu=2)
    found = forecast(world, "j2")
    assert found.likely == world.now + MINUTE
    assert found.earliest == world.now
    assert found.latest == world.now + 3 * MINUTE


@pytest.mark.parametrize("policy", ["poise", "fifo", "sjf", "srtf", "las", "round-robin", "static"])
def test_what_no_end_makes_room_for_has_no_start(policy: str) -> None:
    world = World(policy).nodes(1).drain("n1").job("a").round()
    found = forecast(world, "j1")
    assert found.likely is None
    assert found.why == "nothing that runs makes room for it when it ends"


def test_a_gang_waits_for_the_last_of_its_room() -> None:
    world = World().nodes(2, cpu=1).job("a", expect="10s").job("b", expect="90s").round().start("a", "b")
    world.job("gang", workers=2).round()
    assert forecast(world, "j3").likely == world.now + 90 * SECOND


def test_one_far_back_in_a_long_queue_starts_when_all_before_it_have() -> None:
    """A view shows the head of a queue; what comes behind it is like it."""
    world = World("fifo", check=False).nodes(1, cpu=10)
    for _ in range(300):
        world.job(expect="10s")
    view = view_of(world)
    unseen = waiting(view, "j128")
    assert all(candidate.job != "j255" for candidate in view.candidates)
    candidate = msgspec.structs.replace(unseen, **_named("j255"))
    found = expected_start(policy_named("fifo"), view, candidate, ahead=254 - 128)
    assert found.likely == world.now + 250 * SECOND


def _named(job: str) -> dict[str, Any]:
    return {"unit": f"{job}.main", "job": job, "ordinal": int(job[1:])}


timed = st.lists(
    st.tuples(st.integers(1, 2), st.integers(1, 9), st.integers(1, 2), st.sampled_from(["low", "medium", "high"])),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("policy", ["poise", "fifo", "sjf", "las", "round-robin", "least-loaded"])
@given(timed)
def test_where_runs_are_as_declared_the_forecast_comes_true(
    policy: str, asked: list[tuple[int, int, int, str]]
) -> None:
    """The last job that was submitted starts at the instant that was foreseen when all were."""
    world = World(policy, check=False).nodes(2, cpu=2)
    for number, (cpu, seconds, workers, priority) in enumerate(asked):
        fields: dict[str, Any] = {"cpu": cpu, "expect": f"{seconds}s", "workers": workers, "priority": priority}
        world.job(**fields | {"class": f"c{number}"})
    last = f"j{len(asked)}"
    foreseen = forecast(world, last).likely
    world.round()
    while not world.where(last):
        running = [unit for job in world.ledger.jobs.values() for unit in job.units if unit.status == "active"]
        for unit in running:
            world.start(*_tasks(unit))
        next_end = min(unit.placed + unit.spec.expect for unit in running)
        world.after(max(1, next_end - world.now))
        for unit in running:
            if unit.placed + unit.spec.expect <= world.now:
                world.finish(*_tasks(unit), run=unit.spec.expect)
        world.tick()
    assert world.unit(last).placed == foreseen


def _tasks(unit: UnitState) -> list[str]:
    return [f"{unit.job}.{task.name}" for task in unit.spec.tasks]


def test_who_yields_comes_back_later() -> None:
    """The low one is asked to yield, starts over when the urgent one is done, and only then the last one starts."""
    world = World().nodes(1).job("a", cpu=2, priority="low", expect="1h").round().start("a").after("1m")
    world.job("b", cpu=2, priority="urgent", expect="10m").job("c", cpu=2, priority="low", expect="2h")
    first, last = forecast(world, "j2"), forecast(world, "j3")
    assert first.likely == world.now + 5 * SECOND  # half the grace
    assert last.likely is not None
    assert last.likely >= world.now + 10 * MINUTE


def test_a_fleet_too_large_to_look_ahead_in_says_so() -> None:
    world = World(check=False).nodes(1).job("a")
    view = view_of(world)
    many = with_candidates(view, [_copy(waiting(view, "j1"), number) for number in range(20_000)])
    assert expected_start(POISE, many, waiting(view, "j1")).why.startswith("the fleet is too large")


def _copy(candidate: Candidate, number: int) -> Candidate:
    return msgspec.structs.replace(candidate, unit=f"x{number}", ordinal=10 + number)
