"""When room comes by itself, who yields for whom, and at what cost."""

from math import inf
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from poise.model.decisions import Place, Preempt
from poise.model.fleet import DEVICES, Fleet, Resident
from poise.model.jobs import GRACE
from poise.model.profiles import Profile, remaining
from poise.model.resources import WHOLE, Shape
from poise.model.views import Candidate, Snapshot
from poise.policy.place import Draft
from poise.policy.predict import Speeds
from poise.policy.reclaim import (
    LOOKED_AT,
    MIN_RUN,
    RENEWED,
    Preemption,
    Prices,
    cost_of,
    ends,
    find_yielding,
    gain_of,
    make_way,
    may_be_asked,
    reserve,
    service,
)
from poise.policy.running import Running, lost_work
from poise.policy.score import TERMS
from poise.testing import World, node
from poise.units import HOUR, MINUTE, SECOND

NOW = 10 * HOUR
ONE = Shape()


def resident(name: str, *, ran: int = HOUR, **fields: Any) -> Resident:
    """A unit of class `low` that has run for so long; a number at the end of its name is its ordinal."""
    usual: dict[str, Any] = {"priority": 3, "shape": ONE, "kind": "", "running": True, "ordinal": int(name[1:])}
    return Resident(unit=name, since=NOW - ran, **{**usual, **fields})


def candidate(**fields: Any) -> Candidate:
    usual: dict[str, Any] = {"priority": 2, "kind": "", "shape": ONE, "tasks": 1, "expected": MINUTE}
    return Candidate(
        unit="u99", job="j", ordinal=99, submitted=1, ready=NOW, tail=MINUTE, queue="own", **{**usual, **fields}
    )


def draft(*of_nodes: list[Resident], cpu: int = 2, profiles: dict[str, Profile] | None = None) -> Draft:
    """Nodes `n0` … of so many CPUs on which these run."""
    fleet = Fleet([node(f"n{number}", cpu=cpu) for number in range(len(of_nodes))])
    for row, residents in enumerate(of_nodes):
        fleet.residents[row] = tuple(residents)
        for one in residents:
            need = (one.shape.cpu, one.shape.memory, one.shape.network, one.shape.gpus)
            fleet.free[:, row] -= need
            if one.preemptible and not one.stopping:
                fleet.yielding[one.priority, :, row] += need
    view = Snapshot(
        revision=1, now=NOW, fleet=fleet, candidates=(), backlog={}, profiles=profiles or {}
    )  # fmt: skip
    return Draft(view, {"first": 1.0}, TERMS)


# --- whose place is worth least ---------------------------------------------------------------------------------------


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9) | st.just(0)), max_size=3), min_size=1, max_size=9
    ),
    st.lists(st.integers(0, 8), max_size=3),
    st.integers(1, 4),
    st.integers(1, 12),
)
def test_the_search_finds_the_cheapest_node(
    nodes: list[list[tuple[int, int]]], kept: list[int], gpus: int, worth: int
) -> None:
    """On each node of 4 devices run units with the given devices and prices (0: not to be preempted). The search looks
    only at nodes that could be cheap enough, and finds the same price as a look at all of them.
    """
    fleet, prices = Fleet([node(f"n{row}", gpus=4) for row in range(len(nodes))]), dict[str, float]()
    for row, runs in enumerate(nodes):
        here: list[Resident] = []
        for devices, price in runs:
            held = tuple(range(sum(one.shape.gpus for one in here), sum(one.shape.gpus for one in here) + devices))
            if held[-1] < 4:
                one = resident(f"u{len(prices)}", shape=Shape(cpu=0, gpus=devices), devices=held)
                prices[one.unit] = price or inf
                here.append(one)
                fleet.device_share[row, list(held)] = 0
                fleet.free[DEVICES, row] -= devices
        fleet.residents[row] = tuple(here)
    view = Snapshot(revision=1, now=NOW, fleet=fleet, candidates=(), backlog={}, profiles={})
    trial, shape = Draft(view, {"first": 1.0}, TERMS), Shape(cpu=0, gpus=gpus)
    closed = {row for row in kept if row < len(nodes)}
    for row in closed:
        trial.keep(row, "u98", Shape(cpu=0, gpus=1), NOW)

    def cheapest(row: int) -> float:
        """The price of the units that go, lowest first, without those whose devices are not needed."""
        free, going = int(fleet.free[DEVICES, row]), list[Resident]()
        for one in sorted(fleet.residents[row], key=lambda one: (prices[one.unit], -one.since, one.ordinal)):
            if free >= gpus:
                break
            going.append(one)
            free += one.shape.gpus
        for one in going[:-1]:
            if free - one.shape.gpus >= gpus:
                going.remove(one)
                free -= one.shape.gpus
        return sum(prices[one.unit] for one in going) if free >= gpus else inf

    of = np.array([prices[unit] for unit in trial.running.units.number], float)
    found = make_way(shape, trial, 1, Preemption(by="value"), Prices(of, trial), worth, ())
    offers = [cheapest(row) for row in range(len(nodes)) if row not in closed and fleet.residents[row]]
    wanted = min((offer for offer in offers if 0 < offer < worth), default=None)
    if any(offer == 0 for offer in offers):  # there is room: nobody searches then
        return
    assert (found.price if found is not None else None) == wanted
    assert found is None or sum(prices[one.unit] for one in found.victims) == found.price


