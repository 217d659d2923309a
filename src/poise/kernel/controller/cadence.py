"""When a round is decided: after events that can change its outcome, and at intervals while work waits."""

from collections.abc import Callable, Iterable

from poise.kernel.controller.settings import PER_NODE, Settings
from poise.kernel.ledger import Ledger, UnitState
from poise.kernel.messages import Decide
from poise.kernel.watch import Fired, Watch
from poise.model.decisions import Ask, Plan
from poise.model.events import (
    Called,
    CallsClosed,
    CallTried,
    DeviceCordoned,
    DeviceDrained,
    Event,
    FunctionTold,
    Held,
    IncidentTold,
    JobsRemoved,
    NodeDrained,
    NodeForgotten,
    NodeJoined,
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
    Started,
    TrainingTold,
    Triggered,
)
from poise.model.resources import Shape
from poise.model.views import Snapshot
from poise.policy.feasible import ability, capacity, grouped

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


class Cadence:
    """The rounds that were requested, and the one that is being decided. `dirty`: something has changed that the policy
    must see. `joined`: nodes have joined, or are trusted again, since the last round.
    """

    def __init__(self, ledger: Ledger, settings: Settings, watch: Watch, *, commit: Callable[[Event], None]) -> None:
        self.ledger = ledger
        self._settings = settings
        self._watch = watch
        self._commit = commit
        self.dirty = True
        self.joined = False
        self._freed = False  # attempts are done; relevant only if there is room for the asks
        self._head = 0
        self._deciding = False
        self._asked: Snapshot | None = None
        self._passed_over = 0  # ignore plans on views up to this instant
        self._until: int | None = None
        self._closed = False
        self._asks: tuple[Ask, ...] | None = None
        self._last_round = 0
        self.fired: list[str] = []

    @property
    def undecided(self) -> bool:
        """Whether a round is requested, or being decided."""
        return self.dirty or self._deciding

    def want(self) -> None:
        """Request a round."""
        self.dirty = True

    def ended(self, *, alone: bool) -> None:
        """Request a round after the end of an attempt. If nothing else has happened since the last plan (`alone`), it
        is needed only if there is room for the asks.
        """
        self.dirty = True
        if alone and self._asks is not None:
            self.dirty, self._freed = False, True

    def submitted(self, units: Iterable[UnitState]) -> None:
        """Note that only these units have come since the last plan: no round is needed if all their queues are held."""
        if self._closed or self._asks is not None:
            self.dirty = not all(self.ledger.queues.held(unit.queue) for unit in units)

    def fire(self, fired: Fired | None, now: int) -> None:
        """Record a trigger; it forces a round, which gets its name."""
        if fired is not None:
            self._commit(Triggered(at=now, trigger=fired.trigger, subject=fired.subject, have=fired.have))
            self.fired.append(fired.trigger)

    # --- asking ------------------------------------------------------------------------------------------------------

    def snapshot(self, now: int) -> Snapshot:
        """Return the current snapshot for the policy."""
        return self.ledger.snapshot(now, self._settings.seed, self._settings.throughputs, tuple(self.fired))

    def is_due(self, now: int) -> bool:
        """Return whether to decide a round: one at a time, and only at multiples of `every`."""
        every = self._settings.every
        return not self._deciding and (not every or now % every == 0) and self._is_wanted(now)

    def ask(self, now: int) -> Decide:
        """Begin a round."""
        self.dirty = self._freed = self.joined = False
        self._deciding, self._last_round, self._until = True, now, None
        self._head = self.ledger.queues.head()
        self._asked = asked = self.snapshot(now)
        self.fired.clear()  # later triggers go to the next round
        return Decide(asked)

    def deciding(self, now: int) -> int:
        """Return the time since the policy was asked for a plan that is still missing."""
        return max(0, now - self._asked.now) if self._asked is not None else 0

    def wakeup(self, now: int) -> int | None:
        """Return when a round is due if nothing happens before."""
        if self._deciding:
            return None  # the plan comes as a message
        due = [self.ledger.queues.wakeup(self._last_round), self._until]
        if self.joined:
            due.append(self._next_for_joined())
        if self._settings.poll and self.ledger.queues.pending:
            due.append(self._last_round + self._settings.poll)
        every = self._settings.every
        if every and (self.dirty or self._freed):
            due.append(now)
        soonest = min((at for at in due if at is not None), default=None)
        return soonest if soonest is None or not every else -(-max(soonest, now) // every) * every

    def _is_wanted(self, now: int) -> bool:
        if self._freed and not self.dirty:
            self._freed, self.dirty = False, self._has_room()
            if not self.dirty:
                self.fire(self._watch.use(self.ledger.columns.use(), now), now)
        if self.dirty or (self._until is not None and self._until <= now):
            return True
        if self.joined and now >= self._next_for_joined():
            return True
        poll = self._settings.poll
        if poll and self.ledger.queues.pending and now - self._last_round >= poll:
            return True
        backed_off = self.ledger.queues.wakeup(self._last_round)
        return backed_off is not None and backed_off <= now

    def _next_for_joined(self) -> int:
        """Return when a round may be decided for joined nodes: at once if rounds take no time (no `poll`)."""
        return self._last_round + (PER_NODE * len(self.ledger.nodes) if self._settings.poll else 0)

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

    # --- answers -----------------------------------------------------------------------------------------------------

    def accepts(self, view: Snapshot | None) -> bool:
        """Return whether a plan on this view counts. It ends the round."""
        if view is not None and view is not self._asked and view.now <= self._passed_over:
            return False  # its view was lost with the log, or the policy has changed since
        self._deciding, self._asked = False, None
        return True

    def answered(self, plan: Plan, *, reliable: bool) -> None:
        """Note when the plan wants the next round, and what it would place then, if that is `reliable`."""
        self._until, self._closed = plan.until, plan.closed
        self._asks = plan.asks if reliable else None

    def rejected(self, *, stale: bool) -> None:
        """Do not rely on the asks of a plan of which a decision was rejected. If the state had changed, decide again,
        but do not loop on a wrong policy.
        """
        self._asks = None
        self.dirty |= stale

    def placed(self, count: int) -> None:
        """Request a round for the rest if all shown units may have been placed."""
        if count >= self._head and self.ledger.queues.pending:
            self.dirty = True

    def forget_round(self, now: int) -> None:
        """Ignore the plan that is being made, and request another round."""
        self._deciding, self._asked, self._passed_over = False, None, now
        self._asks, self._until, self._closed, self.dirty = None, None, False, True
