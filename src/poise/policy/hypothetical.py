"""What-if analysis: hypothetical views on which a policy decides as on a real one. A view is never changed: the
`with_…` functions return a new one.
"""

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from poise.model.decisions import Place, Plan, Preempt, Reason, Resize
from poise.model.fleet import CPU, DEVICES, DRAINED, MEMORY, NETWORK, Fleet, PoolView, Resident, model_under
from poise.model.jobs import GRACE
from poise.model.quotas import asked
from poise.model.resources import WHOLE, Node, Shape
from poise.model.share_tree import CPU as CORES
from poise.model.share_tree import amounts_of
from poise.model.views import Candidate, Snapshot
from poise.policy.entitled import Standing
from poise.policy.place import Draft
from poise.policy.protocol import Policy
from poise.policy.rank import ORDERS, Order
from poise.policy.reclaim import may_be_asked
from poise.policy.score import TERMS
from poise.policy.static import Static
from poise.policy.suites import Suite
from poise.units import format_duration

LOOKED_AT = 100_000
"""Maximum number of nodes and candidates that all decisions about one question may examine: about a second's work."""

ClusterPolicy = Policy[Snapshot, Plan]


class Hypothesis:
    """A working copy of a view, changed step by step. The result of `view()` is valid until the next change."""

    def __init__(self, view: Snapshot) -> None:
        self._base = view
        self.now = view.now
        self.memory: Mapping[str, Any] = view.memory
        self.fleet = view.fleet.copy()
        self.candidates = {candidate.unit: candidate for candidate in view.candidates}
        self._backlog = dict(view.backlog)
        self._elastic = {resident.unit: resident for resident in view.elastic}
        self._rows: dict[str, list[int]] | None = None
        self._quotas = dict(view.quotas)
        self._shares = Standing(view.shares) if view.shares is not None else None

    def view(self) -> Snapshot:
        """Return the view; candidates are in order of submission, as in a ledger's view."""
        return msgspec.structs.replace(
            self._base,
            now=self.now,
            fleet=self.fleet,
            candidates=tuple(sorted(self.candidates.values(), key=_ordinal)),
            backlog=self._backlog,
            memory=self.memory,
            elastic=tuple(self._elastic.values()),
            quotas=self._quotas,
            shares=self._shares.view() if self._shares is not None else None,
        )

    # --- waiting units -----------------------------------------------------------------------------------------------

    def add(self, candidate: Candidate) -> None:
        """Add a waiting unit; it replaces one of the same name."""
        if candidate.unit in self.candidates:
            self.remove(candidate.unit)
        self.candidates[candidate.unit] = candidate
        self._backlog[candidate.queue] = self._backlog.get(candidate.queue, 0) + 1

    def remove(self, unit: str) -> Candidate:
        """Remove a waiting unit. Raises KeyError for a unit that is not shown."""
        candidate = self.candidates.pop(unit)
        left = self._backlog.get(candidate.queue, 1) - 1
        if left > 0:
            self._backlog[candidate.queue] = left
        else:
            self._backlog.pop(candidate.queue, None)
        return candidate

    # --- running units -----------------------------------------------------------------------------------------------

    def place(self, place: Place) -> None:
        """Apply a placement: the unit stops waiting, and takes room unless it queues behind similar work."""
        fleet = self.fleet
        if self.candidates[place.unit].recovering:
            self.end(place.unit)  # release what the unit still holds on a lost node
        candidate = self.remove(place.unit)
        shape = (candidate.shape, *candidate.others)[place.variant]
        if place.queued:
            pools = fleet.pools.setdefault(shape.key(), {})
            row = fleet.rows[place.spots[0].node]
            pool = pools.get(row, PoolView(0, 0))
            pools[row] = PoolView(pool.slots, pool.attempts + 1, pool.long)
            return
        residents = []
        for task, spot in enumerate(place.spots):
            row = fleet.rows[spot.node]
            resident = Resident(
                **_shared(candidate)
                | {
                    "shape": shape,
                    "since": self.now,
                    "model": model_under(fleet.nodes[row], spot.devices),
                    "devices": spot.devices,
                    "running": True,
                    "size": len(place.spots),
                    "most": candidate.tasks,
                    "task": task,
                }
            )
            self._take(row, resident.shape, resident.devices, 1)
            self._count(resident, -1)
            self._count_yielding(row, resident, 1)
            fleet.residents[row] = (*fleet.residents[row], resident)
            if self._rows is not None:
                self._rows.setdefault(candidate.unit, []).append(row)
            residents.append(resident)
        if candidate.least:
            self._elastic[candidate.unit] = residents[0]

    def end(self, unit: str) -> None:
        """End all attempts of a unit and free their room."""
        for row in dict.fromkeys(self._index().pop(unit, ())):
            stays = []
            for resident in self.fleet.residents[row]:
                if resident.unit != unit:
                    stays.append(resident)
                    continue
                self._take(row, resident.shape, resident.devices, -1)
                self._count(resident, 1)
                self._count_yielding(row, resident, -1)
            self.fleet.residents[row] = tuple(stays)
        self._elastic.pop(unit, None)

    def stop(self, unit: str) -> None:
        """Ask a unit to stop; it still holds its room."""
        for row in dict.fromkeys(self._index().get(unit, ())):
            changed = []
            for resident in self.fleet.residents[row]:
                if resident.unit == unit and not resident.stopping:
                    self._count_yielding(row, resident, -1)
                    changed.append(msgspec.structs.replace(resident, stopping=True))
                else:
                    changed.append(resident)
            self.fleet.residents[row] = tuple(changed)
        self._elastic.pop(unit, None)

    def resize(self, resize: Resize) -> None:
        """Resize a running gang; members that leave still hold their room."""
        rows = self._index()[resize.unit]
        of = [one for row in dict.fromkeys(rows) for one in self.fleet.residents[row] if one.unit == resize.unit]
        size = of[0].size + len(resize.joins) - len(resize.leaves)
        changed = {one.task: msgspec.structs.replace(one, size=size, since=self.now) for one in of}
        for task in resize.leaves:
            changed[task] = msgspec.structs.replace(changed[task], stopping=True)
        for row in dict.fromkeys(rows):
            for one in self.fleet.residents[row]:
                if one.unit == resize.unit and one.task in resize.leaves:
                    self._count_yielding(row, one, -1)
            self.fleet.residents[row] = tuple(
                changed[one.task] if one.unit == resize.unit else one for one in self.fleet.residents[row]
            )
        first = next(one for one in changed.values() if not one.stopping)
        for number, spot in enumerate(resize.joins, start=max(changed) + 1):
            row = self.fleet.rows[spot.node]
            one = msgspec.structs.replace(first, devices=spot.devices, task=number)
            self._take(row, one.shape, one.devices, 1)
            self._count(one, -1)
            self._count_yielding(row, one, 1)
            self.fleet.residents[row] = (*self.fleet.residents[row], one)
            rows.append(row)
        self._elastic[resize.unit] = first

    def end_leaving(self, unit: str) -> None:
        """End the members of a gang that were to leave."""
        for row in dict.fromkeys(self._index().get(unit, ())):
            for one in self.fleet.residents[row]:
                if one.unit == unit and one.stopping:
                    self._take(row, one.shape, one.devices, -1)
                    self._count(one, 1)
                    self._index()[unit].remove(row)
            self.fleet.residents[row] = tuple(
                one for one in self.fleet.residents[row] if one.unit != unit or not one.stopping
            )

    def carry_out(self, plan: Plan) -> None:
        """Apply all decisions of a plan at once; preempted units still hold their room."""
        for decision in plan.decisions:
            if isinstance(decision, Place):
                self.place(decision)
            elif isinstance(decision, Preempt):
                self.stop(decision.unit)
            elif isinstance(decision, Resize):
                self.resize(decision)
        if plan.memory is not None:
            self.memory = plan.memory

    # --- inside ------------------------------------------------------------------------------------------------------

    def _index(self) -> dict[str, list[int]]:
        """Return the rows of every unit's attempts."""
        if self._rows is None:
            self._rows = {}
            for row, residents in enumerate(self.fleet.residents):
                for resident in residents:
                    self._rows.setdefault(resident.unit, []).append(row)
        return self._rows

    def _count(self, resident: Resident, sign: int) -> None:
        left = self._quotas.get(resident.tenant)
        if left is not None:
            self._quotas[resident.tenant] = left.plus(asked(resident.shape), sign)
        if self._shares is not None:
            model = resident.model if resident.shape.gpus else CORES
            self._shares.count(resident.leaf, amounts_of(resident.shape, model), sign)

    def _take(self, row: int, shape: Shape, devices: tuple[int, ...], sign: int) -> None:
        fleet = self.fleet
        fleet.free[CPU, row] -= sign * shape.cpu
        fleet.free[MEMORY, row] -= sign * shape.memory
        fleet.free[NETWORK, row] -= sign * shape.network
        for place, device in enumerate(fleet.nodes[row].devices if devices else ()):
            if device.index in devices:
                before = int(fleet.device_share[row, place])
                now = fleet.device_share[row, place] = before - sign * shape.share
                fleet.free[DEVICES, row] += (now == WHOLE) - (before == WHOLE)
                if shape.share != WHOLE:
                    fleet.device_memory[row, place] -= sign * shape.gpu_memory

    def _count_yielding(self, row: int, resident: Resident, sign: int) -> None:
        if resident.preemptible and not resident.stopping:
            shape, held = resident.shape, self.fleet.yielding[resident.priority]
            held[CPU, row] += sign * shape.cpu
            held[MEMORY, row] += sign * shape.memory
            held[NETWORK, row] += sign * shape.network
            held[DEVICES, row] += sign * shape.gpus


