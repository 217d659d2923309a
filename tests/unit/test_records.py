"""Every record, with every field set to something other than its default, survives every codec, copy and fork.

The types are found: a new record or field is tested from the day on which it is written, or this module says that it
knows of no value for it.
"""

import copy
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from poise.decoding import json_decoder, msgpack_decoder
from poise.drivers.views import decode_plan, decode_view, encode_plan, encode_view
from poise.kernel.ledger import Ledger, State
from poise.model.decisions import Plan
from poise.model.events import Event, decode_event, encode_event
from poise.model.fleet import Fleet
from poise.model.resources import Device, Node
from poise.model.views import Snapshot
from poise.policy.hypothetical import Hypothesis, with_candidates, with_node
from unit.filled import Unfillable, default_of, fields_of, filled, filled_fleet, record_types

RECORDS = record_types(
    "poise.agent",
    "poise.client",
    "poise.config",
    "poise.control",
    "poise.drivers",
    "poise.engine",
    "poise.errors",
    "poise.kernel",
    "poise.model",
    "poise.policy",
    "poise_ha",
    "poise_kubernetes",
    "poise_lab",
    "poise_ray",
    "poise_serve",
    "poise_slurm",
    "poise_train.model",
    "poise_train.policy",
)

HELD = {
    "Application",
    "Callable",
    "Curve",
    "Future",
    "Ledger",
    "NodeMachine",
    "Pace",
    "Path",
    "PoiseError",
    "Stream",
    "Timer",
    "deque",
}
"""Classes whose instances belong to one process: a record that holds one is read there and never written."""

LOCAL = {
    "poise.config.Home",
    "poise.kernel.messages.Decide",
    "poise.kernel.messages.Decided",
    "poise_kubernetes.placing._Job",
    "poise_kubernetes.placing._Kind",
    "poise_kubernetes.placing._Placed",
}
"""Records that stay in one process, and hold none of those."""


def travels(kind: type[msgspec.Struct]) -> bool:
    if f"{kind.__module__}.{kind.__qualname__}" in LOCAL or kind is Snapshot:
        return False
    try:
        filled(kind)
    except Unfillable as error:
        if error.held is not None and error.held.__name__ in HELD:
            return False
        raise
    return True


def msgpack(record: Any) -> Any:
    return msgpack_decoder(type(record)).decode(msgspec.msgpack.encode(record))


def json(record: Any) -> Any:
    try:
        data = msgspec.json.encode(record)
    except TypeError as error:  # JSON has no such keys: this one is written in MessagePack alone
        assert str(error).startswith("Only dicts with str-like or number-like keys"), error
        return record
    return json_decoder(type(record)).decode(data)


WAYS: list[Callable[[Any], Any]] = [msgpack, json, copy.copy, copy.deepcopy, msgspec.structs.replace]


def test_the_types_are_found() -> None:
    names = {kind.__name__ for kind in RECORDS}
    assert len(RECORDS) > 400 and {"Candidate", "JobSubmitted", "Launch", "Unit", "State", "Settings"} <= names


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: f"{kind.__module__}.{kind.__qualname__}")
def test_a_record_survives_with_every_field(kind: type[msgspec.Struct]) -> None:
    if not travels(kind):
        return
    record = filled(kind)
    forgotten = [of.name for of in fields_of(kind) if getattr(record, of.name) == default_of(of)]
    assert not forgotten, "these have their defaults: that they survive would say nothing"
    for way in WAYS:
        assert way(record) == record, way


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_an_event_is_read_as_it_was_logged(kind: type[msgspec.Struct]) -> None:
    event = filled(kind)
    found = decode_event(encode_event(event))
    assert type(found) is kind and found == event


def test_the_ledger_has_a_rule_for_every_event() -> None:
    assert set(Ledger()._handlers) == set(get_args(Event))


def test_a_checkpoint_of_the_log_holds_all_of_the_state() -> None:
    state = filled(State)
    assert msgpack_decoder(State).decode(msgspec.msgpack.Encoder(order="deterministic").encode(state)) == state


