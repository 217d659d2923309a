"""Views and plans as bytes: what arrives is what was sent, and what is no plan for the view is told."""

import contextlib
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from poise.drivers.views import MAX_MEMORY, Unsound, check_plan, decode_plan, decode_view, encode_plan, encode_view
from poise.errors import SpecError
from poise.model.decisions import Hold, Place, Plan, Preempt, Reason, Spot, Why
from poise.model.fleet import Fleet
from poise.model.views import Snapshot
from poise.policy.suites import POLICIES
from poise.testing import World, node

WHY = Why(policy="mine")


def busy() -> World:
    """Gangs, devices, shares, an elastic unit, a drained and a lost node, learned run times, things that wait."""
    world = World().nodes(3, cpu=4, gpus=2).join(node("other", cpu=1)).job("short", **{"class": "s"}).after("1s")
    world.finish("short", run="10ms").job("gang", workers=2, gpu=1).job("long", cpu=2, memory="1GiB")
    world.job("share", gpu=1, gpu_share=0.3, gpu_memory="1GiB").job("stretch", workers={"min": 1, "max": 3})
    world.quota("ann", cpu=1, gpu=0.5).job("hers", tenant="ann", cpu=0.5).job("hers-too", tenant="ann", cpu=1)
    world.after("1s").drain("n2").lose("other").job("after", after=["long"]).job("waits", cpu=4)
    return world.graph("graph", tasks={"a": {"cpu": 3}, "b": {"needs": ["a"]}})


def view_of(world: World, **memory: Any) -> Snapshot:
    return msgspec.structs.replace(world.ledger.snapshot(world.now, 7, {"s@cpu": 1.5}, ("high",)), memory=memory)


def columns(fleet: Fleet) -> dict[str, Any]:
    """All but what readers worked out: that is made anew."""
    return {name: getattr(fleet, name) for name in Fleet.__slots__ if name not in ("abilities", "runs")}


def assert_same(one: Snapshot, other: Snapshot) -> None:
    for field in Snapshot.__struct_fields__:
        assert getattr(one, field) == getattr(other, field), field
    for name, column in columns(one.fleet).items():
        found = getattr(other.fleet, name)
        same = np.array_equal(column, found) and column.dtype == found.dtype if isinstance(column, np.ndarray) else None
        assert column == found if same is None else same, name


def test_a_view_arrives_as_it_was_sent() -> None:
    view = view_of(busy(), last="n1", deep={"a": [1, 2.5, None]})
    assert len(view.candidates) and len(view.fleet) == 4 and any(view.fleet.residents) and view.elastic and view.quotas
    assert_same(view, decode_view(encode_view(view)))


def test_who_has_yielded_to_whom_arrives() -> None:
    world = World().nodes(1).job("a", cpu=2, priority="low", expect="1h").round().start("a").after("1m")
    world.job("b", cpu=2, priority="urgent", expect="1m").round()
    view = view_of(world)
    assert view.yielded == {"j1.main": "j2.main"}
    assert_same(view, decode_view(encode_view(view)))


def test_a_plan_beyond_a_quota_is_none() -> None:
    world = World().nodes(1, cpu=4).quota("ann", cpu=1).job("a", tenant="ann").job("b", tenant="ann")
    view = view_of(world)
    both = Plan(
        base=view.revision,
        policy="mine",
        decisions=tuple(Place(unit=of.unit, spots=(Spot("n1"),), why=WHY) for of in view.candidates),
    )
    with pytest.raises(Unsound, match="the quota of ann"):
        check_plan(both, view)
    check_plan(msgspec.structs.replace(both, decisions=both.decisions[:1]), view)


def test_an_empty_view_arrives() -> None:
    view = World().ledger.snapshot(1)
    assert_same(view, decode_view(encode_view(view)))


def test_nodes_travel_once() -> None:
    world = busy()
    first = view_of(world)
    before = decode_view(encode_view(first)).fleet
    world.job("more").after("1s")
    second = view_of(world)
    short = encode_view(second, known=first.fleet.nodes)
    assert len(short) < len(encode_view(second))
    assert_same(second, decode_view(short, before))
    assert_same(first, decode_view(encode_view(first), before))
    with pytest.raises(ValueError, match="left out"):
        decode_view(short)
    world.join(node("new"))
    assert_same(view_of(world), decode_view(encode_view(view_of(world), known=first.fleet.nodes), before))


def test_a_view_that_arrived_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        decode_view(encode_view(view_of(busy()))).fleet.free[0, 0] = 5


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_decides_the_same_on_a_view_that_travelled(policy: str) -> None:
    view = view_of(busy())
    plan = POLICIES[policy].decide(view)
    assert plan.decisions
    assert decode_plan(encode_plan(POLICIES[policy].decide(decode_view(encode_view(view)))), view) == plan


