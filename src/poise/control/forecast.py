"""Forecasts of the start and end of work, from simulated futures (`engine/lookahead`), outside the scheduler's process.

`check` backtests a log: it forecasts each job as of its submission, and counts how often the actual time was between
P10 and P90. That shows how reliable the forecasts of this home are.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Literal, NamedTuple

import msgspec

from poise.engine.futures import Happened
from poise.engine.lookahead import BOUNDS, Bounds, Futures, Range, first_start, followed, range_of, view_settings
from poise.errors import InputError
from poise.kernel.controller import ROUND, Settings
from poise.kernel.ledger import JobState, Ledger, units_status
from poise.model.calendar import CalendarEvent
from poise.model.events import Began, Event, Finished, JobSubmitted, Started
from poise.policy.suites import ClusterPolicy


class Eta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The forecast of a job, or of the requested tasks of it. `start` is None once it has started. `on_time` is the
    share of the futures, in thousandths, that meet all its deadlines (-1: it has none); `fails` is the share in which
    some of it fails. `unknown` says what depends on an unknown run time: only the `end` (its own run time), or the
    `start` too (that of earlier work).
    """

    job: str
    name: str
    status: str
    finish: Range
    start: Range | None = None
    on_time: int = -1
    fails: int = 0
    unknown: Literal["", "end", "start"] = ""


class Again(msgspec.Struct, frozen=True):
    """A recurring job: its name or class, its period in nanoseconds, how often it was seen, and the nanoseconds until
    its next arrival; the id of its `schedule`, if it has one.
    """

    name: str
    every: int
    seen: int
    next: int
    schedule: str = ""


