"""A digital twin of a control plane and its fleet: the real host, controller, ledger and policy, in virtual time.

Only the implementations of the ports differ from the live system. The log is durable at once, messages take no time,
and a node is a few lines that run attempts for as long as their `Truth` says. The twin models attempts; the fault
simulator (`simulation`) models single messages. So months of a trace take minutes, and the live code makes the
decisions.

Nothing here is random: callers that need random run times, failures or telemetry draw them beforehand, from a seed.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from poise.engine.host import Host
from poise.engine.timeline import WALL, Process, SimulatedClock, Timeline, Timer
from poise.errors import PoiseError
from poise.kernel.controller import Controller, Settings
from poise.kernel.ledger import Ledger, UnitState, attempt_of
from poise.kernel.messages import Decided, Drain, GiveUp, Message, Reply, Submit, TakeIn
from poise.model.decisions import Plan
from poise.model.events import Event
from poise.model.fleet import model_under
from poise.model.jobs import Ending, Job, Outcome
from poise.model.load import Load
from poise.model.messages import (
    Attempt,
    Beat,
    Desired,
    DeviceFault,
    Ended,
    FromAgent,
    Hello,
    Launch,
    Report,
    Running,
    Told,
    ToNode,
)
from poise.model.progress import ALL, Speedups
from poise.model.resources import WHOLE, Node, Shape
from poise.model.spec import Compiled
from poise.model.training import Training
from poise.model.views import Snapshot
from poise.model.workload import APART, ONE_RACK, ONE_ZONE, Arrival, Seats, Truth
from poise.policy.suites import ClusterPolicy
from poise.ports import Decider, NodePort, StoredCheckpoint
from poise.units import SECOND

Observe = Callable[[Event], None]
Interference = Callable[[int, int], float]
FOREVER = float("inf")


class Waste(NamedTuple):
    """Nanoseconds for which a unit held its resources without making progress, or made progress that it lost.

    `cause`: `restoring` a checkpoint, or starting up · `saving` a checkpoint before it ends · `stalled`, as a member of
    its gang is gone · `lost` work since the last checkpoint.
    """

    unit: str
    cause: Literal["restoring", "saving", "stalled", "lost"]
    time: int


DETECTED_AFTER = 10 * SECOND
"""Default time from the loss of a node until the control plane detects it: the limit across a network."""


class VirtualStore:
    """The `Store` port for a log that nobody reads: events are durable at once and not stored. `observe` receives each
    event.
    """

    def __init__(self, revision: int, observe: Observe) -> None:
        self.on_durable: Callable[[int], None] = lambda revision: None
        self.on_failed: Callable[[Exception], None] = lambda error: None
        self._revision = revision
        self._observe = observe

    def append(self, events: Sequence[Event], *, expected: int) -> int:
        self._revision = expected + len(events)
        for event in events:
            self._observe(event)
        self.on_durable(self._revision)
        return self._revision

    def durable(self) -> int:
        return self._revision

    def read(self, after: int = 0, limit: int = 0) -> Any:
        return iter(())

    def checkpoint(self, revision: int, state: bytes) -> None:
        """Do nothing: a twin is never restarted from its log."""

    def latest_checkpoint(self) -> StoredCheckpoint | None:
        return None

    def written_by(self) -> str:
        return ""

    def recover(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


BURST = 100
"""Number of rounds after an idle period that a rate limit does not delay."""


class VirtualDecider:
    """The `Decider` port: the policy answers at once, or after a `delay` in nanoseconds. `rate` limits the rounds in a
    second (0: no limit): beyond a burst, each round takes its share of the second, and further events share the next.
    """

    def __init__(self, policy: ClusterPolicy, process: Process, delay: int = 0, rate: int = 0) -> None:
        self.policy = policy
        self.rounds = 0
        self._process = process
        self._delay = delay
        self._rate = rate
        self._left, self._since = float(BURST), 0

    def decide(self, view: Snapshot, answer: Callable[[Plan], None], /) -> None:
        self.rounds += 1
        plan = self.policy.decide(view)
        if delay := self._delay or self._pause():
            self._process.call_later(delay / SECOND, answer, plan)
        else:
            answer(plan)

    def _pause(self) -> int:
        """Return the nanoseconds that this round takes because of the limit of the rate."""
        if not self._rate:
            return 0
        now = self._process.timeline.now
        self._left = min(BURST, self._left + (now - self._since) * self._rate / SECOND)
        self._since = now
        if self._left < 1:
            return SECOND // self._rate
        self._left -= 1
        return 0

    def close(self) -> None:
        """Do nothing: there is no process to stop."""


class _Work:
    """A placed unit: its attempts, their nodes, and its progress. `since` is the instant from which it progresses at
    its current rate; `stands` is the instant at which it stopped progressing (-1: it progresses). `launches` maps
    attempts to nodes and launches; `joined` maps attempts that joined the gang later to the instant at which they did.
    """

    __slots__ = (
        "began",
        "epoch",
        "joined",
        "launches",
        "progress",
        "seats",
        "since",
        "slowdown",
        "stands",
        "stopping",
        "timer",
        "truth",
        "unit",
    )

    def __init__(self, unit: UnitState, truth: Truth, progress: float) -> None:
        self.unit = unit
        self.epoch = unit.placed_in
        self.truth = truth
        self.launches: dict[Attempt, tuple[str, Launch]] = {}
        self.seats: Seats | None = None
        self.progress = progress
        self.began = 0
        self.joined: dict[Attempt, int] = {}
        self.since = 0
        self.slowdown = 1.0
        self.timer: Timer | None = None
        self.stopping = False
        self.stands = -1


class VirtualNode:
    """One node: the channel that receives messages of the control plane. `waiting` holds queued launches by shape."""

    def __init__(self, twin: "Twin", node: Node) -> None:
        self.twin = twin
        self.node = node
        self.up = True
        self.waiting: dict[str, deque[Launch]] = {}
        self.serial = 0

    def send(self, message: ToNode) -> None:
        if isinstance(message, Desired) and self.up:
            for launch in message.launches:
                self.twin.launch(self, launch)
            for ordered in message.orders:
                self.twin.order(self, ordered.attempt, ordered.orders.rank)
            for attempt in message.stops:
                self.twin.stop(self, attempt)
            for attempt in message.recalls:
                self.twin.recall(self, attempt)

    def close(self) -> None:
        """Do nothing: the node stays until it is lost."""


class Twin:
    """A control plane in virtual time. `interference` returns the factor by which sharing slows work down, given its
    share of a device and the shares of others on it, in thousandths. `delay` is the decision time in nanoseconds.
    `waste` receives time without progress. A `decider` answers in place of the policy; it may answer later.

    Add events (`add_nodes`, `arrive`, `lose`, `slow`), then `run`. Instants are nanoseconds since the twin's start,
    which is `began` on the log's clock. `ledger` starts the twin from a recorded state, as of the instant `at` of its
    log; `truths` gives the actual work of the units in it by id, and `progress` the part that earlier attempts have
    kept. Attempts that run on a node in the ledger continue when that node is added.

    Where only the first part of a truth is known, a unit that reaches the end of that part is `unsure`; time must then
    stand still until the caller extends the truth with `learn`.
    """

    def __init__(
        self,
        policy: ClusterPolicy,
        settings: Settings,
        *,
        observe: Observe = lambda event: None,
        ledger: Ledger | None = None,
        truths: Mapping[str, Truth] | None = None,
        progress: Mapping[str, float] | None = None,
        at: int = 0,
        interference: Interference = lambda share, others: 1.0,
        delay: int = 0,
        rate: int = 0,
        waste: Callable[[Waste], None] = lambda waste: None,
        decider: Decider | None = None,
    ) -> None:
        self.timeline = Timeline()
        self.process = Process(self.timeline, "twin")
        self.process.start()
        ledger = ledger or Ledger()
        self.began = max(SECOND, settings.every, ledger.now, at)
        if ledger.leader.began is not None:  # reservations follow the wall clock
            self.process.wall_off = ledger.leader.wall(self.began) - WALL
        self.refused: list[tuple[Arrival, PoiseError]] = []
        self.nodes: dict[str, VirtualNode] = {}
        self._truths = dict(truths or {})
        self._interference = interference
        self._waste = waste
        self._progress = dict(progress or {})
        self._spent: dict[
            str, list[tuple[float, float, int]]
        ] = {}  # progress before and after, nanoseconds between, where retained
        self._work: dict[str, _Work] = {}
        self._of: dict[Attempt, _Work] = {}
        self._on: dict[str, dict[str, _Work]] = {}
        self._slow: dict[str, float] = {}
        self._inherited = {unit.id for unit in ledger.active.values()}
        self._reports: dict[str, tuple[list[Running], list[Ended], list[Told]]] = {}
        self._speedups: dict[str, Speedups] = {}
        self.unsure: set[str] = set()
        self._spread: set[str] = set()
        settings = msgspec.structs.replace(
            settings, policy=policy.name, dead_after=0, poll=0, checkpoint_every=2**62, declared=tuple(ledger.nodes)
        )
        self.decider = VirtualDecider(policy, self.process, delay, rate)
        self.host = Host(
            Controller(ledger, settings),
            VirtualStore(ledger.revision, observe),
            SimulatedClock(self.process, self.began),
            decider or self.decider,
            self.process,
            tell=lambda text: None,
        )
        memory = ledger.snapshot(ledger.now).memory if ledger.leader.policy == policy.name else {}
        self.host.begin(boot="twin", boottime=self.began)
        if memory:  # a control plane drops the memory at its start; here none has ended
            self.host.post(Decided(Plan(base=ledger.revision, policy=policy.name, memory=dict(memory))))

    @property
    def ledger(self) -> Ledger:
        return self.host.ledger

    @property
    def now(self) -> int:
        """Nanoseconds since the twin's start."""
        return self.timeline.now

    @property
    def rounds(self) -> int:
        return self.decider.rounds

    def truth(self, unit: str) -> Truth:
        """Return the actual work of a submitted unit by its id; policies never see it."""
        return self._truths[unit]

    def forget(self, unit: str) -> None:
        """Forget the actual work and the progress of a unit that is over."""
        for known in (self._truths, self._progress, self._spent, self._speedups):
            known.pop(unit, None)
        self._spread.discard(unit)

    @property
    def busy(self) -> bool:
        """Whether the end of any attempt is scheduled."""
        return any(work.timer is not None for work in self._work.values())

    # --- events ------------------------------------------------------------------------------------------------------

    def add_nodes(self, nodes: Iterable[Node], at: int = 0) -> None:
        """Make nodes join, or return, at an instant."""
        self.timeline.call_at(at, self._join, tuple(nodes))

    def arrive(self, arrival: Arrival) -> None:
        """Submit a job at the instant of its arrival."""
        self.timeline.call_at(arrival.at, self._submit, arrival)

    def arrive_in_turn(self, arrivals: Iterable[Arrival]) -> None:
        """Submit each job at the instant of its arrival; they are in that order. Each is read only when the one before
        it arrives, so they need not all exist at once.
        """
        self.timeline.call_each(((arrival.at, arrival) for arrival in arrivals), self._submit)

    def take_in(self, job: Job, truths: Mapping[str, Truth], at: int) -> None:
        """Accept a job of another control plane at an instant, under the id that it has there; `truths` are by unit."""
        self._truths.update(truths)
        self.timeline.call_at(at, self.host.ask, partial(TakeIn, job=job), lambda reply: None)

    def learn(self, unit: str, truth: Truth) -> None:
        """Extend the truth of a unit; its pace must stay the same."""
        self._truths[unit] = truth
        self.unsure.discard(unit)
        work = self._work.get(unit)
        if work is not None:
            self._come_to(work)
            work.truth = truth
            self._foresee(work)

    def renew(self, node: Node, at: int) -> None:
        """Make a node join, return or offer other devices at an instant."""
        self.timeline.call_at(at, self._renew, node)

    def _renew(self, node: Node) -> None:
        known = self.nodes.get(node.name)
        if known is not None and known.up:
            self.change(node)
        else:
            self._join([node])

    def lose(self, node: str, at: int, *, detected_after: int = DETECTED_AFTER) -> None:
        """Lose a node and all attempts on it at an instant."""
        self.timeline.call_at(at, self._lose, node, detected_after)

    def slow(self, node: str, at: int, factor: float) -> None:
        """Multiply the run times on a node by `factor` from an instant on."""
        self.timeline.call_at(at, self._slow_down, node, factor)

    def end_one(self, node: str, chance: int, outcome: Outcome) -> None:
        """End one of the units that run on a node with this outcome; `chance` selects the unit. Its work since the
        latest checkpoint is lost.
        """
        running = [work for work in self._on.get(node, {}).values() if work.seats is not None and not work.stopping]
        if running:
            work = running[chance % len(running)]
            self._come_to(work)
            self._end(work, outcome)

    def fail_device(self, node: str, index: int, lasts: int) -> None:
        """Cordon a device now; the attempts on it are lost. It is reopened after `lasts` nanoseconds."""
        state = self.nodes.get(node)
        if state is None or not state.up:
            return
        self._lose_device(node, index)
        state.serial += 1
        fault = DeviceFault(index=index, code="FAILED")
        self._hear(node, Report(serial=state.serial, faults=(fault,)))
        again = partial(Drain, node=f"{node}:{index}", on=False)
        self.timeline.call_in(lasts, self.host.ask, again, lambda reply: None)

    def change(self, node: Node) -> None:
        """Change the devices that a node offers; attempts on devices that are removed are lost."""
        state = self.nodes.get(node.name)
        if state is None or not state.up:
            return
        left = {device.index for device in node.devices}
        for device in state.node.devices:
            if device.index not in left:
                self._lose_device(node.name, device.index)
        self._join([node])

    def _lose_device(self, name: str, index: int) -> None:
        for work in list(self._on.get(name, {}).values()):
            gone = {
                attempt for attempt, (on, launch) in work.launches.items() if on == name and index in launch.devices
            }
            if gone:
                self._keep_from_loss(work, gone)
                if all(on != name for on, _ in work.launches.values()):
                    del self._on[name][work.unit.id]
        self._again_on(name)

    def tell_load(self, node: str, at: int, load: Load) -> None:
        """Deliver the load report of a node at an instant."""
        self.timeline.call_at(at, self._hear, node, Beat(load=load))

    def ask(self, make: Callable[[int], Message], at: int) -> None:
        """Post a request at an instant."""
        self.timeline.call_at(at, self.host.ask, make, lambda reply: None)

    def run(self, until: int | None = None, *, watch: Callable[[], bool] = lambda: True) -> bool:
        """Process events, up to an instant if one is given. Return True if no events are left. `watch` is called after
        each step and ends the run by returning False.
        """
        step = self.timeline.step
        while step(until):
            if not watch():
                return False
        return not self.timeline.pending

    # --- jobs --------------------------------------------------------------------------------------------------------

    def _submit(self, arrival: Arrival) -> None:
        compiled = Compiled(name=arrival.name, folder="", env={}, units=arrival.units, tenant=arrival.tenant)

        def answered(reply: Reply) -> None:
            if reply.error is not None:
                self.refused.append((arrival, reply.error))
                return
            for unit in arrival.units:
                self._truths[f"{reply.value}.{unit.name}"] = arrival.truths[unit.name]

        self.host.ask(lambda request: Submit(request, compiled), answered)

    # --- attempts ----------------------------------------------------------------------------------------------------

    def launch(self, node: VirtualNode, launch: Launch) -> None:
        """Deliver a launch to its node. A unit starts once all its tasks are launched; a queued launch waits until
        another of its shape ends.
        """
        found, epoch = self.ledger.jobs.task(launch.attempt.task), launch.attempt.epoch
        if found is None or not found[1].active or (found[1].epoch or found[0].epoch) != epoch:
            return
        unit = found[0]
        work = self._work.get(unit.id)
        if work is None or work.epoch != unit.placed_in:
            work = self._work[unit.id] = _Work(unit, self._truths[unit.id], self._progress.get(unit.id, 0.0))
        work.launches[launch.attempt] = (node.node.name, launch)
        self._of[launch.attempt] = work
        if launch.queued and self._running_of(node.node.name, launch.shape) >= launch.slots:
            node.waiting.setdefault(launch.shape.key(), deque()).append(launch)
        elif work.seats is not None:
            self._join_gang(work, launch.attempt)
        elif len(work.launches) == unit.size:
            self._start(work)

    def order(self, node: VirtualNode, attempt: Attempt, rank: int) -> None:
        """End a member that must leave its gang at once."""
        work = self._of.get(attempt)
        if work is None or rank >= 0 or work.stopping or len(work.launches) == 1:
            return
        self._come_to(work)
        ending = Ending(outcome="stopped", run=self.timeline.now - work.joined.get(attempt, work.began))
        self._report(node.node.name, ended=Ended(attempt=attempt, ending=ending))
        self._go_on_without(work, {attempt})

    def _go_on_without(self, work: _Work, gone: Collection[Attempt]) -> None:
        """Continue a gang that resizes, in its new size."""
        for attempt in gone:
            name, _ = work.launches.pop(attempt)
            self._of.pop(attempt, None)
            if all(on != name for on, _ in work.launches.values()):
                self._on.get(name, {}).pop(work.unit.id, None)
        self._in_new_size(work)
        for name in {name for name, _ in work.launches.values()}:
            self._again_on(name)

    def _join_gang(self, work: _Work, attempt: Attempt) -> None:
        """Add a member to a running gang; it starts at once."""
        self._come_to(work)
        work.joined[attempt] = self.timeline.now
        name = work.launches[attempt][0]
        self._on.setdefault(name, {})[work.unit.id] = work
        self._report(name, running=Running(attempt=attempt, pid=0))
        self._in_new_size(work)
        self._beside(work)

    def _in_new_size(self, work: _Work) -> None:
        work.seats, work.slowdown = self._seats(work), self._slowdown_of(work)
        self._foresee(work)

    def _running_of(self, name: str, shape: Shape) -> int:
        """Return the number of attempts of a shape that run on a node."""
        return sum(
            on == name and of.shape == shape
            for work in self._on.get(name, {}).values()
            for on, of in work.launches.values()
        )

    def stop(self, node: VirtualNode, attempt: Attempt) -> None:
        """Ask an attempt to end. Its unit saves a checkpoint first, if it can."""
        work = self._of.get(attempt)
        if work is None or work.stopping:
            return
        if self._hand_back(node, attempt, work):
            return
        work.stopping = True
        self._come_to(work)
        if work.stands < 0:
            self._stand_still(work)
        if work.timer is not None:
            work.timer.cancel()
        work.timer = self.timeline.call_in(work.truth.save, self._end, work, "stopped")

    def recall(self, node: VirtualNode, attempt: Attempt) -> None:
        """Return an attempt if it still waits for a slot."""
        work = self._of.get(attempt)
        if work is not None:
            self._hand_back(node, attempt, work)

    def _hand_back(self, node: VirtualNode, attempt: Attempt, work: _Work) -> bool:
        launch = work.launches[attempt][1]
        queue = node.waiting.get(launch.shape.key())
        if queue is None or launch not in queue:
            return False
        queue.remove(launch)
        self._drop(work)
        self._report(node.node.name, ended=Ended(attempt=attempt, ending=Ending(outcome="returned")))
        return True

    def _start(self, work: _Work) -> None:
        """Start a unit from its kept progress; start-up or restore takes time first."""
        now = self.timeline.now
        work.began, work.since = now, now + _overhead(work)
        work.seats = self._seats(work)
        for attempt, (name, _) in work.launches.items():
            self._on.setdefault(name, {})[work.unit.id] = work
            self._report(name, running=Running(attempt=attempt, pid=0))
        work.slowdown = self._slowdown_of(work)
        self._foresee(work)
        self._beside(work)
        if work.truth.resizes:
            attempt, (name, _) = next(iter(work.launches.items()))
            self._report(name, told=Told(attempt=attempt, training=Training(step=0, resizes=True)))
        if work.truth.telling is not None:
            self.timeline.call_at(work.since, self._tell, work)

    def _tell(self, work: _Work) -> None:
        """Report how the unit scales, if that has changed noticeably."""
        unit, truth = work.unit, work.truth
        if truth.telling is None or work.seats is None or work.stopping or self._work.get(unit.id) is not work:
            return
        self._come_to(work)
        if work.seats.nodes > 1:
            self._spread.add(unit.id)
        most, known = len(unit.spec.tasks), self._speedups.get(unit.id)
        told = truth.telling.speedups(work.progress, work.seats, most, spread=unit.id in self._spread)
        if known is None or told.differs(known):
            self._speedups[unit.id] = told
            attempt, (name, _) = next(iter(work.launches.items()))
            self._report(name, told=Told(attempt=attempt, speedups=told))
        if truth.tells:
            self.timeline.call_in(truth.tells, self._tell, work)

    def _foresee(self, work: _Work) -> None:
        """Schedule the end of a unit at its current rate."""
        if work.timer is not None:
            work.timer.cancel()
            work.timer = None
        if work.seats is None or work.stopping:
            return
        truth = work.truth
        left = truth.pace.left(work.progress, work.seats)
        if truth.until < 1.0:
            left -= truth.pace.left(truth.until, work.seats)
        if left < FOREVER:
            at = max(self.timeline.now, work.since) + max(0, round(left * work.slowdown * SECOND))
            if truth.known:
                work.timer = self.timeline.call_at(at, self._end, work, truth.outcome)
            else:
                work.timer = self.timeline.call_at(at, self._ask, work)

    def _ask(self, work: _Work) -> None:
        """Mark a unit as unsure: it has reached the end of what is known of its truth."""
        work.timer = None
        self.unsure.add(work.unit.id)

    def _come_to(self, work: _Work) -> None:
        """Update the progress of a unit to the current instant."""
        now = self.timeline.now
        if work.seats is not None and now > work.since:
            seconds = (now - work.since) / SECOND / work.slowdown
            work.progress = work.truth.pace.reached(work.progress, work.seats, seconds)
            work.since = now

    def _end(self, work: _Work, outcome: Outcome) -> None:
        """End all attempts of a unit now."""
        now = self.timeline.now
        if work.stands < 0:
            self._stand_still(work)
        self._wasted(work, "stalled" if work.seats is None else "saving", now - work.stands)
        if outcome != "done":
            self._keep(work, saved=outcome == "stopped" and work.truth.saves)
        progress = int(work.progress * ALL) if outcome != "done" and work.truth.reports else -1
        for attempt, (name, launch) in work.launches.items():
            run = now - work.joined.get(attempt, work.began)
            ending = Ending(
                outcome=outcome, code=int(outcome == "failed"), run=run, progress=progress,
                cpu=run * launch.shape.cpu // 1000, peak=launch.shape.memory,
            )  # fmt: skip
            self._report(name, ended=Ended(attempt=attempt, ending=ending))
        self._leave(work)

    def _stand_still(self, work: _Work) -> None:
        """Record that a unit makes no progress from now on."""
        work.stands = self.timeline.now
        self._wasted(work, "restoring", min(_overhead(work), work.stands - work.began))

    def _wasted(self, work: _Work, cause: Literal["restoring", "saving", "stalled", "lost"], time: int) -> None:
        if time > 0:
            self._waste(Waste(work.unit.id, cause, time))

    def _keep(self, work: _Work, *, saved: bool) -> None:
        """Set the progress that a unit keeps: all of it, or that of its latest checkpoint. The time spent on lost
        progress counts as waste, whichever devices it was spent on.
        """
        unit, truth = work.unit.id, work.truth
        before = self._progress.get(unit, 0.0)
        if not saved and work.seats is not None:
            ran = max(0, self.timeline.now - work.began)
            kept = ran - ran % truth.checkpoint if truth.checkpoint else 0
            useful = max(0, kept - _overhead(work)) / SECOND / work.slowdown
            reached = truth.pace.reached(before, work.seats, useful) if useful else before
            reached = min(work.progress, reached) if truth.checkpoint else 0.0
            lost = self._takes(work, max(reached, before), work.progress)
            self._wasted(work, "lost", lost + self._spent_beyond(unit, reached))
            work.progress = reached
        if work.seats is not None and work.progress > before:
            took = self._takes(work, before, work.progress)
            self._spent.setdefault(unit, []).append((before, work.progress, took))
        self._progress[unit] = work.progress

    def _takes(self, work: _Work, progress: float, until: float) -> int:
        """Return the nanoseconds between two progress values in the current placement; 0 where the unit makes no
        progress.
        """
        if work.seats is None:
            return 0
        pace = work.truth.pace
        seconds = pace.left(progress, work.seats) - pace.left(until, work.seats)
        return round(seconds * work.slowdown * SECOND) if seconds < FOREVER else 0

    def _spent_beyond(self, unit: str, reached: float) -> int:
        """Return the nanoseconds that earlier attempts spent beyond this progress, and remove them from the record."""
        spent, time = self._spent.get(unit, []), 0
        while spent and spent[-1][1] > reached:
            since, until, took = spent.pop()
            part = round(took * (until - max(since, reached)) / (until - since))
            time += part
            if since < reached:
                spent.append((since, reached, took - part))
        return time

    def _leave(self, work: _Work) -> None:
        """Remove a unit from its nodes, and start launches that were queued behind it."""
        names = {name for name, _ in work.launches.values()}
        for name, launch in work.launches.values():
            self._on.get(name, {}).pop(work.unit.id, None)
            queue = self.nodes[name].waiting.get(launch.shape.key())
            if queue:
                following = self._of.get(queue.popleft().attempt)
                if following is not None:
                    self._start(following)
        self._drop(work)
        for name in names:
            self._again_on(name)

    def _drop(self, work: _Work) -> None:
        if work.timer is not None:
            work.timer.cancel()
            work.timer = None  # the timer refers to the work: break the cycle, so that both are freed at once
        for attempt in work.launches:
            self._of.pop(attempt, None)
        if self._work.get(work.unit.id) is work:
            del self._work[work.unit.id]

    # --- rates -------------------------------------------------------------------------------------------------------

    def _seats(self, work: _Work) -> Seats:
        if len(work.launches) == 1:
            [(name, launch)] = work.launches.values()
            return Seats((model_under(self.nodes[name].node, launch.devices),))
        placed = sorted(work.launches.values(), key=_rank)
        nodes = [self.nodes[name].node for name, _ in placed]
        models = tuple(model_under(node, launch.devices) for node, (_, launch) in zip(nodes, placed, strict=True))
        names = Counter(node.name for node in nodes)
        if len(names) == 1:
            return Seats(models)
        zones, racks = {node.zone for node in nodes}, {(node.zone, node.rack) for node in nodes}
        apart = APART if len(zones) > 1 else ONE_ZONE if len(racks) > 1 else ONE_RACK
        return Seats(models, len(names), apart, tuple(names.values()))

    def _slowdown_of(self, work: _Work) -> float:
        """Return the slowdown of a unit: that of its slowest task, by its node and by other work on its devices."""
        slowest = 1.0
        for name, launch in work.launches.values():
            if launch.shape.share == WHOLE and not self._slow:
                continue
            factor = self._slow.get(name, 1.0)
            if launch.shape.share != WHOLE:
                factor *= self._interference(launch.shape.share, self._sharing(name, launch, work))
            slowest = max(slowest, factor)
        return slowest

    def _sharing(self, name: str, launch: Launch, work: _Work) -> int:
        """Return the thousandths of a launch's devices that other units hold; the maximum over its devices."""
        return max(
            (
                sum(
                    of.shape.share
                    for other in self._on.get(name, {}).values()
                    if other is not work
                    for on, of in other.launches.values()
                    if on == name and device in of.devices
                )
                for device in launch.devices
            ),
            default=0,
        )

    def _beside(self, work: _Work) -> None:
        """Update the rates of units that share a device with this one."""
        for name in {name for name, launch in work.launches.values() if launch.shape.share != WHOLE}:
            self._again_on(name)

    def _again_on(self, name: str) -> None:
        """Recompute the rates of all units on a node."""
        for work in list(self._on.get(name, {}).values()):
            slowdown = self._slowdown_of(work)
            if slowdown != work.slowdown and not work.stopping:
                self._come_to(work)
                work.slowdown = slowdown
                self._foresee(work)

    def _slow_down(self, name: str, factor: float) -> None:
        self._slow[name] = factor
        self._again_on(name)

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _join(self, nodes: Sequence[Node]) -> None:
        """Connect nodes. Attempts that the ledger shows as running on them continue."""
        for node in nodes:
            known = self.nodes.get(node.name)
            if known is None or not known.up:
                known = self.nodes[node.name] = VirtualNode(self, node)
            known.node = node
        self._adopt()
        port: NodePort = self.host
        for node in nodes:
            port.connect(node, port.accepted(), self.nodes[node.name])
            self._hear(node.name, Hello(node=node, running=self._running_on(node.name)))

    def _adopt(self) -> None:
        """Continue the attempts that ran in the initial ledger, once all their nodes are present. Units that were
        placed but not started are launched again after their node says hello.
        """
        for unit in [unit for unit in self.ledger.active.values() if unit.id in self._inherited]:
            tasks = [(index, task) for index, task in enumerate(unit.tasks) if task.active and not task.leaving]
            if not any(task.started for _, task in tasks):
                continue
            if all(task.node in self.nodes for _, task in tasks):
                self._inherited.discard(unit.id)
                launches = {
                    attempt_of(unit, index): (
                        task.node,
                        Launch(
                            attempt=attempt_of(unit, index), argv=(), shape=unit.shape, slots=0, devices=task.devices
                        ),
                    )
                    for index, task in tasks
                }
                self._go_on(unit, launches, min(task.started for _, task in tasks if task.started))

    def _go_on(self, unit: UnitState, launches: dict[Attempt, tuple[str, Launch]], started: int) -> None:
        """Continue attempts that have run since an instant on the log's clock."""
        work = self._work[unit.id] = _Work(unit, self._truths[unit.id], self._progress.get(unit.id, 0.0))
        work.launches = launches
        work.began = started - self.began
        work.since = max(work.began + _overhead(work), unit.resized - self.began if unit.resized else work.began)
        work.joined = {
            attempt: task.started - self.began
            for attempt in launches
            if (found := self.ledger.jobs.task(attempt.task))
            and (task := found[1]).epoch != unit.founded
            and task.started
        }
        work.seats = self._seats(work)
        for attempt, (name, _) in launches.items():
            self._of[attempt] = work
            self._on.setdefault(name, {})[unit.id] = work
        work.slowdown = self._slowdown_of(work)
        self._come_to(work)
        self._foresee(work)

    def _running_on(self, name: str) -> tuple[Running, ...]:
        return tuple(
            Running(attempt=attempt, pid=0)
            for work in self._on.get(name, {}).values()
            for attempt, (on, _) in work.launches.items()
            if on == name
        )

    def _lose(self, name: str, detected_after: int) -> None:
        """Remove a node at once; the control plane detects it later."""
        node = self.nodes.get(name)
        if node is None or not node.up:
            return
        node.up = False
        for work in list(self._on.pop(name, {}).values()):
            self._keep_from_loss(work, {attempt for attempt, (on, _) in work.launches.items() if on == name})
        for queue in node.waiting.values():
            for launch in queue:
                waiting = self._of.get(launch.attempt)
                if waiting is not None:
                    self._drop(waiting)
        node.waiting.clear()
        self.timeline.call_in(detected_after, self._detect, node)

    def _detect(self, node: VirtualNode) -> None:
        """Give the node up, unless it has returned and reported its losses itself."""
        if self.nodes[node.node.name] is node:
            self.host.ask(lambda request: GiveUp(request, (node.node.name,)), lambda reply: None)

    def _keep_from_loss(self, work: _Work, gone: Collection[Attempt]) -> None:
        """Remove lost attempts of a unit. The others stall until they are stopped, or continue if their gang can
        resize.
        """
        self._come_to(work)
        left = len(work.launches) - len(gone)
        if work.unit.resizes and not work.stopping and work.seats is not None and left >= max(1, work.unit.spec.least):
            self._go_on_without(work, gone)
            return
        if work.stands < 0:
            self._stand_still(work)
        self._keep(work, saved=False)
        if work.timer is not None and not work.stopping:  # members that save a checkpoint elsewhere still end
            work.timer.cancel()
            work.timer = None
        work.seats = None
        for attempt in gone:
            del work.launches[attempt]
            self._of.pop(attempt, None)
        if not work.launches:
            self._drop(work)

    def _hear(self, name: str, message: FromAgent) -> None:
        node = self.nodes[name]
        if node.up:
            self.host.hear(name, node, message)

    def _report(
        self, name: str, *, running: Running | None = None, ended: Ended | None = None, told: Told | None = None
    ) -> None:
        """Queue a node's report; all reports of an instant are sent together."""
        if not self._reports:
            self.timeline.call_at(self.timeline.now, self._send_reports)
        report = self._reports.setdefault(name, ([], [], []))
        if running is not None:
            report[0].append(running)
        if ended is not None:
            report[1].append(ended)
        if told is not None:
            report[2].append(told)

    def _send_reports(self) -> None:
        reports, self._reports = self._reports, {}
        for name, (running, ended, told) in reports.items():
            node = self.nodes[name]
            node.serial += 1
            said = Report(serial=node.serial, running=tuple(running), ended=tuple(ended), told=tuple(told))
            self._hear(name, said)


def _overhead(work: _Work) -> int:
    """Nanoseconds from the start of a unit's attempts until it makes progress."""
    return work.truth.restore if work.epoch > 1 else work.truth.start


def _rank(launch: tuple[str, Launch]) -> int:
    return launch[1].rank
