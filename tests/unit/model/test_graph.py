import itertools
import sys

import hypothesis.strategies as st
import pytest
from hypothesis import given

from poise.model.graph import CycleError, critical_path, dependents_of, due_times, times, topological_order, with_needs

DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
SPANS = {"a": 1, "b": 5, "c": 2, "d": 1}


def test_the_critical_path_of_a_diamond() -> None:
    assert critical_path(DIAMOND, SPANS) == ["a", "b", "d"]
    planned = times(DIAMOND, SPANS)
    assert {name: planned[name].slack for name in DIAMOND} == {"a": 0, "b": 0, "c": 3, "d": 0}
    assert planned["a"].tail == 7
    assert (planned["c"].earliest, planned["c"].latest) == (1, 4)


def test_order_is_the_one_given_among_the_ready() -> None:
    assert topological_order({"z": [], "y": ["z"], "a": [], "b": ["a", "a"]}) == ["z", "a", "y", "b"]


def test_dependents_are_named_once() -> None:
    assert dependents_of({"a": [], "b": ["a", "a"]}) == {"a": ["b"], "b": []}


def test_ties_go_to_the_first() -> None:
    assert critical_path({"x": [], "y": [], "z": ["x", "y"]}, {"x": 1, "y": 1, "z": 1}) == ["x", "z"]


@pytest.mark.parametrize(
    ("needs", "cycle"),
    [
        ({"a": ["a"]}, ["a", "a"]),
        ({"a": ["b"], "b": ["a"]}, ["a", "b", "a"]),
        ({"in": ["a"], "a": ["c"], "b": ["a"], "c": ["b"], "free": []}, ["a", "b", "c", "a"]),
    ],
)
def test_a_cycle_is_named_in_the_order_of_work(needs: dict[str, list[str]], cycle: list[str]) -> None:
    with pytest.raises(CycleError) as caught:
        topological_order(needs)
    path = caught.value.path
    assert path[0] == path[-1]
    assert sorted(path[1:]) == sorted(cycle[1:])
    assert all(before in needs[after] for before, after in itertools.pairwise(path))


def test_a_graph_may_be_deeper_than_the_stack() -> None:
    count = sys.getrecursionlimit() * 5
    chain: dict[str, list[str]] = {str(n): [str(n - 1)] if n else [] for n in range(count)}
    spans = dict.fromkeys(chain, 1)
    assert times(chain, spans)["0"].tail == count
    assert len(critical_path(chain, spans)) == count
    assert due_times(chain, spans, {str(count - 1): count})["0"] == 1


def test_a_deadline_binds_all_that_lead_to_it() -> None:
    assert due_times(DIAMOND, SPANS, {"d": 10}) == {"d": 10, "b": 9, "c": 9, "a": 4}
    assert due_times(DIAMOND, SPANS, {"d": 10, "c": 3})["a"] == 1
    assert due_times(DIAMOND, SPANS, {"b": 9}) == {"b": 9, "a": 4}


Graph = tuple[dict[str, list[str]], dict[str, int]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 7))
    names = [f"s{number}" for number in draw(st.permutations(range(count)))]
    needs = {
        name: draw(st.lists(st.sampled_from(names[:at]), max_size=3)) if at else [] for at, name in enumerate(names)
    }
    given_order = draw(st.permutations(names))
    spans = {name: draw(st.integers(0, 9)) for name in names}
    return {name: needs[name] for name in given_order}, spans


def _paths(needs: dict[str, list[str]], start: str) -> list[list[str]]:
    """Every path from a step to an end of the graph."""
    after = [name for name, of in needs.items() if start in of]
    return [[start, *rest] for name in after for rest in _paths(needs, name)] or [[start]]


@given(graphs())
def test_order_and_times_are_those_of_trying_every_path(graph: Graph) -> None:
    needs, spans = graph
    order = topological_order(needs)
    assert sorted(order) == sorted(needs)
    assert all(order.index(need) < order.index(name) for name, of in needs.items() for need in of)
    planned = times(needs, spans)
    length = {name: [sum(spans[step] for step in path) for path in _paths(needs, name)] for name in needs}
    end = max(max(of) for of in length.values())
    for name in needs:
        tail = max(length[name])
        before = [
            sum(spans[step] for step in path[: path.index(name)])
            for root in needs
            if not needs[root]
            for path in _paths(needs, root)
            if name in path
        ]
        assert planned[name] == (max(before), end - tail, tail)
        assert planned[name].slack >= 0
    path = critical_path(needs, spans)
    assert sum(spans[step] for step in path) == end
    assert all(before in needs[after] for before, after in itertools.pairwise(path))
    assert all(planned[step].slack == 0 for step in path)


@given(graphs(), st.integers(0, 50))
def test_due_times_leave_just_enough_for_what_follows(graph: Graph, deadline: int) -> None:
    needs, spans = graph
    ends = [name for name in needs if not any(name in of for of in needs.values())]
    due = due_times(needs, spans, dict.fromkeys(ends, deadline))
    for name in needs:
        longest_after = max(sum(spans[step] for step in path[1:]) for path in _paths(needs, name))
        assert due[name] == deadline - longest_after


@given(
    st.dictionaries(st.sampled_from("abcde"), st.lists(st.sampled_from("abcde"), max_size=2), min_size=5, max_size=5)
)
def test_any_graph_has_an_order_or_a_cycle(needs: dict[str, list[str]]) -> None:
    try:
        order = topological_order(needs)
    except CycleError as error:
        assert error.path[0] == error.path[-1]
        assert all(before in needs[after] for before, after in itertools.pairwise(error.path))
    else:
        assert all(order.index(need) < order.index(name) for name, of in needs.items() for need in of)


def test_steps_come_with_all_that_they_need() -> None:
    needs: dict[str, list[str]] = {"a": [], "b": ["a"], "c": ["b"], "d": ["a"]}
    assert set(with_needs(needs, ["c"], set())) == {"a", "b", "c"}
    assert set(with_needs(needs, ["c", "d"], {"a", "b"})) == {"c", "d"}
