"""The named policies: small compositions of an order, a choice of node, and what a blocked unit does to those behind it.

`static` gives every unit a fixed partition of the fleet, whatever else is idle. `fifo` serves in order of arrival and never
overtakes. `round-robin` takes nodes in turn. `poise` ranks by urgency and critical path, fits tightly, lets small work
fill gaps, and keeps room for a unit that has waited long.
"""

from typing import Any

from poise.model.decisions import Decision, Hold, Place, Plan, Reason, Spot, Why
from poise.model.profiles import expected_run
from poise.model.resources import Shape
from poise.model.views import Candidate, NodeView, Snapshot
from poise.policy.place import LOOKAHEAD, Draft, tightness
from poise.policy.protocol import Policy
from poise.policy.rank import Order, by_arrival, by_urgency, effective_class, in_words
from poise.units import SECOND, format_cpu

ClusterPolicy = Policy[Snapshot, Plan]

PATIENCE = {0: 0, 1: 1 * SECOND, 2: 10 * SECOND, 3: 30 * SECOND}
"""By priority class: a large unit that has been blocked this long has room kept for it, so nothing ranked below it starts."""

ENOUGH_RUNS = 3
"""Finished runs of a class before its run time is trusted enough to queue its tasks behind each other."""


class Suite:
    """An order, a choice of node, and rules for what a blocked unit does."""

    def __init__(self, name: str, order: Order, *, overtake: bool, in_turn: bool = False) -> None:
        self.name = name
        self._order = order
        self._overtake = overtake
        self._in_turn = in_turn
        self._why_behind = Why(policy=name, rank="short work, queued behind its like")

    def decide(self, view: Snapshot, /) -> Plan:
        """Rank, place what fits, hold the rest with every reason."""
        draft = Draft(view.nodes)
        decisions: list[Decision] = []
        full: dict[Shape, tuple[Reason, ...]] = {}
        holds: dict[str, tuple[Reason, ...]] = {}
        blocked: Candidate | None = None
        turn = int(view.memory.get("turn", 0))
        for candidate in self._order(view):
            if candidate.queue in holds:
                continue
            if blocked is not None:
                holds[candidate.queue] = (Reason(code="BEHIND", subject=blocked.unit, wakes="placed"),)
                continue
            reasons = full.get(candidate.shape)
            if reasons is None:
                spots = self._place(candidate, draft, turn)
                if isinstance(spots, list):
                    turn += len(spots)
                    decisions.append(self._placed(candidate, spots, draft, view))
                    continue
                reasons = spots
                if candidate.tasks == 1:
                    full[candidate.shape] = reasons
            behind = self._behind(candidate, draft, view)
            if behind is not None:
                decisions.append(behind)
                continue
            if candidate.recovering:
                continue  # its node may come back; it is held by that, not by a queue
            holds[candidate.queue] = reasons
            if not self._overtake or (self._order is by_urgency and _keeps_room(candidate, reasons, view)):
                blocked = candidate
        decisions.extend(Hold(queue=queue, reasons=reasons) for queue, reasons in holds.items())
        memory = {"turn": turn} if self._in_turn and turn != view.memory.get("turn", 0) else None
        return Plan(base=view.revision, policy=self.name, decisions=tuple(decisions), memory=memory)

    def _place(self, candidate: Candidate, draft: Draft, turn: int) -> list[Spot] | tuple[Reason, ...]:
        """A spot for every task of the unit, or every reason why not. A gang takes all its room or none."""
        before = draft.savepoint()
        spots: list[Spot] = []
        for _ in range(candidate.tasks):
            refused = draft.refusals(candidate.shape)
            fitting = [draft.view(name) for name, reasons in refused.items() if not reasons]
            if not fitting:
                draft.undo(before)
                return _all_reasons(candidate, refused, len(spots))
            spots.append(draft.place(self._choose(fitting, draft, candidate, turn + len(spots)).name, candidate.shape))
        return spots

    def _choose(self, fitting: list[NodeView], draft: Draft, candidate: Candidate, turn: int) -> NodeView:
        if self._in_turn:
            names = [node.name for node in draft.nodes]
            start = turn % len(names)
            order = names[start:] + names[:start]
            return min(fitting, key=lambda node: order.index(node.name))
        if not self._overtake:
            return fitting[0]
        return max(fitting, key=lambda node: (tightness(node, candidate.shape), -len(node.free_devices)))

    def _placed(self, candidate: Candidate, spots: list[Spot], draft: Draft, view: Snapshot) -> Place:
        chosen = {spot.node for spot in spots}
        others = tuple(node.name for node in draft.nodes if node.name not in chosen)
        score = {}
        if self._order is by_urgency:
            score = {f"fit on {name}": tightness(draft.view(name), Shape(cpu=0)) for name in sorted(chosen)}
        return Place(
            unit=candidate.unit,
            spots=tuple(spots),
            why=Why(policy=self.name, rank=self._rank_in_words(candidate, view), score=score, instead_of=others),
        )

    def _behind(self, candidate: Candidate, draft: Draft, view: Snapshot) -> Place | None:
        profile = view.profiles.get(candidate.kind)
        if profile is None or profile.count < ENOUGH_RUNS or profile.mean > LOOKAHEAD:
            return None
        spot = draft.place_behind(candidate, max(1, expected_run(profile, 0)))
        if spot is None:
            return None
        return Place(unit=candidate.unit, spots=(spot,), queued=True, why=self._why_behind)

    def _rank_in_words(self, candidate: Candidate, view: Snapshot) -> str:
        return in_words(candidate, view.now) if self._order is by_urgency else "first come"