# --- views with one thing changed ------------------------------------------------------------------------------------


def with_candidates(view: Snapshot, candidates: Iterable[Candidate]) -> Snapshot:
    """Return the view with these candidates waiting as well."""
    changed = Hypothesis(view)
    for candidate in candidates:
        changed.add(candidate)
    return changed.view()


def with_changed(view: Snapshot, candidate: Candidate, **fields: Any) -> Snapshot:
    """Return the view with a unit's request or priority changed: it waits in a queue of its own, since no other unit is
    like it. The view need not show the unit.
    """
    changed = Hypothesis(view)
    if candidate.unit in changed.candidates:
        changed.remove(candidate.unit)
    changed.add(msgspec.structs.replace(candidate, queue=f"changed/{candidate.unit}", **fields))
    return changed.view()


def with_places(view: Snapshot, places: Iterable[Place]) -> Snapshot:
    """Return the view with these placements made."""
    changed = Hypothesis(view)
    for place in places:
        changed.place(place)
    return changed.view()


def after(view: Snapshot, plan: Plan) -> Snapshot:
    """Return the view after a plan; preempted units still hold their room."""
    changed = Hypothesis(view)
    changed.carry_out(plan)
    return changed.view()


def without(view: Snapshot, units: Collection[str]) -> Snapshot:
    """Return the view with all attempts of these units ended and their room free; they do not wait either."""
    changed = Hypothesis(view)
    for unit in units:
        changed.end(unit)
        if unit in changed.candidates:
            changed.remove(unit)
    return changed.view()


