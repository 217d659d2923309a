"""The rooms of the ledger: each event and each field of the state is one room's, and each room checks its own."""

import ast
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from poise.kernel import ledger as package
from poise.kernel.ledger import InvariantBroken, Ledger, State, nodes
from poise.kernel.messages import AddToken
from poise.model.events import NodeForgotten, NodeJoined
from poise.model.progress import Speedups
from poise.model.tenants import Role
from poise.testing import World, node

FILES = sorted(Path(next(iter(package.__path__))).glob("*.py"))
EVERYBODYS = {"revision", "now"}
"""Fields of the state that any room may read; the ledger writes them."""


def world() -> World:
    """One of everything that a room counts: work that runs, waits, follows, shares, and has ended."""
    made = World().join(node("n1", cpu=4, gpus=2)).join(node("n2", cpu=1))
    made.quota("ann", cpu=8).job("done").round().start("done").finish("done")
    made.job("elastic", workers="1..2", tenant="ann").job("gang", workers=2, gpu=1).round()
    made.job("large", cpu=4).job("after", after=["large"]).graph("g", tasks={"a": {"cpu": 4}, "b": {"needs": ["a"]}})
    made.ask(AddToken(request=made.request(), tenant="ann", role=Role.SUBMITTER, hash="b" * 64))
    return made.round()


def test_an_event_is_taken_in_by_one_room() -> None:
    taken = Counter(event for room in Ledger()._rooms for event in room.handlers())
    assert [event for event, rooms in taken.items() if rooms > 1] == []


def fields_named(path: Path) -> set[str]:
    """Fields of the state that the code of a room names."""
    attributes = [of for of in ast.walk(ast.parse(path.read_text())) if isinstance(of, ast.Attribute)]
    return {of.attr for of in attributes if ast.unparse(of.value) in ("state", "self._state")} & {
        *State.__struct_fields__
    }


def test_a_field_of_the_state_is_one_rooms() -> None:
    named = {path.stem: fields_named(path) - EVERYBODYS for path in FILES if path.stem != "ledger"}
    owners = Counter(field for fields in named.values() for field in fields)
    assert set(owners) == {*State.__struct_fields__} - EVERYBODYS
    assert [field for field, rooms in owners.items() if rooms > 1] == []


def test_a_file_is_read_at_one_sitting() -> None:
    assert [path.name for path in FILES if len(path.read_text().splitlines()) > 400] == []


def test_thousands_of_nodes_join_without_being_sorted_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A herd joins in any order, and a start reads it again from the log."""
    sorts: list[int] = []

    def counted(items: Iterable[Any]) -> list[Any]:
        found = sorted(items)
        sorts.append(len(found))
        return found

    monkeypatch.setattr(nodes, "sorted", counted, raising=False)
    names = [f"n{number * 7 % 1000}" for number in range(1000)]
    ledger = Ledger()
    for at, name in enumerate(names, start=1):
        ledger.apply(NodeJoined(at=at, node=node(name)))
    assert [*ledger.nodes] == [*ledger.nodes.keys()] == sorted(names)
    assert [state.node.name for state in ledger.nodes.values()] == [name for name, _ in ledger.nodes.items()]
    assert sum(sorts) == len(names)
    ledger.apply(NodeForgotten(at=len(names) + 1, name="n5"))
    ledger.apply(NodeJoined(at=len(names) + 2, node=node("n5")))
    assert [*ledger.nodes] == sorted(names)
    ledger.check()


TAMPERED: dict[str, Callable[[Ledger], object]] = {
    "a unit is not found": lambda ledger: ledger.jobs.units.popitem(),
    "a name is free that is not": lambda ledger: ledger.jobs._names.clear(),
    "a job is not followed": lambda ledger: ledger.jobs.awaited_by.clear(),
    "units are miscounted": lambda ledger: ledger.jobs.count_over(next(iter(ledger.jobs.values()))),
    "an active unit is forgotten": lambda ledger: ledger.active.popitem(),
    "an elastic unit is forgotten": lambda ledger: ledger.active.elastic.clear(),
    "a pending unit is in no queue": lambda ledger: ledger.queues.popitem(),
    "pending units are miscounted": lambda ledger: setattr(ledger.queues, "pending", 7),
    "room is miscounted": lambda ledger: setattr(ledger.nodes["n1"], "used_cpu", 1),
    "a device has no holder": lambda ledger: ledger.nodes["n1"].devices.popitem(),
    "a quota is miscounted": lambda ledger: ledger.quotas._held.clear(),
    "a token is not found": lambda ledger: ledger.tokens._secrets.clear(),
    "a unit scales as it never said": lambda ledger: ledger.training.speedups.update(x=Speedups((1000,), ())),
    "a unit waits for nothing": lambda ledger: setattr(
        next(unit for unit in ledger.jobs.units.values() if unit.spec.needs), "missing", 0
    ),
    "a unit has more tasks than it may": lambda ledger: setattr(next(iter(ledger.active.values())), "most", 9),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_room_notices_that(what: str) -> None:
    made = world()
    made.ledger.check()
    TAMPERED[what](made.ledger)
    with pytest.raises(InvariantBroken) as found:
        made.ledger.check()
    assert "after a restart" not in str(found.value), "found by what is shown, and not by the room"
