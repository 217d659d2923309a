"""The control plane as a pure state machine. It takes messages and the time, and returns effects. It never sleeps,
reads a clock or opens a socket.

Log first: `snapshot → decide → verify → append → apply → effects`. State is applied at once. Each effect that tells the
outside something waits in the outbox until the revision that it depends on is durable. If the log cannot be written,
the shell reloads the ledger from the durable log. Requests in the outbox are refused, and nothing new is accepted until
there is space again.

Level-triggered: a node that connects reports what it holds, and the reply says what it should hold. Lost messages are
sent again. Receiving a message twice is harmless, because an attempt is a task and its epoch.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from poise.decoding import convert
from poise.errors import Busy, Conflict, Forbidden, InputError, NotFound, PoiseError, SpecError, StoreFull
from poise.kernel import changing
from poise.kernel.bookings import Bookings
from poise.kernel.budgeting import Budgeting
from poise.kernel.dispatch import Dispatch
from poise.kernel.explain import LastWord, logged
from poise.kernel.find import check_exist, find, find_node
from poise.kernel.fitting import check_all
from poise.kernel.hours import Hours
from poise.kernel.lateness import Lateness
from poise.kernel.ledger import WINDOW, JobState, Ledger, NodeState, UnitState, attempt_of, orders_of
from poise.kernel.messages import (
    AddToken,
    AnswerRule,
    Append,
    AppendFailed,
    AskToStop,
    CallerGone,
    Cancel,
    CancelJobs,
    CancelReservation,
    ChangeJob,
    Checkpoint,
    Configure,
    Crowded,
    Decide,
    Decided,
    Drain,
    Durable,
    Effect,
    FromCallWorker,
    FromJobCaller,
    FromNode,
    GiveUp,
    Gone,
    Hang,
    HangCaller,
    HangCalls,
    HearServices,
    HoldJob,
    HoldSchedule,
    IncidentDone,
    JudgeShadows,
    Leave,
    Lend,
    Locked,
    Message,
    NoticeDone,
    Recovered,
    RemoveJobs,
    RemoveSchedule,
    Reply,
    Reserve,
    ResumeJob,
    RetryJob,
    RevokeToken,
    Saw,
    SayCaller,
    SayWorker,
    Send,
    SetBudgets,
    SetQuota,
    SetRules,
    SetShares,
    SignedIn,
    Submit,
    TakeIn,
    TryRecover,
)
from poise.kernel.outage import Outage
from poise.kernel.owners import owned
from poise.kernel.refitting import fitting_of, lowered, raised
from poise.kernel.ruling import Ruling
from poise.kernel.schedulable import prepare
from poise.kernel.services import Hearing
from poise.kernel.signing import signed_in
from poise.kernel.spans import root_of, run_of
from poise.kernel.steering import acting_as
from poise.kernel.straggle import Paces, stragglers
from poise.kernel.timetable import Calendar
from poise.kernel.turns import Turns
from poise.kernel.verify import (
    above_share,
    verify_hold,
    verify_place,
    verify_preempt,
    verify_resize,
    verify_resume,
)
from poise.kernel.watch import Fired, Watch
from poise.model.changing import LIVE, MEMORY
from poise.model.decisions import NO_POLICY, Ask, Hold, Place, Plan, Preempt, Reason, Rejection, Resize, Why
from poise.model.events import (
    Began,
    BudgetsSet,
    Called,
    CallsClosed,
    CallTried,
    Configured,
    DeviceCordoned,
    DeviceDrained,
    Event,
    Finished,
    FunctionTold,
    Held,
    IncidentTold,
    JobCancelled,
    JobChanged,
    JobHeld,
    JobsCancelled,
    JobsRemoved,
    JobSubmitted,
    NodeDrained,
    NodeForgotten,
    NodeJoined,
    NodeLevelled,
    NodeLost,
    NodesMeasured,
    NodeSuspected,
    NodeTrusted,
    NodeUnfit,
    Noticed,
    Notified,
    Placed,
    PolicyFailed,
    Preempted,
    QuotaSet,
    Remembered,
    Resized,
    Resumed,
    Returned,
    Round,
    RuleAnswered,
    RuleFired,
    RuleOver,
    RulesSet,
    RuleSteered,
    ScheduleAdded,
    ScheduleHeld,
    ScheduleRemoved,
    ScheduleTurn,
    ServicesMeasured,
    ShadowJudged,
    SharesSet,
    SpeedupsTold,
    Started,
    StopAsked,
    Suspended,
    TokenAdded,
    TokenRevoked,
    TrainingTold,
    Triggered,
    UnitsCancelled,
)
from poise.model.jobs import Ending, Job, limits_of
from poise.model.load import Load, Upkeep
from poise.model.messages import (
    Acked,
    Attempt,
    Beat,
    Desired,
    DeviceFault,
    Ended,
    FromAgent,
    Heard,
    Hello,
    Idle,
    Launch,
    Limited,
    Ordered,
    Report,
    Running,
    Sized,
    ToAgent,
    Told,
)
from poise.model.profiles import ENOUGH_RUNS
from poise.model.quotas import BASE
from poise.model.reports import Changed, Drained
from poise.model.resources import ALLOCATED, Device, Node, Shape, identity_of, is_declared
from poise.model.spec import Compiled
from poise.model.tenants import DEFAULT, Bearer, Role, Token
from poise.model.times import Times
from poise.model.traces import TRACEPARENT
from poise.model.training import DEVICE_MEMORY, LIBRARY_THREADS, PHASE, TELL_EVERY, THREADS, Training, is_news
from poise.model.triggers import Triggers
from poise.model.views import Snapshot
from poise.policy.emptying import may_go
from poise.policy.feasible import ability, capacity, grouped
from poise.policy.recipe import Recipe
from poise.policy.split import undivided
from poise.policy.suites import is_fixed
from poise.units import MILLISECOND, SECOND

ROUND = 200 * MILLISECOND
"""While work waits, a round is decided at least at this interval, even without events."""

OF_THE_HOME = "home"
"""Name of the home's own token, for fields that hold the id of a token."""

MAX_UNFINISHED = 200_000
RECOVER_EVERY = 1 * SECOND

TIMES = Times()
HEARTBEAT = TIMES.heartbeat

SAME_END = 5 * SECOND
"""A node's end that moves by no more than this counts as unchanged, because messages take time."""

PER_NODE = 100_000
"""Nanoseconds per node of the fleet. Work over all nodes runs at most once in that total time: the check for silent
nodes, and the round for nodes that have joined. Otherwise each of many joining nodes would cause it.
"""

PER_BEAT, LONGEST_PACE = 200_000, 3 * SECOND
"""Nanoseconds per node of the fleet between two heartbeats of a busy node, and the limit of that. Up to 15,000 nodes
send at most 5,000 heartbeats a second, which take about a third of a core (`benchmarks/herd.py`). The limit leaves
exclusive work several heartbeats in the time of its lease.
"""

LOOK_EVERY = 1 * SECOND
"""Interval at which to check whether held nodes can be given up, because more nodes have been heard."""

MAX_TOKENS = 10_000

COMPARE_EVERY = 5 * SECOND
"""Interval at which attempts are compared with similar ones."""
TELL_AGAIN = 10 * SECOND
"""Minimum interval between records of the same failure of a policy."""

RECALL_AFTER = 2 * SECOND
"""An attempt still queued on a node after this time is recalled: the forecast was wrong."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a control plane; times in nanoseconds.

    A node is suspect after a silence of `suspect_after` and lost after `dead_after`. Both are extended by the time that
    it announced to be silent beyond a `HEARTBEAT`. With a `dead_after` of 0 silence does not count: the system that
    runs the nodes reports lost ones (`GiveUp`). While more than `outage_share` thousandths of the fleet are missing, no
    node is lost, nor for `outage_settle` after that (0: for `dead_after`), but for at most `outage_hold` in total (see
    `Outage`).

    A lost, undeclared node without work is forgotten after `forget_after` (0: never). A drained one is retained, so
    that it is drained when it comes back. Exclusive work has a `lease`. While work waits, a round is decided at least
    each `poll` (0: only after events, or at the instant that the last plan named). With an `every`, rounds are decided
    at its multiples only. `fleet` is the name of the declared fleet and `declared` its nodes, if there is one. `policy`
    decides from the beginning, until another one is configured; `recipe`, `code` and `asked` are as in `Began`. With
    `traced`, the environment of each attempt carries the context of its span. The fleet `grows` if other systems
    allocate nodes on request.
    """

    policy: str = "poise"
    history: int = 10_000
    history_tasks: int = 15_000
    checkpoint_every: int = 20_000
    suspect_after: int = HEARTBEAT + TIMES.suspect
    dead_after: int = TIMES.dead_local
    outage_share: int = 500
    outage_hold: int = TIMES.outage_hold
    outage_settle: int = 0
    forget_after: int = 0
    poll: int = ROUND
    every: int = 0
    seed: int = 0
    lease: int = TIMES.lease
    version: str = ""
    throughputs: dict[str, float] = {}
    fleet: str = ""
    declared: tuple[str, ...] = ()
    recipe: dict[str, Any] = {}
    code: str = ""
    asked: float = 0.0
    traced: bool = False
    grows: bool = False


def with_latest_policy(settings: Settings, began: Began | None) -> Settings:
    """Return the settings with the policy in the log, if that was configured later than the one in the settings."""
    if began is None or began.asked <= settings.asked:
        return settings
    return msgspec.structs.replace(
        settings, policy=began.policy, recipe=began.recipe, code=began.code, asked=began.asked
    )


QUIET = (
    Held,
    NodeJoined,
    Placed,
    Preempted,
    Remembered,
    Resized,
    Resumed,
    Round,
    Started,
    TrainingTold,
    NodeSuspected,
    NodeTrusted,
    PolicyFailed,
    FunctionTold,
    Called,
    CallTried,
    Returned,
    CallsClosed,
    JobsRemoved,
    Notified,
    Noticed,
    IncidentTold,
    ScheduleAdded,
    ScheduleHeld,
    ScheduleRemoved,
    ScheduleTurn,
    RulesSet,
    NodesMeasured,
    ServicesMeasured,
    ShadowJudged,
    RuleFired,
    RuleOver,
    RuleSteered,
    RuleAnswered,
)
"""Events that change nothing for the policy, unless they add pending work. Nodes that join, or are trusted again,
request a round separately: thousands may come back at once.
"""


