"""Compute the measures of a trial: every figure of `poise simulate` and `poise compare`.

A `Recorder` receives the events of a log in order. It keeps the result of each job, integrals over time, and curves
with a bounded number of points, so memory grows by only one record per job, even for a million jobs.

Definitions and their sources:

* *completion*: time from submission, or from the earliest allowed start, to the end. *waiting*: the part of it during
  which no task of the job ran, before the first start and after each interruption. *starting*: time until the first
  start.
* *slowdown*: completion divided by the job's run time alone on the fastest devices of the fleet, both at least 10 s:
  the bounded slowdown of Feitelson and Rudolph (JSSPP 1998), with a denominator that no policy can change.
* *fairness*: Jain's index over the slowdowns, (sum x)^2 / (n sum x^2): 1 when all slowdowns are equal (Jain, Chiu and
  Hawe, DEC-TR-301, 1984).
* *rho*: completion divided by the completion on an equal share. The latter is the run time alone on an even part of the
  fleet, at the mean speed of the suitable devices, times the contention: the total demand of all unfinished jobs over
  the capacity, at least 1, as the mean over the job's life (Themis, NSDI'20; for unequal devices Gavel, OSDI'20,
  section 4.2; Shockwave, NSDI'23, has one contention for all jobs). A job with a rho above 1.05 counts as treated
  unfairly, as in Shockwave.
* *stranded*: free devices on nodes where no task fits of any waiting job that could start as a whole, while a job waits
  for devices. It is given as a fraction of all devices, and (*fragmentation*) of the free devices (after FGD, ATC'23,
  which measures against typical jobs). A policy that places everything that fits strands every device that it leaves
  free.
* *overhead*: time for which devices were held without progress: restoring, saving, stalling after a loss, and repeating
  lost work.
"""

import heapq
import pickle
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from poise.engine.twin import Waste
from poise.kernel.ledger import JobState, Ledger
from poise.kernel.used import spread
from poise.model.decisions import Spot
from poise.model.events import (
    DeadlinesMissed,
    Event,
    Finished,
    JobCancelled,
    JobsCancelled,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    Placed,
    Preempted,
    Resized,
    Started,
    UnitsCancelled,
)
from poise.model.fleet import model_under
from poise.model.history import Span, Spread
from poise.model.intensity import HOUR_SECONDS, MONDAY
from poise.model.jobs import Unit
from poise.model.power import POWER, PowerModel
from poise.model.resources import WHOLE, Node
from poise.policy.feasible import ability, capacity
from poise.units import HOUR, SECOND
from poise_lab.remade import Remade

LEAST = 10 * SECOND
"""Lower bound on the times in a slowdown, as in Feitelson's bounded slowdown."""

UNFAIR = 1.05
"""A job with a larger rho counts as treated unfairly."""

FOREVER = 2**62
"""An instant that is never reached, in nanoseconds."""

POINTS = 512
"""Maximum number of intervals in a curve."""

CPU = "cpu"
"""Name of the device kind that stands for CPU cores; its unit is cores."""

WAITING, RUNNING = ".waiting", ".running"
"""Names of the curves of waiting and running jobs. No device model has such a name."""

DEVICES = "devices"
"""Stands for devices of any model."""

OFTEN = 1000
"""Number of times that fragmentation is measured after every change; after that, it is measured once per point of a
curve.
"""

SHAPES = 64
"""Number of waiting units to examine when measuring fragmentation, from the head of all queues."""


class Alone(NamedTuple):
    """Run time of a job on an empty fleet, in nanoseconds: on the fastest devices, and at the mean speed of all
    suitable devices; 0: not known.
    """

    fastest: int = 0
    even: int = 0


