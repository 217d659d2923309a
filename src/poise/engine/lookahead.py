"""Forecasts from many futures of a ledger: the 10th, 50th and 90th percentiles of when units start and end. `explain`,
`plan`, `eta`, `what-if` and the chance of a deadline use these.

Future number 3 has the same run times in each forecast, so that two questions about the same moment have one answer.
Limited: the number of futures, the time to follow them, and the units in each.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from math import ceil, inf
from random import Random
from statistics import median_low
from typing import NamedTuple, TypeVar

import msgspec

from poise.engine.arriving import streams
from poise.engine.futures import UNCHANGED, Change, Draws, Happened, recurring, run_future
from poise.errors import InputError
from poise.kernel.controller import Settings
from poise.kernel.ledger import JobState, Ledger
from poise.model.calendar import CalendarEvent
from poise.model.events import JobSubmitted
from poise.model.jobs import Job
from poise.model.reports.questions import Start
from poise.model.resources import Node
from poise.policy.suites import ClusterPolicy

FUTURES = 200
BUDGET = 10.0
"""Default limit on the time to follow futures, in seconds."""

MOST_UNITS = 5_000
"""Maximum number of units in one future: the running ones, and the first of those that wait. Fewer where the time does
not suffice for so many.
"""

LEAST_UNITS = 50

FEWEST = 5
"""Futures that should fit into the time before units are left out; other jobs arrive in them only if twice as many fit.
"""

LOW, MIDDLE, HIGH = 0.1, 0.5, 0.9

LARGEST = 4_000
"""Maximum number of nodes and unfinished units in a ledger for a forecast beside its scheduler. Forking such a ledger
stops the scheduler for at most 40 ms.
"""

TOLD_FROM = 3
"""Minimum number of futures for a forecast of a start."""

DISPLACED = 100
"""Maximum number of units named as preempted for other units before the start."""

GUESSES = 4
"""Maximum number of units named as preempted, or as having an unknown run time."""

Clock = Callable[[], float]
"""Seconds since an arbitrary instant."""

TOO_LARGE = "the fleet is too large, or too much waits, to look ahead in it at once"
NO_TIME = "there was no time to look so far ahead"
NEVER = "nothing that runs makes room for it when it ends"


class Range(msgspec.Struct, frozen=True):
    """Nanoseconds from now: a tenth of the futures is before `p10`, half before `p50`, nine tenths before `p90`. None
    where the event occurs in too few futures.
    """

    p10: int | None
    p50: int | None
    p90: int | None


class Bounds(NamedTuple):
    """Limits of a forecast: futures, seconds, units in each. At least `fewest` futures should fit into the seconds."""

    futures: int = FUTURES
    seconds: float = BUDGET
    units: int = MOST_UNITS
    fewest: int = FEWEST


BOUNDS = Bounds()

AT_ONCE = Bounds(futures=20, seconds=1.0)
"""Limits for a forecast that a user waits for, beside a running scheduler."""


def view_settings(ledger: Ledger) -> Settings:
    """Return the settings with which the ledger's control plane makes views."""
    began = ledger.leader.began
    return Settings() if began is None else Settings(seed=began.seed, throughputs=began.throughputs)