# --- what is foreseen ------------------------------------------------------------------------------------------------


def test_a_blocked_unit_starts_where_room_comes_first() -> None:
    """Two run on n0 until one minute from now, one on n1 until ten seconds from now, but it holds half of n1 only."""
    trial = draft(
        [resident("u1", ran=0, declared=MINUTE, shape=Shape(cpu=2000))],
        [resident("u2", ran=0, declared=10 * SECOND), resident("u3", ran=0, declared=HOUR)],
    )
    assert reserve(ONE, trial, 1) == ({1: 1}, NOW + 10 * SECOND)
    assert reserve(Shape(cpu=2000), trial, 1) == ({0: 1}, NOW + MINUTE)


def test_a_gang_starts_when_the_last_of_its_tasks_can() -> None:
    trial = draft(
        [resident("u1", ran=0, declared=MINUTE), resident("u2", ran=0, declared=2 * MINUTE)],
        [resident("u3", ran=0, declared=HOUR)],
    )
    assert reserve(ONE, trial, 3) == ({0: 2, 1: 1}, NOW + 2 * MINUTE)
    assert reserve(ONE, trial, 4) == ({0: 2, 1: 2}, NOW + HOUR)
    assert reserve(ONE, trial, 5) is None


def test_nothing_is_reserved_where_it_could_never_start() -> None:
    assert reserve(Shape(cpu=3000), draft([]), 1) is None


def test_room_that_is_kept_is_as_good_as_taken() -> None:
    trial = draft(
        [resident("u1", ran=0, declared=MINUTE)], [resident("u2", ran=0, declared=HOUR, shape=Shape(cpu=2000))]
    )
    trial.keep(0, "u98", Shape(cpu=2000), NOW + MINUTE)
    assert reserve(ONE, trial, 1) == ({1: 1}, NOW + HOUR)


def test_a_run_that_lasts_longer_than_foreseen_is_foreseen_anew() -> None:
    speeds = Speeds((), {"": Profile(count=9, mean=MINUTE, deviation=0)}, {})
    assert ends(resident("u1", ran=20 * SECOND), NOW, speeds) == NOW + 40 * SECOND
    assert ends(resident("u1", ran=2 * MINUTE), NOW, speeds) == NOW + 2 * MINUTE
    assert ends(resident("u1", ran=2 * MINUTE, stopping=True), NOW, speeds) == NOW + GRACE
    assert ends(resident("u1", ran=5 * SECOND, running=False), NOW, speeds) == NOW + MINUTE


RUNS = st.fixed_dictionaries(
    {
        "ran": st.integers(0, 3 * HOUR),
        "declared": st.sampled_from([0, 1, MINUTE, HOUR]),
        "kind": st.sampled_from(["", "k", "never"]),
        "running": st.booleans(),
        "stopping": st.booleans(),
        "outlived": st.sampled_from([0, HOUR]),
    }
)