class Etas(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Forecasts as of a revision and a time (seconds since 1970), from `futures` of the `asked` number of futures,
    computed in `seconds`. Each future had `units` units; `left_out` more were ignored. `sources` counts units by the
    source of their run times; `guesses` are classes without a known run time. `coming` are recurring jobs, which the
    futures include; other arrivals resemble the latest `arriving` ones (0: no arrivals), at rates that `events` of a
    calendar change.
    """

    revision: int
    at: float
    policy: str
    futures: int
    asked: int
    seconds: float
    units: int
    jobs: tuple[Eta, ...]
    left_out: int = 0
    sources: dict[str, int] = {}
    guesses: tuple[str, ...] = ()
    coming: tuple[Again, ...] = ()
    arriving: int = 0
    events: tuple[str, ...] = ()


class Target(NamedTuple):
    """The subject of a forecast: ids of units of a job, and their name in the report."""

    job: JobState
    units: tuple[str, ...]
    called: str


def foresee(
    ledger: Ledger,
    policy: ClusterPolicy,
    settings: Settings,
    now: int,
    targets: Sequence[Target],
    *,
    bounds: Bounds = BOUNDS,
    seed: int = 0,
    events: Sequence[CalendarEvent] = (),
) -> Etas:
    """Forecast the start and end of these targets, with the events of a calendar. Raises `InputError` if not one future
    can be completed in time.
    """
    began = time.monotonic()
    keep = [target.job.id for target in targets]
    until = tuple(unit for target in targets for unit in target.units)

    def make(most: int) -> Futures:
        return Futures(ledger, settings, now, time.monotonic, seed=seed, most=most, keep=keep, events=events)

    def follow(futures: Futures, number: int, deadline: float) -> Happened | None:
        return futures.follow(policy, number, deadline, until=until)

    futures, seen = followed(make, follow, bounds, "future", time.monotonic)
    return Etas(
        revision=ledger.revision,
        at=ledger.leader.wall(now),
        policy=policy.name,
        futures=len(seen),
        asked=bounds.futures,
        seconds=time.monotonic() - began,
        units=futures.units,
        left_out=futures.left_out,
        sources=dict(futures.draws.sources),
        guesses=tuple(sorted(futures.draws.guesses)),
        coming=tuple(
            Again(one.name, one.every, one.seen, max(0, one.last + one.every - now), one.schedule)
            for one in futures.coming
        ),
        arriving=futures.arriving,
        events=futures.events if futures.arriving else (),
        jobs=tuple(_eta(target, seen, futures) for target in targets),
    )


def _eta(target: Target, seen: Sequence[Happened], futures: Futures) -> Eta:
    now = futures.now
    units = [unit for unit in target.job.units if unit.id in target.units]
    open_units = [unit for unit in units if not unit.over]
    has_started = any(unit.over or any(task.started for task in unit.tasks) for unit in units)
    finishes = [max((happened.ended.get(unit.id, inf) for unit in open_units), default=now) for happened in seen]
    start = None
    if not has_started:
        start = range_of((first_start(target.units, happened) for happened in seen), now)
    due = {unit.id: target.job.submitted + unit.spec.deadline for unit in open_units if unit.spec.deadline}
    met = sum(
        all(happened.ended.get(unit, inf) <= at and unit not in happened.failed for unit, at in due.items())
        for happened in seen
    )
    failed = sum(not happened.failed.isdisjoint(target.units) for happened in seen)
    unknown: Literal["", "end", "start"] = "" if futures.draws.unknown.isdisjoint(target.units) else "end"
    if target.job.array is not None and target.job.array.left:  # a forecast covers the parts that exist
        unknown = "end"
    if start is not None and futures.guesses_before(target.units, seen):
        unknown = "start"
    return Eta(
        unknown=unknown,
        job=target.called,
        name=target.job.name,
        status=units_status(units),
        start=start,
        finish=range_of(finishes, now),
        on_time=1000 * met // len(seen) if due else -1,
        fails=1000 * failed // len(seen),
    )


# --- backtests -------------------------------------------------------------------------------------------------------


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast as of a job's submission, and the actual times: nanoseconds after the submission."""

    job: str
    revision: int
    start: Range
    started: int
    finish: Range | None = None
    finished: int = -1


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Of `count` forecasts, the thousandths whose actual time was before P10, from P10 to P90, and after P90."""

    count: int
    earlier: int
    within: int
    later: int


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """How forecasts at submission compare with actual times. Starts that were forecast and happened at once do not
    count, and one scheduling round of difference is tolerated. `guesses` do not count: some of their run times were
    unknown. `unheard` forecasts were not made: there was no time, or their policy is not available.
    """

    first: int
    last: int
    submitted: int
    seconds: float
    start: Coverage
    finish: Coverage
    forecasts: tuple[Past, ...]
    guesses: int = 0
    unheard: int = 0


Choose = Callable[[Began], ClusterPolicy | str]

CHECKED = 40
"""Default number of jobs of a log to backtest."""

FOLLOWED = 40
"""Number of futures for each of them."""

LOOKING_BACK = Bounds(FOLLOWED)


def check(
    events: Iterable[Event],
    start: Ledger,
    choose: Choose,
    *,
    jobs: int = CHECKED,
    among: int = 0,
    bounds: Bounds = LOOKING_BACK,
    seed: int = 0,
) -> Checked:
    """Backtest a log in two passes: the actual times of every job, then forecasts for evenly chosen jobs, each as of
    its submission. `start` is the state before the first event; it is changed. `choose` returns the policy that
    decided. With `among`, choose only from that many first jobs. The time in `bounds` is for all jobs together, the
    number of futures for each.
    """
    began = time.monotonic()
    first = start.revision
    came = _what_came(events, Ledger.decode(start.encode()))
    known = [revision for revision, outcome in came.items() if outcome.started >= 0][: among or None]
    chosen = {known[place * len(known) // min(jobs, len(known))] for place in range(min(jobs, len(known)))}
    ledger, left = start, len(chosen)
    made: list[Past] = []
    guesses = 0
    for event in events:
        ledger.apply(event)
        if ledger.revision not in chosen:
            continue
        spent = time.monotonic() - began
        share = (bounds.seconds - spent) / left
        left -= 1
        policy = choose(ledger.leader.began) if ledger.leader.began is not None else ""
        if isinstance(policy, str) or ledger.leader.began is None or share <= 0:
            continue
        outcome, job = came[ledger.revision], ledger.jobs[came[ledger.revision].job]
        target = Target(job, tuple(unit.id for unit in job.units), job.id)
        try:
            within = bounds._replace(seconds=share)
            told = foresee(ledger, policy, view_settings(ledger), ledger.now, [target], bounds=within, seed=seed)
        except InputError:
            continue
        if "default" in told.sources:
            guesses += 1
            continue
        [eta] = told.jobs
        made.append(
            Past(
                job=job.id,
                revision=ledger.revision,
                start=eta.start or Range(0, 0, 0),
                started=outcome.started - event.at,
                finish=eta.finish if outcome.ended >= 0 else None,
                finished=outcome.ended - event.at if outcome.ended >= 0 else -1,
            )
        )
    return Checked(
        first=first + 1,
        last=ledger.revision,
        submitted=len(came),
        seconds=time.monotonic() - began,
        start=_coverage((past.start, past.started) for past in made if past.start.p90 or past.started > ROUND),
        finish=_coverage((past.finish, past.finished) for past in made if past.finish is not None),
        forecasts=tuple(made),
        guesses=guesses,
        unheard=len(chosen) - len(made) - guesses,
    )


class _Came(msgspec.Struct):
    job: str
    started: int = -1
    ended: int = -1


def _what_came(events: Iterable[Event], ledger: Ledger) -> dict[int, _Came]:
    """Return when each job started and ended, by the revision of its submission; cancelled jobs have no end. Jobs that
    serve calls are left out, because their callers decide how long they last.
    """
    came: dict[int, _Came] = {}
    of: dict[str, _Came] = {}
    for event in events:
        ledger.apply(event)
        if isinstance(event, JobSubmitted):
            if not event.job.calls:
                came[ledger.revision] = of[event.job.id] = _Came(event.job.id)
        elif isinstance(event, Started | Finished):
            job = event.task.partition(".")[0]
            outcome, state = of.get(job), ledger.jobs.get(job)
            if outcome is None:
                continue
            if outcome.started < 0:
                ran = event.ending.run if isinstance(event, Finished) else 0
                outcome.started = event.at - ran
            if state is not None and state.ended and not state.cancelled_by:
                outcome.ended = state.ended
    return came


def _coverage(pairs: Iterable[tuple[Range | None, int]]) -> Coverage:
    earlier = within = later = 0
    for foreseen, came in pairs:
        low = inf if foreseen is None or foreseen.p10 is None else foreseen.p10 - ROUND
        high = inf if foreseen is None or foreseen.p90 is None else foreseen.p90 + ROUND
        earlier, within, later = earlier + (came < low), within + (low <= came <= high), later + (came > high)
    count = max(1, earlier + within + later)
    return Coverage(
        count=earlier + within + later,
        earlier=1000 * earlier // count,
        within=1000 * within // count,
        later=1000 * later // count,
    )
