"""Carry out the plans of the policy, as far as the ledger confirms them."""

from collections import Counter
from collections.abc import Callable, Sequence

from poise.kernel.controller.attempts import LiveAttempts
from poise.kernel.controller.cadence import Cadence
from poise.kernel.controller.outbox import Outbox
from poise.kernel.ledger import Ledger, UnitState
from poise.kernel.verify import above_share, verify_hold, verify_place, verify_preempt, verify_resize
from poise.kernel.watch import Watch
from poise.model.decisions import NO_POLICY, Hold, Place, Plan, Preempt, Rejection, Resize, Why
from poise.model.events import Event, Placed, PolicyFailed, Preempted, Remembered, Resized, Round
from poise.model.messages import Desired, Launch
from poise.model.views import Snapshot
from poise.units import SECOND

TELL_AGAIN = 10 * SECOND
"""Minimum interval between records of the same failure of a policy."""


class Deciding:
    """The part of the controller that verifies decisions, records them, and tells the nodes."""

    def __init__(
        self,
        ledger: Ledger,
        watch: Watch,
        outbox: Outbox,
        cadence: Cadence,
        attempts: LiveAttempts,
        *,
        commit: Callable[[Event], None],
    ) -> None:
        self.ledger = ledger
        self._watch = watch
        self._outbox = outbox
        self._cadence = cadence
        self._attempts = attempts
        self._commit = commit
        self._failing, self._told_failing = "", 0
        self.rejections: Counter[tuple[str, str]] = Counter()
        """Decisions that the ledger rejected, by kind and by the code of the first reason."""

    def decided(self, plan: Plan, view: Snapshot | None, now: int) -> None:
        """Carry out a plan that was made on this view (None: on none)."""
        if not self._cadence.accepts(view) or self._outbox.full:
            return
        in_charge = self.ledger.leader.policy
        self._cadence.answered(plan, reliable=plan.policy == in_charge and not plan.failed)
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
                self.preempt(decision, now, stale=stale)
            else:
                self._resize(decision, now, launches, resized, stale=stale)
        self._cadence.placed(sum(len(batch) for batch in launches.values()))
        if plan.memory is not None:
            self._commit(Remembered(at=now, memory=plan.memory))
        if view is not None and self.ledger.revision > before:
            by = plan.policy if plan.policy != in_charge else ""
            self._commit(Round(at=now, base=view.revision, asked=view.now, fired=view.triggers, policy=by))
        for node, batch in launches.items():
            self._outbox.send(node, Desired(launches=tuple(batch)))
        for unit in resized.values():  # new members are launched before they get orders
            self._attempts.order(unit)
        self._cadence.fire(self._watch.use(self.ledger.columns.use(), now), now)

    def _place(self, place: Place, now: int, launches: dict[str, list[Launch]], *, stale: bool) -> None:
        placed = verify_place(self.ledger, place, now)
        if not isinstance(placed, Placed):
            self._reject("place", placed, stale=stale)
            return
        self._commit(placed)
        unit = self.ledger.jobs.unit(place.unit)
        if unit is not None:
            for index, spot in enumerate(placed.spots):
                launches.setdefault(spot.node, []).append(self._attempts.launch(unit, index))

    def preempt(self, preempt: Preempt, now: int, *, stale: bool) -> None:
        preempted = verify_preempt(self.ledger, preempt, now)
        if not isinstance(preempted, Preempted):
            self._reject("preempt", preempted, stale=stale)
            return
        self._commit(preempted)
        unit = self.ledger.jobs.unit(preempt.unit)
        if unit is not None:
            self._attempts.stop(unit, now)

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
                launches.setdefault(spot.node, []).append(self._attempts.launch(unit, index))

    def _reject(self, decision: str, rejection: Rejection, *, stale: bool) -> None:
        self._cadence.rejected(stale=stale)
        self.rejections[decision, rejection.reasons[0].code] += 1

    def _hold(self, hold: Hold, now: int) -> None:
        held = verify_hold(self.ledger, hold, now)
        if held is not None:
            self._commit(held)

    def clear(self, unit: UnitState, leaving: Sequence[int], why: str, now: int) -> None:
        """Preempt work whose place is reserved for others: only these tasks of a gang that can go on without them."""
        told = Why(policy=NO_POLICY, base=self.ledger.revision, rank=why)
        if unit.resizes and unit.is_whole and unit.size - len(leaving) >= max(1, unit.spec.least):
            resized: dict[str, UnitState] = {}
            self._resize(
                Resize(unit=unit.id, cause="shrink", why=told, leaves=tuple(leaving)), now, {}, resized, stale=False
            )
            for gang in resized.values():
                self._attempts.order(gang)
        else:
            self.preempt(Preempt(unit=unit.id, cause="move", why=told), now, stale=False)
