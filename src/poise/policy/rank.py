"""Who comes first: orders of candidates, and the terms of which users make their own.

An order sorts the candidates of a view and says in words why one stands where it does.
"""

from collections.abc import Callable, Mapping
from math import isfinite, log2
from typing import NamedTuple

import numpy as np

from poise.model.fleet import CPU, DEVICES, MEMORY, Bools, Floats, Ints
from poise.model.jobs import Priority
from poise.model.resources import PLENTY, WHOLE
from poise.model.views import Candidate, Snapshot
from poise.policy.timely import NO_DEADLINES, Timely
from poise.policy.waiting import (
    AGEING,
    GPUS,
    NEVER,
    ORDINAL,
    OWN,
    READY,
    STARVES,
    TAIL,
    TAKES,
    WEIGHT,
    Waiting,
    ageing,
)
from poise.units import HOUR, MINUTE, SECOND, format_duration

Words = Callable[[Candidate, int], str]
Lane = Callable[[Candidate, int], int]

PATIENCE = (0, 1 * SECOND, 10 * SECOND, 30 * SECOND)
"""By priority class: a unit that has been ready and without room this long has room kept for it."""

LENDING = AGEING
"""For so long after that, or as long as `ageing` takes, others may use this room meanwhile if they say that they will
be gone in time; then nobody may any more, since what is said of run times may be wrong again and again."""

RESERVATIONS = 4
"""Units for which room is kept in one round; the next ones get theirs when these have started."""

LEVELS = (30 * SECOND, 5 * MINUTE, 1 * HOUR)
"""Attained service at which a unit falls to the next level of `mlfq`: one quantum, then about twelve times as much each
time, since run times of jobs spread over orders of magnitude (Tiresias, Gu et al., 2019, section 4.2)."""


MOST_FAIR = 16.0
"""The power to which waiting counts with the highest fairness."""


def power_of(fairness: float) -> float:
    """The power to which the wait of a unit counts, relative to its length: 0 without fairness, 1 at a half, and then
    ever more until the longest relative wait decides alone.
    """
    return min(MOST_FAIR, fairness / max(1e-9, 1 - fairness))


class Order(NamedTuple):
    """`sort` gives the candidates in order; `words` tells what put one where it is.

    `lane` is a number of a candidate at an instant. A view shows the heads of long queues only; while more of an
    earlier lane is there than it shows, a round serves no later lane.
    """

    sort: Callable[[Snapshot, Timely], list[Candidate]]
    words: Words
    lane: Lane

    def lanes(self, waiting: Waiting, ones: list[Candidate]) -> Ints:
        """The lane of each of these, which wait."""
        if self.lane is _class_lane:
            return waiting.classes[waiting.places_of(ones)]
        return np.array([self.lane(one, waiting.now) for one in ones], np.int64)


