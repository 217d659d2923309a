"""Futures of a ledger: random draws of how long its unfinished work takes, learned from past runs and simulated by a
twin.

    draws = Draws(ledger, now)
    happened = run_future(ledger, policy, draws.draw(Random(7)), nodes, now)

A run time is the estimate before any history (declared, or from a throughput table), times an error. The sizes of
errors are learned from past runs (`engine/runtimes`). The part of the error that is common, over all work and within a
class, is drawn once for each future; the rest is drawn for each run. A running job is drawn from the runs that take
longer than it has run. Other jobs arrive as they did lately (`engine/arriving`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import pairwise
from math import log
from random import Random
from statistics import NormalDist
from typing import NamedTuple

import msgspec

from poise.engine.arriving import LATEST, Stream, of_schedule
from poise.engine.runtimes import Learned, Means, Run, Unlearned
from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.kernel.ledger import JobState, Ledger, ScheduleState, UnitState
from poise.model.events import Event, Finished, Placed, Preempted, Started
from poise.model.fleet import Fleet, model_under
from poise.model.jobs import GRACE, Priority
from poise.model.profiles import DEFAULT_RUN, Estimate
from poise.model.progress import ALL
from poise.model.resources import Node
from poise.model.workload import Arrival, Steady, Truth
from poise.policy.predict import Speeds
from poise.policy.suites import ClusterPolicy
from poise.units import DAY, MINUTE, SECOND

ENOUGH_ERRORS = 8
"""Minimum number of errors in declared run times before future errors are drawn from them, and of runs of other classes
before a class without history is estimated from them.
"""

MOST_RUNS = 2000
"""Maximum number of past runs of all classes, the latest."""

UNSAID = 1.0
"""Standard deviation of the logarithm of actual over estimated run time, where none is declared, before any was seen.
"""

DECLARED = 0.65
"""Standard deviation of the logarithm of actual over declared run time, before any was seen."""

BETWEEN = 0.2
"""Standard deviation of the error that classes share: users err in the same direction, whatever they run."""

HORIZON = 400 * DAY
"""Simulated time limit of a future: an event later than this is taken to never happen."""

AGAIN = 3
"""Similar gaps between jobs of one kind before the kind counts as recurring: one is chance, and two may be."""

REGULAR = 0.1
"""Maximum mean deviation of regular gaps, as a fraction of the gap: a job that a person starts every morning comes
within 2 hours of 24.
"""

OFTEN = MINUTE
"""Minimum gap of recurring jobs; more frequent jobs are treated as a stream."""

DEVIATIONS = 1.25
"""Standard deviations of a normal distribution per mean deviation: the square root of pi / 2."""

AHEAD = 7 * DAY
MOST_COMING = 100
"""Limits on the forecast of recurring jobs: how far ahead, and how many units in all."""

MOST_OTHERS = 100
"""Maximum number of units of other jobs that arrive in one future; it limits the time that a future takes."""

BLOCK = 10
"""Consecutive jobs that arrive in one block as in the past: users submit several similar jobs in a row."""

IN_VAIN = 50
"""Rounds without a placement before the future is checked for pending events. Waiting alone changes a policy's
decisions for a while: a unit gains a priority class every five minutes.
"""

_NORMAL = NormalDist()


class Coming(NamedTuple):
    """A recurring job: its period `every` in nanoseconds, the mean `deviation` from it, the instant of its `last`
    arrival, and the number of arrivals `seen`. `job` is the latest of its kind. A job of a `schedule` arrives on time,
    unless it `skips` turns while the previous one is unfinished.
    """

    name: str
    job: JobState
    last: int
    every: int
    deviation: int
    seen: int
    schedule: str = ""
    skips: bool = False


def scheduled(ledger: Ledger, now: int) -> Iterator[Coming]:
    """Yield the jobs of schedules that are not on hold, from their next turns on. The later turns of `cron` schedules
    are taken to have the gap of the last two; a new `cron` schedule has only its first turn.
    """
    for schedule in ledger.schedules.values():
        if schedule.held:
            continue
        rule, due = schedule.rule, schedule.due
        every = rule.every or (due - schedule.last_due if schedule.last_due else 2 * AHEAD)
        if not rule.every:  # due on the wall clock
            due = now + due - round(ledger.leader.wall(now) * SECOND)
        job = ledger.jobs.get(schedule.last) or _first_of(schedule)
        skips = rule.overlap == "skip"
        yield Coming(schedule.called, job, due - every, every, 0, schedule.number, schedule.id, skips)


def _first_of(schedule: ScheduleState) -> JobState:
    """Return the job of a schedule whose last submission is not in the ledger."""
    job = schedule.job
    units = [UnitState(unit, schedule.id, 0, "") for unit in job.units]
    return JobState(schedule.id, schedule.called, job.user, job.folder, job.env, (), 0, units, tenant=job.tenant)


def recurring(ledger: Ledger, now: int) -> list[Coming]:
    """Return the recurring jobs in the ledger: jobs of one tenant and one name or, without a name, of the same classes.
    A kind recurs if at least `AGAIN` gaps lie close to their median, and the time since the last arrival is less than
    two gaps. Jobs of schedules follow their schedules. Only the jobs that are due first are returned, `MOST_COMING`
    units in all: more would leave no time for many futures.
    """
    found = [*scheduled(ledger, now)]
    kinds: dict[tuple[str, ...], list[JobState]] = {}
    for job in ledger.jobs.values():
        if job.calls is None and not of_schedule(ledger, job):
            of = (job.name,) if job.name else ("", *(unit.spec.kind for unit in job.units))
            kinds.setdefault((job.tenant, *of), []).append(job)
    for jobs in kinds.values():
        came = [job.submitted for job in jobs][-LATEST:]
        gaps = sorted(after - before for before, after in pairwise(came))
        name = jobs[-1].name or jobs[-1].units[0].spec.kind
        if len(gaps) < AGAIN or not name:
            continue
        every = gaps[len(gaps) // 2]
        deviation = sum(abs(gap - every) for gap in gaps) // len(gaps)
        if every >= OFTEN and deviation <= REGULAR * every and now < came[-1] + 2 * every:
            found.append(Coming(name, jobs[-1], came[-1], every, deviation, len(jobs)))
    found.sort(key=lambda one: one.last + one.every)
    kept, units = [], 0
    for one in found:
        if units + len(one.job.units) <= MOST_COMING:
            kept.append(one)
            units += len(one.job.units)
    return kept


class Drawn(NamedTuple):
    """One draw: the actual work of the ledger's unfinished units, the part of it that is done, both by unit, and the
    arrivals, at nanoseconds from now.
    """

    truths: dict[str, Truth]
    progress: dict[str, float]
    arrivals: tuple[Arrival, ...] = ()


class _Prospect(NamedTuple):
    """A unit and its estimates. `seconds` are the run time of its least tasks on each device model in `called`, before
    the correction by `learned`; `groups` are its groups in `learned`. It runs on model number `on`, and those tasks
    have run for `taken` seconds so far, of which `kept` count. `progress` is the progress that the work reported, if
    any; `fails` is the chance of a failure.
    """

    unit: UnitState
    called: tuple[str, ...]
    seconds: tuple[float, ...]
    groups: tuple[str, ...]
    learned: Learned | Unlearned
    on: int
    taken: float
    kept: float
    progress: float
    fails: float
    serves: bool


class Draws:
    """Draws futures of unfinished `jobs` of a ledger as of `now`, with the rates of a throughput table; also of nodes
    that may have `joined`, of recurring jobs that are `coming`, and of streams of `others` that arrive as they did.
    `sources` counts units by the source of their estimate. `guesses` are the classes without any history, and `unknown`
    the ids of units that other classes cannot estimate either.
    """

    def __init__(
        self,
        ledger: Ledger,
        now: int,
        throughputs: Mapping[str, float],
        jobs: Iterable[str],
        joined: Sequence[Node] = (),
        coming: Sequence[Coming] = (),
        others: Sequence[Stream] = (),
    ) -> None:
        self.sources: Counter[str] = Counter()
        self.guesses: set[str] = set()
        self.unknown: set[str] = set()
        fleet = ledger.columns.fleet()
        self._fleet = Fleet([*fleet.nodes, *joined]) if joined else fleet
        self._ledger = ledger
        self._now = now
        self._places = {(model.called, model.kind != "cpu"): at for at, model in enumerate(self._fleet.models)}
        self._speeds = Speeds(self._fleet.models, ledger.profiles, throughputs)
        self._unlearned = Speeds(self._fleet.models, {}, throughputs)
        self._guesses: dict[tuple[str, float], Unlearned] = {}
        self._said: Learned | None = None
        self._unsaid: Learned | None = None
        self._look_back()
        self._prospects = [
            self._prospect(job, unit)
            for job in map(ledger.jobs.__getitem__, jobs)
            for unit in job.units
            if not unit.over
        ]
        known, guesses, unknown = self.sources.copy(), self.guesses.copy(), self.unknown.copy()
        self._coming = [(one, self._prospects_again(one.job)) for one in coming]
        self._others = [(one, [self._prospects_again(job) for job in one.jobs]) for one in others]
        self.sources, self.guesses, self.unknown = known, guesses, unknown  # these cover the existing units only
        every = [
            *self._prospects,
            *(prospect for _, prospects in self._coming for prospect in prospects),
            *(prospect for _, of_jobs in self._others for prospects in of_jobs for prospect in prospects),
        ]
        self._learned: dict[int, tuple[Learned | Unlearned, set[str]]] = {}
        for prospect in every:
            self._learned.setdefault(id(prospect.learned), (prospect.learned, set()))[1].update(prospect.groups)

    def draw(self, random: Random, *, others: bool = True) -> Drawn:
        """Draw one future, with or without arrivals of `others`. An error that a class, or all declared run times, have
        in common is the same for all of that work.
        """
        means = {key: learned.draw(random, sorted(groups)) for key, (learned, groups) in self._learned.items()}
        truths: dict[str, Truth] = {}
        progress: dict[str, float] = {}
        for prospect in self._prospects:
            unit = prospect.unit
            chance, failing, where = random.random(), random.random(), random.random()
            truths[unit.id], progress[unit.id] = _truth(
                prospect, means[id(prospect.learned)], min(chance, 1 - 1e-9), failing, where
            )
        arrivals = [*self._arrivals(random, means), *(self._other_arrivals(random, means) if others else ())]
        return Drawn(truths, progress, tuple(sorted(arrivals, key=_at)))

    def _prospects_again(self, job: JobState) -> list[_Prospect]:
        return [self._prospect(job, UnitState(unit.spec, job.id, 0, unit.queue)) for unit in job.units]

    def _arrivals(self, random: Random, means: Mapping[int, Means]) -> Iterator[Arrival]:
        """Yield the arrivals of recurring jobs, each at its time plus an error like the past ones, and no earlier than
        now. A schedule skips the turns that come while its job runs, unless it allows overlaps.
        """
        for one, prospects in self._coming:
            at, runs = one.last, 0
            for _ in range(max(1, MOST_COMING // (len(self._coming) * len(prospects)))):
                gap = one.every * max(1, -(-runs // one.every))
                if not one.schedule:
                    gap = max(OFTEN, round(random.gauss(one.every, one.deviation * DEVIATIONS)))
                at = max(self._now, at + gap)
                if at > self._now + AHEAD:
                    break
                arrival = self._arrival(one.job, prospects, at - self._now, random, means)
                yield arrival
                if one.skips:
                    runs = max(map(_runs, arrival.truths.values()), default=0)

    def _other_arrivals(self, random: Random, means: Mapping[int, Means]) -> Iterator[Arrival]:
        """Yield jobs like the recent ones, in order of time."""
        units = 0
        arrivals = (_like(one, of_jobs, random) for one, of_jobs in self._others)
        for at, job, prospects in merge(*arrivals, key=_first):
            units += len(prospects)
            if at > HORIZON or units > MOST_OTHERS:
                return
            yield self._arrival(job, prospects, at, random, means)

    def _arrival(
        self, job: JobState, prospects: Sequence[_Prospect], at: int, random: Random, means: Mapping[int, Means]
    ) -> Arrival:
        truths = {}
        for prospect in prospects:
            chance, failing, where = random.random(), random.random(), random.random()
            truths[prospect.unit.spec.name] = _truth(
                prospect, means[id(prospect.learned)], min(chance, 1 - 1e-9), failing, where
            )[0]
        return Arrival(at=at, units=tuple(unit.spec for unit in job.units), truths=truths, tenant=job.tenant)

    def _look_back(self) -> None:
        """Learn from past runs: their run times, and the errors of declared run times."""
        said: list[Run] = []
        unsaid: list[Run] = []
        seen: Counter[str] = Counter()
        jobs = (job for job in reversed(self._ledger.jobs.values()) if job.calls is None)
        for unit in (unit for job in jobs for unit in job.units):
            if len(unsaid) >= MOST_RUNS:
                break
            over = unit.status == "done"
            if over:
                node, devices = unit.tasks[0].node, unit.tasks[0].devices
                known = self._ledger.nodes.get(node)
                model = model_under(known.node, devices) if known is not None else ""
                seconds = _whole_run(unit) / SECOND
            else:
                model, seconds = self._so_far(unit)
                seconds = 0.0 if unit.over or unit.progress else seconds
            if not model or not seconds or seen[unit.spec.kind] >= LATEST:
                continue
            seen[unit.spec.kind] += 1
            for runs, expect in ((unsaid, 0), *(((said, unit.spec.expect),) if unit.spec.expect else ())):
                foreseen, group = self._before_history(unit, model, expect)
                runs.append(Run(group, log(foreseen), log(max(seconds, 1e-3) / foreseen), over))
        if sum(run.over for run in said) >= ENOUGH_ERRORS:
            self._said = Learned(said, DECLARED, between=BETWEEN)
        if any(run.over for run in unsaid):
            self._unsaid = Learned(unsaid, UNSAID, between=UNSAID, slope=0.0)

    def _before_history(self, unit: UnitState, model: str, expect: int) -> tuple[float, str]:
        """Return the estimated seconds of a unit on a device model without any history, and its group. Without a table
        that distinguishes the models, each model is a separate group.
        """
        spec, devices = unit.spec, unit.shape.gpus > 0
        place = self._places.get((model, devices))
        if place is None:
            return (expect or DEFAULT_RUN) / SECOND, f"{spec.kind}@{model}"
        told = self._unlearned.of(spec.kind, unit.shape.wants.precision, expect, spec.work, devices=devices)[place]
        tabled = expect or told.source == "throughput table"
        return told.mean / SECOND, spec.kind if tabled else f"{spec.kind}@{model}"

    def _so_far(self, unit: UnitState) -> tuple[str, float]:
        """Return the device model on which the unit runs, and the seconds that its least tasks have run."""
        tasks = [unit.tasks[index] for index in unit.members if unit.tasks[index].active and unit.tasks[index].started]
        known = self._ledger.nodes.get(tasks[0].node) if tasks else None
        if known is None:
            return "", 0.0
        since = max(unit.resized, min(task.started for task in tasks))
        least = unit.spec.least or len(unit.spec.tasks)
        return model_under(known.node, tasks[0].devices), (self._now - since) * unit.size / least / SECOND

    def _prospect(self, job: JobState, unit: UnitState) -> _Prospect:
        spec, shape = unit.spec, unit.shape
        devices, least = shape.gpus > 0, spec.least or len(spec.tasks)
        estimates = self._speeds.of(spec.kind, shape.wants.precision, spec.declared, spec.work, devices=devices)
        looked_at = [at for at, model in enumerate(self._fleet.models) if (model.kind != "cpu") == devices]
        looked_at = looked_at or list(range(len(self._fleet.models)))
        called = tuple(self._fleet.models[at].called for at in looked_at)
        model, taken = self._so_far(unit)
        on = called.index(model) if model in called else 0
        learned, seconds, groups = self._foreseen(unit, called, looked_at, on, estimates)
        kept = 0.0
        if not unit.progress:
            kept = (unit.saved + unit.carried) / least / SECOND
        source = estimates[looked_at[on]].source if looked_at else "default"
        serves = job.calls is not None or bool(spec.serves)
        if not serves:
            if source == "throughput table" and isinstance(learned, Unlearned) and not spec.declared:
                source = "default"  # the speed of one model relative to another does not give a run time
            if source == "default":
                self.guesses.add(spec.kind)
                source = "other classes" if learned is self._unsaid else source
            self.sources[source] += 1
            if source == "default":
                self.unknown.add(unit.id)
        profile = self._ledger.profiles.get(spec.kind)
        chance = profile.failures / 1000 if profile is not None else 0.0
        tries_left = spec.retry.limit - unit.tries if "failed" in spec.retry.when else 0
        return _Prospect(
            unit=unit,
            called=called,
            seconds=seconds,
            groups=groups,
            learned=learned,
            on=on,
            taken=max(taken + kept, unit.outlived / SECOND),
            kept=kept,
            progress=unit.progress / ALL,
            fails=chance ** (1 + max(0, tries_left)),
            serves=serves,
        )

    def _foreseen(
        self, unit: UnitState, called: Sequence[str], looked_at: Sequence[int], on: int, estimates: Sequence[Estimate]
    ) -> tuple[Learned | Unlearned, tuple[float, ...], tuple[str, ...]]:
        """Return the learned errors with the least uncertainty for a unit; by device model, the estimated seconds
        before them and the group. Where no table distinguishes the models and a class has run on some of them, its
        times on the others are scaled by the estimates of the class.
        """
        spec = unit.spec
        said = [self._before_history(unit, name, spec.expect) for name in called]
        unsaid = [self._before_history(unit, name, 0) for name in called]
        known = [at for at, (_, group) in enumerate(unsaid) if self._unsaid is not None and self._unsaid.knows(group)]
        base = on if on in known else next(iter(known), None)
        best: tuple[float, Learned, list[tuple[float, str]]] | None = None
        if spec.expect and self._said is not None and called:
            seconds, group = said[on]
            best = self._said.uncertainty(group, log(seconds)), self._said, said
        if self._unsaid is not None and called and (base is not None or self._unsaid.count >= ENOUGH_ERRORS):
            first = on if base is None else base
            of_class = self._speeds.of(spec.kind, unit.shape.wants.precision, 0, spec.work, devices=unit.shape.gpus > 0)
            told = [
                (seconds, group)
                if at in known or unsaid[first][1] == group
                else (
                    unsaid[first][0]
                    * (of_class[looked_at[at]].mean / of_class[looked_at[first]].mean if base is not None else 1.0),
                    unsaid[first][1],
                )
                for at, (seconds, group) in enumerate(unsaid)
            ]
            uncertainty = self._unsaid.uncertainty(unsaid[first][1], log(unsaid[first][0]))
            guessed = spec.expect and self._said is None and base is None
            if not guessed and (best is None or uncertainty < best[0]):
                best = uncertainty, self._unsaid, told
        if best is not None:
            return best[1], tuple(seconds for seconds, _ in best[2]), tuple(group for _, group in best[2])
        kind = "" if spec.declared else spec.kind
        deviation = max((estimates[at].deviation / estimates[at].mean for at in looked_at), default=1.0)
        guess = self._guesses.setdefault((kind, deviation), Unlearned(deviation))
        return guess, tuple(estimates[at].mean / SECOND for at in looked_at), (kind,) * len(called)


def _whole_run(unit: UnitState) -> int:
    """Return the nanoseconds that all work of a unit took, in its least tasks; 0 where they are unknown."""
    if unit.progress:
        return 0
    run = max((unit.run_in_size(unit.tasks[index]) for index in unit.members), default=0)
    spec = unit.spec
    return (
        (unit.saved + unit.carried + run * unit.size) // spec.least
        if spec.least
        else run + unit.saved // max(1, unit.size)
    )


def _truth(prospect: _Prospect, means: Means, chance: float, failing: float, where: float) -> tuple[Truth, float]:
    """Return the work of a unit for these chances, and the part of it that is done."""
    spec = prospect.unit.spec
    least = spec.least or len(spec.tasks)
    if prospect.serves or not prospect.seconds:  # its caller ends it
        return Truth(pace=Steady(float("inf"), least)), 0.0

    def takes(at: int, beyond: float) -> float:
        seconds, group = prospect.seconds[at], prospect.groups[at]
        return seconds * prospect.learned.factor(means, group, log(seconds), chance, beyond / seconds)

    beyond = prospect.taken / (1 - min(prospect.progress, 0.999))
    whole, at_first = takes(prospect.on, beyond), takes(prospect.on, 0.0)
    if spec.time_limit:  # an attempt runs no longer, and starts with the work that earlier attempts kept
        whole = min(whole, prospect.kept + spec.time_limit / SECOND / (1 - min(prospect.progress, 0.999)))
    rates = {name: at_first / max(1e-9, takes(at, 0.0)) for at, name in enumerate(prospect.called) if at != prospect.on}
    truth = Truth(
        pace=Steady(whole, least, rates),
        checkpoint=spec.checkpoint,
        restore=spec.restore,
        save=GRACE // 2,  # it ends within the grace, at an unknown instant
        outcome="failed" if failing < prospect.fails else "done",
        until=where if failing < prospect.fails else 1.0,
    )
    return truth, prospect.progress or min(1.0, prospect.kept / whole)


def _like(
    stream: Stream, prospects: Sequence[Sequence[_Prospect]], random: Random
) -> Iterator[tuple[int, JobState, Sequence[_Prospect]]]:
    """Yield jobs like those of a stream without end, at gaps like theirs: blocks of the past in a random order (a
    moving-block bootstrap; Künsch, 1989). Where the time matters, the gaps follow the paces.
    """
    at = 0
    while True:
        first = random.randrange(len(stream.jobs))
        for place in range(first, min(first + BLOCK, len(stream.jobs))):
            at += stream.gaps[place]
            yield stream.paced(at), stream.jobs[place], prospects[place]


def _first(arrival: tuple[int, JobState, Sequence[_Prospect]]) -> int:
    return arrival[0]


def _runs(truth: Truth) -> int:
    """Return the run time in nanoseconds, capped where more makes no difference to the next turn."""
    return round(SECOND * min(truth.pace.seconds, 2 * AHEAD / SECOND)) if isinstance(truth.pace, Steady) else 0


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Changes in a future: nodes that join at its start, names of nodes that are lost at its start, and the priority
    classes of some jobs, by id. The ledger that `run_future` gets already has these priorities.
    """

    joined: tuple[Node, ...] = ()
    lost: tuple[str, ...] = ()
    priorities: dict[str, Priority] = {}


