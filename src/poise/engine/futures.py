"""Futures of a ledger: how long its unfinished work may really take, drawn from what past work took, and what a twin
makes of that.

    draws = Draws(ledger, now)
    happened = run_future(ledger, policy, draws.draw(Random(7)), nodes, now)

A run time is an estimate (`policy/predict`) times an error, and errors are drawn from those made before: those of the
class on that model of device where it has run there, those of what users declared where nothing was learned. So an
estimate that was always twice too long is taken for half of what it says. Where too few are known, the estimate's own
uncertainty counts. What runs already is drawn from the runs that take longer than it has.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import exp, log, sqrt
from random import Random
from statistics import NormalDist
from typing import NamedTuple, Protocol

import msgspec

from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.kernel.ledger import JobState, Ledger, UnitState
from poise.model.events import Event, Finished, Placed, Preempted, Started
from poise.model.fleet import Fleet, model_under
from poise.model.jobs import ALL, Priority
from poise.model.profiles import ENOUGH_RUNS, Estimate
from poise.model.resources import Node
from poise.model.workload import Arrival, Steady, Truth
from poise.policy.predict import Speeds
from poise.policy.suites import ClusterPolicy
from poise.units import DAY, MINUTE, SECOND

LATEST = 200
"""Past runs of a class that are looked at: the latest."""

ENOUGH_ERRORS = 8
"""Errors of what users declared, before they are taken for those to come; and runs of other classes, before one of
which nothing is known is taken for one like these."""

FEW = 8
"""Runs of each class that count there."""

HORIZON = 400 * DAY
"""How far a future is followed: whatever has not happened by then is taken to never happen."""

AGAIN = 3
"""Gaps between jobs of one kind that are alike, for it to be taken for one that comes again: once is chance, and twice
may be."""

REGULAR = 0.1
"""Of the gap, the mean deviation that is still regular: what a person starts every morning is within 2 hours of 24."""

OFTEN = MINUTE
"""What comes more often is a stream, and not so many appointments."""

DEVIATIONS = 1.25
"""Standard deviations of a normal distribution in one of its mean deviations: the square root of pi / 2."""

AHEAD = 7 * DAY
MOST_COMING = 100
"""For so long, and so many units of them in all, jobs that come again are foreseen."""

USUAL = 0.8
"""The mean deviation of the logarithms of a class's run times, where none has run often enough to tell: that of a
lognormal distribution whose logarithms have a standard deviation of 1."""

IN_VAIN = 50
"""Rounds that place nothing before it is looked whether anything can still come. Waiting alone changes what a policy
does for a while: a class is gained every five minutes."""

SHAPE = 0.5
"""Of the tail of run times beyond all that is known: Pareto's of shape 2, as `model/profiles.remaining` has it."""

_NORMAL = NormalDist()


class Errors(Protocol):
    """How much longer work takes than foreseen, as a factor: a distribution."""

    def draw(self, chance: float, beyond: float) -> float:
        """The factor that a `chance` of all exceed no more, of those that are larger than `beyond`."""
        ...


