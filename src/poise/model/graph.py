"""Algorithms on graphs of named steps: order, cycles, critical path, slack.

A graph is a mapping from a name to the names it needs. All functions are pure and run in time linear in nodes and
edges.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

Needs = Mapping[str, Sequence[str]]


class CycleError(ValueError):
    """The graph has a cycle; `path` lists it, with the same first and last step."""

    def __init__(self, path: list[str]) -> None:
        super().__init__(" -> ".join(path))
        self.path = path


class Times(NamedTuple):
    """Earliest and latest start of a step for the graph to end as early as possible.

    Nanoseconds from the graph's start. `tail` is the length of the longest path from the step's start to the graph's
    end; a step of slack 0 is critical.
    """

    earliest: int
    latest: int
    tail: int

    @property
    def slack(self) -> int:
        return self.latest - self.earliest


def topological_order(needs: Needs) -> list[str]:
    """Return the steps so that each comes after all its needs; ready ones in the order given. Raises `CycleError`."""
    missing = {name: len(set(of)) for name, of in needs.items()}
    dependents = dependents_of(needs)
    order = [name for name, count in missing.items() if count == 0]
    for name in order:
        for dependent in dependents[name]:
            missing[dependent] -= 1
            if missing[dependent] == 0:
                order.append(dependent)
    if len(order) < len(missing):
        raise CycleError(_find_cycle(needs, {name for name, count in missing.items() if count}))
    return order


def dependents_of(needs: Needs) -> dict[str, list[str]]:
    """Return, for each step, the steps that need it."""
    dependents: dict[str, list[str]] = {name: [] for name in needs}
    for name, of in needs.items():
        for need in dict.fromkeys(of):
            dependents[need].append(name)
    return dependents


def with_needs(needs: Needs, steps: Iterable[str], known: Container[str]) -> list[str]:
    """Return these steps and all their direct and indirect needs, without `known` steps. All needs of a known step must
    be known too.
    """
    found: dict[str, None] = {}
    ahead = list(steps)
    while ahead:
        step = ahead.pop()
        if step not in found and step not in known:
            found[step] = None
            ahead += needs[step]
    return list(found)


def times(needs: Needs, durations: Mapping[str, int]) -> dict[str, Times]:
    """Apply the critical path method (Kelley and Walker, 1959) to expected durations in nanoseconds."""
    order = topological_order(needs)
    earliest: dict[str, int] = {}
    for name in order:
        earliest[name] = max((earliest[need] + durations[need] for need in needs[name]), default=0)
    tails = dict.fromkeys(order, 0)
    for name in reversed(order):
        tails[name] += durations[name]
        for need in needs[name]:
            tails[need] = max(tails[need], tails[name])
    end = max((earliest[name] + durations[name] for name in order), default=0)
    return {name: Times(earliest[name], end - tails[name], tails[name]) for name in order}


def due_times(needs: Needs, durations: Mapping[str, int], deadlines: Mapping[str, int]) -> dict[str, int]:
    """Return the instant by which each step must end to meet its own deadline and those of all later steps.

    Steps without a deadline at or after them are left out.
    """
    due = dict(deadlines)
    for name in reversed(topological_order(needs)):
        if name in due:
            for need in needs[name]:
                due[need] = min(due.get(need, due[name] - durations[name]), due[name] - durations[name])
    return due


def critical_path(needs: Needs, durations: Mapping[str, int]) -> list[str]:
    """Return the longest path, first step first; ties go to the step given first."""
    planned = times(needs, durations)
    dependents = dependents_of(needs)
    path: list[str] = []
    ahead = [name for name in needs if not needs[name]]
    while ahead:
        step = max(ahead, key=lambda name: planned[name].tail)
        path.append(step)
        ahead = dependents[step]
    return path


def _find_cycle(needs: Needs, among: set[str]) -> list[str]:
    """Return a cycle among steps that each need another one of them, in order of execution."""
    path: list[str] = [next(name for name in needs if name in among)]
    seen = {path[0]: 0}
    while True:
        step = next(need for need in needs[path[-1]] if need in among)
        if step in seen:
            cycle = [*path[seen[step] :], step]
            return cycle[::-1]
        seen[step] = len(path)
        path.append(step)
