"""Columns of what waits agree with what is said of each candidate by itself, also after something has changed."""

from typing import Any

import pytest

from poise.model.fleet import Fleet
from poise.model.profiles import Profile
from poise.model.resources import Shape
from poise.model.views import Candidate, Snapshot
from poise.policy.feasible import ability
from poise.policy.predict import speeds_of
from poise.policy.rank import ORDERS, effective_class
from poise.policy.reclaim import value
from poise.policy.waiting import AGEING, AGES_BY, OWN, WIDTH, Waiting, ageing
from poise.testing import node
from poise.units import HOUR, MINUTE, SECOND

NOW = 100 * HOUR
FLEET = Fleet([node("n1", gpus=8), node("n2", gpus=8)])
MODEL = next(model.called for model in FLEET.models if model.kind != "cpu")


def candidate(ordinal: int, **fields: Any) -> Candidate:
    given: dict[str, Any] = {
        "unit": f"j{ordinal}.main",
        "job": f"j{ordinal}",
        "ordinal": ordinal,
        "priority": ordinal % 4,
        "kind": f"class-{ordinal % 3}",
        "shape": Shape(cpu=1000, gpus=1 + ordinal % 8) if ordinal % 5 else Shape(cpu=1000),
        "tasks": 1 + ordinal % 2,
        "submitted": NOW - ordinal * HOUR,
        "ready": NOW - ordinal * ordinal * MINUTE,
        "tail": (1 + ordinal) * MINUTE,
        "queue": f"q{ordinal % 4}",
        "expected": (1 + ordinal) * MINUTE,
        "declared": (1 + ordinal) * MINUTE,
        "weight": 500 * (1 + ordinal),
    }
    return Candidate(**given | fields)


def view(*ones: Candidate, profiles: dict[str, Profile] | None = None, fleet: Fleet = FLEET) -> Snapshot:
    return Snapshot(
        revision=1,
        now=NOW,
        fleet=fleet,
        candidates=ones,
        backlog={one.queue: 1 for one in ones},
        profiles=profiles or {},
    )


ONES = tuple(candidate(ordinal) for ordinal in range(40))


@pytest.mark.parametrize("waits", [1.0, 0.25, 3.0])
def test_values_are_those_of_each_candidate(waits: float) -> None:
    of = view(*ONES)
    waiting = Waiting(of)
    runs = [speeds_of(of).shortest(one, ability(FLEET, one.shape).models) for one in ONES]
    alone = [value(one, run, of, waits=waits) for one, run in zip(ONES, runs, strict=True)]
    assert waiting.values(waiting.places_of(ONES), waits) == pytest.approx(alone, rel=1e-14)


def test_lanes_are_those_of_each_candidate() -> None:
    order, of = ORDERS["value"], view(*ONES)
    waiting = Waiting(of)
    assert order.lanes(of, waiting, waiting.places_of(ONES)).tolist() == [order.lane(one, of) for one in ONES]
    assert waiting.classes.clip(0).tolist() == [effective_class(one, of) for one in ONES]


def test_a_candidate_that_changed_is_looked_at_again() -> None:
    """Others have come before it in the view, and it has one task more."""
    Waiting(view(*ONES[5:]))
    wider = candidate(20, tasks=7)
    waiting = Waiting(view(*ONES[:20], wider, *ONES[21:]))
    assert waiting.columns[WIDTH].tolist() == [one.shape.gpus * one.tasks for one in (*ONES[:20], wider, *ONES[21:])]
    assert waiting.columns[OWN].tolist() == [one.expected for one in ONES]


def test_runs_follow_what_is_learned_of_a_class() -> None:
    before = Waiting(view(*ONES)).runs.tolist()
    [model] = {model.called for model in FLEET.models if model.kind != "cpu"}
    learned = {f"class-1@{model}": Profile(count=9, mean=3 * HOUR, deviation=MINUTE)}
    after = Waiting(view(*ONES, profiles=learned)).runs.tolist()
    fresh = Waiting(view(*ONES, profiles=learned, fleet=Fleet(FLEET.nodes))).runs.tolist()
    assert after == fresh
    changed = {one.kind for one, old, new in zip(ONES, before, after, strict=True) if old != new}
    assert changed == {"class-1"}


def test_runs_follow_a_class_that_is_known_already() -> None:
    """Also those of work that has run before, whose estimates depend on more than the class."""
    [model] = {model.called for model in FLEET.models if model.kind != "cpu"}
    been = [{"saved": MINUTE}, {"progress": 300_000, "attained": HOUR}, {"outlived": HOUR}, {"left": MINUTE}]
    ones = (*ONES, *(candidate(40 + at, **of) for at, of in enumerate(been)), candidate(44, declared=0))
    for count, ratio in ((9, 1500), (10, 700), (11, 0)):
        learned = {
            f"class-{at}@{model}": Profile(
                count=count, mean=(at + count) * MINUTE, deviation=at * MINUTE, ratio=ratio, ratio_deviation=ratio // 3
            )
            for at in range(3)
        }
        known = Waiting(view(*ones, profiles=learned)).runs.tolist()
        assert known == Waiting(view(*ones, profiles=learned, fleet=Fleet(FLEET.nodes))).runs.tolist()


# --- ageing ----------------------------------------------------------------------------------------------------------


def test_a_unit_ages_by_what_its_class_has_taught_since_it_began_to_wait() -> None:
    """It was ready before the first run of its class ended."""
    one = candidate(1, kind="new", declared=0, expected=SECOND, shape=Shape(gpus=1), priority=2, ready=NOW - HOUR)
    known = Profile(count=3, mean=HOUR, deviation=MINUTE)
    assert Waiting(view(one)).classes.tolist() == [-1]
    after = view(one, profiles={"new": known, f"new@{MODEL}": known})
    assert Waiting(after).classes.tolist() == [2]
    assert ageing(one, after) == AGES_BY * HOUR


def test_a_unit_of_unknown_run_time_ages_as_known_work_on_devices_does() -> None:
    """A long queue of unknown work would else be served first come, first served after a quarter of an hour."""
    one = candidate(1, kind="new", declared=0, expected=SECOND, shape=Shape(gpus=1), priority=2, ready=NOW - HOUR)
    learned = {f"{name}@{MODEL}": Profile(count=1, mean=mean) for name, mean in (("a", MINUTE), ("b", 3 * MINUTE))}
    of = view(one, profiles={**learned, "c": Profile(count=9, mean=SECOND)})
    assert ageing(one, of) == AGES_BY * 2 * MINUTE
    assert Waiting(of).classes.tolist() == [2] == [effective_class(one, of)]
    assert ageing(one, view(one)) == AGEING


def test_more_known_work_changes_how_a_unit_of_unknown_run_time_ages() -> None:
    one = candidate(1, kind="new", declared=0, expected=SECOND, shape=Shape(gpus=1), priority=2, ready=NOW - HOUR)
    learned = {f"a@{MODEL}": Profile(count=1, mean=MINUTE)}
    assert [Waiting(view(one, profiles=of)).classes.tolist() for of in ({}, learned, {})] == [[-1], [2], [-1]]