class Seen:
    """Errors as they were. The next one falls into each of the gaps between those that were seen with the same chance,
    which holds for any distribution if they are exchangeable (Vovk et al., 2005); beyond the largest and below the
    smallest they thin out by Pareto's law, in step with how widely they are spread.

    Of a few the spread says little: it is taken together with what is `usual`, which counts as much as three of them.

    `unfinished` are runs that have come so far and go on. That they are not over tells of those that will come: the
    gaps beyond them weigh more, by the product-limit estimate (Kaplan and Meier, 1958). Else a class would be taken for
    as brief as those of its runs that happen to be over.
    """

    def __init__(self, errors: Iterable[float], unfinished: Iterable[float] = (), usual: float = USUAL) -> None:
        self._logs = sorted(log(max(error, 1e-9)) for error in errors)
        going = sorted(log(max(error, 1e-9)) for error in unfinished)
        count = len(self._logs)
        self._chances: list[float] = []
        left = 1.0
        for place, at in enumerate(self._logs):
            left *= 1 - 1 / (count - place + len(going) - bisect_left(going, at) + 1)
            self._chances.append(1 - left)
        spread = _spread(self._logs)
        if count >= ENOUGH_RUNS:
            self._scale = max(0.02, (spread * count + usual * ENOUGH_RUNS) / (count + ENOUGH_RUNS))
        else:
            self._scale = max(usual, spread)

    def draw(self, chance: float, beyond: float) -> float:
        logs, chances = self._logs, self._chances
        if beyond > 0:
            at = log(beyond)
            if at > logs[-1] + 2 * self._scale:
                return exp(at - SHAPE * log(1 - chance))  # it overruns all that was seen: another law holds for it
            before = self._below(at)
            chance = before + chance * (1 - before)
        if chance <= chances[0]:
            return exp(logs[0] + self._scale * log(max(chance, 1e-9) / chances[0]))
        if chance >= chances[-1]:
            return exp(logs[-1] - self._scale * log(max(1 - chance, 1e-9) / (1 - chances[-1])))
        above = bisect_left(chances, chance)
        part = (chance - chances[above - 1]) / (chances[above] - chances[above - 1])
        return exp(logs[above - 1] + part * (logs[above] - logs[above - 1]))

    def _below(self, at: float) -> float:
        """The chance of an error of at most this logarithm."""
        logs, chances = self._logs, self._chances
        if at <= logs[0]:
            return chances[0] * exp((at - logs[0]) / self._scale)
        if at >= logs[-1]:
            return 1 - (1 - chances[-1]) * exp((logs[-1] - at) / self._scale)
        above = bisect_right(logs, at)
        width = logs[above] - logs[above - 1]
        return chances[above - 1] + (at - logs[above - 1]) / width * (chances[above] - chances[above - 1])


