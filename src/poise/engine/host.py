"""The event loop around the controller: it delivers messages and carries out effects, on any implementation of the
ports.

Messages of one turn are handled together, so that one round decides for all of them and one commit makes all of it
durable. The control plane runs the host on asyncio's loop with the real ports, the fault simulator on virtual time.
"""

import contextlib
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol

import msgspec

from poise.errors import Conflict, NotLeading, PoiseError, StoreFull, newer
from poise.kernel import messages
from poise.kernel.controller import Controller
from poise.kernel.dispatch import served
from poise.kernel.ledger import Ledger
from poise.kernel.noticing import Noticing
from poise.model.calls import FromCaller, FromWorker, Over
from poise.model.decisions import Plan
from poise.model.events import Event, Noticed
from poise.model.messages import Attempt, FromAgent
from poise.model.observed import CommitTook, Happened, Observed, RoundTook
from poise.model.resources import Node
from poise.model.views import Snapshot
from poise.ports import Clock, Connection, Decider, Store, StoredCheckpoint
from poise.units import SECOND

STOOD_STILL = 1 * SECOND
HEAR_FIRST = 0.2
"""A process that wakes more than 1 s late was stopped, or its machine was. It then reads messages for 0.2 s before it
judges nodes: those that kept sending must not be taken for dead.
"""

TURNS_TO_HEAR = 3
"""Turns of the loop from a message's arrival at the machine to the inbox: the loop reads the socket, the task that
waits for it wakes, and the task posts the message.
"""

AT_ONCE = 256
"""Maximum number of messages per turn, some 20 ms. Other tasks on the loop run after that."""

LOOK_AT_LOCK = 1.0
"""Seconds between checks that this process still holds the lock: far less than the time after which a successor gives
up nodes that may still send to this process.
"""

Answer = Callable[[messages.Reply], None]


