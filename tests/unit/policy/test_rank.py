"""Who comes first, in the shipped orders and in those made of terms."""

from collections.abc import Mapping
from math import log2
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from poise.model.fleet import Fleet
from poise.model.jobs import Work
from poise.model.profiles import Profile
from poise.model.resources import Shape
from poise.model.views import Candidate, Snapshot
from poise.policy.rank import (
    ORDERS,
    PRESETS,
    RANK_TERMS,
    by_arrival,
    by_terms,
    by_urgency,
    by_value,
    candidate_level,
    effective_class,
    in_words,
    level_of,
    power_of,
)
from poise.policy.timely import NO_DEADLINES, Timely
from poise.policy.waiting import AGEING
from poise.testing import node
from poise.units import HOUR, MINUTE, SECOND

NOW = 10 * HOUR
GIB = 2**30


def candidate(ordinal: int, *, waited: int = 0, left: int = 0, **fields: Any) -> Candidate:
    """A unit that has been ready for `waited` and is due in `left` nanoseconds."""
    usual: dict[str, Any] = {
        "priority": 2, "kind": "", "shape": Shape(), "tasks": 1, "submitted": 0, "tail": SECOND, "queue": "own",
        "expected": SECOND,
    }  # fmt: skip
    return Candidate(
        unit=f"u{ordinal}", job="j", ordinal=ordinal, ready=NOW - waited, due=NOW + left if left else 0,
        **{**usual, **fields},
    )  # fmt: skip


def view(*candidates: Candidate) -> Snapshot:
    backlog = dict.fromkeys([one.queue for one in candidates], 1)
    return Snapshot(revision=1, now=NOW, fleet=Fleet(), candidates=candidates, backlog=backlog, profiles={})


def urgency(*candidates: Candidate, pressed: tuple[str, ...] = ()) -> list[int]:
    timely = Timely(pressed=dict.fromkeys(pressed, 0.0))
    return [one.ordinal for one in by_urgency(view(*candidates), timely)]


def test_what_has_to_start_now_then_classes_then_paths_then_arrival() -> None:
    assert urgency(
        candidate(1, priority=3),
        candidate(2),
        candidate(3),
        candidate(4, tail=HOUR),
        candidate(5, left=5 * SECOND),
        candidate(6, left=3 * SECOND),
        candidate(7, priority=0),
        pressed=("u5", "u6"),
    ) == [6, 5, 7, 4, 2, 3, 1]


def test_a_far_deadline_does_not_press() -> None:
    assert urgency(candidate(1, left=9 * HOUR), candidate(2, tail=2 * SECOND)) == [2, 1]


def test_a_missed_deadline_does_not_press() -> None:
    assert urgency(candidate(1), candidate(2, left=-HOUR)) == [1, 2]


def test_ageing_raises_one_class_at_a_time_and_never_above_urgent() -> None:
    aged = [effective_class(candidate(1, priority=3, waited=steps * AGEING), view()) for steps in range(6)]
    assert aged == [3, 2, 1, 0, 0, 0]


def test_what_has_waited_long_as_urgent_goes_by_age_alone() -> None:
    oldest = candidate(9, priority=3, waited=4 * AGEING + MINUTE, tail=0)
    old = candidate(1, priority=3, waited=4 * AGEING, tail=HOUR)
    assert urgency(candidate(2, priority=0, left=SECOND), old, oldest) == [9, 1, 2]


def test_arrival_looks_at_nothing_else() -> None:
    shown = view(candidate(1, priority=3), candidate(2, priority=0))
    assert [one.ordinal for one in by_arrival(shown)] == [1, 2]


def test_in_words() -> None:
    words = in_words(candidate(1, priority=3, waited=6 * MINUTE, tail=12 * SECOND, left=MINUTE), view())
    assert words == "low, raised by waiting 6m0s, due in 1m0s, 12.0 s to go"