@given(st.lists(RUNS, max_size=6), st.lists(RUNS, max_size=6))
def test_what_is_foreseen_in_columns_is_what_is_foreseen_of_each(first: list[Any], second: list[Any]) -> None:
    """Also once it is remembered, and after more was learned of one class."""
    rows = [[resident(f"u{number}", **one) for number, one in enumerate(of)] for of in (first, second)]
    trial = draft(*rows, cpu=20, profiles={"k": Profile(count=9, mean=HOUR, deviation=MINUTE)})
    again = msgspec.structs.replace(trial.view, profiles={"k": Profile(count=9, mean=MINUTE, deviation=1)})
    for view in (trial.view, trial.view, again):
        now_known = Draft(view, {"first": 1.0}, TERMS)
        lefts = []
        for row, of in enumerate(rows):
            each = sorted((ends(one, NOW, now_known.speeds), number) for number, one in enumerate(of))
            assert now_known.running.endings(row) == each
            for one in of:
                likely = now_known.speeds.both_of_attempt(one)[1]
                lefts.append(remaining(NOW - one.since, likely.mean, likely.deviation))
        assert now_known.running.left.tolist() == lefts


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(-1, 7), min_size=3, max_size=3),
)
def test_devices_come_free_when_what_has_them_ends(rows: list[list[tuple[int, int]]], lacks: list[int]) -> None:
    """Each row has some that end after so many minutes, and hold so many devices."""
    on = [
        [
            resident(f"u{10 * row + number}", ran=0, declared=minutes * MINUTE, shape=Shape(gpus=gpus))
            for number, (minutes, gpus) in enumerate(of)
        ]
        for row, of in enumerate(rows)
    ]
    running = Running(draft(*on, cpu=20).fleet, Speeds((), {}, {}), NOW)
    wanted: list[int | None] = []
    for row, of in enumerate(rows):
        freed, at = 0, NOW if lacks[row] <= 0 else None
        for minutes, gpus in sorted(of, key=lambda one: one[0]):
            freed += gpus
            if at is None and freed >= lacks[row]:
                at = NOW + minutes * MINUTE
        wanted.append(at)
    asked = np.array(lacks[: len(rows)]) * WHOLE
    assert running.soonest(np.arange(len(rows)), asked) == wanted


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), min_size=LOOKED_AT, max_size=LOOKED_AT + 6),
    st.lists(st.tuples(st.booleans(), st.integers(0, LOOKED_AT - 1)), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_a_reservation_after_others_is_that_of_a_new_look(
    nodes: list[tuple[int, int]], changes: list[tuple[bool, int]], tasks: int
) -> None:
    """Each node runs a unit that ends after the given minutes and holds the given number of its 4 devices. The test
    keeps room on nodes or takes free room. After each change, the draft answers like a new draft.
    """
    shape = Shape(gpus=2)

    def new() -> Draft:
        fleet = Fleet([node(f"n{row}", gpus=4) for row in range(len(nodes))])
        for row, (minutes, held) in enumerate(nodes):
            asks, devices = Shape(gpus=held), tuple(range(held))
            one = resident(f"u{row}", ran=0, declared=minutes * MINUTE, shape=asks, devices=devices)
            fleet.residents[row] = (one,)
            fleet.free[:, row] -= (asks.cpu, asks.memory, asks.network, held)
            fleet.device_share[row, :held] = 0
        return Draft(
            Snapshot(revision=1, now=NOW, fleet=fleet, candidates=(), backlog={}, profiles={}), {"first": 1.0}, TERMS
        )

    def change(trial: Draft, keeps: bool, row: int) -> None:
        if keeps:
            trial.keep(row, "u98", shape, NOW + HOUR)
        elif trial.room_for(row, shape):
            trial.take(row, candidate(shape=shape), shape)

    asked = new()
    for number in range(len(changes)):
        reserve(shape, asked, tasks)
        asked.room_meanwhile(shape)
        change(asked, *changes[number])
        fresh = new()
        for earlier in changes[: number + 1]:
            change(fresh, *earlier)
        assert reserve(shape, asked, tasks) == reserve(shape, fresh, tasks)
        assert asked.room_meanwhile(shape) == fresh.room_meanwhile(shape)


def test_what_was_learned_on_its_device_goes_before_what_was_learned_anywhere() -> None:
    speeds = Speeds((), {"k": Profile(count=9, mean=HOUR), "k@fast": Profile(count=9, mean=MINUTE)}, {})
    assert ends(resident("u1", ran=0, kind="k", model="fast"), NOW, speeds) == NOW + MINUTE
    assert ends(resident("u1", ran=0, kind="k", model="other"), NOW, speeds) == NOW + HOUR


# --- what yielding costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        ({"ran": HOUR}, HOUR),  # without checkpoints all of it
        ({"ran": 25 * MINUTE, "checkpoint": 10 * MINUTE}, 5 * MINUTE),
        ({"ran": 25 * MINUTE, "checkpoint": 10 * MINUTE, "restore": MINUTE}, 6 * MINUTE),
        ({"ran": HOUR, "running": False, "restore": MINUTE}, MINUTE),  # it has not begun
    ],
)
def test_what_is_lost_is_the_work_since_the_checkpoint_and_restoring(fields: dict[str, Any], lost: int) -> None:
    assert lost_work(resident("u1", **fields), NOW) == lost