UNCHANGED = Change()


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a future: the instants at which units first started in it and at which they ended, on the log's clock,
    the ended units that were not done, and the numbers of preemptions and rounds. `yielded` maps a unit and the one
    that it was first preempted for to the instant. `whole`: the future was followed to its end.
    """

    started: dict[str, int]
    ended: dict[str, int]
    failed: frozenset[str]
    preempted: int
    rounds: int
    whole: bool
    yielded: Mapping[tuple[str, str], int] = {}


def run_future(
    ledger: Ledger,
    policy: ClusterPolicy,
    settings: Settings,
    drawn: Drawn,
    now: int,
    *,
    change: Change = UNCHANGED,
    until: Sequence[str] = (),
    begun: Sequence[Collection[str]] = (),
    horizon: int = HORIZON,
    watch: Callable[[], bool] = lambda: True,
) -> Happened:
    """Simulate a ledger, which is modified, from `now` on, until the units named in `until` are over and one of each
    group in `begun` has started, if any are named; or for `horizon` nanoseconds, or until `watch` returns False.
    """
    started: dict[str, int] = {}
    yielded: dict[tuple[str, str], int] = {}
    preempted = quiet_since = 0

    def observe(event: Event) -> None:
        nonlocal preempted, quiet_since
        if isinstance(event, Placed | Finished):
            quiet_since = twin.rounds
        elif isinstance(event, Started):
            found = ledger.jobs.task(event.task)
            if found is not None:
                started.setdefault(found[0].id, event.at)
        elif isinstance(event, Preempted):
            preempted += 1
            yielded.setdefault((event.unit, event.to), event.at)

    settings = msgspec.structs.replace(settings, history=2**31, history_tasks=0)
    twin = Twin(policy, settings, observe=observe, ledger=ledger, truths=drawn.truths, progress=drawn.progress, at=now)
    resting = list(begun)
    open_units = [unit for unit in (ledger.jobs.unit(name) for name in until) if unit is not None]
    twin.add_nodes(_there(ledger, change))
    for arrival in drawn.arrivals:
        twin.arrive(arrival)
    for name in change.lost:
        twin.lose(name, 0, detected_after=0)

    def going() -> bool:
        while open_units and open_units[-1].over:
            open_units.pop()
        while resting and not started.keys().isdisjoint(resting[-1]):
            resting.pop()
        named = until or begun
        return watch() and (bool(open_units) or bool(resting) or not named) and not stands_still()

    def stands_still() -> bool:
        """Return whether only time passes: no running attempt will end, and all placements were refused repeatedly."""
        nonlocal quiet_since
        if twin.rounds - quiet_since < IN_VAIN:
            return False
        quiet_since = twin.rounds
        return not twin.busy

    twin.run(horizon, watch=going)
    over = [unit for job in ledger.jobs.values() for unit in job.units if unit.ended > now]
    return Happened(
        started=started,
        ended={unit.id: unit.ended for unit in over},
        failed=frozenset(unit.id for unit in over if unit.status != "done"),
        preempted=preempted,
        rounds=twin.rounds,
        whole=watch(),
        yielded=yielded,
    )


def _at(arrival: Arrival) -> int:
    return arrival.at


def _there(ledger: Ledger, change: Change) -> Iterator[Node]:
    for state in ledger.nodes.values():
        if state.status == "up":
            yield state.node
    yield from change.joined