class JobResult(msgspec.Struct, gc=False):
    """The result of a job. Instants are nanoseconds from the beginning; `started` and `ended` are -1 if it never did.

    `devices` is the maximum that its tasks hold at once. Its times count from `begin`, in nanoseconds after its
    submission. `run` is the time in which any task ran, `service` the device time (core time without devices), and
    `wasted` the part of `service` without progress; all in nanoseconds. `alone` is its run time on the fastest devices
    of an empty fleet (0: not known), `even` that at the mean speed of all suitable devices, `contention` the mean over
    its life. `moved` counts attempts that started on other nodes than the previous one. `energy` is in joules, `price`
    in dollars; `flops` are its declared operations.
    """

    id: str
    name: str
    kind: str
    submitted: int
    devices: int
    begin: int = 0
    tenant: str = ""
    started: int = -1
    ended: int = -1
    outcome: str = ""
    deadline: int = 0
    attempts: int = 0
    preempted: int = 0
    moved: int = 0
    run: int = 0
    service: int = 0
    wasted: int = 0
    alone: int = 0
    even: int = 0
    contention: float = 1.0
    energy: float = 0.0
    price: float = 0.0
    flops: int = 0

    def packed(self) -> bytes:
        """Return the result in a third of the memory."""
        return pickle.dumps(msgspec.structs.astuple(self))

    @property
    def per_watt(self) -> float:
        """Return the operations per second and watt of a completed job; 0 if unknown."""
        return self.flops / self.energy if self.energy and self.outcome == "done" else 0.0

    @property
    def completion(self) -> int:
        """Return the time from the earliest allowed start to the end, in nanoseconds; -1 if the job has not ended."""
        return max(0, self.ended - self.submitted - self.begin) if self.ended >= 0 else -1

    @property
    def slowdown(self) -> float:
        """Return the bounded slowdown of a job that has ended; 0 if its run time on an empty fleet is unknown."""
        if self.ended < 0 or not self.alone:
            return 0.0
        return max(1.0, max(self.completion, LEAST) / max(self.alone, LEAST))

    @property
    def rho(self) -> float:
        """Return the finish-time fairness; 0 under the same conditions as for `slowdown`."""
        if self.ended < 0 or not self.alone:
            return 0.0
        return self.completion / (self.even * self.contention)


def unpacked(packed: Sequence[bytes]) -> Sequence[JobResult]:
    """Return results from their packed form; each is made when it is read."""
    return Remade(len(packed), lambda: (JobResult(*pickle.loads(one)) for one in packed))  # noqa: S301 our own bytes