def with_drain(view: Snapshot, node: str, *, on: bool) -> Snapshot:
    """Return the view with a node drained, or opened. Raises KeyError for an unknown node."""
    changed = Hypothesis(view)
    changed.fleet.closed[changed.fleet.rows[node]] = DRAINED if on else 0
    return changed.view()


def with_node(view: Snapshot, node: Node) -> Snapshot:
    """Return the view with an additional, empty node. Its name must be new."""
    fleet = Fleet(sorted((*view.fleet.nodes, node), key=_name))
    fleet.take_over(view.fleet)
    return msgspec.structs.replace(view, fleet=fleet)


# --- asking a policy -------------------------------------------------------------------------------------------------


def placed(plan: Plan, unit: str) -> Place | None:
    """Return where a plan places a unit; None if it does not."""
    return next((of for of in plan.decisions if isinstance(of, Place) and of.unit == unit), None)


def starts(policy: ClusterPolicy, view: Snapshot, unit: str) -> tuple[Place, tuple[str, ...]] | None:
    """Return the placement with which a unit starts now, or once the units preempted for it have ended, and their
    names; None if it waits for anything else.
    """
    plan = policy.decide(view)
    found = placed(plan, unit)
    if found is not None:
        return found, ()
    asked = [of for of in plan.decisions if isinstance(of, Preempt | Resize) and of.to == unit]
    victims = tuple(of.unit for of in asked)
    if not victims:
        return None
    changed = Hypothesis(view)
    changed.carry_out(plan)
    for of in asked:
        if isinstance(of, Resize):
            changed.end_leaving(of.unit)
        else:
            changed.end(of.unit)
    changed.now += GRACE
    found = placed(policy.decide(changed.view()), unit)
    return None if found is None else (found, victims)