def plan(view: Snapshot, *decisions: Any, **fields: Any) -> Plan:
    return Plan(**{"base": view.revision, "policy": "mine", "decisions": decisions, **fields})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"base": 1}, "for revision 1"),
        ({"base": "now"}, "malformed"),
        ({"decisions": ["place"]}, "malformed"),
        ({"decisions": None}, "malformed"),
        ({"decisions": (Place(unit="j3.main", spots=(Spot(3),), why=WHY),)}, "malformed"),  # type: ignore[arg-type]
        ({"decisions": (Place(unit="j99.main", spots=(Spot("n1"),), why=WHY),)}, "no unit that waits named `j99.main`"),
        ({"decisions": (Place(unit="WAITS", spots=(Spot("n9"),), why=WHY),)}, "no node `n9`"),
        ({"decisions": (Place(unit="WAITS", spots=(), why=WHY),)}, "has 0 spots, and needs 1 to 1"),
        ({"decisions": (Place(unit="WAITS", spots=(Spot("n1"), Spot("n1")), why=WHY),)}, "has 2 spots"),
        ({"decisions": (Place(unit="WAITS", spots=(Spot("n2"),), why=WHY),)}, "node `n2` is closed"),
        ({"decisions": (Place(unit="WAITS", spots=(Spot("n1"),), why=WHY, variant=1),)}, "no artifact number 1"),
        ({"decisions": (Place(unit="WAITS", spots=(Spot("n1", (0,)),), why=WHY),)}, "gets 1 devices of n1"),
        ({"decisions": (Place(unit="WAITS", spots=(Spot("n1"),), why=WHY),) * 2}, "decided on twice"),
        ({"decisions": (Preempt(unit="WAITS", cause="yield", why=WHY),)}, "no unit that runs named"),
        ({"decisions": (Hold(queue="nothing", reasons=(Reason(code="X"),)),)}, "no queue `nothing`"),
        ({"until": 5}, "`until` is not later"),
        ({"until": 2**80}, "cannot be written"),
        ({"memory": {"a": object()}}, "cannot be written"),
        ({"memory": {"a": "x" * MAX_MEMORY}}, "`memory` is larger"),
        ({"memory": [1]}, "malformed"),
        ({"failed": "I could not"}, "I could not"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "+".join(value),
)
def test_a_plan_that_is_not_sound_is_told(fields: dict[str, Any], says: str) -> None:
    view = view_of(busy())
    waits = next(one.unit for one in view.candidates)

    def named(decision: Any) -> Any:
        return msgspec.structs.replace(decision, unit=waits) if getattr(decision, "unit", "") == "WAITS" else decision

    if isinstance(fields.get("decisions"), tuple):
        fields = {**fields, "decisions": tuple(map(named, fields["decisions"]))}
    with pytest.raises(Unsound, match=says):
        check_plan(decode_plan(encode_plan(plan(view, **fields)), view), view)


@pytest.mark.parametrize(
    ("job", "spots", "says"),
    [
        ({"cpu": 3}, [Spot("n1"), Spot("n1")], "n1 has not the CPU for all"),
        ({"memory": "5GiB"}, [Spot("n1"), Spot("n1")], "n1 has not the memory for all"),
        ({"gpu": 1}, [Spot("n1", (0,)), Spot("n1", (0,))], "device 0 of n1 has not the room"),
        ({"gpu": 1}, [Spot("n1", (7,)), Spot("n1", (0,))], "n1 has no device 7"),
        ({"gpu": 1, "gpu_model": "A100"}, [Spot("n1", (1,)), Spot("n1", (0,))], "is not what `j1.main` asks for"),
        ({"gpu": 1, "gpu_share": 0.5}, [Spot("n1", (0,)), Spot("n1", (0,))], "device 0 of n1 has not the room"),
        ({"gpu": 1, "gpu_share": 0.4}, [Spot("n1", (0,)), Spot("n1", (0,))], ""),
        ({"gpu": 1}, [Spot("n1", (1,)), Spot("n1", (0,))], ""),
        ({"cpu": 2}, [Spot("n1"), Spot("n1")], ""),
    ],
    ids=str,
)
def test_a_plan_takes_no_more_than_there_is(job: dict[str, Any], spots: list[Spot], says: str) -> None:
    world = World().job(workers=2, **job).nodes(1, cpu=4, gpus=2)  # in this order: some could never fit
    view = world.ledger.snapshot(world.now)
    made = plan(view, Place(unit="j1.main", spots=tuple(spots), why=WHY))
    if says:
        with pytest.raises(Unsound, match=says):
            check_plan(made, view)
    else:
        check_plan(made, view)


_jobs = st.fixed_dictionaries(
    {"cpu": st.integers(1, 4)},
    optional={
        "memory": st.sampled_from(["1GiB", "3GiB"]), "gpu": st.integers(0, 2), "workers": st.integers(1, 5),
        "priority": st.sampled_from(["urgent", "low"]), "class": st.sampled_from(["a", "b"]),
    },
)  # fmt: skip


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.sampled_from(sorted(POLICIES)), st.lists(_jobs, min_size=1, max_size=12), st.data())
def test_shipped_policies_make_sound_plans(policy: str, jobs: list[dict[str, Any]], data: st.DataObject) -> None:
    world = World(policy).nodes(2, cpu=4, gpus=2).join(node("odd", cpu=6, memory="4GiB"))
    for job in jobs:
        with contextlib.suppress(SpecError):  # it fits nowhere
            world.job(**job)
        view = world.ledger.snapshot(world.now)
        made = POLICIES[policy].decide(view)
        check_plan(decode_plan(encode_plan(made), view), view)
        world.after(data.draw(st.sampled_from(["0s", "1s", "40s"])))
        for attempt in sorted(attempt for of in world.held.values() for attempt in of):
            if data.draw(st.booleans()):
                world.finish(attempt.task, run=data.draw(st.sampled_from(["50ms", "1m"])))


@pytest.mark.parametrize("answer", [None, [], {"base": 1}, "fifo", object()], ids=lambda answer: type(answer).__name__)
def test_what_is_no_plan_is_told(answer: Any) -> None:
    with pytest.raises(Unsound, match="not a Plan"):
        encode_plan(answer)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x80", b"\x81\xa4base\xa1x", b"\xff" * 100, b"\x91" * 100_000], ids=len
)
def test_bytes_that_are_no_plan_are_told(data: bytes) -> None:
    with pytest.raises(Unsound, match="malformed"):
        decode_plan(data, view_of(busy()))
