"""`kernel/slices.py`: the picture of time, by device and phase, in levels of detail."""

import json
from typing import Any

import msgspec
import pytest
from traceevents import check_trace

from poise.kernel import slices as module
from poise.kernel.ledger import Ledger
from poise.kernel.slices import Slices
from poise.kernel.trace_events import trace
from poise.model.events import Finished
from poise.model.tenants import Bearer, Role
from poise.model.timeline import Row, Timeline
from poise.testing import World
from poise.units import MILLISECOND, SECOND


def followed(world: World, after: int = 0) -> Slices:
    """What is seen of a log from a revision on."""
    ledger = Ledger()
    for event in world.log[:after]:
        ledger.apply(event)
    following = Slices(ledger, reasons=True)
    for event in world.log[after:]:
        following.add(event)
    assert following.ledger.encode() == world.ledger.encode()
    return following


def window(world: World, **how: Any) -> Timeline:
    return followed(world).window(world.now, 0, world.now, **how)


def phases(row: Row) -> list[tuple[str, str, int, int, str]]:
    """Of one row: task, phase, beginning and end in seconds, outcome."""
    return [(one.task, one.phase, one.since // SECOND, one.until // SECOND, one.outcome) for one in row.slices]


def by_name(told: Timeline) -> dict[str, Row]:
    return {f"{row.node} {row.name}".strip(): row for row in told.rows}


def retried() -> World:
    """Placed at 0, runs from 2 to 6 and fails; runs again from 7, is asked to end at 9 and does."""
    world = World().nodes(1, cpu=2, gpus=1).job("a", gpu=1, retry={"limit": 1, "backoff": "1s", "when": ["failed"]})
    world = world.round().after("2s").start("a").after("4s").finish("a", outcome="failed", code=3, run="4s")
    world = world.after("1s").round().start("a").after("2s").cancel("a")
    return world.after("1s")


def ended_late() -> World:
    """The same, but its end came a second after it was asked for."""
    world = retried()
    *_, last = (number for number, event in enumerate(world.log) if isinstance(event, Finished))
    world.log[last] = msgspec.structs.replace(world.log[last], at=world.now)
    return world


def test_an_attempt_is_a_slice_for_each_of_its_phases() -> None:
    world = ended_late()
    ledger = Ledger()
    following = Slices(ledger)
    for event in world.log:
        following.add(event)
    told = following.window(world.now, 0, world.now)
    assert phases(by_name(told)["n1 device 0"]) == [
        ("j1.main", "starting", 0, 2, "failed"),
        ("j1.main", "running", 2, 6, "failed"),
        ("j1.main", "running", 7, 9, "stopped"),
        ("j1.main", "stopping", 9, 10, "stopped"),
    ]
    assert (told.names, told.left_out) == ({"j1": "a"}, {})


def test_what_waits_has_rows_of_its_own_and_goes_on_until_now() -> None:
    world = World().nodes(1, cpu=1).job("a", expect="1h").job("b", expect="1h").job("c", expect="1h")
    world = world.round().start("a").after("5s").finish("a", run="5s").round().start("b").after("3s")
    told = window(world)
    assert [phases(row) for row in told.rows if not row.node] == [
        [("j2.main", "waiting", 0, 5, "")],
        [("j3.main", "waiting", 0, 8, "")],
    ]
    assert phases(by_name(told)["n1 slot 0"])[-1] == ("j2.main", "running", 5, 8, "")
    assert max(level.pending for level in told.levels) == 2
    assert told.levels[-1].pending == 1


def test_attempts_that_share_a_device_lie_beside_each_other() -> None:
    shared: dict[str, Any] = {"gpu": 1, "gpu_share": 0.4}
    world = World().nodes(1, cpu=4, gpus=1).job("a", **shared).job("b", **shared).round().start("a", "b").after("3s")
    world = world.finish("a", run="3s").job("c", **shared).round().start("c").after("1s")
    rows = [row for row in window(world).rows if row.node]
    assert [(row.name, row.beside) for row in rows] == [("device 0", 0), ("device 0", 1)]
    assert [[one[0] for one in phases(row)] for row in rows] == [["j1.main", "j3.main"], ["j2.main"]]


def many(count: int) -> World:
    world = World().nodes(1, cpu=1)
    for number in range(count):
        world.job(f"x{number}").round().start(f"x{number}").after("10ms")
        world.finish(f"x{number}", outcome="failed" if number == 3 else "done", run="10ms")
    return world


def test_slices_below_a_pixel_are_drawn_as_one_and_none_is_lost() -> None:
    world = many(40)
    (whole,) = (row for row in window(world).rows if row.node)
    (coarse,) = (row for row in window(world, pixels=4).rows if row.node)
    assert len(whole.slices) == 40 and len(coarse.slices) < 10
    assert sum(one.count for one in coarse.slices) == 40
    assert sum(one.busy for one in coarse.slices if one.count > 1) <= 400 * MILLISECOND
    assert [one.outcome for one in coarse.slices].count("failed") == 1
    for left, right in zip(coarse.slices, coarse.slices[1:], strict=False):
        assert left.until <= right.since


def test_a_window_has_only_what_is_seen_in_it() -> None:
    world = retried()
    following = followed(world)
    told = following.window(world.now, 9 * SECOND, 9 * SECOND + SECOND // 2)  # the log begins at its first second
    (row,) = (row for row in told.rows if row.node)
    assert phases(row) == [("j1.main", "running", -1, 1, "stopped")]
    assert told.begins == world.ledger.leader.wall(9 * SECOND)


def test_a_picture_from_the_middle_of_a_log_has_what_ran_then() -> None:
    world = World().nodes(1).job("a").round().start("a").after("4s")
    middle = len(world.log)
    world = world.job("b").after("2s").finish("a", run="6s")
    following = followed(world, middle)
    told = following.window(world.now, 0, world.now)
    whole = [row for row in window(world).rows if row.node]
    begun = [row for row in told.rows if row.node]
    assert [one[:2] for one in phases(begun[0])] == [one[:2] for one in phases(whole[0])]


def test_rows_are_in_the_order_of_numbers_and_can_be_asked_for_in_parts() -> None:
    world = World().nodes(11, cpu=1)
    for number in range(11):
        world.job(f"x{number}", cpu=1)
    world = world.round()
    world.start(*(f"x{number}" for number in range(11))).after("1s")
    nodes = [row.node for row in window(world).rows if row.node]
    assert nodes == [f"n{number}" for number in range(1, 12)]
    told = window(world, first=2, count=3)
    assert ([row.node for row in told.rows], told.total, told.first) == (["n3", "n4", "n5"], 11, 2)


def test_only_the_jobs_that_are_asked_for() -> None:
    world = World().nodes(2, cpu=1).job("a").job("b").round().start("a", "b").after("1s")
    told = window(world, jobs=["j2"])
    assert {one.task for row in told.rows for one in row.slices} == {"j2.main"}
    assert told.total == len(told.rows) == 1


def test_another_tenant_sees_that_a_node_is_held_and_not_by_what() -> None:
    world = World().nodes(1, cpu=2).job("theirs", tenant="them", cpu=1).job("ours", tenant="us", cpu=1)
    world = world.job("waits", tenant="them", cpu=1).round().start("theirs", "ours").after("2s")
    told = window(world, bearer=Bearer("us", Role.VIEWER))
    assert {one.task for row in told.rows for one in row.slices} == {"", "j2.main"}
    assert {one.phase for row in told.rows for one in row.slices} == {"running"}
    assert (told.levels, told.names) == ((), {"j2": "ours"})


def test_what_waited_of_another_tenant_is_not_counted_where_slices_are_drawn_as_one() -> None:
    world = World().nodes(1, cpu=1)
    for number in range(6):
        runs, waits = f"r{number}", f"w{number}"
        world = world.job(runs, tenant="bob").round().start(runs)
        world = world.job(waits, tenant="ann" if number == 3 else "bob").round().after("1s").finish(runs)
        world = world.round().start(waits).finish(waits)
    world = world.after("1h")

    def waited(tenant: str, role: Role = Role.VIEWER) -> int:
        told = window(world, pixels=1, bearer=Bearer(tenant, role))
        return sum(one.count for row in told.rows if row.name.startswith("waiting") for one in row.slices)

    assert (waited("ann", Role.OPERATOR), waited("bob"), waited("ann"), waited("eve")) == (6, 5, 1, 0)


def test_the_oldest_are_dropped_and_the_picture_says_from_when_on_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 20)
    world = many(60)
    following = followed(world)
    told = following.window(world.now, 0, world.now)
    assert 0 < sum(len(row.slices) for row in told.rows) <= 21
    assert told.begins == world.ledger.leader.wall(following.known_since) > world.ledger.leader.wall(SECOND)


# --- the trace -------------------------------------------------------------------------------------------------------


def test_the_trace_keeps_the_rules_of_its_format() -> None:
    world = retried()
    world = world.job("b", cpu=2).job("c", cpu=2).round().start("b").after("1s")
    told = trace(window(world))
    again = json.loads(json.dumps(told))
    check_trace(again["traceEvents"])
    slices = [event for event in again["traceEvents"] if event["ph"] == "X"]
    assert sum(event["dur"] for event in slices if event["args"]["job"] == "j1" and event["cat"] == "running") == 6e6
    assert {event["args"]["name"] for event in again["traceEvents"] if event["ph"] == "M"} >= {"n1", "device 0"}
    assert [event["args"]["outcome"] for event in slices if event.get("cname")] == ["failed", "failed"]
    assert sum(event["ph"] == "s" for event in again["traceEvents"]) == 1, "from the first attempt to the second"


def test_a_trace_of_a_part_is_cut_where_it_begins_and_ends() -> None:
    world = retried()
    told = followed(world).window(world.now, 4 * SECOND, 9 * SECOND)
    events = trace(told)["traceEvents"]
    check_trace(events)
    assert max(event["ts"] + event["dur"] for event in events if event["ph"] == "X") <= 5e6
