"""Orders of candidates, and the terms for custom orders.

An order sorts the candidates of a view and explains each position in words.
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

Words = Callable[[Candidate, Snapshot], str]
Lane = Callable[[Candidate, Snapshot], int]

PATIENCE = (0, 1 * SECOND, 10 * SECOND, 30 * SECOND)
"""By priority class: the wait after which room is kept for a unit that is ready and finds none."""

LENDING = AGEING
"""For this long after that, or for `ageing` if longer, other units may use the room if their estimated end is in time.
Then no unit may, since such estimates may be wrong again and again."""

RESERVATIONS = 4
"""Maximum number of units with kept room in one round; the next units get room when these have started."""

LEVELS = (30 * SECOND, 5 * MINUTE, 1 * HOUR)
"""Attained service at which a unit falls to the next level of `mlfq`: one quantum, then about twelve times as much each
time, since run times of jobs span orders of magnitude (Tiresias, Gu et al., 2019, section 4.2)."""


MOST_FAIR = 16.0
"""Exponent of the waiting time at the highest fairness."""


def power_of(fairness: float) -> float:
    """Return the exponent of the wait relative to the run time: 0 without fairness, 1 at a half, then growing until the
    longest relative wait decides alone.
    """
    return min(MOST_FAIR, fairness / max(1e-9, 1 - fairness))


class Order(NamedTuple):
    """`sort` returns the candidates in order; `words` explains a candidate's position.

    `lane` numbers a candidate of a view. A view shows only the heads of long queues; while an earlier lane has more
    units than the view shows, a round serves no later lane.
    """

    sort: Callable[[Snapshot, Timely], list[Candidate]]
    words: Words
    lane: Lane

    def lanes(self, view: Snapshot, waiting: Waiting, places: Ints) -> Ints:
        """Return the lane of the waiting candidates at these places."""
        if self.lane is _class_lane:
            return waiting.classes[places]
        return np.array([self.lane(view.candidates[place], view) for place in places.tolist()], np.int64)


def by_arrival(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
    """First come, first served; ignores classes and deadlines."""
    return list(view.candidates)  # a snapshot shows candidates in order of submission


def by_urgency(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
    """Units that must start now to be on time, by deadline; then by priority class (raised by waiting), then the few
    that have waited longest, then by the least remaining work of the job, and within a job by the longest remaining
    path.

    In a class, the units whose patience is over go first, as many as room is kept for, so that large units start. Of
    the others the shortest remaining job goes first: short jobs fill gaps best (EASY with shortest-job backfilling,
    Tsafrir et al., 2007). Within a job the longest path to the end of its graph goes first (the rule of Hu, 1961, and
    of HEFT's upward rank, Topcuoglu et al., 2002). Ties go to the first submitted.
    """
    if _is_in_order(view):
        return list(view.candidates)
    return _by_urgency(view, timely, Waiting(view))


def _by_urgency(view: Snapshot, timely: Timely, waiting: Waiting) -> list[Candidate]:
    return _in_lanes(view, timely, waiting, _to_go(view, waiting.columns[TAIL]))


def by_value(view: Snapshot, timely: Timely = NO_DEADLINES, *, waits: float = 1.0) -> list[Candidate]:
    """As `by_urgency`, but work with devices goes by worth per device time (`density`) within its class. Its wait
    counts relative to its own run time, to the power `waits`. So a long wait of a long unit does not keep devices from
    short ones, and wide units wait longer than narrow ones for the same work.
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
    """Return whether there is nothing to sort: single tasks of one kind with equal expected run times are
    interchangeable, and in order of submission already.
    """
    ones = view.candidates
    if len(ones) < 2:
        return True
    alike = ones[0].queue.endswith("/") and len(view.backlog) == 1
    return alike and len({(one.expected, one.progress, one.saved) for one in ones}) == 1


def _to_go(view: Snapshot, lengths: Ints) -> Floats:
    """Return, for each candidate, the estimated length of its job's longest remaining path, as far as its units are
    shown; `lengths` are those of the units.
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
    """Sort by class, raised by waiting; then the few units past their patience that have waited longest, then by the
    nanoseconds `left` of their jobs. Units marked `by_density` go by worth per second of each device instead (Smith's
    rule, 1956, for jobs of unequal width), more the longer they wait. Units that must start now to be on time go before
    all others, those with the least device time for their worth first: of a run time that nobody knows, its deadline is
    the best hint. Computed for all at once: a bulk submission has tens of thousands.
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
    if by_density is None or not by_density.all():
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
            else:
                rank[index] = timely.pressed[one.unit]
    return [ones[index] for index in np.lexsort((ordinals, second, rank, stage, classes)).tolist()]


def by_run(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
    """Shortest expected run first."""
    return sorted(view.candidates, key=lambda candidate: (candidate.expected, candidate.ordinal))


def by_deadline(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
    """Earliest deadline first (Jackson, 1955); units without a deadline come last."""
    return sorted(view.candidates, key=lambda candidate: (candidate.due or NEVER, candidate.ordinal))


def by_remaining(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
    """Shortest expected remaining run first. Work that starts over counts in full."""
    return by_run(view, timely)


def by_attained(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
    """Least attained service first (Tiresias): run time so far, times devices, times tasks."""
    return sorted(view.candidates, key=lambda candidate: (candidate.attained, candidate.ordinal))


def by_level(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
    """Multi-level feedback queue: by level of attained service, then by arrival; a long wait resets the level."""
    return sorted(view.candidates, key=lambda candidate: (candidate_level(candidate, view), candidate.ordinal))


def level_of(attained: int) -> int:
    """Return the feedback level of an attained service; 0 is served first."""
    return sum(attained >= threshold for threshold in LEVELS)


def candidate_level(candidate: Candidate, view: Snapshot) -> int:
    """Return the level of a waiting unit: the first once it has waited for `ageing`."""
    return 0 if view.now - candidate.ready >= ageing(candidate, view) else level_of(candidate.attained)


def effective_class(candidate: Candidate, view: Snapshot, at: int = 0) -> int:
    """Return the priority class with ageing, now or `at` another instant; at most urgent."""
    waited = (at or view.now) - candidate.ready
    return candidate.priority if waited < AGEING else max(0, candidate.priority - waited // ageing(candidate, view))


def in_words(candidate: Candidate, view: Snapshot) -> str:
    """Explain a candidate's position in the order."""
    words, now = [_CLASS_WORDS[candidate.priority]], view.now
    if now - candidate.ready >= ageing(candidate, view):
        words.append(f"raised by waiting {format_duration(now - candidate.ready)}")
    if candidate.due:
        words.append(f"due in {format_duration(candidate.due - now)}")
    if candidate.critical:
        words.append("critical path")
    if candidate.tail > candidate.expected:
        words.append(f"{format_duration(candidate.tail)} to go")
    return ", ".join(words)


_CLASS_WORDS = [priority.name.lower() for priority in Priority]


# --- terms for custom orders ---------------------------------------------------------------------------------------

RankTerm = Callable[[Candidate, Snapshot], float]


def urgency(candidate: Candidate, view: Snapshot) -> float:
    """`1 / (hours to the deadline + 1)`; 0 without a deadline, 1 when it has passed."""
    return 1 / (max(0, candidate.due - view.now) / HOUR + 1) if candidate.due else 0.0


def depth(candidate: Candidate, view: Snapshot) -> float:
    """Number of units before it on its longest path through the graph."""
    return float(candidate.depth)


def model_size(candidate: Candidate, view: Snapshot) -> float:
    """Size of its model, in GB."""
    return candidate.work.model / 1e9


def resource_share(candidate: Candidate, view: Snapshot) -> float:
    """Request over the fleet's total, of the resource with the largest ratio (dominant share)."""
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
    """Number of units that depend on it."""
    return float(candidate.followers)


def independence(candidate: Candidate, view: Snapshot) -> float:
    """`1 / (1 + dependencies)`."""
    return 1 / (1 + candidate.followers)


def failure_risk(candidate: Candidate, view: Snapshot) -> float:
    """The probability that an attempt of its class fails, times its impact: dependent units over ten, at most 1."""
    profile = view.profiles.get(candidate.kind)
    return profile.failures / 1000 * min(1.0, candidate.followers / 10) if profile else 0.0


def waiting(candidate: Candidate, view: Snapshot) -> float:
    """Hours since it became ready."""
    return (view.now - candidate.ready) / HOUR


def weight(candidate: Candidate, view: Snapshot) -> float:
    """Its business weight, 1 if none was given."""
    return candidate.weight / 1000


def heaviness(candidate: Candidate, view: Snapshot) -> float:
    """Amount of work, in doublings: the mean of `log2(1 + GB of input)`, `log2(1 + TFLOP)` and `log2(1 + minutes)`,
    with the run time from its class's history or else its user. Doublings, because each value spans orders of
    magnitude, and none should dominate.
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
    """Order by priority class with ageing, then by the weighted sum of terms, the highest first; ties by arrival."""

    def value(candidate: Candidate, view: Snapshot) -> float:
        total = 0.0
        for name, factor in weights.items():
            found = terms[name](candidate, view)
            if not isinstance(found, int | float) or not isfinite(found):
                raise ValueError(f"the term `{name}` gave {found!r} for {candidate.unit}, not a finite number")
            total += factor * found
        return total

    def sort(view: Snapshot, timely: Timely = NO_DEADLINES) -> list[Candidate]:
        def key(of: tuple[Candidate, int]) -> tuple[int, int, float, int]:
            candidate, lane = of
            if lane < 0:
                return (lane, candidate.ready, 0.0, candidate.ordinal)
            return (lane, 0, -value(candidate, view), candidate.ordinal)

        classes = Waiting(view).classes.tolist()
        return [one for one, _ in sorted(zip(view.candidates, classes, strict=True), key=key)]

    named = " + ".join(f"{factor:g} {name}" for name, factor in weights.items())
    return Order(sort, lambda candidate, view: f"{in_words(candidate, view)}, by {named}", _class_lane)


def _class_lane(candidate: Candidate, view: Snapshot) -> int:
    """Return the class raised by waiting; -1, before all others, after a long enough wait as urgent."""
    waited = view.now - candidate.ready
    return candidate.priority if waited < AGEING else max(-1, candidate.priority - waited // ageing(candidate, view))


def _expected(candidate: Candidate, view: Snapshot) -> int:
    return candidate.expected


def _due(candidate: Candidate, view: Snapshot) -> int:
    return candidate.due or NEVER


def _due_in(candidate: Candidate, view: Snapshot) -> str:
    return f"due in {format_duration(candidate.due - view.now)}" if candidate.due else "no deadline"


def _in(duration: int, what: str) -> str:
    return f"{format_duration(duration)} {what}"


def _attained(candidate: Candidate, view: Snapshot) -> int:
    return candidate.attained


ORDERS: dict[str, Order] = {
    "arrival": Order(by_arrival, lambda candidate, view: "first come", lambda candidate, view: candidate.ordinal),
    "urgency": Order(by_urgency, in_words, _class_lane),
    "value": Order(by_value, in_words, _class_lane),
    "run": Order(by_run, lambda candidate, view: _in(candidate.expected, "to run"), _expected),
    "remaining": Order(by_remaining, lambda candidate, view: _in(candidate.expected, "remaining"), _expected),
    "attained": Order(by_attained, lambda candidate, view: _in(candidate.attained, "of service so far"), _attained),
    "deadline": Order(by_deadline, lambda candidate, view: _due_in(candidate, view), _due),
    "level": Order(by_level, lambda candidate, view: f"level {candidate_level(candidate, view)}", candidate_level),
}