@given(
    st.lists(
        st.builds(
            candidate,
            ordinal=st.integers(1, 99),
            priority=st.integers(0, 3),
            waited=st.integers(0, 9 * AGEING),
            tail=st.integers(0, HOUR),
            left=st.integers(-HOUR, HOUR),
        ),
        unique_by=lambda one: one.ordinal,
    )
)
def test_the_order_does_not_depend_on_how_the_candidates_come(candidates: list[Candidate]) -> None:
    assert urgency(*candidates) == urgency(*reversed(candidates))
    classes = [effective_class(one, view()) for one in by_urgency(view(*candidates))]
    assert classes == sorted(classes)


# --- orders of one look ----------------------------------------------------------------------------------------------


def test_shortest_first_and_least_served_first_and_by_level() -> None:
    shown = view(
        candidate(1, expected=9 * SECOND, attained=5 * SECOND),
        candidate(2, expected=3 * SECOND, attained=40 * SECOND),
        candidate(3, expected=5 * SECOND),
        candidate(4, expected=3 * SECOND, attained=2 * HOUR),
    )
    orders = {
        name: [one.ordinal for one in ORDERS[name].sort(shown, NO_DEADLINES)] for name in ("run", "attained", "level")
    }
    assert orders == {"run": [2, 4, 3, 1], "attained": [3, 1, 2, 4], "level": [1, 3, 2, 4]}


def test_levels_of_feedback_are_lived_through_and_left_by_waiting() -> None:
    assert [level_of(at * SECOND) for at in (0, 29, 30, 299, 300, 3599, 3600)] == [0, 0, 1, 1, 2, 2, 3]
    assert candidate_level(candidate(1, attained=2 * HOUR), view()) == 3
    assert candidate_level(candidate(1, attained=2 * HOUR, waited=AGEING), view()) == 0


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("arrival", "first come"),
        ("run", "7.0 s to run"),
        ("attained", "40.0 s of service so far"),
        ("level", "level 1"),
    ],
)
def test_each_order_says_why(order: str, words: str) -> None:
    assert ORDERS[order].words(candidate(1, expected=7 * SECOND, attained=40 * SECOND), view()) == words


# --- orders made of terms --------------------------------------------------------------------------------------------

FLEET = Fleet([node(f"n{number}", cpu=10, memory="10GiB", gpus=2) for number in range(2)])
"""20 CPUs, 20 GiB and 4 devices."""


def values(weights: Mapping[str, float], one: Candidate, **fields: Any) -> dict[str, float]:
    """Each term's part of the sum."""
    shown = msgspec.structs.replace(view(one), fleet=FLEET, **fields)
    return {name: factor * RANK_TERMS[name](one, shown) for name, factor in weights.items()}


def test_deadline_depth_and_model() -> None:
    """`100/(hours + 1) + depth - 0.1 GB`."""
    one = candidate(1, left=3 * HOUR, depth=5, work=Work(model=20_000_000_000))
    assert values(PRESETS["deadline-depth-model"], one) == {
        "urgency": 100 / 4,
        "depth": 5.0,
        "model_size": pytest.approx(-2.0),
    }
    assert values(PRESETS["deadline-depth-model"], candidate(1)) == {"urgency": 0, "depth": 0, "model_size": 0}
    assert values(PRESETS["deadline-depth-model"], candidate(1, left=-HOUR))["urgency"] == 100


def test_urgency_thrift_and_independence() -> None:
    """`0.5 urgency + 0.3/(1 + share) + 0.2/(1 + dependencies)`."""
    one = candidate(1, left=HOUR, followers=3, shape=Shape(cpu=2000, gpus=1), tasks=2)
    assert values(PRESETS["urgency-thrift-independence"], one) == {
        "urgency": 0.5 * 0.5,
        "thrift": pytest.approx(0.3 / (1 + 2 / 4)),  # two of four devices, four of twenty CPUs: the larger share
        "independence": 0.2 / 4,
    }


