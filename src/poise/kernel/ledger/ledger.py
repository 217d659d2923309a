"""The ledger: the one mutable object of the control plane, a pure function of the log.

Rules it keeps:

* `apply` is the only way to change it, is deterministic, and never looks at anything but the event and itself.
* What `state()` encodes is the whole truth; every index beside it is derived and can be rebuilt (`check` compares).
* A node's room is counted by *pools*: the attempts of one shape on one node share `slots`, each slot holding the
  shape's room once. An attempt placed `queued` joins a pool without a slot of its own and starts when another of the
  pool ends; it may wait behind brief work only, never behind the pool's `long` attempts. When attempts end, `slots`
  shrinks to the number of attempts left; the agent keeps the same rule, so both sides agree on what may run without a
  message.
* A unit's `epoch` counts its placements, and the times that it grew in place. An attempt has the epoch in which its
  task was started; whatever carries an older one is history.
* A gang that resizes loses members, lets some go and gets new ones while the others run on. Those are its members who
  have joined and are not leaving, ranked by the epoch in which they joined, and then by their number.
* Instants begin at 1: an instant of 0 means that it has not happened.
* What is looped over has an order that survives encoding: jobs as submitted, nodes and queues by name, what waits in a
  queue by rank. A policy that loops over its view then decides the same after a restart and in a replay.

Life of a unit: waiting (for `needs`) → pending → active → done | failed | cancelled, or skipped when something it needs
failed. A unit that serves calls rests as *waiting* while there is nothing for it to do. A lost attempt brings it back
to pending, under its retry policy. While its node is silent an attempt is `recovering`: it goes on if the node comes
back, and is placed again elsewhere if its retry policy allows that.
"""

import zlib
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

import msgspec

from poise.kernel.book import CallBook
from poise.kernel.ledger.active import Active
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.cordons import Cordons
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.leader import Leader
from poise.kernel.ledger.nodes import Nodes
from poise.kernel.ledger.order import ordinal
from poise.kernel.ledger.places import NodeState, device_key
from poise.kernel.ledger.profiles import Profiles
from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.quotas import Quotas
from poise.kernel.ledger.room import Handlers, InvariantBroken, Room, hold, hold_same
from poise.kernel.ledger.state import JobState, State, decode, encoder, job_status, queue_of
from poise.kernel.ledger.tasks import TaskState, is_loss
from poise.kernel.ledger.tokens import Tokens
from poise.kernel.ledger.units import CAUSES, PAST_ORDERS, UnitState, UnitStatus, deciding_ending
from poise.model import graph
from poise.model.decisions import Spot
from poise.model.events import (
    Called,
    CallsClosed,
    CallTried,
    DeadlinesMissed,
    Event,
    Finished,
    FunctionTold,
    JobCancelled,
    JobsCancelled,
    JobSubmitted,
    Lagging,
    Placed,
    Preempted,
    Resized,
    Returned,
    SpeedupsTold,
    Started,
    Straggling,
    TrainingTold,
    UnitsCancelled,
)
from poise.model.fleet import (
    CLASSES,
    CONDITIONS,
    CORDONED,
    CPU,
    DEVICES,
    HOT,
    MEMORY,
    NETWORK,
    Fleet,
    Phased,
    PoolView,
    Resident,
    Straggler,
    model_under,
)
from poise.model.jobs import ALL, Ending, Outcome, Priority, Speedups, Unit
from poise.model.profiles import estimate_run, outlasting
from poise.model.resources import PLENTY, WHOLE
from poise.model.views import MOST_FOLLOWERS, Candidate, Follower, Snapshot
from poise.units import SECOND

NO_RATES: Mapping[str, float] = {}
"""Always the same: what was worked out with these rates is found by it."""

STEADY = 60 * SECOND
"""A gang that has been as it is for so long before it loses a member is not one that loses them again and again."""

PASSED_OVER = -(2**30)
"""What a part of a task still waits for (`missing`) that was cancelled before its turn: so much less than nothing that
no end of what it needed makes it more."""

IN_ORDER = ("backlog", "memory", "quotas", "running", "yielded")
"""Maps of a view that a policy may loop over. The others are for look-ups by key, and have no fixed order."""