OF_PLACES = (NodeJoined, NodeLost, NodeForgotten, NodeUnfit, NodeDrained, DeviceCordoned, DeviceDrained)
"""Events after which a reserved place may have failed, or be there again."""


class Contact(NamedTuple):
    """When a node was last heard. Silence is counted from `heard`: its last message, or later by the time that it
    announced to be silent beyond a `HEARTBEAT`. `asked`: a request was sent to it, and earlier announcements do not
    count. `last` is the time of its last message, 0 if there was none since this control plane started.
    """

    heard: int
    asked: bool = False
    last: int = 0

    def after(self, message: FromAgent, now: int, busy: int) -> "Contact":
        """Return the contact after a message; a busy node sends the next one within `busy`."""
        every = min(max(busy, message.every), TIMES.heartbeat_idle) if isinstance(message, Beat) else busy
        asked = self.asked and every > busy
        return Contact(now if asked else now + every - HEARTBEAT, asked, now)

    def expecting(self, now: int) -> "Contact":
        """Return the contact after a request; the node must answer as fast as a busy one."""
        return Contact(min(self.heard, now), True, self.last)


NEVER = Contact(0)
FOREVER = 2**62


class Vitals(NamedTuple):
    """Health of a controller: connected agents, effects in the outbox, and two durations in nanoseconds. `silence` is
    the longest silence of a connected agent, `deciding` the time since the policy was asked for a plan still missing.
    """

    connected: int
    outbox: int
    silence: int
    deciding: int


