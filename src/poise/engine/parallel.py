"""Worlds parallel to a log: they simulate the same submissions under other policies.

    worlds = Worlds(ledger, policies, settings, now)
    worlds.take(event)          # each event of the log, in order
    worlds.advance(now)

A world is a twin of the fleet that begins as a fork of the ledger, and has its own ledger from then on. The actions of
users and machines come from the log, at the instants at which they happened: submissions, cancellations, drains, nodes
that join and leave. Decisions do not: the policy of each world makes its own.

The run time of work is not known before it has ended in the log. So a world lags behind: if a unit may end at an
instant and its end is not known yet, the world waits until the log shows that the unit ran for longer, or ended. Run
times are estimated only if a world lags more than its patience; such estimates are counted. A run time observed on
another device model is converted by the estimates of both models, and counted too.

There is always one world of the live policy. Results are compared between worlds, so errors of the simulation are the
same on both sides.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec

from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.kernel.ledger import JobState, Ledger, UnitState
from poise.kernel.messages import Cancel, CancelJobs, CancelReservation, Drain, HoldJob, Reserve, SetQuota
from poise.model.events import (
    Configured,
    DeviceCordoned,
    DeviceDrained,
    Event,
    Finished,
    JobCancelled,
    JobChanged,
    JobHeld,
    JobsCancelled,
    JobSubmitted,
    NodeDrained,
    NodeForgotten,
    NodeJoined,
    NodeLost,
    Preempted,
    QuotaSet,
    QuotaTurned,
    ReservationAdded,
    ReservationRemoved,
    RulesSet,
    ScheduleRemoved,
    Started,
    UnitsCancelled,
)
from poise.model.fleet import model_under
from poise.model.jobs import GRACE, Job, Outcome
from poise.model.quotas import Quota
from poise.model.resources import WHOLE, Shape
from poise.model.workload import Seats, Steady, Truth
from poise.model.worlds import Row
from poise.policy.predict import Speeds
from poise.policy.suites import ClusterPolicy
from poise.units import HOUR, SECOND

SCALE = 1e9
"""Assumed total of seconds of a unit: progress is given as a fraction of it, since the actual amount of work is
unknown.
"""

LARGEST = 0.999
"""The largest such fraction: 31 years."""

ENDLESS = Truth(pace=Steady(float("inf")), save=GRACE // 2)

PATIENCE = 6 * HOUR
"""Default limit on how far a world may lag while it waits for an unknown run time."""

LONGER = 1.5
"""Minimum estimate once that patience is over, as a multiple of the time that the unit has run."""

RATE = 20
"""Maximum number of rounds of a world in a second, after a burst. A live control plane under such load also decides on
many events in one round.
"""

LIVE = ""
"""The name of the world of the live policy."""

LEFT_OUT = (JobChanged, UnitsCancelled, DeviceCordoned)
"""Events of the log that have no effect in the worlds."""


class Open(Steady, frozen=True, gc=False):
    """Work of unknown amount. Use `left` only for differences."""

    def left(self, progress: float, seats: Seats, /) -> float:
        rate = self.rate(seats)
        return -progress * SCALE / rate if rate else float("inf")

    def reached(self, progress: float, seats: Seats, seconds: float, /) -> float:
        return min(1.0, progress + seconds * self.rate(seats) / SCALE)


class _Line:
    """History of a job in a world: its first start, the instants of its preemptions, and its attempts with the devices
    that they held.
    """

    __slots__ = ("attempts", "started", "yielded")

    def __init__(self) -> None:
        self.started = 0
        self.yielded: list[int] = []
        self.attempts: list[tuple[int, int, float]] = []


class Known:
    """The amount of work in units, by id, as far as the log shows it. `on` is the device model on which each unit last
    ran.
    """

    def __init__(self, ledger: Ledger, throughputs: Mapping[str, float]) -> None:
        self._ledger = ledger
        self._throughputs = throughputs
        self._rates: dict[str, dict[str, float]] = {}
        self._over: dict[str, Truth] = {}
        self._kept_of: dict[str, float] = {}
        self._asked: dict[str, int] = {}
        self.on: dict[str, str] = {}

    def note_asked(self, unit: str, at: int) -> None:
        """Record that a unit was asked to save a checkpoint and end."""
        self._asked[unit] = at

    def kept_by(self, unit: UnitState, event: Finished) -> float:
        """Return the work that a unit keeps, in nanoseconds of its least tasks, if its attempts end with this event and
        it is not over: their work up to the latest checkpoint, or all of it where they report progress; without the
        time after the order to end, which the twin does not model. Call it before the event is applied.
        """
        asked, found = self._asked.get(unit.id, 0), self._ledger.jobs.task(event.task)
        if found is None or event.ending.outcome == "returned":
            return self._kept(unit)
        started = found[1].started or event.at - event.ending.run
        run = max(0, event.ending.run - max(0, unit.resized - started))
        useful = run - run % unit.spec.checkpoint if unit.spec.checkpoint else 0
        if event.ending.progress > 0:
            useful = run
        if asked:
            useful = min(useful, max(0, asked - max(unit.resized, started)))
        done = unit.carried + max(0, useful - _restoring(unit)) * max(1, unit.size)
        return self._kept(unit) + done / _least(unit)

    def note_kept(self, unit: UnitState, kept: float) -> None:
        """Record the work that a unit keeps after its attempts have ended."""
        self._asked.pop(unit.id, None)
        self._kept_of[unit.id] = kept

    def note_end(self, unit: UnitState) -> None:
        """Record the end of a unit, as the ledger may forget it."""
        if unit.status in ("done", "failed"):
            outcome: Outcome = "done" if unit.status == "done" else "failed"
            self._over[unit.id] = self._truth(unit, self._work(unit, 0), outcome=outcome)
        else:  # it was cancelled; each world gets that event at its instant
            self._over[unit.id] = _endless(unit)

    def truth(self, unit: UnitState | None, name: str, now: int) -> Truth:
        """Return the truth of a unit, as far as it is known at this instant. Services are endless."""
        if (over := self._over.get(name)) is not None:
            return over
        if unit is None:
            return ENDLESS
        if unit.spec.serves:
            return _endless(unit)
        return self._truth(unit, self._work(unit, now), known=False)

    def guess(self, unit: UnitState, now: int) -> Truth:
        """Return the estimated truth of a running unit, from the estimates for its class."""
        spec, fleet = unit.spec, self._ledger.columns.room()
        speeds = Speeds(fleet.models, self._ledger.profiles, self._throughputs)
        devices = unit.shape.gpus > 0
        told = speeds.of(spec.kind, unit.shape.wants.precision, spec.declared, spec.work, devices=devices)
        means = [told[at].mean for at, model in enumerate(fleet.models) if (model.kind != "cpu") == devices]
        return self._truth(unit, max(min(means, default=0) / SECOND, LONGER * self._work(unit, now)), outcome="done")

    def kept(self, unit: UnitState) -> float:
        """Return the work of earlier attempts of a unit, as a fraction of `SCALE`."""
        return self._reference(unit, self._kept(unit)) / SCALE

    def _truth(self, unit: UnitState, seconds: float, *, known: bool = True, outcome: Outcome = "done") -> Truth:
        spec = unit.spec
        return Truth(
            pace=Open(SCALE, _least(unit), self.rates(unit)),
            checkpoint=spec.checkpoint,
            saves=unit.progress > 0,
            reports=False,
            restore=spec.restore,
            save=GRACE // 2,  # it ends within the grace
            outcome=outcome,
            until=min(LARGEST, seconds / SCALE),
            known=known,
        )

    def rates(self, unit: UnitState) -> dict[str, float]:
        """Return the rate on each device model that it could run on, relative to the fastest."""
        found = self._rates.get(unit.id)
        if found is None:
            spec, fleet = unit.spec, self._ledger.columns.room()
            devices = unit.shape.gpus > 0
            models = [(at, model) for at, model in enumerate(fleet.models) if (model.kind != "cpu") == devices]
            if len(models) < 2:
                return {}  # not kept, since another model may join
            speeds = Speeds(fleet.models, self._ledger.profiles, self._throughputs)
            told = speeds.of(spec.kind, unit.shape.wants.precision, spec.declared, spec.work, devices=devices)
            means = {model.called: max(1, told[at].mean) for at, model in models}
            best = min(means.values(), default=1)
            found = self._rates[unit.id] = {name: best / mean for name, mean in means.items() if mean != best}
        return found

    def _reference(self, unit: UnitState, nanoseconds: float) -> float:
        """Convert a duration on the unit's last device model to seconds on the fastest model."""
        return nanoseconds / SECOND * self.rates(unit).get(self._model(unit), 1.0)

    def _model(self, unit: UnitState) -> str:
        """Return the device model on which the unit runs or last ran; empty if it has never run."""
        first = unit.first if unit.tasks else None
        if first is not None and first.node in self._ledger.nodes:
            node = self._ledger.nodes[first.node].node
            self.on[unit.id] = model_under(node, first.devices)
        return self.on.get(unit.id, "")

    def _work(self, unit: UnitState, now: int) -> float:
        """Return the unit's progress, in seconds of its least tasks on the fastest model."""
        if unit.status == "active":
            tasks = [unit.tasks[index] for index in unit.members if unit.tasks[index].started]
            if len(tasks) < unit.size:
                return self._reference(unit, self._kept(unit))
            run = now - max(unit.resized, *(task.started for task in tasks))
        elif unit.status in ("done", "failed"):
            run = max((unit.run_in_size(unit.tasks[index]) for index in unit.members), default=0)
        else:
            return self._reference(unit, self._kept(unit))
        took = (unit.carried + max(0, run - _restoring(unit)) * max(1, unit.size)) / _least(unit)
        return self._reference(unit, took + self._kept(unit))

    def _kept(self, unit: UnitState) -> float:
        """Return the work of earlier attempts in nanoseconds of its least tasks, unless the unit reports it itself."""
        return self._kept_of.get(unit.id, unit.saved / _least(unit))


