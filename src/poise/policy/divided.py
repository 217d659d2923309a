"""Two policies, each for a part of the nodes: one on trial, and the current one for the rest (`split`).

Each policy gets a view of its own nodes, of what runs there, and of the waiting work that these nodes could hold. The
one on trial decides first; the other then sees the same work without what the first has placed. So a unit waits only if
neither policy starts it, and no unit is assigned to one of the parts. The memory of each policy is its own.

A decision of a policy for a node or a unit that its view does not have is dropped; the others stand.

Neither policy preempts work for a unit for which work of the other part is being stopped, or that the other policy
places in the same round. Quotas, limits of shares and unused guarantees count for all nodes together.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from poise.model.decisions import Decision, Hold, Place, Plan, Preempt, Reason, Resize, Spot
from poise.model.fleet import Resident
from poise.model.resources import Shape
from poise.model.selection import Selection
from poise.model.share_tree import CPU, ShareView, amounts_of, amounts_there
from poise.model.views import Candidate, Snapshot
from poise.policy.allowance import Allowance
from poise.policy.entitled import Standing, free_devices
from poise.policy.split import REST, TRIAL, Reach, divide
from poise.policy.suites import ClusterPolicy


class Split:
    """The policy `trial` on the nodes of a selection, and `rest` on all others."""

    def __init__(self, name: str, trial: ClusterPolicy, rest: ClusterPolicy, nodes: Selection) -> None:
        self.name = name
        self._trial, self._rest, self._nodes = trial, rest, nodes

    def decide(self, view: Snapshot, /) -> Plan:
        """Let the policy on trial decide for its nodes, then the other one for the rest."""
        rows = divide(view, self._nodes).rows
        if not rows:
            return self._alone(self._rest, REST, view)
        if len(rows) == len(view.fleet):
            return self._alone(self._trial, TRIAL, view)
        parts = _Parts(view, rows)
        view = parts.on_trial()
        first = parts.trial.own(self._trial.decide(view), view)
        second = None
        if not parts.is_used_up(first):
            view = parts.for_rest(first)
            second = parts.rest.own(self._rest.decide(view), view)
        return msgspec.structs.replace(parts.joined(first, second), policy=self.name)

    def _alone(self, policy: ClusterPolicy, key: str, view: Snapshot) -> Plan:
        plan = policy.decide(msgspec.structs.replace(view, memory=view.memory.get(key, {})))
        memory = None if plan.memory is None else {**view.memory, key: plan.memory}
        return msgspec.structs.replace(plan, policy=self.name, memory=memory)


class _Side:
    """The nodes of one part, the units that run there, and the waiting units that it could hold."""

    def __init__(self, view: Snapshot, rows: Sequence[int], candidates: Sequence[Candidate]) -> None:
        self.fleet, self.candidates = view.fleet.part(rows), tuple(candidates)
        self.running: dict[str, list[Resident]] = {}
        for residents in self.fleet.residents:
            for one in residents:
                self.running.setdefault(one.unit, []).append(one)
        self.leaving = {unit: to for unit, to in view.yielded.items() if self._stops(unit)}
        """The units that are being stopped here, each with the one that gets their room."""

    def own(self, plan: Plan, view: Snapshot) -> Plan:
        """Return a plan for the view of this part without decisions for nodes and units that the view does not have. A
        policy may be anybody's, and the rest of its plan is sound.
        """
        waiting = {one.unit: one for one in view.candidates}

        def has(of: Decision) -> bool:
            match of:
                case Place():
                    one = waiting.get(of.unit)
                    spots = of.spots if one is not None and 0 <= of.variant <= len(one.others) else None
                case Resize():
                    spots = of.joins if of.unit in self.running else None
                case Preempt():
                    spots = () if of.unit in self.running else None
                case Hold():
                    spots = ()
            return spots is not None and all(spot.node in self.fleet.rows for spot in spots)

        kept = tuple(of for of in plan.decisions if has(of))
        if len(kept) == len(plan.decisions):
            return plan
        return msgspec.structs.replace(plan, decisions=kept, closed=False, asks=None)

    def _stops(self, unit: str) -> bool:
        return any(one.stopping for one in self.running.get(unit, ()))


class _Taken(NamedTuple):
    """Room that a decision takes: by a unit that starts, or by the tasks that join a running gang."""

    leaf: str
    tenant: str
    shape: Shape
    spots: tuple[Spot, ...]


class _Parts:
    """The views of both policies in one round, and their plans as one."""

    def __init__(self, view: Snapshot, rows: Sequence[int]) -> None:
        self._view, mine = view, set(rows)
        reach = Reach(view, rows)
        could = [(one, reach.parts_of(one)) for one in view.candidates]
        others = [row for row in range(len(view.fleet)) if row not in mine]
        self.trial = _Side(view, rows, [one for one, (here, _) in could if here])
        self.rest = _Side(view, others, [one for one, (_, there) in could if there])
        self._waiting = {one.unit: one for one in view.candidates}
        self._shown = Counter(one.queue for one in view.candidates if not one.recovering)

    def on_trial(self) -> Snapshot:
        """Return the view of the policy on trial."""
        rest = self.rest
        elsewhere = {} if self._view.shares is None else free_devices(rest.fleet, rest.fleet.device_share)
        shares = self._shares(self.trial.candidates, rest, [], rest.leaving)
        return self._of(self.trial, self.trial.candidates, TRIAL, elsewhere=elsewhere, shares=shares)

    def for_rest(self, first: Plan) -> Snapshot:
        """Return the view of the other policy, after the plan of the first."""
        view, trial, taken = self._view, self.trial, list(self._taken(first))
        placed = {place.unit for place in _places(first)}
        candidates = tuple(one for one in self.rest.candidates if one.unit not in placed)
        leaving = trial.leaving | {of.unit: of.to for of in first.decisions if isinstance(of, Preempt) and of.to}
        elsewhere = {} if view.shares is None else free_devices(trial.fleet, trial.fleet.device_share)
        allowance = Allowance(view.quotas)
        for one in taken:
            allowance.use(one.tenant, one.shape, len(one.spots))
            for model, amount in self._held_by(one).items() if elsewhere else ():
                elsewhere[model] = elsewhere.get(model, 0) - amount
        return self._of(
            self.rest,
            candidates,
            REST,
            elsewhere=elsewhere,
            shares=self._shares(candidates, trial, taken, leaving),
            quotas=allowance.left,
            yielded={**view.yielded, **leaving},
        )

    def is_used_up(self, first: Plan) -> bool:
        """Return whether the first plan starts all shown units of a queue that is longer: the next ones of this queue
        may come before other work, so the rest is decided in the next round.
        """
        placed = Counter(self._waiting[place.unit].queue for place in _places(first))
        return any(
            count >= self._shown[queue] and self._view.backlog.get(queue, 0) > self._shown[queue]
            for queue, count in placed.items()
        )

    def joined(self, first: Plan, second: Plan | None) -> Plan:
        """Return both plans as one; without a second one, another round follows at once."""
        view, plans = self._view, [first] if second is None else [first, second]
        memory = dict(view.memory)
        for key, plan in zip((TRIAL, REST), plans, strict=False):
            if plan.memory is not None:
                memory[key] = plan.memory
        decisions, postponed = self._decisions(first, second)
        until = min((plan.until for plan in plans if plan.until is not None), default=None)
        dropped = sum(not isinstance(of, Hold) for plan in plans for of in plan.decisions) - sum(
            not isinstance(of, Hold) for of in decisions
        )
        asks = [plan.asks for plan in plans if plan.asks is not None]
        reliable = second is not None and len(asks) == len(plans) and not dropped
        return msgspec.structs.replace(
            first,
            decisions=tuple(decisions),
            until=view.now + 1 if postponed else until,
            memory=memory if memory != view.memory else None,
            closed=second is not None and all(plan.closed for plan in plans),
            asks=tuple(dict.fromkeys(ask for of in asks for ask in of)) if reliable else None,
        )

    def _decisions(self, first: Plan, second: Plan | None) -> tuple[list[Decision], bool]:
        """Return the decisions of both plans, and whether the first policy should decide again at once."""
        others = second.decisions if second is not None else ()
        placed = {of.unit for of in others if isinstance(of, Place)}
        gaining = set(self.rest.leaving.values())
        made: list[Decision] = []
        instead = False
        for of in first.decisions:
            if isinstance(of, Hold) or (isinstance(of, Stop) and of.to and of.to in gaining):
                continue
            if isinstance(of, Stop) and of.to and of.to in placed:
                instead = True
                continue
            made.append(of)
        gaining = {*self.trial.leaving.values(), *(of.to for of in made if isinstance(of, Stop) and of.to)}
        made += [of for of in others if not (isinstance(of, Hold) or (isinstance(of, Stop) and of.to in gaining))]
        return [*made, *self._holds(first, second)], second is None or instead

    def _holds(self, first: Plan, second: Plan | None) -> list[Hold]:
        """Return the queues that wait, each with the reasons of both parts."""
        others = second.decisions if second is not None else ()
        started = {self._waiting[of.unit].queue for of in others if isinstance(of, Place)}
        held = {of.queue for of in others if isinstance(of, Hold)}
        reasons: dict[str, dict[Reason, None]] = {}
        for plan in (first, second) if second is not None else (first,):
            for of in plan.decisions:
                if isinstance(of, Hold) and (of.queue in held or of.queue not in started):
                    told = (_of_part(reason, plan.policy) for reason in of.reasons)
                    reasons.setdefault(of.queue, {}).update(dict.fromkeys(told))
        return [Hold(queue=queue, reasons=tuple(of)) for queue, of in reasons.items()]

    def _of(self, side: _Side, candidates: tuple[Candidate, ...], key: str, **changes: Any) -> Snapshot:
        """Return the view of one part."""
        view, running, rows = self._view, side.running, side.fleet.rows
        here = Counter(one.queue for one in candidates if not one.recovering)
        backlog = {
            queue: count - self._shown[queue] + here[queue]
            for queue, count in view.backlog.items()
            if here[queue] or not self._shown[queue]
        }
        return msgspec.structs.replace(
            view,
            fleet=side.fleet,
            candidates=candidates,
            backlog=backlog,
            memory=view.memory.get(key, {}),
            elastic=tuple(one for one in view.elastic if one.unit in running),
            stragglers=tuple(one for one in view.stragglers if one.node in rows),
            phased=tuple(one for one in view.phased if all(node in rows for node in one.nodes)),
            **changes,
        )

    def _shares(
        self, candidates: Sequence[Candidate], other: _Side, taken: Sequence[_Taken], leaving: Mapping[str, str]
    ) -> ShareView | None:
        """Return what the shares hold with the room that the other part takes, and with the room that is made there."""
        view = self._view
        if view.shares is None or not (taken or leaving):
            return view.shares
        standing, shown = Standing(view.shares), {one.unit for one in candidates}
        for room in taken:
            standing.count(room.leaf, self._held_by(room))
        for unit in leaving:
            for one in other.running.get(unit, ()):
                standing.count(one.leaf, amounts_of(one.shape, one.model if one.shape.gpus else CPU), -1)
        for unit in dict.fromkeys(leaving.values()):
            if unit not in shown and unit in self._waiting:  # the policy itself counts those that it sees
                standing.count(*standing.claim(self._waiting[unit], view.fleet))
        return standing.view()

    def _taken(self, first: Plan) -> Iterator[_Taken]:
        """Yield the room that the first plan takes."""
        for of in first.decisions:
            if isinstance(of, Place):
                one = self._waiting[of.unit]
                shape = (one.shape, *one.others)[of.variant]
                yield _Taken(one.leaf, "" if one.recovering else one.tenant, shape, of.spots)
            elif isinstance(of, Resize) and of.joins:
                member = self.trial.running[of.unit][0]
                yield _Taken(member.leaf, member.tenant, member.shape, of.joins)

    def _held_by(self, room: _Taken) -> dict[str, int]:
        fleet, held = self._view.fleet, Counter[str]()
        for spot in room.spots:
            held.update(amounts_there(room.shape, fleet.nodes[fleet.rows[spot.node]], spot.devices))
        return dict(held)


Stop = Preempt | Resize
"""Decisions that may make room for a waiting unit."""


def _places(plan: Plan) -> list[Place]:
    return [of for of in plan.decisions if isinstance(of, Place)]


def _of_part(reason: Reason, policy: str) -> Reason:
    """Add the policy to a reason that concerns all of its nodes."""
    return msgspec.structs.replace(reason, subject=policy) if reason.code == "GANG_INCOMPLETE" else reason
