import hypothesis.strategies as st
from hypothesis import given

from poise.model.fleet import Fleet
from poise.model.resources import Shape
from poise.model.views import Candidate, Snapshot
from poise.policy.rank import AGEING, by_arrival, by_urgency, effective_class, in_words
from poise.units import HOUR, MINUTE, SECOND

NOW = 10 * HOUR


def candidate(
    ordinal: int, *, priority: int = 2, waited: int = 0, tail: int = SECOND, left: int = 0, queue: str = "own"
) -> Candidate:
    """A unit that has been ready for `waited` and is due in `left` nanoseconds."""
    return Candidate(
        unit=f"u{ordinal}", job="j", ordinal=ordinal, priority=priority, kind="", shape=Shape(), tasks=1, submitted=0,
        ready=NOW - waited, tail=tail, queue=queue, expected=SECOND, due=NOW + left if left else 0,
    )  # fmt: skip


def view(*candidates: Candidate) -> Snapshot:
    backlog = dict.fromkeys([one.queue for one in candidates], 1)
    return Snapshot(revision=1, now=NOW, fleet=Fleet(), candidates=candidates, backlog=backlog, profiles={})


def urgency(*candidates: Candidate) -> list[int]:
    return [one.ordinal for one in by_urgency(view(*candidates))]


def test_classes_then_deadlines_then_paths_then_arrival() -> None:
    assert urgency(
        candidate(1, priority=3),
        candidate(2),
        candidate(3),
        candidate(4, tail=HOUR),
        candidate(5, left=5 * SECOND),
        candidate(6, left=3 * SECOND),
        candidate(7, priority=0),
    ) == [7, 6, 5, 4, 2, 3, 1]


def test_a_far_deadline_does_not_press() -> None:
    assert urgency(candidate(1, left=9 * HOUR), candidate(2, tail=2 * SECOND)) == [2, 1]


def test_a_missed_deadline_presses_most() -> None:
    assert urgency(candidate(1, left=SECOND), candidate(2, left=-HOUR)) == [2, 1]


def test_ageing_raises_one_class_at_a_time_and_never_above_urgent() -> None:
    aged = [effective_class(candidate(1, priority=3, waited=steps * AGEING), NOW) for steps in range(6)]
    assert aged == [3, 2, 1, 0, 0, 0]


def test_what_has_waited_long_as_urgent_goes_by_age_alone() -> None:
    oldest = candidate(9, priority=3, waited=4 * AGEING + MINUTE, tail=0)
    old = candidate(1, priority=3, waited=4 * AGEING, tail=HOUR)
    assert urgency(candidate(2, priority=0, left=SECOND), old, oldest) == [9, 1, 2]


def test_arrival_looks_at_nothing_else() -> None:
    shown = view(candidate(1, priority=3), candidate(2, priority=0))
    assert [one.ordinal for one in by_arrival(shown)] == [1, 2]


def test_in_words() -> None:
    words = in_words(candidate(1, priority=3, waited=6 * MINUTE, tail=12 * SECOND, left=MINUTE), NOW)
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
    classes = [effective_class(one, NOW) for one in by_urgency(view(*candidates))]
    assert classes == sorted(classes)