def _spread(logs: Sequence[float]) -> float:
    """The mean distance of sorted logarithms from their median, for as many as there are: that of a few is less than
    that of all.
    """
    count = len(logs)
    middle = logs[count // 2]
    return sum(abs(each - middle) for each in logs) / max(1, count - 1) * (count + 1) / max(1, count)


class Unseen:
    """Errors of an estimate of which nothing is known but its mean deviation, as a part of it: lognormal around a
    median of 1, since run times are products of many things and heavy-tailed.

    The mean deviation of a lognormal variable is `2 (2 Φ(s/2) - 1)` times its mean (Aitchison and Brown, 1957), where
    `s` is the standard deviation of its logarithm.
    """

    def __init__(self, deviation: float) -> None:
        self._sigma = 2 * _NORMAL.inv_cdf(0.5 + min(max(deviation, 0.02), 1.8) / 4)

    def draw(self, chance: float, beyond: float) -> float:
        before = _NORMAL.cdf(log(beyond) / self._sigma) if beyond > 0 else 0.0
        if before > 0.99:
            return exp(log(beyond) - SHAPE * log(1 - chance))
        place = before + chance * (1 - before)
        return exp(self._sigma * _NORMAL.inv_cdf(min(max(place, 1e-9), 1 - 1e-9)))


class Longer:
    """Errors as of another kind, of those that are larger than a `least`."""

    def __init__(self, errors: Errors, least: float) -> None:
        self._errors, self._least = errors, least

    def draw(self, chance: float, beyond: float) -> float:
        return self._errors.draw(chance, max(beyond, self._least))


class Coming(NamedTuple):
    """A job that comes again and again: every so many nanoseconds, give or take a mean `deviation`, since it came at an
    instant (`last`); `seen` times so far. The `job` is the latest of its kind.
    """

    name: str
    job: JobState
    last: int
    every: int
    deviation: int
    seen: int


def recurring(ledger: Ledger, now: int) -> list[Coming]:
    """Which jobs come again and again, of those that the ledger remembers: jobs of one tenant, of one name or, without
    one, of the same classes. They do if `AGAIN` gaps or more lie close to their median, and not two of these have gone
    by since. Those that are due first, of `MOST_COMING` units in all: more would leave no time for many futures.
    """
    kinds: dict[tuple[str, ...], list[JobState]] = {}
    for job in ledger.jobs.values():
        if job.calls is None:
            of = (job.name,) if job.name else ("", *(unit.spec.kind for unit in job.units))
            kinds.setdefault((job.tenant, *of), []).append(job)
    found = []
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
    """What the unfinished units of a ledger really have to do in one future, and what of it is done, by unit; and what
    arrives in it, at nanoseconds from now.
    """

    truths: dict[str, Truth]
    progress: dict[str, float]
    arrivals: tuple[Arrival, ...] = ()


class _Prospect(NamedTuple):
    """A unit, and what is foreseen of it: by device model the seconds that its least tasks take and how wrong that may
    be; on which of them it runs, and the seconds of those tasks that it has taken by now, of which `kept` count. Of
    work that told how far it is, `progress` is that. It fails with a chance of `fails`. Of how wrong the estimate is
    all of its class have a part in common, `together`.
    """

    unit: UnitState
    called: tuple[str, ...]
    seconds: tuple[float, ...]
    errors: tuple[Errors, ...]
    on: int
    taken: float
    kept: float
    progress: float
    fails: float
    together: float
    serves: bool


class Draws:
    """What there is to be drawn of unfinished `jobs` of a ledger as of `now`, with the rates of a throughput table; for
    nodes that may have `joined`, and of jobs that are `coming` again, too. `sources` counts units by where what is
    foreseen of them comes from; `guesses` are the classes of which nothing is known.
    """

    def __init__(
        self,
        ledger: Ledger,
        now: int,
        throughputs: Mapping[str, float],
        jobs: Iterable[str],
        joined: Sequence[Node] = (),
        coming: Sequence[Coming] = (),
    ) -> None:
        self.sources: Counter[str] = Counter()
        self.guesses: set[str] = set()
        fleet = ledger.fleet()
        self._fleet = Fleet([*fleet.nodes, *joined]) if joined else fleet
        self._ledger = ledger
        self._now = now
        self._places = {(model.called, model.kind != "cpu"): at for at, model in enumerate(self._fleet.models)}
        self._speeds = Speeds(self._fleet.models, ledger.profiles, throughputs)
        self._declared: Errors | None = None
        self._any: Errors | None = None
        self._runs: dict[str, Errors] = {}
        self._usual = USUAL
        self._look_back(Speeds(self._fleet.models, {}, throughputs))
        self._prospects = [
            self._prospect(job, unit)
            for job in map(ledger.jobs.__getitem__, jobs)
            for unit in job.units
            if not unit.over
        ]
        self._kinds = sorted({prospect.unit.spec.kind for prospect in self._prospects})
        known, guesses = self.sources.copy(), self.guesses.copy()
        self._coming = [
            (one, [self._prospect(one.job, UnitState(unit.spec, one.job.id, 0, unit.queue)) for unit in one.job.units])
            for one in coming
        ]
        self.sources, self.guesses = known, guesses  # these are of what is there

    def draw(self, random: Random) -> Drawn:
        """One future. What is not known of a class is the same for all of its units, and they are long or brief
        together: of `n` past runs, the mean is uncertain by a part `1 / (n + 1)` of the variance of one more.
        """
        truths: dict[str, Truth] = {}
        progress: dict[str, float] = {}
        of_class = {kind: random.gauss(0.0, 1.0) for kind in self._kinds}
        for prospect in self._prospects:
            unit, together = prospect.unit, prospect.together
            own, failing, where = random.gauss(0.0, 1.0), random.random(), random.random()
            chance = _NORMAL.cdf(sqrt(together) * of_class[unit.spec.kind] + sqrt(1 - together) * own)
            truths[unit.id], progress[unit.id] = _truth(prospect, min(chance, 1 - 1e-9), failing, where)
        return Drawn(truths, progress, tuple(sorted(self._arrivals(random), key=_at)))

    def _arrivals(self, random: Random) -> Iterator[Arrival]:
        """What comes again, each at its time give or take what it was off before; no sooner than now."""
        for one, prospects in self._coming:
            at = one.last
            for _ in range(max(1, MOST_COMING // (len(self._coming) * len(prospects)))):
                at = max(self._now, at + max(OFTEN, round(random.gauss(one.every, one.deviation * DEVIATIONS))))
                if at > self._now + AHEAD:
                    break
                truths = {}
                for prospect in prospects:
                    chance, failing, where = random.random(), random.random(), random.random()
                    truths[prospect.unit.spec.name] = _truth(prospect, min(chance, 1 - 1e-9), failing, where)[0]
                units = tuple(unit.spec for unit in one.job.units)
                yield Arrival(at=at - self._now, units=units, truths=truths, tenant=one.job.tenant)

    def _look_back(self, unlearned: Speeds) -> None:
        """What past work took, and how wrong its users were."""
        runs: dict[str, list[float]] = {}
        declared: list[float] = []
        done = (job for job in reversed(self._ledger.jobs.values()) if job.calls is None)
        for unit in (unit for job in done for unit in job.units if unit.status == "done"):
            spec, task = unit.spec, unit.tasks[0]
            known = self._ledger.nodes.get(task.node)
            seconds = _whole_run(unit) / SECOND
            if known is None or not seconds:
                continue
            key = f"{spec.kind}@{model_under(known.node, task.devices)}"
            of_class = runs.setdefault(key, [])
            if len(of_class) < LATEST:
                of_class.append(seconds)
            wrong = self._wrong(unit, seconds, model_under(known.node, task.devices), unlearned)
            if wrong and len(declared) < LATEST:
                declared.append(wrong)
        self._past, self._going = runs, self._unfinished()
        so_far = [(unit, *self._so_far(unit)) for unit in self._ledger.active_units()]
        said = [self._wrong(unit, seconds, model, unlearned) for unit, model, seconds in so_far]
        spreads = sorted(_spread(sorted(map(log, of))) for of in runs.values() if len(of) >= ENOUGH_RUNS)
        if spreads:
            self._usual = max(0.02, spreads[len(spreads) // 2])
        if len(declared) >= ENOUGH_ERRORS:
            self._declared = Seen(declared, filter(None, said))
        every = [seconds for of_class in runs.values() for seconds in of_class[:FEW]]
        if len(every) >= ENOUGH_ERRORS:
            self._any = Seen(every, [seconds for of_class in self._going.values() for seconds in of_class[:FEW]])

    def _wrong(self, unit: UnitState, seconds: float, model: str, unlearned: Speeds) -> float:
        """How many times as long as its user declared it took; 0 where nothing was."""
        spec, devices = unit.spec, unit.shape.gpus > 0
        place = self._places.get((model, devices))
        if not spec.expect or place is None:
            return 0.0
        precision = unit.shape.wants.precision
        said = unlearned.of(spec.kind, precision, spec.expect, spec.work, devices=devices)[place]
        return seconds * SECOND / said.mean if said.source in ("declared", "throughput table") else 0.0

    def _unfinished(self) -> dict[str, list[float]]:
        """By class and model of device, the seconds that what runs has taken."""
        going: dict[str, list[float]] = {}
        for unit in self._ledger.active_units():
            model, seconds = self._so_far(unit)
            if seconds and not unit.progress and self._ledger.jobs[unit.job].calls is None:
                going.setdefault(f"{unit.spec.kind}@{model}", []).append(seconds)
        return going

    def _so_far(self, unit: UnitState) -> tuple[str, float]:
        """The model of device that it runs on, and the seconds of its least tasks that it has taken."""
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
        estimates = self._speeds.of(spec.kind, shape.wants.precision, spec.expect, spec.work, devices=devices)
        looked_at = [at for at, model in enumerate(self._fleet.models) if (model.kind != "cpu") == devices]
        looked_at = looked_at or list(range(len(self._fleet.models)))
        called = tuple(self._fleet.models[at].called for at in looked_at)
        model, taken = self._so_far(unit)
        on = called.index(model) if model in called else 0
        seconds, errors = self._foreseen(unit, called, looked_at, on, estimates)
        kept = 0.0
        if not unit.progress:
            kept = (unit.saved + unit.carried) / least / SECOND
        source = estimates[looked_at[on]].source if looked_at else "default"
        serves = job.calls is not None or bool(spec.serves)
        if not serves:
            if source == "default":
                self.guesses.add(spec.kind)
                source = "other classes" if self._any is not None else source
            self.sources[source] += 1
        profile = self._ledger.profiles.get(spec.kind)
        chance = profile.failures / 1000 if profile is not None else 0.0
        tries_left = spec.retry.limit - unit.tries if "failed" in spec.retry.when else 0
        return _Prospect(
            unit=unit,
            called=called,
            seconds=seconds,
            errors=errors,
            on=on,
            taken=max(taken + kept, unit.outlived / SECOND),
            kept=kept,
            progress=unit.progress / ALL,
            fails=chance ** (1 + max(0, tries_left)),
            together=1 / (1 + max(1, len(self._past.get(f"{spec.kind}@{called[on]}", ())))) if called else 0.0,
            serves=serves,
        )

    def _foreseen(
        self, unit: UnitState, called: Sequence[str], looked_at: Sequence[int], on: int, estimates: Sequence[Estimate]
    ) -> tuple[tuple[float, ...], tuple[Errors, ...]]:
        """By model of device the seconds, and how wrong that may be. Where a class has run on some of them, on the
        others it takes as much longer as is estimated of the class, and is as wrong as there; unless what is said of
        this very run tells more.
        """
        spec = unit.spec
        known = [at for at, name in enumerate(called) if self._past.get(f"{spec.kind}@{name}")]
        base = on if on in known else next(iter(known), None)
        precision, devices = unit.shape.wants.precision, unit.shape.gpus > 0
        of_class = self._speeds.of(spec.kind, precision, 0, spec.work, devices=devices) if base is not None else []
        seconds: list[float] = []
        errors: list[Errors] = []
        for at, name in enumerate(called):
            estimate = estimates[looked_at[at]]
            said = estimate.source in ("declared", "throughput table") and spec.expect > 0
            if at in known and not said:
                seconds.append(1.0)
                errors.append(self._runs_of(f"{spec.kind}@{name}"))
            elif base is not None and not said:
                seconds.append(of_class[looked_at[at]].mean / of_class[looked_at[base]].mean)
                errors.append(self._runs_of(f"{spec.kind}@{called[base]}"))
            elif self._any is not None and estimate.source == "default":
                going = sorted(self._going.get(f"{spec.kind}@{name}", ()))  # it is not as brief as what runs of it
                seconds.append(1.0)
                errors.append(Longer(self._any, going[len(going) // 2]) if going else self._any)
            else:
                wrong = self._declared if said else None
                seconds.append(estimate.mean / SECOND)
                errors.append(wrong or Unseen(estimate.deviation / estimate.mean))
        return tuple(seconds), tuple(errors)

    def _runs_of(self, key: str) -> Errors:
        """Of a class on a model of device: seconds, as errors of an estimate of one."""
        found = self._runs.get(key)
        if found is None:
            found = self._runs[key] = Seen(self._past[key], self._going.get(key, ()), self._usual)
        return found


def _whole_run(unit: UnitState) -> int:
    """Nanoseconds that all of its work took, in its least tasks; 0 where that cannot be told."""
    if unit.progress:
        return 0
    run = max((unit.run_in_size(unit.tasks[index]) for index in unit.members), default=0)
    spec = unit.spec
    return (
        (unit.saved + unit.carried + run * unit.size) // spec.least
        if spec.least
        else run + unit.saved // max(1, unit.size)
    )


def _truth(prospect: _Prospect, chance: float, failing: float, where: float) -> tuple[Truth, float]:
    """What a unit has to do where its chances are these, and the part of it that is done."""
    spec = prospect.unit.spec
    least = spec.least or len(spec.tasks)
    if prospect.serves or not prospect.seconds:  # its caller says when it ends
        return Truth(pace=Steady(float("inf"), least)), 0.0
    beyond = prospect.taken / (1 - min(prospect.progress, 0.999)) / prospect.seconds[prospect.on]
    here, wrong = prospect.seconds[prospect.on], prospect.errors[prospect.on]
    whole, at_first = here * wrong.draw(chance, beyond), here * wrong.draw(chance, 0.0)
    rates = {
        name: at_first / max(1e-9, mean * errors.draw(chance, 0.0))
        for at, (name, mean, errors) in enumerate(zip(prospect.called, prospect.seconds, prospect.errors, strict=True))
        if at != prospect.on
    }
    truth = Truth(
        pace=Steady(whole, least, rates),
        checkpoint=spec.checkpoint,
        restore=spec.restore,
        outcome="failed" if failing < prospect.fails else "done",
        until=where if failing < prospect.fails else 1.0,
    )
    return truth, prospect.progress or min(1.0, prospect.kept / whole)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is otherwise in a future: nodes that join it at once, names of some that are lost at once, and the priority
    classes of some jobs, by id: which the ledger that it follows has already.
    """

    joined: tuple[Node, ...] = ()
    lost: tuple[str, ...] = ()
    priorities: dict[str, Priority] = {}


UNCHANGED = Change()


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a future: the instants at which units started anew and at which they were over, on the log's
    clock, which of these were not done, how often something had to yield, and the rounds that were decided. `whole`: it
    was followed to its end.
    """

    started: dict[str, int]
    ended: dict[str, int]
    failed: frozenset[str]
    preempted: int
    rounds: int
    whole: bool


def run_future(
    state: bytes,
    policy: ClusterPolicy,
    settings: Settings,
    drawn: Drawn,
    now: int,
    *,
    change: Change = UNCHANGED,
    until: Sequence[str] = (),
    watch: Callable[[], bool] = lambda: True,
) -> Happened:
    """Follow an encoded ledger from `now` on, until the units named in `until` are over, if any are; or `watch` says
    False.
    """
    ledger = Ledger.decode(state)
    started: dict[str, int] = {}
    preempted = quiet_since = 0

    def observe(event: Event) -> None:
        nonlocal preempted, quiet_since
        if isinstance(event, Placed | Finished):
            quiet_since = twin.rounds
        elif isinstance(event, Started):
            found = ledger.task(event.task)
            if found is not None:
                started.setdefault(found[0].id, event.at)
        elif isinstance(event, Preempted):
            preempted += 1

    settings = msgspec.structs.replace(settings, history=2**31)
    twin = Twin(policy, settings, observe=observe, ledger=ledger, truths=drawn.truths, progress=drawn.progress, at=now)
    open_units = [unit for unit in (ledger.unit(name) for name in until) if unit is not None]
    twin.add_nodes(_there(ledger, change))
    for arrival in drawn.arrivals:
        twin.arrive(arrival)
    for name in change.lost:
        twin.lose(name, 0, detected_after=0)

    def going() -> bool:
        while open_units and open_units[-1].over:
            open_units.pop()
        return watch() and (bool(open_units) or not until) and not stands_still()

    def stands_still() -> bool:
        """Whether only time goes by: nothing that runs will end, and what waits was refused again and again."""
        nonlocal quiet_since
        if twin.rounds - quiet_since < IN_VAIN:
            return False
        quiet_since = twin.rounds
        return not twin.busy

    twin.run(HORIZON, watch=going)
    over = [unit for job in ledger.jobs.values() for unit in job.units if unit.ended > now]
    return Happened(
        started=started,
        ended={unit.id: unit.ended for unit in over},
        failed=frozenset(unit.id for unit in over if unit.status != "done"),
        preempted=preempted,
        rounds=twin.rounds,
        whole=watch(),
    )


def _at(arrival: Arrival) -> int:
    return arrival.at


def _there(ledger: Ledger, change: Change) -> Iterator[Node]:
    for state in ledger.nodes.values():
        if state.status == "up":
            yield state.node
    yield from change.joined
