"""Who comes first: orders of candidates. Each returns the candidates sorted, and says why in words."""

from collections.abc import Callable

from poise.model.jobs import Priority
from poise.model.views import Candidate, Snapshot
from poise.units import MINUTE, SECOND, format_duration

Order = Callable[[Snapshot], list[Candidate]]

AGEING = 5 * MINUTE
"""Waiting this long raises a unit by one priority class; one that has waited so long as urgent goes before all others,
in order of readiness. So nothing starves, however much keeps coming."""


def by_arrival(view: Snapshot) -> list[Candidate]:
    """First come, first served; classes and deadlines are not looked at."""
    return list(view.candidates)  # a snapshot shows candidates in order of submission


def by_urgency(view: Snapshot) -> list[Candidate]:
    """Priority class (raised by waiting), then time left before the deadline's latest start, then longest path ahead.

    Within a class, work whose latest start is near goes first; without deadlines the longest path to the end of the
    graph does (the rule of Hu, 1961, and of HEFT's upward rank, Topcuoglu et al., 2002); ties go to the first
    submitted.
    """
    if len(view.candidates) > 1 and view.candidates[0].queue.endswith("/") and len(view.backlog) == 1:
        return list(view.candidates)  # single tasks of one kind: alike, and already in order
    now = view.now
    return sorted(view.candidates, key=lambda candidate: _urgency(candidate, now))


def effective_class(candidate: Candidate, now: int) -> int:
    """The priority class with ageing; never above urgent."""
    return max(0, candidate.priority - (now - candidate.ready) // AGEING)


def in_words(candidate: Candidate, now: int) -> str:
    """What put this candidate where it is, for people."""
    words = [Priority(candidate.priority).name.lower()]
    if effective_class(candidate, now) < candidate.priority:
        words.append(f"raised by waiting {format_duration(now - candidate.ready)}")
    if candidate.due:
        words.append(f"due in {format_duration(candidate.due - now)}")
    if candidate.critical:
        words.append("critical path")
    if candidate.tail > candidate.expected:
        words.append(f"{format_duration(candidate.tail)} to go")
    return ", ".join(words)


def _urgency(candidate: Candidate, now: int) -> tuple[int, int, int, int, int]:
    steps = (now - candidate.ready) // AGEING
    if steps > candidate.priority:
        return (0, 0, candidate.ready, 0, candidate.ordinal)
    spare = candidate.due - now - candidate.expected
    pressing = candidate.due and spare < max(candidate.tail, 10 * SECOND)
    own_class = candidate.priority - steps
    if pressing:
        return (own_class, 1, spare, 0, candidate.ordinal)
    return (own_class, 2, 0, -candidate.tail, candidate.ordinal)