def assert_same(one: Snapshot, other: Snapshot) -> None:
    for name in Snapshot.__struct_fields__:
        assert getattr(one, name) == getattr(other, name), name


def assert_same_fleet(one: Fleet, other: Fleet) -> None:
    for name in Fleet.__slots__:
        if name not in ("abilities", "runs"):  # what readers have worked out
            said, found = getattr(one, name), getattr(other, name)
            assert np.array_equal(said, found) if isinstance(said, np.ndarray) else said == found, name


def test_a_view_survives_its_way_to_a_policy_in_another_process() -> None:
    view = filled(Snapshot)
    found = decode_view(encode_view(view))
    assert_same(view, found)
    assert_same_fleet(view.fleet, found.fleet)


def test_a_plan_survives_its_way_back() -> None:
    view = msgspec.structs.replace(filled(Snapshot), now=1)
    plan = msgspec.structs.replace(filled(Plan), base=view.revision, failed="")
    assert decode_plan(encode_plan(plan), view) == plan


def test_a_fork_of_a_view_is_the_view() -> None:
    view = filled(Snapshot)
    forked = Hypothesis(view).view()
    assert_same(view, forked)
    assert_same_fleet(view.fleet, forked.fleet)
    assert_same(view, with_candidates(view, ()))


def shared(one: Any, other: Any, at: str = "") -> list[str]:
    """Where two records that are equal hold the same object, and it could be changed."""
    if isinstance(one, tuple | str | int | float | bytes | None) or (
        isinstance(one, msgspec.Struct) and one.__struct_config__.frozen
    ):
        return []
    found = [at] if one is other else []
    if isinstance(one, msgspec.Struct):
        for name in one.__struct_fields__:
            found += shared(getattr(one, name), getattr(other, name), f"{at}.{name}")
    for key, value in one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ():
        found += shared(value, other[key], f"{at}[]")
    return found


def test_a_fork_of_the_state_shares_nothing_that_is_changed_in_place() -> None:
    state = filled(State)
    job = next(iter(state.jobs.values()))
    job.ended = 0
    forked = state.fork()
    assert forked == state
    replaced = {
        ".before",
        ".before[]",
        ".before[][]",
        ".jobs[].env",
        ".jobs[].notified",
        ".jobs[].secrets",
        ".jobs[].units[].barred",
        ".jobs[].units[].tasks[].past",
        ".memory[]",
        ".memory[][]",
        ".reservations[].elsewhere",
        ".reservations[].released",
        ".rule_policies[]",
        ".rule_policies[][]",
        ".rule_policies[][][]",
        ".rules[]",
        ".rules[][]",
        ".schedules[].unfinished",
    }
    assert set(shared(state, forked)) == replaced
    job.ended = 1
    assert next(iter(state.fork().jobs.values())) is job


def test_a_copy_of_a_fleet_says_the_same_and_changes_by_itself() -> None:
    fleet = filled_fleet()
    copied = fleet.copy()
    assert_same_fleet(fleet, copied)
    for name in Fleet.CHANGING:
        getattr(copied, name)[...] += 1
    copied.residents[0] = ()
    copied.pools["shape"].clear()
    assert_same_fleet(fleet, filled_fleet())


def test_all_that_is_known_of_a_node_is_known_when_another_has_joined() -> None:
    view = filled(Snapshot)
    last = Node(
        name="c", incarnation="i", cpu=1, memory=1, devices=(Device(index=0, memory=1), Device(index=1, memory=1))
    )
    with_last = with_node(view, last).fleet
    for name in Fleet.CHANGING:
        had, has = getattr(view.fleet, name), getattr(with_last, name)
        kept = has[:2, :1] if name.startswith("device_") else has[..., :2]
        assert np.array_equal(had, kept), name
    assert with_last.residents[:2] == view.fleet.residents and with_last.pools == view.fleet.pools
    first = msgspec.structs.replace(last, name="0")
    assert with_node(view, first).fleet.pools == {"shape": {2: view.fleet.pools["shape"][1]}}