class Ledger:
    """Jobs, nodes and what holds what, as of a revision. Build it by applying events, or from an encoded state."""

    def __init__(self, state: State | None = None) -> None:
        self._state = state = state or State()
        self._changes = Changes()
        self.tokens = Tokens(state)
        self.profiles = Profiles(state)
        self.jobs = Jobs(state)
        self.active = Active(self.jobs, self._changes)
        self.queues = Queues(state, self.jobs, self.active, self._changes)
        self.nodes = Nodes(state, self.active, self.queues, self._changes)
        self.cordons = Cordons(state, self.active, self._changes)
        self.quotas = Quotas(state, self.jobs, self.active, self._changes)
        self.leader = Leader(state, self.queues)
        self._rooms: tuple[Room, ...] = (
            self.tokens,
            self.profiles,
            self.jobs,
            self.active,
            self.queues,
            self.nodes,
            self.cordons,
            self.quotas,
            self.leader,
        )
        self._phased: dict[str, UnitState] = {}
        self._stragglers: dict[str, UnitState] = {}
        self._speedups: dict[str, Speedups] = {}
        self._fleet: Fleet | None = None
        self._moved: set[str] = set()  # nodes whose room is known, and not what runs there
        self._shared: set[str] = set()  # nodes of whose devices parts were held when their room was looked at
        self._open = [0, 0, 0, 0]  # CPU and devices of the open nodes: all, then what is free
        self._opened: dict[str, tuple[int, int, int, int]] = {}  # of each of them
        for unit in self.jobs.units.values():
            if unit.speedups is not None:
                self._speedups[unit.id] = unit.speedups
        for unit in self.active.values():
            self._index_phase(unit)
            self._index_straggling(unit)
        self._handlers = self._assembled()

    # --- whole state -------------------------------------------------------------------------------------------------

    @classmethod
    def decode(cls, data: bytes) -> "Ledger":
        """From what `encode` or `compressed` gave."""
        return cls(decode(data))

    def encode(self) -> bytes:
        """Canonical: equal states give equal bytes."""
        return encoder.encode(self._state)

    def compressed(self) -> bytes:
        """The same for a checkpoint: a long queue repeats itself, and the log can take in nothing else while it is
        written.
        """
        return zlib.compress(self.encode(), 1)

    def keeping(self, jobs: Collection[str], priorities: Mapping[str, Priority] | None = None) -> "Ledger":
        """A copy that knows these jobs only, some of them with other `priorities` of what is not over. What holds room
        has to be among them.
        """
        state = decode(self.encode())
        state.jobs = {job_id: job for job_id, job in state.jobs.items() if job_id in jobs}
        state.finished = [job_id for job_id in state.finished if job_id in state.jobs]
        for job_id, priority in (priorities or {}).items():
            job = state.jobs[job_id]
            for unit in job.units:
                if not unit.over:
                    unit.spec = msgspec.structs.replace(unit.spec, priority=priority)
                    unit.queue = queue_of(job, unit.spec) + (f"/{unit.id}" if unit.barred else "")
        state.held = {}  # of queues that may not be there any more; reasons are told anew
        return Ledger(state)

    @property
    def revision(self) -> int:
        return self._state.revision

    @property
    def now(self) -> int:
        """The instant of the last event."""
        return self._state.now

    def followers(self) -> tuple[Follower, ...]:
        """Units that wait for what runs or may be placed, and for what waits for that: the nearest, `MOST_FOLLOWERS` at
        most. They do not wait for what is known to be brief and has begun; what waits for more than so many is too far
        away.
        """
        found: dict[str, UnitState] = {}
        jobs: set[str] = set()
        shown = (self.jobs.units[name] for queue in self.queues.values() for name in islice(queue, self.queues.head()))
        before = deque([*self.active.values(), *shown])
        while before and len(found) < MOST_FOLLOWERS:
            unit = before.popleft()
            after = list(self.jobs.dependents.get(unit.id, ()))
            if unit.job not in jobs:
                jobs.add(unit.job)
                after += [of for job in self.jobs.awaited_by.get(unit.job, ()) for of in self.jobs[job].units]
            for of in after:
                if of.status == "waiting" and of.id not in found:
                    found[of.id] = of
                    before.append(of)
        near = list(islice(found.values(), MOST_FOLLOWERS))
        awaited = {name for unit in near for name in self.jobs[unit.job].after if name in self.jobs}
        others = {name: [unit for unit in self.jobs[name].units if not unit.over] for name in awaited}
        followers = []
        for unit in near:
            needs = [need for name in unit.spec.needs if not (need := self.jobs.units[f"{unit.job}.{name}"]).over]
            for name in self.jobs[unit.job].after:
                needs += others.get(name, ())
            if 0 < len(needs) <= MOST_FOLLOWERS:
                names = frozenset(need.id for need in needs if need.status != "active" or not need.brief)
                followers.append(Follower(self.candidate(unit), names))
        return tuple(followers)

    # --- applying ----------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take in one event; the revision grows by one."""
        if event.at < max(1, self._state.now):
            raise InvariantBroken(f"event at {event.at} after {self._state.now}: {event}")
        self._state.revision += 1
        self._handlers[type(event)](event)
        self._state.now = event.at

    def _job_submitted(self, event: JobSubmitted) -> None:
        job = self.jobs.add(event)
        self._plan_graph(job.units, event.at)
        after = [self.jobs[other] for other in job.after if other in self.jobs]
        if any(other.ended and job_status(other) != "done" for other in after):
            self._skip(job.units, event.at)
            self._end_if_over(job, event.at)
        elif not job.awaited:
            self._release_roots(job, event.at)

    def _job_cancelled(self, event: JobCancelled) -> None:
        job = self.jobs[event.job]
        self._cancel_job(job, event.by, event.at)
        self._end_if_over(job, event.at)

    def _jobs_cancelled(self, event: JobsCancelled) -> None:
        """All of them before any ends: what comes after another one of them is cancelled, and not skipped."""
        jobs = [self.jobs[job_id] for job_id in event.jobs]
        for job in jobs:
            self._cancel_job(job, event.by, event.at)
        self._end_those_over(jobs, event.at)

    def _cancel_job(self, job: JobState, by: str, at: int) -> None:
        job.cancelled_by = by or "user"
        if job.calls is not None:
            job.calls.closed = job.calls.closed or "cancelled"
        self._cancel(job.units, at)

    def _units_cancelled(self, event: UnitsCancelled) -> None:
        job, units = self.jobs[event.job], [self.jobs.units[unit] for unit in event.units]
        self._cancel_some(job, units, event.at, turns=event.turns)
        self._end_if_over(job, event.at)

    def _deadlines_missed(self, event: DeadlinesMissed) -> None:
        job, units = self.jobs[event.job], [self.jobs.units[missed.unit] for missed in event.units]
        for unit, missed in zip(units, event.units, strict=True):
            unit.missed = missed
        self._cancel_some(job, units, event.at, turns=True)
        self._plan_again(job)  # what is left is due by the deadlines that are left
        self._end_if_over(job, event.at)

    def _cancel_some(self, job: JobState, units: Sequence[UnitState], at: int, *, turns: bool) -> None:
        """Units of a job, and what needs them. A part that was to run now passes its `turns` on; one that had none yet
        is passed over when its own comes.
        """
        passing: list[UnitState] = []
        for unit in units if turns else ():
            if unit.spec.at_most and unit.status in ("waiting", "pending"):
                if unit.spec.tasks[0].part < unit.spec.at_most + job.turns.get(unit.spec.name.partition("[")[0], 0):
                    passing.append(unit)
                else:
                    unit.missing = PASSED_OVER
        self._cancel(units, at)
        for unit in units:
            if unit.status == "cancelled":
                self._skip(self.jobs.dependents.get(unit.id, ()), at)
        for unit in passing:
            self._pass_turn(job, unit.spec, at)

    def _cancel(self, units: Iterable[UnitState], at: int) -> None:
        """What has not started never will; what holds room is cancelled once its attempts have ended."""
        for unit in units:
            if unit.status in ("waiting", "pending"):
                book = self.jobs[unit.job].calls
                if book is not None:
                    book.called_up -= unit.status == "pending"
                self._close(unit, "cancelled", at)
            elif unit.status == "active":
                unit.stopping = "cancel"
                self.active.recovering.pop(unit.id, None)
                self._changes.mark(unit)

    def _placed(self, event: Placed) -> None:
        unit = self.jobs.units[event.unit]
        if unit.status == "active":  # recovering on a lost node: the new epoch fences the old attempts
            self._drop_attempts(unit, event.at)
        elif unit.status == "pending":
            self.queues.remove(unit)
            unit.phase = unit.phase_told
        else:
            raise InvariantBroken(f"{event.unit} was placed while {unit.status}")
        unit.status, unit.epoch, unit.placed = "active", event.epoch, event.at
        self.queues.forget_yields(unit)
        unit.queued, unit.brief, unit.why = event.queued, event.brief, event.why
        unit.stopping, unit.not_before, unit.avoid, unit.leases, unit.lags = "", 0, "", {}, None
        unit.size, unit.variant = len(event.spots), event.variant
        unit.generation = unit.founded = unit.resized = unit.losses = unit.carried = 0
        self.active.add(unit)
        for index, spot in enumerate(event.spots):  # an elastic unit may get fewer
            self._seat(unit, index, spot, queued=event.queued)

    def _seat(self, unit: UnitState, index: int, spot: Spot, *, queued: bool = False) -> None:
        """A task's next attempt gets its place."""
        task = unit.tasks[index]
        task.status, task.node, task.devices, task.cpus = "queued", spot.node, spot.devices, ()
        task.pid = task.started = task.ended = task.straggles = task.epoch = 0
        task.ending = None
        shape = unit.shape
        self.active.seat(unit, index, spot.node, shape)
        self.quotas.count(unit, shape, 1)
        self.nodes.take(spot.node, unit, shape, spot.devices, queued=queued)
        self._changes.residents.pop(unit.id, None)
        self._changes.rows.add(spot.node)

    def _preempted(self, event: Preempted) -> None:
        unit = self.jobs.units[event.unit]
        if unit.status != "active" or unit.epoch != event.epoch:
            raise InvariantBroken(
                f"{event.unit}#{event.epoch} was to yield, but is {unit.status} in epoch {unit.epoch}"
            )
        unit.stopping = event.cause
        if event.cause in ("yield", "shrink"):
            unit.preempted += 1
        else:
            unit.moved += 1
        self.queues.note_order(unit, event)
        self.active.recovering.pop(unit.id, None)
        self._changes.mark(unit)

    # --- gangs that resize -------------------------------------------------------------------------------------------

    def _resized(self, event: Resized) -> None:
        unit = self.jobs.units[event.unit]
        if not unit.is_whole or event.epoch != unit.epoch + bool(event.joins):
            raise InvariantBroken(f"{event.unit} was resized in epoch {event.epoch}, but is {unit.status}")
        self._settle_account(unit, event.at)
        for index in event.leaves:
            unit.tasks[index].leaving = True
        if event.joins:
            unit.founded = unit.placed_in
            for task in unit.tasks:
                if task.active and not task.epoch:
                    task.epoch = unit.epoch
            unit.epoch = event.epoch
        unit.size += len(event.joins) - len(event.leaves)
        for index, spot in event.joins:
            self._seat(unit, index, spot)
        unit.generation = event.generation
        self.queues.note_order(unit, event)
        self._changes.mark(unit)

    def _goes_on_without(self, unit: UnitState, index: int) -> bool:
        """Whether the others of its gang go on, now that a member has ended. What has lost all but members that have
        come to their end is not resized any more.
        """
        ending, others = unit.tasks[index].ending, [of for of in unit.members if of != index]
        return (
            unit.resizes
            and ending is not None
            and is_loss(ending)
            and not unit.stopping
            and len(others) >= max(1, unit.spec.least)
            and all(unit.tasks[of].active for of in others)
        )

    def _settle_account(self, unit: UnitState, at: int) -> None:
        """What it has done in the size that it has had until now."""
        began = [task.started for index in unit.members if (task := unit.tasks[index]).started]
        if began:
            run = max(0, at - max(min(began), unit.resized))
            unit.carried += run * unit.size
            unit.attained += run * unit.size * max(1, unit.shape.gpus)
        if not unit.progress:
            unit.outlived = max(unit.outlived, (unit.saved + unit.carried) // unit.spec.least)
        unit.resized, unit.lags = at, None
        self._stragglers.pop(unit.id, None)

    # --- calls -------------------------------------------------------------------------------------------------------

    def _function_told(self, event: FunctionTold) -> None:
        self._book(event.job).functions.append(event.function)

    def _called(self, event: Called) -> None:
        job = self.jobs[event.job]
        book = self._book(event.job)
        if event.call.number <= book.last or book.closed:
            raise InvariantBroken(f"call {event.call.number} of {event.job} after {book.last}, closed: {book.closed!r}")
        book.accept(event.call)
        if book.called_up < len(job.units) and not job.awaited:
            self._call_up(job, event.at)

    def _call_tried(self, event: CallTried) -> None:
        tries = self._book(event.job).tries
        tries[str(event.number)] = tries.get(str(event.number), 0) + 1
        self._credit(event.worker)

    def _returned(self, event: Returned) -> None:
        job = self.jobs[event.job]
        book = self._book(event.job)
        book.close(event.result)
        self._credit(event.worker)
        if len(book.open) < book.called_up and not job.ended:
            self._call_up(job, event.at)

    def _credit(self, worker: str) -> None:
        """A worker that got as far as a call can be started: what ends it from now on is not counted against it."""
        found = self.jobs.tasks.get(worker)
        if found is not None:
            found[0].tries = found[0].lost = 0

    def _calls_closed(self, event: CallsClosed) -> None:
        job = self.jobs[event.job]
        self._book(event.job).closed = event.why or "closed"
        if not job.ended:
            self._call_up(job, event.at)

    def _book(self, job: str) -> CallBook:
        book = self.jobs[job].calls
        if book is None:
            raise InvariantBroken(f"{job} serves no calls")
        return book

    def _call_up(self, job: JobState, at: int) -> None:
        """As many workers wait to be placed or run as there are open calls; the others rest. Those that run are left
        to: they may be told to end. When nothing is open and nothing will come, those that do not run are done.
        """
        book = self._book(job.id)
        if book.over:
            for unit in job.units:
                if unit.status in ("waiting", "pending"):
                    book.called_up -= unit.status == "pending"
                    self._close(unit, "done", at)
            self._end_if_over(job, at)
            return
        wanted = min(len(job.units), len(book.open))
        for unit in job.units if book.called_up < wanted else ():
            if unit.status == "waiting" and book.called_up < wanted:
                book.called_up += 1
                self.queues.make_pending(unit, at)
        for unit in reversed(job.units) if book.called_up > wanted else ():
            if unit.status == "pending" and book.called_up > wanted:
                book.called_up -= 1
                self.queues.remove(unit)
                unit.status, unit.not_before = "waiting", 0

    def _rest(self, unit: UnitState, job: JobState, book: CallBook, outcome: Outcome, at: int) -> None:
        """A worker has ended. One that cannot be kept running fails its job, and with it what is open."""
        book.called_up -= 1
        retry = unit.spec.retry
        failed = outcome not in ("done", "stopped", "returned")
        if failed:
            unit.count_try(outcome)
        if book.over and not unit.stopping:
            self._conclude(unit, "done", at)
        elif failed and not retry.allows(outcome, unit.tries, 0, unit.lost):
            self._conclude(unit, "failed", at)
            for other in job.units:
                if other.status in ("waiting", "pending"):
                    book.called_up -= other.status == "pending"
                    self._close(other, "skipped", at)
            book.closed = book.closed or f"{unit.spec.name} failed"
            self._end_if_over(job, at)
        else:
            unit.clear()
            unit.status, unit.not_before = "waiting", 0
            if failed and outcome != "lost":
                unit.not_before = at + retry.delay(unit.tries)
            self._call_up(job, at)

    # --- attempts ----------------------------------------------------------------------------------------------------

    def _started(self, event: Started) -> None:
        unit, index = self.jobs.tasks[event.task]
        task = unit.tasks[index]
        task.status, task.pid, task.cpus = "running", event.pid, event.cpus
        task.started = task.started or event.at
        self._changes.residents.pop(unit.id, None)
        self._changes.rows.add(task.node)

    def _finished(self, event: Finished) -> None:
        unit, index = self.jobs.tasks[event.task]
        task, ending = unit.tasks[index], event.ending
        if not task.active or event.epoch != unit.epoch_of(index):
            raise InvariantBroken(f"{event.task}#{event.epoch} finished, but is {task.status} in epoch {unit.epoch}")
        self._give_back(unit, index)
        if event.until:
            unit.leases[task.node] = event.until
        task.status, task.ended, task.ending = "ended", event.at, ending
        self.nodes.count_end(task.node, ending)
        if ending.outcome != "returned":
            task.started = task.started or max(unit.placed, event.at - ending.run)
        if task.leaving:
            pass  # how it ended says nothing of the gang
        elif ending.outcome == "done":
            if self.jobs[unit.job].calls is None:  # how long a worker is kept says nothing of what it does
                model = model_under(self.nodes[task.node].node, task.devices)
                self.profiles.learn(unit, unit.run_in_size(task), ending, model)
        elif ending.outcome in ("failed", "signal", "oom", "hung", "timeout"):
            self.profiles.failed(unit.spec.kind)
        if ending.outcome == "stopped" and unit.stopping in CAUSES and not task.leaving:
            unit.attained += unit.run_in_size(task) * max(1, unit.shape.gpus)
        goes_on = task.leaving or self._goes_on_without(unit, index)
        if ending.outcome != "done" and not goes_on:
            self._keep_progress(unit, task, ending.progress)
        if goes_on:
            if not task.leaving:
                since = max(unit.placed, unit.resized)
                if event.at > since or not unit.losses:  # who is lost with another does not count twice
                    unit.losses = 1 + unit.losses * (event.at - since < STEADY)
                self._settle_account(unit, event.at)
                unit.size, unit.generation = unit.size - 1, unit.generation + 1
            unit.forget_member(index)
            self.active.index_recovering(unit)
            self._changes.mark(unit)
        elif ending.outcome != "done" and not unit.stopping and len(unit.tasks) > 1:
            unit.stopping = "gang"
            self._changes.mark(unit)
        elif unit.resizes:
            self._changes.mark(unit)
        if self.active.recovering:
            self.active.index_recovering(unit)
        if not any(other.active for other in unit.tasks):
            self._settle(unit, event.at)

    def _keep_progress(self, unit: UnitState, task: TaskState, said: int = -1) -> None:
        """What of its work need not be done again, as the attempt of a task says itself when it ends, or has said of
        its training; and how long the rest takes at its pace.
        """
        whole = unit.whole_by_pace
        if said < 0 and task is unit.first and unit.training is not None and unit.told >= unit.placed:
            said = unit.training.safe
        if said >= 0:
            unit.progress = min(said, ALL)
            unit.left = whole * (ALL - unit.progress) // ALL
            if unit.left:
                self._expect_anew(unit)

    def _straggling(self, event: Straggling) -> None:
        unit, index = self.jobs.tasks[event.task]
        task = unit.tasks[index]
        if task.status != "running" or event.epoch != unit.epoch_of(index):
            raise InvariantBroken(f"{event.task}#{event.epoch} straggles, but is {task.status} in epoch {unit.epoch}")
        task.straggles = event.expected
        unit.straggled = (*unit.straggled[1 - PAST_ORDERS :], event)
        self._index_straggling(unit)

    def _lagging(self, event: Lagging) -> None:
        unit, index = self.jobs.tasks[event.task]
        if unit.tasks[index].status != "running" or event.epoch != unit.epoch_of(index):
            status = unit.tasks[index].status
            raise InvariantBroken(f"{event.task}#{event.epoch} lags, but is {status} in epoch {unit.epoch}")
        unit.lags = event
        self._index_straggling(unit)

    def _speedups_told(self, event: SpeedupsTold) -> None:
        unit = self.jobs.units[event.unit]
        if unit.over:
            raise InvariantBroken(f"{event.unit} told how it scales, but is {unit.status}")
        unit.speedups = self._speedups[unit.id] = event.speedups
        self._changes.mark(unit)

    def _training_told(self, event: TrainingTold) -> None:
        unit = self.jobs.units[event.unit]
        if unit.status != "active":
            raise InvariantBroken(f"{event.unit} told of its training, but is {unit.status}")
        before, saved = unit.training, event.training.checkpoint
        if saved is not None and (before is None or before.checkpoint is None or before.checkpoint.step != saved.step):
            unit.kept = event.at
        unit.training, unit.told = event.training, event.at
        self._changes.mark(unit)
        self._index_phase(unit)

    def _index_phase(self, unit: UnitState) -> None:
        """What would be placed in another shape now, since its training has come into another phase."""
        if unit.spec.phases and unit.shape_to_be != unit.shape:
            self._phased[unit.id] = unit
        else:
            self._phased.pop(unit.id, None)

    def _index_straggling(self, unit: UnitState) -> None:
        """What could be moved by itself; a gang is as slow wherever its slowest member is, and moves as a whole where
        it waits for one in each step.
        """
        if unit.lags is not None or (len(unit.tasks) == 1 and unit.tasks[0].straggles):
            self._stragglers[unit.id] = unit

    # --- units -------------------------------------------------------------------------------------------------------

    def _settle(self, unit: UnitState, at: int) -> None:
        """All attempts of the unit have ended: done, again, or failed."""
        outcome = deciding_ending(unit).outcome
        self.active.remove(unit)
        self._phased.pop(unit.id, None)
        self._stragglers.pop(unit.id, None)
        job = self.jobs[unit.job]
        if unit.stopping == "cancel" and (outcome != "done" or job.calls is not None):
            if job.calls is not None:
                job.calls.called_up -= 1
            self._conclude(unit, "done" if outcome == "done" else "cancelled", at)
        elif job.calls is not None:
            self._rest(unit, job, job.calls, outcome, at)
        elif outcome == "done":
            self._conclude(unit, "done", at)
        elif outcome in ("returned", "stopped"):
            self._keep_what_was_done(unit)
            unit.recalled = unit.recalled or (unit.queued and outcome == "returned")
            unit.avoid = self._moved_off(unit) if unit.stopping == "move" else ""
            self._again(unit, at, delay=0)
        else:
            unit.count_try(outcome)
            unit.avoid = unit.first.node
            retry = unit.spec.retry
            if outcome == "oom" and retry.ooms:
                unit.make_smaller()
            if retry.allows(outcome, unit.tries, len(unit.ooms), unit.lost):
                self._again(unit, at, delay=0 if outcome == "lost" else retry.delay(unit.tries))
            else:
                self._conclude(unit, "failed", at)

    def _moved_off(self, unit: UnitState) -> str:
        """The node that it was moved off: one that is being emptied, else where a member lagged, else its first."""
        nodes = self.nodes
        emptied = (task.node for task in unit.tasks if task.node in nodes and nodes[task.node].condition == "emptying")
        return next(emptied, unit.lags.node if unit.lags is not None else unit.first.node)

    def _again(self, unit: UnitState, at: int, *, delay: int) -> None:
        unit.clear()
        unit.not_before = at + delay if delay else 0
        self.queues.make_pending(unit, at)

    def _keep_what_was_done(self, unit: UnitState) -> None:
        """Of an attempt that was stopped: how long the work takes at least, and what of it need not be done again."""
        run = max(unit.run_in_size(task) for task in unit.tasks if task.ending is not None)
        tasks = unit.spec.least or unit.size
        if not unit.progress:
            unit.outlived = max(unit.outlived, (unit.saved + unit.carried + run * unit.size) // tasks)
        if unit.spec.checkpoint and unit.stopping in CAUSES:
            unit.saved += unit.carried + (run - run % unit.spec.checkpoint) * unit.size
        self._expect_anew(unit)

    def _expect_anew(self, unit: UnitState) -> None:
        expected = self._expected(unit)
        unit.tail += expected - unit.expected
        unit.expected = expected

    def _conclude(self, unit: UnitState, status: UnitStatus, at: int) -> None:
        self._close(unit, status, at)
        job = self.jobs[unit.job]
        followers = self.jobs.dependents.get(unit.id, ())
        if status == "done":
            for follower in followers:
                follower.missing -= 1
                if follower.missing == 0 and follower.status == "waiting" and not job.awaited:
                    self.queues.make_pending(follower, at)
            if len(job.units) > 1 and job.unfinished % max(1, len(job.units) // 64) == 0:
                self._plan_again(job)
        else:
            self._skip(followers, at)
        if unit.spec.at_most and not job.cancelled_by:
            self._pass_turn(job, unit.spec, at)
        self._end_if_over(job, at)

    def _pass_turn(self, job: JobState, ended: Unit, at: int) -> None:
        """A part has ended where only so many run at once: the next one may."""
        task = ended.name.partition("[")[0]
        given = job.turns.get(task, 0)
        while True:
            follower = self.jobs.units.get(f"{job.id}.{task}[{ended.at_most + given}]")
            given += 1
            if follower is None or follower.missing > PASSED_OVER:
                break
        job.turns[task] = given
        if follower is not None:
            follower.missing -= 1
            if follower.missing == 0 and follower.status == "waiting" and not job.awaited:
                self.queues.make_pending(follower, at)

    def _close(self, unit: UnitState, status: UnitStatus, at: int) -> None:
        if unit.status == "pending":
            self.queues.remove(unit)
        unit.status, unit.ended, unit.speedups = status, at, None
        self._speedups.pop(unit.id, None)
        self.queues.forget_yields(unit)
        self.jobs.count_over(unit)

    def _skip(self, units: Iterable[UnitState], at: int) -> None:
        """What needs a unit that will never be done is never run. Iterative: graphs may be deep."""
        stack = list(units)
        while stack:
            unit = stack.pop()
            if unit.status == "waiting":
                self._close(unit, "skipped", at)
                stack.extend(self.jobs.dependents.get(unit.id, ()))

    def _end_if_over(self, job: JobState, at: int) -> None:
        self._end_those_over((job,), at)

    def _end_those_over(self, jobs: Iterable[JobState], at: int) -> None:
        """A job with no unit left has ended, and what comes after it may begin, or never will. Iterative, as above."""
        ending = deque(jobs)
        while ending:
            job = ending.popleft()
            if job.unfinished or job.ended:
                continue
            awaiting = self.jobs.end(job, at)
            done = bool(awaiting) and job_status(job) == "done"
            for waiting_id in awaiting:
                waiting = self.jobs[waiting_id]
                waiting.awaited -= 1
                if not done:
                    self._skip(waiting.units, at)
                    ending.append(waiting)
                elif waiting.awaited == 0:
                    self._release_roots(waiting, at)
        self.jobs.forget_old(self.leader.history, fair=self.leader.fair)

    def _release_roots(self, job: JobState, at: int) -> None:
        if job.calls is not None:
            self._call_up(job, at)
            return
        for unit in job.units:
            if unit.missing == 0 and unit.status == "waiting":
                self.queues.make_pending(unit, at)

    def _plan_again(self, job: JobState) -> None:
        """Of what waits and of what runs something else may be due now."""
        self._plan_graph(job.units, job.submitted)
        self.queues.rank_anew(job)
        for unit in job.units:
            self._changes.mark(unit)

    def _plan_graph(self, units: list[UnitState], submitted: int) -> None:
        """Critical path and due times of a job, with what has been learned of durations."""
        for unit in units:
            unit.expected = self._expected(unit)
        if len(units) == 1:
            unit = units[0]
            unit.tail, unit.due = unit.expected, submitted + unit.spec.deadline if unit.spec.deadline else 0
            return
        if not any(unit.depth for unit in units):
            depths = graph.times({unit.spec.name: unit.spec.needs for unit in units}, dict.fromkeys(_names(units), 1))
            for unit in units:
                unit.depth = depths[unit.spec.name].earliest
        needs = {unit.spec.name: unit.spec.needs for unit in units}
        durations = {unit.spec.name: unit.expected for unit in units}
        deadlines = {
            unit.spec.name: submitted + unit.spec.deadline
            for unit in units
            if unit.spec.deadline and unit.missed is None
        }
        planned = graph.times(needs, durations)
        due = graph.due_times(needs, durations, deadlines) if deadlines else {}
        for unit in units:
            unit.tail, unit.slack = planned[unit.spec.name].tail, planned[unit.spec.name].slack
            unit.due = due.get(unit.spec.name, 0)

    def _expected(self, unit: UnitState) -> int:
        if unit.status == "done":
            return max((task.ended - task.started for task in unit.tasks), default=0)
        spec = unit.spec
        if unit.left:
            return unit.left + spec.restore
        estimate = outlasting(estimate_run(self.profiles.get(spec.kind), spec.declared), unit.outlived)
        if unit.progress:
            return max(1, estimate.mean * (ALL - unit.progress) // ALL) + spec.restore
        if not unit.saved:
            return estimate.mean
        return max(1, estimate.mean - unit.saved // (spec.least or unit.size)) + spec.restore

    # --- room --------------------------------------------------------------------------------------------------------

    def _give_back(self, unit: UnitState, index: int) -> None:
        task, shape = unit.tasks[index], unit.shape
        self.active.unseat(unit, index, task.node, shape)
        self.quotas.count(unit, shape, -1)
        self.nodes.give_back(task.node, unit, shape, task.devices)
        self._changes.residents.pop(unit.id, None)
        self._changes.rows.add(task.node)

    def _drop_attempts(self, unit: UnitState, at: int) -> None:
        """A recovering unit is placed again: what it still held on lost nodes is given up."""
        unit.count_try("lost")
        self._stragglers.pop(unit.id, None)
        self._keep_progress(unit, unit.first)
        for index, task in enumerate(unit.tasks):
            if task.active:
                self._give_back(unit, index)
                lost = Ending(outcome="lost", note=f"node {task.node} was lost")
                task.keep(unit.epoch_of(index), lost, at)
            elif task.ending is not None:
                task.keep(unit.epoch_of(index), task.ending, task.ended)
            task.status, task.ending, task.straggles = "idle", None, 0  # an elastic unit may get fewer spots now
            task.epoch, task.leaving = 0, False
        self.active.recovering.pop(unit.id, None)

    # --- quotas ------------------------------------------------------------------------------------------------------

    # --- tokens ------------------------------------------------------------------------------------------------------

    # --- pending -----------------------------------------------------------------------------------------------------

    def candidate(self, unit: UnitState, *, recovering: bool = False) -> Candidate:
        """A unit as a policy is shown it."""
        spec, job = unit.spec, self.jobs[unit.job]
        return Candidate(
            unit=unit.id,
            job=unit.job,
            ordinal=unit.ordinal,
            priority=int(spec.priority),
            kind=spec.kind,
            shape=unit.shape_of(0),
            tasks=unit.most_tasks,
            submitted=job.submitted,
            ready=unit.ready,
            tail=unit.tail,
            critical=unit.slack == 0 and len(job.units) > 1 and job.calls is None,
            queue=unit.queue,
            expected=unit.expected,
            declared=spec.declared,
            due=unit.due,
            recovering=recovering,
            recalled=unit.recalled,
            least=spec.least,
            others=tuple(unit.shape_of(number + 1) for number in range(len(spec.variants))),
            attained=unit.attained,
            preempted=unit.preempted,
            depth=unit.depth,
            followers=len(self.jobs.dependents.get(unit.id, ())),
            weight=spec.weight,
            work=spec.work,
            avoid=unit.avoid,
            saved=unit.saved,
            progress=unit.progress,
            left=unit.left,
            outlived=unit.outlived,
            ran_out=unit.ran_out,
            tenant=self.quotas.limited_tenant(job),
            serves=spec.serves,
            preemptible=spec.preemptible,
            checkpoint=spec.checkpoint,
            restore=spec.restore,
            moved=unit.moved,
        )

    # --- what a policy sees ------------------------------------------------------------------------------------------

    def snapshot(
        self, now: int, seed: int = 0, throughputs: Mapping[str, float] | None = None, triggers: tuple[str, ...] = ()
    ) -> Snapshot:
        """An immutable view; costs in proportion to what changed and what is shown, not to what there is."""
        candidates = self._shown(now, everything=self.leader.fixed)
        return Snapshot(
            revision=self._state.revision,
            now=now,
            fleet=self.fleet().copy(),
            candidates=tuple(candidates),
            backlog=self.queues.backlog(),
            profiles=self.profiles.shown(),
            throughputs=NO_RATES if throughputs is None else throughputs,
            speedups=dict(self._speedups),
            elastic=tuple(
                self._resident(unit) for unit in sorted(self.active.elastic.values(), key=ordinal) if not unit.stopping
            ),
            stragglers=tuple(
                Straggler(
                    resident=self._resident(unit),
                    node=unit.lags.node if unit.lags is not None else task.node,
                    expected=unit.lags.usual if unit.lags is not None else task.straggles,
                    computes=unit.lags.computes if unit.lags is not None else 0,
                )
                for unit in sorted(self._stragglers.values(), key=ordinal)
                if (task := unit.first).status == "running" and not unit.stopping
            ),
            phased=tuple(
                Phased(
                    resident=self._resident(unit),
                    phase=unit.phase_told,
                    shape=unit.shape_to_be,
                    nodes=tuple(task.node for task in unit.tasks if task.active),
                )
                for unit in sorted(self._phased.values(), key=ordinal)
                if not unit.stopping
            ),
            yielded=dict(sorted(self.queues.yielded.items())),
            quotas=self.quotas.left(),
            running=self.active.by_shape(),
            memory=self.leader.memory,
            triggers=triggers,
            seed=seed,
        )

    def _shown(self, now: int, *, everything: bool) -> list[Candidate]:
        """The head of every queue, and what a lost node still holds, in order of submission."""
        self.queues.sort()
        backing_off = {unit_id for unit_id, unit in self.queues.delayed.items() if unit.free_at > now}
        candidates: list[Candidate] = []
        heads = {} if everything else self.queues.heads()
        for name, queue in self.queues.items():
            units: Iterable[tuple[str, UnitState]] = queue.items()
            if backing_off:
                units = (item for item in units if item[0] not in backing_off)
            candidates.extend(self._as_shown(unit_id, unit) for unit_id, unit in islice(units, heads.get(name)))
        candidates.extend(
            self.candidate(unit, recovering=True) for unit in self.active.recovering.values() if unit.free_at <= now
        )
        if (
            len(self.queues) + len(self.active.recovering) != 1
            or not candidates
            or not candidates[0].queue.endswith("/")
        ):
            candidates.sort(key=ordinal)
        return candidates

    def _as_shown(self, unit_id: str, unit: UnitState) -> Candidate:
        """A pending unit as a policy is shown it: made when it comes to the head of its queue, and not before."""
        candidate = self._changes.candidates.get(unit_id)
        if candidate is None:
            candidate = self._changes.candidates[unit_id] = self.candidate(unit)
        return candidate

    # --- columns -----------------------------------------------------------------------------------------------------

    def fleet(self) -> Fleet:
        """The fleet as columns, as it is now; the ledger's own, to be read at once and not kept."""
        fleet = self.room()
        for name in sorted(self._moved):
            self._refresh_residents(fleet, fleet.rows[name], self.nodes[name])
        self._moved.clear()
        return fleet

    def room(self) -> Fleet:
        """The same, but that what runs there may be as it was: for whoever looks at what is free alone."""
        if self._fleet is None or self._changes.fleet:
            before, self._fleet = (
                self._fleet or Fleet(),
                Fleet([self.cordons.seen(of.node) for of in self.nodes.values()]),
            )
            self._changes.rows.update(self._fleet.take_over(before))
            self._changes.fleet = False
            self._moved &= self.nodes.keys()
            for name in [name for name in self._opened if name not in self.nodes]:
                self._count_open(name, (0, 0, 0, 0))
                del self._opened[name]
        for name in sorted(self._changes.rows):
            self._refresh(self._fleet, self._fleet.rows[name], self.nodes[name])
        self._moved |= self._changes.rows
        self._changes.rows.clear()
        return self._fleet

    def use(self) -> int:
        """The share of the open nodes' CPUs or devices that is taken, in thousandths, whichever is more."""
        self.room()
        cpu, devices, free_cpu, free_devices = self._open
        shares = ((free_cpu, cpu), (free_devices, devices))
        return max([int(1000 - 1000 * left / of) for left, of in shares if of], default=0)

    def _refresh(self, fleet: Fleet, row: int, state: NodeState) -> None:
        """What there is on one node, in its row, from the state."""
        node = state.node
        network = (node.network or PLENTY) - state.used_network
        if state.shares or self.cordons or node.name in self._shared:
            share, memory = self._parts(state)
            fleet.device_memory[row, : len(memory)] = memory
            (self._shared.add if state.shares else self._shared.discard)(node.name)
        else:
            taken = state.devices
            share = [0 if device_key(device.index) in taken else WHOLE for device in node.devices]
        fleet.device_share[row, : len(share)] = share
        cpu, free, columns = node.cpu - state.used_cpu, share.count(WHOLE), fleet.free
        columns[CPU, row], columns[MEMORY, row], columns[DEVICES, row] = cpu, node.memory - state.used_memory, free
        columns[NETWORK, row] = network
        closed = fleet.closed[row] = CONDITIONS.index(state.condition)
        self._count_open(node.name, (0, 0, 0, 0) if closed else (node.cpu, len(node.devices), cpu, free))
        fleet.levels[row] = HOT if state.hot else state.level
        fleet.failures[row] = state.failures / 1000

    def _parts(self, state: NodeState) -> tuple[list[int], list[int]]:
        """What is free of each device's compute, and of its memory."""
        share, memory = [], []
        for device in state.node.devices:
            key = device_key(device.index)
            shares = state.shares.get(key, ())
            taken = sum([of.share for of in shares]) if shares else WHOLE if key in state.devices else 0
            share.append(CORDONED if self.cordons.of_device(state.node.name, device) is not None else WHOLE - taken)
            memory.append(device.memory - (sum([of.memory for of in shares]) if shares else 0))
        return share, memory

    def _count_open(self, name: str, amounts: tuple[int, int, int, int]) -> None:
        """What a node has and has free, if it is open, is part of what all have."""
        of, before = self._open, self._opened.get(name, (0, 0, 0, 0))
        self._opened[name] = amounts
        for place in range(4):
            of[place] += amounts[place] - before[place]

    def _refresh_residents(self, fleet: Fleet, row: int, state: NodeState) -> None:
        """What runs on one node, in its row. What has not changed is the very same as it was."""
        everything = self.leader.fixed
        residents = []
        yielding = [[0] * 4 for _ in range(CLASSES)]
        for unit, index in self.active.on(state.node.name):
            if (unit.brief and not everything) or unit.queued:
                continue
            known = self._changes.residents.setdefault(unit.id, {})
            resident = known.get(index)
            if resident is None:
                resident = known[index] = self._resident(unit, index)
            residents.append(resident)
            if resident.preemptible and not resident.stopping:
                shape, held = resident.shape, yielding[resident.priority]
                held[CPU] += shape.cpu
                held[MEMORY] += shape.memory
                held[NETWORK] += shape.network
                held[DEVICES] += shape.gpus
        fleet.yielding[:, :, row] = yielding
        fleet.residents[row] = tuple(residents)
        for key in [key for key, of in fleet.pools.items() if of.pop(row, None) is not None and not of]:
            del fleet.pools[key]
        for key, pool in state.pools.items():
            if pool.slots > pool.long:
                fleet.pools.setdefault(key, {})[row] = PoolView(pool.slots, pool.attempts, pool.long)

    def _resident(self, unit: UnitState, index: int = -1) -> Resident:
        """One of its attempts, by the number of the task; or that of rank 0."""
        index = next(iter(unit.members), 0) if index < 0 else index
        spec, task = unit.spec, unit.tasks[index]
        known = self.nodes.get(task.node)  # it may have ended on a node that was forgotten since
        model = model_under(known.node, task.devices) if known is not None else ""
        saved = unit.training.checkpoint if unit.training is not None and unit.told >= unit.placed else None
        return Resident(
            unit=unit.id,
            ordinal=unit.ordinal,
            priority=int(spec.priority),
            shape=unit.shape,
            kind=spec.kind,
            since=max(task.started or unit.placed, unit.resized),
            model=model,
            declared=spec.declared,
            devices=task.devices,
            checkpoint=(saved.every if saved is not None else 0) or spec.checkpoint,
            kept=max(unit.kept, task.started or unit.placed) if saved is not None else 0,
            restore=spec.restore,
            preempted=unit.preempted,
            moved=unit.moved,
            preemptible=spec.preemptible,
            stopping=bool(unit.stopping) or task.leaving,
            running=task.status == "running",
            size=unit.size,
            least=spec.least,
            most=unit.size if self._has_failed_device(unit) else unit.most_tasks,
            attained=unit.attained,
            work=spec.work,
            saved=unit.saved + unit.carried,
            progress=unit.progress,
            foreseen=self._foreseen(unit),
            outlived=unit.outlived,
            due=unit.due,
            weight=spec.weight,
            tenant=self.quotas.limited_tenant(self.jobs[unit.job]),
            serves=spec.serves,
            task=index,
            resizes=unit.resizes and unit.is_whole,
            resized=unit.resized,
            losses=unit.losses,
            gains=self._gains(unit),
        )

    def _gains(self, unit: UnitState) -> int:
        """How much faster an elastic unit is than with its least tasks, by what it told of how it scales."""
        if unit.speedups is None or not unit.spec.least or unit.size == unit.spec.least:
            return 0
        apart = len({unit.tasks[index].node for index in unit.members}) > 1
        told = unit.speedups.apart if apart and unit.speedups.apart else unit.speedups.together
        alone = unit.speedups.together[min(unit.spec.least, len(unit.speedups.together)) - 1] if told else 0
        return told[min(unit.size, len(told)) - 1] * 1000 // alone if told and alone else 0

    def _foreseen(self, unit: UnitState) -> int:
        """For how long it runs in all, since it was started or resized, in the size that it has."""
        whole, size = unit.whole_by_pace * (ALL - unit.progress) // ALL, max(1, unit.size)
        return max(1, (whole * (unit.spec.least or size) - unit.carried) // size) if whole else 0

    def _has_failed_device(self, unit: UnitState) -> bool:
        """Whether a device has failed a gang that goes on: in the shape that it has, it could be given it again."""
        return unit.resizes and any(epoch >= unit.placed_in for epoch in unit.barred.values())

    # --- derived indexes ---------------------------------------------------------------------------------------------

    def _assembled(self) -> Handlers:
        handlers: Handlers = {
            JobSubmitted: self._job_submitted,
            JobCancelled: self._job_cancelled,
            JobsCancelled: self._jobs_cancelled,
            UnitsCancelled: self._units_cancelled,
            DeadlinesMissed: self._deadlines_missed,
            Placed: self._placed,
            Preempted: self._preempted,
            Resized: self._resized,
            FunctionTold: self._function_told,
            Called: self._called,
            CallTried: self._call_tried,
            Returned: self._returned,
            CallsClosed: self._calls_closed,
            Started: self._started,
            Finished: self._finished,
            Straggling: self._straggling,
            Lagging: self._lagging,
            SpeedupsTold: self._speedups_told,
            TrainingTold: self._training_told,
        }
        for room in self._rooms:
            handlers |= room.handlers()
        return handlers

    # --- self-check --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every invariant; raises `InvariantBroken` naming the first that does not hold. For tests and simulation."""
        for job in self.jobs.values():
            for unit in job.units:
                self._check_unit(unit)
            if job.calls is not None:
                self._check_calls(job, job.calls)
        encoded = self.encode()
        again = Ledger.decode(encoded)
        hold(again.encode() == encoded, "the state does not survive encoding")
        for room, anew in zip(self._rooms, again._rooms, strict=True):
            room.check(anew)
        for index in ("_phased", "_stragglers"):
            hold_same(index, getattr(self, index).keys(), getattr(again, index).keys())
        hold_same("_speedups", self._speedups, again._speedups)
        mine, theirs = self.snapshot(self.now), again.snapshot(self.now)
        hold(mine == theirs, "a policy would see something else after a restart")
        for field in IN_ORDER:
            here, there = list(getattr(mine, field).items()), list(getattr(theirs, field).items())
            hold(here == there, f"a policy would see {field} in another order after a restart: {here} is not {there}")

    def _check_unit(self, unit: UnitState) -> None:
        hold(
            unit.status == "active" or not any(task.active for task in unit.tasks),
            f"{unit.id} is {unit.status} with an attempt",
        )
        leaving = [index for index, task in enumerate(unit.tasks) if task.leaving and not task.active]
        hold(not leaving, f"{leaving} of {unit.id} are leaving, and are not there")
        if unit.most:
            hold(unit.spec.least <= unit.most < len(unit.tasks), f"{unit.id} may have {unit.most} tasks")
            hold(unit.status != "active" or unit.size <= unit.most, f"{unit.id} runs larger than it may")
        hold(all(epoch <= unit.epoch for epoch in unit.barred.values()), f"{unit.id} is barred in an epoch to come")
        hold(len(unit.ooms) <= unit.spec.retry.ooms + 1, f"{unit.id} ran out of memory in {unit.ooms}")
        if unit.status == "waiting":
            job = self.jobs[unit.job]
            hold(unit.missing > 0 or job.awaited > 0 or job.calls is not None, f"{unit.id} waits for nothing")

    def _check_calls(self, job: JobState, book: CallBook) -> None:
        up = sum(unit.status in ("pending", "active") for unit in job.units)
        hold(book.called_up == up, f"{job.id} counts {book.called_up} workers called up, has {up}")
        resting = sum(unit.status == "waiting" for unit in job.units)
        idle = job.awaited or not resting or up >= len(book.open)
        hold(bool(idle), f"{job.id} has {len(book.open)} open calls, {up} workers called up and {resting} at rest")
        hold(book.tries.keys() <= book.open.keys(), f"{job.id} counts tries of calls that have returned")
        hold(all(call.number <= book.last for call in book.open.values()), f"{job.id} has calls of the future")


def _names(units: list[UnitState]) -> list[str]:
    return [unit.spec.name for unit in units]