def _endless(unit: UnitState) -> Truth:
    """Return the truth of a unit that runs until it is stopped."""
    return msgspec.structs.replace(ENDLESS, pace=Steady(float("inf"), _least(unit)))


def _least(unit: UnitState) -> int:
    return unit.spec.least or max(1, len(unit.spec.tasks))


def _restoring(unit: UnitState) -> int:
    """Return the nanoseconds that the attempt spent on restoring earlier work."""
    return unit.spec.restore if unit.placed_in > 1 and not unit.resized else 0


class World:
    """One world. `guessed` are units whose run time was estimated; `failed` is the reason why its policy stopped."""

    def __init__(self, policy: ClusterPolicy, settings: Settings, ledger: Ledger, known: Known, at: int) -> None:
        fork = ledger.fork()
        for schedule in list(fork.schedules.values()):  # the log has their submissions, and the effects of rules
            fork.apply(ScheduleRemoved(at=fork.now, schedule=schedule.id, tenant=schedule.job.tenant))
        fork.apply(RulesSet(at=fork.now))
        fork.parts.freeze()
        self.policy = policy.name
        self.guessed: set[str] = set()
        self.converted: set[str] = set()
        self.failed = ""
        self._known = known
        self._lines: dict[str, _Line] = {}
        self._gone: dict[str, int] = {}
        unfinished = [unit for job in fork.jobs.values() if not job.ended for unit in job.units if not unit.over]
        settings = msgspec.structs.replace(settings, history=2**31)
        self.twin = Twin(
            policy,
            settings,
            observe=self._see,
            ledger=fork,
            truths={unit.id: known.truth(unit, unit.id, at) for unit in unfinished},
            progress={unit.id: known.kept(unit) for unit in unfinished},
            at=at,
            rate=RATE,
        )
        self.since = self.twin.began
        self.twin.add_nodes([state.node for state in fork.nodes.values() if state.status == "up"])

    @property
    def now(self) -> int:
        """The instant that the world has reached, on the clock of the log."""
        return self.twin.began + self.twin.now

    def advance(self, ledger: Ledger, now: int, patience: int, watch: Callable[[], bool]) -> None:
        """Advance until `now`, until the next step depends on unknown data, or until `watch` returns False."""
        twin = self.twin
        until = now - twin.began
        try:
            while not self.failed and twin.now < until:
                self._ask(ledger, now, patience)
                if twin.unsure:
                    return
                twin.run(until, watch=lambda: not twin.unsure and watch())
                if not twin.unsure and not watch():
                    return
        except Exception as error:  # a failing policy must not stop the other worlds
            self.failed = f"{type(error).__name__}: {error}"

    def _ask(self, ledger: Ledger, now: int, patience: int) -> None:
        twin = self.twin
        for name in sorted(twin.unsure):
            unit = ledger.jobs.unit(name)
            truth = self._known.truth(unit, name, now)
            if not truth.known and truth.until <= twin.truth(name).until:
                if now - self.now <= patience or unit is None:
                    continue
                self.guessed.add(name)
                truth = self._known.guess(unit, now)
            twin.learn(name, truth)

    def correct(self, unit: str) -> None:
        """Replace an estimated run time by the one in the log."""
        found = self.twin.ledger.jobs.unit(unit)
        if unit in self.guessed and found is not None and not found.over:
            self.guessed.discard(unit)
            self.twin.learn(unit, self._known.truth(None, unit, 0))

    def rows(self, until: int) -> Iterator[tuple[str, Row]]:
        """Yield rows for the jobs in this world's time that were submitted before `until`, in order of their ids."""
        ledger = self.twin.ledger
        for job in ledger.jobs.values():
            if job.submitted >= until or (job.ended and job.ended <= self.since) or not _counts(job):
                continue
            yield job.id, self._row(job, until)

    def _row(self, job: JobState, until: int) -> Row:
        line = self._lines.get(job.id) or _Line()
        end = job.ended if 0 < job.ended <= until else 0
        first = line.started or min(
            (task.started for unit in job.units for task in unit.tasks if task.started), default=0
        )
        held = list(line.attempts)
        for unit in job.units:
            if unit.status == "active":
                held += [
                    (task.started, until, _devices(unit.shape)) for task in unit.tasks if task.active and task.started
                ]
        service = sum(max(0, min(ended, until) - max(since, self.since)) * devices for since, ended, devices in held)
        return Row(
            time=(end or until) - job.submitted,
            wait=(min(first, until) if first else end or until) - job.submitted,
            late=int(any(_is_late(unit, job.submitted, until) for unit in job.units)),
            preempted=sum(at <= until for at in line.yielded),
            service=round(service),
            ended=int(end > 0),
        )

    def _see(self, event: Event) -> None:
        """Process an event of the world's own log."""
        match event:
            case Started():
                found = self.twin.ledger.jobs.task(event.task)
                if found is not None:
                    line = self._line(found[0].job)
                    line.started = line.started or event.at
            case Finished():
                found = self.twin.ledger.jobs.task(event.task)
                if found is not None and event.ending.run:
                    unit, began = found[0], event.at - event.ending.run
                    line = self._line(unit.job)
                    line.started = line.started or began
                    line.attempts.append((began, event.at, _devices(unit.shape)))
                    if self._known.on.get(unit.id) not in (None, self._on(event)):
                        self.converted.add(unit.id)
            case Preempted():
                self._line(event.unit.partition(".")[0]).yielded.append(event.at)

    def _on(self, event: Finished) -> str:
        found = self.twin.ledger.jobs.task(event.task)
        node = self.twin.ledger.nodes.get(found[1].node) if found is not None else None
        return model_under(node.node, found[1].devices) if found is not None and node is not None else ""

    def _line(self, job: str) -> _Line:
        line = self._lines.get(job)
        if line is None:
            line = self._lines[job] = _Line()
        return line


