"""The loop around the controller: messages in, effects carried out, whatever the doors.

What arrives in one turn is handled together, so that one round decides for all of it and one commit makes all of it
durable. The control plane runs it on asyncio's loop with the real doors, the fault simulator on virtual time.
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
"""When this process wakes so much too late it was stopped (or the machine was), and nodes that kept on talking are not
to be taken for dead: what they said meanwhile is read first, for so many seconds.
"""

TURNS_TO_HEAR = 3
"""Turns of the loop from a word that has come at the machine to that word in the inbox: it is read from its socket, the
task wakes that waits for it, and that posts it.
"""

AT_ONCE = 256
"""Messages that one turn takes in, of as many as have come: some 20 ms. Whoever else wants the loop has it then."""

LOOK_AT_LOCK = 1.0
"""How often it is looked whether the lock is still held, in seconds: long before anything is given up of which whoever
has lost it still hears.
"""

Answer = Callable[[messages.Reply], None]


class Handle(Protocol):
    """Something that will be called, unless it is cancelled."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """What calls back: asyncio's loop, or a timeline. Delays in seconds."""

    def call_soon(self, call: Callable[..., object], /, *arguments: Any) -> object: ...
    def call_later(self, delay: float, call: Callable[..., object], /, *arguments: Any) -> Handle: ...


class Channel(Protocol):
    """A connected caller or worker."""

    def send(self, message: Any) -> None: ...
    def close(self) -> None: ...


class _Asked(NamedTuple):
    """A view was made in so many nanoseconds, and handed to the policy at the instant `at`."""

    at: int
    view: int


class _Planned(NamedTuple):
    """The policy has answered with a plan, at the instant `at`."""

    plan: Plan
    at: int
    asked: _Asked


class _Appended(msgspec.Struct):
    """Events are handed to the log at the instant `at`, in `took` nanoseconds; the last is that of `revision`."""

    at: int
    revision: int
    events: tuple[Event, ...]
    took: int = 0


def _raise(error: PoiseError) -> NoReturn:
    raise error


