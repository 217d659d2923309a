"""The control plane as a pure state machine. It takes messages and the time, and returns effects. It never sleeps,
reads a clock or opens a socket.

Log first: `snapshot → decide → verify → append → apply → effects`. State is applied at once. Each effect that tells the
outside something waits in the outbox until the revision that it depends on is durable. If the log cannot be written,
the shell reloads the ledger from the durable log. Requests in the outbox are refused, and nothing new is accepted until
there is space again.

Level-triggered: a node that connects reports what it holds, and the reply says what it should hold. Lost messages are
sent again. Receiving a message twice is harmless, because an attempt is a task and its epoch.

The controller consists of parts. `Controller` makes them, takes each message to the part that handles it, and applies
each event. A part gets the earlier parts that it may see.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from poise.errors import PoiseError
from poise.kernel.bookings import Bookings
from poise.kernel.budgeting import Budgeting
from poise.kernel.controller.administration import Administration
from poise.kernel.controller.attempts import LiveAttempts
from poise.kernel.controller.cadence import OF_PLACES, QUIET, Cadence
from poise.kernel.controller.contacts import Contacts
from poise.kernel.controller.deciding import Deciding
from poise.kernel.controller.jobs import JobRequests
from poise.kernel.controller.limits import LiveLimits
from poise.kernel.controller.membership import Membership
from poise.kernel.controller.outbox import Outbox, Requests
from poise.kernel.controller.settings import FOREVER, Settings, triggers_of
from poise.kernel.controller.silence import Silence
from poise.kernel.controller.tellings import Tellings
from poise.kernel.dispatch import Dispatch
from poise.kernel.hours import Hours
from poise.kernel.lateness import Lateness
from poise.kernel.ledger import Ledger
from poise.kernel.messages import (
    AnswerRule,
    AppendFailed,
    AskToStop,
    CallerGone,
    CancelReservation,
    Crowded,
    Decided,
    Durable,
    Effect,
    FromCallWorker,
    FromJobCaller,
    FromNode,
    Gone,
    Hang,
    HangCaller,
    HangCalls,
    HearServices,
    HoldSchedule,
    JudgeShadows,
    Locked,
    Message,
    Recovered,
    RemoveSchedule,
    Reserve,
    Saw,
    SayCaller,
    SayWorker,
    SetRules,
    TryRecover,
)
from poise.kernel.ruling import Ruling
from poise.kernel.schedulable import prepare
from poise.kernel.services import Hearing
from poise.kernel.straggle import stragglers
from poise.kernel.timetable import Calendar
from poise.kernel.watch import Watch
from poise.model.events import Began, Event, NodeForgotten, NodeLevelled, ShadowJudged, StopAsked
from poise.model.resources import is_declared
from poise.model.spec import Compiled
from poise.model.tenants import DEFAULT
from poise.model.views import Snapshot
from poise.policy.suites import is_fixed
from poise.units import SECOND

RECOVER_EVERY = 1 * SECOND

COMPARE_EVERY = 5 * SECOND
"""Interval at which attempts are compared with similar ones."""


class Vitals(NamedTuple):
    """Health of a controller: connected agents, effects in the outbox, and two durations in nanoseconds. `silence` is
    the longest silence of a connected agent, `deciding` the time since the policy was asked for a plan still missing.
    """

    connected: int
    outbox: int
    silence: int
    deciding: int


class Part(Protocol):
    """A part of the controller, which replaces `ledger` when it reloads the durable state."""

    ledger: Ledger


class Controller:
    """Owner of the ledger. Call `handle` with each message, then `tick` once. Both return effects, in order."""

    def __init__(self, ledger: Ledger, settings: Settings, calendar: Calendar | None = None) -> None:
        """Without a `calendar`, as in forecasts, schedules submit nothing."""
        self.ledger = ledger
        ledger.columns.grows = settings.grows
        self.settings = settings
        self._calendar = calendar
        self._last_comparison = 0
        self._last_recovery = 0
        self._now = ledger.now
        commit = self._commit
        self.watch = watch = Watch(triggers_of(settings.recipe))
        self.contacts = contacts = Contacts(settings, watch)
        self.outbox = outbox = Outbox(ledger, settings.checkpoint_every, contacts)
        self.cadence = cadence = Cadence(ledger, settings, watch, commit=commit)
        self.dispatch = dispatch = Dispatch(
            ledger,
            ledger.now,
            commit=commit,
            say_caller=lambda job, message: outbox.later(SayCaller(job, message)),
            say_worker=lambda attempt, message: outbox.later(SayWorker(attempt, message)),
        )
        self.tellings = tellings = Tellings(ledger, outbox, cadence, commit=commit)
        self.attempts = attempts = LiveAttempts(
            ledger, settings, watch, contacts, outbox, cadence, tellings, dispatch, commit=commit
        )
        self.limits = limits = LiveLimits(ledger, cadence, attempts, commit=commit)
        self.deciding = deciding = Deciding(ledger, watch, outbox, cadence, attempts, commit=commit)
        self.membership = membership = Membership(
            ledger, settings, watch, contacts, outbox, cadence, tellings, attempts, limits, deciding, commit=commit
        )
        self.silence = Silence(ledger, settings, watch, contacts, outbox, cadence, membership, commit=commit)
        self.jobs = JobRequests(ledger, calendar, outbox, cadence, attempts, limits, dispatch, commit=commit)
        self.turns = self.jobs.turns
        self.hours = Hours(ledger, calendar, commit=commit)
        self.budgeting = Budgeting(ledger, calendar, commit=commit)
        self.bookings = Bookings(ledger, commit=commit, clear=deciding.clear, renew=cadence.want)
        self.administration = Administration(ledger, watch, cadence, self.hours, commit=commit)
        self.ruling = Ruling(
            ledger,
            commit=commit,
            drain=membership.drain,
            configure=self.administration.configure,
            set_quota=self.administration.set_quota,
            change=self.jobs.commit_change,
        )
        self.hearing = Hearing(ledger, commit)
        self._requests: Requests = {
            HoldSchedule: lambda asked, now: self.turns.hold(asked.schedule, asked.bearer, now, on=asked.on),
            RemoveSchedule: lambda asked, now: self.turns.remove(asked.schedule, asked.bearer, now),
            Reserve: lambda asked, now: self.bookings.add(asked.reservations, asked.bearer, now),
            CancelReservation: lambda asked, now: self.bookings.cancel(asked.reservation, asked.bearer, now),
            SetRules: self.ruling.set,
            AnswerRule: self.ruling.answer,
            HearServices: self.hearing.hear,
            AskToStop: lambda asked, now: commit(StopAsked(at=now, by=asked.bearer.token)),
        }
        for part in (tellings, membership, self.silence, self.jobs, self.administration):
            self._requests |= part.requests()

    @property
    def accepting(self) -> bool:
        """Whether the log can be written."""
        return not self.outbox.full

    @property
    def durable(self) -> int:
        return self.outbox.durable

    def begin(self, now: int, *, boot: str, boottime: int, wall: float, term: int = 0) -> Sequence[Effect]:
        """Take over the log with a new term: the next one, unless an election determined it. Nodes that were up have
        the usual time to connect before they are lost. Nodes of another than the declared fleet are forgotten.
        """
        began = Began(
            at=now,
            term=term or self.ledger.leader.term + 1,
            policy=self.settings.policy,
            history=self.settings.history,
            history_tasks=self.settings.history_tasks,
            version=self.settings.version,
            boot=boot,
            boottime=boottime,
            wall=wall,
            seed=self.settings.seed,
            throughputs=self.settings.throughputs,
            recipe=self.settings.recipe,
            code=self.settings.code,
            fair=True,
            fixed=is_fixed(self.settings.policy),
            asked=self.settings.asked,
            learning=1,
        )
        self._commit(began)
        if self._calendar is not None:
            self.ruling.restart(self.ledger, now)
        self.turns.wall_is(wall, now)
        self.bookings.look_again()
        self.dispatch.restart(self.ledger, now)
        for name, node in list(self.ledger.nodes.items()):
            if name not in self.settings.declared and (self.settings.declared or is_declared(node.node)):
                self.attempts.lose_all(name, now, f"node {name} is no longer part of the fleet")
                self._commit(NodeForgotten(at=now, name=name))
        expected = [name for name, node in self.ledger.nodes.items() if node.status == "up"]
        self.contacts.await_all(expected, now)
        return self.outbox.flush(now)

    def handle(self, message: Message, now: int) -> Sequence[Effect]:
        """Handle one message."""
        self._now = now
        act = self._requests.get(type(message))
        if act is not None:
            self.outbox.answer(message, act, now)
            return self.outbox.flush(now)
        match message:
            case FromNode():
                self.membership.from_node(message.node, message.message, message.by, now)
            case Durable():
                return self.outbox.on_durable(message.revision, now)
            case Decided():
                self.deciding.decided(message.plan, message.view, now)
            case FromCallWorker():
                if self.outbox.full:
                    return (HangCalls(),)
                self.dispatch.from_worker(message.attempt, message.message, now)
            case FromJobCaller():
                if self.outbox.full:
                    return (HangCalls(),)
                try:
                    self.dispatch.from_caller(message.job, message.tenant, message.message, now)
                except PoiseError as error:
                    self.outbox.at_once(HangCaller(message.job, error))
            case CallerGone():
                self.dispatch.caller_gone(message.job, now)
            case Locked():
                self.attempts.locked(message, now)
            case JudgeShadows():
                if not self.outbox.full and message.better != self.ledger.rules.shadow_better:
                    self._commit(ShadowJudged(at=now, better=message.better))
            case Saw():
                if not self.outbox.full:
                    self._commit(msgspec.structs.replace(message.noticed, at=now))
            case Gone():
                self.membership.disconnect(message.node, now)
            case Crowded():
                self.contacts.outage.crowded(message.until, now)
            case AppendFailed():
                return self._append_failed(message, now)
            case Recovered():
                self.outbox.full = False
                self.cadence.want()
        return self.outbox.flush(now)

    def tick(self, now: int, heard_until: int | None = None, wall: float | None = None) -> Sequence[Effect]:
        """Handle the passing of time: lost nodes, missed deadlines, due schedules, rounds, recovery of the log. All
        messages of nodes from before `heard_until` have been processed (None: all messages), so silence is judged only
        until then. `wall` is the wall clock in seconds since 1970 (None: not set since the last call).
        """
        self._now = now
        if wall is not None:
            self.turns.wall_is(wall, now)
            if not self.outbox.full:
                self.bookings.wall_is(wall, now)
        if self.outbox.full:
            if now - self._last_recovery < RECOVER_EVERY:
                return ()
            self._last_recovery = now
            return (TryRecover(),)
        self.silence.tick(now if heard_until is None else heard_until, now)
        for change in self.watch.settled(now):
            self._commit(NodeLevelled(at=now, name=change.node, level=change.level, hot=change.hot))
        if self.watch.is_long_full(now):
            self.cadence.fire(self.watch.use(self.ledger.columns.use(), now), now)
        self.attempts.recall_queued(now)
        if now - self._last_comparison >= COMPARE_EVERY:
            self._last_comparison = now
            self.membership.forget_nodes(now)
            for straggling in list(stragglers(self.ledger, now, self.contacts.connected)):
                self._commit(straggling)
            for lagging in list(self.tellings.paces.lagging(self.ledger, now)):
                self._commit(lagging)
        self.jobs.cancel_late(now)
        self.tellings.wake(now)
        self.turns.tick(now)
        self.bookings.tick(now)
        self.hours.tick(now, self.turns.wall_at(now))
        self.budgeting.tick(now, self.turns.wall_at(now))
        self.hearing.tick(now)
        self.ruling.tick(now, self.watch)
        self.dispatch.tick(now)
        effects = list(self.outbox.flush(now))
        if self.cadence.is_due(now):
            effects.append(self.cadence.ask(now))
        return effects

    def wakeup(self) -> int | None:
        """Return when to tick next if nothing happens before."""
        if self.outbox.full:
            return self._last_recovery + RECOVER_EVERY
        now, soonest = self._now, self.silence.wakeup()
        for at in (
            self.watch.due(),
            self.dispatch.wakeup(),
            self.jobs.lateness.wakeup(self.ledger),
            self.turns.wakeup(now),
            self.bookings.wakeup(),
            self.hours.wakeup(),
            self.budgeting.wakeup(),
            self.cadence.wakeup(now),
            self.ruling.due(),
        ):
            if at is not None and at < soonest:
                soonest = at
        return None if soonest >= FOREVER else soonest

    # --- what is asked about the state -------------------------------------------------------------------------------

    def snapshot(self, now: int) -> Snapshot:
        """Return the current snapshot for the policy."""
        return self.cadence.snapshot(now)

    def prepare(self, document: Any, wall: float, now: int, tenant: str = DEFAULT) -> Compiled:
        """Compile a tenant's request for the fleet as of `now`; raises SpecError. `wall` in seconds since 1970."""
        return prepare(lambda: self.snapshot(now), lambda: self.ledger.columns.use() / 1000, document, wall, tenant)

    def preparing(self, document: Any, wall: float, now: int, tenant: str) -> Callable[[], Compiled]:
        """Return a function that does the same on any thread, for the fleet at the time of this call."""
        view, use = self.snapshot(now), self.ledger.columns.use() / 1000
        return lambda: prepare(lambda: view, lambda: use, document, wall, tenant)

    def vitals(self, now: int) -> Vitals:
        return Vitals(
            connected=len(self.contacts.connected),
            outbox=len(self.outbox),
            silence=self.contacts.longest_silence(now),
            deciding=self.cadence.deciding(now),
        )

    # --- the log -----------------------------------------------------------------------------------------------------

    def _commit(self, event: Event) -> None:
        self.ruling.before(event)
        waited = self.ledger.queues.pending
        self.ledger.apply(event)
        self.ruling.after(event)
        self.budgeting.after(event)
        self.outbox.record(event)
        if not isinstance(event, QUIET) or self.ledger.queues.pending > waited:
            self.cadence.want()
        if isinstance(event, OF_PLACES):
            self.bookings.look_again()

    def _append_failed(self, message: AppendFailed, now: int) -> Sequence[Effect]:
        """Continue from the durable state: refuse pending requests, and make every node report its state again."""
        self.ledger = ledger = message.ledger
        parts: tuple[Part, ...] = (
            self.cadence,
            self.tellings,
            self.attempts,
            self.limits,
            self.deciding,
            self.membership,
            self.silence,
            self.jobs,
            self.turns,
            self.hours,
            self.budgeting,
            self.bookings,
            self.administration,
        )
        for part in parts:
            part.ledger = ledger
        refused = self.outbox.restart(ledger, message.error)
        self.cadence.forget_round(now)
        began = ledger.leader.began
        self.watch.triggers = triggers_of(began.recipe if began is not None else {})
        self.jobs.lateness = Lateness()
        hung = [Hang(node) for node in self.contacts.disconnect_all(now)]
        self.dispatch.restart(ledger, ledger.now)
        self.bookings.look_again()
        self.budgeting.look_again()
        self.hearing.restart(ledger)
        if self._calendar is not None:
            self.ruling.restart(ledger, now)
        return (*refused, *hung, HangCalls())