def test_cost_is_lost_work_times_size_times_class() -> None:
    costs = [cost_of(resident("u1", ran=MINUTE, size=3, priority=priority), NOW) for priority in range(4)]
    assert costs == [3 * MINUTE * weight for weight in (8, 4, 2, 1)]


def test_gain_is_time_times_size_times_class_or_at_least_the_run_of_what_would_be_late() -> None:
    assert gain_of(candidate(), NOW + HOUR, NOW, 2) == (HOUR - GRACE) * 2 * 2
    assert gain_of(candidate(priority=0), NOW + HOUR, NOW, 1) == (HOUR - GRACE) * 8
    assert gain_of(candidate(), NOW + SECOND, NOW, 1) == 0
    late = candidate(due=NOW + MINUTE, expected=50 * SECOND)
    assert gain_of(late, NOW + 15 * SECOND, NOW, 1) == 50 * SECOND * 2
    assert gain_of(late, NOW + 9 * SECOND, NOW, 1) == 0


def test_service_is_run_time_times_devices_times_tasks() -> None:
    assert service(resident("u1", ran=MINUTE, size=2, shape=Shape(gpus=4), attained=7), NOW) == 7 + 8 * MINUTE
    assert service(resident("u1", ran=MINUTE), NOW) == MINUTE


# --- who yields ------------------------------------------------------------------------------------------------------


def victims(
    trial: Draft, shape: Shape = ONE, tasks: int = 1, rules: Preemption | None = None, **fields: Any
) -> list[str] | None:
    found = find_yielding(candidate(shape=shape, tasks=tasks, **fields), shape, trial, tasks, rules or Preemption())
    return None if found is None else [victim.unit for victim in found.victims]


def test_the_cheapest_yields() -> None:
    saved = resident("u2", ran=61 * MINUTE, checkpoint=MINUTE)
    assert victims(draft([resident("u1"), saved], [resident("u3"), resident("u4", ran=MINUTE)])) == ["u2"]


def test_of_those_that_cost_the_same_the_one_that_started_last_yields() -> None:
    saved = {"checkpoint": 10 * MINUTE, "restore": MINUTE}
    longest, latest = resident("u1", ran=60 * MINUTE, **saved), resident("u2", ran=40 * MINUTE, **saved)
    assert victims(draft([longest, latest])) == ["u2"]


def test_no_more_yield_than_are_needed() -> None:
    """The small one is cheaper, but the large one has to yield anyway; then the small one may stay."""
    small, large = resident("u1", ran=MINUTE), resident("u2", shape=Shape(cpu=3000))
    assert victims(draft([small, large], cpu=4), Shape(cpu=3000)) == ["u2"]
    assert victims(draft([small, large], cpu=4), Shape(cpu=4000)) == ["u1", "u2"]


def test_a_gang_gets_room_on_several_nodes() -> None:
    trial = draft([resident("u1"), resident("u2")], [resident("u3"), resident("u4")])
    assert victims(trial, tasks=3) == ["u1", "u2", "u3"]
    assert victims(trial, tasks=5) is None


def test_a_gang_that_yields_gives_back_all_its_nodes() -> None:
    member = resident("u1", ran=MINUTE, size=2)
    rest = resident("u2", ran=2 * HOUR), resident("u3", ran=2 * HOUR)
    assert victims(draft([member, rest[0]], [member, rest[1]]), tasks=2) == ["u1"]


@pytest.mark.parametrize(
    "fields",
    [
        {"preemptible": False},
        {"stopping": True},
        {"running": False},
        {"ran": MIN_RUN - 1},
        {"preempted": 3, "ran": RENEWED - 1},
        {"priority": 2},
        {"priority": 1},
    ],
)
def test_who_is_protected_does_not_yield(fields: dict[str, Any]) -> None:
    assert victims(draft([resident("u1", shape=Shape(cpu=2000), **fields)])) is None


def test_only_so_many_yield_in_one_round() -> None:
    trial = draft([resident(f"u{number}") for number in range(1, 9)], cpu=8)
    assert victims(trial, Shape(cpu=3000), rules=Preemption(at_once=3)) == ["u1", "u2", "u3"]
    assert victims(trial, Shape(cpu=4000), rules=Preemption(at_once=3)) is None