def test_dependencies_leftover_and_risk() -> None:
    """`0.4 dependencies/10 + 0.3 (1 - usage/capacity) + 0.3 probability x impact`."""
    one = candidate(1, followers=5, shape=Shape(cpu=5000, memory=GIB))
    profiles = {"": Profile(count=9, failures=400)}
    assert values(PRESETS["dependencies-leftover-risk"], one, profiles=profiles) == {
        "dependencies": pytest.approx(0.4 * 5 / 10),
        "leftover": pytest.approx(0.3 * (1 - 5 / 20)),
        "failure_risk": pytest.approx(0.3 * 0.4 * 0.5),
    }
    assert values(PRESETS["dependencies-leftover-risk"], one)["failure_risk"] == 0  # nothing is known of its class


def test_other_terms() -> None:
    one = candidate(1, waited=HOUR, weight=2500, expected=3 * HOUR, work=Work(input=3_000_000_000, flops=7 * 10**12))
    named = {name: pytest.approx(value) for name, value in values(dict.fromkeys(RANK_TERMS, 1.0), one).items()}
    assert named["waiting"] == 1.0
    assert named["weight"] == 2.5
    assert named["shortness"] == 1 / 4
    assert named["heaviness"] == (log2(1 + 3) + log2(1 + 7) + log2(1 + 180)) / 3
    assert named["resource_share"] == 1 / 20
    half = candidate(1, shape=Shape(gpus=1, share=500), tasks=3)
    assert values({"resource_share": 1.0}, half) == {"resource_share": 3 * 0.5 / 4}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_orders_by_class_and_age_first(preset: str) -> None:
    shown = view(
        candidate(1, priority=2, left=HOUR, followers=9),
        candidate(2, priority=1),
        candidate(3, priority=3, waited=4 * AGEING),
        candidate(4, priority=2, left=HOUR, followers=9, depth=2),
        candidate(5, priority=3, waited=AGEING),
    )
    ordered = [one.ordinal for one in by_terms(PRESETS[preset]).sort(shown, NO_DEADLINES)]
    assert ordered[:2] == [3, 2]
    assert set(ordered[2:]) == {1, 4, 5}


def test_the_highest_sum_goes_first_and_ties_by_arrival() -> None:
    shown = view(candidate(3, followers=2), candidate(2, followers=7), candidate(1, followers=2))
    order = by_terms({"dependencies": 1.0})
    assert [one.ordinal for one in order.sort(shown, NO_DEADLINES)] == [2, 1, 3]
    assert [one.ordinal for one in by_terms({"dependencies": -1.0}).sort(shown, NO_DEADLINES)] == [1, 3, 2]
    assert order.words(shown.candidates[0], shown) == "medium, by 1 dependencies"


def test_a_term_of_ones_own_that_gives_nonsense_is_named() -> None:
    terms: Any = {"mine": lambda candidate, view: float("nan")}
    with pytest.raises(ValueError, match="`mine` gave nan for u1, not a finite number"):
        by_terms({"mine": 1.0}, terms).sort(view(candidate(1)), NO_DEADLINES)


def test_fairness_decides_how_much_a_relative_wait_counts() -> None:
    """Two hours of work have waited as long as that, and count 1.1 times, to the power of `waits`. A job that is 5 %
    shorter has just come, and is worth 1.05 times as much.
    """
    waited = candidate(1, waited=2 * HOUR, expected=2 * HOUR, tail=2 * HOUR, shape=Shape(gpus=1))
    fresh = candidate(2, expected=114 * MINUTE, tail=114 * MINUTE, shape=Shape(gpus=1))

    fresh = msgspec.structs.replace(fresh, job="other")

    def first(fairness: float) -> int:
        return by_value(view(waited, fresh), waits=power_of(fairness))[0].ordinal

    assert (first(0), first(0.25), first(0.5), first(1)) == (2, 2, 1, 1)