class Ratios(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Distribution of ratios; all values are 0 if there are none. Percentiles use the nearest rank."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    worst: float = 0.0


class KindUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one device model during a trial: the mean number of devices, the fraction held, and the fraction that made
    progress. Cores are the kind `cpu`.
    """

    there: float
    held: float
    good: float


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Device-hours that were held without progress, by cause. `share` is their fraction of all device-hours held."""

    restoring: float = 0.0
    saving: float = 0.0
    stalled: float = 0.0
    lost: float = 0.0
    share: float = 0.0


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """Mean numbers over intervals of `width` nanoseconds, from the beginning of the trial: waiting jobs, running jobs,
    and held devices by model.
    """

    width: int
    waiting: tuple[float, ...]
    running: tuple[float, ...]
    held: dict[str, tuple[float, ...]]


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a trial. Durations in nanoseconds, shares from 0 to 1, energy in kWh, money in dollars.

    `energy` is that of all devices while they were present. `per_watt` is the number of completed operations per second
    and watt, of jobs that declare their operations. `price` is that of all devices, `paid` that of held devices.
    `powerless` counts devices of unknown power. `deadlines` and `met` count jobs.
    """

    jobs: int
    done: int
    failed: int
    unfinished: int
    refused: int
    rounds: int
    makespan: int
    completion: Spread
    waiting: Spread
    starting: Spread
    slowdown: Ratios
    jain: float
    rho: Ratios
    unfair: float
    use: dict[str, KindUse]
    stranded: float
    fragmentation: float
    deadlines: int
    met: int
    attempts: int
    preemptions: dict[str, int]
    migrations: int
    overhead: Overhead
    energy: float
    co2: float
    per_watt: float
    price: float
    paid: float
    powerless: int


class _Unit:
    """A unit of a job that has not ended. `open` contains its attempts that have not ended."""

    __slots__ = ("id", "job", "nodes", "open", "spec", "why")

    def __init__(self, name: str, job: "_Job", spec: Unit) -> None:
        self.id, self.job, self.spec = name, job, spec
        self.nodes: frozenset[str] = frozenset()
        self.open: dict[str, _Attempt] = {}
        self.why = ""


class _Attempt:
    """An attempt of a task, from its placement to its end. It holds its resources from `since` on (-1: not yet)."""

    __slots__ = ("cores", "devices", "epoch", "kind", "node", "places", "price", "since", "task", "unit", "watts")

    def __init__(self, task: str, unit: _Unit, epoch: int, node: Node, places: tuple[int, ...], variant: int) -> None:
        shape = unit.spec.shape_of(variant)
        share = shape.share / WHOLE
        held = [device for device in node.devices if device.index in places]
        self.task, self.unit, self.epoch, self.node, self.places = task, unit, epoch, node.name, places
        self.since = -1
        self.cores = shape.cpu / 1000
        self.devices = len(places) * share
        self.kind = model_under(node, places) if places else CPU
        self.watts = sum(device.power for device in held) * share / 1000
        self.price = sum(device.price for device in held) * share / 1e6


class _Job:
    """A job that has not ended; `number` jobs were submitted before it. `active` is the number of its running tasks,
    `since` is the start of the current run, and `crowd` is the integral of contention at submission.
    """

    __slots__ = ("active", "asks", "crowd", "number", "result", "since", "units")

    def __init__(self, number: int, result: JobResult, asks: tuple[str, float], crowd: float) -> None:
        self.number, self.result, self.asks, self.crowd = number, result, asks, crowd
        self.units: list[_Unit] = []
        self.active = 0
        self.since = 0


class _Totals(NamedTuple):
    """Integrals over time (amount times nanoseconds) up to the instant `at`. The tuples of `kinds` are present, held,
    wasted.
    """

    at: int
    kinds: dict[str, tuple[float, float, float]]
    watts: tuple[float, float]
    co2: float
    price: tuple[float, float]
    stranded: float
    free: float
    wanted: float


class _Kind:
    """One device model, or the cores: the numbers present and held now, and the integrals of both over time."""

    __slots__ = ("held", "held_for", "there", "there_for", "wasted_for")

    def __init__(self) -> None:
        self.there = self.held = 0.0
        self.there_for = self.held_for = self.wasted_for = 0.0


class Recorder:
    """Processes the events of a log. `packed` contains the results of the submitted jobs, each once it has ended or the
    log has; `over` counts those that have ended. `alone` returns the run time of a job on an empty fleet; it is called
    once, when the job ends. `spans` is the maximum number of attempts to keep; the longest are kept.
    """

    def __init__(
        self,
        *,
        alone: Callable[[JobState], Alone] = lambda job: Alone(),
        power: PowerModel = POWER,
        spans: int = 0,
    ) -> None:
        self.packed: list[bytes] = []
        self.over = 0
        self._alone = alone
        self._power = power
        self._spans = spans
        self._ledger = Ledger()
        self._began = self._now = self._moved_at = 0
        self._open_jobs: dict[str, _Job] = {}
        self._units: dict[str, _Unit] = {}
        self._attempts: dict[str, _Attempt] = {}
        self._nodes: dict[str, Node] = {}
        self._devices = 0  # present now
        self._kinds: dict[str, _Kind] = {CPU: _Kind()}
        self._asked = {CPU: 0.0, DEVICES: 0.0}
        self._crowd = {CPU: 0.0, DEVICES: 0.0}
        self._waste: dict[tuple[str, str], float] = {}
        self._preemptions: dict[str, int] = {}
        self._migrations = self._running = self._looks = self._looked_at = 0
        self._watts = self._held_watts = self._price = self._held_price = 0.0
        self._co2 = 0.0
        self._watts_for = self._held_watts_for = self._price_for = self._held_price_for = 0.0
        self._stranded = self._free = self._wanted = 0.0
        self._stranded_for = self._free_for = self._wanted_for = 0.0
        self._powerless: set[tuple[str, int]] = set()
        self._changed = True
        self._remembered = 0
        self._width = SECOND
        self._bins: list[dict[str, float]] = []
        self._longest: list[tuple[int, int, Span]] = []
        self._idle: _Totals | None = None
        self._take: dict[type, Callable[..., None]] = {
            JobSubmitted: self._submitted,
            Placed: self._placed,
            Preempted: self._preempted,
            Resized: self._resized,
            Started: self._started,
            Finished: self._finished,
            JobCancelled: self._cancelled,
            JobsCancelled: self._jobs_cancelled,
            UnitsCancelled: self._cancelled,
            DeadlinesMissed: self._cancelled,
            NodeJoined: self._joined,
            NodeLost: self._lost,
        }

    def begin(self, ledger: Ledger, began: int) -> None:
        """Start recording at `began`. `ledger` belongs to the control plane, and is at most one instant ahead of the
        events.
        """
        self._ledger = ledger
        self._began = self._now = self._moved_at = began

    def take(self, event: Event) -> None:
        """Process the next event."""
        take = self._take.get(type(event))
        if take is not None:
            self._advance(event.at)
            self._changed = True
            if not isinstance(event, NodeJoined | NodeLost):
                self._moved_at = event.at
            take(event)

    def waste(self, waste: Waste) -> None:
        """Add time in which a unit holds resources without progress."""
        unit = self._units.get(waste.unit)
        for attempt in unit.open.values() if unit is not None else ():
            kind = self._kinds[attempt.kind]
            kind.wasted_for += attempt.devices * waste.time
            self._kinds[CPU].wasted_for += attempt.cores * waste.time
            attempt.unit.job.result.wasted += round((attempt.devices or attempt.cores) * waste.time)
            for what, amount in ((DEVICES, attempt.devices), (CPU, attempt.cores)):
                key = what, waste.cause
                self._waste[key] = self._waste.get(key, 0.0) + amount * waste.time

    def still_for(self, at: int) -> int:
        """Return the nanoseconds, at `at` on the log's clock, since the last submission, start or end. Return 0 while a
        job runs, and `FOREVER` once all jobs have ended.
        """
        if not self._open_jobs:
            return FOREVER
        return 0 if self._running else at - self._moved_at

    def look(self) -> None:
        """Sample the usable part of the free devices, between two steps. Sample less often once there were many
        samples.
        """
        if not self._changed:
            return
        self._changed = False
        at = (self._now - self._began) // self._width
        if self._looks > OFTEN and at == self._looked_at:
            return
        self._looks, self._looked_at = self._looks + 1, at
        self._stranded, self._free, self._wanted = stranded(self._ledger)

    # --- events
    # ---------------------------------------------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted) -> None:
        job = event.job
        devices = max(unit.shape.gpus * unit.shape.share / WHOLE * len(unit.tasks) for unit in job.units)
        cores = max(unit.shape.cpu / 1000 * len(unit.tasks) for unit in job.units)
        result = JobResult(
            id=job.id,
            name=job.name,
            kind=job.units[0].kind,
            submitted=event.at - self._began,
            devices=max(unit.shape.gpus * len(unit.tasks) for unit in job.units),
            begin=max(unit.begin for unit in job.units),
            tenant=job.tenant,
            deadline=max(unit.deadline for unit in job.units),
            flops=sum(unit.work.flops * len(unit.tasks) for unit in job.units),
        )
        asks = (DEVICES, devices) if devices else (CPU, cores)
        opened = self._open_jobs[job.id] = _Job(len(self.packed), result, asks, self._crowd[asks[0]])
        self.packed.append(b"")
        self._asked[asks[0]] += asks[1]
        for spec in job.units:
            unit = _Unit(f"{job.id}.{spec.name}", opened, spec)
            opened.units.append(unit)
            self._units[unit.id] = unit

    def _placed(self, event: Placed) -> None:
        unit = self._units[event.unit]
        for attempt in list(unit.open.values()):  # a lost node may still hold them: the new epoch fences them
            self._close(attempt, event.at, "lost")
        result = unit.job.result
        result.attempts += 1
        nodes = frozenset(spot.node for spot in event.spots)
        if unit.nodes and nodes != unit.nodes:
            result.moved += 1
            self._migrations += 1
        unit.nodes = nodes
        unit.why = event.why.sentence() if self._spans else ""
        for task, spot in zip(unit.spec.tasks, event.spots, strict=False):  # an elastic unit may get fewer
            self._seat(unit, task.name, spot, event.epoch, event.variant, -1 if event.queued else event.at)

    def _seat(self, unit: _Unit, task: str, spot: Spot, epoch: int, variant: int, at: int) -> None:
        """Assign a place to a task. The task holds the place from the instant `at`, or not yet if `at` is -1."""
        name = f"{unit.job.result.id}.{task}"
        attempt = _Attempt(name, unit, epoch, self._nodes[spot.node], spot.devices, variant)
        unit.open[name] = self._attempts[name] = attempt
        if at >= 0:
            self._hold(attempt, at)

    def _resized(self, event: Resized) -> None:
        unit, state = self._units[event.unit], self._ledger.jobs.unit(event.unit)
        variant = state.variant if state is not None else 0
        for index, spot in event.joins:
            self._seat(unit, unit.spec.tasks[index].name, spot, event.epoch, variant, event.at)

    def _hold(self, attempt: _Attempt, at: int) -> None:
        attempt.since = at
        self._add_held(attempt, 1)
        job = attempt.unit.job
        if not job.active:
            job.since = at
            self._running += 1
        job.active += 1
        if job.result.started < 0:
            job.result.started = at - self._began

    def _add_held(self, attempt: _Attempt, sign: int) -> None:
        self._kinds[CPU].held += sign * attempt.cores
        if attempt.devices:
            self._kinds[attempt.kind].held += sign * attempt.devices
        self._held_watts += sign * attempt.watts
        self._held_price += sign * attempt.price

    def _preempted(self, event: Preempted) -> None:
        self._units[event.unit].job.result.preempted += 1
        self._preemptions[event.cause] = self._preemptions.get(event.cause, 0) + 1

    def _started(self, event: Started) -> None:
        attempt = self._attempts.get(event.task)
        if attempt is not None and attempt.epoch == event.epoch and attempt.since < 0:
            self._hold(attempt, event.at)

    def _finished(self, event: Finished) -> None:
        attempt = self._attempts.get(event.task)
        if attempt is not None and attempt.epoch == event.epoch:
            if attempt.since < 0 and event.ending.outcome not in (
                "returned",
                "lost",
            ):  # too short: it ended before its start was reported
                self._ran_unseen(attempt, event.at, event.ending.run)
            self._close(attempt, event.at, event.ending.outcome)
        self._end_if_over(event.task.partition(".")[0], event.at)

    def _ran_unseen(self, attempt: _Attempt, at: int, run: int) -> None:
        self._hold(attempt, at)
        attempt.since = at - run
        if attempt.unit.job.active == 1:
            attempt.unit.job.since = at - run
        result = attempt.unit.job.result
        result.started = min(result.started, at - run - self._began)
        self._kinds[CPU].held_for += attempt.cores * run
        if attempt.devices:
            self._kinds[attempt.kind].held_for += attempt.devices * run
        self._held_watts_for += attempt.watts * run
        self._held_price_for += attempt.price * run

    def _close(self, attempt: _Attempt, at: int, outcome: str) -> None:
        """Remove an attempt that has ended."""
        del self._attempts[attempt.task], attempt.unit.open[attempt.task]
        self._release(attempt, at, outcome)

    def _release(self, attempt: _Attempt, at: int, outcome: str) -> None:
        """Account for the end of an attempt's holding."""
        if attempt.since < 0:
            return
        self._add_held(attempt, -1)
        job, held = attempt.unit.job, at - attempt.since
        job.active -= 1
        result = job.result
        if not job.active:
            result.run += at - job.since
            self._running -= 1
        result.service += round((attempt.devices or attempt.cores) * held)
        result.energy += self._power.busy * attempt.watts * held / SECOND
        result.price += attempt.price * held / HOUR
        if self._spans:
            self._remember(attempt, at, outcome)
        attempt.since = -1

    def _remember(self, attempt: _Attempt, at: int, outcome: str) -> None:
        result = attempt.unit.job.result
        span = Span(
            task=attempt.task,
            job=result.id,
            epoch=attempt.epoch,
            node=attempt.node,
            devices=attempt.places,
            priority=attempt.unit.spec.priority.name.lower(),
            since=attempt.since - self._began,
            until=at - self._began,
            outcome=outcome,
            why=attempt.unit.why,
        )
        self._remembered += 1
        entry = (span.until - span.since, -self._remembered, span)
        if len(self._longest) < self._spans:
            heapq.heappush(self._longest, entry)
        else:
            heapq.heappushpop(self._longest, entry)

    def _cancelled(self, event: JobCancelled | UnitsCancelled | DeadlinesMissed) -> None:
        self._end_if_over(event.job, event.at)

    def _jobs_cancelled(self, event: JobsCancelled) -> None:
        for job in event.jobs:
            self._end_if_over(job, event.at)

    def _end_if_over(self, name: str, at: int) -> None:
        state, job = self._ledger.jobs.get(name), self._open_jobs.get(name)
        if state is None or not state.ended or job is None or job.active:
            return
        result = job.result
        result.ended = at - self._began
        result.outcome = next((unit.status for unit in state.units if unit.status != "done"), "done")
        lived = result.ended - result.submitted
        what, amount = job.asks
        if lived:
            result.contention = max(1.0, (self._crowd[what] - job.crowd) / lived)
        result.alone, result.even = self._alone(state)
        self._asked[what] -= amount
        self.packed[job.number] = result.packed()
        self.over += 1
        del self._open_jobs[name]
        for unit in job.units:
            del self._units[unit.id]
        job.units.clear()  # they refer to the job: break the cycle, so that all are freed at once
        if not self._open_jobs:
            self._idle = self._totals()

    def _joined(self, event: NodeJoined) -> None:
        self._leave(event.node.name)
        self._nodes[event.node.name] = event.node
        self._add_there(event.node, 1)

    def _lost(self, event: NodeLost) -> None:
        for attempt in self._attempts.values():
            if attempt.node == event.name:  # attempts that had not started there can still start when the node is back
                self._release(attempt, event.at, "lost")
        self._leave(event.name)

    def _leave(self, name: str) -> None:
        node = self._nodes.pop(name, None)
        if node is not None:
            self._add_there(node, -1)

    def _add_there(self, node: Node, sign: int) -> None:
        self._kinds[CPU].there += sign * node.cpu / 1000
        for device in node.devices:
            self._kinds.setdefault(device.model or device.kind, _Kind()).there += sign
            self._devices += sign
            self._watts += sign * device.power / 1000
            self._price += sign * device.price / 1e6
            if not device.power:
                self._powerless.add((node.name, device.index))

    # --- time --------------------------------------------------------------------------------------------------------

    def _advance(self, at: int) -> None:
        """Integrate the current state from the last change up to this instant."""
        took = at - self._now
        if took <= 0:
            return
        for kind in self._kinds.values():
            kind.there_for += kind.there * took
            kind.held_for += kind.held * took
        self._watts_for += self._watts * took
        self._held_watts_for += self._held_watts * took
        if self._power.intensity is not None:
            since, until = ((instant - self._began) / SECOND - MONDAY * HOUR_SECONDS for instant in (self._now, at))
            watts = self._power.joules(self._watts, self._held_watts)
            self._co2 += watts * (self._power.intensity.integral(until) - self._power.intensity.integral(since)) / 3.6e6
        self._price_for += self._price * took
        self._held_price_for += self._held_price * took
        self._stranded_for += self._stranded * took
        self._free_for += self._free * took
        self._wanted_for += self._wanted * took
        for what, asked in self._asked.items():
            there = self._kinds[CPU].there if what == CPU else self._devices
            self._crowd[what] += (asked / there if there else 1.0) * took
        self._draw(self._now - self._began, at - self._began)
        self._now = at

    def _totals(self) -> _Totals:
        return _Totals(
            at=self._now,
            kinds={name: (kind.there_for, kind.held_for, kind.wasted_for) for name, kind in self._kinds.items()},
            watts=(self._watts_for, self._held_watts_for),
            co2=self._co2,
            price=(self._price_for, self._held_price_for),
            stranded=self._stranded_for,
            free=self._free_for,
            wanted=self._wanted_for,
        )

    def _draw(self, since: int, until: int) -> None:
        """Add the state between two instants to the bins that they overlap; double the bin width if needed."""
        while until > self._width * POINTS:
            pairs = zip(self._bins[::2], [*self._bins[1::2], {}], strict=False)
            self._bins = [{name: a.get(name, 0.0) + b.get(name, 0.0) for name in a | b} for a, b in pairs]
            self._width *= 2
        levels = {name: kind.held for name, kind in self._kinds.items() if kind.held}
        levels[WAITING], levels[RUNNING] = len(self._open_jobs) - self._running, self._running
        while since < until:
            place = since // self._width
            while len(self._bins) <= place:
                self._bins.append({})
            end = min(until, (place + 1) * self._width)
            within = self._bins[place]
            for name, level in levels.items():
                within[name] = within.get(name, 0.0) + level * (end - since)
            since = end

    # --- results
    # --------------------------------------------------------------------------------------------------------

    def finish(self, at: int) -> None:
        """Close all attempts and jobs at the end of the log; `at` is on the log's clock."""
        self._advance(at)
        for attempt in list(self._attempts.values()):
            self._close(attempt, at, "")
        for name in list(self._open_jobs):
            self._end_if_over(name, self._ledger.jobs[name].ended)
        for job in self._open_jobs.values():
            self.packed[job.number] = job.result.packed()

    def spans(self) -> tuple[Span, ...]:
        """Return the longest attempts, ordered by start."""
        return tuple(sorted((span for _, _, span in self._longest), key=lambda span: (span.since, span.task)))

    def forgotten(self) -> int:
        """Return the number of shorter attempts that were not kept."""
        return self._remembered - len(self._longest)

    def curves(self) -> Curves:
        whole = [self._width] * len(self._bins)
        if whole:
            whole[-1] = max(1, self._now - self._began - self._width * (len(whole) - 1))

        def curve(name: str) -> tuple[float, ...]:
            return tuple(within.get(name, 0.0) / width for within, width in zip(self._bins, whole, strict=True))

        held = {name: curve(name) for name, kind in sorted(self._kinds.items()) if kind.there_for}
        return Curves(width=self._width, waiting=curve(WAITING), running=curve(RUNNING), held=held)

    def measures(self, *, rounds: int = 0, refused: int = 0) -> Measures:
        totals = self._idle if self._idle is not None and not self._open_jobs else self._totals()
        jobs, slowdowns, rhos = unpacked(self.packed), array("d"), array("d")
        first, last = FOREVER, totals.at - self._began if self._open_jobs else 0
        done = due = met = attempts = flops = 0
        for job in jobs:
            first = min(first, job.submitted)
            last = max(last, job.ended)
            attempts += job.attempts
            due += bool(job.deadline)
            if job.outcome == "done":
                done += 1
                flops += job.flops
                met += bool(job.deadline) and job.begin + job.completion <= job.deadline
            if job.ended >= 0 and job.alone:
                slowdowns.append(job.slowdown)
                rhos.append(job.rho)
        energy = self._power.joules(*totals.watts) / SECOND / 3.6e6
        return Measures(
            jobs=len(jobs),
            done=done,
            failed=self.over - done,
            unfinished=len(jobs) - self.over,
            refused=refused,
            rounds=rounds,
            makespan=max(0, last - first) if jobs else 0,
            completion=spread(job.completion for job in jobs if job.ended >= 0),
            waiting=spread(job.completion - job.run for job in jobs if job.ended >= 0),
            starting=spread(job.started - job.submitted - job.begin for job in jobs if job.started >= 0),
            slowdown=ratios(slowdowns),
            jain=jain(slowdowns),
            rho=ratios(rhos),
            unfair=sum(rho > UNFAIR for rho in rhos) / len(rhos) if rhos else 0.0,
            use=_use(totals, self._began),
            stranded=totals.stranded / totals.wanted if totals.wanted else 0.0,
            fragmentation=totals.stranded / totals.free if totals.free else 0.0,
            deadlines=due,
            met=met,
            attempts=attempts,
            preemptions=dict(sorted(self._preemptions.items())),
            migrations=self._migrations,
            overhead=self._overhead(totals),
            energy=energy,
            co2=energy * self._power.kg_per_kwh if self._power.intensity is None else totals.co2,
            per_watt=flops / (energy * 3.6e6) if energy else 0.0,
            price=totals.price[0] / HOUR,
            paid=totals.price[1] / HOUR,
            powerless=len(self._powerless),
        )

    def _overhead(self, totals: _Totals) -> Overhead:
        """Return the overhead of devices, or of cores if there are no devices."""
        kinds = [name for name, (there, _, _) in totals.kinds.items() if name != CPU and there]
        what = DEVICES if kinds else CPU
        held = sum(totals.kinds[name][1] for name in kinds or [CPU])
        hours = {cause: wasted / HOUR for (of, cause), wasted in self._waste.items() if of == what}
        return Overhead(**hours, share=sum(hours.values()) * HOUR / held if held else 0.0)


def ratios(values: Sequence[float]) -> Ratios:
    """Return the distribution of the values.

    >>> ratios([1.0, 2.0, 6.0]).mean, ratios([1.0, 2.0, 6.0]).p50
    (3.0, 2.0)
    """
    ordered = sorted(values)
    if not ordered:
        return Ratios()
    p50, p95, p99 = (ordered[-(-len(ordered) * part // 100) - 1] for part in (50, 95, 99))
    return Ratios(count=len(ordered), mean=sum(ordered) / len(ordered), p50=p50, p95=p95, p99=p99, worst=ordered[-1])


def jain(values: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 if all values are equal, 1/n if one has everything, and 1 without values.

    >>> jain([1.0, 1.0, 4.0])
    0.6666666666666666
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def stranded(ledger: Ledger) -> tuple[float, float, float]:
    """Return the number of free devices that no waiting unit could use, the number of free devices, and the number of
    all devices; zeros while no unit waits for devices.
    """
    fleet = ledger.columns.room()
    usable = np.zeros(len(fleet), bool)
    seen = set()
    for unit in ledger.queues.first(SHAPES):
        asks = unit.shape, unit.spec.least or len(unit.spec.tasks)
        if not unit.shape.gpus or asks in seen:
            continue
        seen.add(asks)
        shape, tasks = asks
        room = capacity(fleet, shape, ability(fleet, shape), fleet.free, fleet.device_memory, fleet.device_share)
        if room.sum() >= tasks:
            usable |= room > 0
    if not seen:
        return 0.0, 0.0, 0.0
    share = fleet.device_share
    left = np.where(share == WHOLE, WHOLE, np.clip(share - fleet.device_spare, 0, None))  # of a shared one: what may be
    free = left.sum(axis=1) * (fleet.closed == 0) / WHOLE
    there = (fleet.device_model >= 0).sum(axis=1) * (fleet.closed == 0)
    return float(free[~usable].sum()), float(free.sum()), float(there.sum())


def _use(totals: _Totals, began: int) -> dict[str, KindUse]:
    took = max(1, totals.at - began)
    return {
        name: KindUse(there=there / took, held=held / there, good=max(0.0, held - wasted) / there)
        for name, (there, held, wasted) in sorted(totals.kinds.items())
        if there
    }