class Static:
    """The baseline of a fixed partition: unit number k may only use partition k modulo P, however idle the others are.

    With several nodes a partition is a node; on a single node it is one CPU. A unit that asks for more than a partition
    takes the ones that follow as well.
    """

    name = "static"

    def decide(self, view: Snapshot, /) -> Plan:
        draft = Draft(view.nodes)
        decisions: list[Decision] = []
        holds: dict[str, tuple[Reason, ...]] = {}
        partitions = _partitions(view)
        used = _partition_use(view, len(partitions))
        full: set[tuple[int, Shape]] = set()
        for candidate in view.candidates:
            own = (candidate.ordinal % max(1, len(partitions)), candidate.shape)
            if own in full:
                continue
            spots, reason = self._place(candidate, draft, partitions, used)
            if spots:
                number = candidate.ordinal % len(partitions) + 1
                why = Why(policy=self.name, rank=f"partition {number} of {len(partitions)}")
                decisions.append(Place(unit=candidate.unit, spots=tuple(spots), why=why))
                continue
            if candidate.tasks == 1:
                full.add(own)
            if not candidate.recovering:
                holds.setdefault(candidate.queue, reason)
        decisions.extend(Hold(queue=queue, reasons=reasons) for queue, reasons in holds.items())
        return Plan(base=view.revision, policy=self.name, decisions=tuple(decisions))

    def _place(
        self, candidate: Candidate, draft: Draft, partitions: list[tuple[str, int]], used: list[int]
    ) -> tuple[list[Spot], tuple[Reason, ...]]:
        if not partitions:
            return [], (Reason(code="NO_NODES", wakes="joined"),)
        before = draft.savepoint()
        spots: list[Spot] = []
        taken = list(used)
        for index in range(candidate.tasks):
            first = candidate.ordinal + index
            node = partitions[first % len(partitions)][0]
            refused = draft.refusals(candidate.shape)[node]
            if not _take_partitions(taken, partitions, first, candidate.shape.cpu):
                free = partitions[first % len(partitions)][1] - used[first % len(partitions)]
                need, have = format_cpu(candidate.shape.cpu), format_cpu(max(0, free))
                refused = [Reason(code="PARTITION_BUSY", subject=node, need=need, have=have, wakes="finished")]
            if refused:
                draft.undo(before)
                return [], tuple(refused)
            spots.append(draft.place(node, candidate.shape))
        used[:] = taken
        return spots, ()


def _keeps_room(candidate: Candidate, reasons: tuple[Reason, ...], view: Snapshot) -> bool:
    """Room is kept only for large units, which small ones would overtake for ever, and only where they could ever run."""
    large = candidate.tasks > 1 or candidate.shape.cpu > 1000 or candidate.shape.gpus > 1
    if not large or all(reason.fixable == "never" for reason in reasons):
        return False
    return view.now - candidate.ready >= PATIENCE[effective_class(candidate, view.now)]


def _partitions(view: Snapshot) -> list[tuple[str, int]]:
    """(node, milli-CPU) of each partition, in order."""
    open_nodes = [node for node in view.nodes if node.open]
    if len(open_nodes) == 1:
        return [(open_nodes[0].name, 1000)] * max(1, open_nodes[0].cpu // 1000)
    return [(node.name, node.cpu) for node in open_nodes]


def _partition_use(view: Snapshot, count: int) -> list[int]:
    used = [0] * count
    if count:
        partitions = _partitions(view)
        for active in view.active:
            for index in range(len(active.nodes)):
                _take_partitions(used, partitions, active.ordinal + index, active.cpu, force=True)
    return used


def _take_partitions(
    used: list[int], partitions: list[tuple[str, int]], first: int, cpu: int, *, force: bool = False
) -> bool:
    """Take `cpu` from partition `first` and, where it is larger than one, from those that follow."""
    count = len(partitions)
    left, takes = cpu, []
    for step in range(count):
        place = (first + step) % count
        share = min(left, partitions[place][1])
        takes.append((place, share))
        left -= share
        if left <= 0:
            break
    if not force and (left > 0 or any(used[place] + share > partitions[place][1] for place, share in takes)):
        return False
    for place, share in takes:
        used[place] += share
    return True


def _all_reasons(candidate: Candidate, refused: dict[str, list[Reason]], placed: int) -> tuple[Reason, ...]:
    reasons = [reason for of_node in refused.values() for reason in of_node]
    if not refused:
        reasons.append(Reason(code="NO_NODES", wakes="joined"))
    if candidate.tasks > 1:
        gang = Reason(code="GANG_INCOMPLETE", need=str(candidate.tasks), have=str(placed), wakes="finished")
        reasons.insert(0, gang)
    return tuple(reasons)


POLICIES: dict[str, Any] = {
    "poise": Suite("poise", by_urgency, overtake=True),
    "fifo": Suite("fifo", by_arrival, overtake=False),
    "round-robin": Suite("round-robin", by_arrival, overtake=True, in_turn=True),
    "static": Static(),
}


def policy_named(name: str) -> ClusterPolicy:
    """The policy of this name. Raises KeyError with the known names."""
    try:
        found: ClusterPolicy = POLICIES[name]
    except KeyError:
        raise KeyError(f"there is no policy `{name}`; known: {', '.join(POLICIES)}") from None
    return found