class Worlds:
    """The worlds of some policies by name, and the `LIVE` one, with a ledger that follows the log through `take`."""

    def __init__(
        self,
        ledger: Ledger,
        live: ClusterPolicy,
        policies: Mapping[str, ClusterPolicy],
        settings: Settings,
        now: int,
        *,
        patience: int = PATIENCE,
    ) -> None:
        self.ledger = ledger
        self.left_out: Counter[str] = Counter()
        self.since, self.revision = max(now, ledger.now), ledger.revision
        self.other_policy = False
        self._patience = patience
        self._known = Known(ledger, settings.throughputs)
        self._serving: dict[str, int] = {}
        every = {LIVE: live, **policies}
        self.worlds = {name: World(policy, settings, ledger, self._known, self.since) for name, policy in every.items()}

    def take(self, event: Event) -> None:
        """Apply the next event of the log. `other_policy` is set once another policy decides; the worlds then describe
        the past.
        """
        before = self.ledger.leader.policy
        unit, kept = self._unit_of(event), 0.0
        if unit is not None and isinstance(event, Finished):
            kept = self._known.kept_by(unit, event)
        self.ledger.apply(event)
        self.other_policy = self.other_policy or (isinstance(event, Configured) and event.policy != before)
        if isinstance(event, Preempted):
            self._known.note_asked(event.unit, event.at)
        if unit is not None and unit.status in ("pending", "waiting"):
            self._known.note_kept(unit, kept)
        if unit is not None and unit.over:
            self._known.note_end(unit)
            for world in self.worlds.values():
                world.correct(unit.id)
            job = self.ledger.jobs.get(unit.job)
            if job is not None and job.ended and not _counts(job):  # a service ends when it did in the log
                self._everywhere(lambda twin, at: twin.ask(partial(Cancel, job=job.id), at), event.at)
        self._follow(event)

    def advance(self, now: int, watch: Callable[[], bool] = lambda: True) -> None:
        """Advance the worlds until `now`, as far as the data allow, or until `watch` returns False."""
        for world in self.worlds.values():
            world.advance(self.ledger, now, self._patience, watch)

    @property
    def now(self) -> int:
        """The instant that all worlds whose policies have not failed have reached."""
        return min((world.now for world in self.worlds.values() if not world.failed), default=self.since)

    def until(self, name: str) -> int:
        """Return the instant up to which the world of this name and the live one can be compared."""
        return min(self.worlds[LIVE].now, self.worlds[name].now)

    def compared(self, name: str) -> Iterator[tuple[str, Row, Row]]:
        """Yield each job with its rows in the live world and in that of this name, up to the instant that both have
        reached.
        """
        until = self.until(name)
        there = dict(self.worlds[name].rows(until))
        for job, row in self.worlds[LIVE].rows(until):
            if job in there:
                yield job, row, there[job]

    def _unit_of(self, event: Event) -> UnitState | None:
        if not isinstance(event, Finished):
            return None
        found = self.ledger.jobs.task(event.task)
        return found[0] if found is not None else None

    def _follow(self, event: Event) -> None:
        """Apply an action of users or machines in each world."""
        match event:
            case JobSubmitted():
                self._submitted(event.job, event.at)
            case JobCancelled():
                self._note_cancelled([event.job])
                self._everywhere(lambda twin, at: twin.ask(partial(Cancel, job=event.job), at), event.at)
            case JobsCancelled():
                self._note_cancelled(event.jobs)
                self._everywhere(lambda twin, at: twin.ask(partial(CancelJobs, jobs=event.jobs), at), event.at)
            case JobHeld() if not event.why or event.budget:  # otherwise each world holds it itself
                self._everywhere(lambda twin, at: twin.ask(partial(HoldJob, job=event.job, on=event.on), at), event.at)
            case QuotaSet():
                quota = partial(SetQuota, tenant=event.tenant, quota=event.quota)
                self._everywhere(lambda twin, at: twin.ask(quota, at), event.at)
            case QuotaTurned() if (known := self.ledger.quotas.get(event.tenant)) is not None:
                amounts = Quota(*msgspec.structs.replace(known, turn=event.turn).amounts)
                turned = partial(SetQuota, tenant=event.tenant, quota=amounts)
                self._everywhere(lambda twin, at: twin.ask(turned, at), event.at)
            case ReservationAdded():
                reserve = partial(Reserve, reservations=(event.reservation,))
                self._everywhere(lambda twin, at: twin.ask(reserve, at), event.at)
            case ReservationRemoved() if not event.over:  # otherwise each world ends it itself
                cancel = partial(CancelReservation, reservation=event.reservation)
                self._everywhere(lambda twin, at: twin.ask(cancel, at), event.at)
            case NodeDrained() if not event.reservation:
                drain = partial(Drain, node=event.name, on=event.on, moves=event.moves)
                self._everywhere(lambda twin, at: twin.ask(drain, at), event.at)
            case DeviceDrained():
                drain = partial(Drain, node=f"{event.node}:{event.device}", on=event.on)
                self._everywhere(lambda twin, at: twin.ask(drain, at), event.at)
            case NodeJoined():
                self._everywhere(lambda twin, at: twin.renew(event.node, at), event.at)
            case NodeLost() | NodeForgotten():
                self._everywhere(lambda twin, at: twin.lose(event.name, at, detected_after=0), event.at)
            case _ if isinstance(event, LEFT_OUT):
                self.left_out[type(event).__name__] += 1
            case _:
                pass

    def _submitted(self, job: Job, at: int) -> None:
        state = self.ledger.jobs[job.id]
        if not _counts(state):
            self.left_out["arrays" if state.array is not None else "jobs that serve"] += 1
            return
        truths = {unit.id: self._known.truth(unit, unit.id, at) for unit in state.units}
        self._everywhere(lambda twin, when: twin.take_in(job, truths, when), at)

    def _note_cancelled(self, jobs: "tuple[str, ...] | list[str]") -> None:
        for job in map(self.ledger.jobs.get, jobs):
            for unit in job.units if job is not None else ():
                if unit.over:
                    self._known.note_end(unit)

    def _everywhere(self, act: "Callable[[Twin, int], None]", at: int) -> None:
        for world in self.worlds.values():
            if not world.failed:
                act(world.twin, at - world.twin.began)


def _counts(job: JobState) -> bool:
    """Return whether a job is compared: it serves neither calls nor requests, so it ends without being stopped, and all
    of its units exist.
    """
    return job.array is None and job.calls is None and not any(unit.spec.serves for unit in job.units)


def _devices(shape: Shape) -> float:
    return shape.gpus * shape.share / WHOLE if shape.gpus else shape.cpu / 1000


def _is_late(unit: UnitState, submitted: int, until: int) -> bool:
    """Return whether a unit has missed its deadline by this instant."""
    if not unit.spec.deadline or (unit.status == "cancelled" and unit.missed is None):
        return False
    due = submitted + unit.spec.deadline
    in_time = unit.over and unit.ended <= due
    return (until > due and not in_time) or (0 < unit.ended <= until and unit.status != "done")