class Futures:
    """Futures of a ledger as of `now`. Those of one number have the same run times, whatever the change and the policy.
    Nodes that may join in some futures are given as `joined`. Other jobs arrive like the latest `arriving` ones; set it
    to 0 for futures without them, which take a fraction of the time. `events` of a calendar change their rate; those
    that do are named in `self.events`.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        now: int,
        clock: Clock,
        *,
        seed: int = 0,
        most: int = MOST_UNITS,
        keep: Iterable[str] = (),
        joined: Sequence[Node] = (),
        events: Sequence[CalendarEvent] = (),
    ) -> None:
        self.kept, self.left_out = _first(ledger, most, frozenset(keep))
        self.coming = recurring(ledger, now)
        again = {(one.job.tenant, one.name) for one in self.coming}
        others = streams(ledger, now, again, events)
        self.arriving = sum(len(one.jobs) for one in others)
        self.events = tuple(dict.fromkeys(name for one in others for name in one.events))
        self.draws = Draws(ledger, now, settings.throughputs, self.kept, joined, self.coming, others)
        self.now = now
        self._own = tuple(unit.id for job in self.kept for unit in ledger.jobs[job].units if not unit.over)
        self.units = len(self._own)
        self._settings, self._clock = settings, clock
        self._ledger = ledger
        self._forked = ledger.fork(self.kept)
        self._changed: dict[str, Ledger] = {}
        self._seed = seed

    def follow(
        self,
        policy: ClusterPolicy,
        number: int,
        deadline: float,
        *,
        change: Change = UNCHANGED,
        until: Sequence[str] = (),
        begun: Sequence[Collection[str]] = (),
    ) -> Happened | None:
        """Follow the future of this number until the units in `until` are over and one unit of each group in `begun`
        has started; until all of its units are over if neither is given. Return None if the `deadline` on the clock
        comes first.
        """
        happened = run_future(
            self._under(change).fork(),
            policy,
            self._settings,
            self.draws.draw(Random(f"{self._seed}/{number}"), others=self.arriving > 0),
            self.now,
            change=change,
            until=until or (() if begun else self._own),
            begun=begun,
            watch=lambda: self._clock() < deadline,
        )
        return happened if happened.whole else None

    def state_at(self, policy: ClusterPolicy, number: int, deadline: float, at: int) -> Ledger | None:
        """Return the state at an instant of the future of this number. None if the `deadline` on the clock comes
        first.
        """
        ledger = self._forked.fork()
        happened = run_future(
            ledger,
            policy,
            self._settings,
            self.draws.draw(Random(f"{self._seed}/{number}"), others=self.arriving > 0),
            self.now,
            horizon=at - max(self.now, ledger.now),
            watch=lambda: self._clock() < deadline,
        )
        return ledger if happened.whole else None

    def guesses_before(self, units: Collection[str], seen: Iterable[Happened]) -> list[str]:
        """Return its units with unknown run times that ended in some future before one of these units started."""
        found: dict[str, None] = {}
        for happened in seen if self.draws.unknown else ():
            start = first_start(units, happened)
            found.update(
                (name, None)
                for name in self._own
                if name in self.draws.unknown and name not in units and happened.ended.get(name, inf) <= start
            )
        return list(found)

    def _under(self, change: Change) -> Ledger:
        """Return the ledger with the changed priorities, if any."""
        if not change.priorities:
            return self._forked
        key = repr(sorted(change.priorities.items()))
        if key not in self._changed:
            self._changed[key] = self._ledger.fork(self.kept, change.priorities)
        return self._changed[key]


T = TypeVar("T")


def followed(
    make: Callable[[int], Futures],
    follow: Callable[[Futures, int, float], T | None],
    bounds: Bounds,
    what: str,
    clock: Clock,
) -> tuple[Futures, list[T]]:
    """Follow as many futures as the limits allow, one after the other. If the first takes too long, other jobs no
    longer arrive in them; if it still does, they have fewer units. Raises `InputError` if no future can be followed to
    its end; `what` names a future in the message.
    """
    deadline = clock() + bounds.seconds
    limit = bounds.seconds / bounds.fewest
    futures, units = make(bounds.units), 0
    first = follow(futures, 0, clock() + limit / 2) if futures.arriving else None
    while first is None:
        futures.arriving = 0
        fewest = futures.units <= LEAST_UNITS or futures.units == units
        first = follow(futures, 0, deadline if fewest else clock() + limit)
        if fewest:
            break
        if first is None:
            units = futures.units
            futures = make(max(LEAST_UNITS, units // 4))
    if first is None:
        raise InputError(
            f"not one {what} could be followed to its end in the time that there is",
            field="--budget",
            need=f"{futures.units} units",
            have=f"{bounds.seconds:g} s",
            hint=f"--budget {max(1.0, 10 * bounds.seconds):.0f}s",
        )
    seen = [first]
    for number in range(1, bounds.futures):
        happened = follow(futures, number, deadline)
        if happened is None:
            break
        seen.append(happened)
    return futures, seen


def range_of(instants: Iterable[float], now: int = 0) -> Range:
    """Return P10, P50 and P90 of instants, which may be infinite, by type 6 of Hyndman and Fan (1996): of a further
    draw.
    """
    ordered = sorted(instants)

    def at(part: float) -> int | None:
        place = min(max(part * (len(ordered) + 1) - 1, 0.0), len(ordered) - 1.0)
        low, high = ordered[int(place)], ordered[ceil(place)]
        found = low if low == high else low + (place - int(place)) * (high - low)
        return None if found in (inf, -inf) or found != found else round(found) - now

    return Range(at(LOW), at(MIDDLE), at(HIGH))


def first_start(units: Iterable[str], happened: Happened) -> float:
    """Return the instant at which the first of these units started; infinite if none did."""
    return min((happened.started.get(unit, inf) for unit in units), default=inf)


# --- interactive forecasts -------------------------------------------------------------------------------------------


class LookAhead:
    """Forecasts when units start, on any thread: it works on a fork of the ledger. There is no forecast for a ledger of
    more than `LARGEST` nodes and units.
    """

    def __init__(
        self, ledger: Ledger, now: int, clock: Clock, *, bounds: Bounds | None = None, job: Job | None = None
    ) -> None:
        """Fork the ledger; `job` is submitted in the fork. `bounds`: `AT_ONCE` if not given."""
        self._now, self._clock, self._bounds = max(now, ledger.now), clock, bounds or AT_ONCE
        self._fork: Ledger | None = None
        if len(ledger.nodes) + ledger.jobs.unfinished_units() <= LARGEST:
            self._fork = ledger.fork()
            if job is not None:
                self._fork.apply(JobSubmitted(at=max(1, self._now), job=job))

    def starts(self, policy: ClusterPolicy, groups: Sequence[Collection[str]]) -> list[Start]:
        """Forecast when the first unit of each group starts."""
        if self._fork is None:
            return [Start(why=TOO_LARGE)] * len(groups)
        fork, now = self._fork, self._now
        jobs = {name.partition(".")[0]: None for units in groups for name in units}

        def make(_: int) -> Futures:
            """Keep all units: without some of them the start would come too early."""
            return Futures(fork, view_settings(fork), now, self._clock, most=LARGEST, keep=jobs)

        def follow(futures: Futures, number: int, deadline: float) -> Happened | None:
            return futures.follow(policy, number, deadline, begun=groups)

        try:
            futures, seen = followed(make, follow, self._bounds, "future", self._clock)
        except InputError:
            return [Start(why=NO_TIME)] * len(groups)
        if len(seen) < min(TOLD_FROM, self._bounds.futures):
            return [Start(why=NO_TIME)] * len(groups)
        return [_start(futures, seen, units) for units in groups]


def _start(futures: Futures, seen: Sequence[Happened], units: Collection[str]) -> Start:
    instants = [first_start(units, happened) for happened in seen]
    found = range_of(instants, futures.now)
    missing = sum(instant == inf for instant in instants)
    preempted = dict(islice(_preempted_for(units, seen), GUESSES))
    why = ""
    if found.p90 is None:
        why = NEVER if missing == len(seen) else f"in {missing} of {len(seen)} futures nothing makes room for it"
    return Start(
        earliest=found.p10,
        likely=found.p50,
        latest=found.p90,
        why=why,
        guesses=tuple(islice(futures.guesses_before(units, seen), GUESSES)),
        preempts=tuple(preempted),
        preempts_in={unit: max(0, at - futures.now) for unit, at in preempted.items()},
        displaced=dict(islice(_displaced(units, seen, instants), DISPLACED)),
        futures=len(seen),
    )


def _preempted_for(units: Collection[str], seen: Sequence[Happened]) -> Iterator[tuple[str, int]]:
    """Yield the units that are preempted for one of these units in at least half of the futures, and the median
    instant.
    """
    found: dict[str, list[int]] = {}
    for happened in seen:
        first: dict[str, int] = {}
        for (unit, to), at in happened.yielded.items():
            if to in units:
                first[unit] = min(at, first.get(unit, at))
        for unit, at in first.items():
            found.setdefault(unit, []).append(at)
    yield from sorted((unit, median_low(at)) for unit, at in found.items() if 2 * len(at) >= len(seen))


def _displaced(
    units: Collection[str], seen: Sequence[Happened], instants: Sequence[float]
) -> Iterator[tuple[str, str]]:
    """Yield the units that are preempted for another unit before one of these units starts, in at least half of the
    futures.
    """
    times = Counter(
        pair
        for happened, start in zip(seen, instants, strict=True)
        for pair, at in happened.yielded.items()
        if pair[1] and pair[1] not in units and at < start
    )
    yield from sorted(pair for pair, count in times.items() if 2 * count >= len(seen))


def _first(ledger: Ledger, most: int, keep: frozenset[str]) -> tuple[list[str], int]:
    """Return the unfinished jobs to forecast, and the number of units left out. The jobs are those in `keep`, the
    running ones, and as many of the others as fit in the order of service; with all jobs that they depend on.
    """
    unfinished = [job for job in ledger.jobs.values() if not job.ended]
    active = {unit.job for unit in ledger.active.values()}

    def place(job: JobState) -> tuple[int, int, int]:
        waiting = [unit for unit in job.units if not unit.over]
        return (
            job.id not in keep and job.id not in active,
            min(int(unit.spec.priority) for unit in waiting),
            waiting[0].ordinal,
        )

    kept: dict[str, None] = {}
    count = left_out = 0
    for job in sorted(unfinished, key=place):
        if job.id in kept:
            continue
        size = sum(not unit.over for unit in job.units)
        if count and count + size > most and job.id not in keep and job.id not in active:
            left_out += size
            continue
        stack = [job.id]
        while stack:
            found = ledger.jobs.get(stack.pop())
            if found is not None and found.id not in kept and not found.ended:
                kept[found.id] = None
                count += sum(not unit.over for unit in found.units)
                stack.extend(found.after)
    return [job.id for job in unfinished if job.id in kept], left_out


__all__ = [
    "AT_ONCE",
    "BOUNDS",
    "BUDGET",
    "FUTURES",
    "Bounds",
    "Futures",
    "LookAhead",
    "Range",
    "first_start",
    "followed",
    "range_of",
    "view_settings",
]