def by_arrival(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
    """First come, first served; classes and deadlines are not looked at."""
    return list(view.candidates)  # a snapshot shows candidates in order of submission


def by_urgency(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
    """What has to start now to be on time, by deadline; then priority class (raised by waiting), then the few that have
    waited longest, then the job that has the least left to do, and of its units the one with the longest path ahead.

    Of a class, those go first whose patience is over, as
    many as room is kept for, so that what is large comes through. Of the others the shortest remaining job does: what
    fills the gaps best is short (EASY with shortest-job backfilling, Tsafrir et al., 2007). Within a job the longest
    path to the end of its graph does (the rule of Hu, 1961, and of HEFT's upward rank, Topcuoglu et al., 2002). Ties go
    to the first submitted.
    """
    if _is_in_order(view):
        return list(view.candidates)
    return _by_urgency(view, timely, Waiting(view))


def _by_urgency(view: Snapshot, timely: Timely, waiting: Waiting) -> list[Candidate]:
    return _in_lanes(view, timely, waiting, _to_go(view, waiting.columns[TAIL]))


def by_value(view: Snapshot, timely: Timely = NO_DEADLINES, *, waits: float = 1.0) -> list[Candidate]:
    """As `by_urgency`, but for work with devices: of a class that goes first which is worth most for the device time it
    takes (`density`), and waiting counts against its own length, to the power `waits`. So a long wait of what is long
    does not keep devices from what is short, and what is wide waits longer than what is narrow for the same work.
    """
    if _is_in_order(view):
        return list(view.candidates)
    waiting = Waiting(view)
    columns = waiting.columns
    if not columns[GPUS].any():
        return _by_urgency(view, timely, waiting)
    left = _to_go(view, columns[TAIL] - columns[OWN] + waiting.runs)
    return _in_lanes(view, timely, waiting, left, columns[GPUS] > 0, waits)


def _is_in_order(view: Snapshot) -> bool:
    """Whether there is nothing to sort: single tasks of one kind that are expected to run equally long are alike, and
    in order of submission already.
    """
    ones = view.candidates
    if len(ones) < 2:
        return True
    alike = ones[0].queue.endswith("/") and len(view.backlog) == 1
    return alike and len({(one.expected, one.progress, one.saved) for one in ones}) == 1


def _to_go(view: Snapshot, lengths: Ints) -> Floats:
    """For each candidate the foreseen length of the longest path that its job still has before it, as far as its units
    are shown; `lengths` are those of the units' own.
    """
    jobs = [one.job for one in view.candidates]
    if len(set(jobs)) == len(jobs):
        return lengths.astype(float)
    left: dict[str, int] = {}
    for job, length in zip(jobs, lengths.tolist(), strict=True):
        if length > left.get(job, -1):
            left[job] = length
    return np.array([left[job] for job in jobs], float)


def _in_lanes(
    view: Snapshot,
    timely: Timely,
    waiting: Waiting,
    left: Floats,
    by_density: Bools | None = None,
    waits: float = 1.0,
) -> list[Candidate]:
    """By class, raised by waiting; then the few that have waited longest with their patience over, then by the
    nanoseconds `left` of their jobs; those marked `by_density` by what they are worth for each second of each device
    instead (Smith's rule, 1956, for jobs of unequal width), more the longer they wait. What has to start now to be on
    time goes before all of that. Worked out for all at once: there are tens of thousands in bulk.
    """
    ones, now, columns, waited = view.candidates, view.now, waiting.columns, waiting.waited
    ready, ordinals = columns[READY], columns[ORDINAL]
    rank, second, stage = left, -columns[TAIL], np.full(len(ones), 3)
    if by_density is not None:
        left = np.maximum(left, SECOND)
        devices, weight = columns[TAKES] / WHOLE, columns[WEIGHT] / 1000
        longs_for = (1 + np.maximum(0, waited) / (STARVES * left)) ** waits
        rank = np.where(by_density, left * np.maximum(1, devices) / (weight * longs_for), rank)
    classes = waiting.classes.copy()
    overdue = classes < 0
    over = np.flatnonzero(waited >= np.array(PATIENCE)[np.maximum(0, classes)])
    longest = over[np.lexsort((ordinals[over], ready[over], np.maximum(0, classes[over])))[:RESERVATIONS]]
    for index in longest.tolist():
        if by_density is None or not by_density[index]:
            stage[index], rank[index], second[index] = 2, ready[index] - now, 0
    classes[overdue], stage[overdue], rank[overdue], second[overdue] = 0, 0, -waited[overdue], 0
    for index, one in enumerate(ones) if timely.pressed else ():
        if one.unit in timely.pressed:
            classes[index] = -1
            if by_density is None or not by_density[index]:
                stage[index], rank[index], second[index] = 0, one.due - now, 0
    return [ones[index] for index in np.lexsort((ordinals, second, rank, stage, classes)).tolist()]


def by_run(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
    """Shortest expected run first."""
    return sorted(view.candidates, key=lambda candidate: (candidate.expected, candidate.ordinal))


def by_deadline(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
    """Earliest deadline first (Jackson, 1955); what has none comes last."""
    return sorted(view.candidates, key=lambda candidate: (candidate.due or NEVER, candidate.ordinal))


def by_remaining(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
    """Shortest expected remaining run first. Work that starts over has all of it before it again."""
    return by_run(view, timely)


def by_attained(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
    """Least attained service first (Tiresias): run time so far, times devices, times tasks."""
    return sorted(view.candidates, key=lambda candidate: (candidate.attained, candidate.ordinal))


def by_level(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
    """Multi-level feedback queue: by level of attained service, then by arrival; long waiting raises to the first."""
    now = view.now
    return sorted(view.candidates, key=lambda candidate: (candidate_level(candidate, now), candidate.ordinal))


def level_of(attained: int) -> int:
    """0 is first; the level falls as service is attained."""
    return sum(attained >= threshold for threshold in LEVELS)


def candidate_level(candidate: Candidate, now: int) -> int:
    """The level of a waiting unit: the first once it has waited as long as ageing allows."""
    return 0 if now - candidate.ready >= ageing(candidate) else level_of(candidate.attained)


def effective_class(candidate: Candidate, now: int) -> int:
    """The priority class with ageing; never above urgent."""
    waited = now - candidate.ready
    return candidate.priority if waited < AGEING else max(0, candidate.priority - waited // ageing(candidate))


def in_words(candidate: Candidate, now: int) -> str:
    """What put this candidate where it is, for people."""
    words = [_CLASS_WORDS[candidate.priority]]
    if now - candidate.ready >= ageing(candidate):
        words.append(f"raised by waiting {format_duration(now - candidate.ready)}")
    if candidate.due:
        words.append(f"due in {format_duration(candidate.due - now)}")
    if candidate.critical:
        words.append("critical path")
    if candidate.tail > candidate.expected:
        words.append(f"{format_duration(candidate.tail)} to go")
    return ", ".join(words)


_CLASS_WORDS = [priority.name.lower() for priority in Priority]


# --- terms of which a user's own order is made ---------------------------------------------------------------------

RankTerm = Callable[[Candidate, Snapshot], float]


def urgency(candidate: Candidate, view: Snapshot) -> float:
    """`1 / (hours to the deadline + 1)`; 0 without a deadline, 1 when it has passed."""
    return 1 / (max(0, candidate.due - view.now) / HOUR + 1) if candidate.due else 0.0


def depth(candidate: Candidate, view: Snapshot) -> float:
    """Units before it on its longest path through the graph."""
    return float(candidate.depth)


def model_size(candidate: Candidate, view: Snapshot) -> float:
    """Size of its model in GB."""
    return candidate.work.model / 1e9


def resource_share(candidate: Candidate, view: Snapshot) -> float:
    """What it asks for over what the fleet has, of the resource where that is most (dominant share)."""
    shape, tasks, totals = candidate.shape, candidate.tasks, view.fleet.total
    shares = [0.0]
    devices = shape.gpus * shape.share / WHOLE
    for resource, need in ((CPU, shape.cpu), (MEMORY, shape.memory), (DEVICES, devices)):
        total = int(totals[resource].sum()) if len(view.fleet) else 0
        if need and 0 < total < PLENTY:
            shares.append(need * tasks / total)
    return min(1.0, max(shares))


def thrift(candidate: Candidate, view: Snapshot) -> float:
    """`1 / (1 + resource share)`."""
    return 1 / (1 + resource_share(candidate, view))


def leftover(candidate: Candidate, view: Snapshot) -> float:
    """`1 - usage / capacity`: the share of the fleet that it would leave to others."""
    return 1 - resource_share(candidate, view)


def dependencies(candidate: Candidate, view: Snapshot) -> float:
    """How many units need it."""
    return float(candidate.followers)


def independence(candidate: Candidate, view: Snapshot) -> float:
    """`1 / (1 + dependencies)`."""
    return 1 / (1 + candidate.followers)


def failure_risk(candidate: Candidate, view: Snapshot) -> float:
    """The probability that an attempt of its class fails, times its impact: the share of ten units that need it."""
    profile = view.profiles.get(candidate.kind)
    return profile.failures / 1000 * min(1.0, candidate.followers / 10) if profile else 0.0


def waiting(candidate: Candidate, view: Snapshot) -> float:
    """How long it has been ready, in hours."""
    return (view.now - candidate.ready) / HOUR


def weight(candidate: Candidate, view: Snapshot) -> float:
    """Its business weight, 1 if none was given."""
    return candidate.weight / 1000


def heaviness(candidate: Candidate, view: Snapshot) -> float:
    """How much there is to do, in doublings: the mean of `log2(1 + GB of input)`, `log2(1 + TFLOP)` and
    `log2(1 + minutes)` as its class's history, or else its user, has the run time. Doublings, because each spreads over
    orders of magnitude, and none is to drown the others.
    """
    parts = (candidate.work.input / 1e9, candidate.work.flops / 1e12, candidate.expected / MINUTE)
    return sum(log2(1 + part) for part in parts) / len(parts)


def shortness(candidate: Candidate, view: Snapshot) -> float:
    """`1 / (1 + expected hours)`."""
    return 1 / (1 + candidate.expected / HOUR)


RANK_TERMS: dict[str, RankTerm] = {
    term.__name__: term
    for term in (
        urgency, depth, model_size, resource_share, thrift, leftover, dependencies, independence, failure_risk,
        waiting, weight, heaviness, shortness,
    )
}  # fmt: skip

PRESETS: dict[str, Mapping[str, float]] = {
    "deadline-depth-model": {"urgency": 100.0, "depth": 1.0, "model_size": -0.1},
    "urgency-thrift-independence": {"urgency": 0.5, "thrift": 0.3, "independence": 0.2},
    "dependencies-leftover-risk": {"dependencies": 0.04, "leftover": 0.3, "failure_risk": 0.3},
}
"""`100/(hours + 1) + depth - 0.1 GB`; `0.5 urgency + 0.3/(1 + share) + 0.2/(1 + dependencies)`;
`0.4 dependencies/10 + 0.3 (1 - usage/capacity) + 0.3 probability x impact`."""


def by_terms(weights: Mapping[str, float], terms: Mapping[str, RankTerm] = RANK_TERMS) -> Order:
    """Priority class with ageing first, then the weighted sum of terms, the highest first; ties by arrival."""

    def value(candidate: Candidate, view: Snapshot) -> float:
        total = 0.0
        for name, factor in weights.items():
            found = terms[name](candidate, view)
            if not isinstance(found, int | float) or not isfinite(found):
                raise ValueError(f"the term `{name}` gave {found!r} for {candidate.unit}, not a finite number")
            total += factor * found
        return total

    def sort(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
        def key(candidate: Candidate) -> tuple[int, int, float, int]:
            if view.now - candidate.ready >= ageing(candidate) * (candidate.priority + 1):
                return (-1, candidate.ready, 0.0, candidate.ordinal)
            return (effective_class(candidate, view.now), 0, -value(candidate, view), candidate.ordinal)

        return sorted(view.candidates, key=key)

    named = " + ".join(f"{factor:g} {name}" for name, factor in weights.items())
    return Order(sort, lambda candidate, now: f"{in_words(candidate, now)}, by {named}", _class_lane)


def _class_lane(candidate: Candidate, now: int) -> int:
    """Who has waited so long as urgent goes before all others."""
    waited = now - candidate.ready
    if waited < AGEING:
        return candidate.priority
    raised = waited // ageing(candidate)
    return -1 if raised > candidate.priority else candidate.priority - raised


def _expected(candidate: Candidate, now: int) -> int:
    return candidate.expected


def _due(candidate: Candidate, now: int) -> int:
    return candidate.due or NEVER


def _due_in(candidate: Candidate, now: int) -> str:
    return f"due in {format_duration(candidate.due - now)}" if candidate.due else "no deadline"


def _in(duration: int, what: str) -> str:
    return f"{format_duration(duration)} {what}"


def _attained(candidate: Candidate, now: int) -> int:
    return candidate.attained


ORDERS: dict[str, Order] = {
    "arrival": Order(by_arrival, lambda candidate, now: "first come", lambda candidate, now: candidate.ordinal),
    "urgency": Order(by_urgency, in_words, _class_lane),
    "value": Order(by_value, in_words, _class_lane),
    "run": Order(by_run, lambda candidate, now: _in(candidate.expected, "to run"), _expected),
    "remaining": Order(by_remaining, lambda candidate, now: _in(candidate.expected, "remaining"), _expected),
    "attained": Order(by_attained, lambda candidate, now: _in(candidate.attained, "of service so far"), _attained),
    "deadline": Order(by_deadline, lambda candidate, now: _due_in(candidate, now), _due),
    "level": Order(by_level, lambda candidate, now: f"level {candidate_level(candidate, now)}", candidate_level),
}