def order_of(policy: ClusterPolicy) -> Order | None:
    """Return the order in which a policy serves waiting units; None where only its code defines it."""
    if isinstance(policy, Suite):
        return policy.order
    return ORDERS["arrival"] if isinstance(policy, Static) else None


def protected(policy: ClusterPolicy, candidate: Candidate, resident: Resident, now: int) -> Reason | None:
    """Return why a running unit is not preempted yet for a unit of a higher class; None if it may be, or never is."""
    rules = policy.recipe.preempt if isinstance(policy, Suite) else None
    if rules is None or resident.priority <= candidate.priority or resident.stopping or not resident.running:
        return None
    if not resident.preemptible:
        return Reason(code="PROTECTED", subject=resident.unit, have="`preemptible: false`", fixable="never")
    at = may_be_asked(resident, rules)
    if at <= now:
        return None
    left = format_duration(at - now)
    have = f"its minimum run time is {format_duration(at - resident.since)}, {left} left"
    return Reason(code="PROTECTED", subject=resident.unit, have=have, need=left)


def draft_of(policy: ClusterPolicy, view: Snapshot) -> Draft:
    """Return a draft that scores nodes as the policy does; by name if only the policy's code defines the score."""
    if isinstance(policy, Suite):
        return Draft(view, policy.recipe.score, policy.terms, spread=policy.recipe.spread)
    return Draft(view, {"first": 1.0}, TERMS)


def scores(
    policy: ClusterPolicy, view: Snapshot, candidate: Candidate, shape: Shape, nodes: Iterable[str]
) -> list[float]:
    """Return the score of each of these nodes for one task, in [0, 1], with the policy's weights; nothing if only the
    policy's code defines it.
    """
    if order_of(policy) is None:
        return []
    draft = draft_of(policy, view)
    rows = np.array([view.fleet.rows[node] for node in nodes], np.int64)
    return [round(float(score), 4) for score in draft.scores(rows, shape, draft.estimates(candidate, shape))]


# --- inside ----------------------------------------------------------------------------------------------------------


SHARED = tuple(name for name in Candidate.__struct_fields__ if name in Resident.__struct_fields__)
"""Fields that candidates and residents share."""


_shared_values = attrgetter(*SHARED)


def _shared(of: Candidate) -> dict[str, Any]:
    return dict(zip(SHARED, _shared_values(of), strict=True))


def _ordinal(candidate: Candidate) -> int:
    return candidate.ordinal


def _name(node: Node) -> str:
    return node.name


__all__ = [
    "Hypothesis",
    "after",
    "draft_of",
    "order_of",
    "placed",
    "protected",
    "scores",
    "starts",
    "with_candidates",
    "with_changed",
    "with_drain",
    "with_node",
    "with_places",
    "without",
]
