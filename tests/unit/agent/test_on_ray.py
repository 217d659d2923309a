"""The keeper of the agents of a Ray cluster opens the nodes again that it has drained, and no others."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from poise.agent.on_ray import Nodes
from poise.client import Client
from poise.config import Home
from poise.errors import PoiseError, StoreFull, Unreachable
from poise.testing import World
from unit.control.desk import Desk

T = TypeVar("T")


class AtDesk(Client):
    """A client of a world in memory. `lost` fails the next call of a path: Unreachable comes after the call is done."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Home(folder))
        self.desk = Desk(World().nodes(2, cpu=1))
        self.lost: dict[str, PoiseError] = {}

    def _call(self, method: str, path: str, kind: type[T], body: Any = None, timeout: float = 0.0) -> T:
        failure = self.lost.pop(path, None)
        if failure is not None and not isinstance(failure, Unreachable):
            raise failure
        answer = self.desk.call(method, path, body)
        assert answer.status < 400, answer.body
        if failure is not None:
            raise failure
        return msgspec.json.decode(answer.body, type=kind)

    def closed(self) -> list[str]:
        return [node.name for node in self.nodes() if node.status in ("drained", "emptying")]


@pytest.fixture
def client(tmp_path: Path) -> AtDesk:
    return AtDesk(tmp_path)


@pytest.fixture
def nodes(client: AtDesk, tmp_path: Path) -> Nodes:
    return Nodes(client, tmp_path / "emptied.json")


def test_a_node_that_a_person_drained_stays_drained_when_nobody_answers_a_lend(client: AtDesk, nodes: Nodes) -> None:
    client.drain("n1")
    client.lost["/v1/nodes/lend"] = Unreachable("no control plane answers")
    with pytest.raises(Unreachable):
        nodes.lend({"n1": "m1", "n2": "m2"})
    assert client.closed() == ["n1", "n2"], "the answer was lost after the second node was lent"
    nodes.open_but({})
    assert client.closed() == ["n1"]


@pytest.mark.parametrize("way", ["lend", "empty"])
def test_a_node_that_a_person_drains_after_a_refusal_stays_drained(way: str, client: AtDesk, nodes: Nodes) -> None:
    client.lost["/v1/nodes/lend"] = client.lost["/v1/nodes/n1/drain"] = StoreFull("the disk of the log is full")
    with pytest.raises(StoreFull):
        nodes.lend({"n1": "m1"}) if way == "lend" else nodes.empty({"n1": "m1"})
    client.lost.clear()
    client.drain("n1")
    nodes.open_but({})
    assert client.closed() == ["n1"]
    assert nodes.emptied == {}


def test_a_node_that_was_lent_is_opened_once_its_machine_stays(client: AtDesk, nodes: Nodes, tmp_path: Path) -> None:
    assert nodes.lend({"n1": "m1", "n2": "m2"}) == "n1"
    assert Nodes(client, tmp_path / "emptied.json").emptied == {"n1": "m1"}
    nodes.open_but({"n1": "m1"})
    assert client.closed() == ["n1"]
    nodes.open_but({})
    assert client.closed() == []