def test_nobody_is_asked_twice_in_one_round() -> None:
    """A gang that yields for one unit gives back room on two nodes; the next unit waits for that."""
    member = resident("u1", size=2)
    trial = draft([member], [member, resident("u2")], cpu=1 + 1)
    asked = find_yielding(candidate(), Shape(cpu=2000), trial, 1, Preemption(), {"u1"})
    assert asked is None
    assert find_yielding(candidate(), ONE, trial, 1, Preemption(at_once=1), {"u9"}) == ((), {0: 1}, 0, 0)
    assert find_yielding(candidate(), Shape(cpu=2000), trial, 1, Preemption(at_once=1), {"u9"}) is None


@pytest.mark.parametrize(
    ("rules", "fields", "yields"),
    [
        (Preemption(by="remaining"), {"expected": 2 * HOUR}, None),  # the resident has an hour left
        (Preemption(by="remaining"), {"expected": MINUTE}, ["u1"]),
        (Preemption(by="attained"), {"attained": HOUR}, None),
        (Preemption(by="attained"), {"attained": HOUR - 31 * SECOND}, ["u1"]),
        (Preemption(by="attained"), {"attained": HOUR - 29 * SECOND}, None),  # less than a quantum apart
        (Preemption(by="level"), {"attained": 2 * HOUR}, None),
        (Preemption(by="level"), {"attained": 10 * MINUTE}, ["u1"]),
    ],
)
def test_rules_other_than_class(rules: Preemption, fields: dict[str, Any], yields: list[str] | None) -> None:
    holder = resident("u1", ran=HOUR, priority=0, shape=Shape(cpu=2000))
    assert victims(draft([holder]), rules=rules, **fields) == yields


@pytest.mark.parametrize(("by", "first"), [("class", "u3"), ("remaining", "u2"), ("attained", "u1"), ("level", "u1")])
def test_each_rule_asks_its_own_first(by: Any, first: str) -> None:
    """By class who loses least, else who has longest to go, or who has had most."""
    served = resident("u1", ran=HOUR, attained=5 * HOUR, declared=2 * HOUR)
    longest = resident("u2", ran=50 * MINUTE, declared=9 * HOUR)
    saved = resident("u3", ran=40 * MINUTE, checkpoint=MINUTE, declared=2 * HOUR)
    assert victims(draft([served, longest, saved], cpu=3), rules=Preemption(by=by)) == [first]