class Handle(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Schedules calls: asyncio's loop, or a timeline. Delays in seconds."""

    def call_soon(self, call: Callable[..., object], /, *arguments: Any) -> object: ...
    def call_later(self, delay: float, call: Callable[..., object], /, *arguments: Any) -> Handle: ...


class Channel(Protocol):
    """A connected caller or worker."""

    def send(self, message: Any) -> None: ...
    def close(self) -> None: ...


class _Asked(NamedTuple):
    """A view that took `view` nanoseconds to make, and was handed to the policy at the instant `at`."""

    at: int
    view: int


class _Planned(NamedTuple):
    """A plan that the policy returned at the instant `at`."""

    plan: Plan
    at: int
    asked: _Asked


class _Appended(msgspec.Struct):
    """Events handed to the log at the instant `at`, in `took` nanoseconds; `revision` is that of the last one."""

    at: int
    revision: int
    events: tuple[Event, ...]
    took: int = 0


def _raise(error: PoiseError) -> NoReturn:
    raise error


class Host:
    """Owner of controller and store. Call `post` only on the thread of the timers.

    `tell` receives messages for people. Each turn runs inside `guard()`: after an unexpected error, ledger and log may
    differ, and only a restart from the log repairs that. Only one host works on a log. A host that has lost the lock
    (`holds`; None where no other process can reach the log), or finds that another host has written to the log, ends at
    once (`leave`), so that agents and callers find the host that can write.

    `observe`, if set, receives durable events, rounds and commits. It must return at once and must not raise.
    """

    def __init__(
        self,
        controller: Controller,
        store: Store,
        clock: Clock,
        decider: Decider,
        timers: Timers,
        *,
        tell: Callable[[str], None],
        holds: Callable[[], bool] | None = None,
        leave: Callable[[PoiseError], NoReturn] = _raise,
        guard: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.controller = controller
        self.store = store
        self.clock = clock
        self._decider = decider
        self._timers = timers
        self._holds = holds
        self._leave = leave
        self._tell = tell
        self._guard = guard
        self._inbox: deque[messages.Message] = deque()
        self._scheduled = False
        self._timer: Handle | None = None
        self._due: int | None = None
        self._heard_until = self._taken_in_until = 0
        self._requests: dict[int, Answer] = {}
        self._next_request = 0
        self._channels: dict[str, Connection] = {}
        self._newest: dict[str, int] = {}
        self._accepted = 0
        self._callers: dict[str, Channel] = {}
        self._workers: dict[Attempt, Channel] = {}
        self._over = False
        self._noticing = Noticing()
        self.observe: Callable[[Observed], None] | None = None
        self._planned: deque[_Planned] = deque()
        self._undurable: deque[_Appended] = deque()
        store.on_durable = self._on_durable
        store.on_failed = self._on_failed

    @property
    def ledger(self) -> Ledger:
        return self.controller.ledger

    def begin(self, *, boot: str, boottime: int, term: int = 0) -> None:
        """Start the controller on the log, and start the check of the lock."""
        now, wall = self.clock.now(), self.clock.wall()
        self._perform(self.controller.begin(now, boot=boot, boottime=boottime, wall=wall, term=term))
        self._schedule()
        if self._holds is not None:
            self._look_at_lock(self._holds)

    def end(self) -> None:
        """Commit queued events and close the log. Later messages and timers are left to the next host."""
        self._over = True
        self.store.close()

    # --- messages ----------------------------------------------------------------------------------------------------

    def post(self, message: messages.Message) -> None:
        """Hand a message to the controller in the next turn of the loop."""
        self._inbox.append(message)
        self._schedule()

    def ask(self, make: Callable[[int], messages.Message], answer: Answer) -> None:
        """Post a request; `answer` is called once it is durable or refused."""
        self._next_request += 1
        self._requests[self._next_request] = answer
        self.post(make(self._next_request))

    # --- agents ------------------------------------------------------------------------------------------------------

    def accepted(self) -> int:
        """Return the number of a new connection of a node; later connections have higher numbers."""
        self._accepted += 1
        return self._accepted

    def connect(self, node: Node, number: int, channel: Connection, by: str = "") -> bool:
        """Register a node's connection after its hello; the newest connection replaces older ones. Return False if a
        newer connection of the node has already said hello, as this hello is out of date. Raises `Conflict` while
        another machine of this name is connected and not suspect, as each would forever take the other's attempts for
        lost; and where a node of this name joined with another token than `by` (see `Controller.check_namesake`).
        """
        name = node.name
        if number < self._newest.get(name, 0):
            return False
        self.controller.membership.check_namesake(name, by, self.clock.now())
        old = self._channels.get(name)
        if old is not None and old is not channel:
            if self.controller.membership.hears_another(node, self.clock.now()):
                raise Conflict(
                    "another machine uses this name",
                    code="E107",
                    field="name",
                    have=name,
                    hint="give this one another name: `--name`",
                )
            old.close()
        self._newest[name] = number
        self._channels[name] = channel
        return True

    def disconnect(self, node: str, channel: Connection) -> None:
        if self._channels.get(node) is channel:
            del self._channels[node]
            self.post(messages.Gone(node))

    def hear(self, node: str, channel: Connection, message: FromAgent, by: str = "") -> None:
        """Post a message from a node that joined with this token. Messages on older connections are dropped."""
        if self._channels.get(node) is channel:
            self.post(messages.FromNode(node, message, by))

    # --- callers and workers -----------------------------------------------------------------------------------------

    def connect_caller(self, job: str, tenant: str, channel: Channel) -> None:
        """Register the connection of a job's caller; the newest replaces older ones, as for nodes and workers. Raises
        `NotFound` unless the job exists, serves calls and belongs to this tenant: an earlier connection would become
        the caller of the next job that anyone submits.
        """
        served(self.ledger, job, tenant)
        old = self._callers.get(job)
        if old is not None and old is not channel:
            old.close()
        self._callers[job] = channel

    def hear_caller(self, job: str, tenant: str, channel: Channel, message: FromCaller) -> None:
        if self._callers.get(job) is channel:
            self.post(messages.FromJobCaller(job, message, tenant))

    def disconnect_caller(self, job: str, channel: Channel) -> None:
        if self._callers.get(job) is channel:
            del self._callers[job]
            self.post(messages.CallerGone(job))

    def connect_worker(self, attempt: Attempt, channel: Channel) -> None:
        old = self._workers.get(attempt)
        if old is not None and old is not channel:
            old.close()
        self._workers[attempt] = channel

    def hear_worker(self, attempt: Attempt, channel: Channel, message: FromWorker) -> None:
        if self._workers.get(attempt) is channel:
            self.post(messages.FromCallWorker(attempt, message))

    def disconnect_worker(self, attempt: Attempt, channel: Channel) -> None:
        if self._workers.get(attempt) is channel:
            del self._workers[attempt]

    def _hang_up(self, channels: dict[Any, Channel]) -> None:
        for channel in channels.values():
            channel.close()
        channels.clear()

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._timers.call_soon(self._run)

    def _run(self) -> None:
        """Run one turn: messages, then time, then rounds until there is nothing left to decide."""
        if self._over:
            return
        with self._guard():
            self._turn()

    def _turn(self) -> None:
        now = self.clock.now()
        if self._due is not None and now - self._due > STOOD_STILL:
            self._due = None
            self._timers.call_later(HEAR_FIRST, self._run)
            return
        self._scheduled = False
        effects: list[messages.Effect] = []
        for _ in range(min(AT_ONCE, len(self._inbox))):
            effects.extend(self._handle(self._inbox.popleft(), now))
        if self._inbox:
            self._schedule()
        else:
            self._taken_in_until = self._heard_until
        began = self.clock.now()
        wall = self.clock.wall()
        self._saw(self._noticing.turn(now, wall))
        effects.extend(self.controller.tick(now, self._taken_in_until, wall))
        self._perform(effects, self.clock.now() - began)
        self._arm()

    def _handle(self, message: messages.Message, now: int) -> Sequence[messages.Effect]:
        planned = self._planned
        if not isinstance(message, messages.Decided) or not planned or planned[0].plan is not message.plan:
            return self.controller.handle(message, now)
        (_, answered, (asked, view)), began = planned.popleft(), self.clock.now()
        effects = self.controller.handle(message, now)
        if self.observe is None:
            return effects
        self.observe(
            RoundTook(
                at=now,
                revision=message.plan.base,
                policy=message.plan.policy,
                view=view,
                decide=answered - asked,
                wait=began - answered,
                apply=self.clock.now() - began,
            )
        )
        return effects

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._due = None
        wakeup = self.controller.wakeup()
        if wakeup is not None:
            self._due = wakeup
            delay = max(0.0, (wakeup - self.clock.now()) / SECOND)
            self._timer = self._timers.call_later(delay, self._wake)

    def _wake(self) -> None:
        """Handle a timer. It may be a node's timeout, so read all messages that have arrived first: a round, or a
        reply, may have just kept this process from reading.
        """
        self._hear_all(self.clock.now(), TURNS_TO_HEAR)

    def _hear_all(self, until: int, turns: int) -> None:
        if turns:
            self._timers.call_soon(self._hear_all, until, turns - 1)
        else:
            self._heard_until = until
            self._schedule()

    def _perform(self, effects: Sequence[messages.Effect], view_took: int = 0) -> None:
        """Carry out effects of the controller; `view_took` is the time in which the view was made, if there is one."""
        appends: list[Event] = []
        expected, is_due = -1, False
        left = deque(effects)
        while left:
            match effect := left.popleft():
                case messages.Append():
                    if not appends:
                        expected = effect.expected
                    appends.extend(effect.events)
                case messages.Reply():
                    answer = self._requests.pop(effect.request, None)
                    if answer is not None:
                        answer(effect)
                case messages.Send():
                    channel = self._channels.get(effect.node)
                    if channel is not None:
                        channel.send(effect.message)
                case messages.SayCaller():
                    channel = self._callers.get(effect.job)
                    if channel is not None:
                        channel.send(effect.message)
                case messages.SayWorker():
                    channel = self._workers.get(effect.attempt)
                    if channel is not None:
                        channel.send(effect.message)
                case messages.HangCaller():
                    self._tell(f"the caller of {effect.job} is hung up on: {effect.error}")
                    channel = self._callers.pop(effect.job, None)
                    if channel is not None:  # the caller reads the reason and disconnects; ignore its later messages
                        channel.send(Over(f"a call was refused: {effect.error}"))
                        self.post(messages.CallerGone(effect.job))
                case messages.HangCalls():
                    self._hang_up(self._callers)
                    self._hang_up(self._workers)
                case messages.Decide():
                    asked = _Asked(self.clock.now(), view_took)
                    self._decider.decide(effect.view, partial(self._on_plan, effect.view, asked))
                    left.extend(self._planned_at_once())
                case messages.Hang():
                    channel = self._channels.pop(effect.node, None)
                    if channel is not None:
                        channel.close()
                case messages.Checkpoint():
                    is_due = True
                case messages.TryRecover():
                    if self.store.recover():
                        self._tell("the log can be written again")
                        self.post(messages.Recovered())
                        self._saw(self._noticing.room(self.clock.now()))
        if self._append(appends, expected) and is_due:
            self._save()

    def _planned_at_once(self) -> Sequence[messages.Effect]:
        """Apply a plan that is ready, so that one commit makes work and its placement durable. A large plan, or one
        behind other messages, waits for the next turn. That turn comes in any case, to decide on the remaining work.
        """
        planned = self._planned
        if len(self._inbox) != 1 or not planned or len(planned[0].plan.decisions) > AT_ONCE:
            return ()
        return self._handle(self._inbox.popleft(), self.clock.now())

    def _on_plan(self, view: Snapshot, asked: _Asked, plan: Plan) -> None:
        self._planned.append(_Planned(plan, self.clock.now(), asked))
        self.post(messages.Decided(plan, view))

    def _append(self, events: Sequence[Event], expected: int) -> bool:
        """Append events; return whether there were any and the log accepted them."""
        if not events:
            return False
        appended = _Appended(self.clock.now(), expected + len(events), tuple(events))
        self._undurable.append(appended)  # first, as some stores answer at once
        try:
            self.store.append(events, expected=expected)
        except PoiseError as error:
            self._undurable.pop()
            if self.controller.accepting:
                self._timers.call_soon(self._on_failed, error)
            return False
        appended.took = self.clock.now() - appended.at
        self._appended(events, expected)
        return True

    def _save(self) -> None:
        """Save the state as of the last event, so that a restart need not read the whole log."""
        self.store.checkpoint(self.ledger.revision, self.ledger.compressed())

    def _on_durable(self, revision: int) -> None:
        if self._over:
            return
        with self._guard():
            now = self.clock.now()
            self._perform(self.controller.handle(messages.Durable(revision), now))
            self._observe_durable(revision, now)
            self._published_up_to(revision)
            if self._inbox:
                self._schedule()

    def _observe_durable(self, revision: int, now: int) -> None:
        while self._undurable and self._undurable[0].revision <= revision:
            of = self._undurable.popleft()
            sync = now - of.at - of.took
            if self.observe is not None:
                count = len(of.events)
                self.observe(Happened(first=of.revision - count + 1, events=of.events))
                self.observe(CommitTook(at=of.at, revision=of.revision, events=count, append=of.took, sync=sync))
            self._saw(self._noticing.committed(of.took + sync, now))

    def _saw(self, noticed: Noticed | None) -> None:
        """Post a notice for the log, if there is one."""
        if noticed is not None:
            self.post(messages.Saw(noticed))

    def _appended(self, events: Sequence[Event], expected: int) -> None:
        """Hook: the log has received these events, and may still refuse them."""

    def _published_up_to(self, revision: int) -> None:
        """Hook: events up to this revision are durable, and may be shown."""

    def _taken_back(self, durable: int) -> None:
        """Hook: events after this revision were discarded."""

    def _look_at_lock(self, holds: Callable[[], bool]) -> None:
        """Check the lock regularly: a host that has nothing to write would not learn from the log that it lost the
        lock.
        """
        if self._over:
            return
        if not holds():
            self._leave(Conflict("the lock is lost: its file was removed or replaced", code="E204"))
        self._timers.call_later(LOOK_AT_LOCK, self._look_at_lock, holds)

    def _on_failed(self, error: Exception) -> None:
        """Handle a failed write of the log: return to the durable state."""
        if self._over:
            return
        if isinstance(error, NotLeading) or (isinstance(error, Conflict) and error.record.code == "E204"):
            self._leave(error)
        with self._guard():
            self._go_back(error)

    def _go_back(self, error: Exception) -> None:
        if not self.controller.accepting:
            return
        self._tell(f"the log cannot be written: {error}")
        self._noticing.full(self.clock.now())
        known = error if isinstance(error, PoiseError) else StoreFull(str(error))
        self._observe_durable(self.store.durable(), self.clock.now())
        self._undurable.clear()
        self._taken_back(self.store.durable())
        ledger = load_ledger(self.store)
        self._perform(self.controller.handle(messages.AppendFailed(ledger, known), self.clock.now()))
        self._published_up_to(ledger.revision)
        self._schedule()


class Log(Protocol):
    """The source of a ledger: a store, or a reader of one."""

    def latest_checkpoint(self) -> StoredCheckpoint | None: ...
    def read(self, after: int = 0, limit: int = 0) -> Iterator[tuple[int, Event]]: ...
    def written_by(self) -> str: ...


def load_ledger(store: Log) -> Ledger:
    """Load the ledger from the log: the latest checkpoint and each event after it."""
    ledger = ledger_at(store.latest_checkpoint(), store.written_by)
    for _, event in store.read(ledger.revision):
        ledger.apply(event)
    return ledger


def ledger_at(checkpoint: StoredCheckpoint | None, written_by: Callable[[], str], *, plans: bool = True) -> Ledger:
    """Return the ledger of a checkpoint, or an empty one; `plans` as of `Ledger`. Raises `StoreNewer` with the version
    that wrote it, where this version cannot read the state: the checkpoint is whole, so a newer version wrote it.
    """
    if checkpoint is None:
        return Ledger(plans=plans)
    try:
        return Ledger.decode(checkpoint.state, plans=plans)
    except (msgspec.MsgspecError, zlib.error) as error:
        message = f"the checkpoint at revision {checkpoint.revision} is unknown to this version: {error}"
        raise newer(message, written_by()) from None
