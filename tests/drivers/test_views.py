"""Views and plans as bytes: what arrives is what was sent, and what is no plan for the view is told."""

from typing import Any

import msgspec
import numpy as np
import pytest

from poise.drivers.views import MAX_MEMORY, decode_plan, decode_view, encode_plan, encode_view
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
    world.after("1s").drain("n2").lose("other").job("after", after=["long"]).job("waits", cpu=4)
    return world.graph("graph", tasks={"a": {"cpu": 3}, "b": {"needs": ["a"]}})


def view_of(world: World, **memory: Any) -> Snapshot:
    return msgspec.structs.replace(world.ledger.snapshot(world.now, 7, {"s@cpu": 1.5}, ("high",)), memory=memory)


def columns(fleet: Fleet) -> dict[str, Any]:
    return {name: getattr(fleet, name) for name in Fleet.__slots__}


def assert_same(one: Snapshot, other: Snapshot) -> None:
    for field in Snapshot.__struct_fields__:
        assert getattr(one, field) == getattr(other, field), field
    for name, column in columns(one.fleet).items():
        found = getattr(other.fleet, name)
        same = np.array_equal(column, found) and column.dtype == found.dtype if isinstance(column, np.ndarray) else None
        assert column == found if same is None else same, name


def test_a_view_arrives_as_it_was_sent() -> None:
    view = view_of(busy(), last="n1", deep={"a": [1, 2.5, None]})
    assert len(view.candidates) and len(view.fleet) == 4 and any(view.fleet.residents) and view.elastic
    assert_same(view, decode_view(encode_view(view)))


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
        ({"decisions": (Place(unit="WAITS", spots=(), why=WHY),)}, "placed nowhere"),
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
    ids=str,
)
def test_a_plan_that_is_not_sound_is_told(fields: dict[str, Any], says: str) -> None:
    view = view_of(busy())
    waits = next(one.unit for one in view.candidates)

    def named(decision: Any) -> Any:
        return msgspec.structs.replace(decision, unit=waits) if getattr(decision, "unit", "") == "WAITS" else decision

    if isinstance(fields.get("decisions"), tuple):
        fields = {**fields, "decisions": tuple(map(named, fields["decisions"]))}
    with pytest.raises(ValueError, match=says):
        decode_plan(encode_plan(plan(view, **fields)), view)


@pytest.mark.parametrize("answer", [None, [], {"base": 1}, "fifo", object()], ids=str)
def test_what_is_no_plan_is_told(answer: Any) -> None:
    with pytest.raises(ValueError, match="not a Plan"):
        encode_plan(answer)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x80", b"\x81\xa4base\xa1x", b"\xff" * 100, b"\x91" * 100_000], ids=len
)
def test_bytes_that_are_no_plan_are_told(data: bytes) -> None:
    with pytest.raises(ValueError, match="malformed"):
        decode_plan(data, view_of(busy()))