@given(
    st.lists(
        st.lists(
            st.builds(
                dict,
                ran=st.integers(0, HOUR),
                priority=st.integers(0, 3),
                preemptible=st.booleans(),
                checkpoint=st.sampled_from([0, MINUTE]),
                preempted=st.integers(0, 4),
                cpu=st.sampled_from([500, 1000]),
            ),
            max_size=4,
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_whoever_yields_may_and_after_that_there_is_room(
    of_nodes: list[list[dict[str, Any]]], tasks: int, priority: int
) -> None:
    ordinal = 0
    made: list[list[Resident]] = []
    for of in of_nodes:
        made.append([])
        for fields in of:
            ordinal += 1
            rest = {name: value for name, value in fields.items() if name != "cpu"}
            made[-1].append(resident(f"u{ordinal}", shape=Shape(cpu=fields["cpu"]), **rest))
    trial = draft(*made, cpu=4)
    found = find_yielding(candidate(priority=priority), ONE, trial, tasks, Preemption())
    if found is None:
        return
    for victim in found.victims:
        assert victim.priority > priority
        assert victim.preemptible
        assert NOW - victim.since >= MIN_RUN
        assert victim.preempted < 3
    assert found.cost == sum(cost_of(victim, NOW) for victim in found.victims)
    yields = {victim.unit for victim in found.victims}
    assert sum(found.rows.values()) == tasks
    for row, count in found.rows.items():
        left = sum(one.shape.cpu for one in made[row] if one.unit not in yields)
        assert left + count * 1000 <= 4000


# --- in the round of `poise` -----------------------------------------------------------------------------------------


def decided(world: World) -> tuple[dict[str, str], list[str]]:
    """Who is asked to yield and why, and what is placed, in the next round."""
    plan = world.plan()
    return (
        {one.unit: one.cause for one in plan.decisions if isinstance(one, Preempt)},
        [one.unit for one in plan.decisions if isinstance(one, Place)],
    )


def running(world: World, *names: str) -> World:
    return world.round().start(*names)


def test_urgent_work_makes_low_work_yield_and_takes_its_room() -> None:
    world = World().nodes(1, cpu=1).job("low", priority="low", checkpoint="10s", expect="1h")
    running(world, "low").after("41s").job("now", priority="urgent").after("200ms")
    assert (world.status("low"), world.status("now")) == ("pending", "placed")
    [why] = [one.why for plan in world.plans for one in plan.decisions if isinstance(one, Preempt)]
    assert why.score["gain"] > why.score["cost"] > 0
    assert world.unit("low").preempted == 1


def test_nobody_yields_for_less_than_it_costs() -> None:
    world = World().nodes(1, cpu=1).job("low", priority="low", expect="61s")
    running(world, "low").after("60s").job("soon", priority="high")
    assert decided(world) == ({}, [])  # a minute would be lost to win less than one


def test_what_may_not_be_preempted_is_left_alone() -> None:
    world = World().nodes(1, cpu=1).job("low", priority="low", preemptible=False, expect="9h")
    running(world, "low").after("40s").job("now", priority="urgent", expect="1h")
    assert decided(world) == ({}, [])


def test_an_elastic_victim_shrinks_and_goes_on_with_less() -> None:
    world = World().nodes(1, cpu=4).job("wide", workers="1..4", priority="low", checkpoint="1s", expect="1h")
    world.round().start(*[f"wide.main[{index}]" for index in range(4)]).after("41s").job(
        "now", cpu=2, priority="urgent"
    )
    assert decided(world) == ({"j1.main": "shrink"}, [])
    world.after("1s")
    assert (world.status("now"), len(world.where("wide"))) == ("placed", 2)


def test_while_one_yields_nobody_else_is_asked() -> None:
    world = World().nodes(2, cpu=1)
    world.job("a", priority="low", checkpoint="1s", expect="1h").job("b", priority="low", checkpoint="1s", expect="1h")
    running(world, "a", "b").after("41s").slow_disk = True
    world.job("now", priority="urgent").round()
    world.slow_disk = False
    stopping = [name for name in ("a", "b") if world.unit(name).stopping]
    assert len(stopping) == 1
    assert decided(world) == ({}, [])
    assert "PREEMPTING" in [reason.code for one in world.plan().decisions for reason in getattr(one, "reasons", ())]


def test_backfill_lets_pass_what_is_gone_in_time_and_nothing_else() -> None:
    world = World().nodes(1, cpu=2).job("holder", expect="1m", preemptible=False)
    running(world, "holder").job("large", cpu=2, priority="high").after("2s")
    world.job("short", expect="10s").job("long", expect="10m", **{"class": "other"})
    assert decided(world) == ({}, ["j3.main"])
    world.after("1s")
    assert world.codes("long") == ["CPU_BUSY"] or "RESERVED" in world.codes("long")
    world.finish("short", "holder").after("1s")
    assert (world.status("large"), world.status("long")) == ("placed", "pending")


def test_of_those_due_later_the_one_due_last_yields_first() -> None:
    """By `edf`: what has no deadline before all others."""
    world = World(policy="edf").nodes(1, gpus=2).job("loose", gpu=1, deadline="20h", expect="1h")
    world.job("none", gpu=1, expect="1h").round().start("loose", "none").after("1m")
    world.job("tight", gpu=1, deadline="2h", expect="1h").round()
    assert (world.status("loose"), world.status("none")) == ("running", "pending")


@pytest.mark.parametrize(
    ("by", "fields", "protected"),
    [
        ("value", {"checkpoint": MINUTE, "restore": 10 * SECOND}, 70 * SECOND),
        ("value", {"checkpoint": 9 * HOUR}, RENEWED),
        ("value", {"checkpoint": 0}, RENEWED),
        ("value", {"checkpoint": MINUTE, "outlived": 40 * MINUTE}, 10 * MINUTE),
        ("value", {"checkpoint": MINUTE, "outlived": 40 * HOUR}, RENEWED),
        ("class", {"checkpoint": MINUTE}, RENEWED),
    ],
)
def test_a_used_up_budget_protects_until_work_has_been_saved(by: Any, fields: Any, protected: int) -> None:
    one = resident("u1", preempted=3, **fields)
    assert may_be_asked(one, Preemption(by=by)) == one.since + protected