class Controller:
    """Owner of the ledger. Call `handle` with each message, then `tick` once. Both return effects, in order."""

    def __init__(self, ledger: Ledger, settings: Settings, calendar: Calendar | None = None) -> None:
        """Without a `calendar`, as in forecasts, schedules submit nothing."""
        self.ledger = ledger
        ledger.columns.grows = settings.grows
        self.settings = settings
        self._durable = ledger.revision
        self._checkpointed = ledger.revision
        self._events: list[Event] = []
        self._outbox: deque[tuple[int, Effect]] = deque()
        self._contacts: dict[str, Contact] = {}
        self._look_at = 0  # no silence can be too long earlier
        self._look_no_sooner_than = 0
        settle = settings.outage_settle or settings.dead_after
        self._outage = Outage(settings.outage_share, settings.outage_hold, settle)
        self.held = 0  # nodes that have been silent for too long, and are not given up yet
        self._said: set[str] = set()  # nodes reported as gone, and not given up yet
        self._left: set[str] = set()  # nodes that have left, with work still to move
        self._connected: set[str] = set()
        self._addresses: dict[str, str] = {}  # of nodes, for members of gangs on other machines
        self._addressed: set[str] = set()  # nodes to which the outbox may have messages
        self._dirty = True
        self._head = 0
        self._deciding = False
        self._asked: Snapshot | None = None
        self._passed_over = 0  # ignore plans on views up to this instant
        self._failing, self._told_failing = "", 0
        self._until: int | None = None
        self._closed = False
        self._asks: tuple[Ask, ...] | None = None
        self._joined = False  # nodes have joined, or are trusted again, since the last round
        self._freed = False  # attempts are done; relevant only if there is room for the asks
        self._watch = Watch(_triggers_of(settings.recipe))
        self._fired: list[str] = []
        self._last_round = 0
        self._last_recall = 0
        self._last_comparison = 0
        self._paces = Paces()
        self._lateness = Lateness()
        self._training: dict[str, tuple[int, LastWord]] = {}  # by unit, with its epoch; newer than in the log
        self._idle: dict[str, tuple[int, int]] = {}  # by unit: its epoch, and the instant of its last use
        self._waking: dict[str, str] = {}  # suspended units in use again, with the token of the request
        self._full = False
        self._last_recovery = 0
        self._now = ledger.now
        self._dispatch = self._make_dispatch(ledger.now)
        self.turns = Turns(
            ledger,
            calendar,
            commit=self._commit,
            submit=self._take_in,
            would_submit=self.would_submit,
            stop=self._stop_cancelled,
        )
        self.hours = Hours(ledger, calendar, commit=self._commit)
        self.budgeting = Budgeting(ledger, calendar, commit=self._commit)
        self.bookings = Bookings(ledger, commit=self._commit, clear=self._clear, renew=self._want_round)
        self._calendar = calendar
        self.ruling = Ruling(
            ledger,
            commit=self._commit,
            drain=self._drain,
            configure=self._configure,
            set_quota=self._set_quota,
            change=self._commit_change,
        )
        self.hearing = Hearing(ledger, self._commit)
        self.rejections: Counter[tuple[str, str]] = Counter()
        """Decisions that the ledger rejected, by kind and by the code of the first reason."""

    @property
    def accepting(self) -> bool:
        """Whether the log can be written."""
        return not self._full

    @property
    def durable(self) -> int:
        return self._durable

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
        self._dispatch = self._make_dispatch(now)
        for name, node in list(self.ledger.nodes.items()):
            if name not in self.settings.declared and (self.settings.declared or is_declared(node.node)):
                self._lose_attempts(name, now, f"node {name} is no longer part of the fleet")
                self._commit(NodeForgotten(at=now, name=name))
        expected = [name for name, node in self.ledger.nodes.items() if node.status == "up"]
        self._contacts.update((name, Contact(now)) for name in expected)
        self._outage.expect(expected, now)
        return self._flush()

    def handle(self, message: Message, now: int) -> Sequence[Effect]:
        """Handle one message."""
        self._now = now
        match message:
            case FromNode():
                self._from_node(message.node, message.message, message.by, now)
            case Durable():
                return self._on_durable(message.revision)
            case Submit():
                self._answer(message.request, lambda: self._submit(message, now))
            case TakeIn():
                self._answer(message.request, lambda: self._admit(message.job, "", "", now))
            case Decided():
                self._decided(message.plan, message.view, now)
            case Cancel():
                self._answer(message.request, lambda: self._cancel(message, now))
            case CancelJobs():
                self._answer(message.request, lambda: self._cancel_jobs(message, now))
            case HoldJob():
                self._answer(message.request, lambda: self._hold_job(message, now))
            case ResumeJob():
                self._answer(message.request, lambda: self._resume_job(message, now))
            case ChangeJob():
                self._answer(message.request, lambda: self._change_job(message, now))
            case RetryJob():
                self._answer(message.request, lambda: self._retry_job(message, now))
            case RemoveJobs():
                self._answer(message.request, lambda: self._remove_jobs(message, now))
            case HoldSchedule():
                hold = message.schedule, message.bearer, now
                self._answer(message.request, lambda: self.turns.hold(*hold, on=message.on))
            case RemoveSchedule():
                self._answer(message.request, lambda: self.turns.remove(message.schedule, message.bearer, now))
            case NoticeDone():
                self._answer(message.request, lambda: self._notice_done(message, now))
            case IncidentDone():
                self._answer(message.request, lambda: self._incident_done(message, now))
            case Drain():
                self._answer(message.request, lambda: self._drain(message, now))
            case GiveUp():
                self._answer(message.request, lambda: self._give_up(message.nodes, now))
            case Leave():
                self._answer(message.request, lambda: self._leave(message.node, message.bearer, now))
            case Lend():
                self._answer(message.request, lambda: self._lend(message, now))
            case SetQuota():
                self._answer(message.request, lambda: self._set_quota(message, now))
            case SetBudgets():
                self._answer(message.request, lambda: self._set_budgets(message, now))
            case SetShares():
                self._answer(message.request, lambda: self._set_shares(message, now))
            case Reserve():
                self._answer(message.request, lambda: self.bookings.add(message.reservations, message.bearer, now))
            case CancelReservation():
                booked = message.reservation, message.bearer, now
                self._answer(message.request, lambda: self.bookings.cancel(*booked))
            case Configure():
                self._answer(message.request, lambda: self._configure(message, now))
            case SetRules():
                self._answer(message.request, lambda: self.ruling.set(message, now))
            case AnswerRule():
                self._answer(message.request, lambda: self.ruling.answer(message, now))
            case HearServices():
                self._answer(message.request, lambda: self.hearing.hear(message, now))
            case JudgeShadows():
                if not self._full and message.better != self.ledger.rules.shadow_better:
                    self._commit(ShadowJudged(at=now, better=message.better))
            case FromCallWorker():
                if self._full:
                    return (HangCalls(),)
                self._dispatch.from_worker(message.attempt, message.message, now)
            case FromJobCaller():
                if self._full:
                    return (HangCalls(),)
                try:
                    self._dispatch.from_caller(message.job, message.tenant, message.message, now)
                except PoiseError as error:
                    self._outbox.appendleft((0, HangCaller(message.job, error)))
            case CallerGone():
                self._dispatch.caller_gone(message.job, now)
            case AddToken():
                self._answer(message.request, lambda: self._add_token(message, now))
            case SignedIn():
                self._answer(message.request, lambda: self._signed_in(message, now))
            case RevokeToken():
                self._answer(message.request, lambda: self._revoke_token(message, now))
            case AskToStop():
                self._answer(message.request, lambda: self._commit(StopAsked(at=now, by=message.bearer.token)))
            case Locked():
                self._locked(message, now)
            case Saw():
                if not self._full:
                    self._commit(msgspec.structs.replace(message.noticed, at=now))
            case Gone():
                self._disconnect(message.node)
            case Crowded():
                self._outage.crowded(message.until, now)
            case AppendFailed():
                return self._append_failed(message, now)
            case Recovered():
                self._full, self._dirty = False, True
        return self._flush()

    def tick(self, now: int, heard_until: int | None = None, wall: float | None = None) -> Sequence[Effect]:
        """Handle the passing of time: lost nodes, missed deadlines, due schedules, rounds, recovery of the log. All
        messages of nodes from before `heard_until` have been processed (None: all messages), so silence is judged only
        until then. `wall` is the wall clock in seconds since 1970 (None: not set since the last call).
        """
        self._now = now
        if wall is not None:
            self.turns.wall_is(wall, now)
            if not self._full:
                self.bookings.wall_is(wall, now)
        heard_until = now if heard_until is None else heard_until
        if self._full:
            if now - self._last_recovery < RECOVER_EVERY:
                return ()
            self._last_recovery = now
            return (TryRecover(),)
        if self.settings.dead_after and heard_until >= max(self._look_at, self._look_no_sooner_than):
            self._look_for_silence(heard_until, now)
        for change in self._watch.settled(now):
            self._commit(NodeLevelled(at=now, name=change.node, level=change.level, hot=change.hot))
        if self._watch.is_long_full(now):
            self._fire(self._watch.use(self.ledger.columns.use(), now), now)
        if now - self._last_recall >= RECALL_AFTER:
            self._last_recall = now
            self._recall_queued(now)
        if now - self._last_comparison >= COMPARE_EVERY:
            self._last_comparison = now
            self._forget_nodes(now)
            for straggling in list(stragglers(self.ledger, now, self._connected)):
                self._commit(straggling)
            for lagging in list(self._paces.lagging(self.ledger, now)):
                self._commit(lagging)
        self._cancel_late(now)
        self._wake(now)
        self.turns.tick(now)
        self.bookings.tick(now)
        self.hours.tick(now, self.turns.wall_at(now))
        self.budgeting.tick(now, self.turns.wall_at(now))
        self.hearing.tick(now)
        self.ruling.tick(now, self._watch)
        self._dispatch.tick(now)
        effects = list(self._flush())
        if self._may_decide(now) and self._should_decide(now):
            self._dirty = self._freed = self._joined = False
            self._deciding, self._last_round, self._until = True, now, None
            self._head = self.ledger.queues.head()
            self._asked = self.snapshot(now)
            effects.append(Decide(self._asked))
            self._fired.clear()  # later triggers go to the next round
        return effects

    def _cancel_late(self, now: int) -> None:
        """Cancel units whose deadline cannot be met, if their user asked for it, before they get more devices."""
        for missed in self._lateness.missed(self.ledger, now):
            units = [self.ledger.jobs.unit(one.unit) for one in missed.units]
            self._commit(missed)
            for unit in units:
                if unit is not None and unit.status == "active":
                    self._stop(unit, now)

    def _wake(self, now: int) -> tuple[Reason, ...]:
        """Resume suspended units that are in use again, as far as their resources are free. Return the reasons of the
        others.
        """
        reasons: list[Reason] = []
        for name, by in list(self._waking.items()):
            unit = self.ledger.jobs.unit(name)
            if unit is None or unit.suspended is None:
                del self._waking[name]
                continue
            resumed = verify_resume(self.ledger, unit, now, by)
            if isinstance(resumed, Resumed):
                del self._waking[name]
                self._commit(resumed)
                self._send(unit.tasks[0].node, Desired(resumes=(attempt_of(unit, 0),)))
            else:
                reasons += resumed
        return tuple(reasons)

    def _forget_nodes(self, now: int) -> None:
        """Forget undeclared nodes that have left, or have been lost for long, and hold no work."""
        if not self._left and not self.settings.forget_after:
            return
        after = self.settings.forget_after or FOREVER
        for name, node in list(self.ledger.nodes.items()):
            is_gone = node.status == "lost" and not node.drained and now - node.lost > after
            if (is_gone or name in self._left) and name not in self.settings.declared:
                self._forget(name, now)

    def _forget(self, name: str, now: int) -> None:
        """Forget a node, unless it holds anything."""
        if not any(self.ledger.active.on(name)):
            self._commit(NodeForgotten(at=now, name=name))
            self._contacts.pop(name, None)
            self._left.discard(name)

    def _look_for_silence(self, heard_until: int, now: int) -> None:
        """Declare nodes lost that were silent for too long, and note the earliest instant of the next check. Of the
        other nodes only the one with the oldest message counts, because there may be thousands.
        """
        late: dict[str, int] = {}
        first, latest = FOREVER, heard_until - self._quiet()
        contacts, said = self._contacts, self._said
        for name, node in self.ledger.nodes.items():
            if node.status == "up":
                heard = contacts.get(name, NEVER).heard
                if heard <= latest or node.suspect or name in said:
                    late[name] = heard
                elif heard < first:
                    first = heard
        self._watch.heard_all_but(late)
        self._look_at, self.held = first + self._quiet(), 0
        due: list[str] = []
        for name, heard in late.items():
            node, silence = self.ledger.nodes[name], heard_until - heard
            awaited = self._outage.awaited_until(name, self.settings.suspect_after, now)
            if silence > self.settings.suspect_after and not node.suspect and not awaited:
                self._commit(NodeSuspected(at=now, name=name))
            if silence > self.settings.dead_after or name in self._said:
                due.append(name)
                continue
            self._fire(self._watch.silent(name, silence), now)
            after = self.settings.dead_after if node.suspect else self.settings.suspect_after
            silent_at = self._watch.silent_at(name, heard)
            next_look = max(heard + after + 1, awaited)
            self._look_at = min(self._look_at, next_look, next_look if silent_at is None else silent_at)
        if due:
            self._give_up_unless_held(due, heard_until, now)
        self._look_no_sooner_than = now + PER_NODE * len(self.ledger.nodes)

    def _quiet(self) -> int:
        """Return the shortest silence that has any consequence."""
        return min(self.settings.suspect_after + 1, self._watch.patience)

    def _give_up_unless_held(self, due: Sequence[str], heard_until: int, now: int) -> None:
        """Give up these nodes, unless they are missing because of an outage. Nodes count as present only if they have
        spoken since the first of these became silent: an idle node may not have been due.
        """
        missing = present = 0
        said_nothing = [self._contact(name).heard for name in due if name not in self._said]
        since = min(said_nothing, default=heard_until - TIMES.heartbeat_idle) + self.settings.suspect_after
        for name, node in self.ledger.nodes.items():
            if node.status == "up":
                is_missing = node.suspect or name in self._said
                missing += is_missing
                present += not is_missing and self._contact(name).last > since
        self._outage.judge(missing, present, now)
        for name in due:
            if until := self._outage.held_until(name, now, connected=name in self._connected):
                self.held += 1
                self._look_at = min(self._look_at, until, now + LOOK_EVERY)
            else:
                self._node_lost(name, now, said=name in self._said)

    def _may_decide(self, now: int) -> bool:
        """Return whether a round may be requested: one at a time, and only at multiples of `every`."""
        every = self.settings.every
        return not self._deciding and (not every or now % every == 0)

    def _should_decide(self, now: int) -> bool:
        if self._freed and not self._dirty:
            self._freed, self._dirty = False, self._has_room()
            if not self._dirty:
                self._fire(self._watch.use(self.ledger.columns.use(), now), now)
        if self._dirty or (self._until is not None and self._until <= now):
            return True
        if self._joined and now >= self._next_for_joined():
            return True
        poll = self.settings.poll
        if poll and self.ledger.queues.pending and now - self._last_round >= poll:
            return True
        backed_off = self.ledger.queues.wakeup(self._last_round)
        return backed_off is not None and backed_off <= now

    def _has_room(self) -> bool:
        """Return whether there is room for any of the last plan's asks."""
        if not self._asks:
            return False
        fleet = self.ledger.columns.room()
        arrays = fleet.free, fleet.device_memory, fleet.device_share

        def room(shape: Shape) -> int:
            found = capacity(fleet, shape, ability(fleet, shape), *arrays)
            return int((grouped(fleet, shape.where, found) if shape.where.groups else found).sum())

        return any(room(ask.shape) >= ask.tasks for ask in self._asks)

    def snapshot(self, now: int) -> Snapshot:
        """Return the current snapshot for the policy."""
        return self.ledger.snapshot(now, self.settings.seed, self.settings.throughputs, tuple(self._fired))

    def prepare(self, document: Any, wall: float, now: int, tenant: str = DEFAULT) -> Compiled:
        """Compile a tenant's request for the fleet as of `now`; raises SpecError. `wall` in seconds since 1970."""
        return prepare(lambda: self.snapshot(now), lambda: self.ledger.columns.use() / 1000, document, wall, tenant)

    def preparing(self, document: Any, wall: float, now: int, tenant: str) -> Callable[[], Compiled]:
        """Return a function that does the same on any thread, for the fleet at the time of this call."""
        view, use = self.snapshot(now), self.ledger.columns.use() / 1000
        return lambda: prepare(lambda: view, lambda: use, document, wall, tenant)

    def address_of(self, node: str) -> str | None:
        """Return the address of a node for programs on other machines, empty if only this machine has nodes; None if
        it has not connected yet.
        """
        return self._addresses.get(node)

    def load_of(self, node: str) -> Load | None:
        """Return the last reported load of a node."""
        return self._watch.load_of(node)

    def upkeep_of(self, node: str) -> Upkeep | None:
        """Return the last reported overhead of a node's agent."""
        return self._watch.upkeep_of(node)

    def loads(self) -> Iterator[tuple[str, Load]]:
        """Yield the last reported load of each node."""
        return self._watch.loads()

    def vitals(self, now: int) -> Vitals:
        contacts = self._contacts
        spoke = [contacts[name].last for name in self._connected & contacts.keys()]
        return Vitals(
            connected=len(self._connected),
            outbox=len(self._outbox),
            silence=max(0, now - min(filter(None, spoke), default=now)),
            deciding=max(0, now - self._asked.now) if self._asked is not None else 0,
        )

    def hears_another(self, node: Node, now: int) -> bool:
        """Return whether another connected machine uses this node's name, and is not overdue."""
        known = self.ledger.nodes.get(node.name)
        if known is None or known.node.incarnation == node.incarnation or node.name not in self._connected:
            return False
        return known.condition != "suspect" and now - self._contact(node.name).heard <= self.settings.suspect_after

    def check_namesake(self, name: str, by: str, now: int) -> None:
        """Raises `Conflict` if a node with this name joined with another owner's token. Otherwise anybody who may offer
        a machine could get the work of an absent node.

        The name is free once that token is no longer valid. A token with the same name may take it too, and the home's
        own token may take any. The home's own token is always valid, so its names are free once the node is lost and
        holds nothing.
        """
        known = self.ledger.nodes.get(name)
        if known is None or not by or by in (OF_THE_HOME, known.by) or not known.by:
            return
        owner, comes = self.ledger.tokens.get(known.by), self.ledger.tokens.get(by)
        if known.by == OF_THE_HOME:
            if known.status == "lost" and not any(self.ledger.active.on(name)):
                return
        elif owner is None or owner.revoked or 0 < owner.expires <= now:
            return
        if owner is not None and comes is not None and owner.name and owner.known_as == comes.known_as:
            return
        told = f"{known.by} {owner.name}".strip() if owner is not None else "the home's own"
        raise Conflict(
            "this name belongs to a node with another token",
            code="E107",
            field="name",
            need=f"the token {told}",
            have=f"{name}, by {by}",
            hint="give this one another name: `--name`"
            + ("" if owner is None else f"; or `poise token rm {known.by}`, if it takes the place of that one"),
        )

    def _fire(self, fired: Fired | None, now: int) -> None:
        """Record a trigger; it forces a round, which gets its name."""
        if fired is not None:
            self._commit(Triggered(at=now, trigger=fired.trigger, subject=fired.subject, have=fired.have))
            self._fired.append(fired.trigger)

    def wakeup(self) -> int | None:
        """Return when to tick next if nothing happens before."""
        if self._full:
            return self._last_recovery + RECOVER_EVERY
        soonest = max(self._look_at, self._look_no_sooner_than) if self.settings.dead_after else FOREVER
        next_round = None if self._deciding else self._next_round()  # the plan comes as a message
        lateness, turn = self._lateness.wakeup(self.ledger), self.turns.wakeup(self._now)
        booked = (self.bookings.wakeup(), self.hours.wakeup(), self.budgeting.wakeup())
        for at in (self._watch.due(), self._dispatch.wakeup(), lateness, turn, *booked, next_round, self.ruling.due()):
            if at is not None and at < soonest:
                soonest = at
        return None if soonest >= FOREVER else soonest

    def _next_round(self) -> int | None:
        """Return when a round is due if nothing happens before."""
        due = [self.ledger.queues.wakeup(self._last_round), self._until]
        if self._joined:
            due.append(self._next_for_joined())
        if self.settings.poll and self.ledger.queues.pending:
            due.append(self._last_round + self.settings.poll)
        every = self.settings.every
        if every and (self._dirty or self._freed):
            due.append(self._now)
        soonest = min((at for at in due if at is not None), default=None)
        return soonest if soonest is None or not every else -(-max(soonest, self._now) // every) * every

    def _next_for_joined(self) -> int:
        """Return when a round may be decided for joined nodes: at once if rounds take no time (no `poll`)."""
        return self._last_round + (PER_NODE * len(self.ledger.nodes) if self.settings.poll else 0)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _answer(self, request: int, act: Any) -> None:
        """Reply once the action is durable. An error is returned at once; the action then has no effect."""
        try:
            if self._full:
                raise StoreFull("the disk of the log is full; nothing new is accepted", hint="free some space: `df -h`")
            self._later(Reply(request, act()))
        except PoiseError as error:
            self._outbox.appendleft((0, Reply(request, error=error)))

    def _submit(self, message: Submit, now: int) -> str:
        rule, tenant = message.compiled.recurs, message.compiled.tenant
        known = self.ledger.jobs if rule is None else self.ledger.schedules
        existing = known.submitted_under(message.key, tenant) if message.key else None
        if existing is not None:
            return existing
        if message.if_revision is not None and message.if_revision != self.ledger.revision:
            raise Conflict(
                "state changed since the plan was made",
                code="E122",
                field="if_revision",
                need=f"revision {message.if_revision}",
                have=f"revision {self.ledger.revision}",
                hint="`poise plan` again, and submit with its revision",
            )
        compiled, by = owned(self.ledger, message.compiled, message.bearer), message.bearer.token
        user = message.bearer.person or message.user
        if rule is not None:
            return self.turns.add(rule, compiled, user, message.key, by, now)
        return self._admit(self.would_submit(compiled, user), message.key, by, now)

    def _admit(self, job: Job, key: str, by: str, now: int) -> str:
        undecided = self._dirty or self._deciding
        self._take_in(job, key, by, now)
        if (self._closed or self._asks is not None) and not undecided:
            self._dirty = not all(self.ledger.queues.held(unit.queue) for unit in self.ledger.jobs[job.id].units)
        return job.id

    def _take_in(self, job: Job, key: str, by: str, now: int) -> None:
        self._commit(JobSubmitted(at=now, job=job, key=key, by=by))
        if job.id in self.ledger.jobs.cancelling:
            self._lateness.submitted(job.id)

    def check(self, compiled: Compiled, key: str, user: str) -> None:
        """Raises the error with which a submission would be refused now, unless its key was accepted already."""
        if compiled.recurs is None and not (key and self.ledger.jobs.submitted_under(key, compiled.tenant)):
            self.would_submit(compiled, user)

    def would_submit(self, compiled: Compiled, user: str = "") -> Job:
        """Return the job that a submission would create now, without effect. Raises the error of a refusal."""
        tenant = compiled.tenant
        self._check_room(tenant, min(compiled.size, max(len(compiled.units), WINDOW)))
        if compiled.name and (held := self.ledger.jobs.named(compiled.name, tenant)):
            raise Conflict(
                f"the name `{compiled.name}` is taken by an unfinished job",
                code="E107",
                field="name",
                have=held.id,
                hint=f"`poise cancel {compiled.name}`, or another name",
            )
        own = Bearer(tenant, Role.SUBMITTER)
        ids = {
            name: self._awaited(name, own, field).id
            for field, names in zip(("after", "after-any", "after-failure"), compiled.all_after, strict=True)
            for name in names
        }
        several = Counter(ids[name] for names in compiled.all_after for name in set(names)) if ids else {}
        if twice := next((job for job, times in several.items() if times > 1), ""):
            what = "it comes after one job in two ways"
            raise SpecError(what, code="E105", field="after", have=twice, hint=f"after-any: [{twice}]")
        check_all(compiled.units, self.ledger.columns.room(), tenant, self.ledger.quotas.get(tenant))
        return compiled.job(self.ledger.jobs.next_id(), ids, user)

    def _check_room(self, tenant: str, more: int) -> None:
        """Raises `Busy` if there are too many unfinished units. A sole tenant may use the whole limit. Otherwise a
        tenant may use half of what the others leave, so that there is always room for a new one.
        """
        own = self.ledger.jobs.unfinished_units(tenant)
        room = MAX_UNFINISHED - (self.ledger.jobs.unfinished_units() - own)
        if own + more > room // 2 and (self.ledger.jobs.has_others(tenant) or self.ledger.tokens.has_others(tenant)):
            room //= 2
        if own + more > room:
            raise Busy(
                f"too much work of tenant `{tenant}` is waiting already",
                need=f"at most {room} units",
                have=str(own + more),
                hint="submit the rest when some of it has ended",
            )

    def _cancel(self, message: Cancel, now: int) -> str:
        found = find(self.ledger, message.job, bearer=message.bearer)
        by = message.bearer.token
        job, units = found.job, [unit for unit in found.units if not unit.over]
        if not units:
            what = f"job {job.id}" if found.whole else found.name
            raise Conflict(f"{what} is over already", field="job", hint=f"`poise show {found.name}`")
        check_exist(self.ledger, found)
        if job.calls is not None and not found.whole:
            raise Conflict(
                f"{found.name} is a worker of {job.id}, which has as many as it needs",
                field="job",
                hint=f"`poise cancel {job.id}`",
            )
        for unit in units:
            if not found.tasks.issuperset(task.name for task in unit.spec.tasks):
                raise Conflict(
                    f"{found.name} is a member of a gang, which can only be cancelled as a whole",
                    field="job",
                    have=f"{len(unit.spec.tasks)} tasks in {unit.id}",
                    hint=f"`poise cancel {unit.id}`",
                )
        if found.whole:
            self._commit(JobCancelled(at=now, job=job.id, by=by))
        else:
            ids = tuple(unit.id for unit in units)
            turns = any(unit.spec.at_most for unit in units)
            self._commit(UnitsCancelled(at=now, job=job.id, units=ids, by=by, turns=turns))
        self._stop_cancelled(job, units, now)
        return found.name

    def _cancel_jobs(self, message: CancelJobs, now: int) -> dict[str, str]:
        bearer, known = message.bearer, (self.ledger.jobs.get(name) for name in message.jobs)
        jobs = [job for job in known if job and not job.ended and not job.cancelled_by and bearer.sees(job.tenant)]
        if jobs:
            self._commit(JobsCancelled(at=now, jobs=tuple(job.id for job in jobs), by=bearer.token))
        for job in jobs:
            if not job.ended or job.calls is not None:
                self._stop_cancelled(job, job.units, now)
        return {job.id: job.tenant for job in jobs}

    def _hold_job(self, message: HoldJob, now: int) -> str:
        job = changing.to_hold(self.ledger, message.job, message.bearer)
        if job.budget and not message.on:
            what, hint = f"the budget `{job.budget}` holds {job.id}", "`poise usage --budgets`; an admin can raise it"
            raise Conflict(what, field="job", have=job.held_for, hint=hint)
        if job.hold != message.on or job.budget:  # the hold of a user outlasts that of a budget
            self._commit(JobHeld(at=now, job=job.id, on=message.on, by=message.bearer.token))
            self._dirty = True
        return job.id

    def _resume_job(self, message: ResumeJob, now: int) -> tuple[str, ...]:
        found = find(self.ledger, message.job, bearer=message.bearer)
        wanted = {unit.id: message.bearer.token for unit in found.units if unit.suspended is not None}
        others, self._waking = self._waking, wanted
        reasons = self._wake(now)
        self._waking = others | self._waking
        return tuple(reason.sentence() for reason in reasons)

    def _change_job(self, message: ChangeJob, now: int) -> Changed:
        event, told = changing.change(self.ledger, message.job, message.compiled, message.fields, now, message.bearer)
        if event.units:
            self._commit_change(event)
        return told

    def _commit_change(self, event: JobChanged) -> None:
        self._commit(event)
        if event.job in self.ledger.jobs.cancelling:
            self._lateness.submitted(event.job)
        if limited := event.units if {LIVE, MEMORY}.intersection(event.paths) else event.grow:
            self._limit(limited)
        self._dirty = True

    def _limit(self, names: Iterable[str]) -> None:
        """Send nodes the new limits of attempts of these units."""
        limited: dict[str, list[Limited]] = {}
        for unit in [self.ledger.jobs.units[name] for name in names]:
            for index, task in enumerate(unit.tasks if unit.status == "active" else ()):
                if task.active:
                    limited.setdefault(task.node, []).append(_limits_of(self.ledger, unit, index))
        for node, attempts in limited.items():
            self._send(node, Desired(limited=tuple(attempts)))

    def _retry_job(self, message: RetryJob, now: int) -> str:
        compiled, user = changing.to_retry(self.ledger, message.job, message.bearer)
        job = self.would_submit(compiled, user)
        self._commit(JobSubmitted(at=now, job=job, by=message.bearer.token))
        return job.id

    def _remove_jobs(self, message: RemoveJobs, now: int) -> tuple[str, ...]:
        removal = changing.remove(self.ledger, message.jobs, now, message.bearer)
        for event in removal.events:
            self._commit(event)
        for node, removed in removal.by_node.items():
            self._send(node, Desired(removed=tuple(removed)))
        return removal.jobs

    def _notice_done(self, message: NoticeDone, now: int) -> None:
        """Record a delivered notice. The job may have been removed meanwhile."""
        job = self.ledger.jobs.get(message.job)
        if job is not None and message.notice in job.notices:
            self._commit(Notified(at=now, job=job.id, notice=message.notice, failed=message.failed))

    def _incident_done(self, message: IncidentDone, now: int) -> None:
        told = IncidentTold(
            at=now, incident=message.incident, moment=message.moment, target=message.target, failed=message.failed
        )
        self._commit(told)

    def _stop_cancelled(self, job: JobState, units: Iterable[UnitState], now: int) -> None:
        """Stop the running attempts of a cancelled job."""
        for unit in units:
            if unit.status == "active":
                self._stop(unit, now)
        self._dispatch.cancelled(job, now)

    def _set_quota(self, message: SetQuota, now: int) -> str:
        known = self.ledger.quotas.get(message.tenant)
        if known is not None:
            known = msgspec.structs.replace(known, turn=BASE)
        if known != message.quota:
            self._commit(QuotaSet(at=now, tenant=message.tenant, quota=message.quota, by=message.bearer.token))
            self.hours.look_again()
            self._dirty = True
        return message.tenant

    def _set_shares(self, message: SetShares, now: int) -> int:
        if self.ledger.shares.tree != message.tree:
            self._commit(SharesSet(at=now, tree=message.tree, by=message.bearer.token))
            self._dirty = True
        return self.ledger.revision

    def _set_budgets(self, message: SetBudgets, now: int) -> int:
        if tuple(state.budget for state in self.ledger.budgets.values()) != message.budgets:
            self._commit(BudgetsSet(at=now, budgets=message.budgets, by=message.bearer.token))
        return self.ledger.revision

    def _configure(self, message: Configure, now: int) -> int:
        """Put another policy in charge. A plan that the previous one is making does not count."""
        configured = Configured(
            at=now,
            policy=message.policy,
            asked=message.asked,
            recipe=message.recipe,
            code=message.code,
            fixed=is_fixed(message.policy),
            by=message.bearer.token,
            why=message.why,
        )
        self._commit(configured)
        self._watch.triggers = _triggers_of(message.recipe)
        self._forget_round(now)
        return self.ledger.revision

    def _forget_round(self, now: int) -> None:
        """Ignore the plan that is being made, and request another round."""
        self._deciding, self._asked, self._passed_over = False, None, now
        self._asks, self._until, self._closed, self._dirty = None, None, False, True

    def _signed_in(self, message: SignedIn, now: int) -> Token:
        events, token_id = signed_in(self.ledger.tokens, message, now)
        if any(isinstance(event, TokenAdded) for event in events):
            self._check_tokens()
        for event in events:
            self._commit(event)
        return self.ledger.tokens[token_id]

    def _add_token(self, message: AddToken, now: int) -> Token:
        self._check_tokens()
        known = self.ledger.tokens.of_secret(message.hash)
        if known is not None:
            asked = (message.tenant, message.role, message.name, message.account)
            if (known.tenant, known.role, known.name, known.account) != asked:
                raise Conflict(
                    "this secret belongs to another token", field="hash", have=known.id, hint="make a new secret"
                )
            return known
        token = Token(
            id=self.ledger.tokens.next_id(),
            tenant=message.tenant,
            role=message.role,
            hash=message.hash,
            name=message.name,
            expires=now + message.lasts if message.lasts else 0,
            account=message.account,
        )
        self._commit(TokenAdded(at=now, token=token, by=message.bearer.token))
        return token

    def _check_tokens(self) -> None:
        """Raise `Conflict` if there is no room for one more token."""
        standing = sum(not token.revoked for token in self.ledger.tokens.values())
        if standing >= MAX_TOKENS:
            raise Conflict(
                "there are too many tokens",
                need=f"at most {MAX_TOKENS}",
                have=str(standing),
                hint="`poise token ls`, then `poise token rm ID` for those that are no longer needed",
            )

    def _revoke_token(self, message: RevokeToken, now: int) -> str:
        token = self.ledger.tokens.get(message.id)
        if token is None or token.revoked:
            raise NotFound(f"there is no token `{message.id}`", field="token", have=message.id, hint="`poise token ls`")
        self._commit(TokenRevoked(at=now, id=token.id, by=message.bearer.token))
        return token.id

    def _drain(self, message: Drain, now: int) -> Drained:
        """Close a node or a device (`n1:0`) to new work, or open it again."""
        node, colon, place = message.node.rpartition(":")
        if colon and message.node not in self.ledger.nodes:
            return Drained(self._drain_device(find_node(self.ledger.nodes, node), place, message, now))
        name = find_node(self.ledger.nodes, message.node)
        state, moves = self.ledger.nodes[name], message.on and message.moves
        if (state.drained, state.moves) != (message.on, moves):
            self._commit(NodeDrained(at=now, name=name, on=message.on, by=message.bearer.token, moves=moves))
            self._dirty = True
            waiting = [attempt_of(unit, 0) for unit, task in self.ledger.active.queued_since(now) if task.node == name]
            if message.on and waiting:
                self._send(name, Desired(recalls=tuple(waiting)))
        if not moves:
            return Drained(name)
        fleet = self.ledger.columns.fleet()
        going = sum(may_go(one) for one in fleet.residents[fleet.rows[name]] if not one.stopping)
        there = sum(
            not (unit.queued or unit.stopping or unit.tasks[index].leaving)
            for unit, index in self.ledger.active.on(name)
        )
        return Drained(name, moves=going, stays=there - going)

    def _drain_device(self, node: str, place: str, message: Drain, now: int) -> str:
        if message.on and message.moves:
            raise InputError(
                "work on one device of a node cannot be moved, only the work of the whole node",
                field="moves",
                have=message.node,
                hint=f"`poise drain --move {node}`",
            )
        device = self._device(node, int(place)) if place.isdecimal() and place.isascii() else None
        if device is None:
            known = [str(device.index) for device in self.ledger.nodes[node].node.devices]
            hint = f"`poise drain {node}:{known[0]}`" if known else "`poise nodes`"
            have = ", ".join(known) or "none"
            raise NotFound(f"{node} has no device `{place}`", field="node", have=have, hint=hint)
        if (self.ledger.cordons.of_device(node, device) is not None) != message.on:
            identity, by = identity_of(node, device), message.bearer.token
            self._commit(DeviceDrained(at=now, node=node, device=device.index, id=identity, on=message.on, by=by))
            self._dirty = True
        return f"{node}:{device.index}"

    def _give_up(self, names: Sequence[str], now: int) -> list[str]:
        """Give up nodes, by full name: the name of a node that never joined may be a prefix of another. Return the
        known names.
        """
        known = [name for name in dict.fromkeys(names) if name in self.ledger.nodes]
        if not known:
            have = ", ".join(f"`{name}`" for name in names)
            raise NotFound(
                f"there is no node {have}", field="nodes", have=have, hint="`poise nodes` lists the full names"
            )
        due = [name for name in known if self.ledger.nodes[name].status == "up"]
        for name in due:
            self._disconnect(name)
            self._hang(name)
        self._said.update(due)
        held = [name for name in due if ALLOCATED not in self.ledger.nodes[name].node.labels]
        if self.settings.dead_after:
            self._give_up_unless_held(held, now, now)
        for name in due:  # the end of an allocation is no outage, however many nodes it had
            if not self.settings.dead_after or name not in held:
                self._node_lost(name, now, said=True)
        return known

    def _leave(self, name: str, bearer: Bearer, now: int) -> str:
        """Remove a node that leaves: at once, or as soon as its work has been placed elsewhere."""
        known = self.ledger.nodes.get(name)
        if known is None:
            raise NotFound(f"there is no node `{name}`", field="node", have=name, hint="`poise nodes`")
        if known.by not in ("", bearer.token or OF_THE_HOME) and bearer.role is not Role.ADMIN:
            raise Forbidden("this node joined with another token", field="node", need=known.by, have=bearer.token)
        self._disconnect(name)
        self._hang(name)
        if known.status == "up" and (name in self.settings.declared or any(self.ledger.active.on(name))):
            self._node_lost(name, now, said=True)
        if name not in self.settings.declared:
            self._watch.forget(name)
            self._said.discard(name)
            self._left.add(name)
            self._forget(name, now)
        self._dirty = True
        return name

    def _lend(self, message: Lend, now: int) -> str:
        """Drain one of these nodes for other users. A resizable gang shrinks as the policy decides for a drained node;
        all other work is preempted.
        """
        fleet = self.ledger.columns.fleet()
        free = [name for name in message.nodes if (state := self.ledger.nodes.get(name)) and state.condition == "up"]
        residents = {name: fleet.residents[fleet.rows[name]] for name in free}
        ready = [name for name in free if all(one.stopping or may_go(one) for one in residents[name])]
        if not ready:
            return ""
        lent = min(ready, key=lambda name: (sum(now - max(one.since, one.kept) for one in residents[name]), name))
        self._drain(Drain(message.request, lent, True, message.bearer, moves=True), now)
        for unit in list({unit.id: unit for unit, _ in self.ledger.active.on(lent)}.values()):
            stay = sum(task.active and not task.leaving and task.node != lent for task in unit.tasks)
            if not (unit.resizes and stay >= max(1, unit.spec.least)):
                why = Why(policy=NO_POLICY, base=self.ledger.revision, rank=f"{lent} is lent")
                self._preempt(Preempt(unit=unit.id, cause="move", why=why), now, stale=False)
        return lent

    def _want_round(self) -> None:
        """Request a round: places became free, or were reserved."""
        self._dirty = True

    def _clear(self, unit: UnitState, leaving: Sequence[int], why: str, now: int) -> None:
        """Preempt work whose place is reserved for others: only these tasks of a gang that can go on without them."""
        told = Why(policy=NO_POLICY, base=self.ledger.revision, rank=why)
        if unit.resizes and unit.is_whole and unit.size - len(leaving) >= max(1, unit.spec.least):
            resized: dict[str, UnitState] = {}
            self._resize(
                Resize(unit=unit.id, cause="shrink", why=told, leaves=tuple(leaving)), now, {}, resized, stale=False
            )
            for gang in resized.values():
                self._order(gang)
        else:
            self._preempt(Preempt(unit=unit.id, cause="move", why=told), now, stale=False)

    def _awaited(self, name: str, bearer: Bearer, field: str) -> JobState:
        """Return a job that another one waits for, by its full name, because a spec outlives the meaning of a
        prefix.
        """
        job = self.ledger.jobs.find(name, bearer)
        if job is None:
            raise NotFound(
                f"there is no job `{name}`",
                code="E105",
                field=field,
                have=name,
                hint="`poise ls --all` lists the jobs",
            )
        return job

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _from_node(self, name: str, message: FromAgent, by: str, now: int) -> None:
        pace = min(PER_BEAT * len(self.ledger.nodes), LONGEST_PACE)
        self._contacts[name] = self._contact(name).after(message, now, max(HEARTBEAT, pace))
        if isinstance(message, Hello):
            self._look_no_later_than(now + self._quiet())
        known = self.ledger.nodes.get(name)
        if known is not None and known.suspect and not self._full:
            self._commit(NodeTrusted(at=now, name=name))
            self._joined = True
            self._look_no_later_than(now + self._quiet())
        if self._full:  # nothing can be recorded, so nothing is acknowledged: the agent sends it again
            self._hang(name)
        elif isinstance(message, Hello):
            self._hello(message, by, now)
        elif name not in self._connected:  # it was given up, and speaks again: it has to say what it holds
            self._hang(name)
        elif isinstance(message, Beat):
            if message.load is not None:
                self._watch.load(name, message.load, now)
            if message.upkeep is not None:
                self._watch.upkeep(name, message.upkeep)
            self._addressed.add(name)
            heard = Heard(beat=message.number, pace=pace if pace > HEARTBEAT else 0)
            self._outbox.appendleft((0, Send(name, heard)))  # it needs no durable record
        elif isinstance(message, Report):
            self._take_fitness(name, message.unfit, now)  # before the attempts it hands back are placed again
            self._take_told(name, message.told, now)  # first: the last report of ended attempts
            self._take_report(name, message.running, message.ended, now)
            self._take_idle(name, message.idle, now)
            self._take_sized(name, message.sized, now)
            self._take_faults(name, message.faults, now)
            self._send(name, Acked(serial=message.serial))

    def _expect(self, name: str) -> None:
        """Count the silence of a node that has a request as that of a busy node."""
        was = self._contact(name)
        self._contacts[name] = expected = was.expecting(self._now)
        if expected.heard < was.heard:
            self._look_no_later_than(expected.heard + self._quiet())

    def _look_no_later_than(self, instant: int) -> None:
        """Move the next check for silence forward."""
        self._look_at = min(self._look_at, instant)

    def _contact(self, name: str) -> "Contact":
        return self._contacts.get(name, NEVER)

    def _hang(self, name: str) -> None:
        self._outbox.appendleft((0, Hang(name)))

    def _disconnect(self, name: str) -> None:
        """Disconnect a node and drop its pending messages: the reply to the next Hello has everything that it should
        hold.
        """
        self._connected.discard(name)
        self._expect(name)
        if name in self._addressed:
            self._addressed.remove(name)
            self._outbox = deque(
                entry for entry in self._outbox if not (isinstance(entry[1], Send) and entry[1].node == name)
            )

    def _hello(self, hello: Hello, by: str, now: int) -> None:
        name = hello.node.name
        self._disconnect(name)  # discard the earlier connection
        self._outage.heard(name, now)
        self._said.discard(name)
        self._left.discard(name)
        known = self.ledger.nodes.get(name)
        node = hello.node if known is None else _with_withdrawn(hello, known.node.devices)
        if hello.left:
            node = msgspec.structs.replace(node, until=_until(now + hello.left, known.node.until if known else 0))
        if known is not None and known.node.incarnation != node.incarnation:
            self._lose_attempts(name, now, "the node was started anew", gone=node.has_rebooted(known.node))
        elif known is not None and known.node.devices != node.devices:
            self._lose_devices(known, node, now)
        if known is None or known.status != "up" or known.node != node or known.by != (by or known.by):
            self._commit(NodeJoined(at=now, node=node, by=by))
            self._joined = True
        self._connected.add(name)
        self._take_fitness(name, hello.unfit, now)
        self._addresses[name] = hello.address
        self._take_report(name, hello.running, hello.ended, now)
        self._take_faults(name, hello.faults, now)
        self._send(name, self._desired(name, hello, now))
        self._send(name, Acked(serial=0))

    def _desired(self, name: str, hello: Hello, now: int) -> Desired:
        """Return what the node should hold, given what it holds: launches that never arrived, stops, and attempts to
        keep.
        """
        holds = {*hello.queued, *(running.attempt for running in hello.running)}
        for unit, index in list(self.ledger.active.on(name)):  # first: a gang that lost one is stopped, not launched
            attempt, task = attempt_of(unit, index), unit.tasks[index]
            if task.active and task.started and attempt not in holds:
                lost = Ending(outcome="lost", note="its process was gone when the node came back")
                self._finish(attempt, lost, now)
        for attempt in self._without_room(name):
            if attempt not in holds:
                self._finish(attempt, Ending(outcome="returned", note="its node has shrunk"), now)
        no_room = self._without_room(name)
        keep, stops, recalls, launches = [], [], [], []
        orders: list[Ordered] = []
        limited: list[Limited] = []
        drained = self.ledger.nodes[name].drained
        suspended: list[Attempt] = []
        for unit, index in list(self.ledger.active.on(name)):
            attempt = attempt_of(unit, index)
            waits = unit.queued and unit.tasks[index].status == "queued"
            leaves = bool(unit.stopping) or unit.tasks[index].leaving
            if attempt in holds:
                keep.append(attempt)
                orders += [Ordered(attempt, order) for of, order in orders_of(unit) if of == index and unit.generation]
                if unit.limited == unit.placed_in or changing.memory_wish(self.ledger, unit):
                    limited.append(_limits_of(self.ledger, unit, index))
                if unit.suspended is not None:
                    suspended.append(attempt)
                if leaves:
                    stops.append(attempt)
                elif (drained and waits) or attempt in no_room:
                    recalls.append(attempt)
            elif leaves or (drained and waits):
                self._finish(attempt, Ending(outcome="returned", note="stopped before it was launched"), now)
            else:
                launches.append(self._launch(unit, index))
        keep += [launch.attempt for launch in launches]
        return Desired(
            launches=tuple(launches),
            stops=tuple(stops),
            recalls=tuple(recalls),
            keep=tuple(keep),
            complete=True,
            orders=tuple(orders),
            limited=tuple(limited),
            suspends=tuple(suspended),
        )

    def _take_report(self, name: str, running: Iterable[Running], ended: Iterable[Ended], now: int) -> None:
        for began in running:
            if self._valid(began.attempt, name):
                found = self.ledger.jobs.task(began.attempt.task)
                if found is not None and found[1].status != "running":
                    attempt = began.attempt
                    self._commit(
                        Started(at=now, task=attempt.task, epoch=attempt.epoch, pid=began.pid, cpus=began.cpus)
                    )
        for done in ended:
            if self._valid(done.attempt, name):
                self._finish(done.attempt, done.ending, now)

    def _take_fitness(self, name: str, why: str | None, now: int) -> None:
        """Record that a node cannot start anything, or can again."""
        if why is not None and why != self.ledger.nodes[name].unfit:
            self._commit(NodeUnfit(at=now, name=name, why=why))
            self._dirty = True

    def _take_faults(self, name: str, faults: Iterable[DeviceFault], now: int) -> None:
        """Close failed devices. Their work is lost, and ordered to end. The controller does not wait for that, because
        a process may never return from a failed device.
        """
        for fault in faults:
            device = self._device(name, fault.index)
            if device is None or self.ledger.cordons.of_device(name, device) is not None:
                continue
            if fault.id and fault.id != identity_of(name, device):
                continue  # another device has replaced it
            hit = [
                (unit, index) for unit, index in self.ledger.active.on(name) if fault.index in unit.tasks[index].devices
            ]
            self._commit(
                DeviceCordoned(
                    at=now,
                    node=name,
                    device=fault.index,
                    id=identity_of(name, device),
                    code=fault.code,
                    text=fault.text,
                )
            )
            what = ", ".join(part for part in (fault.code, fault.text) if part)
            for unit, index in hit:
                self._send(name, Desired(stops=(attempt_of(unit, index),)))
                self._lose(unit, index, f"device {fault.index} of {name} failed: {what}", now)

    def _take_told(self, name: str, told: Iterable[Told], now: int) -> None:
        """Record reported speedups and training state of running tasks; commit only changes."""
        for one in told:
            found = self.ledger.jobs.task(one.attempt.task)
            if found is None or not self._valid(one.attempt, name):
                continue
            unit, task = found
            if one.speedups is not None:
                speedups = one.speedups.within(len(unit.spec.tasks))
                if unit.speedups is None or speedups.differs(unit.speedups):
                    self._commit(SpeedupsTold(at=now, unit=unit.id, speedups=speedups))
            if one.training is not None and one.training.compute and len(unit.tasks) > 1:
                index = next(index for index, other in enumerate(unit.tasks) if other is task)
                self._paces.heard(unit, index, one.training.compute, now)
            if one.training is not None and task is unit.first:
                self._training[unit.id] = (unit.placed_in, LastWord(now, one.training))
                known = unit.training if unit.told >= unit.placed else None
                if known is None or (now - unit.told >= TELL_EVERY and is_news(one.training, known)):
                    self._keep_training(unit, one.training, now)

    def _take_sized(self, name: str, sized: Iterable[Sized], now: int) -> None:
        """Free the memory by which a node has lowered the limit of an attempt. Raise a lowered limit that is too low,
        if there is room.
        """
        for one in sized:
            found = self.ledger.jobs.task(one.attempt.task)
            if found is None or not self._valid(one.attempt, name):
                continue
            unit = found[0]
            fitting = fitting_of(self.ledger, unit)
            by = NO_POLICY if fitting is None else acting_as(fitting.rule).token
            if one.short:
                memory = raised(fitting, unit, one.used)
                if changing.Growth(self.ledger).take([unit], memory):
                    self._commit_change(changing.sized(unit, memory, by, now))
            elif one.memory == changing.memory_wish(self.ledger, unit):
                if fitting is not None and fitting.limits(unit)[1] == one.memory:
                    self._commit(lowered(fitting, unit, one, now))
                self._commit_change(changing.sized(unit, one.memory, by, now))
            elif one.memory < unit.shape.memory:  # a larger limit was set in the meantime
                self._limit([unit.id])

    def _take_idle(self, name: str, idle: Iterable[Idle], now: int) -> None:
        """Note which sessions are idle, and suspend those whose idle limit has passed."""
        for one in idle:
            found = self.ledger.jobs.task(one.attempt.task)
            if found is None or not self._valid(one.attempt, name):
                continue
            unit, task = found
            self._idle.pop(unit.id, None)
            if not one.lasts:
                continue
            since = max(task.started, now - one.lasts)
            may = one.due and unit.spec.idle and unit.spec.if_idle == "suspend" and len(unit.tasks) == 1
            if may and task.status == "running" and unit.suspended is None and not unit.stopping:
                self._commit(Suspended(at=now, unit=unit.id, epoch=unit.epoch, since=since))
                self._send(name, Desired(suspends=(one.attempt,)))
            else:
                self._idle[unit.id] = (unit.epoch, since)

    def idle_since(self, unit: UnitState) -> int:
        """Return the instant of the last use of an idle or suspended unit; 0 if it is in use, or has no idle limit."""
        if unit.suspended is not None:
            return unit.suspended.since
        epoch, since = self._idle.get(unit.id, (0, 0))
        return since if epoch == unit.epoch and unit.status == "active" else 0

    def _keep_training(self, unit: UnitState, training: Training, now: int) -> None:
        """Record a training report in the log. A new phase requires a decision."""
        if unit.training is None or unit.training.phase != training.phase or training.resizes > unit.resizes:
            self._dirty = True
        self._commit(TrainingTold(at=now, unit=unit.id, training=training))

    def _keep_last_word(self, unit: UnitState, now: int) -> None:
        """Record the latest training report: there may be no further one of this attempt."""
        last = self.heard(unit)
        if last is not None and last.said != unit.training:
            self._keep_training(unit, last.said, now)
        self._training.pop(unit.id, None)

    def heard(self, unit: UnitState) -> LastWord | None:
        """Return the latest training report; the ledger has only those that were worth a record."""
        epoch, last = self._training.get(unit.id, (0, None))
        return last if epoch == unit.placed_in else logged(unit)

    def _device(self, node: str, index: int) -> Device | None:
        return next((device for device in self.ledger.nodes[node].node.devices if device.index == index), None)

    def _valid(self, attempt: Attempt, node: str) -> bool:
        """Return whether the attempt is the current one of its task, on its node. Messages of others are ignored."""
        found = self.ledger.jobs.task(attempt.task)
        if found is None:
            return False
        unit, task = found
        return (task.epoch or unit.epoch) == attempt.epoch and task.active and task.node == node

    def _finish(self, attempt: Attempt, ending: Ending, now: int, until: int = 0) -> None:
        found = self.ledger.jobs.task(attempt.task)
        was_stopping = bool(found and found[0].stopping)
        if found and found[1] is found[0].first:
            self._keep_last_word(found[0], now)
        generation = found[0].generation if found else 0
        undecided, waited = self._dirty or self._deciding, self.ledger.queues.pending
        self._commit(Finished(at=now, task=attempt.task, epoch=attempt.epoch, ending=ending, until=until))
        self._dirty = True
        if (
            self._asks is not None
            and not undecided
            and ending.outcome == "done"
            and self.ledger.queues.pending <= waited
        ):
            self._dirty, self._freed = False, True
        self._dispatch.ended(attempt, now, blame=ending.outcome not in ("stopped", "returned"))
        if found and found[0].brief and ending.outcome == "done":
            self._fire(self._watch.response(now - found[0].ready), now)
        if found and found[0].stopping and not was_stopping:
            self._stop(found[0], now)
        elif found and found[0].generation != generation:  # it continues without one of its members
            self._order(found[0])

    def _order(self, unit: UnitState) -> None:
        """Send all members of a gang its new membership. Members that must leave are also ordered to end."""
        orders: dict[str, list[Ordered]] = {}
        stops: dict[str, list[Attempt]] = {}
        for index, order in orders_of(unit):
            attempt, node = attempt_of(unit, index), unit.tasks[index].node
            orders.setdefault(node, []).append(Ordered(attempt, order))
            if order.rank < 0:
                stops.setdefault(node, []).append(attempt)
        for node, told in orders.items():
            self._send(node, Desired(orders=tuple(told), stops=tuple(stops.get(node, ()))))

    def _stop(self, unit: UnitState, now: int) -> None:
        """Stop the unit's attempts. Those on a lost node end here: if it comes back, they are fenced."""
        for index, task in enumerate(unit.tasks):
            if not task.active:
                continue
            if task.status == "recovering":
                self._finish(attempt_of(unit, index), Ending(outcome="lost", note=f"node {task.node} was lost"), now)
            else:
                self._send(task.node, Desired(stops=(attempt_of(unit, index),)))

    def _node_lost(self, name: str, now: int, *, said: bool = False) -> None:
        until = self._lease_end((unit for unit, _ in self.ledger.active.on(name)), now)
        for unit, index in list(self.ledger.active.on(name)):
            if unit.tasks[index] is unit.first:
                self._keep_last_word(unit, now)
        self._commit(NodeLost(at=now, name=name, until=until, said=said))
        self._watch.forget(name)
        self._said.discard(name)
        self._connected.discard(name)
        self._dirty = True
        for unit, index in list(self.ledger.active.on(name)):
            elsewhere = any(task.active and not task.leaving and task.node != name for task in unit.tasks)
            if elsewhere or unit.stopping or unit.tasks[index].leaving:
                self._lose(unit, index, f"node {name} was lost", now)

    def _lose(self, unit: UnitState, index: int, note: str, now: int, *, gone: bool = False) -> None:
        """End an attempt as lost, unless the loss of another gang member has ended it already. Unless it is known to be
        `gone`, an exclusive attempt may run until the end of its lease.
        """
        if unit.tasks[index].active:
            until = 0 if gone else self._lease_end([unit], now)
            self._finish(attempt_of(unit, index), Ending(outcome="lost", note=note), now, until)

    def _lose_attempts(self, name: str, now: int, note: str, *, gone: bool = False) -> None:
        for unit, index in list(self.ledger.active.on(name)):
            self._lose(unit, index, note, now, gone=gone)

    def _lease_end(self, units: Iterable[UnitState], now: int) -> int:
        """Return when attempts that are given up now have ended at the latest, if any is exclusive; else 0."""
        return now + self.settings.lease if any(unit.spec.lease == "exclusive" for unit in units) else 0

    def _lose_devices(self, known: NodeState, node: Node, now: int) -> None:
        """Lose the attempts on devices that have gone; other work is not affected."""
        left = {(device.index, device.uuid) for device in node.devices}
        gone = {device.index for device in known.node.devices if (device.index, device.uuid) not in left}
        for unit, index in list(self.ledger.active.on(node.name)):
            if gone.intersection(unit.tasks[index].devices):
                self._lose(unit, index, "its device has gone", now)

    def _without_room(self, name: str) -> list[Attempt]:
        """Return unstarted attempts for which a shrunk node has no room, the latest placed first. Running attempts
        continue, whatever the node offers.
        """
        state = self.ledger.nodes[name]
        cpu, memory, network = state.excess
        withdrawn = {device.index for device in state.node.devices if device.withdrawn}
        found: list[Attempt] = []
        latest = sorted(self.ledger.active.on(name), key=lambda entry: (-entry[0].placed, -entry[0].ordinal))
        for unit, index in latest:
            task, fits = unit.tasks[index], max(cpu, memory, network) <= 0
            if task.active and not task.started and not (fits and withdrawn.isdisjoint(task.devices)):
                found.append(attempt_of(unit, index))
                if not unit.queued:
                    shape = unit.shape
                    cpu, memory, network = cpu - shape.cpu, memory - shape.memory, network - shape.network
        return found

    def _recall_queued(self, now: int) -> None:
        """Recall attempts that wait on a node behind work that takes longer than expected; elsewhere there may be
        room.
        """
        recalls: dict[str, list[Attempt]] = {}
        for unit, task in self.ledger.active.queued_since(now - RECALL_AFTER):
            recalls.setdefault(task.node, []).append(attempt_of(unit, 0))
        for node, attempts in recalls.items():
            self._send(node, Desired(recalls=tuple(attempts)))

    def _locked(self, message: Locked, now: int) -> None:
        """Hold the job until a user has fixed its keys and releases it, so that no try is lost or repeated. A job that
        serves calls cannot be held: its worker fails with the reason.
        """
        found = self.ledger.jobs.task(message.attempt.task)
        if self._full or found is None or not self._valid(message.attempt, found[1].node):
            return
        job = self.ledger.jobs[found[0].job]
        if job.calls is not None:
            self._finish(message.attempt, Ending(outcome="unstartable", code=126, note=message.why), now)
            return
        if not job.hold or job.budget:
            self._commit(JobHeld(at=now, job=job.id, on=True, why=message.why))
        self._finish(message.attempt, Ending(outcome="returned", note=message.why), now)

    # --- deciding ----------------------------------------------------------------------------------------------------

    def _decided(self, plan: Plan, view: Snapshot | None, now: int) -> None:
        if view is not None and view is not self._asked and view.now <= self._passed_over:
            return  # its view was lost with the log, or the policy has changed since
        self._deciding, self._asked = False, None
        if self._full:
            return
        self._until, self._closed = plan.until, plan.closed
        in_charge = self.ledger.leader.policy
        self._asks = plan.asks if plan.policy == in_charge and not plan.failed else None
        stale = view is None or view.revision != self.ledger.revision  # whatever the plan says: a policy may be wrong
        if plan.failed and (plan.failed != self._failing or now - self._told_failing >= TELL_AGAIN):
            self._told_failing = now
            self._commit(PolicyFailed(at=now, policy=in_charge, error=plan.failed))
        self._failing = plan.failed
        before = self.ledger.revision
        launches: dict[str, list[Launch]] = {}
        resized: dict[str, UnitState] = {}
        refused = above_share(self.ledger, plan.decisions, now)
        for number, decision in enumerate(plan.decisions):
            if isinstance(decision, Hold):
                self._hold(decision, now)
            elif number in refused:
                self._reject("preempt", refused[number], stale=stale)
            elif isinstance(decision, Place):
                self._place(decision, now, launches, stale=stale)
            elif isinstance(decision, Preempt):
                self._preempt(decision, now, stale=stale)
            else:
                self._resize(decision, now, launches, resized, stale=stale)
        if sum(len(batch) for batch in launches.values()) >= self._head and self.ledger.queues.pending:
            self._dirty = True  # all shown units may have been placed: show the rest
        if plan.memory is not None:
            self._commit(Remembered(at=now, memory=plan.memory))
        if view is not None and self.ledger.revision > before:
            by = plan.policy if plan.policy != in_charge else ""
            self._commit(Round(at=now, base=view.revision, asked=view.now, fired=view.triggers, policy=by))
        for node, batch in launches.items():
            self._send(node, Desired(launches=tuple(batch)))
        for unit in resized.values():  # new members are launched before they get orders
            self._order(unit)
        self._fire(self._watch.use(self.ledger.columns.use(), now), now)

    def _place(self, place: Place, now: int, launches: dict[str, list[Launch]], *, stale: bool) -> None:
        placed = verify_place(self.ledger, place, now)
        if not isinstance(placed, Placed):
            self._reject("place", placed, stale=stale)
            return
        self._commit(placed)
        unit = self.ledger.jobs.unit(place.unit)
        if unit is not None:
            for index, spot in enumerate(placed.spots):
                launches.setdefault(spot.node, []).append(self._launch(unit, index))

    def _preempt(self, preempt: Preempt, now: int, *, stale: bool) -> None:
        preempted = verify_preempt(self.ledger, preempt, now)
        if not isinstance(preempted, Preempted):
            self._reject("preempt", preempted, stale=stale)
            return
        self._commit(preempted)
        unit = self.ledger.jobs.unit(preempt.unit)
        if unit is not None:
            self._stop(unit, now)

    def _resize(
        self,
        resize: Resize,
        now: int,
        launches: dict[str, list[Launch]],
        resized: dict[str, UnitState],
        *,
        stale: bool,
    ) -> None:
        event = verify_resize(self.ledger, resize, now)
        if not isinstance(event, Resized):
            self._reject("resize", event, stale=stale)
            return
        self._commit(event)
        unit = self.ledger.jobs.unit(resize.unit)
        if unit is not None:
            resized[unit.id] = unit
            for index, spot in event.joins:
                launches.setdefault(spot.node, []).append(self._launch(unit, index))

    def _reject(self, decision: str, rejection: Rejection, *, stale: bool) -> None:
        self._asks = None  # its asks are unreliable
        self._dirty |= stale  # the state has changed: decide again, but do not loop on a wrong policy
        self.rejections[decision, rejection.reasons[0].code] += 1

    def _hold(self, hold: Hold, now: int) -> None:
        held = verify_hold(self.ledger, hold, now)
        if held is not None:
            self._commit(held)

    def _launch(self, unit: UnitState, index: int) -> Launch:
        job, spec = self.ledger.jobs[unit.job], unit.spec
        task, state = spec.tasks[index], unit.tasks[index]
        profile = self.ledger.profiles.get(spec.kind)
        shape = unit.shape
        order = dict(orders_of(unit)).get(index) if spec.least else None
        first = unit.tasks[unit.members[0] if spec.least else 0].node
        attempt = attempt_of(unit, index)
        env = _in_phase(unit, job.env | task.env if task.env else job.env)
        if self.settings.traced:
            env = env | {TRACEPARENT: run_of(root_of(job), attempt).text}
        return Launch(
            attempt=attempt,
            argv=spec.variants[unit.variant - 1].argv if unit.variant else task.argv,
            shape=shape,
            slots=self.ledger.nodes[state.node].pools[shape.key()].slots,
            folder=job.folder,
            env=env,
            secrets=job.secrets | spec.secrets if spec.secrets else job.secrets,
            devices=state.devices,
            priority=int(spec.priority),
            kind=spec.kind,
            expect=profile.mean if profile is not None and profile.count >= ENOUGH_RUNS else 0,
            gang=unit.id if len(spec.tasks) > 1 else "",
            first=self._addresses.get(first, "") if len(spec.tasks) > 1 else "",
            rank=order.rank if order is not None else task.rank,
            world=order.world if order is not None else task.world,
            part=task.part,
            parts=task.parts,
            queued=unit.queued,
            serves=job.calls is not None or bool(spec.serves),
            lease=self.settings.lease if spec.lease == "exclusive" else 0,
            generation=unit.generation,
            founded=unit.placed_in if spec.least else 0,
            submitted=job.submitted,
            tree=job.tree,
            tenant=job.tenant,
            **limits_of(spec),
        )

    # --- log and outbox ----------------------------------------------------------------------------------------------

    def _commit(self, event: Event) -> None:
        self.ruling.before(event)
        waited = self.ledger.queues.pending
        self.ledger.apply(event)
        self.ruling.after(event)
        self.budgeting.after(event)
        self._events.append(event)
        if not isinstance(event, QUIET) or self.ledger.queues.pending > waited:
            self._dirty = True
        if isinstance(event, OF_PLACES):
            self.bookings.look_again()

    def _later(self, effect: Effect) -> None:
        """Send an effect once all events applied by now are durable."""
        self._outbox.append((self.ledger.revision, effect))

    def _make_dispatch(self, now: int) -> Dispatch:
        return Dispatch(
            self.ledger,
            now,
            commit=self._commit,
            say_caller=lambda job, message: self._later(SayCaller(job, message)),
            say_worker=lambda attempt, message: self._later(SayWorker(attempt, message)),
        )

    def _send(self, node: str, message: ToAgent) -> None:
        if node in self._connected:
            self._addressed.add(node)
            self._later(Send(node, message))

    def _flush(self) -> Sequence[Effect]:
        effects: list[Effect] = []
        if self._events:
            events = tuple(self._events)
            self._events.clear()
            effects.append(Append(events, expected=self.ledger.revision - len(events)))
            if self.ledger.revision - self._checkpointed >= self.settings.checkpoint_every:
                self._checkpointed = self.ledger.revision
                effects.append(Checkpoint())
        effects.extend(self._release())
        return effects

    def _release(self) -> Iterable[Effect]:
        while self._outbox and self._outbox[0][0] <= self._durable:
            effect = self._outbox.popleft()[1]
            if isinstance(effect, Send) and isinstance(effect.message, Desired):
                self._expect(effect.node)
            yield effect
        if not self._outbox:
            self._addressed.clear()

    def _on_durable(self, revision: int) -> Sequence[Effect]:
        self._durable = max(self._durable, revision)
        return tuple(self._release())

    def _append_failed(self, message: AppendFailed, now: int) -> Sequence[Effect]:
        """Continue from the durable state: refuse pending requests, and make every node report its state again."""
        self.ledger, self._durable = message.ledger, message.ledger.revision
        self._checkpointed = min(self._checkpointed, self.ledger.revision)
        self._full = True
        self._forget_round(now)
        began = self.ledger.leader.began
        self._watch.triggers = _triggers_of(began.recipe if began is not None else {})
        self._lateness = Lateness()
        self._events.clear()
        refused = [
            effect if effect.error else Reply(effect.request, error=message.error)
            for _, effect in self._outbox
            if isinstance(effect, Reply)
        ]
        self._outbox.clear()
        hung = [Hang(node) for node in sorted(self._connected)]
        self._outage.expect(self._connected, now)
        self._connected.clear()
        self._dispatch, self.turns.ledger = self._make_dispatch(self.ledger.now), self.ledger
        self.bookings.ledger = self.hours.ledger = self.budgeting.ledger = self.ledger
        self.bookings.look_again()
        self.budgeting.look_again()
        self.hearing.restart(self.ledger)
        if self._calendar is not None:
            self.ruling.restart(self.ledger, now)
        return (*refused, *hung, HangCalls())


def _until(ends: int, known: int) -> int:
    """Return when a node ends; keep the known instant if the new one is about the same."""
    return known if abs(ends - known) < SAME_END else ends


def _with_withdrawn(hello: Hello, known: Sequence[Device]) -> Node:
    """Return a node as it offers itself, with withdrawn devices that its work still holds, as last known."""
    offered = hello.node.devices
    gone = {device.index: device for device in known if device.index in hello.withdrawn}
    left = gone.keys() - {device.index for device in offered}
    if not left:
        return hello.node
    withdrawn = (msgspec.structs.replace(gone[index], withdrawn=True) for index in left)
    devices = sorted((*offered, *withdrawn), key=lambda device: device.index)
    return msgspec.structs.replace(hello.node, devices=tuple(devices))


def _triggers_of(recipe: dict[str, Any]) -> Triggers:
    """Return the triggers of a policy with this recipe; with a trial, those of the policy for the rest."""
    recipe = undivided({"recipe": recipe})["recipe"]
    return convert(recipe, Recipe).triggers if recipe else Triggers()


def _in_phase(unit: UnitState, env: dict[str, str]) -> dict[str, str]:
    """Return the environment of a task in its phase: the number of threads, and the fraction of device memory that it
    may use (of its reservation, for a share of a device). A number of threads set in the job takes precedence.
    """
    if not unit.spec.phases:
        return env
    asks, threads = unit.spec.in_phase(unit.phase), str(max(1, unit.shape.cpu // 1000))
    part = 1000 if asks is None or unit.shape.gpu_memory else asks.memory
    told = {PHASE: unit.phase, THREADS: threads, DEVICE_MEMORY: f"{part / 1000:g}"}
    return {LIBRARY_THREADS: threads} | env | told


def _limits_of(ledger: Ledger, unit: UnitState, index: int) -> Limited:
    """Return the limits of an attempt for its node."""
    memory = changing.memory_wish(ledger, unit) or unit.spec.shape.memory
    return Limited(attempt_of(unit, index), unit.spec.time_limit, memory)
