"""Other jobs that arrive in simulated futures: like the latest ones, at their rate or at that of the time of the day.

Events of a calendar change the rate of the jobs that they concern. Time passes faster in an event that multiplies the
load: in this time, jobs arrive at the same rate always. So the latest gaps are free of past events, and the same gaps
are drawn in the times of future ones.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, pairwise
from math import isnan, prod
from typing import NamedTuple

from poise.kernel.ledger import JobState, Ledger
from poise.model.calendar import CalendarEvent
from poise.model.scaling import Announced, days_in, times_in
from poise.policy.load import LoadForecaster
from poise.units import DAY, HOUR, MINUTE, SECOND

LATEST = 200
"""Maximum number of past jobs, the latest, that other jobs resemble."""

ENOUGH = 8
"""Minimum number of different minutes in which they arrived: fewer give no rate."""

PACE_DAYS = 21
"""Days of past arrivals from which the rate by the time of the day is learned."""

AHEAD = 30 * DAY
"""How far ahead events count."""


class Stream(NamedTuple):
    """Recent jobs in order, and the nanoseconds from each job's predecessor to it. `paces` are the expected rates of
    arrival in the coming times, relative to that of these jobs, each with its length; then the rate is as before.
    `events` names the events that change the paces.
    """

    jobs: tuple[JobState, ...] = ()
    gaps: tuple[int, ...] = ()
    paces: tuple[tuple[int, float], ...] = ()
    events: tuple[str, ...] = ()

    def paced(self, at: int) -> int:
        """Return the time by which as many jobs arrive as by `at` at a constant rate; both in nanoseconds from now."""
        passed = 0
        for length, pace in self.paces:
            if at < length * pace:
                return passed + round(at / pace)
            at, passed = at - round(length * pace), passed + length
        return passed + at


def streams(
    ledger: Ledger, now: int, again: Collection[tuple[str, str]], events: Sequence[CalendarEvent] = ()
) -> tuple[Stream, ...]:
    """Return the latest jobs, without services and the recurring ones in `again` (by tenant, and by name or class): one
    stream for the jobs that the same events concern. Empty where they arrived in fewer than `ENOUGH` different minutes.
    Gaps are stretched by the time since the last arrival.
    """
    every = list(ledger.jobs.values())
    jobs = [job for job in every[-LATEST:] if _arrives_by_itself(ledger, job, again)]
    if len({job.submitted // MINUTE for job in jobs}) < ENOUGH:
        return ()
    changed = _Changed(events)
    groups: dict[tuple[Announced, ...], list[JobState]] = {}
    for job in jobs[1:]:
        groups.setdefault(changed.by(job), []).append(job)
    came: dict[tuple[Announced, ...], list[int]] = {}
    for job in every:
        if _arrives_by_itself(ledger, job, again):
            came.setdefault(changed.by(job), []).append(job.submitted)
    span = jobs[0].submitted, jobs[-1].submitted, now
    wall = round(ledger.leader.wall(now) * SECOND)
    return tuple(_stream(of, came[announced], announced, span, wall) for announced, of in groups.items())


def of_schedule(ledger: Ledger, job: JobState) -> bool:
    """Return whether an existing schedule has submitted the job."""
    schedule, _, due = job.key.partition("@")
    return bool(due) and schedule in ledger.schedules


def _arrives_by_itself(ledger: Ledger, job: JobState, again: Collection[tuple[str, str]]) -> bool:
    """Return whether nothing tells when such a job arrives."""
    return (
        job.calls is None
        and not any(unit.spec.serves for unit in job.units)
        and (job.tenant, job.name or job.units[0].spec.kind) not in again
        and not of_schedule(ledger, job)
    )


class _Changed:
    """The events that concern a job: those of its tenant, of its classes, and of everything."""

    def __init__(self, events: Sequence[CalendarEvent]) -> None:
        self._events = events
        self._known: dict[frozenset[tuple[str, str]], tuple[Announced, ...]] = {}

    def by(self, job: JobState) -> tuple[Announced, ...]:
        if not self._events:
            return ()
        of = frozenset([("", ""), ("tenant", job.tenant), *(("class", unit.spec.kind) for unit in job.units)])
        if of not in self._known:
            told = (one for event in self._events if (event.by, event.of) in of for one in event.announced)
            self._known[of] = tuple(told)
        return self._known[of]


def _stream(
    jobs: Sequence[JobState], came: Sequence[int], announced: Sequence[Announced], span: tuple[int, int, int], wall: int
) -> Stream:
    """Return the stream of jobs that the same events concern. `came` are the instants of all such jobs; `span` has the
    first and the last arrival of all jobs, and now; `wall` is now in nanoseconds since 1970.
    """
    first, last, now = span
    later = wall - now
    passed = _Passed(announced, first + later, wall)
    if not passed.by(last + later):  # jobs arrived although events said that none would
        passed = _Passed((), first + later, wall)
    quiet = passed.by(wall) / passed.by(last + later)
    at = [passed.by(job.submitted + later) for job in jobs]
    gaps = [round((after - before) * quiet) for before, after in pairwise([at[-1] - passed.by(last + later), *at])]
    rate = len(jobs) / max(1, passed.by(wall))
    ahead = [one for one in announced if one.until > wall and one.at < wall + AHEAD]
    paces = _paces([one + later for one in came], rate, announced, ahead, wall)
    names = dict.fromkeys(one.name or "event" for one in ahead)
    return Stream(tuple(jobs), tuple(gaps), paces, tuple(names))


class _Passed:
    """The time that has passed since an instant, where the time of an event counts by its factor; all in nanoseconds
    since 1970, up to `until`.
    """

    def __init__(self, announced: Iterable[Announced], since: int, until: int) -> None:
        there = [one for one in announced if one.at < until and since < one.until]
        edges = {edge for one in there for edge in (one.at, one.until) if since < edge < until}
        self._begins = sorted({since, *edges})
        self._factors = [_factor(there, begin) for begin in self._begins]
        lengths = (end - begin for begin, end in pairwise(self._begins))
        self._sums = [*accumulate((length * of for length, of in zip(lengths, self._factors, strict=False)), initial=0)]

    def by(self, at: int) -> float:
        place = bisect_right(self._begins, at) - 1
        return self._sums[place] + (at - self._begins[place]) * self._factors[place]


def _factor(announced: Iterable[Announced], at: int) -> float:
    """Return the factor on the load at a time."""
    return prod(one.times for one in announced if one.at <= at < one.until)


def _paces(
    came: Sequence[int], rate: float, announced: Sequence[Announced], ahead: Sequence[Announced], wall: int
) -> tuple[tuple[int, float], ...]:
    """Return the expected rates of arrival in the coming times, relative to `rate` (per nanosecond), from past arrivals
    (nanoseconds since 1970). The rate by hour counts only where the time of the day, or of the week, has told the rate
    better than the latest hours. Events that are `ahead` multiply it, or make a day like another one.
    """
    last, hours = wall // HOUR, Counter(at // HOUR for at in came)
    first = max(min(hours), last - PACE_DAYS * DAY // HOUR) + 1
    forecaster = LoadForecaster(HOUR, DAY // HOUR, intervals=False)
    for hour in range(first, last):
        begin = hour * HOUR
        forecaster.learn(begin, hours[hour] / (times_in(announced, begin, begin + HOUR) or 1.0))
    usual: list[float] = []
    if forecaster.seasonal:
        usual = [band.expected / (rate * HOUR) for band in forecaster.ahead()]
    edges = {wall, *((last + number) * HOUR for number in range(1, len(usual) + 1))}
    for one in ahead:
        begin, end = max(one.at, wall), min(one.until, wall + AHEAD)
        edges |= {begin, end}
        if one.days:  # a day like another one has the rate of each of its hours
            edges |= {hour * HOUR for hour in range(begin // HOUR + 1, -(-end // HOUR))}
    made = []
    for begin, end in pairwise(sorted(edges)):
        distance = begin // HOUR - last
        pace = usual[distance] if distance < len(usual) else 1.0
        days = days_in(ahead, begin, end)
        like = forecaster.as_on(distance + 1, days) / (rate * HOUR) if days else float("nan")
        made.append((end - begin, (pace if isnan(like) else like) * _factor(ahead, begin)))
    return tuple(made)


__all__ = ["LATEST", "Stream", "of_schedule", "streams"]