class Host:
    """Owner of controller and store. `post` is called by the timers' thread only.

    `tell` is given what a person should read. Every turn runs inside `guard()`: after an error that nobody foresaw,
    ledger and log may differ, and only a start from the log puts that right. Only one host works on a log: who finds
    that it has lost the lock (`holds`; none where nobody else can come to the log), or that another has written to the
    log, ends at once (`leave`), so that agents and callers find the one that can write.

    `observe`, if any, is told of durable events, rounds and commits. It must return at once, and raise nothing.
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
        """Take the log."""
        now, wall = self.clock.now(), self.clock.wall()
        self._perform(self.controller.begin(now, boot=boot, boottime=boottime, wall=wall, term=term))
        self._schedule()
        if self._holds is not None:
            self._look_at_lock(self._holds)

    def end(self) -> None:
        """Commit what is queued and let go of the log. What is heard or falls due later is for the next host."""
        self._over = True
        self.store.close()

    # --- messages ----------------------------------------------------------------------------------------------------

    def post(self, message: messages.Message) -> None:
        """Hand a message to the controller in the next turn of the loop."""
        self._inbox.append(message)
        self._schedule()

    def ask(self, make: Callable[[int], messages.Message], answer: Answer) -> None:
        """Post a request; `answer` is called when it is durable, or refused."""
        self._next_request += 1
        self._requests[self._next_request] = answer
        self.post(make(self._next_request))

    # --- agents ------------------------------------------------------------------------------------------------------

    def accepted(self) -> int:
        """The number of a connection that a node has just made; later ones have higher numbers."""
        self._accepted += 1
        return self._accepted

    def connect(self, node: Node, number: int, channel: Connection, by: str = "") -> bool:
        """A node has said hello on the connection of this number; the newest that has is the one that counts. False:
        the hello was overtaken by that of a newer connection, and what it says is no longer so. Raises `Conflict` while
        another machine of its name is heard, for each would take what the other runs for lost, for ever; and where the
        name is that of a node that came by another token than `by` (see `Controller.check_namesake`).
        """
        name = node.name
        if number < self._newest.get(name, 0):
            return False
        self.controller.check_namesake(name, by, self.clock.now())
        old = self._channels.get(name)
        if old is not None and old is not channel:
            if self.controller.hears_another(node, self.clock.now()):
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
        """A message from a node that came by this token; only its newest connection is heard."""
        if self._channels.get(node) is channel:
            self.post(messages.FromNode(node, message, by))

    # --- callers and workers -----------------------------------------------------------------------------------------

    def connect_caller(self, job: str, tenant: str, channel: Channel) -> None:
        """The newest connection of a job's caller wins, as it does of a node and of a worker. Raises `NotFound` unless
        the job is there, serves calls and is of this tenant: who comes before it is there would be the caller of
        whoever submits the next job.
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
        """One turn: messages, then time, then rounds until nothing more is to be decided."""
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
        """Time is up for something. It may be for nodes that are silent; so first all is heard that has come by now: a
        round, or an answer to somebody, may just have kept this process from reading.
        """
        self._hear_all(self.clock.now(), TURNS_TO_HEAR)

    def _hear_all(self, until: int, turns: int) -> None:
        if turns:
            self._timers.call_soon(self._hear_all, until, turns - 1)
        else:
            self._heard_until = until
            self._schedule()

    def _perform(self, effects: Sequence[messages.Effect], view_took: int = 0) -> None:
        """Carry out what the controller asks for; `view_took` is for how long it made the view, if there is one."""
        appends: list[Event] = []
        expected, is_due = -1, False
        for effect in effects:
            match effect:
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
                    if channel is not None:  # told why, it leaves by itself; nothing more is heard of it
                        channel.send(Over(f"a call was refused: {effect.error}"))
                        self.post(messages.CallerGone(effect.job))
                case messages.HangCalls():
                    self._hang_up(self._callers)
                    self._hang_up(self._workers)
                case messages.Decide():
                    asked = _Asked(self.clock.now(), view_took)
                    self._decider.decide(effect.view, partial(self._on_plan, effect.view, asked))
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

    def _on_plan(self, view: Snapshot, asked: _Asked, plan: Plan) -> None:
        self._planned.append(_Planned(plan, self.clock.now(), asked))
        self.post(messages.Decided(plan, view))

    def _append(self, events: Sequence[Event], expected: int) -> bool:
        """Whether there was anything to write, and the log has taken it."""
        if not events:
            return False
        appended = _Appended(self.clock.now(), expected + len(events), tuple(events))
        self._undurable.append(appended)  # before: some stores answer at once
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
        """Save the state as of the last event, so that a start need not read all that led to it."""
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
        """Have something recorded that was noticed here, if anything was."""
        if noticed is not None:
            self.post(messages.Saw(noticed))

    def _appended(self, events: Sequence[Event], expected: int) -> None:
        """These were handed to the log, which may still refuse them."""

    def _published_up_to(self, revision: int) -> None:
        """Everything up to here is durable, and may be shown."""

    def _taken_back(self, durable: int) -> None:
        """Nothing after this revision has happened."""

    def _look_at_lock(self, holds: Callable[[], bool]) -> None:
        """Who has nothing to write would not learn it from the log."""
        if self._over:
            return
        if not holds():
            self._leave(Conflict("the lock is lost: its file was removed or replaced", code="E204"))
        self._timers.call_later(LOOK_AT_LOCK, self._look_at_lock, holds)

    def _on_failed(self, error: Exception) -> None:
        """The log cannot be written: back to what is durable."""
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
    """What a ledger is loaded from: a store, or what reads one."""

    def latest_checkpoint(self) -> StoredCheckpoint | None: ...
    def read(self, after: int = 0, limit: int = 0) -> Iterator[tuple[int, Event]]: ...
    def written_by(self) -> str: ...


def load_ledger(store: Log) -> Ledger:
    """The ledger as the log has it: the latest checkpoint and every event after it."""
    ledger = ledger_at(store.latest_checkpoint(), store.written_by)
    for _, event in store.read(ledger.revision):
        ledger.apply(event)
    return ledger


def ledger_at(checkpoint: StoredCheckpoint | None, written_by: Callable[[], str], *, plans: bool = True) -> Ledger:
    """The ledger of a checkpoint, or an empty one; `plans` as of `Ledger`. Raises `StoreNewer`, which names the version
    that wrote it, for a state that this version cannot read: the checkpoint is whole, so it was written like this.
    """
    if checkpoint is None:
        return Ledger(plans=plans)
    try:
        return Ledger.decode(checkpoint.state, plans=plans)
    except (msgspec.MsgspecError, zlib.error) as error:
        message = f"the checkpoint at revision {checkpoint.revision} is unknown to this version: {error}"
        raise newer(message, written_by()) from None
