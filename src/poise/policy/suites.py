"""The named policies: small compositions of an order, a choice of node, and what a blocked unit does to those behind
it.

`static` gives every unit a fixed partition of the fleet, whatever else is idle. `fifo` serves in order of arrival and
never overtakes. `round-robin` takes nodes in turn. `poise` ranks by urgency and critical path, fits tightly, lets
small work fill gaps, and keeps room for a unit that has waited long.
"""

from collections.abc import Iterable
from typing import Any

from poise.model.decisions import Decision, Hold, Place, Plan, Reason, Spot, Why
from poise.model.profiles import expected_run, is_brief
from poise.model.resources import Shape
from poise.model.views import Candidate, NodeView, Snapshot
from poise.policy.feasible import room_when_empty
from poise.policy.place import Draft, tightness
from poise.policy.protocol import Policy
from poise.policy.rank import Order, by_arrival, by_urgency, effective_class, in_words
from poise.units import SECOND, format_cpu

ClusterPolicy = Policy[Snapshot, Plan]
Reasons = tuple[Reason, ...]

PATIENCE = {0: 0, 1: 1 * SECOND, 2: 10 * SECOND, 3: 30 * SECOND}
"""By priority class: a unit that has been ready and without room this long has room kept for it."""


class Suite:
    """An order, a choice of node, and rules for what a blocked unit does."""

    def __init__(self, name: str, order: Order, *, overtake: bool, in_turn: bool = False) -> None:
        self.name = name
        self._order = order
        self._overtake = overtake
        self._in_turn = in_turn
        self._urgent = order is by_urgency
        self._why_behind = Why(policy=name, rank="short work, queued behind its like")

    def decide(self, view: Snapshot, /) -> Plan:
        """Rank, place what fits, hold the rest with every reason."""
        draft = Draft(view.nodes)
        decisions: list[Decision] = []
        full: dict[Shape, Reasons] = {}
        holds: dict[str, Reasons] = {}
        first = ""  # the unit that nobody may overtake, where overtaking is not allowed
        only_behind = False  # it waits on a node already, and others may follow it there
        last = str(view.memory.get("last", ""))
        for candidate in self._order(view):
            if candidate.queue in holds and not candidate.recovering:
                continue
            reasons = full.get(candidate.shape, ())
            if first and not (only_behind and reasons):
                reasons = (Reason(code="BEHIND", subject=first, wakes="placed"),)
                behind = None
                only_behind = only_behind and not _could_run(candidate, view.nodes)
            else:
                if not reasons:
                    spots, reasons = self._place(candidate, draft, view, last)
                    if spots:
                        last = spots[-1].node
                        decisions.append(self._placed(candidate, spots, draft, view))
                        continue
                    if candidate.tasks == 1:
                        full[candidate.shape] = reasons
                elif candidate.tasks > 1:
                    reasons = (_incomplete(candidate, 0), *reasons)
                behind = self._behind(candidate, draft, view)
                if not self._overtake and _could_run(candidate, view.nodes):
                    first, only_behind = first or candidate.unit, behind is not None
            if behind is not None:
                decisions.append(behind)
                continue
            if not candidate.recovering:  # that one is held by its node, which may come back, and not by a queue
                holds[candidate.queue] = reasons
            if self._urgent and _has_waited(candidate, view) and _could_run(candidate, view.nodes):
                for _ in range(candidate.tasks):
                    draft.keep_room(candidate.unit, candidate.shape)
                full.clear()
        decisions.extend(Hold(queue=queue, reasons=reasons) for queue, reasons in holds.items())
        memory = {"last": last} if self._in_turn and last != view.memory.get("last", "") else None
        return Plan(base=view.revision, policy=self.name, decisions=tuple(decisions), memory=memory)

    def _place(self, candidate: Candidate, draft: Draft, view: Snapshot, last: str) -> tuple[list[Spot], Reasons]:
        """A spot for every task of the unit, or every reason why not. A gang takes all its room or none."""
        before = draft.savepoint() if candidate.tasks > 1 else None
        brief = is_brief(view.profiles.get(candidate.kind), candidate.shape, candidate.tasks)
        spots: list[Spot] = []
        for _ in range(candidate.tasks):
            refused = draft.refusals(candidate.shape)
            fitting = [draft.view(name) for name, reasons in refused.items() if not reasons]
            if not fitting:
                if before is not None:
                    draft.undo(before)
                return [], _all_reasons(candidate, refused, len(spots))
            chosen = self._choose(fitting, candidate, spots[-1].node if spots else last)
            spots.append(draft.place(chosen.name, candidate.shape, brief=brief))
        return spots, ()

    def _choose(self, fitting: list[NodeView], candidate: Candidate, last: str) -> NodeView:
        """The next in turn, the first, or the one with least room left over."""
        if self._in_turn:
            return next((node for node in fitting if node.name > last), fitting[0])
        if not self._urgent or len(fitting) == 1:
            return fitting[0]
        return max(fitting, key=lambda node: (tightness(node, candidate.shape), -len(node.free_devices)))

    def _placed(self, candidate: Candidate, spots: list[Spot], draft: Draft, view: Snapshot) -> Place:
        chosen = {spot.node for spot in spots}
        others = tuple(node.name for node in draft.nodes if node.name not in chosen)
        score = {}
        if self._urgent:
            score = {f"fit on {name}": tightness(draft.view(name), Shape(cpu=0)) for name in sorted(chosen)}
        return Place(
            unit=candidate.unit,
            spots=tuple(spots),
            why=Why(
                policy=self.name,
                rank=in_words(candidate, view.now) if self._urgent else "first come",
                score=score,
                instead_of=others,
            ),
        )

    def _behind(self, candidate: Candidate, draft: Draft, view: Snapshot) -> Place | None:
        profile = view.profiles.get(candidate.kind)
        if not is_brief(profile, candidate.shape, candidate.tasks):
            return None
        spot = draft.place_behind(candidate, max(1, expected_run(profile, 0)))
        if spot is None:
            return None
        return Place(unit=candidate.unit, spots=(spot,), queued=True, why=self._why_behind)


