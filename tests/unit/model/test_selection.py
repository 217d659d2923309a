"""A part of the nodes: a share of each device model, names, or labels."""

import pytest
from msgspec.structs import replace

from poise.cli.main import main
from poise.errors import SpecError
from poise.model.resources import Node
from poise.model.selection import ALL, Selection, check_selection, names_of, parse_selection
from poise.testing import node


def named(nodes: list[Node], text: str) -> tuple[str, ...]:
    return names_of(nodes, parse_selection(text, "--nodes").rows(nodes))


def fleet(count: int, model: str = "H100", prefix: str = "n") -> list[Node]:
    made = [node(f"{prefix}{number}", gpus=1) for number in range(count)]
    return [replace(one, devices=tuple(replace(of, model=model) for of in one.devices)) for one in made]


def test_nodes_are_selected_by_name_and_by_label() -> None:
    nodes = [replace(node("a"), zone="east"), replace(node("b"), zone="west", labels={"spot": "yes"}), node("c")]
    assert named(nodes, "a, c") == ("a", "c")
    assert named(nodes, "zone=west,spot=yes") == ("b",)
    assert named(nodes, "zone=east,spot=yes") == ()


@pytest.mark.parametrize("share", [1, 100, 250, 500, 750, 999])
@pytest.mark.parametrize("count", [2, 3, 10, 40])
def test_a_share_is_as_large_as_it_can_be_and_never_none_or_all(share: int, count: int) -> None:
    rows = Selection(share=share).rows(fleet(count))
    assert 0 < len(rows) < count
    assert abs(len(rows) - count * share / ALL) <= 1


def test_none_and_all_of_the_nodes() -> None:
    assert Selection(share=0).rows(fleet(3)) == []
    assert Selection(share=ALL).rows(fleet(3)) == [0, 1, 2]
    assert Selection(share=500).rows(fleet(1)) == [], "one node has no part"


def test_a_share_has_its_part_of_each_device_model() -> None:
    nodes = fleet(20) + fleet(8, "A100", "a") + fleet(4, "T4", "t")
    names = named(nodes, "25%")
    assert [sum(name.startswith(prefix) for name in names) for prefix in "nat"] == [5, 2, 1]


def test_few_nodes_change_sides_when_others_join_or_leave() -> None:
    """Whatever the order in which they are listed."""
    before = set(named(fleet(40), "25%"))
    after = set(named([*reversed(fleet(41))], "25%"))
    assert len(before ^ after) <= 2


@pytest.mark.parametrize("text", ["0%", "100%", "120%", "a,,b", "zone=", "=a", "a,zone=b", "zone=a,zone=b", ""])
def test_what_selects_no_part_is_refused(text: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_selection(text, "--nodes")
    assert error.value.record.field == "--nodes"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("n9", "there is no node n9"),
        ("zone=mars", "nodes with zone=mars: this selects no node of this fleet"),
        ("n0,n1,n2", "nodes n0, n1, n2: this selects all nodes of this fleet"),
    ],
)
def test_a_selection_has_some_of_the_nodes_and_not_all(text: str, says: str) -> None:
    with pytest.raises(SpecError) as error:
        check_selection(parse_selection(text, "nodes"), fleet(3), "nodes")
    assert error.value.record.message == says


def test_a_promotion_for_no_nodes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """`--nodes "$NODES"` with an unset variable must not promote a policy on the whole fleet."""
    assert main(["promote", "sjf", "--nodes", "", "--force"]) == 1
    assert "this does not select nodes" in capsys.readouterr().err