class Static:
    """The baseline of a fixed partition: unit number k may only use partition k modulo P, however idle the others are.

    With several nodes a partition is a node; on a single node it is one CPU. A unit that asks for more than a partition
    takes the ones that follow as well, and one that its partition could never hold moves on to the next that could.
    """

    name = "static"

    def decide(self, view: Snapshot, /) -> Plan:
        draft = Draft(view.nodes)
        decisions: list[Decision] = []
        holds: dict[str, Reasons] = {}
        partitions = _partitions(view)
        used = _partition_use(view, len(partitions))
        full: dict[tuple[int, Shape], Reasons] = {}
        for candidate in view.candidates:
            first = _first_partition(candidate, partitions, view)
            reasons = full.get((first, candidate.shape))
            if reasons is None:
                spots, reasons = self._place(candidate, draft, partitions, used, first)
                if spots:
                    why = Why(policy=self.name, rank=f"partition {first + 1} of {len(partitions)}")
                    decisions.append(Place(unit=candidate.unit, spots=tuple(spots), why=why))
                    continue
                if candidate.tasks == 1:
                    full[first, candidate.shape] = reasons
            if not candidate.recovering:
                holds.setdefault(candidate.queue, reasons)
            if len(view.backlog) == 1 and len(full) == len(partitions) and len(holds) == 1:
                break  # all are of one shape, and every partition is full for it
        decisions.extend(Hold(queue=queue, reasons=reasons) for queue, reasons in holds.items())
        return Plan(base=view.revision, policy=self.name, decisions=tuple(decisions))

    def _place(
        self, candidate: Candidate, draft: Draft, partitions: list[tuple[str, int]], used: list[int], first: int
    ) -> tuple[list[Spot], Reasons]:
        if not partitions:
            return [], tuple(_flat(draft.refusals(candidate.shape))) or (Reason(code="NO_NODES", wakes="joined"),)
        before = draft.savepoint()
        spots: list[Spot] = []
        taken = list(used)
        for index in range(candidate.tasks):
            place = (first + index) % len(partitions)
            node, size = partitions[place]
            refused = draft.refusals_of(node, candidate.shape)
            if not _take_partitions(taken, partitions, place, candidate.shape.cpu):
                need, have = format_cpu(candidate.shape.cpu), format_cpu(max(0, size - used[place]))
                busy = Reason(code="PARTITION_BUSY", subject=node, need=need, have=have, wakes="finished")
                refused = [busy, *refused]
            if refused:
                draft.undo(before)
                return [], tuple(refused)
            spots.append(draft.place(node, candidate.shape))
        used[:] = taken
        return spots, ()


def _has_waited(candidate: Candidate, view: Snapshot) -> bool:
    return view.now - candidate.ready >= PATIENCE[effective_class(candidate, view.now)]


def _could_run(candidate: Candidate, nodes: Iterable[NodeView]) -> bool:
    """Whether the open nodes could hold the unit if they were empty."""
    left = candidate.tasks
    for node in nodes:
        if node.open:
            left -= room_when_empty(node, candidate.shape, left)
        if left <= 0:
            return True
    return False


def _first_partition(candidate: Candidate, partitions: list[tuple[str, int]], view: Snapshot) -> int:
    """The unit's own partition, or the next whose node could ever hold one of its tasks."""
    count = len(partitions)
    own = candidate.ordinal % max(1, count)
    if len(view.nodes) == 1:
        return own
    nodes = {node.name: node for node in view.nodes}
    able = (
        (own + step) % count
        for step in range(count)
        if room_when_empty(nodes[partitions[(own + step) % count][0]], candidate.shape, 1)
    )
    return next(able, own)


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
    reasons = _flat(refused)
    if not refused:
        reasons.append(Reason(code="NO_NODES", wakes="joined"))
    if candidate.tasks > 1:
        reasons.insert(0, _incomplete(candidate, placed))
    return tuple(reasons)


def _incomplete(candidate: Candidate, placed: int) -> Reason:
    return Reason(code="GANG_INCOMPLETE", need=str(candidate.tasks), have=str(placed), wakes="finished")


def _flat(refused: dict[str, list[Reason]]) -> list[Reason]:
    return [reason for of_node in refused.values() for reason in of_node]


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
